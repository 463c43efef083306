"""Rows of a DataFrame as messages: the meaning of columns, the chunks in which a task sends them, and ids of rows.

Invariant: a row without a destination is rejected; nothing is guessed. `pyspark_amq.columns` makes messages
of columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import pyarrow as pa
from pyspark.sql.types import ArrayType, BinaryType, DataType, MapType, StringType, StructType

from amq.core.errors import ConfigError
from pyspark_amq.options import BY_CONTENT, SinkOptions

KEY_HEADER = "correlation-id"  # column `key` ↔ this header
NULL_HEADER = "amq-null"  # with the value "true" and no body: the column `value` is null
BINARY_KEY = "ID:AMQP_BINARY:"  # a key, or a header, of bytes that are no text begins so, then hex
CHUNK_BYTES = 8 << 20  # of rows that a task keeps until they are safe

_TEXT, _TEXT_OR_BYTES = (StringType,), (StringType, BinaryType)
_COLUMNS: dict[str, tuple[type[DataType], ...]] = {
    "value": _TEXT_OR_BYTES,
    "key": _TEXT_OR_BYTES,
    "destination": _TEXT,
    "headers": (MapType, ArrayType),
}


class SchemaError(ConfigError):
    """The columns of a DataFrame, or the values in them, cannot become messages."""

    code = "SCHEMA_INVALID"


@dataclass(frozen=True)
class FrameColumns:
    """The columns of a DataFrame. `text`: is `value` text, or bytes?"""

    text: bool
    key: bool
    destination: bool
    headers: bool
    id: str | None


@dataclass(frozen=True)
class FrameRows:
    """Rows of one destination, in order. `headers`: those of each row, or None if no row has any; `ids` likewise."""

    destination: str
    bodies: list[bytes]
    headers: list[dict[str, str] | None] | None
    ids: Sequence[str] | None


def columns(schema: StructType, options: SinkOptions) -> FrameColumns:
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
        raise SchemaError("column 'value' is missing: write for example .selectExpr(\"to_json(struct(*)) AS value\")")
    headers = types.get("headers")
    if headers is not None and not _are_headers(headers):
        raise SchemaError(f"column 'headers' is {headers.simpleString()}, {_cast('headers')}")
    if options.destination is None and "destination" not in types:
        raise SchemaError("the rows have no destination: set the option destination, or give a column 'destination'")
    if options.id_column is not None and options.id_column not in types:
        raise SchemaError(f"option 'idColumn' names '{options.id_column}', and there is no such column")
    if options.id_column in types and not isinstance(types[options.id_column], _TEXT):
        found = types[options.id_column]
        raise SchemaError(f"column '{options.id_column}' is {found.simpleString()}: cast it to string")
    return FrameColumns(
        isinstance(types["value"], StringType),
        "key" in types,
        options.destination is None,
        "headers" in types,
        options.id_column,
    )


def _are_headers(found: DataType) -> bool:
    """Are these headers as a map of texts, or as Kafka has them?"""
    if isinstance(found, MapType):
        return isinstance(found.keyType, _TEXT) and isinstance(found.valueType, _TEXT)
    pair = found.elementType if isinstance(found, ArrayType) else None
    if not isinstance(pair, StructType) or pair.names != ["key", "value"]:
        return False
    return isinstance(pair["key"].dataType, _TEXT) and isinstance(pair["value"].dataType, _TEXT_OR_BYTES)


def _cast(name: str) -> str:
    if name == "headers":
        return "it must be map<string,string>, or array<struct<key:string,value:binary>>: cast it"
    if name == "key":
        return "it must be string or binary: cast it"
    if name == "value":
        return "it must be string or binary: cast it, or write to_json(struct(...)) AS value"
    return "it must be string: cast it"


def chunks(batches: Iterable[pa.RecordBatch], rows_max: int) -> Iterator[list[pa.RecordBatch]]:
    """The rows in chunks, each sent and kept as one: up to `rows_max` rows, about `CHUNK_BYTES`. Copies nothing. A full
    chunk comes before the next batch is read."""
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
            if rows == rows_max:
                yield chunk
                chunk, rows, size = [], 0, 0
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

    def ids(self, rows: FrameRows) -> Sequence[str]:
        """One id for each row. Call it once for each `FrameRows`."""
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
