"""One member of a group at work: its copy, and while it is a candidate or the master the machine of that.

Threads: those of the network bring messages; the worker ticks, reads what other copies lack, and carries out what the
machine says to the copy here; the asker waits for the coordinator; a master appends in its own. Invariants: the machine
is used under one mutex, which no thread holds during a call to the disk or the coordinator; what the master says to its
own copy is carried out in order; an append is confirmed when W copies have all of it. Locks: turn, copy, mutex.
"""

from __future__ import annotations

import errno
import os
import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any

import structlog

from amq.core.errors import AmqError, OwnershipLostError, StoreError
from amq.doors.clock import Clock
from amq.doors.threads import Threads
from amq.store.copies import CopiesNow, CopyNow, CopyState
from amq.store.epoch import Epoch
from amq.store.port import EventLoop
from amq.store.replica.book import GroupBook, KnownRecord
from amq.store.replica.candidate import Candidate
from amq.store.replica.copyist import Copyist
from amq.store.replica.disk import position_of, split
from amq.store.replica.group import GroupPolicy, GroupRecord, majority
from amq.store.replica.leader import Leader
from amq.store.replica.messages import (
    TO_A_COPY,
    Append,
    CompareAndSet,
    Confirm,
    Lost,
    Renewed,
    Say,
    SegmentWrite,
    Supply,
    SupplyPiece,
    Trim,
)
from amq.store.replica.port import OtherCopies, Receive
from amq.store.segment_log import SegmentFormat, SyncError, Told

TICK_S = 0.5
LOOK_S = 0.05  # a candidate looks so often whether members are gone
TRIM_TICKS = 20  # between two lists of the segments that count
INLINE_S_MAX = 0.0005  # of a write, and of a sync: an event loop waits for no slower one
INLINE_SYNCS = 6  # the quickest of the last ones
LINGER_S_MAX = 0.0002  # the longest wait of an event loop with nothing else to do for the answer of a copy
LINGER_LOOKS_MAX = 200
PATIENCE_S = 6.0  # of a candidate, for the answers of the others
_log = structlog.get_logger("amq.replica")


class ReplicaMember:
    """The member whose copy is `copyist`. `connect(id, receive)` leads to the others."""

    def __init__(
        self,
        copyist: Copyist,
        book: GroupBook,
        policy: GroupPolicy,
        segments: SegmentFormat,
        clock: Clock,
        threads: Threads,
        connect: Callable[[str, Receive], OtherCopies],
    ) -> None:
        self.me = copyist.disk.id
        self.copyist = copyist
        self._book, self._policy, self._segments, self._clock = book, policy, segments, clock
        self._mutex = threading.Lock()
        self._changed = threading.Condition(self._mutex)
        self._own_turn = threading.Lock()  # one thread at a time carries out what is said to the copy here
        self._machine: Leader | Candidate | None = None
        self._ballot = 0
        self._lost = "it was never the master"
        self._known: KnownRecord | None = None  # the record that the machine works on, with its epoch
        self._decided: GroupRecord | None = None  # a candidate has come so far
        self._own: deque[tuple[Any, Any]] = deque()
        self._supplies: deque[tuple[Leader | Candidate, Supply | SupplyPiece]] = deque()
        self._wanted: CompareAndSet | None = None
        self._chores: deque[Callable[[], object]] = deque()  # of the asker
        self._bases: dict[str, list[list[tuple[str, int, int]]]] = {}  # of members that get everything, by their id
        self._filled: dict[str, int] = {}  # the piece that such a member gets next
        self._left: frozenset[str] = frozenset()  # members that counted in this mastership, and do so no more
        self._ends: dict[int, int] = {}  # of the segments of this mastership, by their numbers
        self._waiting: deque[tuple[int, Told]] = deque()  # appends that are not confirmed: up to where
        self._trim: Trim | None = None
        self._writes_s: deque[float] = deque(maxlen=INLINE_SYNCS)  # of the copy here
        self._syncs_s: deque[float] = deque(maxlen=INLINE_SYNCS)
        self._synced_at_s = 0.0
        self._answers_s: deque[float] = deque(maxlen=INLINE_SYNCS)  # from there until an append was confirmed
        self._ticks = 0
        self._told = ""
        self._closed = False
        self._wake, self._ask = threads.event(), threads.event()
        self._check_record(copyist.keeper.term, book.read().record)  # before another member hears what it promised
        self._peers = connect(self.me, self.receive)
        self._threads = [
            threads.start("amq-replica", self._work),
            threads.start("amq-replica-record", self._put_records),
        ]

    def close(self) -> None:
        """Take no more part. The copy stays as it is."""
        with self._changed:
            self._closed = True
            self._end("this broker stops")
        self._wake.set()
        self._ask.set()
        self._peers.close()
        for thread in self._threads:
            thread.join()
        self.copyist.close()

    # -- what others say ----------------------------------------------------------------------------------------------

    def receive(self, sender: str, message: Any, answer: Callable[[Any], None]) -> None:
        """See `amq.store.replica.port.Receive`."""
        if isinstance(message, TO_A_COPY):
            try:
                said = self.copyist.handle(message)
            except (OSError, AmqError) as error:
                self._tell("the copy of this member takes nothing", str(error))
                return
            if said is not None:
                answer(said)
            return
        with self._mutex:
            if self._machine is not None:
                self._machine.handle(sender, message)
                if isinstance(message, Renewed):
                    self._changed.notify_all()
                self._perform()

    # -- election -----------------------------------------------------------------------------------------------------

    def why_not(self, known: KnownRecord) -> str:
        """Why this member cannot become the master now, if the record is `known`; "" = it may try. Raises StoreError,
        OSError."""
        self.copyist.check()
        record, keeper = known.record, self.copyist.keeper
        if (term := keeper.term) > record.term:  # a new master may have told it since `known` was read
            self._check_record(term, self._book.read().record)
        if not record.term:
            return ""
        if self.me not in record.members:
            counting = _names(record.members)
            return f"the copies that count are those of {counting}, not that of this member: start one of their brokers"
        if not (keeper.whole and keeper.term == record.term) and not keeper.can_begin(record):
            others = _names(record.members - {self.me})
            return f"the copy of this member lacks what those of {others} have: start their brokers"
        return ""

    def _check_record(self, term: int, record: GroupRecord) -> None:
        """A copy that has the log of `term` read its record: the coordinator had it. Raises StoreError."""
        if term > record.term:
            found = f"has term {record.term}" if record.term else "is missing"
            raise StoreError(
                f"{self._book.place('group')} {found}, and the copy of this member has a log of term {term}: the "
                "coordinator has lost what it kept, or another one was named; restore it, or give the one that was "
                "used before. To begin anew, move this member's directory away; docs/replication.md says how to "
                "rescue what is in it",
                code="STORE_INCOMPLETE",
            )

    def claim(self, ballot: int) -> None:
        """Shut out whoever was the master, and bring W copies up to the end of its log. Raises OwnershipLostError,
        StoreError; OSError where too few members answer."""
        known = self._book.read()
        self.leave(self._ballot)
        self.copyist.cut()
        with self._changed:
            self._begin(ballot, known)
            others, keeper = self._peers.members(), self.copyist.keeper
            candidate = Candidate(self.me, ballot, known.record, known.revision, keeper, others, self._policy)
            self._machine = candidate
            self._perform()
        until = self._clock.monotonic() + PATIENCE_S
        while True:
            self._say_own()
            with self._changed:
                self._check(ballot)
                candidate.look(self._peers.gone())
                self._perform()
                if self._decided is not None:
                    return
                left_s = until - self._clock.monotonic()
                if left_s <= 0 or self._closed:
                    self._end("too few copies answered")
                    raise OSError(
                        errno.ETIMEDOUT,
                        f"no answer of {', '.join(candidate.missing)}; {majority(len(known.record.members))} of the "
                        f"copies {_names(known.record.members)} must answer: start their brokers",
                        self._book.place("group"),
                    )
                if not self._own:
                    self._changed.wait(min(left_s, LOOK_S))

    def link(self, epoch: Epoch) -> bool:
        """Make `epoch` real, of the election for which this member has claimed. False where another one was quicker.
        Raises OSError: then this member is not the master, ever."""
        with self._changed:
            candidate, known, wanted = self._machine, self._known, self._decided
            if wanted is None or known is None or not isinstance(candidate, Candidate):
                return False
            if epoch.number != wanted.epoch:
                return False
            self._check_seal(epoch, known, wanted)
        try:
            found = self._book.replace(known, wanted, epoch)
        except BaseException:
            with self._changed:
                self._end("the coordinator did not say what it did")
            raise
        with self._changed:
            if self._machine is not candidate:
                return False
            candidate.answered(found.revision, found.record)
            if candidate.won is None:
                self._end("another member was quicker")
                return False
            self._begin(self._ballot, found)
            others = self._peers.members()
            self._machine = leader = Leader(self.me, candidate.won, found.revision, others, self._policy)
            self._perform()
        while not leader.is_ready:
            self._say_own()
            with self._changed:
                self._check(self._ballot)
        return True

    def check(self, ballot: int) -> None:
        """Raises OwnershipLostError where the mastership of `ballot` is over."""
        with self._changed:
            self._check(ballot)

    def renew(self, ballot: int, within_s: float) -> bool:
        """Whether W copies say within that time that no later ballot was promised before this call. Raises
        OwnershipLostError where the mastership of `ballot` is over."""
        until = self._clock.monotonic() + within_s
        with self._changed:
            self._check(ballot)
            leader = self._machine
            if not isinstance(leader, Leader):
                return False
            question = leader.prove()
            self._perform()
        while True:
            with suppress(OSError, AmqError):  # it ends the mastership
                self._say_own()
            with self._changed:
                self._check(ballot)
                if leader.proved >= question:
                    return True
                left_s = until - self._clock.monotonic()
                if left_s <= 0:
                    return False
                if not self._own:
                    self._changed.wait(min(left_s, TICK_S))
            self._peers.hear()

    def leave(self, ballot: int) -> None:
        """End the mastership or candidacy of `ballot`, if it goes on."""
        with self._changed:
            if ballot == self._ballot:
                self._end("this broker gave it up")

    # -- the log of a master ------------------------------------------------------------------------------------------

    def append(self, ballot: int, name: str, start: int, end: int, head: bytes, data: bytes) -> None:
        """Append as `begin` does, and return when W copies have it."""
        outcome: list[Exception | None] = []

        def told(error: Exception | None) -> None:
            outcome.append(error)
            self._changed.notify_all()

        self.begin(ballot, name, start, end, head, data, told, waits=True)
        while not outcome:
            with self._changed:
                if not outcome:
                    self._changed.wait(TICK_S)
            self._peers.hear()  # the event loop may be busy
        if outcome[0] is not None:
            raise outcome[0]

    def begin(
        self,
        ballot: int,
        name: str,
        start: int,
        end: int,
        head: bytes,
        data: bytes,
        told: Told,
        waits: bool,
        lingers: bool = False,
    ) -> bool:
        """Append `data` to segment `name`; `head` comes before it where it is the first. `told` is called when W copies
        have it, or with the error that ends this mastership: once, in any thread, under the mutex, perhaps before this
        returns. Not `waits` = return False where another thread is at the copy, or its disk is slow. `lingers`: see
        `PatientWriter.begin`. Raises NoRoomError before any other copy has heard of it; OSError, which is final."""
        key = self._segments.key(name)
        assert key is not None
        upto = position_of(key[1], end)
        with self._mutex:
            self._leading(ballot)
        if not (waits or _are_quick(self._writes_s)):
            return False
        if not self._own_turn.acquire(waits):
            return False
        try:
            if not self.copyist.mutex.acquire(waits):
                return False
            try:
                syncs = waits or _are_quick(self._syncs_s)
                began_s = self._clock.monotonic()
                self.copyist.write(name, start, end, (data,))
                self._writes_s.append(self._clock.monotonic() - began_s)
                with self._mutex:
                    leader = self._leading(ballot)
                    write = SegmentWrite(name, start - len(head), head + data if head else data)
                    self._ends[key[1]] = end
                    self._waiting.append((upto, told))
                    leader.append(upto, len(write.data), write)
                    self._perform(wakes=not syncs)
                if syncs:
                    with suppress(OSError, AmqError):  # it ends the mastership, and `told` hears of that
                        self._carry_out_own()
            finally:
                self.copyist.mutex.release()
        finally:
            self._own_turn.release()
        if lingers and syncs:
            self._linger()
        return True

    def _linger(self) -> None:
        """Take an answer that comes within a moment: to be woken by it takes longer. Where another process wants this
        processor it has it."""
        if not _are_quick(self._answers_s, LINGER_S_MAX):
            return
        until_s = self._clock.monotonic() + LINGER_S_MAX
        for _ in range(LINGER_LOOKS_MAX):
            self._peers.hear()
            if not self._waiting or self._clock.monotonic() > until_s:
                return
            os.sched_yield()

    def hear_on(self, loop: EventLoop | None) -> None:
        """See `OtherCopies.hear_on`."""
        self._peers.hear_on(loop)

    def create(self, ballot: int, name: str, head: bytes, size: int) -> None:
        """Make a segment of this mastership. The others get it with its first write."""
        with self._changed:
            self._leading(ballot)
        with self.copyist.mutex:
            self.copyist.disk.create(name, head, size, self._clock)

    def trimmed(self, ballot: int, names: list[str]) -> None:
        """Only the segments `names` of the log count any more, and that is confirmed."""
        with self._changed:
            leader = self._machine
            if isinstance(leader, Leader) and ballot == self._ballot:
                self._trim = Trim(ballot, leader.record.term, leader.confirmed, tuple(sorted(names)))
                numbers = {
                    key[1] for name in names if (key := self._segments.key(name)) and key[0] == leader.record.epoch
                }
                self._ends = {number: end for number, end in self._ends.items() if number in numbers}
                self._send_trim()

    def seen(self) -> CopiesNow | None:
        """The copies, as the master sees them; None = this member is not the master."""
        with self._changed:
            leader = self._machine
            if not isinstance(leader, Leader):
                return None
            members = sorted(leader.record.members.union(leader.stream.members))
            return CopiesNow(leader.is_blocked, tuple(self._seen(leader, member) for member in members))

    @property
    def ballot(self) -> int:
        """The ballot of the mastership or candidacy that goes on, or was the last."""
        return self._ballot

    # -- under the mutex ----------------------------------------------------------------------------------------------

    def _seen(self, leader: Leader, member: str) -> CopyNow:
        stream, counts = leader.stream, member in leader.record.members
        silent_s, behind_s = stream.silent_ticks(member) * TICK_S, stream.behind_ticks(member) * TICK_S
        if silent_s and not counts and member in self._left:
            return CopyNow(member, CopyState.GONE, counts, None, 0.0, silent_s)
        if silent_s:
            state = CopyState.SILENT
        elif not counts:
            is_spare = stream.is_current(member) and len(leader.record.members) >= self._policy.members
            state = CopyState.SPARE if is_spare else CopyState.FILLING
        else:
            state = CopyState.BEHIND if behind_s else CopyState.LEVEL
        return CopyNow(member, state, counts, self._lag(leader, member), behind_s, silent_s)

    def _lag(self, leader: Leader, member: str) -> int | None:
        """How many bytes that copy lacks. A position says nothing of them: it jumps with each segment."""
        position = leader.stream.positions.get(member)
        number, offset = split(position or 0)
        lag = sum(max(end - (offset if each == number else 0), 0) for each, end in self._ends.items() if each >= number)
        if position is None:
            base = self._bases.get(member)
            if base is None:
                return None
            lag += sum(size for piece in base[self._filled.get(member, 0) :] for _, _, size in piece)
        return lag

    def _begin(self, ballot: int, known: KnownRecord) -> None:
        self._ballot, self._known, self._decided, self._lost = ballot, known, None, ""
        self._own.clear()
        self._supplies.clear()
        self._bases.clear()
        self._filled.clear()
        self._left = frozenset()
        self._ends.clear()
        self._wanted, self._trim = None, None

    def _end(self, reason: str) -> None:
        self._machine, self._decided, self._wanted = None, None, None
        self._lost = self._lost or reason
        while self._waiting:
            self._waiting.popleft()[1](SyncError(errno.ESTALE, self._lost))
        self._changed.notify_all()

    def _check(self, ballot: int) -> None:
        if self._lost or ballot != self._ballot:
            raise OwnershipLostError(self._lost or "another try of this broker has begun")

    def _leading(self, ballot: int) -> Leader:
        if not isinstance(self._machine, Leader) or ballot != self._ballot:
            raise SyncError(errno.ESTALE, self._lost or "this broker is not the master any more")
        return self._machine

    def _perform(self, *, wakes: bool = True) -> None:
        """Carry out what the machine asks for, or have it carried out. Not `wakes` = the caller carries out at once
        what is said to the copy here."""
        machine = self._machine
        while machine is not None and machine is self._machine and (wanted := machine.take()):
            for each in wanted:
                if each.__class__ is Say:  # nearly all
                    member, message = each
                    if member != self.me:
                        self._peers.send(member, message)
                    else:
                        self._own.append((machine, message))
                        if wakes:
                            self._wake.set()
                    continue
                match each:
                    case Supply() | SupplyPiece():
                        self._supplies.append((machine, each))
                        self._wake.set()
                    case Confirm(position):
                        self._answers_s.append(self._clock.monotonic() - self._synced_at_s)
                        while self._waiting and self._waiting[0][0] <= position:
                            self._waiting.popleft()[1](None)
                    case CompareAndSet(_, record):
                        if isinstance(machine, Candidate):
                            self._decided = record  # `link` asks for it
                            self._changed.notify_all()
                        else:
                            self._wanted = each
                            self._ask.set()
                    case Lost(reason):
                        _log.info("not the master of this term", reason=reason)
                        self._end(reason)

    def _send_trim(self) -> None:
        if self._trim is not None and isinstance(self._machine, Leader):
            for member, position in self._machine.stream.positions.items():
                if member != self.me and position >= self._trim.position:
                    self._peers.send(member, self._trim)

    def _check_seal(self, epoch: Epoch, known: KnownRecord, wanted: GroupRecord) -> None:
        """The journal must have measured in the files here what the copies agreed on. Raises StoreError."""
        ends = [
            position_of(key[1], end)
            for name, end in epoch.sealed.items()
            if end and (key := self._segments.key(name)) is not None and key[0] == known.record.epoch
        ]
        if known.record.term and max(ends, default=0) != wanted.sealed:
            raise StoreError(
                f"the journal ends at {max(ends, default=0)}, the copies of its members at {wanted.sealed}: the copy "
                "of this member is damaged; move its directory away, so that it begins anew",
                code="STORE_CORRUPT",
            )

    # -- the worker ---------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        tick_at = self._clock.monotonic()
        while not self._closed:
            self._wake.wait(max(0.0, tick_at - self._clock.monotonic()))
            self._wake.clear()
            self._serve()
            if self._clock.monotonic() >= tick_at:
                tick_at = self._clock.monotonic() + TICK_S
                self._check_copy()
                with self._changed:
                    self._tick()

    def _serve(self) -> None:
        """Carry out what was said to the copy here, and read what other copies lack."""
        try:
            self._say_own()
            self._supply()
        except (OSError, AmqError) as error:
            self._tell("the copy of this member cannot be used now", str(error))

    def _check_copy(self) -> None:
        """A master whose directory is gone must leave its place to a member that has a disk."""
        try:
            self.copyist.check()
        except (OSError, AmqError) as error:
            self._tell("the copy of this member cannot be used now", str(error))
            with self._changed:
                if self._machine is not None:
                    self._end(f"its own copy failed: {error}")

    def _tick(self) -> None:
        machine = self._machine
        if machine is None:
            return
        if isinstance(machine, Leader):
            for member in self._peers.members():
                if not machine.stream.knows(member):
                    machine.stream.meet(member)
            self._ticks += 1
            if not self._ticks % TRIM_TICKS:
                self._send_trim()
            machine.tick()
        else:
            machine.tick(self._peers.gone())
        self._perform()

    def _say_own(self) -> None:
        """Carry out the messages to the copy here. An error ends the mastership. Raises OSError, AmqError."""
        with self._own_turn:
            self._carry_out_own()

    def _carry_out_own(self) -> None:
        """The turn is this thread's."""
        while True:
            with self._mutex:
                if not self._own:
                    return
                machine, message = self._own.popleft()
                if machine is not self._machine:
                    continue
            began_s = self._clock.monotonic()
            try:
                said = self.copyist.handle(message)
                if isinstance(message, Append):
                    self._synced_at_s = ended_s = self._clock.monotonic()
                    self._syncs_s.append(ended_s - began_s)
            except (OSError, AmqError) as error:
                with self._changed:
                    if machine is self._machine:
                        self._end(f"its own copy failed: {error}")
                raise
            with self._mutex:
                if said is not None and machine is self._machine:
                    machine.handle(self.me, said)
                    self._perform(wakes=False)

    def _supply(self) -> None:
        """Read what other copies lack. Raises OSError, AmqError."""
        while True:
            with self._changed:
                if not self._supplies:
                    return
                machine, wanted = self._supplies.popleft()
                known = self._known
                if machine is None or machine is not self._machine or known is None:
                    continue
            if isinstance(wanted, Supply):
                upto, write = self._read(machine.record, wanted, known)
                with self._changed:
                    if self._machine is machine and write is not None:
                        size = len(write.data)
                        machine.stream.supplied(wanted.member, wanted.term, wanted.after, upto, size, write)
                        self._perform()
            else:
                self._supply_piece(machine, wanted, known)

    def _read(self, record: GroupRecord, wanted: Supply, known: KnownRecord) -> tuple[int, SegmentWrite | None]:
        with self.copyist.mutex:
            keeper, disk = self.copyist.keeper, self.copyist.disk
            if not keeper.whole or keeper.term != record.term:
                return wanted.after, None
            if wanted.term == record.term:
                return disk.read(wanted.after, disk.written)
            return disk.read_before(wanted.after, record.sealed, _sealed(known))

    def _supply_piece(self, machine: Leader | Candidate, wanted: SupplyPiece, known: KnownRecord) -> None:
        with self.copyist.mutex:
            keeper, disk = self.copyist.keeper, self.copyist.disk
            if not keeper.whole or keeper.term != machine.record.term:
                return
            if not wanted.number:
                self._bases[wanted.member] = disk.base(_sealed(known))
            base = self._bases.get(wanted.member, [])
            if wanted.number >= len(base):
                return
            data = disk.read_piece(base[wanted.number])
        with self._changed:
            self._filled[wanted.member] = wanted.number
            if self._machine is machine:
                last = wanted.number == len(base) - 1
                machine.stream.supplied_piece(wanted.member, wanted.number, last, data)
                self._perform()

    # -- the asker ----------------------------------------------------------------------------------------------------

    def later(self, chore: Callable[[], object]) -> None:
        """Have the asker call `chore`, once. Nothing may depend on it: the coordinator may be away."""
        self._chores.append(chore)
        self._ask.set()

    def _put_records(self) -> None:
        """Replace the record when the master wants it so. The machine asks again where the answer is lost."""
        while not self._closed:
            self._ask.wait()
            self._ask.clear()
            self._put_record()
            while self._chores and not self._closed:
                with suppress(OSError, StoreError):
                    self._chores.popleft()()

    def _put_record(self) -> None:
        with self._changed:
            leader, known, wanted = self._machine, self._known, self._wanted
            self._wanted = None
        if wanted is None or known is None or known.epoch is None or not isinstance(leader, Leader):
            return
        with suppress(OSError):
            found = self._book.replace(known, wanted.record, known.epoch)
            with self._changed:
                if leader is self._machine:
                    before = leader.record
                    leader.answered(found.revision, found.record)
                    if leader.record != before:
                        self._known = found
                        counted = (self._left | before.members) & set(leader.stream.members)
                        self._left = counted - leader.record.members
                        _log.info("members of the store", members=sorted(leader.record.members))
                    self._perform()

    def _tell(self, event: str, reason: str) -> None:
        """Log `reason` unless it is the newest that was logged."""
        if reason != self._told:
            self._told = reason
            _log.warning(event, reason=reason)


def _are_quick(took_s: Collection[float], most_s: float = INLINE_S_MAX) -> bool:
    """Whether the disk is, or the others are: a busy processor makes only some of the calls slow."""
    return min(took_s, default=0.0) < most_s


def _sealed(known: KnownRecord) -> Mapping[str, int]:
    return known.epoch.sealed if known.epoch is not None else {}


def _names(members: frozenset[str]) -> str:
    return ", ".join(sorted(members))
