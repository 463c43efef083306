"""A stream of files to a queue, as the tests run it: in their own session, and in drivers that are killed.

`python -m tests.spark.pipeline JSON` is such a driver; the JSON holds the arguments of `Pipeline`, and `session`,
`master` and `conf`. Each file is a micro-batch; its lines are the rows, `FILE:NUMBER`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import amq
from tests.brokers import ROOT
from tests.patience import DEADLINE_S
from tests.processes import LEASH, with_descendants
from tests.spark.session import environment, start

QUEUE = "rows"
ROWS = 300  # of a file
QUERY_S_MAX = 600  # JVMs start in that time on a machine that has a lot else to do


@dataclass
class Pipeline:
    """Files below `directory`/in, through `partitions` partitions by hash (0 = as read), to the broker at `url`."""

    directory: Path
    url: str
    partitions: int = 0
    options: dict[str, str] = field(default_factory=dict)
    checkpoint: str = "checkpoint"

    def query(self, spark: Any, **options: object) -> Any:
        """The query, started: it ends when it has read all files."""
        rows = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(self.directory / "in"))
        if self.partitions:
            rows = rows.repartition(self.partitions, "value")
        given = {"url": self.url, "destination": f"/queue/{QUEUE}", "windowRows": "40", **self.options, **options}
        checkpoint = str(self.directory / self.checkpoint)
        return (
            rows.writeStream.format("amq")
            .options(**given)
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )

    def run(self, spark: Any, **options: object) -> Any:
        """Run it to its end. Raises what Spark raises."""
        query = self.query(spark, **options)
        assert query.awaitTermination(QUERY_S_MAX), "the query does not end"
        return query

    def drive(self, session: Path, master: str, **conf: str) -> Driver:
        """A separate driver, started, that runs it. `conf`: settings of Spark, with _ for the dots."""
        words = {
            "directory": str(self.directory),
            "url": self.url,
            "partitions": self.partitions,
            "options": self.options,
            "checkpoint": self.checkpoint,
            "session": str(session),
            "master": master,
            "conf": {f"spark.{name.replace('_', '.')}": value for name, value in conf.items()},
        }
        return Driver(words)


class Driver:
    """Python, its JVM, and what that started: its executors, and workers that commit batches."""

    def __init__(self, words: dict[str, Any]) -> None:
        self._log = Path(words["session"]) / "driver.log"
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-SEc", LEASH, sys.executable, "-m", "tests.spark.pipeline", json.dumps(words)],
                cwd=ROOT,
                env=os.environ | environment(Path(words["session"])),
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def kill(self) -> None:
        """kill -9 of all. Workers have process groups of their own, and one that lives on would commit."""
        for pid in with_descendants(self._process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def wait(self) -> int:
        """Its exit code, negative where a signal ended it."""
        try:
            return self._process.wait(QUERY_S_MAX)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"the driver does not end:\n{self.log()}") from None

    def said(self) -> list[str]:
        """All lines that it has said."""
        return self._log.read_text(errors="replace").splitlines()

    def log(self) -> str:
        """The end of that."""
        return "\n".join(self.said())[-5000:]

    def __enter__(self) -> Driver:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self.kill()
            self._process.wait(DEADLINE_S)


def make_files(directory: Path, numbers: Iterable[int]) -> None:
    """Files of these numbers, to be read in that order."""
    (directory / "in").mkdir(exist_ok=True)
    for number in numbers:
        path = directory / f"part-{number}"
        path.write_text("".join(f"{row}\n" for row in rows(number)))
        os.utime(path, (1_700_000_000 + number, 1_700_000_000 + number))
        path.rename(directory / "in" / f"part-{number}.txt")


def rows(*numbers: int) -> list[str]:
    """What is in these files."""
    return [f"{number}:{row}" for number in numbers for row in range(ROWS)]


def stored(port: int, name: str = QUEUE) -> Counter[str]:
    """All that is in the queue, and how often."""
    with amq.connect(f"failover:(stomp://127.0.0.1:{port})") as connection, connection.session() as session:
        browser, found = session.browser(f"/queue/{name}"), Counter[str]()
        while (message := browser.receive(DEADLINE_S)) is not None:
            found[message.text] += 1
    return found


def main(words: dict[str, Any]) -> None:
    session, master, conf = Path(words.pop("session")), words.pop("master"), words.pop("conf")
    pipeline = Pipeline(directory=Path(words.pop("directory")), **words)
    pipeline.run(start(session, master, **conf))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
