"""Trimmer: gives segments back. A segment goes when nothing in it is needed any more; what keeps it is copied forward,
so that the journal stays within twice the live data and one segment.

An acknowledgement is never deleted before the message it speaks of: a segment stays as long as one that it refers to.
The records that a deletion needs are in the journal before the trim mark, and the mark is committed (durable, lease
valid) before the file goes: rule 8 of the safety argument. Copying keeps pace with the traffic that makes it necessary,
and with nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from functools import partial
from itertools import islice

from amq.broker.core import Core
from amq.broker.storage.copying import CopySource
from amq.core.errors import CorruptError
from amq.core.xid import Key
from amq.journal.compaction import (
    COPY_RATE,
    LIVE_FACTOR,
    LIVE_FACTOR_AT_LIMIT,
    doomed,
    headroom_bytes,
    is_due,
    needed_bytes,
    size_of,
    source,
)
from amq.journal.live import Segment
from amq.journal.reader import Payload
from amq.journal.records import Copies, Duplicates, Group, ObeyedTable, Outcomes, Parcel, Trimmed
from amq.journal.records.subscription import Subscribed

PIECE_BYTES = 512 << 10  # looked at, and perhaps copied, at a time: a few milliseconds of the event loop
# Copied and on their way to the journal: traffic stands behind no more than this, or what its last batch has paid for.
# They stand twice meanwhile: so no more than this share of a segment either.
PENDING_BYTES_MAX = 4 << 20
PENDING_SHARE_MAX = 1 / 8
IDLE_BYTES_PER_S = 16 << 20  # copied also where no traffic pays for it, when there is too much garbage
DEBT_BYTES_MAX = 16 << 20  # traffic may pay so much in advance
SCAN_SHARE = 8  # bytes looked at that cost as much as one that is copied
SEGMENTS_PER_STEP = 64  # looked at after a batch, on average
# Dead segments go at once when they take so many times the space of the ids that must be copied out of them. Where
# there is too much garbage, or producers wait for the room, less will do; but what is written must give room, or the
# broker would write for ever.
GAIN_MIN = 4
GAIN_MIN_DUE = 4 / 3
# At the limit of the store this share of a segment is worth whatever must be written for it: where the store holds
# little but ids, it may be all the room there is, and nobody else makes any. Each time there is less to gain.
PRESS_SHARE = 1 / 8
PRESS_EVERY_S = 1.0


class Trimmer:
    """Call `step` after each committed batch, and now and then."""

    def __init__(self, core: Core, ending: AbstractSet[Key]) -> None:
        self._core = core
        self._journal = core.journal
        self._ending = ending  # prepared transactions whose end is on its way
        self._marked = False  # a trim mark is on its way
        self._gain_bytes_min = 0.0  # a trim that gives back less is not worth while
        self._pressed = 0.0  # when all that is dead was last tried at the limit
        self._steps = 0  # without a look at the segments
        self._allowance = 0.0  # bytes that may be copied now
        self._consumed = 0  # by traffic, of the room for garbage, when we looked last
        self._looked = 0.0
        self._copied_bytes = 0
        self._pending_bytes = 0  # copied, on their way to the journal
        self._pending_bytes_max = 0.0
        self._source: CopySource | None = None  # of the copies on their way
        self._passed: set[int] = set()  # codes of segments of which all that lives is on its way, or on its way out
        # Records behind this key were written since anything came or left: to copy them again gives no room. Large
        # messages in small segments would be copied for ever.
        self._until = (0, 0)
        self._lived = (-1, -1)  # messages and bytes when we looked last
        self._reading = False
        self._is_measured = False  # the old segments, whose files were never looked at

    def _measure(self) -> None:
        self._is_measured = True
        old = [segment for segment in self._journal.segments if not segment.file_bytes]
        self._journal.reader.measure(old, partial(self._measured, old))

    def _measured(self, segments: list[Segment], sizes: list[int] | None, error: Exception | None) -> None:
        """A master that died leaves files longer than what counts in them."""
        if error is not None:
            self._journal.fail_reading(error)
            return
        assert sizes is not None
        for segment, size in zip(segments, sizes, strict=True):
            segment.file_bytes = size

    def trimmed(self) -> None:
        """The trim mark is committed."""
        self._marked = False

    def copied(self, copies: Copies) -> None:
        """They are committed."""
        self._pending_bytes -= copies.size
        self._copied_bytes += copies.size

    def rejected(self, copies: Copies) -> None:
        """They are not stored: the disk is full. The originals stay where they were."""
        self._pending_bytes -= copies.size
        self._source = None

    def step(self) -> None:
        segments = self._journal.segments
        if not self._is_measured:
            self._measure()
        self._steps += 1
        if len(segments) < 2 or not self._journal.closed() or self._steps * SEGMENTS_PER_STEP < len(segments):
            return
        self._steps = 0
        if not self._pending_bytes:
            self._passed.clear()
        pinned = self._pinned()
        going = doomed(self._closed(), GAIN_MIN_DUE, pinned)
        due = self._is_due(going)
        if going and not self._marked:
            self._trim(going if due or self._journal.at_limit else doomed(self._closed(), GAIN_MIN, pinned))
        if self._journal.at_limit and not self._marked and self._looked >= self._pressed + PRESS_EVERY_S:
            self._press()
        if due and self._allowance > 0:
            self._copy_on()

    def _press(self) -> None:
        """Give back all that is dead, where less than `GAIN_MIN_DUE` must do."""
        self._pressed = self._looked
        before, self._gain_bytes_min = self._gain_bytes_min, 0
        self._trim(doomed(self._closed()), PRESS_SHARE * self._core.config.journal_segment_size_bytes)
        if not self._marked:
            self._gain_bytes_min = before

    def _pinned(self) -> AbstractSet[int]:
        """Codes of the segments that stay for those who read them. At the limit of the store, where producers wait for
        the room, none does."""
        return frozenset() if self._journal.at_limit else self._core.pins.codes

    def _closed(self) -> Iterator[Segment]:
        """The segments that are written no more, oldest first."""
        return islice(self._journal.segments, self._journal.closed())

    # -- how much, how fast -------------------------------------------------------------------------------------------

    def _is_due(self, going: list[Segment]) -> bool:
        """Must live records be copied? Also says how many bytes of them may be, in `_allowance`. Of the segments that
        are `going` those need nothing more in which no ids stand.
        """
        live = sum(map(needed_bytes, self._closed()))
        stored = sum(map(size_of, self._closed())) - sum(size_of(segment) for segment in going if not segment.id_bytes)
        # What only pins keep goes by itself: to copy others in its place would be work for nothing.
        pinned = self._pinned()
        stored -= sum(size_of(segment) for segment in self._closed() if segment.code in pinned and not segment.live)
        closed_live = live
        for segment in islice(self._journal.segments, self._journal.closed(), None):
            live += needed_bytes(segment)
            stored += segment.end
        segments = self._journal.segments
        lives = (sum(segment.live for segment in segments), sum(segment.live_bytes for segment in segments))
        if lives != self._lived:
            self._lived, self._until = lives, segments[-1].key
        following = self._next()
        next_live = needed_bytes(following) if following is not None else 0
        size = self._core.config.journal_segment_size_bytes
        headroom = headroom_bytes(live, stored, next_live, size, self._factor())
        consumed = self._journal.bytes_written - self._copied_bytes - 2 * live
        now = self._core.clock.monotonic()
        # At the limit all that gives room is copied: one message that stays holds back all that refers to its segment.
        due = is_due(closed_live, headroom) or (self._journal.at_limit and following is not None)
        if due:
            paid = COPY_RATE * (consumed - self._consumed) + IDLE_BYTES_PER_S * min(now - self._looked, 1.0)
            self._pending_bytes_max = max(min(PENDING_BYTES_MAX, PENDING_SHARE_MAX * size), paid)
            self._allowance = max(-DEBT_BYTES_MAX, min(self._allowance + paid, live))
        else:
            self._allowance = 0
        self._consumed, self._looked = consumed, now
        return due

    # -- segments in which nothing lives ------------------------------------------------------------------------------

    def _trim(self, going: list[Segment], enough_bytes: float = math.inf) -> None:
        """Write again what is still needed of them, and mark them, if that is worth while, or gives `enough_bytes`."""
        state, journal = self._core.state, self._journal
        gain_bytes = sum(map(size_of, going))
        if not going or gain_bytes < self._gain_bytes_min:
            return
        copies: list[Duplicates | Outcomes | Subscribed | Group | ObeyedTable | Parcel] = []
        codes = {segment.code for segment in going}
        if any(segment.id_bytes for segment in going):
            for queue in state.queues.values():
                if (ids := queue.duplicates.standing_in(codes)) and not state.subscriptions.is_ending(queue.name):
                    copies.append(Duplicates(queue.name, ids))
            if outcomes := state.outcomes.standing_in(codes):
                copies.append(Outcomes(outcomes))
            copies += state.prepared.standing_in(codes, self._ending)
            copies += state.subscriptions.standing_in(codes)
            copies += state.obeyed.standing_in(codes)
            copies += state.parcels.standing_in(codes)
        through = max(state.trimmed.through, going[-1].key)
        # Files that a crash left over are given up already, though they may still be there.
        stay = [s for s in journal.segments if s.code not in codes and s.key not in state.trimmed]
        kept = {segment.key: segment.end for segment in stay if segment.key <= through}
        mark = Trimmed(*through, kept)
        cost_bytes = sum(copy.record_bytes() for copy in copies) + len(mark.encode({}))
        self._gain_bytes_min = GAIN_MIN_DUE * cost_bytes
        if gain_bytes < self._gain_bytes_min and gain_bytes - cost_bytes < enough_bytes:
            return
        self._gain_bytes_min = 0
        for copy in copies:
            journal.append_record(copy)
        self._marked = True
        journal.trim(mark)

    def _next(self) -> Segment | None:
        """The segment that is copied next."""
        found = (segment for segment in self._closed() if segment.key <= self._until)
        return source(found, self._passed | self._pinned(), self._factor())  # to copy what is pinned gives no room

    def _factor(self) -> float:
        return LIVE_FACTOR_AT_LIMIT if self._journal.at_limit else LIVE_FACTOR

    # -- what keeps segments ------------------------------------------------------------------------------------------

    def _copy_on(self) -> None:
        """Go on copying forward, oldest first: look at the next piece, off the event loop."""
        if self._reading or self._pending_bytes >= self._pending_bytes_max or self._journal.disk_full:
            return
        if self._source is None:
            found = self._next()
            if found is None:
                return
            self._source = CopySource(found, self._journal.reader.scan(found))
        self._reading = True
        self._journal.reader.scan_on(self._source.scan, PIECE_BYTES, self._scanned)

    def _scanned(self, payloads: list[Payload] | None, error: Exception | None) -> None:
        """Append copies of what lives in that piece; once they are committed it is there."""
        self._reading = False
        copying = self._source
        if copying is None:
            return  # the disk is full
        if error is not None and (copying.segment.live or not isinstance(error, FileNotFoundError)):
            self._journal.fail_reading(error)
            return
        if payloads is None or not copying.segment.live:
            self._passed.add(copying.segment.code)
            self._source = None
        else:
            try:
                self._copy(copying, payloads)
            except CorruptError as damage:
                self._journal.fail_reading(damage)
                return
        if self._allowance > 0:
            self._copy_on()

    def _copy(self, copying: CopySource, payloads: list[Payload]) -> None:
        leaving = self._journal.leaving()  # a copy behind its acknowledgement would undo it
        copies = copying.collect(payloads, self._core.state, self._journal, leaving)
        self._allowance -= sum(len(data) for _, data in payloads) / SCAN_SHARE
        if copies.messages:
            self._allowance -= copies.size
            self._pending_bytes += copies.size
            self._journal.append_record(copies)
            self._core.wake()
