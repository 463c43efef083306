"""Elements of an imported file that concern the group: each is seen with real brokers on one store."""

from __future__ import annotations

import os
import socket
from contextlib import ExitStack
from pathlib import Path

import pytest

from amq.doors.clock import SystemClock
from amq.node.member import Role
from amq.protocols.openwire import table
from amq.protocols.openwire.table import decode
from amq.store.files.vfs import SystemVfs
from amq.store.open import open_vfs
from amq.store.status import store_status
from amq_migrate.openwire.wire import Wire
from tests.cli.amq_process import amq, running
from tests.imported import OpenWire, Running, Stomp, broker_of, until
from tests.patience import DEADLINE_S

WIRES = (Stomp, OpenWire)
QUICK = ("lockKeepAlivePeriod=2s", "lockAcquireSleepInterval=50ms")
ACCEPTOR = '<acceptors><acceptor name="a">tcp://127.0.0.1:${port}</acceptor></acceptors>'
CONNECTOR = '<transportConnectors><transportConnector uri="auto://127.0.0.1:${port}"/></transportConnectors>'


def shared_store(inside: str) -> str:
    """broker.xml of one of a pair."""
    return (
        f"<configuration><core>{ACCEPTOR}<security-enabled>false</security-enabled>"
        f"<ha-policy><shared-store>{inside}</shared-store></ha-policy></core></configuration>"
    )


def hornetq(inside: str) -> str:
    return (
        f'<configuration xmlns="urn:hornetq">{ACCEPTOR}<security-enabled>false</security-enabled>'
        f"<shared-store>true</shared-store>{inside}</configuration>"
    )


def kaha_db(inside: str) -> str:
    return f"<broker><persistenceAdapter><kahaDB {inside}</kahaDB></persistenceAdapter>{CONNECTOR}</broker>"


def activated(value: str) -> str:
    return shared_store(f"<primary><wait-for-activation>{value}</wait-for-activation></primary>")


def announcing(value: str) -> str:
    words = f'<transportConnector updateClusterClients="{value}" rebalanceClusterClients="{value}" '
    return f"<broker>{CONNECTOR.replace('<transportConnector ', words)}</broker>"


BACKUP = "<slave><allow-failback>{}</allow-failback><failback-delay>{}</failback-delay></slave>"
PREFERRED = {
    "shared-store/primary": shared_store("<primary/>"),
    "shared-store/master": shared_store("<master/>"),
    "backup": hornetq("<backup>false</backup>"),
}
STOPS = {
    "failover-on-shutdown": lambda value: shared_store(
        f"<primary><failover-on-shutdown>{value}</failover-on-shutdown></primary>"
    ),
    "failover-on-server-shutdown": lambda value: hornetq(
        f"<failover-on-server-shutdown>{value}</failover-on-server-shutdown>"
    ),
}
PATIENT = {
    "@lockAcquireSleepInterval": kaha_db('><locker><shared-file-locker lockAcquireSleepInterval="1200"/></locker>'),
    "kahaDB@databaseLockedWaitDelay": kaha_db('databaseLockedWaitDelay="1200">'),
}
IMPATIENT = kaha_db('><locker><shared-file-locker failIfLocked="true"/></locker>')
KEPT_ALIVE = kaha_db('lockKeepAlivePeriod="1500">')
# Elements that the tests below show → a file with each, as they run it.
GROUPS = {
    **PREFERRED,
    **{element: file("false") for element, file in STOPS.items()},
    **PATIENT,
    "allow-failback": shared_store(BACKUP.format("false", 0)),
    "failback-delay": shared_store(BACKUP.format("true", 400)),
    "@failIfLocked": IMPATIENT,
    "@lockKeepAlivePeriod": KEPT_ALIVE,
    "transportConnector@updateClusterClients": announcing("true"),
    "transportConnector@rebalanceClusterClients": announcing("true"),
    "wait-for-activation": activated("true"),
}


class Pair:
    """Two brokers, one after the other, on the store of one directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._stack = ExitStack()

    def __enter__(self) -> Pair:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start(
        self, name: str, xml: str, role: Role = Role.MASTER, *options: str, vfs: SystemVfs | None = None
    ) -> Running:
        words = (f"name={name}", *QUICK, *options)
        return self._stack.enter_context(broker_of(xml, self.directory, *words, role=role, vfs=vfs))

    def slave(self, name: str, xml: str, beside: Running) -> Running:
        """A slave that is ready to take over."""
        made = self.start(name, xml, Role.SLAVE)

        def ready() -> bool:
            seen = beside.presence(name)
            return seen is not None and seen.not_ready == ""

        until(ready)
        return made


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(tmp_path)


def sends(broker: Running) -> None:
    for wire in WIRES:
        client = wire(broker.port)
        client.send("queue", f"kept.{wire.name}", f"for {wire.name}")
        client.close()


def has_what_was_sent(broker: Running) -> None:
    for wire in WIRES:
        client = wire(broker.port)
        id = client.subscribe("queue", f"kept.{wire.name}")
        assert client.next(id).body == f"for {wire.name}"  # type: ignore[arg-type]
        client.close()


@pytest.mark.parametrize("element", PREFERRED)
def test_the_preferred_broker_gets_the_store_after_the_delay(pair: Pair, element: str) -> None:
    with pair:
        backup = pair.start("b", shared_store(BACKUP.format("true", 400)))
        assert backup.service.config.failback_delay_s == 0.4  # test_succession.py shows that it is waited for
        sends(backup)
        preferred = pair.start("a", PREFERRED[element], Role.SLAVE)
        preferred.becomes(Role.MASTER)
        has_what_was_sent(preferred)


def test_the_preferred_broker_waits_where_failback_is_forbidden(pair: Pair) -> None:
    """test_succession.py shows that the master then looks for no better one."""
    with pair:
        backup = pair.start("b", shared_store(BACKUP.format("false", 0)))
        assert backup.service.config.allow_failback is False
        pair.slave("a", PREFERRED["shared-store/primary"], backup)


@pytest.mark.parametrize("element", STOPS)
def test_a_stop_ends_the_service_where_failover_is_forbidden(pair: Pair, element: str) -> None:
    with pair:
        master = pair.start("a", STOPS[element]("false"))
        slave = pair.slave("b", shared_store("<slave/>"), master)
        master.stop()

        def passive() -> bool:
            seen = slave.presence("b")
            return seen is not None and bool(seen.facts.get("passive"))

        until(passive)
        assert slave.service.role is Role.SLAVE


@pytest.mark.parametrize("element", STOPS)
def test_a_stop_hands_over_where_failover_is_allowed(pair: Pair, element: str) -> None:
    with pair:
        master = pair.start("a", STOPS[element]("true"))
        sends(master)
        slave = pair.slave("b", shared_store("<slave/>"), master)
        master.stop()
        slave.becomes(Role.MASTER)
        has_what_was_sent(slave)


class Watched(SystemVfs):
    """Notes when somebody tries to get the lock of the store."""

    def __init__(self) -> None:
        super().__init__()
        self.tries: list[float] = []

    def try_lock(self, fd: int) -> bool:
        if os.readlink(f"/proc/self/fd/{fd}").endswith("/lock"):
            self.tries.append(SystemClock().monotonic())
        return super().try_lock(fd)


@pytest.mark.parametrize("element", PATIENT)
def test_a_slave_waits_between_two_attempts(pair: Pair, element: str) -> None:
    """Longer than by default, which is one second."""
    watched = Watched()
    with pair:
        pair.start("a", PATIENT[element])
        with broker_of(PATIENT[element], pair.directory, "name=b", role=Role.SLAVE, vfs=watched):
            until(lambda: len(watched.tries) >= 3)
    assert max(after - before for before, after in zip(watched.tries, watched.tries[1:], strict=False)) >= 1.2


def test_the_others_know_how_long_the_master_keeps_the_lock(tmp_path: Path) -> None:
    with broker_of(KEPT_ALIVE, tmp_path, "name=a") as broker:
        seen = broker.presence("a")
        assert seen is not None
        assert seen.owner is not None
        assert seen.owner.lock_keep_alive_period_s == 1.5
        epoch = store_status(open_vfs(str(broker.store)), str(broker.store)).epoch
        assert epoch is not None
        assert epoch.owner.lock_keep_alive_period_s == 1.5


def test_a_broker_ends_where_another_one_has_the_lock(pair: Pair, tmp_path: Path) -> None:
    path = tmp_path / "activemq.xml"
    path.write_text(IMPATIENT)
    with pair:
        master = pair.start("a", IMPATIENT)
        done = amq("start", path, "--property", "port=0", "--store", master.store, "--name", "b")
        assert done.returncode == 5, done.stderr
        assert "STORE_LOCKED" in done.stderr


@pytest.mark.parametrize(
    ("waits", "first"),
    [("false", "READY=1\nSTATUS=slave, waiting for the lock"), ("true", "STATUS=slave, waiting for the lock")],
)
def test_the_service_manager_waits_for_the_master(pair: Pair, tmp_path: Path, waits: str, first: str) -> None:
    path, door_path = tmp_path / "broker.xml", tmp_path / "notify"
    path.write_text(activated(waits))
    with pair, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as door:
        door.bind(str(door_path))
        door.settimeout(DEADLINE_S)
        master = pair.start("a", activated(waits), Role.MASTER, "failoverOnShutdown=true")
        words = ("start", path, "--property", "port=0", "--store", master.store, "--name", "b")
        with running(*words, env={"NOTIFY_SOCKET": str(door_path)}) as process:
            assert door.recv(4096).decode() == first
            master.stop()
            second = door.recv(4096).decode()
            assert second.startswith("READY=1\nSTATUS=master" if waits == "true" else "STATUS=master")
            process.terminate()
            process.communicate()


def announced(monkeypatch: pytest.MonkeyPatch, port: int) -> tuple[str, list[tuple[str, bool]]]:
    """The other brokers, as a new client of STOMP and one of OpenWire hear of them; the latter with: shall it move?"""
    client, heard, take = Stomp(port), [], Wire._take
    client.close()

    def listen(wire: Wire, data: bytes) -> None:
        if data[0] == table.CONNECTION_CONTROL:
            control = decode(data, wire.version)
            heard.append((control.get("connected_brokers") or "", control.get("rebalance", False)))
        take(wire, data)

    with monkeypatch.context() as patch:
        patch.setattr(Wire, "_take", listen)
        other = OpenWire(port)
        other.subscribe("queue", "q")
        other.close()
    return client.announced, heard


def test_clients_hear_of_the_group_and_where_to_go(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    with pair:
        master = pair.start("a", announcing("true"))
        slave = pair.slave("b", announcing("true"), master)
        until(lambda: f":{slave.port}" in announced(monkeypatch, master.port)[0])
        ((urls, goes),) = announced(monkeypatch, master.port)[1]
        assert f":{slave.port}" in urls
        assert goes


def test_clients_hear_nothing_where_the_file_says_so(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    with pair:
        master = pair.start("a", announcing("false"))
        pair.slave("b", announcing("false"), master)
        assert announced(monkeypatch, master.port) == ("", [])
