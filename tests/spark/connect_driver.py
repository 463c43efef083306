"""A client of Spark Connect, which starts a separate server: it writes rows to a queue, looks at them, and reads them
as a stream.

`python -m tests.spark.connect_driver '{"directory": …, "url": …, "rows": 100}'` prints the numbers of rows as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from tests.spark.session import environment, settings
from tests.spark.source_driver import patiently

QUEUE = "/queue/connect"


def main() -> None:
    from pyspark.sql import SparkSession

    given = json.loads(sys.argv[1])
    directory = Path(given["directory"])
    os.environ.update(environment(directory))
    conf = settings(directory, "local[2]")
    builder = SparkSession.builder.remote(conf.pop("spark.master"))
    for name, value in conf.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    where = {"url": given["url"], "destination": QUEUE}
    rows = spark.range(0, given["rows"]).selectExpr("CAST(id AS STRING) AS value")
    patiently(lambda: rows.write.format("amq").mode("append").options(**where).save())
    looked = patiently(lambda: spark.read.format("amq").options(**where).load().count())

    def read() -> int:
        stream = spark.readStream.format("amq").options(**where, subscription="c").load().writeStream
        stream = stream.format("parquet").option("checkpointLocation", str(directory / "checkpoint"))
        stream.option("path", str(directory / "rows")).trigger(availableNow=True).start().awaitTermination()
        return int(spark.read.parquet(str(directory / "rows")).select("value").distinct().count())

    print(json.dumps({"kind": type(spark).__module__, "looked": looked, "streamed": patiently(read)}))
    spark.stop()


if __name__ == "__main__":
    main()
