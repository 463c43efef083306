"""The classes that Spark calls for `format("amq")` and `format("amq-journal")`.

Spark makes an object in the planner's Python worker for every query, and for every micro-batch of a stream. So the
objects keep no state, and a stream reports unusable options in its first micro-batch.

Invariant: this module needs PySpark 4.0 and nothing else. Spark imports it when it looks for formats: an error there
would hide every Python format, not only ours. A query imports the modules that it needs, and names a missing one.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any, NoReturn

import pyspark
from pyspark.sql.types import StructType

from pyspark_amq import PYSPARK_MIN
from pyspark_amq.workers import spare_modules

try:
    from pyspark.sql.datasource import DataSource, DataSourceStreamReader
except ImportError as error:  # PySpark 3
    raise ImportError(
        f"formats amq and amq-journal need PySpark {PYSPARK_MIN} or later, this is {pyspark.__version__}: "
        f"pip install 'pyspark>={PYSPARK_MIN}'"
    ) from error

if TYPE_CHECKING:
    import pyarrow as pa

    from pyspark_amq.batch import ClusterReader
    from pyspark_amq.journal_source import JournalRowsReader
    from pyspark_amq.options import JournalOptions, SourceOptions
    from pyspark_amq.sink import AmqBatchWriter, AmqStreamWriter
    from pyspark_amq.streams import ClusterStreamReader

PROVIDER = "provider"  # an option that Spark adds only in CREATE TABLE


class MissingModuleError(ImportError):
    """The Python of this worker lacks a module that the format needs."""


class RefusedReader(DataSourceStreamReader):
    """The reader of a stream that cannot begin: each call raises the reason."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def initialOffset(self) -> dict[str, Any]:
        raise self._error

    def latestOffset(self) -> dict[str, Any]:
        raise self._error

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> NoReturn:  # noqa: ARG002
        raise self._error

    def read(self, partition: object) -> NoReturn:  # noqa: ARG002
        raise self._error

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing was read."""

    def stop(self) -> None:
        """Nothing was opened."""


class AmqDataSource(DataSource):
    """`format("amq")`: queues and topics of an amq broker."""

    @classmethod
    def name(cls) -> str:
        return "amq"

    def schema(self) -> StructType:
        """The columns of a read. Raises OptionError."""
        _refuse_table(self.name(), PROVIDER in self.options)
        return _module("messages").schema(self._source_options().include_headers)

    def streamReader(self, schema: StructType) -> ClusterStreamReader | RefusedReader:
        """`spark.readStream.format("amq")`. Options and columns that cannot be used are an error of the query's first
        call."""
        try:
            reader: ClusterStreamReader = _module("streams").ClusterStreamReader(*self._checked(schema))
        except Exception as error:  # noqa: BLE001
            return RefusedReader(error)  # Spark hides an error of this call behind a separate UnboundLocalError
        return reader

    def reader(self, schema: StructType) -> ClusterReader:
        """`spark.read.format("amq")`. Raises OptionError, SchemaError."""
        reader: ClusterReader = _module("batch").ClusterReader(*self._checked(schema))
        return reader

    def streamWriter(self, schema: StructType, overwrite: bool) -> AmqStreamWriter:  # noqa: ARG002
        """`df.writeStream.format("amq")`. In `complete` mode it sends all rows each time. Raises OptionError."""
        _refuse_table(self.name(), not self.options)
        options = _module("options")
        sink = _module("sink")
        writer: AmqStreamWriter = sink.AmqStreamWriter(options.read(options.SinkOptions, self.options), schema)
        sink.refuse_continuous(self.options.get("checkpointLocation", ""))
        return writer

    def writer(self, schema: StructType, overwrite: bool) -> AmqBatchWriter:
        """`df.write.format("amq").mode("append")`. Raises OptionError."""
        _refuse_table(self.name(), not self.options)
        options = _module("options")
        writer: AmqBatchWriter = _module("sink").AmqBatchWriter(
            options.read(options.SinkOptions, self.options), schema, overwrite
        )
        return writer

    def _checked(self, schema: StructType) -> tuple[SourceOptions, pa.Schema]:
        _refuse_table(self.name(), not self.options)
        return self._source_options(), _module("messages").shape(schema, self.name())

    def _source_options(self) -> SourceOptions:
        options = _module("options")
        found: SourceOptions = options.read(options.SourceOptions, self.options)
        return found


class AmqJournalDataSource(DataSource):
    """`format("amq-journal")`: every message of a store and its history, read without a broker."""

    @classmethod
    def name(cls) -> str:
        return "amq-journal"

    def schema(self) -> StructType:
        """Raises OptionError."""
        _refuse_table(self.name(), PROVIDER in self.options)
        return _module("journal_source").schema(self._options())

    def reader(self, schema: StructType) -> JournalRowsReader:
        """Raises OptionError, SchemaError."""
        _refuse_table(self.name(), not self.options)
        reader: JournalRowsReader = _module("journal_source").reader(self._options(), schema)
        return reader

    def _options(self) -> JournalOptions:
        options = _module("options")
        found: JournalOptions = options.read(options.JournalOptions, self.options)
        return found


def _refuse_table(name: str, is_table: bool) -> None:
    """Raises OptionError for a table of Spark's catalog: Spark does not pass the options of the table to a query."""
    if is_table:
        raise _module("options").OptionError(
            f"CREATE TABLE … USING `{name}` does not work: Spark does not pass the options of a table to a format "
            f"written in Python. Write CREATE TEMPORARY VIEW … USING `{name}` OPTIONS (…), or use spark.read"
        )


def _module(name: str) -> Any:
    """A module of this package. Raises MissingModuleError, which names the missing module and the cure."""
    try:
        found = importlib.import_module(f"pyspark_amq.{name}")
    except ImportError as error:
        missing = (error.name or "").partition(".")[0]
        if missing == "pyspark":
            raise MissingModuleError(
                f"format amq needs PySpark {PYSPARK_MIN} or later, this is {pyspark.__version__} ({error}): "
                f"pip install 'pyspark>={PYSPARK_MIN}'",
                name=error.name,
            ) from error
        raise MissingModuleError(
            f"format amq needs the module {error.name!r}; this Python ({sys.executable}) cannot import it ({error}): "
            f"pip install {missing}, for the Python of the driver and of every executor",
            name=error.name,
        ) from error
    spare_modules()
    return found
