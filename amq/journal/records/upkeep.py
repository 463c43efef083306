"""Upkeep: what the journal says of itself. Names of destinations, the segment before, the segments that count no more.
Spec: docs/journal-format.md."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from amq.journal.format import frame_record
from amq.journal.records.base import BaseRecord

DESTINATION, TRIMMED, PREVIOUS = 1, 8, 9
DESTINATION_HEAD = struct.Struct("<IB")
_TRIMMED = struct.Struct("<QQ")
_KEPT = struct.Struct("<QQQ")
_PREVIOUS = struct.Struct("<Q")
Key = tuple[int, int]  # of a segment: (epoch, number)


class Trimming(Protocol):
    """The methods of a fold that these records call."""

    def trim(self, mark: Trimmed) -> None:
        """The segments that `mark` gives up count no more."""


class Destination(BaseRecord):
    """From here on destination number `id` is called `name` in this segment."""

    kinds = (DESTINATION,)
    type_name = "destination"
    __slots__ = ("id", "name")

    def __init__(self, id: int, name: str) -> None:
        self.id = id
        self.name = name

    def encode(self, _: dict[str, int], /) -> bytes:
        return frame_record(DESTINATION, DESTINATION_HEAD.pack(self.id, 0) + self.name.encode())

    @classmethod
    def decode(cls, body: bytes, names: dict[int, str], _: int, /) -> Destination:
        number, _ = DESTINATION_HEAD.unpack_from(body)
        name = names[number] = body[DESTINATION_HEAD.size :].decode()
        return cls(number, name)

    def apply(self, _fold: object, _segment: object, /) -> None:
        """It speaks to readers of its segment only."""

    def facts(self) -> dict[str, Any]:
        return {"id": self.id, "destination": self.name}


@dataclass(frozen=True, slots=True)
class Trimmed(BaseRecord):
    """Of the segments up to and including (epoch, number) only `kept` are needed: all others may be gone, and count no
    more. The newest mark says all that those before it said.

    kept   {(epoch, number): bytes that count}, of segments up to there
    """

    kinds = (TRIMMED,)
    type_name = "trimmed"
    epoch: int = 0
    number: int = 0
    kept: Mapping[Key, int] = field(default_factory=dict)

    @property
    def through(self) -> Key:
        return self.epoch, self.number

    def __contains__(self, key: Key) -> bool:
        """Does the segment of that (epoch, number) count no more?"""
        return key <= (self.epoch, self.number) and key not in self.kept

    def newest(self, other: Trimmed) -> Trimmed:
        """That of two marks of one journal which was made later."""
        later = (other.through, -len(other.kept)) > (self.through, -len(self.kept))
        return other if later else self

    def encode(self, _: dict[str, int], /) -> bytes:
        kept = (_KEPT.pack(*key, end) for key, end in self.kept.items())
        return frame_record(TRIMMED, b"".join((_TRIMMED.pack(self.epoch, self.number), *kept)))

    @classmethod
    def decode(cls, body: bytes, *_: object) -> Trimmed:
        kept = {(epoch, number): end for epoch, number, end in _KEPT.iter_unpack(body[_TRIMMED.size :])}
        epoch, number = _TRIMMED.unpack_from(body)
        return cls(epoch, number, kept)

    def apply(self, fold: Trimming, _: object, /) -> None:
        fold.trim(self)

    def facts(self) -> dict[str, Any]:
        kept = [[*key, end] for key, end in self.kept.items()]
        return {"epoch": self.epoch, "number": self.number, "kept": kept}


class Previous(BaseRecord):
    """First record of a segment: the segment before it in this epoch is valid up to `end` bytes (0 = there is none)."""

    kinds = (PREVIOUS,)
    type_name = "previous"
    __slots__ = ("end",)

    def __init__(self, end: int) -> None:
        self.end = end

    def encode(self, _: dict[str, int], /) -> bytes:
        return frame_record(PREVIOUS, _PREVIOUS.pack(self.end))

    @classmethod
    def decode(cls, body: bytes, *_: object) -> Previous:
        return cls(*_PREVIOUS.unpack(body))

    def apply(self, _fold: object, _segment: object, /) -> None:
        """It speaks to readers of the segment before."""

    def facts(self) -> dict[str, Any]:
        return {"end": self.end}
