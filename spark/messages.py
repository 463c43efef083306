"""Messages as rows of a DataFrame: the schema of the source, and Arrow batches that equal it.

Invariant: the columns, their order and their Arrow types equal those that Spark derives from the schema. Spark checks
only the first batch of a partition, and would misread a different one.
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

from pyspark_amq.frames import KEY_HEADER, SchemaError

BATCH_ROWS, BATCH_BYTES = 10_000, 16 << 20  # limits of one Arrow batch

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
    """A message as our client delivers it."""

    body: bytes
    headers: dict[str, str]

    @property
    def id(self) -> str: ...
    @property
    def destination(self) -> str: ...


def schema(include_headers: bool) -> StructType:
    """The columns of the rows."""
    fields = (*_FIELDS, _HEADERS) if include_headers else _FIELDS
    return StructType([StructField(name, kind, True) for name, kind, _ in fields])


def check_schema(given: StructType, ours: StructType, name: str = "amq") -> None:
    """Raises SchemaError if a user gave another schema, with `.schema(…)` or in CREATE TABLE."""
    wanted = [(field.name, field.dataType) for field in ours.fields]
    if [(field.name, field.dataType) for field in given.fields] != wanted:
        columns = ", ".join(f"{each} {kind.simpleString()}" for each, kind in wanted)
        raise SchemaError(
            f"format {name} has its own columns ({columns}), and was given {given.simpleString()}: leave .schema(…) "
            "out, and choose or cast columns by select"
        )


def offset_of(message: Received) -> int:
    """The broker's number of the message. A message that is stored later has a higher one."""
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
    """The same messages, in parts that fit into one Arrow batch."""
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
