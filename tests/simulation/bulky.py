"""Transactions that take longer to apply than a master may go without a check of its lease.

In life that takes some 100,000 messages. Here time passes while a broker that reads the journal applies a transaction
of `MANY` records: more than the watchdog waits before it fences. The checker is liveness: a takeover that depends on
the size of a transaction never ends.

Such a transaction also takes effect in many slices, and faults come between them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING
from unittest.mock import patch

from amq.broker.broker import Broker
from amq.broker.transactions import effect, readying
from amq.config.destination_options import DestinationOptions
from amq.journal.batch import OpenBatch
from amq.journal.follower import Apply, Follower, Start
from amq.journal.live import Segment
from amq.journal.records import Group, Record
from amq.journal.records import group as groups
from amq.store.files.log import FileLog
from tests.simulation.clients import Consumer, TransactedProducer
from tests.simulation.door import SimVfs
from tests.simulation.features import Feature, Make

if TYPE_CHECKING:
    from tests.simulation.world import World

QUEUE = "bulk"
MANY = 12  # with more a small memory limit would never have room for one
SLICE = 3  # records that take effect in one turn
PERIODS = 2.5


class Bulky(Feature):
    """A producer of such transactions, and a consumer of its queue."""

    destinations = (DestinationOptions(QUEUE, {"queue_limit_bytes": 0}),)
    _pause_s = 0.0

    def prepare(self, world: World) -> None:
        self._pause_s = PERIODS * max(slot.config.lock_keep_alive_period_s for slot in world.slots)

    def applications(self) -> list[Make]:
        return [partial(Bulk, queues=[QUEUE]), partial(Consumer, queue=QUEUE, prefetch=20)]

    @contextmanager
    def settings(self) -> Iterator[None]:
        real, committed = Follower.__init__, Broker.committed

        def init(follower: Follower, log: FileLog, apply: Apply, start: Start | None = None) -> None:
            real(follower, log, self._slowly(log._vfs, apply) if isinstance(log._vfs, SimVfs) else apply, start)

        def see(broker: Broker, batch: OpenBatch) -> None:
            self.oracle.counts["taking effect in slices"] += batch.in_slices
            committed(broker, batch)

        with (
            patch.object(Follower, "__init__", init),
            patch.object(Broker, "committed", see),
            patch.object(effect, "SLICE_RECORDS", SLICE),
            patch.object(groups, "LATE_RECORDS", SLICE),
            patch.object(readying, "SLICE_MESSAGES", SLICE),
        ):
            yield

    def _slowly(self, vfs: SimVfs, apply: Apply) -> Apply:
        def slowly(record: Record, segment: Segment) -> None:
            if isinstance(record, Group) and record.outcome_id and len(record.records) >= MANY:
                vfs.process.scheduler.sleep(self._pause_s)
                self.oracle.counts["large transactions read"] += 1
            apply(record, segment)

        return slowly


class Bulk(TransactedProducer):
    """Few transactions, each of many messages."""

    pause_s = 5.0
    messages_min, messages_max = MANY, MANY + 4
