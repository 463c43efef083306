"""The lanes of an asyncio connection, and producers that use them: see `amq.client.lanes`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol, TypeVar

from amq.client.lanes import REACH_S, Faced, LaneTable, Masters
from amq.client.whereabouts import Whereabouts
from amq.core.errors import AmqError


class Awaited(Faced, Protocol):
    """An asyncio connection."""

    async def where(self, *destinations: str) -> Whereabouts | None: ...
    async def wait_connected(self, timeout: float | None = None) -> None: ...
    async def abort(self) -> None: ...


A = TypeVar("A", bound=Awaited)


class AsyncLanes(LaneTable[A]):
    """`begin(url)` begins to connect another connection like `connection`."""

    def __init__(self, connection: A, url: str, begin: Callable[[str], Awaitable[A]]) -> None:
        super().__init__(connection, url)
        self._begin = begin
        self._lock = asyncio.Lock()

    async def lane_of(self, destination: str) -> A | None:
        """None = by the connection itself. Raises AmqError."""
        if not self._may_have_one(destination):
            return None
        async with self._lock:
            if destination not in self._by_name:
                wanted = self._wanted(await self._connection.where(destination))
                if wanted is not None and wanted[0] not in self._by_store:
                    self._by_store[wanted[0]] = await self._open(*wanted)
                self._by_name[destination] = None if wanted is None else self._by_store[wanted[0]]
            return self._by_name[destination]

    async def _open(self, store: str, masters: Masters) -> A | None:
        lane, failed = await self._begin(self._url_to(masters)), None
        try:
            await lane.wait_connected(REACH_S)
        except AmqError as error:
            failed = error
        except asyncio.CancelledError:
            await lane.abort()
            raise
        if self._reaches(store, lane, masters, failed):
            return lane
        await lane.abort()
        return None
