"""Processes of this machine, as /proc has them: whose child is which, and which name a directory. And the words that
start one that dies with the test run; and what Ctrl-C means to a long one.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

PR_SET_PDEATHSIG = 1

# Dies with us, then becomes the command. Not `preexec_fn`: that is not safe in a process with threads, such as ours.
LEASH = (
    f"import ctypes, os, sys; ctypes.CDLL(None).prctl({PR_SET_PDEATHSIG}, {int(signal.SIGKILL)}); "
    "os.execv(sys.argv[1], sys.argv[1:])"
)


def children() -> dict[int, list[int]]:
    """By process id those of its children, zombies too."""
    found: dict[int, list[int]] = {}
    for directory in _processes():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it ended meanwhile
            parent = int((directory / "stat").read_text().rpartition(")")[2].split()[1])
            found.setdefault(parent, []).append(int(directory.name))
    return found


def with_descendants(pid: int) -> list[int]:
    """Process ids, parents first."""
    of, found = children(), [pid]
    for each in found:
        found += of.get(each, [])
    return found


def naming(directory: str | os.PathLike[str]) -> list[tuple[int, list[str]]]:
    """Ids and command lines of the processes whose command line names `directory`."""
    found = []
    for process in _processes():
        with contextlib.suppress(OSError):  # ended, or somebody else's
            line = (process / "cmdline").read_bytes().decode(errors="replace")
            if os.fspath(directory) in line:
                found.append((int(process.name), line.split("\0")))
    return found


def interrupts() -> threading.Event:
    """An event that the first Ctrl-C sets. A second one is a KeyboardInterrupt in the main thread. The processes that
    this one starts from now on get neither: a terminal sends Ctrl-C to all of them."""
    asked = threading.Event()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})

    def wait() -> None:
        signal.sigwait({signal.SIGINT})
        asked.set()
        signal.sigwait({signal.SIGINT})
        _thread.interrupt_main()

    threading.Thread(target=wait, daemon=True, name="interrupts").start()
    return asked


def _processes() -> Iterator[Path]:
    return Path("/proc").glob("[0-9]*")
