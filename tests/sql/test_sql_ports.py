"""The ports of stores that are in a database, or have their lock there, keep the contracts of all stores."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from amq.store.files.vfs import Vfs
from amq.store.open import Store, store_behind
from amq.store.postgres.locker import SqlLockedVfs
from amq.store.postgres.url import SqlUrl
from tests.board_contract import check_board
from tests.log_contract import check_log
from tests.postgres import needs_postgres
from tests.sql.test_sql_vfs import open_store

pytestmark = needs_postgres
Opened = Callable[[], Store]


@pytest.fixture(params=["all of it", "the lock alone"])
def opened(request: pytest.FixtureRequest, url: str, tmp_path: Path) -> Opened:
    directory = str(tmp_path / "store")

    def door() -> Vfs:
        return open_store(url) if place == url else SqlLockedVfs(directory, SqlUrl.parse(url))

    place = url if request.param == "all of it" else directory
    if place == directory:
        door().mkdir(directory)
    door().mkdir(f"{place}/journal")
    return lambda: store_behind(door(), place)


def test_the_board(opened: Opened) -> None:
    check_board(lambda: opened().board)


def test_the_log(opened: Opened, request: pytest.FixtureRequest) -> None:
    check_log(lambda: opened().log, fences="all of it" in request.node.name)
