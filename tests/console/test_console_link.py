"""The link of a console to its broker: viewers who ask the same share an answer, for a second and until a change."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from amq.console.link import SHARED_MAX, SHARED_S, Link
from amq.core.errors import AmqError, CommandError
from amq.security.login import User
from tests.fakes import FakeClock
from tests.management.managed import managed

ALICE, BOB = User("alice"), User("bob")


async def test_an_answer_is_shared_for_a_while_and_until_a_change(tmp_path: Path) -> None:
    async with managed(tmp_path) as made:
        clock = FakeClock()
        link = Link(made.config.store, "", clock)

        async def messages(user: User = ALICE) -> int:
            return int((await link.shared("/totals", user))["messages"])

        assert await messages() == 0
        await made.fill("q", 3)
        assert await messages() == 0, "as a moment ago"
        assert await messages(BOB) == 3, "each user has answers of his own"
        clock.advance(SHARED_S)
        assert await messages() == 3
        await link.ask("POST", "/queues/q/purge", {}, ALICE)
        assert await messages() == 0, "a change shows at once"


async def test_many_viewers_ask_once_and_errors_are_told_to_all(tmp_path: Path) -> None:
    async with managed(tmp_path) as made:
        link = Link(made.config.store, "", FakeClock())
        found = await asyncio.gather(*(link.shared("/totals", ALICE) for _ in range(200)))
        assert len(found) == 200, "more than threads, so they did not ask one by one"
        found[0]["messages"] = -1
        assert (await link.shared("/totals", ALICE))["messages"] == 0, "nobody changes what others get"
        told = await asyncio.gather(*(link.shared("/queues/none", ALICE) for _ in range(50)), return_exceptions=True)
        assert all(isinstance(each, AmqError) for each in told)
        one = asyncio.ensure_future(link.shared("/queues", ALICE))
        other = asyncio.ensure_future(link.shared("/queues", ALICE))
        await asyncio.sleep(0)
        one.cancel()
        assert (await other)["items"] == [], "a viewer who goes away takes no answer along"


async def test_few_answers_are_kept(tmp_path: Path) -> None:
    async with managed(tmp_path) as made:
        link = Link(made.config.store, "", FakeClock())
        for number in range(SHARED_MAX + 20):
            with pytest.raises(CommandError):
                await link.shared(f"/queues/q{number}", ALICE)
        assert len(link._shared) == SHARED_MAX
