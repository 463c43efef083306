"""Ids that are remembered, written again because the segment in which they stood goes. Spec: docs/journal-format.md."""

from __future__ import annotations

import json
import struct
from typing import Any, Protocol

from amq.journal.format import RECORD_BYTES, frame_record
from amq.journal.records.base import BaseRecord, Ids, S, decode_ids

DUPLICATES, OUTCOMES = 6, 7
_DESTINATION = struct.Struct("<I")


class Remembering(Protocol[S]):
    """The methods of a fold that these records call."""

    def remember_ids(self, queue: str, ids: Ids, segment: S) -> None:
        """Producer-given ids of `queue` are in `segment` now."""

    def remember_outcomes(self, ids: Ids, segment: S) -> None:
        """So do commits that took place."""


class Duplicates(BaseRecord):
    """Producer-given ids that a destination still remembers, copied out of a segment about to be deleted.

    `ids` = (id, seq of the message that brought it).
    """

    kinds = (DUPLICATES,)
    type_name = "duplicates"
    __slots__ = ("destination", "ids")

    def __init__(self, destination: str, ids: Ids) -> None:
        self.destination = destination
        self.ids = ids

    def encode(self, ids: dict[str, int], /) -> bytes:
        return frame_record(DUPLICATES, _DESTINATION.pack(ids[self.destination]) + json.dumps(self.ids).encode())

    @classmethod
    def decode(cls, body: bytes, names: dict[int, str], _: int, /) -> Duplicates:
        return cls(names[_DESTINATION.unpack_from(body)[0]], decode_ids(body[_DESTINATION.size :]))

    def record_bytes(self) -> int:
        return RECORD_BYTES + _DESTINATION.size + len(json.dumps(self.ids))

    def apply(self, fold: Remembering[S], segment: S, /) -> None:
        fold.remember_ids(self.destination, self.ids, segment)

    def destinations(self) -> tuple[str]:
        return (self.destination,)

    def facts(self) -> dict[str, Any]:
        return {"destination": self.destination, "ids": self.ids}


class Outcomes(BaseRecord):
    """Commits that took place, copied out of a segment about to be deleted: `ids` = (outcome id, seq of its group)."""

    kinds = (OUTCOMES,)
    type_name = "outcomes"
    __slots__ = ("ids",)

    def __init__(self, ids: Ids) -> None:
        self.ids = ids

    def encode(self, _: dict[str, int], /) -> bytes:
        return frame_record(OUTCOMES, json.dumps(self.ids).encode())

    @classmethod
    def decode(cls, body: bytes, *_: object) -> Outcomes:
        return cls(decode_ids(body))

    def apply(self, fold: Remembering[S], segment: S, /) -> None:
        fold.remember_outcomes(self.ids, segment)

    def facts(self) -> dict[str, Any]:
        return {"ids": self.ids}
