"""Directories in which another product keeps its messages: refused before anything is written, its lock included."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from amq.config.schema import BrokerConfig
from amq.core.errors import StoreError
from amq.doctor.directory import judge_directory
from amq.node.member import Member, Role
from amq.store.files.others import check_own
from amq.store.files.vfs import SystemVfs
from tests.activemq import activemq
from tests.cli.amq_process import amq
from tests.patience import DEADLINE_S
from tests.ports import free_port
from tests.service_world import anybody

STORES = {
    "KahaDB store of ActiveMQ": ["lock", "db.data", "db.redo", "db-1.log"],
    "LevelDB store of ActiveMQ": ["lock", "0000000000000000.log", "store-version.txt"],
    "journal of Artemis": ["server.lock", "activemq-data-1.amq"],
    "journal of HornetQ": ["hornetq-data-12.hq"],
}


def filled(directory: Path, names: list[str]) -> dict[str, bytes]:
    directory.mkdir(exist_ok=True)
    for name in names:
        path = directory / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"theirs")
    return content(directory)


def content(directory: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


async def service(store: Path) -> Member:
    """A broker on `store` that is master, or has failed."""
    urls = (f"stomp://127.0.0.1:{free_port()}",)
    config = BrokerConfig(name="a", store=str(store), transports=urls, allow_unsafe_store=True)
    made = Member(config, anybody)
    await made.start()
    await asyncio.wait_for(made.wait_for(Role.MASTER), DEADLINE_S)
    await asyncio.wait_for(made.stop(), DEADLINE_S)
    return made


@pytest.mark.parametrize("product", STORES)
def test_a_store_of_another_product_is_refused_and_nothing_is_written(tmp_path: Path, product: str) -> None:
    store = tmp_path / "store"
    before = filled(store, STORES[product])
    failure = asyncio.run(service(store)).failure
    assert failure is not None, "the broker became master there"
    assert failure.code == "STORE_OF_OTHER_BROKER"
    assert product in failure.description
    assert "--store DIR" in failure.description
    assert content(store) == before
    assert sorted(path.name for path in store.iterdir()) == sorted(STORES[product]), "no directory was made"
    (finding,) = [each for each in judge_directory(str(store)) if each.topic == "another broker"]
    assert finding.found == failure.description, "amq doctor says the same"


def test_the_data_directory_of_artemis(tmp_path: Path) -> None:
    store = tmp_path / "data"
    before = filled(store, ["journal/activemq-data-2.amq", "bindings/activemq-bindings-2.bindings"])
    with pytest.raises(StoreError, match=r"journal of Artemis, see .*journal/activemq-data-2\.amq"):
        check_own(SystemVfs(), str(store))
    assert content(store) == before


def test_a_store_of_ours_in_which_old_files_of_another_broker_lie(tmp_path: Path) -> None:
    """It served there before; the other broker has not been back."""
    store = tmp_path / "store"
    assert asyncio.run(service(store)).failure is None
    filled(store, ["db.data", "db-1.log"])
    for name in ("db.data", "db-1.log"):
        os.utime(store / name, (1e9, 1e9))
    assert asyncio.run(service(store)).failure is None
    os.utime(store / "db.data")  # ActiveMQ runs there again
    failure = asyncio.run(service(store)).failure
    assert failure is not None
    assert failure.code == "STORE_OF_OTHER_BROKER"


@pytest.mark.parametrize("name", ["lock", "claim", "data", "db.data.txt", "journal"])
def test_a_name_that_says_nothing(tmp_path: Path, name: str) -> None:
    filled(tmp_path, [name])
    check_own(SystemVfs(), str(tmp_path))
    check_own(SystemVfs(), str(tmp_path / "not yet made"))


@pytest.mark.deep
def test_a_running_activemq_keeps_its_lock(tmp_path: Path) -> None:
    """`amq start` and `amq journal repair` on its directory leave it alone, and it goes on serving."""
    with activemq(tmp_path) as peer:
        lock = (peer.store / "lock").read_bytes()
        there = {path.name for path in peer.store.iterdir()}
        for words in (
            ["start", "--store", peer.store, "--transport", "stomp://127.0.0.1:0"],
            ["start", "--store", peer.store, "--transport", "stomp://127.0.0.1:0", "--allow-unsafe-store"],
            ["journal", "repair", "--store", peer.store],
        ):
            done = amq(*words)
            assert done.returncode != 0, done.stdout
            code = "STORE_MISSING" if words[0] == "journal" else "STORE_OF_OTHER_BROKER"
            assert code in done.stderr, done.stderr
        assert (peer.store / "lock").read_bytes() == lock
        assert not {path.name for path in peer.store.iterdir()} - there - {"db.free"}
        peer.wait_serving(("", ""))
        peer.check()
