"""Moving: messages that leave one queue and stand in another, at the place of the journal where they stood.

Invariant: none is in both queues, or in neither, after a replay from wherever: a checkpoint that is dumped meanwhile is
told; and the segment that says so outlives those of the messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from amq.broker.queue import Queue
from amq.journal.records import Moved
from amq.journal.recovery import Segment
from amq.message import Message

if TYPE_CHECKING:
    from amq.broker.state import State


def move(state: State, moved: Moved, segment: Segment) -> None:
    """Messages stand in another queue, on disk alone, at the place where they stood."""
    source, target = state.queue(moved.source), state.queue(moved.target)
    rows, counts, acknowledged = source.rows(moved.seqs), source.redelivered, source.acknowledged
    counts = {seq: counts[seq] for seq in moved.seqs if seq in counts} if counts else {}
    here = [source.messages[seq] for seq in moved.seqs if seq in source.messages]
    for message in here:
        assert isinstance(message.segment, Segment)
        state.hold(message.segment)
    shared = {seq for _, seq, code, offset, _, _ in rows if offset in state._segments[code].shared}
    for message in here:
        state._remove(source, message)
    if source.backlogs:
        state._discard(source, moved.seqs)
    source.acknowledged = acknowledged
    for priority, seq, code, offset, size, expires_ms in rows:
        if code != segment.code:
            segment.refers.add(code)
        if state.paged_out is not None and seq in counts:
            state.moved_counts[seq] = counts[seq]
        if not target.stands_in(seq):  # else a checkpoint that was made meanwhile has it twice
            _put(state, target, priority, seq, code, offset, size, expires_ms, seq in shared)
        if seq in counts:
            target.redelivered[seq] = max(counts[seq], target.redelivered.get(seq, (0, 0)))
    for id, seq in moved.ids:
        target.duplicates_pending.pop(id, None)
        target.own_duplicates().remember(id, seq, segment)
    if state.journal is not None:
        state.dirty[target] = None
    if target.keeper is not None:
        target.keeper.moved_in(moved.seqs)


def _put(
    state: State, queue: Queue, priority: int, seq: int, code: int, offset: int, size: int, expires_ms: int,
    shared: bool,
) -> None:  # fmt: skip
    """A stored message waits on disk in `queue`, where it was not before."""
    queue.add_row(priority, seq, code, offset, size, expires_ms)
    queue.stored_bytes += size
    place = state._segments[code]
    if shared:
        place.share(offset, size)
    else:
        place.live += 1
        place.live_bytes += size
    if expires_ms:
        queue.expiring += 1
        state.expiring[queue] = None
    if state.paged_out is not None:
        stub = Message(queue.name, b"", None, "", priority, True, 0, expires_ms, "", False, seq)
        stub.segment, stub.offset, stub.size = place, offset, size
        state.paged_out.setdefault(queue, {})[seq] = stub
