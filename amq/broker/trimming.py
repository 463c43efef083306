"""Trimmer: gives segments back. The oldest segment goes when nothing in it is needed any more; what little keeps it is
copied forward, so that the journal stays within twice the live data and a few segments.

Only ever from the oldest on: an acknowledgement is then never deleted before the message it speaks of. What a deletion
needs is in the journal before the trim mark, and the mark is committed (durable, lease valid) before the file goes:
rule 8 of the safety argument.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from amq.broker.backlog import Place
from amq.broker.state import COPY
from amq.journal.journal import Journal
from amq.journal.reader import Scan
from amq.journal.records import Duplicates, Group, Outcomes, Record, Redelivered
from amq.journal.recovery import Segment
from amq.message import LARGE_BODY_BYTES, Message

if TYPE_CHECKING:
    from amq.broker.broker import Broker

COPY_BYTES = 256 << 10  # copied forward with one batch, so that traffic hardly notices
SCAN_BYTES = 256 << 10  # looked at for something to copy
SLACK_SEGMENTS = 2
# Segments are trimmed when they take so many times the space of the ids that must be copied out of them. Such copies
# fill segments too, which hold no message: where they alone did so the broker would copy for ever.
GAIN_MIN = 4
ID_BYTES = 20  # what an id takes beside its characters: its seq, quotes, brackets


class Trimmer:
    """Call `step` after each committed batch."""

    def __init__(self, broker: Broker, journal: Journal) -> None:
        self._broker = broker
        self._journal = journal
        self._marked: Segment | None = None  # the trim mark on its way
        self._copying: Segment | None = None
        self._scan: Scan | None = None
        self._left: list[Message] = []  # of the piece of it that was looked at, newest first
        self._large: Group | None = None  # the last large copy
        self._reading = False
        self._segments_seen = 0
        self._gain_bytes_min = 0  # a trim that gives back less is not worth while

    def trimmed(self) -> None:
        """The trim mark is committed."""
        self._marked = None

    def step(self) -> None:
        segments = self._journal.segments
        if self._marked is not None or len(segments) < 2:
            return
        if not segments[0].live:
            self._trim()
        elif self._copying is segments[0] or len(segments) != self._segments_seen:
            self._segments_seen = len(segments)
            if self._copying is segments[0] or self._is_sparse():
                self._copy(segments[0])

    def _trim(self) -> None:
        """Mark every segment before the first that holds something live, but never the newest."""
        broker, journal = self._broker, self._journal
        through = journal.segments[0]
        gain_bytes = 0
        for segment in list(journal.segments)[:-1]:
            if segment.live:
                break
            through = segment
            gain_bytes += max(segment.end, broker.config.journal_segment_size_bytes)
        if gain_bytes < self._gain_bytes_min:
            return
        copies: list[Duplicates | Outcomes] = []
        for queue in broker.queues.values():
            if ids := queue.duplicates.standing_in(through):
                copies.append(Duplicates(queue.name, ids))
        if outcomes := broker.outcomes.standing_in(through):
            copies.append(Outcomes(outcomes))
        self._gain_bytes_min = GAIN_MIN * sum(len(id) + ID_BYTES for copy in copies for id, _ in copy.ids)
        if gain_bytes < self._gain_bytes_min:
            return
        self._gain_bytes_min = 0
        for copy in copies:
            journal.append_record(copy)
        self._marked = through
        journal.trim(through)

    def _is_sparse(self) -> bool:
        """The journal is larger than twice what is live."""
        segments = self._journal.segments
        slack = SLACK_SEGMENTS * self._broker.config.journal_segment_size_bytes
        live = sum(segment.live_bytes for segment in segments)
        return sum(segment.end for segment in segments) > 2 * live + slack

    def _copy(self, segment: Segment) -> None:
        """Go on copying forward what lives in `segment`: look at the next piece of it, off the event loop."""
        if self._reading or self._journal.full:
            return
        if self._large is not None:
            if self._journal.is_pending(self._large):
                return  # one large body in memory at a time
            self._large = None
        if self._copying is not segment:
            self._copying, self._scan, self._left = segment, self._journal.reader.scan(segment), []
        assert self._scan is not None
        self._reading = True
        if self._left:
            self._read_next()
        else:
            self._journal.reader.scan_on(self._scan, SCAN_BYTES, self._scanned)

    def _scanned(self, messages: list[Message] | None, error: Exception | None) -> None:
        """What of that piece lives still, and there?"""
        self._reading = False
        if error is not None:
            self._fail(error)
        elif messages is None:
            self._copying = self._scan = None  # all of it is copied; what is on its way will have left it
        else:
            self._left = [m for m in reversed(messages) if self._lives(m)]
            self.step()

    def _fail(self, error: Exception) -> None:
        if isinstance(error, FileNotFoundError) and self._copying is not self._journal.segments[0]:
            self._copying = self._scan = None  # nothing lived in it any more, and it was deleted
            self._left = []
        else:
            self._journal.fail_reading(error)

    def _lives(self, found: Message) -> bool:
        """Does the message live, and is this where it stands?"""
        queue = self._broker.queues.get(found.destination)
        if queue is None or self._copying is None:
            return False
        resident = queue.messages.get(found.seq)
        if resident is not None:
            return resident.segment is self._copying and resident.offset == found.offset
        place = queue.find(found.seq)
        return place is not None and (place.segment, place.offset) == (self._copying.code, found.offset)

    def _read_next(self) -> None:
        """Bring the bodies of the next few into memory."""
        assert self._copying is not None
        code, wanted, size = self._copying.code, list[tuple[Place, str]](), 0
        while self._left and size < COPY_BYTES:
            found = self._left.pop()
            wanted.append((Place(found.seq, code, found.offset, found.size), found.destination))
            size += found.size
        self._journal.reader.read(wanted, self._read)

    def _read(self, messages: list[Message] | None, error: Exception | None) -> None:
        """Append the copies; `Broker.apply` then counts them where they stand now."""
        self._reading = False
        if error is not None:
            self._fail(error)
            return
        assert messages is not None
        leaving = self._journal.leaving()  # a copy behind its acknowledgement would undo it
        records: list[Record] = []
        for message in messages:
            if message.seq in leaving or not self._lives(message):
                continue
            records.append(message)
            counts = self._broker.queues[message.destination].redelivered.get(message.seq)
            if counts:
                records.append(Redelivered(message.destination, [(message.seq, *counts)]))
        if records:
            group = Group(records, origin=COPY)
            self._journal.append_record(group)
            if any(message.size > LARGE_BODY_BYTES for message in messages):
                self._large = group
            self._broker.wake()
        else:
            self.step()
