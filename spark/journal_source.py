"""Readers of `format("amq-journal")`: the journal of a store, with a partition for each segment. `pyspark_amq.journal`
explains the rows.

Invariant: a query reads the journal as it was when Spark planned the query, however often a task runs.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSourceReader,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    InputPartition,
    LessThan,
    LessThanOrEqual,
)
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from pyspark_amq import journal, messages, options

_log = logging.getLogger("pyspark_amq.journal")  # Spark shows it in the logs of its workers
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def schema(given: options.JournalOptions) -> StructType:
    """The columns of the rows."""
    return from_arrow_schema(_columns(given))


def reader(given: options.JournalOptions, wanted: StructType) -> JournalRowsReader:
    """The reader for these options and columns. Raises SchemaError for columns that the format has not."""
    every = from_arrow_schema(journal.schema(headers=True))
    columns = messages.project(wanted, {field.name: [field.dataType] for field in every.fields}, "amq-journal")
    kind = PushdownJournalReader if given.pushdown else JournalRowsReader
    return kind(given, columns)


def _columns(given: options.JournalOptions) -> pa.Schema:
    return journal.schema(given.include_value, given.include_headers)


@dataclass
class JournalPartition(InputPartition):
    """One segment of the plan."""

    part: journal.SegmentPart


class JournalRowsReader(DataSourceReader):
    """Reads the journal at `path`. Spark applies all filters."""

    def __init__(self, given: options.JournalOptions, columns: pa.Schema) -> None:
        self._store = given.path
        self._fail_on_data_loss = given.fail_on_data_loss
        self._columns = columns
        self.wanted = journal.Wanted(
            given.kinds,
            given.destination,
            (given.starting_offset or 0, _before(given.ending_offset, journal.SEQ_MAX)),
            (
                1000 * given.starting_timestamp_ms if given.starting_timestamp_ms is not None else -journal.US_MAX,
                _before(given.ending_timestamp_ms and 1000 * given.ending_timestamp_ms, journal.US_MAX),
            ),
        )

    def partitions(self) -> Sequence[InputPartition]:
        """In the driver: list the segments of the store. Raises StoreError, OSError."""
        return [JournalPartition(part) for part in journal.plan(self._store, self.wanted)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """In an executor: the rows of one segment. Raises StoreError, OSError."""
        if not isinstance(partition, JournalPartition):
            return  # PySpark makes an empty partition for a plan without parts
        try:
            yield from journal.read_part(partition.part, self._columns, self.wanted)
        except journal.TrimmedError as error:
            if self._fail_on_data_loss:
                raise
            _log.warning("%s", error)


def _before(bound: int | None, otherwise: int) -> int:
    """The highest number below `bound`."""
    return otherwise if bound is None else bound - 1


class PushdownJournalReader(JournalRowsReader):
    """The same, but it applies filters on offset, destination, timestamp and kind itself. It is a separate class, since
    Spark refuses readers that accept filters, unless spark.sql.python.filterPushdown.enabled is true."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # Spark's name
        """Take over filters, and return those that Spark still has to apply."""
        for each in filters:
            more = _bounds(each)
            if more is None:
                yield each
            else:
                self.wanted = self.wanted.within(**more)


def _bounds(given: Filter) -> dict[str, Any] | None:
    """The filter as arguments of `Wanted`; None if this reader cannot apply it."""
    column = given.attribute[0] if len(getattr(given, "attribute", ())) == 1 else ""
    if column in ("destination", "kind") and isinstance(given, EqualTo | In):
        values = frozenset(given.value if isinstance(given, In) else (given.value,))
        return {"destinations" if column == "destination" else "kinds": values}
    if column not in ("offset", "timestamp"):
        return None
    name, limit = ("offsets", journal.SEQ_MAX) if column == "offset" else ("times_us", journal.US_MAX)
    if isinstance(given, In):
        return None
    if not isinstance(given, EqualTo | GreaterThan | GreaterThanOrEqual | LessThan | LessThanOrEqual):
        return None
    value = _microseconds(given.value) if column == "timestamp" else given.value
    if not isinstance(value, int):
        return None
    if isinstance(given, EqualTo):
        return {name: (value, value)}
    if isinstance(given, GreaterThan | GreaterThanOrEqual):
        return {name: (value + isinstance(given, GreaterThan), limit)}
    return {name: (-limit, value - isinstance(given, LessThan))}


def _microseconds(moment: Any) -> int | None:
    """Since 1970; None if the zone is unknown: Spark gives times of its own zone without a zone."""
    if not isinstance(moment, datetime) or moment.tzinfo is None:
        return None
    return (moment - _EPOCH) // _MICROSECOND
