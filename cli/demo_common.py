"""Shared by the demos: a group of brokers whose masters are killed, a directory, and a verdict with its report."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Protocol

import click

from amq.cli import exits
from amq.cli.demo_brokers import MASTER, SLAVE, DemoBroker
from amq.cli.demo_view import REFRESH_S, LiveView, PlainView
from amq.cli.output import console, print_json
from amq.cli.store import read_sealing, store_of
from amq.cli.text import raw
from amq.core.errors import AmqError
from amq.journal.hidden import real_name
from amq.journal.inspect import inspect
from amq.protocols.stomp.destination import full_name

STALL_S = 120.0  # without progress, also where other programs take the processor


@dataclass(slots=True)
class Kill:
    """One kill -9 of the master. Seconds are counted from the kill; 0 = has not come yet."""

    broker: str
    next_broker: str = ""
    epoch: int = 0
    serving_s: float = 0.0


@dataclass(slots=True)
class DemoVerdict(ABC):
    """The result of a demo: figures and their meaning."""

    @abstractmethod
    def sentences(self) -> Iterator[tuple[bool, str]]:
        """Yields (promise kept, a sentence about it)."""

    @property
    def ok(self) -> bool:
        return all(good for good, _ in self.sentences())


class DemoGroup:
    """`broker-1` and so on, on one store. All from the main thread.

    said  is called with each event, from any thread
    """

    def __init__(
        self, count: int, store: str, directory: str, said: Callable[[str], None], options: Sequence[str] = ()
    ) -> None:
        self._said = said
        self._killed_at = 0.0
        self.brokers = [
            DemoBroker(
                f"broker-{number}", store, os.path.join(directory, f"broker-{number}.log"), self._on_role, options
            )
            for number in range(1, count + 1)
        ]
        self.url = f"failover:({','.join(broker.url for broker in self.brokers)})"

    @property
    def master(self) -> DemoBroker | None:
        return next((broker for broker in self.brokers if broker.role == MASTER), None)

    @property
    def is_ready(self) -> bool:
        """Is there a master, and a slave that could follow it?"""
        return self.master is not None and self._slaves() > 0

    @property
    def is_whole(self) -> bool:
        return self.master is not None and self._slaves() + 1 == len(self.brokers)

    def start(self) -> None:
        for broker in self.brokers:
            broker.start()

    def kill(self, master: DemoBroker, where: str) -> float:
        """kill -9. Monotonic seconds of that moment."""
        self._said(f"kill -9 {master.name} (pid {master.pid}), the master, {where}")
        self._killed_at = master.kill()
        return self._killed_at

    def follow(self, kill: Kill) -> None:
        """Note when the next master serves; start the killed broker again then."""
        master = self.master
        if kill.epoch or master is None:
            return
        kill.next_broker, kill.epoch = master.name, master.epoch
        kill.serving_s = round(master.serving_at - self._killed_at, 3)
        next(broker for broker in self.brokers if broker.name == kill.broker).start()

    def until(self, condition: Callable[[], bool], what: str, look: Callable[[], None]) -> None:
        """Wait and call `look` again and again. Raises AmqError if it takes too long."""
        deadline = time.monotonic() + STALL_S
        while not condition():
            look()
            if time.monotonic() > deadline:
                raise AmqError(f"no {what} within {STALL_S:g} s: {self.state()}", code="DEMO_FAILED")
            time.sleep(REFRESH_S / 5)

    def check(self) -> None:
        """Raises AmqError if a broker has ended by itself."""
        for broker in self.brokers:
            broker.check()

    def state(self) -> str:
        return "; ".join(f"{each.name} is {each.role}, last said {each.last_words()}" for each in self.brokers)

    def stop(self) -> None:
        """Stop them cleanly. Raises AmqError if one does not stop."""
        for broker in sorted(self.brokers, key=lambda broker: broker.role == MASTER):  # the master last
            broker.stop()

    def end(self) -> None:
        """Kill them, whatever their state."""
        for broker in self.brokers:
            broker.end()

    def _slaves(self) -> int:
        return sum(broker.role == SLAVE for broker in self.brokers)

    def _on_role(self, broker: DemoBroker, reason: str) -> None:
        if broker.role == MASTER:
            self._said(f"{broker.name} is the master, epoch {broker.epoch}: {reason}")
        else:
            self._said(f"{broker.name} is a slave and waits")


def left_in(store: str, queue: str = "") -> tuple[int, list[str]]:
    """The number of messages in the journal (only of `/queue/NAME` if `queue` is given) and the journal's problems."""
    found, only = store_of(store), full_name(queue, "") if queue else ""
    inspection, statistics = inspect(found.log, lambda: read_sealing(found))
    left = sum(tally.live for name, tally in statistics.destinations.items() if only in ("", real_name(name)))
    return left, [str(problem) for problem in inspection.problems]


def left_sentence(left: int, problems: list[str]) -> tuple[bool, str]:
    whole = f"the journal has {len(problems)} problems and {left} messages left"
    return not problems and not left, "; ".join([whole, *problems[:3]])


@contextmanager
def _directory(prefix: str, keep: bool, as_json: bool) -> Iterator[str]:
    """A temporary directory. With `keep` it stays, and the command prints its path."""
    path = tempfile.mkdtemp(prefix=prefix)
    try:
        yield path
    finally:
        if keep:
            click.echo(f"kept: {path}", err=as_json)
        else:
            shutil.rmtree(path)


class Demo(Protocol):
    """A running demo. `run` raises AmqError if it cannot go on; `end` leaves nothing behind, whatever the result."""

    def run(self) -> DemoVerdict: ...

    def end(self) -> None: ...


def play(prefix: str, keep: bool, as_json: bool, make: Callable[[str, PlainView], Demo]) -> None:
    """Make a demo in a separate directory, run it, and report the result (see `_tell`)."""
    logging.basicConfig(format="amq: %(message)s", level=logging.ERROR, stream=sys.stderr)  # not each lost connection
    with _directory(prefix, keep, as_json) as path:
        with _view(as_json) as shown:
            run = make(path, shown)
            try:
                verdict = run.run()
            finally:
                run.end()
        _tell(verdict, as_json, path if keep else None)


def _view(as_json: bool) -> PlainView:
    """The view that suits the output: a live picture on a terminal, else lines."""
    return PlainView(quiet=as_json) if as_json or not console().is_terminal else LiveView()


def _tell(verdict: DemoVerdict, as_json: bool, kept: str | None) -> None:
    """Print the verdict; end with exit code 1 if a promise was broken."""
    if as_json:
        print_json(asdict(verdict) | {"ok": verdict.ok, "directory": kept})
    else:
        for good, sentence in verdict.sentences():
            click.secho(f"{'✔' if good else '✘'} {sentence}", fg="green" if good else "red", file=raw(sys.stdout))
    if not verdict.ok:
        raise click.exceptions.Exit(exits.FAILED)
