"""Tests of the broker run unchanged with a link between it and its clients."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = (
    "consumers",
    "credit",
    "dead_letters",
    "duplicates",
    "durables",
    "extend",
    "failed_commands",
    "leasing",
    "pulling",
    "queues",
    "redelivers",
    "retained",
    "runs",
    "scheduling",
    "sessions",
    "temporary",
    "transactions",
    "two_phase",
    "wildcards",
)
# A client that does not read has what the window of its connection holds: these expect that it has nothing.
HAS_A_WINDOW = (
    "queues.py::test_a_slow_consumer_gets_nothing_and_the_others_go_on",
    "wildcards.py::test_a_slow_socket_gets_nothing_and_others_share",
    "consumers.py::test_an_auto_consumer_of_a_higher_priority_is_overtaken_when_its_socket_is_full",
)


@pytest.mark.deep
def test_the_broker_behaves_the_same_through_a_link() -> None:
    skipped = [f"--deselect=tests/broker/test_broker_{name}" for name in HAS_A_WINDOW]
    files = [f"tests/broker/test_broker_{name}.py" for name in MODULES]
    options = ["-q", "-p", "tests.link.through", "-p", "no:cacheprovider", "-m", "not deep", "--tb=short"]
    command = [sys.executable, "-m", "pytest", *options, *skipped, *files]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout[-20_000:]
