"""The boards of stores that are in a database, or have their lock there, keep the contract of all boards."""

from __future__ import annotations

from pathlib import Path

from amq.store.files.board import FileBoard
from amq.store.postgres.locker import SqlLockedVfs
from amq.store.postgres.url import SqlUrl
from tests.board_contract import check_board
from tests.postgres import needs_postgres
from tests.sql.test_sql_vfs import open_store

pytestmark = needs_postgres


def test_a_store_in_a_database(url: str) -> None:
    check_board(lambda: FileBoard(open_store(url), url))


def test_a_directory_whose_lock_is_in_a_database(url: str, tmp_path: Path) -> None:
    SqlLockedVfs(str(tmp_path / "store"), SqlUrl.parse(url)).mkdir(str(tmp_path / "store"))
    check_board(lambda: FileBoard(SqlLockedVfs(str(tmp_path / "store"), SqlUrl.parse(url)), str(tmp_path / "store")))
