"""Parcel: messages that go from one store to another exactly once. Spec: docs/journal-format.md."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from amq.journal.format import RECORD_BYTES, frame_record
from amq.journal.records.base import BaseRecord, S

PARCEL = 18
_LENGTH = struct.Struct("<I")
_HEAD = [str, int, str, dict, int]


class Shipping(Protocol[S]):
    """The method of a fold that this record calls."""

    def ship(self, parcel: Parcel, segment: S) -> None:
        """That parcel is the last one of its channel, or its record stands elsewhere now."""


@dataclass(frozen=True, slots=True)
class Parcel(BaseRecord):
    """Parcel `number` of `channel`. Of several records of a channel the one with the highest number counts, wherever it
    stands.

    In the store that sends, `store` is the one that gets the parcel, and `queues` are its messages, full name of their
    queue → seqs; `store` "" = the last parcel is over. In the store that gets it, the channel begins with the id of the
    store that sends, and `count` is how many messages it had, 0 = it was closed before it came, and never will.
    """

    kinds = (PARCEL,)
    type_name = "parcel"
    channel: str
    number: int
    store: str = ""
    queues: Mapping[str, Sequence[int]] = field(default_factory=dict)
    count: int = 0

    def body(self) -> bytes:
        counts = {name: len(seqs) for name, seqs in self.queues.items()}
        head = json.dumps([self.channel, self.number, self.store, counts, self.count]).encode()
        seqs = [seq for each in self.queues.values() for seq in each]
        return _LENGTH.pack(len(head)) + head + struct.pack(f"<{len(seqs)}Q", *seqs)

    def encode(self, _: dict[str, int], /) -> bytes:
        return frame_record(PARCEL, self.body())

    @classmethod
    def decode(cls, body: bytes, *_: object) -> Parcel:
        (length,) = _LENGTH.unpack_from(body)
        found = json.loads(body[_LENGTH.size : _LENGTH.size + length])
        if not isinstance(found, list) or [type(each) for each in found] != _HEAD:
            raise ValueError("not a parcel: [channel, number, store, queues, count]")
        channel, number, store, counts, count = found
        if not all(type(each) is int and each >= 0 for each in counts.values()):
            raise ValueError("the queues of a parcel are an object, name to number of messages")
        seqs = struct.unpack(f"<{sum(counts.values())}Q", body[_LENGTH.size + length :])
        queues, at = {}, 0
        for name, many in counts.items():
            queues[name] = list(seqs[at : at + many])
            at += many
        return cls(channel, number, store, queues, count)

    def record_bytes(self) -> int:
        return RECORD_BYTES + len(self.body())

    def apply(self, fold: Shipping[S], segment: S, /) -> None:
        fold.ship(self, segment)

    def facts(self) -> dict[str, Any]:
        queues = {name: list(seqs) for name, seqs in self.queues.items()}
        return {
            "channel": self.channel,
            "number": self.number,
            "store": self.store,
            "queues": queues,
            "count": self.count,
        }
