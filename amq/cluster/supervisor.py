"""The process of a node: it starts and watches one process for each store, which is that store's member.

It is to its members what a service manager is to a broker, and speaks the same protocol with them: each has a socket
to which it says READY, STATUS and WATCHDOG (`amq.node.process.notify`). A member that ends is started again, after a
pause that grows. A member that was silent for `SILENT_S` is killed first: its event loop hangs, and another node took
its store over long before.

A member holds the read end of a pipe as its standard input. When that closes, because the node stops or has died, the
member hands its store over and ends; so no member outlives its node, however the node ends.

Invariants: a member that hangs, fails or restarts touches no other one; the event loop never waits for the cluster's
file system, which one thread reads.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import structlog

from amq.cluster.directory import Cluster
from amq.core.errors import AmqError
from amq.node import process
from amq.store.board import Seat, SeatTakenError

LOOK_S = 2.0  # between two looks at the directory of the cluster
SILENT_S = 30.0
PAUSE_S_MIN, PAUSE_S_MAX = 0.5, 30.0  # before a member is started again; twice as long each time
STEADY_S = 60.0  # a member that ran for so long is started again after the shortest pause
DATAGRAM_BYTES_MAX = 4096
_OURS = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")  # of the node, and of no member
_log = structlog.get_logger("amq.cluster")


@dataclass(slots=True)
class _Member:
    """The member of one store. `status` and `ready` are what it last said, `code` how its last process ended."""

    store: str
    door: socket.socket
    path: str
    pause_s: float
    child: asyncio.subprocess.Process | None = None
    status: str = "starting"
    ready: bool = False
    heard_s: float = 0.0
    code: int = 0
    task: asyncio.Task[None] | None = None


@dataclass(frozen=True, slots=True)
class _Seen:
    """The stores of the cluster, and the priority of this node's member in each."""

    stores: tuple[str, ...] = ()
    priorities: Mapping[str, int] = field(default_factory=dict)


class Supervisor:
    """Node `name` of `cluster`, whose seat is `seat`. `directory` is for sockets, and of this node alone;
    `command(store)` = the words that start a member."""

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        seat: Seat,
        directory: str,
        command: Callable[[str], Sequence[str]],
        environment: Mapping[str, str],
    ) -> None:
        self._environment = environment
        self._cluster = cluster
        self._name = name
        self._seat = seat
        self._directory = directory
        self._command = command
        self._members: dict[str, _Member] = {}
        self._seen = _Seen()
        self._trouble = ""
        self._stopped = threading.Event()
        self._is_ready = False

    async def until_stopped(self) -> int:
        """Run until a signal asks to stop. Returns the exit code: that of the first member that failed to hand over."""
        self._loop = loop = asyncio.get_running_loop()
        self._end: asyncio.Future[None] = loop.create_future()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_stop, number)
        loop.add_signal_handler(signal.SIGHUP, self._hang_up)
        self._feed_watchdog(process.watchdog_interval_s())
        threading.Thread(target=self._look_on, name="amq-cluster", daemon=True).start()
        try:
            await self._end
            tasks = [member.task for member in self._members.values() if member.task is not None]
            await asyncio.gather(*tasks)
        finally:
            self._stopped.set()
            for member in self._members.values():
                self._close(member)
        return next((member.code for member in self._members.values() if member.code), 0)

    # -- the directory, in its own thread -----------------------------------------------------------------------------

    def _look_on(self) -> None:
        while not self._stopped.is_set():
            try:
                if self._seat.keep():
                    _log.warning("the file that says that this node runs was removed: it is there again")
                table = self._cluster.table()
                seen = _Seen(tuple(table.stores), self._cluster.priorities(self._name))
                trouble = ""
            except (AmqError, OSError, SeatTakenError) as error:
                seen, trouble = None, str(error)
            if trouble != self._trouble and trouble:
                _log.warning("the cluster cannot be read; its members go on as they are", reason=trouble)
            self._trouble = trouble
            if seen is not None:
                with suppress(RuntimeError):  # the event loop has ended meanwhile
                    self._loop.call_soon_threadsafe(self._take, seen)
            self._stopped.wait(LOOK_S)

    def _take(self, seen: _Seen) -> None:
        if self._end.done() or seen == self._seen:
            return
        before, self._seen = self._seen, seen
        for store in seen.stores:
            if store not in self._members:
                self._members[store] = member = self._open(store)
                member.task = self._loop.create_task(self._run(member))
            elif before.priorities.get(store) != seen.priorities.get(store):
                self._signal(self._members[store], signal.SIGHUP)  # it computes its own priority
        if before.stores:
            _log.info("the cluster has changed", stores=list(seen.stores), priorities=dict(seen.priorities))

    # -- members ------------------------------------------------------------------------------------------------------

    def _open(self, store: str) -> _Member:
        path = os.path.join(self._directory, f"{len(self._members)}.sock")
        door = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        door.setblocking(False)
        door.bind(path)
        member = _Member(store, door, path, PAUSE_S_MIN)
        self._loop.add_reader(door, self._hear, member)
        return member

    def _close(self, member: _Member) -> None:
        self._loop.remove_reader(member.door)
        member.door.close()

    async def _run(self, member: _Member) -> None:
        """Start the member, and start it again whenever it ends, until the node stops."""
        while not self._end.done():
            started_s = member.heard_s = self._loop.time()
            member.status, member.ready = "starting", False
            try:
                member.child = child = await self._start(member)
            except OSError as error:
                why = str(error)
            else:
                if self._end.done() and child.stdin is not None:
                    child.stdin.close()
                watch = self._loop.create_task(self._watch(member, child))
                member.code = await child.wait()
                watch.cancel()
                why = _ended(member.code)
            member.child, member.ready = None, False
            member.status = why
            if self._end.done():
                return
            if self._loop.time() - started_s >= STEADY_S:
                member.pause_s = PAUSE_S_MIN
            _log.error("a member has ended: starting it again", store=member.store, how=why, pause_s=member.pause_s)
            self._report()
            await asyncio.wait([self._end], timeout=member.pause_s)
            member.pause_s = min(2 * member.pause_s, PAUSE_S_MAX)

    async def _start(self, member: _Member) -> asyncio.subprocess.Process:
        environment = {key: value for key, value in self._environment.items() if key not in _OURS}
        environment |= {"NOTIFY_SOCKET": member.path, "WATCHDOG_USEC": str(int(SILENT_S * 1e6))}
        # Its own process group: Ctrl-C is for the node, which tells its members. Two signals would end them at once.
        child = await asyncio.create_subprocess_exec(
            *self._command(member.store), stdin=subprocess.PIPE, env=environment, process_group=0
        )
        _log.info("member started", store=member.store, member_pid=child.pid)
        return child

    async def _watch(self, member: _Member, child: asyncio.subprocess.Process) -> None:
        while True:
            left_s = member.heard_s + SILENT_S - self._loop.time()
            if left_s <= 0:
                _log.error("a member is silent: killing it", store=member.store, member_pid=child.pid, after_s=SILENT_S)
                self._signal(member, signal.SIGKILL)
                return
            await asyncio.sleep(left_s)

    def _hear(self, member: _Member) -> None:
        while True:
            try:
                text = member.door.recv(DATAGRAM_BYTES_MAX).decode(errors="replace")
            except OSError:  # nothing more is there
                break
            member.heard_s = self._loop.time()
            for line in text.split("\n"):
                key, _, value = line.partition("=")
                if key == "READY":
                    member.ready = True
                elif key == "STATUS":
                    member.status = value
        self._report()

    def _signal(self, member: _Member, number: signal.Signals) -> None:
        if member.child is not None:
            with suppress(ProcessLookupError):
                member.child.send_signal(number)

    # -- the node as a whole ------------------------------------------------------------------------------------------

    def _on_stop(self, number: int) -> None:
        for other in (signal.SIGTERM, signal.SIGINT):
            self._loop.remove_signal_handler(other)
            signal.signal(other, signal.SIG_DFL)
        _log.info(
            "told to stop: the members hand over; a second signal ends the node", signal=signal.Signals(number).name
        )
        process.notify("STOPPING=1\nSTATUS=handing over")
        self._end.set_result(None)
        for member in self._members.values():
            if member.child is not None and member.child.stdin is not None:
                member.child.stdin.close()

    def _hang_up(self) -> None:
        _log.info("SIGHUP: the members read their configuration again")
        for member in self._members.values():
            self._signal(member, signal.SIGHUP)

    def _report(self) -> None:
        if self._end.done() or not self._members:
            return
        status = "STATUS=" + "; ".join(f"{member.store}: {member.status}" for member in self._members.values())
        ready = not self._is_ready and all(member.ready for member in self._members.values())
        process.notify(f"READY=1\n{status}" if ready else status)
        if ready:
            self._is_ready = True
            _log.info("all members run", stores=list(self._members))

    def _feed_watchdog(self, interval_s: float | None) -> None:
        if interval_s is not None:
            process.notify("WATCHDOG=1")
            self._loop.call_later(interval_s, self._feed_watchdog, interval_s)


def _ended(code: int) -> str:
    if code < 0:
        return f"by signal {signal.Signals(-code).name}"
    return f"with exit code {code}"
