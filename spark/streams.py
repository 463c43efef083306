"""A stream over all stores in which its destinations live: `readStream` with the address of a cluster.

Each store has a reader (`source.AmqStreamReader`), which asks the master of its store and knows nothing of the others,
and a thread, in which it is asked. The offset of the stream has an offset of each store. So what a reader promises for
one store, the stream promises for all: a message is in the leases of one batch. Invariant: a store that does not answer
is left out of a batch, and its part of the offset stays; what it answers later is in a later batch.

With the address of a broker the stream is the reader of that broker.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import wait as wait_for
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from amq.client import (
    CallTimeoutError,
    ConnectError,
    ConnectionClosedError,
    FailoverTimeoutError,
    TransactionRetryError,
)
from amq.core.errors import AmqError
from pyspark_amq import offsets
from pyspark_amq.homes import PATIENCE_S, StorePart, Stores, StoreSilentError, at, shares
from pyspark_amq.leases import HOME_CODES
from pyspark_amq.names import given, is_topic
from pyspark_amq.offsets import OffsetError
from pyspark_amq.options import SourceOptions
from pyspark_amq.source import BATCH_MESSAGES_MAX, AmqStreamReader

LEAVE_OUT_S = 2.0  # a store that takes longer is left out of the batch
_SILENT = (CallTimeoutError, ConnectError, ConnectionClosedError, FailoverTimeoutError, TransactionRetryError)
log = logging.getLogger("pyspark_amq.source")


class StoreStream:
    """The reader of one store, and the thread in which it is asked. `next` = its next offset, which it was asked for;
    `missing` = why it was left out of the last batch."""

    def __init__(self, name: str, reader: AmqStreamReader) -> None:
        self.reader = reader
        self.next: Future[dict[str, Any]] | None = None
        self.missing = ""
        self.committing: Future[None] | None = None
        self._thread = ThreadPoolExecutor(1, f"amq-{name}")

    def follow(self, before: dict[str, Any] | None, room: int) -> None:
        """Ask for up to `room` messages behind an offset; None = the store is new to the stream."""
        self.next = self.ask(lambda: self.reader.next(before or self.reader.initialOffset(), room))

    def free(self, before: dict[str, Any] | None) -> int | None:
        """In its thread: see `AmqStreamReader.free`."""
        return self.reader.free(before or self.reader.initialOffset())

    def ask(self, call: Callable[..., Any], *words: Any) -> Future[Any]:
        return self._thread.submit(call, *words)

    def stop(self) -> None:
        self.reader.stop()
        self._thread.shutdown(wait=False, cancel_futures=True)


class ClusterStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The driver has one object for the whole query. Each task has a copy without connections."""

    def __init__(self, options: SourceOptions, wanted: pa.Schema | None = None) -> None:
        self._options = options
        self._wanted = wanted
        self._alone = AmqStreamReader(options, wanted)  # of a broker, if there is no cluster; it checks the options
        self._stores = Stores(options, options.destination.split(","))
        self._streams: dict[str, StoreStream] = {}
        self._is_cluster: bool | None = None  # None = not known yet
        self._is_bounded = False  # availableNow
        self._turn = 0
        self._batch_s = -math.inf  # monotonic; when the last batch began
        self._idle_until = 0.0  # monotonic; for minOffsetsPerTrigger
        self._of_one: dict[str, dict[str, Any]] = {}  # the offset of a stream of one store, by its JSON: as one of all

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_streams": {}}

    # -- on the driver ------------------------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:
        """The start of a new query. Raises AmqError."""
        start = given(self._options.starting_offsets)
        is_asked = "v" in start or any(map(is_topic, self._options.destination.split(",")))
        if not is_asked or not self._look():
            return self._alone.initialOffset()
        if "v" in start:
            return self._offset(dict(start))
        streams = {name: self._stream(name) for name in self._stores.all if self._stores.names_in(name)}
        asked = {name: each.ask(each.reader.initialOffset) for name, each in streams.items()}  # makes its subscriptions
        return offsets.of_stores({name: each.result() for name, each in asked.items()})

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """The offset after the leases of the next batch, or `start` if no message waits. Raises AmqError."""
        if not self._look():
            return self._alone.latestOffset(start, limit)
        room = limit.max_rows if isinstance(limit, ReadMaxRows) else BATCH_MESSAGES_MAX
        before = offsets.by_store(self._offset(start))
        if self._waits_for_more(before):
            return start
        found: dict[str, dict[str, Any]] = {}
        late = [name for name, each in self._streams.items() if each.next is not None]
        for name in late:
            room -= self._take(name, before, found, room)
        names = [name for name in self._in_turn() if name not in late and not self._streams[name].reader.rests]
        while room > 0 and names:
            asked = shares(room, {name: self._streams[name].reader.waiting for name in names})
            for name, share in asked.items():
                self._streams[name].follow(before.get(name), share)
            self._wait([self._streams[name].next for name in asked])
            for name in asked:
                room -= self._take(name, before, found, room)
            names = [] if found else [name for name in names if name not in asked]
        self._note_missing()
        if not found:
            return start
        self._batch_s = time.monotonic()
        return offsets.of_stores({**before, **found})

    def _take(self, name: str, before: Mapping[str, Any], found: dict[str, Any], room: int) -> int:
        """Use the next offset of a store, if it is known now and there is room. Returns its number of messages."""
        stream = self._streams[name]
        asked = stream.next
        if asked is None or not asked.done():
            return 0
        try:
            after = asked.result()
        except AmqError as error:
            stream.next = None
            self._left_out(name, error)
            return 0
        count = offsets.messages_in(after) if after != before.get(name) else 0
        if count > room and found:
            return 0  # it is for the next batch
        stream.next, stream.missing = None, ""
        if count:
            found[name] = after
        return count

    def _left_out(self, name: str, error: AmqError) -> None:
        """Raises `error` where waiting is no cure."""
        if error.code in HOME_CODES:
            self._stores.forget()
        elif self._is_bounded or not isinstance(error, _SILENT):
            raise error
        self._streams[name].missing = str(error)
        log.warning("store %s is left out of this batch: %s", name, error)

    def _note_missing(self) -> None:
        for name, stream in self._streams.items():
            if stream.next is None or stream.next.done():
                continue
            if self._is_bounded:
                raise StoreSilentError(f"store {name} has not answered for {PATIENCE_S:g} s")
            if not stream.missing:
                stream.missing = f"no answer for {LEAVE_OUT_S:g} s"
                log.warning("store %s is left out of this batch: %s", name, stream.missing)
                self._stores.forget()

    def _wait(self, asked: Sequence[Future[Any] | None]) -> None:
        wait_for([each for each in asked if each is not None], PATIENCE_S if self._is_bounded else LEAVE_OUT_S)

    def _in_turn(self) -> list[str]:
        """The stores, each time with another one first."""
        names = [*self._streams]
        self._turn = (self._turn + 1) % max(1, len(names))
        return names[self._turn :] + names[: self._turn]

    def _waits_for_more(self, before: Mapping[str, Any]) -> bool:
        """Are there too few messages for a batch, and is it too early for a smaller one?"""
        least, now_s = self._options.min_offsets_per_trigger, time.monotonic()
        too_late = now_s - self._batch_s >= self._options.max_trigger_delay_s
        if least is None or self._is_bounded or too_late:
            return False
        if now_s < self._idle_until:
            return True
        if any(each.next is not None for each in self._streams.values()):
            return False  # it has been waiting for its store
        asked = [each.ask(each.free, before.get(name)) for name, each in self._streams.items()]
        self._wait(asked)
        counts = [each.result() for each in asked if each.done() and each.exception() is None]
        if None in counts or sum(filter(None, counts)) >= least:
            return False
        self._idle_until = now_s + self._options.poll_interval_s
        return True

    def getDefaultReadLimit(self) -> ReadLimit:
        return self._alone.getDefaultReadLimit()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """As of one store; and which stores were `leftOut` of the last batch."""
        if not self._is_cluster:
            return self._alone.reportLatestOffset()
        found = [each for stream in self._streams.values() if (each := stream.reader.reportLatestOffset())]
        if not found:
            return None
        merged: dict[str, Any] = {"subscription": self._options.subscription}
        for each in found:
            for key in ("waiting", "waitingBytes"):
                sums = merged.setdefault(key, {})
                for name, count in each[key].items():
                    sums[name] = sums.get(name, 0) + count
            for key in ("leased", "direct", "fallback"):
                if key in each:
                    merged[key] = merged.get(key, 0) + each[key]
        left_out = [name for name, stream in self._streams.items() if stream.missing]
        return merged | ({"leftOut": left_out} if left_out else {})

    def prepareForTriggerAvailableNow(self) -> None:
        """Read only messages that wait now, in all stores. Raises AmqError."""
        if not self._look():
            self._alone.prepareForTriggerAvailableNow()
            return
        self._is_bounded = True
        for name in self._stores.all:
            if self._stores.names_in(name):
                self._stream(name)
        for each in [each.ask(each.reader.prepareForTriggerAvailableNow) for each in self._streams.values()]:
            each.result()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """The leases of a batch, cut into parts, those of all stores. It waits for the stores that it needs. Raises
        AmqError."""
        if not self._look():
            return self._alone.partitions(start, end)
        before, after = offsets.by_store(self._offset(start)), offsets.by_store(self._offset(end))
        asked = {}
        for name, offset in after.items():
            if offset["leases"] and offset != before.get(name):
                stream = self._stream(name)
                begin = before.get(name) or offsets.begin([*offset["at"]], {}).to_json()
                asked[name] = stream.ask(stream.reader.partitions, begin, offset)
        return [
            StorePart(name, self._stores.url(name), part) for name, parts in asked.items() for part in parts.result()
        ]

    def commit(self, end: dict[str, Any]) -> None:
        """Acknowledge all messages up to `end`, in all stores. A store that does not answer hears of it with the next
        batch, for an acknowledgement is of everything before it. Raises AmqError."""
        if not self._look():
            self._alone.commit(end)
            return
        asked = []
        for name, offset in offsets.by_store(self._offset(end)).items():
            if name not in self._streams and not self._stores.url(name):
                continue
            stream = self._stream(name)
            if stream.committing is None or stream.committing.done():
                self._committed(name)
                stream.committing = stream.ask(stream.reader.commit, offset)
                asked.append(stream.committing)
        self._wait(asked)
        for name in [*self._streams]:
            self._committed(name)

    def settle(self, end: dict[str, Any]) -> None:
        """The same, of the last batch of all: each store has acknowledged when this returns. Raises AmqError."""
        self._is_bounded = True
        self.commit(end)

    def _committed(self, name: str) -> None:
        """Raises AmqError where an acknowledgement was refused."""
        done = self._streams[name].committing
        if done is None or not done.done():
            return
        self._streams[name].committing = None
        try:
            done.result()
        except _SILENT as error:
            if self._is_bounded:
                raise
            log.warning("store %s has not acknowledged, and is asked again with the next batch: %s", name, error)

    def stop(self) -> None:
        """Close the connections at the end of the query."""
        self._alone.stop()
        for stream in self._streams.values():
            stream.stop()
        self._streams.clear()

    # -- the stores ---------------------------------------------------------------------------------------------------

    def _look(self) -> bool:
        """Is this a stream over a cluster? If so, each store that may have something has a reader. Raises AmqError."""
        if self._is_cluster is None:
            self._is_cluster = self._options.redirect and self._stores.look(self._alone.connection(), again=True)
        if not self._is_cluster:
            return False
        try:
            self._stores.look(self._alone.connection())
        except _SILENT as error:  # all gateways are away: the stores may be there
            log.warning("no gateway answers: %s", error)
        for name in self._stores.all:
            if self._stores.url(name) and (names := self._stores.names_in(name)):
                self._stream(name).reader.look_at(names, self._stores.url(name))
        for name, stream in self._streams.items():
            if not self._stores.names_in(name):  # all of it has moved
                stream.reader.look_at((), self._stores.url(name))
                stream.missing = ""
        return True

    def _stream(self, name: str) -> StoreStream:
        """That of a store. Raises StoreSilentError where its master was never seen."""
        if name not in self._streams:
            url = self._stores.url_soon(name, self._alone.connection())
            one = at(self._options, name, url)
            count = max(1, len(self._stores.all))
            parts, size = one.min_partitions, one.max_bytes_per_trigger
            one = dataclasses.replace(
                one,
                min_offsets_per_trigger=None,
                min_partitions=None if parts is None else -(-parts // count),
                max_bytes_per_trigger=None if size is None else -(-size // count),
                starting_offsets=None if given(one.starting_offsets) else one.starting_offsets,
            )
            self._streams[name] = StoreStream(name, AmqStreamReader(one, self._wanted))
        return self._streams[name]

    def _offset(self, found: dict[str, Any]) -> dict[str, Any]:
        """An offset of a stream over stores, also where it is one of a stream of one store, which the cluster has now.
        Raises OffsetError."""
        if found.get("v") == offsets.STORES_VERSION:
            return found
        text = json.dumps(found, sort_keys=True)
        if text not in self._of_one:
            self._of_one.clear()
            self._of_one[text] = self._of_cluster(offsets.Offset.of(found))
        return self._of_one[text]

    def _of_cluster(self, one: offsets.Offset) -> dict[str, Any]:
        if not one.store:
            return offsets.of_stores({})  # nothing was read yet
        for name in self._stores.all:
            reader = self._stream(name).reader
            if not reader.store:
                self._stream(name).ask(reader.identify).result()
            if reader.store == one.store:
                return offsets.of_stores({name: one.to_json()})
        raise OffsetError(f"the checkpoint is of store {one.store}, which is not one of this cluster: use a new one")

    # -- in a task ----------------------------------------------------------------------------------------------------

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The messages of a partition, each time the same in the same order. Raises AmqError."""
        if isinstance(partition, StorePart):
            options = at(self._options, partition.store, partition.url)
            return AmqStreamReader(options, self._wanted).read(partition.partition)
        return self._alone.read(partition)
