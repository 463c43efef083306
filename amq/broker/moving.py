"""Moving: messages that leave one queue and stand in another, at the place of the journal where they stood.

Invariant: none is in both queues, or in neither, after a replay from any position: a checkpoint that is dumped
meanwhile notes the move; and the segment that holds the record of it outlives those of the messages. A batch of a
pipeline moves at once when it commits, a million messages perhaps, so nothing here is done for each of those that wait
on disk alone: they go in columns.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import repeat
from typing import TYPE_CHECKING

from amq.broker.backlog import Columns, columns_of
from amq.broker.memory import cost
from amq.broker.queue import Queue
from amq.journal.records import SENT_SCHEME, Moved
from amq.journal.recovery import Segment
from amq.message import Message

if TYPE_CHECKING:
    from amq.broker.state import State


def move(state: State, moved: Moved, segment: Segment) -> None:
    """Messages stand in another queue, on disk alone, at the place where they stood."""
    source, target = state.queue(moved.source), state.queue(moved.target)
    known = source.redelivered
    counts = {seq: known.pop(seq) for seq in moved.seqs if seq in known} if known else {}
    if state.paged_out is not None:
        state.moved_counts |= counts
    for priority, columns in _taken(state, source, moved.seqs):
        segment.refers.update({*columns[1]} - {segment.code})
        _put(state, target, priority, columns)
    for seq, count in counts.items():
        target.redelivered[seq] = max(count, target.redelivered.get(seq, (0, 0)))
    for id, seq in moved.ids:
        target.duplicates_pending.pop(id, None)
        target.own_duplicates().remember(id, seq, segment)
    if state.journal is not None:
        state.dirty[target] = None
    if target.keeper is not None:
        target.keeper.moved_in(moved.seqs)
    for browser in target.browsers if moved.source.startswith(SENT_SCHEME) else ():
        browser.moved_in(moved.seqs)


def _taken(state: State, queue: Queue, seqs: list[int]) -> list[tuple[int, Columns]]:
    """Those of `seqs` that are stored leave the queue: by priority, and by seq in each piece."""
    resident, in_memory = queue.messages, defaultdict(list)
    for message in [resident.pop(seq) for seq in seqs if seq in resident] if resident else ():
        assert isinstance(message.segment, Segment)
        place = state.hold(message.segment)
        in_memory[message.priority].append(
            (message.seq, place.code, message.offset, message.size, message.expires_ms)
        )
        queue.resident_bytes -= cost(message)
        state.memory.free(message)
    taken = [(priority, columns_of(rows)) for priority, rows in in_memory.items()]
    for priority, backlog in list(queue.backlogs.items()):
        taken += [(priority, columns) for columns in backlog.discard(seqs)]
        if not backlog:
            del queue.backlogs[priority]
    for _, (_, _, _, sizes, *expires) in taken:
        queue.stored_bytes -= sum(sizes)
        for column in expires:
            queue.expiring -= len(column) - column.count(0)
    state.emptied[queue] = None
    return taken


def _put(state: State, queue: Queue, priority: int, columns: Columns) -> None:
    """Stored messages wait on disk in `queue`, where they were not before; or only some were not, in a replay from a
    checkpoint that was made while they moved."""
    seqs, codes, offsets, sizes, *expires = columns
    if queue.add_rows(priority, columns):
        queue.stored_bytes += sum(sizes)
        for column in expires:
            queue.expiring += len(column) - column.count(0)
            state.expiring[queue] = None
        if state.paged_out is not None:
            _note(state, queue, priority, columns)
    elif len(seqs) > 1:
        half = len(seqs) // 2
        for part in (slice(half), slice(half, None)):
            _put(state, queue, priority, [column[part] for column in columns])
    else:
        state._segments[codes[0]].leave(offsets[0], sizes[0])


def _note(state: State, queue: Queue, priority: int, columns: Columns) -> None:
    """The checkpoint that is being dumped may have looked at `queue` already."""
    assert state.paged_out is not None
    noted = state.paged_out.setdefault(queue, {})
    times = columns[4] if len(columns) > 4 else repeat(0)
    for seq, code, offset, size, expires_ms in zip(*columns[:4], times, strict=False):
        stub = Message(queue.name, b"", None, "", priority, True, 0, expires_ms, "", False, seq)
        stub.segment, stub.offset, stub.size = state._segments[code], offset, size
        noted[seq] = stub
