"""What ends the process of a broker or of a gateway."""

from __future__ import annotations

import subprocess
import sys

import pytest

from amq.node.process import INTERNAL, VITAL_THREADS
from tests.patience import DEADLINE_S

PROGRAM = """
import sys
from amq.doors.threads import SystemThreads
from amq.node.process import tune
tune()
SystemThreads().start(sys.argv[1], lambda: 1 / 0).join()
print("goes on")
"""


def end_of(thread: str) -> subprocess.CompletedProcess[str]:
    """The end of a process in which a bug ended this thread."""
    return subprocess.run(
        [sys.executable, "-c", PROGRAM, thread], capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )


@pytest.mark.parametrize("thread", sorted(VITAL_THREADS))
def test_a_bug_in_a_thread_that_must_not_be_missing_ends_the_process(thread: str) -> None:
    """The node starts a gateway again that would never look for the next master of a store."""
    done = end_of(thread)
    assert done.returncode == INTERNAL
    assert "ZeroDivisionError" in done.stdout + done.stderr


def test_a_bug_in_another_thread_is_logged() -> None:
    done = end_of("amq-other")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "goes on")
    assert "a thread failed" in done.stdout + done.stderr


def test_the_threads_that_look_for_masters_must_not_be_missing() -> None:
    assert "amq-lookout" in VITAL_THREADS
