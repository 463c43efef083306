"""Streaming and batch source: `spark.readStream.format("amq")` and `spark.read.format("amq")`.

A stream reads leases (docs/messaging.md): the driver lets the broker set messages apart, an offset names the leases,
and tasks read them, as often as Spark wants and always the same. What a batch held is acknowledged when Spark says that
it is done. Invariant: a message is in the leases of one batch alone, and a lease whose answer was lost is in the next
one: nothing is left out, nothing comes twice. A batch read looks at a queue and takes nothing.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

import amq
from amq.client import Browser, CallTimeoutError, Connection, Lease
from amq.client.leases import MESSAGES_MAX
from amq.errors import AmqError, CommandError
from pyspark_amq import messages, offsets
from pyspark_amq.offsets import Offset, OffsetError, Slice
from pyspark_amq.options import EARLIEST, LATEST, SourceOptions, refusal

log = logging.getLogger("pyspark_amq.source")

BATCH_MESSAGES_MAX = 1_000_000  # of a micro-batch without maxOffsetsPerTrigger
PARTITIONS, PARTITION_MESSAGES_MIN = 4, 1000  # without minPartitions: no more of them, and no smaller
TIMEOUT_S = 120.0  # without a broker so long a call fails
UNKNOWN_LEASE, UNKNOWN_SUBSCRIPTION = "UNKNOWN_LEASE", "UNKNOWN_SUBSCRIPTION"
SUBSCRIPTION_DIFFERS = "SUBSCRIPTION_DIFFERS"


class DataLossError(AmqError):
    """Messages that a query has not read are gone."""

    code = "DATA_LOSS"


@dataclass
class Slices(InputPartition):
    """What one task of a stream reads."""

    slices: Sequence[Slice]


@dataclass
class Destination(InputPartition):
    """What one task of a batch read looks at: messages with offsets behind `after` and up to `until`."""

    name: str
    after: int
    until: int


def connect(options: SourceOptions) -> Connection:
    """A connection of this task or driver. Raises AmqError."""
    return amq.connect(options.url, login=options.user or "", passcode=options.password or "", timeout=TIMEOUT_S)


class AmqStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """On the driver one object for the whole query; in each task a copy without its connection."""

    def __init__(self, options: SourceOptions) -> None:
        if options.subscription is None:
            raise refusal(SourceOptions, "subscription", "", "must name the cursor of a stream, and is missing")
        for name in ("ending_offsets", "starting_timestamp_ms"):
            if getattr(options, name) not in (LATEST, None):
                field = "endingOffsets" if name == "ending_offsets" else "startingTimestamp"
                raise refusal(SourceOptions, field, str(getattr(options, name)), "is for batch reads, not for streams")
        self._options = options
        self._cursor = options.subscription
        self._destinations = options.destination.split(",")
        if options.starting_offsets == LATEST and not all(map(is_topic, self._destinations)):
            why = "must be earliest or JSON for a queue, of which each message is still to be read by somebody"
            raise refusal(SourceOptions, "startingOffsets", LATEST, why)
        given = _given(options.starting_offsets)
        if given and "v" not in given:
            why = "must be an offset of a stream, with leases; these are numbers of messages, for batch reads"
            raise refusal(SourceOptions, "startingOffsets", json.dumps(given), why)
        self._connection: Connection | None = None
        self._idle_until = 0.0  # monotonic; nothing was there when we asked last
        self._waiting: dict[str, int] = {}
        self._store = ""
        self._known: dict[str, int] = {}  # the newest lease of each destination: there is none beyond
        self._budget: dict[str, int] | None = None  # availableNow: how many may still be leased

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_connection": None}

    # -- on the driver ------------------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        """Where a new query begins: behind nothing. Durable subscriptions are there from now on."""
        for name in filter(is_topic, self._destinations):
            self._ask(name, 0, 0)  # not `_subscribe`, which would end one of that name to another topic
        return offsets.begin(self._destinations, _given(self._options.starting_offsets)).to_json()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Behind the leases of the next batch; `start` where nothing waits. Raises AmqError."""
        now_s = time.monotonic()
        if now_s < self._idle_until:
            return start
        before = Offset.of(start)
        names = sorted(self._destinations, key=lambda name: before.at.get(name, 0))  # who waited longest comes first
        room = limit.max_rows if isinstance(limit, ReadMaxRows) else BATCH_MESSAGES_MAX
        at, found = dict(before.at), {}
        for place, name in enumerate(names):
            share = -(-room // (len(names) - place))  # none starves behind one that is full
            leases = list(self._leases(name, before, share))
            if leases:
                at[name], found[name] = leases[-1][0], leases
                room = max(0, room - sum(count for _, count in leases))
        if not found:
            self._idle_until = now_s + self._options.poll_interval_s
            return start
        return Offset(self._store, at, found).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """How much goes into a batch."""
        return ReadMaxRows(self._options.max_offsets_per_trigger or BATCH_MESSAGES_MAX)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """For the progress of the query: how many messages wait, as far as it knows."""
        return {"waiting": self._waiting} if self._waiting else None

    def prepareForTriggerAvailableNow(self) -> None:
        """What waits now is read, and nothing that comes later."""
        self._budget = {name: self._count_waiting(name) for name in self._destinations}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The leases of a batch, cut into about equal parts."""
        slices = Offset.of(end).slices(Offset.of(start))
        count = sum(each.stop - each.start for each in slices)
        parts = self._options.min_partitions or min(PARTITIONS, count // PARTITION_MESSAGES_MIN)
        return [Slices(part) for part in offsets.cut(slices, max(1, parts))]

    def commit(self, end: dict[str, Any]) -> None:
        """All up to `end` is done: it may go from the broker. Raises AmqError."""
        if self._options.ack != "onCommit":
            return
        for name, number in Offset.of(end).at.items():
            try:
                if number:
                    self._driver().settle(name, self._cursor, number)
            except CommandError as error:  # the checkpoint may know of one that the query read once
                gone = (UNKNOWN_SUBSCRIPTION, SUBSCRIPTION_DIFFERS)
                if error.code not in gone or name in self._destinations:
                    raise

    def stop(self) -> None:
        """The query ends."""
        if self._connection is not None:
            self._connection.abort()
            self._connection = None

    def _driver(self) -> Connection:
        if self._connection is None or self._connection.closed:
            self._connection = connect(self._options)
        return self._connection

    def _leases(self, name: str, before: Offset, room: int) -> Iterator[tuple[int, int]]:
        """(number, messages) of the leases of `name` that the next batch takes: those that are there, then new ones, up
        to about `room` messages."""
        number = before.at.get(name, 0)
        while room > 0:
            is_known = self._known.get(name, -1) >= number
            size = min(MESSAGES_MAX, room)
            if self._budget is not None:
                size = min(size, self._budget[name])
            lease = self._ask(name, number, size if is_known else 0)
            if before.store and lease.store != before.store:
                raise OffsetError(f"the checkpoint is of store {before.store}, {name} of {lease.store}: use a new one")
            if not lease.number:
                if is_known:
                    return
                self._known[name] = number
                continue
            if is_known:
                self._known[name] = lease.number
                if self._budget is not None:
                    self._budget[name] -= lease.messages
            room -= lease.messages
            number = lease.number
            yield number, lease.messages

    def _ask(self, name: str, after: int, count: int) -> Lease:
        try:
            lease = self._driver().lease(name, self._cursor, after=after, messages=count)
        except CommandError as error:
            if error.code == UNKNOWN_LEASE:
                raise OffsetError(f"the checkpoint is of another store than {name}: use a new one ({error})") from error
            if error.code == UNKNOWN_SUBSCRIPTION and after:
                what = f"the durable subscription {self._cursor!r} to {name} has ended, with what waited in it"
                self._lost(what, error)
            elif error.code != UNKNOWN_SUBSCRIPTION:
                raise
            self._subscribe(name)
            return self._ask(name, after, count)
        self._store, self._waiting[name] = lease.store, lease.waiting
        return lease

    def _count_waiting(self, name: str) -> int:
        """What waits now. Spark asks before it knows how far the query was: so a durable subscription that is not there
        is none to be made here, which would hide that it has ended."""
        try:
            return self._driver().lease(name, self._cursor, after=0, messages=0).waiting
        except CommandError as error:
            if error.code != UNKNOWN_SUBSCRIPTION:
                raise
            return 0

    def _subscribe(self, name: str) -> None:
        """The durable subscription is there, and stays."""
        with self._driver().session() as session, session.consumer(name, prefetch=0, subscription=self._cursor):
            pass

    def _lost(self, what: str, error: AmqError) -> None:
        """Raises DataLossError, where it matters."""
        if self._options.fail_on_data_loss:
            raise DataLossError(f"{what}. To go on without: .option('failOnDataLoss', 'false')") from error
        log.warning("%s", what)

    # -- in a task ----------------------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of a partition, always the same in the same order. Raises AmqError."""
        assert isinstance(partition, Slices)
        yield from messages.batches(self._messages(partition.slices), self._options.include_headers)

    def _messages(self, slices: Sequence[Slice]) -> Iterator[Sequence[messages.Received]]:
        with connect(self._options) as connection, connection.session() as session:
            for each in slices:
                try:
                    reader = session.lease_reader(
                        each.destination, self._cursor, each.lease, start=each.start, stop=each.stop,
                        prefetch=self._options.prefetch_messages,
                    )  # fmt: skip
                    with reader:
                        yield from _all_of(reader)
                except CommandError as error:
                    if error.code != UNKNOWN_LEASE:
                        raise
                    what = f"lease {each.lease} of {each.destination} is over: somebody acknowledged it or gave it back"
                    self._lost(what, error)


class AmqReader(DataSourceReader):
    """A batch read: what is stored when it begins, of queues and of a durable subscription to topics, in the order of
    delivery. It takes nothing."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._destinations = options.destination.split(",")
        if any(map(is_topic, self._destinations)) and options.subscription is None:
            why = "must be a queue for a batch read, or come with the option subscription: a topic itself holds nothing"
            raise refusal(SourceOptions, "destination", options.destination, why)
        if options.starting_offsets == LATEST:
            raise refusal(SourceOptions, "startingOffsets", LATEST, "must be earliest or JSON for a batch read")
        if options.ending_offsets == EARLIEST:
            raise refusal(SourceOptions, "endingOffsets", EARLIEST, "must be latest or JSON")
        for name, found in (("startingOffsets", options.starting_offsets), ("endingOffsets", options.ending_offsets)):
            if "v" in _given(found):
                why = "must have numbers of messages for a batch read, by destination; this one of a stream has leases"
                raise refusal(SourceOptions, name, json.dumps(found), why)

    def partitions(self) -> list[InputPartition]:
        """One for each destination."""
        after = offsets.begin(self._destinations, _given(self._options.starting_offsets)).at
        until = offsets.numbers(self._destinations, _given(self._options.ending_offsets), "endingOffsets")
        return [Destination(name, after.get(name, 0), until.get(name, 1 << 63)) for name in self._destinations]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """What is there. A failover begins anew: what came before is left out then. Raises AmqError."""
        assert isinstance(partition, Destination)
        yield from messages.batches(self._messages(partition), self._options.include_headers)

    def _messages(self, partition: Destination) -> Iterator[Sequence[messages.Received]]:
        since_ms = self._options.starting_timestamp_ms or 0
        last: dict[str, tuple[int, int]] = {}  # of each queue that a pattern means: they come one after the other
        with connect(self._options) as connection, connection.session() as session:
            cursor = (self._options.subscription or "") if is_topic(partition.name) else ""
            prefetch = self._options.prefetch_messages
            for some in _all_of(session.browser(partition.name, prefetch=prefetch, subscription=cursor)):
                places = [(-message.priority, messages.offset_of(message)) for message in some]
                yield [
                    message for message, place in zip(some, places, strict=True)
                    if place > last.get(message.destination, (-10, 0)) and partition.after < place[1] <= partition.until
                    and int(message.headers.get("timestamp", "0")) >= since_ms
                ]  # fmt: skip
                for message, place in zip(some, places, strict=True):
                    last[message.destination] = max(last.get(message.destination, place), place)


def _all_of(browser: Browser) -> Iterator[Sequence[Any]]:
    while some := browser.receive_many(TIMEOUT_S):
        yield some
    if not browser.finished:
        raise CallTimeoutError(f"no broker went on for {TIMEOUT_S:g} s with what is read")


def _given(option: str | Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The numbers of an option of offsets, if it has any."""
    return option if isinstance(option, Mapping) else {}


def is_topic(name: str) -> bool:
    """Is the destination of that name a topic?"""
    return name.startswith(("/topic/", "topic://"))
