"""Moving: messages that leave one queue and stand in another, at the place of the journal where they stood.

Invariant: none is in both queues, or in neither, after a replay from any position: a checkpoint that is dumped
meanwhile notes the move; and the segment that holds the record of it outlives those of the messages. A batch of a
pipeline moves at once when it commits, a million messages perhaps, so nothing here is done for each of those that wait
on disk alone: they go in columns.
"""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING

from amq.broker.backlog import Columns
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
    state.server.arrived(target)
    if target.keeper is not None:
        target.keeper.moved_in(moved.seqs)
    for browser in target.browsers if moved.source.startswith(SENT_SCHEME) else ():
        browser.moved_in(moved.seqs)


def _taken(state: State, queue: Queue, seqs: list[int]) -> list[tuple[int, Columns]]:
    """Those of `seqs` that are stored leave the queue: by priority, and by seq in each piece."""
    for message in [queue.messages[seq] for seq in seqs if seq in queue.messages] if queue.messages else ():
        assert isinstance(message.segment, Segment)
        state.hold(message.segment)
        state.memory.free(message)
    state.emptied[queue] = None
    return queue.transfer_out(seqs)


def _put(state: State, queue: Queue, priority: int, columns: Columns) -> None:
    """Stored messages wait on disk in `queue`, where they were not before; or only some were not, in a replay from a
    checkpoint that was made while they moved."""
    seqs, codes, offsets, sizes, *_ = columns
    if queue.add_rows(priority, columns):
        if queue.expiring:
            state.expiring[queue] = None
        if state.paged_out is not None:
            _note(state, queue, priority, columns)
    elif len(seqs) > 1:
        half = len(seqs) // 2
        for part in (slice(half), slice(half, None)):
            _put(state, queue, priority, [column[part] for column in columns])
    else:
        state.segments[codes[0]].leave(offsets[0], sizes[0])


def _note(state: State, queue: Queue, priority: int, columns: Columns) -> None:
    """The checkpoint that is being dumped may have looked at `queue` already."""
    assert state.paged_out is not None
    noted = state.paged_out.setdefault(queue, {})
    times = columns[4] if len(columns) > 4 else repeat(0)
    for seq, code, offset, size, expires_ms in zip(*columns[:4], times, strict=False):
        stub = Message(queue.name, b"", None, "", priority, True, 0, expires_ms, "", False, seq)
        stub.segment, stub.offset, stub.size = state.segments[code], offset, size
        noted[seq] = stub
