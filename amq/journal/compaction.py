"""When the journal is compacted: the rule that the broker follows and `amq journal compact --dry-run` foretells.

Invariant that it keeps: segment files take at most twice what lives in them and one segment. Proof and measure:
docs/journal-format.md "Giving space back".
"""

from __future__ import annotations

from collections.abc import Container, Iterable

from amq.journal.live import Segment
from amq.journal.segment import PREPARE_AT
from amq.store.segment_log import RESERVE_STEPS

LIVE_FACTOR = 2  # the journal may be this many times as large as what lives in it,
LIVE_FACTOR_AT_LIMIT = 1.5  # (or so many, where producers wait for the room: at `storeLimit`)
SLACK_SEGMENTS = 1  # and this many segments more.
UNDER_WAY = 3 / 4  # of a segment: what dead files take that are not unlinked yet, and copies that are on their way
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


def size_of(segment: Segment) -> int:
    """Bytes that its file takes."""
    return segment.file_bytes or segment.end


def needed_bytes(segment: Segment) -> int:
    """Bytes of it that a new master needs: messages that have not left, remembered ids."""
    return segment.live_bytes + segment.id_bytes


def doomed(closed: Iterable[Segment], gain_min: float = 0, pinned: Container[int] = ()) -> list[Segment]:
    """Those of the `closed` segments, oldest first, that may go: no message lives in them, their code is not in
    `pinned`, and they speak of no message of an older one that stays. Together, or else each, they take `gain_min`
    times what the ids take that must be written again.
    """
    closed = list(closed)
    found = _dead(closed, 0, pinned)
    worth = sum(map(size_of, found)) >= gain_min * sum(segment.id_bytes for segment in found)
    return found if worth else _dead(closed, gain_min, pinned)


def _dead(closed: list[Segment], gain_min: float, pinned: Container[int]) -> list[Segment]:
    found: list[Segment] = []
    stay: set[int] = set()
    for segment in closed:
        is_needed = segment.live or segment.code in pinned
        if is_needed or size_of(segment) < gain_min * segment.id_bytes or not stay.isdisjoint(segment.refers):
            stay.add(segment.code)
        else:
            found.append(segment)
    return found


def source(closed: Iterable[Segment], besides: Container[int], factor: float = LIVE_FACTOR) -> Segment | None:
    """The segment whose messages are copied next, but for those whose code is in `besides`: the one of which least
    lives, of those that then go, where its file is `factor` times as large or more. Where such a one would stay,
    because it refers to others: the oldest of these, which refers to none. None = no file is larger than it may be.
    """
    best = root = None
    least = 1 / factor
    roots: dict[int, Segment] = {}  # of those that stay, by code: the oldest that keeps them, perhaps themselves
    for segment in closed:
        keepers = [roots[code] for code in segment.refers if code in roots]
        if not segment.live and not keepers:
            continue
        first = roots[segment.code] = min(keepers, key=_code, default=segment)
        share = needed_bytes(segment) / size_of(segment)
        if first.code in besides or share >= 1 / factor:
            continue
        if keepers:
            root = root or first
        elif share < least:
            best, least = segment, share
    return best or root


def _code(segment: Segment) -> int:
    return segment.code
