"""A queue that moves to another store keeps whose groups are whose, and what was counted of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from amq.broker.transfer import moving
from amq.management.views import QUEUE_FIELDS
from tests.broker.carrying import OURS, OURS_TOO, Cluster, received, send
from tests.broker.world import Client, World

GROUPS = [f"group {number}" for number in range(8)]
NAMES = ("a", "b")


class Consumers:
    """Clients of a gateway that consume one queue, in whichever store it is."""

    def __init__(self, *names: str, **fields: Any) -> None:
        self.names = names
        self.fields = fields
        self.clients: dict[str, Client] = {}

    def come(self, world: World, *names: str) -> None:
        for name in names or self.names:
            client = self.clients[name] = world.connect(number=f"gateway-{name}", since_ms=1)
            client.subscribe(OURS, id="c", **{"ack": "client-individual", "prefetch": 100, **self.fields})
        world.settle()

    def send_round(self, world: World, first: int = 0) -> None:
        """One message of each group."""
        client = world.connect()
        for number, group in enumerate(GROUPS, first):
            client.send(b"%d" % number, OURS, properties={"JMSXGroupID": group})
        world.settle()
        assert client.errors == []

    def owners(self) -> dict[str, str]:
        """By group: who has got messages of it."""
        found: dict[str, str] = {}
        for name, client in self.clients.items():
            for each in client.deliveries:
                group = each.message.properties["JMSXGroupID"]
                assert found.setdefault(group, name) == name, "a group has two owners"
        return found


def at_work(world: World, *names: str) -> Consumers:
    """Consumers that have got a message of each group there."""
    consumers = Consumers(*names)
    consumers.come(world)
    consumers.send_round(world)
    return consumers


def figures(world: World, queue: str = OURS) -> tuple[int, int]:
    """Messages that came, and that left, as `amq queues` says."""
    found = world.broker.state.queues.get(f"queue://{queue}")
    return (0, 0) if found is None else (QUEUE_FIELDS["enqueued"](found), QUEUE_FIELDS["dequeued"](found))


def acknowledge(world: World, client: Client, count: int) -> None:
    for each in client.bodies[:count]:
        client.ack(each)
    world.settle()


def moved(cluster: Cluster, store: str = "s2") -> None:
    """The queue moves, and its new home serves it from now on."""
    cluster.begin(store=store)
    arrive(cluster)


def arrive(cluster: Cluster) -> None:
    while cluster.table.step is not None:
        cluster.settle(1)
        cluster.advance()
    cluster.settle(1)


@pytest.mark.parametrize("waiting", [True, False], ids=["messages wait", "all is acknowledged"])
def test_groups_keep_their_consumers(cluster: Cluster, waiting: bool) -> None:
    s1, s2 = cluster.worlds.values()
    consumers = at_work(s1, *NAMES)
    before = consumers.owners()
    assert set(before.values()) == set(NAMES)
    if not waiting:
        for client in consumers.clients.values():
            acknowledge(s1, client, len(client.deliveries))
    moved(cluster)
    consumers.come(s2, "b")  # alone at first: it would get them all
    consumers.come(s2, "a")
    consumers.send_round(s2, len(GROUPS))
    assert consumers.owners() == before
    bodies = sorted(int(body) for client in consumers.clients.values() for body in client.bodies)
    assert bodies == [*range(0 if waiting else len(GROUPS), 2 * len(GROUPS))]


def test_a_group_waits_some_seconds_for_its_consumer_and_then_goes_to_another_one(cluster: Cluster) -> None:
    s1, s2 = cluster.worlds.values()
    consumers = at_work(s1, *NAMES)
    before = consumers.owners()
    moved(cluster)
    consumers.clients.clear()
    consumers.come(s2, "b")
    assert {*consumers.owners()} == {group for group, owner in before.items() if owner == "b"}
    s2.sweep(moving.CONSUMERS_S + 1)
    assert {*consumers.owners()} == {*GROUPS}
    assert not s2.broker.state.queues[f"queue://{OURS}"].awaits


def test_a_new_consumer_gets_groups_that_are_nobodys(cluster: Cluster) -> None:
    s1, s2 = cluster.worlds.values()
    consumers = at_work(s1, "a")
    moved(cluster)
    consumers.clients.clear()
    consumers.come(s2, "c")
    client = s2.connect()
    for number in range(100):
        client.send(b"new", OURS, properties={"JMSXGroupID": f"new group {number}"})
    s2.settle()
    assert set(consumers.clients["c"].bodies) == {b"new"}
    consumers.come(s2, "a")
    assert len(consumers.clients["a"].bodies) >= len(GROUPS)


def test_groups_are_kept_on_the_way_back_also_where_nobody_came(cluster: Cluster) -> None:
    """A move that an operator takes back: the queue was served there for too short a time."""
    s1, _ = cluster.worlds.values()
    consumers = at_work(s1, *NAMES)
    before = consumers.owners()
    moved(cluster)
    moved(cluster, "s1")
    consumers.clients.clear()
    consumers.come(s1, "b")
    consumers.come(s1, "a")
    assert consumers.owners() == before


@pytest.mark.parametrize("store", ["s1", "s2"])
def test_after_a_takeover_on_the_way_groups_get_consumers_as_after_any(cluster: Cluster, store: str) -> None:
    """Only the mastership knows whose they are: nothing is lost or waits for somebody."""
    s1, s2 = cluster.worlds.values()
    consumers = at_work(s1, *NAMES)
    cluster.begin()
    cluster.settle(2)
    cluster.advance()
    if store == "s2":
        cluster.settle(2)
    cluster.crash(store)
    arrive(cluster)
    consumers.clients.clear()
    consumers.come(s2)
    s2.sweep(moving.CONSUMERS_S + 1)
    assert {*consumers.owners()} == {*GROUPS}


def test_a_move_rebalances_nothing(make_cluster: Callable[..., Cluster]) -> None:
    cluster = make_cluster(group_rebalance=True)
    s1, s2 = cluster.worlds.values()
    consumers = at_work(s1, *NAMES)
    before = consumers.owners()
    moved(cluster)
    consumers.come(s2)
    consumers.send_round(s2)
    assert consumers.owners() == before


def test_figures_go_on(cluster: Cluster) -> None:
    s1, s2 = cluster.worlds.values()
    send(s1)
    consumers = Consumers("a")
    consumers.come(s1)
    acknowledge(s1, consumers.clients["a"], 10)
    consumers.clients["a"].disconnect()
    s1.settle()
    assert figures(s1) == (30, 10)
    moved(cluster)
    assert (figures(s1), figures(s2)) == ((0, 0), (30, 10))
    assert len(received(s2)) == 20
    consumers.come(s2)
    send(s2, [b"x"])
    assert figures(s2)[0] == 31


def test_figures_of_an_empty_queue_go_on_with_its_consumers(cluster: Cluster) -> None:
    s1, s2 = cluster.worlds.values()
    consumers = Consumers("a", ack="auto")
    consumers.come(s1)
    send(s1)
    assert figures(s1) == (30, 30)
    send(s1, [b"x"] * 3, OURS_TOO)
    moved(cluster)
    assert (figures(s1), figures(s2), figures(s1, OURS_TOO)) == ((0, 0), (30, 30), (3, 0))
    s2.broker.sweep()
    consumers.come(s2)
    send(s2)
    assert figures(s2) == (60, 60)


def test_figures_of_a_queue_that_nobody_consumes_end(cluster: Cluster) -> None:
    """It is forgotten, as everywhere."""
    s1, s2 = cluster.worlds.values()
    consumers = Consumers("a", ack="auto")
    consumers.come(s1)
    send(s1)
    moved(cluster)
    s2.clock.advance(moving.CONSUMERS_S + 1)
    for _ in range(2):
        s2.sweep()
    assert f"queue://{OURS}" not in s2.broker.state.queues
    assert f"queue://{OURS}" not in s1.broker.state.queues


def begin_after_ten_acknowledgements(cluster: Cluster) -> None:
    """The next step of a move has begun; the queue had 30 messages, 20 are left, and nobody consumes them."""
    s1 = cluster.worlds["s1"]
    send(s1)
    consumers = Consumers("a")
    consumers.come(s1)
    acknowledge(s1, consumers.clients["a"], 10)
    consumers.clients["a"].disconnect()
    s1.settle()
    cluster.begin()
    cluster.settle(2)
    cluster.advance()


@pytest.mark.parametrize("crashed", ["s1", "s2"])
@pytest.mark.parametrize("after", range(4))
def test_a_takeover_in_the_middle_of_a_move_counts_nothing_twice(cluster: Cluster, crashed: str, after: int) -> None:
    s1, s2 = cluster.worlds.values()
    begin_after_ten_acknowledgements(cluster)
    for _ in range(after):  # parcels, and their answers
        for world in (s1, s2):
            world.settle()
        for way in [*cluster.ways.open_ways]:
            way.leave()
            way.carry()
    cluster.crash(crashed)
    arrive(cluster)
    came, left = figures(s2)
    assert came - left == 20
    assert left <= 10, "the figures of the mastership that ended may be unknown; they count once where they are known"
    cluster.crash(crashed)
    moved(cluster, "s1")
    came, left = figures(s1)
    assert came - left == 20
    assert left <= 10
    assert len(received(s1)) == 20


@pytest.mark.parametrize("loses", ["before", "after"])
def test_a_link_that_breaks_counts_nothing_twice(cluster: Cluster, loses: str) -> None:
    s1, s2 = cluster.worlds.values()
    begin_after_ten_acknowledgements(cluster)
    for _ in range(10):
        s1.settle()
        for way in [*cluster.ways.open_ways]:
            if loses == "after":
                way.carry()
                s2.settle()
            way.lose()
        s1.clock.advance(1)
        s1.broker.sweep()
    arrive(cluster)
    assert figures(s2) == (30, 10)
    assert len(received(s2)) == 20
