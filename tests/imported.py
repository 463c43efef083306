"""A broker in this process with the configuration of another one, and a client of STOMP."""

from __future__ import annotations

import asyncio
import itertools
import socket
import threading
from collections import deque
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from amq.broker.queues.redelivery import DELAY
from amq.cli.foreign import read_permissions, read_users
from amq.node.member import Hosting, Member, Role
from amq.protocols.stomp.frame import FrameLimits, FrameReader, encode
from amq.security import LoginGate
from amq.security.permissions import Permissions
from amq_migrate import foreign
from amq_migrate.foreign import load
from tests.patience import DEADLINE_S
from tests.ports import free_port

Found = TypeVar("Found")

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


class Running:
    """A broker in this process."""

    def __init__(self, port: int, loop: asyncio.AbstractEventLoop) -> None:
        self.port = port
        self._loop = loop
        self.service: Member

    def call(self, made: Coroutine[Any, Any, Found]) -> Found:
        """The result of a coroutine that runs on the event loop of the broker."""
        return asyncio.run_coroutine_threadsafe(made, self._loop).result(DEADLINE_S)

    def stop(self) -> None:
        if self.service.role is not Role.STOPPED:
            self.call(self.service.stop())


@contextmanager
def broker_of(
    xml: str,
    directory: Path,
    *options: str,
    roles: Mapping[str, Sequence[str]] | None = None,
) -> Iterator[Running]:
    """A master with that file. Placeholders in it: ${port}, and ${directory} for its store.

    A file that says nothing of a directory gets a store beside it. `options` = as `amq start -o` has them;
    `roles` = their users, as `amq config import --roles` takes them.
    """
    port = free_port()
    path = directory / f"{port}.xml"
    path.write_text(xml)
    properties = {"port": str(port), "directory": str(directory)}
    store = None if "${directory}" in xml else str(directory / "store")
    config = load(str(path), {}, ["managementSocket=none", *options], store=store, properties=properties)
    gate = LoginGate(config.users_file, config.anonymous, lambda file: read_users(file, str(path), properties))
    permissions = None
    if roles:
        found = foreign.read(xml.encode(), str(path), properties, {}, roles).permissions
        assert found is not None
        permissions = Permissions.of(found, str(path), 1)
    elif config.permissions_file:
        permissions = read_permissions(config.permissions_file, str(path), properties)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="imported-broker")
    thread.start()
    running = Running(port, loop)

    async def serve() -> None:
        running.service = Member(config, gate.authenticate, hosting=Hosting(permissions=permissions))
        await running.service.start()
        await asyncio.wait_for(running.service.wait_for(Role.MASTER), DEADLINE_S)

    try:
        running.call(serve())
        try:
            yield running
        finally:
            running.stop()
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
        gate.close()


class Stomp:
    """STOMP 1.2. Each call waits for its answer."""

    def __init__(self, port: int, user: str = "", password: str = "") -> None:
        self._sock = socket.create_connection(("127.0.0.1", port), DEADLINE_S)
        self._reader = FrameReader(FrameLimits(), "1.2")
        self._inboxes: dict[str, deque[Got]] = {}
        self._receipts: set[str] = set()
        login = [("login", user), ("passcode", password)] if user else []
        try:
            self._write("CONNECT", [("accept-version", "1.2"), ("host", "/"), *login])
            self._until(lambda: "" in self._receipts)
        except BaseException:
            self.close()
            raise

    def send(self, kind: str, name: str, body: str) -> None:
        self._ask("SEND", [("destination", f"/{kind}/{name}")], body.encode())

    def subscribe(self, kind: str, name: str) -> str:
        id = str(next(_numbers))
        self._inboxes[id] = deque()
        self._ask("SUBSCRIBE", [("id", id), ("destination", f"/{kind}/{name}"), ("ack", "client-individual")])
        return id

    def next(self, id: str) -> Got:
        self._until(lambda: bool(self._inboxes[id]))
        return self._inboxes[id].popleft()

    def accept(self, got: Got) -> None:
        self._ask("ACK", [("id", got.found.headers["ack"])])

    def refuse(self, got: Got, requeue: bool = False) -> None:
        self._ask("NACK", [("id", got.found.headers["ack"]), ("requeue", "true" if requeue else "false")])

    def close(self) -> None:
        self._sock.close()

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
