"""The durable subscriptions that there are, as the journal says, and where their records are in it.

Invariants: the segment in which the record of one stands goes only when that was written again. A record that is
written again is the newest, also where that is on its way still: behind it, an older one would take its place.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from amq.journal.live import Segment
from amq.journal.records import Trimmed
from amq.journal.records.subscription import Subscribed


class SubscribedTable(dict[str, Subscribed]):
    """Queue → the subscription whose messages wait there. `Segment.id_bytes` counts the bytes of the records; `coming`
    are those on their way that take the place of one."""

    def __init__(self) -> None:
        super().__init__()
        self.coming: dict[str, Subscribed] = {}

    def hold(self, record: Subscribed, segment: Segment) -> None:
        """The record of that subscription is in `segment`."""
        record.segment = segment
        segment.id_bytes += record.record_bytes()
        self[record.queue] = record

    def apply(self, record: Subscribed, segment: Segment) -> None:
        """A subscription is there, stands elsewhere now, or has ended."""
        before = self.pop(record.queue, None)
        if self.coming.get(record.queue) is record or not record.definition:
            self.coming.pop(record.queue, None)
        if before is not None and before.segment is not None:
            before.segment.id_bytes -= before.record_bytes()
            record.is_ending = before.is_ending
            if before.segment is not segment:
                segment.refers.add(before.segment.code)
        if record.definition:
            self.hold(record, segment)

    def settle(self, trimmed: Trimmed) -> None:
        """Forget those whose end went with a trimmed segment, while a crash kept this one."""
        for name in [name for name, each in self.items() if each.segment is not None and each.segment.key in trimmed]:
            del self[name]

    def is_ending(self, queue: str) -> bool:
        """Is the word of its end on its way?"""
        return queue in self and self[queue].is_ending

    def standing_in(self, codes: AbstractSet[int]) -> list[Subscribed]:
        """To be written again, as the segments of these `codes` go."""
        return [
            Subscribed(each.queue, self.coming.get(each.queue, each).definition)
            for each in self.values()
            if each.segment is not None and each.segment.code in codes and not each.is_ending
        ]
