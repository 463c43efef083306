"""Questions: slow checks of logins, a few at a time. Equal ones are one question, and the others wait in line.

Invariants: at most `at_once` run, and each keeps its place until it ends, whoever has gone meanwhile; at most `most`
are open; a question that nobody waits for any more is not begun; each is looked at once more when its turn comes, and
by then all have heard the answer to the one before; a wrong answer is told to somebody, also when all who asked have
gone meanwhile.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from amq.core.errors import AmqError

T = TypeVar("T")


class _Question(Generic[T]):
    def __init__(self) -> None:
        self.task: asyncio.Task[T] | None = None
        self.waiting = 0
        self.has_turn = self.begun = False


class Questions(Generic[T]):
    """Lives on the event loop."""

    def __init__(self, at_once: int, most: int) -> None:
        self._turns = asyncio.Semaphore(at_once)
        self._most = most
        self._open: dict[Hashable, _Question[T]] = {}

    def __len__(self) -> int:
        return len(self._open)

    def is_full_for(self, key: Hashable) -> bool:
        """True: there are as many as may be, and none of them is this one."""
        return len(self._open) >= self._most and key not in self._open

    async def ask(
        self,
        key: Hashable,
        check: Callable[[], None],
        answer: Callable[[], Awaitable[T]],
        missed: Callable[[AmqError], None],
    ) -> T:
        """The answer to the question `key`. Raises what `check`, when its turn comes, or `answer` raises. Where the
        answer is an AmqError, and this call was cancelled meanwhile as the last of those who asked, `missed` is told.
        """
        question = self._open.get(key)
        if question is None:
            question = self._open[key] = _Question()
            question.task = asyncio.get_running_loop().create_task(self._run(question, check, answer))
            question.task.add_done_callback(lambda done: self._ended(key, question, done))
        assert question.task is not None
        question.waiting += 1
        try:
            return await asyncio.shield(question.task)
        finally:
            question.waiting -= 1
            if not question.waiting and not question.task.done():
                if question.begun:
                    question.task.add_done_callback(lambda done: _tell(done, question, missed))
                else:
                    self._forget(key, question)
                    question.task.cancel()

    async def _run(self, question: _Question[T], check: Callable[[], None], answer: Callable[[], Awaitable[T]]) -> T:
        await self._turns.acquire()
        question.has_turn = True
        check()
        question.begun = True
        return await answer()

    def _ended(self, key: Hashable, question: _Question[T], done: asyncio.Task[T]) -> None:
        self._forget(key, question)
        if question.has_turn:
            done.get_loop().call_soon(self._turns.release)
        if not done.cancelled():
            done.exception()  # perhaps nobody waits for it any more

    def _forget(self, key: Hashable, question: _Question[T]) -> None:
        if self._open.get(key) is question:
            del self._open[key]


def _tell(done: asyncio.Task[T], question: _Question[T], missed: Callable[[AmqError], None]) -> None:
    """Somebody may have asked again before the answer came: he has heard it."""
    error = None if done.cancelled() or question.waiting else done.exception()
    if isinstance(error, AmqError):
        missed(error)
