"""Who may write to the store directory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from amq.doctor import examine_quickly
from amq.doctor.directory import SUBDIRECTORIES, judge_directory
from amq.doctor.finding import Level


def test_a_directory_of_ones_own(tmp_path: Path) -> None:
    tmp_path.chmod(0o770)
    assert judge_directory(str(tmp_path)) == []
    assert judge_directory(str(tmp_path / "not yet made")) == []


def test_a_directory_that_all_may_write_to(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    (finding,) = judge_directory(str(tmp_path))
    assert finding.level is Level.WARNING
    assert "mode 777" in finding.found
    assert finding.cure == f"chmod o-w {tmp_path}"
    assert finding in examine_quickly(str(tmp_path)).findings, "amq start tells, too"


def test_a_directory_of_somebody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = os.stat(tmp_path).st_uid
    os.chown(tmp_path, 4321, -1) if owner == 0 else monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    found = [finding.found for finding in judge_directory(str(tmp_path))]
    if owner == 0:
        assert found == [f"{tmp_path} belongs to user 4321, and this is user root"]
    else:
        assert len(found) == 1


@pytest.mark.parametrize("name", SUBDIRECTORIES)
def test_a_directory_in_the_store_that_is_a_link(tmp_path: Path, name: str) -> None:
    store, elsewhere = tmp_path / "store", tmp_path / "elsewhere"
    store.mkdir()
    elsewhere.mkdir()
    (store / name).symlink_to(elsewhere)
    report = examine_quickly(str(store))
    assert report.verdict == "unfit"
    assert any(str(elsewhere) in finding.found for finding in report.of(Level.UNFIT))
    assert examine_quickly(str(elsewhere)).verdict != "unfit"
