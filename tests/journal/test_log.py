"""The log in files: the contract of all logs."""

from __future__ import annotations

from pathlib import Path

from amq.store.files.log import FileLog
from amq.store.files.vfs import SystemVfs
from tests.log_contract import check_log


def test_the_contract(tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    check_log(lambda: FileLog(SystemVfs(), str(tmp_path)))
