"""The asyncio driver: moves bytes between one `Machine` and its transports in one event loop.

Invariants: everything happens in the loop's thread; writes that are asked for in one turn of the loop leave together;
after `close` no task, timer or transport of this connection is left.
"""

from __future__ import annotations

import asyncio
import atexit
import errno
import logging
import math
import os
import socket
import weakref
from collections.abc import AsyncGenerator, Callable
from functools import partial
from typing import Any

from amq.client.driver import EXIT_MARGIN_S, cannot_connect, closed, feed, warn_of_loss
from amq.client.errors import ConnectError, ConnectionLostError
from amq.client.link import Close, Fetch, Link, OpenLink
from amq.client.lists import LISTS, Found, Lists
from amq.client.machine import Machine
from amq.client.names import NAMES, Answer, Names
from amq.client.requests import ConnectionEvent, Gate, open_gate
from amq.client.states import State
from amq.client.tls import Contexts, Layer
from amq.doors.clock import Clock

log = logging.getLogger("amq.client")
Listener = Callable[[ConnectionEvent], object]


class _Wire(asyncio.Protocol):
    """The socket of one link."""

    def __init__(self, driver: AsyncDriver, link: Link) -> None:
        self._driver = driver
        self._link = link
        self.transport: asyncio.Transport | None = None
        self.tls: Layer | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        options = self._link.uri.options
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, options.tcp_no_delay)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, options.keep_alive)
        if self.tls is None:
            self._driver.opened(self._link)
        else:
            self.tls.begin()
            transport.write(self.tls.output())

    def data_received(self, data: bytes) -> None:
        driver, now = self._driver, self._driver.clock.monotonic()
        if self.tls is None:
            driver.machine.received(self._link, data, now)
        elif self.transport is not None and not self.transport.is_closing():
            failure = feed(driver.machine, self._link, self.tls, data, now)
            self.transport.write(self.tls.output())
            if failure is not None:
                driver.machine.failed(self._link, failure, now)
                self.transport.close()
        driver.kick()

    def connection_lost(self, error: Exception | None) -> None:
        link = self._link
        lost = ConnectionLostError(f"{link.uri}: {error}") if error else closed(link, self.tls)
        self._driver.lost(link, lost)

    def pause_writing(self) -> None:
        self._link.congested = True

    def resume_writing(self) -> None:
        self._link.congested = False
        if self._link.sliced:
            self._driver.kick()
        open_gate(self._driver.machine.room_gate)


class AsyncDriver:
    """Runs `machine` in `loop` until it is closed. `listeners` are called in the loop, one after the other."""

    def __init__(
        self,
        machine: Machine,
        clock: Clock,
        loop: asyncio.AbstractEventLoop,
        names: Names = NAMES,
        lists: Lists = LISTS,
    ) -> None:
        """Raises UriError where the files that the URL names for TLS cannot be used."""
        self._contexts = Contexts()
        self._contexts.check(machine.url)
        self.machine = machine
        self.clock = clock
        self.listeners: list[Listener] = []
        self._loop = loop
        self._names = names
        self._lists = lists
        self._wires: dict[Link, _Wire] = {}
        self._dials: dict[Link, asyncio.Task[None]] = {}
        self._kicked = False
        self._timer: asyncio.TimerHandle | None = None
        self._idle = asyncio.Event()  # set when the machine is closed and nothing is left of its links
        self._abandoned = False
        self._settled = False  # the application has closed the connection, or learned what it lost
        self._guard = self._guarding()

    async def start(self) -> None:
        await anext(self._guard)
        self.machine.start(self.clock.monotonic())
        _drivers.add(self)
        self.kick()

    async def _guarding(self) -> AsyncGenerator[None, None]:
        """Waits for the end of the loop: `asyncio.run` closes generators before it closes the loop."""
        try:
            yield
        finally:
            if not self._settled and self.machine.at_stake():
                await self.finish()

    def kick(self) -> None:
        """Carry out, once in this turn of the loop, what the machine asks."""
        if not self._kicked:
            self._kicked = True
            self._loop.call_soon(self._turn)

    async def wait(self, gate: Gate, ready: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until `ready()`, which may raise; False when the time is over."""
        if ready():
            return True
        self.kick()
        deadline = self.clock.monotonic() + timeout_s
        while True:
            future: asyncio.Future[None] = self._loop.create_future()
            wake = partial(_wake, future)
            gate.append(wake)
            left_s = deadline - self.clock.monotonic()
            timer = self._loop.call_later(max(0.0, left_s), wake) if left_s < math.inf else None
            try:
                await future
            finally:
                if timer is not None:
                    timer.cancel()
                if wake in gate:
                    gate.remove(wake)
            if ready():
                return True
            if self.clock.monotonic() >= deadline:
                return False

    async def close(self) -> None:
        """Close the machine and wait until nothing is left of it."""
        self._settled = True
        if self.machine.state is not State.CLOSED:
            self.machine.close(self.clock.monotonic())
        self.kick()
        await self._idle.wait()
        await self._guard.aclose()

    async def finish(self) -> None:
        """Nobody uses the connection any more, and nobody closed it: wait until it has come to its end."""
        self._abandoned = True
        self.kick()
        await self._idle.wait()

    def abandon(self) -> None:
        """Nobody holds the connection any more. From any thread."""
        if self._settled:
            return
        if self._loop.is_closed() or self._idle.is_set():
            self._settled = True
            warn_of_loss(self.machine)
        else:
            self._abandoned = True
            self._loop.call_soon_threadsafe(self.kick)

    def leave(self) -> None:
        """The program ends, and the loop was not closed as `asyncio.run` does."""
        if self._settled or not self.machine.at_stake():
            return
        if self._loop.is_closed() or self._idle.is_set():
            warn_of_loss(self.machine)
        elif self._loop.is_running():
            finished = asyncio.run_coroutine_threadsafe(self.finish(), self._loop)
            finished.result(self.machine.exit_timeout_s + EXIT_MARGIN_S)
        else:
            self._loop.run_until_complete(self.finish())
        self._settled = True

    # ---- the loop's callbacks

    def _turn(self) -> None:
        self._kicked = False
        machine = self.machine
        if self._abandoned:
            machine.abandon(self.clock.monotonic())
        machine.tick(self.clock.monotonic())
        while machine.actions:
            actions, machine.actions = machine.actions, []
            for action in actions:
                if isinstance(action, OpenLink):
                    self._open(action.link)
                elif isinstance(action, Close):
                    self._close(action.link)
                elif isinstance(action, Fetch):
                    self._fetch(action.source)
                else:
                    self._lists.keep(action.path, action.text)
        for link, wire in self._wires.items():
            self._write(link, wire)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if machine.state is State.CLOSED and not self._wires and not self._dials:
            self._idle.set()
            self._settled = self._settled or self._abandoned
        elif (deadline := machine.deadline()) is not None:
            self._timer = self._loop.call_later(max(0.0, deadline - self.clock.monotonic()), self.kick)
        self._tell()

    def _tell(self) -> None:
        machine = self.machine
        logs, machine.logs = machine.logs, []
        events, machine.events = machine.events, []
        for level, text in logs:
            log.log(level, "%s", text)
        for event in events:
            log.info("%s", event)
            for listener in list(self.listeners):
                try:
                    listener(event)
                except Exception:
                    log.exception("a listener failed on %s", event)

    def opened(self, link: Link) -> None:
        self.machine.opened(link, self.clock.monotonic())
        self.kick()

    def lost(self, link: Link, error: ConnectionLostError) -> None:
        self._wires.pop(link, None)
        self.machine.failed(link, error, self.clock.monotonic())
        self.kick()

    def _open(self, link: Link) -> None:
        wire = self._wires[link] = _Wire(self, link)
        dial = self._dials[link] = self._loop.create_task(self._dial(link, wire))
        dial.add_done_callback(lambda _: self._dialled(link, wire))  # runs also if it is cancelled before it begins

    async def _dial(self, link: Link, wire: _Wire) -> None:
        try:
            wire.tls = self._contexts.layer(link.uri)
        except ConnectError as error:
            self.machine.failed(link, error, self.clock.monotonic())
            return
        addresses: tuple[Any, ...] = ()
        last: OSError | UnicodeError = OSError("no address")
        link.looks_up = True
        found = await self._look_up(link)
        link.looks_up = False
        if isinstance(found, tuple):
            addresses = found
        else:
            last = found
        for i, (family, _, _, _, address) in enumerate(addresses):
            left_s = math.inf if link.deadline is None else max(0.0, link.deadline - self.clock.monotonic())
            share_s = left_s / (len(addresses) - i) if i < len(addresses) - 1 else math.inf
            try:
                async with asyncio.timeout(share_s if share_s < math.inf else None):
                    await self._loop.create_connection(lambda: wire, *address[:2], family=family)
            except TimeoutError:
                last = OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
            except (OSError, UnicodeError) as error:
                last = error
            else:
                return
        self.machine.failed(link, cannot_connect(link, last), self.clock.monotonic())

    def _fetch(self, source: str) -> None:
        def take(found: Found) -> None:
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._fetched, source, found)

        self._lists.fetch(source, take)

    def _fetched(self, source: str, found: Found) -> None:
        self.machine.fetched(source, found)
        self.kick()

    async def _look_up(self, link: Link) -> Answer:
        """The addresses of the host. Another thread has them looked up."""
        future: asyncio.Future[Answer] = self._loop.create_future()

        def take(answer: Answer) -> bool:
            if link.dropped or self._loop.is_closed():
                return False
            self._loop.call_soon_threadsafe(_answer, future, answer)
            return True

        self._names.find(link.uri.address, self, take)
        return await future

    def _dialled(self, link: Link, wire: _Wire) -> None:
        del self._dials[link]
        if wire.transport is None:
            self._wires.pop(link, None)
        self.kick()

    def _write(self, link: Link, wire: _Wire) -> None:
        if wire.transport is not None and not wire.transport.is_closing():
            while not (link.sliced and link.congested) and (data := link.take_output(self.clock.monotonic())):
                wire.transport.write(data if wire.tls is None else wire.tls.seal(data))

    def _close(self, link: Link) -> None:
        """Say what is left to say, if the kernel takes it now, and close; `connection_lost` follows."""
        dial = self._dials.get(link)
        wire = self._wires.get(link)
        if wire is not None and wire.transport is not None:
            self._write(link, wire)
            if wire.tls is not None and not wire.transport.is_closing():
                wire.transport.write(wire.tls.goodbye())
            if wire.transport.get_write_buffer_size():
                wire.transport.abort()
            else:
                wire.transport.close()
        elif dial is not None:
            dial.cancel()


_drivers: weakref.WeakSet[AsyncDriver] = weakref.WeakSet()  # at the end of the program: messages may be at stake


@atexit.register
def _leave_all() -> None:
    for driver in list(_drivers):
        driver.leave()


def _answer(future: asyncio.Future[Answer], answer: Answer) -> None:
    if not future.done():
        future.set_result(answer)


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
