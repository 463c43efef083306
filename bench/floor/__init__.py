"""Builds `floor.c`, the server that does what no broker can leave out and nothing else, when there is a C compiler.

The program is kept in the user's cache under a name that follows from its source, and appears there at once or not at
all: two benchmarks may build it at the same time.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from bench import cache

SOURCE = Path(__file__).resolve().parent / "floor.c"
FLAGS = ("-O2", "-Wall", "-pthread")


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
