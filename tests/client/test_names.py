"""Look-ups of host names that cannot even begin, and answers that several connections get."""

from __future__ import annotations

import queue
import threading
from typing import Any

import pytest
from test_faces import AsyncFace, SyncFace

from amq.client import ConnectError
from amq.client.names import Address, Answer, Names, Take
from amq.doors.clock import SystemClock
from tests.patience import DEADLINE_S
from tests.ports import free_port

ADDRESS = ("localhost", 61613)


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
    failed = answers.get(timeout=DEADLINE_S)
    assert isinstance(failed, OSError)
    assert "can't start new thread" in str(failed)
    names.find(ADDRESS, "connection", take)
    assert isinstance(answers.get(timeout=DEADLINE_S), tuple)


class Late(Names):
    """The first answer is used before it is known whether it came in time: the attempt that asked has failed then."""

    def __init__(self) -> None:
        super().__init__(SystemClock())
        self.answers: list[Answer] = []
        self.failed = threading.Event()

    def find(self, address: Address, owner: object, take: Take) -> None:
        def used(answer: Answer) -> bool:
            self.answers.append(answer)
            in_time = take(answer)
            return in_time if len(self.answers) > 1 else not self.failed.wait(DEADLINE_S)

        super().find(address, owner, used)


@pytest.mark.parametrize("face", [SyncFace, AsyncFace], ids=lambda face: face.name)
async def test_an_answer_that_came_too_late_for_one_attempt_serves_the_next_one_whole(face: Any) -> None:
    names, url = Late(), f"stomp://localhost:{free_port()}"

    async def refused() -> str:
        with pytest.raises(ConnectError) as raised:
            await face.connect(url, names=names)
        return str(raised.value)

    assert "Connection refused" in await refused()
    names.failed.set()
    for thread in threading.enumerate():
        if thread.name.startswith("amq-look-up"):
            thread.join(DEADLINE_S)
    assert "Connection refused" in await refused()
    assert names.answers[1] is names.answers[0]
