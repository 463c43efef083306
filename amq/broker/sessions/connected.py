"""Connection: what a session asks of the connection that it is a part of."""

from __future__ import annotations

from typing import Protocol, TypeVar

from amq.broker.access import Sendable
from amq.broker.broker import Broker
from amq.broker.recipient import Recipient
from amq.broker.sessions.links import Client
from amq.broker.sessions.traffic import Traffic
from amq.broker.transactions.transaction import Transaction
from amq.protocols.commands import CloseSession, Command, OpenSession

S = TypeVar("S")  # a session


class SessionHost(Protocol[S]):
    """See `amq.broker.sessions.connection`."""

    broker: Broker
    peer: Recipient
    client: Client
    temporary: str
    id: str
    sendable: Sendable
    is_closed: bool
    is_writable: bool
    now_ms: int
    stalled_bytes: int
    transactions: dict[str, Transaction]  # by name: open in any of its sessions
    traffic: Traffic

    def handle(self, commands: list[Command], session: S | None = None, until_s: float = 0) -> list[Command]: ...
    def open_session(self, command: OpenSession) -> None: ...
    def open_producer(self, id: str, destination: str) -> None: ...
    def close_producer(self, id: str) -> None: ...
    def close_session(self, command: CloseSession) -> None: ...
    def close(self) -> None: ...
    def leave(self) -> None: ...
    def holds_deliveries(self) -> bool: ...
    def session_that_waits(self) -> S | None:
        """One whose commands wait for room."""

    def pause(self, session: int) -> None: ...
    def resume(self, session: int) -> None: ...
