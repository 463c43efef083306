"""The threads' driver: one background thread per connection moves bytes between one `Machine` and its sockets.

Everything of the machine happens under `lock`. Callers write to the socket themselves when they are about to wait (no
hop to the other thread), and leave it to the thread when they send in bulk (many frames in one write). Invariants: only
the thread reads, opens and closes sockets and calls listeners; it ends when the machine is closed; an error in it
closes the machine, so that no call waits for ever. Other threads look up the names of hosts: see `names`.
"""

from __future__ import annotations

import atexit
import errno
import logging
import math
import os
import selectors
import socket
import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from amq.client.errors import ConnectError, ConnectionLostError
from amq.client.link import Close, Fetch, Link, OpenLink
from amq.client.lists import LISTS, Found, Lists
from amq.client.machine import Machine
from amq.client.names import NAMES, Answer, Names
from amq.client.requests import ConnectionEvent, Gate, open_gate
from amq.client.states import State
from amq.client.tls import Contexts, Layer
from amq.core.errors import AmqError, CommandError
from amq.doors.clock import Clock

RECEIVE_BYTES = 256 * 1024
CONGESTED_BYTES = 1024 * 1024  # unsent bytes above which senders wait for the kernel
FRAMES_PER_WRITE = 256  # this many frames gathered by a sender are written by it at once
SELECT_S_MAX = 3600.0  # epoll cannot wait for a month
EXIT_MARGIN_S = 3.0  # for the goodbye to the broker, beyond the `exit_timeout` of a connection

log = logging.getLogger("amq.client")
Listener = Callable[[ConnectionEvent], object]


class _Socket:
    """A socket of one link: the addresses still to be tried, and bytes that the kernel did not take yet."""

    __slots__ = ("addresses", "broken", "connecting", "next_at", "rest", "sock", "tls", "writable_wanted")

    def __init__(self, addresses: list[Any], tls: Layer | None) -> None:
        self.addresses = addresses
        self.tls = tls
        self.sock: socket.socket | None = None
        self.connecting = True
        self.next_at = math.inf  # monotonic seconds: then the next address is tried, if this one is silent
        self.writable_wanted = False
        self.broken = False  # a write failed; the read side will tell why
        self.rest = memoryview(b"")


class Driver:
    """Runs `machine` until it is closed. `listeners` are called in the background thread, one after the other."""

    def __init__(self, machine: Machine, clock: Clock, names: Names = NAMES, lists: Lists = LISTS) -> None:
        """Raises UriError where the files that the URL names for TLS cannot be used."""
        self._contexts = Contexts()
        self._contexts.check(machine.url)
        self.machine = machine
        self.clock = clock
        self.lock = threading.RLock()  # which knows its owner: see `wait`
        self.listeners: list[Listener] = []
        self.abandoned = False
        self.settled = False  # the application has closed the connection, or learned what it lost
        self.pid = os.getpid()
        self._selector = selectors.DefaultSelector()
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self._selector.register(self._wake_in, selectors.EVENT_READ, None)
        self._sockets: dict[Link, _Socket] = {}
        self._names = names
        self._lists = lists
        self._fetched: deque[tuple[str, Found]] = deque()
        self._looked_up: deque[tuple[Link, Answer]] = deque()
        self._kicked = False
        self._thread = threading.Thread(target=self._run, name=f"amq-client {machine.url}", daemon=True)

    # ---- for the callers' threads, with the lock held unless said otherwise

    def start(self) -> None:
        with self.lock:
            self.machine.start(self.clock.monotonic())
        self._thread.start()
        _drivers.add(self)

    def kick(self) -> None:
        """Let the thread write what waits."""
        if not self._kicked:
            self._kicked = True
            self.wake()

    def abandon(self) -> None:
        """Nobody holds the connection any more. Needs no lock: the garbage collector runs anywhere."""
        if self.settled:
            return
        if self._thread.is_alive():
            self.abandoned = True
            self.wake()
        else:
            self.settled = True
            warn_of_loss(self.machine)

    def wake(self) -> None:
        """Wake the thread. Needs no lock."""
        try:
            self._wake_out.send(b"\0")
        except BlockingIOError:
            pass  # it has been woken a thousand times already
        except OSError as error:
            if error.errno != errno.EBADF:  # closed: the thread has ended
                raise

    def after_send(self) -> None:
        """A frame was queued by a caller that does not wait."""
        link = self.machine.link
        if link is not None and len(link.out) >= FRAMES_PER_WRITE:
            self.flush()
        else:
            self.kick()

    def flush(self) -> None:
        """Write what waits on the current link, as far as the kernel takes it now."""
        link = self.machine.link
        entry = self._sockets.get(link) if link is not None else None
        if link is None or entry is None or entry.connecting or link.dropped:
            self.kick()  # there may be actions
            return
        try:
            self._write(link, entry)
        except BaseException:
            # A signal's handler has raised, as for Ctrl-C: nobody knows how much the kernel has taken. To write on
            # could send bytes twice, or leave a gap. So this link ends; the next one begins with the unconfirmed sends.
            link.give_up()
            entry.broken = True
            if entry.sock is not None:
                with suppress(OSError):
                    entry.sock.shutdown(socket.SHUT_RDWR)
            raise
        if entry.writable_wanted or self.machine.actions:
            self.kick()

    def check_waits(self) -> None:
        """Before a call that waits. Raises CommandError where a listener makes it."""
        if self.is_own_thread():
            raise CommandError("a listener must not wait for its own connection: start a thread, or open another one")

    def is_own_thread(self) -> bool:
        """Does a listener ask?"""
        return threading.current_thread() is self._thread

    @property
    def forked(self) -> bool:
        """Are we a child of the process that made this?"""
        return os.getpid() != self.pid

    def wait(self, gate: Gate, ready: Callable[[], bool], timeout_s: float) -> bool:
        """Wait until `ready()`, which may raise; False when the time is over. The lock is free meanwhile."""
        if ready():
            return True
        self.check_waits()
        deadline = self.clock.monotonic() + timeout_s
        self.flush()
        while True:
            token = threading.Lock()
            token.acquire()
            gate.append(token.release)
            left_s = max(0.0, deadline - self.clock.monotonic())
            try:
                self.lock.release()
                woken = token.acquire(timeout=left_s if left_s < threading.TIMEOUT_MAX else -1)
            finally:
                if not self.lock._is_owned():  # type: ignore[attr-defined] # a signal may come before it is released
                    self.lock.acquire()
                if token.release in gate:
                    gate.remove(token.release)
            if ready():
                return True
            if not woken or self.clock.monotonic() >= deadline:
                return False

    def join(self) -> None:
        """Wait for the end of the thread, without the lock; at once where a listener asks."""
        if not self.is_own_thread():
            self._thread.join()

    def finish(self) -> None:
        """Wait for the end of an abandoned connection, while the program ends. Without the lock."""
        if not self.settled:
            self._thread.join(self.machine.exit_timeout_s + EXIT_MARGIN_S)
            if self._thread.is_alive():  # a listener holds it up
                warn_of_loss(self.machine)
            self.settled = True

    def close_after_fork(self) -> None:
        """In a child process: let go of the descriptors shared with the parent, without a word to the broker."""
        self._close_all()

    # ---- the thread

    def _run(self) -> None:
        try:
            while self._turn():
                pass
        except BaseException as error:
            log.exception("the I/O thread of %s failed", self.machine.url)
            with self.lock:
                machine = self.machine
                machine.error = machine.error or ConnectionLostError(f"the client failed: {error!r}")
                while machine.state is not State.CLOSED:
                    machine.close(self.clock.monotonic())
            raise
        finally:
            with self.lock:
                self._close_all()
                self.settled = self.settled or self.abandoned

    def _close_all(self) -> None:
        for entry in self._sockets.values():
            if entry.sock is not None:
                entry.sock.close()
        self._sockets.clear()
        self._selector.close()
        self._wake_in.close()
        self._wake_out.close()

    def _turn(self) -> bool:
        """One round: what is due, what is asked, what arrived. False when there is nothing more to do."""
        machine = self.machine
        with self.lock:
            self._kicked = False
            if self.abandoned:
                machine.abandon(self.clock.monotonic())
            machine.tick(self.clock.monotonic())
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
        while self._fetched:
            with self.lock:
                machine.fetched(*self._fetched.popleft())
        while self._looked_up:
            self._begin(*self._looked_up.popleft())
        self._pass_by_the_silent()
        with self.lock:
            self._write_all()
            events, machine.events = machine.events, []
            logs, machine.logs = machine.logs, []
            idle = not machine.actions
            finished = idle and machine.state is State.CLOSED
            deadlines = [machine.deadline(), *(entry.next_at for entry in self._sockets.values())]
        self._tell(events, logs)
        if finished:
            return False
        due = min([at for at in deadlines if at is not None], default=math.inf)
        timeout_s = min(max(0.0, due - self.clock.monotonic()), SELECT_S_MAX)
        for key, mask in self._selector.select(timeout_s if idle else 0.0):
            if key.data is None:
                self._wake_in.recv(4096)
            else:
                self._on_ready(key.data, mask)
        return True

    def _tell(self, events: list[ConnectionEvent], logs: list[tuple[int, str]]) -> None:
        for level, text in logs:
            log.log(level, "%s", text)
        for event in events:
            log.info("%s", event)
            for listener in list(self.listeners):
                try:
                    listener(event)
                except Exception:
                    log.exception("a listener failed on %s", event)

    def _fetch(self, source: str) -> None:
        def take(found: Found) -> None:
            self._fetched.append((source, found))
            self.wake()

        self._lists.fetch(source, take)

    # ---- sockets

    def _open(self, link: Link) -> None:
        def take(answer: Answer) -> bool:
            self._looked_up.append((link, answer))
            self.wake()
            return not link.dropped

        link.looks_up = True
        self._names.find(link.uri.address, self, take)

    def _begin(self, link: Link, found: Answer) -> None:
        """The addresses are known, if anybody still waits for them."""
        if link.dropped:
            return
        link.looks_up = False
        if not isinstance(found, tuple):
            self._failed(link, cannot_connect(link, found))
            return
        try:
            tls = self._contexts.layer(link.uri)
        except ConnectError as error:
            self._failed(link, error)
            return
        entry = self._sockets[link] = _Socket([*found], tls)
        self._connect(link, entry, OSError("no address"))

    def _connect(self, link: Link, entry: _Socket, last: OSError) -> None:
        """Begin to connect to the next address of the host."""
        while entry.addresses:
            family, kind, number, _, address = entry.addresses.pop(0)
            try:
                sock = socket.socket(family, kind, number)
            except OSError as error:
                last = error
                continue
            try:
                sock.setblocking(False)
                options = link.uri.options
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, options.tcp_no_delay)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, options.keep_alive)
                code = sock.connect_ex(address)
            except OSError as error:
                sock.close()
                last = error
                continue
            if code in (0, errno.EINPROGRESS):
                entry.sock = sock
                entry.next_at = self._share(link, entry)
                self._selector.register(sock, selectors.EVENT_WRITE, link)
                return
            sock.close()
            last = OSError(code, os.strerror(code))
        self._failed(link, cannot_connect(link, last))

    def _share(self, link: Link, entry: _Socket) -> float:
        """Until when this address may be silent: it and those behind it share what is left of `connectTimeout`."""
        if not entry.addresses or link.deadline is None:
            return math.inf
        now = self.clock.monotonic()
        return now + max(0.0, link.deadline - now) / (len(entry.addresses) + 1)

    def _pass_by_the_silent(self) -> None:
        now = self.clock.monotonic()
        for link, entry in list(self._sockets.items()):
            if now >= entry.next_at:
                self._next_address(link, entry, OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT)))

    def _next_address(self, link: Link, entry: _Socket, last: OSError) -> None:
        """The address that was tried is of no use."""
        assert entry.sock is not None
        self._selector.unregister(entry.sock)
        entry.sock.close()
        entry.sock, entry.next_at = None, math.inf
        self._connect(link, entry, last)

    def _failed(self, link: Link, error: AmqError) -> None:
        with self.lock:
            self._release(link)
            self.machine.failed(link, error, self.clock.monotonic())

    def _close(self, link: Link) -> None:
        """Say what is left to say, if the kernel takes it now, and close."""
        with self.lock:
            entry = self._sockets.get(link)
            if entry is not None and not entry.connecting:
                self._write(link, entry)
            self._release(link)

    def _release(self, link: Link) -> None:
        entry = self._sockets.pop(link, None)
        if entry is not None and entry.sock is not None:
            self._selector.unregister(entry.sock)
            if entry.tls is not None and not (entry.connecting or entry.rest or entry.broken):
                with suppress(OSError):
                    entry.sock.send(entry.tls.goodbye())
            entry.sock.close()

    def _on_ready(self, link: Link, mask: int) -> None:
        entry = self._sockets.get(link)
        if entry is None or entry.sock is None:
            return
        if entry.connecting:
            code = entry.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                self._next_address(link, entry, OSError(code, os.strerror(code)))
                return
            with self.lock:
                entry.connecting, entry.next_at = False, math.inf
                self._selector.modify(entry.sock, selectors.EVENT_READ, link)
                if entry.tls is None:
                    self.machine.opened(link, self.clock.monotonic())
                else:
                    entry.tls.begin()
            return
        if mask & selectors.EVENT_READ:
            self._read(link, entry, entry.sock)

    def _read(self, link: Link, entry: _Socket, sock: socket.socket) -> None:
        try:
            data = sock.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            self._failed(link, ConnectionLostError(f"{link.uri}: {error.strerror or error}"))
            return
        if not data:
            self._failed(link, closed(link, entry.tls))
            return
        with self.lock:
            failure = None
            if entry.tls is None:
                self.machine.received(link, data, self.clock.monotonic())
            else:
                failure = feed(self.machine, link, entry.tls, data, self.clock.monotonic())
        if failure is not None:
            self._failed(link, failure)

    def _write_all(self) -> None:
        """Write what waits on every link, and watch those that the kernel has no room for."""
        for link, entry in self._sockets.items():
            if entry.connecting or entry.sock is None:
                continue
            self._write(link, entry)
            key = self._selector.get_key(entry.sock)
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if entry.writable_wanted else 0)
            if key.events != wanted:
                self._selector.modify(entry.sock, wanted, link)

    def _write(self, link: Link, entry: _Socket) -> None:
        if not (link.sliced and entry.rest):
            self._take(link, entry)
        sock = entry.sock
        if sock is None or entry.broken:
            entry.rest = memoryview(b"")
            link.forget_output()
            return
        try:
            while entry.rest:
                entry.rest = entry.rest[sock.send(entry.rest) :]
                if not entry.rest:
                    self._take(link, entry)
        except BlockingIOError:
            pass
        except OSError:
            # The peer is gone: reading tells so, after what it still had to say (an ERROR frame).
            entry.broken = True
            entry.rest = memoryview(b"")
            link.forget_output()
        entry.writable_wanted = bool(entry.rest)
        congested = link.sliced or len(entry.rest) > CONGESTED_BYTES
        if link.congested and not congested:
            link.congested = False
            open_gate(self.machine.room_gate)
        link.congested = congested

    def _take(self, link: Link, entry: _Socket) -> None:
        data = link.take_output(self.clock.monotonic())
        if entry.tls is not None:
            data = entry.tls.output() + (entry.tls.seal(data) if data else b"")
        if data:
            entry.rest = memoryview(bytes(entry.rest) + data if entry.rest else data)


_drivers: weakref.WeakSet[Driver] = weakref.WeakSet()  # at the end of the program: messages may be at stake


@atexit.register
def _finish_all() -> None:
    """Give sends with `wait=False` their time, and warn of those that are lost."""
    left = [driver for driver in list(_drivers) if not driver.forked and driver.machine.at_stake()]
    for driver in left:
        driver.abandon()
    for driver in left:
        driver.finish()


def warn_of_loss(machine: Machine) -> None:
    """Write to the log, or to stderr where there is none, what nobody will tell the application any more."""
    if text := machine.at_stake():
        log.warning("%s", text)


def feed(machine: Machine, link: Link, tls: Layer, data: bytes, now: float) -> AmqError | None:
    """Bytes of TLS arrived on `link`. Returns why it can be read no more."""
    was_established = tls.established
    plain = tls.receive(data)
    if tls.established and not was_established:
        machine.opened(link, now)
    if plain:
        machine.received(link, plain, now)
    if tls.error is not None:
        return ConnectionLostError(tls.error.description) if link.accepted else tls.error
    return closed(link, tls) if tls.ended else None


def closed(link: Link, tls: Layer | None) -> ConnectionLostError:
    """The broker ended the connection."""
    during = " during the TLS handshake" if tls is not None and not tls.established else ""
    return ConnectionLostError(f"{link.uri} closed the connection{during}")


def cannot_connect(link: Link, error: OSError | UnicodeError) -> ConnectError:
    """Why the TCP connection of `link` failed, in the kernel's words."""
    if isinstance(error, socket.gaierror | UnicodeError):
        return ConnectError(f"{link.uri}: the host name is not known: {error}")
    return ConnectError(f"{link.uri}: {os.strerror(error.errno) if error.errno else error}")


def seconds(timeout: float | None, default_ms: int) -> float:
    """A call's `timeout` in seconds; None = the URL's, which is in milliseconds with -1 for ever."""
    if timeout is not None:
        return timeout
    return default_ms / 1000 if default_ms >= 0 else math.inf
