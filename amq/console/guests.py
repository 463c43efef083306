"""Guests: the connections to the console, and the protocol that gives each of them a limited time.

A stranger can connect and say nothing, drip a request, or not read the answer. Invariants:

- The first byte and a whole head come within `HEAD_S`, a body within `BODY_S` after its head; an answer is read, bit by
  bit, without a pause of `WRITE_S`. Otherwise the connection is aborted.
- At most `GUESTS_MAX` connections are open, and `PER_ADDRESS_MAX` of one address, unless that is a declared proxy. At a
  limit the oldest one that waits for nothing but its own client gives way. So silent connections never keep others out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from ipaddress import ip_address, ip_network
from typing import Any, ClassVar, Final

import h11
import uvicorn
import uvloop
from uvicorn.protocols.http.h11_impl import H11Protocol

GUESTS_MAX: Final = 500
PER_ADDRESS_MAX: Final = 100
HEAD_S: Final = 10.0
BODY_S: Final = 30.0
WRITE_S: Final = 30.0
HANDSHAKE_S: Final = 10.0  # of TLS
IDLE_S: Final = 30
HEAD_BYTES_MAX: Final = 32 << 10


class Guests:
    """All connections to one console. `proxies` = addresses and networks that stand for many callers."""

    def __init__(self, proxies: Sequence[str] = ()) -> None:
        self._proxies = [ip_network(each) for each in proxies]
        self._of: dict[str, dict[GuestConnection, None]] = {}  # by address, the oldest first
        self._all: dict[GuestConnection, None] = {}

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[GuestConnection]:
        return iter(self._all)

    def enter(self, guest: GuestConnection, address: str) -> bool:
        """False: there is no place for it, because all are used by requests that are answered just now."""
        same = self._of.get(address, {})
        if len(same) >= PER_ADDRESS_MAX and not self._is_proxy(address) and not self._make_way(same):
            return False
        if len(self._all) >= GUESTS_MAX and not self._make_way(self._all):
            return False
        self._all[guest] = None
        self._of.setdefault(address, {})[guest] = None
        return True

    def leave(self, guest: GuestConnection, address: str) -> None:
        """It has ended. May be called again."""
        self._all.pop(guest, None)
        same = self._of.get(address, {})
        same.pop(guest, None)
        if not same:
            self._of.pop(address, None)

    def _make_way(self, among: dict[GuestConnection, None]) -> bool:
        oldest = next((each for each in among if each.is_waiting), None)
        if oldest is None:
            return False
        oldest.end()
        return True

    def _is_proxy(self, address: str) -> bool:
        try:
            found = ip_address(address)
        except ValueError:
            return False
        return any(found in network for network in self._proxies)


class GuestConnection(H11Protocol):
    """One connection, with time limits."""

    guests: ClassVar[Guests]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._waits_for = ""
        self._timer: asyncio.TimerHandle | None = None
        self._stalled: asyncio.TimerHandle | None = None
        self._address = self.client[0] if self.client else ""
        # `pause_writing` at the first byte that the kernel does not take: fewer than the default's 64 KiB would wait
        # for their reader for ever, and `close` waits for them.
        transport.set_write_buffer_limits(high=0)
        if self.guests.enter(self, self._address):
            self._wait("head", HEAD_S)
        else:
            self.end()

    @property
    def is_waiting(self) -> bool:
        """True: it waits for its client, and no answer is under way."""
        return self.conn.their_state in (h11.IDLE, h11.SEND_BODY) or self.timeout_keep_alive_task is not None

    def data_received(self, data: bytes) -> None:
        if not self._waits_for:
            self._wait("head", HEAD_S)
        super().data_received(data)
        state = self.conn.their_state
        if state is h11.SEND_BODY:
            if self._waits_for != "body":
                self._wait("body", BODY_S)
        elif state is not h11.IDLE or not self.conn.trailing_data[0]:
            self._wait("", 0)

    def connection_lost(self, exc: Exception | None) -> None:
        self._wait("", 0)
        self.resume_writing()
        self.guests.leave(self, self._address)
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stalled = self.loop.call_later(WRITE_S, self.end)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def end(self) -> None:
        """Close at once."""
        self.guests.leave(self, self._address)
        self.transport.abort()

    def _wait(self, what: str, seconds: float) -> None:
        """The client has so long to send `what`; "" = nothing."""
        self._waits_for = what
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_later(seconds, self.end) if what else None


class _Loop(uvloop.Loop):
    """Gives TLS handshakes less time than a minute. uvicorn has no option for this."""

    async def create_server(self, *arguments: Any, **options: Any) -> Any:
        if options.get("ssl") is not None:
            options["ssl_handshake_timeout"] = HANDSHAKE_S
        return await super().create_server(*arguments, **options)


def server_of(
    app: Callable[..., Any],
    host: str,
    port: int,
    proxies: Sequence[str] = (),
    certificate: str | None = None,
    key: str | None = None,
) -> uvicorn.Server:
    """A server of `app` whose connections are guests."""
    protocol = type("GuestConnection", (GuestConnection,), {"guests": Guests(proxies)})
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=IDLE_S,
        h11_max_incomplete_event_size=HEAD_BYTES_MAX,
        http=protocol,
        ws="none",
        ssl_certfile=certificate,
        ssl_keyfile=key,
        proxy_headers=False,
    )
    return uvicorn.Server(config)


def serve(server: uvicorn.Server) -> None:
    """Serve until a signal ends it."""
    with suppress(KeyboardInterrupt), asyncio.Runner(loop_factory=_Loop) as runner:
        runner.run(server.serve())
