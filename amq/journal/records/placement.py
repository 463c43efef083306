"""ObeyedTable: the table of a cluster that this store obeys. Spec: docs/journal-format.md."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Protocol

from amq.journal.format import RECORD_BYTES, frame_record
from amq.journal.records.base import BaseRecord, S

PLACED = 17


class Placing(Protocol[S]):
    """The method of a fold that this record calls."""

    def obey(self, placed: ObeyedTable, segment: S) -> None:
        """The store obeys that table, or its record stands elsewhere now."""


@dataclass(frozen=True, slots=True)
class ObeyedTable(BaseRecord):
    """The store is `store` of the cluster with the id `cluster`, and obeys its table `number`. Of several records the
    one with the highest number counts, wherever it stands.

    placement   the table, as `amq.cluster.placement` reads it; readers of the journal keep it as it is
    """

    kinds = (PLACED,)
    type_name = "placed"
    cluster: str
    store: str
    number: int
    placement: dict[str, Any]

    def body(self) -> bytes:
        return json.dumps([self.cluster, self.store, self.number, self.placement]).encode()

    def encode(self, _: dict[str, int], /) -> bytes:
        return frame_record(PLACED, self.body())

    @classmethod
    def decode(cls, body: bytes, *_: object) -> ObeyedTable:
        found = json.loads(body)
        if not isinstance(found, list) or [type(each) for each in found] != [str, str, int, dict]:
            raise ValueError("not a table of a cluster: [cluster, store, number, placement]")
        return cls(*found)

    def record_bytes(self) -> int:
        return RECORD_BYTES + len(self.body())

    def apply(self, fold: Placing[S], segment: S, /) -> None:
        fold.obey(self, segment)

    def facts(self) -> dict[str, Any]:
        return {"cluster": self.cluster, "store": self.store, "number": self.number, "placement": self.placement}
