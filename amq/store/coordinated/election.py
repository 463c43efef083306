"""The election in a coordinator. Spec: docs/master-slave.md, "The lock alone in a coordinator".

    identity       which coordinator this is: another number in each that is set up anew
    lock           the lock of the store; its revision is the number of the lock
    holder/NUMBER  of the session of the broker that holds that lock
    heartbeat/NUMBER, release/NUMBER   what was written through that lock
    claim          the newest claim; its revision is a fencing number

Invariants: a heartbeat is a compare-and-set, so it went through a majority of the servers; the claim is read after it
by the same process, so it is at least as new. That the session lives decides who may try for the lock, no more.

A coordinator may take long for each call, so a takeover makes few. The try for a lock that seemed to be free uses the
look that said so, once; the takeover up to its claim uses one look with the lock. A member that stood still after these
looks would do the same, so nothing rests on reading again.
"""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from typing import Any

from amq.core.errors import OwnershipLostError
from amq.doors.clock import Clock
from amq.doors.threads import Threads
from amq.store.coordinated.holding import Holding, hold, is_gone, process_document
from amq.store.coordinated.session_time import SessionTime
from amq.store.coordinator import ABSENT, Coordinator, KeyEntry, claim
from amq.store.document import decode
from amq.store.election import HEARTBEAT, IN_STORE, RECORD_BYTES, RELEASE, LockPlace, Sign
from amq.store.host import Host
from amq.store.waiting import waiting

IDENTITY, LOCK, HOLDER, CLAIM = "identity", "lock", "holder", "claim"
WAIT_S = 10.0  # for the end of the holder's session, before it is looked at again
LOOKS_MAX = 100  # for a lock that others replace meanwhile


@dataclass(frozen=True, slots=True)
class Standing:
    """The answer to one look: the number of the lock (ABSENT = there is none), and other `entries` by their keys."""

    lock: int
    entries: Mapping[str, KeyEntry]

    def of_lock(self, kind: str) -> KeyEntry | None:
        return self.entries.get(_under(kind, self.lock))

    def revision(self, key: str) -> int:
        found = self.entries.get(key)
        return found.revision if found is not None else ABSENT


class CoordinatedElection:
    """See `amq.store.election.Election`. `alone`: journal and epochs are elsewhere."""

    shuts_out = can_vouch = False
    beside: tuple[str, ...] = ()  # entries on which a takeover depends, too

    def __init__(self, coordinator: Coordinator, host: Host, clock: Clock, *, alone: bool = False) -> None:
        self._coordinator = coordinator
        self._host = host
        self._clock = clock
        self._alone = alone
        self._lock = ABSENT  # the number of the lock that this member holds
        self._number = ABSENT  # of the lock that was there when this member looked last
        self._free: Standing | None = None  # the lock seemed to be, and this member has not tried for it yet
        self._got: Standing | None = None  # what was there when this member had got the lock, until it claims
        self._holding: Holding | None = None
        self._session_time = SessionTime(coordinator.session_s)
        self._written: dict[str, int] = {}  # the revisions of what this member wrote through it
        self._found: dict[str, int] = {}  # and of what was there before

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
        key = _under(HOLDER, self._look_at().lock)
        with self._coordinator.watch(key) as watch:
            if self._coordinator.read(key) is None:
                return True
            watch.wait(WAIT_S)
        return self._coordinator.read(key) is None

    # -- looking ------------------------------------------------------------------------------------------------------

    def look(self) -> Sign | None:
        found = self._look_at(HEARTBEAT, others=(CLAIM,))
        if not found.lock:
            return None
        heartbeat, claimed = found.of_lock(HEARTBEAT), found.entries.get(CLAIM)
        beat = heartbeat.value if heartbeat is not None else b""
        return Sign(found.lock, beat, claimed and claimed.revision, claimed.value if claimed is not None else b"")

    def is_held(self) -> bool:
        holder = self._there(self._look_at(HOLDER)).of_lock(HOLDER)
        return holder is not None and not is_gone(holder.value, self._host) and not self._is_own(holder)

    def read(self, kind: str) -> Mapping[str, Any] | None:
        found = self._got
        if found is None:
            found = self._there(self._look_at(HOLDER, kind, others=self.beside))
            holder = found.of_lock(HOLDER)
            self._free = found if holder is None or is_gone(holder.value, self._host) else None
        key, entry = _under(kind, found.lock), found.of_lock(kind)
        return decode(kind, entry.value, self._place(key)) if entry is not None else None

    # -- holding ------------------------------------------------------------------------------------------------------

    def try_acquire(self, leave: Callable[[], bool]) -> bool:
        free, self._free = self._free, None
        found = free or self._look_at(HOLDER)
        if not found.lock and leave():
            return False
        return self._hold(found.lock or self._make_lock(b"", ABSENT), found.of_lock(HOLDER))

    def holds(self) -> bool:
        self._held()
        found = self._look_at(HOLDER)
        return found.lock == self._lock and self._is_own(found.of_lock(HOLDER))

    def regain(self, asker: str) -> None:  # noqa: ARG002 (the lock is made under its own name)
        self._drop()
        if not self.try_acquire(lambda: False):
            raise OwnershipLostError("the lock was removed or replaced and another broker locked it first")

    def can_replace(self) -> bool:
        return True

    def replace(self, asker: str) -> bool:
        self._drop()
        seen = self._look_at().lock
        if not self._hold(self._make_lock(f"{asker} {seen}".encode(), seen), None):
            return False
        with suppress(OSError):  # nobody reads them any more: they only take room
            old = self._coordinator.read_all(*(_under(kind, seen) for kind in (HOLDER, HEARTBEAT, RELEASE)))
            for each in old.values():
                self._coordinator.remove(each.key, each.revision)
        return True

    def write(self, kind: str, data: bytes) -> None:
        self._held()
        self._got = None
        key, data = _under(kind, self._lock), data.rstrip(b" ")
        seen = self._written.get(kind, self._found.pop(kind, None))
        revision = self._coordinator.compare_and_set(key, data, seen) if seen is not None else None
        if revision is None and kind not in self._written:
            found = self._coordinator.read(key)
            revision = self._coordinator.compare_and_set(key, data, found.revision if found is not None else ABSENT)
        if revision is None:
            raise OwnershipLostError(f"another broker wrote a {kind} through the lock of this one")
        self._written[kind] = revision

    def let_go(self) -> None:
        self._drop()

    def vouches(self) -> bool:
        return False

    # -- claiming -----------------------------------------------------------------------------------------------------

    def claim(self, data: bytes) -> None:
        self.make_claim(data)

    def make_claim(self, data: bytes) -> int:
        """The number of the claim `data`."""
        found, self._got = self._got, None
        seen = found.revision(CLAIM) if found is not None else None
        return claim(self._coordinator, CLAIM, data.rstrip(b" "), seen)

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

    def _hold(self, lock: int, holder: KeyEntry | None) -> bool:
        """`holder` = the entry of that lock's holder, as it was seen."""
        self._drop()
        if lock == ABSENT:
            return False
        lasts_s = self._session_time.seconds(self._clock.monotonic())
        self._holding = hold(self._coordinator, _under(HOLDER, lock), self._host, holder, lasts_s)
        self._lock, self._number = lock, lock
        self._written, self._found = {}, {}
        if self._holding is None:
            return False
        found = self._look_at(HEARTBEAT, RELEASE, others=(CLAIM, *self.beside))
        if found.lock == lock:  # else the next proof fails
            self._got = found
            self._found = {kind: found.revision(_under(kind, lock)) for kind in (HEARTBEAT, RELEASE)}
        return True

    def _drop(self) -> None:
        """Give the lock up; what this member claimed stays."""
        self._free = self._got = None
        holding, self._holding = self._holding, None
        if holding is not None:
            if holding.may_be_over:
                self._session_time.ended(self._clock.monotonic())
            holding.close()

    def _held(self) -> Holding:
        if self._holding is None:
            raise OwnershipLostError("the lock was given up")
        return self._holding

    def _is_own(self, holder: KeyEntry | None) -> bool:
        return holder is not None and self._holding is not None and holder.revision == self._holding.revision

    def _look_at(self, *kinds: str, others: tuple[str, ...] = ()) -> Standing:
        """The lock, what is under it of `kinds`, and `others`: in one call, where it is the lock that was there when
        this member looked last."""
        for _ in range(LOOKS_MAX):
            number = self._number
            found = self._coordinator.read_all(LOCK, *(_under(kind, number) for kind in kinds), *others)
            lock = found.get(LOCK)
            self._number = there = lock.revision if lock is not None else ABSENT
            if there in (number, ABSENT) or not kinds:
                return Standing(there, found)
        raise OSError(errno.EAGAIN, f"others have replaced it {LOOKS_MAX} times meanwhile", self._place(LOCK))

    def _there(self, found: Standing) -> Standing:
        """Raises FileNotFoundError where there is no lock."""
        if not found.lock:
            raise self._missing(LOCK)
        return found

    def _place(self, key: str) -> str:
        return f"{self._coordinator.url}: {key}"

    def _missing(self, key: str) -> FileNotFoundError:
        return FileNotFoundError(errno.ENOENT, "is not in the coordinator", self._place(key))


def _under(kind: str, lock: int) -> str:
    return f"{kind}/{lock:020d}"
