"""A node and the processes that it starts: any program can be a member that says what a service manager expects."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from amq.cluster import supervisor
from amq.cluster.directory import Cluster, ClusterNode
from amq.cluster.moving import advance
from amq.cluster.placing import StoreSeen
from amq.cluster.removing import NOTE_FILE, remove_store
from amq.cluster.supervisor import Program, Supervisor
from tests.patience import DEADLINE_S

# It says that it is ready, notes each SIGHUP, and ends when its standard input does: with code 7 where a file says so.
MEMBER = """
import os, signal, socket, sys
notes, store = sys.argv[1], sys.argv[2]
def note(what):
    with open(notes, "a") as file:
        file.write(f"{store} {what} {os.getpid()}\\n")
signal.signal(signal.SIGHUP, lambda *_: note("hup"))
with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as door:
    door.sendto(b"READY=1\\nSTATUS=slave", os.environ["NOTIFY_SOCKET"])
note("began")
while os.read(0, 1):
    pass
note("ended")
sys.exit(7 if os.path.exists(f"{notes}.{store}.fails") else 0)
"""
# It answers each connection with its process id, and says how many it had.
GATEWAY = """
import json, os, select, signal, socket, sys
notes = sys.argv[1]
def note(what):
    with open(notes, "a") as file:
        file.write(f"gateway {what} {os.getpid()}\\n")
door = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
def say(text):
    door.sendto(text.encode(), os.environ["NOTIFY_SOCKET"])
((number,),) = json.loads(os.environ["GATEWAY_SOCKETS"])
listener, had = socket.socket(fileno=number), 0
say("READY=1\\nSTATUS=serving")
note("began")
while 0 not in (ready := select.select([0, listener], [], [])[0]):
    with listener.accept()[0] as client:
        client.sendall(str(os.getpid()).encode())
    had += 1
    say('X_AMQ_COUNTS={"connections": %d, "links": 1}' % had)
note("ended")
"""
MUTE = "import sys; open(sys.argv[1], 'a').write('began\\n'); sys.stdin.read()"
SILENT = f"""
import os, socket
with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as door:
    door.sendto(b"STATUS=slave", os.environ["NOTIFY_SOCKET"])
{MUTE}
"""
# It has read its configuration when it begins, and dies of a SIGHUP until it speaks, when a file lets it.
SLOW = """
import os, signal, socket, sys, time
notes, store = sys.argv[1:]
def note(what):
    with open(notes, "a") as file:
        file.write(f"{store} {what}\\n")
note("began")
while not os.path.exists(f"{notes}.go"):
    time.sleep(0.01)
signal.signal(signal.SIGHUP, lambda *_: note("hup"))
with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as door:
    door.sendto(b"STATUS=slave", os.environ["NOTIFY_SOCKET"])
while os.read(0, 1):
    pass
"""
BROKEN = "import sys; open(sys.argv[1], 'a').write('began\\n'); sys.exit(3)"


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster.create(str(tmp_path / "c"), {"s1": "", "s2": ""})


@pytest.fixture
def shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the members write what happens to them. The node looks at its cluster often."""
    monkeypatch.setattr(supervisor, "LOOK_S", 0.02)
    (tmp_path / "notes").touch()
    return tmp_path / "notes"


class Node:
    """A supervisor in this process. A context manager: it has stopped when its block is left, and `code` is its own."""

    def __init__(
        self,
        cluster: Cluster,
        notes: Path,
        program: str = MEMBER,
        name: str = "a",
        listener: socket.socket | None = None,
    ) -> None:
        self.notes = notes
        self.code: int | None = None
        self._seat = cluster.join(name, 1.0, "host", os.getpid())
        (notes.parent / "sockets").mkdir(exist_ok=True)
        self._supervisor = Supervisor(
            cluster,
            ClusterNode(name, True, host="host", pid=os.getpid()),
            self._seat,
            str(notes.parent / "sockets"),
            lambda store: [sys.executable, "-S", "-c", program, str(notes), store],
            os.environ,
            [Program([sys.executable, "-S", "-c", GATEWAY, str(notes)], [[listener]])] if listener is not None else [],
        )

    async def __aenter__(self) -> Node:
        self._task = asyncio.get_running_loop().create_task(self._supervisor.until_stopped())
        return self

    async def __aexit__(self, *_: object) -> None:
        if not self._task.done():
            os.kill(os.getpid(), signal.SIGTERM)
        self.code = await asyncio.wait_for(self._task, DEADLINE_S)
        self._seat.close()

    async def until(self, what: str, times: int = 1) -> list[str]:
        """Until the notes say `what` so many times; these lines."""
        return await until(
            lambda: [line for line in self.notes.read_text().split("\n") if line.startswith(what)], times
        )


async def until(found: Callable[[], list[Any]], times: int = 1) -> list[Any]:
    async with asyncio.timeout(DEADLINE_S):
        while len(lines := found()) < times:
            await asyncio.sleep(0.01)
    return lines


@pytest.fixture(autouse=True)
def signals() -> Iterator[None]:
    kept = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    yield
    for number, handler in kept.items():
        signal.signal(number, handler)


def pid_of(line: str) -> int:
    return int(line.split()[-1])


def test_every_store_has_a_member_and_all_end_with_the_node(cluster: Cluster, shown: Path) -> None:
    async def run() -> None:
        with capture_logs() as lines:
            async with Node(cluster, shown) as node:
                await until(lambda: [line for line in lines if line["event"] == "all processes of the node run"])
            assert node.code == 0
        assert {line.split()[0] for line in await node.until("s", 4)} == {"s1", "s2"}
        assert len(await node.until("s1 ended")) == len(await node.until("s2 ended")) == 1

    asyncio.run(run())


def test_a_member_that_dies_is_started_again_and_the_other_one_is_left_alone(cluster: Cluster, shown: Path) -> None:
    async def run() -> None:
        async with Node(cluster, shown) as node:
            (first,) = await node.until("s1 began")
            (other,) = await node.until("s2 began")
            os.kill(pid_of(first), signal.SIGKILL)
            assert pid_of((await node.until("s1 began", 2))[1]) != pid_of(first)
            assert await node.until("s2 began") == [other]

    asyncio.run(run())


def test_a_member_that_always_fails_is_started_after_longer_and_longer_pauses(
    cluster: Cluster, shown: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "PAUSE_S_MAX", 0.04)

    async def run() -> None:
        with capture_logs() as lines:
            async with Node(cluster, shown, BROKEN) as node:
                await node.until("began", 10)
                (seen,) = await until(lambda: [each for each in cluster.nodes() if len(each.failing) == 2])
                assert sorted(seen.failing) == ["s1", "s2"]
                assert seen.restarts > 0
            told = [line for line in lines if line["event"] == "a process of the node ends again and again"]
            assert sorted(line["store"] for line in told) == ["s1", "s2"]
            failed = [
                line
                for line in lines
                if line["event"].startswith("a process of the node has ended") and line["store"] == "s1"
            ]
        pauses = [line["pause_s"] for line in failed]
        assert pauses[:3] == [0.01, 0.02, 0.04]
        assert set(pauses[3:]) <= {0.04}
        assert failed[0]["how"] == "with exit code 3"
        assert node.code == 3

    monkeypatch.setattr(supervisor, "PAUSE_S_MIN", 0.01)
    asyncio.run(run())


def test_a_member_that_served_and_is_killed_waits_no_longer_each_time(
    cluster: Cluster, shown: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "STEADY_PAUSES", 0.0)

    async def run() -> None:
        with capture_logs() as lines:
            async with Node(cluster, shown) as node:
                for times in range(1, supervisor.FAILING_ENDS + 2):
                    began = await node.until("s1 began", times)
                    if times <= supervisor.FAILING_ENDS:
                        os.kill(pid_of(began[-1]), signal.SIGKILL)
                (seen,) = await until(lambda: [each for each in cluster.nodes() if each.failing])
                assert seen.failing == ("s1",), "its short pauses hide nothing"
        pauses = [line["pause_s"] for line in lines if line["event"].startswith("a process of the node has ended")]
        assert pauses == [supervisor.PAUSE_S_MIN] * supervisor.FAILING_ENDS

    monkeypatch.setattr(supervisor, "PAUSE_S_MIN", 0.01)
    asyncio.run(run())


@pytest.mark.parametrize(("program", "patience"), [(SILENT, "SILENT_S"), (MUTE, "STARTING_S")])
def test_a_member_that_says_nothing_is_killed(
    cluster: Cluster, shown: Path, monkeypatch: pytest.MonkeyPatch, program: str, patience: str
) -> None:
    monkeypatch.setattr(supervisor, patience, 0.05)

    async def run() -> None:
        with capture_logs() as lines:
            async with Node(cluster, shown, program):
                killed = await until(
                    lambda: [line for line in lines if line["event"].startswith("a process of the node has ended")]
                )
            assert killed[0]["how"] == "by signal SIGKILL"

    asyncio.run(run())


def test_a_member_that_starts_is_told_of_a_changed_share_at_its_first_word(cluster: Cluster, shown: Path) -> None:
    async def run() -> None:
        async with Node(cluster, shown, SLOW) as node:
            for store in ("s1", "s2"):
                await node.until(f"{store} began")
            with capture_logs() as lines:
                cluster.drain("a", True)
                await until(lambda: [line for line in lines if line["event"] == "the cluster has changed"])
            shown.with_name("notes.go").touch()
            for store in ("s1", "s2"):
                await node.until(f"{store} hup")
        assert len(await node.until("s1 began")) == len(await node.until("s2 began")) == 1

    asyncio.run(run())


def test_a_store_that_is_added_gets_a_member_and_a_changed_share_is_passed_on(cluster: Cluster, shown: Path) -> None:
    async def run() -> None:
        async with Node(cluster, shown) as node:
            await node.until("s1 began")
            await node.until("s2 began")
            cluster.add_store("s3")
            await node.until("s3 began")
            cluster.drain("a", True)
            for store in ("s1", "s2", "s3"):
                await node.until(f"{store} hup")

    asyncio.run(run())


def test_the_member_of_a_store_that_was_removed_ends_and_may_come_back(
    cluster: Cluster, shown: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "REMOVED_S", 0.05)

    async def check() -> None:
        async with Node(cluster, shown) as node:
            await node.until("s1 began")
            await node.until("s2 began")
            placement = remove_store(cluster, "s1", seen=lambda _: StoreSeen(1))
            for _ in range(2):
                placement = advance(cluster, lambda _, number=placement.number: StoreSeen(number))  # type: ignore[misc]
            assert placement.stores == ("s2",)
            await node.until("s1 ended")
            assert "s2 ended" not in shown.read_text()
            cluster.add_store("s1")
            await node.until("s1 began", 2)
        assert node.code == 0

    asyncio.run(check())
    assert "removed from the cluster" in (Path(cluster.directory) / "stores" / "s1" / NOTE_FILE).read_text()


def test_the_node_goes_on_where_its_cluster_cannot_be_read(cluster: Cluster, shown: Path) -> None:
    async def run() -> None:
        with capture_logs() as lines:
            async with Node(cluster, shown) as node:
                began = [*await node.until("s1 began"), *await node.until("s2 began")]
                table = Path(cluster.directory) / "tables" / "1.json"
                good = table.read_bytes()
                table.write_bytes(b"")
                await until(lambda: [line for line in lines if line["event"].startswith("the cluster cannot be read")])
                table.write_bytes(good)
                cluster.add_store("s3")
                await node.until("s3 began")
                assert [*await node.until("s1 began"), *await node.until("s2 began")] == began

    asyncio.run(run())


def test_the_exit_code_is_that_of_a_member_that_could_not_hand_over(cluster: Cluster, shown: Path) -> None:
    async def run() -> None:
        Path(f"{shown}.s2.fails").touch()
        async with Node(cluster, shown) as node:
            await node.until("s1 began")
            await node.until("s2 began")
        assert node.code == 7

    asyncio.run(run())


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as opened:
        yield opened


async def answer(port: int) -> int:
    """The process id of the gateway that answers there."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    async with asyncio.timeout(DEADLINE_S):
        told = await reader.read()
    writer.close()
    return int(told)


def test_a_client_that_comes_while_its_gateway_is_dead_is_answered_by_the_next_one(
    cluster: Cluster, shown: Path, listener: socket.socket
) -> None:
    async def run() -> None:
        port = listener.getsockname()[1]
        async with Node(cluster, shown, listener=listener) as node:
            (began,) = await node.until("gateway began")
            assert await answer(port) == pid_of(began)
            os.kill(pid_of(began), signal.SIGKILL)
            assert await answer(port) == pid_of((await node.until("gateway began", 2))[1])
            assert len(await node.until("s1 began")) == len(await node.until("s2 began")) == 1, "it is alone"

    asyncio.run(run())


def test_gateways_end_before_members_and_their_port_is_closed_first(
    cluster: Cluster, shown: Path, listener: socket.socket
) -> None:
    async def run() -> None:
        port = listener.getsockname()[1]
        async with Node(cluster, shown, listener=listener) as node:
            for what in ("gateway", "s1", "s2"):
                await node.until(f"{what} began")
        assert node.code == 0
        with pytest.raises(ConnectionRefusedError):
            await answer(port)
        ended = [line.split()[0] for line in shown.read_text().split("\n") if " ended " in line]
        assert ended[0] == "gateway"
        assert sorted(ended) == ["gateway", "s1", "s2"]

    asyncio.run(run())


def test_the_seat_of_a_node_shows_its_gateways(cluster: Cluster, shown: Path, listener: socket.socket) -> None:
    async def run() -> None:
        async with Node(cluster, shown, listener=listener) as node:
            (began,) = await node.until("gateway began")
            await node.until("s1 began")
            await answer(listener.getsockname()[1])

            def seen() -> list[Any]:
                (found,) = cluster.nodes()
                return [each for each in found.gateways if each.connections]

            assert [each[:3] for each in await until(seen)] == [(pid_of(began), 1, 1)]

    asyncio.run(run())
