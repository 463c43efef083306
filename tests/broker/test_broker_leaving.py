"""A store leaves the cluster: all that it has comes to the other one, and it is removed only when it is empty."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from amq.broker.sessions import temporary
from amq.broker.transfer import moving
from amq.cluster.placement import SPREAD, Placement
from amq.cluster.placing import Await, next_step
from amq.protocols.commands import Begin, Commit, CommitBatch, Finish, MakeTemporary, Prepare
from tests.broker.carrying import BODIES, OURS, Cluster, received, send
from tests.broker.outboxes import STORES, TABLE, names_of
from tests.mutant import Mutant, mutants
from tests.sampling import sampled

SEEDS = range(6)
DLQ = "ActiveMQ.DLQ"
MUTANTS = mutants(r"""
it is removed while it holds something [rest]
    amq.cluster.placing.next_step: seen.rest or => False or
it is removed while another store waits for its answer [peers]
    amq.cluster.placing.next_step: or placement.leaving in seen.peers => or False
it forgets which commits took place [outcomes]
    amq.broker.transfer.moving.Mover.taken: names := extra.get(OUTCOMES) => names := []
what is in every store stays [everywhere]
    amq.cluster.placement.Layout.is_in: and store != self.without =>
it forgets which batches took place [batches]
    amq.broker.transfer.moving.Mover.taken: extra.get(MARKERS, ()) => ()
it forgets a batch that was prepared before and committed late [batches]
    amq.broker.homes.Homes.marked: self.has_given_rest => False
it takes batches that nobody will know of [batches]
    amq.broker.transactions.two_phase.TwoPhase.prepare: core.homes.has_given_rest => False
subscriptions to patterns stay [pattern]
    amq.broker.homes.Homes._begin_step: not homes and placement.leaving == self._store => False
""")


@pytest.fixture(autouse=True)
def small_parcels_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moving, "MESSAGES_MAX", 50)


def empty(cluster: Cluster, table: Placement | None = None) -> None:
    """Begin to remove s1."""
    cluster.table = (table or cluster.table).emptied("s1", ["s2"])
    cluster.offer()


def check_removed(cluster: Cluster) -> None:
    s1 = cluster.worlds["s1"].broker
    assert cluster.table.stores == ("s2",)
    assert cluster.table.places == ("", "s2"), "clients know messages of s2 by its place"
    assert s1.state.stored == 0
    assert not s1.state.prepared


def test_a_reply_waits_for_its_connection_that_comes_from_the_store(cluster: Cluster) -> None:
    """Gateways hear of the removal one after the other: that of who answers may be the first."""
    s2 = cluster.worlds["s2"]
    found = (f"temp-queue://gateway-{number}.replies" for number in range(99))
    names = [name for name in found if TABLE.home_of(name) == "s1"][:3]
    chosen = next(name for n in range(99) if TABLE.home_of(name := f"temp-queue://ID:host-1:{n}") == "s1")
    owners = [name.partition("://")[2].partition(".")[0] for name in names]
    empty(cluster)
    while cluster.table.step is not None:
        cluster.settle(1)
        cluster.advance()
    assert {cluster.table.home_of(name) for name in names} == {"s2"}
    client = s2.connect()
    for name in (*names, chosen):
        client.send(b"reply", name, persistent=False)
    s2.settle()
    for name, owner in [*zip(names, owners, strict=True)][:2]:
        waiting = s2.connect(number=owner, since_ms=1)
        waiting.subscribe(name, ack="auto")
        s2.settle()
        assert waiting.bodies == [b"reply"]
        assert waiting.errors == []
    waiting.do(MakeTemporary(chosen))
    waiting.subscribe(chosen, id="chosen", ack="auto")
    s2.settle()
    assert waiting.bodies == [b"reply", b"reply"]
    held = s2.broker.memory.taken_bytes
    assert held > 0
    s2.clock.advance(temporary.OWNER_S + 1)
    s2.broker.sweep()
    client.send(b"too late", names[2], persistent=False)
    s2.settle()
    late = s2.connect(number=owners[2], since_ms=1)
    late.subscribe(names[2], ack="auto")
    s2.settle()
    assert late.bodies == []
    assert s2.broker.memory.taken_bytes < held
    assert client.errors == []


def test_everything_comes_in_order(cluster: Cluster) -> None:
    s1, s2 = cluster.worlds.values()
    queues = names_of("s1", 12)
    for queue in queues:
        send(s1, [f"{queue} {n}".encode() for n in range(60)], queue)
    empty(cluster)
    cluster.finish()
    check_removed(cluster)
    for queue in queues:
        assert received(s2, queue) == [f"{queue} {n}".encode() for n in range(60)]
    client, other = s1.connect(), s1.connect()
    client.send(b"x", OURS)
    other.subscribe("queue://>", id="all")
    s1.settle()
    assert (client.codes, other.codes) == (["MOVING"], ["MOVED"]), "as long as it does not know the last table"


def test_what_is_in_every_store_comes_in_the_last_step(make_cluster: Callable[..., Cluster]) -> None:
    in_every_store(make_cluster())


def in_every_store(cluster: Cluster) -> None:
    s1, s2 = cluster.worlds.values()
    cluster.table = TABLE.placed("clicks", SPREAD).settled()
    cluster.offer()
    cluster.settle(2)
    for queue in ("clicks", DLQ):
        send(s1, [b"1", b"2"], queue)
        send(s2, [b"3"], queue)
    empty(cluster)
    cluster.finish()
    check_removed(cluster)
    assert sorted(received(s2, "clicks")) == sorted(received(s2, DLQ)) == [b"1", b"2", b"3"]


def test_a_durable_subscription_to_a_pattern_comes(make_cluster: Callable[..., Cluster]) -> None:
    pattern(make_cluster())


def pattern(cluster: Cluster) -> None:
    s1, s2 = cluster.worlds.values()
    for world in (s1, s2):
        client = world.consumer("topic://>", subscription_name="d", id="d", client_id="c")
        client.disconnect()
    send(s1, [b"ours"], f"topic://{OURS}")
    send(s2, [b"theirs"], f"topic://{names_of('s2')[0]}")
    empty(cluster)
    cluster.finish()
    check_removed(cluster)
    assert not s1.broker.state.subscriptions
    client = s2.consumer("topic://>", subscription_name="d", id="d", ack="auto", client_id="c")
    assert sorted(client.bodies) == [b"ours", b"theirs"]


def test_it_waits_for_prepared_transactions(make_cluster: Callable[..., Cluster]) -> None:
    prepared(make_cluster())


def prepared(cluster: Cluster) -> None:
    s1, s2 = cluster.worlds.values()
    client = s1.connect()
    client.begin()
    client.send(b"prepared", OURS, transaction="t")
    client.do(Prepare("t", "x", receipt="r"))
    s1.settle()
    empty(cluster)
    for _ in range(5):
        cluster.settle(2)
        cluster.advance()
    assert next_step(cluster.table, cluster.seen()) == Await(("s1",))
    s1.connect().do(Finish("x", True, "r"))
    cluster.finish()
    check_removed(cluster)
    assert received(s2) == [b"prepared"]


def test_it_waits_for_what_it_does_not_send(make_cluster: Callable[..., Cluster]) -> None:
    rest(make_cluster())


def rest(cluster: Cluster) -> None:
    """A queue that comes into being when all moves already."""
    s1, _ = cluster.worlds.values()
    empty(cluster)
    cluster.settle(2)
    cluster.advance()
    cluster.settle(2)
    assert cluster.table.is_last_step
    facts = dict(s1.broker.homes.facts)  # type: ignore[union-attr]
    s1.broker.homes.facts = {**facts, "rest": ["ID"]}  # type: ignore[union-attr]
    assert next_step(cluster.table, cluster.seen()) == Await(("s1",))


def test_it_waits_for_stores_that_wait_for_it(make_cluster: Callable[..., Cluster]) -> None:
    peers(make_cluster())


def peers(cluster: Cluster) -> None:
    _, s2 = cluster.worlds.values()
    empty(cluster)
    cluster.settle(2)
    cluster.advance()
    cluster.settle(2)
    facts = dict(s2.broker.homes.facts)  # type: ignore[union-attr]
    assert facts["peers"] == []
    s2.broker.homes.facts = {**facts, "peers": ["s1"]}  # type: ignore[union-attr]
    assert next_step(cluster.table, cluster.seen()) == Await(("s2",))


def test_commits_are_answered_by_the_others(make_cluster: Callable[..., Cluster]) -> None:
    outcomes(make_cluster())


def outcomes(cluster: Cluster) -> None:
    s1, s2 = cluster.worlds.values()
    client = s1.connect()
    client.do(Begin("t"))
    client.send(b"x", OURS, transaction="t")
    client.do(Commit("t", "r", "outcome-1"))
    s1.settle()
    assert client.errors == []
    empty(cluster)
    cluster.finish()
    check_removed(cluster)
    client = s2.connect()
    client.do(Commit("t", "again", "outcome-1"))
    s2.settle()
    assert client.confirmed == ["again"], "it took place"


def test_batches_that_took_place_are_known_to_the_others(make_cluster: Callable[..., Cluster]) -> None:
    batches(make_cluster())


def batches(cluster: Cluster) -> None:
    s1, s2 = cluster.worlds.values()
    client = s1.connect()

    def prepare(batch: int) -> None:
        """A part without messages: s1 only decides."""
        client.begin(f"t{batch}")
        client.do(Prepare(f"t{batch}", f"x{batch}", owner="job", batch=batch, receipt=f"p{batch}"))
        s1.settle()

    def known(world: Any) -> int:
        """The newest batch of which that store knows that it took place."""
        marker, _ = world.broker.state.prepared.markers.get("job", (None, None))
        return -1 if marker is None else int(marker.batch)

    prepare(1)
    client.do(CommitBatch("job", 1, ["x1"], "c1"))
    prepare(2)
    empty(cluster)
    cluster.settle(2)
    cluster.advance()
    cluster.settle(2)
    assert cluster.table.is_last_step
    assert s1.broker.homes.has_given_rest  # type: ignore[union-attr]
    assert known(s2) == 1
    prepare(3)
    assert client.codes[-1:] == ["TRANSACTION_ROLLED_BACK"], "s2 decides from now on"
    assert next_step(cluster.table, cluster.seen()) == Await(("s1",)), "of batch 2"
    other = s1.connect()
    other.do(CommitBatch("job", 2, ["x2"], "c2"))
    cluster.finish()
    assert other.confirmed == ["c2"]
    check_removed(cluster)
    assert known(s2) == 2


def test_a_removal_is_taken_back(cluster: Cluster) -> None:
    s1, _ = cluster.worlds.values()
    send(s1)
    send(s1, [b"dead"], DLQ)
    empty(cluster)
    cluster.settle(2)
    cluster.advance()
    cluster.settle(1)
    cluster.table = cluster.table.returning()
    cluster.offer()
    cluster.finish()
    assert (cluster.table.stores, cluster.table.leaving, cluster.table.layout) == (STORES, "", TABLE.layout)
    assert received(s1) == BODIES
    send(s1, [b"more"], DLQ)


@pytest.mark.parametrize("seed", sampled(SEEDS, 2))
def test_nothing_is_lost_or_doubled_when_masters_end(cluster: Cluster, seed: int) -> None:
    random = Random(seed)
    s1 = cluster.worlds["s1"]
    cluster.table = TABLE.placed("clicks", SPREAD).settled()
    cluster.offer()
    cluster.settle(2)
    bodies = [b"%d" % number for number in range(300)]
    for queue in (OURS, "clicks", DLQ):
        send(s1, bodies, queue)
    empty(cluster)
    for _ in range(50):
        happens = random.randrange(10)
        if happens == 0:
            cluster.crash(random.choice(cluster.table.stores), jobs=random.randrange(4))
        elif happens == 1:
            for way in [*cluster.ways.open_ways]:
                way.lose()
        elif happens == 2:
            cluster.advance()
        else:
            for world in cluster.worlds.values():
                for _ in range(random.randrange(1, 6)):
                    world.turn()
                    world.runner.step()
            for way in cluster.ways.open_ways:
                way.leave()
            for way in [*cluster.ways.open_ways]:
                way.carry()
            for world in cluster.worlds.values():
                world.clock.advance(0.3)
                world.broker.sweep()
    cluster.finish()
    check_removed(cluster)
    for queue in (OURS, "clicks", DLQ):
        assert received(cluster.worlds["s2"], queue) == bodies


def test_a_table_keeps_places_and_refuses_what_cannot_be() -> None:
    table = Placement.even(1, ("s1", "s2", "s3")).placed("a", "s1").settled().emptied("s1", ["s2", "s3"])
    read = Placement.from_json(table.number, table.to_json())
    assert read == table
    assert (table.decider, table.next_decider) == ("s1", "s2")
    gone = table.stepped(table.step.waiting).settled()  # type: ignore[union-attr]
    assert (gone.stores, gone.places, gone.gone) == (("s2", "s3"), ("", "s2", "s3"), (0,))
    assert gone.decider == "s2"
    assert gone.layout.rules == {"a": "s2"}
    assert {*gone.layout.slots} == {"s2", "s3"}
    assert abs(gone.layout.slots.count("s2") - gone.layout.slots.count("s3")) <= 1
    again = Placement.from_json(9, gone.with_store("s1").to_json())
    assert again.places == ("", "s2", "s3", "s1")
    for damaged in ({"leaving": "s9"}, {"gone": [3, 2]}, {"gone": [5000]}):
        with pytest.raises(ValueError, match="damaged"):
            Placement.from_json(9, table.to_json() | damaged)


CHECKS = {
    "rest": rest,
    "peers": peers,
    "outcomes": outcomes,
    "batches": batches,
    "everywhere": in_every_store,
    "pattern": pattern,
}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.what)
def test_a_mutant_of_leaving_is_seen(mutant: Mutant, make_cluster: Callable[..., Cluster]) -> None:
    with mutant.applied(), pytest.raises(AssertionError):
        CHECKS[mutant.seen_by](make_cluster())
