"""The checker of moves under kills: it sees each broken promise, and finds none in a short run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.move_kills import MovesAndKills, broken


def test_each_broken_promise_is_seen() -> None:
    assert broken([1, 2, 3], [1, 2, 3, 4]) == [], "what was not confirmed may have come"
    assert broken([1, 2], [2]) == ["1 confirmed messages are lost: [1]"]
    assert broken([1, 2], [1, 2, 2]) == ["1 messages came twice: [2]"]
    assert broken([1, 2], [2, 1]) == ["messages came in another order"]


@pytest.mark.deep
def test_two_turns_with_kills_lose_and_double_nothing(tmp_path: Path) -> None:
    figures = MovesAndKills(tmp_path, 7).run(2)
    assert figures.wrong == []
    assert figures.moves + figures.removals >= 2
