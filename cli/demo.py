"""`amq demo`: a group of brokers, a text file through a queue, kill -9 of the master again and again, and a verdict."""

from __future__ import annotations

import filecmp
import os
import secrets
import shutil
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import click

from amq.cli import exits
from amq.cli.demo_brokers import MASTER, SLAVE, DemoBroker
from amq.cli.demo_traffic import Receiver, Sender
from amq.cli.demo_view import REFRESH_S, LiveView, Picture, PlainView
from amq.cli.output import console, examples, json_option, print_json
from amq.cli.store import read_sealing
from amq.errors import AmqError
from amq.journal.inspect import inspect
from amq.vfs import SystemVfs

LINES = 100_000  # of the text that is made where no file is given
AHEAD_LINES_MAX = 5000  # the sender stays so close to the receiver, so that it is busy when the master dies
PHASE_LINES_MIN = 20  # lines for each kill, which falls in the middle of them
STALL_S = 30.0
_EPILOG = examples("amq demo", "amq demo --kills 20", "amq demo --file /usr/share/dict/words --json", "amq demo --keep")


@click.command(epilog=_EPILOG)
@click.option(
    "--brokers", "count", metavar="N", type=click.IntRange(2, 9), default=3, show_default=True,
    help="How many brokers.",
)  # fmt: skip
@click.option(
    "--kills", metavar="N", type=click.IntRange(0, 1000), default=3, show_default=True,
    help="Kills of masters.",
)  # fmt: skip
@click.option("--file", "path", type=click.Path(exists=True, dir_okay=False), help="Text. Default: Python code.")
@click.option("--store", metavar="DIR", help="Store directory to use, on any file system. Default: a temporary one.")
@click.option("--keep", is_flag=True, help="Keep store, logs and output, and say where they are.")
@json_option
def demo(count: int, kills: int, path: str | None, store: str | None, keep: bool, as_json: bool) -> None:
    """Kill the master again and again while a file goes through a queue.

    Starts brokers as processes on one store. A sender and a receiver with a failover URL pass every line of the file
    through a queue, while the master is killed with -9, a slave takes over and the killed one is started again. In the
    end the output is compared with the file, byte by byte, and the journal is checked.

    Exit code 0 where every line arrived, in order, and every promise was kept; 1 otherwise. Leaves no process behind.
    """
    with _directory(keep, as_json) as directory:
        text = path or _make_text(os.path.join(directory, "input.txt"))
        view = PlainView(quiet=as_json) if as_json or not console().is_terminal else LiveView()
        with view:
            run = _Demo(directory, store or os.path.join(directory, "store"), text, count, kills, view)
            try:
                verdict = run.run()
            finally:
                run.end()
        if as_json:
            print_json(asdict(verdict) | {"ok": verdict.ok, "directory": directory if keep else None})
        else:
            for good, sentence in verdict.sentences():
                click.secho(f"{'✔' if good else '✘'} {sentence}", fg="green" if good else "red")
    if not verdict.ok:
        raise click.exceptions.Exit(exits.FAILED)


@dataclass(slots=True)
class Kill:
    """One kill -9 of the master. Seconds are counted from the kill; 0 = has not come yet."""

    broker: str
    line: int
    next_broker: str = ""
    epoch: int = 0
    serving_s: float = 0.0
    first_line_s: float = 0.0


@dataclass(slots=True)
class Verdict:
    """What came of it. `left` = messages that the journal still holds at the end."""

    lines: int
    received: int
    seconds: float
    same: bool
    kills: list[Kill]
    delivered_again: int
    stored_twice: int
    acks_undone: int
    left: int
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        return all(good for good, _ in self.sentences())

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
        whole = f"the journal has {len(self.problems)} problems and {self.left} messages left"
        yield not self.problems and not self.left, "; ".join([whole, *self.problems[:3]])


class _Demo:
    """One run. Everything but the two clients happens on the main thread."""

    def __init__(self, directory: str, store: str, text: str, count: int, kills: int, view: PlainView) -> None:
        self._store = store
        self._text = text
        self._output = os.path.join(directory, "output.txt")
        self._view = view
        self._kills_wanted = kills
        self._kills: list[Kill] = []
        self._killed_at = 0.0
        self._lines = _count_lines(text)
        if self._lines < PHASE_LINES_MIN * (kills + 1):
            raise click.UsageError(
                f"{text} has {self._lines} lines, too few for {kills} kills: give a longer file or fewer kills"
            )
        self._brokers = [
            DemoBroker(f"broker-{number}", store, os.path.join(directory, f"broker-{number}.log"), self._on_role)
            for number in range(1, count + 1)
        ]
        url = f"failover:({','.join(broker.url for broker in self._brokers)})"
        queue = f"/queue/demo.{secrets.token_hex(4)}"
        self._sender = Sender(url, queue, text, self._may_send)
        self._receiver = Receiver(url, queue, self._output, self._lines)
        self._armed = 0  # kills for which everything is ready
        self._progress: tuple[int, ...] = ()
        self._moved_at = time.monotonic()

    def run(self) -> Verdict:
        """Raises AmqError where the demo cannot go on."""
        self._view.event(f"{len(self._brokers)} brokers on {self._store}; {self._lines:,} lines of {self._text}")
        for broker in self._brokers:
            broker.start()
        self._until(lambda: self._master() is not None and self._slaves() > 0, "a master and a slave")
        began = time.monotonic()
        self._receiver.start()
        self._sender.start()
        while self._receiver.is_alive() or self._sender.is_alive():
            self._step(began)
        self._check()
        seconds = time.monotonic() - began
        self._step(began)
        self._until(lambda: self._slaves() + 1 == len(self._brokers), "group in which every broker is up")
        for broker in sorted(self._brokers, key=lambda broker: broker.role == MASTER):  # the master last
            broker.stop()
        vfs = SystemVfs()
        inspection, statistics = inspect(vfs, self._store, lambda: read_sealing(vfs, self._store))
        return Verdict(
            self._lines, self._receiver.received, seconds, filecmp.cmp(self._text, self._output, shallow=False),
            self._kills, self._receiver.dropped, self._receiver.stored_twice, self._receiver.acks_undone,
            sum(tally.live for tally in statistics.destinations.values()),
            [str(problem) for problem in inspection.problems],
        )  # fmt: skip

    def end(self) -> None:
        """Leave nothing behind: no process, no thread."""
        for broker in self._brokers:
            broker.end()
        for client in (self._sender, self._receiver):
            if client.ident is not None:
                client.stop()

    # -- while the lines flow -----------------------------------------------------------------------------------------

    def _step(self, began: float) -> None:
        """Look at everything once, kill if it is time, draw."""
        self._check()
        self._follow_takeover()
        if self._due():
            self._kill()
        elapsed = time.monotonic() - began
        received = self._receiver.received
        takeovers = [kill.first_line_s for kill in self._kills if kill.first_line_s]
        self._view.show(
            Picture(self._brokers, self._lines, self._sender.confirmed, received, received / elapsed, takeovers)
        )  # fmt: skip
        self._receiver.join(REFRESH_S / 5)

    def _may_send(self, line: int) -> bool:
        """Stay near the receiver. Begin a phase in earnest only when its kill can take place, end it when it has."""
        if line - self._receiver.received > AHEAD_LINES_MAX:
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
        if self._armed == number and self._master() is not None and self._slaves() > 0:
            self._armed += 1
        return self._armed > number and self._receiver.received >= self._point(number, 0.5)

    def _kill(self) -> None:
        master = self._master()
        if master is None:
            return
        line = self._receiver.received
        self._view.event(f"kill -9 {master.name} (pid {master.pid}), the master, at line {line:,}")
        self._killed_at = master.kill()
        self._kills.append(Kill(master.name, line))

    def _follow_takeover(self) -> None:
        """Note when the next master serves and when its first line comes; then start the killed broker again."""
        if not self._kills or self._kills[-1].first_line_s:
            return
        kill, master = self._kills[-1], self._master()
        if master is None:
            return
        if not kill.epoch:
            kill.next_broker, kill.epoch = master.name, master.epoch
            kill.serving_s = round(master.serving_at - self._killed_at, 3)
            next(broker for broker in self._brokers if broker.name == kill.broker).start()
        first_at = self._receiver.first_after(self._killed_at)
        if first_at:
            kill.first_line_s = round(first_at - self._killed_at, 3)
            self._view.event(f"first line from {master.name} {kill.first_line_s * 1000:.0f} ms after the kill")

    def _on_role(self, broker: DemoBroker, reason: str) -> None:
        if broker.role == MASTER:
            self._view.event(f"{broker.name} is the master, epoch {broker.epoch}: {reason}")
        else:
            self._view.event(f"{broker.name} is a slave and waits")

    def _master(self) -> DemoBroker | None:
        return next((broker for broker in self._brokers if broker.role == MASTER), None)

    def _slaves(self) -> int:
        return sum(broker.role == SLAVE for broker in self._brokers)

    def _check(self) -> None:
        """AmqError where a broker or a client has failed, or nothing moves."""
        for broker in self._brokers:
            broker.check()
        for client in (self._sender, self._receiver):
            if client.failure is not None:
                raise AmqError(f"{client.name}: {client.failure}", code="DEMO_FAILED") from client.failure
        progress = (self._receiver.received, self._sender.sent, len(self._kills), self._armed)
        if progress != self._progress:
            self._progress, self._moved_at = progress, time.monotonic()
        if time.monotonic() - self._moved_at > STALL_S:
            raise AmqError(f"nothing has moved for {STALL_S:g} s: {self._state()}", code="DEMO_FAILED")

    def _until(self, condition: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + STALL_S
        while not condition():
            self._check()
            if time.monotonic() > deadline:
                raise AmqError(f"no {what} within {STALL_S:g} s: {self._state()}", code="DEMO_FAILED")
            self._view.show(Picture(self._brokers, self._lines))
            time.sleep(REFRESH_S / 5)

    def _state(self) -> str:
        return "; ".join(f"{broker.name} is {broker.role}, last said {broker.last_words()}" for broker in self._brokers)


@contextmanager
def _directory(keep: bool, quiet: bool) -> Iterator[str]:
    directory = tempfile.mkdtemp(prefix="amq-demo-")
    try:
        yield directory
    finally:
        if keep:
            if not quiet:
                click.echo(f"kept: {directory}")
        else:
            shutil.rmtree(directory)


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
