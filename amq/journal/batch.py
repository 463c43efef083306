"""OpenBatch: records that gather to be durable together; and who is to be told what became of them."""

from __future__ import annotations

from collections import defaultdict
from typing import Protocol

from amq.errors import CorruptError
from amq.journal.format import Chunk
from amq.journal.records import Record
from amq.journal.recovery import Segment


class Confirmable(Protocol):
    """Whoever waits for a batch: a connection."""

    def confirm(self, receipt: str) -> None: ...


class OpenBatch:
    """Records that will be durable together.

    confirms    (connection, receipt, the record it stands for or None), in order; receipt "" = nobody asks
    consumed    {destination: seqs acknowledged}, gathered so that a thousand acks are one record
    """

    __slots__ = ("chunks", "confirms", "consumed", "flags", "names", "offset", "records", "segment", "size")

    def __init__(self) -> None:
        self.records: list[Record] = []
        self.chunks: list[Chunk] = []
        self.confirms: list[tuple[Confirmable, str, Record | None]] = []
        self.consumed: defaultdict[str, list[int]] = defaultdict(list)
        self.names: dict[str, None] = {}  # in order of use, so that the same calls give the same bytes
        self.size = 0
        self.flags = 0
        self.segment: Segment | None = None
        self.offset = 0  # of the first record in the segment

    def __bool__(self) -> bool:
        return bool(self.records or self.consumed or self.confirms)


class JournalOwner(Protocol):
    """Who is told what became of records."""

    def committed(self, batch: OpenBatch) -> None:
        """Durable and ours: apply the records, confirm."""

    def rejected(self, refused: list[tuple[Confirmable, str, Record | None]], records: list[Record]) -> None:
        """The disk is full: `records` are not stored and never will be; `refused` waited for them."""

    def store_full(self, full: bool) -> None:
        """The disk became full, or has room again."""

    def store_at_limit(self, reached: bool) -> None:
        """The journal came to `storeLimit`, or is below it again."""

    def failed(self, why: str, damage: CorruptError | None = None) -> None:
        """The journal cannot go on: fence. With `damage`: and stop, no other broker can do better."""
