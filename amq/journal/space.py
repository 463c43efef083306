"""Room for the journal: on the disk, and below `storeLimit`.

Both keep some back for acknowledgements, which give room. On the disk that is a separate reserve. Below
`storeLimit` some room is kept free, also for copies of what keeps old segments, so that a store at its limit can
always be trimmed.
"""

from __future__ import annotations

from collections.abc import Iterable

from amq.config.store_options import StoreOptions
from amq.journal.live import Segment
from amq.store.segment_log import SegmentLog

HEADROOM_SEGMENTS = 4  # one to write, one made ahead, one for copies, one for acknowledgements
GO_ON_SHARE = 0.9  # of the limit of producers: they go on when less is taken


class StoreLimit:
    """`limit_bytes` 0 = none. `reached` = producers must not store any more."""

    def __init__(self, limit_bytes: int, segment_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self._segment_bytes = segment_bytes
        self.reached = False

    def check(self, segments: Iterable[Segment]) -> bool:
        """Look again, after segments came or went. True where `reached` changed."""
        taken = sum(segment.file_bytes or segment.end for segment in segments) if self.limit_bytes else 0
        most = self.limit_bytes - HEADROOM_SEGMENTS * self._segment_bytes
        before = self.reached
        self.reached = bool(self.limit_bytes) and taken > (most * GO_ON_SHARE if before else most)
        return self.reached is not before


def measure(log: SegmentLog, config: StoreOptions, reserved: bool) -> tuple[bool, bool]:
    """(there is room for more than acknowledgements, the reserve is there) of `log`. Makes the
    reserve where there is room for it, unless it is there (`reserved`). Where nobody can tell how much room there is,
    there is room, until a write finds none. Raises OSError."""
    free, floor = log.free_bytes(), config.store_free_floor_bytes
    wanted = config.journal_reserve_bytes
    if not reserved and (free is None or free >= floor + wanted):
        log.set_aside(wanted)
        reserved = True
    return free is None or free >= floor, reserved
