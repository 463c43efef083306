"""Messages as rows of a DataFrame: the columns of the source, and Arrow batches that equal a schema of them.

A schema that a user gives is a projection: some of the columns, in any order, each in one of its types. Invariant: the
columns, their order and their Arrow types equal those that Spark derives from the schema. Spark checks only the first
batch of a partition, and would misread a different one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from amq.client.core import RESERVED_HEADERS
from pyspark_amq.frames import BINARY_KEY, KEY_HEADER, NULL_HEADER, SchemaError

BATCH_ROWS, BATCH_BYTES = 10_000, 16 << 20  # limits of one Arrow batch

# Headers of a delivery that its producer did not set.
OF_A_DELIVERY = RESERVED_HEADERS | {
    "ack",
    "JMSXDeliveryCount",
    "message-id",
    "redelivered",
    "subscription",
    "timestamp",
}
_LEFT_OUT = OF_A_DELIVERY | {NULL_HEADER}  # of column `headers`
_TEXT, _BYTES = StringType(), BinaryType()
_MAP = MapType(_TEXT, _TEXT)
# As Kafka's source has them: first with bytes as values.
_PAIRS = tuple(
    ArrayType(StructType([StructField("key", _TEXT), StructField("value", kind)])) for kind in (_BYTES, _TEXT)
)
HEADERS = "headers"
# The types that a column may have; without a schema of the user it has the first one.
_TYPES: Mapping[str, tuple[DataType, ...]] = {
    "key": (_TEXT, _BYTES),
    "value": (_BYTES, _TEXT),
    "destination": (_TEXT,),
    "offset": (LongType(),),
    "timestamp": (TimestampType(),),
    "messageId": (_TEXT,),
    "redelivered": (BooleanType(),),
    HEADERS: (_MAP, *_PAIRS),
}
_ARROW: Mapping[type[DataType], pa.DataType] = {
    StringType: pa.string(),
    BinaryType: pa.binary(),
    LongType: pa.int64(),
    IntegerType: pa.int32(),
    BooleanType: pa.bool_(),
    TimestampType: pa.timestamp("us", "UTC"),
}


class Received(Protocol):
    """A message as our client delivers it."""

    body: bytes
    headers: dict[str, str]

    @property
    def id(self) -> str: ...
    @property
    def destination(self) -> str: ...


def schema(include_headers: bool) -> StructType:
    """The columns of the rows, where the user names none."""
    names = [name for name in _TYPES if include_headers or name != HEADERS]
    return StructType([StructField(name, _TYPES[name][0], True) for name in names])


def shape(given: StructType, name: str = "amq") -> pa.Schema:
    """The Arrow schema of rows with the columns `given`. Raises SchemaError for columns that the source has not."""
    return project(given, _TYPES, name)


def project(given: StructType, types: Mapping[str, Sequence[DataType]], name: str) -> pa.Schema:
    """The same for a source of that `name` which has columns of these `types`."""
    cure = "choose some of them, or leave .schema(…) out; cast columns by select"
    shown = ", ".join(f"{each} {' or '.join(kind.simpleString() for kind in kinds)}" for each, kinds in types.items())
    for field in given.fields:
        if field.name not in types:
            raise SchemaError(f"format {name} has no column '{field.name}': it has {shown}; {cure}")
        if _nullable(field.dataType) not in map(_nullable, types[field.name]):
            found = field.dataType.simpleString()
            raise SchemaError(f"column '{field.name}' of format {name} cannot be {found}: it has {shown}; {cure}")
        if not field.nullable:
            raise SchemaError(f"column '{field.name}' of format {name} may be null: leave NOT NULL out")
    if not given.fields or len(set(given.names)) < len(given.names):
        raise SchemaError(f"the schema for format {name} has no column, or one twice: it has {shown}; {cure}")
    return pa.schema([pa.field(field.name, _arrow(field.dataType)) for field in given.fields])


def _nullable(kind: DataType) -> DataType:
    """The same type where everything in it may be null."""
    if isinstance(kind, ArrayType):
        return ArrayType(_nullable(kind.elementType))
    if isinstance(kind, MapType):
        return MapType(_nullable(kind.keyType), _nullable(kind.valueType))
    if isinstance(kind, StructType):
        return StructType([StructField(field.name, _nullable(field.dataType)) for field in kind.fields])
    return kind


def _arrow(kind: DataType) -> pa.DataType:
    """The Arrow type that Spark expects."""
    if isinstance(kind, ArrayType):
        return pa.list_(pa.field("element", _arrow(kind.elementType), kind.containsNull))
    if isinstance(kind, MapType):
        return pa.map_(_arrow(kind.keyType), pa.field("value", _arrow(kind.valueType), kind.valueContainsNull))
    if isinstance(kind, StructType):
        return pa.struct([pa.field(field.name, _arrow(field.dataType), field.nullable) for field in kind.fields])
    return _ARROW[type(kind)]


def offset_of(message: Received) -> int:
    """The broker's number of the message. A message that is stored later has a higher one."""
    return int(message.id.rpartition("-")[2])


def batches(parts: Iterable[Sequence[Received]], wanted: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Arrow batches of the messages in `parts`, in their order. Raises SchemaError."""
    for chunk in _chunks(parts):
        headers = [message.headers for message in chunk]
        columns: dict[str, pa.Array] = {
            "key": pa.array([each.get(KEY_HEADER) for each in headers], pa.string()),
            "value": pa.array(map(_value_of, chunk), pa.binary()),
            "destination": pa.array([message.destination for message in chunk], pa.string()),
            "offset": pa.array([offset_of(message) for message in chunk], pa.int64()),
            "timestamp": pa.array([1000 * int(each.get("timestamp", "0")) for each in headers], _ARROW[TimestampType]),
            "messageId": pa.array([message.id for message in chunk], pa.string()),
            "redelivered": pa.array([each.get("redelivered") == "true" for each in headers], pa.bool_()),
        }
        if HEADERS in wanted.names:
            own = [[pair for pair in each.items() if pair[0] not in _LEFT_OUT] for each in headers]
            columns[HEADERS] = pa.array(own, pa.map_(pa.string(), pa.string()))
        yield batch_of(columns, wanted)


def _value_of(message: Received) -> bytes | None:
    return message.body or (None if message.headers.get(NULL_HEADER) == "true" else b"")


def batch_of(columns: Mapping[str, pa.Array], wanted: pa.Schema) -> pa.RecordBatch:
    """The `wanted` ones of `columns`, which have their first types. Raises SchemaError."""
    arrays = [_as(columns[field.name], field) for field in wanted]
    return pa.RecordBatch.from_arrays(arrays, schema=wanted)


def _as(column: pa.Array, field: pa.Field) -> pa.Array:
    kind = field.type
    if column.type == kind:
        return column
    if field.name == "key":
        return _bytes_of_texts(column)
    if field.name == HEADERS:
        return _headers_as(column, kind)
    try:
        return column.cast(kind)
    except pa.ArrowInvalid as error:
        cure = f"read it as binary: leave '{field.name} string' out of .schema(…)"
        raise SchemaError(f"column '{field.name}' is not UTF-8 in a message: {cure}") from error


def _bytes_of_texts(column: pa.Array) -> pa.Array:
    """Keys, or values of headers, as bytes: those that the sink had to spell, as they were."""
    spelled = pc.starts_with(column, BINARY_KEY)
    found = column.cast(pa.binary())
    if not pc.any(spelled).as_py():
        return found
    texts = column.to_pylist()
    return pa.array([_unspelled(text) if text is not None else None for text in texts], pa.binary())


def _unspelled(text: str) -> bytes:
    if text.startswith(BINARY_KEY):
        try:
            return bytes.fromhex(text.removeprefix(BINARY_KEY))
        except ValueError:
            pass  # somebody else's text that looks so
    return text.encode()


def _headers_as(column: pa.MapArray, kind: pa.DataType) -> pa.Array:
    if pa.types.is_map(kind):
        return column.cast(kind)
    pair = kind.value_type
    start, stop = column.offsets[0].as_py(), column.offsets[-1].as_py()
    names = column.keys.slice(start, stop - start).cast(pair.field(0).type)
    values = column.items.slice(start, stop - start)
    if values.type != pair.field(1).type:
        values = _bytes_of_texts(values)
    structs = pa.StructArray.from_arrays([names, values], fields=[pair.field(0), pair.field(1)])
    offsets = pc.subtract(column.offsets, pa.scalar(start, pa.int32()))
    return pa.ListArray.from_arrays(offsets, structs, type=kind)


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
