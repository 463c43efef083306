"""A journal on a real directory, whose disk work happens when the test says so."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

from amq.broker.queues.backlog import Place
from amq.broker.waiters import Call
from amq.config.schema import BrokerConfig
from amq.core.errors import CorruptError
from amq.core.message import Message
from amq.journal.batch import Confirm, OpenBatch
from amq.journal.follower import replay
from amq.journal.journal import Journal
from amq.journal.live import Segment
from amq.journal.reader import read_messages
from amq.journal.records import Record
from amq.journal.recovery import Recovered, seal
from amq.store.files.log import FileLog
from amq.store.files.vfs import SystemVfs, Vfs
from amq.store.segment_log import JOURNAL_DIRECTORY
from tests.broker.disk import StepRunner
from tests.fakes import FakeClock
from tests.stored import with_files


class Runner(StepRunner):
    """A job and the telling of it are one step."""

    def step(self) -> bool:
        self.work()
        self.post()
        return True

    def drain(self) -> None:
        while self.jobs:
            self.step()


class Waiter:
    """Waits for records: `receipts` = what became durable."""

    def __init__(self) -> None:
        self.receipts: list[str] = []

    def of(self, receipt: str) -> Call:
        """The waiter for one of them."""
        return Call(lambda: self.receipts.append(receipt), self._failed)

    def _failed(self, error: Exception) -> None:
        raise AssertionError("told that it failed") from error


class World:
    """One store, one journal at a time; `owner` methods record what became of batches."""

    def __init__(self, path: Path, vfs: Vfs | None = None, **config: Any) -> None:
        self.store = str(path)
        self.vfs = vfs or SystemVfs()
        self.clock = FakeClock()
        self.config = BrokerConfig(
            store=self.store,
            **with_files({"journal_segment_size_bytes": 8192, "store_free_floor_bytes": 1 << 16, **config}),
        )
        self.runner = Runner()
        self.valid = True
        self.records: list[Record] = []
        self.refused: list[Record] = []
        self.full: list[bool] = []
        self.at_limit: list[bool] = []
        self.failures: list[str] = []
        self.epoch = 0
        self.sent = 0
        self.sealed: dict[str, int] = {}
        os.makedirs(self.directory, exist_ok=True)
        self.journal = self.begin()

    @property
    def directory(self) -> str:
        return os.path.join(self.store, JOURNAL_DIRECTORY)

    @property
    def log(self) -> FileLog:
        return FileLog(self.vfs, self.store)

    def segments(self) -> list[str]:
        return sorted(name for name in os.listdir(self.directory) if name.endswith(".seg"))

    def begin(self) -> Journal:
        """A new epoch: seal, replay, open."""
        self.sealed = seal(self.log, self.epoch, self.sealed)
        self.epoch += 1
        self.replayed: list[tuple[Record, Segment]] = []
        recovered: Recovered = replay(
            self.log,
            self.sealed,
            lambda record, segment: self.replayed.append((record, segment)),
            lambda _done, _total: None,
        )
        self.recovered = recovered
        self.runner = Runner()
        self.journal = Journal(
            self.log,
            self.clock,
            self.runner,
            self,
            self.config,
            random.Random(self.epoch),
        )
        self.journal.begin(self.epoch, recovered.store_uuid or bytes(16), recovered, lambda: self.valid)
        self.runner.drain()
        return self.journal

    def end(self) -> None:
        """Close what the present journal holds open, as the end of its process would."""
        self.journal.abandon()
        self.runner.drain()

    def messages(self) -> list[Message]:
        """The messages that the last replay found, read back whole."""
        found = [(record, segment) for record, segment in self.replayed if isinstance(record, Message)]
        places = [(Place(m.seq, s.code, m.offset, m.size), m.destination) for m, s in found]
        whole = read_messages(self.log, places)
        assert [message.seq for message in whole] == [message.seq for message, _ in found]
        return whole

    def send(self, count: int = 1, size: int = 100, waiter: Waiter | None = None, name: str = "queue://a") -> None:
        for _ in range(count):
            self.sent += 1
            message = Message(name, random.Random(self.sent).randbytes(size), seq=self.sent)  # the same in each run
            self.journal.append(message)
            if waiter is not None:
                self.journal.confirm(waiter.of(str(message.seq)), message)

    def commit(self) -> None:
        self.journal.flush(unasked=True)
        self.runner.drain()

    # -- JournalOwner

    def committed(self, batch: OpenBatch) -> None:
        self.records.extend(batch.records)
        for waiter, _ in batch.confirms:
            waiter.done()

    def rejected(self, refused: list[Confirm], records: list[Record]) -> None:
        assert all(record in records for _, record in refused)
        self.refused.extend(records)

    def store_full(self, full: bool) -> None:
        self.full.append(full)

    def store_at_limit(self, reached: bool) -> None:
        self.at_limit.append(reached)

    def failed(self, why: str, damage: CorruptError | None = None) -> None:
        assert damage is None or str(damage) in why
        self.failures.append(why)
