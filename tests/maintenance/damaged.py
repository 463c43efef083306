"""Stores that a broker used, repairs of them, and what is in them before and after."""

from __future__ import annotations

import random
import threading
from pathlib import Path
from typing import Any

import pytest

from amq.broker.state.state import State
from amq.config.schema import BrokerConfig
from amq.core.errors import StoreError
from amq.journal.checkpoint import list_checkpoints
from amq.journal.format import HEADER_BYTES
from amq.journal.segment import read_batches, read_header
from amq.maintenance.repair import Plan, Repair, is_whole, make_plan
from amq.store.files.epochs import FileEpochs
from amq.store.files.log import FileLog
from amq.store.files.vfs import Vfs
from amq.store.files.workshop import FileWorkshop
from amq.store.open import store_behind, store_in
from amq.store.port import Store
from amq.store.postgres.database import Database
from amq.store.postgres.workshop import SqlWorkshop
from amq.store.workshop import Workshop
from tests.fakes import FakeClock, FakeHost, FaultyVfs
from tests.maintenance.test_moving import VFS, load_all, replayed, sealing
from tests.stored import started

HOST = FakeHost()
Content = dict[str, list[tuple[object, ...]]]


class Patience(threading.Event):
    """Nobody stops the repair; waiting takes no time."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self._clock = clock

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self._clock.advance(timeout)
        return False


def repair(store: Path | str, vfs: Any = VFS, seed: int = 1, **options: Any) -> Repair:
    """Of the store behind `vfs`, or in that database."""
    config = BrokerConfig(
        store=str(store), **{"journal_segment_size_bytes": 16 << 10, "journal_reserve_bytes": 4096, **options}
    )
    clock = FakeClock()
    ports: Store
    workshop: Workshop
    if isinstance(vfs, Database):
        ports, workshop = store_in(vfs), SqlWorkshop(vfs)
    else:
        ports, workshop = store_behind(vfs, str(store)), FileWorkshop(vfs, str(store))
    return Repair(ports, workshop, clock, HOST, random.Random(seed), Patience(clock), config, lambda _sentence: None)


class Killed(BaseException):
    """The process is gone."""


WRITES = (
    "open",
    "pwrite",
    "ftruncate",
    "allocate",
    "fsync",
    "fsync_directory",
    "link",
    "unlink",
    "replace",
    "mkdir",
    "rmdir",
)


def repair_killed_at(store: Path | str, inner: Vfs | Database, nth: int) -> bool:
    """Run a repair that dies just before its `nth` call that may change something. False = it got to its end."""
    vfs: Any = inner
    left = nth

    def count() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise Killed

    if isinstance(inner, Database):
        ask = inner.ask

        def counted(text: str, *arguments: Any) -> list[Any]:
            if not text.lstrip().startswith("SELECT"):
                count()
            return ask(text, *arguments)

        inner.ask = counted  # type: ignore[method-assign]
    else:
        vfs = FaultyVfs(inner)
        for method in WRITES:
            vfs.before(method, count, times=0)
    try:
        repair(store, vfs, seed=nth).run()
    except Killed:
        return True
    return False


def from_checkpoint(store: Path) -> State:
    """As `replayed`, but by way of the checkpoints."""
    newest = FileEpochs(VFS, str(store)).newest()
    assert newest is not None
    state, _ = started(VFS, BrokerConfig(store=str(store)), newest)
    load_all(state, store)
    return state


def checkpoints(store: Path) -> list[str]:
    return list_checkpoints(FileLog(VFS, str(store)).checkpoints)


def plan_of(store: Path) -> Plan:
    return make_plan(store_behind(VFS, str(store)), FileWorkshop(VFS, str(store)), repair(store)._config)


def is_sound(store: Path) -> bool:
    return is_whole(store_behind(VFS, str(store)), FileWorkshop(VFS, str(store)))


def unfinished(store: Path) -> list[str]:
    return FileWorkshop(VFS, str(store)).unfinished()


def refused(store: Path) -> StoreError:
    with pytest.raises(StoreError) as caught:
        replayed(store)
    return caught.value


def segments(store: Path) -> list[Path]:
    """Those in which something counts, oldest first."""
    return [path for path in sorted((store / "journal").glob("*.seg")) if any(path.read_bytes()[HEADER_BYTES:])]


def sealed_segment(store: Path) -> Path:
    """One of several batches."""
    _, lengths = sealing(store)
    return next(path for path in segments(store) if lengths.get(path.name) and len(batches(path)) > 2)


def batches(path: Path) -> list[tuple[int, int]]:
    data = path.read_bytes()
    header = read_header(str(path), data)
    assert header is not None
    return [(batch.offset, batch.end) for batch in read_batches(str(path), data, header, None)]


def flat(found: Content) -> list[tuple[object, ...]]:
    return [message for queue in found.values() for message in queue]


def state(store: Path) -> dict[str, bytes]:
    """Every byte of the store, but of presence and lock."""
    return {
        str(path.relative_to(store)): path.read_bytes()
        for path in sorted(store.rglob("*"))
        if path.is_file() and path.relative_to(store).parts[0] not in ("brokers", "lock", "claim")
    }
