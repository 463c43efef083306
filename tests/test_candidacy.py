"""Candidacy: each row of its table, each input that no row allows, and each row's removal."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import pytest

from amq.cli.reference import pages
from amq.config.schema import BrokerConfig
from amq.node import candidacy
from amq.node.candidacy import (
    ASK_S,
    BACK_OFF_S_MAX,
    BACK_OFF_S_MIN,
    CALLED_POLL_S,
    CALLED_S,
    CASES,
    FAILBACK_WINDOW_S,
    FAILING_S,
    FREE_INTERVALS,
    FREE_PATIENCE_S,
    HOLD_BACK_S,
    PAGE_PATH,
    PAUSE_S_MAX,
    Agree,
    Candidacy,
    CandidacyError,
    Case,
    Decision,
    HandOver,
    HoldBack,
    Input,
    Listening,
    Mark,
    Other,
    Pause,
    Reason,
    Refuse,
    Replace,
    Seek,
    Serve,
    State,
    Stop,
    TakeOver,
    Try,
    View,
    Wait,
    Withdraw,
    table,
)
from amq.store.election import RETRY_DELAYS_S
from amq.store.orders import FAILBACK, HAND_OVER, OPERATOR, STOP, TAKE_OVER, WITHDRAWN, Order

INTERVAL_S, PERIOD_S = 1.0, 3.0
DEAF = Listening(can_listen=False, beside=False, another=True)
DEAF_AND_FREE = replace(DEAF, free=True)
ALONE = replace(DEAF, another=False)
TO_OTHER, TO_ME, NO_FAILOVER = Mark(3, "u", to="other"), Mark(3, "u", to="me"), Mark(3, "u", failover=False)
SLAVE: tuple[Input, ...] = (Input.LOOK, Input.MISSED)  # the first look, before there is a mark
TRYING = (*SLAVE, Input.LOOK)
MASTER = (*TRYING, Input.LOCKED)
LOOK = Input.LOOK


def order(action: str, why: str = OPERATOR) -> View:
    return View(0.0, order=Order("1", "u", action, why=why))


def config(*, fail_if_locked: bool = False) -> BrokerConfig:
    return BrokerConfig(
        store="/s",
        lock_acquire_sleep_interval_s=INTERVAL_S,
        lock_keep_alive_period_s=PERIOD_S,
        fail_if_locked=fail_if_locked,
        failback_delay_s=DELAY_S,
    )


Step = Input | tuple[Input, View] | float  # float = seconds that pass


@dataclass(frozen=True)
class Row:
    """After `before` the candidacy is given `given` with `view`: it decides `decision` and is in state `then`.

    Times in `decision` are relative to the view.
    """

    before: tuple[Step, ...]
    given: Input
    view: View
    decision: Decision
    then: State
    fail_if_locked: bool = False


NOW = View(0.0)
MARKED = View(0.0, mark=TO_OTHER)
STOPPING = View(0.0, stopping=True)
CALLED = (*SLAVE, (Input.ORDER, order(TAKE_OVER)))
UNHEARD = (*MASTER, Input.BEGUN, (Input.UNHEARD, View(0.0, listening=DEAF)))
WOKEN = (*SLAVE, Input.WOKEN)
W, T, M, L, S = State.WAITING, State.TRYING, State.MASTER, State.LEAVING, State.STOPPED
NAMED, FORBIDDEN = HoldBack(Reason.NAMED, INTERVAL_S), HoldBack(Reason.FORBIDDEN, INTERVAL_S)
DELAY_S = 7.0  # failbackDelay
BETTER, EQUAL = Other("b", "u", priority=1), Other("b", "u", priority=0)
LOOK_AT_BETTER: tuple[Step, ...] = ((LOOK, View(0.0, others=(BETTER,))), DELAY_S)
LOOK_AT_EQUAL: tuple[Step, ...] = ((LOOK, View(0.0, others=(EQUAL,))), DELAY_S)
PATIENCE_S = FREE_PATIENCE_S + FREE_INTERVALS * INTERVAL_S

TABLE = (
    # A slave looks.
    Row((), LOOK, NOW, Try(), T),
    Row((), LOOK, STOPPING, Stop(), S),
    Row((), LOOK, View(0.0, listening=DEAF), HoldBack(Reason.DEAF, INTERVAL_S), W),
    Row((), LOOK, View(0.0, listening=DEAF), Try(), T, fail_if_locked=True),
    Row((), LOOK, View(0.0, listening=ALONE), Try(), T),
    Row(((LOOK, View(0.0, listening=DEAF_AND_FREE)), PATIENCE_S), LOOK, View(0.0, listening=DEAF_AND_FREE), Try(), T),
    Row(
        ((LOOK, View(0.0, listening=DEAF_AND_FREE)), PATIENCE_S - 0.1),
        LOOK,
        View(0.0, listening=DEAF_AND_FREE),
        HoldBack(Reason.DEAF, INTERVAL_S),
        W,
    ),
    Row(
        ((LOOK, View(0.0, listening=DEAF_AND_FREE)), PATIENCE_S, (LOOK, View(0.0, listening=DEAF))),
        LOOK,
        View(0.0, listening=DEAF_AND_FREE),
        HoldBack(Reason.DEAF, INTERVAL_S),  # a lock that is held begins the patience anew
        W,
    ),
    Row(UNHEARD, LOOK, View(0.0, listening=ALONE), HoldBack(Reason.UNHEARD, INTERVAL_S), W),
    Row((*UNHEARD, BACK_OFF_S_MIN), LOOK, View(0.0, listening=ALONE), Try(), T),
    Row(UNHEARD, LOOK, NOW, Try(), T),  # the probe succeeds
    Row(SLAVE, LOOK, MARKED, NAMED, W),
    Row(SLAVE, LOOK, View(0.0, mark=TO_ME), Try(), T),
    Row((*SLAVE, (LOOK, MARKED), HOLD_BACK_S), LOOK, MARKED, Try(), T),
    Row((*SLAVE, (LOOK, MARKED), HOLD_BACK_S), LOOK, View(0.0, mark=replace(TO_OTHER, epoch=4)), NAMED, W),
    Row((), LOOK, MARKED, NAMED, W),  # also where it was there at the start
    Row(SLAVE, LOOK, View(0.0, mark=NO_FAILOVER), FORBIDDEN, W),
    Row((), LOOK, View(0.0, mark=NO_FAILOVER), Try(), T),  # a start says that there shall be a master
    Row(CALLED, LOOK, View(0.0, mark=NO_FAILOVER), Try(), T),
    Row((*CALLED, CALLED_S), LOOK, View(0.0, mark=NO_FAILOVER), FORBIDDEN, W),
    Row(CALLED, LOOK, MARKED, HoldBack(Reason.NAMED, CALLED_POLL_S), W),
    Row(
        ((LOOK, View(0.0, mark=NO_FAILOVER)), Input.LOCKED, Input.BEGUN, Input.FAILED),
        LOOK,
        View(0.0, mark=NO_FAILOVER),
        FORBIDDEN,  # it was master since its start
        W,
    ),
    # A slave is woken, and gets orders.
    Row(SLAVE, Input.WOKEN, NOW, Wait(0.0), W),
    Row(SLAVE, Input.ORDER, order(STOP), Stop(), S),
    Row(SLAVE, Input.ORDER, order(TAKE_OVER), Agree(), W),
    Row(SLAVE, Input.ORDER, replace(order(TAKE_OVER), not_ready="is behind"), Refuse("is behind"), W),
    Row(SLAVE, Input.ORDER, order(HAND_OVER), Refuse("is not the master"), W),
    Row(CALLED, Input.ORDER, order(WITHDRAWN), Withdraw(), W),
    Row((*CALLED, (Input.ORDER, order(WITHDRAWN)), LOOK), Input.MISSED, NOW, Wait(INTERVAL_S), W),
    Row(SLAVE, Input.FAILED, NOW, Pause(INTERVAL_S), W),
    # It tries.
    Row(TRYING, Input.LOCKED, NOW, TakeOver(), M),
    Row(TRYING, Input.LOCKED, MARKED, NAMED, W),
    Row(TRYING, Input.LOCKED, View(0.0, mark=NO_FAILOVER), FORBIDDEN, W),
    Row(TRYING, Input.MISSED, NOW, Wait(INTERVAL_S), W),
    Row((*CALLED, LOOK), Input.MISSED, NOW, Wait(CALLED_POLL_S), W),
    Row(TRYING, Input.MISSED, View(0.0, silent=True), Replace(), State.REPLACING),
    Row(
        TRYING,
        Input.MISSED,
        View(0.0, silent=True, listening=Listening(beside=False)),
        HoldBack(Reason.SAME_PORT, INTERVAL_S),
        W,
    ),
    Row((*WOKEN, LOOK), Input.MISSED, NOW, Pause(RETRY_DELAYS_S[0]), W),
    Row((*WOKEN, LOOK, Input.MISSED, LOOK), Input.MISSED, NOW, Pause(RETRY_DELAYS_S[1]), W),
    Row((*WOKEN, *SLAVE * len(RETRY_DELAYS_S), LOOK), Input.MISSED, NOW, Wait(INTERVAL_S), W),
    Row((*WOKEN, (LOOK, MARKED), HOLD_BACK_S, (LOOK, MARKED)), Input.MISSED, NOW, Wait(INTERVAL_S), W),
    Row(TRYING, Input.FAILED, NOW, Pause(INTERVAL_S), W),
    # It replaces the lock file.
    Row((*TRYING, (Input.MISSED, View(0.0, silent=True))), Input.LOCKED, NOW, TakeOver(), M),
    Row((*TRYING, (Input.MISSED, View(0.0, silent=True))), Input.MISSED, NOW, Wait(INTERVAL_S), W),
    Row((*TRYING, (Input.MISSED, View(0.0, silent=True))), Input.FAILED, NOW, Pause(INTERVAL_S), W),
    # It is master.
    Row(MASTER, Input.BEGUN, NOW, Serve(chosen=False), M),
    Row((*CALLED, LOOK, Input.LOCKED), Input.BEGUN, NOW, Serve(chosen=True), M),
    Row((*CALLED, LOOK, Input.LOCKED, CALLED_S), Input.BEGUN, NOW, Serve(chosen=False), M),
    Row(
        (*SLAVE, (Input.ORDER, order(TAKE_OVER, FAILBACK)), LOOK, Input.LOCKED),
        Input.BEGUN,
        NOW,
        Serve(chosen=False),
        M,
    ),
    Row(MASTER, Input.SERVED, NOW, Wait(0.0), M),
    Row(MASTER, LOOK, NOW, Wait(PERIOD_S / 3), M),
    Row(MASTER, LOOK, View(0.0, asking=True), Wait(ASK_S), M),
    Row(MASTER, LOOK, View(0.0, others=(BETTER,)), Wait(PERIOD_S / 3), M),
    Row((*MASTER, *LOOK_AT_BETTER), LOOK, View(0.0, others=(BETTER,)), Seek(BETTER), M),
    Row((*MASTER, *LOOK_AT_BETTER), LOOK, NOW, Wait(PERIOD_S / 3), M),
    Row(
        (*MASTER, (LOOK, View(0.0, others=(EQUAL,))), DELAY_S), LOOK, View(0.0, others=(EQUAL,)), Wait(PERIOD_S / 3), M
    ),
    Row(
        (*MASTER, (LOOK, View(0.0, others=(BETTER,))), DELAY_S / 2, LOOK, DELAY_S / 2),
        LOOK,
        View(0.0, others=(BETTER,)),
        Wait(PERIOD_S / 3),  # it was not ready in between
        M,
    ),
    Row(
        (*CALLED, LOOK, Input.LOCKED, (Input.BEGUN, View(0.0, others=(BETTER,))), *LOOK_AT_BETTER),
        LOOK,
        View(0.0, others=(BETTER,)),
        Wait(PERIOD_S / 3),  # an operator preferred this broker to that one
        M,
    ),
    Row((*MASTER, Input.BEGUN, *LOOK_AT_BETTER), LOOK, View(0.0, others=(BETTER,)), Seek(BETTER), M),
    Row(MASTER, LOOK, View(0.0, ready="b"), HandOver("b"), L),
    Row(MASTER, LOOK, View(0.0, ready="b", stopping=True), Stop(), L),
    Row(MASTER, Input.ORDER, order(STOP), Stop(), L),
    Row(MASTER, Input.ORDER, order(HAND_OVER), Seek(), M),
    Row(MASTER, Input.ORDER, order(TAKE_OVER), Refuse("is the master"), M),
    Row(MASTER, Input.ORDER, order(WITHDRAWN), Withdraw(), M),
    Row(MASTER, Input.UNHEARD, NOW, HoldBack(Reason.UNHEARD, BACK_OFF_S_MIN), W),
    Row(MASTER, Input.ENDED, NOW, Wait(0.0), W),
    Row(MASTER, Input.FAILED, NOW, Pause(INTERVAL_S), W),
    Row((*MASTER, (LOOK, STOPPING)), Input.ENDED, NOW, Wait(0.0), W),
    Row((*MASTER, (LOOK, STOPPING)), Input.FAILED, NOW, Pause(INTERVAL_S), W),
    # It has stopped.
    Row(((LOOK, STOPPING),), LOOK, NOW, Stop(), S),
    Row(((LOOK, STOPPING),), Input.FAILED, NOW, Stop(), S),
)


class World:
    """A candidacy, and the time."""

    def __init__(self, *, fail_if_locked: bool = False) -> None:
        self.now = 1000.0
        self.candidacy = Candidacy("me", config(fail_if_locked=fail_if_locked))

    def step(self, given: Input, view: View = NOW) -> Decision:
        """The decision, with times relative to now."""
        decision = self.candidacy.step(given, replace(view, now=self.now))
        if isinstance(decision, Wait | HoldBack):
            return replace(decision, until=round(decision.until - self.now, 6))
        return decision

    def run(self, steps: tuple[Step, ...]) -> None:
        for step in steps:
            match step:
                case Input():
                    self.step(step)
                case (given, view):
                    self.step(given, view)
                case seconds:
                    self.now += seconds


def found(row: Row) -> tuple[Decision, State]:
    world = World(fail_if_locked=row.fail_if_locked)
    world.run(row.before)
    return world.step(row.given, row.view), world.candidacy.state


@pytest.mark.parametrize("row", TABLE, ids=[f"{n}-{row.given.value}-{row.then.value}" for n, row in enumerate(TABLE)])
def test_the_table_decides(row: Row) -> None:
    assert found(row) == (row.decision, row.then)


ROADS: dict[State, tuple[Step, ...]] = {
    State.WAITING: SLAVE,
    State.TRYING: TRYING,
    State.REPLACING: (*TRYING, (Input.MISSED, View(0.0, silent=True))),
    State.MASTER: MASTER,
    State.LEAVING: (*MASTER, (LOOK, STOPPING)),
    State.STOPPED: ((LOOK, STOPPING),),
}


@pytest.mark.parametrize(("state", "given"), list(product(State, Input)))
def test_an_input_that_the_table_does_not_allow_raises_and_changes_nothing(state: State, given: Input) -> None:
    world = World()
    world.run(ROADS[state])
    assert world.candidacy.state is state
    if any((case.state, case.given) == (state, given) for case in CASES):
        world.step(given, replace(order(STOP), stopping=True))  # allowed, with any view
        return
    before = deepcopy(vars(world.candidacy))
    with pytest.raises(CandidacyError, match=f"input '{given.value}' is not allowed in state '{state.value}'"):
        world.step(given, View(0.0, mark=TO_OTHER, listening=DEAF_AND_FREE, order=Order("1", "u", TAKE_OVER)))
    assert vars(world.candidacy) == before


def fails(row: Row) -> bool:
    try:
        return found(row) != (row.decision, row.then)
    except (CandidacyError, StopIteration):
        return True


def test_each_row_of_the_code_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any one of them a test above fails."""
    unneeded = []
    for case in CASES:
        monkeypatch.setattr(candidacy, "CASES", tuple(each for each in CASES if each is not case))
        if not any(fails(row) for row in TABLE):
            unneeded.append(case)
    assert unneeded == []


def test_each_state_has_a_row_for_every_view_of_an_input() -> None:
    """The last row of a state and an input has no condition, so that no view is left without a decision."""
    last: dict[tuple[State, Input], Case] = {(case.state, case.given): case for case in CASES}
    assert all(case.condition is candidacy.ALWAYS for case in last.values())


# -- pauses that grow --------------------------------------------------------------------------------------------------


def test_masterships_that_fail_are_tried_again_after_longer_and_longer_pauses() -> None:
    world = World()
    pauses = [world.step(Input.FAILED) for _ in range(6)]
    assert pauses == [Pause(seconds) for seconds in (1.0, 2.0, 4.0, 8.0, PAUSE_S_MAX, PAUSE_S_MAX)]
    world.now += FAILING_S - 1
    assert world.step(Input.FAILED) == Pause(PAUSE_S_MAX)
    world.now += FAILING_S
    assert world.step(Input.FAILED) == Pause(1.0), "the one before lasted"


def back_offs(world: World) -> Iterator[Decision]:
    while True:
        world.run((LOOK, Input.LOCKED, Input.BEGUN))
        yield world.step(Input.UNHEARD)


def test_masterships_without_transports_back_off_until_clients_are_served() -> None:
    world = World()
    found = [decision for decision, _ in zip(back_offs(world), range(8), strict=False)]
    assert found == [HoldBack(Reason.UNHEARD, min(BACK_OFF_S_MIN * 2**number, BACK_OFF_S_MAX)) for number in range(8)]
    world.run((LOOK, Input.LOCKED, Input.BEGUN, Input.SERVED, Input.FAILED))
    assert next(back_offs(world)) == HoldBack(Reason.UNHEARD, BACK_OFF_S_MIN)


def test_failbacks_that_do_not_last_wait_longer_each_time() -> None:
    """Each one within an hour doubles the delay of the next, up to an hour; an order changes nothing of that."""
    world = World()
    for failbacks in range(12):
        world.run((LOOK, Input.LOCKED, Input.BEGUN, *LOOK_AT_BETTER[:1]))
        delay_s = world.candidacy.failback_delay_s
        assert delay_s == min(DELAY_S * 2 ** len(world.candidacy.failbacks), FAILBACK_WINDOW_S), failbacks
        world.now += delay_s
        assert world.step(LOOK, View(0.0, others=(BETTER,))) == Seek(BETTER)
        if failbacks % 2:
            world.step(Input.ORDER, order(HAND_OVER))
        world.step(LOOK, View(0.0, ready="b"))
        world.run((Input.ENDED,))
    assert len(world.candidacy.failbacks) == 6, "an order is none"


def test_passive_is_what_a_mark_makes_of_a_slave() -> None:
    world = World()
    world.run((LOOK, Input.MISSED, (LOOK, View(0.0, mark=NO_FAILOVER))))
    assert world.candidacy.passive
    world.run(((Input.ORDER, order(TAKE_OVER)), (LOOK, View(0.0, mark=NO_FAILOVER))))
    assert not world.candidacy.passive


# -- the page ----------------------------------------------------------------------------------------------------------


def test_the_page_of_the_site_has_the_table() -> None:
    rows = table().split("\n")
    assert len(rows) == len(CASES) + 2
    assert f"\n{table()}\n" in pages(Path(__file__).parents[1])[PAGE_PATH]


def test_a_row_says_what_it_decides() -> None:
    for row in TABLE:
        world = World(fail_if_locked=row.fail_if_locked)
        world.run(row.before)
        before = world.candidacy.state
        decision = world.step(row.given, row.view)
        said = {case.decided.partition(" ")[0] for case in CASES if (case.state, case.given) == (before, row.given)}
        assert type(decision).__name__ in said
