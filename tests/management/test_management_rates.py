"""The history of rates: what a sample says, how long it is kept, what a takeover leaves, and its bounds."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from amq.core.errors import AccessError, CommandError
from amq.management.rates import DAY, EVERY_S, HOUR, MINUTE, NAMES_MAX, Rates, Series
from amq.management.resources import Caller
from amq.management.slices import Slices
from amq.management.views import Counted, counted
from amq.security.login import User
from amq.security.permissions import Permissions
from tests.fakes import FakeClock
from tests.management.managed import managed


def broker_of(queues: Iterable[tuple[str, int, int, int]], topics: dict[str, int] | None = None) -> list[Counted]:
    """The counters of queues (name, enqueued, acknowledged, stored) and topics (name → enqueued)."""
    found = [Counted(f"queue://{name}", *counts) for name, *counts in queues]
    return found + [Counted(name, count, 0, 0) for name, count in (topics or {}).items()]


class World:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.rates = Rates(self.clock, Slices(self.clock))

    def sample(self, broker: Any, epoch: int | None = 1, **more: Any) -> None:
        self.clock.advance(EVERY_S)
        asyncio.run(self.rates.sample(broker, epoch, **more))


def test_a_sample_says_how_fast_messages_come_and_go() -> None:
    world = World()
    world.sample(broker_of([("a", 100, 90, 10), ("b", 0, 0, 0)], {"topic://t": 7}))
    assert world.rates.latest("queue://a") == (0.0, 0.0), "nothing is known of a queue that was not seen before"
    world.sample(broker_of([("a", 200, 140, 60), ("b", 0, 0, 0)], {"topic://t": 57}))
    assert world.rates.latest("queue://a") == (20.0, 10.0)
    assert world.rates.latest("queue://b") == (0.0, 0.0)
    assert world.rates.latest("topic://t") == (10.0, 0.0)
    row = world.rates.row("", "hour")
    assert (row["in"][-2:], row["out"][-1], row["messages"][-2:]) == ([None, 20.0], 10.0, [10.0, 60.0])
    assert (len(row["in"]), row["every_s"], row["until_ms"]) == (HOUR, EVERY_S, world.clock.wall_ms())
    assert set(world.rates.row("queue://unknown", "day")["in"]) == {None}


def test_a_day_has_the_mean_of_each_minute() -> None:
    world = World()
    for number in range(3 * MINUTE):
        world.sample(broker_of([("a", 50 * number, 0, number)]))
    into = [value for value in world.rates.row("queue://a", "day")["in"] if value is not None]
    assert len(into) in (2, 3)
    assert set(into) == {10.0}
    row = world.rates.row("queue://a", "day")
    assert (len(row["in"]), row["every_s"]) == (DAY, 60.0)
    assert 0 <= world.clock.wall_ms() - row["until_ms"] < 60_000


def test_what_was_not_sampled_is_a_gap_and_old_points_go() -> None:
    series = Series(4)
    for number in (1, 2, 5):
        series.add(number, (number, 0.0, 0.0))
    assert next(series.up_to(5, 6)) == [None, None, 2.0, None, None, 5.0]
    series.add(100, (9.0, 0.0, 0.0))
    assert next(series.up_to(100, 4)) == [None, None, None, 9.0]
    assert math.isnan(series.mean(50, 4)[0])


def test_a_takeover_keeps_the_backlog_and_forgets_the_rates() -> None:
    world = World()
    for count in (5, 6):
        world.sample(None, None, known=count)
    world.sample(broker_of([("a", 1000, 994, 6)]), epoch=2)
    world.sample(broker_of([("a", 1010, 994, 16)]), epoch=2)
    world.sample(broker_of([("a", 5, 0, 21)]), epoch=3)
    row = world.rates.row("", "hour")
    assert row["messages"][-5:] == [5.0, 6.0, 6.0, 16.0, 21.0]
    assert row["in"][-5:] == [None, None, None, 2.0, None]


def test_names_that_come_and_go_take_no_more_room() -> None:
    world = World()
    for number in range(5):
        queues = [(f"{number}.{each}", 10 * number, 0, 0) for each in range(NAMES_MAX)]
        world.sample(broker_of([("first", 1, 0, 0), *queues]))
        world.sample(broker_of([("first", 1, 0, 0), *((name, 50, 0, 0) for name, *_ in queues)]))
        assert len(world.rates._tracks) <= NAMES_MAX + 1
    assert world.rates.latest("queue://4.0") != (0.0, 0.0)


async def test_the_resource_asks_for_rights_and_lists_have_rates(tmp_path: Path) -> None:
    permissions = tmp_path / "permissions.toml"
    permissions.write_text('[queues.orders]\nread = ["*"]\nwrite = ["*"]\n')
    permissions.chmod(0o600)
    async with managed(tmp_path) as made:
        made.service.permit(Permissions.read(str(permissions)))
        clock = FakeClock()
        made.managed.rates = Rates(clock, Slices(clock))
        for _ in range(2):
            clock.advance(EVERY_S)
            await made.managed.rates.sample(counted(made.broker), 1)
        eve = Caller(User("eve"), is_operator=False)
        assert (await made.ask("GET", "/rates", queue="orders", caller=eve))["every_s"] == EVERY_S
        assert len((await made.ask("GET", "/rates", span="day", caller=eve))["in"]) == DAY
        with pytest.raises(AccessError):
            await made.ask("GET", "/rates", queue="bills", caller=eve)
        with pytest.raises(CommandError, match="hour or day"):
            await made.ask("GET", "/rates", span="year")
        await made.fill("orders", 10)
        clock.advance(EVERY_S)
        await made.managed.rates.sample(counted(made.broker), 1)
        (row,) = (await made.ask("GET", "/queues"))["items"]
        assert (row["in_per_s"], row["out_per_s"]) == (2.0, 0.0)
