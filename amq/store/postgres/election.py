"""The election in a database: of a store that is there, or of one in a directory that has its lock alone there.

Spec: docs/master-slave.md, "A store in a database" and "The lock alone in a database". A slave waits in the server's
queue for the lock, so that the end of the holder's connection wakes it at once. Invariants: each heartbeat and release
mark carries the newest claim of its writer, which makes it a compare-and-swap. With the lock alone nothing else is
fenced. A database cannot keep a broker from a file, so the locker waits and seals as on any file system.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from typing import Any

from amq.core.errors import OwnershipLostError
from amq.doors.threads import Threads
from amq.store.document import decode
from amq.store.election import HEARTBEAT, IN_STORE, RELEASE, LockPlace, Sign
from amq.store.postgres.database import CLAIM, IDS, LOCK, SPACE, Database, EntryLock
from amq.store.waiting import waiting

_STARTS: Mapping[str, int] = {HEARTBEAT: 0, RELEASE: 64 << 10}  # of the records of the lock
# Nobody keeps this lock, not even a broker that is stopped meanwhile: it ends with the transaction, which is this
# statement, also when the time runs out in the moment in which it is granted. (A lock of the session would stay then:
# no rollback takes it back.) It is a shared lock, so that all who wait get it at once. It waits for a short time only,
# because as long as a statement runs the server keeps all versions of rows that it might see.
_QUEUE = f"""
DO $$
DECLARE lock bigint;
BEGIN
    PERFORM set_config('amq.lock', 'free', false);
    SELECT file INTO lock FROM {{name}} WHERE directory = '' AND name = '{LOCK}';
    IF lock IS NOT NULL THEN
        SET LOCAL lock_timeout = '500ms';
        PERFORM pg_advisory_xact_lock_shared({SPACE}, (lock & {IDS})::int);
    END IF;
EXCEPTION WHEN lock_not_available THEN
    PERFORM set_config('amq.lock', 'held', false);
END
$$"""


class SqlElection:
    """See `amq.store.election.Election`. `alone`: journal and epochs are elsewhere."""

    def __init__(self, database: Database, *, alone: bool = False) -> None:
        self.shuts_out, self.can_vouch = not alone, False
        self._database = database
        self._alone = alone
        self._lock: EntryLock | None = None

    def place(self) -> LockPlace:
        return LockPlace(self._database.identity(), self._database.url.text) if self._alone else IN_STORE

    def make(self) -> None:
        self._database.make_tables()

    def watch(
        self, wake: Callable[[], None], threads: Threads, is_slave: Callable[[], bool]
    ) -> AbstractContextManager[OSError | None]:
        return waiting(self.wait_free, wake, threads, is_slave)

    def wait_free(self) -> bool:
        """Wait, not for long, until nobody holds the lock of the store: True = so it was at one moment. It waits in the
        server's own queue, so that the end of the holder's connection ends it at once. Raises OSError, StoreError."""
        sessions = self._database.sessions
        with sessions.use(self._database.url.text) as session:
            session.execute(sessions.tables.statement(_QUEUE))
            row = session.execute("SELECT current_setting('amq.lock')").fetchone()
        return row is not None and row[0] == "free"

    # -- looking ------------------------------------------------------------------------------------------------------

    def look(self) -> Sign | None:
        try:
            lock, heartbeat = self._database.record("", LOCK)
        except FileNotFoundError:
            return None
        with suppress(FileNotFoundError):
            claimed, claim = self._database.record("", CLAIM)
            return Sign(lock.number, heartbeat, claimed.number, claim)
        return Sign(lock.number, heartbeat, None, b"")

    def is_held(self) -> bool:
        held = self._database.held("", LOCK)
        return held[LOCK] if held else self._database.find("", LOCK) is None  # which raises

    def read(self, kind: str) -> Mapping[str, Any] | None:
        data = self._database.record("", LOCK, _STARTS[kind])[1]
        return decode(kind, data, self._database.place("", LOCK), _STARTS[kind]) if data.strip(b"\0") else None

    # -- holding ------------------------------------------------------------------------------------------------------

    def try_acquire(self, leave: Callable[[], bool]) -> bool:
        try:
            lock = self._database.try_lock("", LOCK)
        except FileNotFoundError:
            if leave():
                return False
            lock = self._database.take("", LOCK)
        self._lock = self._lock or lock
        return lock is not None

    def holds(self) -> bool:
        held = self._held()
        with suppress(FileNotFoundError):
            return self._database.find("", LOCK, held).number == held.entry.number
        return False

    def regain(self, asker: str) -> None:  # noqa: ARG002 (one statement needs no other name)
        self.let_go()
        if not self.try_acquire(lambda: False):
            raise OwnershipLostError("the lock was removed or replaced and another broker locked it first")

    def vouches(self) -> bool:
        return False

    def can_replace(self) -> bool:
        return True

    def replace(self, asker: str) -> bool:  # noqa: ARG002 (one statement needs no other name)
        self.let_go()
        old = None
        with suppress(FileNotFoundError):
            old = self._database.find("", LOCK)
        self._lock = self._database.take("", LOCK, old)
        return self._lock is not None

    def write(self, kind: str, data: bytes) -> None:
        held = self._held()
        self._database.put(held.entry, data, _STARTS[kind], held)

    def let_go(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            with suppress(OSError):  # it ends with its connection, and what that could still write does not count
                self._database.unlock(lock)

    # -- claiming -----------------------------------------------------------------------------------------------------

    def claim(self, data: bytes) -> None:
        self._database.claim(data)

    def read_claim(self) -> bytes:
        return self._database.record("", CLAIM)[1]

    def _held(self) -> EntryLock:
        if self._lock is None:
            raise OwnershipLostError("the lock was given up")
        return self._lock
