"""The programs of examples/replication, as processes: a member and a disk are lost."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from brokers import ROOT

from tests.patience import DEADLINE_S
from tests.processes import naming

LINES = (
    "members: a is the master, epoch 1",
    "members: kill -9 a, the master",
    "is the master, epoch 2",
    "members: the disk of a is destroyed",
    "members: the copies that count are now a-",
    "shop.py: right: each order was handled, in order",
    "amq status: a-",
    "the new disk of a, read alone, has 20 of the last 20 orders",
    "proved: ",
)


@pytest.mark.deep
def test_a_member_and_a_disk_are_lost_and_no_order_is(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "examples/replication/three_copies.py")]
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=4 * DEADLINE_S)
    rest = iter(done.stdout.splitlines())
    for words in LINES:
        assert any(words in line for line in rest), f"no line {words!r} at its place in\n{done.stdout}"
    assert (done.returncode, done.stderr) == (0, ""), done
    assert naming(tmp_path) == []
    assert list(tmp_path.iterdir()) == []
