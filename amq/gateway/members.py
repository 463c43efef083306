"""MemberWays: how the master of a store reaches the masters of the other stores of its cluster.

Lives on the event loop of the master, whose turn writes its links: so nothing goes out without a valid lease.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from random import Random
from typing import Any

from amq.broker.recipient import Recipient
from amq.broker.sessions.links import Client
from amq.core.errors import AmqError
from amq.doors.threads import Threads
from amq.gateway.links import StoreLinks
from amq.gateway.lookout import Master, find_master
from amq.link.link import Link
from amq.link.socket import LinkHub
from amq.security.login import User
from amq.transports.hub import ServedConnection


class MemberWays:
    """Implements `amq.broker.transfer.peers.Peers` for a master, `hub`. `locate(store)` = where a store is, path or
    URL; `tls()` makes the context of links to other hosts. Both may hang, and raise AmqError."""

    def __init__(
        self,
        hub: LinkHub,
        secret: bytes,
        threads: Threads,
        entropy: Random,
        locate: Callable[[str], str],
        tls: Callable[[], ssl.SSLContext],
        find: Callable[[str], Master | None] = find_master,
    ) -> None:
        self._hub = hub
        self._secret = secret
        self._entropy = entropy
        self._tls = tls
        self._loop = asyncio.get_running_loop()
        self._prefix = f"{entropy.getrandbits(48):012x}"  # no other process of the cluster has it
        self._count = 0
        self._links = StoreLinks(threads, self._make_link, self._connect, locate, find)

    def _make_link(self) -> Link:
        return Link(self._hub, self._secret, self._entropy)

    async def _connect(self, link: Link, address: str) -> None:
        context = await self._loop.run_in_executor(None, self._tls) if address.startswith("ssl:") else None
        await link.connect(address, context)

    def open(
        self, store: str, recipient: Recipient, protocol: str, lost: Callable[[AmqError], None], user: str = ""
    ) -> ServedConnection:
        self._count += 1
        link = self._links.link(store)
        connection = link.open(recipient, Client(User(user)), f"{self._prefix}-{self._count}.", protocol)
        connection.lost = lambda _, error: lost(error)
        return connection

    def close(self) -> None:
        self._links.close()


def member_ways(locate: Callable[[str], str], tls: Callable[[], ssl.SSLContext]) -> Callable[..., Any]:
    """Makes those of a mastership, of the rest that `MemberWays` takes."""

    def make(hub: LinkHub, secret: bytes, threads: Threads, entropy: Random) -> MemberWays:
        return MemberWays(hub, secret, threads, entropy, locate, tls)

    return make
