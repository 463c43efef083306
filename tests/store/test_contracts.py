"""Every kind of store keeps the contracts of the ports: here in files and in memory; `tests/sql/test_sql_ports.py` has
those that are in a database."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from amq.store.files.vfs import SystemVfs
from amq.store.open import locked_by, open_coordinator, open_register, store_behind
from amq.store.port import Store
from tests.board_contract import check_board
from tests.election_contract import Stores, check_election, check_epochs, check_terms
from tests.log_contract import check_log
from tests.memory_coordinator import Ensemble, MemoryCoordinator, coordinated
from tests.memory_store import Shelves, store_on
from tests.register_contract import check_board_of_register, check_register


@pytest.fixture(params=["files", "memory", "coordinator", "lock in a coordinator", "lock in a small directory"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Stores:
    shelves, ensemble, small = Shelves(), Ensemble(), tmp_path / "small"
    small.mkdir()
    files = partial(store_behind, SystemVfs(), str(tmp_path / "store"))
    kinds: dict[str, Stores] = {
        "files": files,
        "memory": lambda: store_on(shelves),
        "coordinator": lambda: coordinated(files(), MemoryCoordinator(ensemble)),
        "lock in a coordinator": lambda: coordinated(files(), MemoryCoordinator(ensemble), alone=True),
        "lock in a small directory": lambda: locked_by(files(), open_coordinator.__wrapped__(f"file://{small}")),
    }

    def new() -> Store:
        store = kinds[request.param]()
        store.make()
        return store

    return new


def test_the_election(opened: Stores) -> None:
    check_election(opened)


def test_the_epochs(opened: Stores) -> None:
    check_epochs(opened)


def test_terms(opened: Stores) -> None:
    check_terms(opened)


def test_the_board(opened: Stores) -> None:
    check_board(lambda: opened().board)


def test_the_log(opened: Stores) -> None:
    check_log(lambda: opened().log)


def test_the_register_of_a_cluster(tmp_path: Path) -> None:
    check_register(lambda: open_register(str(tmp_path / "far" / "c")))
    check_board_of_register(lambda: open_register(str(tmp_path / "d")))
