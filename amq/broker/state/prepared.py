"""PreparedTransactions: which transactions are prepared, and which batches of pipelines are committed.

Part of the state: it changes through `State.apply` alone. The messages that a prepared transaction sent and
acknowledged stand in hidden queues (docs/journal-format.md); here is only which of them belong to which transaction.
Invariant: each record of these stands in a segment that counts; it is written again before that segment goes, and the
record of an end outlives the record that it ends.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from amq.broker.state.window import ID_BYTES
from amq.journal.follower import DivergedError
from amq.journal.live import Segment
from amq.journal.records import Group, Marker, Prepared, Record, Trimmed
from amq.xid import AnyXid


class PreparedTransactions(dict[AnyXid, tuple[Prepared, Segment]]):
    """xid → (what is prepared, where its record stands). `markers`: owner → (marker of its newest batch, where)."""

    def __init__(self) -> None:
        super().__init__()
        self.markers: dict[str, tuple[Marker, Segment]] = {}

    def put(self, prepared: Prepared, segment: Segment) -> None:
        """Prepared, or written again."""
        if (before := self.remove(prepared.xid)) is not None and before[1] is not segment:
            segment.refers.add(before[1].code)
        segment.id_bytes += prepared.record_bytes()
        self[prepared.xid] = prepared, segment

    def remove(self, xid: AnyXid) -> tuple[Prepared, Segment] | None:
        """It is over."""
        found = self.pop(xid, None)
        if found is not None:
            found[1].id_bytes -= found[0].record_bytes()
        return found

    def mark(self, marker: Marker, segment: Segment) -> None:
        """That batch is committed."""
        before = self.markers.get(marker.owner)
        if before is not None:
            if before[0].batch > marker.batch:
                return
            before[1].id_bytes -= len(marker.owner) + ID_BYTES
        segment.id_bytes += len(marker.owner) + ID_BYTES
        self.markers[marker.owner] = marker, segment

    def settle(self, trimmed: Trimmed) -> None:
        """All is read. A transaction in a segment that counts no more ended long ago, and the record of that went too.
        """
        for xid, (_, segment) in list(self.items()):
            if segment.key in trimmed:
                self.remove(xid)

    def check_places(self, there: AbstractSet[int], trimmed: Trimmed) -> None:
        """Raises DivergedError where one stands in a segment that is not there."""
        for xid, (_, segment) in self.items():
            if segment.code not in there and segment.key not in trimmed:
                raise DivergedError(f"prepared transaction {xid} stands in {segment.name}, which does not count")

    def standing_in(self, codes: AbstractSet[int], ending: AbstractSet[AnyXid]) -> list[Group]:
        """The records that must be written again when the segments of these `codes` go. Not those of `ending`, whose
        end is on its way: behind it they would be prepared for ever."""
        records: list[Record] = [
            *(each for xid, (each, segment) in self.items() if segment.code in codes and xid not in ending),
            *(marker for marker, segment in self.markers.values() if segment.code in codes),
        ]
        return [Group(records)] if records else []
