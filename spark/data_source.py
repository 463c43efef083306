"""AmqDataSource: what Spark calls for `format("amq")`.

Spark makes one in the planner's Python worker for every query, and of a stream for every micro-batch; so nothing is
kept here, and options that cannot be used are refused in the first batch.
"""

from __future__ import annotations

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from pyspark_amq import options
from pyspark_amq.sink import AmqBatchWriter, AmqStreamWriter


class AmqDataSource(DataSource):
    """`format("amq")`: queues and topics of an amq broker."""

    @classmethod
    def name(cls) -> str:
        return "amq"

    def streamWriter(self, schema: StructType, overwrite: bool) -> AmqStreamWriter:  # noqa: ARG002
        """`df.writeStream.format("amq")`; in `complete` mode all rows are sent each time. Raises OptionError."""
        return AmqStreamWriter(options.read(options.SinkOptions, self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> AmqBatchWriter:
        """`df.write.format("amq").mode("append")`. Raises OptionError."""
        return AmqBatchWriter(options.read(options.SinkOptions, self.options), schema, overwrite)
