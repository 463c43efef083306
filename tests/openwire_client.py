"""A small OpenWire client for tests: sends messages whose every field the test chooses, and shows each that comes."""

from __future__ import annotations

import itertools
import socket
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from amq.client.tls import Contexts
from amq.core.values import Float32, Int8, Int16, Int32
from amq.doors.clock import SystemClock
from amq.protocols.openwire import table
from amq.protocols.openwire.primitives import encode_map, encode_stream
from amq.protocols.openwire.table import Structure, structure
from amq.protocols.openwire.wire import INT, encode_text
from amq_migrate.openwire.addresses import parse
from amq_migrate.openwire.peer import OtherBroker, connect
from amq_migrate.openwire.queues import INDIVIDUAL, acknowledge, consuming, queue_of
from amq_migrate.openwire.wire import SESSION, Wire
from tests.patience import DEADLINE_S

_numbers = itertools.count(1)
PROPERTIES = {
    "truth": True,
    "byte": Int8(-3),
    "short": Int16(300),
    "int": Int32(70_000),
    "long": 1 << 40,
    "float": Float32(0.5),
    "double": 0.1,
    "text": "Zürich 😀 \0",
    "breit": "x" * 70_000,
}


def new_peer(url: str, user: str = "", password: str = "") -> OtherBroker:
    """A connection; close it."""
    return connect(parse(url), user, password, f"ID:test-{next(_numbers)}:1", SystemClock(), "the broker", Contexts())


def peer_as(url: str, client_id: str) -> OtherBroker:
    """A connection with a client id that its program has given; close it. Raises AmqError."""
    address = parse(url).uris[0].address
    sock = socket.create_connection(address, DEADLINE_S)
    sock.setblocking(False)
    clock = SystemClock()
    peer = OtherBroker(sock, Wire("the broker", f"ID:test-{next(_numbers)}:1", clock.monotonic()), clock)
    try:
        peer.wait(lambda: peer.wire.version > 0, DEADLINE_S, "says nothing")
        peer.request(structure(table.CONNECTION_INFO, id=peer.wire.id, client_id=client_id), DEADLINE_S)
        session = structure(table.SESSION_ID, connection=peer.wire.connection, value=SESSION)
        peer.wire.send(structure(table.SESSION_INFO, id=session))
    except BaseException:
        peer.close()
        raise
    return peer


@contextmanager
def peer_of(url: str, user: str = "", password: str = "") -> Iterator[OtherBroker]:
    """A connection that ends in an orderly way."""
    peer = new_peer(url, user, password)
    try:
        yield peer
        peer.leave()
    finally:
        peer.close()


def text_content(text: str) -> bytes:
    data = encode_text(text)
    return INT.pack(len(data)) + data


def message(number: int, kind: int = table.TEXT_MESSAGE, /, **fields: Any) -> Structure:
    """A persistent text message; its id is that of a producer that is not the connection's."""
    producer = structure(table.PRODUCER_ID, connection="ID:somewhere-41-1:1", session=1, value=7)
    found: dict[str, Any] = {
        "id": structure(table.MESSAGE_ID, producer=producer, producer_sequence=number),
        "persistent": True,
        "priority": 4,
        "timestamp": 1_700_000_000_000 + number,
        "content": text_content(f"body {number}"),
        **fields,
    }
    return Structure(kind, found)


def one_of_each() -> list[Structure]:
    """Messages of all types, with all that a message can have."""
    every = encode_map(PROPERTIES)
    reply = structure(table.QUEUE, name="answers")
    return [
        message(1),
        message(2, content=None),
        message(3, content=text_content("")),
        message(4, content=zlib.compress(text_content("long " * 500)), compressed=True, properties=every),
        message(5, table.BYTES_MESSAGE, content=bytes(range(256)), priority=9, correlation_id="c-1", type="order"),
        message(6, table.MAP_MESSAGE, content=encode_map(PROPERTIES), properties=every, reply_to=reply),
        message(7, table.STREAM_MESSAGE, content=encode_stream([1, "two", b"three", None]), priority=0),
        message(8, table.OBJECT_MESSAGE, content=b"\xac\xed\0\5t\0\3abc", expiration=4_102_444_800_000),
        message(9, table.MESSAGE, content=None, properties=encode_map({"only": "properties"})),
        message(10, group_id="group", group_sequence=3, user_id="ann"),
        message(11, table.BYTES_MESSAGE, content=bytes(300_000)),
        message(12, original_destination=structure(table.QUEUE, name="first"), properties=every),
    ]


def send(peer: OtherBroker, queue: str, messages: list[Structure]) -> None:
    """Each is confirmed."""
    producer = structure(table.PRODUCER_ID, connection=peer.wire.connection, session=SESSION, value=next(_numbers))
    peer.request(structure(table.PRODUCER_INFO, id=producer))
    left = [len(messages)]

    def answered(answer: Any) -> None:
        assert isinstance(answer, Structure), answer
        left[0] -= 1

    for each in messages:
        fields = {**each.fields, "producer": producer, "destination": queue_of(queue)}
        peer.wire.send(Structure(each.type, fields), answered)
    peer.wait(lambda: not left[0], 60, "does not confirm")


def receive(peer: OtherBroker, queue: str, count: int) -> list[Structure]:
    """So many messages of the queue, which are acknowledged."""
    found: list[Structure] = []

    def dispatched(dispatch: Structure) -> None:
        if dispatch.get("message") is not None and len(found) < count:
            found.append(dispatch.fields["message"])
            acknowledge(peer, dispatch, dispatch.fields["consumer"], INDIVIDUAL)

    peer.wire.on_dispatch = dispatched
    with consuming(peer, next(_numbers) + 5000, queue_of(queue), 1000):
        peer.wait(lambda: len(found) == count, DEADLINE_S, f"has no {count} messages on {queue}")
    return found


def facts(found: Structure) -> dict[str, Any]:
    """What a JMS program sees of a message: all but what is of one connection."""
    of_brokers = {
        "command_id",
        "response_required",
        "producer",
        "destination",
        "arrival",
        "broker_in_time",
        "broker_out_time",
        "redelivery_counter",
        "original_transaction",
        "transaction",
        "group_first",
        "path",
        "cluster",
    }
    shown = {name: value for name, value in found.fields.items() if name not in of_brokers and value}
    id = dict(shown.pop("id").fields)
    del id["broker_sequence"]
    return {"type_of_message": found.type, "id": id, **shown}


def number_of(found: Structure) -> int:
    return int(found.fields["id"].get("producer_sequence"))
