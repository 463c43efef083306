"""One seed, one history: byte for byte, in another process, whatever the order of sets and dicts of strings there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import DEADLINE_S

ROOT = Path(__file__).resolve().parents[2]
SEEDS = (3, 175)  # the last with most features
PROGRAM = """
from tests.simulation.world import run
for seed in {seeds}:
    print(run(seed).digest)
"""


def digests(hash_seed: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(seeds=SEEDS)],
        cwd=ROOT,
        env={"PYTHONHASHSEED": hash_seed},
        capture_output=True,
        text=True,
        check=True,
        timeout=4 * DEADLINE_S,
    )
    return done.stdout.split()


@pytest.mark.deep
def test_a_seed_gives_the_same_history_in_every_process() -> None:
    first, second = digests("1"), digests("2")
    assert len(set(first)) == len(SEEDS), "different seeds gave the same history: it does not show what happens"
    assert first == second
