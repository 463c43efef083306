"""Snapshot: what a state is, as blocks of a checkpoint, and back.

A dump is taken while the state goes on changing, one block at a time, so its blocks are of different moments. It is
made whole by applying every record from the position on at which it began: the last record on a message, an id or a
count decides, and applying one again changes nothing (a count of deliveries may be ahead of the journal: a return is
counted when it happens, whether it is stored or not). For that a dump must not leave out what was there when it began
and stays. Each queue is dumped from disk first, then from memory: messages move in that direction meanwhile. Messages
that move back are noted (`State.paged_out`) and dumped at the end. A message that is found twice is taken once.
"""

from __future__ import annotations

import json
import struct
from array import array
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from itertools import islice

from amq.broker.queues.backlog import CHUNK_ROWS, TYPECODES, Backlogs, columns_of
from amq.broker.queues.queue import PRIORITIES, Queue
from amq.broker.state.state import State
from amq.broker.state.window import IdWindow, IdWindows
from amq.core.errors import CorruptError
from amq.core.message import Message
from amq.journal.checkpoint import (
    COUNTS,
    DUPLICATES,
    END,
    HEAD,
    MARKERS,
    OUTCOMES,
    PARCELS,
    PLACEMENT,
    PREPARED,
    QUEUE,
    ROWS,
    SHARED,
    SUBSCRIPTIONS,
    decode_head,
)
from amq.journal.follower import Start
from amq.journal.format import segment_name
from amq.journal.live import Segment
from amq.journal.records import BatchContent, Marker, ObeyedTable, Parcel, Prepared
from amq.journal.records.subscription import Subscribed

_CODE = struct.Struct("<Q")
_ROWS = struct.Struct("<BBI")  # priority, whether there is a column of expiry times, rows
ITEMS = 2048  # counts or ids in one block

Block = tuple[int, bytes]


def dump(state: State, segments: Callable[[], Iterable[Segment]]) -> Generator[Block, None, None]:
    """The blocks of `state` but the head. `segments()` tells which there are."""
    state.paged_out, state.moved_counts = {}, {}
    try:
        for segment in list(segments()):
            for part in _parts(iter(list(segment.shared))):
                yield SHARED, json.dumps(segment.code).encode() + b" " + part
        for part in _parts(_subscriptions(state)):
            yield SUBSCRIPTIONS, part
        for name in list(state.queues):
            queue = state.queues.get(name)
            if queue is None:
                continue
            yield QUEUE, name.encode()
            yield from _dump_backlogs(queue.backlogs)
            yield from _dump_backlogs(queue.leaving)  # behind those: a row may have gone there meanwhile
            yield from _dump_resident(queue.messages)
            yield from _dump_counts(queue, list(queue.redelivered))
            for part in _parts(_ids(queue.duplicates)):
                yield DUPLICATES, part
        for part in _parts(_ids(state.outcomes)):
            yield OUTCOMES, part
        for prepared, segment in list(state.prepared.values()):
            yield PREPARED, _CODE.pack(segment.code) + prepared.body()
        for part in _parts(_markers(state)):
            yield MARKERS, part
        if obeyed := state.obeyed.row():
            yield PLACEMENT, json.dumps(obeyed).encode()
        for parcel, segment in list(state.parcels.values()):
            yield PARCELS, _CODE.pack(segment.code) + parcel.body()
        paged_out, state.paged_out = state.paged_out, None
        for queue, messages in paged_out.items():
            yield QUEUE, queue.name.encode()
            yield from _dump_resident(messages)
            moved = state.moved_counts  # the newest count comes last
            yield from _counts((seq, *moved[seq]) for seq in messages if seq in moved)
            yield from _dump_counts(queue, list(messages))
    finally:
        state.paged_out, state.moved_counts = None, {}
    ended = [[segment.epoch, segment.number, segment.end, sorted(segment.refers)] for segment in segments()]
    yield END, json.dumps(ended).encode()


def _markers(state: State) -> Iterator[tuple[object, ...]]:
    for marker, segment in list(state.prepared.markers.values()):
        content = () if marker.content is None else (marker.content.rows, marker.content.checksum)
        yield marker.owner, marker.batch, segment.code, *content


def _dump_backlogs(backlogs: Backlogs) -> Iterator[Block]:
    for priority in range(PRIORITIES):
        seq = -1
        while (backlog := backlogs.get(priority)) and (columns := backlog.rows_after(seq)):
            seq = columns[0][-1]
            yield ROWS, _encode_rows(priority, columns)


def _dump_resident(messages: dict[int, Message]) -> Iterator[Block]:
    seqs = list(messages)
    for i in range(0, len(seqs), CHUNK_ROWS):
        by_priority: defaultdict[int, list[tuple[int, ...]]] = defaultdict(list)
        for seq in seqs[i : i + CHUNK_ROWS]:
            message = messages.get(seq)
            if message is not None and isinstance(message.segment, Segment):
                row = (seq, message.segment.code, message.offset, message.size, message.expires_ms)
                by_priority[message.priority].append(row)
        for priority, rows in by_priority.items():
            yield ROWS, _encode_rows(priority, columns_of(rows))


def _dump_counts(queue: Queue, seqs: Iterable[int]) -> Iterator[Block]:
    """How often they were delivered. Behind their rows."""
    return _counts((seq, *queue.redelivered[seq]) for seq in seqs if seq in queue.redelivered)


def _counts(counts: Iterator[tuple[int, ...]]) -> Iterator[Block]:
    for part in _parts(counts):
        yield COUNTS, part


def _encode_rows(priority: int, columns: Sequence[array[int]]) -> bytes:
    head = _ROWS.pack(priority, len(columns) > 4, len(columns[0]))
    return b"".join((head, *(column.tobytes() for column in columns)))


def _subscriptions(state: State) -> Iterator[object]:
    for record in list(state.subscriptions.values()):
        if record.segment is not None:
            yield record.queue, record.definition, record.segment.code


def _ids(window: IdWindow | IdWindows) -> Iterator[tuple[str, int, int]]:
    return ((id, seq, segment.code) for id, (seq, segment) in list(window.items()))


def _parts(items: Iterator[object]) -> Iterator[bytes]:
    while part := list(islice(items, ITEMS)):
        yield json.dumps(part).encode()


def load(path: str, blocks: Iterator[Block], state: State) -> Start:
    """Fill the empty `state` from the `blocks` of the checkpoint at `path`; returns where a follower goes on. Raises
    CorruptError, NewerFormatError, and what `blocks` raise: then `state` is of no use.
    """
    kind, payload = next(blocks, (END, b""))
    if kind != HEAD:
        raise CorruptError(path, 0, "checkpoint does not begin with its head")
    position, state.trimmed, store_uuid = decode_head(path, payload)
    loader = _Loader(path, state)
    for kind, payload in blocks:
        loader.load(kind, payload)
    key = (position.epoch, position.number)
    read = {segment.name: segment for segment in loader.ended if segment.key <= key}
    made = {segment.name: segment for segment in loader.ended if segment.key > key}
    if position.segment_name not in read:  # it was trimmed before the checkpoint was complete
        read[position.segment_name] = loader.segment(position.epoch << 32 | position.number)
    read[position.segment_name].end = position.offset
    return Start(position, state.trimmed, store_uuid, read, made)


class _Loader:
    """Fills an empty state from the blocks of one checkpoint. `ended` = the segments that were there at its end."""

    def __init__(self, path: str, state: State) -> None:
        self._segments: dict[int, Segment] = {}  # all that are named, by code
        self.ended: list[Segment] = []
        self._path = path
        self._state = state
        self._queue: Queue | None = None
        self._shared: dict[int, set[int]] = {}  # by code of their segment: offsets of records that several may hold
        self._rows: defaultdict[int, list[list[array[int]]]] = defaultdict(list)  # of that queue, by priority

    def load(self, kind: int, payload: bytes) -> None:
        """The next block but the head. Raises CorruptError."""
        try:
            self._load(kind, payload)
        except (ValueError, LookupError, TypeError, OverflowError, RecursionError, struct.error) as error:
            raise CorruptError(self._path, 0, f"block of kind {kind}: {error!r}") from error

    def _load(self, kind: int, payload: bytes) -> None:
        if kind == ROWS:
            priority, columns = _decode_rows(payload)
            self._rows[priority].append(columns)
            return
        self._build()
        if kind == QUEUE:
            self._queue = self._state.queue(payload.decode())
            return
        if kind == SHARED:
            code, _, offsets = payload.partition(b" ")
            self._shared.setdefault(int(code), set()).update(map(int, json.loads(offsets)))
            return
        if kind == PREPARED:
            (code,) = _CODE.unpack_from(payload)
            self._state.prepared.put(Prepared.decode(payload[_CODE.size :]), self.segment(code))
            return
        if kind == PARCELS:
            (code,) = _CODE.unpack_from(payload)
            self._state.parcels.put(Parcel.decode(payload[_CODE.size :]), self.segment(code))
            return
        items = json.loads(payload)
        if kind == END:
            for epoch, number, end, refers in items:
                segment = self.segment(epoch << 32 | number)
                segment.end = int(end)
                segment.refers = set(map(int, refers))
                self.ended.append(segment)
        elif kind == SUBSCRIPTIONS:
            for *found, code in items:
                record = Subscribed.stored(found)
                self._state.subscriptions.hold(record, self.segment(code))
                queue = self._state.queue(record.queue)
                queue.stays = True
                queue.configure(self._state.options_of(record.queue))
        elif kind == OUTCOMES:
            self._remember(self._state.outcomes, items)
        elif kind == MARKERS:
            for owner, batch, code, *content in items:
                told = BatchContent(*map(int, content)) if content else None
                self._state.prepared.mark(Marker(str(owner), int(batch), told), self.segment(code))
        elif kind == PLACEMENT:
            cluster, store, number, placement, code = items
            self._state.obeyed.apply(
                ObeyedTable(str(cluster), str(store), int(number), dict(placement)), self.segment(code)
            )
        elif self._queue is None:
            raise ValueError("no queue was named before")
        elif kind == COUNTS:
            for seq, deliveries, failures in items:
                if self._queue.find(seq) is not None:
                    self._queue.redelivered[seq] = (int(deliveries), int(failures))
        elif kind == DUPLICATES:
            self._remember(self._queue.own_duplicates(), items)
        else:
            raise ValueError("a kind that is unknown here")

    def _remember(self, window: IdWindow | IdWindows, items: Iterable[tuple[str, int, int]]) -> None:
        for id, seq, code in items:
            if not isinstance(id, str):
                raise ValueError("an id is not a text")
            window.remember(id, seq, self.segment(code))

    def segment(self, code: int) -> Segment:
        segment = self._segments.get(code)
        if segment is None:
            epoch, number = code >> 32, code & 0xFFFFFFFF
            segment = self._segments[code] = Segment(segment_name(epoch, number), epoch, number, 0)
        return segment

    def _build(self) -> None:
        """Put the rows that were gathered for one queue where they belong."""
        for priority, blocks in self._rows.items():
            if self._queue is None:
                raise ValueError("no queue was named before")
            backlog = self._queue.own_backlog(priority)
            for columns in sorted(blocks, key=lambda columns: columns[0][0]):
                if self._queue.add_rows(priority, columns):
                    self._count(self._queue, columns)
                    continue
                for row in zip(*columns, strict=True):  # in memory and on disk, in turns
                    if row[0] not in backlog:
                        single = [array(code, (value,)) for code, value in zip(TYPECODES, row, strict=False)]
                        self._queue.add_rows(priority, single)
                        self._count(self._queue, single)
        self._rows.clear()

    def _count(self, queue: Queue, columns: Sequence[array[int]]) -> None:
        seqs, codes, offsets, sizes, *_ = columns
        self._state.newest_seq = max(self._state.newest_seq, seqs[-1])
        for code in set(codes):
            segment = self._state.hold(self.segment(code))
            if shared := self._shared.get(code):
                for each, offset, size in zip(codes, offsets, sizes, strict=True):
                    if each == code and offset in shared:
                        segment.share(offset, size)
                    elif each == code:
                        segment.live += 1
                        segment.live_bytes += size
            elif codes.count(code) == len(codes):
                segment.live += len(codes)
                segment.live_bytes += sum(sizes)
            else:
                own = [size for each, size in zip(codes, sizes, strict=True) if each == code]
                segment.live += len(own)
                segment.live_bytes += sum(own)
        if queue.expiring:
            self._state.expiring[queue] = None


def _decode_rows(payload: bytes) -> tuple[int, list[array[int]]]:
    priority, expires, rows = _ROWS.unpack_from(payload)
    if priority >= PRIORITIES or not rows:
        raise ValueError(f"{rows} rows of priority {priority}")
    columns, position = [], _ROWS.size
    for code in TYPECODES[: 5 if expires else 4]:
        column = array(code)
        stop = position + rows * column.itemsize
        column.frombytes(payload[position:stop])
        if len(column) != rows:
            raise ValueError("a column is cut short")
        columns.append(column)
        position = stop
    return priority, columns
