"""AmqDataSource: what Spark calls for `format("amq")`.

Spark makes one in the planner's Python worker for every query, and of a stream for every micro-batch; so nothing is
kept here, and options that cannot be used are refused in the first batch.
"""

from __future__ import annotations

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from pyspark_amq import messages, options
from pyspark_amq.sink import AmqBatchWriter, AmqStreamWriter
from pyspark_amq.source import AmqReader, AmqStreamReader


class AmqDataSource(DataSource):
    """`format("amq")`: queues and topics of an amq broker."""

    @classmethod
    def name(cls) -> str:
        return "amq"

    def schema(self) -> StructType:
        """Of what is read. Raises OptionError."""
        return messages.schema(options.read(options.SourceOptions, self.options).include_headers)

    def streamReader(self, schema: StructType) -> AmqStreamReader:  # noqa: ARG002
        """`spark.readStream.format("amq")`. Raises OptionError."""
        return AmqStreamReader(options.read(options.SourceOptions, self.options))

    def reader(self, schema: StructType) -> AmqReader:  # noqa: ARG002
        """`spark.read.format("amq")`. Raises OptionError."""
        return AmqReader(options.read(options.SourceOptions, self.options))

    def streamWriter(self, schema: StructType, overwrite: bool) -> AmqStreamWriter:  # noqa: ARG002
        """`df.writeStream.format("amq")`; in `complete` mode all rows are sent each time. Raises OptionError."""
        return AmqStreamWriter(options.read(options.SinkOptions, self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> AmqBatchWriter:
        """`df.write.format("amq").mode("append")`. Raises OptionError."""
        return AmqBatchWriter(options.read(options.SinkOptions, self.options), schema, overwrite)
