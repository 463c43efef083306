"""Places: who may hold a descriptor of this process, and which connection gives way when there are no more.

A process may open a limited number of files (`ulimit -n`). The order in which they run out is fixed here: strangers
first, then clients, never the mastership. Invariants:

- The last `RESERVE` descriptors belong to the broker: lock, claim, epochs, journal, checkpoints, management, probes.
  The kernel gives the lowest number that is free, so a socket whose number reaches into the reserve is closed at once.
- At most `connections_max` connections are served. That is `maxConnections`, or fewer: besides clients there are
  sockets in a handshake, and those that are refused and still read why.
- When all places are taken, the oldest connection that has not logged in within `GIVES_WAY_S` gives way to a new one.
"""

from __future__ import annotations

import resource
from collections.abc import Callable
from typing import Final, Protocol

import structlog

from amq.doors.clock import Clock

RESERVE: Final = 96  # descriptors that no client gets
FILES_MIN: Final = 160  # with fewer a broker does not start
REFUSED_MAX: Final = 64  # descriptors, of those that clients may have, for sockets that are not served, or not yet
GIVES_WAY_S: Final = 1.0
TOLD_EVERY_S: Final = 10.0
_log = structlog.get_logger("amq.connection")


class Stranger(Protocol):
    """A connection that may not have logged in."""

    number: int

    @property
    def has_shown_login(self) -> bool: ...
    def abort(self) -> None: ...


def files_limit() -> int:
    """The number of files that this process may open; their numbers are below it."""
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return soft if soft != resource.RLIM_INFINITY else 1 << 30


def connections_max(wanted: int, files: int) -> int:
    """How many of the `wanted` connections a process serves that may open `files` files."""
    theirs = files - RESERVE
    return max(1, min(wanted, theirs - min(REFUSED_MAX, theirs // 4)))


def files_warning(wanted: int, files: int) -> str:
    """A warning for the operator about maxConnections; "" = it is as wanted."""
    found = connections_max(wanted, files)
    if found == wanted:
        return ""
    return (
        f"maxConnections is {wanted}, and this process may open {files} files: it serves {found} connections and keeps "
        f"{RESERVE} descriptors for the lock, the journal and management. Raise `ulimit -n` (LimitNOFILE), or lower "
        "maxConnections"
    )


class PlacesTakenError(Exception):
    """All places are taken by clients, or by connections that have come a moment ago."""


class Places:
    """The places of one process. Lives on the event loop."""

    def __init__(self, clock: Clock, wanted: Callable[[], int], files: Callable[[], int] = files_limit) -> None:
        """`wanted()` = maxConnections."""
        self._clock = clock
        self._wanted = wanted
        self._files = files
        self._arrived: dict[Stranger, float] = {}  # the oldest first; without those that were seen to have logged in
        self._told_at: dict[str, float] = {}  # by event
        self.cut = 0  # sockets closed because of the reserve
        self.given_way = 0

    def maximum(self) -> int:
        """Connections that may be served."""
        return connections_max(self._wanted(), self._files())

    def is_reserved(self, descriptor: int) -> bool:
        """True: a client's socket has this number, and the broker needs it. The caller closes it at once; the next one
        finds the descriptor of a connection that gives way."""
        if descriptor < self._files() - RESERVE:
            return False
        self.cut += 1
        self._tell("connection closed: no descriptor is left for clients. Raise `ulimit -n` (LimitNOFILE)", self.cut)
        self._make_way()
        return True

    def enter(self, connection: Stranger, taken: int) -> Stranger | None:
        """`connection` wants a place, and `taken` are taken. Returns the connection that has given way, if one had to.
        Raises PlacesTakenError where none does."""
        gone = None
        if taken >= self.maximum():
            gone = self._make_way()
            if gone is None:
                self._tell("connection refused: maxConnections is reached", self.maximum())
                raise PlacesTakenError
        self._arrived[connection] = self._clock.monotonic()
        return gone

    def leave(self, connection: Stranger) -> None:
        """It has ended."""
        self._arrived.pop(connection, None)

    def _make_way(self) -> Stranger | None:
        """The oldest connection that has not begun to log in is closed, if it had a second. A connection that has
        begun is looked at once and never again."""
        while self._arrived:
            oldest, since = next(iter(self._arrived.items()))
            if not oldest.has_shown_login:
                break
            del self._arrived[oldest]
        else:
            return None
        if self._clock.monotonic() - since < GIVES_WAY_S:
            return None
        del self._arrived[oldest]
        self.given_way += 1
        self._tell("a connection without a login gave way to another", self.given_way)
        oldest.abort()
        return oldest

    def _tell(self, event: str, count: int) -> None:
        """Strangers can cause many such lines: one of a kind in a while is written."""
        now = self._clock.monotonic()
        if now >= self._told_at.get(event, -TOLD_EVERY_S) + TOLD_EVERY_S:
            self._told_at[event] = now
            _log.warning(event, count=count)
