"""LinkServer: the home's end of all links of a mastership.

Invariants: at most `STRANGERS_MAX` sockets that have not proved the secret are open, each for `HELLO_S`; nothing of a
stranger reaches the broker; all that a link says leaves by the turn, so only while the lease is valid; when a link
ends, its clients end as if their sockets had broken.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from typing import Any, Final, cast

import structlog

from amq.core.errors import AmqError
from amq.core.proof import NONCE_BYTES
from amq.link import calls
from amq.link.calls import HOME, OPENING, ClientOpening, Home
from amq.link.framing import LINK, NUMBER, Kind, LinkError, LinkFrame, framed
from amq.link.hello import LinkHello
from amq.link.linked import HomeHub, LinkedClient
from amq.link.socket import LinkSocket
from amq.protocols.commands import Failure, Scope

STRANGERS_MAX: Final = 32
TOLD_EVERY_S: Final = 10.0
TICK_S: Final = 1.0  # so often transactions are looked at
_log = structlog.get_logger("amq.link")


class LinkServer:
    """`home()` = who this is now; `numbers` gives connections numbers of this process; `manager()` makes the protocol
    for a socket of a manager."""

    def __init__(
        self,
        hub: HomeHub,
        secret: bytes,
        home: Callable[[], Home],
        entropy: Random,
        numbers: Iterator[int],
        manager: Callable[[], asyncio.Protocol] | None = None,
    ) -> None:
        self.hub = hub
        self.home = home
        self.numbers = numbers
        self._secret = secret
        self._entropy = entropy
        self._manager = manager or _Refused
        self.links: dict[HomeLink, None] = {}
        self.strangers: dict[HomeLink, None] = {}
        self.owners: dict[str, LinkedClient] = {}  # of connections, by what their temporary destinations begin with
        self._is_open = True
        self._parting: list[LinkSocket] = []
        self._refused = 0  # links, ever
        self._told_s = -TOLD_EVERY_S
        self._timer: asyncio.TimerHandle | None = hub.loop.call_later(TICK_S, self._tick)

    def make(self) -> asyncio.Protocol:
        """The protocol of a socket that comes in."""
        hello = LinkHello(True, self._secret, self._entropy.randbytes(NONCE_BYTES))
        link = HomeLink(self)
        link.socket = socket = LinkSocket(self.hub, hello, link, False, partial(self._managed, link))
        if not self._is_open or len(self.strangers) >= STRANGERS_MAX:
            return _Refused()
        self.strangers[link] = None
        return socket

    def _managed(self, link: HomeLink) -> asyncio.Protocol:
        del self.strangers[link]
        return self._manager()

    def refused(self, peer: str, error: AmqError) -> None:
        """A stranger is not let in. Strangers can cause many such lines: one in a while is written."""
        now_s = self.hub.clock.monotonic()
        self._refused += 1
        if now_s >= self._told_s + TOLD_EVERY_S:
            self._told_s = now_s
            _log.warning("a link was refused", peer=peer, reason=str(error), count=self._refused)

    def pause(self) -> None:
        """Take no more commands; what was taken is answered."""
        self._is_open = False
        for link in [*self.links]:
            link.socket.stop_reading()
        for link in [*self.strangers]:
            link.socket.abort()

    def close(self) -> None:
        """End all links when their output is written: nothing is on its way, and what was not answered was not carried
        out. The gateways hear that."""
        self._end()
        self._parting = [link.socket for link in self.links]
        for link in [*self.links]:
            link.socket.part(framed(Kind.CLOSE, calls.numbered(LINK)))
        for link in [*self.strangers]:
            link.socket.finish()

    @property
    def is_over(self) -> bool:
        """Have all gateways closed their ends?"""
        return not any(socket.is_open for socket in self._parting)

    def abort(self) -> None:
        """End all links at once."""
        self._end()
        for link in [*self.links, *self.strangers]:
            link.socket.abort()

    def cut(self) -> None:
        """Shut all sockets down, from any thread."""
        for link in [*self.links, *self.strangers]:
            link.socket.cut()

    def _end(self) -> None:
        self._is_open = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        now_s = self.hub.clock.monotonic()
        for link in [*self.links]:
            for linked in [*link.clients.values()]:
                client = linked.client
                if client is not None and client.transactions:
                    client.expire_transactions(now_s)
        self._timer = self.hub.loop.call_later(TICK_S, self._tick)


class _Refused(asyncio.Protocol):
    """There are too many strangers already, or this process serves no managers."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).abort()


class HomeLink:
    """One link, at the home. Implements `amq.link.socket.LinkOwner` and `amq.link.linked.Carrier`."""

    socket: LinkSocket

    def __init__(self, server: LinkServer) -> None:
        self._server = server
        self._hub = server.hub
        self.clients: dict[int, LinkedClient] = {}  # by their numbers on the link
        self.is_full = False
        self._held: dict[LinkedClient, None] = {}  # that wait for room
        self._unflushed: list[LinkedClient] = []
        self._worked: dict[LinkedClient, None] = {}  # clients of which commands came
        self._last = 0  # the number of the connection that was opened last
        self.name = ""

    # -- LinkOwner ----------------------------------------------------------------------------------------------------

    def begun(self, name: str) -> None:
        server = self._server
        self.name = name
        del server.strangers[self]
        server.links[self] = None
        self.write(framed(Kind.WELCOME, calls.stated(LINK, HOME, server.home())))
        _log.info("a gateway has linked itself", peer=name)

    def take(self, frame: LinkFrame) -> None:
        (number,) = NUMBER.unpack_from(frame.data)
        client = self.clients.get(number)
        if client is not None:
            if client.take(frame):
                self._worked[client] = None
        elif frame.kind == Kind.OPEN:
            self._open(number, calls.statement(frame, OPENING))
        elif number != LINK or frame.kind != Kind.BEAT:
            raise LinkError(f"the gateway sent a frame of kind {frame.kind} of connection {number}, which is not open")

    def _open(self, number: int, opening: ClientOpening) -> None:
        server, hub = self._server, self._hub
        if number <= self._last or len(self.clients) > 2 * hub.config.max_connections:
            raise LinkError("a gateway opens a connection anew, or too many")
        self._last = number
        older = server.owners.get(opening.owner)
        if older is not None:  # on a link that is about to be found broken
            older.end()
        # One with its client id may say goodbye in what came of it, which is at most its window.
        for other in self._worked if opening.id else ():
            if other.client_id == opening.id:
                other.work(math.inf)
        client = LinkedClient(hub, self, next(server.numbers), number, opening, self.name)
        self.clients[number] = client
        server.owners[opening.owner] = client
        try:
            client.begin()
        except AmqError as error:
            client.fail(Failure(error, Scope.CONNECTION))

    def taken(self, until_s: float) -> None:
        worked, self._worked = self._worked, {}
        turn = self._hub.turn
        for client in worked:
            turn.talkers.append(client.number)
            if client.work(until_s):
                turn.shares.wait(client)
            elif client.is_over:
                self._forget(client)

    def flush(self) -> None:
        unflushed, self._unflushed = self._unflushed, []
        for client in unflushed:
            client.flush()

    def set_full(self, full: bool) -> None:
        self.is_full = full
        if not full:
            held, self._held = self._held, {}
            for client in held:
                client.flow()

    def ended(self, error: AmqError) -> None:
        server = self._server
        if server.strangers.pop(self, self) is None:
            server.refused(self.socket.name, error)
            return
        server.links.pop(self, None)
        self._held.clear()
        self._unflushed.clear()
        for client in [*self.clients.values()]:
            client.end(silent=True)
        self.clients.clear()
        _log.info("a link has ended", peer=self.name, reason=str(error))

    # -- Carrier ------------------------------------------------------------------------------------------------------

    def write(self, *pieces: Any) -> None:
        self.socket.write(*pieces)

    def hold(self, client: LinkedClient) -> None:
        self._held[client] = None

    def flush_later(self, client: LinkedClient) -> None:
        self._unflushed.append(client)
        self.socket.has_output()

    def over(self, client: LinkedClient) -> None:
        self._held.pop(client, None)
        if self._server.owners.get(client.owner) is client:
            del self._server.owners[client.owner]
        if client.is_over:
            self._forget(client)

    def _forget(self, client: LinkedClient) -> None:
        self.clients.pop(client.on_link, None)
        client.release()
