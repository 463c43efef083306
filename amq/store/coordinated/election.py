"""The election in a coordinator. Spec: docs/master-slave.md, "The lock alone in a coordinator".

    identity       which coordinator this is: another number in each that is set up anew
    lock           the lock of the store; its revision is the number of the lock
    holder/NUMBER  of the session of the broker that holds that lock
    heartbeat/NUMBER, release/NUMBER   what was written through that lock
    claim          the newest claim; its revision is a fencing number

Invariants: a heartbeat is a compare-and-set, so it went through a majority of the servers; the claim is read after it
by the same process, so it is at least as new. That the session lives decides who may try for the lock, no more.
"""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from typing import Any

from amq.core.errors import OwnershipLostError
from amq.doors.clock import Clock
from amq.doors.threads import Threads
from amq.store.coordinated.holding import Holding, hold, is_held, process_document
from amq.store.coordinator import ABSENT, Coordinator, claim
from amq.store.document import decode
from amq.store.election import HEARTBEAT, IN_STORE, RECORD_BYTES, RELEASE, LockPlace, Sign
from amq.store.host import Host
from amq.store.waiting import waiting

IDENTITY, LOCK, HOLDER, CLAIM = "identity", "lock", "holder", "claim"
WAIT_S = 10.0  # for the end of the holder's session, before it is looked at again


class CoordinatedElection:
    """See `amq.store.election.Election`. `alone`: journal and epochs are elsewhere."""

    shuts_out = can_vouch = False

    def __init__(self, coordinator: Coordinator, host: Host, clock: Clock, *, alone: bool = False) -> None:
        self._coordinator = coordinator
        self._host = host
        self._clock = clock
        self._alone = alone
        self._lock = ABSENT  # the number of the lock that this member holds
        self._holding: Holding | None = None
        self._written: dict[str, int] = {}  # the revisions of what this member wrote through it

    def place(self) -> LockPlace:
        return LockPlace(self._identity(), self._coordinator.url) if self._alone else IN_STORE

    def make(self) -> None:
        self._identity()

    def watch(
        self, wake: Callable[[], None], threads: Threads, is_slave: Callable[[], bool]
    ) -> AbstractContextManager[OSError | None]:
        return waiting(self.wait_free, wake, threads, is_slave)

    def wait_free(self) -> bool:
        """Wait, not for long, until nobody holds the lock: True = so it was at one moment. Raises OSError,
        StoreError."""
        lock = self._coordinator.read(LOCK)
        key = _under(HOLDER, lock.revision if lock is not None else ABSENT)
        with self._coordinator.watch(key) as watch:
            if self._coordinator.read(key) is None:
                return True
            watch.wait(WAIT_S)
        return self._coordinator.read(key) is None

    # -- looking ------------------------------------------------------------------------------------------------------

    def look(self) -> Sign | None:
        lock = self._coordinator.read(LOCK)
        if lock is None:
            return None
        heartbeat, claimed = (self._coordinator.read(key) for key in (_under(HEARTBEAT, lock.revision), CLAIM))
        beat = heartbeat.value if heartbeat is not None else b""
        return Sign(lock.revision, beat, claimed and claimed.revision, claimed.value if claimed is not None else b"")

    def is_held(self) -> bool:
        held = is_held(self._coordinator, _under(HOLDER, self._number()), self._host)
        return held and not (self._holding is not None and self._holding.is_there())

    def read(self, kind: str) -> Mapping[str, Any] | None:
        key = _under(kind, self._number())
        found = self._coordinator.read(key)
        return decode(kind, found.value, self._place(key)) if found is not None else None

    # -- holding ------------------------------------------------------------------------------------------------------

    def try_acquire(self, leave: Callable[[], bool]) -> bool:
        lock = self._coordinator.read(LOCK)
        if lock is None and leave():
            return False
        return self._hold(lock.revision if lock is not None else self._make_lock(b"", ABSENT))

    def holds(self) -> bool:
        holding = self._held()
        lock = self._coordinator.read(LOCK)
        return lock is not None and lock.revision == self._lock and holding.is_there()

    def regain(self, asker: str) -> None:  # noqa: ARG002 (the lock is made under its own name)
        self._drop()
        if not self.try_acquire(lambda: False):
            raise OwnershipLostError("the lock was removed or replaced and another broker locked it first")

    def can_replace(self) -> bool:
        return True

    def replace(self, asker: str) -> bool:
        self._drop()
        old = self._coordinator.read(LOCK)
        seen = old.revision if old is not None else ABSENT
        if not self._hold(self._make_lock(f"{asker} {seen}".encode(), seen)):
            return False
        for kind in (HOLDER, HEARTBEAT, RELEASE):
            with suppress(OSError):  # nobody reads them any more: they only take room
                found = self._coordinator.read(_under(kind, seen))
                if found is not None:
                    self._coordinator.remove(found.key, found.revision)
        return True

    def write(self, kind: str, data: bytes) -> None:
        self._held()
        key = _under(kind, self._lock)
        if kind not in self._written:
            found = self._coordinator.read(key)
            self._written[kind] = found.revision if found is not None else ABSENT
        revision = self._coordinator.compare_and_set(key, data.rstrip(b" "), self._written[kind])
        if revision is None:
            raise OwnershipLostError(f"another broker wrote a {kind} through the lock of this one")
        self._written[kind] = revision

    def let_go(self) -> None:
        self._drop()

    def vouches(self) -> bool:
        return False

    # -- claiming -----------------------------------------------------------------------------------------------------

    def claim(self, data: bytes) -> None:
        claim(self._coordinator, CLAIM, data.rstrip(b" "))

    def read_claim(self) -> bytes:
        found = self._coordinator.read(CLAIM)
        if found is None:
            raise self._missing(CLAIM)
        return found.value.ljust(RECORD_BYTES)

    # -- entries ------------------------------------------------------------------------------------------------------

    def _identity(self) -> str:
        """Made by the first who asks. A coordinator that lost everything gets another one."""
        found = self._coordinator.read(IDENTITY)
        if found is None:
            unique = process_document(self._host) + str(self._clock.wall_ms()).encode() + self._coordinator.url.encode()
            self._coordinator.compare_and_set(IDENTITY, hashlib.sha256(unique).hexdigest()[:32].encode(), ABSENT)
            found = self._coordinator.read(IDENTITY)
            if found is None:
                raise self._missing(IDENTITY)
        return found.value.decode(errors="replace")

    def _make_lock(self, value: bytes, seen: int) -> int:
        """The number of a new lock, or ABSENT where another broker was quicker."""
        return self._coordinator.compare_and_set(LOCK, value, seen) or ABSENT

    def _hold(self, lock: int) -> bool:
        self._drop()
        if lock == ABSENT:
            return False
        self._holding = hold(self._coordinator, _under(HOLDER, lock), self._host)
        self._lock, self._written = lock, {}
        return self._holding is not None

    def _drop(self) -> None:
        """Give the lock up; what this member claimed stays."""
        holding, self._holding = self._holding, None
        if holding is not None:
            holding.close()

    def _held(self) -> Holding:
        if self._holding is None:
            raise OwnershipLostError("the lock was given up")
        return self._holding

    def _number(self) -> int:
        lock = self._coordinator.read(LOCK)
        if lock is None:
            raise self._missing(LOCK)
        return lock.revision

    def _place(self, key: str) -> str:
        return f"{self._coordinator.url}: {key}"

    def _missing(self, key: str) -> FileNotFoundError:
        return FileNotFoundError(errno.ENOENT, "is not in the coordinator", self._place(key))


def _under(kind: str, lock: int) -> str:
    return f"{kind}/{lock:020d}"
