"""The audit of dependencies says what it could not check, and never that all is well because nobody answered."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.audit import CLEAN, UNKNOWN, VULNERABLE, judge, report

ROOT = Path(__file__).resolve().parent.parent
GOOD = {"name": "click", "version": "8.1", "vulns": []}
BAD = {"name": "rich", "version": "13", "vulns": [{"id": "PYSEC-1", "fix_versions": ["14"], "aliases": []}]}
SKIPPED = {"name": "uvloop", "skip_reason": "Dependency not found on PyPI and could not be audited: uvloop (0.2)"}
OURS = {"name": "amq", "skip_reason": "Dependency not found on PyPI and could not be audited: amq (0.1)"}


@pytest.mark.parametrize(
    ("found", "code", "says"),
    [
        ([GOOD, OURS], CLEAN, "1 packages, no known vulnerability"),
        ([GOOD, BAD], VULNERABLE, "rich 13: PYSEC-1, mended in 14"),
        ([GOOD, SKIPPED], UNKNOWN, "1 of 2 packages cannot be reached: not checked: uvloop"),
        ([SKIPPED, OURS], UNKNOWN, "1 of 1 packages cannot be reached: nothing was checked"),
        ([BAD, SKIPPED], VULNERABLE, "not checked: uvloop"),
    ],
)
def test_what_was_checked_is_told(found: list[dict[str, Any]], code: int, says: str) -> None:
    told = judge({"dependencies": found, "fixes": []})
    assert (told[0], says in "\n".join(told[1])) == (code, True), told


def test_no_answer_is_no_good_news(tmp_path: Path) -> None:
    code, lines = judge("ConnectionError: no name server")
    assert (code, lines) == (
        UNKNOWN,
        ["the data about vulnerabilities cannot be reached, nothing was checked: ConnectionError: no name server"],
    )
    assert report(tmp_path) == f"{tmp_path} is not an environment of Python"


def test_the_targets_are_told_by_make_help() -> None:
    text = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", text, re.MULTILINE))
    told = set(re.findall(r"^#   make ([a-z-]+) ", text, re.MULTILINE))
    assert {"sbom", "audit"} <= targets & told
    assert told <= targets
