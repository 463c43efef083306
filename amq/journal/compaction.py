"""When the journal is compacted: the rule that the broker follows and `amq journal compact --dry-run` foretells.

Invariant that it keeps: segment files take at most twice what lives in them and one segment. Proof and measure:
docs/journal-format.md "Giving space back".
"""

from __future__ import annotations

from amq.journal.journal import PREPARE_AT
from amq.journal.segment import RESERVE_STEPS

LIVE_FACTOR = 2  # the journal may be so many times as large as what lives in it,
LIVE_FACTOR_AT_LIMIT = 1.5  # (or so many, where producers wait for the room: at `storeLimit`)
SLACK_SEGMENTS = 1  # and so many segments more.
UNDER_WAY = 5 / 16  # of a segment: what dead files take that are not unlinked yet, and copies that are on their way
# Bytes copied for each byte by which traffic brings the journal nearer to its limit. From 2 on the limit is kept; more
# means to begin later, to copy less in all, and more at a time.
COPY_RATE = 8


def headroom_bytes(
    live: int, stored: int, oldest_live: int, segment_size: int, live_factor: float = LIVE_FACTOR
) -> int:
    """How much garbage may still come. `live` bytes are needed of the `stored` ones, `oldest_live` of them in the
    segment that is copied next: it goes only when all of them stand twice. The next segment is there when the newest
    one is filled up to PREPARE_AT; both have a step of space set aside.
    """
    slack = (SLACK_SEGMENTS - 1 + PREPARE_AT - 2 / RESERVE_STEPS - UNDER_WAY) * segment_size
    return int(live_factor * live + slack) - stored - oldest_live


def is_due(closed_live: int, headroom: int) -> bool:
    """Must live records be copied? `closed_live` = bytes of those in all segments but the newest. If all of them must
    be copied before anything is freed, that has to be done when the headroom is used up.
    """
    return closed_live > COPY_RATE * max(headroom, 0)
