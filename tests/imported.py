"""A broker in this process with the configuration of another one, and two clients of one shape: STOMP and OpenWire."""

from __future__ import annotations

import asyncio
import itertools
import socket
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from amq.broker.queues.redelivery import DELAY
from amq.cli.foreign_users import read_permissions, read_users
from amq.client.errors import ConnectionLostError
from amq.client.openwire.addresses import parse
from amq.client.openwire.peer import Peer, connect
from amq.client.openwire.wire import SESSION
from amq.client.tls import Contexts
from amq.config import load
from amq.core.errors import AmqError
from amq.doors.clock import SystemClock
from amq.node.member import BrokerService, Role
from amq.protocols.openwire import table
from amq.protocols.openwire.consumers import INDIVIDUAL, POISON
from amq.protocols.openwire.primitives import decode_map, encode_map
from amq.protocols.openwire.table import Structure, structure
from amq.protocols.stomp.frame import FrameReader, Limits, encode
from amq.security import LoginGate
from tests.openwire_client import text_content
from tests.ports import free_port

PATIENCE_S = 60.0

_numbers = itertools.count(1)


class Refused(Exception):
    """The broker answers with an error, or closes the connection."""


class Got(NamedTuple):
    """A delivery. `user` = who sent it; `found` = the frame or structure; `says_delay`: it came after a rejection."""

    body: str
    deliveries: int
    user: str
    found: Any
    says_delay: bool


@contextmanager
def broker_of(xml: str, directory: Path) -> Iterator[int]:
    """A master with that file; the placeholder ${port} in it is the port that is returned."""
    port = free_port()
    path = directory / "other.xml"
    path.write_text(xml)
    properties = {"port": str(port)}
    config = load(str(path), {}, ["managementSocket=none"], store=str(directory / "store"), properties=properties)
    gate = LoginGate(config.users_file, config.anonymous, lambda file: read_users(file, str(path), properties))
    permissions = None
    if config.permissions_file:
        permissions = read_permissions(config.permissions_file, str(path), properties)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="imported-broker")
    thread.start()

    async def serve() -> BrokerService:
        service = BrokerService(config, gate.authenticate, permissions=permissions)
        await service.start()
        assert await asyncio.wait_for(service.wait_for(Role.MASTER), PATIENCE_S) is Role.MASTER, service.failure
        return service

    try:
        service = asyncio.run_coroutine_threadsafe(serve(), loop).result()
        try:
            yield port
        finally:
            asyncio.run_coroutine_threadsafe(service.stop(), loop).result(PATIENCE_S)
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
        gate.close()


class Stomp:
    """STOMP 1.2. Each call waits for its answer."""

    name = "stomp"

    def __init__(self, port: int, user: str = "", password: str = "") -> None:
        self._sock = socket.create_connection(("127.0.0.1", port), PATIENCE_S)
        self._reader = FrameReader(Limits(), "1.2")
        self._inboxes: dict[str, deque[Got]] = {}
        self._receipts: set[str] = set()
        login = [("login", user), ("passcode", password)] if user else []
        try:
            self._write("CONNECT", [("accept-version", "1.2"), ("host", "/"), *login])
            self._until(lambda: "" in self._receipts)
        except BaseException:
            self.close()
            raise

    def send(self, kind: str, name: str, body: str, **properties: Any) -> None:
        expires = [("expires", str(properties.pop("expires")))] if "expires" in properties else []
        told = [(key, str(value)) for key, value in properties.items()]
        self._ask("SEND", [("destination", f"/{kind}/{name}"), ("persistent", "true"), *expires, *told], body.encode())

    def subscribe(self, kind: str, name: str, prefetch: int = 0, retroactive: bool = False) -> str:
        id = str(next(_numbers))
        self._inboxes[id] = deque()
        told = [("activemq.prefetchSize", str(prefetch))] if prefetch else []
        told += [("activemq.retroactive", "true")] if retroactive else []
        self._ask("SUBSCRIBE", [("id", id), ("destination", f"/{kind}/{name}"), ("ack", "client-individual"), *told])
        return id

    def next(self, id: str) -> Got:
        self._until(lambda: bool(self._inboxes[id]))
        return self._inboxes[id].popleft()

    def accept(self, got: Got) -> None:
        self._ask("ACK", [("id", got.found.headers["ack"])])

    def refuse(self, got: Got) -> None:
        self._ask("NACK", [("id", got.found.headers["ack"])])

    def close(self) -> None:
        self._sock.close()

    def wait_closed(self) -> None:
        try:
            while True:
                self._read()
        except Refused:
            return

    def _write(self, command: str, headers: list[tuple[str, str]], body: bytes = b"") -> None:
        self._sock.sendall(encode(command, headers, body, "1.2"))

    def _ask(self, command: str, headers: list[tuple[str, str]], body: bytes = b"") -> None:
        receipt = f"r{next(_numbers)}"
        try:
            self._write(command, [*headers, ("receipt", receipt)], body)
            self._until(lambda: receipt in self._receipts)
        except OSError as error:
            raise Refused(str(error)) from error

    def _until(self, condition: Any) -> None:
        while not condition():
            self._read()

    def _read(self) -> None:
        data = self._sock.recv(1 << 16)
        if not data:
            raise Refused("closed")
        for frame in self._reader.feed(data):
            if frame.command == "ERROR":
                raise Refused(frame.headers["message"])
            if frame.command == "MESSAGE":
                headers = frame.headers
                count = int(headers.get("JMSXDeliveryCount", "1"))
                got = Got(bytes(frame.body).decode(), count, headers.get("JMSXUserID", ""), frame, DELAY in headers)
                self._inboxes[headers["subscription"]].append(got)
            else:
                self._receipts.add(frame.headers.get("receipt-id", ""))


class OpenWire:
    """OpenWire, as the Java client speaks it. A consumer refuses with a poison acknowledgement."""

    name = "openwire"

    def __init__(self, port: int, user: str = "", password: str = "") -> None:
        try:
            self._peer: Peer = connect(
                parse(f"tcp://127.0.0.1:{port}"),
                user,
                password,
                f"ID:imported-{next(_numbers)}:1",
                SystemClock(),
                "the broker",
                Contexts(),
            )
        except AmqError as error:
            raise Refused(str(error)) from error
        wire = self._peer.wire
        wire.on_dispatch = self._dispatched
        self._inboxes: dict[int, deque[Got]] = {}
        self._producer = structure(table.PRODUCER_ID, connection=wire.connection, session=SESSION, value=1)
        self._peer.request(structure(table.PRODUCER_INFO, id=self._producer))

    def send(self, kind: str, name: str, body: str, **properties: Any) -> None:
        id = structure(table.MESSAGE_ID, producer=self._producer, producer_sequence=next(_numbers))
        expires = properties.pop("expires", 0)
        self._request(
            structure(
                table.TEXT_MESSAGE,
                id=id,
                producer=self._producer,
                destination=_destination(kind, name),
                persistent=True,
                priority=4,
                timestamp=SystemClock().wall_ms(),
                expiration=expires,
                content=text_content(body),
                properties=encode_map(properties) if properties else None,
            )
        )

    def subscribe(self, kind: str, name: str, prefetch: int = 0, retroactive: bool = False) -> int:
        value = next(_numbers)
        self._inboxes[value] = deque()
        id = structure(table.CONSUMER_ID, connection=self._peer.wire.connection, session=SESSION, value=value)
        self._request(
            structure(
                table.CONSUMER_INFO,
                id=id,
                destination=_destination(kind, name),
                prefetch=prefetch or 1000,
                retroactive=retroactive,
                asynchronous=True,
            )
        )
        return value

    def next(self, id: int) -> Got:
        self._peer.wait(lambda: bool(self._inboxes[id]), PATIENCE_S, "delivers nothing")
        return self._inboxes[id].popleft()

    def accept(self, got: Got) -> None:
        self._acknowledge(got, INDIVIDUAL)

    def refuse(self, got: Got) -> None:
        self._acknowledge(got, POISON)

    def close(self) -> None:
        self._peer.close()

    def wait_closed(self) -> None:
        with pytest.raises(ConnectionLostError):
            self._peer.wait(lambda: False, PATIENCE_S, "does not close")

    def _acknowledge(self, got: Got, kind: int) -> None:
        id = got.found.fields["message"].get("id")
        self._request(
            structure(
                table.MESSAGE_ACK,
                destination=got.found.get("destination"),
                consumer=got.found.fields["consumer"],
                kind=kind,
                first=id,
                last=id,
                count=1,
            )
        )

    def _request(self, found: Structure) -> None:
        try:
            self._peer.request(found)
        except AmqError as error:
            raise Refused(str(error)) from error

    def _dispatched(self, found: Structure) -> None:
        message = found.get("message")
        if message is None:
            return
        content = message.get("content") or b"\0\0\0\0"
        deliveries, user = found.get("redelivery_counter", 0) + 1, message.get("user_id") or ""
        says_delay = DELAY in decode_map(message.get("properties") or b"")
        got = Got(bytes(content[4:]).decode(), deliveries, user, found, says_delay)
        self._inboxes[found.fields["consumer"].get("value", 0)].append(got)


def _destination(kind: str, name: str) -> Structure:
    return structure(table.QUEUE if kind == "queue" else table.TOPIC, name=name)


Client = Stomp | OpenWire
