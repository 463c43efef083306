"""Every crash state of every workload is one that P1 to P5 allow, and so is every crash of its recovery.

A bigger run: AMQ_CRASH_IMAGES=64 (images at each point of the log) AMQ_CRASH_DEEP_EVERY=5 (each so many-th recovery is
itself cut short at each of its calls). How it works: docs/crash-states.md.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from amq.store.files import log
from tests.crash.explorer import Explorer
from tests.crash.mutants import MUTANTS
from tests.crash.oracle import Violation
from tests.crash.workloads import WORKLOADS
from tests.mutant import Mutant
from tests.sampling import sampled

IMAGES = int(os.environ.get("AMQ_CRASH_IMAGES", "5"))
DEEP_EVERY = int(os.environ.get("AMQ_CRASH_DEEP_EVERY", "200"))
MUTANT_IMAGES = 16


@pytest.mark.parametrize("name", sampled(WORKLOADS, 16))
def test_crash_states(name: str, record_property: Callable[[str, object], None]) -> None:
    script = WORKLOADS[name].script()
    explorer = Explorer(script.config, IMAGES, DEEP_EVERY)
    explorer.explore(script.disk.image, script.disk.log, script.oracle)
    assert explorer.prefixes == len(script.disk.log) + 1
    assert explorer.states > explorer.prefixes / 2, "hardly anything was explored"
    record_property("states", explorer.states)
    print(f"{name}: {len(script.disk.log)} calls, {explorer.states} states recovered twice")


@pytest.mark.deep
@pytest.mark.parametrize("name", ["queues", "full"])
def test_crash_states_of_zeros_written_ahead(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments as small as these have none otherwise."""
    for constant, value in (("RESERVE_STEPS", 2), ("ZEROS_BYTES", 512), ("BLOCK_BYTES", 64)):
        monkeypatch.setattr(log, constant, value)
    script = WORKLOADS[name].script()
    assert any(call.data and not any(call.data) for call in script.disk.log)
    explorer = Explorer(script.config, IMAGES, DEEP_EVERY)
    explorer.explore(script.disk.image, script.disk.log, script.oracle)
    assert explorer.states > explorer.prefixes / 2, "hardly anything was explored"


@pytest.mark.parametrize("mutant", sampled(MUTANTS, 8), ids=lambda mutant: mutant.what)
def test_explorer_sees(mutant: Mutant) -> None:
    with mutant.applied(), pytest.raises(Violation) as caught:
        script = WORKLOADS[mutant.seen_by].script()
        Explorer(script.config, MUTANT_IMAGES).explore(script.disk.image, script.disk.log, script.oracle)
    print(f"{mutant.what}: {caught.value}")


def test_one_workload_gives_one_log() -> None:
    assert WORKLOADS["killed"].script().disk.log == WORKLOADS["killed"].script().disk.log


@pytest.mark.deep
def test_exploring_again_explores_the_same() -> None:
    counts = []
    for _ in range(2):
        script = WORKLOADS["transactions"].script()
        explorer = Explorer(script.config, 4, 40)
        explorer.explore(script.disk.image, script.disk.log, script.oracle)
        counts.append(explorer.states)
    assert counts[0] == counts[1]


def test_mutants_are_many_and_told_apart() -> None:
    assert len({mutant.what for mutant in MUTANTS}) == len(MUTANTS) >= 15
