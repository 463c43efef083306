"""What `bench.scale_down` says of messages that came: lost, twice, in another order."""

from __future__ import annotations

from bench.scale_down import judged


def test_what_a_scale_down_broke_is_counted() -> None:
    assert judged([0, 1, 2], 3) == {"lost": 0, "doubled": 0, "reordered": 0}
    assert judged([0, 2], 4) == {"lost": 2, "doubled": 0, "reordered": 0}
    assert judged([0, 1, 2, 1, 1], 3) == {"lost": 0, "doubled": 2, "reordered": 0}
    assert judged([2, 0, 1], 3) == {"lost": 0, "doubled": 0, "reordered": 2}
