"""The machines of a replicated store, one at a time: what a copy takes, and what waits for a slow member.

The simulation (tests/simulation/test_replicas.py) has them all together, with faults.
"""

from __future__ import annotations

from typing import Any

import pytest

from amq.store.replica.candidate import Candidate, CandidateState
from amq.store.replica.group import GroupPolicy, GroupRecord
from amq.store.replica.keeper import Keeper, KeptState
from amq.store.replica.leader import Leader
from amq.store.replica.messages import (
    Adopt,
    Append,
    AskPromise,
    CompareAndSet,
    Confirm,
    FetchLog,
    KeepData,
    KeepMark,
    KeepPiece,
    KeepSegments,
    Lacking,
    Lost,
    Piece,
    Promised,
    ReadBack,
    RefusedBallot,
    Renew,
    Renewed,
    Say,
    SetAside,
    StartOver,
    Stored,
    Supply,
    Trim,
)
from amq.store.replica.stream import FORGOTTEN_TICKS, IN_FLIGHT_BYTES_MAX, LOST_TICKS

SECOND = GroupRecord(7, frozenset("abc"), 2, 3, 40)  # term 7 begins where term 3 ended at 40
AHEAD, BEHIND = KeptState(5, 3, True, 50), KeptState(5, 3, True, 30)
BEGUN = KeptState(7, 7, True, 10)
OLD = KeptState(1, 1, True, 99)


@pytest.mark.parametrize(
    ("kept", "message", "requests", "answer"),
    [
        (AHEAD, AskPromise(4), (), RefusedBallot(5)),
        (AHEAD, AskPromise(5), (), Promised(5, 3, 50, True)),
        (AHEAD, AskPromise(6), (KeepMark(6, 3, True),), Promised(6, 3, 50, True)),
        (AHEAD, Append(3, 3, 50, 60, b"x"), (), RefusedBallot(5)),
        (AHEAD, Append(5, 3, 50, 60, b"x"), (KeepData(60, b"x"),), Stored(3, 60)),
        (AHEAD, Append(6, 3, 50, 60, b"x"), (KeepMark(6, 3, True), KeepData(60, b"x")), Stored(3, 60)),
        (AHEAD, Append(5, 3, 40, 50, b"x"), (), Stored(3, 50)),
        (AHEAD, Append(5, 3, 40, 60, b"x"), (), Lacking(3, 50, True)),
        (AHEAD, Append(5, 3, 60, 70, b"x"), (), Lacking(3, 50, True)),
        (AHEAD, Append(7, 7, 50, 70, b"x"), (KeepMark(7, 3, True),), Lacking(3, 50, True)),
        (AHEAD, Adopt(7, SECOND), (SetAside(40), KeepMark(7, 7, True)), Stored(7, 0)),
        (BEHIND, Adopt(7, SECOND), (KeepMark(7, 3, True),), Lacking(3, 30, True)),
        (BEGUN, Adopt(7, SECOND), (), Stored(7, 10)),
        (BEGUN, Piece(7, SECOND, 0, True, b"x"), (), Stored(7, 10)),
        (AHEAD, Piece(7, SECOND, 0, True, b"x"), (SetAside(40), KeepMark(7, 7, True)), Stored(7, 0)),
        (
            OLD,
            Piece(7, SECOND, 0, False, b"x"),
            (KeepMark(7, 7, False), StartOver(), KeepPiece(b"x")),
            Lacking(7, 1, False),
        ),
        (
            OLD,
            Piece(7, SECOND, 0, True, b"x"),
            (KeepMark(7, 7, False), StartOver(), KeepPiece(b"x"), KeepMark(7, 7, True)),
            Stored(7, 0),
        ),
        (KeptState(7, 7, False, 0), AskPromise(8), (KeepMark(8, 7, False),), Promised(8, 7, 0, False)),
        (KeptState(7, 7, False, 0), Append(7, 7, 0, 5, b"x"), (), Lacking(7, 0, False)),
        (KeptState(7, 7, False, 0), Piece(7, SECOND, 3, True, b"x"), (), Lacking(7, 0, False)),
        (AHEAD, Renew(4, 9), (), RefusedBallot(5)),
        (AHEAD, Renew(5, 9), (), Renewed(5, 9)),
        (KeptState(5, 3, False, 0), Renew(6, 1), (KeepMark(6, 3, False),), Renewed(6, 1)),
        (BEGUN, FetchLog(8, 7, 4), (KeepMark(8, 7, True), ReadBack(7, 4)), None),
        (BEGUN, FetchLog(8, 6, 4), (KeepMark(8, 7, True),), Lacking(7, 10, True)),
    ],
)
def test_a_copy(kept: KeptState, message: Any, requests: tuple[Any, ...], answer: Any) -> None:
    assert Keeper(kept).handle(message) == (requests, answer)


def leader(policy: GroupPolicy | None = None) -> Leader:
    made = Leader("a", SECOND, 5, ["d"], policy or GroupPolicy(3, 2))
    for member in "ab":
        made.handle(member, Stored(7, 0))
    made.take()
    return made


def test_a_slow_member_holds_little_in_memory_and_is_supplied_later() -> None:
    master = leader()
    size = IN_FLIGHT_BYTES_MAX // 8
    for number in range(1, 101):
        master.append(number, size, b"")
        master.handle("a", Stored(7, number))
    out = master.take()
    sent = [each.message.upto for each in out if isinstance(each, Say) and each.member == "b"]
    assert sent == list(range(1, 9)), "no more than the bound is on its way"
    assert not any(isinstance(each, Confirm) for each in out)
    for upto in sent:
        master.handle("b", Stored(7, upto))
    out = master.take()
    assert [each.position for each in out if isinstance(each, Confirm)] == sent
    assert [each for each in out if isinstance(each, Supply)] == [Supply("b", 7, 8)], "one question at a time"
    master.stream.supplied("b", 7, 8, 100, size, b"")
    master.handle("b", Stored(7, 100))
    assert master.confirmed == 100


def test_spares_that_come_and_go_are_forgotten() -> None:
    master = leader()
    for number in range(300):
        master.stream.meet(f"spare {number}")
        master.handle(f"spare {number}", Lacking(0, 0, True))
        master.tick()
    known = [number for number in range(300) if master.stream.knows(f"spare {number}")]
    assert len(known) == FORGOTTEN_TICKS - 1
    assert known[-1] == 299
    assert all(master.stream.knows(member) for member in "abc"), "its members are not"


def test_nothing_is_confirmed_without_those_who_go_before_the_coordinator_says_so() -> None:
    """b and c are lost: the group shall be a alone."""
    master = leader(GroupPolicy(3, 1))
    master.handle("d", Lacking(0, 0, True))
    for _ in range(4):
        master.handle("a", Stored(7, 0))
        master.tick()
    alone = SECOND.regrouped("a")
    assert CompareAndSet(5, alone) in master.take()
    master.append(1, 1, b"")
    master.handle("a", Stored(7, 1))
    assert not master.confirmed
    master.answered(5, SECOND)  # asked again, until it is known
    master.tick()
    assert CompareAndSet(5, alone) in master.take()
    assert not master.confirmed
    master.answered(6, alone)
    assert master.confirmed == 1


def test_a_mastership_is_proved_by_enough_members_of_both_records_which_answer_the_newest_question() -> None:
    master = leader()
    first = master.prove()
    assert [each for each in master.take() if isinstance(each, Say)] == [Say(m, Renew(7, first)) for m in "abc"]
    second = master.prove()
    for member, answer in (("a", Renewed(7, second)), ("b", Renewed(7, first)), ("d", Renewed(7, second))):
        master.handle(member, answer)
    assert master.proved == first, "d is a spare, and b answers the old question"
    master.handle("b", Renewed(3, second))
    assert master.proved == first, "an answer to the author of another term"
    master.take()
    master.tick()
    assert Say("c", Renew(7, second)) in master.take(), "asked again where the answer is lost"
    master.pending = SECOND.regrouped("acd")
    master.handle("b", Renewed(7, second))
    assert master.proved == first, "of the members that the coordinator may have by now it is only one"
    master.handle("d", Renewed(7, second))
    assert master.proved == second


def candidate_of_a_pair() -> Candidate:
    """b has the seal, and a, its master, has ended. The policy lets one go on alone."""
    record = GroupRecord(7, frozenset("ab"), 2, 3, 40)
    keeper = Keeper(KeptState(7, 7, True, 10))
    candidate = Candidate("b", 9, record, 5, keeper, (), GroupPolicy(2, 1))
    candidate.handle("b", Promised(9, 7, 10, True))
    candidate.handle("b", Stored(7, 10))
    candidate.handle("b", Stored(7, 10))
    candidate.take()
    assert candidate.state is CandidateState.COPYING
    return candidate


@pytest.mark.parametrize(("gone", "ticks"), [("a", 1), ("", LOST_TICKS + 1), ("c", LOST_TICKS + 1)])
def test_a_survivor_waits_for_a_silent_member_and_not_for_one_that_is_gone(gone: str, ticks: int) -> None:
    candidate = candidate_of_a_pair()
    for tick in range(1, ticks + 1):
        assert candidate.state is CandidateState.COPYING, tick
        candidate.tick(frozenset(gone))
    (decided,) = [each for each in candidate.take() if isinstance(each, CompareAndSet)]
    assert decided == CompareAndSet(5, GroupRecord(9, frozenset("b"), 1, 7, 10, 1))


def test_a_survivor_needs_no_tick_to_go_on_without_a_member_that_is_gone() -> None:
    candidate = candidate_of_a_pair()
    for gone in ("", "c"):
        candidate.look(frozenset(gone))
        assert candidate.state is CandidateState.COPYING
    candidate.look(frozenset("a"))
    (decided,) = [each for each in candidate.take() if isinstance(each, CompareAndSet)]
    assert decided.record.members == frozenset("b")


def test_a_member_that_is_back_before_it_was_gone_stays_in_the_group() -> None:
    """Its connection flapped: the tick finds it there, and it has the seal."""
    candidate = candidate_of_a_pair()
    candidate.tick()
    candidate.handle("a", Stored(7, 10))
    (decided,) = [each for each in candidate.take() if isinstance(each, CompareAndSet)]
    assert decided.record.members == frozenset("ab")


def test_a_survivor_without_leave_to_go_on_alone_waits_for_whoever_is_gone() -> None:
    record = GroupRecord(7, frozenset("abc"), 2, 3, 40)
    candidate = Candidate("b", 9, record, 5, Keeper(KeptState(7, 7, True, 10)), (), GroupPolicy(3, 2))
    for member in "bc":
        candidate.handle(member, Promised(9, 7, 10, True))
    for _ in range(2):
        candidate.handle("b", Stored(7, 10))
    for _ in range(2 * LOST_TICKS):
        candidate.tick(frozenset("ac"))
    assert candidate.state is CandidateState.COPYING


def test_a_master_that_hears_of_a_later_one_is_lost_once() -> None:
    master = leader()
    master.handle("b", RefusedBallot(9))
    master.handle("b", RefusedBallot(9))
    master.answered(6, SECOND.after(9, "bc", 0))
    assert [type(each) for each in master.take()] == [Lost]
    master.append(1, 1, b"")
    for member in "ab":
        master.handle(member, Stored(7, 1))
    assert not master.confirmed


@pytest.mark.parametrize(
    ("position", "requests"), [(30, (KeepSegments(30, ("x",)),)), (60, ())], ids=["it has the mark", "not yet"]
)
def test_a_copy_deletes_segments_when_it_has_all_that_made_them_superfluous(
    position: int, requests: tuple[Any, ...]
) -> None:
    assert Keeper(AHEAD).handle(Trim(5, 3, position, ("x",))) == (requests, None)
    assert Keeper(AHEAD).handle(Trim(4, 3, position, ("x",))).requests == ()
