"""The ports of stores that are in a database, or have their lock there, keep the contracts of all stores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from amq.store.coordinated.register import RegisterCoordinator
from amq.store.coordinator import Coordinator
from amq.store.files.vfs import SystemVfs
from amq.store.open import locked_in, store_behind, store_in
from amq.store.port import Store
from amq.store.postgres.database import Database
from amq.store.postgres.register import SqlRegister
from amq.store.postgres.url import SqlUrl
from amq.store.register import Register
from tests.board_contract import check_board
from tests.coordinator_contract import CHECKS, Coordinators
from tests.counted_takeover import CALLS_MAX, counted_takeover
from tests.election_contract import check_election, check_epochs, check_terms
from tests.fakes import FakeHost
from tests.log_contract import check_log
from tests.postgres import needs_postgres
from tests.register_contract import check_board_of_register, check_register

pytestmark = needs_postgres
Opened = Callable[[], Store]


@pytest.fixture(params=["all of it", "the lock alone"])
def opened(request: pytest.FixtureRequest, url: str, tmp_path: Path) -> Iterator[Opened]:
    alone = request.param == "the lock alone"
    directory = str(tmp_path / "store")

    databases = []

    def made() -> Store:
        database = Database(SqlUrl.parse(url))
        databases.append(database)
        store = locked_in(store_behind(SystemVfs(), directory), database) if alone else store_in(database)
        store.make()
        return store

    yield made
    for database in databases:  # the server admits few connections
        for session in list(database.sessions._made):
            session.close()


def test_the_election(opened: Opened) -> None:
    check_election(opened)


def test_the_epochs(opened: Opened) -> None:
    check_epochs(opened)


def test_terms(opened: Opened) -> None:
    check_terms(opened)


def test_the_board(opened: Opened) -> None:
    check_board(lambda: opened().board)


def test_the_log(opened: Opened, request: pytest.FixtureRequest) -> None:
    check_log(lambda: opened().log, fences="all of it" in request.node.name)


def test_the_register_of_a_cluster(url: str) -> None:
    databases = []

    def made() -> Register:
        databases.append(Database(SqlUrl.parse(url)))
        return SqlRegister(databases[-1])

    check_register(made)
    check_board_of_register(made)
    for database in databases:  # the server admits few connections
        for session in list(database.sessions._made):
            session.close()


@pytest.fixture
def coordinators(url: str) -> Iterator[Coordinators]:
    databases = []

    def made() -> Coordinator:
        databases.append(Database(SqlUrl.parse(url)))
        return RegisterCoordinator(SqlRegister(databases[-1]), url, FakeHost())

    yield made
    for database in databases:  # the server admits few connections
        for session in list(database.sessions._made):
            session.close()


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_a_coordinator(coordinators: Coordinators, check: Callable[[Coordinators, str], None]) -> None:
    check(coordinators, "k")


async def test_a_takeover_waits_for_few_answers(coordinators: Coordinators, tmp_path: Path) -> None:
    calls = await counted_takeover(coordinators, tmp_path)
    assert len(calls) <= CALLS_MAX, calls
