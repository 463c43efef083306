"""The work of one task of a stream: read the messages of its part of a micro-batch from the store, where that can be,
and all others from the broker.

Invariants: whatever way a message takes, its row is the same. A row that came from the store is given only if its lease
was still there after it was read; `check_leases` asks at the end of the part, before Spark takes the part as read.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from amq.client import Browser, CallTimeoutError, Connection, LeaseRequest, Run
from amq.core.destination import wire_name
from amq.core.errors import CommandError
from pyspark_amq import messages, records
from pyspark_amq.connections import TIMEOUT_S, connected
from pyspark_amq.direct import StoreFiles
from pyspark_amq.leases import UNKNOWN_LEASE, DataLossError, Direct, LeaseSlices, check_taken, log, lose
from pyspark_amq.offsets import Slice
from pyspark_amq.options import SourceOptions, full_names

DIRECT = "direct"


class Part:
    """A part of a micro-batch, with the columns `wanted`."""

    def __init__(self, options: SourceOptions, partition: LeaseSlices, wanted: pa.Schema) -> None:
        self._options = options
        self._cursor = options.subscription or ""
        self._partition = partition
        self._wanted = wanted
        self._counts: Counter[str] = Counter()  # messages by reason to ask the broker; and `DIRECT`

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Its messages, each time the same in the same order. Raises AmqError."""
        start_s, size = time.monotonic(), 0
        with connected(self._options) as connection:
            for batch in self._read(connection):
                size += batch.nbytes
                yield batch
            if self._options.store is not None and self._partition.slices:
                self._check_leases(connection)
        report(self._counts, time.monotonic() - start_s, size)

    def _read(self, connection: Connection) -> Iterator[pa.RecordBatch]:
        partition = self._partition
        if self._options.store is None or not partition.places:
            yield from records.batches(self._of_broker(connection, partition.slices, partition.indirect), self._wanted)
            return
        with StoreFiles.of(self._options.store, next(iter(partition.places.values())).uuid) as files:
            for each in partition.slices:
                known = partition.places.get((each.destination, each.lease))
                if known is None:
                    came = self._of_broker(connection, [each], partition.indirect)
                    yield from records.batches(came, self._wanted)
                else:
                    yield from self._of_store(connection, files, each, known)

    def _of_store(
        self, connection: Connection, files: StoreFiles, part: Slice, known: Direct
    ) -> Iterator[pa.RecordBatch]:
        (name,) = full_names(part.destination)
        for each in files.read(known, part.start, part.stop, wire_name(name)):
            if each.run is not None:
                self._counts[DIRECT] += len(each.run)
                yield messages.batch_of(records.columns_of(each.run, self._wanted.names), self._wanted)
            else:
                rest = replace(part, start=each.start, stop=each.stop)
                yield from records.batches(self._of_broker(connection, [rest], each.reason), self._wanted)

    def _of_broker(
        self, connection: Connection, slices: Sequence[Slice], reason: str
    ) -> Iterator[Sequence[messages.Received | Run]]:
        return records.joined(self._parts_of_broker(connection, slices, reason))

    def _parts_of_broker(
        self, connection: Connection, slices: Sequence[Slice], reason: str
    ) -> Iterator[Sequence[messages.Received | Run]]:
        with connection.session() as session:
            for each in slices:
                self._counts[reason] += each.stop - each.start
                try:
                    reader = session.lease_reader(
                        each.destination,
                        self._cursor,
                        each.lease,
                        start=each.start,
                        stop=each.stop,
                        prefetch=self._options.prefetch_messages,
                        epoch=self._partition.epochs.get(each.destination, 0),
                        runs=True,
                    )
                    with reader:
                        yield from all_of(reader, reader.receive_runs)
                except CommandError as error:
                    check_taken(each.destination, self._cursor, error)
                    if error.code != UNKNOWN_LEASE:
                        raise
                    text = f"lease {each.lease} of {each.destination} is over: somebody acknowledged it or gave it back"
                    lose(self._options, text, error)

    def _check_leases(self, connection: Connection) -> None:
        """Raises an error where a lease whose messages were read is over: somebody else may have them now. The broker
        learns how many were read from the store, for the progress of the query."""
        epochs, counts = self._partition.epochs, self._counts
        keys = list(self._partition.places) or [(each.destination, each.lease) for each in self._partition.slices[:1]]
        reads = counts[DIRECT], counts.total() - counts[DIRECT]
        questions = [
            LeaseRequest(name, self._cursor, number - 1, 0, epoch=epochs.get(name, 0), reads=(0, 0) if place else reads)
            for place, (name, number) in enumerate(keys)
        ]
        try:
            found = connection.lease_many(questions)
        except CommandError as error:
            for name, _ in keys:
                check_taken(name, self._cursor, error)
            raise
        for (name, number), lease in zip(keys, found, strict=True):
            if lease.number != number and (name, number) in self._partition.places:
                raise DataLossError(
                    f"lease {number} of {name} ended while it was read: somebody acknowledged it or gave it back. "
                    "Start the query again"
                )


def report(counts: Counter[str], time_s: float, size: int) -> None:
    """Write a line of JSON into the log of the task. `counts` = messages by reason to ask the broker, and `DIRECT`."""
    fallback = {reason: rows for reason, rows in counts.items() if reason not in ("", DIRECT)}
    facts: dict[str, Any] = {
        "logger": log.name,
        "rows": counts.total(),
        "bytes": size,
        "seconds": round(time_s, 3),
        "direct": counts[DIRECT],
        "fallback": fallback,
    }
    log.info("%s", json.dumps(facts))


def all_of(browser: Browser, receive: Callable[[float], Sequence[Any]]) -> Iterator[Sequence[Any]]:
    """All that a browse shows, as `receive` gives it. Raises CallTimeoutError."""
    while some := receive(TIMEOUT_S):
        yield some
    if not browser.finished:
        raise CallTimeoutError(f"no broker continued the read for {TIMEOUT_S:g} s")
