"""What the demos share: a group of brokers whose masters are killed, a directory, a verdict and how it is told."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Protocol

import click

from amq.cli import exits
from amq.cli.demo_brokers import MASTER, SLAVE, DemoBroker
from amq.cli.demo_view import REFRESH_S, LiveView, PlainView
from amq.cli.output import console, print_json
from amq.cli.store import read_sealing
from amq.errors import AmqError
from amq.journal.inspect import inspect
from amq.journal.records import real_name
from amq.protocols.stomp.destination import full_name
from amq.vfs import SystemVfs

STALL_S = 30.0


@dataclass(slots=True)
class Kill:
    """One kill -9 of the master. Seconds are counted from the kill; 0 = has not come yet."""

    broker: str
    next_broker: str = ""
    epoch: int = 0
    serving_s: float = 0.0


@dataclass(slots=True)
class Verdict(ABC):
    """What came of a demo: figures, and what they mean."""

    @abstractmethod
    def sentences(self) -> Iterator[tuple[bool, str]]:
        """(was the promise kept?, what there is to say of it)."""

    @property
    def ok(self) -> bool:
        return all(good for good, _ in self.sentences())


class DemoGroup:
    """`broker-1` and so on, on one store. All from the main thread.

    said  hears what happens, from any thread
    """

    def __init__(self, count: int, store: str, directory: str, said: Callable[[str], None]) -> None:
        self._said = said
        self._killed_at = 0.0
        self.brokers = [
            DemoBroker(f"broker-{number}", store, os.path.join(directory, f"broker-{number}.log"), self._on_role)
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
        """Wait; `look` is called again and again. AmqError where it takes too long."""
        deadline = time.monotonic() + STALL_S
        while not condition():
            look()
            if time.monotonic() > deadline:
                raise AmqError(f"no {what} within {STALL_S:g} s: {self.state()}", code="DEMO_FAILED")
            time.sleep(REFRESH_S / 5)

    def check(self) -> None:
        """AmqError where a broker has ended by itself."""
        for broker in self.brokers:
            broker.check()

    def state(self) -> str:
        return "; ".join(f"{each.name} is {each.role}, last said {each.last_words()}" for each in self.brokers)

    def stop(self) -> None:
        """Stop them cleanly. AmqError where one does not end so."""
        for broker in sorted(self.brokers, key=lambda broker: broker.role == MASTER):  # the master last
            broker.stop()

    def end(self) -> None:
        """Be gone, whatever the state."""
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
    """How many messages the journal holds, of `queue` alone where it is named (`/queue/NAME`), and its problems."""
    vfs, only = SystemVfs(), full_name(queue, "") if queue else ""
    inspection, statistics = inspect(vfs, store, lambda: read_sealing(vfs, store))
    left = sum(tally.live for name, tally in statistics.destinations.items() if only in ("", real_name(name)))
    return left, [str(problem) for problem in inspection.problems]


def left_sentence(left: int, problems: list[str]) -> tuple[bool, str]:
    whole = f"the journal has {len(problems)} problems and {left} messages left"
    return not problems and not left, "; ".join([whole, *problems[:3]])


@contextmanager
def _directory(prefix: str, keep: bool, as_json: bool) -> Iterator[str]:
    """A temporary one; with `keep` it stays, and it is said where it is."""
    path = tempfile.mkdtemp(prefix=prefix)
    try:
        yield path
    finally:
        if keep:
            click.echo(f"kept: {path}", err=as_json)
        else:
            shutil.rmtree(path)


class Demo(Protocol):
    """A demo at work. `run` raises AmqError where it cannot go on; `end` leaves nothing behind, whatever came of it."""

    def run(self) -> Verdict: ...

    def end(self) -> None: ...


def play(prefix: str, keep: bool, as_json: bool, make: Callable[[str, PlainView], Demo]) -> None:
    """Make a demo in a directory of its own, run it, and tell what came of it: see `_tell`."""
    with _directory(prefix, keep, as_json) as path:
        with _view(as_json) as shown:
            run = make(path, shown)
            try:
                verdict = run.run()
            finally:
                run.end()
        _tell(verdict, as_json, path if keep else None)


def _view(as_json: bool) -> PlainView:
    """What fits where the output goes."""
    return PlainView(quiet=as_json) if as_json or not console().is_terminal else LiveView()


def _tell(verdict: Verdict, as_json: bool, kept: str | None) -> None:
    """Say it; end with exit code 1 where it is a bad one."""
    if as_json:
        print_json(asdict(verdict) | {"ok": verdict.ok, "directory": kept})
    else:
        for good, sentence in verdict.sentences():
            click.secho(f"{'✔' if good else '✘'} {sentence}", fg="green" if good else "red")
    if not verdict.ok:
        raise click.exceptions.Exit(exits.FAILED)
