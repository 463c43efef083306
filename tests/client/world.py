"""A client machine and a group of brokers without sockets, threads and time: every byte moves when the test says so."""

from __future__ import annotations

import random

from fake_broker import Conversation, Script, Store

from amq.client.core import ProducerCore, SessionCore, Subscription
from amq.client.errors import ConnectError, ConnectionLostError
from amq.client.link import Fetch, Keep, Link, OpenLink
from amq.client.machine import Machine
from amq.client.requests import ConnectionEvent, EventKind, Request
from amq.client.states import State
from amq.client.uri import parse


class World:
    """`alive` = hosts that accept connections; all share `store`."""

    def __init__(self, url: str, alive: str = "a", script: Script | None = None, **machine: object) -> None:
        self.store = Store()
        self.alive = set(alive)
        self.script = script
        self.passcode: str | None = None
        self.now = 1000.0
        self.machine = Machine(parse(url), random.Random(1), **machine)  # type: ignore[arg-type]
        self.pending: list[Link] = []  # opened by the machine, not answered yet
        self.wires: dict[Link, Conversation] = {}
        self.tried: list[str] = []
        self.fetches: list[str] = []  # lists that the machine wants to read, not answered yet
        self.files: dict[str, str] = {}  # that it keeps
        self.events: list[ConnectionEvent] = []
        self.heart_beat = "0,0"
        self.beating = False  # do the brokers send the heart-beats that they promised?

    # ---- single steps

    def act(self) -> None:
        """Carry out what the machine asks, without answering connection attempts."""
        while self.machine.actions:
            action = self.machine.actions.pop(0)
            if isinstance(action, Fetch):
                self.fetches.append(action.source)
                continue
            if isinstance(action, Keep):
                self.files[action.path] = action.text
                continue
            link = action.link
            if isinstance(action, OpenLink):
                self.tried.append(link.uri.host)
                self.pending.append(link)
                continue
            if link in self.pending:
                self.pending.remove(link)
            if link in self.wires:
                self.to_broker(link)
                self.wires.pop(link).lose()
        self.events += self.machine.events
        self.machine.events.clear()

    def answer(self) -> None:
        """Accept or refuse the oldest connection attempt."""
        link = self.pending.pop(0)
        if link.uri.host in self.alive:
            conversation = Conversation(self.store, self.script, self.passcode)
            conversation.heart_beat = self.heart_beat
            self.wires[link] = conversation
            self.machine.opened(link, self.now)
        else:
            self.machine.failed(link, ConnectError(f"{link.uri}: refused"), self.now)

    def to_broker(self, link: Link, size: int | None = None) -> bool:
        """Move bytes of the client; the rest stays, or is lost with the link."""
        data = link.take_output(self.now)
        if size is not None and size < len(data):
            link.out.append(data[size:])
            data = data[:size]
        self.wires[link].feed(data)
        return bool(data)

    def to_client(self, link: Link, size: int | None = None) -> bool:
        conversation = self.wires[link]
        data = bytes(conversation.out[:size])
        del conversation.out[: len(data)]
        if data:
            self.machine.received(link, data, self.now)
        elif conversation.closed:
            self.cut(link)
        return bool(data)

    def cut(self, link: Link) -> None:
        """The connection breaks; what is on its way is lost."""
        conversation = self.wires.pop(link)
        conversation.lose()
        self.machine.failed(link, ConnectionLostError(f"{link.uri}: reset"), self.now)

    # ---- many steps

    def settle(self) -> None:
        """Let everything happen that needs no time."""
        while True:
            self.act()
            if self.pending:
                self.answer()
                continue
            moved = [self.to_broker(link) for link in list(self.wires)]
            moved += [self.to_client(link) for link in list(self.wires) if link in self.wires]
            if not any(moved) and not self.machine.actions and not self.pending:
                self.act()
                return

    def advance(self, seconds: float) -> None:
        """Let time pass, calling `tick` at each deadline."""
        self.settle()
        end = self.now + seconds
        while (deadline := self.machine.deadline()) is not None and deadline <= end:
            self.now = max(self.now, deadline)
            for conversation in self.wires.values():
                conversation.out += b"\n" * self.beating
            self.settle()
            self.machine.tick(self.now)
            self.settle()
            if self.machine.deadline() == deadline:
                self.now += 1e-6  # nothing more at this instant
        self.now = max(self.now, end)

    def connect(self) -> World:
        self.machine.start(self.now)
        self.settle()
        return self

    def kill(self, host: str) -> None:
        self.alive.discard(host)
        for link in [link for link in self.wires if link.uri.host == host]:
            self.cut(link)
        self.act()

    # ---- what an application does

    def session(self, transacted: bool = False, ack: str = "client-individual") -> SessionCore:
        return SessionCore(self.machine, transacted, ack)

    def send(self, producer: ProducerCore, body: str, duplicate_id: str = "") -> Request | None:
        assert producer.session.may_send()
        duplicate_id = duplicate_id or self.machine.next_id()
        return producer.send(body.encode(), None, True, 4, 0, "", duplicate_id, False)

    def receive(self, subscription: Subscription) -> str | None:
        return subscription.session.take(subscription).frame.body.decode() if subscription.ready() else None

    def kinds(self) -> list[EventKind]:
        self.act()
        return [event.kind for event in self.events]

    @property
    def state(self) -> State:
        return self.machine.state
