"""Parking: connections whose clients may come back on another socket, and go on there as if nothing had happened.

A client that asks for it when it logs in gets a token, which nobody can guess. When its socket breaks, the connection
is parked for the window that was agreed on: its sessions keep what they hold, and nothing is delivered to it. The same
client, with the token, gets it back in time. Invariants: at most `maxConnections` connections are parked, besides those
that have a socket; all windows together keep at most `confirmationWindowLimit` bytes; a connection that has ended is
in no table here.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Generic, Protocol, TypeVar

from amq.config.node_options import NodeOptions
from amq.protocols.commands import Reattach
from amq.transports.window import Window, step_bytes

TOKEN_BYTES = 16


class Parkable(Protocol):
    """A connection, which may lose its socket."""

    def abort(self) -> None: ...


_Connection = TypeVar("_Connection", bound=Parkable)


class Lifeline:
    """All that a connection needs to be attached again.

    window_s  how long it is parked at most
    told      how many bytes of the client it has confirmed; `step` more are confirmed by themselves
    """

    __slots__ = ("_account", "confirmed", "step", "token", "told", "window", "window_s")

    def __init__(self, token: str, window_s: float, window: Window, step: int, account: Account) -> None:
        self.token = token
        self.window_s = window_s
        self.window = window
        self.step = step
        self.told = 0
        self.confirmed = 0
        self._account = account

    def sent(self, data: bytes) -> None:
        """`data` is written, or would have been if there were a socket."""
        window, account = self.window, self._account
        before = window.held_bytes
        window.push(data)
        excess = account.bytes + window.held_bytes - before - account.bytes_max()
        if excess > 0:
            window.shrink(max(0, window.held_bytes - excess))
        account.bytes += window.held_bytes - before

    def confirm(self, count: int) -> None:
        """The client has this many bytes of ours."""
        self.confirmed = count
        before = self.window.held_bytes
        self.window.confirm(count)
        self._account.bytes += self.window.held_bytes - before

    def end(self) -> None:
        """Nothing is repeated any more."""
        self._account.bytes -= self.window.held_bytes
        self.window = Window(0)


class Account:
    """The bytes that all windows keep."""

    __slots__ = ("bytes", "bytes_max")

    def __init__(self, bytes_max: Callable[[], int]) -> None:
        self.bytes = 0
        self.bytes_max = bytes_max


class Parking(Generic[_Connection]):
    """All connections that have a token, and those of them that have no socket now."""

    def __init__(self, entropy: Random, config: Callable[[], NodeOptions]) -> None:
        self._entropy = entropy
        self._config = config
        self._account = Account(lambda: config().confirmation_window_limit_bytes)
        self._connections: dict[str, _Connection] = {}  # by token
        self.parked: dict[_Connection, None] = {}  # the one that lost its socket first comes first
        self.is_closed = False

    @property
    def held_bytes(self) -> int:
        return self._account.bytes

    def __len__(self) -> int:
        """How many connections have a token."""
        return len(self._connections)

    def grant(self, connection: _Connection, asked: Reattach) -> Lifeline | None:
        """All that `connection` needs to come back; None = this broker grants it to nobody."""
        config = self._config()
        window_s = min(asked.window_ms / 1000, config.reconnect_window_s)
        if self.is_closed or not window_s or not config.confirmation_window_size_bytes:
            return None
        token = self._entropy.randbytes(TOKEN_BYTES).hex()
        self._connections[token] = connection
        window = Window(config.confirmation_window_size_bytes)
        return Lifeline(token, window_s, window, step_bytes(asked.window_bytes), self._account)

    def find(self, token: str) -> _Connection | None:
        return self._connections.get(token)

    def park(self, connection: _Connection) -> None:
        """It has no socket any more. Where too many have none, the one that lost its own first ends."""
        if len(self.parked) >= self._config().max_connections:
            next(iter(self.parked)).abort()
        self.parked[connection] = None

    def unpark(self, connection: _Connection) -> None:
        """It has a socket again."""
        self.parked.pop(connection, None)

    def forget(self, connection: _Connection, lifeline: Lifeline) -> None:
        """It has ended."""
        lifeline.end()
        self._connections.pop(lifeline.token, None)
        self.parked.pop(connection, None)

    def close(self) -> None:
        """The master ends. All that are parked end as a lost connection does, and no more will be."""
        self.is_closed = True
        for connection in list(self.parked):
            connection.abort()
