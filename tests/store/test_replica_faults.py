"""Each call of the adapter of a replicated store fails in every way: of a disk, a peer, the record. Whatever happens,
nothing confirmed is lost, no other member confirms, the error says what is wrong, and work goes on. And holes made in
the adapter on purpose: each is seen by a fault of the table."""

from __future__ import annotations

from itertools import permutations

import pytest

from amq.core.errors import AmqError
from amq.store.replica import disk
from tests import mutant
from tests.fault_course import Violation
from tests.sampling import sampled
from tests.store.replica_course import (
    FAULTS,
    NAMED,
    NAMES,
    HangsError,
    JoinCourse,
    ReplicaCourse,
    ShrinkCourse,
    histories,
    stop_and_start,
)

COURSES = {"": ReplicaCourse, "joins ": JoinCourse, "alone ": ShrinkCourse}
MESSAGES = ("a message is lost", "a message comes twice", "a message is late")
RECORDS = tuple(each.name for each in FAULTS if "the coordinator" in each.name)
MUTANTS = mutant.mutants(
    r"""
a promise is not synced [deposed, and power cut of a copy]
    amq.store.replica.disk.CopyDisk._write_mark: self._vfs.fsync_directory(self._directory) => pass
a copy answers before the sync [power cut, and a lost disk]
    amq.store.replica.disk.CopyDisk._keep: [write.data[head:]]) => [write.data[head:]], durably=False)
the master confirms what it alone has [the master is cut off]
    amq.store.replica.member.ReplicaMember.begin: self._waiting.append((upto, told)) => told(None)
S becomes smaller before the record says so [alone deposed before a call of the coordinator]
    amq.store.replica.member.ReplicaMember._put_record:
    found = self._book => leader.answered(known.revision + 1, wanted.record)\n\t\tfound = self._book
the record is replaced without a look [alone deposed before a call of the coordinator]
    amq.store.replica.book.GroupBook.replace: known.revision, history) => self.read().revision, history)
the seal is shorter than the log [power cut]
    amq.store.replica.disk.CopyDisk._measure: return position_of(number, end) => return position_of(number, 0)
a new copy counts before it has all [joins a message is lost]
    amq.store.replica.member.ReplicaMember._supply_piece: last = wanted.number == len(base) - 1 => last = True
a copy takes what an older master sends [deposed before a message]
    amq.store.replica.copyist.Copyist.handle: work = self.keeper.handle(message)
    => self.keeper.promised = min(self.keeper.promised, message.ballot)\n\t\twork = self.keeper.handle(message)
a full disk ends a copy [ENOSPC at a copy]
    amq.store.replica.copyist.Copyist._go_on: not isinstance(self._failed, NoRoomError) or => True or
a lost answer of the record ends all [the answer of the coordinator is lost]
    amq.store.replica.store.ReplicaElection.vouches: return True => return False
"""
)


def course_of(name: str) -> tuple[type[ReplicaCourse], str]:
    first = next(each for each in ("joins ", "alone ", "") if name.startswith(each))
    return COURSES[first], name.removeprefix(first)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "CHUNK_BYTES", 200)


def played(name: str) -> int:
    """How many histories there are. Raises what shows a hole."""
    kind, fault = course_of(name)
    return sum(course.check() is None for course in histories(NAMED[fault], kind))


@pytest.mark.parametrize(
    "name", sampled([*NAMED, *(f"joins {each}" for each in MESSAGES), *(f"alone {each}" for each in RECORDS)])
)
def test_a_fault_at_any_call_costs_nothing_that_was_confirmed(name: str) -> None:
    assert played(name) > 5


@pytest.mark.parametrize("hole", sampled(MUTANTS), ids=lambda each: each.what)
def test_a_hole_in_the_adapter_is_seen(hole: mutant.Mutant) -> None:
    with hole.applied(), pytest.raises((Violation, HangsError, AmqError)):
        played(hole.seen_by)


@pytest.mark.parametrize("stops", list(permutations(NAMES)), ids=",".join)
def test_all_stop_and_start_in_any_order(stops: tuple[str, ...]) -> None:
    """Those that are left write meanwhile, as long as they are enough, and so do the first that are back."""
    for starts in permutations(NAMES):
        stop_and_start(stops, starts)
