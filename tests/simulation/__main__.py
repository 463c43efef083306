"""`make simulate`: fresh seeds until told to stop, or one seed in full (`SEED=…`), for `STEPS` runs.

A failure prints its seed, the smallest schedule of faults that still fails, and the end of the history.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import count
from random import SystemRandom

from tests.simulation.pool import Features, Focus, report, run_seeds, shrink
from tests.simulation.world import Result, run

TOLD_EVERY = 20
BATCH = 2000  # seeds that are given out at once; then new processes go on


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="the one to replay; without it fresh ones")
    parser.add_argument("--steps", type=int, default=0, help="how many seeds; 0 = no end (with a seed: 1)")
    parser.add_argument("--focus", default="", help="kinds of faults to which it is limited, separated by commas")
    parser.add_argument("--features", help="what its worlds have, separated by commas; without it as each seed says")
    options = parser.parse_args()
    focus = tuple(filter(None, options.focus.split(",")))
    features = None if options.features is None else tuple(filter(None, options.features.split(",")))
    first = options.seed if options.seed is not None else SystemRandom().randrange(1 << 40)
    if options.seed is not None and options.steps <= 1:
        result = run(first, focus=focus, features=features)
        sys.stdout.write(report(shrink(result) if result.violation else result, 400) + "\n")
        return int(bool(result.violation))
    started, failures, seconds = time.monotonic(), 0, 0.0
    totals: Counter[str] = Counter()
    seeds = range(first, first + options.steps) if options.steps else count(first)
    for number, result in enumerate(_results(seeds, focus, features), 1):
        totals += result.counts
        seconds += result.simulated_s
        if result.violation:
            failures += 1
            sys.stdout.write(report(shrink(result)) + "\n")
        if number % TOLD_EVERY == 0 or number == options.steps:
            spent_s = time.monotonic() - started
            sys.stdout.write(
                f"{number} seeds from {first}, {seconds / 3600:.1f} simulated hours in {spent_s:.0f} s, "
                f"{failures} failures: {dict(totals.most_common())}\n"
            )
            sys.stdout.flush()
    return int(bool(failures))


def _results(seeds: Iterable[int], focus: Focus, features: Features) -> Iterator[Result]:
    """Batches, because a pool reads all of its input at once."""
    batch: list[int] = []
    for seed in seeds:
        batch.append(seed)
        if len(batch) == BATCH:
            yield from run_seeds(batch, focus, features)
            batch = []
    if batch:
        yield from run_seeds(batch, focus, features)


if __name__ == "__main__":
    sys.exit(main())
