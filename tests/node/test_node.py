"""A node with two members, on two stores: what they share, and that neither stops the other."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import structlog
from structlog.testing import LogCapture

from amq.config.schema import BrokerConfig
from amq.core.errors import ConfigError
from amq.node import process
from amq.node.member import Role
from amq.node.node import Node, store_names
from amq.store.open import store_behind
from tests.fakes import FaultyVfs
from tests.patience import DEADLINE_S
from tests.ports import free_port
from tests.service_world import Client, until

PERIOD_S = 10.0  # so long that no member loses its lease on a busy machine
SHORT_S = 0.3  # of a member whose store will hang


class World:
    """A node with a member for each of `names`, those of stores. `replaced` = it would have replaced its process."""

    def __init__(self, folder: Path, names: tuple[str, ...], doors: dict[str, Any], options: dict[str, Any]) -> None:
        self.ports = {name: free_port() for name in names}
        self.clients: list[Client] = []
        self.replaced = threading.Event()
        periods = {name: SHORT_S if name in doors else PERIOD_S for name in names}
        self.node = Node([self._config(folder, name, periods[name], options) for name in names], doors=doors)

    def _config(self, folder: Path, name: str, period_s: float, options: dict[str, Any]) -> BrokerConfig:
        chosen: dict[str, Any] = {
            "name": "here",
            "lock_keep_alive_period_s": period_s,
            "lock_acquire_sleep_interval_s": 0.1,
            "management_socket": "none",
            **options,
        }
        transport = f"stomp://127.0.0.1:{self.ports[name]}"
        return BrokerConfig(store=str(folder / name), transports=(transport,), **chosen)

    async def connect(self, name: str) -> Client:
        client = await Client.connect(self.ports[name])
        self.clients.append(client)
        return client

    async def is_refused(self, name: str) -> str:
        """A client connects, and is turned away. Returns what it is told."""
        client = Client(*await asyncio.open_connection("127.0.0.1", self.ports[name]))
        self.clients.append(client)
        await client.send("CONNECT", ("accept-version", "1.2"), ("host", "/"))
        frame = await client.receive()
        assert frame.command == "ERROR"
        return frame.headers["message"]

    async def masters(self) -> None:
        for member in self.node.members.values():
            assert await asyncio.wait_for(member.wait_for(Role.MASTER), DEADLINE_S) is Role.MASTER, member.failure


@asynccontextmanager
async def nodes(
    folder: Path, *names: str, doors: Any = None, serving: bool = True, **options: Any
) -> AsyncIterator[World]:
    """`serving`: all members are masters when it is entered."""
    world = World(folder, names or ("one", "two"), doors or {}, options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process, "replace_process", world.replaced.set)
        await world.node.start()
        try:
            if serving:
                await world.masters()
            yield world
        finally:
            for client in world.clients:
                await client.close()
            await asyncio.wait_for(world.node.stop(), DEADLINE_S)


@pytest.fixture
def log() -> Iterator[LogCapture]:
    capture = LogCapture()
    before = structlog.get_config()
    structlog.configure(processors=[structlog.contextvars.merge_contextvars, capture], cache_logger_on_first_use=False)
    yield capture
    structlog.configure(**before)


async def test_one_member_stops_and_the_other_goes_on(tmp_path: Path) -> None:
    async with nodes(tmp_path) as world:
        one, two = await world.connect("one"), await world.connect("two")
        await one.store(b"of one", name="/queue/a")
        await two.store(b"of two", name="/queue/a")
        await asyncio.wait_for(world.node.members["two"].stop(), DEADLINE_S)
        with pytest.raises(EOFError):
            await two.receive()
        await one.store(b"later", name="/queue/a")
        await one.subscribe("/queue/a")
        assert [(await one.receive()).body for _ in range(2)] == [b"of one", b"later"]


async def test_what_members_have_loaded_is_kept_and_dropped(tmp_path: Path, loaded: list[str]) -> None:
    async with nodes(tmp_path) as world:
        assert loaded[-1] == "keep"
        loaded.clear()
        await asyncio.wait_for(world.node.members["two"].stop(), DEADLINE_S)
        assert loaded == ["drop", "keep"], "the other one still serves"


async def test_a_hung_store_does_not_stop_the_other_member(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lone clients, and syncs that count as quick: with one member the event loop itself would wait for the disk. The
    process is replaced once nobody is served any more.
    """
    monkeypatch.setattr("amq.journal.journal.INLINE_SYNC_S_MAX", 1e9)
    monkeypatch.setattr("amq.node.reign.FENCE_PATIENCE_S", 0.1)
    vfs, release = FaultyVfs(), threading.Event()
    async with nodes(tmp_path, doors={"two": {"store": store_behind(vfs, str(tmp_path / "two"))}}) as world:
        one, two = await world.connect("one"), await world.connect("two")
        await two.store(b"x", name="/queue/a")
        for method in ("fdatasync", "fsync", "open", "pread", "stat", "listdir", "lock"):
            vfs.before(method, lambda: release.wait(DEADLINE_S), times=0)
        await two.send("SEND", ("destination", "/queue/a"), ("receipt", "r"), body=b"y")
        with pytest.raises(EOFError):  # its watchdog cuts it off
            await two.receive()
        await until(lambda: bool(world.node._hung))
        await one.store(b"z", name="/queue/a")
        assert not world.replaced.is_set(), "the other one is served"
        await asyncio.wait_for(world.node.members["one"].stop(), DEADLINE_S)
        await until(world.replaced.is_set)
        vfs.heal()
        release.set()


async def test_a_member_whose_store_answers_again_takes_part_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("amq.node.reign.FENCE_PATIENCE_S", 0.1)
    vfs, release = FaultyVfs(), threading.Event()
    async with nodes(tmp_path, doors={"two": {"store": store_behind(vfs, str(tmp_path / "two"))}}) as world:
        vfs.before("fsync", lambda: release.wait(DEADLINE_S), path="/lock", times=0)
        vfs.before("open", lambda: release.wait(DEADLINE_S), path="/lock", times=0)
        await until(lambda: bool(world.node._hung))
        vfs.heal()
        release.set()
        await until(lambda: not world.node._hung and world.node.members["two"].role is Role.MASTER)
        await (await world.connect("two")).store(b"x")
        assert not world.replaced.is_set()


async def test_a_thread_that_fails_ends_its_member_alone(tmp_path: Path, log: LogCapture) -> None:
    def fails() -> None:
        raise RuntimeError("a bug")

    async with nodes(tmp_path) as world:
        one, two = await world.connect("one"), await world.connect("two")
        member = world.node.members["two"]
        member._doors.threads.start("amq-journal", fails)
        assert await asyncio.wait_for(member.wait_for(Role.STOPPED), DEADLINE_S) is Role.STOPPED
        with pytest.raises(EOFError):
            await two.receive()
        await one.store(b"x")
        assert member.failure is not None
        assert member.failure.code == "INTERNAL_ERROR"
    assert {"a thread failed", "member stopped"} <= {entry["event"] for entry in log.entries}


async def test_a_store_that_cannot_be_used_does_not_keep_the_service_manager_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, log: LogCapture
) -> None:
    told: list[str] = []
    monkeypatch.setattr(process, "notify", told.append)
    (tmp_path / "two").write_text("no directory")
    async with nodes(tmp_path, serving=False) as world:
        one, two = world.node.members.values()
        assert await asyncio.wait_for(one.wait_for(Role.MASTER), DEADLINE_S) is Role.MASTER
        assert await asyncio.wait_for(two.wait_for(Role.STOPPED), DEADLINE_S) is Role.STOPPED
        await (await world.connect("one")).store(b"x")
        assert [line.split("\n")[0] for line in told].count("READY=1") == 1
        assert f"STATUS=one: master, serving stomp://127.0.0.1:{world.ports['one']}; two: stopped" in told[-1]
    assert "member stopped" in [entry["event"] for entry in log.entries]


async def test_a_store_goes_from_one_node_to_another_and_the_other_stays(tmp_path: Path) -> None:
    async with nodes(tmp_path) as world:
        there = World(tmp_path, ("one", "two"), {}, {"name": "there"})
        await there.node.start()
        try:
            slaves = there.node.members
            for slave in slaves.values():
                assert await asyncio.wait_for(slave.wait_for(Role.SLAVE), DEADLINE_S) is Role.SLAVE
            await (await world.connect("two")).store(b"kept")
            one = await world.connect("one")
            await world.node.members["two"].stop()
            assert await asyncio.wait_for(slaves["two"].wait_for(Role.MASTER), DEADLINE_S) is Role.MASTER
            client = await there.connect("two")
            await client.subscribe()
            assert (await client.receive()).body == b"kept"
            await one.store(b"x")
            assert slaves["one"].role is Role.SLAVE
        finally:
            for client in there.clients:
                await client.close()
            await asyncio.wait_for(there.node.stop(), DEADLINE_S)


async def test_limits_of_strangers_hold_over_all_members(tmp_path: Path) -> None:
    async with nodes(tmp_path, max_connections_per_address=1) as world:
        await world.connect("one")
        assert "maxConnectionsPerAddress" in await world.is_refused("two")
        await asyncio.wait_for(world.node.members["one"].stop(), DEADLINE_S)
        await until(lambda: not world.node.members["two"].door.addresses)
        await world.connect("two")


async def test_places_are_those_of_the_process(tmp_path: Path) -> None:
    async with nodes(tmp_path, max_connections=2) as world:
        await world.connect("one")
        await world.connect("two")
        assert "maxConnections" in await world.is_refused("one")


async def test_lines_of_the_log_name_the_store(tmp_path: Path, log: LogCapture) -> None:
    async with nodes(tmp_path) as world:
        client = await world.connect("two")
        await client.store(b"x")
        await client.send("NONSENSE")
        await client.receive()
    told = {entry["event"]: entry.get("store") for entry in log.entries}
    assert told["connection refused"] == str(tmp_path / "two")
    for event in ("lock acquired, taking over", "master: serving clients", "role", "store released", "journal read"):
        stores = {entry.get("store") for entry in log.entries if entry["event"] == event}
        assert stores == {str(tmp_path / name) for name in ("one", "two")}, event


async def test_a_lone_member_needs_no_name_of_its_store(tmp_path: Path, log: LogCapture) -> None:
    async with nodes(tmp_path, "one") as world:
        await (await world.connect("one")).store(b"x")
    assert all("store" not in entry for entry in log.entries if entry["event"] in ("role", "master: serving clients"))


def test_members_share_the_options_of_their_node() -> None:
    one = BrokerConfig(store="/mnt/one", transports=("stomp://127.0.0.1:1",), max_connections=5)
    Node([one, replace(one, store="/mnt/two", transports=("stomp://127.0.0.1:2",), queue_limit_bytes=7)])
    with pytest.raises(ConfigError, match="maxConnections"):
        Node([one, replace(one, store="/mnt/two", max_connections=6)])


def test_names_of_stores() -> None:
    def names(*stores: str) -> list[str]:
        return store_names([BrokerConfig(store=store) for store in stores])

    assert names("/mnt/amq/orders/", "postgresql://db/bills?sslmode=require") == ["orders", "bills"]
    with pytest.raises(ConfigError):
        names("/mnt/a/orders", "/mnt/b/orders")
