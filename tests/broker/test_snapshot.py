"""Snapshot: a dump that is taken while the state changes, and every record from its beginning on, are the state."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amq.broker.queues import backlog
from amq.broker.state import snapshot
from amq.broker.state.snapshot import Block, dump, load
from amq.broker.state.state import State as Stored
from amq.config.schema import BrokerConfig
from amq.core.errors import CorruptError
from amq.core.message import Message
from amq.journal.checkpoint import COUNTS, DUPLICATES, END, HEAD, OUTCOMES, QUEUE, ROWS, encode_head
from amq.journal.follower import Position
from amq.journal.format import segment_name
from amq.journal.live import Segment
from amq.journal.records import Consumed, Group, Moved, Record, Redelivered, Trimmed
from tests.sampling import examples

POSITION = Position(1, 2, 500, 200, 7, 0xC0FFEE, {1: "queue://a"})
CONFIG = BrokerConfig(store="/nowhere", duplicate_window=4, outcome_window=4)
NAMES = ("queue://a", "queue://b")


class State:
    """A state that is given records, as a replay gives them, and moves messages between disk and memory."""

    def __init__(self) -> None:
        self.stored = Stored(CONFIG)
        self.segments = [Segment(segment_name(1, number), 1, number, 1000 * number) for number in (1, 2, 3)]
        self.seq = 0
        self.applied: list[tuple[Record, Segment]] = []

    def apply(self, record: Record, number: int) -> None:
        self.stored.apply(record, self.segments[number])
        self.applied.append((record, self.segments[number]))

    def do(self, action: str, x: int, y: int) -> None:
        name = NAMES[x % 2]
        queue = self.stored.queues.get(name)
        waiting = sorted(place.seq for each in queue.backlogs.values() for place in each) if queue else []
        leaving = sorted(place.seq for each in queue.leaving.values() for place in each) if queue else []
        resident = sorted(queue.messages) if queue else []
        number = min(2, self.seq // 12)
        if action == "send":
            self.seq += 1
            self.apply(self.message(name, x, y), number)
        elif action == "commit":
            self.seq += 2
            self.apply(Group([self.message(name, x, y)], f"outcome-{y}", self.seq - 1), number)
        elif action == "in" and queue is not None and waiting:
            seq = waiting[y % len(waiting)]
            place = queue.find(seq)
            assert place is not None
            priority = next(level for level, each in queue.backlogs.items() if seq in each)
            (expires,) = [
                columns[4][i] if len(columns) > 4 else 0
                for columns in chunks(queue.backlogs[priority])
                for i, found in enumerate(columns[0])
                if found == seq
            ]
            self.stored.page_in(queue, [Message(name, b"", None, "", priority, True, 0, expires, "", False, seq)])
        elif action == "out" and queue is not None and resident:
            self.stored.page_out_again(queue, queue.messages[resident[y % len(resident)]])
        elif action == "ack" and (stored := sorted(waiting + resident)):
            self.apply(Consumed(name, 0, [stored[y % len(stored)]]), number)
        elif action == "apart" and queue is not None and waiting:
            for priority in list(queue.backlogs):
                queue.set_apart(priority, waiting[y % len(waiting) :: 2])
        elif action == "move" and (stored := sorted(waiting + resident + leaving)):
            seqs = stored[y % len(stored) :: 2]
            ids = [(f"id-{y}", seqs[0])] if y % 2 else []
            self.apply(Moved(name, NAMES[(x + 1) % 2], seqs, ids), number)
        elif action == "return" and (stored := sorted(waiting + resident)):
            self.apply(Redelivered(name, [(stored[y % len(stored)], 1 + y, y)]), number)

    def message(self, name: str, x: int, y: int) -> Message:
        found = Message(
            name,
            b"",
            None,
            "",
            x % 10,
            True,
            0,
            1000 * y if y % 3 == 0 else 0,
            f"id-{y}" if x % 3 else "",
            False,
            self.seq,
        )
        found.offset, found.size = 100 + 10 * self.seq, 50 + y
        return found

    def blocks(self) -> Iterator[Block]:
        yield HEAD, encode_head(POSITION, Trimmed(), bytes(16))
        yield from dump(self.stored, lambda: self.segments)


def chunks(rows: backlog.Backlog) -> Iterator[list[array[int]]]:
    seq = -1
    while columns := rows.rows_after(seq):
        yield columns
        seq = columns[0][-1]


def contents(stored: Stored, segments: dict[int, Segment]) -> dict[str, Any]:
    """All that a journal keeps, wherever it is, and what is counted of it."""
    queues = {}
    for name, queue in stored.queues.items():
        rows = {
            (priority, *row[:4], row[4] if len(row) > 4 else 0)
            for backlogs in (queue.backlogs, queue.leaving)
            for priority, each in backlogs.items()
            for columns in chunks(each)
            for row in zip(*columns, strict=True)
        }
        rows |= {
            (m.priority, m.seq, m.segment.code, m.offset, m.size, m.expires_ms)  # type: ignore[attr-defined]
            for m in queue.messages.values()
        }
        queue.duplicates.settle()
        if rows or queue.duplicates:
            ids = [(id, seq, segment.code) for id, (seq, segment) in queue.duplicates.items()]
            queues[name] = (sorted(rows), queue.redelivered, ids, queue.stored_bytes, queue.expiring)
    stored.outcomes.settle()
    live = {code: (each.live, each.live_bytes, each.id_bytes) for code, each in segments.items() if each.live}
    return {
        "queues": queues,
        "live": live,
        "outcomes": [(id, seq, segment.code) for id, (seq, segment) in stored.outcomes.items()],
    }


def loaded(blocks: list[Block], records: list[tuple[Record, Segment]]) -> tuple[Stored, dict[int, Segment]]:
    """What a start has that reads those blocks and then those records."""
    stored = Stored(CONFIG)
    start = load("x", iter(blocks), stored)
    segments = {segment.code: segment for segment in [*start.segments.values(), *start.made.values()]}
    for record, segment in records:
        stored.apply(record, segments[segment.code])
    return stored, segments


ACTIONS = ["send", "send", "send", "commit", "in", "in", "out", "ack", "return", "apart", "move", "move"]
action = st.tuples(st.sampled_from(ACTIONS), st.integers(0, 29), st.integers(0, 12))


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlog, "CHUNK_ROWS", 2)
    monkeypatch.setattr(snapshot, "CHUNK_ROWS", 2)
    monkeypatch.setattr(snapshot, "ITEMS", 2)


@settings(max_examples=examples(150))
@given(st.lists(action, max_size=40))
def test_round_trip(actions: list[tuple[str, int, int]]) -> None:
    state = State()
    for each in actions:
        state.do(*each)
    blocks = list(state.blocks())
    stored, segments = loaded(blocks, [])
    assert contents(stored, segments) == contents(state.stored, {s.code: s for s in state.segments})
    assert segments[1 << 32 | 2].end == POSITION.offset
    assert [segments[code].end for code in (1 << 32 | 1, 1 << 32 | 3)] == [1000, 3000]


@settings(max_examples=examples(150))
@given(st.lists(action, max_size=40), st.lists(st.lists(action, max_size=3), max_size=40))
def test_what_changes_meanwhile_is_made_good_by_the_records(
    before: list[tuple[str, int, int]], meanwhile: list[list[tuple[str, int, int]]]
) -> None:
    state = State()
    for each in before:
        state.do(*each)
    blocks, pause, stream = [], iter(meanwhile), state.blocks()
    blocks.append(next(stream))
    blocks.append(next(stream))  # as the checkpointer does: the first block in the turn in which the position is taken
    state.applied.clear()
    for each in next(pause, []):
        state.do(*each)
    for block in stream:
        blocks.append(block)
        for each in next(pause, []):
            state.do(*each)
    stored, segments = loaded(blocks, state.applied)
    assert contents(stored, segments) == contents(state.stored, {s.code: s for s in state.segments})
    assert state.stored.paged_out is None


def test_counts_of_a_message_that_goes_back_to_the_disk_meanwhile() -> None:
    """It is in neither place when its queue is looked at; nothing but the dump says how often it was delivered."""
    state = State()
    for each in [("send", 0, 1), ("send", 0, 2), ("return", 0, 1), ("in", 0, 1)]:
        state.do(*each)
    stream = state.blocks()
    blocks = [next(stream), next(stream), next(stream)]
    assert [kind for kind, _ in blocks] == [HEAD, QUEUE, ROWS]
    state.do("out", 0, 0)
    state.applied.clear()
    blocks += stream
    stored, _ = loaded(blocks, [])
    assert stored.queues["queue://a"].redelivered == {2: (2, 1)}
    assert stored.stored == 2


def test_the_id_of_a_message_that_comes_and_goes_to_the_disk_meanwhile() -> None:
    """Its row is dumped at the end, the ids of its queue were before it came: the record alone says its id."""
    state = State()
    state.do("send", 2, 1)
    stream, blocks = state.blocks(), []
    state.applied.clear()
    for block in stream:
        blocks.append(block)
        if block[0] == DUPLICATES:
            for each in [("send", 2, 2), ("in", 0, 1), ("out", 0, 0)]:
                state.do(*each)
    assert [kind for kind, _ in blocks] == [HEAD, QUEUE, ROWS, DUPLICATES, QUEUE, ROWS, END]
    stored, _ = loaded(blocks, state.applied)
    assert list(stored.queues["queue://a"].duplicates) == ["id-1", "id-2"]


def test_what_leaves_for_another_queue_is_dumped() -> None:
    """It is in no line, and the word of its move is not in the journal yet."""
    state = State()
    for number in range(6):
        state.do("send", 0, number)
    state.do("apart", 0, 1)
    assert state.stored.queues[NAMES[0]].leaving.rows == 3
    stored, segments = loaded(list(state.blocks()), [])
    assert contents(stored, segments) == contents(state.stored, {s.code: s for s in state.segments})


def test_what_moves_to_a_queue_that_was_dumped_before() -> None:
    """It is in neither queue when they are looked at: it was noted."""
    state = State()
    for each in [("send", 0, 1), ("send", 1, 3), ("return", 1, 1)]:
        state.do(*each)
    stream, blocks = state.blocks(), []
    state.applied.clear()
    for block in stream:
        blocks.append(block)
        if block == (QUEUE, b"queue://b"):
            state.apply(Moved("queue://a", "queue://b", [1]), 0)
            state.apply(Moved("queue://b", "queue://a", [2]), 0)
    stored, segments = loaded(blocks, state.applied)
    assert contents(stored, segments) == contents(state.stored, {s.code: s for s in state.segments})
    assert stored.queues["queue://a"].redelivered == {2: (2, 1)}


def test_counts_of_what_moves_to_and_fro_meanwhile() -> None:
    """Its queue's rows are dumped before, its counts after it was elsewhere."""
    state = State()
    for each in [("send", 1, 0), ("return", 1, 0)]:
        state.do(*each)
    stream, blocks = state.blocks(), []
    state.applied.clear()
    for block in stream:
        blocks.append(block)
        if block[0] == ROWS and len(state.applied) == 0:
            state.apply(Moved("queue://b", "queue://a", [1]), 0)
        elif block[0] == END:
            state.apply(Moved("queue://a", "queue://b", [1]), 0)
    stored, _ = loaded(blocks, state.applied)
    assert stored.queues["queue://b"].redelivered == state.stored.queues["queue://b"].redelivered == {1: (1, 0)}


def test_a_dump_that_is_abandoned_notes_no_more() -> None:
    state = State()
    for each in [("send", 0, 1), ("in", 0, 0)]:
        state.do(*each)
    stream = dump(state.stored, list)
    next(stream)
    assert state.stored.paged_out == {}
    stream.close()
    assert state.stored.paged_out is None
    state.do("out", 0, 0)


def test_a_hundred_thousand_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (backlog, snapshot):
        monkeypatch.setattr(module, "CHUNK_ROWS", 2048)
    monkeypatch.setattr(snapshot, "ITEMS", 2048)
    state = State()
    for seq in range(1, 100_001):
        state.seq = seq
        state.stored.apply(state.message("queue://a", 4, 3 * (seq % 2)), state.segments[0])
    blocks = list(state.blocks())
    assert max(len(payload) for _, payload in blocks) < 1 << 18
    stored, segments = loaded(blocks, [])
    assert stored.stored == 100_000
    assert contents(stored, segments) == contents(state.stored, {s.code: s for s in state.segments})


HEAD_BLOCK: Block = (HEAD, encode_head(POSITION, Trimmed(), bytes(16)))
LAST_BLOCK: Block = (END, b"[]")


@pytest.mark.parametrize(
    "blocks",
    [
        [],
        [(QUEUE, b"queue://a")],
        [HEAD_BLOCK, HEAD_BLOCK],
        [HEAD_BLOCK, (99, b"[]")],
        [HEAD_BLOCK, (ROWS, b"\0\0\1\0\0\0" + bytes(24)), LAST_BLOCK],  # of no queue
        [HEAD_BLOCK, (COUNTS, b"[[1,1,1]]")],
        [HEAD_BLOCK, (DUPLICATES, b'[["a",1,2]]')],
        [HEAD_BLOCK, (QUEUE, b"\xff")],
        [HEAD_BLOCK, (OUTCOMES, b"")],
        [HEAD_BLOCK, (OUTCOMES, b"[[1,2,3]]")],
        [HEAD_BLOCK, (OUTCOMES, b'[["a","b",3]]')],
        [HEAD_BLOCK, (OUTCOMES, b"[" * 100_000)],
        [HEAD_BLOCK, (END, b"[[1,2]]")],
        [HEAD_BLOCK, (END, b"[[1,2,1e999]]")],
        [HEAD_BLOCK, (END, b'["a"]')],
        [HEAD_BLOCK, (QUEUE, b"queue://a"), (ROWS, b"")],
        [HEAD_BLOCK, (QUEUE, b"queue://a"), (ROWS, b"\x0a\0\1\0\0\0" + bytes(24))],
        [HEAD_BLOCK, (QUEUE, b"queue://a"), (ROWS, b"\0\0\0\0\0\0")],
        [HEAD_BLOCK, (QUEUE, b"queue://a"), (ROWS, b"\0\0\2\0\0\0" + bytes(24))],
        [HEAD_BLOCK, (QUEUE, b"queue://a"), (ROWS, b"\0\1\1\0\0\0" + bytes(24))],
    ],
)
def test_blocks_that_make_no_sense_are_damage(blocks: list[Block]) -> None:
    with pytest.raises(CorruptError):
        load("x", iter(blocks), Stored(CONFIG))


def test_the_head_is_plain_json() -> None:
    assert json.loads(HEAD_BLOCK[1])["offset"] == POSITION.offset
