"""Runs of records from the broker: joined or not, they are the same messages in the same order."""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import Any

import pytest

pytest.importorskip("pyarrow", reason="no pyarrow: run make .venv/.installed-test")
pytest.importorskip("pyspark", reason="no PySpark: run make .venv/.installed-test")

from amq.client import Run
from pyspark_amq import messages, records


def run_of(numbers: range, destination: str = "/queue/a", redelivered: dict[int, int] | None = None) -> Run:
    """A run whose records are their numbers as text."""
    texts = [str(number).encode() for number in numbers]
    return Run(destination, "ID:x-", [len(text) for text in texts], memoryview(b"".join(texts)), redelivered or {})


def seen(parts: Any) -> list[Any]:
    """All messages in order: destination, record and earlier deliveries of those in runs; single ones as they are."""
    found: list[Any] = []
    for each in (each for part in parts for each in part):
        if isinstance(each, Run):
            texts = [bytes(record) for record in each.each()]
            found += [(each.destination, text, each.redelivered.get(place, 0)) for place, text in enumerate(texts)]
        else:
            found.append(each)
    return found


@pytest.mark.parametrize("seed", range(20))
def test_any_cut_gives_the_same_messages(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "BATCH_ROWS", 30)
    monkeypatch.setattr(messages, "BATCH_BYTES", 100)
    random = Random(seed)
    cuts = sorted({0, 300, *random.sample(range(300), 60)})
    parts: list[list[Any]] = [[]]
    for first, last in pairwise(cuts):
        if random.getrandbits(2) == 0:
            parts.append([])
        if random.getrandbits(3) == 0:
            parts[-1].append(f"single {first}")
            continue
        known = {place: random.randrange(1, 5) for place in range(last - first) if random.getrandbits(3) == 0}
        parts[-1].append(run_of(range(first, last), random.choice(["/queue/a", "/queue/a", "/queue/b"]), known))
    given, found = [each for part in parts for each in part], list(records.joined(parts))
    assert seen(found) == seen(parts)
    assert len([each for part in found for each in part]) < len(given)
    largest = max(len(each) for each in given if isinstance(each, Run))
    for run in (each for part in found for each in part if isinstance(each, Run)):
        assert len(run) <= max(30, largest)
        assert sum(run.sizes) == run.records.nbytes


def test_small_runs_become_full_batches() -> None:
    rows = 2 * messages.BATCH_ROWS + 1
    bounds = [*range(0, rows, 7), rows]
    found = list(records.joined([[run_of(range(first, last))] for first, last in pairwise(bounds)]))
    sizes = [len(run) for part in found for run in part]
    assert sum(sizes) == rows
    assert len(sizes) == 3


def test_a_run_alone_is_not_copied() -> None:
    run = run_of(range(5))
    ((same,),) = records.joined([[run]])
    assert same is run
