"""A driver of a stream, with tasks in processes of their own as Spark has them, but without Spark: it starts at once.

It keeps a checkpoint as Spark does: the offsets of a batch before the batch runs, and a mark behind it. A batch that
has no mark runs again. Each task writes its file under another name and renames it.

`python -m tests.spark.direct_driver DIRECTORY OPTIONS` ends when the file `end` is there and no message waits. Files
with these names in DIRECTORY make it kill something with -9, and are removed: `kill-task`, `kill-planned` (behind the
offsets), `kill-read` (behind the tasks), `kill-marked` (before the broker learns that the batch is done).
"""

from __future__ import annotations

import json
import logging
import os
import pickle
import signal
import sys
import time
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import InputPartition

from pyspark_amq import connections
from pyspark_amq.options import SourceOptions, read
from pyspark_amq.source import AmqStreamReader

TASK_FAILURES_MAX = 50
PAUSE_S = 0.02


def asked(directory: Path, what: str) -> bool:
    """Shall this be killed? Once."""
    path = directory / f"kill-{what}"
    if path.exists():
        path.unlink()
        return True
    return False


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def work(directory: Path, reader: AmqStreamReader, part: InputPartition, file: Path) -> None:
    """A task."""
    with (directory / "tasks.log").open("a") as log:
        logging.basicConfig(level=logging.INFO, stream=log, format="%(message)s", force=True)
        values: list[int] = []
        for batch in reader.read(part):
            values += map(int, batch["value"].to_pylist())
            if asked(directory, "task"):
                die()
        connections.forget()
    file.with_suffix(".tmp").write_text(json.dumps(values))
    file.with_suffix(".tmp").rename(file)


class Zygote:
    """Makes a process for each task: it has neither threads nor connections."""

    def __init__(self, directory: Path) -> None:
        ours, theirs = os.pipe()
        answers, told = os.pipe()
        if os.fork() == 0:
            os.close(theirs)
            os.close(answers)
            self._serve(directory, os.fdopen(ours, "rb"), told)
        os.close(ours)
        os.close(told)
        self._jobs, self._answers = os.fdopen(theirs, "wb"), answers

    def _serve(self, directory: Path, jobs: Any, told: int) -> None:
        while True:
            try:
                words = pickle.load(jobs)
            except EOFError:
                os._exit(0)
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    work(directory, *words)
                    code = 0
                except Exception:
                    logging.exception("a task failed")
                finally:
                    os._exit(code)
            os.write(told, b"%c" % (os.waitpid(pid, 0)[1] != 0))

    def run(self, *words: Any) -> None:
        """A task, again where it fails."""
        for _ in range(TASK_FAILURES_MAX):
            pickle.dump(words, self._jobs)
            self._jobs.flush()
            if os.read(self._answers, 1) == b"\0":
                return
        raise RuntimeError("a task fails again and again")


def run(directory: Path, reader: AmqStreamReader, zygote: Zygote) -> None:
    """All batches, from where the checkpoint is."""
    offsets, marks, output = (directory / name for name in ("offsets", "marks", "output"))
    planned = sorted(int(path.name) for path in offsets.iterdir() if path.suffix == "")
    number = planned[-1] if planned else 0
    if planned and (marks / str(number)).exists():
        number += 1
    before = offsets / str(number - 1)
    start = json.loads(before.read_text()) if before.exists() else reader.initialOffset()
    while True:
        path = offsets / str(number)
        is_over = (directory / "end").exists()
        if not path.exists():
            end = reader.latestOffset(start, reader.getDefaultReadLimit())
            if end == start:
                if is_over:
                    return
                time.sleep(PAUSE_S)
                continue
            path.with_suffix(".tmp").write_text(json.dumps(end))
            path.with_suffix(".tmp").rename(path)
        if asked(directory, "planned"):
            die()
        end = json.loads(path.read_text())
        if start["at"]:
            reader.commit(start)
        for file in output.glob(f"{number}-*"):
            file.unlink()
        for place, part in enumerate(reader.partitions(start, end)):
            zygote.run(reader, part, output / f"{number}-{place}.json")
        if asked(directory, "read"):
            die()
        (marks / str(number)).touch()
        if asked(directory, "marked"):
            die()
        start, number = end, number + 1


def main() -> None:
    directory = Path(sys.argv[1])
    for name in ("offsets", "marks", "output"):
        (directory / name).mkdir(exist_ok=True)
    zygote = Zygote(directory)
    reader = AmqStreamReader(read(SourceOptions, json.loads(sys.argv[2])))
    run(directory, reader, zygote)
    reader.stop()


if __name__ == "__main__":
    main()
