"""Tests of the broker run unchanged through a gateway, and the page says what is different."""

from __future__ import annotations

import pytest

from tests.gateway.suites import DIFFERENT, INSIDE, ROOT, WINDOW, run

PAGE = ROOT / "docs" / "cluster.md"


def test_the_page_has_a_row_for_each_difference() -> None:
    rows = PAGE.read_text().partition("\n## What is different over several stores\n")[2]
    for row in set(DIFFERENT.values()) - {WINDOW, INSIDE}:
        assert f"\n| {row} | " in rows, row


@pytest.mark.deep
def test_the_broker_behaves_the_same_through_a_gateway() -> None:
    """A link is between: three stores, of which one has what a test names."""
    ended = run()
    assert ended.returncode == 0, ended.stdout[-20_000:]
