"""A transaction over several homes: all of it or nothing, whoever is lost at whichever step, and the client hears what
is true."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from amq.broker.broker import Broker
from amq.broker.transactions import spanning
from amq.broker.transactions.refused import Refused
from amq.broker.transactions.spanning import Spanning
from amq.core.message import Message
from amq.gateway.homes import RoutedHome
from amq.gateway.spanning import SpanningCommit
from amq.management.views import totals
from amq.protocols.commands import (
    Abort,
    Begin,
    CloseSession,
    Commit,
    Decide,
    Disconnect,
    Finish,
    InSession,
    ListPrepared,
    OpenSession,
    Prepare,
    Send,
    SendToMany,
    Settle,
)
from tests.gateway.staged import NAMES, STEPS, Loss, Stage, crashing, losing, sends, steps
from tests.subscribing import subscribe


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    found = Stage(tmp_path)
    yield found
    found.cluster.close()


def test_all_of_it_is_committed_and_nothing_is_left(stage: Stage) -> None:
    stage.says(*sends(2, 0, 1), Commit("t", "c", "outcome"))
    assert stage.client.confirmed == ["c"]
    assert stage.stored == [[b"m"]] * 3
    assert stage.prepared == 0
    other = stage.says(Commit("t", "known", "outcome"), client=stage.cluster.connect())
    assert other.confirmed == ["known"]
    assert stage.ways.opened == []


def test_acknowledgements_and_messages_to_several_destinations_are_parts(stage: Stage) -> None:
    stage.says(Send(Message(NAMES[0], b"a")), Send(Message(NAMES[1], b"b")), client=stage.cluster.connect())
    stage.says(*(subscribe(name, name, acknowledges=True) for name in NAMES[:2]))
    stage.says(
        Begin("t"),
        *(Settle(each.seq, each.subscription, None, "t") for each in [*stage.client.deliveries]),
        SendToMany(Message("", b"x"), (NAMES[0], NAMES[2]), "s", "t"),
        Commit("t", "c"),
    )
    assert stage.client.confirmed == ["s", "c"]
    assert sorted(stage.client.bodies) == [b"a", b"b", b"x"]
    assert stage.stored == [[b"x"], [], [b"x"]]


def test_it_is_rolled_back_everywhere(stage: Stage) -> None:
    stage.says(*sends(0, 1), Abort("t", "a"))
    assert stage.client.confirmed == ["a"]
    stage.says(*sends(0, 1, body=b"n"), Commit("t", "c"))
    assert stage.stored == [[b"n"], [b"n"], []]


def test_what_cannot_be_prepared_is_in_the_decider(stage: Stage) -> None:
    other = stage.says(subscribe("d", "topic://t"), client=stage.cluster.connect())
    publish = Send(Message("topic://t", b"t"), None, "t")
    stage.says(*sends(0), publish, Commit("t", "c"))
    assert (stage.client.confirmed, other.bodies) == (["c"], [b"t"])
    brief = Send(Message(NAMES[2], b"t", persistent=False), None, "t")
    stage.says(*sends(0), publish, brief, Commit("t", "c"))
    assert stage.client.errors == [("NOT_SUPPORTED", "c")]
    assert (stage.stored, stage.prepared) == ([[b"m"], [], []], 0)


def test_what_comes_behind_the_commit_is_carried_out_behind_it(stage: Stage) -> None:
    def order(name: str) -> list[bytes]:
        return stage.cluster.stored(name[8:])

    after = [Send(Message(name, b"after"), f"after {name}") for name in NAMES]
    stage.says(OpenSession(1), InSession(1), *sends(0, 1, 2), Commit("t", "c"), *after, InSession(0), Disconnect("d"))
    assert stage.client.confirmed[-1] == "d"
    assert len(stage.client.confirmed) == 5
    assert [order(name) for name in NAMES] == [[b"m", b"after"]] * 3


def test_other_sessions_go_on_and_cannot_end_it(stage: Stage) -> None:
    stage.says(OpenSession(1))
    stage.client.session.handle([*sends(0, 1), Commit("t", "c"), InSession(1), Begin("t", "b"), Abort("t", "a")])
    stage.client.session.handle([InSession(1), Send(Message(NAMES[0], b"free"), "f"), CloseSession(1, "close")])
    stage.rest()
    assert [receipt for _, receipt in stage.client.errors] == ["b", "a"]
    assert sorted(stage.client.confirmed) == ["c", "close", "f"]
    assert sorted(stage.stored[0]) == [b"free", b"m"]


def test_a_name_that_took_place_rolls_the_second_one_back(stage: Stage) -> None:
    stage.says(*sends(0, 1), Commit("t", "c", "once"))
    stage.says(*sends(0, 1, body=b"again"), Commit("t", "d", "once"))
    assert stage.client.errors == [("ALREADY_COMMITTED", "d")]
    assert (stage.stored, stage.prepared) == ([[b"m"], [b"m"], []], 0)


def test_its_names_are_the_brokers_own(stage: Stage) -> None:
    stage.says(*sends(0, 1))
    stage.cut(1)
    stage.says(Commit("t", "c"))
    xid = next(iter(stage.cluster.worlds[1].broker.state.prepared))
    other = stage.says(ListPrepared("l"), client=stage.cluster.connect())
    assert other.outcomes in ([], [""])
    for prepare in Prepare("t", str(xid), receipt="p"), Prepare("t", "x", owner="span:s1", receipt="q"):
        stage.says(*sends(2), prepare, client=(other := stage.cluster.connect()))
        assert other.codes == ["XID_INVALID"]


@pytest.mark.parametrize(("stores", "batches"), [((1,), [0, 1, 0]), ((1, 2), [0, 2, 2]), ((1, 2, 0), [2, 2, 2])])
def test_it_costs_a_prepare_and_the_end_of_each_part(stage: Stage, stores: tuple[int, ...], batches: list[int]) -> None:
    """The client waits for the first batch of the decider, and for both of the others; the decider's second one forgets
    the decision."""
    found = [0, 0, 0]
    real = Broker.committed

    def committed(broker: Broker, batch: Any) -> None:
        found[[world.broker for world in stage.cluster.worlds].index(broker)] += 1
        real(broker, batch)

    stage.says(*sends(*stores))
    with patch.object(Broker, "committed", committed):
        stage.says(Commit("t", "c"))
    assert (stage.client.confirmed, found) == (["c"], batches)


# -- somebody is lost --------------------------------------------------------------------------------------------------


def outcome(stage: Stage) -> str:
    """What the client heard: "c", or the code of an error. All of it is committed then, or nothing; and nothing stays
    in doubt."""
    for _ in range(4):
        stage.wait()
    assert stage.prepared == 0
    found = [*stage.client.confirmed, *stage.client.codes]
    assert stage.stored in ([[b"m"]] * 3, [[]] * 3)
    if "c" in found:
        assert stage.stored == [[b"m"]] * 3
    if "TRANSACTION_ROLLED_BACK" in found:
        assert stage.stored == [[]] * 3
    assert len(found) == 1
    return found[0]


@pytest.mark.deep
@pytest.mark.parametrize("loss", [losing, crashing])
@pytest.mark.parametrize("store", [1, 2])
@pytest.mark.parametrize("name", ["", "outcome"])
def test_a_home_is_lost_at_any_step(tmp_path: Path, store: int, loss: Loss, name: str) -> None:
    """Store 1 decides."""
    found = set()
    for step in STEPS:
        (path := tmp_path / str(step)).mkdir()
        stage = Stage(path)
        stage.says(*sends(1, 2, 0))
        stage.client.session.handle([Commit("t", "c", name)])
        steps(stage, step)
        loss(stage, store)
        found.add(outcome(stage))
        stage.cluster.close()
    assert found == {"c", "TRANSACTION_ROLLED_BACK"} if loss is crashing else found >= {"c"}


@pytest.mark.deep
def test_the_gateway_is_lost_at_any_step(tmp_path: Path) -> None:
    found = set()
    for step in STEPS:
        (path := tmp_path / str(step)).mkdir()
        stage = Stage(path)
        stage.says(*sends(0, 1, 2))
        stage.client.session.handle([Commit("t", "c", "outcome")])
        steps(stage, step)
        for home in [*stage.client.session.homes.values()]:  # type: ignore[attr-defined]
            home.connection.peer.is_cut = True
        stage.client.session.close()
        stage.client._out.clear()
        told = [*stage.client.confirmed]
        for _ in range(4):
            stage.wait()
        assert stage.stored in ([[b"m"]] * 3, [[]] * 3)
        assert stage.prepared == 0
        other = stage.says(Commit("t", "q", "outcome"), client=stage.cluster.connect())
        is_there = stage.stored == [[b"m"]] * 3
        assert (other.confirmed == ["q"]) == is_there
        assert is_there or told == []
        found.add(is_there)
        stage.cluster.close()
    assert found == {True, False}


@pytest.mark.parametrize("store", [1, 2])
@pytest.mark.parametrize("step", [0, 1])
def test_a_master_ends_while_its_part_is_prepared_or_decided(stage: Stage, store: int, step: int) -> None:
    stage.says(*sends(1, 2, 0))
    stage.client.session.handle([Commit("t", "c")])
    steps(stage, step)
    stage.crash(store)
    assert outcome(stage) == ("c" if step and store == 2 else "TRANSACTION_ROLLED_BACK")


def test_a_late_decision_is_refused_after_a_store_has_asked(stage: Stage) -> None:
    stage.says(*sends(0, 1))
    stage.cut(1)
    stage.says(Commit("t", "c"))
    assert stage.prepared == 1
    stage.wait()
    assert stage.ways.opened == ["s0"]
    assert (stage.prepared, stage.stored) == (0, [[]] * 3)
    asked = [*stage.home(1).connection.peer.asked.values()]  # type: ignore[union-attr]
    stage.home(1).confirm(asked[0])  # the answer of the prepare comes at last
    stage.rest()
    assert stage.client.errors == [("TRANSACTION_ROLLED_BACK", "c")]
    assert stage.stored == [[]] * 3


def test_a_store_asks_again_until_the_decider_answers(stage: Stage) -> None:
    stage.says(*sends(0, 1))
    stage.cut(1)
    stage.says(Commit("t", "c"))
    stage.ways.refuses = True
    stage.wait()
    stage.wait()
    assert stage.prepared == 1
    world = stage.cluster.worlds[1]
    stage.ways.refuses = False
    stage.wait()
    assert stage.prepared == 0
    assert not world.broker.spanning.since
    assert not world.broker.spanning._ways


def test_operators_see_what_is_in_doubt(stage: Stage) -> None:
    def seen(store: int) -> tuple[Any, ...]:
        broker = stage.cluster.worlds[store].broker
        row, facts = totals(broker), dict(broker.spanning.facts)
        return row["in_doubt"], row["in_doubt_s"], facts.get("waits_for"), facts.get("reason"), facts.get("since_ms")

    stage.says(*sends(0, 1, 2))
    began_ms = stage.cluster.worlds[1].clock.wall_ms()
    stage.cut(1)
    stage.says(Commit("t", "c"))
    assert seen(1) == (0, 0.0, None, None, None)
    stage.ways.refuses = True
    stage.wait()
    assert seen(1) == (1, 6.0, None, None, None), "it has just been asked for"
    stage.wait()
    assert seen(1) == (1, 12.0, "s0", "no master", began_ms)
    stage.ways.refuses = False
    stage.wait()
    stage.wait(1.0)
    assert seen(1) == (0, 0.0, None, None, None)

    stage.says(*sends(0, 1, 2), client=(other := stage.cluster.connect()))
    other.session.handle([Commit("t", "d")])
    while not any(each.owner for each, _ in stage.cluster.worlds[0].broker.state.prepared.values()):
        steps(stage, 1)
    for home in other.session.homes.values():  # type: ignore[attr-defined]
        home.connection.peer.is_cut = True
    other.session.close()
    stage.ways.refuses = True
    stage.wait()
    stage.wait()
    assert seen(0)[2:4] == ("s1, s2", "no master"), "the decision waits for those that have parts"


def in_doubt(stage: Stage) -> list[str]:
    """Of each store that has a part: of which transaction."""
    return [str(each.xid) for world in stage.cluster.worlds for each, _ in world.broker.state.prepared.values()]


@pytest.mark.parametrize("commit", [True, False])
def test_an_operator_ends_a_part_by_hand_in_its_store(stage: Stage, commit: bool) -> None:
    stage.says(*sends(0, 1, 2))
    stage.cut(1)
    stage.cut(2)
    stage.says(Commit("t", "c"))
    stage.ways.refuses = True
    xid, other = in_doubt(stage)
    assert xid == other
    for _ in range(2):
        operator = stage.cluster.worlds[1].connect()
        operator.do(Finish(xid, commit, "f"))
        stage.rest()
        assert (operator.confirmed, operator.codes) == (["f"], [])
        assert (stage.stored, in_doubt(stage)) == ([[], [b"m"] if commit else [], []], [xid])


def test_no_operator_ends_a_part_in_some_stores_alone_by_a_gateway(stage: Stage) -> None:
    """The decider has committed it, and would refuse what the others did."""
    stage.says(*sends(0, 1))
    stage.cut(0)
    stage.says(Commit("t", "c"))
    stage.ways.refuses = True
    xid, _ = in_doubt(stage)
    operator = stage.says(Finish(xid, False, "f"), client=stage.cluster.connect())
    assert operator.codes == ["XID_INVALID"]
    operator = stage.cluster.worlds[0].connect()
    operator.do(Finish(xid, False, "f"))
    stage.rest()
    assert operator.codes == ["XID_COMMITTED"]
    stage.ways.refuses = False
    stage.wait()
    assert (stage.stored, stage.prepared) == ([[b"m"], [b"m"], []], 0)


def test_a_decision_is_kept_until_each_part_has_ended(stage: Stage) -> None:
    stage.says(*sends(1, 2, 0))
    stage.client.session.handle([Commit("t", "c")])
    for _ in range(30):
        steps(stage, 1)
        if any(each.owner for each, _ in stage.cluster.worlds[1].broker.state.prepared.values()):
            break
    for store in (0, 1, 2):
        stage.cut(store)
    stage.client.session.close()
    stage.ways.refuses = True
    stage.wait()
    assert len(stage.cluster.worlds[1].broker.state.prepared) == 1
    stage.cluster.worlds[1].crash_and_recover()
    stage.rest()
    assert len(stage.cluster.worlds[1].broker.state.prepared) == 1
    stage.ways.refuses = False
    stage.wait()
    assert (stage.stored, stage.prepared) == ([[b"m"]] * 3, 0)


def test_a_part_never_times_out(tmp_path: Path) -> None:
    stage = Stage(tmp_path, prepared_transaction_timeout_s=1.0, prepared_transaction_timeout_max_s=1.0)
    stage.says(*sends(0, 1))
    stage.cut(1)
    stage.says(Commit("t", "c"))
    stage.ways.refuses = True
    stage.wait(1000.0)
    assert stage.prepared == 1
    stage.cluster.close()


# -- holes made on purpose ---------------------------------------------------------------------------------------------


def _answers_early() -> Any:
    """The client hears before the decision is durable."""
    real = SpanningCommit._ask

    def ask(commit: SpanningCommit, home: RoutedHome, command: Any, answered: Any) -> None:
        real(commit, home, command, answered)
        if isinstance(command, Decide):
            commit._answer()

    return patch.object(SpanningCommit, "_ask", ask)


def _commits_on_its_own() -> Any:
    """A part in doubt is committed without a question."""
    return patch.object(Spanning, "_ask", lambda spans, prepared: spans._end(prepared, True))


def _takes_nothing_for_a_commit() -> Any:
    """A decider that knows nothing says that it has decided."""
    return patch.object(Spanning, "_is_decided", lambda *_: True)


def _forgets_what_it_said() -> Any:
    """A decider says "never", and decides later."""
    return patch.object(Refused, "add", lambda *_: None)


def _forgets_the_decision() -> Any:
    """The decision is not stored."""
    real = Spanning._decide

    def decide(spans: Spanning, transaction: Any, command: Decide, waiter: Any, name: str, user: str) -> None:
        with patch.object(spanning, "Prepared", lambda *_, **__: None):
            real(spans, transaction, command, waiter, name, user)

    return patch.object(Spanning, "_decide", decide)


def _stories(path: Path) -> None:
    for number, store in enumerate((1, 2)):
        for step in range(6):
            (each := path / f"{number}-{step}").mkdir()
            stage = Stage(each)
            try:
                stage.says(*sends(1, 2, 0))
                stage.client.session.handle([Commit("t", "c")])
                steps(stage, step)
                stage.crash(store)
                outcome(stage)
            finally:
                stage.cluster.close()
    (path / "late").mkdir()
    stage = Stage(path / "late")
    try:
        test_a_late_decision_is_refused_after_a_store_has_asked(stage)
    finally:
        stage.cluster.close()


MUTANTS = [
    _answers_early,
    _commits_on_its_own,
    _takes_nothing_for_a_commit,
    _forgets_what_it_said,
    _forgets_the_decision,
]


@pytest.mark.deep
@pytest.mark.parametrize("mutant", MUTANTS)
def test_each_hole_is_found(tmp_path: Path, mutant: Callable[[], Any]) -> None:
    with mutant(), pytest.raises(AssertionError):
        _stories(tmp_path)
