"""Brokers that cannot open their transports, and options that differ: what a group notices and what it does then."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import structlog

import amq.node.group
from amq.config import load
from amq.config.schema import BrokerConfig
from amq.doors.threads import SystemThreads
from amq.node.candidacy import FREE_PATIENCE_S, Candidacy, Input, Try, View
from amq.node.group import PROBE_S, Group
from amq.node.member import Role
from amq.store.files.board import FileBoard
from amq.store.files.election import FileElection
from amq.store.files.vfs import SystemVfs
from amq.store.host import Owner
from amq.store.presence import Presence, read_presence
from amq.transports.probe import Refusal, refusals
from tests.fakes import FakeClock, FakeHost
from tests.patience import DEADLINE_S
from tests.ports import free_port
from tests.service_world import Services, services, until

TAKEN = Refusal("stomp://127.0.0.1:1", 1, errno.EADDRINUSE, "Address already in use")


@contextmanager
def occupied() -> Iterator[tuple[socket.socket, int]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server, server.getsockname()[1]


# -- the probe ---------------------------------------------------------------------------------------------------------


def test_the_probe_tells_what_a_listening_socket_would_meet() -> None:
    with occupied() as (_, port):
        found = refusals([f"stomp://127.0.0.1:{port}", "stomp://192.0.2.1:61613", "stomp://127.0.0.1:0"])
    assert [(each.port, each.number) for each in found] == [(port, errno.EADDRINUSE), (61613, errno.EADDRNOTAVAIL)]
    assert str(found[1]) == "cannot listen on stomp://192.0.2.1:61613: Cannot assign requested address"
    (unknown,) = refusals(["stomp://host.invalid:1"])
    assert "cannot be resolved" in unknown.reason


def test_a_probe_in_progress_does_not_disturb_a_master_that_opens_the_port(monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    opened: list[socket.socket] = []
    close = socket.socket.__exit__

    def listen_meanwhile(probe: socket.socket, *why: object) -> None:
        if not opened:
            opened.append(socket.create_server(("127.0.0.1", port)))
        close(probe, *why)

    monkeypatch.setattr(socket.socket, "__exit__", listen_meanwhile)
    assert refusals([f"stomp://127.0.0.1:{port}"]) == ()
    monkeypatch.undo()
    with opened[0], socket.create_connection(("127.0.0.1", port)):
        assert [each.number for each in refusals([f"stomp://127.0.0.1:{port}"])] == [errno.EADDRINUSE]


# -- who competes ------------------------------------------------------------------------------------------------------


class Store:
    """A store with other brokers on it, seen by the group of broker `me`."""

    def __init__(self, path: Path, refused: tuple[Refusal, ...] = (TAKEN,), **options: str) -> None:
        self.path = path
        self.vfs = SystemVfs()
        self.clock = FakeClock()
        self.refused = refused
        self.probes = 0
        config, host = self.config(**options), FakeHost()
        election = FileElection(self.vfs, config.store)
        board = FileBoard(self.vfs, config.store)
        self.group = Group(board, election, self.clock, host, SystemThreads(), config, "me", self._probe)
        self.candidacy = Candidacy("me", config)
        self.stack = ExitStack()

    def config(self, **options: str) -> BrokerConfig:
        return load(overrides=[f"{key}={value}" for key, value in options.items()], store=str(self.path), name="me")

    def _probe(self, _transports: object) -> tuple[Refusal, ...]:
        self.probes += 1
        return self.refused

    def other(self, name: str = "other", role: str = "slave", url: str = "stomp://a:1", **facts: Any) -> Presence:
        owner = Owner.make(
            FakeHost(own_pid=7), name=name, uuid=name, transport_urls=(url,), lock_keep_alive_period_s=1.0
        )
        presence = Presence.open(FileBoard(self.vfs, str(self.path)), owner, role, facts)
        self.stack.callback(presence.close)
        return presence

    def hold_lock(self) -> int:
        fd = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT)
        assert self.vfs.try_lock(fd)
        return fd

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)

    def view(self) -> View:
        return View(self.clock.monotonic(), listening=self.group.listening())

    def competes(self) -> bool:
        """Whether this broker tries for the lock now; another one has it."""
        competes = self.candidacy.step(Input.LOOK, self.view()) == Try()
        if competes:
            self.candidacy.step(Input.MISSED, self.view())
        return competes


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(tmp_path)
    made.group.start()
    yield made
    made.group.stop()
    made.stack.close()


def test_a_broker_that_cannot_listen_leaves_a_free_lock_to_another(store: Store) -> None:
    store.other()
    assert not store.competes()
    assert store.group.facts()["cannot_listen"].startswith("cannot listen on stomp://127.0.0.1:1: Address already")
    store.pass_time(FREE_PATIENCE_S)
    assert not store.competes()
    store.pass_time(3.5)  # three intervals of a second
    assert store.competes(), "the other one does not take it: it may hang"


def test_a_held_lock_begins_the_patience_anew(store: Store) -> None:
    store.other()
    store.competes()
    fd = store.hold_lock()
    for _ in range(5):
        store.pass_time(FREE_PATIENCE_S)
        assert not store.competes()
    os.close(fd)
    store.pass_time(1.0)
    assert not store.competes()
    store.pass_time(FREE_PATIENCE_S + 3.0)
    assert store.competes()


def test_a_broker_competes_where_no_other_could_serve_better(store: Store) -> None:
    assert store.competes(), "it is alone"
    store.other(cannot_listen="neither can this one")
    store.pass_time(2.0)
    assert store.competes()
    store.other("healthy", cannot_listen="")
    store.pass_time(2.0)
    assert not store.competes()


def test_the_port_of_the_master_on_this_host_counts_as_free(store: Store) -> None:
    store.other("m", role="master", url="stomp://0.0.0.0:1")
    assert store.competes()
    assert store.group.facts()["cannot_listen"] == ""


def test_a_store_that_cannot_be_read_keeps_nobody_from_competing(store: Store) -> None:
    store.other()
    (store.path / "brokers" / "other.json").write_bytes(b'{"amq":"broker","format":999,"body":{}}')
    with structlog.testing.capture_logs() as logs:
        assert store.competes()
    assert any("cannot be read" in line["event"] for line in logs)


def test_options_that_differ_are_told_once(tmp_path: Path) -> None:
    store = Store(tmp_path, refused=(), maximumRedeliveries="3")
    theirs = amq.config.group.published(store.config(maximumRedeliveries="9"))
    store.other("b", options=theirs)
    store.other("old")  # of a version that does not tell
    with store.stack, structlog.testing.capture_logs() as logs:
        for _ in range(3):
            assert store.competes()
            store.pass_time(60.0)
    (line,) = [line for line in logs if line["event"].startswith("options differ")]
    assert line["differences"] == "maximumRedeliveries is 3 on me and 9 on b"


# -- real services -----------------------------------------------------------------------------------------------------


def cannot_listen(world: Services, name: str) -> str:
    """What the broker says of itself in the store."""
    for found in read_presence(FileBoard(SystemVfs(), str(world.store))):
        if found.name == name:
            return str(found.facts.get("cannot_listen", ""))
    return "it does not run"


async def test_a_slave_that_cannot_listen_says_so_and_lets_another_take_over(tmp_path: Path) -> None:
    async with services(tmp_path) as world:
        first, _ = await world.master("a")
        with occupied() as (_, port), structlog.testing.capture_logs() as logs:
            mute, _ = await world.start("b", port=port)
            await until(lambda: mute.role is Role.SLAVE)
            await until(lambda: "already in use" in cannot_listen(world, "b"))
            assert any(line["event"].startswith("this broker could not serve") for line in logs)
            healthy, healthy_port = await world.start("c")
            await until(lambda: healthy.role is Role.SLAVE)
            await first.stop()
            await until(lambda: healthy.role is Role.MASTER)
            assert mute.role is Role.SLAVE
            await (await world.connect(healthy_port)).store(b"x")


async def test_a_group_without_a_better_broker_waits_for_the_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("amq.node.reception.LISTEN_PATIENCE_S", 0.1)
    monkeypatch.setattr("amq.node.group.PROBE_S", PROBE_S / 20)
    async with services(tmp_path) as world:
        first, _ = await world.master("a")
        with occupied() as (_, port), structlog.testing.capture_logs() as logs:
            mute, _ = await world.start("b", port=port)
            await until(lambda: "already in use" in cannot_listen(world, "b"))
            await first.stop()
            await until(lambda: any(line["event"].startswith("no broker can serve") for line in logs))
            roles = set()
            while not any(line["event"].startswith("gave the mastership up") for line in logs):
                roles |= {found.role for found in read_presence(FileBoard(SystemVfs(), str(world.store)))}
                await asyncio.sleep(0.002)
            assert "master" not in roles, "it never served"
            assert any(line["event"].startswith("no broker can serve") for line in logs)
        await asyncio.wait_for(mute.wait_for(Role.MASTER), DEADLINE_S)
        await (await world.connect(port)).store(b"x")
        await until(lambda: cannot_listen(world, "b") == "")


async def test_a_slave_with_the_masters_port_takes_over(tmp_path: Path) -> None:
    async with services(tmp_path) as world:
        first, port = await world.master("a")
        second, _ = await world.start("b", port=port)
        await until(lambda: second.role is Role.SLAVE)
        await first.stop()
        await until(lambda: second.role is Role.MASTER)
        await (await world.connect(port)).store(b"x")


async def test_facts_of_a_master(tmp_path: Path) -> None:
    async with services(tmp_path) as world:
        port = free_port()
        service, _ = await world.start("a", port=port)
        await until(lambda: service.role is Role.MASTER)
        (found,) = read_presence(FileBoard(SystemVfs(), str(world.store)))
        assert (found.role, found.facts["urls"]) == ("master", [f"stomp://127.0.0.1:{port}"])
        assert found.facts["store_full"] is False
        service.reconfigure(load(overrides=["maximumRedeliveries=3"], store=str(world.store), name="a"))

        def told() -> bool:
            (found,) = read_presence(FileBoard(SystemVfs(), str(world.store)))
            return bool(found.facts["options"]["values"]["maximumRedeliveries"] == "3")

        await until(told)
