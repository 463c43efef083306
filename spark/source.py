"""Streaming and batch source: `spark.readStream.format("amq")` and `spark.read.format("amq")`.

A stream reads leases (docs/messaging.md). The driver asks the broker to set messages apart, and an offset names these
leases. Tasks read them as often as Spark wants, always with the same result. The driver acknowledges the messages of a
batch when Spark reports the batch as done. Invariant: a message is in the leases of exactly one batch. A lease whose
reply was lost belongs to the next batch. So no message is left out or read twice. A batch read only browses a queue.
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
from amq.destination import REST_TEXT, WORD_TEXT
from amq.errors import AmqError, CommandError
from pyspark_amq import messages, offsets
from pyspark_amq.offsets import Offset, OffsetError, Slice
from pyspark_amq.options import EARLIEST, LATEST, SourceOptions, refusal

log = logging.getLogger("pyspark_amq.source")

BATCH_MESSAGES_MAX = 1_000_000  # in a micro-batch without maxOffsetsPerTrigger
PARTITIONS, PARTITION_MESSAGES_MIN = 4, 1000  # limits without minPartitions
TIMEOUT_S = 120.0  # a call fails after that time without a broker
UNKNOWN_LEASE, UNKNOWN_SUBSCRIPTION = "UNKNOWN_LEASE", "UNKNOWN_SUBSCRIPTION"
SUBSCRIPTION_DIFFERS = "SUBSCRIPTION_DIFFERS"


class CursorTakenError(AmqError):
    """Another query reads with the same subscription."""

    code = "CURSOR_TAKEN"


class DataLossError(AmqError):
    """Messages that a query has not read are gone."""

    code = "DATA_LOSS"


@dataclass
class Slices(InputPartition):
    """The input of one task of a stream. `epochs`: of the cursor, by destination; 0 = the broker has none."""

    slices: Sequence[Slice]
    epochs: Mapping[str, int]


@dataclass
class Destination(InputPartition):
    """The input of one task of a batch read: messages with offsets greater than `after` and up to `until`."""

    name: str
    after: int
    until: int


def connect(options: SourceOptions) -> Connection:
    """A connection for this task or for the driver. Raises AmqError."""
    return amq.connect(options.url, login=options.user or "", passcode=options.password or "", timeout=TIMEOUT_S)


class AmqStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The driver has one object for the whole query. Each task has a copy without the connection."""

    def __init__(self, options: SourceOptions) -> None:
        if options.subscription is None:
            raise refusal(SourceOptions, "subscription", "", "is missing: it must name the cursor of the stream")
        for name in ("ending_offsets", "starting_timestamp_ms"):
            if getattr(options, name) not in (LATEST, None):
                field = "endingOffsets" if name == "ending_offsets" else "startingTimestamp"
                raise refusal(SourceOptions, field, str(getattr(options, name)), "is for batch reads, not for streams")
        self._options = options
        self._cursor = options.subscription
        self._destinations = options.destination.split(",")
        for name in self._destinations:
            if is_pattern(name) and not is_topic(name):
                why = (
                    "must be a queue, or several with commas between, for a stream: a stream cannot lease from a "
                    "pattern of queues. A batch read (spark.read) can read one; a stream can read a pattern of topics"
                )
                raise refusal(SourceOptions, "destination", name, why)
        if options.starting_offsets == LATEST and not all(map(is_topic, self._destinations)):
            why = "must be earliest or JSON for a queue, of which each message is still to be read by somebody"
            raise refusal(SourceOptions, "startingOffsets", LATEST, why)
        given = _given(options.starting_offsets)
        if given and "v" not in given:
            why = "must be an offset of a stream, with leases; these are numbers of messages, for batch reads"
            raise refusal(SourceOptions, "startingOffsets", json.dumps(given), why)
        self._connection: Connection | None = None
        self._idle_until = 0.0  # monotonic; no message waited at the last request
        self._waiting: dict[str, int] = {}
        self._store = ""
        self._epochs: dict[str, int] = {}  # of the cursor, by destination; valid until another query takes it
        self._known: dict[str, int] = {}  # number of the newest lease of each destination
        self._budget: dict[str, int] | None = None  # availableNow: how many messages the query may still lease

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_connection": None}

    # -- on the driver ------------------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        """The start of a new query. This creates its durable subscriptions."""
        for name in filter(is_topic, self._destinations):
            self._ask(name, 0, 0)  # not `_subscribe`: that would end a subscription of this name to another topic
        return offsets.begin(self._destinations, _given(self._options.starting_offsets)).to_json()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The offset after the leases of the next batch, or `start` if no message waits. Raises AmqError."""
        now_s = time.monotonic()
        if now_s < self._idle_until:
            return start
        before = Offset.of(start)
        names = sorted(self._destinations, key=lambda name: before.at.get(name, 0))  # the longest wait comes first
        room = limit.max_rows if isinstance(limit, ReadMaxRows) else BATCH_MESSAGES_MAX
        at, found = dict(before.at), {}
        for place, name in enumerate(names):
            share = -(-room // (len(names) - place))  # a full destination must not starve the others
            leases = list(self._leases(name, before, share))
            if leases:
                at[name], found[name] = leases[-1][0], leases
                room = max(0, room - sum(count for _, count in leases))
        if not found:
            self._idle_until = now_s + self._options.poll_interval_s
            return start
        return Offset(self._store, at, found).to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """The largest number of messages in a batch."""
        return ReadMaxRows(self._options.max_offsets_per_trigger or BATCH_MESSAGES_MAX)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """The number of waiting messages, as far as it is known, for the progress of the query."""
        return {"waiting": self._waiting} if self._waiting else None

    def prepareForTriggerAvailableNow(self) -> None:
        """Read only messages that wait now."""
        self._budget = {name: self._count_waiting(name) for name in self._destinations}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The leases of a batch, cut into parts of about equal size."""
        slices = Offset.of(end).slices(Offset.of(start))
        count = sum(each.stop - each.start for each in slices)
        parts = self._options.min_partitions or min(PARTITIONS, count // PARTITION_MESSAGES_MIN)
        epochs = {each.destination: self._epoch(each.destination) for each in slices}
        return [Slices(part, epochs) for part in offsets.cut(slices, max(1, parts))]

    def commit(self, end: dict[str, Any]) -> None:
        """Acknowledge all messages up to `end`: Spark is done with them. Raises AmqError."""
        if self._options.ack != "onCommit":
            return
        for name, number in Offset.of(end).at.items():
            try:
                if number:
                    epoch = self._epoch(name) if name in self._destinations else 0
                    self._driver().settle(name, self._cursor, number, epoch=epoch)
            except CommandError as error:  # the checkpoint may have a destination that the query no longer reads
                self._check_taken(name, error)
                gone = (UNKNOWN_SUBSCRIPTION, SUBSCRIPTION_DIFFERS)
                if error.code not in gone or name in self._destinations:
                    raise

    def stop(self) -> None:
        """Close the connection at the end of the query."""
        if self._connection is not None:
            self._connection.abort()
            self._connection = None

    def _driver(self) -> Connection:
        if self._connection is None or self._connection.closed:
            self._connection = connect(self._options)
        return self._connection

    def _leases(self, name: str, before: Offset, room: int) -> Iterator[tuple[int, int]]:
        """(number, messages) of each lease of `name` for the next batch, up to about `room` messages: existing leases
        first, then new ones."""
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

    def _check_taken(self, name: str, error: CommandError) -> None:
        """Raises CursorTakenError if this is the broker's error."""
        if error.code == CursorTakenError.code:
            raise CursorTakenError(
                f"another query, started later, reads {name} with the subscription {self._cursor!r}: this query stops. "
                "Run one query for each subscription, or give each its own: .option('subscription', 'other'). A stream "
                "that is used twice in one query counts as two"
            ) from error

    def _ask(self, name: str, after: int, count: int) -> Lease:
        epoch = self._epoch(name)
        try:
            lease = self._driver().lease(name, self._cursor, after=after, messages=count, epoch=epoch)
        except CommandError as error:
            self._check_taken(name, error)
            if error.code == UNKNOWN_LEASE:
                raise OffsetError(f"the checkpoint is of another store than {name}: use a new one ({error})") from error
            if error.code == UNKNOWN_SUBSCRIPTION and after:
                text = f"the durable subscription {self._cursor!r} to {name} has ended, and the messages in it are gone"
                self._lost(text, error)
            elif error.code != UNKNOWN_SUBSCRIPTION:
                raise
            self._subscribe(name)
            return self._ask(name, after, count)
        self._store, self._waiting[name] = lease.store, lease.waiting
        return lease

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

    def _lost(self, text: str, error: AmqError) -> None:
        """Raises DataLossError, unless failOnDataLoss is false."""
        if self._options.fail_on_data_loss:
            raise DataLossError(f"{text}. To continue without them: .option('failOnDataLoss', 'false')") from error
        log.warning("%s", text)

    # -- in a task ----------------------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of a partition, each time the same in the same order. Raises AmqError."""
        assert isinstance(partition, Slices)
        yield from messages.batches(self._messages(partition), self._options.include_headers)

    def _messages(self, partition: Slices) -> Iterator[Sequence[messages.Received]]:
        with connect(self._options) as connection, connection.session() as session:
            for each in partition.slices:
                try:
                    reader = session.lease_reader(
                        each.destination, self._cursor, each.lease, start=each.start, stop=each.stop,
                        prefetch=self._options.prefetch_messages, epoch=partition.epochs.get(each.destination, 0),
                    )  # fmt: skip
                    with reader:
                        yield from _all_of(reader)
                except CommandError as error:
                    self._check_taken(each.destination, error)
                    if error.code != UNKNOWN_LEASE:
                        raise
                    text = f"lease {each.lease} of {each.destination} is over: somebody acknowledged it or gave it back"
                    self._lost(text, error)


class AmqReader(DataSourceReader):
    """A batch read of the messages that queues, or a durable subscription to topics, hold at its start, in the order of
    delivery. The messages stay there."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._destinations = options.destination.split(",")
        if any(map(is_topic, self._destinations)) and options.subscription is None:
            why = "must be a queue for a batch read, or come with the option subscription: a topic holds no messages"
            raise refusal(SourceOptions, "destination", options.destination, why)
        for name, value in (("minPartitions", options.min_partitions),
                            ("maxOffsetsPerTrigger", options.max_offsets_per_trigger)):  # fmt: skip
            if value is not None:
                why = "is for streams: a batch read has one partition for each destination, and reads all messages"
                raise refusal(SourceOptions, name, str(value), why)
        if options.starting_offsets == LATEST:
            raise refusal(SourceOptions, "startingOffsets", LATEST, "must be earliest or JSON for a batch read")
        if options.ending_offsets == EARLIEST:
            raise refusal(SourceOptions, "endingOffsets", EARLIEST, "must be latest or JSON")
        for name, found in (("startingOffsets", options.starting_offsets), ("endingOffsets", options.ending_offsets)):
            if "v" in _given(found):
                why = "must have numbers of messages by destination for a batch read; an offset of a stream has leases"
                raise refusal(SourceOptions, name, json.dumps(found), why)

    def partitions(self) -> list[InputPartition]:
        """One partition for each destination."""
        after = offsets.begin(self._destinations, _given(self._options.starting_offsets)).at
        until = offsets.numbers(self._destinations, _given(self._options.ending_offsets), "endingOffsets")
        return [Destination(name, after.get(name, 0), until.get(name, 1 << 63)) for name in self._destinations]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The stored messages. After a failover the broker begins again; messages that came before are left out. Raises
        AmqError."""
        assert isinstance(partition, Destination)
        yield from messages.batches(self._messages(partition), self._options.include_headers)

    def _messages(self, partition: Destination) -> Iterator[Sequence[messages.Received]]:
        since_ms = self._options.starting_timestamp_ms or 0
        last: dict[str, tuple[int, int]] = {}  # by queue: those of a pattern come one after the other
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
        raise CallTimeoutError(f"no broker continued the read for {TIMEOUT_S:g} s")


def _given(option: str | Mapping[str, Any] | None) -> Mapping[str, Any]:
    """The numbers in an option of offsets, if it has any."""
    return option if isinstance(option, Mapping) else {}


def is_pattern(name: str) -> bool:
    """Is the name a pattern of many destinations?"""
    return any(word in (WORD_TEXT, REST_TEXT) for word in name.rpartition("/")[2].split("."))


def is_topic(name: str) -> bool:
    """Is the destination of that name a topic?"""
    return name.startswith(("/topic/", "topic://"))
