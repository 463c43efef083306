"""Look-ups of host names that cannot even begin."""

from __future__ import annotations

import queue
import threading

import pytest

from amq.client.names import Answer, Names
from amq.clock import SystemClock

ADDRESS = ("localhost", 61613)
PATIENCE_S = 10.0


def test_a_thread_that_cannot_start_fails_one_attempt_and_not_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host may have no more threads for a while, and the name stays the same."""
    names, answers = Names(SystemClock()), queue.Queue[Answer]()

    def take(answer: Answer) -> bool:
        answers.put(answer)
        return True

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        names.find(ADDRESS, "connection", take)
    failed = answers.get(timeout=PATIENCE_S)
    assert isinstance(failed, OSError)
    assert "can't start new thread" in str(failed)
    names.find(ADDRESS, "connection", take)
    assert isinstance(answers.get(timeout=PATIENCE_S), list)
