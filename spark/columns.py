"""Rows of a DataFrame as messages, by columns: what a task sends is made of Arrow's own buffers.

Invariant: rows of one destination keep their order. The key is the header `correlation-id`, and is before the
others. The checksum of a row says nothing of its partition, of its neighbours, nor of the order of its headers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from amq.client import Columns as Sent
from amq.core.message import LARGE_BODY_BYTES
from pyspark_amq.frames import BINARY_KEY, KEY_HEADER, NULL_HEADER, FrameColumns, FrameRows, SchemaError

FRAME_ROWS, FRAME_BYTES = 2000, 1 << 20  # in one frame, about
LISTS_MAX = 256  # of different names in one frame
VALUES_MAX = 50_000

_Numbers = npt.NDArray[Any]
_FACTOR = 0x9E3779B97F4A7C15  # odd: it has an inverse
_INVERSE = pow(_FACTOR, -1, 1 << 64)


@dataclass(frozen=True)
class RowTable:
    """Rows of one destination, in order.

    bodies   binary
    text     the bodies are text
    names    different names of headers
    codes    of each header of each row, one row after the other: which name it has
    values   of the same headers, binary
    counts   how many headers each row has; None = no row has any
    ids      of each row, or None
    """

    destination: str
    bodies: pa.Array
    text: bool
    names: Sequence[str]
    codes: _Numbers
    values: pa.Array
    counts: _Numbers | None
    ids: Sequence[str] | None

    def __len__(self) -> int:
        return len(self.bodies)

    @property
    def size(self) -> int:
        """Bytes of all bodies."""
        offsets, _ = _layout(self.bodies)
        return int(offsets[-1] - offsets[0])

    def part(self, start: int, stop: int) -> RowTable:
        """Those rows. Copies nothing."""
        codes, values, counts = self.codes, self.values, self.counts
        if counts is not None:
            first = int(counts[:start].sum())
            counts = counts[start:stop]
            last = first + int(counts.sum())
            codes, values = codes[first:last], values.slice(first, last - first)
        ids = None if self.ids is None else self.ids[start:stop]
        bodies = self.bodies.slice(start, stop - start)
        return RowTable(self.destination, bodies, self.text, self.names, codes, values, counts, ids)

    def checksum(self) -> int:
        """The sum of the checksums of the rows, each of destination, key, headers and value. It finds accidental
        differences, not those made by an attacker."""
        start = crc32(self.destination.encode())
        if self.counts is None:
            return sum(map(crc32, self.bodies.to_pylist(), repeat(start)))
        rows = np.fromiter(map(crc32, self.bodies.to_pylist(), repeat(start)), np.uint64, len(self))
        names = np.array([crc32(name.encode()) for name in self.names], np.uint64)[self.codes]
        pairs = _mixed(names * np.uint64(_INVERSE) + _hashes(self.values))
        sums = np.concatenate((np.zeros(1, np.uint64), np.cumsum(pairs, dtype=np.uint64)))
        ends = np.cumsum(self.counts)
        mixed = _mixed(rows + (sums[ends] - sums[ends - self.counts]) * np.uint64(_FACTOR))
        return int(np.where(self.counts > 0, mixed, rows).sum(dtype=np.uint64))

    def rows(self) -> FrameRows:
        """The same row by row."""
        return FrameRows(self.destination, self.bodies.to_pylist(), self.headers(), self.ids)

    def headers(self) -> list[dict[str, str] | None] | None:
        """The headers of each row; None = no row has any."""
        if self.counts is None:
            return None
        pairs = zip(map(self.names.__getitem__, self.codes.tolist()), self.values.to_pylist(), strict=True)
        return [
            {name: value.decode() for _, (name, value) in zip(range(count), pairs, strict=False)} or None
            for count in self.counts.tolist()
        ]

    def pieces(self) -> Iterator[RowTable]:
        """The rows in parts that fit into one frame each; one with a large body is alone."""
        offsets, _ = _layout(self.bodies)
        start = 0
        while start < len(self):
            fits = int(np.searchsorted(offsets, offsets[start] + FRAME_BYTES, "right")) - 1
            stop = min(start + FRAME_ROWS, max(fits, start + 1), len(self))
            yield from self.part(start, stop)._with_few_headers()
            start = stop

    def _with_few_headers(self) -> Iterator[RowTable]:
        rows, counts = len(self), self.counts
        few = counts is None or (counts.sum() <= VALUES_MAX and _bytes_of(self.values) <= FRAME_BYTES)
        if rows == 1 or (few and (counts is None or len(self._lists()[0]) <= LISTS_MAX)):
            yield self
        else:
            yield from self.part(0, rows // 2)._with_few_headers()
            yield from self.part(rows // 2, rows)._with_few_headers()

    def sent(self) -> Sent | None:
        """The columns that the client sends in one frame. None where that cannot carry it: then row by row, please."""
        offsets, data = _layout(self.bodies)
        lengths = np.diff(offsets)
        if lengths.max(initial=0) > LARGE_BODY_BYTES:
            return None
        lists: list[list[str]] = []
        which = values = b""
        if self.counts is not None:
            ends, texts = _layout(_terminated(self.values))
            values = bytes(texts[ends[0] : ends[-1]])
            if len(values) > 2 * FRAME_BYTES or len(self.values) > VALUES_MAX:
                return None
            if values.count(b"\0") != len(self.values):  # a value has one
                return None
            found, index = self._lists()
            lists = [[self.names[code] for code in codes] for codes in found]
            which = index.astype(np.uint8).tobytes() if len(found) > 1 else b""
        return Sent(
            len(self),
            bytes(data[offsets[0] : offsets[-1]]),
            lengths.astype("<u4").tobytes(),
            lists,
            which,
            values,
            self.text,
        )

    def _lists(self) -> tuple[list[list[int]], _Numbers]:
        """The different lists of codes of rows, and which of them each row has."""
        counts = self.counts
        assert counts is not None
        width = int(counts.max(initial=0))
        if (counts == width).all():
            codes = self.codes.reshape(len(counts), width)
            if (codes == codes[0]).all():
                return [codes[0].tolist()], np.zeros(len(counts), np.int64)
        matrix = np.full((len(counts), width), -1, np.int64)
        matrix[np.arange(width) < counts[:, None]] = self.codes
        found, index = np.unique(matrix, axis=0, return_inverse=True)
        return [[code for code in row if code >= 0] for row in found.tolist()], index.reshape(-1)


def tables_of(batch: pa.RecordBatch, columns: FrameColumns, destination: str | None) -> Iterator[RowTable]:
    """The rows of `batch`, grouped by destination. Raises SchemaError."""
    bodies = batch.column("value").cast(pa.binary())
    if bodies.null_count:
        bodies = bodies.fill_null(b"")
    ids = _ids_of(batch, columns.id)
    if destination is not None:
        yield _table(batch, columns, destination, bodies, ids)
        return
    names = _text(batch.column("destination"), "destination").dictionary_encode()
    if names.null_count or "" in names.dictionary.to_pylist():
        raise SchemaError("column 'destination' is null or empty in a row: fill it, or set the option destination")
    if len(names.dictionary) == 1:
        yield _table(batch, columns, names.dictionary[0].as_py(), bodies, ids)
        return
    index = names.indices.to_numpy()
    for code, name in enumerate(names.dictionary.to_pylist()):
        places = np.flatnonzero(index == code)
        own = pa.array(places)
        some = None if ids is None else [ids[place] for place in places.tolist()]
        yield _table(batch.take(own), columns, name, bodies.take(own), some)


def _table(
    batch: pa.RecordBatch, columns: FrameColumns, destination: str, bodies: pa.Array, ids: Sequence[str] | None
) -> RowTable:
    names, values, counts = _pairs(batch) if columns.headers else _no_pairs(len(batch))
    keys = _text_or_spelled(batch.column("key"), "key") if columns.key else pa.nulls(len(batch), pa.string())
    value = batch.column("value")
    if value.null_count:
        nulls = pc.if_else(value.is_null(), pa.scalar("true"), pa.scalar(None, pa.string()))
        names, values, counts = _with_first(NULL_HEADER, nulls, names, values, counts)
    names, values, counts = _with_first(KEY_HEADER, keys, names, values, counts)
    if not len(names):
        empty = pa.array([], pa.binary())
        return RowTable(destination, bodies, columns.text, (), np.zeros(0, np.int64), empty, None, ids)
    encoded = names.dictionary_encode()
    table = RowTable(
        destination,
        bodies,
        columns.text,
        encoded.dictionary.to_pylist(),
        encoded.indices.to_numpy(),
        values.cast(pa.binary()),
        counts,
        ids,
    )
    _check_twice(table)
    return table


def _no_pairs(rows: int) -> tuple[pa.Array, pa.Array, _Numbers]:
    return pa.array([], pa.string()), pa.array([], pa.string()), np.zeros(rows, np.int64)


def _pairs(batch: pa.RecordBatch) -> tuple[pa.Array, pa.Array, _Numbers]:
    """Names and values of the headers of all rows, but of those without a value; and how many each row has."""
    column = batch.column("headers")
    lists = _as_lists(column)
    counts = pc.fill_null(pc.list_value_length(lists), 0).to_numpy().astype(np.int64)
    structs = pc.list_flatten(lists)  # leaves out what a null row may have in its buffers
    if structs.null_count:
        raise SchemaError("column 'headers' has an entry that is null in a row: filter it out")
    names, values = structs.field(0), structs.field(1)
    if names.null_count:
        raise SchemaError("column 'headers' has a name that is null in a row: filter it out")
    names, values = _text(names, "headers"), _text_or_spelled(values, "headers")
    if values.null_count:
        kept = values.is_valid()
        names, values, counts = names.filter(kept), values.filter(kept), _counts_of(kept, counts)
    return names, values, counts


def _as_lists(column: pa.Array) -> pa.Array:
    """A map as a list of structs. Its buffers are the same."""
    if not pa.types.is_map(column.type):
        return column
    kind = column.type
    pair = pa.struct([pa.field("key", kind.key_type, False), pa.field("value", kind.item_type)])
    return column.cast(pa.list_(pa.field("entries", pair, False)))


def _counts_of(kept: pa.Array, counts: _Numbers) -> _Numbers:
    """How many of the entries of each row are kept."""
    sums = np.concatenate(([0], np.cumsum(kept.to_numpy(zero_copy_only=False))))
    ends = np.cumsum(counts)
    found: _Numbers = sums[ends] - sums[ends - counts]
    return found


def _text_or_spelled(column: pa.Array, name: str) -> pa.Array:
    """The column as text. Bytes that are none are spelled, so that a reader has the same bytes again."""
    if not pa.types.is_binary(column.type) and not pa.types.is_large_binary(column.type):
        return _text(column, name)
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([None if each is None else _spelled(each) for each in column.to_pylist()], pa.string())


def _spelled(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return BINARY_KEY + value.hex().upper()


def _with_first(
    header: str, keys: pa.Array, names: pa.Array, values: pa.Array, counts: _Numbers
) -> tuple[pa.Array, pa.Array, _Numbers]:
    """The same, where a row with a key has that as its first `header`. A key wins over a header of its name."""
    ours = pc.equal(names, header)
    if pc.any(ours).as_py():
        rows, places = np.repeat(np.arange(len(counts)), counts), np.full(len(counts), -1, np.int64)
        found = np.flatnonzero(ours.to_numpy(zero_copy_only=False))
        places[rows[found]] = found
        keys = pc.coalesce(keys, values.take(pa.array(places, mask=places < 0)))
        others = pc.invert(ours)
        names, values, counts = names.filter(others), values.filter(others), _counts_of(others, counts)
    has_key = keys.is_valid().to_numpy(zero_copy_only=False)
    if not has_key.any():
        return names, values, counts
    if not len(names) and has_key.all():
        return pa.repeat(header, len(keys)), keys, np.ones(len(keys), np.int64)
    total = counts + has_key
    firsts = (np.cumsum(total) - total)[has_key]
    places = np.empty(int(total.sum()), np.int64)
    is_other = np.ones(len(places), np.bool_)
    is_other[firsts] = False
    places[is_other] = np.arange(len(names))
    places[firsts] = len(names) + np.flatnonzero(has_key)
    order = pa.array(places)
    names = pa.concat_arrays([names, pa.repeat(header, len(keys))]).take(order)
    return names, pa.concat_arrays([values, keys]).take(order), total


def _check_twice(table: RowTable) -> None:
    """Raises SchemaError where a row has two headers of one name, which cannot be in a map of Spark."""
    assert table.counts is not None
    rows = np.repeat(np.arange(len(table)), table.counts)
    both = rows * len(table.names) + table.codes
    both.sort()
    twice = np.flatnonzero(both[1:] == both[:-1])
    if len(twice):
        name = table.names[int(both[twice[0]] % len(table.names))]
        raise SchemaError(f"column 'headers' has {name!r} twice in a row: a message has one value for each name")


def _text(column: pa.Array, name: str) -> pa.Array:
    """The column as text that is UTF-8. Raises SchemaError."""
    try:
        return column.cast(pa.binary()).cast(pa.string())
    except pa.ArrowInvalid as error:  # a string of Spark may hold a line of a file in another encoding
        cure = "decode it where it is read, or write decode(CAST(… AS BINARY), 'ISO-8859-1')"
        raise SchemaError(f"column '{name}' is not UTF-8 in a row: {cure}") from error


def _ids_of(batch: pa.RecordBatch, name: str | None) -> list[str] | None:
    if name is None:
        return None
    ids: list[str] = _text(batch.column(name), name).to_pylist()
    if not all(ids):
        raise SchemaError(f"column '{name}' (option idColumn) is null or empty in a row: each row needs an id")
    return ids


def _layout(column: pa.Array) -> tuple[_Numbers, memoryview]:
    """Offsets of the elements of a binary column, one more than there are, and the bytes that they count."""
    _, offsets, data = column.buffers()
    found = np.frombuffer(offsets, np.int32, len(column) + 1, 4 * column.offset).astype(np.int64)
    return found, memoryview(data if data is not None else b"")


def _bytes_of(column: pa.Array) -> int:
    offsets, _ = _layout(column)
    return int(offsets[-1] - offsets[0])


def _terminated(values: pa.Array) -> pa.Array:
    """The same with a NUL behind each."""
    return pc.binary_join_element_wise(values, b"", b"\0")


def _hashes(values: pa.Array) -> _Numbers:
    """A hash of each: of a polynomial modulo 2**64, in a few steps for all bytes of all values."""
    offsets, data = _layout(_terminated(values))
    start, stop = int(offsets[0]), int(offsets[-1])
    offsets = offsets - start
    powers = np.full(stop - start + 1, _FACTOR, np.uint64)
    inverses = np.full(stop - start + 1, _INVERSE, np.uint64)
    powers[0] = inverses[0] = 1
    np.cumprod(powers, out=powers)
    np.cumprod(inverses, out=inverses)
    terms = (np.frombuffer(data, np.uint8, stop - start, start).astype(np.uint64) + np.uint64(1)) * powers[:-1]
    sums = np.concatenate((np.zeros(1, np.uint64), np.cumsum(terms, dtype=np.uint64)))
    return (sums[offsets[1:]] - sums[offsets[:-1]]) * inverses[offsets[:-1]]


def _mixed(numbers: _Numbers) -> _Numbers:
    """Such that each bit depends on all: the end of MurmurHash3."""
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        numbers = (numbers ^ (numbers >> np.uint64(33))) * np.uint64(factor)
    mixed: _Numbers = numbers ^ (numbers >> np.uint64(33))
    return mixed
