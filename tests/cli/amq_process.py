"""`amq …` as a separate process: what a user's shell would start."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from typing import Any

from tests.patience import DEADLINE_S
from tests.preloaded import ROOT, AmqProcess


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "amq", *map(str, words)]


def amq(*words: object, data: bytes = b"", env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command to its end. stdout and stderr as text."""
    with running(*words, stdin=subprocess.PIPE, env=env) as process:
        out, err = process.communicate(data, DEADLINE_S)
    return subprocess.CompletedProcess(process.args, process.returncode, out.decode(), err.decode())


@contextlib.contextmanager
def running(
    *words: object, stdin: int | None = None, env: dict[str, str] | None = None, new_group: bool = False
) -> Iterator[subprocess.Popen[bytes]]:
    """A command beside the test, its output in pipes. It has ended afterwards, also where the test fails.

    new_group   its process group is its own: the test may signal it as a terminal does
    """
    with AmqProcess(
        [*map(str, words)],
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, **(env or {})},
        process_group=0 if new_group else None,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def amq_json(*words: object) -> Any:
    """Run a command that must succeed; its JSON."""
    done = amq(*words, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def on_terminal(*words: object, columns: int = 80, typed: str = "") -> str:
    """What a terminal of that width is given by a command: stdout and stderr, line ends as `\\n`. `typed` is on its
    keyboard from the beginning."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 25, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    with subprocess.Popen(
        command(*words), stdin=theirs, stdout=theirs, stderr=theirs, cwd=ROOT, env={**environment, "TERM": "dumb"}
    ) as process:
        os.close(theirs)
        os.write(ours, typed.encode())
        shown = b""
        with contextlib.suppress(OSError), os.fdopen(ours, "rb", 0) as terminal:  # EIO: the last one closed it
            while data := terminal.read(65536):
                shown += data
        process.wait(DEADLINE_S)
    return shown.decode().replace("\r\n", "\n")


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    """The error of a command, which must be one line and no traceback."""
    (line,) = done.stderr.strip().split("\n")
    assert line.startswith("amq: ")
    assert "Traceback" not in line
    return line
