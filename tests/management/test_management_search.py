"""Search over all names: what is found, in which order, by whom, and in which slices of the event loop."""

from __future__ import annotations

from pathlib import Path

import pytest

from amq.core.destination import QUEUE_SCHEME
from amq.core.errors import CommandError
from amq.management.resources import Caller
from amq.management.search import SHOWN, SHOWN_MAX
from amq.security.login import User
from amq.security.permissions import Permissions
from tests.management.managed import Managed, managed

RULES = """
[roles]
shop = ["alice"]
operators = ["root"]
[queues."orders.>"]
read = ["shop"]
[topics."orders.>"]
read = ["shop"]
[queues.">"]
write = ["operators"]
[topics.">"]
write = ["operators"]
[broker]
manage = ["operators"]
"""
ALICE, ROOT, EVE = (Caller(User(name)) for name in ("alice", "root", "eve"))


async def found(made: Managed, text: str, caller: Caller, **query: object) -> list[tuple[str, str]]:
    answer = await made.ask("GET", "/search", caller=caller, text=text, **query)
    assert answer["total"] == sum(answer["totals"].values())
    return [(row["kind"], row["name"]) for row in answer["items"]]


async def test_every_kind_is_found_as_far_as_the_caller_may_see_it(tmp_path: Path) -> None:
    async with managed(tmp_path) as made:
        for name in ("orders.a", "secret.orders", "other"):
            await made.fill(name, 1)
        client = await made.client()
        await client.send("SUBSCRIBE", ("destination", "/topic/orders.t"), ("id", "1"), ("receipt", "r"))
        assert (await client.receive()).command == "RECEIPT"
        rules = tmp_path / "permissions.toml"
        rules.write_text(RULES)
        made.service.permit(Permissions.read(str(rules)))
        own = {("queue", "orders.a"), ("topic", "orders.t")}
        assert set(await found(made, "ORDERS", ROOT)) == own | {("queue", "secret.orders")}
        assert set(await found(made, "orders", ALICE)) == own
        assert await found(made, "orders", EVE) == []
        assert await found(made, "secret", ALICE) == []
        assert [kind for kind, _ in await found(made, "127.0.0.1", ROOT)] == ["connection"]
        assert await found(made, "127.0.0.1", ALICE) == []


async def test_the_best_come_first_and_all_are_counted(tmp_path: Path) -> None:
    async with managed(tmp_path) as made:
        broker = made.broker
        for number in range(5 * SHOWN_MAX):
            broker.state.queue(f"{QUEUE_SCHEME}many.{number:04d}")
        for name in ("x.needle", "needle.x", "needle"):
            broker.state.queue(f"{QUEUE_SCHEME}{name}")
        assert [name for _, name in await found(made, "needle", ROOT)] == ["needle", "needle.x", "x.needle"]
        answer = await made.ask("GET", "/search", text="many")
        assert (answer["total"], len(answer["items"])) == (5 * SHOWN_MAX, SHOWN)
        assert [row["name"] for row in answer["items"]] == [f"many.{number:04d}" for number in range(SHOWN)]
        assert len((await made.ask("GET", "/search", text="many", limit=SHOWN_MAX))["items"]) == SHOWN_MAX
        for wrong in ({"text": " "}, {"text": "x" * 2000}, {"text": "a", "limit": SHOWN_MAX + 1}):
            with pytest.raises(CommandError):
                await made.ask("GET", "/search", **wrong)


async def test_a_search_works_in_slices(tmp_path: Path) -> None:
    """Others have the event loop between two pieces of a long list."""
    async with managed(tmp_path) as made:
        for number in range(3000):
            made.broker.state.queue(f"{QUEUE_SCHEME}many.{number:04d}")
        turns = 0
        slices = made.resources._slices
        begin = slices.turn.acquire

        async def acquired() -> bool:
            nonlocal turns
            turns += 1
            return await begin()

        slices.turn.acquire = acquired  # type: ignore[method-assign]
        assert (await made.ask("GET", "/search", text="nothing"))["total"] == 0
        assert turns >= 3000 / 500, "at most 500 rows in a turn"
