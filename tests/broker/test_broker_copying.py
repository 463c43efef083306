"""Copies before a step of a move: the next home has them while the old one serves, and the step sends their numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from amq.broker import homes
from amq.broker.transfer import copying_ahead, moving
from amq.core.message import Message
from amq.journal.hidden import SENT_SCHEME
from amq.journal.records import PURGED, Consumed
from amq.protocols.commands import Finish, Prepare, TakeCopies, Transfer
from tests.broker.carrying import BODIES, OURS, THEIRS, Cluster, clusters, received, send
from tests.broker.outboxes import STORES
from tests.broker.world import World
from tests.mutant import Mutant, mutants
from tests.sampling import sampled

SEEDS = range(8)
QUEUE = f"queue://{OURS}"
MUTANTS = mutants(r"""
copies that are not there are fetched [gone]
    amq.broker.transfer.copies_here.CopiesHere.fetched: not _are_here(found, seqs) => False
what has left here is fetched there [left]
    amq.broker.transfer.copying_ahead.CopyingAhead.taken: found.oldest(younger(queue, 0)[0]) => [(0, len(found.seqs))]
a message that was not copied is taken for one that was [held]
    amq.broker.transfer.copying_ahead.CopyingAhead.taken: younger(queue, 0)[0]) => found.seqs)
the step does not wait for the copies [early]
    amq.cluster.placing.next_step: copying := [name for name, seen in stores.items() if seen.copying] => copying := []
copies stay that nobody fetches [back]
    amq.broker.transfer.copies_here.CopiesHere.tidy: self._purge(name) => pass
copies of a master before stay [walk]
    amq.broker.transfer.copies_here.CopiesHere.begin: self._sources[name] = real_name(name) => pass
the rate does not hold for copies [rate]
    amq.broker.transfer.copying_ahead.CopyingAhead._come: if homes.rate_bytes: => if False:
copies have no bound [bound]
    amq.broker.transfer.copying_ahead.CopyingAhead._next_round: copied.bytes >= copied.bytes_max or => False or
deliveries of copies are not counted [counts]
    amq.broker.transfer.moving.Mover._extra: if known and (counts := => if False and (counts :=
copies are taken for what is not about to live there [stranger]
    amq.broker.homes.Homes.check_copied: not self.awaits(source) => False
a parcel that was closed fetches copies [late]
    amq.broker.transfer.arrivals.Arrivals.fetch: self._check(channel, number) => pass
""")


@pytest.fixture(autouse=True)
def small_parcels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(homes, "FEW", 0)
    monkeypatch.setattr(homes, "FEW_BYTES", 0)
    monkeypatch.setattr(copying_ahead, "MESSAGES_MAX", 7)
    monkeypatch.setattr(moving, "MESSAGES_MAX", 5)
    monkeypatch.setattr(moving, "COPIES_MAX", 11)


@pytest.fixture
def make_copied(tmp_path: Path) -> Iterator[Callable[..., Cluster]]:
    with clusters(tmp_path) as make:
        yield make


def all_copied(make: Callable[..., Cluster]) -> Cluster:
    """All is copied, and no step has begun."""
    cluster = make()
    send(cluster.worlds["s1"])
    cluster.begin()
    cluster.settle(10)
    assert waits_there(cluster.worlds["s2"]) == len(BODIES)
    return cluster


@pytest.fixture
def copied(make_copied: Callable[..., Cluster]) -> Cluster:
    return all_copied(make_copied)


def waits_there(world: World) -> int:
    """Copies that a store has, of all queues."""
    return sum(queue.stored for name, queue in world.broker.state.queues.items() if name.startswith(SENT_SCHEME))


def sent_whole(cluster: Cluster) -> int:
    """Messages that went by a step, in full."""
    kinds = (command for _, command in cluster.ways.said if isinstance(command, Transfer) and command.number)
    return sum(len(command.messages) for command in kinds)


def fetches(cluster: Cluster) -> int:
    return sum(isinstance(command, TakeCopies) for _, command in cluster.ways.said)


def test_a_queue_is_served_while_it_is_copied_and_the_step_sends_numbers(copied: Cluster) -> None:
    s1, s2 = copied.worlds.values()
    assert copied.seen()["s1"].copying is False
    send(s1, [b"later"])
    copied.finish()
    assert sent_whole(copied) == 0
    assert fetches(copied) == 3
    assert received(s2) == [*BODIES, b"later"]
    assert waits_there(s2) == 0
    assert s1.broker.state.queues.get(QUEUE) is None or not s1.broker.state.queues[QUEUE].stored


def test_no_step_begins_before_the_copies_are_there(make_copied: Callable[..., Cluster]) -> None:
    cluster = make_copied()
    s1, _ = cluster.worlds.values()
    send(s1)
    cluster.begin()
    for world in cluster.worlds.values():
        world.settle()
    assert cluster.seen()["s1"].copying
    assert not cluster.advance()
    send(s1, [b"meanwhile"])
    cluster.finish()
    assert received(cluster.worlds["s2"]) == [*BODIES, b"meanwhile"]


def test_what_left_meanwhile_does_not_come(copied: Cluster) -> None:
    s1, s2 = copied.worlds.values()
    client = s1.consumer(OURS, ack="auto", prefetch=5)
    client.disconnect()
    s1.settle()
    gone = len(client.bodies)
    assert gone
    send(s1, [b"x", b"y"])
    copied.finish()
    assert received(s2) == [*BODIES, b"x", b"y"][gone:]
    assert waits_there(s2) == 0


def test_counts_and_priorities_and_times_come(make_copied: Callable[..., Cluster]) -> None:
    cluster = make_copied()
    s1, s2 = cluster.worlds.values()
    client = s1.connect()
    client.send(b"low", OURS, priority=1)
    client.send(b"high", OURS, priority=9)
    client.send(b"memory", OURS, persistent=False)
    client.send(b"props", OURS, properties={"a": "b"}, expires_ms=s1.clock.wall_ms() + 600_000)
    s1.settle()
    cluster.begin()
    cluster.settle(5)
    assert waits_there(s2) == 4
    failing = s1.consumer(OURS, ack="client", prefetch=1)
    failing.disconnect()
    client.send(b"late and high", OURS, priority=9)
    s1.settle()
    cluster.finish()
    taker = s2.consumer(OURS, ack="auto")
    assert taker.bodies == [b"high", b"late and high", b"memory", b"props", b"low"]
    assert [each.redelivered for each in taker.deliveries] == [1, 0, 0, 0, 0]
    props = next(each.message for each in taker.deliveries if each.body == b"props")
    assert (props.properties, bool(props.expires_ms)) == ({"a": "b"}, True)


def test_ids_come_with_copies(make_copied: Callable[..., Cluster]) -> None:
    cluster = make_copied(duplicate_window=100)
    s1, s2 = cluster.worlds.values()
    client = s1.connect()
    for number in range(20):
        client.send(b"%d" % number, OURS, duplicate_id=f"id{number}")
    s1.settle()
    cluster.begin()
    cluster.finish()
    assert sent_whole(cluster) == 0
    s2.send(b"again", queue=OURS, duplicate_id="id7")
    assert received(s2) == [b"%d" % number for number in range(20)]


def test_what_a_transaction_held_comes_in_its_place(make_copied: Callable[..., Cluster]) -> None:
    cluster = make_copied()
    s1, s2 = cluster.worlds.values()
    send(s1, [b"a"])
    client = s1.connect()
    client.begin("t")
    client.send(b"held", OURS, transaction="t")
    client.do(Prepare("t", "x1", receipt="p"))
    s1.settle()
    send(s1, [b"b", b"c"])
    cluster.begin()
    cluster.settle(5)
    client.do(Finish("x1", True, receipt="f"))
    s1.settle()
    assert client.errors == []
    cluster.finish()
    assert received(s2) == [b"a", b"held", b"b", b"c"]
    assert waits_there(s2) == 0


def test_what_is_not_copied_comes_in_its_place(copied: Cluster) -> None:
    """A message between copies, of which none is there: those behind it come as a whole."""
    found = copied.worlds["s1"].broker.moving.copying._copied[QUEUE]
    del found.seqs[10], found.theirs[10]
    copied.finish()
    assert sent_whole(copied) == len(BODIES) - 10
    assert received(copied.worlds["s2"]) == BODIES


@pytest.mark.parametrize("store", ["s1", "s2"])
@pytest.mark.parametrize("at", ["copied", "stepped"])
def test_a_crash_loses_and_doubles_nothing(copied: Cluster, store: str, at: str) -> None:
    if at == "stepped":
        assert copied.advance()
    send(copied.worlds["s1"], [b"later"]) if at == "copied" else None
    copied.crash(store)
    copied.finish()
    s2 = copied.worlds["s2"]
    assert received(s2) == [*BODIES, *([b"later"] if at == "copied" else ())]
    assert waits_there(s2) == 0
    if store == "s2" or at == "copied":  # copies outlive s2, and the next master of s1 makes them anew before the step
        assert sent_whole(copied) == 0


def test_copies_that_are_gone_come_as_a_whole(copied: Cluster) -> None:
    s2 = copied.worlds["s2"]
    there = copied.worlds["s1"].broker.moving.copying._copied[QUEUE].theirs
    s2.broker.journal.append_record(Consumed(SENT_SCHEME + QUEUE, PURGED, [*there[3:7]]))
    s2.settle()
    copied.finish()
    assert sent_whole(copied) == len(BODIES)
    assert received(s2) == BODIES


def test_a_move_that_is_taken_back_leaves_no_copies(copied: Cluster) -> None:
    s1, s2 = copied.worlds.values()
    copied.table = copied.table.returning()
    copied.offer()
    copied.finish()
    assert copied.table.home_of(QUEUE) == "s1"
    assert received(s1) == BODIES
    assert waits_there(s2) == 0


def test_a_rate_holds_for_copies(make_copied: Callable[..., Cluster]) -> None:
    cluster = make_copied()
    s1, s2 = cluster.worlds.values()
    send(s1, [b"x" * 1000] * 28)
    cluster.table = cluster.table.carried(OURS, "s2", 2000)
    cluster.offer()
    cluster.settle(5)
    assert 0 < waits_there(s2) <= 14
    assert cluster.seen()["s1"].copying
    cluster.settle(20)
    assert waits_there(s2) == 28


def test_copies_are_bounded(make_copied: Callable[..., Cluster], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copying_ahead, "COPIED_BYTES_MIN", 0)
    monkeypatch.setattr(copying_ahead, "COPIED_MAX", 2)
    cluster = make_copied()
    s1, s2 = cluster.worlds.values()
    send(s1)
    cluster.begin()
    for _ in range(20):
        send(s1, [b"soon"] * 20, expires_ms=s1.clock.wall_ms() + 2000)
        cluster.settle(3)
    assert len(BODIES) < waits_there(s2) <= 4 * len(BODIES)
    assert not cluster.seen()["s1"].copying
    cluster.finish()
    assert received(s2) == BODIES
    assert waits_there(s2) == 0


def test_a_parcel_that_comes_late_fetches_nothing(copied: Cluster) -> None:
    """The master that has sent it is none any more, and the next one sends the messages."""
    assert copied.advance()
    while not any(isinstance(command, TakeCopies) for way in copied.ways.open_ways for command in way.commands):
        for world in copied.worlds.values():
            world.settle()
        copied.worlds["s1"].broker.sweep()
    for way in [*copied.ways.open_ways]:
        way.lose(comes_late=True)
    copied.crash("s1")
    copied.settle(5)
    while copied.ways.late:
        copied.ways.come_late()
        copied.settle(2)
    copied.finish()
    assert received(copied.worlds["s2"]) == BODIES


def test_a_durable_subscription_is_copied_with_its_backlog(make_copied: Callable[..., Cluster]) -> None:
    cluster = make_copied()
    s1, s2 = cluster.worlds.values()
    topic = f"topic://{OURS}"
    reader = s1.consumer(topic, subscription_name="d", id="d", client_id="c")
    reader.disconnect()
    s1.settle()
    send(s1, queue=topic)
    cluster.begin()
    cluster.settle(10)
    assert waits_there(s2) == len(BODIES)
    cluster.finish()
    assert sent_whole(cluster) == 0
    send(s2, [b"new"], topic)
    again = s2.consumer(topic, subscription_name="d", id="d", ack="auto", client_id="c")
    assert again.bodies == [*BODIES, b"new"]
    assert waits_there(s2) == 0


def test_a_store_takes_no_copies_of_what_does_not_come(copied: Cluster) -> None:
    s2 = copied.worlds["s2"]
    theirs = f"queue://{THEIRS}"
    client = s2.connect()
    client.do(Transfer("x/copies", 0, [Message(theirs, b"x")], SENT_SCHEME + theirs, "{}", receipt="none"))
    s2.settle()
    assert client.codes == ["MOVED"]


# -- whatever ends -----------------------------------------------------------------------------------------------------


class Walk:
    """Traffic to a queue that moves, crashes, links that break, parcels that come late, and an operator."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.cluster = cluster
        self.random = Random(seed)
        self.sent: list[bytes] = []  # in order
        self.gone: set[bytes] = set()  # received, or rolled back
        self.held: list[bytes] = []  # by prepared transactions

    def run(self) -> None:
        cluster = self.cluster
        for _ in range(40):
            self._send()
        cluster.begin()
        does = (self._crash, self._lose, self._come_late, self._table, self._send, self._send, self._take, self._hold)
        for _ in range(90):
            for step in (self.random.choice((*does, self._end_held, self._work, self._work, self._work)), self._work):
                step()
        while self.held:
            self._end_held()
            cluster.settle(3)
        cluster.finish()
        home = cluster.worlds[cluster.table.home_of(QUEUE)]
        assert received(home) == [body for body in self.sent if body not in self.gone]
        assert sum(world.broker.state.stored for world in cluster.worlds.values()) == 0

    def _home(self) -> World:
        return self.cluster.worlds[self.random.choice(STORES)]

    def _send(self) -> None:
        world, body = self._home(), b"%d" % len(self.sent)
        client = world.send(body, queue=OURS)
        if not client.errors:
            self.sent.append(body)
        client.disconnect()

    def _take(self) -> None:
        world = self._home()
        client = world.consumer(OURS, ack="auto", prefetch=2)
        assert not self.gone & {*client.bodies}
        self.gone |= {*client.bodies}
        client.disconnect()
        world.settle()

    def _hold(self) -> None:
        world, body = self._home(), b"held %d" % len(self.sent)
        client = world.connect()
        client.begin("t")
        client.send(body, OURS, transaction="t")
        client.do(Prepare("t", body.decode(), receipt="p"))
        world.settle()
        if not client.errors:
            self.sent.append(body)
            self.held.append(body)
        client.disconnect()

    def _end_held(self) -> None:
        if self.held:
            body, commits = self.held.pop(), self.random.random() < 0.7
            for world in self.cluster.worlds.values():
                client = world.connect()
                client.do(Finish(body.decode(), commits, receipt="f"))
                world.settle()
                client.disconnect()
            if not commits:
                self.gone.add(body)

    def _crash(self) -> None:
        self.cluster.crash(self.random.choice(STORES), jobs=self.random.randrange(4))

    def _lose(self) -> None:
        for way in [*self.cluster.ways.open_ways]:
            way.lose(comes_late=self.random.random() < 0.5)

    def _come_late(self) -> None:
        self.cluster.ways.come_late()

    def _table(self) -> None:
        cluster = self.cluster
        if self.random.random() < 0.1 and cluster.table.step is not None and not cluster.table.step.returns:
            cluster.table = cluster.table.returning()
            cluster.offer()
        elif cluster.table.step is None:
            cluster.begin(store=self.random.choice(STORES))
        else:
            cluster.advance()

    def _work(self) -> None:
        cluster = self.cluster
        for world in cluster.worlds.values():
            for _ in range(self.random.randrange(1, 6)):
                world.turn()
                world.runner.step()
        for way in cluster.ways.open_ways:
            way.leave()
        for way in [*cluster.ways.open_ways]:
            way.carry()
        for world in cluster.worlds.values():
            world.clock.advance(0.3)
            world.broker.sweep()


@pytest.mark.parametrize("seed", sampled(SEEDS, 3))
def test_a_queue_under_traffic_is_whole_whatever_ends(make_copied: Callable[..., Cluster], seed: int) -> None:
    cluster = make_copied()
    Walk(cluster, seed).run()


def _in(test: Callable[..., None], *args: Any, copies: bool = False) -> Callable[[Path], None]:
    def check(path: Path) -> None:
        made: list[Cluster] = []

        def make(**config: Any) -> Cluster:
            made.append(Cluster(path, **config))
            return made[-1]

        try:
            test(all_copied(make) if copies else make, *args)
        finally:
            for cluster in made:
                cluster.close()

    return check


def _walks(path: Path) -> None:
    for seed in SEEDS:
        _in(lambda make, seed=seed: Walk(make(), seed).run())(path / str(seed))  # type: ignore[misc]


def _bound(make: Callable[..., Cluster]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        test_copies_are_bounded(make, patch)


CHECKS = {
    "gone": _in(test_copies_that_are_gone_come_as_a_whole, copies=True),
    "left": _in(test_what_left_meanwhile_does_not_come, copies=True),
    "held": _in(test_what_is_not_copied_comes_in_its_place, copies=True),
    "early": _in(test_no_step_begins_before_the_copies_are_there),
    "back": _in(test_a_move_that_is_taken_back_leaves_no_copies, copies=True),
    "rate": _in(test_a_rate_holds_for_copies),
    "bound": _in(_bound),
    "counts": _in(test_counts_and_priorities_and_times_come),
    "stranger": _in(test_a_store_takes_no_copies_of_what_does_not_come, copies=True),
    "late": _in(test_a_parcel_that_comes_late_fetches_nothing, copies=True),
    "walk": _walks,
}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.what)
def test_a_mutant_of_copying_is_seen(mutant: Mutant, tmp_path: Path) -> None:
    with mutant.applied(), pytest.raises(AssertionError):
        CHECKS[mutant.seen_by](tmp_path)
