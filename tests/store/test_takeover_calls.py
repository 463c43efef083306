"""A takeover waits for few answers of its coordinator: here without servers, `tests/quorum` and `tests/sql` have the
others."""

from __future__ import annotations

from pathlib import Path

import pytest

from amq.store.open import open_coordinator
from tests.counted_takeover import CALLS_MAX, counted_takeover


@pytest.mark.parametrize("delay_s", [0.0, 0.1])
async def test_a_takeover_waits_for_few_answers_of_the_coordinator(tmp_path: Path, delay_s: float) -> None:
    """So a slow one costs that many answers."""
    (tmp_path / "small").mkdir()
    calls = await counted_takeover(lambda: open_coordinator.__wrapped__(f"file://{tmp_path}/small"), tmp_path, delay_s)
    assert len(calls) <= CALLS_MAX, calls
