"""Settlement: messages leave, come back, or move to another queue. Spec: docs/journal-format.md."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any, Protocol

from amq.core.errors import NewerFormatError
from amq.journal.format import frame_record
from amq.journal.records.base import BaseRecord, Ids, S, decode_ids

CONSUMED, REDELIVERED, MOVED = 3, 4, 11
# Why a message left its queue.
ACKED, EXPIRED, DEAD_LETTERED, PURGED, FIRED = range(5)
REASONS = ("acked", "expired", "dead-lettered", "purged", "fired")
_CONSUMED_HEAD = struct.Struct("<IBI")
_DESTINATION = struct.Struct("<I")
_COUNT = struct.Struct("<QII")
_MOVED_HEAD = struct.Struct("<III")  # source, target, how many seqs
Counts = list[tuple[int, int, int]]  # (seq, deliveries so far, of which counted as failures)


class Settling(Protocol[S]):
    """The methods of a fold that these records call."""

    def leave(self, consumed: Consumed, segment: S) -> None:
        """Those messages have left their queue for good."""

    def come_back(self, queue: str, counts: Counts, segment: S) -> None:
        """Messages of `queue` were delivered so often. A greater count that is known already stays."""

    def transfer(self, moved: Moved, segment: S) -> None:
        """Those messages are in another queue."""


class Consumed(BaseRecord):
    """Messages `seqs` have left destination `destination` for good, for `reason`."""

    kinds = (CONSUMED,)
    type_name = "consumed"
    __slots__ = ("destination", "reason", "seqs")

    def __init__(self, destination: str, reason: int, seqs: list[int]) -> None:
        self.destination = destination
        self.reason = reason
        self.seqs = seqs

    def encode(self, ids: dict[str, int], /) -> bytes:
        seqs = self.seqs
        head = _CONSUMED_HEAD.pack(ids[self.destination], self.reason, len(seqs))
        return frame_record(CONSUMED, head + struct.pack(f"<{len(seqs)}Q", *seqs))

    @classmethod
    def decode(cls, body: bytes, names: dict[int, str], _: int, /) -> Consumed:
        destination, reason, count = _CONSUMED_HEAD.unpack_from(body)
        if reason >= len(REASONS):
            raise NewerFormatError(f"reason {reason} is unknown")
        return cls(names[destination], reason, list(struct.unpack_from(f"<{count}Q", body, _CONSUMED_HEAD.size)))

    def apply(self, fold: Settling[S], segment: S, /) -> None:
        fold.leave(self, segment)

    def message_count(self) -> int:
        return len(self.seqs)

    def leaving(self) -> list[int]:
        return self.seqs

    def pieces(self, count: int) -> Iterator[Consumed]:
        for at in range(0, len(self.seqs), count):
            yield Consumed(self.destination, self.reason, self.seqs[at : at + count])

    def destinations(self) -> tuple[str]:
        return (self.destination,)

    def facts(self) -> dict[str, Any]:
        return {"destination": self.destination, "reason": REASONS[self.reason], "seqs": self.seqs}


class Redelivered(BaseRecord):
    """Messages came back unacknowledged: `counts` = (seq, deliveries so far, of which counted as failures)."""

    kinds = (REDELIVERED,)
    type_name = "redelivered"
    __slots__ = ("counts", "destination")

    def __init__(self, destination: str, counts: Counts) -> None:
        self.destination = destination
        self.counts = counts

    def encode(self, ids: dict[str, int], /) -> bytes:
        counts = b"".join(_COUNT.pack(*count) for count in self.counts)
        return frame_record(REDELIVERED, _DESTINATION.pack(ids[self.destination]) + counts)

    @classmethod
    def decode(cls, body: bytes, names: dict[int, str], _: int, /) -> Redelivered:
        destination = names[_DESTINATION.unpack_from(body)[0]]
        return cls(destination, list(_COUNT.iter_unpack(body[_DESTINATION.size :])))

    def apply(self, fold: Settling[S], segment: S, /) -> None:
        fold.come_back(self.destination, self.counts, segment)

    def message_count(self) -> int:
        return len(self.counts)

    def pieces(self, count: int) -> Iterator[Redelivered]:
        for at in range(0, len(self.counts), count):
            yield Redelivered(self.destination, self.counts[at : at + count])

    def destinations(self) -> tuple[str]:
        return (self.destination,)

    def facts(self) -> dict[str, Any]:
        names = ("seq", "deliveries", "failures")
        counts = [dict(zip(names, count, strict=True)) for count in self.counts]
        return {"destination": self.destination, "counts": counts}


class Moved(BaseRecord):
    """Messages `seqs` have left destination `source` and are in `target`: same seq, same place, same bytes.

    `ids` = (producer-given id, seq) that `target` remembers from now on.
    """

    kinds = (MOVED,)
    type_name = "moved"
    __slots__ = ("ids", "seqs", "source", "target")

    def __init__(self, source: str, target: str, seqs: list[int], ids: Ids | None = None) -> None:
        self.source = source
        self.target = target
        self.seqs = seqs
        self.ids = ids or []

    def encode(self, ids: dict[str, int], /) -> bytes:
        seqs = self.seqs
        head = _MOVED_HEAD.pack(ids[self.source], ids[self.target], len(seqs))
        tail = json.dumps(self.ids).encode() if self.ids else b""
        return frame_record(MOVED, head + struct.pack(f"<{len(seqs)}Q", *seqs) + tail)

    @classmethod
    def decode(cls, body: bytes, names: dict[int, str], _: int, /) -> Moved:
        source, target, count = _MOVED_HEAD.unpack_from(body)
        seqs = list(struct.unpack_from(f"<{count}Q", body, _MOVED_HEAD.size))
        ids = body[_MOVED_HEAD.size + 8 * count :]
        return cls(names[source], names[target], seqs, decode_ids(ids) if ids else [])

    def apply(self, fold: Settling[S], segment: S, /) -> None:
        fold.transfer(self, segment)

    def message_count(self) -> int:
        return len(self.seqs)

    def leaving(self) -> list[int]:
        return self.seqs

    def pieces(self, count: int) -> Iterator[Moved]:
        for at in range(0, len(self.seqs), count):
            yield Moved(self.source, self.target, self.seqs[at : at + count])
        for at in range(0, len(self.ids), count):
            yield Moved(self.source, self.target, [], self.ids[at : at + count])

    def destinations(self) -> tuple[str, str]:
        return (self.source, self.target)

    def facts(self) -> dict[str, Any]:
        return {"source": self.source, "target": self.target, "seqs": self.seqs, "ids": self.ids}
