"""Offsets of the source, and what its driver asks the broker for; without Java."""

from __future__ import annotations

import json
import pickle
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amq.client import Lease, LeaseRequest
from amq.core.errors import CommandError
from pyspark_amq import batch, leases, offsets, source
from pyspark_amq.offsets import Offset, OffsetError, Slice
from pyspark_amq.options import OptionError, SourceOptions, read

A, B = "/queue/a", "/queue/b"
BYTES = 100  # of each message
Leases = dict[str, list[tuple[int, int]]]


@given(st.lists(st.integers(1, 50), max_size=8), st.integers(1, 10))
def test_partitions_hold_each_message_once(counts: list[int], parts: int) -> None:
    slices = [Slice(A, number, 0, count) for number, count in enumerate(counts)]
    found = offsets.cut(slices, parts)
    assert len(found) <= parts
    assert all(found), "an empty partition"
    whole = [(each.lease, at) for part in found for each in part for at in range(each.start, each.stop)]
    assert whole == [(each.lease, at) for each in slices for at in range(each.stop)]
    sizes = [sum(each.stop - each.start for each in part) for part in found]
    assert not sizes or max(sizes) == -(-sum(counts) // parts)


def test_an_offset_comes_back_from_a_checkpoint() -> None:
    offset = Offset("s", {A: 9, B: 0}, {A: [(7, 100), (9, 1)]})
    again = Offset.of(json.loads(json.dumps(offset.to_json())))
    assert again == offset
    assert again.slices(Offset("s", {A: 7, B: 0})) == [Slice(A, 9, 0, 1)]
    for bad in ({}, {"v": 2}, {"v": 1, "store": "s", "at": [], "leases": {}}, {"v": 1, "store": "s", "at": {A: "x"}}):
        with pytest.raises(OffsetError):
            Offset.of(bad)


def test_where_a_new_query_begins() -> None:
    assert offsets.begin([A, B], {}).at == {A: 0, B: 0}
    assert offsets.begin([A, B], {B: 7}).at == {A: 0, B: 7}
    assert offsets.begin([A, B], Offset("s", {A: 3}).to_json()) == Offset("s", {A: 3, B: 0})
    for bad in ({"/queue/c": 1}, {A: "1"}, {A: -1}):
        with pytest.raises(OffsetError):
            offsets.begin([A, B], bad)


class FakeBroker:
    """Answers as a broker does: what waits is leased, and leases stay."""

    closed = False

    def __init__(self, waiting: int, store: str = "s") -> None:
        self.waiting = waiting
        self.store = store
        self.leases: list[tuple[int, int]] = []
        self.settled: list[int] = []
        self.asked = 0
        self.epoch = 0
        self.together: list[int] = []  # questions at once

    def lease_many(self, wanted: list[LeaseRequest]) -> list[Lease]:
        self.together.append(len(wanted))
        return [
            self.lease(
                each.destination,
                each.cursor,
                messages=each.messages,
                after=each.after,
                epoch=each.epoch,
                skip=each.skip,
                size=each.size,
            )
            for each in wanted
        ]

    def lease(
        self,
        destination: str,
        cursor: str,
        *,
        messages: int,
        after: int = 0,
        take: bool = False,
        epoch: int = 0,
        skip: int = 0,
        size: int = 0,
    ) -> Lease:
        assert (destination, cursor) == (A, "c")
        if take:
            self.epoch += 1
            return Lease(0, 0, self.waiting, self.store, self.epoch)
        self.asked += 1
        self.check(epoch)
        known = [each for each in self.leases if each[0] > after]
        found = known[skip] if skip < len(known) else None
        if len(known) == skip and messages and self.waiting:
            count = min(messages, self.waiting, size // BYTES or messages)
            found = 10 * len(self.leases) + 10, count
            self.leases.append(found)
            self.waiting -= count
        number, count = found or (0, 0)
        return Lease(number, count, self.waiting, self.store, size=BYTES * count if size else 0)

    def check(self, epoch: int) -> None:
        if epoch not in (0, self.epoch):
            raise CommandError("taken", code="CURSOR_TAKEN")

    def settle(self, destination: str, cursor: str, through: int, epoch: int = 0) -> None:
        assert (destination, cursor) == (A, "c")
        self.check(epoch)
        self.settled.append(through)

    def abort(self) -> None:
        self.closed = True


def reader(broker: FakeBroker, **given: str) -> source.AmqStreamReader:
    options = {"url": "stomp://a:1", "destination": A, "subscription": "c", **given}
    made = source.AmqStreamReader(read(SourceOptions, options))
    made._connection = broker  # type: ignore[assignment]
    return made


def next_batch(stream: source.AmqStreamReader, start: dict[str, Any]) -> tuple[dict[str, Any], list[tuple[int, int]]]:
    end = stream.latestOffset(start, stream.getDefaultReadLimit())
    return end, [] if end is start else list(Offset.of(end).leases[A])


def test_batches_by_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "MESSAGES_MAX", 40)
    broker = FakeBroker(250)
    stream = reader(broker, maxOffsetsPerTrigger="100")
    start = stream.initialOffset()
    assert stream.initialOffset() == start
    first, leases = next_batch(stream, start)
    assert leases == [(10, 40), (20, 40), (30, 20)]
    assert next_batch(stream, start)[1] == leases, "asked again, the same"
    second, leases = next_batch(stream, first)
    assert leases == [(40, 40), (50, 40), (60, 20)]
    told = stream.reportLatestOffset()
    assert told is not None
    assert (told["subscription"], told["waiting"], told["leased"]) == (stream._cursor, {A: 50}, 100)
    stream.commit(second)
    assert broker.settled == [60]
    assert len(stream.partitions(start, second)) == 1
    assert next_batch(reader(broker, maxOffsetsPerTrigger="50"), start)[1] == [(10, 40), (20, 40)], "the next driver"
    assert len(reader(broker, minPartitions="7").partitions(start, second)) == 7


def test_leases_are_asked_for_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "MESSAGES_MAX", 10)
    broker = FakeBroker(250)
    stream = reader(broker, maxOffsetsPerTrigger="95")
    start = stream.initialOffset()
    _, leases = next_batch(stream, start)
    assert [count for _, count in leases] == [10] * 9 + [5]
    assert broker.together == [1, source.TOGETHER, 2], "first what an earlier run has leased"


def test_an_old_broker_answers_one_question_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """It does not know `skip`, and says the first lease to each question."""
    monkeypatch.setattr(source, "MESSAGES_MAX", 10)
    broker = FakeBroker(250)
    known = broker.lease
    monkeypatch.setattr(broker, "lease", lambda *words, **named: known(*words, **{**named, "skip": 0}))
    stream = reader(broker, maxOffsetsPerTrigger="35")
    _, leases = next_batch(stream, stream.initialOffset())
    assert leases == [(10, 10), (20, 10), (30, 10), (40, 5)]


def test_batches_by_bytes() -> None:
    broker = FakeBroker(250)
    stream = reader(broker, maxBytesPerTrigger=str(30 * BYTES))
    end, leases = next_batch(stream, stream.initialOffset())
    assert leases == [(10, 30)]
    assert next_batch(stream, end)[1] == [(20, 30)]
    least = reader(FakeBroker(5), maxBytesPerTrigger="1")
    assert next_batch(least, least.initialOffset())[1] == [(10, 5)], "one message or more"


def test_a_batch_waits_for_enough_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    broker, now_s = FakeBroker(5), 1000.0
    monkeypatch.setattr(source.time, "monotonic", lambda: now_s)
    stream = reader(broker, minOffsetsPerTrigger="10", maxTriggerDelay="1m")
    end, leases = next_batch(stream, stream.initialOffset())
    assert leases == [(10, 5)], "the first does not wait"
    broker.waiting, now_s = 9, 1001.0
    assert next_batch(stream, end) == (end, [])
    broker.waiting, now_s = 10, 1002.0
    end, leases = next_batch(stream, end)
    assert leases == [(20, 10)]
    broker.waiting, now_s = 1, 1061.0
    assert next_batch(stream, end) == (end, [])
    now_s = 1062.0
    assert next_batch(stream, end)[1] == [(30, 1)], "no longer than maxTriggerDelay"


def test_partitions_are_cut_by_weight() -> None:
    slices = [Slice(A, 1, 0, 100), Slice(A, 2, 0, 10)]
    parts = offsets.cut(slices, 2, [10, 100])
    assert parts == [[slices[0]], [slices[1]]]


def test_a_second_query_fences_the_first() -> None:
    """Whatever the first one does next; also if it was planned, or is restarted, before it asks for anything."""
    broker = FakeBroker(250)
    first = reader(broker)
    start = first.initialOffset()
    end, _ = next_batch(first, start)
    (part,) = first.partitions(start, end)
    second = reader(broker)
    assert next_batch(second, start)[1] == list(Offset.of(end).leases[A])
    for act in (lambda: first.latestOffset(end, first.getDefaultReadLimit()), lambda: first.commit(end)):
        with pytest.raises(leases.CursorTakenError, match="another query, started later, reads /queue/a"):
            act()
    assert isinstance(part, source.LeaseSlices)
    assert dict(part.epochs) == {A: 1}
    assert [each.epochs for each in second.partitions(start, end)] == [{A: 2}]
    third = reader(broker)
    assert [each.epochs for each in third.partitions(start, end)] == [{A: 3}], "a restart plans its batch first"
    with pytest.raises(leases.CursorTakenError):
        second.commit(end)
    third.commit(end)
    assert broker.settled == [Offset.of(end).at[A]]


class TwoQueues:
    """A broker with A and B."""

    closed = False

    def __init__(self, a: int, b: int) -> None:
        self.queues = {A: FakeBroker(a), B: FakeBroker(b)}
        self.settled: list[tuple[str, int]] = []

    def lease(self, destination: str, cursor: str, **asked: Any) -> Lease:
        if destination not in self.queues:
            raise CommandError("gone", code="UNKNOWN_SUBSCRIPTION")
        return self.queues[destination].lease(A, cursor, **asked)

    def lease_many(self, wanted: list[LeaseRequest]) -> list[Lease]:
        if wanted[0].destination not in self.queues:
            raise CommandError("gone", code="UNKNOWN_SUBSCRIPTION")
        return self.queues[wanted[0].destination].lease_many([each._replace(destination=A) for each in wanted])

    def settle(self, destination: str, _cursor: str, through: int, epoch: int = 0) -> None:  # noqa: ARG002
        if destination not in self.queues:
            raise CommandError("gone", code="UNKNOWN_SUBSCRIPTION")
        self.settled.append((destination, through))


def two_queues(broker: TwoQueues, **given: str) -> source.AmqStreamReader:
    stream = reader(FakeBroker(0), **{"destination": f"{A},{B}", **given})
    stream._connection = broker  # type: ignore[assignment]
    return stream


def test_no_destination_starves_behind_one_that_is_never_empty() -> None:
    """Also where a batch has room for fewer messages than there are destinations."""
    broker = TwoQueues(1000, 1000)
    stream = two_queues(broker, maxOffsetsPerTrigger="1")
    at, found = stream.initialOffset(), []
    for _ in range(4):
        at = stream.latestOffset(at, stream.getDefaultReadLimit())
        found += list(Offset.of(at).leases)
    assert found == [A, B, A, B]


def test_what_was_read_of_a_destination_that_is_named_no_more_is_acknowledged() -> None:
    """The checkpoint knows it: nobody else would end its leases."""
    broker = TwoQueues(3, 4)
    before = two_queues(broker)
    end = before.latestOffset(before.initialOffset(), before.getDefaultReadLimit())
    after = two_queues(broker, destination=A)
    broker.queues[A].waiting += 2
    end = after.latestOffset(end, after.getDefaultReadLimit())
    after.commit(end)
    assert sorted(broker.settled) == [(A, 20), (B, 10)]
    del broker.queues[B]
    after.commit(end)  # a durable subscription that has ended since
    with pytest.raises(CommandError, match="gone"):
        two_queues(broker).commit(end)


def test_an_idle_query_asks_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = FakeBroker(0)
    stream = reader(broker, pollInterval="5s")
    now = [100.0]
    monkeypatch.setattr(source.time, "monotonic", lambda: now[0])
    start = stream.initialOffset()
    for _ in range(50):
        assert next_batch(stream, start) == (start, [])
    asked, broker.waiting = broker.asked, 3
    assert asked <= 2
    now[0] += 5
    assert next_batch(stream, start)[1] == [(10, 3)]


def test_available_now_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "MESSAGES_MAX", 40)
    broker = FakeBroker(30)
    broker.lease(A, "c", after=0, messages=30)  # of a driver that died
    broker.waiting = 70
    stream = reader(broker)
    start = stream.initialOffset()
    stream.prepareForTriggerAvailableNow()
    broker.waiting += 1000  # too late
    end, leases = next_batch(stream, start)
    assert leases == [(10, 30), (20, 40), (30, 30)]
    assert next_batch(stream, end) == (end, [])


def test_a_checkpoint_of_another_store_is_refused() -> None:
    start = reader(FakeBroker(0)).initialOffset()
    end, _ = next_batch(reader(FakeBroker(5)), start)
    with pytest.raises(OffsetError, match="of store s, /queue/a of other"):
        next_batch(reader(FakeBroker(5, "other")), end)


def test_the_end_of_a_subscription_is_data_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    end, _ = next_batch(reader(FakeBroker(5)), reader(FakeBroker(0)).initialOffset())
    for fails in ("true", "false"):
        broker, made = FakeBroker(3), []
        stream = reader(broker, failOnDataLoss=fails)

        def lease(*words: Any, broker: FakeBroker = broker, made: list[str] = made, **named: Any) -> Lease:
            if not made:
                raise CommandError("gone", code="UNKNOWN_SUBSCRIPTION")
            return FakeBroker.lease(broker, *words, **named)

        monkeypatch.setattr(broker, "lease", lease)
        monkeypatch.setattr(stream, "_subscribe", made.append)
        if fails == "true":
            with pytest.raises(leases.DataLossError, match="has ended"):
                next_batch(stream, end)
        else:
            next_batch(stream, end)
            assert made == [A]


@pytest.mark.parametrize("is_new", [False, True])
def test_available_now_begins_no_subscription_that_hides_what_is_lost(
    monkeypatch: pytest.MonkeyPatch, is_new: bool
) -> None:
    """Spark asks what waits before it looks into its checkpoint."""
    end, _ = next_batch(reader(FakeBroker(5)), reader(FakeBroker(0)).initialOffset())
    broker, made = FakeBroker(3), []
    stream = reader(broker)

    def lease(*words: Any, **named: Any) -> Lease:
        if not made:
            raise CommandError("gone", code="UNKNOWN_SUBSCRIPTION")
        return FakeBroker.lease(broker, *words, **named)

    monkeypatch.setattr(broker, "lease", lease)
    monkeypatch.setattr(stream, "_subscribe", made.append)
    stream.prepareForTriggerAvailableNow()
    assert made == []
    if is_new:
        made.append(A)  # by initialOffset
        start = stream.initialOffset()
        assert next_batch(stream, start) == (start, []), "what came since is not what waited"
    else:
        with pytest.raises(leases.DataLossError, match="has ended"):
            next_batch(stream, end)


def test_a_task_gets_no_connection() -> None:
    copy = pickle.loads(
        pickle.dumps(
            source.AmqStreamReader(read(SourceOptions, {"url": "stomp://a:1", "destination": A, "subscription": "c"}))
        )
    )
    assert copy._connection is None
    stream = reader(FakeBroker(1))
    assert stream.__getstate__()["_connection"] is None
    stream.stop()
    stream.stop()


@pytest.mark.parametrize(
    ("kind", "given", "why"),
    [
        (source.AmqStreamReader, {}, "option 'subscription' is missing: it must name the cursor"),
        (
            source.AmqStreamReader,
            {"subscription": "c", "endingOffsets": '{"/queue/a": 1}'},
            "'endingOffsets' is for batch",
        ),
        (source.AmqStreamReader, {"subscription": "c", "startingTimestamp": "1"}, "'startingTimestamp' is for batch"),
        (source.AmqStreamReader, {"subscription": "c", "startingOffsets": "latest"}, "or JSON for a queue"),
        (source.AmqStreamReader, {"subscription": "c", "startingOffsets": '{"/queue/a": 7}'}, "these are numbers"),
        (batch.AmqReader, {"startingOffsets": "latest"}, "must be earliest or JSON for a batch"),
        (batch.AmqReader, {"startingOffsets": '{"v": 1}'}, "'startingOffsets' must have numbers of messages"),
        (batch.AmqReader, {"endingOffsets": '{"v": 1}'}, "'endingOffsets' must have numbers of messages"),
        (batch.AmqReader, {"endingOffsets": "earliest"}, "'endingOffsets' must be latest or JSON"),
        (source.AmqStreamReader, {"subscription": "c", "endingOffsets": "earliest"}, "'endingOffsets' is for batch"),
        (batch.AmqReader, {"destination": "/topic/t"}, "must be a queue for a batch read"),
    ],
)
def test_refused(kind: type, given: dict[str, str], why: str) -> None:
    options = read(SourceOptions, {"url": "stomp://a:1", "destination": A, **given})
    with pytest.raises(OptionError, match=why):
        kind(options)


def test_a_durable_subscription_to_another_topic_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that began under its name ended it, with what waited in it."""
    broker, made = FakeBroker(3), []
    stream = reader(broker, destination="/topic/t")

    def lease(*_words: Any, **_named: Any) -> Lease:
        raise CommandError("it is one to /topic/other", code="SUBSCRIPTION_DIFFERS")

    monkeypatch.setattr(broker, "lease", lease)
    monkeypatch.setattr(stream, "_subscribe", made.append)
    with pytest.raises(CommandError, match="it is one to /topic/other"):
        stream.initialOffset()
    assert made == []
