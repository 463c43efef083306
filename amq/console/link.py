"""Link: asks the broker of this host, and reads from the store who else there is.

Every call runs in a thread and ends after a while, because a broker or a file server may hang. Invariant: at most
`THREADS_MAX` such calls are under way; further ones fail at once. At most `SHARED_MAX` answers are kept, each for
`SHARED_S`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import anyio
from anyio import CapacityLimiter, to_thread

from amq.core.errors import AmqError, TransportError
from amq.doors.clock import Clock
from amq.management.client import ManagementClient
from amq.management.listing import Row
from amq.security.login import User
from amq.store.epoch import Epoch
from amq.store.host import Owner, SystemHost, is_here
from amq.store.name import real_name
from amq.store.open import open_store
from amq.store.presence import BrokerPresence
from amq.store.status import StoreStatus, store_status

THREADS_MAX: Final = 24
STORE_S: Final = 3.0
SEEN_S: Final = 1.0  # what the store said is good for so long
SHARED_S: Final = 2.0  # as often as pages ask
SHARED_MAX: Final = 100
SHARED_PATIENCE_S: Final = 10.0
PROBE_S: Final = 2.0
ASK_S: Final = 30.0
OPERATION_S: Final = 3600.0
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Seen:
    """The store as seen a moment ago. `own` = the broker of this host, None = it does not run. `epochs` = those that
    are kept, oldest first. `here` = the brokers of this host of which this is the console. `disk_free_bytes` None =
    nobody can tell."""

    status: StoreStatus
    own: BrokerPresence | None
    disk_free_bytes: int | None
    epochs: tuple[Epoch, ...] = ()
    here: tuple[BrokerPresence, ...] = ()


class Link:
    """`name` = the broker that is asked; "" = the one of this host, the master where there are several."""

    def __init__(self, store: str, name: str, clock: Clock) -> None:
        self._begin(store, name, clock)
        self._store = open_store(store)
        self._host = SystemHost()
        self._seen: Seen | None = None
        self._seen_at = 0.0

    def _begin(self, store: str, name: str, clock: Clock) -> None:
        self.store = store
        self._name = name
        self._clock = clock
        self._shared: dict[tuple[str, User | None], tuple[float, asyncio.Future[Row]]] = {}
        self._limiter: CapacityLimiter | None = None

    async def seen(self) -> Seen:
        """Raises AmqError where the store cannot be read in time."""
        now = self._clock.monotonic()
        if self._seen is None or now > self._seen_at + SEEN_S:
            try:
                self._seen = await self._in_thread(self._look, STORE_S)
            except OSError as error:
                raise TransportError(f"{self.store}: {error.strerror}: the store cannot be read") from error
            self._seen_at = self._clock.monotonic()
        return self._seen

    def _look(self) -> Seen:
        status = store_status(self._store)
        here = [each for each in status.brokers if each.management and os.path.exists(each.management)]
        if self._name:
            here = [each for each in here if each.name == self._name]
        master = status.master
        own = next((each for each in here if master is not None and each.name == master.name), None)
        before = self._seen.epochs if self._seen is not None else ()
        newest = status.epoch.number if status.epoch is not None else 0
        same = bool(before) and before[-1].number == newest
        epochs = before if same else tuple(self._store.epochs.all())
        return Seen(status, own or (here[0] if here else None), self._store.log.free_bytes(), epochs, tuple(here))

    def is_here(self, owner: Owner) -> bool:
        """Does that broker run on this host?"""
        return is_here(owner, self._host)

    async def ask(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        user: User | None = None,
        timeout_s: float = ASK_S,
    ) -> Row:
        """Ask the broker on behalf of `user`; None = of the console itself. Raises AmqError."""
        if method != "GET":
            self._shared.clear()
        own = (await self.seen()).own
        if own is None:
            raise TransportError(f"no broker of {self.store} runs on this host: `amq status` shows the group")
        return await self._ask(own, method, path, body, user, timeout_s)

    async def announce(self, url: str) -> None:
        """Say to each broker of which this is the console that it serves at `url`. Raises AmqError when all
        were asked."""
        here = (await self.seen()).here
        asked = (self._ask(each, "POST", "/console", {"url": url}, None, PROBE_S) for each in here)
        for answer in await asyncio.gather(*asked, return_exceptions=True):
            if isinstance(answer, BaseException):
                raise answer

    async def _ask(
        self,
        broker: BrokerPresence,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        user: User | None,
        timeout_s: float,
    ) -> Row:
        def call() -> Row:
            with ManagementClient(broker.management, timeout_s, user, store=real_name(self.store)) as client:
                return client.ask(method, path, body)

        return await self._in_thread(call, timeout_s + 1)

    async def shared(self, path: str, user: User | None) -> Row:
        """A GET whose answer all that ask the same for the same user within `SHARED_S` get: what pages fetch again and
        again. `seen_s` says when, monotonic. A change through this console ends it. Raises AmqError."""
        now, key = self._clock.monotonic(), (path, user)
        until, asked = self._shared.get(key, (0.0, None))
        if asked is None or now >= until:
            asked = asyncio.ensure_future(self._stamped(path, user))
            asked.add_done_callback(_seen_to)
            self._shared.pop(key, None)
            if len(self._shared) >= SHARED_MAX:
                del self._shared[next(iter(self._shared))]
            self._shared[key] = (now + SHARED_S, asked)
        return dict(await asyncio.shield(asked))

    async def _stamped(self, path: str, user: User | None) -> Row:
        return {**await self.ask("GET", path, None, user, SHARED_PATIENCE_S), "seen_s": self._clock.monotonic()}

    async def rows(self, path: str) -> list[Row]:
        """All rows of a list, page by page."""
        found: list[Row] = []
        while True:
            page = await self.ask("GET", f"{path}?offset={len(found)}")
            found += page["items"]
            if len(page["items"]) < page["limit"]:
                return found

    async def _in_thread(self, call: Callable[[], T], timeout_s: float) -> T:
        if self._limiter is None:
            self._limiter = CapacityLimiter(THREADS_MAX)
        if self._limiter.available_tokens < 1:
            raise TransportError(f"{THREADS_MAX} requests wait for the broker or the store already: it may hang")
        try:
            with anyio.fail_after(timeout_s):
                return await to_thread.run_sync(call, abandon_on_cancel=True, limiter=self._limiter)
        except TimeoutError as error:
            raise TransportError(f"no answer within {timeout_s:g} s: the broker or the file server hangs") from error


def _seen_to(asked: asyncio.Future[Row]) -> None:
    """An error that nobody waits for any more is no news."""
    if not asked.cancelled():
        asked.exception()


async def trial(link: Link) -> Row | AmqError:
    """The status of the broker of this host, or why there is none."""
    try:
        return await link.ask("GET", "/broker", timeout_s=PROBE_S)
    except AmqError as error:
        return error
