"""Rows: messages by columns, with their places in the journal."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from itertools import accumulate

from amq.broker.queues.backlog import Columns, Place
from amq.broker.queues.queue import Queue


class Rows:
    """Messages and where they stand, by columns."""

    __slots__ = ("codes", "offsets", "seqs", "sizes")

    def __init__(self, columns: Sequence[array[int]] = ()) -> None:
        """`columns` = of a backlog: they belong to this object from now on."""
        if columns:
            self.seqs, self.codes, self.offsets, self.sizes = columns[:4]
        else:
            self.seqs, self.codes, self.offsets, self.sizes = array("Q"), array("Q"), array("I"), array("I")

    def __len__(self) -> int:
        return len(self.seqs)

    @property
    def columns(self) -> Columns:
        return [self.seqs, self.codes, self.offsets, self.sizes]

    def places(self) -> Iterable[Place]:
        return map(Place, *self.columns)

    def head(self, bytes_max: int) -> Rows:
        """The first of them, at least one, that take no more than this many bytes."""
        count = next((row for row, size in enumerate(accumulate(self.sizes)) if size > bytes_max), len(self))
        return self if count == len(self) else Rows([column[: max(1, count)] for column in self.columns])

    def add(self, place: Place) -> None:
        for column, value in zip(self.columns, place, strict=True):
            column.append(value)

    def add_columns(self, columns: Sequence[array[int]]) -> None:
        """Rows of a backlog."""
        for mine, theirs in zip(self.columns, columns, strict=False):
            mine.extend(theirs)

    def add_disk(self, queue: Queue, seqs: list[int]) -> bool:
        """All of `seqs`, in this order, from the disk. False where one is not there."""
        start = 0
        while start < len(seqs):
            found = next((each for one in queue.backlogs.values() if (each := one.columns_of(seqs, start))), None)
            if found is None:
                return False
            self.add_columns(found)
            start += len(found[0])
        return True
