"""Liveness: what it calls alive is what a broker has after a replay, where it says; pins and plans follow from that."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from journal_world import World

from amq.broker.state.window import ID_BYTES
from amq.broker.storage import trimming
from amq.core.message import Message
from amq.journal import compaction_plan
from amq.journal.compaction_plan import COPY, FREE, KEEP, plan
from amq.journal.format import frame_record
from amq.journal.inspect import OPEN, SegmentReport, inspect
from amq.journal.liveness import LiveIndex, Liveness, LivePlace, RememberedIds, parts
from amq.journal.records import (
    ACKED,
    EXPIRED,
    Consumed,
    Duplicates,
    Group,
    Moved,
    Outcomes,
    Record,
    Redelivered,
    Trimmed,
    encode_record,
)
from amq.journal.records.subscription import Subscribed
from tests.broker.world import World as BrokerWorld
from tests.sampling import examples

IDS = {"queue://a": 1, "queue://b": 2, "queue://DLQ.a": 3}


class Log:
    """Records in segments, as a journal would hold them."""

    def __init__(self, **windows: int) -> None:
        self.liveness = Liveness(**windows)
        self._ends: dict[str, int] = {}

    def add(self, segment: str, record: Record) -> None:
        data = memoryview(encode_record(record, IDS))
        offset = self._ends.get(segment, 0)
        self._ends[segment] = offset + len(data)
        self.liveness.add(segment, offset, data, record)


def name(number: int) -> str:
    return f"00000001-{number:08d}.seg"


def message(seq: int, size: int = 5, queue: str = "queue://a", **more: Any) -> Message:
    return Message(queue, b"x" * size, seq=seq, **more)


def test_tallies() -> None:
    log = Log()
    for seq in (1, 2, 3, 4):
        log.add(name(1), message(seq, seq))
    log.add(name(2), Consumed("queue://a", ACKED, [1]))
    log.add(name(2), Group([Consumed("queue://a", EXPIRED, [2]), message(9, 2, "queue://DLQ.a")]))
    log.add(name(2), Consumed("queue://a", ACKED, [77]))  # of a segment that is gone
    log.liveness.settle()
    a = log.liveness.destinations["queue://a"].to_json()
    assert (a["messages"], a["live"], a["dead"]) == (4, 2, 2)
    assert (a["message_bytes"], a["live_bytes"], a["dead_bytes"]) == (10, 7, 3)
    assert (a["acked"], a["expired"]) == (2, 1)
    assert log.liveness.segments[name(1)].live == 2
    assert log.liveness.segments[name(2)].live == 1
    assert log.liveness.destinations["queue://DLQ.a"].live == 1
    assert log.liveness.refers == {name(2): {name(1)}}
    framed = len(encode_record(message(3, 3), IDS)) + len(encode_record(message(4, 4), IDS))
    assert log.liveness.segments[name(1)].live_record_bytes == a["live_record_bytes"] == framed


def test_a_copied_message_lives_once_where_its_copy_is() -> None:
    log = Log()
    log.add(name(1), message(1))
    log.add(name(1), message(2))
    log.add(name(1), Redelivered("queue://a", [(2, 3, 1)]))
    log.add(name(2), Group([message(1), message(2), Redelivered("queue://a", [(2, 3, 1)])]))
    log.liveness.settle()
    first, second = log.liveness.segments[name(1)], log.liveness.segments[name(2)]
    assert (first.messages, first.live, second.messages, second.live) == (2, 0, 2, 2)
    assert log.liveness.destinations["queue://a"].messages == 2
    assert log.liveness.destinations["queue://a"].live == 2
    assert {log.liveness.live[seq].segment for seq in (1, 2)} == {name(2)}
    assert log.liveness.redelivered == {2: (3, 1)}
    log.add(name(3), Consumed("queue://a", ACKED, [1, 2]))
    assert (second.live, second.live_record_bytes, len(log.liveness.live), log.liveness.redelivered) == (0, 0, 0, {})


def test_a_moved_message_lives_where_it_stands() -> None:
    """Its place is the old one: the segment that says so refers to it, and a copy is one of there."""
    log = Log()
    log.add(name(1), message(1, 7, duplicate_id="x"))
    log.add(name(1), Redelivered("queue://a", [(1, 3, 1)]))
    log.add(name(2), Moved("queue://a", "queue://b", [1, 77], [("x", 1)]))
    a, b = (log.liveness.destinations[f"queue://{each}"] for each in "ab")
    assert (a.live, a.live_bytes, a.live_record_bytes, b.live, b.live_bytes) == (0, 0, 0, 1, 7)
    assert log.liveness.live[1].destination == "queue://b"
    assert (log.liveness.live[1].segment, log.liveness.segments[name(1)].live) == (name(1), 1)
    assert log.liveness.refers == {name(1): {name(1)}, name(2): {name(1)}}
    assert log.liveness.redelivered == {1: (3, 1)}
    assert log.liveness.duplicates["queue://b"] == {"x": (1, name(2))}
    log.add(name(3), message(1, 7, "queue://b"))
    assert (b.live, log.liveness.live[1].segment) == (1, name(3))


def test_what_stands_in_a_trimmed_segment_is_dead() -> None:
    """A crash undid the unlink of one segment, and not that of another with the acknowledgement."""
    log = Log()
    log.add(name(1), message(1))
    log.add(name(3), message(2))
    log.add(name(3), Trimmed(1, 2))
    log.liveness.settle()
    assert list(log.liveness.live.seqs()) == [2]
    assert log.liveness.destinations["queue://a"].live == 1


def test_ids_and_outcomes_are_those_that_a_broker_would_remember() -> None:
    log = Log(duplicate_window=2, outcome_window=1)
    for seq in (1, 2, 3):
        log.add(name(1), message(seq, duplicate_id=f"m{seq}"))
    log.add(name(1), Group([], "c1", 4))
    log.add(name(1), Group([], "c2", 5))
    log.add(name(2), Duplicates("queue://a", [("m2", 2)]))
    log.add(name(2), Outcomes([("c2", 5)]))
    log.liveness.settle()
    assert log.liveness.duplicates["queue://a"] == {"m2": (2, name(2)), "m3": (3, name(1))}
    assert log.liveness.outcomes == {"c2": (5, name(2))}
    assert compaction_plan.ids_by_segment(log.liveness) == {name(1): (1, 0, 22), name(2): (1, 1, 44)}


def test_an_older_message_with_the_same_id_does_not_make_it_older() -> None:
    ids = RememberedIds(10)
    ids.remember("x", 7, "s7")
    ids.remember("x", 3, "s3")
    assert ids == {"x": (7, "s7")}


def test_parts_of_a_group_stand_where_they_are_said_to() -> None:
    group = Group([message(1), Consumed("queue://b", ACKED, [5]), message(2, 0)], "outcome é", 3)
    data = group.encode(IDS)
    found = list(parts(group, memoryview(data)))
    assert [record for _, _, record in found] == group.records
    assert [bytes(frame) for _, frame, _ in found] == [encode_record(record, IDS) for record in group.records]
    assert all(data[at : at + len(frame)] == frame for at, frame, _ in found)
    assert list(parts(Group([]), memoryview(frame_record(5, bytes(12))))) == []


@given(st.dictionaries(st.one_of(st.integers(0, 200), st.integers(0, (1 << 64) - 1)), st.integers(0, 5)), st.data())
def test_the_index_is_a_dict_of_places(seqs: dict[int, int], data: st.DataObject) -> None:
    index, model = LiveIndex(), {}
    for seq, kind in seqs.items():
        model[seq] = LivePlace(f"s{kind}", f"d{kind % 2}", seq % (1 << 33), 9 + kind, kind)
        index.put(seq, model[seq])
    for seq in data.draw(st.lists(st.sampled_from(sorted(model)), unique=True)) if model else []:
        index.pop(seq)
        del model[seq]
    assert list(index.seqs()) == sorted(model)
    assert len(index) == len(model)
    assert {seq: index[seq] for seq in model} == model
    after = data.draw(st.integers(0, 200))
    assert list(index.seqs(after)) == [seq for seq in sorted(model) if seq > after]
    assert index.get(1 << 60 | 77) == model.get(1 << 60 | 77)


def reports(*sizes: int) -> list[SegmentReport]:
    return [SegmentReport(name(i + 1), 1, i + 1, OPEN, 1000, size, batches=1) for i, size in enumerate(sizes)]


def test_pins_and_plan_when_one_old_message_keeps_everything() -> None:
    log = Log()
    for number in range(1, 9):
        for i in range(9):
            log.add(name(number), message(number * 10 + i, 60))
        done = [number * 10 + i for i in range(9) if (number, i) != (1, 3)]
        log.add(name(number), Consumed("queue://a", ACKED, done))
    log.add(name(8), message(100, 60, "queue://b"))
    log.liveness.settle()
    pins = log.liveness.pins()
    assert [(pin.segment, pin.destination, pin.messages, pin.oldest_seq) for pin in pins] == [
        (name(1), "queue://a", 1, 13),
        (name(8), "queue://b", 1, 100),
    ]
    steps = plan(reports(*[1000] * 8), log.liveness, 500)
    assert [step.action for step in steps] == [COPY, *[FREE] * 6, KEEP]
    assert steps[0].copy_bytes == pins[0].record_bytes == steps[0].file_bytes - steps[0].freed_bytes
    assert [step.freed_bytes for step in steps[1:]] == [1000] * 6 + [0]
    steps = plan(reports(*[1000] * 8), log.liveness, 80_000)
    assert [step.action for step in steps] == [KEEP, *[FREE] * 6, KEEP], "small enough"


def test_segments_without_anything_live_go_however_small_the_journal() -> None:
    log = Log()
    log.add(name(1), message(1, duplicate_id="id"))
    log.add(name(2), Consumed("queue://a", ACKED, [1]))
    log.add(name(3), message(2))
    log.liveness.settle()
    first, second, third = plan(reports(100, 100, 100), log.liveness, 1 << 30)
    assert (first.action, second.action, third.action) == (FREE, FREE, KEEP)
    assert (first.copy_ids, first.copy_id_bytes, first.freed_bytes) == (1, 22, 978)


def test_the_rule_is_that_of_the_broker() -> None:
    assert compaction_plan.is_due is trimming.is_due
    assert compaction_plan.headroom_bytes is trimming.headroom_bytes
    assert compaction_plan.ID_BYTES == ID_BYTES


def test_places_are_right_on_disk(tmp_path: Path) -> None:
    world = World(tmp_path)
    for _ in range(8):
        world.send(10, 200)
        world.commit()
    _, liveness = inspect(world.log, lambda: (world.epoch, world.sealed))
    assert len(liveness.live) == 80
    bodies = {record.seq: record.body for record in world.records if isinstance(record, Message)}
    for seq in liveness.live.seqs():
        place = liveness.live[seq]
        data = (Path(world.directory) / place.segment).read_bytes()[place.offset : place.offset + place.size]
        assert data.endswith(bodies[seq])
        assert place.body_bytes == len(bodies[seq])


SCRIPT = st.lists(st.tuples(st.sampled_from("sssscccrgt"), st.integers(0, 50)), max_size=80)


def play(world: BrokerWorld, script: list[tuple[str, int]]) -> None:
    """s: send, c: acknowledge, r: refuse, g: a transaction, t: a takeover; every client lasts as long as its master."""
    client = world.connect()
    client.subscribe("a")
    client.subscribe("b")
    for number, (verb, choice) in enumerate(script):
        held = [
            d
            for d in client.deliveries
            if any(d.seq in s.unacked for q in world.broker.state.queues.values() for s in q.subscriptions)
        ]
        body = b"%d " % number + b"x" * (choice * 60)
        if verb == "s":
            client.send(body, "ab"[choice % 2], duplicate_id=f"id{choice}" if choice % 3 else "")
        elif verb in "cr" and held:
            (client.ack if verb == "c" else client.nack)(held[choice % len(held)].body)
        elif verb == "g":
            client.begin()
            client.send(body, "b", transaction="t")
            if held:
                client.ack(held[choice % len(held)].body, "t")
            client.commit(outcome_id=f"c{choice}")
        elif verb == "t":
            world.lose(client)
            world.crash_and_recover()
        world.settle()
        if client.refused or not client.connected:
            client = world.connect()
            client.subscribe("a")
            client.subscribe("b")
            world.settle()


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=examples(60))
@given(SCRIPT)
def test_what_lives_is_what_a_new_master_has(tmp_path_factory: Any, script: list[tuple[str, int]]) -> None:
    """Sends, acknowledgements, refusals, transactions and takeovers, with compaction going on in small segments."""
    world = BrokerWorld(tmp_path_factory.mktemp("store"), duplicate_window=5, outcome_window=3)
    play(world, script)
    world.crash()

    def make() -> Liveness:
        return Liveness(world.config.duplicate_window, world.config.outcome_window)

    inspection, liveness = inspect(world.log, lambda: (world.epoch, world.sealed), make)
    assert not inspection.problems
    world.start()
    assert dict(lives(liveness)) == {
        seq: (queue.name, message.segment.name, queue.redelivered.get(seq, (0, 0)))  # type: ignore[attr-defined]
        for queue in world.broker.state.queues.values()
        for seq, message in world.everything(queue).items()
    }
    for queue in world.broker.state.queues.values():
        ours = liveness.duplicates.get(queue.name, RememberedIds(0))
        assert {id: seq for id, (seq, _) in ours.items()} == {id: seq for id, (seq, _) in queue.duplicates.items()}
    assert {id: seq for id, (seq, _) in liveness.outcomes.items()} == {
        id: seq for id, (seq, _) in world.broker.state.outcomes.items()
    }
    assert sum(tally.live for tally in liveness.segments.values()) == len(liveness.live)
    assert sum(tally.live_bytes for tally in liveness.destinations.values()) == sum(
        len(message.body)
        for queue in world.broker.state.queues.values()
        for message in world.everything(queue).values()
    )
    world.close()


def lives(liveness: Liveness) -> Iterator[tuple[int, tuple[str, str, tuple[int, int]]]]:
    for seq in liveness.live.seqs():
        place = liveness.live[seq]
        yield seq, (place.destination, place.segment, liveness.redelivered.get(seq, (0, 0)))


def test_ids_of_a_subscription_whose_end_was_trimmed_are_forgotten() -> None:
    """The segment of its beginning is trimmed too; what was remembered for it is in one that is kept."""
    ended, stays = "subscription://c:gone:1", "subscription://c:here:2"
    log = Log()
    IDS.update({ended: 4, stays: 5})
    log.add(name(1), Subscribed(ended, {"name": "gone"}))
    log.add(name(2), Subscribed(stays, {"name": "here"}))
    for number, queue in ((1, ended), (2, ended), (2, stays)):
        log.add(name(number), Duplicates(queue, [(f"id-{number}", number)]))
    log.add(name(2), Trimmed(1, 1))
    log.liveness.settle()
    assert log.liveness.subscriptions.keys() == {stays}
    assert log.liveness.duplicates.keys() == {stays}
