"""All commands and data structures of OpenWire, in one table, and one codec for them.

The hot commands (messages, dispatches, acknowledgements, responses) also have code of their own in `messages` and
`server`; what is here is how each of them is read and written in general, and the reference for that code.

Source: https://activemq.apache.org/openwire-version-2-specification, the marshallers of ActiveMQ 5.17.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from amq.protocols.openwire.wire import (
    BYTE,
    INT,
    LONG,
    UNSIGNED_SHORT,
    FieldReader,
    optional_bytes,
    optional_text,
)

VERSION_MAX: Final = 12
DEPTH_MAX: Final = 8  # of structures in each other: a message in a dispatch has three
(
    WIRE_FORMAT_INFO,
    BROKER_INFO,
    CONNECTION_INFO,
    SESSION_INFO,
    CONSUMER_INFO,
    PRODUCER_INFO,
    TRANSACTION_INFO,
    DESTINATION_INFO,
    REMOVE_SUBSCRIPTION_INFO,
    KEEP_ALIVE_INFO,
    SHUTDOWN_INFO,
    REMOVE_INFO,
) = range(1, 13)
CONTROL_COMMAND, FLUSH_COMMAND, CONNECTION_ERROR, CONSUMER_CONTROL, CONNECTION_CONTROL = range(14, 19)
PRODUCER_ACK, MESSAGE_PULL, MESSAGE_DISPATCH, MESSAGE_ACK = range(19, 23)
MESSAGE, BYTES_MESSAGE, MAP_MESSAGE, OBJECT_MESSAGE, STREAM_MESSAGE, TEXT_MESSAGE, BLOB_MESSAGE = range(23, 30)
RESPONSE, EXCEPTION_RESPONSE, DATA_RESPONSE, DATA_ARRAY_RESPONSE, INTEGER_RESPONSE = range(30, 35)
SUBSCRIPTION_INFO: Final = 55
QUEUE, TOPIC, TEMP_QUEUE, TEMP_TOPIC = range(100, 104)
DESTINATION_TYPES: Final = (QUEUE, TOPIC, TEMP_QUEUE, TEMP_TOPIC)
MESSAGE_ID, LOCAL_TRANSACTION_ID, XA_TRANSACTION_ID = range(110, 113)
CONNECTION_ID, SESSION_ID, CONSUMER_ID, PRODUCER_ID, BROKER_ID = range(120, 125)


class Structure(NamedTuple):
    """A command or data structure: its type, and its fields by name. Fields of a version that the peer does not speak
    are missing."""

    type: int
    fields: dict[str, Any]

    def get(self, name: str, default: Any = None) -> Any:
        """The field `name`; `default` where it is missing, or nothing."""
        found = self.fields.get(name)
        return default if found is None else found


class Throwable(NamedTuple):
    """An exception, without its stack trace: the name of its Java class, and its message."""

    name: str | None
    message: str | None


_Field = tuple[str, str, int]  # name, kind, and the version since which it is there
# Kinds: s text, b truth, y 8 bits, i 32 bits, l 64 bits, B bytes, o structure, a structures, T exception.
_COMMAND: Final = "command_id i, response_required b"
_ANY_MESSAGE: Final = (
    f"{_COMMAND}, producer o, destination o, transaction o, original_destination o, id o, original_transaction o, "
    "group_id s, group_sequence i, correlation_id s, persistent b, expiration l, priority y, reply_to o, timestamp l, "
    "type s, content B, properties B, data_structure o, target_consumer o, compressed b, redelivery_counter i, path a, "
    "arrival l, user_id s, by_bridge b, droppable b 2, cluster a 3, broker_in_time l 3, broker_out_time l 3, "
    "group_first b 10"
)
_TEXTS: Final[dict[int, str]] = {
    BROKER_INFO: f"{_COMMAND}, id o, url s, peers a, name s, slave b, master b, fault_tolerant b, duplex b 2, "
    "network b 2, connection_number l 2, upload_url s 3, network_properties s 3",
    CONNECTION_INFO: f"{_COMMAND}, id o, client_id s, password s, user_name s, path a, master_connector b, "
    "manageable b, client_master b 2, fault_tolerant b 6, failover_reconnect b 6, client_ip s 8",
    SESSION_INFO: f"{_COMMAND}, id o",
    CONSUMER_INFO: f"{_COMMAND}, id o, browser b, destination o, prefetch i, pending_limit i, asynchronous b, "
    "selector s, client_id s 10, subscription_name s, no_local b, exclusive b, retroactive b, priority y, path a, "
    "predicate o, network b, optimized b, no_ranges b, consumer_path a 4",
    PRODUCER_INFO: f"{_COMMAND}, id o, destination o, path a, asynchronous b 2, window i 3",
    TRANSACTION_INFO: f"{_COMMAND}, connection o, transaction o, kind y",
    DESTINATION_INFO: f"{_COMMAND}, connection o, destination o, kind y, timeout l, path a",
    REMOVE_SUBSCRIPTION_INFO: f"{_COMMAND}, connection o, name s, client_id s",
    KEEP_ALIVE_INFO: _COMMAND,
    SHUTDOWN_INFO: _COMMAND,
    REMOVE_INFO: f"{_COMMAND}, id o, last_delivered l 5",
    CONTROL_COMMAND: f"{_COMMAND}, command s",
    FLUSH_COMMAND: _COMMAND,
    CONNECTION_ERROR: f"{_COMMAND}, exception T, connection o",
    CONSUMER_CONTROL: f"{_COMMAND}, destination o 6, close b, consumer o, prefetch i, flush b 2, start b 2, stop b 2",
    CONNECTION_CONTROL: f"{_COMMAND}, close b, exit b, fault_tolerant b, resume b, suspend b, connected_brokers s 6, "
    "reconnect_to s 6, rebalance b 6, token B 8",
    PRODUCER_ACK: f"{_COMMAND}, producer o, size i",
    MESSAGE_PULL: f"{_COMMAND}, consumer o, destination o, timeout l, correlation_id s 3, message_id o 3",
    MESSAGE_DISPATCH: f"{_COMMAND}, consumer o, destination o, message o, redelivery_counter i",
    MESSAGE_ACK: f"{_COMMAND}, destination o, transaction o, consumer o, kind y, first o, last o, count i, cause T 7",
    **dict.fromkeys(range(MESSAGE, BLOB_MESSAGE), _ANY_MESSAGE),
    BLOB_MESSAGE: f"{_ANY_MESSAGE}, url s, mime_type s, deleted_by_broker b",
    RESPONSE: f"{_COMMAND}, correlation_id i",
    EXCEPTION_RESPONSE: f"{_COMMAND}, correlation_id i, exception T",
    DATA_RESPONSE: f"{_COMMAND}, correlation_id i, data o",
    DATA_ARRAY_RESPONSE: f"{_COMMAND}, correlation_id i, data a",
    INTEGER_RESPONSE: f"{_COMMAND}, correlation_id i, result i",
    SUBSCRIPTION_INFO: "client_id s, destination o, selector s, name s, subscribed o 3, no_local b 11",
    **dict.fromkeys(range(QUEUE, TEMP_TOPIC + 1), "name s"),
    MESSAGE_ID: "text s 10, producer o, producer_sequence l, broker_sequence l",
    LOCAL_TRANSACTION_ID: "value l, connection o",
    XA_TRANSACTION_ID: "format i, global_id B, branch B",
    CONNECTION_ID: "value s",
    SESSION_ID: "connection s, value l",
    CONSUMER_ID: "connection s, session l, value l",
    PRODUCER_ID: "connection s, value l, session l",
    BROKER_ID: "value s",
}


def _fields(text: str) -> tuple[_Field, ...]:
    words = [field.split() for field in text.split(", ")]
    return tuple((word[0], word[1], int(word[2]) if len(word) > 2 else 1) for word in words)


FIELDS: Final[dict[int, tuple[_Field, ...]]] = {type: _fields(text) for type, text in _TEXTS.items()}


def structure(type: int, **fields: Any) -> Structure:
    """A structure of that type. Fields that are not named are nothing, false or 0."""
    assert fields.keys() <= {name for name, _, _ in FIELDS[type]}, fields.keys()
    return Structure(type, fields)


def decode(data: bytes, version: int = VERSION_MAX) -> Structure:
    """The structure that `data` is: a frame without its size. ValueError where it is none."""
    reader = FieldReader(data)
    found = read_structure(reader, version, 0)
    if reader.at != reader.end:
        raise ValueError(f"{reader.end - reader.at} bytes follow the end of a command of type {found.type}")
    return found


def encode(found: Structure, version: int = VERSION_MAX) -> bytes:
    """The bytes of a structure: its type and its fields. ValueError where a text is too long."""
    parts = [bytes((found.type,))]
    for name, kind, since in FIELDS[found.type]:
        if since <= version:
            parts.append(_WRITE[kind](found.fields.get(name), version))
    return b"".join(parts)


def frame(found: Structure, version: int = VERSION_MAX) -> bytes:
    """The same with its size before it, as it is sent."""
    data = encode(found, version)
    return INT.pack(len(data)) + data


def nested(found: Structure | None, version: int = VERSION_MAX) -> bytes:
    """A structure as the field of another one."""
    return b"\0" if found is None else b"\1" + encode(found, version)


def write_field(kind: str, found: Any, version: int) -> bytes:
    """One field of that kind."""
    return _WRITE[kind](found, version)


def read_structure(reader: FieldReader, version: int, depth: int) -> Structure:
    """The structure that begins there. Raises ValueError."""
    type = reader.unsigned_byte()
    fields = FIELDS.get(type)
    if fields is None:
        raise ValueError(f"commands and structures of type {type} are unknown")
    if depth > DEPTH_MAX:
        raise ValueError(f"structures are nested more than {DEPTH_MAX} levels deep")
    found: dict[str, Any] = {}
    for name, kind, since in fields:
        if since <= version:
            found[name] = _READ[kind](reader, version, depth)
    return Structure(type, found)


def read_nested(reader: FieldReader, version: int, depth: int = 0) -> Structure | None:
    """A structure as the field of another one. Raises ValueError."""
    return read_structure(reader, version, depth + 1) if reader.boolean() else None


def _read_array(reader: FieldReader, version: int, depth: int) -> list[Structure | None] | None:
    if not reader.boolean():
        return None
    return [read_nested(reader, version, depth) for _ in range(reader.unsigned_short())]


def _read_throwable(reader: FieldReader, version: int, depth: int) -> Throwable | None:  # noqa: ARG001
    if not reader.boolean():
        return None
    name = reader.optional_text()
    return Throwable(name, reader.optional_text())


def _write_array(found: list[Structure] | None, version: int) -> bytes:
    if found is None:
        return b"\0"
    return b"\1" + UNSIGNED_SHORT.pack(len(found)) + b"".join([nested(each, version) for each in found])


def _write_throwable(found: Throwable | None, version: int) -> bytes:  # noqa: ARG001
    return b"\0" if found is None else b"\1" + optional_text(found.name) + optional_text(found.message)


_READ: Final[dict[str, Callable[[FieldReader, int, int], Any]]] = {
    "s": lambda reader, _version, _depth: reader.optional_text(),
    "b": lambda reader, _version, _depth: reader.boolean(),
    "y": lambda reader, _version, _depth: reader.byte(),
    "i": lambda reader, _version, _depth: reader.integer(),
    "l": lambda reader, _version, _depth: reader.long(),
    "B": lambda reader, _version, _depth: reader.optional_bytes(),
    "o": read_nested,
    "a": _read_array,
    "T": _read_throwable,
}
_WRITE: Final[dict[str, Callable[[Any, int], bytes]]] = {
    "s": lambda found, _version: optional_text(found),
    "b": lambda found, _version: b"\1" if found else b"\0",
    "y": lambda found, _version: BYTE.pack(found or 0),
    "i": lambda found, _version: INT.pack(found or 0),
    "l": lambda found, _version: LONG.pack(found or 0),
    "B": lambda found, _version: optional_bytes(found),
    "o": nested,
    "a": _write_array,
    "T": _write_throwable,
}


def part(found: Structure | None, *types: int) -> Structure:
    """A structure that must be there, of one of these types. Raises ValueError."""
    if found is None or (types and found.type not in types):
        raise ValueError("a structure is missing, or is of another type than it must be")
    return found
