"""Links: those of a gateway, at most one to each store, and who waits for one.

A link is made when a client first needs its store. It takes the commands of clients before it is connected: they wait
in it, each connection bounded by its window, and those that have left by a number, while a lookout finds the master.
When no master answers within `PATIENCE_S` the link is given up, and all who wait hear so. A link that breaks, or whose
store has another master now, is lost; the next client that needs the store makes another one.

Lives on the event loop. Invariant: a store without a master, or one that hangs, keeps nobody who needs another one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import cast

import structlog

from amq.broker.sessions.links import Client
from amq.core.errors import AmqError, StoreError
from amq.doors.threads import Threads
from amq.gateway.homes import Loss, RoutedHome
from amq.gateway.lookout import Lookout, Master, find_master
from amq.link.framing import LinkError
from amq.link.link import Link
from amq.transports.hub import ServedConnection
from amq.transports.peer import Peer

PATIENCE_S = 30.0  # a takeover of a large store may take longer: clients then try again
CONNECT_S = 3.0  # for a socket to it, and its welcome
LOCATE_S = 3.0  # for the first look at a store that a client asks for
_log = structlog.get_logger("amq.gateway")


class HomeUnavailableError(StoreError):
    """No master of the store that a destination lives in answers."""

    code = "HOME_UNAVAILABLE"
    fatal = False


class _Store:
    """One store of the cluster. `link` None = nobody needs it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lookout: Lookout | None = None
        self.link: Link | None = None
        self.connecting: asyncio.Task[None] | None = None
        self.master: Master | None = None  # as was last seen
        self.linked: Master | None = None  # to which the link is connected, None = to none
        self.seen = asyncio.Event()  # the lookout has looked
        self.is_refused = False  # its master refuses links of this process


class StoreLinks:
    """`make_link` makes one that has no socket; `connect(link, address)` gives it one; `locate(store)` = where that is,
    path or URL. All may raise AmqError."""

    def __init__(
        self,
        threads: Threads,
        make_link: Callable[[], Link],
        connect: Callable[[Link, str], Awaitable[object]],
        locate: Callable[[str], str],
        find: Callable[[str], Master | None] = find_master,
    ) -> None:
        self._threads = threads
        self._make_link = make_link
        self._connect_link = connect
        self._locate = locate
        self._find = find
        self._loop = asyncio.get_running_loop()
        self._stores: dict[str, _Store] = {}
        self._is_closed = False
        self.lost = 0  # links that were connected

    @property
    def held_up(self) -> int:
        """How many connections wait for the master of a store."""
        return sum(
            not connection.is_closed
            for each in self._stores.values()
            if each.link is not None and each.linked is None
            for connection in each.link.connections.values()
        )

    @property
    def refused(self) -> list[str]:
        """The stores to whose masters links are refused: another secret, another version, a certificate."""
        return [each.name for each in self._stores.values() if each.is_refused]

    @property
    def linked(self) -> list[str]:
        """The stores to which there is a link."""
        return [each.name for each in self._stores.values() if each.linked is not None]

    @property
    def waiting(self) -> list[str]:
        """The stores for whose master clients wait."""
        return [each.name for each in self._stores.values() if each.link is not None and each.linked is None]

    def open(self, name: str, home: RoutedHome, client: Client, owner: str, protocol: str) -> ServedConnection:
        """Serve a client at the store of that name. Raises HomeUnavailableError."""
        link = self.link(name)
        peer = cast(Peer, home.peer)
        assert peer.codec is not None
        survives = peer.codec.survives
        connection = link.open(home, client, owner, protocol, peer_name=peer.peer_name, survives=survives)
        connection.lost = lambda gone, error: home.lost(
            Loss(error, gone.unanswered, link.is_orderly, link.home is not None)
        )
        if link.home is not None:
            _begin(home, link.home.newest_seq)
        return connection

    def link(self, name: str) -> Link:
        """The link to the store of that name, connected or not. Raises HomeUnavailableError."""
        if self._is_closed:
            raise HomeUnavailableError("this process stops: connect again")
        store = self._store(name)
        link = store.link
        if link is None or link.is_lost:
            store.linked = None  # of the one that was lost a moment ago
            store.link = link = self._make_link()
            link.lost = partial(self._lost, store)
            store.connecting = self._loop.create_task(self._connect(store, link))
        return link

    def _store(self, name: str) -> _Store:
        return self._stores.setdefault(name, _Store(name))

    async def locate(self, names: Iterable[str]) -> dict[str, tuple[str, ...]]:
        """Where clients find the masters of these stores, as was last seen; () = no master is known."""
        stores = [self._store(name) for name in names]
        for store in stores:
            if store.lookout is None:
                self._want(store, False)  # it looks once now, and then from time to time
        waiting = [asyncio.ensure_future(store.seen.wait()) for store in stores if store.master is None]
        if waiting:
            _, late = await asyncio.wait(waiting, timeout=LOCATE_S)
            for each in late:
                each.cancel()
        return {store.name: store.master.urls if store.master is not None else () for store in stores}

    async def _connect(self, store: _Store, link: Link) -> None:
        """Connect `link` to the master of `store`, as soon as there is one."""
        reason = "no broker serves it"
        store.seen.clear()  # what was seen before may be the master that is gone
        self._want(store, True)
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not link.is_lost:
                    await store.seen.wait()
                    store.seen.clear()
                    master = store.master
                    if master is None:
                        continue
                    try:
                        async with asyncio.timeout(CONNECT_S):
                            await self._connect_link(link, master.address)
                    except (AmqError, OSError) as error:  # also where it does not answer in time
                        reason = f"{master.broker} at {master.address}: {error or 'no answer'}"
                        self._refused(store, error)
                    else:
                        self._linked(store, link, master)
                        return
        except TimeoutError:
            link.lose(
                HomeUnavailableError(
                    f"no master of store {store.name} has answered for {PATIENCE_S:g} s ({reason}): connect again, and "
                    "look at `amq cluster status`"
                )
            )
        finally:
            self._want(store, False)

    @staticmethod
    def _refused(store: _Store, error: Exception) -> None:
        is_refused = isinstance(error, LinkError) and error.code in ("LINK_REFUSED", "LINK_VERSION")
        if is_refused and not store.is_refused:
            _log.error("the master refuses links of this node", store=store.name, reason=str(error))
        store.is_refused = is_refused

    def _linked(self, store: _Store, link: Link, master: Master) -> None:
        store.is_refused = False
        if store.link is link and not link.is_lost:
            store.linked = master
            if link.home is not None:
                for connection in link.connections.values():
                    if isinstance(connection.recipient, RoutedHome):
                        _begin(connection.recipient, link.home.newest_seq)
            _log.info("linked to the master", store=store.name, master=master.broker, address=master.address)

    def _want(self, store: _Store, wanted: bool) -> None:
        if store.lookout is None:
            store.lookout = Lookout(self._threads, f"store {store.name}", partial(self._look, store))
        store.lookout.want(wanted)

    def _look(self, store: _Store) -> None:
        """In the thread of its lookout."""
        found = self._find(self._locate(store.name))
        with suppress(RuntimeError):  # the event loop has ended meanwhile
            self._loop.call_soon_threadsafe(self._found, store, found)

    def _found(self, store: _Store, master: Master | None) -> None:
        if master != store.master:
            store.is_refused = False  # also where nobody asks for the next one
        store.master = master
        store.seen.set()
        link, linked = store.link, store.linked
        if link is not None and linked is not None and master is not None and master != linked:
            link.lose(HomeUnavailableError(f"{master.broker} is the master of store {store.name} now: connect again"))

    def _lost(self, store: _Store, link: Link, error: AmqError) -> None:
        """All its connections have heard: some may have begun another link by now."""
        if link.home is not None:
            self.lost += 1
            _log.warning("link lost", store=store.name, master=link.home.broker, reason=str(error))
        if store.link is link:
            store.link = store.linked = None

    def forget(self, name: str) -> None:
        """The store of that name was removed from the cluster."""
        store = self._stores.pop(name, None)
        if store is None:
            return
        if store.connecting is not None:
            store.connecting.cancel()
        if store.lookout is not None:
            store.lookout.stop()
        if store.link is not None:
            store.link.lose(HomeUnavailableError(f"store {name} was removed from the cluster: connect again"))

    def give_up(self) -> None:
        """The gateway ends: whoever waits for a master hears so now."""
        self._is_closed = True
        for each in self._stores.values():
            if each.link is not None and each.linked is None:
                each.link.lose(HomeUnavailableError("the gateway stops: connect again"))

    def close(self) -> None:
        """The gateway ends."""
        self._is_closed = True
        for each in self._stores.values():
            if each.connecting is not None:
                each.connecting.cancel()
            if each.lookout is not None:
                each.lookout.stop()
            if each.link is not None:
                each.link.lose(HomeUnavailableError("the gateway stops: connect again"))


def _begin(home: RoutedHome, newest_seq: int) -> None:
    """The master of that home is there, and has messages up to that one."""
    old = home.begun(newest_seq)
    if old >= 0:
        codec = cast(Peer, home.peer).codec
        assert codec is not None
        codec.may_repeat(old)
