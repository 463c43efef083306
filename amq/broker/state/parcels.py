"""The last parcel of each channel to and from other stores, as the journal says, and where its record stands.

Invariants: of a channel the parcel with the highest number counts, so that no record which is written again, and none
that a crash brings back, undoes a later one. The segment of a record goes only when that was written again. There are
as many channels as destinations in other stores to which this one sends, or which send here; and one for each store to
or from which destinations move.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from amq.journal.live import Segment
from amq.journal.records import Parcel

MOVES = "moves"  # the channel of what moves to other stores


class Parcels(dict[str, tuple[Parcel, Segment]]):
    """Channel → its last parcel, and the segment in which that stands."""

    def last(self, channel: str) -> Parcel | None:
        """None = there never was one."""
        found = self.get(channel)
        return found[0] if found is not None else None

    def put(self, parcel: Parcel, segment: Segment) -> None:
        """It is the last one of its channel, unless a later one is here."""
        before = self.get(parcel.channel)
        if before is not None:
            if before[0].number > parcel.number:
                return
            before[1].id_bytes -= before[0].record_bytes()
        self[parcel.channel] = parcel, segment
        segment.id_bytes += parcel.record_bytes()

    def standing_in(self, codes: AbstractSet[int]) -> list[Parcel]:
        """To be written again, as the segments of these `codes` go."""
        return [parcel for parcel, segment in self.values() if segment.code in codes]
