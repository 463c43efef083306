"""A driver of a stream on a cluster, which is killed and starts again: it writes the values of each batch into a file.

`python -m tests.spark.cluster_driver JSON` ends when the file `end` is there and no message waits. The JSON holds
`directory` (with `told`, `checkpoint` and `end`), `master`, the `options` of the stream, and `conf` of Spark.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from tests.spark.session import environment, start
from tests.spark.source_driver import patiently


def main() -> None:
    given = json.loads(sys.argv[1])
    directory = Path(given["directory"])
    told = directory / "told"
    told.mkdir(exist_ok=True)
    os.environ.update(environment(directory))
    conf = {"spark.task.maxFailures": "20", "spark.cores.max": "2"} | given.get("conf", {})
    spark = start(directory, given["master"], **conf)

    def work(frame: Any, batch: int) -> None:
        values = sorted(int(row.value) for row in frame.select("value").collect())
        path = told / f"{batch}.json"
        path.with_suffix(".tmp").write_text(json.dumps(values))
        path.with_suffix(".tmp").rename(path)

    def run() -> None:
        stream = spark.readStream.format("amq").options(**given["options"]).load().writeStream.foreachBatch(work)
        query = stream.option("checkpointLocation", str(directory / "checkpoint")).start()
        while True:
            is_over = (directory / "end").exists()
            query.processAllAvailable()
            if is_over:
                query.stop()
                return

    patiently(run)


if __name__ == "__main__":
    main()
