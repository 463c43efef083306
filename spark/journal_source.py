"""AmqJournalDataSource: what Spark calls for `format("amq-journal")`. The journal of a store, one partition a segment;
what a row is says `pyspark_amq.journal`.

Invariant: a query reads the journal as it was when the query was planned, however often a task runs.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import (
    DataSource,
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

from pyspark_amq import journal, options

_log = logging.getLogger("pyspark_amq.journal")  # Spark shows it among the logs of its workers
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class AmqJournalDataSource(DataSource):
    """`format("amq-journal")`: every message that a store has, and what became of it, without a broker."""

    @classmethod
    def name(cls) -> str:
        return "amq-journal"

    def schema(self) -> StructType:
        """Raises OptionError."""
        return from_arrow_schema(self._columns(self._options()))

    def reader(self, schema: StructType) -> DataSourceReader:  # noqa: ARG002
        """Raises OptionError."""
        given = self._options()
        kind = PushdownJournalReader if given.pushdown else JournalReader
        return kind(given, self._columns(given))

    def _options(self) -> options.JournalOptions:
        return options.read(options.JournalOptions, self.options)

    @staticmethod
    def _columns(given: options.JournalOptions) -> pa.Schema:
        return journal.schema(given.include_value, given.include_headers)


@dataclass
class JournalPartition(InputPartition):
    """One segment of the plan."""

    part: journal.Part


class JournalReader(DataSourceReader):
    """Reads the journal at `path`; filters are Spark's own work."""

    def __init__(self, given: options.JournalOptions, columns: pa.Schema) -> None:
        self._store = given.path
        self._fail_on_data_loss = given.fail_on_data_loss
        self._columns = columns
        self.wanted = journal.Wanted(
            given.kinds, given.destination,
            (given.starting_offset or 0, _before(given.ending_offset, journal.SEQ_MAX)),
            (1000 * given.starting_timestamp_ms if given.starting_timestamp_ms is not None else -journal.US_MAX,
             _before(given.ending_timestamp_ms and 1000 * given.ending_timestamp_ms, journal.US_MAX)),
        )  # fmt: skip

    def partitions(self) -> Sequence[InputPartition]:
        """Looks at the store, in the driver. Raises StoreError, OSError."""
        return [JournalPartition(part) for part in journal.plan(self._store, self.wanted)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Rows of one segment, in an executor. Raises StoreError, OSError."""
        if not isinstance(partition, JournalPartition):
            return  # of a plan without parts PySpark makes one of a partition that says nothing
        try:
            yield from journal.read_part(partition.part, self._columns, self.wanted)
        except journal.TrimmedError as error:
            if self._fail_on_data_loss:
                raise
            _log.warning("%s", error)


def _before(bound: int | None, otherwise: int) -> int:
    """The highest number below `bound`."""
    return otherwise if bound is None else bound - 1


class PushdownJournalReader(JournalReader):
    """The same, which takes over filters on offset, destination, timestamp and kind. A class of its own, since Spark
    refuses readers that can, unless spark.sql.python.filterPushdown.enabled is true."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:  # Spark's name
        """Those that Spark still has to apply."""
        for each in filters:
            more = _bounds(each)
            if more is None:
                yield each
            else:
                self.wanted = self.wanted.within(**more)


def _bounds(given: Filter) -> dict[str, Any] | None:
    """What `given` says, in words of `Wanted`; None where that is not known here."""
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
    """Since 1970. Spark gives a moment of its time zone as one without a zone, or in UTC: only that is sure."""
    if not isinstance(moment, datetime) or moment.tzinfo is None:
        return None
    return (moment - _EPOCH) // _MICROSECOND
