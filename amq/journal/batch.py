"""OpenBatch: records that gather to be durable together; and who is to learn what became of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Protocol

from amq.core.errors import CorruptError
from amq.journal.format import Chunk
from amq.journal.live import Segment
from amq.journal.records import Record
from amq.journal.records.message import Run


class Waiter(Protocol):
    """A party that waits until something is durable. It is told once."""

    def done(self, result: str = "") -> None:
        """The records are durable. `result` = how, where there is more than one way."""

    def failed(self, error: Exception) -> None:
        """It never will be."""


Confirm = tuple[Waiter, Record | None]


class OpenBatch:
    """Records that will be durable together.

    confirms    (waiter, the record it stands for or None), in order
    in_runs     records in the bytes beyond the objects here: a `Run` is one for all its messages
    consumed    {destination: seqs acknowledged}, gathered so that a thousand acks are one record
    """

    __slots__ = (
        "chunks",
        "confirms",
        "consumed",
        "flags",
        "in_runs",
        "in_slices",
        "names",
        "offset",
        "records",
        "segment",
        "size",
    )

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.chunks: list[Chunk] = []
        self.confirms: list[Confirm] = []
        self.consumed: defaultdict[str, list[int]] = defaultdict(list)
        self.names: dict[str, None] = {}  # in order of use, so that the same calls give the same bytes
        self.size = 0
        self.flags = 0
        self.in_runs = 0
        self.in_slices = False  # so large that it takes effect in slices
        self.segment: Segment | None = None
        self.offset = 0  # of the first record in the segment

    def take_out(self, which: Callable[[Record], bool]) -> tuple[list[Confirm], list[Record]]:
        """Take out the records of that kind, and who is to learn of them. Returns both."""
        taken = [record for record in self.records if which(record)]
        if not taken:
            return [], []
        ids = {id(record) for record in taken}
        keep = [i for i, record in enumerate(self.records) if id(record) not in ids]
        self.records, self.chunks = [self.records[i] for i in keep], [self.chunks[i] for i in keep]
        self.size = sum(map(len, self.chunks))
        self.in_runs = sum(len(record.bodies) - 1 for record in self.records if isinstance(record, Run))
        waited = [confirm for confirm in self.confirms if id(confirm[1]) in ids]
        self.confirms = [confirm for confirm in self.confirms if id(confirm[1]) not in ids]
        return waited, taken

    def __bool__(self) -> bool:
        return bool(self.records or self.consumed or self.confirms)


class JournalOwner(Protocol):
    """The party to which the journal reports the fate of records."""

    def committed(self, batch: OpenBatch) -> None:
        """Durable and ours: apply the records, confirm."""

    def rejected(self, refused: list[Confirm], records: list[Record]) -> None:
        """The disk is full: `records` are not stored and never will be; `refused` waited for them."""

    def store_full(self, full: bool) -> None:
        """The disk became full, or has room again."""

    def store_at_limit(self, reached: bool) -> None:
        """The journal came to `storeLimit`, or is below it again."""

    def failed(self, why: str, damage: CorruptError | None = None) -> None:
        """The journal cannot go on: fence. With `damage`: and stop, no other broker can do better."""
