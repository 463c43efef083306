"""The quick, the deep and the thorough tests share all tests out: each runs in exactly one of them, and the quick ones
have something of every area."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.brokers import ROOT

TARGETS = ("test", "test-deep", "test-thorough")
# In a separate process: collects all tests with a selection, and prints what it chose and what it left.
PROBE = """
import json, sys
import pytest

class Seen:
    def __init__(self):
        self.chosen, self.left = [], []
    def pytest_deselected(self, items):
        self.left += [item.nodeid for item in items]
    def pytest_collection_finish(self, session):
        self.chosen = [item.nodeid for item in session.items]

seen = Seen()
code = pytest.main(["--collect-only", "-qq", "-m", sys.argv[1]], plugins=[seen])
print(json.dumps([seen.chosen, seen.left]))
sys.exit(code)
"""


def selections() -> dict[str, str]:
    """{target: what the Makefile gives pytest as -m, at first}."""
    found = {}
    for target in TARGETS:
        said = subprocess.run(
            ["make", "--no-print-directory", "-n", target],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        found[target], *_ = re.findall(r"-m pytest .*-m '([^']+)'", said)
    return found


def collected(selection: str) -> tuple[list[str], list[str]]:
    done = subprocess.run(
        [sys.executable, "-c", PROBE, selection],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    chosen, left = json.loads(done.stdout.splitlines()[-1])
    return chosen, left


@pytest.mark.deep
def test_each_test_runs_in_one_of_them_and_each_folder_in_the_quick_one() -> None:
    assert selections() == {
        "test": "not deep and not thorough",
        "test-deep": "deep and not thorough",
        "test-thorough": "thorough",
    }, "in two of them, or in none"
    quick, others = collected(selections()["test"])
    assert len(quick) + len(others) > 7000
    assert len(set(quick)) == len(quick)
    folders = {path.parent.relative_to(ROOT).as_posix() for path in Path(ROOT, "tests").rglob("test_*.py")}
    assert folders == {Path(name.partition("::")[0]).parent.as_posix() for name in quick}


def test_no_two_files_of_tests_have_the_same_name() -> None:
    """pytest takes them for one module, and fails where both are collected."""
    names = Counter(path.name for path in Path(ROOT, "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []
