"""OpenBatch: records that gather to be durable together, and who is to be told."""

from __future__ import annotations

from collections import defaultdict
from typing import Protocol

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
