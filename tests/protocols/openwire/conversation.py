"""Connections of an OpenWireCodec for tests: what a client of ActiveMQ sends, and what the answers say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from amq.protocols.openwire import table
from amq.protocols.openwire.codec import OpenWireCodec
from amq.protocols.openwire.hello import MAGIC
from amq.protocols.openwire.primitives import encode_map
from amq.protocols.openwire.table import Structure, decode, frame, structure
from amq.protocols.openwire.wire import INT, optional_bytes

ID = structure(table.CONNECTION_ID, value="ID:host-1-1:1")
SESSION = structure(table.SESSION_ID, connection="ID:host-1-1:1", value=1)
PRODUCER = structure(table.PRODUCER_ID, connection="ID:host-1-1:1", session=1, value=1)
CONSUMER = structure(table.CONSUMER_ID, connection="ID:host-1-1:1", session=1, value=1)
TRANSACTION = structure(table.LOCAL_TRANSACTION_ID, connection=ID, value=5)
QUEUE = structure(table.QUEUE, name="orders")


def greeting(version: int = 12, **options: Any) -> bytes:
    data = bytes((table.WIRE_FORMAT_INFO,)) + MAGIC + INT.pack(version) + optional_bytes(encode_map(options))
    return INT.pack(len(data)) + data


def said(type: int, command_id: int = 0, responds: bool = False, version: int = 12, **fields: Any) -> bytes:
    return frame(structure(type, command_id=command_id, response_required=responds, **fields), version)


def login(version: int = 12, **fields: Any) -> bytes:
    return said(
        table.CONNECTION_INFO, 1, True, version, **({"id": ID, "client_id": "c", "failover_reconnect": False} | fields)
    )


def opened(version: int = 12, **fields: Any) -> OpenWireCodec:
    """A connection with a session, a producer and a consumer."""
    codec = OpenWireCodec()
    codec.receive(greeting(version) + login(version, **fields))
    codec.connected("1")
    codec.receive(
        said(table.SESSION_INFO, 2, version=version, id=SESSION)
        + said(table.PRODUCER_INFO, 3, True, version=version, id=PRODUCER, destination=QUEUE)
        + said(table.CONSUMER_INFO, 4, True, version=version, id=CONSUMER, destination=QUEUE, prefetch=1000)
    )
    codec.unsaid = b""
    return codec


def message(kind: int = table.TEXT_MESSAGE, sequence: int = 1, **fields: Any) -> Structure:
    id = structure(table.MESSAGE_ID, producer=PRODUCER, producer_sequence=sequence)
    return Structure(
        kind, {"producer": PRODUCER, "destination": QUEUE, "id": id, "persistent": True, "priority": 4} | fields
    )


def frames(data: bytes, version: int = 12) -> Iterator[Structure]:
    """What the broker said; its WireFormatInfo is left out."""
    at = 0
    while at < len(data):
        (size,) = INT.unpack_from(data, at)
        if data[at + 4] != table.WIRE_FORMAT_INFO:
            yield decode(data[at + 4 : at + 4 + size], version)
        at += 4 + size
    assert at == len(data)
