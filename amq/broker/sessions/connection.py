"""ClientConnection: one client, as long as its socket lasts: who it is, its sessions, its temporary destinations.

It carries out the commands of all its sessions in the order in which they came. Where a session has no room its sends
wait, and those of other sessions go on; the client is not read from while any of them waits for what none of its own
acknowledgements can bring.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import cast

from amq.broker.access import ASKED_ELSEWHERE
from amq.broker.broker import Broker
from amq.broker.events import Connected, Disconnected, Event, ProducerClosed, ProducerOpened, Subscribed
from amq.broker.recipient import Recipient
from amq.broker.sessions import signing
from amq.broker.sessions.links import NOBODY, Client
from amq.broker.sessions.session import Session
from amq.broker.sessions.traffic import Traffic
from amq.broker.transactions.transaction import Transaction
from amq.core.errors import AmqError, CommandError
from amq.protocols.commands import (
    CloseSession,
    Command,
    Failure,
    InSession,
    OpenSession,
    Scope,
    Send,
    SendRun,
    SendToMany,
    SettleRun,
)

PRODUCERS_MAX = 10_000  # of one connection, that are remembered
SESSIONS_MAX = 1000  # of one connection, about 2 KiB each
SENDS = frozenset((Send, SendToMany))
RUNS = frozenset((SendRun, SettleRun))  # their handlers say whether they took all of it
LOOK_AFTER = 16  # commands at most between two looks at the clock


class ClientConnection:
    """Sessions by number; session 0 is there from the beginning to the end."""

    def __init__(
        self,
        broker: Broker,
        peer: Recipient,
        temporary: str = "",
        client: Client = NOBODY,
        traffic: Traffic | None = None,
    ) -> None:
        """`temporary` = what the names of this connection's temporary destinations begin with, "" = it has none.
        `traffic` = counts that it shares, None = it has its own."""
        self.broker = broker
        self.peer = peer
        self.temporary = temporary
        self.client = client
        self.sendable = broker.access.sendable(client.user)
        self._handlers = signing.HANDLERS if broker.config.populate_jmsxuser_id else Session.HANDLERS
        self.is_closed = False
        self.is_writable = True
        self.is_lost = False  # it has no socket, and its client may come back on another one
        self.producers: dict[str, str] = {}  # those that its client has told of → full names of their destinations
        self.transactions: dict[str, Transaction] = {}  # by name: open in any of its sessions
        self.traffic = Traffic() if traffic is None else traffic
        self.now_ms = 0  # the wall clock as `handle` began, 0 = no command has asked for it
        self.stalled_bytes = 0  # of commands of all sessions that wait
        self._is_silent = bool(client.instance)  # has it still to say something?
        self._paused: set[int] = set()  # sessions for which it is not read from
        if broker.homes is not None:
            broker.homes.let_in()
        broker.links.open(self, client)
        self.id = broker.links.name(client, temporary.removesuffix("."))
        if temporary:
            broker.temporaries.open(temporary)
        if Connected in broker.events.heard:
            broker.events.tell(Connected(self.id, client.user.name, client.id))
        self.sessions = {0: Session(self, 0)}
        broker.connections[self] = None

    @property
    def whereabouts(self) -> str:
        address = getattr(self.peer, "peer_name", "")  # a part of the broker has none
        return f", of {address}" if address else ""

    def handle(
        self, commands: list[Command], session: Session | None = None, until_s: float = math.inf
    ) -> list[Command]:
        """Carry out `commands` in order: those of `session`, None = of session 0, up to an `InSession`.
        `Recipient.fail` hears of each error, also of one that is our mistake. Returns those that are left at `until_s`,
        monotonic, for another call without a session. The caller wakes the turn: once for all that it reads."""
        if self._is_silent and commands:
            self._is_silent = False
            if not self.broker.links.claim(self, self.client):
                return []
        self.now_ms = 0
        handlers, has_end = self._handlers, until_s < math.inf
        # The first look comes soon: one command may cost as much as a thousand others.
        at, step = 0, 1 if has_end else len(commands)
        while at < len(commands):
            for command in commands[at : at + step]:
                at += 1
                if self.is_closed:
                    return []
                kind = command.__class__
                if kind is InSession:
                    session = self.sessions.get(command.session) or self._session(command)  # type: ignore[attr-defined]
                    continue
                if session is None:
                    session = self.sessions[0]
                try:
                    if kind in RUNS:
                        if (session.is_held_up and kind is SendRun) or not handlers[kind](session, command):
                            commands[at:at] = cast(
                                SendRun | SettleRun, command
                            ).one_by_one()  # each of which has its turn, and may cost much
                            break
                    elif session.is_held_up and not session.may_pass(command):
                        session.stall(command)
                    else:
                        if kind not in ASKED_ELSEWHERE:
                            self.broker.access.let_in(self.client.user, command)
                        handlers[kind](session, command)
                        if kind in SENDS and not session.is_held_up:  # else it has no room, and comes here again
                            self.traffic.received += 1
                except Exception as error:  # noqa: BLE001 (the peer hears of it, and decides what ends with it)
                    self._failed(session, command, error)
            step = min(2 * step, LOOK_AFTER) if has_end else len(commands)
            if has_end and at < len(commands) and self.broker.clock.monotonic() >= until_s:
                break
        if at >= len(commands) or self.is_closed:
            return []
        assert session is not None
        return [InSession(session.number), *commands[at:]] if session.number else commands[at:]

    def _failed(self, session: Session, command: Command, error: Exception) -> None:
        """`command` failed. Our own mistake ends the connection."""
        scope = Scope.CONNECTION
        if isinstance(error, AmqError):
            session.spoil(command)
            scope = Scope.COMMAND if session.is_open else Scope.SESSION
        self.peer.fail(Failure(error, scope, command.receipt, session.number))

    def _session(self, command: Command) -> Session:
        """The session that `command` names. Where that is not open, every command fails."""
        assert isinstance(command, InSession)
        session = self.sessions.get(command.session)
        if session is None:
            session = Session(self, command.session)
            session.close()
        return session

    def open_session(self, command: OpenSession) -> None:
        """Raises CommandError."""
        if command.session in self.sessions:
            raise CommandError(f"session {command.session} is open already: give each another number")
        if len(self.sessions) >= SESSIONS_MAX:
            raise CommandError(
                f"this connection has {SESSIONS_MAX} sessions already: use one for each thread",
                code="SESSIONS_TOO_MANY",
            )
        self.sessions[command.session] = Session(self, command.session)

    def close_session(self, command: CloseSession) -> None:
        """Raises CommandError."""
        session = self.sessions.get(command.session)
        if session is None or not command.session:
            raise CommandError(f"session {command.session} is not open", code="UNKNOWN_SESSION")
        del self.sessions[command.session]
        session.close()

    def open_producer(self, id: str, destination: str) -> None:
        """A producer of that name begins. More than PRODUCERS_MAX are not remembered, nor told."""
        self.broker.known_topics.use(destination)
        if len(self.producers) < PRODUCERS_MAX and id not in self.producers:
            self.producers[id] = destination
            if ProducerOpened in self.broker.events.heard:
                self.broker.events.tell(ProducerOpened(self.id, id, destination))

    def close_producer(self, id: str) -> None:
        destination = self.producers.pop(id, None)
        if destination is not None and ProducerClosed in self.broker.events.heard:
            self.broker.events.tell(ProducerClosed(self.id, id, destination))

    def check_again(self) -> None:
        """There are other rules."""
        for session in list(self.sessions.values()):
            session.check_again()

    def facts(self) -> Iterator[Event]:
        """The events that tell of it and of what it has."""
        yield Connected(self.id, self.client.user.name, self.client.id)
        for id, destination in self.producers.items():
            yield ProducerOpened(self.id, id, destination)
        for session in self.sessions.values():
            for each in session.consumers():
                selector = each.selector.text if each.selector is not None else ""
                yield Subscribed(self.id, each.id, each.sources, selector)

    def close(self) -> None:
        """The connection is gone: what it held goes back to the queues."""
        if self.is_closed:
            return
        self.is_closed = True
        broker = self.broker
        broker.connections.pop(self, None)
        for id in list(self.producers):
            self.close_producer(id)
        for session in self.sessions.values():
            session.close()
        self.sessions.clear()
        broker.temporaries.close(self.temporary)
        broker.links.close(self, self.client, self.id)
        if Disconnected in broker.events.heard:
            broker.events.tell(Disconnected(self.id))
        broker.wake()

    def leave(self) -> None:
        """Its client is about to end it, and may come back at another gateway before its end is heard of here."""
        self.broker.links.leave(self, self.client)

    def lose(self) -> None:
        """The socket is gone. It keeps what it holds for its client, and nothing is delivered to it."""
        self.is_lost = True
        self.set_writable(False)

    def steal(self, error: AmqError) -> None:
        """The client has another connection, in place of this one: what this one holds goes back to the queues."""
        self.peer.fail(Failure(error, Scope.CONNECTION))

    def set_writable(self, writable: bool) -> None:
        """The socket has room (again), or has not: a slow consumer gets nothing until it reads."""
        if self.is_closed or writable == self.is_writable:
            return
        self.is_writable = writable
        for session in self.sessions.values():
            session.set_writable(writable)
        if writable:
            self.broker.wake()

    def expire_transactions(self, now: float) -> None:
        """Roll back what was not used for longer than the limit."""
        for session in list(self.sessions.values()):
            session.expire_transactions(now)

    def holds_deliveries(self) -> bool:
        return any(session.holds_deliveries() for session in self.sessions.values())

    def session_that_waits(self) -> Session | None:
        """One whose commands wait for room, None = there is no such one."""
        return next((session for session in self.sessions.values() if session.is_held_up), None)

    def pause(self, session: int) -> None:
        """Do not read the client: that session waits."""
        self._paused.add(session)
        self.peer.pause_reading()

    def resume(self, session: int) -> None:
        """That session does not wait any more, or its client may acknowledge meanwhile."""
        self._paused.discard(session)
        if not self._paused:
            self.peer.resume_reading()


class SentAway(ClientConnection):
    """A client of a store that was merged into another one: it is let in to learn where that is, and carries out
    nothing."""

    def handle(
        self,
        commands: list[Command],  # noqa: ARG002
        session: Session | None = None,  # noqa: ARG002
        until_s: float = math.inf,  # noqa: ARG002
    ) -> list[Command]:
        assert self.broker.homes is not None
        self.steal(self.broker.homes.refusal())
        return []
