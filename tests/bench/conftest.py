"""The benchmarks are not installed: tests find them, and the helpers beside this file, by path."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(ROOT))

from bench import brokers  # noqa: E402
from tests.brokers import Broker, Brokers  # noqa: E402
from tests.preloaded import PARENT  # noqa: E402
from tests.processes import children  # noqa: E402


class MemoryBroker(brokers.Broker):
    """tests/bench/memory_broker.py as a broker of the benchmarks; option `flaw` makes it lie."""

    kind = "memory"
    slave_line = re.compile("")  # it knows of no lock: all of a group serve

    def command(self) -> list[str]:
        # exec keeps the process id; the variable is for the import of bench.wire alone.
        script = str(HERE / "memory_broker.py")
        return ["env", f"PYTHONPATH={ROOT}", sys.executable, script, str(self.port), self.options.get("flaw", "")]


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    """A real broker, which is the master."""
    with Brokers(tmp_path) as group:
        yield group.master("a")


@pytest.fixture
def memory_kind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """The kind of broker that tests can afford; its directories are made below `tmp_path`."""
    monkeypatch.setitem(brokers.KINDS, MemoryBroker.kind, MemoryBroker)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return MemoryBroker.kind


@pytest.fixture
def memory_port(memory_kind: str) -> Iterator[int]:
    """Port of an honest memory broker."""
    with brokers.Group(memory_kind) as group:
        yield group.ports[0]


@pytest.fixture(autouse=True)
def _no_children_left() -> Iterator[None]:
    """Whatever a test started is gone when it ends. What other tests of this process leave, such as Spark's JVM and the
    tracker of multiprocessing, is none of its business."""
    PARENT.start()  # it stays for the tests that come
    before = children().get(os.getpid(), [])
    yield
    assert set(children().get(os.getpid(), [])) <= set(before)
