"""The clients of a `World` reach its broker over a link without sockets: each frame arrives as it is written.

So each test of `tests/broker` can run with a link in between. What looks at the broker's side of a client finds it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

from amq.broker.queues.redelivery import shown
from amq.broker.sessions.connection import ClientConnection
from amq.broker.sessions.links import NOBODY
from amq.core.message import Message
from amq.journal.reader import RecordRun
from amq.link.calls import ClientOpening
from amq.link.framing import Kind, LinkFrames
from amq.link.link import RemoteConnection
from amq.link.linked import LinkedClient
from amq.protocols.commands import Failure, Scope, Subscribe

_numbers = itertools.count(1)


class Home(LinkedClient):
    """Remembers the consumers by their numbers, for tests that look at them."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.consumers: dict[Any, Any] = {}
        self.seen: Any = None  # the client, for tests that look at it from the broker's side

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.seen, name)

    def _note(self, subscription: Any) -> None:
        self.consumers[subscription.wire] = subscription

    def deliver(self, subscription: Any, message: Message, redelivered: int) -> None:
        self._note(subscription)
        super().deliver(subscription, message, redelivered)

    def deliver_all(self, subscription: Any, messages: list[Message]) -> None:
        self._note(subscription)
        super().deliver_all(subscription, messages)

    def deliver_batch(self, subscription: Any, batch: Any) -> None:
        self._note(subscription)
        super().deliver_batch(subscription, batch)

    def deliver_run(self, subscription: Any, *rest: Any) -> None:
        self._note(subscription)
        super().deliver_run(subscription, *rest)

    def browsed(self, subscription: Any) -> None:
        self._note(subscription)
        super().browsed(subscription)

    def confirm(self, receipt: object, outcome: str = "") -> None:
        """At once, where a link does it at the end of the turn."""
        super().confirm(receipt, outcome)
        self.flush()

    def confirm_all(self, receipts: Sequence[object]) -> None:
        super().confirm_all(receipts)
        self.flush()


class Piped:
    """A connection as a `Client` of a world has it: in place of its `ClientConnection`, and its own recipient."""

    is_full = False

    def __init__(self, broker: Any, peer: Any, temporary: str = "", client: Any = NOBODY, traffic: Any = None) -> None:
        world = peer.world
        self._peer = peer
        self._world = world
        self._count = itertools.count(1)
        self._wires: dict[int, object] = {}
        self._to_home, self._to_gateway = LinkFrames(), LinkFrames()
        turn = SimpleNamespace(wake=world.broker.wake, shares=SimpleNamespace(forget=lambda _: None))
        door = SimpleNamespace(let_in=lambda *_: None, leave=lambda *_: None)
        hub: Any = SimpleNamespace(
            clock=world.clock,
            turn=turn,
            config=world.config,
            door=door,
            epoch="no number",
            shown=shown,
            lend=world.broker.lend,
            take_back=world.broker.take_back,
            opened=lambda _: True,
            closed=lambda _: None,
            admit=lambda home, owner, client, _: ClientConnection(broker, home, owner, client, traffic),
        )
        scopes = (Scope.COMMAND, Scope.CONSUMER, Scope.SESSION)
        user = client.user
        roles = tuple(user.roles)
        opening = ClientOpening(
            user.name, roles, client.id, client.instance, client.exclusive, temporary, "none", "", scopes
        )
        link: Any = self
        self._remote = RemoteConnection(link, 1, link, client)
        self._home = Home(hub, _HomeEnd(self), next(_numbers), 1, opening, "")
        self._home.seen = peer
        self._home.begin()
        home = self._home.client
        assert home is not None
        self._connection = home

    # -- the link, as the remote connection sees it --------------------------------------------------------------------

    def write(self, *pieces: bytes) -> None:
        for frame in self._to_home.receive(b"".join(pieces)):
            if self._home.take(frame):
                self._home.work(float("inf"))

    def keeps(self, *_: Any) -> bool:
        return True

    def hurry(self) -> None: ...
    def wait(self, connection: Any) -> None: ...
    def wake(self) -> None: ...

    def from_home(self, *pieces: bytes) -> None:
        for frame in self._to_gateway.receive(b"".join(pieces)):
            if frame.kind == Kind.CLOSE:
                self._remote.end_by_home()
            else:
                self._remote.take(frame)

    # -- the recipient, as the remote connection sees it ---------------------------------------------------------------

    def subscribed(self, command: Subscribe, session: int) -> int:
        number = next(self._count)
        self._wires[number] = self._peer.subscribed(command, session)
        return number

    def _of(self, consumer: Any) -> Any:
        return _Shown(self._wires[consumer.wire], self._home.consumers[consumer.wire])

    def deliver(self, consumer: Any, message: Message, redelivered: int) -> None:
        self._peer.deliver(self._of(consumer), message, redelivered)

    def deliver_all(self, consumer: Any, messages: list[Message]) -> None:
        if len(messages) > 1:
            self._peer.deliver_all(self._of(consumer), messages)
        else:
            self._peer.deliver(self._of(consumer), messages[0], 0)

    def deliver_run(
        self, consumer: Any, destination: str, run: RecordRun, seq: int, redelivered: Sequence[tuple[int, int]]
    ) -> None:
        self._peer.deliver_run(self._of(consumer), destination, run, seq, redelivered)

    def browsed(self, consumer: Any) -> None:
        self._peer.browsed(self._of(consumer))

    def confirm(self, receipt: object, outcome: str = "") -> None:
        self._peer.confirm(receipt, outcome)

    def confirm_all(self, receipts: Sequence[object]) -> None:
        self._peer.confirm_all(receipts)

    def fail(self, failure: Failure) -> None:
        self._peer.fail(failure)

    def close(self) -> None:
        """Of the connection: the client goes, or the home has ended it."""
        if self._remote.is_closed:
            self._peer.close()
        else:
            self._remote.close()

    def pause_reading(self) -> None:
        self._peer.pause_reading()

    def resume_reading(self) -> None:
        self._peer.resume_reading()

    # -- the connection, as the client sees it -------------------------------------------------------------------------

    def handle(self, commands: list[Any], **_: Any) -> list[Any]:
        return self._remote.handle(commands)

    def set_writable(self, writable: bool) -> None:
        self._remote.set_writable(writable)

    def lose(self) -> None:
        self._remote.lose()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


class _Shown:
    """A consumer of the broker, with what its client keeps of it."""

    def __init__(self, wire: object, subscription: Any) -> None:
        self.wire = wire
        self._subscription = subscription

    def __getattr__(self, name: str) -> Any:
        return getattr(self._subscription, name)


class _HomeEnd:
    """The link, as the home sees it."""

    is_full = False

    def __init__(self, pipe: Piped) -> None:
        self._pipe = pipe

    def write(self, *pieces: bytes) -> None:
        self._pipe.from_home(*pieces)

    def hold(self, client: LinkedClient) -> None: ...

    def flush_later(self, client: LinkedClient) -> None: ...

    def over(self, client: LinkedClient) -> None: ...
