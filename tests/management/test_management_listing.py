"""Pages of lists, against a plain filter and sort."""

from __future__ import annotations

import asyncio
import fnmatch
import operator
import random
from typing import Any

import pytest

from amq.core.errors import CommandError
from amq.doors.clock import SystemClock
from amq.management.listing import LIMIT_MAX, Query, Table
from amq.management.slices import SLICE_ROWS, Slices
from tests.fakes import FakeClock

Item = tuple[str, int, int]
TABLE: Table[Item] = Table(
    lambda item: item[0], {"a": lambda item: item[1], "b": lambda item: item[2]}, lambda _: {"more": True}
)
OPERATORS = {"=": operator.eq, "!=": operator.ne, "<": operator.lt, ">=": operator.ge}


def page(items: list[Item], **query: str) -> dict[str, Any]:
    async def ask() -> dict[str, Any]:
        return await TABLE.page(Slices(SystemClock()), items, Query.parse(query))

    return asyncio.run(ask())


@pytest.mark.parametrize("seed", range(20))
def test_pages_are_those_of_a_plain_sort(seed: int) -> None:
    chance = random.Random(seed)
    count = chance.choice([0, 1, 30, LIMIT_MAX, 3 * LIMIT_MAX + 7])
    items = [(f"{chance.choice('abc')}{n}", chance.randrange(5), chance.randrange(1000)) for n in range(count)]
    chance.shuffle(items)
    name = chance.choice(["", "a*", "*1", "b?"])
    field, written, value = chance.choice(["a", "b"]), chance.choice(list(OPERATORS)), chance.randrange(5)
    sort, down = chance.choice(["name", "a", "b"]), chance.choice(["", "-"])
    offset, limit = chance.randrange(2 * LIMIT_MAX), chance.randrange(LIMIT_MAX + 1)
    index = {"name": 0, "a": 1, "b": 2}
    wanted = [
        item
        for item in items
        if fnmatch.fnmatchcase(item[0], name or "*") and OPERATORS[written](item[index[field]], value)
    ]
    wanted.sort()
    wanted.sort(key=lambda item: item[index[sort]], reverse=bool(down))
    found = page(
        items, name=name, filter=f"{field}{written}{value}", sort=down + sort, offset=str(offset), limit=str(limit)
    )
    assert [row["name"] for row in found["items"]] == [item[0] for item in wanted][offset : offset + limit]
    assert found["total"] == len(wanted)


@pytest.mark.parametrize(
    "query",
    [
        {"sort": "no"},
        {"sort": "more"},
        {"filter": "a"},
        {"filter": "no=1"},
        {"filter": ",".join(["a=1"] * 9)},
        {"limit": "501"},
        {"limit": "-1"},
        {"limit": "x"},
        {"offset": "9" * 20},
        {"name": "x" * 1001},
        {"offset": "²"},
    ],
    ids=str,
)
def test_wrong_queries_are_refused(query: dict[str, str]) -> None:
    with pytest.raises(CommandError) as caught:
        page([("a", 1, 2)], **query)
    assert caught.value.code == "REQUEST_INVALID"


def test_one_viewer_works_in_a_round() -> None:
    """Each of five viewers looks at all rows, and no round of the event loop sees more than one slice."""
    items = [(str(n), n, n) for n in range(5 * SLICE_ROWS)]
    clock = FakeClock()  # pauses: slices end by their rows

    async def main() -> list[int]:
        slices, rounds = Slices(clock), [0]

        def count(item: Item) -> int:
            rounds[-1] += 1
            return item[1]

        table: Table[Item] = Table(lambda item: item[0], {"a": count}, lambda _: {})
        viewers = [
            asyncio.create_task(table.page(slices, items, Query.parse({"sort": "a", "limit": "1"}))) for _ in range(5)
        ]
        while not all(viewer.done() for viewer in viewers):
            rounds.append(0)
            await asyncio.sleep(0)
        return rounds

    rounds = asyncio.run(main())
    assert sum(rounds) >= 5 * len(items)
    assert max(rounds) <= SLICE_ROWS + 20


async def test_a_viewer_that_goes_lets_others_go_on() -> None:
    items = [(str(n), n, n) for n in range(5 * SLICE_ROWS)]
    slices = Slices(FakeClock())
    viewers = [asyncio.create_task(TABLE.page(slices, items, Query())) for _ in range(3)]
    await asyncio.sleep(0)
    for viewer in viewers[:2]:
        viewer.cancel()
    found = await viewers[2]
    assert found["total"] == len(items)
    assert not slices.turn.locked()
