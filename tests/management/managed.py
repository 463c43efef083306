"""A broker in this process with its management socket, for tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from amq.config.schema import BrokerConfig
from amq.management.client import ManagementClient
from amq.management.listing import Row
from amq.management.resources import Caller
from amq.node.management import OwnManagement
from amq.node.member import Member, Role
from amq.security.login import Authenticate, User
from tests.patience import DEADLINE_S
from tests.ports import free_port
from tests.service_world import PERIOD_S, Client, anybody

OPERATOR = Caller(User("operator"), is_operator=True)


class Managed:
    """`ask` goes to the resources at once; `through` over the socket."""

    def __init__(self, folder: Path, authenticate: Authenticate = anybody, **options: Any) -> None:
        self._authenticate = authenticate
        self.port = free_port()
        self.config = BrokerConfig(
            **{
                "name": "a",
                "store": str(folder / "store"),
                "transports": (f"stomp://127.0.0.1:{self.port}",),
                "lock_keep_alive_period_s": PERIOD_S,
                "lock_acquire_sleep_interval_s": 0.1,
                "management_socket": str(folder / "a.sock"),
                **options,
            }
        )
        self.clients: list[Client] = []
        self.socket = self.config.management_socket

    async def start(self, as_slave: bool = False) -> None:
        self.service = Member(self.config, self._authenticate)
        self.own = OwnManagement(self.config, {"store": self.service}, {}, self._authenticate)
        self.resources, self.managed = self.own.resources, self.own.stores["store"]
        await self.own.start()
        await self.service.start()
        role = Role.SLAVE if as_slave else Role.MASTER
        assert await asyncio.wait_for(self.service.wait_for(role), DEADLINE_S) is role

    async def stop(self) -> None:
        for client in self.clients:
            await client.close()
        self.clients.clear()
        await asyncio.wait_for(self.service.stop(), DEADLINE_S)
        await self.own.close()

    async def broker_stops(self) -> None:
        """For good."""
        if self.service.role is not Role.STOPPED:
            await self.stop()

    @property
    def broker(self) -> Any:
        assert self.service.master is not None
        return self.service.master.broker

    async def ask(
        self, method: str, path: str, given: Mapping[str, Any] | None = None, caller: Caller = OPERATOR, **query: object
    ) -> Row:
        words = {name: str(value) for name, value in query.items()}
        return await asyncio.wait_for(self.resources.answer(method, path, words, given or {}, caller), DEADLINE_S)

    async def through(
        self, method: str, path: str, body: Mapping[str, Any] | None = None, user: User | None = None
    ) -> Row:
        def ask() -> Row:
            with ManagementClient(self.socket, user=user) as client:
                return client.ask(method, path, body)

        return await asyncio.to_thread(ask)

    async def client(self, *headers: tuple[str, str]) -> Client:
        client = await Client.connect(self.port, *headers)
        self.clients.append(client)
        return client

    async def fill(self, name: str, count: int, *headers: tuple[str, str], size: int = 10) -> None:
        """Persistent messages, numbered by their property `n`."""
        client = await self.client()
        for number in range(count):
            last = (("receipt", "r"),) if number == count - 1 else ()
            await client.send(
                "SEND",
                ("destination", f"/queue/{name}"),
                ("persistent", "true"),
                ("n", str(number)),
                *headers,
                *last,
                body=(f"{name} {number}").encode().ljust(size),
            )
        assert (await client.receive()).command == "RECEIPT"
        await client.close()
        self.clients.remove(client)

    async def bodies(self, name: str) -> list[str]:
        """Of all messages of a queue, page by page."""
        found: list[str] = []
        after: str | None = ""
        while after is not None:
            page = await self.ask("GET", f"/queues/{name}/messages", limit=100, after=after)
            found += [row["body"].strip() for row in page["items"]]
            after = page["after"]
        return found


@asynccontextmanager
async def managed(folder: Path, **options: Any) -> AsyncIterator[Managed]:
    made = Managed(folder, **options)
    await made.start()
    try:
        yield made
    finally:
        await made.broker_stops()
