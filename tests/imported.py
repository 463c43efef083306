"""A broker in this process with the configuration of another one, and a client of STOMP."""

from __future__ import annotations

import asyncio
import itertools
import socket
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from amq.broker.events import RoleChanged
from amq.broker.queues.redelivery import DELAY
from amq.cli.foreign import read_permissions, read_users
from amq.config.schema import BrokerConfig
from amq.doors.clock import SystemClock
from amq.management.slices import Slices
from amq.management.views import clients, totals
from amq.node.member import Hosting, Member, Role
from amq.protocols.stomp.frame import FrameLimits, FrameReader, encode
from amq.security import LoginGate
from amq.security.permissions import Permissions
from amq.store.files.vfs import Vfs
from amq.store.open import open_store, store_behind
from amq.store.presence import BrokerPresence, read_presence
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
    """A broker in this process. `store` is its directory, wherever the file has it."""

    def __init__(self, port: int, config: BrokerConfig, loop: asyncio.AbstractEventLoop) -> None:
        self.port = port
        self.store = Path(config.store)
        self.roles: list[Role] = []  # that it has had
        self._loop = loop
        self.service: Member

    def call(self, made: Coroutine[Any, Any, Found]) -> Found:
        """The result of a coroutine that runs on the event loop of the broker."""
        return asyncio.run_coroutine_threadsafe(made, self._loop).result(DEADLINE_S)

    def figures(self) -> dict[str, Any]:
        """What the management interface tells of the whole broker, with `blocked` = clients that wait for room."""

        async def look() -> dict[str, Any]:
            assert self.service.master is not None
            master = self.service.master
            return {**totals(master.broker), **await clients(list(master.connections.values()), Slices(SystemClock()))}

        return self.call(look())

    def presence(self, name: str) -> BrokerPresence | None:
        """What the broker of that name says of itself in the store, as `amq status` shows it. None = it does not run"""
        running = read_presence(open_store(str(self.store)).board)
        return next((each for each in running if each.name == name), None)

    def becomes(self, role: Role) -> None:
        """Wait until it has had this role, however soon it had the next one."""
        until(lambda: role in self.roles or self.service.role is Role.STOPPED)
        assert role in self.roles, self.service.failure

    def stop(self) -> None:
        if self.service.role is not Role.STOPPED:
            self.call(self.service.stop())


def until(condition: Callable[[], bool]) -> None:
    """Ask again and again until `condition()`; an error after `DEADLINE_S`."""
    clock = SystemClock()
    end = clock.monotonic() + DEADLINE_S
    while not condition():
        assert clock.monotonic() < end, "it has not come true"
        threading.Event().wait(0.005)


@contextmanager
def broker_of(
    xml: str,
    directory: Path,
    *options: str,
    role: Role = Role.MASTER,
    vfs: Vfs | None = None,
    roles: Mapping[str, Sequence[str]] | None = None,
) -> Iterator[Running]:
    """A broker with that file, in that role. Placeholders in it: ${port}, and ${directory} for its store.

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
    running = Running(port, config, loop)

    async def serve() -> None:
        running.service = Member(
            config,
            gate.authenticate,
            hosting=Hosting(permissions=permissions),
            store=vfs and store_behind(vfs, config.store),
        )
        running.service.events.listen(RoleChanged, lambda event: running.roles.append(Role(event.role)))
        await running.service.start()

    try:
        running.call(serve())
        try:
            running.becomes(role)
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

    def __init__(self, port: int, user: str = "", password: str = "", client_id: str = "") -> None:
        self._sock = socket.create_connection(("127.0.0.1", port), DEADLINE_S)
        self._reader = FrameReader(FrameLimits(), "1.2")
        self._inboxes: dict[str, deque[Got]] = {}
        self._receipts: set[str] = set()
        login = [("login", user), ("passcode", password)] if user else []
        login += [("client-id", client_id)] if client_id else []
        try:
            self._write("CONNECT", [("accept-version", "1.2"), ("host", "/"), *login])
            self._until(lambda: "" in self._receipts)
        except BaseException:
            self.close()
            raise

    @property
    def address(self) -> tuple[str, int]:
        """Its own end of the connection."""
        host, port = self._sock.getsockname()[:2]
        return host, port

    def send(self, kind: str, name: str, body: str, **properties: Any) -> None:
        self.send_all(kind, name, [body], **properties)()

    def send_all(self, kind: str, name: str, bodies: list[str], **properties: Any) -> Callable[[], None]:
        """Send without a wait; the result waits until all are confirmed."""
        named = {"expires": "expires", "id": "_AMQ_DUPL_ID", "transaction": "transaction"}
        persistent = "true" if properties.pop("persistent", True) else "false"
        told = [(named.get(key, key), str(value)) for key, value in properties.items()]
        fixed = [("destination", f"/{kind}/{name}"), ("persistent", persistent), *told]
        receipts = {f"r{next(_numbers)}": body for body in bodies}
        frames = [encode("SEND", [*fixed, ("receipt", id)], body.encode(), "1.2") for id, body in receipts.items()]
        try:
            self._sock.sendall(b"".join(frames))
        except OSError as error:
            raise Refused(str(error)) from error
        return lambda: self._until(lambda: receipts.keys() <= self._receipts)

    def begin(self) -> str:
        name = f"t{next(_numbers)}"
        self._ask("BEGIN", [("transaction", name)])
        return name

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
