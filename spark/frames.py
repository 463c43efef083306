"""Rows of a DataFrame as messages: the meaning of columns, and Arrow batches as lists of bodies and headers.

Invariant: rows of one destination keep their order. A row without a value or a destination is rejected; nothing is
guessed. Arrow data becomes Python objects column by column, which is five times as fast as row by row.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from itertools import repeat
from typing import Any
from zlib import crc32

import pyarrow as pa
from pyspark.sql.types import BinaryType, DataType, MapType, StringType, StructType

from amq.errors import ConfigError
from pyspark_amq.options import BY_CONTENT, SinkOptions

KEY_HEADER = "correlation-id"  # column `key` ↔ this header
CHUNK_BYTES = 8 << 20  # of rows that a task keeps until they are safe

_TEXT, _TEXT_OR_BYTES = (StringType,), (StringType, BinaryType)
_COLUMNS: dict[str, tuple[type[DataType], ...]] = {
    "value": _TEXT_OR_BYTES, "key": _TEXT, "destination": _TEXT, "headers": (MapType,)
}  # fmt: skip


class SchemaError(ConfigError):
    """The columns of a DataFrame, or the values in them, cannot become messages."""

    code = "SCHEMA_INVALID"


@dataclass(frozen=True)
class Columns:
    """The columns of a DataFrame. `text`: is `value` text, or bytes?"""

    text: bool
    key: bool
    destination: bool
    headers: bool
    id: str | None


@dataclass(frozen=True)
class Rows:
    """Rows of one destination, in order. `headers`: those of each row, or None if no row has any; `ids` likewise."""

    destination: str
    bodies: list[bytes]
    headers: list[dict[str, str] | None] | None
    ids: list[str] | None


def columns(schema: StructType, options: SinkOptions) -> Columns:
    """The meaning of the columns of `schema`. Raises SchemaError."""
    types = {field.name: field.dataType for field in schema.fields}
    if len(types) < len(schema.fields):
        twice = next(name for name in types if schema.names.count(name) > 1)
        raise SchemaError(f"column '{twice}' is there twice: drop or rename one")
    for name, found in types.items():
        allowed = _COLUMNS.get(name)
        if allowed is None and name != options.id_column:
            known = ", ".join(_COLUMNS)
            raise SchemaError(f"column '{name}' is not known to format amq: known are {known}; drop or rename it")
        if allowed is not None and not isinstance(found, allowed):
            raise SchemaError(f"column '{name}' is {found.simpleString()}, {_cast(name)}")
    if "value" not in types:
        raise SchemaError('column \'value\' is missing: write for example .selectExpr("to_json(struct(*)) AS value")')
    headers = types.get("headers")
    if headers is not None and not (isinstance(headers.keyType, _TEXT) and isinstance(headers.valueType, _TEXT)):
        raise SchemaError(f"column 'headers' is {headers.simpleString()}, {_cast('headers')}")
    if options.destination is None and "destination" not in types:
        raise SchemaError("the rows have no destination: set the option destination, or give a column 'destination'")
    if options.id_column is not None and options.id_column not in types:
        raise SchemaError(f"option 'idColumn' names '{options.id_column}', and there is no such column")
    if options.id_column in types and not isinstance(types[options.id_column], _TEXT):
        found = types[options.id_column]
        raise SchemaError(f"column '{options.id_column}' is {found.simpleString()}: cast it to string")
    return Columns(
        isinstance(types["value"], StringType), "key" in types,
        options.destination is None, "headers" in types, options.id_column,
    )  # fmt: skip


def _cast(name: str) -> str:
    if name == "headers":
        return "it must be map<string,string>: cast it"
    if name == "value":
        return "it must be string or binary: cast it, or write to_json(struct(...)) AS value"
    return "it must be string: cast it"


def chunks(batches: Iterable[pa.RecordBatch], rows_max: int) -> Iterator[list[pa.RecordBatch]]:
    """The rows in chunks, each sent and kept as one: up to `rows_max` rows, about `CHUNK_BYTES`. Copies nothing."""
    chunk: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        for piece in _pieces(batch, rows_max):
            if chunk and (rows + piece.num_rows > rows_max or size + piece.nbytes > CHUNK_BYTES):
                yield chunk
                chunk, rows, size = [], 0, 0
            chunk.append(piece)
            rows += piece.num_rows
            size += piece.nbytes
    if chunk:
        yield chunk


def _pieces(batch: pa.RecordBatch, rows_max: int) -> Iterator[pa.RecordBatch]:
    """`batch` in parts that fit into a chunk, unless a single row is larger."""
    for start in range(0, batch.num_rows, rows_max):
        yield from _halves(batch.slice(start, rows_max))


def _halves(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """`batch`, halved until each part fits."""
    rows = batch.num_rows
    if rows == 1 or batch.nbytes <= CHUNK_BYTES:
        yield batch
    else:
        yield from _halves(batch.slice(0, rows // 2))
        yield from _halves(batch.slice(rows // 2))


def rows_of(batch: pa.RecordBatch, columns: Columns, destination: str | None) -> Iterator[Rows]:
    """The rows of `batch`, grouped by destination. Raises SchemaError."""
    value = batch.column("value")
    if columns.text:
        value = value.cast(pa.binary() if value.type == pa.string() else pa.large_binary())
    if value.null_count:
        raise SchemaError("column 'value' is null in a row: filter such rows out, or write coalesce(value, '')")
    bodies: list[bytes] = value.to_pylist()
    headers = _headers_of(batch, columns)
    ids = _ids_of(batch, columns.id)
    if destination is not None:
        yield Rows(destination, bodies, headers, ids)
        return
    places: dict[str, list[int]] = {}
    for i, name in enumerate(_texts(batch, "destination")):
        if not name:
            raise SchemaError("column 'destination' is null or empty in a row: fill it, or set the option destination")
        places.setdefault(name, []).append(i)
    for name, found in places.items():
        if len(found) == len(bodies):
            yield Rows(name, bodies, headers, ids)
        else:
            yield Rows(
                name, [bodies[i] for i in found], None if headers is None else [headers[i] for i in found],
                None if ids is None else [ids[i] for i in found],
            )  # fmt: skip


def _headers_of(batch: pa.RecordBatch, columns: Columns) -> list[dict[str, str] | None] | None:
    if not (columns.headers or columns.key):
        return None
    found: list[dict[str, str] | None] = [None] * batch.num_rows
    if columns.headers:
        found = [None if pairs is None else _strings(pairs) for pairs in _texts(batch, "headers")]
    if columns.key:
        for i, key in enumerate(_texts(batch, "key")):
            if key is not None:
                found[i] = {**(found[i] or {}), KEY_HEADER: key}
    return found


def _texts(batch: pa.RecordBatch, name: str) -> list[Any]:
    """Column `name`, which holds text. Raises SchemaError."""
    try:
        found: list[Any] = batch.column(name).to_pylist()
    except UnicodeDecodeError as error:  # a string of Spark may hold a line of a file in another encoding
        cure = "decode it where it is read, or write decode(CAST(… AS BINARY), 'ISO-8859-1')"
        raise SchemaError(f"column '{name}' is not UTF-8 in a row: {cure}") from error
    return found


def _strings(pairs: list[tuple[str, str | None]]) -> dict[str, str]:
    return {name: text for name, text in pairs if text is not None}


def _ids_of(batch: pa.RecordBatch, name: str | None) -> list[str] | None:
    if name is None:
        return None
    ids = _texts(batch, name)
    if not all(ids):
        raise SchemaError(f"column '{name}' (option idColumn) is null or empty in a row: each row needs an id")
    return ids


def checksum(rows: Rows) -> int:
    """A checksum of destination, key, headers and value of each row. The sum of the checksums does not depend on the
    order of the rows, nor on their partitions. It finds accidental differences, not those made by an attacker."""
    start = crc32(rows.destination.encode())
    if rows.headers is None:
        return sum(map(crc32, rows.bodies, repeat(start)))
    total = 0
    for body, headers in zip(rows.bodies, rows.headers, strict=True):
        own = start if not headers else crc32(repr(sorted(headers.items())).encode(), start)
        total += crc32(body, own)
    return total


class Identifier:
    """Ids for duplicate detection of the rows of one task, if no column has them.

    By content: a row of a partition of a batch always gets the same id, in whatever order the rows come. Equal rows are
    counted. By position: the n-th row of a destination always gets the same id, however Arrow cuts the rows into
    batches. So ids by position are wrong if the rows come in another order.
    """

    def __init__(self, scope: str, strategy: str) -> None:
        self._scope = blake2b(scope.encode(), digest_size=32).digest()
        self._by_content = strategy == BY_CONTENT
        self._seen: dict[bytes, int] = {}
        self._counts: dict[str, int] = {}  # rows of each destination

    def ids(self, rows: Rows) -> list[str]:
        """One id for each row. Call it once for each `Rows`."""
        if rows.ids is not None:
            return rows.ids
        if self._by_content:
            headers = rows.headers or [None] * len(rows.bodies)
            rows_headers = zip(rows.bodies, headers, strict=True)
            return [self._by_hash(rows.destination, body, extra) for body, extra in rows_headers]
        start = self._counts.get(rows.destination, 0)
        stop = self._counts[rows.destination] = start + len(rows.bodies)
        scope = blake2b(rows.destination.encode(), digest_size=16, key=self._scope).hexdigest()
        return [f"{scope}.{n}" for n in range(start, stop)]

    def _by_hash(self, destination: str, body: bytes, headers: dict[str, str] | None) -> str:
        hash = blake2b(body, digest_size=16, key=self._scope)
        hash.update(repr((destination, len(body), sorted(headers.items()) if headers else None)).encode())
        digest = hash.digest()
        number = self._seen.get(digest, 0)
        self._seen[digest] = number + 1
        return f"{digest.hex()}.{number}"
