"""`amq …` as a process of its own: what a user's shell would start."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
DEADLINE_S = 60.0


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "amq", *map(str, words)]


def amq(
    *words: object, data: bytes = b"", env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:  # fmt: skip
    """Run a command to its end. stdout and stderr as text."""
    done = subprocess.run(
        command(*words), input=data, capture_output=True, timeout=DEADLINE_S, cwd=ROOT, check=False,
        env={**os.environ, **(env or {})},
    )  # fmt: skip
    return subprocess.CompletedProcess(done.args, done.returncode, done.stdout.decode(), done.stderr.decode())


@contextlib.contextmanager
def running(
    *words: object, stdin: int | None = None, env: dict[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A command beside the test, its output in pipes. It has ended afterwards, also where the test fails."""
    with subprocess.Popen(
        command(*words), stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT,
        env={**os.environ, **(env or {})},
    ) as process:  # fmt: skip
        try:
            yield process
        finally:
            process.kill()


def amq_json(*words: object) -> Any:
    """Run a command that must succeed; its JSON."""
    done = amq(*words, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    """The error of a command, which must be one line and no traceback."""
    (line,) = done.stderr.strip().split("\n")
    assert line.startswith("amq: ")
    assert "Traceback" not in line
    return line
