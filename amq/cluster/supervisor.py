"""The process of a node: it starts and watches one process for each store, its member there, and the gateways.

It is to its processes what a service manager is to a broker, and speaks the same protocol with them: each has a socket
to which it says READY, STATUS and WATCHDOG (`amq.node.process.notify`). A process that ends is started again, after a
pause that grows. A process that was silent for `SILENT_S` is killed first: its event loop hangs. If it was a member,
another node took its store over long before. A process has `STARTING_S` for its first word.

A process holds the read end of a pipe as its standard input. When that closes, because the node stops or has died, the
process ends in good order; so none outlives its node, however the node ends. At a stop the gateways end first, while
the members still answer.

The node holds the sockets at which its gateways listen, too. So clients that connect while a gateway is started again
wait in the kernel, and none is refused.

Invariants: a process that hangs, fails or restarts touches no other one; the event loop never waits for the cluster's
file system, which one thread reads and writes.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import structlog

from amq.cluster.directory import Cluster, ClusterNode, GatewaySeen, node_document
from amq.cluster.moving import MOVING_LOOK_S, carry_on
from amq.core.errors import AmqError
from amq.node import process
from amq.store.board import Seat, SeatTakenError

LOOK_S = 2.0  # between two looks at the directory of the cluster
SILENT_S = 30.0
STARTING_S = 300.0  # before the first word: a busy host starts many processes at a time
PAUSE_S_MIN, PAUSE_S_MAX = 0.5, 30.0  # before a process is started again; twice as long each time
STEADY_S = 60.0  # a process that ran for this time is started again after the shortest pause
STEADY_PAUSES = 10.0  # as is one that was ready for ten of its pauses: it was killed, and did not fail at its start
FAILING_ENDS = 3  # without a steady minute
SEAT_S = 5.0  # at a stop: for the last word in the seat; the file system may hang
GATEWAYS_END_S = 10.0  # at a stop: then the members end, too
DATAGRAM_BYTES_MAX = 4096
COUNTS = "X_AMQ_COUNTS"  # what a gateway says of itself, as JSON
SOCKETS = "GATEWAY_SOCKETS"  # in the environment of a gateway: its sockets, see `Program`
REMOVED_S = 15.0  # a store was removed: gateways, which look every 5 s, let go of its master before that ends
_OURS = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")  # of the node, and of no process that it starts
_log = structlog.get_logger("amq.cluster")


class Program(NamedTuple):
    """How a process is started: by `words`. It inherits `sockets`, those of each transport together."""

    words: Sequence[str]
    sockets: Sequence[Sequence[socket.socket]] = ()


@dataclass(slots=True)
class _Process:
    """The member of a store, or a gateway: `facts` name it in the log, `name` in the status. `status`, `ready` and
    `counts` are what it last said, `code` how its last process ended."""

    name: str
    facts: Mapping[str, str | int]
    program: Program
    door: socket.socket
    path: str
    pause_s: float
    restarts: int = 0
    child: asyncio.subprocess.Process | None = None
    status: str = "starting"
    ready: bool = False
    counts: Mapping[str, int] = field(default_factory=dict)
    heard_s: float = 0.0
    has_spoken: bool = False
    is_to_reload: bool = False  # as soon as it has spoken
    started_s: float = 0.0
    ready_s: float = 0.0  # when it became ready
    ends_lately: int = 0  # how often it has ended since it last ran for a steady minute
    code: int = 0
    task: asyncio.Task[None] | None = None
    is_removed: bool = False  # its store is none of the cluster any more
    ends: asyncio.Event = field(default_factory=asyncio.Event)  # for that reason it does not begin again


@dataclass(frozen=True, slots=True)
class _Seen:
    """The stores of the cluster, the priority of this node's member in each, and the number of the table."""

    stores: tuple[str, ...] = ()
    priorities: Mapping[str, int] = field(default_factory=dict)
    table: int = 0


class Supervisor:
    """`node` of `cluster`, whose seat is `seat`. `directory` is for sockets, and of this node alone; `command(store)` =
    the words that start a member."""

    def __init__(
        self,
        cluster: Cluster,
        node: ClusterNode,
        seat: Seat,
        directory: str,
        command: Callable[[str], Sequence[str]],
        environment: Mapping[str, str],
        gateways: Sequence[Program] = (),
    ) -> None:
        self._environment = environment
        self._cluster = cluster
        self._node = node  # as its seat shall say
        self._written: ClusterNode | None = None
        self._seat = seat
        self._directory = directory
        self._command = command
        self._programs = gateways
        self._gateways: list[_Process] = []
        self._members: dict[str, _Process] = {}
        self._seen = _Seen()
        self._trouble = ""
        self._stopped = threading.Event()
        self._is_ready = False
        self._opened = 0  # processes
        self._is_moving = False  # are destinations on their way to other homes?
        self._nodes: list[ClusterNode] = []  # of the cluster

    async def until_stopped(self) -> int:
        """Run until a signal asks to stop. Returns the exit code: that of the first process that failed to end well."""
        self._loop = loop = asyncio.get_running_loop()
        self._end: asyncio.Future[None] = loop.create_future()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_stop, number)
        loop.add_signal_handler(signal.SIGHUP, self._hang_up)
        self._feed_watchdog(process.watchdog_interval_s())
        for index, program in enumerate(self._programs, start=1):
            self._gateways.append(self._open(f"gateway {index}", {"gateway": index}, program))
        looking = threading.Thread(target=self._look_on, name="amq-cluster", daemon=True)
        looking.start()
        try:
            await self._end
            await self._stop(self._gateways, GATEWAYS_END_S)
            await self._stop(list(self._members.values()))
            self._node = replace(self._node, has_stopped=True)
        finally:
            self._stopped.set()
            await asyncio.to_thread(looking.join, SEAT_S)
            for each in self._processes():
                self._close(each)
        return next((each.code for each in self._processes() if each.code), 0)

    @property
    def is_serving(self) -> bool:
        """Is a gateway there for clients?"""
        return not self._end.done() and any(each.ready for each in self._gateways)

    def _processes(self) -> list[_Process]:
        return [*self._gateways, *self._members.values()]

    async def _stop(self, processes: list[_Process], patience_s: float | None = None) -> None:
        """Ask them to end, and wait for that."""
        for each in processes:
            if each.child is not None and each.child.stdin is not None:
                each.child.stdin.close()
        if tasks := [each.task for each in processes if each.task is not None]:
            await asyncio.wait(tasks, timeout=patience_s)

    # -- the directory, in its own thread -----------------------------------------------------------------------------

    def _look_on(self) -> None:
        is_changing = False
        carrying = (self._cluster, lambda: self._is_moving, lambda: self._nodes, self._stopped)
        mover = threading.Thread(target=carry_on, args=carrying, name="amq-moves", daemon=True)
        while not self._stopped.is_set():
            try:
                if self._seat.keep():
                    _log.warning("the document that says that this node runs was lost: it is there again")
                    self._written = None
                self._tell()
                table, self._nodes = self._cluster.table(), self._cluster.nodes()
                self._is_moving = table.placement.step is not None
                is_changing = table.placement.before is not None or self._is_behind(table.number)
                priorities = self._cluster.priorities(self._node.name, table, self._nodes)
                seen = _Seen(tuple(table.stores), priorities, table.number)
                trouble = ""
            except (AmqError, OSError, SeatTakenError) as error:
                seen, trouble = None, str(error)
            if trouble != self._trouble and trouble:
                _log.warning("the cluster cannot be read; its members go on as they are", reason=trouble)
            self._trouble = trouble
            if seen is not None:
                if mover.ident is None:
                    mover.start()  # knows from its beginning which nodes run
                with suppress(RuntimeError):  # the event loop has ended meanwhile
                    self._loop.call_soon_threadsafe(self._take, seen)
            self._stopped.wait(MOVING_LOOK_S if is_changing else LOOK_S)
        with suppress(AmqError, OSError, SeatTakenError):  # others see that it does not run, whatever it last said
            self._tell()

    def _is_behind(self, table: int) -> bool:
        """Does a gateway lead clients by an older table? A command that changes the cluster waits for it."""
        return any(each.pid and 0 < each.table < table for each in self._node.gateways)

    def _tell(self) -> None:
        """Write into the seat what this node says of itself. Raises AmqError, OSError, SeatTakenError."""
        node = self._node
        if node != self._written:
            self._seat.write(node_document(node))
            self._written = node

    def _take(self, seen: _Seen) -> None:
        if self._end.done() or seen == self._seen:
            return
        before, self._seen = self._seen, seen
        if before.table and before.table != seen.table and not self._is_moving:
            for gateway in self._gateways:
                self._reload(gateway)  # in a move it looks when a client of its own waits
        for store in seen.stores:
            if store not in self._members:
                self._members[store] = self._open(store, {"store": store}, Program(self._command(store)))
            elif self._members[store].is_removed:
                continue  # and is there again: its member begins anew when the old one has ended
            elif before.table != seen.table or before.priorities.get(store) != seen.priorities.get(store):
                self._reload(self._members[store])  # it reads both itself
        for store in self._members.keys() - {*seen.stores}:
            self._remove(self._members[store])
        if before.stores:
            _log.info(
                "the cluster has changed",
                stores=list(seen.stores),
                priorities=dict(seen.priorities),
                table=seen.table,
            )

    def _remove(self, member: _Process) -> None:
        """Its store was removed: it ends soon, and does not begin again."""
        if not member.is_removed:
            member.is_removed = True
            _log.info("a store was removed from the cluster: its member ends", in_s=REMOVED_S, **member.facts)
            self._loop.call_later(REMOVED_S, self._end_removed, member)

    def _end_removed(self, member: _Process) -> None:
        if self._end.done():
            return
        assert member.task is not None
        member.task.add_done_callback(lambda _: self._has_ended(member))
        member.ends.set()
        if member.child is not None and member.child.stdin is not None:
            member.child.stdin.close()

    def _has_ended(self, member: _Process) -> None:
        if self._end.done():
            return
        self._close(member)
        del self._members[member.name]
        if member.name in self._seen.stores:
            self._members[member.name] = self._open(member.name, member.facts, member.program)
        self._report()

    # -- processes ----------------------------------------------------------------------------------------------------

    def _open(self, name: str, facts: Mapping[str, str | int], program: Program) -> _Process:
        self._opened += 1
        path = os.path.join(self._directory, f"{self._opened}.sock")
        door = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        door.setblocking(False)
        door.bind(path)
        made = _Process(name, facts, program, door, path, PAUSE_S_MIN)
        self._loop.add_reader(door, self._hear, made)
        made.task = self._loop.create_task(self._run(made))
        return made

    def _close(self, each: _Process) -> None:
        self._loop.remove_reader(each.door)
        each.door.close()

    async def _run(self, each: _Process) -> None:
        """Start the process, and start it again whenever it ends, until the node stops."""
        while not (self._end.done() or each.ends.is_set()):
            each.started_s = each.heard_s = self._loop.time()
            each.status, each.ready, each.has_spoken, each.counts = "starting", False, False, {}
            each.is_to_reload = False
            try:
                each.child = child = await self._start(each)
            except OSError as error:
                why = str(error)
            else:
                if (self._end.done() or each.ends.is_set()) and child.stdin is not None:
                    child.stdin.close()
                if each.is_to_reload:
                    self._reload(each)
                watch = self._loop.create_task(self._watch(each, child))
                each.code = await child.wait()
                watch.cancel()
                why = _ended(each.code)
            served_s = self._loop.time() - each.ready_s if each.ready else -1.0
            each.child, each.ready = None, False
            each.status = why
            if self._end.done() or each.ends.is_set():
                return
            self._note_end(each, served_s)
            pause_s, each.pause_s = each.pause_s, min(2 * each.pause_s, PAUSE_S_MAX)
            each.restarts += 1
            _log.error("a process of the node has ended: starting it again", **each.facts, how=why, pause_s=pause_s)
            if each.ends_lately == FAILING_ENDS:
                _log.critical("a process of the node ends again and again", **each.facts, how=why)
            self._report()
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._until_it_ends(each)

    def _note_end(self, each: _Process, served_s: float) -> None:
        """The process has ended, after `served_s` in which it was ready; -1 = it never was."""
        is_steady = self._loop.time() - each.started_s >= STEADY_S
        each.ends_lately = 1 if is_steady else each.ends_lately + 1
        if is_steady or served_s >= STEADY_PAUSES * each.pause_s:
            each.pause_s = PAUSE_S_MIN

    async def _until_it_ends(self, each: _Process) -> None:
        """Wait for the end of the node, or of the part of this process in it."""
        removed = self._loop.create_task(each.ends.wait())
        try:
            await asyncio.wait((asyncio.ensure_future(self._end), removed), return_when=asyncio.FIRST_COMPLETED)
        finally:
            removed.cancel()

    async def _start(self, each: _Process) -> asyncio.subprocess.Process:
        environment = {key: value for key, value in self._environment.items() if key not in _OURS}
        environment |= {"NOTIFY_SOCKET": each.path, "WATCHDOG_USEC": str(int(SILENT_S * 1e6))}
        inherited = [[sock.fileno() for sock in sockets] for sockets in each.program.sockets]
        if inherited:
            environment[SOCKETS] = json.dumps(inherited)
        # Its own process group: Ctrl-C is for the node, which tells its members. Two signals would end them at once.
        child = await asyncio.create_subprocess_exec(
            *each.program.words,
            stdin=subprocess.PIPE,
            env=environment,
            process_group=0,
            pass_fds=[number for numbers in inherited for number in numbers],
        )
        _log.info("process of the node started", **each.facts, process=child.pid)
        return child

    async def _watch(self, each: _Process, child: asyncio.subprocess.Process) -> None:
        while True:
            patience_s = SILENT_S if each.has_spoken else STARTING_S
            left_s = each.heard_s + patience_s - self._loop.time()
            if left_s <= 0:
                _log.error(
                    "a process of the node is silent: killing it", **each.facts, process=child.pid, after_s=patience_s
                )
                self._signal(each, signal.SIGKILL)
                return
            await asyncio.sleep(min(left_s, SILENT_S))

    def _hear(self, each: _Process) -> None:
        while True:
            try:
                text = each.door.recv(DATAGRAM_BYTES_MAX).decode(errors="replace")
            except OSError:  # nothing more is there
                break
            each.heard_s, each.has_spoken = self._loop.time(), True
            if each.is_to_reload:
                self._reload(each)
            for line in text.split("\n"):
                key, _, value = line.partition("=")
                if key == "READY":
                    each.ready, each.ready_s = True, each.ready_s if each.ready else self._loop.time()
                elif key == "STATUS":
                    each.status = value
                elif key == COUNTS:
                    each.counts = json.loads(value)
        self._report()

    def _reload(self, each: _Process) -> None:
        """Let it read its configuration again. A process that has said nothing may have read it already, and would die
        of the signal: it gets that at its first word."""
        each.is_to_reload = each.child is None or not each.has_spoken
        if not each.is_to_reload:
            self._signal(each, signal.SIGHUP)

    def _signal(self, each: _Process, number: signal.Signals) -> None:
        if each.child is not None:
            with suppress(ProcessLookupError):
                each.child.send_signal(number)

    # -- the node as a whole ------------------------------------------------------------------------------------------

    def _on_stop(self, number: int) -> None:
        for other in (signal.SIGTERM, signal.SIGINT):
            self._loop.remove_signal_handler(other)
            signal.signal(other, signal.SIG_DFL)
        _log.info(
            "told to stop: the members hand over; a second signal ends the node", signal=signal.Signals(number).name
        )
        process.notify("STOPPING=1\nSTATUS=handing over")
        for program in self._programs:
            for sock in (each for sockets in program.sockets for each in sockets):
                sock.close()
        self._end.set_result(None)

    def _hang_up(self) -> None:
        _log.info("SIGHUP: all processes of the node read their configuration again")
        for each in self._processes():
            self._reload(each)

    def _report(self) -> None:
        processes = self._processes()
        if self._end.done() or not self._members:
            return
        seen = tuple(
            GatewaySeen.of(each.child.pid if each.child is not None else 0, each.counts, each.restarts)
            for each in self._gateways
        )
        restarts, failing = sum(each.restarts for each in processes), tuple(filter(None, map(self._fails, processes)))
        self._node = replace(self._node, gateways=seen, restarts=restarts, failing=failing)
        status = "STATUS=" + "; ".join(f"{each.name}: {each.status}" for each in processes)
        ready = not self._is_ready and all(each.ready for each in processes)
        process.notify(f"READY=1\n{status}" if ready else status)
        if ready:
            self._is_ready = True
            _log.info("all processes of the node run", stores=list(self._members), gateways=len(self._gateways))

    def _fails(self, each: _Process) -> str:
        """Its name where it ends again and again, "" = it does not."""
        is_steady = each.child is not None and self._loop.time() - each.started_s >= STEADY_S
        return each.name if each.ends_lately >= FAILING_ENDS and not is_steady else ""

    def _feed_watchdog(self, interval_s: float | None) -> None:
        if interval_s is not None:
            process.notify("WATCHDOG=1")
            self._loop.call_later(interval_s, self._feed_watchdog, interval_s)


def _ended(code: int) -> str:
    if code < 0:
        return f"by signal {signal.Signals(-code).name}"
    return f"with exit code {code}"
