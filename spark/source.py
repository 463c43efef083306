"""Streaming source: `spark.readStream.format("amq")`.

A stream reads leases (docs/messaging.md). The driver asks the broker to set messages apart, and an offset names these
leases. Tasks read them as often as Spark wants, always with the same result. The driver acknowledges the messages of a
batch when Spark reports the batch as done; or when Spark asks for the next one and nothing waits, for Spark asks when
it has noted that the batch is done. So an idle query holds no lease, and what it reads may move to another store.
Invariant: a message is in the leases of exactly one batch. A lease whose reply was lost belongs to the next batch. So
no message is left out or read twice.

With `redirect` = false a gateway asks the store in which the destinations live. When they have moved, with all that
they held, the stream goes on there: all leases before that had ended, so the numbers of the new store begin behind 0.
"""

from __future__ import annotations

import dataclasses
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from amq.client import Connection, Lease, LeaseRequest
from amq.client.leases import MESSAGES_MAX
from amq.core.errors import AmqError, CommandError
from pyspark_amq import messages, offsets
from pyspark_amq.connections import TIMEOUT_S, begun
from pyspark_amq.leases import (
    HOME_CODES,
    SUBSCRIPTION_DIFFERS,
    UNKNOWN_LEASE,
    UNKNOWN_SUBSCRIPTION,
    Direct,
    LeaseSlices,
    check_taken,
    log,
    lose,
)
from pyspark_amq.names import given, is_pattern, is_topic
from pyspark_amq.offsets import Offset, OffsetError, Slice
from pyspark_amq.options import LATEST, SourceOptions, refusal
from pyspark_amq.workers import spare_modules

TOGETHER = 8  # leases that are asked for at once
LEASE_BYTES_MAX = 64 << 20  # that a broker puts into one
BATCH_MESSAGES_MAX = 1_000_000  # in a micro-batch without maxOffsetsPerTrigger
TRIES = 3  # of a question to a gateway, while destinations move
ON_COMMIT = "onCommit"  # a value of the option ack
PARTITIONS, PARTITION_MESSAGES_MIN = 4, 1000  # limits without minPartitions


class AmqStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The driver has one object for the whole query. Each task has a copy without the connection."""

    def __init__(self, options: SourceOptions, wanted: pa.Schema | None = None) -> None:
        """`wanted` = the columns of the rows, by `messages.shape`; None = all that the options name."""
        if options.subscription is None:
            raise refusal(SourceOptions, "subscription", "", "is missing: it must name the cursor of the stream")
        if options.ending_offsets != LATEST:
            why = "is for batch reads, not for streams"
            raise refusal(SourceOptions, "endingOffsets", json.dumps(options.ending_offsets), why)
        for name, value, sign in (
            ("startingTimestamp", options.starting_timestamp_ms, ">="),
            ("endingTimestamp", options.ending_timestamp_ms, "<"),
        ):
            if value is not None:
                why = (
                    "is for batch reads: a stream takes all messages, and would have to drop the others. Drop them by "
                    f'.where("timestamp {sign} …") or leave them to other consumers'
                )
                raise refusal(SourceOptions, name, str(value), why)
        self._options = options
        self._wanted = wanted or messages.shape(messages.schema(options.include_headers))
        self._cursor = options.subscription
        self._destinations = options.destination.split(",")
        self._patterns = _patterns(self._destinations)
        if options.starting_offsets == LATEST and not all(map(is_topic, self._destinations)):
            why = "must be earliest or JSON for a queue, of which each message is still to be read by somebody"
            raise refusal(SourceOptions, "startingOffsets", LATEST, why)
        numbers = given(options.starting_offsets)
        if numbers and "v" not in numbers:
            why = "must be an offset of a stream, with leases; these are numbers of messages, for batch reads"
            raise refusal(SourceOptions, "startingOffsets", json.dumps(numbers), why)
        self._connection: Connection | None = None
        self._idle_until = 0.0  # monotonic; no message waited at the last request
        self._waiting: dict[str, int] = {}
        self._store = ""
        self._epochs: dict[str, int] = {}  # of the cursor, by destination; valid until another query takes it
        self._known: dict[str, int] = {}  # number of the newest lease of each destination
        self._budget: dict[str, int] | None = None  # availableNow: how many messages the query may still lease
        self._waiting_bytes: dict[str, int] = {}
        self._reads = (0, 0)  # messages that tasks read from the store, and not from there although they do so
        self._held = 0  # messages in leases that are not acknowledged
        self._batch_s = -math.inf  # monotonic; when the last batch began
        self._settled: dict[str, int] = {}  # number of the newest lease of each destination that `next` has settled
        self._cluster: str | None = None  # that of the gateway, "" = it asks none; None = not known yet
        self._homes: dict[str, str] = {}  # by destination: the store in which the gateway has found it
        self._elsewhere: list[str] = []  # destinations that another store has than the one that is read

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_connection": None}

    # -- on the driver ------------------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        """The start of a new query. This creates its durable subscriptions."""
        for name in filter(is_topic, self._destinations):
            self._ask(name, 0, 0)  # not `_subscribe`: that would end a subscription of this name to another topic
        plain = [name for name in self._destinations if name not in self._patterns]
        return offsets.begin(plain, given(self._options.starting_offsets), bool(self._patterns)).to_json()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The offset after the leases of the next batch, or `start` if no message waits. Raises AmqError."""
        return self.next(start, limit.max_rows if isinstance(limit, ReadMaxRows) else BATCH_MESSAGES_MAX)

    def next(self, start: dict[str, Any], room: int) -> dict[str, Any]:
        """The same for at most `room` messages. Raises AmqError."""
        if time.monotonic() < self._idle_until:
            return start
        for left in reversed(range(TRIES)):
            before, names = self._at_home(Offset.of(start))
            try:
                after = self._after(before, names, room)
            except AmqError as error:
                if self._cluster and error.code in HOME_CODES:  # it has been on its way for a long time
                    after = None
                elif left and self._has_moved():
                    continue
                else:
                    raise
            return start if after is None else after.to_json()
        raise AssertionError("the last try returns or raises")

    def _after(self, before: Offset, names: Sequence[str], room: int) -> Offset | None:
        """The offset after the next batch behind `before`; None = there is none."""
        now_s = time.monotonic()
        names = sorted(names, key=lambda name: before.at.get(name, 0))  # the longest wait comes first
        if not names or self._waits_for_more(names, before, now_s):
            self._idle_until = now_s + self._options.poll_interval_s
            return None
        bytes_max = self._options.max_bytes_per_trigger
        at, found = dict(before.at), {}
        for place, name in enumerate(names):
            share = -(-room // (len(names) - place))  # a full destination must not starve the others
            size = None if bytes_max is None else -(-bytes_max // (len(names) - place))
            leases = [(lease.number, lease.messages, lease.size) for lease in self._leases(name, before, share, size)]
            if leases:
                at[name], found[name] = leases[-1][0], [each[:2] for each in leases]
                room = max(0, room - sum(count for _, count, _ in leases))
                bytes_max = bytes_max and max(0, bytes_max - sum(size for _, _, size in leases))
        if not found:
            self._settle_read(names, before)
            self._idle_until = now_s + self._options.poll_interval_s
            return None
        self._batch_s = now_s
        self._held = sum(count for leases in found.values() for _, count in leases)
        return Offset(self._store, at, found, self._cluster or "")

    def _settle_read(self, names: Sequence[str], before: Offset) -> None:
        """Acknowledge what Spark is done with: the batches up to `before`, of which it asks for the next one."""
        if self._options.ack != ON_COMMIT:
            return
        for name in names:
            number = before.at.get(name, 0)
            if number and self._settled.get(name) != number:
                self._settle(name, number)
                self._settled[name] = number
        self._held = 0

    def _settle(self, name: str, number: int) -> None:
        try:
            self._driver().settle(name, self._cursor, number, epoch=self._epoch(name))
        except CommandError as error:
            check_taken(name, self._cursor, error)
            if error.code not in HOME_CODES:  # where it is now, no lease came with it
                raise

    def _at_home(self, before: Offset) -> tuple[Offset, list[str]]:
        """`before` in the words of the store in which the destinations live now, and those that are read there. Raises
        AmqError."""
        names = self._names()
        if self._cluster is None:
            found = None if self._options.redirect else self._driver().where(*self._destinations[:1])
            self._cluster = "" if found is None else found.cluster
        if not self._cluster or self._patterns:
            return before, names
        if not self._homes or self._elsewhere:
            self._has_moved()
        stores = {*self._homes.values()}
        is_foreign = before.store not in stores
        if is_foreign and len(stores) > 1:
            told = ", ".join(f"{name} in {store}" for name, store in self._homes.items())
            raise OffsetError(f"with redirect = false a query reads from one store, and its destinations are {told}")
        if is_foreign and (not before.store or before.cluster != self._cluster or not stores):
            return before, names
        if is_foreign:
            log.warning("what the query reads has moved from store %s to %s", before.store, *stores)
            before = Offset(stores.pop(), dict.fromkeys(before.at, 0), cluster=self._cluster)
        elsewhere = [name for name in names if self._homes.get(name, before.store) != before.store]
        if elsewhere and elsewhere != self._elsewhere:
            log.warning("%s live in another store than %s, and wait until all do", ", ".join(elsewhere), before.store)
        self._elsewhere = elsewhere
        return before, [name for name in names if name not in elsewhere]

    def _has_moved(self) -> bool:
        """Does a destination live in another store than before? Its cursor, and numbers of its leases, are not known
        there. Raises AmqError."""
        moved = False
        for name in self._destinations if self._cluster else ():
            try:
                store = self._driver().lease(name, self._cursor, messages=0).store
            except CommandError as error:
                if error.code not in (UNKNOWN_SUBSCRIPTION, SUBSCRIPTION_DIFFERS, *HOME_CODES):
                    raise
                continue
            if self._homes.get(name, store) != store:
                moved = True
                for known in (self._epochs, self._known, self._settled):
                    known.pop(name, None)
            self._homes[name] = store
        return moved

    def _names(self) -> list[str]:
        """The destinations, with the queues that are there now in place of patterns. Raises AmqError."""
        names = dict.fromkeys(name for name in self._destinations if name not in self._patterns)
        for pattern in self._patterns:
            names.update(dict.fromkeys(self._queues(pattern)))
        return list(names)

    def _queues(self, pattern: str) -> Mapping[str, int]:
        """The queues of a pattern that hold messages or leases of this cursor → messages that wait."""
        lease = self._driver().lease(pattern, self._cursor, messages=0)
        self._store = self._store or lease.store
        return lease.queues

    def _waits_for_more(self, names: Sequence[str], before: Offset, now_s: float) -> bool:
        """Are there too few messages for a batch, and is it too early for a smaller one?"""
        least = self._options.min_offsets_per_trigger
        too_late = now_s - self._batch_s >= self._options.max_trigger_delay_s
        if least is None or self._budget is not None or too_late:
            return False
        waiting = self._free(names, before)
        return waiting is not None and waiting < least

    def free(self, start: dict[str, Any]) -> int | None:
        """How many messages no lease has; None = there is a lease of an earlier run. Raises AmqError."""
        return self._free(self._names(), Offset.of(start))

    def _free(self, names: Sequence[str], before: Offset) -> int | None:
        waiting = 0
        for name in names:
            lease = self._ask(name, before.at.get(name, 0), 0)
            if lease.number:
                return None  # it has been waiting long enough
            waiting += lease.waiting
        self._settle_read(names, before)
        return waiting

    def getDefaultReadLimit(self) -> ReadLimit:
        """The largest number of messages in a batch."""
        return ReadMaxRows(self._options.max_offsets_per_trigger or BATCH_MESSAGES_MAX)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Messages that wait, and how messages were read, as far as it is known, for the progress of the query."""
        if not self._waiting:
            return None
        direct, fallback = self._reads
        return {
            "subscription": self._cursor,
            "waiting": self._waiting,
            "waitingBytes": self._waiting_bytes,
            "leased": self._held,
            **({"direct": direct, "fallback": fallback} if self._options.store is not None else {}),
        }

    def prepareForTriggerAvailableNow(self) -> None:
        """Read only messages that wait now."""
        found = {name: self._count_waiting(name) for name in self._destinations if name not in self._patterns}
        for pattern in self._patterns:
            found.update(self._queues(pattern))
        self._budget = found

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The leases of a batch, cut into parts of about equal size."""
        slices = Offset.of(end).slices(Offset.of(start))
        count = sum(each.stop - each.start for each in slices)
        parts = self._options.min_partitions or min(PARTITIONS, count // PARTITION_MESSAGES_MIN)
        epochs = {each.destination: self._epoch(each.destination) for each in slices}
        places, indirect = self._places(slices, epochs)
        weights = [places[key].weight if (key := _lease_of(each)) in places else 1 for each in slices]
        if len(places) < len(slices):
            weights = []
        return [
            LeaseSlices(
                part, epochs, {key: places[key] for each in part if (key := _lease_of(each)) in places}, indirect
            )
            for part in offsets.cut(slices, max(1, parts), weights)
        ]

    def _places(self, slices: Sequence[Slice], epochs: Mapping[str, int]) -> tuple[dict[tuple[str, int], Direct], str]:
        """Where leased messages stand, as far as the broker says it; and why it does not. Raises AmqError."""
        wanted = [each for each in slices if not is_topic(each.destination)] if self._options.store else []
        questions = [
            LeaseRequest(each.destination, self._cursor, each.lease - 1, 0, epoch=epochs[each.destination], places=True)
            for each in wanted
        ]
        if not questions:
            return {}, ""
        try:
            found = self._driver().lease_many(questions)
        except CommandError as error:
            for name in epochs:
                check_taken(name, self._cursor, error)
            raise
        told = zip(wanted, found, strict=True)
        places = {_lease_of(each): Direct.of(lease.direct) for each, lease in told if lease.direct is not None}
        return places, next((lease.indirect for lease in found if lease.indirect), "")

    def commit(self, end: dict[str, Any]) -> None:
        """Acknowledge all messages up to `end`: Spark is done with them. Raises AmqError."""
        if self._options.ack != ON_COMMIT:
            return
        offset = Offset.of(end)
        if offset.cluster:
            if not self._store:
                self.identify()
            if offset.store != self._store:
                return  # the destinations have moved: no lease was left behind
        for name, number in offset.at.items():
            if not number:
                continue
            is_read = name in self._destinations or bool(self._patterns)
            try:
                if is_read:
                    self._settle(name, number)
                else:
                    self._driver().settle(name, self._cursor, number)
            except CommandError as error:  # the checkpoint may have a destination that the query no longer reads
                gone = (UNKNOWN_SUBSCRIPTION, SUBSCRIPTION_DIFFERS, *HOME_CODES)
                if error.code not in gone or name in self._destinations:
                    raise

    def stop(self) -> None:
        """Close the connection at the end of the query."""
        if self._connection is not None:
            self._connection.abort()
            self._connection = None

    def _driver(self) -> Connection:
        if self._connection is None or self._connection.closed:
            self._connection = begun(self._options)
            self._connection.wait_connected(TIMEOUT_S)
        return self._connection

    # -- as the part of a stream over several stores ------------------------------------------------------------------

    def connection(self) -> Connection:
        """The connection of the driver. Raises AmqError."""
        return self._driver()

    @property
    def waiting(self) -> int:
        """Messages that waited at the last request."""
        return sum(self._waiting.values())

    @property
    def rests(self) -> bool:
        """Nothing waited a moment ago, so `next` would not ask."""
        return time.monotonic() < self._idle_until

    @property
    def store(self) -> str:
        """The id of the store, "" = the broker has not been asked yet. `identify` asks."""
        return self._store

    def identify(self) -> None:
        """Ask the broker of which store it is. Raises AmqError."""
        for name in self._destinations[:1]:
            self._store = self._driver().lease(name, self._cursor, messages=0).store

    def look_at(self, destinations: Sequence[str], url: str) -> None:
        """From now on the store has these destinations, and its master is at `url`."""
        self._destinations = [*destinations]
        self._patterns = _patterns(destinations)
        if url != self._options.url:
            self._options = dataclasses.replace(self._options, url=url)
            if self._connection is not None and self._connection.uri is None:
                self.stop()

    def _leases(self, name: str, before: Offset, room: int, size: int | None) -> Iterator[Lease]:
        """The leases of `name` for the next batch, up to about `room` messages and `size` bytes: existing leases first,
        then new ones."""
        number = before.at.get(name, 0)
        while room > 0 and (size is None or size > 0):
            is_known = self._known.get(name, -1) >= number
            counts = self._sizes(name, room, size) if is_known else [0]
            for lease in self._ask_many(name, number, counts, size):
                if before.store and lease.store != before.store:
                    why = f"the checkpoint is of store {before.store}, {name} of {lease.store}: use a new one"
                    raise OffsetError(why)
                if not lease.number:
                    if is_known:
                        return
                    self._known[name] = number
                    break
                if lease.number <= number:
                    break  # a broker that cannot answer several questions at once
                if is_known:
                    self._known[name] = lease.number
                    if self._budget is not None:
                        self._budget[name] = max(0, self._budget.get(name, 0) - lease.messages)
                room -= lease.messages
                size = None if size is None else size - max(1, lease.size)
                number = lease.number
                yield lease
                if room <= 0 or (size is not None and size <= 0):
                    return  # a lease behind this one waits for the next batch

    def _sizes(self, name: str, room: int, size: int | None) -> list[int]:
        """How many messages the next leases may have, which are asked for together. The first may be 0."""
        if self._budget is not None:
            room = min(room, self._budget.get(name, 0))
        together = min(TOGETHER, -(-self._waiting.get(name, 0) // MESSAGES_MAX))
        if size is not None:
            together = min(together, size // LEASE_BYTES_MAX)
        counts = [min(MESSAGES_MAX, room - start) for start in range(0, room, MESSAGES_MAX)]
        return counts[: max(1, together)] or [0]

    def _epoch(self, name: str) -> int:
        """The epoch of the cursor at `name`. The first call takes the cursor for this query. 0 = no epoch, because the
        durable subscription does not exist or the broker does not know epochs. Raises AmqError."""
        if name not in self._epochs:
            try:
                lease = self._driver().lease(name, self._cursor, messages=0, take=True)
            except CommandError as error:
                if error.code != UNKNOWN_SUBSCRIPTION:
                    raise
                return 0
            self._epochs[name] = lease.epoch
        return self._epochs[name]

    def _ask(self, name: str, after: int, count: int) -> Lease:
        return self._ask_many(name, after, [count], None)[0]

    def _ask_many(self, name: str, after: int, counts: Sequence[int], size: int | None) -> list[Lease]:
        """The answers for the leases behind `after`, one for each of `counts`. Raises AmqError."""
        epoch, limit = self._epoch(name), min(size or 0, LEASE_BYTES_MAX)
        questions = [
            LeaseRequest(name, self._cursor, after, count, limit, epoch=epoch, skip=place)
            for place, count in enumerate(counts)
        ]
        try:
            leases = self._driver().lease_many(questions)
        except CommandError as error:
            check_taken(name, self._cursor, error)
            if error.code == UNKNOWN_LEASE:
                raise OffsetError(f"the checkpoint is of another store than {name}: use a new one ({error})") from error
            if error.code == UNKNOWN_SUBSCRIPTION and after:
                text = f"the durable subscription {self._cursor!r} to {name} has ended, and the messages in it are gone"
                lose(self._options, text, error)
            elif error.code != UNKNOWN_SUBSCRIPTION:
                raise
            self._subscribe(name)
            return self._ask_many(name, after, counts, size)
        self._note(name, leases[-1])
        return leases

    def _note(self, name: str, lease: Lease) -> None:
        self._store, self._waiting[name], self._waiting_bytes[name] = lease.store, lease.waiting, lease.waiting_bytes
        if any(lease.reads):
            self._reads = lease.reads

    def _count_waiting(self, name: str) -> int:
        """The number of messages that wait now. Spark asks before it knows the offset of the query. So this does not
        create a missing durable subscription: that would hide that it has ended."""
        try:
            return self._driver().lease(name, self._cursor, after=0, messages=0).waiting
        except CommandError as error:
            if error.code != UNKNOWN_SUBSCRIPTION:
                raise
            return 0

    def _subscribe(self, name: str) -> None:
        """Create the durable subscription, if it does not exist."""
        with self._driver().session() as session, session.consumer(name, prefetch=0, subscription=self._cursor):
            pass

    # -- in a task ----------------------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of a partition, each time the same in the same order. Raises AmqError."""
        from pyspark_amq.tasks import Part  # not for the driver's process, which starts anew for each query

        assert isinstance(partition, LeaseSlices)
        spare_modules()
        yield from Part(self._options, partition, self._wanted).batches()


def _patterns(destinations: Sequence[str]) -> list[str]:
    return [name for name in destinations if is_pattern(name) and not is_topic(name)]


def _lease_of(part: Slice) -> tuple[str, int]:
    return part.destination, part.lease
