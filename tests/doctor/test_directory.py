"""Who may write to the store directory."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from amq.doctor.directory import NOBODY, SUBDIRECTORIES, judge_directory
from amq.doctor.finding import Level
from amq.doctor.stores import examine_quickly
from tests.brokers import Brokers
from tests.cli.amq_process import amq
from tests.patience import DEADLINE_S


def test_a_directory_of_ones_own(tmp_path: Path) -> None:
    tmp_path.chmod(0o770)
    assert judge_directory(str(tmp_path)) == []
    assert judge_directory(str(tmp_path / "not yet made")) == []


def test_a_directory_that_all_may_write_to(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    (finding,) = judge_directory(str(tmp_path))
    assert finding.level is Level.UNFIT
    assert "mode 777" in finding.found
    assert finding.cure.startswith(f"chmod o-w {tmp_path} ")
    report = examine_quickly(str(tmp_path))
    assert finding in report.findings
    assert report.verdict == "unfit", "amq start refuses"
    tmp_path.chmod(0o750)
    assert judge_directory(str(tmp_path)) == []


@pytest.mark.parametrize("name", SUBDIRECTORIES)
def test_a_directory_in_the_store_that_all_may_write_to(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name).chmod(0o1777)
    (finding,) = judge_directory(str(tmp_path))
    assert (finding.level, f"{tmp_path / name} (mode 1777)" in finding.found) == (Level.UNFIT, True)


def test_a_broker_refuses_a_store_that_all_may_write_to(tmp_path: Path) -> None:
    store = tmp_path / "store"
    store.mkdir()
    store.chmod(0o777)
    done = amq("start", "--store", store, "--transport", "stomp://127.0.0.1:0")
    assert (done.returncode, "STORE_UNSAFE" in done.stderr) == (4, True), done.stderr
    assert f"chmod o-w {store}" in done.stderr
    assert list(store.iterdir()) == [], "nothing was written"


def test_new_files_are_for_the_user_and_its_group(tmp_path: Path) -> None:
    old = os.umask(0)
    try:
        with Brokers(tmp_path) as brokers, brokers.master().connect() as client:
            client.send("SEND", {"destination": "/queue/a", "receipt": "r"}, b"x")
            client.receipt("r", DEADLINE_S)
            store = Path(brokers.store)
            modes = {path: stat.S_IMODE(path.lstat().st_mode) for path in [store, *store.rglob("*")]}
    finally:
        os.umask(old)
    assert len(modes) > 5
    open_to_others = {str(path): oct(mode) for path, mode in modes.items() if mode & 0o027}
    assert not open_to_others


def test_a_directory_of_somebody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = os.stat(tmp_path).st_uid
    os.chown(tmp_path, 4321, -1) if owner == 0 else monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    (finding,) = judge_directory(str(tmp_path))
    if owner == 0:
        assert finding.found == f"{tmp_path} belongs to user 4321, and this is user root"
        assert finding.level is Level.UNFIT, "root does not work on files that another user can replace"
        os.chown(tmp_path, NOBODY, -1)
        assert [each.level for each in judge_directory(str(tmp_path))] == [Level.WARNING]
    else:
        assert finding.level is Level.WARNING


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
