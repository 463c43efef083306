"""The segments of the journal take at most twice what lives in them, and one segment.

`bound` is that promise. It is looked at after every step: sends, acknowledgements in any order, returns, takeovers.
"""

from __future__ import annotations

import errno
import random
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from amq.broker.storage import trimming
from amq.broker.storage.trimming import Trimmer
from amq.journal.live import Segment
from amq.journal.records import Copies, Record, Trimmed
from amq.protocols.stomp.subscribing import ACK_AUTO
from tests.broker.notation import Ack
from tests.broker.world import World
from tests.sampling import examples, sampled

SEGMENT_BYTES = 32 << 10
STEP_BYTES_MAX = 4 << 10  # written by one step of a test: what may come between two looks at the bound


def live_bytes(world: World) -> int:
    """Records of messages that have not left their queue, and ids that are remembered."""
    return sum(segment.live_bytes + segment.id_bytes for segment in world.journal.segments)


def bound(world: World) -> int:
    segment = world.config.journal_segment_size_bytes
    return 2 * live_bytes(world) + segment + STEP_BYTES_MAX


class Store:
    """A world with a consumer that holds everything, and so may acknowledge in any order."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.sent = 0
        self.kept: list[bytes] = []  # oldest first
        self.reconnect()

    def reconnect(self) -> None:
        self.producer, self.consumer = self.world.connect(), self.world.connect()
        self.consumer.subscribe(prefetch=1 << 20)
        self.look()

    def takeover(self) -> None:
        """A new master has a second in which it may have more: its first segment, beside the last one of the old."""
        self.world.crash_and_recover()
        self.world.sweep(1.0)
        self.reconnect()

    def send(self, count: int, size: int, ids: bool = False) -> None:
        for _ in range(count):
            self.sent += 1
            self.kept.append(b"%d:" % self.sent + b"x" * size)
            self.producer.send(self.kept[-1], receipt=False, duplicate_id=f"id-{self.sent}" if ids else "")
        self.look()

    def ack(self, bodies: list[bytes]) -> None:
        seqs = {delivery.body: delivery.seq for delivery in self.consumer.deliveries}
        for body in bodies:
            self.kept.remove(body)
            self.consumer.do(Ack(seqs[body], "a"))
        self.look()

    def look(self) -> None:
        self.world.settle()
        taken, allowed = self.world.segment_bytes(), bound(self.world)
        assert taken <= allowed, f"{taken} bytes for {live_bytes(self.world)} that live"

    def check(self) -> None:
        """Nothing was lost on the way, and a replay finds the same."""
        self.look()
        self.world.check_at_rest()
        assert self.world.stored() == self.kept


@pytest.fixture
def store(make_world: Callable[..., World]) -> Store:
    return Store(make_world(journal_segment_size_bytes=SEGMENT_BYTES))


def test_one_old_message_in_every_segment(store: Store) -> None:
    for _ in range(60):
        store.send(12, 300)
        store.ack(store.kept[-11:])
    store.check()
    assert len(store.kept) == 60


def test_acknowledgements_that_chain(store: Store) -> None:
    """Each segment holds the acknowledgements of the one before it; the oldest message of all stays."""
    store.send(1, 100)
    store.send(8, 400)
    for _ in range(80):
        before = store.kept[1:]
        store.send(8, 400)
        store.ack(before)
    store.check()
    assert len(store.kept) == 9


def test_a_chain_that_begins_where_most_lives(store: Store) -> None:
    """One acknowledgement of a message in the first segment, and each segment holds those of the one before it."""
    store.send(80, 400)
    store.ack(store.kept[:1])
    for _ in range(20):
        before = store.kept[79:]
        store.send(60, 400)
        store.ack(before)
    store.check()
    assert len(store.kept) == 79 + 60


@pytest.mark.parametrize("order", ["oldest", "newest", "random"])
def test_a_backlog_that_is_drained(store: Store, order: str) -> None:
    dice = random.Random(1)
    for _ in range(60):
        store.send(10, 350)
    while store.kept:
        if order == "newest":
            gone = store.kept[-7:]
        else:
            gone = store.kept[:7] if order == "oldest" else dice.sample(store.kept, min(7, len(store.kept)))
        store.ack(gone)
    store.check()
    assert store.world.segment_bytes() <= 2 * SEGMENT_BYTES


@pytest.mark.parametrize("order", sampled(["newest", "random"]))
def test_old_messages_beside_traffic_are_copied_within_measure(store: Store, order: str) -> None:
    """What lives together stays where it is; where messages leave from everywhere each segment refers to all others,
    and goes only in its turn.
    """
    dice = random.Random(1)
    for _ in range(90):
        store.send(8, 400)  # nine segments, in which everything lives
    journal, trimmer = store.world.journal, store.world.broker.trimmer
    assert trimmer is not None
    written = journal.bytes_written
    for _ in range(600):
        store.send(8, 400)
        store.ack(store.kept[-8:] if order == "newest" else dice.sample(store.kept, 8))
    copied = trimmer._copied_bytes
    if order == "newest":
        assert copied <= SEGMENT_BYTES, "only the segment in which old and new meet"
    else:
        assert 0 < copied <= 1.25 * (journal.bytes_written - written - copied)
    store.check()


def test_remembered_ids_count_as_what_lives(store: Store) -> None:
    """More ids than fit into a segment: more than ten times what the messages take."""
    for _ in range(300):
        store.send(10, 30, ids=True)
        store.ack(store.kept[:10])
    store.check()
    assert live_bytes(store.world) > 2 * SEGMENT_BYTES
    store.takeover()
    store.check()


def test_counts_of_redeliveries_come_along(store: Store) -> None:
    store.send(20, 200)
    for turn in range(60):
        store.send(10, 300)
        store.ack(store.kept[-10:])
        if turn % 12 == 0:
            store.consumer.lose()
            store.reconnect()
    store.check()
    store.takeover()
    assert {delivery.redelivered for delivery in store.consumer.deliveries} == {5}


def test_masters_that_did_little_leave_little(store: Store) -> None:
    """Each leaves a segment in which hardly anything stands."""
    for _ in range(30):
        store.send(2, 100)
        store.send(1, 50, ids=True)
        store.consumer.lose()
        store.takeover()
    store.check()


def test_destinations_that_the_new_master_numbers_otherwise(make_world: Callable[..., World]) -> None:
    world = make_world(journal_segment_size_bytes=4096)
    for queue in "abc":
        world.connect().send(queue.encode() * 300, queue, properties={"of": queue}, duplicate_id=queue)
    world.connect().send(bytes(2500), "pump")
    world.settle()
    world.crash_and_recover()
    for queue in "cba":
        world.connect().send(b"%b again" % queue.encode(), queue)
        world.settle()
    producer, client = world.connect(), world.connect()
    client.subscribe("pump", ACK_AUTO)
    for _ in range(40):
        producer.send(bytes(500), "pump")
        world.settle()
    assert world.segments()[0] > "00000002-00000001.seg"
    world.check_at_rest()
    world.crash_and_recover()
    assert [world.stored(queue) for queue in "abc"] == [
        [queue * 300, queue + b" again"] for queue in (b"a", b"b", b"c")
    ]
    world.check_at_rest()


@pytest.mark.parametrize("idle", [True, False])
def test_an_idle_broker_compacts_too(store: Store, monkeypatch: pytest.MonkeyPatch, idle: bool) -> None:
    """Somebody drained most of it in the worst order, faster than copying could follow, and went away."""
    world = store.world
    with monkeypatch.context() as patch:
        patch.setattr(Trimmer, "step", lambda _self: None)
        patch.setattr(store, "look", world.settle)
        for _ in range(80):
            store.send(10, 350)
        store.ack([body for number, body in enumerate(store.kept) if number % 10])
        assert world.segment_bytes() > 2 * bound(world)
    for _ in range(5 if idle else 0):
        world.sweep(1.0)
    assert (world.segment_bytes() <= bound(world)) == idle
    world.check_at_rest()


def test_what_a_full_disk_refuses_to_copy_stays_where_it_is(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    world = store.world
    for _ in range(30):
        store.send(10, 350)
    seqs = {delivery.body: delivery.seq for delivery in store.consumer.deliveries}
    while not world.is_copying():
        store.consumer.do(Ack(seqs[store.kept.pop()], "a"))
        world.turn(unasked=True)
        world.runner.step()
    rejected: list[Record] = []
    reject = world.broker.rejected

    def listen(refused: list[Any], records: list[Record]) -> None:
        rejected.extend(records)
        reject(refused, records)

    monkeypatch.setattr(world, "rejected", listen)
    world.vfs.answer("free_bytes", 0)
    world.vfs.fail("pwrite", errno.ENOSPC, times=0, path=".seg")
    world.settle()
    assert {type(record) for record in rejected} == {Copies}
    assert world.stored()[:100] == store.kept[:100]
    world.vfs.heal()
    for _ in range(5):
        world.clock.advance(1.0)
        world.journal.check_space()
        world.settle()
        world.sweep()
    store.check()


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(1, 8), st.integers(0, 450)),
        st.tuples(st.just("send ids"), st.integers(1, 8), st.integers(0, 450)),
        st.tuples(st.sampled_from(["oldest", "newest", "every", "random"]), st.integers(1, 60), st.integers(1, 9)),
        st.tuples(st.sampled_from(["return", "takeover"]), st.just(0), st.just(0)),
    ),
    max_size=60,
)


@settings(max_examples=examples(30), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(STEPS, st.integers(1, 16))
def test_the_bound_holds_whatever_comes(
    make_world: Callable[..., World], steps: list[tuple[str, int, int]], repeat: int
) -> None:
    store = Store(make_world(journal_segment_size_bytes=SEGMENT_BYTES, duplicate_window=100, maximum_redeliveries=-1))
    dice = random.Random(1)
    for what, count, size in steps * repeat:
        kept = store.kept
        if what.startswith("send"):
            store.send(count, size, what == "send ids")
        elif what == "return":
            store.consumer.lose()
            store.reconnect()
        elif what == "takeover":
            store.takeover()
        elif kept:
            count = min(count, len(kept))
            some = {"oldest": kept[:count], "newest": kept[-count:], "every": kept[::size][:count]}
            store.ack(some.get(what) or dice.sample(kept, count))
    store.check()


def test_a_mark_never_keeps_what_one_before_gave_up(make_world: Callable[..., World]) -> None:
    """A crash left a trimmed file over, and another mark is made before that file is deleted again: it would be missed
    at the next start."""
    world = make_world(journal_segment_size_bytes=SEGMENT_BYTES)
    client = world.connect()
    while world.journal.closed() < 3:
        client.send(bytes(3000))
        world.settle()
    left_over, going, *_ = world.journal.segments
    world.broker.state.trimmed = Trimmed(*left_over.key)
    trimmer = world.broker.trimmer
    assert trimmer is not None
    with mock.patch.object(world.journal, "trim") as trim:
        trimmer._trim([going])
    [[mark]] = [call.args for call in trim.call_args_list]
    assert left_over.key in mark
    assert going.key in mark


def test_a_copy_does_not_go_before_what_it_was_copied_from(make_world: Callable[..., World]) -> None:
    """Remembered ids may keep a segment in which nothing lives any more, and its message was copied. Were the copy and
    its acknowledgement deleted first, a replay would find the message again."""
    world = make_world(journal_segment_size_bytes=SEGMENT_BYTES)
    client = world.send(b"copied")
    origin = world.journal.segments[0]
    while world.journal.closed() < 1:
        client.send(bytes(3000), "other")
        world.settle()
    [message] = world.broker.state.queues["queue://a"].messages.values()
    with (
        mock.patch.object(trimming, "source", side_effect=lambda *_: origin if message.segment is origin else None),
        mock.patch.object(trimming, "is_due", return_value=True),
        mock.patch.object(Trimmer, "_trim"),
    ):
        for _ in range(100):
            if message.segment is not origin:
                break
            world.sweep(1.0)
    assert isinstance(message.segment, Segment)
    assert message.segment is not origin
    assert origin.code in message.segment.refers
