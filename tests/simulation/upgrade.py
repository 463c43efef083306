"""Worlds in the middle of a rolling upgrade: some brokers run the code of 0.1, and the operator upgrades them one after
the other, or takes one back to 0.1.

The code of 0.1 (`tests/older.py`) is imported under another name beside that of today, and gets the same doors. The
oracle sees an old master as any other: of its commits it reads the bytes, as a later broker would, and what an old
master has taken over must be what the code of today finds in that journal.

Beside the promises of every world: a broker of 0.1 never claims the store behind an epoch of a later one.
"""

from __future__ import annotations

import importlib
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from amq.broker.state.state import State
from amq.config.schema import BrokerConfig
from amq.journal.decoder import Decoder
from amq.journal.follower import replay
from amq.journal.format import BATCH_BYTES, HEADER_BYTES
from amq.journal.records import Record
from amq.journal.segment import read_batches, read_header, read_segment
from amq.store.document import decode
from amq.store.files.epochs import epoch_path
from amq.store.files.log import FileLog
from amq.store.files.vfs import read_file
from amq.store.segment_log import JOURNAL_DIRECTORY
from tests.older import unpack
from tests.simulation.faults import FAULTS_S
from tests.simulation.features import Feature
from tests.simulation.oracle import STORE, Oracle, summary

if TYPE_CHECKING:
    from tests.simulation.world import Slot, World

PACKAGE = "amq_0_1"
_IMPORT = re.compile(r"^( *)(from|import) amq\b(?!_)", re.MULTILINE)


@cache
def load() -> None:
    """Make `PACKAGE` importable: the code of 0.1, in whose import lines the name is another."""
    directory = Path(tempfile.mkdtemp(prefix="amq-old."))
    try:
        unpack("0.1", directory)
        (directory / "amq").rename(directory / PACKAGE)
        for path in (directory / PACKAGE).rglob("*.py"):
            path.write_text(_IMPORT.sub(_renamed, path.read_text()))
        sys.path.insert(0, str(directory))
        try:
            for path in sorted((directory / PACKAGE).rglob("*.py")):  # all now: the directory goes
                words = path.relative_to(directory).with_suffix("").parts
                if words[1] not in ("cli", "__main__"):
                    importlib.import_module(".".join(words).removesuffix(".__init__"))
        finally:
            sys.path.remove(str(directory))
    finally:
        shutil.rmtree(directory)


def _renamed(match: re.Match[str]) -> str:
    """`import amq` alone binds the name `amq`: it stays one."""
    alone = match[2] == "import" and match.string[match.end() : match.end() + 1] == "\n"
    return f"{match[1]}{match[2]} {PACKAGE}" + (" as amq" if alone else "")


def module(name: str) -> Any:
    """That module of 0.1."""
    load()
    return sys.modules[f"{PACKAGE}.{name}"]


class Old:
    """0.1, as the code that a broker runs: see `tests.simulation.world.Release`."""

    name = "0.1's"

    def __init__(self) -> None:
        self.service = module("service").BrokerService
        self.stopped = module("service").Role.STOPPED
        self.role_changed = module("broker.events").RoleChanged

    def config(self, config: BrokerConfig) -> Any:
        known = {field.name for field in fields(module("config.schema").BrokerConfig)}
        values = {field.name: getattr(config, field.name) for field in fields(config) if field.name in known}
        options = module("config.destinations").DestinationOptions
        values["destinations"] = tuple(options(each.pattern, each.values) for each in config.destinations)
        return module("config.schema").BrokerConfig(**values)


@dataclass(slots=True)
class _Read:
    """How far the commits of old masters in a segment were read."""

    decoder: Decoder
    end: int = HEADER_BYTES


class Upgrade(Feature):
    """Brokers begin as 0.1; each is upgraded at a separate time, and one may go back for a while."""

    def __init__(self, oracle: Oracle, seed: int) -> None:
        super().__init__(oracle, seed)
        self._old = Old()
        self._world: World | None = None
        self._read: dict[str, _Read] = {}
        self._of_today: set[int] = set()  # epochs of masters that run the code of today

    def options(self) -> dict[str, Any]:
        """Limits have a separate oracle, which knows brokers of today."""
        return {"queue_limit_bytes": 0, "store_limit_bytes": 0}

    # -- the operator -------------------------------------------------------------------------------------------------

    def prepare(self, world: World) -> None:
        self._world = world
        new = world.slots[0].release
        for slot in world.slots:
            if self.dice.random() < 0.85:
                slot.release = self._old
            at = self.dice.uniform(1.0, FAULTS_S - 2.0)
            world.scheduler.at(at, partial(self._install, slot, new))
            world.scheduler.at(FAULTS_S, partial(self._install, slot, new))
        if self.dice.random() < 0.6:
            slot = self.dice.choice(world.slots)
            world.scheduler.at(self.dice.uniform(FAULTS_S / 2, FAULTS_S - 1.0), partial(self._install, slot, self._old))

    def _install(self, slot: Slot, release: Any) -> None:
        """The operator stops the broker in good order, or kills it; its supervisor starts what is installed."""
        world = self._world
        assert world is not None
        if slot.release is release:
            return
        self.oracle.log(f"operator installs {release.name} code for {slot.name}")
        self.oracle.counts["installed"] += 1
        slot.release = release
        if self.dice.random() < 0.5:
            world.end_process(slot.process)
        else:
            world.stop_broker(slot)

    # -- what a broker of 0.1 may do ----------------------------------------------------------------------------------

    def linked(self, slot: Slot, number: int) -> None:
        old = slot.running is self._old
        self.oracle.counts["epochs of 0.1" if old else "epochs of today"] += 1
        (self._of_today.discard if old else self._of_today.add)(number)

    def excuses(self, slot: Slot, failure: Any) -> bool:
        refused = slot.running is self._old and failure is not None and failure.code == "STORE_NEWER_FORMAT"
        self.oracle.counts["refused"] += refused
        return refused and bool(self._of_today) and "upgrade this broker" in str(failure)

    def _claims(self, number: int) -> None:
        """A broker of 0.1 wants that epoch: the one before it is the newest that it has seen, whenever that was."""
        if number - 1 in self._of_today:
            self.oracle.broken("version", f"a broker of 0.1 claims epoch {number}, behind one of a later version")

    # -- what the oracle sees of it -----------------------------------------------------------------------------------

    @contextmanager
    def settings(self) -> Iterator[None]:
        broker, connection = module("broker.broker").Broker, module("transports.connection").Connection
        locker = module("lock.shared_file").SharedFileLocker
        committed, begin, deliver, claim = broker.committed, broker.__init__, connection.deliver, locker._write_claim

        def see_committed(this: Any, batch: Any) -> None:
            if batch.segment is not None and batch.records:
                records = self._stored(batch.segment.name, batch.segment.end)
                self.oracle._committed(this, SimpleNamespace(records=records, segment=batch.segment))  # type: ignore[arg-type]
            committed(this, batch)

        def see_begin(this: Any, *args: Any) -> None:
            begin(this, *args)
            self._begins(this)

        def see_deliver(this: Any, subscription: Any, message: Any, redelivered: int) -> None:
            self.oracle._delivers(this, this._hub._epoch, subscription, message)
            deliver(this, subscription, message, redelivered)

        def see_claim(this: Any, number: int, attempt: str) -> None:
            self._claims(number)
            claim(this, number, attempt)

        assert self._world is not None
        with ExitStack() as patches:
            for owner, name, see in (
                (broker, "committed", see_committed),
                (broker, "__init__", see_begin),
                (connection, "deliver", see_deliver),
                (locker, "_write_claim", see_claim),
                (module("service"), "watch", self._world._watch),
            ):
                patches.enter_context(patch.object(owner, name, see))
            yield

    def _stored(self, name: str, end: int) -> list[Record]:
        """The records of the segment from where they were read before up to `end`, as the code of today reads them."""
        vfs = self.oracle.vfs
        path = f"{STORE}/{JOURNAL_DIRECTORY}/{name}"
        with self.oracle.undamaged():
            data = read_segment(FileLog(vfs, STORE), name)
        header = read_header(path, data)
        assert header is not None
        if header.version != 1:
            self.oracle.broken("version", f"0.1 commits in {name} of version {header.version}")
        read = self._read.setdefault(name, _Read(Decoder(path)))
        records: list[Record] = []
        for batch in read_batches(path, data, header, end, read.end):
            records += read.decoder.decode(batch.payload, batch.offset + BATCH_BYTES)
        read.end = end
        return records

    def _begins(self, broker: Any) -> None:
        """An old master has taken over: what it has is what the code of today reads from that journal."""
        epoch = broker.epoch
        self.oracle.counts["masters of 0.1"] += 1
        assert self._world is not None
        config = next(slot.config for slot in self._world.slots if slot.config.name == broker.config.name)
        cold = State(config)
        with self.oracle.undamaged():
            body = decode("epoch", read_file(self.oracle.vfs, epoch_path(STORE, epoch)), "epoch")
            cold.settle(
                replay(FileLog(self.oracle.vfs, STORE), body["sealed"], cold.apply, lambda _done, _total: None).trimmed
            )
        if summary(broker.state) != summary(cold):
            self.oracle.broken("P1", f"0.1 took over something else for epoch {epoch} than the journal says today")
        self.oracle._begins(SimpleNamespace(epoch=epoch, state=cold, config=config))  # type: ignore[arg-type]
