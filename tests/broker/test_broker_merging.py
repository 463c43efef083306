"""Two lone stores are merged: all that one has comes to the other, once and in order, whatever ends."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from amq.broker.transfer import moving
from amq.broker.transfer.merging import MergeOrder, Merging
from amq.core.errors import CommandError, NewerFormatError, StoreFullError
from amq.journal.records import Marker
from amq.journal.records.transactions import BatchContent
from amq.protocols.commands import Prepare
from tests.broker.carrying import BODIES, received, send
from tests.broker.outboxes import STORES, TABLE, Stores, Ways, content
from tests.broker.world import World
from tests.mutant import Mutant, mutants
from tests.sampling import sampled

SEEDS = range(6)
ORDER = MergeOrder("s2", ("tcp://b1:61616", "tcp://b2:61616"), "/etc/amq/secret")
MUTANTS = mutants(r"""
clients are let in before all is there [clients]
    amq.broker.transfer.merging.Merging.let_in: not self.is_over => False
the end is told while something is left [crashes]
    amq.broker.transfer.merging.Merging._goes: bool(queue.stored or => bool(
the next master sends what has come already [crashes]
    amq.broker.broker.Broker._begin_homes: self.moving.channel.begin() => pass
nobody remembers commits [commits]
    amq.broker.transfer.merging.Merging.next_home_of_rest: self._has_looked and => False and
what falls due leaves while it is sent [scheduled]
    amq.broker.transfer.merging.Merging.home_of: is_temporary(name) or => True or
""")


class Waiter:
    """Notes how it ends."""

    result: object = None

    def done(self, result: str = "") -> None:  # noqa: ARG002
        self.result = True

    def failed(self, error: Exception) -> None:
        self.result = error


class Lone(Stores):
    """Two stores without a cluster."""

    def __init__(self, path: Path, **config: Any) -> None:
        self.worlds: dict[str, World] = {}
        self.ways = Ways(self.worlds)
        for store in STORES:
            (path / store).mkdir(parents=True)
            self.worlds[store] = World(path / store, **config)
            self.worlds[store].broker.peers = self.ways

    def merge(self, order: MergeOrder = ORDER) -> Waiter:
        waiter = Waiter()
        self.worlds["s1"].broker.merge(order, waiter)
        return waiter

    @property
    def merging(self) -> Merging:
        found = self.worlds["s1"].broker.homes
        assert isinstance(found, Merging)
        return found

    def finish(self) -> None:
        for _ in range(60):
            self.settle(1)
            if self.merging.is_over:
                return
        raise AssertionError(self.merging.facts)


@pytest.fixture(autouse=True)
def small_parcels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moving, "MESSAGES_MAX", 50)
    monkeypatch.setattr(moving, "IDS_MAX", 2)


@pytest.fixture
def make_lone(tmp_path: Path) -> Iterator[Callable[..., Lone]]:
    made: list[Lone] = []

    def make(**config: Any) -> Lone:
        made.append(Lone(tmp_path, **config))
        return made[-1]

    yield make
    for stores in made:
        stores.close()


@pytest.fixture
def lone(make_lone: Callable[..., Lone]) -> Lone:
    return make_lone()


def test_all_queues_come_in_order_behind_what_is_there(lone: Lone) -> None:
    s1, s2 = lone.worlds.values()
    send(s2, [b"there before"], "a")
    for name in ("a", "b.c"):
        send(s1, BODIES, name)
    waiter = lone.merge()
    lone.finish()
    assert waiter.result is True
    assert received(s2, "a") == [b"there before", *BODIES]
    assert received(s2, "b.c") == BODIES
    assert s1.broker.state.stored == 0
    assert lone.merging.facts["sent"] == 2 * len(BODIES)
    assert (lone.merging.facts["left"], lone.merging.facts["over"]) == (0, True)


def test_clients_wait_and_are_told_where_to_go(lone: Lone) -> None:
    clients(lone)


def clients(lone: Lone) -> None:
    s1 = lone.worlds["s1"]
    send(s1, BODIES, "a")
    holding = s1.consumer("a", ack="client", prefetch=5)
    lone.merge()
    s1.settle()
    assert holding.codes == ["MERGING"]
    assert not holding.connected
    code = ""
    try:
        s1.connect()
    except CommandError as error:
        code = error.code
    assert code == "MERGING"
    lone.finish()
    assert received(lone.worlds["s2"], "a") == BODIES
    late = s1.connect()  # the transport ends it when it has told it the addresses
    late.send(b"x", "a")
    s1.settle()
    assert late.codes == ["MERGED"]
    assert "failover:(tcp://b1:61616,tcp://b2:61616)" in str(lone.merging.refusal())


def test_the_other_store_serves_meanwhile(lone: Lone) -> None:
    s1, s2 = lone.worlds.values()
    send(s1, BODIES, "a")
    everything = s2.connect()
    everything.subscribe("queue://>", id="all", ack="auto")
    lone.merge()
    lone.settle(2)
    send(s2, [b"new"], "b")
    lone.finish()
    assert [body for body in everything.bodies if body != b"new"] == BODIES
    assert b"new" in everything.bodies


def test_messages_and_subscriptions_keep_all_that_they_have(lone: Lone) -> None:
    s1, s2 = lone.worlds.values()
    client = s1.connect("c")
    for name, topics in (("pattern", "topic://t.>"), ("several", "topic://t.a,topic://t.b")):
        client.subscribe(topics, subscription_name=name, id=name)
    s1.settle()
    client.disconnect()
    send(s1, BODIES, "topic://t.a")
    send(s1, [b"dead"], s1.config.shared_dead_letter_queue, priority=7, expires_ms=s1.clock.wall_ms() + 10**7)
    s1.consumer(s1.config.shared_dead_letter_queue, ack="client")
    lone.merge()
    lone.finish()
    assert not s1.broker.state.subscriptions
    client = s2.consumer("topic://t.>", subscription_name="pattern", id="pattern", ack="auto", client_id="c")
    assert client.bodies == BODIES
    dead = s2.consumer(s2.config.shared_dead_letter_queue, ack="auto")
    (delivery,) = dead.deliveries
    assert (delivery.redelivered, delivery.message.priority) == (1, 7)
    assert delivery.message.expires_ms


def test_a_subscription_that_differs_there_is_waited_for(lone: Lone) -> None:
    s1, s2 = lone.worlds.values()
    for world, selector in ((s1, "a = 1"), (s2, "a = 2")):
        client = world.consumer("topic://t", subscription_name="d", id="d", selector=selector, client_id="c")
        client.disconnect()
    lone.merge()
    lone.settle(10)
    assert not lone.merging.is_over
    assert "another durable subscription 'd'" in lone.merging.facts["trouble"]
    client = s2.connect("c")
    client.unsubscribe("d", "d")
    s2.settle()
    client.disconnect()
    lone.finish()
    assert len(s2.broker.state.subscriptions) == 1


def test_commits_and_batches_are_remembered(lone: Lone) -> None:
    commits(lone)


def commits(lone: Lone) -> None:
    s1, s2 = lone.worlds.values()
    client = s1.connect()
    for number in range(5):
        client.begin()
        client.send(b"x", "a", transaction="t")
        client.commit(outcome_id=f"o{number}")
        s1.settle()
    marker = Marker("pipeline", 7, BatchContent(3, 1 << 63))
    s1.journal.append_record(marker)
    s1.journal.append_record(Marker("other", 1))
    s1.settle()
    send(s1, [b"once"], "b", duplicate_id="1")
    assert received(s1, "b") == [b"once"]
    lone.merge()
    lone.finish()
    assert [*s2.broker.state.outcomes] == [*s1.broker.state.outcomes] != []
    assert s2.broker.state.prepared.markers["pipeline"][0] == marker
    assert s2.broker.state.prepared.markers["other"][0].content is None
    send(s2, [b"once"], "b", duplicate_id="1")
    assert received(s2, "b") == []


def test_what_is_scheduled_comes_at_its_time_there(lone: Lone) -> None:
    scheduled(lone)


def scheduled(lone: Lone) -> None:
    s1, s2 = lone.worlds.values()
    send(s1, [b"later"], "a", properties={"AMQ_SCHEDULED_DELAY": "3600000"})
    send(s1, [b"due"], "a", properties={"AMQ_SCHEDULED_DELAY": "1000"})
    lone.merge()
    s1.settle()
    s1.sweep(60)
    assert s1.stored("a") == [], "nothing falls due where nobody is served"
    lone.finish()
    s2.clock.advance(60)
    s2.settle()
    assert received(s2, "a") == [b"due"]
    s2.clock.advance(3600)
    s2.settle()
    assert received(s2, "a") == [b"later"]


def test_a_prepared_transaction_must_end_first(lone: Lone) -> None:
    s1 = lone.worlds["s1"]
    client = s1.connect()
    client.begin()
    client.send(b"prepared", "a", transaction="t")
    client.do(Prepare("t", "x", receipt="r"))
    for _ in range(2):  # on its way to the journal, and there
        with pytest.raises(CommandError) as found:
            lone.merge()
        assert found.value.code == "TRANSACTIONS_PREPARED"
        s1.settle()
    assert client.connected
    s1.journal.full = True
    with pytest.raises(StoreFullError):
        lone.merge()


def test_a_store_of_a_cluster_is_not_merged_and_no_cluster_takes_one(lone: Lone, tmp_path: Path) -> None:
    (tmp_path / "s3").mkdir()
    world = World(tmp_path / "s3", placed=content(TABLE, "s1"))
    with pytest.raises(CommandError) as found:
        world.broker.merge(ORDER, Waiter())
    assert found.value.code == "STORE_IN_CLUSTER"
    world.close()
    lone.merge()
    lone.finish()
    s1 = lone.worlds["s1"]
    with pytest.raises(CommandError) as again:
        lone.merge()
    assert again.value.code == "MERGED"
    lone.merging.offer(content(TABLE, "s1"))
    s1.settle()
    assert lone.merging.is_over


def test_an_order_of_another_version_stops_the_broker() -> None:
    for damaged in ({}, {"into": "s2"}, {"into": 7, "urls": [], "secret_file": ""}, {"into": "x", "more": 1}):
        with pytest.raises(ValueError, match="damaged"):
            MergeOrder.from_json(damaged)


def test_a_damaged_order_names_the_cure(lone: Lone) -> None:
    lone.merge()
    lone.finish()
    lone.worlds["s1"].broker.state.obeyed.record.placement.clear()  # type: ignore[union-attr]
    with pytest.raises(NewerFormatError, match="upgrade this broker"):
        lone.merging.begin(None)


def test_the_rate_is_obeyed_and_told(lone: Lone) -> None:
    s1, _ = lone.worlds.values()
    send(s1, [bytes(1000)] * 300, "a")
    lone.merge(MergeOrder("s2", ORDER.urls, "", rate_bytes=20_000))
    lone.settle(6)
    assert 0 < lone.merging.facts["left"] < 300
    assert lone.merging.facts["left_bytes"] > 0
    lone.finish()
    assert lone.merging.facts["sent_bytes"] == 300_000


@pytest.mark.parametrize("seed", sampled(SEEDS, 3))
def test_nothing_is_lost_or_doubled_by_a_merge_whatever_ends(make_lone: Callable[..., Lone], seed: int) -> None:
    crashes(make_lone(), seed)


def crashes(lone: Lone, seed: int) -> None:
    """A merge with crashes of both masters, and links that break, while the other store serves its own clients."""
    random = Random(seed)
    s1, s2 = lone.worlds.values()
    bodies = [b"%d" % number for number in range(300)]
    send(s1, bodies, "a")
    send(s1, bodies, "b", persistent=bool(seed % 2))
    send(s2, [b"own"], "a")
    lone.merge()
    s1.settle()  # the order is durable
    lost_in_memory = False
    for _ in range(60):
        happens = random.randrange(12)
        if happens == 0:
            store = random.choice(STORES)
            lone.crash(store, jobs=random.randrange(4))
            lost_in_memory = lost_in_memory or store == "s1"
        elif happens == 1:
            for way in [*lone.ways.open_ways]:
                way.lose()
        else:
            for world in lone.worlds.values():
                for _ in range(random.randrange(1, 6)):
                    world.turn()
                    world.runner.step()
            for way in lone.ways.open_ways:
                way.leave()
            for way in [*lone.ways.open_ways]:
                way.carry()
            for world in lone.worlds.values():
                world.clock.advance(0.3)
                world.broker.sweep()
    lone.finish()
    assert received(s2, "a") == [b"own", *bodies]
    there = received(s2, "b")
    assert there == bodies or (lost_in_memory and not seed % 2 and there == sorted(set(there), key=int))
    assert sum(world.broker.state.stored for world in lone.worlds.values()) == 0


def _in_stores(test: Callable[[Lone], None]) -> Callable[[Path], None]:
    def check(path: Path) -> None:
        stores = Lone(path)
        try:
            test(stores)
        finally:
            stores.close()

    return check


def _all_crashes(path: Path) -> None:
    for seed in SEEDS:
        _in_stores(lambda stores, seed=seed: crashes(stores, seed))(path / str(seed))  # type: ignore[misc]


CHECKS = {
    "crashes": _all_crashes,
    "clients": _in_stores(clients),
    "commits": _in_stores(commits),
    "scheduled": _in_stores(scheduled),
}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.what)
def test_a_mutant_is_seen(mutant: Mutant, tmp_path: Path) -> None:
    with mutant.applied(), pytest.raises(AssertionError):
        CHECKS[mutant.seen_by](tmp_path)
