"""A move between two stores: all that a destination holds comes to its new home, once and in order, whatever ends."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

from amq.broker.transfer import moving
from amq.cluster.placement import Placement
from amq.cluster.placing import Await, next_step
from amq.config.destination_options import DestinationOptions
from amq.protocols.commands import Finish, Prepare
from tests.broker.carrying import BODIES, OURS, OURS_TOO, THEIRS, Cluster, received, send
from tests.broker.outboxes import STORES, TABLE, names_of
from tests.broker.test_broker_retained import retain
from tests.mutant import Mutant, mutants
from tests.sampling import sampled

SEEDS = range(6)

MUTANTS = mutants(r"""
the new home serves before the old one has sent everything [crashes]
    amq.cluster.placing.next_step: (step.moving and (seen.held or seen.left)) => False
what is on its way is served by its old home [meanwhile]
    amq.cluster.placement.Placement._in_force: in self.step.moving => in ()
what is on its way is given to a consumer of the new home [meanwhile]
    amq.broker.homes.Homes.takes: self.frozen.add(queue) => pass
the old home forgets what the new one has not recorded [crashes]
    amq.broker.transfer.channel.Channel._recorded: self._ask(transfer) => self._ask(transfer); self._come()
a step takes a prepared transaction along [prepared]
    amq.broker.homes.Homes.offer: bound := self._bound(placement) => bound := []
the new home remembers no ids [ids]
    amq.broker.transfer.moving.Mover.taken: ids := extra.get(IDS) => ids := []
ids of another time are in the way [ids]
    amq.broker.transactions.commits.Commits._append_commit: and not transaction.takes_over =>
deliveries are not counted [all]
    amq.broker.transfer.moving.Mover.taken: counts := extra.get(COUNTS) => counts := []
""")


@pytest.fixture(autouse=True)
def small_parcels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moving, "MESSAGES_MAX", 50)


def test_a_queue_comes_in_order_and_its_old_home_forgets_it(cluster: Cluster) -> None:
    s1, s2 = cluster.worlds.values()
    send(s1)
    send(s1, [b"kept"], OURS_TOO)
    cluster.begin()
    cluster.finish()
    assert cluster.table.home_of(f"queue://{OURS}") == "s2"
    assert received(s2) == BODIES
    assert received(s1, OURS_TOO) == [b"kept"]
    assert f"queue://{OURS}" not in s1.broker.state.queues or not s1.broker.state.queues[f"queue://{OURS}"].stored
    client = s1.send(b"x", queue=OURS)
    assert client.codes == ["MOVED"]


def test_nobody_gets_anything_while_it_moves(cluster: Cluster) -> None:
    s1, s2 = cluster.worlds.values()
    send(s1)
    everything = s2.connect()
    everything.subscribe("queue://>", id="all", ack="auto")
    cluster.begin()
    cluster.settle(2)
    assert cluster.advance()
    cluster.settle(5)
    assert s2.broker.state.stored == len(BODIES)
    assert everything.bodies == []
    cluster.finish()
    assert everything.bodies == BODIES


def test_messages_keep_all_that_they_have(cluster: Cluster) -> None:
    s1, s2 = cluster.worlds.values()
    world = s1.connect()
    world.send(b"low", OURS, priority=1)
    world.send(b"high", OURS, priority=9)
    world.send(b"props", OURS, properties={"a": "b"}, expires_ms=s1.clock.wall_ms() + 600_000)
    world.send(b"in memory alone", OURS, persistent=False)
    s1.settle()
    seen = {each.body: each for each in s1.broker.state.queues[f"queue://{OURS}"].messages.values()}
    before = {body: (each.priority, each.timestamp_ms, each.expires_ms, each.properties) for body, each in seen.items()}
    failing = s1.consumer(OURS, ack="client", prefetch=1)
    assert failing.bodies == [b"high"]
    failing.disconnect()
    cluster.begin()
    cluster.finish()
    client = s2.consumer(OURS, ack="auto")
    assert client.bodies == [b"high", b"props", b"in memory alone", b"low"]
    assert [each.redelivered for each in client.deliveries] == [1, 0, 0, 0]
    after = {each.body: each.message for each in client.deliveries}
    assert before == {
        body: (each.priority, each.timestamp_ms, each.expires_ms, each.properties) for body, each in after.items()
    }


def test_a_retained_message_comes(cluster: Cluster) -> None:
    s1, s2 = cluster.worlds.values()
    topic = f"topic://{OURS}"
    retain(s1, b"kept", topic)
    s1.settle()
    assert s1.broker.state.stored == 1
    cluster.begin()
    cluster.finish()
    assert (s1.broker.state.stored, s2.broker.state.stored) == (0, 1)


def test_a_queue_that_waits_for_a_virtual_topic_comes(cluster: Cluster) -> None:
    s1, s2 = cluster.worlds.values()
    name = next(f"VirtualTopic.{n}" for n in range(99) if TABLE.home_of(f"topic://VirtualTopic.{n}") == "s1")
    assert received(s1, f"Consumer.A.{name}") == []
    cluster.begin(name)
    cluster.finish()
    send(s2, [b"x"], f"topic://{name}")
    assert received(s2, f"Consumer.A.{name}") == [b"x"]


def test_a_move_sends_no_more_than_it_may(cluster: Cluster) -> None:
    s1, _ = cluster.worlds.values()
    send(s1, [bytes(1000)] * 300)
    cluster.begin()
    cluster.settle(2)
    cluster.table = cluster.table.at_rate(20_000)
    cluster.offer()
    cluster.settle(2)
    cluster.advance()
    cluster.settle(4)
    assert 0 < cluster.seen()["s1"].left < 300
    cluster.settle(20)
    assert cluster.seen()["s1"].left == 0
    assert cluster.seen()["s1"].sent == 300


def test_a_durable_subscription_comes_with_what_waits_for_it(cluster: Cluster) -> None:
    s1, s2 = cluster.worlds.values()
    topic = f"topic://{OURS}"
    client = s1.consumer(topic, subscription_name="d", id="d", selector="a = 'b'", client_id="c")
    client.disconnect()
    send(s1, BODIES, topic, properties={"a": "b"})
    cluster.begin()
    cluster.finish()
    assert not s1.broker.state.subscriptions
    send(s2, [b"new"], topic, properties={"a": "b"})
    client = s2.consumer(topic, subscription_name="d", id="d", selector="a = 'b'", ack="auto", client_id="c")
    assert client.bodies == [*BODIES, b"new"]


def stand_still(cluster: Cluster) -> str:
    """A topic does not move, because its next home has another durable subscription of the same name."""
    s1, s2 = cluster.worlds.values()
    topic = f"topic://{OURS}"
    for world, name in ((s1, topic), (s2, f"topic://{THEIRS}")):
        world.consumer(name, subscription_name="d", id="d", client_id="c").disconnect()
    send(s1, BODIES, topic)
    cluster.begin()
    for _ in range(4):
        cluster.settle(2)
        cluster.advance()
    return topic


def test_a_move_to_a_store_that_has_another_subscription_of_that_name_says_so_and_goes_on(cluster: Cluster) -> None:
    s1, s2 = cluster.worlds.values()
    topic = stand_still(cluster)
    stuck = cluster.seen()["s1"].stuck
    assert stuck.startswith(f"store s2 refuses /topic/{OURS}: there is another durable subscription 'd' of client 'c'")
    assert "UNSUBSCRIBE it first" in stuck
    since_ms = s1.broker.homes.facts["stuck"]["since_ms"]
    cluster.settle(2)
    assert s1.broker.homes.facts["stuck"]["since_ms"] == since_ms, "it is still the same"
    client = s2.connect(client_id="c")
    client.unsubscribe("d", subscription_name="d")
    assert client.errors == []
    cluster.finish()
    assert cluster.seen()["s1"].stuck == ""
    assert s2.consumer(topic, subscription_name="d", id="d", ack="auto", client_id="c").bodies == BODIES


def test_a_move_that_is_taken_back_stands_still_no_more(cluster: Cluster) -> None:
    s1, s2 = cluster.worlds.values()
    topic = stand_still(cluster)
    assert cluster.seen()["s1"].stuck
    cluster.table = cluster.table.returning()
    cluster.offer()
    client = s2.connect(client_id="c")
    client.unsubscribe("d", subscription_name="d")
    cluster.finish()
    assert cluster.seen()["s1"].stuck == cluster.seen()["s2"].stuck == ""
    assert s1.consumer(topic, subscription_name="d", id="d", ack="auto", client_id="c").bodies == BODIES


def test_ids_are_remembered_where_the_queue_lives(cluster: Cluster) -> None:
    s1, s2 = cluster.worlds.values()
    send(s1, [b"one"], duplicate_id="1")
    assert received(s1) == [b"one"]
    send(s1, [b"two"], duplicate_id="2")
    cluster.begin()
    cluster.finish()
    send(s2, [b"one"], duplicate_id="1")
    send(s2, [b"two"], duplicate_id="2")
    assert received(s2) == [b"two"]
    send(s2, [b"three"], duplicate_id="3")
    cluster.begin(store="s1")  # what it has is not taken for what it had
    cluster.finish()
    assert received(s1) == [b"three"]


def test_what_is_scheduled_comes_at_its_time(cluster: Cluster) -> None:
    s1, s2 = cluster.worlds.values()
    send(s1, [b"later"], properties={"AMQ_SCHEDULED_DELAY": "3600000"})
    cluster.begin()
    cluster.finish()
    assert received(s2) == []
    s2.clock.advance(3600)
    s2.settle()
    assert received(s2) == [b"later"]
    assert s1.broker.state.stored == 0


def test_a_channel_goes_on_to_another_store(make_cluster: Callable[..., Cluster]) -> None:
    """Its connection to the one before is open still, and is to end without the next answer (seed 8 of moves)."""
    cluster = make_cluster(table=Placement.even(1, ("s1", "s2", "s3")))
    name, other, _ = names_of("s1", placement=cluster.table)
    for queue, store in ((name, "s2"), (other, "s3")):
        send(cluster.worlds["s1"], [b"x"], queue)
        cluster.begin(queue, store)
        for _ in range(8):
            cluster.settle(1)
            cluster.advance()
        assert received(cluster.worlds[store], queue) == [b"x"]


def test_nothing_expires_on_its_way(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(destinations=(DestinationOptions(OURS, {"expiry_queue": f"DLQ.{OURS}"}),))
    s1, s2 = cluster.worlds.values()
    send(s1, [b"x"], expires_ms=s1.clock.wall_ms() + 20_000)
    cluster.begin()
    cluster.settle(2)
    cluster.advance()
    cluster.offer("s1")
    for world in (s1, s2):
        world.settle()
        world.clock.advance(60)
        world.broker.sweep()
    assert s1.broker.state.stored + s2.broker.state.stored >= 1
    cluster.finish()
    assert [s1.broker.state.stored, len(s2.stored("DLQ." + OURS))] == [0, 1]


def test_a_destination_waits_for_its_prepared_transaction(cluster: Cluster) -> None:
    s1, s2 = cluster.worlds.values()
    client = s1.connect()
    client.begin()
    client.send(b"prepared", OURS, transaction="t")
    client.do(Prepare("t", "x", receipt="r"))
    s1.settle()
    cluster.begin()
    cluster.settle(2)
    assert cluster.seen()["s1"].busy
    for _ in range(3):
        cluster.advance()
        cluster.settle(2)
    send(s1, [b"served meanwhile"])
    assert cluster.table.step is not None
    table, cluster.table = cluster.table, cluster.table.stepped(cluster.table.step.waiting)
    cluster.offer()  # as if it had been prepared since
    cluster.settle(3)
    send(s1, [b"served still"])
    assert cluster.seen()["s1"].waits == (f"/queue/{OURS}",)
    cluster.table = dataclasses.replace(table, number=cluster.table.number + 1)
    cluster.offer()
    cluster.settle(3)
    assert next_step(cluster.table, cluster.seen()) == Await(("s1",))
    other = s1.connect()
    other.do(Finish("x", True, "r"))
    s1.settle()
    cluster.finish()
    assert sorted(received(s2)) == [b"prepared", b"served meanwhile", b"served still"]


@pytest.mark.parametrize("seed", sampled(SEEDS, 3))
def test_nothing_is_lost_or_doubled_whatever_ends(make_cluster: Callable[..., Cluster], seed: int) -> None:
    crashes(make_cluster(), seed)


def crashes(cluster: Cluster, seed: int) -> None:
    """A move with crashes, links that break, and an operator who takes it back."""
    random = Random(seed)
    s1 = cluster.worlds["s1"]
    bodies = [b"%d" % number for number in range(500)]
    send(s1, bodies)
    cluster.begin()
    for step in range(60):
        happens = random.randrange(12)
        if happens == 0:
            cluster.crash(random.choice(STORES), jobs=random.randrange(4))
        elif happens == 1:
            for way in [*cluster.ways.open_ways]:
                way.lose()
        elif happens == 2:
            cluster.advance()
        elif happens == 3 and step < 20 and cluster.table.step is not None and not cluster.table.step.returns:
            cluster.table = cluster.table.returning()
            cluster.offer()
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
    home = cluster.table.home_of(f"queue://{OURS}")
    assert received(cluster.worlds[home]) == bodies
    assert sum(world.broker.state.stored for world in cluster.worlds.values()) == 0


def _in(test: Callable[[Any], None]) -> Callable[[Path], None]:
    def check(path: Path) -> None:
        cluster = Cluster(path)
        try:
            test(cluster)
        finally:
            cluster.close()

    return check


def _all_crashes(path: Path) -> None:
    for seed in SEEDS:
        _in(lambda cluster, seed=seed: crashes(cluster, seed))(path / str(seed))  # type: ignore[misc]


CHECKS = {
    "crashes": _all_crashes,
    "meanwhile": _in(test_nobody_gets_anything_while_it_moves),
    "prepared": _in(test_a_destination_waits_for_its_prepared_transaction),
    "ids": _in(test_ids_are_remembered_where_the_queue_lives),
    "all": _in(test_messages_keep_all_that_they_have),
}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.what)
def test_a_mutant_is_seen(mutant: Mutant, tmp_path: Path) -> None:
    with mutant.applied(), pytest.raises(AssertionError):
        CHECKS[mutant.seen_by](tmp_path)
