"""Messages move in columns: whatever is in the queues, that leaves what a move row by row would leave.

The same history runs twice, once with the plain rules of a move that are written down here; states, statistics and what
a checkpoint is told must be the same.
"""

from __future__ import annotations

from array import array
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amq.broker.queues import backlog
from amq.broker.queues.queue import Queue
from amq.broker.state import snapshot
from amq.broker.state.snapshot import dump
from amq.broker.state.state import State as Stored
from amq.core.message import Message
from amq.journal.live import Segment
from amq.journal.records import Moved, Record
from tests.broker.test_snapshot import ACTIONS, NAMES, State, action, chunks, contents, loaded
from tests.sampling import examples


def row_of(queue: Queue, seq: int) -> tuple[int, ...] | None:
    """Priority, segment, offset, size and time of expiry of a stored message."""
    message = queue.messages.get(seq)
    if message is not None:
        assert isinstance(message.segment, Segment)
        return message.priority, message.segment.code, message.offset, message.size, message.expires_ms
    for priority, each in queue.backlogs.items():
        for columns in chunks(each):
            if seq in columns[0]:
                i = columns[0].index(seq)
                return priority, columns[1][i], columns[2][i], columns[3][i], columns[4][i] if len(columns) > 4 else 0
    return None


def move_by_rows(state: Stored, moved: Moved, segment: Segment) -> None:
    """The rules of a move, one message after the other."""
    source, target = state.queue(moved.source), state.queue(moved.target)
    for level, columns in source.leaving.discard(moved.seqs):
        source.own_backlog(level).add_all(columns)
    for seq in moved.seqs:
        row = row_of(source, seq)
        if row is None:
            continue
        priority, code, offset, size, expires_ms = row
        message, counts = source.messages.get(seq), source.redelivered.get(seq)
        acknowledged = source.acknowledged
        place = state.segments[code] if message is None else message.segment
        assert isinstance(place, Segment)
        state.hold(place)
        if message is not None:
            state.remove(source, message)
        else:
            state._discard(source, [seq])
        source.acknowledged = acknowledged
        if code != segment.code:
            segment.refers.add(code)
        if state.paged_out is not None and counts is not None:
            state.moved_counts[seq] = counts
        if not target.stands_in(seq):
            target.own_backlog(priority).add(seq, code, offset, size, expires_ms)
            target.stored_bytes += size
            place.live += 1
            place.live_bytes += size
            if expires_ms:
                target.expiring += 1
                state.expiring[target] = None
            if state.paged_out is not None:
                stub = Message(target.name, b"", None, "", priority, True, 0, expires_ms, "", False, seq)
                stub.segment, stub.offset, stub.size = place, offset, size
                state.paged_out.setdefault(target, {})[seq] = stub
        if counts is not None:
            target.redelivered[seq] = max(counts, target.redelivered.get(seq, (0, 0)))
    for id, seq in moved.ids:
        target.duplicates_pending.pop(id, None)
        target.own_duplicates().remember(id, seq, segment)


def counted(state: State) -> dict[str, Any]:
    """What `contents` leaves out: statistics, order, what a checkpoint that is being dumped was told."""
    broker = state.stored
    for queue in broker.queues.values():
        assert all((*queue.backlogs.values(), *queue.leaving.values()))
        for each in (*queue.backlogs.values(), *queue.leaving.values()):
            seqs = [place.seq for place in each]
            assert seqs == sorted(set(seqs))
            assert each.first == seqs[0]
            assert each.firsts == [chunk.seqs[0] for chunk in each.chunks]
            assert len(each) == len(seqs)
            times = [time for columns in chunks(each) for time in (columns[4] if len(columns) > 4 else ()) if time]
            assert each.next_due_ms <= min(times, default=backlog.NEVER)
    paged_out = {
        queue.name: {seq: (m.priority, m.segment.code, m.offset, m.size, m.expires_ms) for seq, m in noted.items()}  # type: ignore[attr-defined]
        for queue, noted in (broker.paged_out or {}).items()
    }
    return {
        "memory": broker.memory.taken_bytes,
        "paged out": paged_out,
        "counts": broker.moved_counts,
        "refers": [segment.refers for segment in state.segments],
        "queues": {
            queue.name: (
                {p: list(each) for p, each in queue.backlogs.items()},
                {p: list(each) for p, each in queue.leaving.items()},
                queue.resident_bytes,
                queue.enqueued,
                queue.acknowledged,
                set(queue.messages),
                queue.redelivered,
                queue.waiting,
                queue.stored,
            )
            for queue in broker.queues.values()
        },
    }


def run(actions: list[tuple[str, int, int]], dumped_at: int) -> tuple[State, dict[str, Any], list[Any], list[Any]]:
    """The state, what is counted of it, the blocks of a checkpoint that was begun at that step, and what came since."""
    state, blocks, stream = State(), [], None
    for i, each in enumerate(actions):
        if i == dumped_at:
            stream = state.blocks()
            blocks += [next(stream), next(stream)]
            state.applied.clear()
        elif stream is not None and i % 3 == 0:
            blocks += [block for block in [next(stream, None)] if block is not None]
        state.do(*each)
    found = counted(state)
    return state, found, blocks + list(stream or ()), state.applied if stream is not None else []


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (backlog, snapshot):
        monkeypatch.setattr(module, "CHUNK_ROWS", 3)


@settings(max_examples=examples(120))
@given(st.lists(action, max_size=60), st.integers(0, 80))
def test_a_move_in_columns_leaves_what_a_move_by_rows_leaves(
    actions: list[tuple[str, int, int]], dumped_at: int
) -> None:
    state, found, blocks, applied = run(actions, dumped_at)
    with patch.object(Stored, "transfer", move_by_rows):
        other, expected, other_blocks, other_applied = run(actions, dumped_at)
    assert found == expected
    places = [{segment.code: segment for segment in each.segments} for each in (state, other)]
    assert contents(state.stored, places[0]) == contents(other.stored, places[1])
    if blocks:
        for read, come in ((blocks, applied), (other_blocks, other_applied)):
            broker, segments = loaded(read, come)
            assert contents(broker, segments) == contents(state.stored, places[0])


def test_the_actions_move_messages() -> None:
    assert ACTIONS.count("move") > 1


def test_a_checkpoint_that_has_one_twice_and_its_neighbours_once() -> None:
    """It was dumped while they moved: of the first queue before, of the second after. The record comes again."""
    state = State()
    for _ in range(7):
        state.do("send", 24, 4)  # queue a, priority 4
    stream, blocks = state.blocks(), []
    state.applied.clear()
    for block in stream:
        blocks.append(block)
        if len(blocks) == 3:  # some rows of a are dumped
            move: Record = Moved(NAMES[0], NAMES[1], [1, 2, 3, 5, 6, 7])
            state.apply(move, 1)
    broker, segments = loaded(blocks, state.applied)
    assert contents(broker, segments) == contents(state.stored, {s.code: s for s in state.segments})
    assert [place.seq for each in broker.queues[NAMES[1]].backlogs.values() for place in each] == [1, 2, 3, 5, 6, 7]


def test_a_large_batch_goes_between_others_in_chunks_of_the_usual_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlog, "CHUNK_ROWS", 100)
    some = backlog.Backlog()
    for seq in [*range(50), *range(2000, 2050)]:
        some.add(seq, 1, seq, 1)
    columns = [array("Q", range(100, 1100)), array("Q", [1] * 1000), array("I", range(1000)), array("I", [1] * 1000)]
    assert some.extend(columns)
    assert len(some) == 1100
    assert max(len(chunk.seqs) for chunk in some.chunks) <= 100
    assert len(some.chunks) < 20
    assert not some.extend([column[10:20] for column in columns])
    assert [place.seq for place in some] == [*range(50), *range(100, 1100), *range(2000, 2050)]


def test_a_dump_is_told_of_what_moves_in_columns() -> None:
    state = State()
    for _ in range(5):
        state.do("send", 24, 4)
    stream = dump(state.stored, lambda: state.segments)
    next(stream)
    state.apply(Moved(NAMES[0], NAMES[1], [1, 2, 4]), 1)
    assert state.stored.paged_out is not None
    assert {q.name: sorted(noted) for q, noted in state.stored.paged_out.items()} == {NAMES[1]: [1, 2, 4]}
    stream.close()
