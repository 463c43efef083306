"""Slow questions: equal ones are one, others wait in line, and those that nobody waits for are not asked."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import pytest

from amq.core.errors import AccessError, AmqError
from amq.security.questions import Questions


class Desk:
    """Answers when it is told to. `log` = the questions that were begun."""

    def __init__(self, at_once: int = 1, most: int = 100) -> None:
        self.questions: Questions[str] = Questions(at_once, most)
        self.log: list[str] = []
        self.running = 0
        self.most_running = 0
        self.go: dict[str, asyncio.Event] = {}
        self.sent_away: set[str] = set()
        self.missed: list[AmqError] = []

    def ask(self, key: str) -> asyncio.Task[str]:
        def check() -> None:
            if key in self.sent_away:
                raise AccessError("no more")

        asking = self.questions.ask(key, check, lambda: self._answer(key), self.missed.append)
        return asyncio.get_running_loop().create_task(asking)

    async def _answer(self, key: str) -> str:
        self.log.append(key)
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        await self.go.setdefault(key, asyncio.Event()).wait()
        self.running -= 1
        if key.startswith("wrong"):
            raise AccessError(key)
        return key.upper()

    def answer(self, key: str) -> None:
        self.go.setdefault(key, asyncio.Event()).set()


async def rest() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@asynccontextmanager
async def desk_of(**limits: int) -> AsyncIterator[Desk]:
    """A desk, of which nothing is left at the end."""
    desk = Desk(**limits)
    yield desk
    await rest()
    assert len(desk.questions) == 0
    assert desk.running == 0
    assert len(asyncio.all_tasks()) == 1


async def test_equal_questions_have_one_answer_which_all_get_at_once() -> None:
    async with desk_of() as desk:
        a, b, again = desk.ask("a"), desk.ask("b"), desk.ask("a")
        await rest()
        assert desk.log == ["a"]
        desk.answer("a")
        assert (await a, await again) == ("A", "A")
        assert not b.done()
        desk.answer("b")
        assert await b == "B"
        assert desk.log == ["a", "b"]


async def test_a_wrong_one_is_wrong_for_all_who_asked() -> None:
    async with desk_of() as desk:
        asked = [desk.ask("wrong") for _ in range(3)]
        desk.answer("wrong")
        found = await asyncio.gather(*asked, return_exceptions=True)
        assert [str(each) for each in found] == ["wrong"] * 3


async def test_what_nobody_waits_for_is_not_begun_and_what_has_begun_keeps_its_place() -> None:
    async with desk_of() as desk:
        first, gone, last = desk.ask("first"), desk.ask("gone"), desk.ask("last")
        await rest()
        gone.cancel()
        first.cancel()
        await rest()
        assert desk.log == ["first"], "it runs on, so nobody else may begin"
        again = desk.ask("gone")
        await rest()
        desk.answer("first")
        desk.answer("last")
        desk.answer("gone")
        assert (await last, await again) == ("LAST", "GONE")
        assert desk.log == ["first", "last", "gone"]


async def test_each_is_looked_at_when_its_turn_comes() -> None:
    async with desk_of() as desk:
        a, b = desk.ask("a"), desk.ask("b")
        await rest()
        desk.sent_away.add("b")
        desk.answer("a")
        await a
        with pytest.raises(AccessError, match="no more"):
            await b
        assert desk.log == ["a"]


async def test_there_are_so_many_and_not_more() -> None:
    async with desk_of(most=3) as desk:
        asked = [desk.ask(key) for key in "abc"]
        await rest()
        assert not desk.questions.is_full_for("a")
        assert desk.questions.is_full_for("d")
        for key in "abc":
            desk.answer(key)
        await asyncio.gather(*asked)
        assert not desk.questions.is_full_for("d")


@pytest.mark.parametrize("seed", range(20))
async def test_a_walk(seed: int) -> None:
    async with desk_of(at_once=2) as desk:
        dice, asked = Random(seed), list[tuple[str, asyncio.Task[str]]]()
        keys = [*"abcdef", "wrong1", "wrong2"]
        for _ in range(200):
            key = dice.choice(keys)
            match dice.randrange(5):
                case 0 | 1:
                    asked.append((key, desk.ask(key)))
                case 2 if asked:
                    dice.choice(asked)[1].cancel()
                case 3:
                    desk.answer(key)
                case _:
                    await rest()
            assert len(desk.questions) <= len(keys)
        for key in keys:
            desk.answer(key)
        found = await asyncio.gather(*(task for _, task in asked), return_exceptions=True)
        for (key, task), each in zip(asked, found, strict=True):
            assert task.cancelled() or (str(each) == (key if key.startswith("wrong") else key.upper()))
        assert desk.most_running <= 2
        assert Counter(desk.log)


async def test_a_wrong_answer_that_nobody_has_waited_for_is_told_once() -> None:
    async with desk_of() as desk:
        asked = [desk.ask("wrong"), desk.ask("wrong"), desk.ask("wrong later"), desk.ask("right")]
        await rest()
        for each in asked[:3]:
            each.cancel()
        await rest()
        assert desk.missed == []
        for key in ("wrong", "wrong later", "right"):
            desk.answer(key)
        assert await asked[3] == "RIGHT"
        assert [str(each) for each in desk.missed] == ["wrong"], "one was never begun"


async def test_a_wrong_answer_that_another_one_has_heard_is_not_told_again() -> None:
    async with desk_of() as desk:
        first = desk.ask("wrong")
        await rest()
        first.cancel()
        await rest()
        second = desk.ask("wrong")
        await rest()
        desk.answer("wrong")
        with pytest.raises(AccessError):
            await second
        assert desk.missed == []
