"""Builds `floor.c`, the server that does what no broker can leave out and nothing else, when there is a C compiler.

The program is kept in the user's cache under a name that follows from its source, and appears there at once or not at
all: two benchmarks may build it at the same time.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

from bench import cache

SOURCE = Path(__file__).resolve().parent / "floor.c"
FLAGS = ("-O2", "-Wall", "-pthread")
SINK, BY_SOCKET, DIRECT = "sink", "source", "direct"  # ways of rows
ROW_EXTRA_BYTES = 4  # of a row, besides its body: the length
TURNS = 3


class FloorError(Exception):
    """There is no C compiler, or the source does not compile."""


def compiler() -> str | None:
    """The C compiler of this machine, None = it has none."""
    return next((path for name in ("cc", "gcc", "clang") if (path := shutil.which(name))), None)


def build(directory: Path | None = None) -> Path:
    """The program, built unless that was done. Raises FloorError."""
    command = compiler()
    if command is None:
        raise FloorError("no C compiler here: apt-get install --no-install-recommends gcc libc6-dev")
    key = hashlib.sha256(SOURCE.read_bytes() + repr((command, FLAGS)).encode()).hexdigest()[:16]
    program = (directory or cache.directory()) / f"floor-{key}"
    if not program.exists():
        program.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=program.parent) as made:
            built = Path(made, "floor")
            done = subprocess.run(
                [command, *FLAGS, "-o", str(built), str(SOURCE)], capture_output=True, text=True, check=False
            )
            if done.returncode:
                raise FloorError(f"{command} failed:\n{done.stdout}{done.stderr}")
            os.replace(built, program)
    return program


class RowsFloor(NamedTuple):
    """Rows a second, and the processor time of a row, in µs: of the tasks that make or take them, and of the server."""

    per_s: float
    task_us: float
    server_us: float

    def share(self, per_s: float) -> float:
        """What part of this rate `per_s` is."""
        return per_s / self.per_s


def rows(way: str, count: int, body_bytes: int, directory: str | None) -> RowsFloor | None:
    """The fastest of some turns that move rows with bodies of that size in a `way` of `floor.c`: no broker, no Spark.
    None where there is no compiler. Raises FloorError."""
    if compiler() is None:
        return None
    with tempfile.TemporaryDirectory(prefix="bench-floor-", dir=directory) as store:
        command = [str(build()), "rows", way, str(count), str(body_bytes + ROW_EXTRA_BYTES), store]
        done = [subprocess.run(command, capture_output=True, text=True, check=False) for _ in range(TURNS)]
    if any(each.returncode for each in done):
        raise FloorError(done[0].stderr)
    return max(RowsFloor(**json.loads(each.stdout)) for each in done)
