"""Trimmer: gives segments back. The oldest segment goes when nothing in it is needed any more; what little keeps it is
copied forward, so that the journal stays within twice the live data and a few segments.

Only ever from the oldest on: an acknowledgement is then never deleted before the message it speaks of. What a deletion
needs is in the journal before the trim mark, and the mark is committed (durable, lease valid) before the file goes:
rule 8 of the safety argument.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from amq.journal.journal import Journal
from amq.journal.records import Duplicates, Group, Outcomes, Record, Redelivered
from amq.journal.recovery import Segment
from amq.message import Message

if TYPE_CHECKING:
    from amq.broker.broker import Broker

COPY_BYTES = 256 << 10  # copied forward with one batch, so that traffic hardly notices
SLACK_SEGMENTS = 2
# Segments are trimmed when they take so many times the space of the ids that must be copied out of them. Such copies
# fill segments too, which hold no message: where they alone did so the broker would copy for ever.
GAIN_MIN = 4
ID_BYTES = 20  # what an id takes beside its characters: its seq, quotes, brackets
COPY = object()  # origin of a group that copies messages forward


class Trimmer:
    """Call `step` after each committed batch."""

    def __init__(self, broker: Broker, journal: Journal) -> None:
        self._broker = broker
        self._journal = journal
        self._marked: Segment | None = None  # the trim mark on its way
        self._copying: Segment | None = None
        self._left: list[Message] = []  # of it, newest first
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
        """The journal is larger than twice what is live (bodies and their overhead in memory stand for it)."""
        stored = sum(segment.end for segment in self._journal.segments)
        slack = SLACK_SEGMENTS * self._broker.config.journal_segment_size_bytes
        return stored > 2 * self._broker.memory_bytes + slack and not self._journal.full

    def _copy(self, segment: Segment) -> None:
        """Append the next live messages of `segment` again; `Broker.apply` then counts them where they stand now."""
        broker = self._broker
        if self._copying is not segment:
            self._copying = segment
            stored = (each for queue in broker.queues.values() for each in queue.messages.values())
            self._left = [message for message in stored if message.segment is segment]
            self._left.sort(key=lambda message: message.seq, reverse=True)
        leaving = self._journal.leaving()  # a copy behind its acknowledgement would undo it
        records: list[Record] = []
        size = 0
        while self._left and size < COPY_BYTES:
            message = self._left.pop()
            queue = broker.queues.get(message.destination)
            if message.segment is not segment or message.seq in leaving:
                continue
            if queue is None or queue.messages.get(message.seq) is not message:
                continue
            records.append(message)
            size += len(message.body)
            if message.seq in queue.redelivered:
                records.append(Redelivered(queue.name, [(message.seq, *queue.redelivered[message.seq])]))
        if records:
            self._journal.append_record(Group(records, origin=COPY))
        if not self._left:
            self._copying = None
