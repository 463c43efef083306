"""Groups: records that take effect together. Spec: docs/journal-format.md."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator
from itertools import accumulate
from typing import Any, NamedTuple, Protocol

from amq.core.message import LARGE_BODY_BYTES, Message
from amq.core.ownership import given, owner_of
from amq.journal.format import RECORD_BYTES, Chunk, LargeRecord, frame_record
from amq.journal.live import Segment
from amq.journal.records.base import BaseRecord, S
from amq.journal.records.record import (
    Record,
    describe,
    destinations_of,
    encode_record,
    messages_in,
    record_bytes,
    takes_space,
)
from amq.journal.records.settlement import Redelivered

GROUP = 5
GROUP_HEAD = struct.Struct("<QI")
LATE_RECORDS = 2000  # a record of more messages takes effect in slices; the thread that writes it encodes a group


class Grouping(Protocol[S]):
    """The methods of a fold that a group calls."""

    def apply(self, record: Record, segment: S) -> None:
        """Let a record of it take effect."""

    def end_group(self, group: Group, segment: S) -> None:
        """All of its records have taken effect."""


class Copying(Protocol[S]):
    """The method of the state that copies call."""

    def copied(self, copies: Copies, segment: S) -> None:
        """Those messages are in `segment` now."""


class Measured(NamedTuple):
    """Facts of the first records of a group before it is encoded: how many bytes each takes, and the names of all
    destinations that they name."""

    sizes: array[int]
    names: dict[str, None]


class Group(BaseRecord):
    """Records that happen together or not at all: a transaction, a move to the dead-letter queue.

    `outcome_id` names the commit so that a client can ask for it later, "" = nobody will; `seq` is then its age.
    `origin` is what a live broker made the group of, None in a replay; it is never written.
    """

    kinds = (GROUP,)
    type_name = "group"
    __slots__ = ("measured", "origin", "outcome_id", "places", "records", "seq")

    def __init__(
        self,
        records: list[Record],
        outcome_id: str = "",
        seq: int = 0,
        origin: object = None,
        measured: Measured | None = None,
    ) -> None:
        self.records = records
        self.measured = measured or Measured(array("Q"), {})
        self.outcome_id = outcome_id
        self.seq = seq
        self.origin = origin
        self.places: list[tuple[int, int]] = []  # of each record: bytes from the beginning of the group's, its size

    def encode(self, ids: dict[str, int], /) -> Chunk:
        outcome = self.outcome_id.encode()
        parts: list[Chunk] = [GROUP_HEAD.pack(self.seq, len(outcome)), outcome]
        offset = RECORD_BYTES + GROUP_HEAD.size + len(outcome)
        self.places = []
        if self.is_larger(LATE_RECORDS):
            return self._encode_late(ids, parts)
        for record in self.records:
            parts.append(encode_record(record, ids))
            self.places.append((offset, len(parts[-1])))
            offset += len(parts[-1])
        if offset > LARGE_BODY_BYTES:
            return LargeRecord(GROUP, parts)
        return frame_record(GROUP, b"".join(parts))  # type: ignore[arg-type]

    def _encode_late(self, ids: dict[str, int], head: list[Chunk]) -> LargeRecord:
        """As long as its bytes are is known now; most of them are made when they are written, not on the event loop."""
        records: list[Record | Chunk] = [*self.records]
        sizes = array("Q", self.measured.sizes)
        for at in range(len(sizes), len(records)):
            record = self.records[at]
            if isinstance(record, Message) or record.takes_space():
                sizes.append(record_bytes(record))
            else:
                chunk = records[at] = encode_record(record, ids)
                sizes.append(len(chunk))
        begin = RECORD_BYTES + sum(map(len, head))
        self.places = list(zip(accumulate(sizes, initial=begin), sizes, strict=False))

        def make() -> Iterator[Chunk]:
            yield from head
            for part in records:
                yield part if isinstance(part, bytes | LargeRecord) else encode_record(part, ids)

        return LargeRecord(GROUP, make, begin + sum(sizes))

    def place(self, offset: int, _: int) -> None:
        self.place_parts(offset)

    def place_parts(self, offset: int, begin: int = 0, end: int | None = None) -> None:
        """The group is at `offset` of its segment: so its records, of which these are given, are there and
        behind."""
        for record, (start, size) in zip(self.records[begin:end], self.places[begin:end], strict=True):
            if isinstance(record, Message):
                record.offset, record.size = offset + start, size
            else:
                record.place(offset + start, size)

    def apply(self, fold: Grouping[S], segment: S, /) -> None:
        for record in self.records:
            fold.apply(record, segment)
        fold.end_group(self, segment)

    def is_larger(self, count: int) -> bool:
        others = [part for part in self.records if part.__class__ is not Message]
        return len(self.records) > count or len(self.records) - len(others) + sum(map(messages_in, others)) > count

    def destinations(self) -> dict[str, None]:
        parts = self.records[len(self.measured.sizes) :]
        plain = [part.destination for part in parts if part.__class__ is Message]
        return self.measured.names | (dict.fromkeys(plain) if len(plain) == len(parts) else destinations_of(parts))

    def takes_space(self) -> bool:
        return any(map(takes_space, self.records))

    def describe(self, bodies: bool = False) -> dict[str, Any]:
        records = [describe(part, bodies) for part in self.records]
        user = owner_of(self.outcome_id)
        whose = {"outcome_id_user": user} if user else {}
        return {"type": self.type_name, "outcome_id": given(self.outcome_id), **whose, "records": records}


class Copies(BaseRecord):
    """Messages that compaction copies forward, written as a group, their bytes as they are in segment `source`.

    destinations  names
    records       whole framed records, in which a destination has the number that this journal gives it
    redelivered   how often some of them were delivered
    moves         {destination: (seq, bytes from the first record of the group to this one)}
    ids           (destination, producer-given id, seq) of those that have one
    shared        (bytes from the first record of the group, size, queues with their seqs) of those that several hold
    messages, size  how many messages, and bytes of `records`
    offset        of the group in its segment, once it is stored
    """

    type_name = "group"  # as the one that is read
    __slots__ = ("ids", "messages", "moves", "offset", "records", "redelivered", "shared", "size", "source")

    def __init__(self, source: Segment) -> None:
        self.source = source
        self.records: list[bytes | memoryview] = []
        self.redelivered: list[Redelivered] = []
        self.moves: dict[str, list[tuple[int, int]]] = {}
        self.ids: list[tuple[str, str, int]] = []
        self.shared: list[tuple[int, int, list[tuple[str, int]]]] = []
        self.messages = 0
        self.size = 0
        self.offset = 0

    @property
    def first(self) -> int:
        """Where the first record stands, once the group is stored."""
        return self.offset + RECORD_BYTES + GROUP_HEAD.size

    def encode(self, ids: dict[str, int], /) -> LargeRecord:
        counts = [each.encode(ids) for each in self.redelivered]
        return LargeRecord(GROUP, [GROUP_HEAD.pack(0, 0), *self.records, *counts])  # type: ignore[list-item]

    def place(self, offset: int, _: int) -> None:
        self.offset = offset

    def apply(self, fold: Copying[S], segment: S, /) -> None:
        fold.copied(self, segment)

    def destinations(self) -> dict[str, None]:
        return dict.fromkeys(self.moves) | dict.fromkeys(name for _, _, held in self.shared for name, _ in held)

    def takes_space(self) -> bool:
        return True
