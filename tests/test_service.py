"""The service: roles, hand-over, fencing. Real files, real sockets, faults through the vfs door."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import time
from collections.abc import Callable, Iterator, MutableMapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import structlog

import amq.node.mastership
import amq.node.takeover
from amq.broker.actions import Action
from amq.broker.events import JournalRead, RoleChanged
from amq.doors.clock import SystemClock
from amq.journal.follower import DivergedError, Follower
from amq.journal.format import HEADER_BYTES
from amq.journal.recovery import Followed, Recovered
from amq.node.contender import HUNG_ON_SMB
from amq.node.entrance import Entrance
from amq.node.member import Hosting, Member, Role
from amq.security.login import User
from amq.security.permissions import Permissions
from amq.store.files.board import FileBoard
from amq.store.files.epochs import FileEpochs
from amq.store.files.vfs import SystemVfs
from amq.store.presence import BrokerPresence, Presence, read_presence
from amq.transports.peer import Peer
from tests.fakes import FaultyVfs, open_files
from tests.patience import DEADLINE_S
from tests.service_world import Services, services, until


class Hang:
    """A call that hangs until the test releases it."""

    def __init__(self) -> None:
        self.hung, self.release = threading.Event(), threading.Event()

    def __call__(self) -> None:
        self.hung.set()
        self.release.wait(DEADLINE_S)


class Ahead(SystemClock):
    """A clock that a test puts forward: a lease runs out when the test says so, and not when the machine is slow."""

    ahead_s = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead_s


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    left = [thread for thread in threading.enumerate() if thread not in before and thread.name.startswith("amq-")]
    for thread in left:
        thread.join(DEADLINE_S)
        assert not thread.is_alive(), thread


async def test_one_master_and_a_hand_over_without_wait(tmp_path: Path) -> None:
    async with services(tmp_path) as world:
        first, port = await world.master("a")
        second, other_port = await world.start("b")
        await asyncio.wait_for(second.wait_for(Role.SLAVE), DEADLINE_S)
        client = await world.connect(port)
        await client.store(b"kept")
        with pytest.raises(OSError):
            await world.connect(other_port)
        await first.stop()
        assert await asyncio.wait_for(second.wait_for(Role.MASTER), DEADLINE_S) is Role.MASTER
        newest = max(FileEpochs(SystemVfs(), str(world.store)).all(), key=lambda epoch: epoch.number)
        assert "released" in newest.reason
        successor = await world.connect(other_port)
        await successor.subscribe()
        assert (await successor.receive()).body == b"kept"


async def test_a_failed_sync_fences_and_what_was_confirmed_is_served_again(tmp_path: Path) -> None:
    vfs = FaultyVfs()
    async with services(tmp_path) as world:
        service, port = await world.master("a", vfs=vfs)
        client = await world.connect(port)
        await client.store(b"confirmed")
        roles: list[Role] = []
        service.events.listen(RoleChanged, lambda event: roles.append(Role(event.role)))
        vfs.fail("fdatasync", errno.EIO, path=".seg")
        with pytest.raises((EOFError, ConnectionError)):
            await client.send("SEND", ("destination", "/queue/a"), ("receipt", "never"), body=b"in doubt")
            await client.receive()
        await until(lambda: roles[-1:] == [Role.MASTER])
        assert roles == [Role.SLAVE, Role.MASTER]
        again = await world.connect(port)
        await again.subscribe()
        assert (await again.receive()).body == b"confirmed"


async def test_a_hung_store_suspends_then_cuts_the_clients_off(tmp_path: Path) -> None:
    """Rule 4 and the watchdog: nothing is confirmed past the deadline, sockets close within two periods."""
    vfs = FaultyVfs()
    hang = Hang()
    clock = Ahead()
    async with services(tmp_path) as world:
        world.period_s = 2.0
        service, port = await world.master("a", vfs=vfs, clock=clock)
        client = await world.connect(port)
        await client.store(b"before")
        vfs.before("pwrite", hang, path="/lock", times=0)
        await until(hang.hung.is_set)
        assert service.master is not None
        clock.ahead_s += world.period_s
        assert not service.master.turn._valid()
        await client.send("SEND", ("destination", "/queue/a"), ("receipt", "late"), body=b"late")
        answer = asyncio.ensure_future(client.receive())

        def is_answered() -> bool:
            clock.ahead_s += 0.1
            return answer.done()

        await until(is_answered)
        with pytest.raises((EOFError, ConnectionError)):  # and no RECEIPT before it
            await answer
        vfs.heal()
        hang.release.set()
        await until(lambda: service.role is Role.MASTER and service.master is not None)


async def test_a_lease_that_ran_out_and_is_proved_again_goes_on(tmp_path: Path) -> None:
    """The check hangs for longer than the lease, then succeeds: what waited is confirmed, nobody is cut off."""
    vfs = FaultyVfs()
    hang = Hang()
    clock = Ahead()
    async with services(tmp_path) as world:
        world.period_s = 5.0
        service, port = await world.master("a", vfs=vfs, clock=clock)
        client = await world.connect(port)
        vfs.before("pwrite", hang, path="/lock")
        await until(hang.hung.is_set)
        assert service.master is not None
        clock.ahead_s += world.period_s
        assert not service.master.turn._valid()
        await client.send("SEND", ("destination", "/queue/a"), ("receipt", "held"), body=b"held")
        hang.release.set()
        frame = await client.receive()
        assert (frame.command, frame.headers["receipt-id"]) == ("RECEIPT", "held")
        assert service.role is Role.MASTER


async def test_a_process_whose_event_loop_hangs_in_the_store_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("amq.journal.journal.INLINE_SYNC_S_MAX", 1e9)  # also on a slow disk
    vfs = FaultyVfs()
    release, replaced = threading.Event(), threading.Event()

    def replace() -> None:
        replaced.set()
        release.set()

    async with services(tmp_path) as world:
        world.period_s = 1.0
        _, port = await world.master("a", vfs=vfs, hosting=Hosting(replace))
        client = await world.connect(port)
        await client.store(b"x")  # lone client: the next sync happens on the event loop
        vfs.before("fdatasync", lambda: release.wait(DEADLINE_S), path=".seg")
        vfs.fail("fsync", errno.EIO, path="/lock", times=0)
        await client.send("SEND", ("destination", "/queue/a"), ("receipt", "r"), body=b"y")
        await until(replaced.is_set)
        vfs.heal()


async def test_a_client_that_breaks_the_protocol_costs_the_others_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its receipt is committed when it has been told why and the socket is half-closed; the others get theirs."""
    monkeypatch.setattr("amq.journal.journal.INLINE_SYNC_S_MAX", -1.0)  # as on a slow disk
    vfs = FaultyVfs()
    hang = Hang()
    async with services(tmp_path) as world:
        _, port = await world.master("a", vfs=vfs)
        clients = [await world.connect(port) for _ in range(4)]
        for client in clients:
            await client.store(b"warm up")
        vfs.before("fdatasync", hang, path=".seg")
        for number, client in enumerate(clients):
            await client.send("SEND", ("destination", "/queue/a"), ("receipt", f"r{number}"), body=b"x")
        await until(hang.hung.is_set)
        rude = clients[1]
        await rude.send("NONSENSE")
        while (await rude.receive()).command != "ERROR":
            pass
        hang.release.set()
        for number, client in enumerate(clients):
            if client is not rude:
                assert (await client.receive()).headers["receipt-id"] == f"r{number}"


async def test_what_is_due_does_not_wait_for_the_upkeep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The alarm wakes the broker: here the upkeep never would."""
    monkeypatch.setattr(amq.node.mastership, "UPKEEP_S", 3600.0)
    async with services(tmp_path) as world:
        _, port = await world.master("a")
        client = await world.connect(port)
        await client.subscribe()
        delayed = (("destination", "/queue/a"), ("AMQ_SCHEDULED_DELAY", "100"))
        await client.send("SEND", *delayed, body=b"later")
        assert (await client.receive()).body == b"later"


@pytest.mark.parametrize(
    ("prepare", "code"),
    [
        (lambda store: (store / "journal").mkdir(parents=True), None),
        (lambda store: store.write_text("a file"), "STORE_UNUSABLE"),
        (lambda store: _foreign(store), "STORE_INCOMPLETE"),
    ],
)
async def test_what_is_in_the_place_of_the_store(
    tmp_path: Path, prepare: Callable[[Path], object], code: str | None
) -> None:
    async with services(tmp_path) as world:
        prepare(world.store)
        service, _ = await world.start()
        await asyncio.wait_for(service.wait_for(Role.MASTER), DEADLINE_S)
        assert (service.failure and service.failure.code) == code
        assert service.role is (Role.STOPPED if code else Role.MASTER)


def _foreign(store: Path) -> None:
    (store / "journal").mkdir(parents=True)
    (store / "journal" / "00000001-00000001.seg").write_bytes(b"MZ not ours" * 50)
    (store / "epochs").mkdir()


async def test_store_that_fails_for_a_while_is_tried_again(tmp_path: Path) -> None:
    vfs = FaultyVfs(SystemVfs())
    async with services(tmp_path) as world:
        service, port = await world.master("a", vfs=vfs)
        vfs.fail("pwrite", errno.ESTALE, path="/lock", times=0)
        await until(lambda: service.role is Role.SLAVE)
        vfs.heal()
        await until(lambda: service.role is Role.MASTER)
        client = await world.connect(port)
        await client.store(b"x")


async def test_a_disk_that_is_full_during_a_takeover_is_tried_again(tmp_path: Path) -> None:
    """A slave that ended because of it would be missing when there is room again."""
    vfs = FaultyVfs(SystemVfs())
    async with services(tmp_path) as world:
        first, _ = await world.master("a")
        second, port = await world.start("b", vfs=vfs)
        await until(lambda: second.role is Role.SLAVE)
        vfs.fail("pwrite", errno.ENOSPC, path="/claim", times=0)
        await first.stop()
        await until(lambda: sum(call == ("pwrite", str(world.store / "claim")) for call in vfs.calls) > 1)
        assert second.role is Role.SLAVE
        vfs.heal()
        await until(lambda: second.role is Role.MASTER)
        client = await world.connect(port)
        await client.store(b"x")


async def master_and_slave(world: Services, vfs: FaultyVfs) -> tuple[Member, Member]:
    """One that has stored something, and one that waits for the lock on `vfs`."""
    first, port = await world.master("a")
    await (await world.connect(port)).store(b"x")
    second, _ = await world.start("b", vfs=vfs)
    await until(lambda: second.role is Role.SLAVE)
    return first, second


@pytest.mark.parametrize("fault", [("pwrite", errno.ENOSPC, ".tmp"), ("fsync", errno.EIO, ".seg")])
async def test_a_takeover_that_fails_lets_the_old_segments_go(tmp_path: Path, fault: tuple[str, int, str]) -> None:
    """Else their locks are held, and the space of those that a master deletes is not free, as long as this one runs."""
    method, number, path = fault
    vfs = FaultyVfs()
    async with services(tmp_path) as world:
        first, second = await master_and_slave(world, vfs)
        vfs.fail(method, number, path=path, times=2)
        with structlog.testing.capture_logs() as logs:
            await first.stop()
            await until(lambda: second.role is Role.MASTER)
        assert sum(log["event"] == "store not usable now, trying again" for log in logs) == 2
        assert not any("still locked" in log["event"] for log in logs)
        await second.stop()
        assert not [found for found in open_files() if found.startswith(str(tmp_path)) and found.endswith(".seg")]


async def test_where_a_name_is_not_free_while_the_file_is_open_nobody_takes_it_away(tmp_path: Path) -> None:
    """On SMB the name of the lock file would stay, and lead nowhere, until the master that hangs has gone."""
    vfs = FaultyVfs()
    vfs.answer("frees_names", False)
    async with services(tmp_path) as world:
        world.period_s = 0.1
        world.store.mkdir()
        held = SystemVfs.open(str(world.store / "lock"), os.O_RDWR | os.O_CREAT)
        assert SystemVfs().try_lock(held)
        with structlog.testing.capture_logs() as logs:
            slave, _ = await world.start(vfs=vfs)
            slave.reconfigure(replace(slave.config, hung_master_timeout_s=0.1))
            await until(lambda: any(log["event"] == HUNG_ON_SMB for log in logs))
        assert slave.role is Role.SLAVE
        assert ("unlink", str(world.store / "lock")) not in vfs.calls
        os.close(held)
        await until(lambda: slave.role is Role.MASTER)


async def test_options_that_change_while_the_journal_is_read_apply(tmp_path: Path) -> None:
    vfs = FaultyVfs()
    async with services(tmp_path) as world:
        first, second = await master_and_slave(world, vfs)
        changed = replace(second.config, prefetch_size=7)
        loop = asyncio.get_running_loop()

        def reload() -> None:
            loop.call_soon_threadsafe(second.reconfigure, changed)

        vfs.after("link", lambda: vfs.before("open", reload, path=".seg"), path=".tmp")
        await first.stop()
        await until(lambda: second.role is Role.MASTER)
        assert second.config is changed
        assert second.master is not None
        assert second.master.broker.state.options_of("queue://a").prefetch_size == 7


async def test_a_slave_that_is_wrong_about_the_journal_does_not_make_it_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = Followed(name="00000001-00000001.seg", offset=HEADER_BYTES + 1, number=1)
    async with services(tmp_path) as world:
        first, port = await world.master("a")
        client = await world.connect(port)
        for body in (b"1", b"2", b"3"):
            await client.store(body)
        second, other_port = await world.start("b")
        await until(lambda: second.role is Role.SLAVE)
        monkeypatch.setattr("amq.node.following.Following.followed", lambda *_: wrong)
        with structlog.testing.capture_logs() as logs:
            await first.stop()
            await until(lambda: second.role is not Role.SLAVE)
            assert await asyncio.wait_for(second.wait_for(Role.MASTER), DEADLINE_S) is Role.MASTER, second.failure
        assert sum("measuring all of it" in log["event"] for log in logs) == 1
        successor = await world.connect(other_port)
        await successor.subscribe()
        assert [(await successor.receive()).body for _ in range(3)] == [b"1", b"2", b"3"]


async def test_a_close_that_fails_keeps_no_lock(tmp_path: Path) -> None:
    """A soft mount that is cut off. The lock was kept, and the broker stopped: its locker was still a master's."""
    vfs = FaultyVfs()

    def fail() -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    async with services(tmp_path) as world:
        first, second = await master_and_slave(world, vfs)
        await first.stop()
        await until(lambda: second.role is Role.MASTER)
        roles: list[Role] = []
        second.events.listen(RoleChanged, lambda event: roles.append(Role(event.role)))
        vfs.fail("fdatasync", path=".seg")
        vfs.after("close", fail, path=".seg", times=0)
        client = await world.connect(world.made[-1][1])
        await client.send("SEND", ("destination", "/queue/a"), ("receipt", "r"))
        await until(lambda: Role.SLAVE in roles)
        vfs.heal()
        await until(lambda: Role.STOPPED in roles or Role.MASTER in roles)
        assert second.role is Role.MASTER, second.failure
        await second.stop()
        assert not [found for found in open_files() if found.startswith(str(tmp_path)) and found.endswith(".seg")]


async def test_a_hand_over_raises_no_alarm(tmp_path: Path) -> None:
    """While the store is released nobody is served: a lease that ends then is not a fence."""
    vfs, period_s = FaultyVfs(SystemVfs()), 3.0

    def watchdogs() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name == "amq-watchdog"]

    async with services(tmp_path) as world:
        world.period_s = period_s
        service, _ = await world.master("a", vfs=vfs)

        def take_long() -> None:
            deadline = time.monotonic() + period_s
            while service.master is None and time.monotonic() < deadline and watchdogs():
                time.sleep(period_s / 1000)

        vfs.before("pwrite", take_long, path="/lock", times=0)
        with structlog.testing.capture_logs() as logs:
            await service.stop()
        assert [line for line in logs if line["event"].startswith("store released")]
        ours = [line for line in logs if not line["event"].startswith("InotifyEmitter")]  # watchdog stops in a race
        assert not [line for line in ours if line["log_level"] in ("error", "critical")], logs


async def test_a_takeover_that_takes_long_says_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(amq.node.takeover, "TELL_AFTER_S", 0.0)
    told: list[BrokerPresence] = []
    tell = Presence.tell

    def seen(presence: Presence, *args: Any) -> bool:
        due = tell(presence, *args)
        told.extend(read_presence(FileBoard(SystemVfs(), str(tmp_path / "store"))))
        return due

    monkeypatch.setattr(Presence, "tell", seen)
    async with services(tmp_path) as world:
        first, port = await world.master("a")
        client = await world.connect(port)
        await client.store(b"message")
        await first.stop()
        told.clear()
        second, _ = await world.start("b")
        heard: list[dict[str, Any]] = []
        second.events.listen(JournalRead, lambda event: heard.append(asdict(event)))
        assert await asyncio.wait_for(second.wait_for(Role.MASTER), DEADLINE_S) is Role.MASTER
        (reading,) = heard
        assert reading["read_bytes"] == reading["of_bytes"] > len(b"message")
        assert reading["messages"] == 1
        assert [(broker.name, broker.role, broker.details) for broker in told] == [("b", "slave", {"reading": reading})]


async def test_a_piece_of_the_journal_that_takes_longer_than_the_lease_to_read_costs_no_mastership(
    tmp_path: Path,
) -> None:
    """The replay pauses in one read until the lease was checked for more than three periods."""
    vfs = FaultyVfs()
    checked = threading.Event()
    checks: list[str] = []

    def hang() -> None:
        vfs.after("fsync", count, path="/lock", times=0)
        assert checked.wait(DEADLINE_S)

    def count() -> None:
        checks.append("check")
        if len(checks) > 9:
            checked.set()

    async with services(tmp_path) as world:
        await world.leave_one_message()
        world.period_s = 1.0
        roles: list[Role] = []
        vfs.after("link", lambda: vfs.before("pread", hang, path=".seg"))
        second, port = await world.start("b", vfs=vfs)
        second.events.listen(RoleChanged, lambda event: roles.append(Role(event.role)))
        await until(lambda: second.role is Role.MASTER)
        assert checked.is_set()
        assert roles == [Role.SLAVE, Role.MASTER]
        assert [epoch.number for epoch in FileEpochs(SystemVfs(), str(world.store)).all()] == [1, 2]
        again = await world.connect(port)
        await again.subscribe()
        assert (await again.receive()).body == b"kept"


@pytest.mark.deep
async def test_a_replay_that_hangs_in_the_store_gives_the_mastership_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checks go through: without a limit nobody would ever serve."""
    monkeypatch.setattr(amq.node.takeover, "CALL_S_MAX", 0.5)
    vfs = FaultyVfs()
    replaced = threading.Event()

    def hang() -> None:
        assert replaced.wait(DEADLINE_S)

    async with services(tmp_path) as world:
        await world.leave_one_message()
        world.period_s = 1.0
        vfs.after("link", lambda: vfs.before("pread", hang, path=".seg"))
        with structlog.testing.capture_logs() as log:
            second, _ = await world.start("b", vfs=vfs, hosting=Hosting(replaced.set))
            await until(lambda: second.role is Role.MASTER)
        assert replaced.is_set(), "the watchdog replaces a process with a thread that hangs"
        reasons = [line["reason"] for line in log if line["event"].startswith("mastership lost")]
        assert len(reasons) == 1
        assert "hung in the store" in reasons[0]


async def test_a_replay_ends_when_the_mastership_does(tmp_path: Path) -> None:
    """A foreign claim appears while the journal is read: the replay stops at its next piece, and nobody is served."""
    vfs = FaultyVfs()
    lost = threading.Event()

    def seize() -> None:
        claim = tmp_path / "store" / "claim"
        mine = claim.read_bytes()
        claim.write_bytes(bytes(len(mine)))
        lost.wait(DEADLINE_S)

    async with services(tmp_path) as world:
        await world.leave_one_message()
        vfs.after("link", lambda: vfs.before("pread", seize, path=".seg"))
        with structlog.testing.capture_logs() as log:
            second, _ = await world.start("b", vfs=vfs)
            await until(lambda: any(line["event"].startswith("fencing") for line in log))
            lost.set()
            await until(lambda: second.role is Role.MASTER)
        assert [epoch.number for epoch in FileEpochs(SystemVfs(), str(world.store)).all()][:2] == [1, 2]
        assert sum(line["event"].startswith("master: serving") for line in log) == 1


async def ready_slave(world: Services) -> tuple[Member, Member]:
    """A master, and a slave that has followed it."""
    master, port = await world.master("a")
    client = await world.connect(port)
    for _ in range(3):
        await client.store(b"kept")
    slave, _ = await world.start("b")
    await until(lambda: slave.lag.messages == 2)
    return master, slave


async def test_options_and_rights_that_change_at_a_slave_hold_when_it_is_master(tmp_path: Path) -> None:
    async with services(tmp_path) as world:
        master, slave = await ready_slave(world)
        slave.reconfigure(replace(slave.config, queue_limit_bytes=12_345))
        slave.permit(Permissions((), {}))
        await master.stop()
        await asyncio.wait_for(slave.wait_for(Role.MASTER), DEADLINE_S)
        assert slave.master is not None
        broker = slave.master.broker
        assert broker.config is slave.config
        assert broker.state.queues["queue://a"].limit_bytes == 12_345
        assert not broker.access.may(User("anybody"), Action.CONSUME, "queue://a")


async def test_a_slave_that_finds_its_journal_wrong_serves_from_what_it_reads_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that it has made ahead of time is for the wrong state."""
    finish = Follower.finish

    def diverge(follower: Follower, *arguments: Any) -> Recovered:
        if follower.read_bytes:
            raise DivergedError("a place that the master never wrote")
        return finish(follower, *arguments)

    async with services(tmp_path) as world:
        master, slave = await ready_slave(world)
        monkeypatch.setattr(Follower, "finish", diverge)
        with structlog.testing.capture_logs() as log:
            await master.stop()
            await asyncio.wait_for(slave.wait_for(Role.MASTER), DEADLINE_S)
        assert "the journal as followed cannot be used: reading all of it" in [line["event"] for line in log]
        assert slave.master is not None
        assert slave.master.broker.state.stored == 3


async def test_a_slave_that_stops_leaves_nothing_at_the_entrance(tmp_path: Path) -> None:
    """All members of a node share it, and they come and go."""

    class Counting(Entrance):
        tables = made = 0

        def serve(self, connections: MutableMapping[int, Peer]) -> None:
            super().serve(connections)
            self.tables += 1
            self.made += 1

        def leave(self, connections: MutableMapping[int, Peer]) -> None:
            super().leave(connections)
            self.tables -= 1

    async with services(tmp_path) as world:
        await world.master("a")
        entrance = Counting(SystemClock(), lambda: world.made[0][0].config)
        for _ in range(2):
            made = entrance.made
            slave, _ = await world.start("b", hosting=Hosting(entrance=entrance))
            await until(lambda made=made: entrance.made > made)
            slave.permit(None)
            await slave.stop()
            assert entrance.tables == 0
