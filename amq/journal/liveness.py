"""The live part of a journal: which messages, where each stands, what keeps which segment, which ids are remembered.
A fold over all records, as `State.apply` is one, that keeps no bodies.

Invariant: after all records were added, oldest first, and `settle`, the live messages are those that a new master
would have, each at the place of its last copy. Memory: about 32 bytes a live message where their seqs are dense, at
most 1 KiB where each is alone; and the ids that a broker would remember.
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from amq.core.message import SUBSCRIPTION_SCHEME, Copy, Message
from amq.core.ownership import owner_of
from amq.core.xid import Key
from amq.journal.format import RECORD, RECORD_BYTES, segment_key
from amq.journal.hidden import is_hidden
from amq.journal.records import (
    REASONS,
    Consumed,
    Fold,
    Group,
    Marker,
    Moved,
    ObeyedTable,
    Parcel,
    Prepared,
    Record,
    Resolved,
    Subscribed,
    Trimmed,
    destinations_of,
    place,
)

CHUNK_BITS = 5
CHUNK = 1 << CHUNK_BITS
_WORDS = 3  # segment and destination, offset, bytes of the record and of the body
_LOW = 0xFFFFFFFF


class At(NamedTuple):
    """Where in a segment a message stands, and which of those that are there it is."""

    seq: int
    offset: int
    size: int


class LivePlace(NamedTuple):
    """Where a live message stands: its segment and destination, offset and bytes of its record, bytes of its body."""

    segment: str
    destination: str
    offset: int
    size: int
    body_bytes: int

    def at(self, seq: int) -> At:
        """As a reader wants it, of the message `seq`."""
        return At(seq, self.offset, self.size)


@dataclass(slots=True)
class Tally:
    """Messages of one segment or destination.

    messages          stored there; copies that compaction made count in their segment only
    live              have not left their queue; where a message was copied, in the segment of its last copy
    *message_bytes, live_bytes   of their bodies
    record_bytes      of all records that are there or speak of it, with their framing
    live_record_bytes of those that hold a live message
    """

    messages: int = 0
    message_bytes: int = 0
    live: int = 0
    live_bytes: int = 0
    record_bytes: int = 0
    live_record_bytes: int = 0
    left: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REASONS, 0))

    def to_json(self) -> dict[str, Any]:
        return {
            "messages": self.messages,
            "message_bytes": self.message_bytes,
            "live": self.live,
            "live_bytes": self.live_bytes,
            "dead": self.messages - self.live,
            "dead_bytes": self.message_bytes - self.live_bytes,
            "record_bytes": self.record_bytes,
            "live_record_bytes": self.live_record_bytes,
            **{reason.replace("-", "_"): count for reason, count in self.left.items()},
        }


@dataclass(slots=True)
class Pin:
    """Live messages of one destination in one segment: the segment stays as long as they do."""

    segment: str
    destination: str
    messages: int = 0
    record_bytes: int = 0
    oldest_seq: int = 0


class RememberedIds(dict[str, tuple[int, str]]):
    """The youngest `size` ids of a destination, or commit outcomes: id → (seq, segment of its last mention). With
    `by_owner` as many of each owner."""

    def __init__(self, size: int, by_owner: bool = False) -> None:
        super().__init__()
        self._size = size
        self._by_owner = by_owner
        self._counts: Counter[str] = Counter()

    def remember(self, id: str, seq: int, segment: str) -> None:
        known = self.get(id)
        if known is not None and known[0] > seq:
            return  # an older message with the same id, from a time when it had been forgotten
        self[id] = (seq, segment)
        if known is None:
            owner = self._owner(id)
            self._counts[owner] += 1
            if self._counts[owner] > 2 * self._size:
                self.settle()

    def _owner(self, id: str) -> str:
        return owner_of(id) if self._by_owner else ""

    def settle(self) -> None:
        """By age, the youngest only."""
        kept: Counter[str] = Counter()
        youngest = []
        for id, found in sorted(self.items(), key=lambda item: item[1][0], reverse=True):
            owner = self._owner(id)
            if kept[owner] < self._size:
                kept[owner] += 1
                youngest.append((id, found))
        self._counts = kept
        self.clear()
        self.update(reversed(youngest))


class LiveIndex:
    """seq → Place, in chunks of neighbouring seqs."""

    def __init__(self) -> None:
        self._chunks: dict[int, array[int]] = {}
        self._names: list[str] = []
        self._numbers: dict[str, int] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def get(self, seq: int) -> LivePlace | None:
        chunk = self._chunks.get(seq >> CHUNK_BITS)
        if chunk is None:
            return None
        at = (seq & (CHUNK - 1)) * _WORDS
        names, offset, sizes = chunk[at], chunk[at + 1], chunk[at + 2]
        if not sizes:
            return None
        return LivePlace(self._names[names >> 32], self._names[names & _LOW], offset, sizes >> 32, sizes & _LOW)

    def __getitem__(self, seq: int) -> LivePlace:
        place = self.get(seq)
        if place is None:
            raise KeyError(seq)
        return place

    def put(self, seq: int, place: LivePlace) -> None:
        chunk = self._chunks.get(seq >> CHUNK_BITS)
        if chunk is None:  # the last word counts the messages in it
            chunk = self._chunks[seq >> CHUNK_BITS] = array("Q", bytes(8 * (CHUNK * _WORDS + 1)))
        at = (seq & (CHUNK - 1)) * _WORDS
        if not chunk[at + 2]:
            chunk[-1] += 1
            self._count += 1
        chunk[at] = self._number(place.segment) << 32 | self._number(place.destination)
        chunk[at + 1] = place.offset
        chunk[at + 2] = place.size << 32 | place.body_bytes

    def pop(self, seq: int) -> None:
        """Forget `seq`, which is there."""
        chunk = self._chunks[seq >> CHUNK_BITS]
        chunk[(seq & (CHUNK - 1)) * _WORDS + 2] = 0
        chunk[-1] -= 1
        self._count -= 1
        if not chunk[-1]:
            del self._chunks[seq >> CHUNK_BITS]

    def _number(self, name: str) -> int:
        number = self._numbers.get(name)
        if number is None:
            number = self._numbers[name] = len(self._names)
            self._names.append(name)
        return number

    def seqs(self, after: int = -1) -> Iterator[int]:
        """All seqs greater than `after`, growing. The caller may take out those that it was given."""
        for number in sorted(number for number in self._chunks if number >= after >> CHUNK_BITS):
            chunk = self._chunks.get(number)
            for i in range(CHUNK):
                if chunk is not None and chunk[i * _WORDS + 2] and (number << CHUNK_BITS | i) > after:
                    yield number << CHUNK_BITS | i


class Liveness(Fold[str]):
    """Add every record that counts, oldest first; then `settle`.

    `segments` and `destinations` are tallies by name, `redelivered` is seq → (deliveries, of which failures) of live
    messages, `duplicates` the remembered ids by destination, `outcomes` the remembered commits; `refers` are, by
    segment, the older ones of whose messages it speaks.
    """

    def __init__(self, duplicate_window: int = 20_000, outcome_window: int = 20_000) -> None:
        self.segments: dict[str, Tally] = {}
        self.destinations: dict[str, Tally] = {}
        self.redelivered: dict[int, tuple[int, int]] = {}
        self.duplicates: dict[str, RememberedIds] = {}
        self.outcomes = RememberedIds(outcome_window, by_owner=True)
        self.prepared: dict[Key, tuple[Prepared, str]] = {}  # by key, with the segment of the last mention
        self.markers: dict[str, tuple[Marker, str]] = {}  # owner → that of the newest committed batch, and the segment
        self.placed: tuple[ObeyedTable, str] | None = None  # the table of the cluster that it obeys, and the segment
        self.parcels: dict[str, tuple[Parcel, str]] = {}  # channel → its last one, and the segment
        self.refers: defaultdict[str, set[str]] = defaultdict(set)
        self.live = LiveIndex()
        self.subscriptions: dict[str, tuple[Subscribed, str]] = {}  # durable ones by queue, and in which segment
        self.shared: dict[tuple[str, int], int] = {}  # (segment, offset) of what several may hold → how many do
        self.trimmed = Trimmed()
        self._duplicate_window = duplicate_window

    # -- the fold -----------------------------------------------------------------------------------------------------

    def add(self, segment: str, offset: int, data: memoryview, record: Record) -> None:
        """`record`, whose framed bytes `data` are at `offset` of `segment`, takes effect."""
        _of(self.segments, segment).record_bytes += len(data)
        if isinstance(record, Group):
            for at, frame, part in parts(record, data):
                self._take_effect(part, offset + at, len(frame), segment)
            self.end_group(record, segment)
        else:
            self._take_effect(record, offset, len(data), segment)

    def _take_effect(self, record: Record, offset: int, size: int, segment: str) -> None:
        for name in destinations_of((record,)):
            _of(self.destinations, name).record_bytes += size
        place(record, offset, size)
        self.apply(record, segment)

    def apply(self, record: Record, segment: str) -> None:
        if isinstance(record, Message):
            self.store(record, segment)
        else:
            record.apply(self, segment)

    def end_group(self, group: Group, segment: str) -> None:
        if group.outcome_id:
            self.outcomes.remember(group.outcome_id, group.seq, segment)

    def store(self, message: Message, segment: str) -> None:
        """In its segment the bytes count once, however many hold the message there."""
        place = LivePlace(segment, message.queue_name, message.offset, message.size, len(message.body))
        here, there = self.segments[segment], self.destinations[place.destination]
        holders = self.shared.get((segment, place.offset), 0)
        here.messages += 1
        here.message_bytes += 0 if holders else place.body_bytes
        before = self.live.get(message.seq)
        if before is not None:
            self._leave(before)  # copied forward: it is here now
            self.refers[segment].add(before.segment)
        else:
            there.messages += 1
            there.message_bytes += place.body_bytes
        self._enter(message.seq, place, isinstance(message, Copy))
        if message.duplicate_id and not is_hidden(place.destination):
            self._ids(place.destination).remember(message.duplicate_id, message.seq, segment)

    def leave(self, consumed: Consumed, segment: str) -> None:
        for tally in (self.segments[segment], self.destinations[consumed.destination]):
            tally.left[REASONS[consumed.reason]] += len(consumed.seqs)
        for seq in consumed.seqs:
            place = self.live.get(seq)
            if place is not None:
                self.refers[segment].add(place.segment)
                self._remove(seq)

    def come_back(self, queue: str, counts: list[tuple[int, int, int]], segment: str) -> None:  # noqa: ARG002
        for seq, deliveries, failures in counts:
            known, place = self.redelivered.get(seq, (0, 0)), self.live.get(seq)
            if (deliveries, failures) > known and place is not None:
                self.redelivered[seq] = (deliveries, failures)
                self.refers[segment].add(place.segment)

    def transfer(self, moved: Moved, segment: str) -> None:
        for seq in moved.seqs:
            place = self.live.get(seq)
            if place is not None:
                self.refers[segment].add(place.segment)
                shared = (place.segment, place.offset) in self.shared
                self._leave(place)
                self._enter(seq, place._replace(destination=moved.target), shared)
        self.remember_ids(moved.target, moved.ids, segment)

    def remember_ids(self, queue: str, ids: list[tuple[str, int]], segment: str) -> None:
        for id, seq in ids:
            self._ids(queue).remember(id, seq, segment)

    def remember_outcomes(self, ids: list[tuple[str, int]], segment: str) -> None:
        for id, seq in ids:
            self.outcomes.remember(id, seq, segment)

    def prepare(self, prepared: Prepared, segment: str) -> None:
        key = prepared.key
        if key in self.prepared:
            self.refers[segment].add(self.prepared[key][1])
        self.prepared[key] = prepared, segment

    def resolve(self, resolved: Resolved, segment: str) -> None:
        if resolved.key in self.prepared:
            self.refers[segment].add(self.prepared.pop(resolved.key)[1])
        self.outcomes.remember(resolved.outcome_id, resolved.seq, segment)

    def mark(self, marker: Marker, segment: str) -> None:
        newest = self.markers.get(marker.owner)
        if newest is None or marker.batch >= newest[0].batch:
            self.markers[marker.owner] = marker, segment

    def subscribe(self, record: Subscribed, segment: str) -> None:
        before = self.subscriptions.pop(record.queue, None)
        if before is not None and before[1] != segment:
            self.refers[segment].add(before[1])
        if record.definition:
            self.subscriptions[record.queue] = record, segment
        else:
            self.duplicates.pop(record.queue, None)

    def obey(self, placed: ObeyedTable, segment: str) -> None:
        if self.placed is None or self.placed[0].number <= placed.number:
            self.placed = placed, segment

    def ship(self, parcel: Parcel, segment: str) -> None:
        last = self.parcels.get(parcel.channel)
        if last is None or last[0].number <= parcel.number:
            self.parcels[parcel.channel] = parcel, segment

    def trim(self, mark: Trimmed) -> None:
        self.trimmed = mark

    # -- its steps ----------------------------------------------------------------------------------------------------

    def _enter(self, seq: int, place: LivePlace, shared: bool) -> None:
        here, there = self.segments[place.segment], _of(self.destinations, place.destination)
        key = place.segment, place.offset
        holders = self.shared.get(key, 0)
        if shared:
            self.shared[key] = holders + 1
        for tally in (there,) if holders else (here, there):
            tally.live_bytes += place.body_bytes
            tally.live_record_bytes += place.size
        here.live += 1
        there.live += 1
        self.live.put(seq, place)

    def _remove(self, seq: int) -> None:
        place = self.live.get(seq)
        if place is not None:
            self._leave(place)
            self.live.pop(seq)
            self.redelivered.pop(seq, None)

    def _leave(self, place: LivePlace) -> None:
        here, there = self.segments[place.segment], self.destinations[place.destination]
        key = place.segment, place.offset
        others = self.shared.get(key, 1) - 1
        if others:
            self.shared[key] = others
        else:
            self.shared.pop(key, None)
        for tally in (there,) if others else (here, there):
            tally.live_bytes -= place.body_bytes
            tally.live_record_bytes -= place.size
        here.live -= 1
        there.live -= 1

    def _ids(self, destination: str) -> RememberedIds:
        ids = self.duplicates.get(destination)
        if ids is None:
            ids = self.duplicates[destination] = RememberedIds(self._duplicate_window)
        return ids

    def settle(self) -> None:
        """All records were added."""
        for seq in self.live.seqs():
            if segment_key(self.live[seq].segment) in self.trimmed:
                self._remove(seq)  # its acknowledgement went with a trimmed segment, a crash kept this one
        for key, (_, segment) in list(self.prepared.items()):
            if segment_key(segment) in self.trimmed:
                del self.prepared[key]  # so did the word of its end
        for ids in (*self.duplicates.values(), self.outcomes):
            ids.settle()
        for name, (_, segment) in list(self.subscriptions.items()):
            if segment_key(segment) in self.trimmed:
                del self.subscriptions[name]
        # The word of its end was trimmed, what it remembered was not.
        for name in [name for name in self.duplicates if name.startswith(SUBSCRIPTION_SCHEME)]:
            if name not in self.subscriptions:
                del self.duplicates[name]

    # -- what came out ------------------------------------------------------------------------------------------------

    def pins(self) -> list[Pin]:
        """The messages that keep segments: one pin for each destination and segment, oldest segment first, largest pin
        first.
        """
        found: dict[tuple[str, str], Pin] = {}
        for seq in self.live.seqs():
            place = self.live[seq]
            pin = found.get(place[:2])
            if pin is None:
                pin = found[place[:2]] = Pin(place.segment, place.destination, oldest_seq=seq)
            pin.messages += 1
            pin.record_bytes += place.size
        return sorted(found.values(), key=lambda pin: (segment_key(pin.segment), -pin.record_bytes, pin.destination))


def parts(group: Group, data: memoryview) -> Iterator[tuple[int, memoryview, Record]]:
    """(offset in `data`, framed bytes, record) of each record of a group, whose own framed bytes are `data`."""
    at = len(Group([], group.outcome_id).encode({}))
    for record in group.records:
        stop = at + RECORD_BYTES + RECORD.unpack_from(data, at)[0]
        yield at, data[at:stop], record
        at = stop
    assert at == len(data), "a group is longer than its records"


def _of(tallies: dict[str, Tally], name: str) -> Tally:
    tally = tallies.get(name)
    if tally is None:
        tally = tallies[name] = Tally()
    return tally
