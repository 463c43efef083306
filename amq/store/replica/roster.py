"""The roster of a group: each member holds `members/ID` with its address at the coordinator while it runs.

A hint, as all that a session holds: a member that is missing is not dialled anew, no more. Invariant: one process at a
time holds an id; if another one does, a member's directory was copied, and this process must not take part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import structlog

from amq.core.errors import StoreError
from amq.doors.threads import Thread, Threads
from amq.doors.tls import words
from amq.store.coordinator import Coordinator, Session
from amq.store.replica.wire import MEMBERS_MAX

MEMBERS: Final = "members"
LOOK_S: Final = 5.0  # between two looks, where the watch hears of nothing
STEP_S: Final = 1.0
JOIN_S: Final = 2.0
_log = structlog.get_logger("amq.replica")


class Roster:
    """`me` can be reached at `address`; `owner` is unlike that of every other process. `changed` gets the addresses of
    all members, by id, after each look."""

    def __init__(
        self,
        coordinator: Coordinator,
        me: str,
        address: str,
        owner: str,
        changed: Callable[[Mapping[str, str]], None],
        threads: Threads,
    ) -> None:
        self._coordinator = coordinator
        self._me = me
        self._value = f"{address} {owner}".encode()
        self._changed = changed
        self._threads = threads
        self._stop = threads.event()
        self._session: Session | None = None
        self._thread: Thread | None = None
        self._reason = ""

    def start(self) -> None:
        """Take the seat, and look. Raises StoreError where another process has it, OSError."""
        self._sit()
        self._look()
        self._thread = self._threads.start("amq-peers-roster", self._run)

    def close(self) -> None:
        """Give the seat up. Waits a little."""
        self._stop.set()
        session, self._session = self._session, None
        if session is not None:
            session.close()
        if self._thread is not None:
            self._thread.join(JOIN_S)

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                with self._coordinator.watch(MEMBERS) as watch:
                    while not self._stop.is_set():
                        self._keep()
                        self._look()
                        self._reason = ""
                        watch.wait(LOOK_S)
            except (OSError, StoreError) as error:
                self._tell(error)
                self._stop.wait(STEP_S)

    def _look(self) -> None:
        found: dict[str, str] = {}
        for member in self._coordinator.names(MEMBERS)[:MEMBERS_MAX]:
            entry = self._coordinator.read(f"{MEMBERS}/{member}")
            if entry is not None:
                found[member] = entry.value.decode("utf-8", "replace").partition(" ")[0]
        self._changed(found)

    def _keep(self) -> None:
        """Begin another session if this one is over."""
        entry = self._coordinator.read(f"{MEMBERS}/{self._me}")
        if entry is None or entry.value != self._value:
            session, self._session = self._session, None
            if session is not None:
                session.close()
            self._sit()

    def _sit(self) -> None:
        """A member that was killed and starts again may find its own seat: it is free when that session is over."""
        key = f"{MEMBERS}/{self._me}"
        with self._coordinator.watch(key) as watch:
            for _ in range(int(self._coordinator.session_s / STEP_S) + 2):
                if self._stop.is_set():
                    return
                if self._hold(key):
                    return
                watch.wait(STEP_S)
        raise StoreError(
            f"another process keeps the copy {self._me}, which {key} at {self._coordinator.url} shows: end it; if this "
            "directory was copied from another member, start with an empty one instead",
            code="STORE_UNUSABLE",
        )

    def _hold(self, key: str) -> bool:
        session = self._coordinator.open_session()
        try:
            held = session.hold(key, self._value) is not None
        except BaseException:
            session.close()
            raise
        if not held:
            session.close()
            return False
        self._session = session
        if self._stop.is_set():  # meanwhile
            session.close()
        return True

    def _tell(self, error: Exception) -> None:
        reason = words(error) if isinstance(error, OSError) else str(error)
        if reason != self._reason and not self._stop.is_set():
            self._reason = reason
            _log.warning("cannot see the members of the group", coordinator=self._coordinator.url, reason=reason)
