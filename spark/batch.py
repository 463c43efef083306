"""Batch reads: `spark.read.format("amq")`. They look at the messages that wait, and take none.

The driver asks the broker for pages: each says how many messages of a queue stand between two numbers, and where in the
store. Tasks get whole pages, in their order. They read a page from the store where that can be, else by a browse of
that part of the queue. Invariant: the pages of a plan are disjoint, so a message comes once.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from amq.client import Connection
from amq.errors import ProtocolError
from amq.journal import places
from pyspark_amq import messages, offsets, records
from pyspark_amq.direct import Direct, StoreFiles
from pyspark_amq.names import given, is_topic
from pyspark_amq.options import EARLIEST, LATEST, SourceOptions, refusal
from pyspark_amq.tasks import DIRECT, all_of, connected, report

PARTITIONS, PARTITION_MESSAGES_MIN = 4, 1000  # limits without minPartitions
PAGES_PREFETCH = 16
NOT_PERSISTENT = "not-persistent"  # messages that stand nowhere in the store

_Place = tuple[int, int]  # priority and number of a message


@dataclass(frozen=True)
class Page:
    """Some messages of a queue, from `first` to `last`. `size` in bytes; `direct`: where they stand, or None and the
    reason why the broker does not say it."""

    queue: str
    first: _Place
    last: _Place
    messages: int
    size: int
    direct: Direct | None
    reason: str = ""

    @classmethod
    def parse(cls, body: bytes) -> Page:
        """Raises ProtocolError."""
        try:
            found = json.loads(body)
            (priority, first), (_, last) = found["first"], found["last"]
            others = int(found["others"])
            direct = Direct.of(found) if "places" in found and not others else None
            reason = NOT_PERSISTENT if others else str(found.get("indirect", ""))
            count, size = found["messages"] + others, found["size"]
            return cls(found["queue"], (priority, first), (priority, last), count, size, direct, reason)
        except (ValueError, TypeError, KeyError) as error:
            raise ProtocolError("this broker does not know pages of a browse: use a newer one") from error

    @property
    def key(self) -> tuple[str, int, int]:
        """Pages come in this order."""
        return self.queue, -self.first[0], self.first[1]


@dataclass
class Whole(InputPartition):
    """All that waits for a durable subscription: the input of one task. `after`, `until`: numbers."""

    name: str
    after: int
    until: int


@dataclass
class Pages(InputPartition):
    """The input of one task: pages of the destination `name`, and which numbers are wanted."""

    name: str
    after: int
    until: int
    pages: Sequence[Page]


class AmqReader(DataSourceReader):
    """The messages that queues, or a durable subscription to topics, hold at its start, in the order of delivery. The
    messages stay there."""

    def __init__(self, options: SourceOptions, wanted: pa.Schema | None = None) -> None:
        """`wanted` = the columns of the rows, by `messages.shape`; None = all that the options name."""
        self._options = options
        self._wanted = wanted or messages.shape(messages.schema(options.include_headers))
        self._destinations = options.destination.split(",")
        if any(map(is_topic, self._destinations)) and options.subscription is None:
            why = "must be a queue for a batch read, or come with the option subscription: a topic holds no messages"
            raise refusal(SourceOptions, "destination", options.destination, why)
        for name, value in (("maxOffsetsPerTrigger", options.max_offsets_per_trigger),
                            ("maxBytesPerTrigger", options.max_bytes_per_trigger),
                            ("minOffsetsPerTrigger", options.min_offsets_per_trigger)):  # fmt: skip
            if value is not None:
                raise refusal(SourceOptions, name, str(value), "is for streams: a batch read reads all messages")
        if options.starting_offsets == LATEST:
            raise refusal(SourceOptions, "startingOffsets", LATEST, "must be earliest or JSON for a batch read")
        if options.ending_offsets == EARLIEST:
            raise refusal(SourceOptions, "endingOffsets", EARLIEST, "must be latest or JSON")
        for name, found in (("startingOffsets", options.starting_offsets), ("endingOffsets", options.ending_offsets)):
            if "v" in given(found):
                why = "must have numbers of messages by destination for a batch read; an offset of a stream has leases"
                raise refusal(SourceOptions, name, json.dumps(found), why)

    # -- on the driver ------------------------------------------------------------------------------------------------

    def partitions(self) -> list[InputPartition]:
        """The pages of queues in parts of about equal size; one for each topic. Raises AmqError."""
        options = self._options
        after = offsets.begin(self._destinations, given(options.starting_offsets)).at
        until = offsets.numbers(self._destinations, given(options.ending_offsets), "endingOffsets")
        found: list[InputPartition] = []
        queues: dict[str, list[Page]] = {}
        with connected(options) as connection:
            for name in self._destinations:
                last = until.get(name, 1 << 63)
                if is_topic(name):
                    found.append(Whole(name, after[name], last))
                    continue
                pages = self._pages(connection, name)
                queues[name] = [page for page in pages if page.first[1] <= last and page.last[1] > after[name]]
        total = sum(page.messages for pages in queues.values() for page in pages)
        parts = options.min_partitions or min(PARTITIONS, total // PARTITION_MESSAGES_MIN)
        size = sum(page.size for pages in queues.values() for page in pages)
        for name, pages in queues.items():
            last = until.get(name, 1 << 63)
            found += [Pages(name, after[name], last, part) for part in cut(pages, size / max(1, parts))]
        return found or [Pages(self._destinations[0], 0, 0, [])]

    def _pages(self, connection: Connection, name: str) -> list[Page]:
        found: list[Page] = []
        with connection.session() as session:
            browser = session.browser(name, prefetch=PAGES_PREFETCH, headers={"places": "true"})
            for some in all_of(browser, browser.receive_many):
                for message in some:
                    page = Page.parse(message.body)
                    if found and page.key <= found[-1].key:  # the next master began again
                        found.clear()
                    found.append(page)
        return found

    # -- in a task ----------------------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of a partition. Raises AmqError."""
        assert isinstance(partition, Whole | Pages)
        counts: Counter[str] = Counter()
        start_s, size = time.monotonic(), 0
        with connected(self._options) as connection:
            if isinstance(partition, Whole):
                rows = self._browse(connection, partition.name, partition.after, partition.until, {})
                found = messages.batches(rows, self._wanted)
            else:
                found = self._read_pages(connection, partition, counts)
            for batch in found:
                size += batch.nbytes
                yield batch
        report(counts, time.monotonic() - start_s, size)

    def _read_pages(
        self, connection: Connection, partition: Pages, counts: Counter[str]
    ) -> Iterator[pa.RecordBatch]:
        with StoreFiles(self._options.store or "") as files:
            for page in partition.pages:
                direct = page.direct if self._options.store is not None else None
                if direct is None:
                    counts[page.reason] += page.messages
                    yield from self._by_broker(connection, partition, page.queue, page.first, page.last)
                    continue
                for each in files.read(direct, 0, page.messages, page.queue):
                    if each.run is not None:
                        counts[DIRECT] += len(each.run)
                        columns = records.columns_of(each.run, self._wanted.names)
                        batch = messages.batch_of(columns, self._wanted)
                        yield self._chosen(batch, columns, partition)
                        continue
                    counts[each.reason] += each.stop - each.start
                    seqs = places.unpack(direct.packed, direct.messages).seqs[each.start : each.stop]
                    first, last = ((page.first[0], seq) for seq in (seqs[0], seqs[-1]))
                    yield from self._by_broker(connection, partition, page.queue, first, last)

    def _chosen(self, batch: pa.RecordBatch, columns: Mapping[str, pa.Array], partition: Pages) -> pa.RecordBatch:
        """Without rows that the options leave out."""
        seqs, since_ms = columns["offset"].to_numpy(), self._options.starting_timestamp_ms or 0
        keep = (seqs > partition.after) & (seqs <= partition.until)
        if since_ms:
            keep &= columns["timestamp"].cast(pa.int64()).to_numpy() >= 1000 * since_ms
        return batch if keep.all() else batch.filter(pa.array(keep, pa.bool_()))

    def _by_broker(
        self, connection: Connection, partition: Pages, queue: str, first: _Place, last: _Place
    ) -> Iterator[pa.RecordBatch]:
        part = {"browse-after": f"{first[0]}-{first[1] - 1}", "browse-until": f"{last[0]}-{last[1]}"}
        rows = self._browse(connection, queue, partition.after, partition.until, part)
        yield from messages.batches(rows, self._wanted)

    def _browse(
        self, connection: Connection, name: str, after: int, until: int, part: Mapping[str, str]
    ) -> Iterator[Sequence[messages.Received]]:
        """After a failover the broker begins again; messages that came before are left out."""
        since_ms, prefetch = self._options.starting_timestamp_ms or 0, self._options.prefetch_messages
        last: dict[str, _Place] = {}  # by queue
        cursor = (self._options.subscription or "") if is_topic(name) else ""
        with connection.session() as session:
            browser = session.browser(name, prefetch=prefetch, subscription=cursor, headers=part)
            for some in all_of(browser, browser.receive_many):
                found = [(-message.priority, messages.offset_of(message)) for message in some]
                yield [
                    message for message, place in zip(some, found, strict=True)
                    if place > last.get(message.destination, (-10, 0)) and after < place[1] <= until
                    and int(message.headers.get("timestamp", "0")) >= since_ms
                ]  # fmt: skip
                for message, place in zip(some, found, strict=True):
                    last[message.destination] = max(last.get(message.destination, place), place)


def cut(pages: Sequence[Page], size: float) -> Iterator[list[Page]]:
    """The pages in parts of about `size` bytes; none is empty."""
    if not pages:
        return
    ends = np.cumsum([page.size for page in pages])
    which = np.floor((ends - np.array([page.size for page in pages]) / 2) / max(size, 1)).astype(np.int64)
    for part in np.unique(which).tolist():
        yield [page for page, number in zip(pages, which.tolist(), strict=True) if number == part]
