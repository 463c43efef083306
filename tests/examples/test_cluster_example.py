"""The programs of examples/cluster, as processes against clusters whose node is killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from brokers import ROOT

from tests.patience import DEADLINE_S
from tests.processes import naming

FOLDER = ROOT / "examples" / "cluster"
HANDLED = "360 of 360 orders handled, "
LINES = (
    "connected to ",
    "270 orders sent to 9 queues, 90 of them handled",
    "kill the node now: ",
    "90 more orders sent",
    HANDLED,
    "0 orders left",
    "right: ",
)


@pytest.mark.deep
def test_a_node_of_three_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, str(FOLDER / "three_nodes.py")]
    done = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | {"TMPDIR": str(tmp_path)}, timeout=4 * DEADLINE_S
    )
    said = done.stdout
    rest = iter(said.splitlines())
    for words in LINES:
        assert any(line.strip().startswith(words) for line in rest), f"no line {words!r} at its place in\n{said}"
    assert "nodes: kill -9 " in said
    trade = said.partition(HANDLED)[0]  # a browse that meets another hand-over ends with its connection
    for event in ("event INTERRUPTED: the connection to ", "event FAILOVER: connected to "):
        assert trade.count(event) == 1, said
    assert (done.returncode, done.stderr) == (0, ""), done
    assert naming(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.deep
def test_two_hosts_back_each_other_up_and_one_goes_for_good(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(FOLDER / "two_hosts.py")],
        capture_output=True,
        text=True,
        env=os.environ | {"TMPDIR": str(tmp_path)},
        timeout=4 * DEADLINE_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rest = iter(done.stdout.splitlines())
    for words in (
        "300 messages sent; kill -9 b",
        "a serves both stores",
        "b goes for good",
        "300 messages rec",
        "right:",
    ):
        assert any(line.startswith(words) for line in rest), f"no line {words!r} at its place in\n{done.stdout}"
    assert naming(tmp_path) == []
    assert list(tmp_path.iterdir()) == []
