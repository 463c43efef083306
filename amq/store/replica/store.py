"""The ports of a replicated store, for a member, or a process that only looks. Spec: docs/master-slave.md.

Invariants: a claim returns when the old master is shut out; an append when W copies have it; what is read is the copy
of this member.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from threading import get_ident
from typing import Any

import structlog

from amq.core.errors import StoreError
from amq.doors.clock import Clock
from amq.store.coordinated.election import CoordinatedElection, Standing
from amq.store.coordinator import Coordinator
from amq.store.epoch import EPOCHS_KEPT, Epoch
from amq.store.files.log import FileCheckpoints, FileLog, FileReader
from amq.store.host import Host
from amq.store.port import EventLoop
from amq.store.replica.book import GROUP, GroupBook, KnownRecord, ReplicaEpochs
from amq.store.replica.member import ReplicaMember
from amq.store.segment_log import RESERVE_NAME, Told

RENEW_S = 2.0  # for the answers of copies, when the coordinator cannot be reached
CALM_S = 60.0  # without need of their word, and the coordinator answers in time again
_log = structlog.get_logger("amq.replica")


class ReplicaPart:
    """The part of this process in a replicated store: `member` while it takes part."""

    def __init__(self) -> None:
        self.member: ReplicaMember | None = None
        self._loop: EventLoop | None = None
        self._loop_thread = 0
        self._early: list[tuple[Told, Exception | None]] | None = None  # told in the loop, which begins an append

    def hear_on(self, loop: EventLoop | None) -> None:
        """See `Store.hear_on`."""
        self._loop, self._loop_thread = loop, get_ident()
        if self.member is not None:
            self.member.hear_on(None if loop is None else _TellingLoop(loop, self))

    def post(self, told: Told, error: Exception | None) -> None:
        """Call `told` in the event loop, soon. Where that has ended nobody waits."""
        loop = self._loop
        if loop is None:
            return
        if get_ident() == self._loop_thread:
            if self._early is not None:
                self._early.append((told, error))
            else:
                loop.call_soon(told, error)
        else:
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(told, error)

    def telling(self, call: Callable[..., Any], *args: Any) -> Any:
        """Call at the end what `call` posts in this thread, if it is that of the event loop."""
        if get_ident() != self._loop_thread:
            return call(*args)
        early: list[tuple[Told, Exception | None]] = []
        self._early = early
        try:
            result = call(*args)
        finally:
            self._early = None
        for told, error in early:
            told(error)
        return result

    def taken(self) -> ReplicaMember:
        """Raises StoreError where this process only looks."""
        if self.member is None:
            raise StoreError(
                "only a running broker writes to a replicated store: start it with `amq start --store replica://…`",
                code="STORE_UNUSABLE",
            )
        return self.member

    @contextmanager
    def take(self, make: Callable[[], ReplicaMember]) -> Iterator[None]:
        self.member = member = make()
        try:
            yield
        finally:
            self.member = None
            member.close()


class _TellingLoop:
    """`loop`, in which what a copy answers takes effect at once, and not in its next turn."""

    def __init__(self, loop: EventLoop, part: ReplicaPart) -> None:
        self.call_soon, self.call_soon_threadsafe = loop.call_soon, loop.call_soon_threadsafe
        self.remove_reader = loop.remove_reader
        self._loop, self._part = loop, part

    def add_reader(self, fd: int, callback: Callable[..., Any], /, *args: Any) -> Any:
        return self._loop.add_reader(fd, self._part.telling, callback, *args)


class ReplicaElection(CoordinatedElection):
    """See `amq.store.election.Election`."""

    shuts_out = can_vouch = True
    beside = (GROUP,)

    def __init__(self, part: ReplicaPart, coordinator: Coordinator, host: Host, clock: Clock) -> None:
        super().__init__(coordinator, host, clock)
        self._part = part
        self._book = GroupBook(coordinator)
        self._ballot = 0
        self._told = ""
        self._vouched_at: float | None = None  # by the copies, while the coordinator is too slow; None = it is not

    def try_acquire(self, leave: Callable[[], bool]) -> bool:
        if not self._may_try(self._free):
            self._free = None
            return False
        return super().try_acquire(leave)

    def holds(self) -> bool:
        if self._ballot:
            self._part.taken().check(self._ballot)
            if self._holding is None:
                return False  # it could not be regained while the coordinator was away
        return super().holds()

    def replace(self, asker: str) -> bool:
        return self._may_try(None) and super().replace(asker)

    def newest(self) -> Epoch | None:
        """The newest epoch, as it was when this member had got the lock. Where another one has come since, the record
        that this member reads after its claim says so. Raises CorruptError, NewerFormatError, OSError."""
        return self._record(self._got).epoch

    def vouches(self) -> bool:
        """W copies do: each candidate needs a promise from one of them, which then answers no more."""
        ballot, member = self._ballot, self._part.member
        if not ballot or member is None or not member.renew(ballot, RENEW_S):
            return False
        before, self._vouched_at = self._vouched_at, self._clock.monotonic()
        if before is None:
            _log.warning("coordinator is slow or does not answer: the copies prove this mastership")
        return True

    def write(self, kind: str, data: bytes) -> None:
        try:
            super().write(kind, data)
        except OSError:
            self._written.pop(kind, None)  # it may be there or not
            raise
        vouched_at = self._vouched_at
        if vouched_at is not None and self._clock.monotonic() >= vouched_at + CALM_S:
            self._vouched_at = None
            _log.info("coordinator answers in time again", calm_s=CALM_S)

    def let_go(self) -> None:
        self._vouched_at = None
        ballot, self._ballot = self._ballot, 0
        if ballot and self._part.member is not None:
            self._part.member.leave(ballot)
        super().let_go()

    def claim(self, data: bytes) -> None:
        member = self._part.taken()
        self._ballot = self.make_claim(data)
        member.claim(self._ballot)

    def _record(self, found: Standing | None) -> KnownRecord:
        return self._book.known(found.entries.get(GROUP)) if found is not None else self._book.read()

    def _may_try(self, found: Standing | None) -> bool:
        why = self._part.taken().why_not(self._record(found))
        if why and why != self._told:
            _log.info("this member cannot take over now", reason=why)
        self._told = why
        return not why


class LinkedEpochs(ReplicaEpochs):
    """The epochs of a member that may become master."""

    def __init__(
        self, part: ReplicaPart, book: GroupBook, coordinator: Coordinator, newest: Callable[[], Epoch | None]
    ) -> None:
        """`newest()` = the newest epoch for a member that has the lock, or tries for it."""
        super().__init__(book, coordinator)
        self._part = part
        self._newest = newest

    def newest(self, asker: str = "") -> Epoch | None:
        return self._newest() if asker else super().newest()

    def prune(self, own: Epoch, keep: int = EPOCHS_KEPT) -> int:
        """A takeover does not wait for it."""
        self._part.taken().later(lambda: super(LinkedEpochs, self).prune(own, keep))
        return 0

    def link(self, epoch: Epoch, attempt: str) -> bool:  # noqa: ARG002 (the term makes it unlike all others)
        return self._part.taken().link(epoch)


class ReplicaWriter:
    """See `amq.store.segment_log.Writer`."""

    def __init__(self, part: ReplicaPart, name: str, head: bytes, clock: Clock) -> None:
        self._part, self._member = part, part.taken()
        self._ballot = self._member.ballot
        self._name, self._head, self._clock = name, head, clock

    def append(self, start: int, end: int, pieces: Iterable[bytes | bytearray | memoryview]) -> float:
        began = self._clock.monotonic()
        self._member.append(self._ballot, self._name, start, end, self._head, _joined(pieces))
        self._head = b""
        return self._clock.monotonic() - began

    def begin(
        self,
        start: int,
        end: int,
        pieces: Iterable[bytes | bytearray | memoryview],
        told: Told,
        *,
        waits: bool,
        lingers: bool = False,
    ) -> bool:
        """See `amq.store.segment_log.PatientWriter`."""
        tell = partial(self._part.post, told)
        return bool(self._part.telling(self._begin, start, end, _joined(pieces), tell, waits, lingers))

    def _begin(self, start: int, end: int, data: bytes, told: Told, waits: bool, lingers: bool) -> bool:
        begun = self._member.begin(self._ballot, self._name, start, end, self._head, data, told, waits, lingers)
        if begun:
            self._head = b""
        return begun

    def finish(self, end: int) -> None:
        self._close(end)

    def close(self) -> None:
        self._close(None)

    def _close(self, end: int | None) -> None:
        with self._member.copyist.mutex:
            if self._member.ballot == self._ballot:  # else the copy has closed it
                self._member.copyist.disk.finish(self._name, end)


def _joined(pieces: Iterable[bytes | bytearray | memoryview]) -> bytes:
    parts = list(pieces)
    return parts[0] if len(parts) == 1 and isinstance(parts[0], bytes) else b"".join(parts)


class ReplicaLog:
    """See `amq.store.segment_log.SegmentLog`. Checkpoints, and the room that is set aside, are each member's own."""

    is_patient = True

    def __init__(self, part: ReplicaPart, files: FileLog) -> None:
        self._part, self._files = part, files
        self.names, self.place, self.open = files.names, files.place, files.open
        self.size, self.settle = files.size, files.settle
        self.set_aside, self.give_back = files.set_aside, files.give_back

    @property
    def checkpoints(self) -> FileCheckpoints:
        return self._files.checkpoints

    def make(self) -> None:
        """A member that takes part has made it."""

    def free_bytes(self) -> int | None:
        """None where the copy is not on this host."""
        try:
            return self._files.free_bytes()
        except FileNotFoundError:
            return None

    def create(self, name: str, head: bytes, size: int, clock: Clock) -> ReplicaWriter:
        member = self._part.taken()
        member.create(member.ballot, name, head, size)
        return ReplicaWriter(self._part, name, head, clock)

    def hold(self, name: str) -> FileReader | None:
        """Copies refuse the writes of a deposed master."""
        return self._files.open(name)

    def delete(self, names: Iterable[str]) -> None:
        self._files.delete(names)
        member = self._part.member
        if member is not None:
            member.trimmed(member.ballot, [name for name in self._files.names() if name != RESERVE_NAME])
