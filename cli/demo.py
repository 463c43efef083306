"""`amq demo` passes a text file through a queue while it kills the master again and again, and gives a verdict."""

from __future__ import annotations

import filecmp
import os
import secrets
import sysconfig
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import click

from amq.cli import demo_common
from amq.cli.demo_cluster import ClusterDemo
from amq.cli.demo_common import STALL_S, DemoGroup
from amq.cli.demo_console import DemoConsole
from amq.cli.demo_traffic import LineSender, Receiver
from amq.cli.demo_view import REFRESH_S, Picture, PlainView
from amq.cli.options import valued
from amq.cli.output import console as terminal
from amq.cli.output import examples, json_option
from amq.core.errors import AmqError

LINES = 100_000  # of the text that the demo makes if no file is given
AHEAD_LINES_MAX = 5000  # the sender stays so close to the receiver, so that it is busy when the master dies
PHASE_LINES_MIN = 20  # lines for each kill, which falls in the middle of them
STORES = 6  # of a cluster: two of each node
WATCHED_S = 60.0  # the lines take so long with a console on a terminal: time to log in and to see each takeover
_EPILOG = examples(
    "amq demo",
    "amq demo --console",
    "amq demo --kills 20",
    "amq demo --file /usr/share/dict/words --json",
    "amq demo --keep",
    "amq demo --cluster",
    "amq demo --cluster --kills 9 --json",
    "amq demo --cluster --kills 1 --picture takeover.svg",
)


@click.command(epilog=_EPILOG)
@valued("--brokers", "count", type=click.IntRange(2, 9), default=3, help="Start N brokers, or nodes of the cluster.")
@valued("--kills", type=click.IntRange(0, 1000), default=3, help="Kill the master, or a node, N times.")
@click.option(
    "--file",
    "path",
    type=click.Path(exists=True, dir_okay=False),
    help="Send this text file. Default: Python source code.",
)
@click.option(
    "--store",
    metavar="DIR|URL",
    help="Use this store: a directory on any file system, or a database. Default: a temporary directory.",
)
@click.option("--cluster", is_flag=True, help="Kill the nodes of a cluster while messages pass through its gateways.")
@click.option(
    "--stores", metavar="N", type=click.IntRange(1, 24), help=f"With --cluster: make N stores. Default: {STORES}."
)
@click.option(
    "--picture",
    metavar="FILE",
    type=click.Path(dir_okay=False, writable=True),
    help="With --cluster: draw the time line of each store at each kill, as an SVG.",
)
@click.option("--console", "with_console", is_flag=True, help="Watch it in a browser: start a console, print its URL.")
@click.option("--keep", is_flag=True, help="Keep store, logs and output, and print their directory.")
@json_option
def demo(
    count: int,
    kills: int,
    path: str | None,
    store: str | None,
    cluster: bool,
    stores: int | None,
    picture: str | None,
    with_console: bool,
    keep: bool,
    as_json: bool,
) -> None:
    """Kill the master again and again while a file passes through a queue.

    The command starts brokers as processes on one store. A sender and a receiver with a failover URL pass every line of
    the file through a queue. Meanwhile the command kills the master with -9, a slave takes over, and the command starts
    the killed broker again. In the end it compares the output with the file, byte by byte, and checks the journal.

    --console starts the console as well, where any user name is good, and prints its URL. On a terminal the lines then
    take a minute, and the group goes on until Ctrl-C. The console needs `pip install 'amq[console]'`.

    --cluster starts nodes with several stores and a gateway each. To a queue of each store a client sends numbers, one
    after the other, and another client takes them. Meanwhile the command kills one node after the other with -9, with
    all its processes, and starts it again when other nodes serve its stores. It connects to each living node all the
    time: none may refuse. After each kill it shows the time line of each store: which node serves it, and when its
    clients had to wait. --picture draws that.

    Exit code 0 if every line arrived in order and every promise was kept, otherwise 1. No process is left behind.
    """
    if with_console and as_json:
        raise click.UsageError("--console is for people: give it without --json")
    if cluster:
        if path or store or with_console:
            raise click.UsageError("--cluster has its own stores and messages: give no --file, --store or --console")
        demo_common.play(
            "amq-demo-",
            keep,
            as_json,
            lambda place, view: ClusterDemo(place, count, stores or STORES, kills, view, picture),
        )
        return
    if stores or picture:
        raise click.UsageError("--stores and --picture are for --cluster")

    def make(directory: str, view: PlainView) -> _Demo:
        text = path or _make_text(os.path.join(directory, "input.txt"))
        place = store or os.path.join(directory, "store")
        console = DemoConsole(place, os.path.join(directory, "console.log")) if with_console else None
        return _Demo(directory, place, text, count, kills, view, console)

    demo_common.play("amq-demo-", keep, as_json, make)


@dataclass(slots=True)
class FileKill(demo_common.Kill):
    """One kill -9 of the master, when this many lines had come. `first_line_s` from the kill; 0 = has not come yet."""

    line: int = 0
    first_line_s: float = 0.0


@dataclass(slots=True)
class FileVerdict(demo_common.DemoVerdict):
    """The result of the demo. `left` = messages of its queue that the journal still holds at the end."""

    lines: int
    received: int
    seconds: float
    same: bool
    kills: list[FileKill]
    delivered_again: int
    stored_twice: int
    acks_undone: int
    left: int
    problems: list[str] = field(default_factory=list)

    def sentences(self) -> Iterator[tuple[bool, str]]:
        rate = self.received / self.seconds if self.seconds else 0.0
        took = f"{self.received:,} of {self.lines:,} lines in {self.seconds:.1f} s ({rate:,.0f}/s)"
        yield self.same, f"{took}: output and input are {'the same, byte for byte' if self.same else 'DIFFERENT'}"
        if self.kills:
            times = ", ".join(f"{kill.first_line_s * 1000:.0f} ms" for kill in self.kills)
            done = all(kill.first_line_s > 0 for kill in self.kills)
            yield done, f"{len(self.kills)} masters killed with -9; from the kill to the first line: {times}"
        again = f"{self.delivered_again:,} lines were delivered again after a kill and dropped by their id"
        yield self.stored_twice == 0, f"{again}; {self.stored_twice} were stored twice"
        yield self.acks_undone == 0, f"{self.acks_undone} confirmed acknowledgements were undone"
        yield demo_common.left_sentence(self.left, self.problems)


class _Demo:
    """One run. Everything but the two clients happens on the main thread. On a terminal a `console` makes it slow."""

    def __init__(
        self,
        directory: str,
        store: str,
        text: str,
        count: int,
        kills: int,
        view: PlainView,
        console: DemoConsole | None,
    ) -> None:
        self._store = store
        self._text = text
        self._output = os.path.join(directory, "output.txt")
        self._view = view
        self._kills_wanted = kills
        self._kills: list[FileKill] = []
        self._killed_at = 0.0
        self._lines = _count_lines(text)
        if self._lines < PHASE_LINES_MIN * (kills + 1):
            raise click.UsageError(
                f"{text} has {self._lines} lines, too few for {kills} kills: give a longer file or fewer kills"
            )
        self._group = DemoGroup(count, store, directory, view.event)
        self._console = console
        self._watched_s = WATCHED_S if console is not None and terminal().is_terminal else 0.0
        self._began = 0.0
        self._queue = f"/queue/demo.{secrets.token_hex(4)}"
        self._sender = LineSender(self._group.url, self._queue, text, self._may_send)
        self._receiver = Receiver(self._group.url, self._queue, self._output, self._lines)
        self._armed = 0  # kills for which everything is ready
        self._progress: tuple[int, ...] = ()
        self._moved_at = time.monotonic()

    def run(self) -> FileVerdict:
        """Raises AmqError if the demo cannot go on."""
        self._view.event(f"{len(self._group.brokers)} brokers on {self._store}; {self._lines:,} lines of {self._text}")
        self._group.start()
        self._group.until(lambda: self._group.is_ready, "master and slave", self._wait)
        self._open_console()
        self._began = began = time.monotonic()
        self._receiver.start()
        self._sender.start()
        while self._receiver.is_alive() or self._sender.is_alive():
            self._step(began)
        self._check()
        seconds = time.monotonic() - began
        self._step(began)
        self._group.until(lambda: self._group.is_whole, "group in which every broker is up", self._wait)
        if self._watched_s:
            self._be_watched()
        self._group.stop()
        left, problems = demo_common.left_in(self._store, self._queue)
        return FileVerdict(
            self._lines,
            self._receiver.received,
            seconds,
            filecmp.cmp(self._text, self._output, shallow=False),
            self._kills,
            self._receiver.dropped,
            self._receiver.stored_twice,
            self._receiver.acks_undone,
            left,
            problems,
        )

    def end(self) -> None:
        """Leave nothing behind: no process, no thread."""
        if self._console is not None:
            self._console.end()
        self._group.end()
        for client in (self._sender, self._receiver):
            if client.ident is not None:
                client.stop()

    # -- the console --------------------------------------------------------------------------------------------------

    def _open_console(self) -> None:
        if self._console is not None:
            self._console.start()
            self._group.until(lambda: self._console is None or self._console.is_open, "console", self._wait)
            self._view.event(f"console: {self._console.url} (any user name, no password)")

    def _be_watched(self) -> None:
        """Keep the console running until Ctrl-C."""
        assert self._console is not None
        notes = [f"All lines have come. The group stays for {self._console.url}; Ctrl-C ends it."]
        with suppress(KeyboardInterrupt):
            while True:
                self._group.check()
                self._console.check()
                self._view.show(Picture(self._group.brokers, self._lines, self._receiver.received, notes))
                time.sleep(REFRESH_S)

    # -- while the lines flow -----------------------------------------------------------------------------------------

    def _step(self, began: float) -> None:
        """Look at everything once, kill if it is time, draw."""
        self._check()
        self._follow_takeover()
        if self._due():
            self._kill()
        elapsed = time.monotonic() - began
        received = self._receiver.received
        takeovers = ", ".join(f"{kill.first_line_s * 1000:.0f} ms" for kill in self._kills if kill.first_line_s)
        notes = [
            f"{received:,} of {self._lines:,} lines received, {self._sender.confirmed:,} confirmed to the sender, "
            f"{received / elapsed:,.0f} lines/s",
            f"from kill to first line: {takeovers or '-'}",
        ]
        self._view.show(Picture(self._group.brokers, self._lines, received, notes))
        self._receiver.join(REFRESH_S / 5)

    def _may_send(self, line: int) -> bool:
        """Stay near the receiver. Begin a phase in earnest only when its kill can take place, end it when it has."""
        if line - self._receiver.received > AHEAD_LINES_MAX:
            return False
        if self._watched_s and line > self._lines * (time.monotonic() - self._began) / self._watched_s:
            return False
        killed, armed = len(self._kills), self._armed
        if killed >= self._kills_wanted:
            return True
        return line < (self._point(killed, 0.9) if armed > killed else self._point(killed, 0.25))

    def _point(self, kill: int, share: float) -> int:
        """The line at `share` of the phase in which kill number `kill` falls."""
        return int(self._lines * (kill + share) / (self._kills_wanted + 1))

    def _due(self) -> bool:
        """Is it time for the next kill? In the middle of its phase, while lines flow and a slave is ready."""
        number = len(self._kills)
        if number >= self._kills_wanted or (self._kills and not self._kills[-1].first_line_s):
            return False
        if self._armed == number and self._group.is_ready:
            self._armed += 1
        return self._armed > number and self._receiver.received >= self._point(number, 0.5)

    def _kill(self) -> None:
        master = self._group.master
        if master is None:
            return
        line = self._receiver.received
        self._killed_at = self._group.kill(master, f"at line {line:,}")
        self._kills.append(FileKill(master.name, line=line))

    def _follow_takeover(self) -> None:
        """Note when the next master serves and when its first line comes; then start the killed broker again."""
        if not self._kills or self._kills[-1].first_line_s:
            return
        kill = self._kills[-1]
        self._group.follow(kill)
        first_at = self._receiver.first_after(self._killed_at)
        if kill.epoch and first_at:
            kill.first_line_s = round(first_at - self._killed_at, 3)
            self._view.event(f"first line from {kill.next_broker} {kill.first_line_s * 1000:.0f} ms after the kill")

    def _check(self) -> None:
        """AmqError where a broker or a client has failed, or nothing moves."""
        self._group.check()
        if self._console is not None:
            self._console.check()
        for client in (self._sender, self._receiver):
            if client.failure is not None:
                raise AmqError(f"{client.name}: {client.failure}", code="DEMO_FAILED") from client.failure
        progress = (self._receiver.received, self._sender.sent, len(self._kills), self._armed)
        if progress != self._progress:
            self._progress, self._moved_at = progress, time.monotonic()
        if time.monotonic() - self._moved_at > STALL_S:
            raise AmqError(f"nothing has moved for {STALL_S:g} s: {self._group.state()}", code="DEMO_FAILED")

    def _wait(self) -> None:
        self._check()
        self._view.show(Picture(self._group.brokers, self._lines))


def _make_text(path: str) -> str:
    """Write LINES lines of the Python standard library's own source text to `path`."""
    sources = sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py"))
    lines = 0
    with open(path, "wb") as text:
        for source in sources:
            data = source.read_bytes()
            if not data.endswith(b"\n"):
                data += b"\n"
            text.write(data)
            lines += data.count(b"\n")
            if lines >= LINES:
                break
    return path


def _count_lines(path: str) -> int:
    with open(path, "rb") as text:
        return sum(1 for _ in text)
