"""The records of the journal: one class a record type, each with its bytes. `State.apply` gives them their meaning.

Spec: docs/journal-format.md. In the bytes a destination is a number, defined by a `Destination` record earlier in the
same segment, so that every segment can be read alone; in memory it is its name. Readers (`amq.journal.decoder`) refuse
a type they do not know: a skipped record could be an acknowledgement.
"""

from __future__ import annotations

import json
import struct
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate, islice
from typing import ClassVar, NamedTuple

from amq.journal.format import RECORD_BYTES, Chunk, LargeRecord, frame_record
from amq.journal.live import Segment
from amq.journal.records.message import MESSAGE, MESSAGE_BYTES, Run, encode_message, encode_run, tail_bytes
from amq.journal.records.multicast import MULTICAST, Multicast
from amq.journal.records.subscription import SUBSCRIBED, Subscribed
from amq.message import LARGE_BODY_BYTES, SUBSCRIPTION_SCHEME, Message

DESTINATION, CONSUMED, REDELIVERED, GROUP, DUPLICATES, OUTCOMES, TRIMMED, PREVIOUS = 1, *range(3, 10)
MOVED, PREPARED, RESOLVED, MARKER = range(11, 15)
MARKER_WITH_CONTENT = 16
KINDS = {
    DESTINATION: "destination", MESSAGE: "message", CONSUMED: "consumed", REDELIVERED: "redelivered", GROUP: "group",
    DUPLICATES: "duplicates", OUTCOMES: "outcomes", TRIMMED: "trimmed", PREVIOUS: "previous", MULTICAST: "multicast",
    MOVED: "moved", PREPARED: "prepared", RESOLVED: "resolved", MARKER: "marker", SUBSCRIBED: "subscription",
    MARKER_WITH_CONTENT: "marker",
}  # fmt: skip

# Hidden queues, two for each queue: what was sent to it, and what was acknowledged of it, in prepared transactions.
# Nobody can address them, and no ids are remembered for them.
SENT_SCHEME = "sent://"
HELD_SCHEME = "held://"
LEASE = "lease:"  # xid and owner of a lease begin so, and of no other prepared transaction
_SCHEDULE_SCHEME = "schedule://"

# Why a message left its queue.
ACKED, EXPIRED, DEAD_LETTERED, PURGED, FIRED = range(5)
REASONS = ("acked", "expired", "dead-lettered", "purged", "fired")

DESTINATION_HEAD = struct.Struct("<IB")
CONSUMED_HEAD = struct.Struct("<IBI")
U32 = struct.Struct("<I")
_TRIMMED = struct.Struct("<QQ")
_KEPT = struct.Struct("<QQQ")
_U64 = struct.Struct("<Q")
GROUP_HEAD = struct.Struct("<QI")
REDELIVERY = struct.Struct("<QII")
MOVED_HEAD = struct.Struct("<III")  # source, target, how many seqs
_RESOLVED = struct.Struct("<QB")  # seq, did it commit?
_MARKER_WITH_CONTENT = struct.Struct("<QQQ")  # batch, rows, checksum
# Names of the outcomes of prepared transactions, among those of commits.
XID_COMMITTED, XID_ROLLED_BACK = "xid committed: ", "xid rolled back: "

LATE_RECORDS = 2000  # a record of more messages takes effect in slices; the thread that writes it encodes a group
Key = tuple[int, int]  # of a segment: (epoch, number)


class Destination:
    """From here on destination number `id` is called `name` in this segment."""

    kind = DESTINATION
    __slots__ = ("id", "name")

    def __init__(self, id: int, name: str) -> None:
        self.id = id
        self.name = name

    def encode(self, _: dict[str, int]) -> bytes:
        return frame_record(DESTINATION, DESTINATION_HEAD.pack(self.id, 0) + self.name.encode())


class Consumed:
    """Messages `seqs` have left destination `destination` for good, for `reason`."""

    kind = CONSUMED
    __slots__ = ("destination", "reason", "seqs")

    def __init__(self, destination: str, reason: int, seqs: list[int]) -> None:
        self.destination = destination
        self.reason = reason
        self.seqs = seqs

    def encode(self, ids: dict[str, int]) -> bytes:
        seqs = self.seqs
        body = CONSUMED_HEAD.pack(ids[self.destination], self.reason, len(seqs)) + struct.pack(f"<{len(seqs)}Q", *seqs)
        return frame_record(CONSUMED, body)


class Redelivered:
    """Messages came back unacknowledged: `counts` = (seq, deliveries so far, of which counted as failures)."""

    kind = REDELIVERED
    __slots__ = ("counts", "destination")

    def __init__(self, destination: str, counts: list[tuple[int, int, int]]) -> None:
        self.destination = destination
        self.counts = counts

    def encode(self, ids: dict[str, int]) -> bytes:
        return frame_record(
            REDELIVERED, U32.pack(ids[self.destination]) + b"".join(REDELIVERY.pack(*count) for count in self.counts)
        )


class Moved:
    """Messages `seqs` have left destination `source` and stand in `target`: same seq, same place, same bytes.

    `ids` = (producer-given id, seq) that `target` remembers from now on.
    """

    kind = MOVED
    __slots__ = ("ids", "seqs", "source", "target")

    def __init__(self, source: str, target: str, seqs: list[int], ids: list[tuple[str, int]] | None = None) -> None:
        self.source = source
        self.target = target
        self.seqs = seqs
        self.ids = ids or []

    def encode(self, ids: dict[str, int]) -> bytes:
        seqs = self.seqs
        head = MOVED_HEAD.pack(ids[self.source], ids[self.target], len(seqs))
        return frame_record(
            MOVED, head + struct.pack(f"<{len(seqs)}Q", *seqs) + (json.dumps(self.ids).encode() if self.ids else b"")
        )


@dataclass(frozen=True, slots=True)
class Prepared:
    """Transaction `xid` is prepared: what was sent in it stands in `sent://…`, what was acknowledged in `held://…`,
    until a `Resolved` says how it ended.

    seq          its age
    created_ms   wall clock
    timeout_ms   it is rolled back so long after that; 0 = never
    owner, batch the pipeline that it is a part of, "" and 0 = none
    sends, acks  {full name of the queue: seqs}
    ids          (queue, producer-given id, seq) of those of `sends` that have one
    """

    kind: ClassVar = PREPARED
    xid: str
    seq: int
    created_ms: int
    timeout_ms: int
    owner: str = ""
    batch: int = 0
    sends: dict[str, list[int]] = field(default_factory=dict)
    acks: dict[str, list[int]] = field(default_factory=dict)
    ids: list[tuple[str, str, int]] = field(default_factory=list)

    def body(self) -> bytes:
        head = json.dumps(
            [self.xid, self.seq, self.created_ms, self.timeout_ms, self.owner, self.batch,
             {name: len(seqs) for name, seqs in self.sends.items()},
             {name: len(seqs) for name, seqs in self.acks.items()}, self.ids]
        ).encode()  # fmt: skip
        seqs = [seq for part in (self.sends, self.acks) for each in part.values() for seq in each]
        return U32.pack(len(head)) + head + struct.pack(f"<{len(seqs)}Q", *seqs)

    def encode(self, _: dict[str, int]) -> bytes:
        return frame_record(PREPARED, self.body())

    @classmethod
    def decode(cls, body: bytes) -> Prepared:
        """Raises ValueError, struct.error, RecursionError."""
        start = U32.size + U32.unpack_from(body)[0]
        found = json.loads(body[U32.size : start])
        types = [str, int, int, int, str, int, dict, dict, list]
        if not isinstance(found, list) or [type(each) for each in found] != types:
            raise ValueError("no prepared transaction")
        xid, seq, created_ms, timeout_ms, owner, batch, sends, acks, ids = found
        if not all(isinstance(each, list) and [type(x) for x in each] == [str, str, int] for each in ids):
            raise ValueError("ids are no list of [queue, id, seq]")
        if not all(type(count) is int and count >= 0 for part in (sends, acks) for count in part.values()):
            raise ValueError("counts are no numbers")
        if start + 8 * sum((*sends.values(), *acks.values())) != len(body):
            raise ValueError("not as many seqs as it says")
        seqs = iter(struct.unpack_from(f"<{(len(body) - start) // 8}Q", body, start))
        sent, held = ({name: list(islice(seqs, count)) for name, count in part.items()} for part in (sends, acks))
        return cls(xid, seq, created_ms, timeout_ms, owner, batch, sent, held, [tuple(each) for each in ids])


class Resolved:
    """The prepared transaction `xid` is over: it was committed, or rolled back. `seq` is the age of that word."""

    kind = RESOLVED
    __slots__ = ("committed", "seq", "xid")

    def __init__(self, xid: str, committed: bool, seq: int) -> None:
        self.xid = xid
        self.committed = committed
        self.seq = seq

    @property
    def outcome_id(self) -> str:
        """The id under which it is remembered among the outcomes of commits."""
        return (XID_COMMITTED if self.committed else XID_ROLLED_BACK) + self.xid

    def encode(self, _: dict[str, int]) -> bytes:
        return frame_record(RESOLVED, _RESOLVED.pack(self.seq, self.committed) + self.xid.encode())

    @classmethod
    def decode(cls, body: bytes) -> Resolved:
        seq, committed = _RESOLVED.unpack_from(body)
        return cls(body[_RESOLVED.size :].decode(), bool(committed), seq)


@dataclass(frozen=True, slots=True)
class Content:
    """The content of a batch, as its coordinator says: the number of rows, and a checksum that does not depend on their
    order. Both are unsigned numbers of 64 bits. The broker compares them and does not know how they were made."""

    rows: int
    checksum: int


@dataclass(frozen=True, slots=True)
class Marker:
    """Batch `batch` of the pipeline `owner` is committed, and all before it. `content` None = nobody said what it
    holds."""

    owner: str
    batch: int
    content: Content | None = None

    @property
    def kind(self) -> int:
        return MARKER if self.content is None else MARKER_WITH_CONTENT

    def encode(self, _: dict[str, int]) -> bytes:
        owner, content = self.owner.encode(), self.content
        if content is None:
            return frame_record(MARKER, _U64.pack(self.batch) + owner)
        head = _MARKER_WITH_CONTENT.pack(self.batch, content.rows, content.checksum)
        return frame_record(MARKER_WITH_CONTENT, head + owner)

    @classmethod
    def decode(cls, body: bytes) -> Marker:
        return cls(body[_U64.size :].decode(), _U64.unpack_from(body)[0])

    @classmethod
    def decode_with_content(cls, body: bytes) -> Marker:
        batch, rows, checksum = _MARKER_WITH_CONTENT.unpack_from(body)
        return cls(body[_MARKER_WITH_CONTENT.size :].decode(), batch, Content(rows, checksum))


class Measured(NamedTuple):
    """Facts of the first records of a group before it is encoded: how many bytes each takes, and the names of all
    destinations that they name."""

    sizes: array[int]
    names: dict[str, None]


class Group:
    """Records that happen together or not at all: a transaction, a move to the dead-letter queue.

    `outcome_id` names the commit so that a client can ask for it later, "" = nobody will; `seq` is then its age.
    `origin` is what a live broker made the group of, None in a replay; it is never written.
    """

    kind = GROUP
    __slots__ = ("measured", "origin", "outcome_id", "places", "records", "seq")

    def __init__(
        self, records: list[Record], outcome_id: str = "", seq: int = 0, origin: object = None,
        measured: Measured | None = None,
    ) -> None:  # fmt: skip
        self.records = records
        self.measured = measured or Measured(array("Q"), {})
        self.outcome_id = outcome_id
        self.seq = seq
        self.origin = origin
        self.places: list[tuple[int, int]] = []  # of each record: bytes from the beginning of the group's, its size

    def encode(self, ids: dict[str, int]) -> Chunk:
        outcome = self.outcome_id.encode()
        parts: list[Chunk] = [GROUP_HEAD.pack(self.seq, len(outcome)), outcome]
        offset = RECORD_BYTES + GROUP_HEAD.size + len(outcome)
        self.places = []
        if is_larger(self, LATE_RECORDS):
            return self._encode_late(ids, parts)
        for record in self.records:
            parts.append(encode_record(record, ids))
            self.places.append((offset, len(parts[-1])))
            offset += len(parts[-1])
        if offset > LARGE_BODY_BYTES:
            return LargeRecord(GROUP, parts)
        return frame_record(GROUP, b"".join(parts))  # type: ignore[arg-type]

    def _encode_late(self, ids: dict[str, int], head: list[Chunk]) -> LargeRecord:
        """As long as its bytes are is known now; most of them are made when they are written, not on the event loop."""
        records: list[Record | Chunk] = [*self.records]
        sizes = array("Q", self.measured.sizes)
        for at in range(len(sizes), len(records)):
            record = self.records[at]
            if isinstance(record, Message | Multicast | Run):
                sizes.append(record_bytes(record))
            else:
                chunk = records[at] = encode_record(record, ids)
                sizes.append(len(chunk))
        begin = RECORD_BYTES + sum(map(len, head))
        self.places = list(zip(accumulate(sizes, initial=begin), sizes, strict=False))

        def make() -> Iterator[Chunk]:
            yield from head
            for part in records:
                yield part if isinstance(part, bytes | LargeRecord) else encode_record(part, ids)

        return LargeRecord(GROUP, make, begin + sum(sizes))

    def place(self, offset: int, begin: int = 0, end: int | None = None) -> None:
        """The group stands at `offset` of its segment: so its messages, of which these are given, stand there and
        behind."""
        for record, (start, size) in zip(self.records[begin:end], self.places[begin:end], strict=True):
            if isinstance(record, Message):
                record.offset, record.size = offset + start, size
            elif isinstance(record, Multicast | Run):
                record.place(offset + start, size)


class Copies:
    """Messages that compaction copies forward, written as a group, their bytes as they stand in segment `source`.

    destinations  names
    records       whole framed records, in which a destination has the number that this journal gives it
    redelivered   how often some of them were delivered
    moves         {destination: (seq, bytes from the first record of the group to this one)}
    ids           (destination, producer-given id, seq) of those that have one
    shared        (bytes from the first record of the group, size, queues with their seqs) of those that several hold
    messages, size  how many messages, and bytes of `records`
    offset        of the group in its segment, once it is stored
    """

    kind = GROUP
    __slots__ = ("ids", "messages", "moves", "offset", "records", "redelivered", "shared", "size", "source")

    def __init__(self, source: Segment) -> None:
        self.source = source
        self.records: list[bytes | memoryview] = []
        self.redelivered: list[Redelivered] = []
        self.moves: dict[str, list[tuple[int, int]]] = {}
        self.ids: list[tuple[str, str, int]] = []
        self.shared: list[tuple[int, int, list[tuple[str, int]]]] = []
        self.messages = 0
        self.size = 0
        self.offset = 0

    @property
    def first(self) -> int:
        """Where the first record stands, once the group is stored."""
        return self.offset + RECORD_BYTES + GROUP_HEAD.size

    def encode(self, ids: dict[str, int]) -> LargeRecord:
        counts = [each.encode(ids) for each in self.redelivered]
        return LargeRecord(GROUP, [GROUP_HEAD.pack(0, 0), *self.records, *counts])  # type: ignore[list-item]


class Duplicates:
    """Producer-given ids that a destination still remembers, copied out of a segment about to be deleted.

    `ids` = (id, seq of the message that brought it).
    """

    kind = DUPLICATES
    __slots__ = ("destination", "ids")

    def __init__(self, destination: str, ids: list[tuple[str, int]]) -> None:
        self.destination = destination
        self.ids = ids

    def encode(self, ids: dict[str, int]) -> bytes:
        return frame_record(DUPLICATES, U32.pack(ids[self.destination]) + json.dumps(self.ids).encode())


class Outcomes:
    """Commits that took place, copied out of a segment about to be deleted: `ids` = (outcome id, seq of its group)."""

    kind = OUTCOMES
    __slots__ = ("ids",)

    def __init__(self, ids: list[tuple[str, int]]) -> None:
        self.ids = ids

    def encode(self, _: dict[str, int]) -> bytes:
        return frame_record(OUTCOMES, json.dumps(self.ids).encode())


@dataclass(frozen=True, slots=True)
class Trimmed:
    """Of the segments up to and including (epoch, number) only `kept` are needed: all others may be gone, and count no
    more. The newest mark says all that those before it said.

    kept   {(epoch, number): bytes that count}, of segments up to there
    """

    kind: ClassVar = TRIMMED
    epoch: int = 0
    number: int = 0
    kept: Mapping[Key, int] = field(default_factory=dict)

    @property
    def through(self) -> Key:
        return self.epoch, self.number

    def __contains__(self, key: Key) -> bool:
        """Does the segment of that (epoch, number) count no more?"""
        return key <= (self.epoch, self.number) and key not in self.kept

    def newest(self, other: Trimmed) -> Trimmed:
        """That of two marks of one journal which was made later."""
        later = (other.through, -len(other.kept)) > (self.through, -len(self.kept))
        return other if later else self

    def encode(self, _: dict[str, int]) -> bytes:
        kept = (_KEPT.pack(*key, end) for key, end in self.kept.items())
        return frame_record(TRIMMED, b"".join((_TRIMMED.pack(self.epoch, self.number), *kept)))

    @classmethod
    def decode(cls, body: bytes) -> Trimmed:
        kept = {(epoch, number): end for epoch, number, end in _KEPT.iter_unpack(body[_TRIMMED.size :])}
        epoch, number = _TRIMMED.unpack_from(body)
        return cls(epoch, number, kept)


class Previous:
    """First record of a segment: the segment before it in this epoch is valid up to `end` bytes (0 = there is none)."""

    kind = PREVIOUS
    __slots__ = ("end",)

    def __init__(self, end: int) -> None:
        self.end = end

    def encode(self, _: dict[str, int]) -> bytes:
        return frame_record(PREVIOUS, _U64.pack(self.end))

    @classmethod
    def decode(cls, body: bytes) -> Previous:
        return cls(*_U64.unpack(body))


Record = (
    Message | Destination | Consumed | Redelivered | Moved | Prepared | Resolved | Marker | Group | Copies | Duplicates
    | Outcomes | Trimmed | Previous | Multicast | Subscribed | Run
)  # fmt: skip


def is_larger(record: Record, count: int) -> bool:
    """Does it speak of more messages than `count`?"""
    if not isinstance(record, Group):
        return messages_in(record) > count
    others = [part for part in record.records if part.__class__ is not Message]
    return len(record.records) > count or len(record.records) - len(others) + sum(map(messages_in, others)) > count


def messages_in(record: Record) -> int:
    """Of how many messages it speaks, if it is not a group."""
    if isinstance(record, Consumed | Moved):
        return len(record.seqs)
    if isinstance(record, Redelivered):
        return len(record.counts)
    if isinstance(record, Multicast):
        return len(record.queues)
    return len(record.bodies) if isinstance(record, Run) else 1


def pieces_of(record: Record, count: int) -> Iterator[Record]:
    """Records that have the same effect together, one after the other, each about `count` messages or fewer. A record
    that only has an effect as a whole is one piece."""
    starts = range(0, messages_in(record), count)
    if isinstance(record, Consumed):
        yield from (Consumed(record.destination, record.reason, record.seqs[at : at + count]) for at in starts)
    elif isinstance(record, Redelivered):
        yield from (Redelivered(record.destination, record.counts[at : at + count]) for at in starts)
    elif isinstance(record, Moved):
        yield from (Moved(record.source, record.target, record.seqs[at : at + count]) for at in starts)
        for at in range(0, len(record.ids), count):
            yield Moved(record.source, record.target, [], record.ids[at : at + count])
    else:
        yield record


def record_bytes(record: Record) -> int:
    """How many bytes the record of messages takes, also before they have seqs. Raises struct.error, as its encoding
    would."""
    if isinstance(record, Run):
        return record.measure(RECORD_BYTES + MESSAGE_BYTES + len(record.like.content_type.encode()))
    if isinstance(record, Multicast):
        return RECORD_BYTES + record.head_bytes + tail_bytes(record.message)
    assert isinstance(record, Message)
    return RECORD_BYTES + MESSAGE_BYTES + tail_bytes(record)


def encode_record(record: Record, ids: dict[str, int]) -> Chunk:
    """Any record's bytes. `ids`: the number of each destination by name."""
    if isinstance(record, Message):
        return encode_message(record, ids[record.destination])
    return encode_run(record, ids[record.destination]) if isinstance(record, Run) else record.encode(ids)


def prepared_bytes(record: Prepared) -> int:
    """Bytes that it takes in the journal."""
    return RECORD_BYTES + len(record.body())


def is_hidden(destination: str) -> bool:
    """Is it a queue of prepared transactions?"""
    return destination.startswith((SENT_SCHEME, HELD_SCHEME))


def real_name(destination: str) -> str:
    """Of the queue to which a hidden one belongs; of any other its own."""
    return destination.removeprefix(SENT_SCHEME).removeprefix(HELD_SCHEME)


def told_name(destination: str) -> str:
    """The name for people of a queue that nobody can address; other names as they are."""
    for scheme, what in ((SENT_SCHEME, "prepared, for "), (HELD_SCHEME, "prepared, taken from ")):
        if destination.startswith(scheme):
            return what + told_name(destination.removeprefix(scheme))
    if destination.startswith(SUBSCRIPTION_SCHEME):
        return "durable subscription " + destination.removeprefix(SUBSCRIPTION_SCHEME).rpartition(":")[0]
    if destination.startswith(_SCHEDULE_SCHEME):
        return "scheduled for " + destination.removeprefix(_SCHEDULE_SCHEME).replace(".", "://", 1)
    return destination


def takes_space(record: Record) -> bool:
    """Does storing this need room that a full disk should keep for acknowledgements?"""
    if isinstance(record, Group):
        return any(map(takes_space, record.records))
    return isinstance(record, Message | Multicast | Copies | Run)


def destinations_of(records: Iterable[Record]) -> dict[str, None]:
    """Names of the destinations that `records` name, in the order of their first mention."""
    names: dict[str, None] = {}
    for record in records:
        if isinstance(record, Message | Consumed | Redelivered | Duplicates | Run):
            names[record.destination] = None
        elif isinstance(record, Moved):
            names[record.source] = names[record.target] = None
        elif isinstance(record, Group):
            names |= record.measured.names
            parts = record.records[len(record.measured.sizes) :]
            plain = [part.destination for part in parts if part.__class__ is Message]
            names |= dict.fromkeys(plain) if len(plain) == len(parts) else destinations_of(parts)
        elif isinstance(record, Copies):
            names |= dict.fromkeys(record.moves)
            names |= dict.fromkeys(name for _, _, holders in record.shared for name, _ in holders)
        elif isinstance(record, Multicast):
            names |= dict.fromkeys(record.queues)
    return names
