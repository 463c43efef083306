"""The model of a cluster that grows: what bounds it, and that the simulated cores come to what the formula says."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bench.scaling import Sizing, measure

EVEN = Sizing(2)


@pytest.mark.parametrize(
    ("cluster", "bound", "per_second"),
    [
        (EVEN, "member", 4 / 6.6e-6),
        (replace(EVEN, hot=True), "member", 1 / 6.6e-6),
        (replace(EVEN, cores=1), "cores", 2 / 12.3e-6),
        (replace(EVEN, gateways=1, stores=4), "gateway", 2 / 5.7e-6),
        (replace(EVEN, nodes=1, message_bytes=16384), "network", 10e9 / (8 * 16384)),
    ],
)
def test_the_model_comes_to_what_bounds_it(cluster: Sizing, bound: str, per_second: float) -> None:
    found = measure(cluster, 1.0)
    assert found["paper"] == pytest.approx(per_second)
    assert found["simulated"] == pytest.approx(per_second, rel=0.07)
    assert found["bound"] == found["busiest"] == bound
