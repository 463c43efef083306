"""The small files of a running broker, which others look for: somebody may remove them."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from amq.config.schema import BrokerConfig
from amq.node.member import Member, Role
from amq.store.coordinated.board import CoordinatedBoard
from amq.store.files.board import FileBoard
from amq.store.files.vfs import SystemVfs
from amq.store.host import Owner
from amq.store.orders import STOP, Order, Orders, give
from amq.store.presence import TELL_S, NameInUseError, Presence, read_presence
from tests.fakes import FakeHost, FaultyVfs
from tests.memory_coordinator import HOST, Ensemble, MemoryCoordinator
from tests.patience import DEADLINE_S
from tests.ports import free_port
from tests.service_world import anybody


def owner(uuid: str = "uuid") -> Owner:
    return Owner.make(FakeHost("h"), name="a", uuid=uuid, transport_urls=(), lock_keep_alive_period_s=5)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    (tmp_path / "epochs").mkdir()
    return tmp_path


@pytest.fixture
def presence(store: Path) -> Iterator[Presence]:
    made = Presence.open(FileBoard(SystemVfs(), str(store)), owner(), "master", {"priority": 7})
    yield made
    made.close()


def remove_file(store: Path) -> None:
    (store / "brokers" / "a.json").unlink()


def remove_directory(store: Path) -> None:
    shutil.rmtree(store / "brokers")


def replace(store: Path) -> None:
    remove_file(store)
    (store / "brokers" / "a.json").write_text("")


@pytest.mark.parametrize("act", [remove_file, remove_directory, replace])
def test_a_broker_whose_file_was_removed_is_seen_again(
    store: Path, presence: Presence, act: Callable[[Path], None]
) -> None:
    presence.keep(0.0)
    act(store)
    presence.keep(TELL_S - 0.1)
    assert read_presence(FileBoard(SystemVfs(), str(store))) == []
    presence.keep(TELL_S)
    (found,) = read_presence(FileBoard(SystemVfs(), str(store)))
    assert (found.name, found.role, found.priority) == ("a", "master", 7)
    with pytest.raises(NameInUseError):
        Presence.open(FileBoard(SystemVfs(), str(store)), owner("other"))


def test_a_master_goes_on_where_it_cannot_say_that_it_is_one() -> None:
    """The coordinator goes away just after it became master: its lease decides, and not what people read."""
    coordinator = MemoryCoordinator(Ensemble())
    board = CoordinatedBoard(coordinator, HOST)
    presence = Presence.open(board, owner(), facts={"priority": 7})
    coordinator.away = True
    presence.become("master", {"priority": 7})
    coordinator.away = False
    assert [each.role for each in read_presence(board)] == ["slave"]
    presence.state({"priority": 7})
    assert [(each.role, each.priority) for each in read_presence(board)] == [("master", 7)]
    presence.close()


def test_a_broker_whose_own_session_is_not_over_yet_tries_again() -> None:
    """It could not end it, because the coordinator was away: nobody else has its name."""
    ensemble = Ensemble()
    coordinator = MemoryCoordinator(ensemble)
    board = CoordinatedBoard(coordinator, HOST)
    first = Presence.open(board, owner())
    coordinator.away = True
    first.close()
    coordinator.away = False
    with pytest.raises(OSError, match="had its name is not over yet"):
        Presence.open(board, owner())
    with pytest.raises(NameInUseError):
        Presence.open(board, owner("other"))
    for session in set(ensemble.owners.values()):
        ensemble.expire(session)
    Presence.open(board, owner()).close()


def test_a_broker_that_took_the_name_meanwhile_keeps_it(store: Path, presence: Presence) -> None:
    remove_file(store)
    other = Presence.open(FileBoard(SystemVfs(), str(store)), owner("other"), "slave")
    presence.keep(0.0)
    (found,) = read_presence(FileBoard(SystemVfs(), str(store)))
    assert found.role == "slave"
    other.close()
    presence.keep(TELL_S)
    (found,) = read_presence(FileBoard(SystemVfs(), str(store)))
    assert found.role == "master"


def test_nothing_is_made_where_the_store_is_not_mounted(store: Path, presence: Presence) -> None:
    remove_directory(store)
    (store / "epochs").rmdir()
    presence.keep(0.0)
    orders = Orders(FileBoard(SystemVfs(), str(store)), "a", "uuid")
    assert orders.look() is None
    assert list(store.iterdir()) == []


@pytest.mark.parametrize("method", ["open", "pwrite", "mkdir"])
def test_an_error_costs_one_beat(store: Path, method: str) -> None:
    vfs = FaultyVfs()
    presence = Presence.open(FileBoard(vfs, str(store)), owner(), "master", {"priority": 7})
    remove_directory(store)
    vfs.fail(method)
    presence.keep(0.0)
    presence.state({"priority": 7})
    presence.keep(TELL_S)
    (found,) = read_presence(FileBoard(SystemVfs(), str(store)))
    assert (found.role, found.priority) == ("master", 7)
    presence.close()


def test_orders_find_a_broker_whose_directory_of_orders_was_removed(store: Path) -> None:
    orders = Orders(FileBoard(SystemVfs(), str(store)), "a", "uuid")
    orders.open()
    shutil.rmtree(store / "orders")
    assert orders.look() is None
    order = Order("1", "uuid", STOP)
    give(FileBoard(SystemVfs(), str(store)), "a", order)
    assert orders.look() == order


async def test_a_running_broker_notices(tmp_path: Path) -> None:
    """As slave and as master it looks at each beat."""
    store = str(tmp_path / "store")
    config = BrokerConfig(
        name="a",
        store=store,
        transports=(f"stomp://127.0.0.1:{free_port()}",),
        allow_unsafe_store=True,
        lock_keep_alive_period_s=0.3,
    )
    service = Member(config, anybody)
    await service.start()
    await asyncio.wait_for(service.wait_for(Role.MASTER), DEADLINE_S)
    for name in ("brokers", "orders"):
        (Path(store) / name).rename(tmp_path / name)  # at once: the broker makes it again
    async with asyncio.timeout(DEADLINE_S):
        while [each.role for each in read_presence(FileBoard(SystemVfs(), store))] != ["master"] or not (
            Path(store) / "orders" / "a.json"
        ).exists():
            await asyncio.sleep(0.05)
    await asyncio.wait_for(service.stop(), DEADLINE_S)
