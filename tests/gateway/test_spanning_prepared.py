"""A transaction over several homes that its client prepares, as XA has it: it is prepared in all or in none, and all of
it ends as its client says, whoever is lost at whichever step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from amq.broker.transactions.spanning import Spanning
from amq.broker.transactions.two_phase import TwoPhase
from amq.core.message import Message
from amq.core.xid import Xid
from amq.gateway.spanning import SpanningPrepare
from amq.journal.records import Prepared
from amq.management.views import totals
from amq.protocols.commands import (
    UNDECIDED,
    AbortBatch,
    Begin,
    CommitBatch,
    Disconnect,
    Finish,
    ForgetOutcome,
    ListPrepared,
    Prepare,
    Send,
    Settle,
)
from tests.gateway.routed import RoutedClient
from tests.gateway.staged import NAMES, STEPS, Loss, Stage, crashing, losing, sends, steps
from tests.subscribing import subscribe

XID = Xid(7, b"global", b"branch")
ALL, NOTHING = [[b"m"]] * 3, [[]] * 3


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    found = Stage(tmp_path)
    yield found
    found.cluster.close()


def prepare(xid: Any = XID, *, owner: str = "", batch: int = 0, timeout_ms: int | None = None) -> Prepare:
    return Prepare("t", xid, timeout_ms, owner, batch, "p")


def other(stage: Stage, *commands: Any) -> RoutedClient:
    """Another client, as of another gateway."""
    return stage.says(*commands, client=stage.cluster.connect())


def listed(stage: Stage) -> list[str]:
    found = other(stage, ListPrepared("l"))
    return [] if found.outcomes in ([], [""]) else found.outcomes[0].split("\n")


def end(stage: Stage, commit: bool = True, xid: Any = XID) -> None:
    """Another client ends it; again, that is confirmed."""
    for _ in range(2):
        found = other(stage, Finish(xid, commit, "f"))
        assert (
            (found.confirmed, found.codes) == (["f"], [])
            if commit
            else found.codes in ([], ["TRANSACTION_ROLLED_BACK"])
        )


@pytest.mark.parametrize("xid", [XID, "x"])
def test_it_is_prepared_in_all_and_another_client_commits_it(stage: Stage, xid: Any) -> None:
    stage.says(*sends(1, 2, 0), prepare(xid))
    assert (stage.client.confirmed, stage.stored) == (["p"], NOTHING)
    stage.says(Disconnect("d"))
    assert listed(stage) == [str(xid)]
    end(stage, xid=xid)
    assert (stage.stored, stage.prepared, listed(stage)) == (ALL, 0, [])
    assert other(stage, ForgetOutcome(xid, "o")).confirmed == ["o"]
    assert other(stage, Finish(xid, False, "f")).codes == ["XID_COMMITTED"]


def test_another_client_rolls_it_back_and_the_parts_hear_at_once(stage: Stage) -> None:
    stage.says(*sends(1, 2, 0), prepare())
    end(stage, commit=False)
    assert (stage.stored, stage.prepared, listed(stage)) == (NOTHING, 0, [])


def test_acknowledgements_are_parts(stage: Stage) -> None:
    stage.says(Send(Message(NAMES[0], b"a")), Send(Message(NAMES[1], b"b")), client=stage.cluster.connect())
    stage.says(*(subscribe(name, name, acknowledges=True) for name in NAMES[:2]))
    settled = [Settle(each.seq, each.subscription, None, "t") for each in [*stage.client.deliveries]]
    stage.says(Begin("t"), *settled, Send(Message(NAMES[2], b"x"), None, "t"), prepare())
    assert stage.stored == NOTHING
    end(stage)
    assert stage.stored == [[], [], [b"x"]]


def test_a_part_that_cannot_be_prepared_rolls_all_back(stage: Stage) -> None:
    for brief in 0, 2:
        send = Send(Message(NAMES[brief], b"t", persistent=False), None, "t")
        client = other(stage, *sends(0, 1), send, prepare())
        assert client.codes == ["NOT_SUPPORTED"]
        assert (stage.stored, stage.prepared, listed(stage)) == (NOTHING, 0, [])


def test_an_id_that_is_taken_rolls_all_back(stage: Stage) -> None:
    stage.says(*sends(1, 2), prepare())
    client = other(stage, *sends(1, 0, body=b"n"), prepare())
    assert client.codes == ["XID_IN_USE"]
    end(stage)
    assert (stage.stored, stage.prepared) == ([[], [b"m"], [b"m"]], 0)


def test_it_waits_for_its_client_and_that_is_no_doubt(stage: Stage) -> None:
    stage.says(*sends(1, 2, 0), prepare())
    for _ in range(5):
        stage.wait()
    brokers = [world.broker for world in stage.cluster.worlds]
    assert [totals(broker)["in_doubt"] for broker in brokers] == [0, 0, 0]
    assert [broker.spanning.facts for broker in brokers] == [{}, {}, {}]
    assert set(stage.ways.opened) == {"s1"}
    end(stage)
    assert stage.stored == ALL


def test_all_parts_time_out_together(tmp_path: Path) -> None:
    stage = Stage(tmp_path)
    stage.says(*sends(1, 2, 0), prepare(timeout_ms=1000))
    stage.wait()
    stage.wait()
    assert (stage.stored, stage.prepared, listed(stage)) == (NOTHING, 0, [])
    stage.cluster.close()


def test_it_is_not_prepared_after_a_part_has_asked(stage: Stage) -> None:
    stage.says(*sends(0, 1))
    stage.cut(1)
    stage.says(prepare())
    stage.wait()
    assert stage.prepared == 0
    asked = [*stage.home(1).connection.peer.asked.values()]  # type: ignore[union-attr]
    stage.home(1).confirm(asked[0])  # the answer of the part comes at last
    stage.rest()
    assert stage.client.errors == [("TRANSACTION_ROLLED_BACK", "p")]
    assert (stage.stored, listed(stage)) == (NOTHING, [])


def test_the_client_hears_of_a_commit_though_a_part_cannot_be_reached(stage: Stage) -> None:
    stage.says(*sends(0, 1, 2), prepare())
    stage.ways.refuses = True
    client = other(stage, Finish(XID, True, "f"))
    assert (client.confirmed, stage.stored) == ([], [[b"m"], [], []])
    for world in stage.cluster.worlds:
        world.clock.advance(2.0)
        world.broker.sweep()
    stage.rest()
    assert client.confirmed == ["f"]
    stage.ways.refuses = False
    stage.wait()
    assert (stage.stored, stage.prepared) == (ALL, 0)


# -- batches of pipelines ----------------------------------------------------------------------------------------------


def staged(stage: Stage, xid: str, *stores: int, batch: int = 7) -> list[str]:
    return other(stage, *sends(*stores), prepare(xid, owner="query", batch=batch)).codes


def commit(stage: Stage, *xids: str, batch: int = 7) -> list[str]:
    client = other(stage, CommitBatch("query", batch, xids, "c"))
    return client.outcomes or client.codes


def markers(stage: Stage) -> list[int]:
    """In how many batches each store has the word of their end."""
    return [len(world.broker.state.prepared.markers) for world in stage.cluster.worlds]


def test_a_batch_over_several_stores_is_one(stage: Stage) -> None:
    assert [staged(stage, "a", 0, 1), staged(stage, "b", 2), staged(stage, "lost", 1, 2)] == [[], [], []]
    assert stage.stored == NOTHING
    assert commit(stage, "a", "b") == ["committed"]
    assert (stage.stored, stage.prepared) == (ALL, 0)
    assert markers(stage) == [1, 0, 0]
    assert commit(stage, "a", "b") == ["duplicate"]
    assert staged(stage, "late", 1, 2) == ["BATCH_COMMITTED"]
    assert stage.prepared == 0


def test_a_batch_without_messages_is_in_one_store(stage: Stage) -> None:
    assert commit(stage) == ["committed"]
    assert markers(stage) == [1, 0, 0]
    assert commit(stage) == ["duplicate"]


def test_the_first_store_that_is_left_decides_batches(stage: Stage) -> None:
    table = stage.cluster.placement
    table.stores, table.places = ["s1", "s2"], ["", "s1", "s2"]
    table.rules = {name: "s1" if store == "s0" else store for name, store in table.rules.items()}
    assert [staged(stage, "a", 1, 2), commit(stage, "a")] == [[], ["committed"]]
    assert markers(stage) == [0, 1, 0]
    assert commit(stage, "a") == ["duplicate"]


def test_a_batch_is_given_up_in_all_stores(stage: Stage) -> None:
    staged(stage, "a", 0, 1)
    staged(stage, "b", 2)
    assert other(stage, AbortBatch("query", 7, ["a", "b"], "r")).outcomes == ["2"]
    assert (stage.stored, stage.prepared) == (NOTHING, 0)
    assert commit(stage, "a") == ["TRANSACTION_ROLLED_BACK"]


def test_a_batch_that_a_store_has_committed_by_itself_gets_no_part_there(stage: Stage) -> None:
    """As a sink commits that goes to each store itself."""
    client = stage.cluster.worlds[1].connect()
    client.do(CommitBatch("query", 7, (), "c"))
    stage.rest()
    assert client.outcomes == ["committed"]
    assert staged(stage, "a", 1, 2) == ["BATCH_DIFFERS"]
    assert (stage.prepared, staged(stage, "b", 1, 2, batch=8)) == (0, [])


# -- somebody is lost --------------------------------------------------------------------------------------------------


def is_whole(stage: Stage, commit: bool) -> bool:
    """Is it prepared? All of it is committed, or rolled back, then; otherwise nothing of it is anywhere."""
    for _ in range(4):
        stage.wait()
    found = listed(stage)
    assert found in ([], [str(XID)])
    assert stage.stored == NOTHING
    if found:
        end(stage, commit)
        stage.wait()
    assert stage.stored == (ALL if found and commit else NOTHING)
    assert stage.prepared == 0
    return bool(found)


def each_step(path: Path, *commands: Any) -> Iterator[Stage]:
    """A stage for each step, `commands` of which are under way."""
    for step in STEPS:
        (own := path / str(step)).mkdir(parents=True)
        stage = Stage(own)
        stage.says(*sends(1, 2, 0), *commands[:-1])
        stage.client.confirmed.clear()
        stage.client.session.handle([commands[-1]])
        steps(stage, step)
        yield stage
        stage.cluster.close()


@pytest.mark.deep
@pytest.mark.parametrize("loss", [losing, crashing])
@pytest.mark.parametrize("store", [1, 2])
def test_a_home_is_lost_at_any_step_of_the_prepare(tmp_path: Path, store: int, loss: Loss) -> None:
    """Store 1 decides."""
    found = set()
    for stage in each_step(tmp_path, prepare()):
        loss(stage, store)
        is_prepared = is_whole(stage, True)
        heard = [*stage.client.confirmed, *stage.client.codes]
        assert heard == (["p"] if is_prepared else ["TRANSACTION_ROLLED_BACK"])
        found.add(is_prepared)
    assert found >= {True} if loss is losing else found == {True, False}


@pytest.mark.deep
@pytest.mark.parametrize("ends", [True, False])
def test_the_gateway_is_lost_at_any_step_of_the_prepare(tmp_path: Path, ends: bool) -> None:
    found = set()
    for stage in each_step(tmp_path, prepare()):
        for home in [*stage.client.session.homes.values()]:  # type: ignore[attr-defined]
            home.connection.peer.is_cut = True
        stage.client.session.close()
        told = [*stage.client.confirmed]
        is_prepared = is_whole(stage, ends)
        assert is_prepared or not told
        found.add(is_prepared)
    assert found == {True, False}


@pytest.mark.deep
@pytest.mark.parametrize("is_asked_first", [True, False])
def test_a_client_that_asks_after_its_gateway_was_lost_hears_what_stays_true(
    tmp_path: Path, is_asked_first: bool
) -> None:
    found = set()
    for stage in each_step(tmp_path, prepare()):
        for home in [*stage.client.session.homes.values()]:  # type: ignore[attr-defined]
            home.connection.peer.is_cut = True
        stage.client.session.close()
        if not is_asked_first:
            stage.wait()
        client = other(stage, prepare())
        heard = [*client.confirmed, *client.codes]
        assert heard == (["p"] if is_whole(stage, True) else ["TRANSACTION_ROLLED_BACK"])
        found |= {*heard}
    assert found == {"p", "TRANSACTION_ROLLED_BACK"}


@pytest.mark.deep
@pytest.mark.parametrize("loss", [losing, crashing])
@pytest.mark.parametrize("store", [1, 2])
@pytest.mark.parametrize("ends", [True, False])
def test_a_home_is_lost_at_any_step_of_the_end(tmp_path: Path, store: int, loss: Loss, ends: bool) -> None:
    for stage in each_step(tmp_path, prepare(), Finish(XID, ends, "f")):
        loss(stage, store)
        for _ in range(4):
            stage.wait()
        heard = [*stage.client.confirmed, *stage.client.codes]
        assert heard in (["f"], ["TRANSACTION_ROLLED_BACK"][ends:])
        assert (stage.stored, stage.prepared) == (ALL if ends else NOTHING, 0)


@pytest.mark.deep
def test_a_master_ends_at_any_step_of_a_batch(tmp_path: Path) -> None:
    for store in range(3):
        batch = CommitBatch("query", 7, ("a",), "c")
        for stage in each_step(tmp_path / str(store), prepare("a", owner="query", batch=7), batch):
            stage.crash(store)
            for _ in range(4):
                stage.wait()
            assert (stage.client.confirmed, stage.client.codes) == (["c"], [])
            assert (stage.stored, stage.prepared) == (ALL, 0)


# -- holes made on purpose ---------------------------------------------------------------------------------------------


def _never_before_it_is_decided() -> Any:
    """A decider takes what its client has prepared for something that it does not know."""
    return patch.object(Spanning, "is_there", lambda spans, prepared: prepared.span or _IS_THERE(spans, prepared))


def _commits_without_a_decision() -> Any:
    """The commit of the decider's share is stored without the decision."""

    def commits(two_phase: TwoPhase, prepared: Prepared) -> list[Any]:
        return [record for record in _COMMITS(two_phase, prepared) if not isinstance(record, Prepared)]

    return patch.object(TwoPhase, "_commits", commits)


def _takes_undecided_for_the_end() -> Any:
    """A part ends while its client has not decided."""

    def answered(spans: Spanning, store: str, key: Any, outcome: str, error: Any) -> None:
        _ANSWERED(spans, store, key, "" if outcome == UNDECIDED else outcome, error)

    return patch.object(Spanning, "answered", answered)


def _prepares_before_the_parts() -> Any:
    """The client hears that it is prepared when the decider's share is."""

    def begin(ending: SpanningPrepare) -> None:
        _BEGIN(ending)
        ending._decide()

    return patch.multiple(SpanningPrepare, begin=begin, _prepared_in=lambda *_: None)


def _forgets_the_parts() -> Any:
    """The record of the decider's share does not say that there are others."""
    real = TwoPhase.prepare

    def prepares(two_phase: TwoPhase, transaction: Any, command: Prepare, *rest: Any) -> None:
        command.span, command.stores = "", ()
        real(two_phase, transaction, command, *rest)

    return patch.object(TwoPhase, "prepare", prepares)


_IS_THERE, _COMMITS, _ANSWERED, _BEGIN = Spanning.is_there, TwoPhase._commits, Spanning.answered, SpanningPrepare.begin
MUTANTS = [
    _never_before_it_is_decided,
    _commits_without_a_decision,
    _takes_undecided_for_the_end,
    _prepares_before_the_parts,
    _forgets_the_parts,
]


def _stories(path: Path) -> None:
    for store in 1, 2:
        for commands in (prepare(),), (prepare(), Finish(XID, True, "f")):
            for stage in each_step(path / f"{store}-{len(commands)}", *commands):
                stage.crash(store)
                if len(commands) == 1:
                    assert is_whole(stage, True) == (stage.client.confirmed == ["p"])
                    continue
                for _ in range(4):
                    stage.wait()
                assert (stage.stored, stage.prepared) == (ALL, 0)


@pytest.mark.deep
@pytest.mark.parametrize("mutant", MUTANTS)
def test_each_hole_is_found(tmp_path: Path, mutant: Callable[[], Any]) -> None:
    with mutant(), pytest.raises(AssertionError):
        _stories(tmp_path)
