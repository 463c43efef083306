"""Messages as rows of a DataFrame: the schema of the source, and Arrow batches that equal it.

Invariant: columns, their order and their Arrow types are those that Spark makes of the schema: it looks at the first
batch of a partition only, and would misread another one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from pyspark_amq.frames import KEY_HEADER

BATCH_ROWS, BATCH_BYTES = 10_000, 16 << 20  # of one Arrow batch, whichever comes first

_FIELDS = (
    ("key", StringType(), pa.string()),
    ("value", BinaryType(), pa.binary()),
    ("destination", StringType(), pa.string()),
    ("offset", LongType(), pa.int64()),
    ("timestamp", TimestampType(), pa.timestamp("us", "UTC")),
    ("messageId", StringType(), pa.string()),
    ("redelivered", BooleanType(), pa.bool_()),
)
_HEADERS = ("headers", MapType(StringType(), StringType()), pa.map_(pa.string(), pa.string()))


class Received(Protocol):
    """A message as our client hands it over."""

    body: bytes
    headers: dict[str, str]

    @property
    def id(self) -> str: ...
    @property
    def destination(self) -> str: ...


def schema(include_headers: bool) -> StructType:
    """Of the rows."""
    fields = (*_FIELDS, _HEADERS) if include_headers else _FIELDS
    return StructType([StructField(name, kind, True) for name, kind, _ in fields])


def offset_of(message: Received) -> int:
    """The broker's number of the message, which grows from one stored to the next."""
    return int(message.id.rpartition("-")[2])


def batches(parts: Iterable[Sequence[Received]], include_headers: bool) -> Iterator[pa.RecordBatch]:
    """Arrow batches of the messages in `parts`, in their order."""
    fields = (*_FIELDS, _HEADERS) if include_headers else _FIELDS
    arrow = pa.schema([pa.field(name, kind) for name, _, kind in fields])
    for chunk in _chunks(parts):
        headers = [message.headers for message in chunk]
        columns: list[list[object]] = [
            [each.get(KEY_HEADER) for each in headers],
            [message.body for message in chunk],
            [message.destination for message in chunk],
            [offset_of(message) for message in chunk],
            [1000 * int(each.get("timestamp", "0")) for each in headers],
            [message.id for message in chunk],
            [each.get("redelivered") == "true" for each in headers],
        ]
        if include_headers:
            columns.append([list(each.items()) for each in headers])
        arrays = [pa.array(column, kind.type) for column, kind in zip(columns, arrow, strict=True)]
        yield pa.RecordBatch.from_arrays(arrays, schema=arrow)


def _chunks(parts: Iterable[Sequence[Received]]) -> Iterator[list[Received]]:
    """The same messages, as many at a time as go into one Arrow batch."""
    chunk: list[Received] = []
    size = 0
    for part in parts:
        for message in part:
            if chunk and (size + len(message.body) > BATCH_BYTES or len(chunk) == BATCH_ROWS):
                yield chunk
                chunk, size = [], 0
            chunk.append(message)
            size += len(message.body)
    if chunk:
        yield chunk
