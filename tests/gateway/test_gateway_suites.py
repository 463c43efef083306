"""Tests of the broker run unchanged through a gateway, and the page says what is different."""

from __future__ import annotations

from pathlib import Path

import pytest

from amq.core.destination import Pattern, pattern_words
from tests.broker.many import ManyClient
from tests.broker.world import World
from tests.gateway.suites import DIFFERENT, INSIDE, ROOT, WINDOW, run
from tests.gateway.surrounded import surround

PAGE = ROOT / "docs" / "cluster.md"


def test_the_page_has_a_row_for_each_difference() -> None:
    rows = PAGE.read_text().partition("\n## What is different over several stores\n")[2]
    for row in set(DIFFERENT.values()) - {WINDOW, INSIDE}:
        assert f"\n| {row} | " in rows, row


def test_a_world_rests_when_its_gateway_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A drain of three stores asks one after the other: their answers come while the world has nothing else to do."""
    surround(monkeypatch)
    world = World(tmp_path)
    client = ManyClient(world)
    client.open(1)
    client.consume("c", Pattern("queue://", pattern_words("o.*")), session=1, credit=0)
    world.settle()
    receipt = client.grant("c", 3, session=1, drain=True)
    world.settle()
    assert receipt in client.events
    world.close()


@pytest.mark.deep
def test_the_broker_behaves_the_same_through_a_gateway() -> None:
    """A link is between: three stores, of which one has what a test names."""
    ended = run()
    assert ended.returncode == 0, ended.stdout[-20_000:]
