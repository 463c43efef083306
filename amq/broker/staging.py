"""Staging: what a prepared transaction sent goes to a hidden queue, and waits there on disk alone.

Invariant: a run of messages leaves the state as its messages would leave it one by one, which is how a replay has them.
"""

from __future__ import annotations

from array import array
from itertools import accumulate, islice
from typing import TYPE_CHECKING

from amq.journal.recovery import Segment
from amq.journal.run import Run

if TYPE_CHECKING:
    from amq.broker.state import State


def stage(state: State, run: Run, segment: Segment) -> None:
    """The messages of `run` are stored in `segment`."""
    queue, count, expires_ms = state.queue(run.queue_name), len(run.bodies), run.like.expires_ms
    assert queue.is_hidden, "elsewhere they might not wait on disk"
    columns = [
        array("Q", run.seqs), array("Q", [segment.code]) * count,
        array("I", islice(accumulate(run.sizes, initial=run.offset), count)), run.sizes,
    ]  # fmt: skip
    if expires_ms:
        columns.append(array("Q", [expires_ms]) * count)
        state.expiring[queue] = None
    is_last = queue.add_rows(run.like.priority, columns)
    assert is_last, "seqs are given in the order in which they are stored"
    state.hold(segment)
    segment.live += count
    segment.live_bytes += run.size
    queue.enqueued += count
    state.server.was_staged(run)
