"""The journal of a store as Arrow record batches: its parts, and the rows of each part.

The reader takes no lock, writes nothing and asks no broker; a master may work meanwhile. A plan is a snapshot: it names
each segment and its valid length at the moment of the plan. So a part gives the same rows each time it is read. The
reader compares the checksums of all valid bytes. This module does not use Spark: executors call `read_part`, and any
other program may call it.

A row tells one fact about one message, its `kind`:

    message       the broker stored it. Compaction may copy a message: then it has several rows with the same `offset`
    consumed      it left its queue for good, for the reason in `reason`
    redelivered   it came back without acknowledgement
    moved         it is in the queue `target` now: a prepared transaction or a lease took or released it

Format of the journal: docs/journal-format.md.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from amq.core.errors import CorruptError, StoreError
from amq.core.message import CORRELATION_ID, THREAD_BYTES_MAX, Copy, Message, headers, plain
from amq.core.ownership import given
from amq.journal.decoder import Decoder
from amq.journal.format import BATCH_BYTES, RECORD, RECORD_BYTES, segment_key
from amq.journal.hidden import HELD_SCHEME, SENT_SCHEME
from amq.journal.inspect import ROUNDS_MAX, Inspection
from amq.journal.records import GROUP, GROUP_HEAD, REASONS, Consumed, Moved, Redelivered
from amq.journal.records.message import MESSAGE, decode_message
from amq.journal.records.multicast import Multicast
from amq.journal.records.section import EXTENDED
from amq.journal.segment import StoredBatch, list_segments, read_batches, read_header, read_segment
from amq.store.open import open_directory
from amq.store.port import Store
from pyspark_amq.heads import MESSAGE_HEAD
from pyspark_amq.options import CAME_BACK, JOURNAL_KINDS, LEFT, MESSAGES, MOVES

ROWS_PER_BATCH = 16_384
BYTES_PER_BATCH = 32 << 20  # of bodies; a single body may be larger
SEQ_EPOCH_BITS = 44  # a seq is an epoch and a number below it: docs/journal-format.md
SEQ_MAX = (1 << 63) - 1
US_MAX = (1 << 63) - 1
EXPIRES_MS_MAX = 253_402_300_799_999  # the end of the year 9999

_Numbers = npt.NDArray[Any]
_TIMESTAMP = pa.timestamp("us", "UTC")
_HEADERS = pa.map_(pa.string(), pa.string())
_USER = r"\A\x00[^\x00]*\x00"  # before an id: see `amq.core.ownership`


def schema(values: bool = True, headers: bool = False) -> pa.Schema:
    """Columns of a row; `values` with the bodies of messages, `headers` with their properties.

    offset      seq of the message: unique for the life of the store, growing
    timestamp   the arrival of a message at the broker, to the ms; of other kinds the time of writing, to the s
    messageId   the id that its producer gave it
    destination the place of the message as consumers know it; `queue` is its name in the journal
    position    of the record: bytes from the beginning of the segment `segment` of epoch `epoch`
    """
    fields = [
        ("key", pa.string()),
        *([("value", pa.binary())] if values else []),
        ("destination", pa.string()),
        ("offset", pa.int64()),
        ("timestamp", _TIMESTAMP),
        ("messageId", pa.string()),
        ("redelivered", pa.bool_()),
        *([("headers", _HEADERS)] if headers else []),
        ("kind", pa.string()),
        ("queue", pa.string()),
        ("target", pa.string()),
        ("reason", pa.string()),
        ("deliveries", pa.int32()),
        ("failures", pa.int32()),
        ("bodyBytes", pa.int64()),
        ("contentType", pa.string()),
        ("priority", pa.int32()),
        ("expires", _TIMESTAMP),
        ("epoch", pa.int64()),
        ("segment", pa.int64()),
        ("position", pa.int64()),
    ]
    return pa.schema(fields)


@dataclass(frozen=True)
class Wanted:
    """A selection of rows; all bounds are inclusive.

    destinations   full names, None = all
    offsets        lowest and highest
    times_us       earliest and latest `timestamp`, microseconds since 1970
    """

    kinds: frozenset[str] = frozenset(JOURNAL_KINDS)
    destinations: frozenset[str] | None = None
    offsets: tuple[int, int] = (0, SEQ_MAX)
    times_us: tuple[int, int] = (-US_MAX, US_MAX)

    def within(self, **more: Any) -> Wanted:
        """The rows that both this selection and another one, `Wanted(**more)`, contain."""
        other = Wanted(**more)
        destinations = self.destinations
        if other.destinations is not None:
            destinations = other.destinations if destinations is None else destinations & other.destinations
        return replace(
            self,
            kinds=self.kinds & other.kinds,
            destinations=destinations,
            offsets=_overlap(self.offsets, other.offsets),
            times_us=_overlap(self.times_us, other.times_us),
        )

    def may_be_in(self, epoch: int) -> bool:
        """May a segment of `epoch` have such rows? It has none of messages that a later master numbered."""
        return self.offsets[0] >> SEQ_EPOCH_BITS <= epoch and bool(self.kinds)


def _overlap(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int]:
    return max(one[0], other[0]), min(one[1], other[1])


@dataclass(frozen=True)
class SegmentPart:
    """One segment, and its valid length at the moment of the plan."""

    store: str
    segment: str
    end: int


class TrimmedError(StoreError):
    """A segment of the plan is gone. Its live messages were copied behind the end of the plan, or consumed."""

    code = "SEGMENT_TRIMMED"


def plan(store: str, wanted: Wanted | None = None, found: Store | None = None) -> list[SegmentPart]:
    """The parts of directory `store` that may hold `wanted` rows, oldest first. They belong to one moment, even if a
    takeover or a deletion happens during the call. Raises StoreError, OSError.
    """
    found, wanted = found or open_directory(store), wanted or Wanted()
    epochs, log = found.epochs, found.log
    try:
        epochs.check()
        for _ in range(ROUNDS_MAX):
            epoch = epochs.newest()
            inspection = Inspection(log, (epoch.number, epoch.sealed) if epoch is not None else (0, {}))
            lengths, missing = inspection.lengths(), inspection.missing()
            newest = max([segment_key(name)[0] for name in inspection.names], default=0)
            known = newest <= (epoch.number if epoch is not None else 0)  # else a listing of epochs/ is out of date
            stayed = set(inspection.names) <= set(list_segments(log))
            if known and stayed and epochs.newest() == epoch:
                break
        else:
            why = "epochs and segments changed while they were listed: read again; if it recurs, run amq journal check"
            raise StoreError(f"{store}: {why}", code="STORE_INCOMPLETE")
    except (FileNotFoundError, NotADirectoryError) as error:
        why = f"{error.filename}: {error.strerror}: give the directory that `amq start --store` was given"
        raise StoreError(why, code="STORE_MISSING") from error
    for problem in inspection.problems:
        raise CorruptError(problem.path, problem.offset, problem.why)
    for name in missing:
        why = "this segment or the one before it is missing, and nothing says that it was trimmed: somebody removed it"
        cure = "put it back from a backup, or run amq journal repair"
        raise CorruptError(log.place(name), 0, f"{why}. {cure}")
    return [SegmentPart(store, name, end) for name, end in lengths.items() if wanted.may_be_in(segment_key(name)[0])]


def read_part(
    part: SegmentPart, columns: pa.Schema, wanted: Wanted | None = None, found: Store | None = None
) -> Iterator[pa.RecordBatch]:
    """The rows of one part. `columns` come from `schema`. Needs memory for the segment and one batch.

    Raises TrimmedError if the segment is gone by now, CorruptError, NewerFormatError, OSError.
    """
    wanted, log = wanted or Wanted(), (found or open_directory(part.store)).log
    path = log.place(part.segment)
    try:
        data = read_segment(log, part.segment, part.end)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ESTALE):
            raise
        why = "was trimmed while the journal was read: read again, or set failOnDataLoss=false to go on without it"
        raise TrimmedError(f"{path} {why}") from error
    header = read_header(path, data)
    if header is None:
        raise CorruptError(path, 0, "segment header is gone")
    reader = _SegmentReader(path, data, columns, wanted)
    for batch in read_batches(path, data, header, part.end):
        reader.walk(batch)
        yield from reader.full()
    yield from reader.full(rows=1)


class _SegmentReader:
    """Notes the positions of records in one segment, and makes rows of many records at a time."""

    def __init__(self, path: str, data: bytes, columns: pa.Schema, wanted: Wanted) -> None:
        self._path = path
        self._data = data
        self._windows = np.lib.stride_tricks.sliding_window_view(np.frombuffer(data, np.uint8), MESSAGE_HEAD.itemsize)
        self._columns = columns
        self._wanted = wanted
        self._wants_messages = MESSAGES in wanted.kinds
        self._wants_headers = "headers" in columns.names
        self._wants_values = "value" in columns.names
        self._epoch, self._segment = segment_key(os.path.basename(path))
        self._decoder = Decoder(path)
        self._plain: list[int] = []  # positions of the records of messages
        self._copies: list[Copy] = []  # messages of multicasts
        self._events: list[tuple[str, int, int, _Event]] = []  # kind, position, wall s, record
        self._rows = self._bytes = 0  # gathered: rows without those of `_plain`, bytes of records

    def walk(self, batch: StoredBatch) -> None:
        """Note the records of a batch; its checksum is right. Raises CorruptError, NewerFormatError."""
        position, end, plain = batch.offset + BATCH_BYTES, batch.end, self._plain
        framing, data = RECORD.unpack_from, self._data
        while position < end:
            if end - position < RECORD_BYTES:
                raise CorruptError(self._path, position, "batch ends inside a record")
            size, _, kind = framing(data, position)
            stop = position + RECORD_BYTES + size
            if stop > end:
                raise CorruptError(self._path, position, "record is longer than its batch")
            if kind == MESSAGE:
                plain.append(position)
            elif kind == GROUP:  # its records have the same framing, and end with it
                start = position + RECORD_BYTES
                stop = start + GROUP_HEAD.size + GROUP_HEAD.unpack_from(data, start)[1]
            else:
                self._other(position, stop, batch.header.wall_s)
            position = stop
        self._bytes += batch.header.payload_bytes

    def _other(self, position: int, stop: int, wall_s: int) -> None:
        """Note records of all other types. The decoder rejects types that this version does not know."""
        for record in self._decoder.decode(memoryview(self._data)[position:stop], position, verify=False):
            if isinstance(record, Multicast):
                copies = list(record.held()) if self._wants_messages else []
                self._copies += copies
                self._rows += len(copies)
            elif isinstance(record, Consumed | Redelivered | Moved):
                kind = _EVENTS[type(record)]
                if kind in self._wanted.kinds:
                    self._events.append((kind, position, wall_s, record))
                    self._rows += len(_counts(record))

    def full(self, rows: int = ROWS_PER_BATCH) -> Iterator[pa.RecordBatch]:
        """The gathered rows, if there are at least `rows` of them, or if they are large."""
        if len(self._plain) + self._rows < rows and self._bytes < BYTES_PER_BATCH:
            return
        positions = np.array(self._plain if self._wants_messages else [], np.int64)
        start = 0
        while start < len(positions):
            last = int(np.searchsorted(positions, positions[start] + BYTES_PER_BATCH))
            stop = max(start + 1, min(start + ROWS_PER_BATCH, last))
            yield from self._kept(self._messages(positions[start:stop]))
            start = stop
        for copies in self._cut(self._copies):
            yield from self._kept(self._multicasts(copies))
        if self._events:
            yield from self._kept(self._events_batch())
        self._plain.clear()
        self._copies.clear()
        self._events.clear()
        self._rows = self._bytes = 0

    def _cut(self, copies: list[Copy]) -> Iterator[list[Copy]]:
        """`copies` in parts that fit into a batch. There each copy has its own body; in the segment they share one."""
        start = size = 0
        for index, copy in enumerate(copies):
            own = len(copy.body) if self._wants_values else 0
            if index - start == ROWS_PER_BATCH or (size + own > BYTES_PER_BATCH and index > start):
                yield copies[start:index]
                start, size = index, 0
            size += own
        if copies:
            yield copies[start:]

    # -- rows ---------------------------------------------------------------------------------------------------------

    def _messages(self, positions: _Numbers) -> tuple[int, dict[str, pa.Array]]:
        if positions[-1] + MESSAGE_HEAD.itemsize > len(self._data):
            raise CorruptError(self._path, int(positions[-1]), "record of a message is too short")
        heads = np.ascontiguousarray(self._windows[positions]).view(MESSAGE_HEAD).reshape(-1)
        used, queues = np.unique(heads["queue"], return_inverse=True)
        if not self._decoder.names.keys() >= set(used.tolist()):
            raise CorruptError(self._path, int(positions[0]), "the destination was not defined before")
        names = [self._decoder.names[number] for number in used.tolist()]
        wanted = self._wanted
        keep = _within(heads["seq"], wanted.offsets) & _within(heads["timestamp"] * 1000, wanted.times_us)
        if wanted.destinations is not None:
            keep &= np.array([shown(name) in wanted.destinations for name in names], np.bool_)[queues]
        if not keep.all():
            heads, positions, queues = heads[keep], positions[keep], queues[keep]
        types = positions + MESSAGE_HEAD.itemsize
        ids = types + heads["type_bytes"]
        properties = ids + heads["id_bytes"]
        bodies = properties + heads["property_bytes"]
        stops = positions + RECORD_BYTES + heads["size"]
        if (bodies > stops).any():
            raise CorruptError(self._path, int(positions[np.argmax(bodies > stops)]), "message: impossible lengths")
        others, sizes = self._extended(heads, positions, stops), stops - bodies
        for row, message in others.items():
            sizes[row] = len(message.body)
        found = {
            **self._properties(properties, bodies, others),
            "destination": _dictionary(queues, [shown(name) for name in names]),
            "offset": pa.array(heads["seq"].astype(np.int64)),
            "timestamp": _times(heads["timestamp"] * 1000),
            "messageId": pc.replace_substring_regex(self._texts(ids, properties), _USER, ""),
            "kind": _same(MESSAGES, len(heads)),
            "redelivered": _same(False, len(heads)),
            "queue": _dictionary(queues, names),
            "bodyBytes": pa.array(sizes),
            "contentType": self._texts(types, ids, {row: each.content_type for row, each in others.items()}),
            "priority": pa.array(heads["priority"].astype(np.int32)),
            "expires": _ends(heads["expires"]),
            "position": pa.array(positions),
        }
        if self._wants_values:
            data, ends = self._data, zip(bodies.tolist(), stops.tolist(), strict=True)
            values = [data[start:stop] for start, stop in ends]
            for row, message in others.items():
                values[row] = message.body
            found["value"] = pa.array(values, pa.binary())
        return len(heads), found

    def _extended(self, heads: _Numbers, positions: _Numbers, stops: _Numbers) -> dict[int, Message]:
        """By row those messages whose record says more than JSON can, as consumers of text see them."""
        found = {}
        for row in np.flatnonzero(heads["flags"] & EXTENDED).tolist():
            position, stop = int(positions[row]), int(stops[row])
            try:
                found[row] = plain(decode_message(self._data, position, stop, ""), THREAD_BYTES_MAX)
            except (ValueError, RecursionError) as error:
                raise CorruptError(self._path, position, f"message: {error}") from error
        return found

    def _texts(self, starts: _Numbers, stops: _Numbers, others: Mapping[int, str] | None = None) -> pa.Array:
        """Texts of the segment, `others` by row; an empty one becomes null."""
        if (starts == stops).all() and not others:
            return pa.nulls(len(starts), pa.string())
        data, ends = self._data, zip(starts.tolist(), stops.tolist(), strict=True)
        texts = [data[start:stop] or None for start, stop in ends]
        for row, text in (others or {}).items():
            texts[row] = text.encode() or None
        return pa.array(texts, pa.binary()).cast(pa.string())

    def _properties(self, starts: _Numbers, stops: _Numbers, others: Mapping[int, Message]) -> dict[str, pa.Array]:
        """The columns made from properties. Many messages have the same properties, which are parsed only once."""
        if not self._wants_headers and (starts == stops).all():
            return {}
        if others:
            starts = starts.copy()
            starts[list(others)] = stops[list(others)]
        data, ends = self._data, zip(starts.tolist(), stops.tolist(), strict=True)
        read: dict[bytes, Mapping[str, str]] = {b"": {}}
        found = []
        for start, stop in ends:
            text = data[start:stop]
            properties = read.get(text)
            if properties is None:
                properties = read[text] = json.loads(text)
            found.append(properties)
        for row, message in others.items():
            found[row] = headers(message)
        columns = {"key": pa.array(map(_key, found), pa.string())}
        if self._wants_headers:
            columns["headers"] = pa.array([list(each.items()) for each in found], _HEADERS)
        return columns

    def _multicasts(self, copies: list[Copy]) -> tuple[int, dict[str, pa.Array]]:
        wanted = self._wanted
        copies = [
            copy
            for copy in copies
            if (wanted.destinations is None or shown(copy.destination) in wanted.destinations)
            and wanted.offsets[0] <= copy.seq <= wanted.offsets[1]
            and wanted.times_us[0] <= copy.timestamp_ms * 1000 <= wanted.times_us[1]
        ]
        messages = [plain(copy, THREAD_BYTES_MAX) for copy in copies]
        properties = [headers(message) for message in messages]
        found = {
            "key": pa.array(map(_key, properties), pa.string()),
            "destination": pa.array([shown(copy.destination) for copy in copies], pa.string()),
            "offset": pa.array([copy.seq for copy in copies], pa.int64()),
            "timestamp": _times(np.array([copy.timestamp_ms * 1000 for copy in copies], np.int64)),
            "messageId": pa.array([given(copy.duplicate_id) or None for copy in copies], pa.string()),
            "redelivered": _same(False, len(copies)),
            "kind": _same(MESSAGES, len(copies)),
            "headers": pa.array([list(each.items()) for each in properties], _HEADERS),
            "queue": pa.array([copy.queue_name for copy in copies], pa.string()),
            "bodyBytes": pa.array([len(each.body) for each in messages], pa.int64()),
            "contentType": pa.array([each.content_type or None for each in messages], pa.string()),
            "priority": pa.array([copy.priority for copy in copies], pa.int32()),
            "expires": _ends(np.array([copy.expires_ms for copy in copies], np.int64)),
            "position": pa.array([copy.offset for copy in copies], pa.int64()),
        }
        if self._wants_values:
            found["value"] = pa.array([each.body for each in messages], pa.binary())
        return len(copies), found

    def _events_batch(self) -> tuple[int, dict[str, pa.Array]]:
        kinds, positions, walls, records = zip(*self._events, strict=True)
        counts = [_counts(record) for record in records]
        rows = [row for part in counts for row in part]
        index = np.repeat(np.arange(len(records)), [len(part) for part in counts])
        queues = [record.source if isinstance(record, Moved) else record.destination for record in records]
        seqs, times = np.array([row[0] for row in rows], np.int64), np.array(walls, np.int64)[index] * 1_000_000
        wanted, names = self._wanted, [shown(name) for name in queues]
        keep = _within(seqs, wanted.offsets) & _within(times, wanted.times_us)
        if wanted.destinations is not None:
            keep &= np.array([name in wanted.destinations for name in names], np.bool_)[index]
        back = [kind == CAME_BACK for kind in kinds]
        reasons = [REASONS[record.reason] if isinstance(record, Consumed) else None for record in records]
        targets = [record.target if isinstance(record, Moved) else None for record in records]
        deliveries, failures = ([row[at] for row in rows] for at in (1, 2))
        found = {
            "destination": _dictionary(index, names),
            "offset": pa.array(seqs),
            "timestamp": _times(times),
            "redelivered": pa.array([True if each else None for each in back], pa.bool_()).take(pa.array(index)),
            "kind": _dictionary(index, list(kinds)),
            "queue": _dictionary(index, queues),
            "target": _dictionary(index, targets),
            "reason": _dictionary(index, reasons),
            "deliveries": pa.array(deliveries, pa.int32()),
            "failures": pa.array(failures, pa.int32()),
            "position": pa.array(positions, pa.int64()).take(pa.array(index)),
        }
        if not keep.all():
            mask = pa.array(keep)
            found = {name: column.filter(mask) for name, column in found.items()}
        return int(keep.sum()), found

    def _kept(self, made: tuple[int, dict[str, pa.Array]]) -> Iterator[pa.RecordBatch]:
        """The batch of these columns; all other columns of the schema are null."""
        rows, found = made
        if rows:
            found |= {"epoch": _same(self._epoch, rows), "segment": _same(self._segment, rows)}
            columns = [
                found[field.name] if field.name in found else pa.nulls(rows, field.type) for field in self._columns
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=self._columns)


_Event = Consumed | Redelivered | Moved
_EVENTS: dict[type, str] = {Consumed: LEFT, Redelivered: CAME_BACK, Moved: MOVES}


def _counts(record: _Event) -> list[tuple[int, int | None, int | None]]:
    """(seq, deliveries, failures) of each message in the record."""
    if isinstance(record, Redelivered):
        return list(record.counts)
    return [(seq, None, None) for seq in record.seqs]


def shown(queue: str) -> str:
    """The queue as users know it: without the prefix for messages that a transaction or a lease holds."""
    return queue.removeprefix(SENT_SCHEME).removeprefix(HELD_SCHEME)


def _key(properties: Mapping[str, str]) -> str | None:
    return properties.get(CORRELATION_ID)


def _within(values: _Numbers, bounds: tuple[int, int]) -> _Numbers:
    return (values >= bounds[0]) & (values <= bounds[1])


def _times(values_us: _Numbers, nulls: _Numbers | None = None) -> pa.Array:
    return pa.array(values_us, mask=nulls).view(_TIMESTAMP)


def _ends(values_ms: _Numbers) -> pa.Array:
    """The times at which messages expire; null = never, or later than any time that Python has."""
    never = (values_ms == 0) | (values_ms > EXPIRES_MS_MAX)
    return _times(np.where(never, 0, values_ms) * 1000, never)


def _same(value: Any, rows: int) -> pa.Array:
    return pa.repeat(value, rows)


def _dictionary(index: _Numbers, values: Sequence[str | None]) -> pa.Array:
    return pa.array(values, pa.string()).take(pa.array(index))
