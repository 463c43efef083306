"""Runs of seeds, with or without a mutant, in this process or many in two others; cutting a failing schedule down."""

from __future__ import annotations

import gc
import multiprocessing
import os
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext

from tests.simulation import cluster_mutants, feature_mutants, mutants, openwire_mutants, replica_mutants, sql_mutants
from tests.simulation.faults import Fault
from tests.simulation.world import Result, run

PROCESSES = 2
MUTANTS = mutants.MUTANTS | openwire_mutants.MUTANTS | sql_mutants.MUTANTS | cluster_mutants.MUTANTS
MUTANTS |= replica_mutants.MUTANTS
FOCUS = mutants.FOCUS | sql_mutants.FOCUS | cluster_mutants.FOCUS | replica_mutants.FOCUS
FEATURES = feature_mutants.FEATURES | sql_mutants.FEATURES | cluster_mutants.FEATURES | replica_mutants.FEATURES

Focus = tuple[str, ...]
Features = tuple[str, ...] | None  # None = as the seed has it


def run_seed(seed: int, mutant: str = "", focus: Focus = (), features: Features = None) -> Result:
    """One run; the history is left out where nothing was wrong."""
    with MUTANTS[mutant]() if mutant else nullcontext():
        result = run(seed, focus=focus, features=features)
    if not result.violation:
        result.tail = []
    return result


def run_seeds(seeds: Iterable[int], focus: Focus = (), features: Features = None) -> Iterator[Result]:
    """The results, in the order of the seeds. Two processes run them: for `make simulate`, as tests have workers."""
    jobs = [(seed, "", focus, features) for seed in seeds]
    with ProcessPoolExecutor(PROCESSES, multiprocessing.get_context("spawn"), initializer=_settle) as pool:
        yield from pool.map(run_seed, *zip(*jobs, strict=True), chunksize=4)


def first_caught(mutant: str, seeds: Iterable[int]) -> Result | None:
    """The first run that catches `mutant`, None where it lives. A hunt that is limited to some faults must let the code
    as it is pass: raises AssertionError where it does not."""
    focus, features = FOCUS.get(mutant, ()), FEATURES.get(mutant, ())
    for seed in seeds:
        result = run_seed(seed, mutant, focus, features)
        if result.violation:
            innocent = run_seed(seed, "", focus, features) if focus else None
            assert innocent is None or not innocent.violation, report(innocent)
            return result
    return None


def shrink(result: Result) -> Result:
    """Leave out faults, one after the other, as long as the run still fails in the same way."""
    promise = result.violation.partition(":")[0]
    faults = list(result.faults)
    i = 0
    while i < len(faults):
        fewer: list[Fault] = faults[:i] + faults[i + 1 :]
        shorter = run(result.seed, fewer, features=result.features)
        if shorter.violation.startswith(promise):
            faults, result = fewer, shorter
        else:
            i += 1
    return result


def report(result: Result, lines: int = 60) -> str:
    """What a person needs to go on: seed, promise, the smallest schedule, the end of the history."""
    features = ",".join(result.features)
    return "\n".join(
        (
            f"seed {result.seed} on {result.mount}: {result.violation}",
            f"replay it: python -m tests.simulation --seed {result.seed} --features '{features}'",
            "faults:",
            *(f"  {fault}" for fault in result.faults),
            "history:",
            *result.tail[-lines:],
        )
    )


def _settle() -> None:
    """What was imported is there to stay: each run ends with a collection of garbage, which need not look at it. Tests
    of real brokers beside this, whose leases end by the clock, come first; simulated time can wait."""
    os.nice(10)
    gc.collect()
    gc.freeze()
