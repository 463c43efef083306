"""Batch reads: `spark.read.format("amq")`. They look at the messages that wait, and take none.

The driver asks the broker for pages: each says how many messages of a queue stand between two numbers, and where in the
store. Tasks get whole pages, in their order. They read a page from the store where that can be, else by a browse of
that part of the queue. Invariant: the pages of a plan are disjoint, so a message comes once.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from amq.client import Connection, Message, Run
from amq.core.errors import ProtocolError
from amq.journal import places
from pyspark_amq import messages, offsets, records
from pyspark_amq.connections import connected
from pyspark_amq.direct import StoreFiles
from pyspark_amq.homes import StorePart, Stores, at
from pyspark_amq.leases import Direct
from pyspark_amq.names import given, is_topic
from pyspark_amq.options import EARLIEST, LATEST, SourceOptions, refusal
from pyspark_amq.tasks import DIRECT, all_of, report

PARTITIONS, PARTITION_MESSAGES_MIN = 4, 1000  # limits without minPartitions
PAGES_PREFETCH = 16
NOT_PERSISTENT = "not-persistent"  # messages that stand nowhere in the store

_Place = tuple[int, int]  # priority and number of a message
_BEFORE = (10, 0)  # the place before all messages
TIME_MS_MAX = (1 << 63) // 1000  # Arrow's times are microseconds


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
class QueuePages(InputPartition):
    """The input of one task: pages of the destination `name`, and which numbers are wanted."""

    name: str
    after: int
    until: int
    pages: Sequence[Page]


class Stretch(NamedTuple):
    """Messages of a queue from one place to another, which the broker must send."""

    queue: str
    first: _Place
    last: _Place


class AmqReader(DataSourceReader):
    """The messages that queues, or a durable subscription to topics, hold at its start, in the order of delivery. The
    messages stay there."""

    def __init__(self, options: SourceOptions, wanted: pa.Schema | None = None) -> None:
        """`wanted` = the columns of the rows, by `messages.shape`; None = all that the options name."""
        self._options = options
        self._wanted = wanted or messages.shape(messages.schema(options.include_headers))
        self._destinations = options.destination.split(",")
        self._times_ms = (
            min(options.starting_timestamp_ms or 0, TIME_MS_MAX),
            min(options.ending_timestamp_ms or TIME_MS_MAX, TIME_MS_MAX),
        )
        if any(map(is_topic, self._destinations)) and options.subscription is None:
            why = "must be a queue for a batch read, or come with the option subscription: a topic holds no messages"
            raise refusal(SourceOptions, "destination", options.destination, why)
        for name, value in (
            ("maxOffsetsPerTrigger", options.max_offsets_per_trigger),
            ("maxBytesPerTrigger", options.max_bytes_per_trigger),
            ("minOffsetsPerTrigger", options.min_offsets_per_trigger),
        ):
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
        after, until = self.bounds()
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
            found += [QueuePages(name, after[name], last, part) for part in cut(pages, size / max(1, parts))]
        return found or [QueuePages(self._destinations[0], 0, 0, [])]

    def bounds(self) -> tuple[Mapping[str, int], Mapping[str, int]]:
        """Behind which numbers the read of each destination begins, and with which it ends. Raises OffsetError."""
        after = offsets.begin(self._destinations, given(self._options.starting_offsets)).at
        return after, offsets.numbers(self._destinations, given(self._options.ending_offsets), "endingOffsets")

    def _pages(self, connection: Connection, name: str) -> list[Page]:
        found: list[Page] = []
        with connection.session() as session:
            places_or_bounds = "bounds" if self._options.store is None else "true"
            browser = session.browser(name, prefetch=PAGES_PREFETCH, headers={"places": places_or_bounds})
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
        assert isinstance(partition, Whole | QueuePages)
        counts: Counter[str] = Counter()
        start_s, size = time.monotonic(), 0
        with connected(self._options) as connection:
            if isinstance(partition, Whole):
                found = messages.batches(self._browse(connection, partition), self._wanted)
            else:
                found = self._read_pages(connection, partition, counts)
            for batch in found:
                size += batch.nbytes
                yield batch
        report(counts, time.monotonic() - start_s, size)

    def _read_pages(
        self, connection: Connection, partition: QueuePages, counts: Counter[str]
    ) -> Iterator[pa.RecordBatch]:
        with StoreFiles(self._options.store or "") as files:
            for each in joined(self._ways(files, partition.pages, counts)):
                if isinstance(each, Run):
                    yield from self._rows(each, partition)
                else:
                    yield from self._by_broker(connection, partition, each)

    def _ways(self, files: StoreFiles, pages: Sequence[Page], counts: Counter[str]) -> Iterator[Run | Stretch]:
        """The messages of pages that were read from the store, and the places of those that could not be."""
        for page in pages:
            direct = page.direct if self._options.store is not None else None
            if direct is None:
                counts[page.reason] += page.messages
                yield Stretch(page.queue, page.first, page.last)
                continue
            for each in files.read(direct, 0, page.messages, page.queue):
                if each.run is not None:
                    counts[DIRECT] += len(each.run)
                    yield each.run
                    continue
                counts[each.reason] += each.stop - each.start
                seqs = places.unpack(direct.packed, direct.messages).seqs[each.start : each.stop]
                yield Stretch(page.queue, (page.first[0], seqs[0]), (page.first[0], seqs[-1]))

    def _rows(self, run: Run, partition: QueuePages, behind: _Place | None = None) -> Iterator[pa.RecordBatch]:
        """Those of a run that the options do not leave out, and that come behind a place."""
        columns = records.columns_of(run, self._wanted.names)
        seqs = columns["offset"].to_numpy()
        keep = (seqs > partition.after) & (seqs <= partition.until)
        since_ms, before_ms = self._times_ms
        if since_ms or before_ms < TIME_MS_MAX:
            times_us = columns["timestamp"].cast(pa.int64()).to_numpy()
            keep &= (times_us >= 1000 * since_ms) & (times_us < 1000 * before_ms)
        if behind is not None:
            priorities = records.heads_of(run)[0]["priority"]
            keep &= (priorities < behind[0]) | ((priorities == behind[0]) & (seqs > behind[1]))
        if keep.any():
            batch = messages.batch_of(columns, self._wanted)
            yield batch if keep.all() else batch.filter(pa.array(keep, pa.bool_()))

    def _by_broker(self, connection: Connection, partition: QueuePages, part: Stretch) -> Iterator[pa.RecordBatch]:
        """After a failover the broker begins again; messages that came before are left out."""
        (priority, seq), until = part.first, part.last
        headers = {"browse-after": f"{priority}-{seq - 1}", "browse-until": f"{until[0]}-{until[1]}", "amq-runs": "1"}
        behind = priority, seq - 1
        with connection.session() as session:
            browser = session.browser(part.queue, prefetch=self._options.prefetch_messages, headers=headers)
            for some in all_of(browser, browser.receive_runs):
                for each in together(some):
                    if isinstance(each, Run):
                        yield from self._rows(each, partition, behind)
                        head = records.heads_of(each)[0][-1]
                        last = int(head["priority"]), int(head["seq"])
                    else:
                        found = self._chosen(each, partition, behind)
                        yield from messages.batches([found], self._wanted)
                        last = each[-1].priority, messages.offset_of(each[-1])
                    behind = max(behind, last, key=_order)

    def _chosen(self, some: Sequence[Message], partition: QueuePages | Whole, behind: _Place) -> list[Message]:
        """Those of messages of one queue that the options do not leave out, and that come behind a place."""
        since_ms, before_ms = self._times_ms
        return [
            message
            for message in some
            if _order((message.priority, seq := messages.offset_of(message))) > _order(behind)
            and partition.after < seq <= partition.until
            and since_ms <= int(message.headers.get("timestamp", "0")) < before_ms
        ]

    def _browse(self, connection: Connection, part: Whole) -> Iterator[Sequence[messages.Received]]:
        """The messages of a durable subscription; after a failover as in `_by_broker`."""
        behind = _BEFORE
        with connection.session() as session:
            browser = session.browser(
                part.name, prefetch=self._options.prefetch_messages, subscription=self._options.subscription or ""
            )
            for some in all_of(browser, browser.receive_many):
                yield self._chosen(some, part, behind)
                places_of = [(message.priority, messages.offset_of(message)) for message in some]
                behind = max([behind, *places_of], key=_order)


class ClusterReader(DataSourceReader):
    """The same of a cluster, whose gateway is at the address: what all stores hold in which the destinations live. With
    the address of a broker it is the reader of that broker."""

    def __init__(self, options: SourceOptions, wanted: pa.Schema | None = None) -> None:
        self._options = options
        self._wanted = wanted
        self._alone = AmqReader(options, wanted)  # of a broker, if there is no cluster; it checks the options

    def partitions(self) -> list[InputPartition]:
        """Those of all stores. Raises AmqError."""
        options = self._options
        self._alone.bounds()  # wrong ones are an error before anything is asked
        stores = Stores(options, options.destination.split(","))
        with connected(options) as connection:
            if not options.redirect or not stores.look(connection):
                return self._alone.partitions()
            for name in {**given(options.starting_offsets), **given(options.ending_offsets)}:
                if name in options.destination.split(",") and len(stores.homes_of(name)) > 1:
                    why = f"{name} lives in several stores, and each has its own numbers: read it at the port of one"
                    raise refusal(SourceOptions, "startingOffsets", name, why)
            wanted = {name: stores.names_in(name) for name in stores.all}
            urls = {name: stores.url_soon(name, connection) for name, names in wanted.items() if names}
        readers = {
            name: AmqReader(self._of(name, url, wanted[name], len(urls)), self._wanted) for name, url in urls.items()
        }
        with ThreadPoolExecutor(len(readers)) as threads:
            found = threads.map(AmqReader.partitions, readers.values())
            return [
                StorePart(name, urls[name], part) for name, parts in zip(readers, found, strict=True) for part in parts
            ]

    def _of(self, store: str, url: str, names: Sequence[str], count: int) -> SourceOptions:
        one = at(self._options, store, url)
        starts, ends = given(one.starting_offsets), given(one.ending_offsets)
        return replace(
            one,
            destination=",".join(names),
            min_partitions=None if one.min_partitions is None else -(-one.min_partitions // count),
            starting_offsets={name: starts[name] for name in names if name in starts}
            if starts
            else one.starting_offsets,
            ending_offsets={name: ends[name] for name in names if name in ends} if ends else one.ending_offsets,
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of a partition. Raises AmqError."""
        if isinstance(partition, StorePart):
            return AmqReader(at(self._options, partition.store, partition.url), self._wanted).read(partition.partition)
        return self._alone.read(partition)


def _order(place: _Place) -> _Place:
    """Places come in the order of these."""
    return -place[0], place[1]


def joined(found: Iterable[Run | Stretch]) -> Iterator[Run | Stretch]:
    """The same, with stretches of a queue that follow each other as one: each costs a browse."""
    waits: Stretch | None = None
    for each in found:
        if waits is not None and isinstance(each, Stretch) and each.queue == waits.queue:
            waits = Stretch(waits.queue, waits.first, each.last)
            continue
        if waits is not None:
            yield waits
        waits = each if isinstance(each, Stretch) else None
        if isinstance(each, Run):
            yield each
    if waits is not None:
        yield waits


def together(some: Sequence[Run | Message]) -> Iterator[Run | list[Message]]:
    """The runs, and the messages between them."""
    single: list[Message] = []
    for each in some:
        if isinstance(each, Run):
            if single:
                yield single
                single = []
            yield each
        else:
            single.append(each)
    if single:
        yield single


def cut(pages: Sequence[Page], size: float) -> Iterator[list[Page]]:
    """The pages in parts of about `size` bytes; none is empty."""
    if not pages:
        return
    ends = np.cumsum([page.size for page in pages])
    which = np.floor((ends - np.array([page.size for page in pages]) / 2) / max(size, 1)).astype(np.int64)
    for part in np.unique(which).tolist():
        yield [page for page, number in zip(pages, which.tolist(), strict=True) if number == part]
