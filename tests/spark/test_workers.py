"""What this package does in Python processes of Spark, so that their collection of garbage after a task is short."""

from __future__ import annotations

import gc
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

from pyspark_amq import workers


@pytest.fixture
def frozen(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many modules there were when the collector was told to spare them."""
    calls: list[int] = []
    monkeypatch.setattr(gc, "freeze", lambda: calls.append(len(sys.modules)))
    monkeypatch.setattr(workers, "_frozen", 0)
    return calls


def started_as(monkeypatch: pytest.MonkeyPatch, name: str | None) -> None:
    """As if `python -m NAME` had started this process, or a file of Python."""
    main = ModuleType("__main__")
    main.__spec__ = ModuleSpec(name, None) if name is not None else None
    monkeypatch.setitem(sys.modules, "__main__", main)


@pytest.mark.parametrize("name", ["pyspark.daemon", "pyspark.sql.streaming.python_streaming_source_runner"])
def test_modules_are_spared_once_and_again_where_more_came(
    frozen: list[int], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    started_as(monkeypatch, name)
    for _ in range(3):
        workers.spare_modules()
    assert len(frozen) == 1
    monkeypatch.setitem(sys.modules, "one_more_module", ModuleType("one_more_module"))
    for _ in range(3):
        workers.spare_modules()
    assert len(frozen) == 2


@pytest.mark.parametrize("name", ["pyspark_job.main", None])
def test_the_collector_of_a_users_process_is_left_alone(
    frozen: list[int], name: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    started_as(monkeypatch, name)
    workers.spare_modules()
    assert frozen == []
