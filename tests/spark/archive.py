"""What most of the tests need of Spark, once: its JVM then writes the classes that it loaded into an archive.

`python -m tests.spark.archive DIRECTORY`, in the environment that `tests.spark.session` gives it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from pyspark.sql.datasource import DataSource, DataSourceReader

from tests.spark.session import start, stop_jvm


class Ten(DataSource):
    """Ten rows, made in Python."""

    @classmethod
    def name(cls) -> str:
        return "ten"

    def schema(self) -> str:
        return "number int"

    def reader(self, schema: object) -> DataSourceReader:  # noqa: ARG002 (named by Spark)
        return TenReader()


class TenReader(DataSourceReader):
    def read(self, partition: object) -> Iterator[tuple[int]]:  # noqa: ARG002 (as above)
        yield from ((number,) for number in range(10))


def main() -> None:
    directory = Path(sys.argv[1])
    spark = start(directory, "local[2]")
    spark.range(100).selectExpr("cast(id as string) as value").repartition(2, "value").write.text(f"{directory}/in")
    rows = spark.readStream.format("text").load(f"{directory}/in").selectExpr("length(value) as size", "value")
    query = (
        rows.writeStream.format("parquet")
        .option("path", f"{directory}/out")
        .option("checkpointLocation", f"{directory}/checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    found = spark.read.parquet(f"{directory}/out")
    assert found.groupBy("size").count().orderBy("size").collect() == [(1, 10), (2, 90)]
    spark.dataSource.register(Ten)
    assert spark.read.format("ten").load().count() == 10
    spark.stop()
    stop_jvm()


if __name__ == "__main__":
    main()
