"""The table of the cluster that the store obeys, as the journal says, and where its record stands.

Invariants: the table with the highest number counts, so that no record which is written again, and none that a crash
brings back, puts an older one in force. The segment of the record goes only when that was written again.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from amq.journal.live import Segment
from amq.journal.records import ObeyedTable


class Obeyed:
    """`record` = the table in force, None = the store is in no cluster. `segment` has it."""

    record: ObeyedTable | None = None
    segment: Segment | None = None

    def apply(self, record: ObeyedTable, segment: Segment) -> bool:
        """The store obeys that table. False where it obeys a newer one."""
        before = self.record
        if before is not None and before.number > record.number:
            return False
        if before is not None and self.segment is not None:
            self.segment.id_bytes -= before.record_bytes()
        self.record, self.segment = record, segment
        segment.id_bytes += record.record_bytes()
        return True

    def row(self) -> list[object]:
        """It and its place, for a checkpoint; empty = there is no table."""
        record, segment = self.record, self.segment
        if record is None or segment is None:
            return []
        return [record.cluster, record.store, record.number, record.placement, segment.code]

    def standing_in(self, codes: AbstractSet[int]) -> list[ObeyedTable]:
        """To be written again, as the segments of these `codes` go."""
        there = self.record is not None and self.segment is not None and self.segment.code in codes
        return [self.record] if there and self.record is not None else []
