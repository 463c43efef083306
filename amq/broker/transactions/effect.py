"""Effect: a committed batch that holds a large transaction, or another record of very many messages, takes effect in
slices, so that others are served in between.

Invariants: the journal commits nothing else until all of it is done, so records take effect in the order in which they
are there. The receipt leaves when all of it is done. Consumers of its queues get nothing before that, so they see the
transaction in one step. The records are durable: a broker that loses the mastership in between forgets all, as always.
"""

from __future__ import annotations

from collections.abc import Iterator

from amq.broker.state.state import State
from amq.core.message import Message
from amq.journal.batch import OpenBatch
from amq.journal.records import BaseRecord, Group, Record, is_larger

SLICE_RECORDS = 2000  # a few milliseconds


def is_large(record: Record) -> bool:
    """Does it take effect in slices?"""
    return is_larger(record, SLICE_RECORDS)


class Effect:
    """Effect of `batch`. `held` = full names of queues that deliver nothing meanwhile. An empty one may be
    forgotten in between, and come again."""

    def __init__(self, state: State, batch: OpenBatch) -> None:
        self.batch = batch
        self.held = frozenset(batch.names)
        self._state = state
        self._slices = self._run()

    def step(self) -> bool:
        """Do a slice; returns whether there is more."""
        return next(self._slices, True) is None

    def _run(self) -> Iterator[None]:
        done = 0
        for count in self._steps():
            done += count
            if done >= SLICE_RECORDS:
                yield None
                done = 0

    def _steps(self) -> Iterator[int]:
        """After each step: how many messages were dealt with in it, SLICE_RECORDS or little more."""
        batch, offset = self.batch, self.batch.offset
        for record, chunk in zip(batch.records, batch.chunks, strict=True):
            if isinstance(record, Group) and is_large(record):
                yield from self._group_steps(record, offset)
            elif not isinstance(record, Message) and record.is_larger(SLICE_RECORDS):
                yield from self._piecewise(record)
            else:
                self._state.take_effect(record, offset, len(chunk), batch.segment)
                yield len(record.records) if isinstance(record, Group) else 1
            offset += len(chunk)

    def _group_steps(self, group: Group, offset: int) -> Iterator[int]:
        apply, segment, done = self._state.apply, self.batch.segment, 0
        for i, record in enumerate(group.records):
            if i % SLICE_RECORDS == 0:
                group.place_parts(offset, i, i + SLICE_RECORDS)
            if not isinstance(record, Message):
                yield from self._piecewise(record)
                continue
            apply(record, segment)
            done += 1
            if done >= SLICE_RECORDS:
                yield done
                done = 0
        yield done
        if segment is not None:
            self._state.end_group(group, segment)

    def _piecewise(self, record: BaseRecord) -> Iterator[int]:
        apply, segment = self._state.apply, self.batch.segment
        for piece in record.pieces(SLICE_RECORDS):
            apply(piece, segment)
            yield piece.message_count()
