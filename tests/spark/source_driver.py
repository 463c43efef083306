"""A driver that is killed: reads a queue as a stream, writes down what a batch holds, and ends itself in the middle.

`python -m tests.spark.source_driver '{"directory": …, "options": {…}, "checkpoint": …, "die_in": 1, "told": …}'`
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from tests.spark.session import environment, start

STARTS_MAX = 6
T = TypeVar("T")


def patiently(run: Callable[[], T]) -> T:
    """What `run` returns. Spark gives a worker 10 s to start, and nobody can change that: where the machine is too busy
    it is asked again, since nothing was done."""
    for _ in range(STARTS_MAX - 1):
        try:
            return run()
        except Exception as error:
            if "Python worker failed to connect back" not in str(error):
                raise
    return run()


def main() -> None:
    """Never returns where batch `die_in` comes."""
    given = json.loads(sys.argv[1])
    directory, told = Path(given["directory"]), Path(given["told"])
    os.environ.update(environment(directory))
    spark = start(directory, "local[2,2]")

    def work(frame: Any, batch: int) -> None:
        values = sorted(int(row.value) for row in frame.select("value").collect())
        (told / f"{batch}.json").write_text(json.dumps(values))
        if batch == given["die_in"]:
            os.kill(os.getpid(), signal.SIGKILL)

    def run() -> None:
        stream = spark.readStream.format("amq").options(**given["options"]).load()
        query = stream.writeStream.foreachBatch(work).option("checkpointLocation", given["checkpoint"]).start()
        query.processAllAvailable()

    patiently(run)


if __name__ == "__main__":
    main()
