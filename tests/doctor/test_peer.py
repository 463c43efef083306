"""Another host's hands: a peer in a thread here, and the same as a process in tests/cli/test_doctor.py."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from doctor_world import NFS4, NFS4_DEFAULT, LyingVfs, SampleMachine, by_topic, changed
from fakes import FakeHost

from amq.doctor import remote
from amq.doctor.clocks import PeerRate
from amq.doctor.examine import Outside, examine
from amq.doctor.finding import Level
from amq.doctor.peer import serve_peer
from amq.doctor.remote import HELLO, NotSharedError, PeerError, connect
from amq.store.files.vfs import SystemVfs, Vfs
from amq.store.host import SystemHost
from tests.patience import DEADLINE_S

RUN = "ab" * 16
NONCE = "cd" * 16


class Peer:
    """`serve_peer` in a thread, on another "host" with a separate boot unless said otherwise."""

    def __init__(
        self, directory: Path, vfs: Vfs | None = None, line: str = NFS4, host: Any = None, **doors: Any
    ) -> None:
        self.said: list[str] = []
        self.heard = threading.Event()
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self._doors = Outside(
            vfs=vfs or SystemVfs(), machine=SampleMachine(line), host=host or FakeHost("beta", "boot-2"), **doors
        )
        self._thread = threading.Thread(target=self._serve, args=(str(directory),))
        self._thread.start()

    def _serve(self, directory: str) -> None:
        try:
            serve_peer(self._server, directory, self._tell, self._doors)
        except OSError:
            return  # the listening socket was shut down: the end of the test

    def _tell(self, line: str) -> None:
        self.said.append(line)
        self.heard.set()

    def stop(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._server.close()


@pytest.fixture
def peer(tmp_path: Path) -> Iterator[Peer]:
    made = Peer(tmp_path)
    yield made
    made.stop()


def examined(directory: Path, peer: Peer, vfs: Vfs | None = None, line: str = NFS4) -> Any:
    doors = Outside(vfs=vfs or SystemVfs(), machine=SampleMachine(line), host=FakeHost())
    return examine(str(directory), [("127.0.0.1", peer.port)], doors)


def test_two_hosts(tmp_path: Path, peer: Peer) -> None:
    report = examined(tmp_path, peer)
    assert report.verdict.startswith("fit"), [str(finding) for finding in report.findings]  # a busy disk is slow
    found = by_topic(report.findings)
    assert "beta" in found["peer 127.0.0.1"].found
    assert found["lock, 127.0.0.1"].level is Level.OK
    assert found["link, 127.0.0.1"].level is Level.OK
    assert found["clock rate, 127.0.0.1"].level is Level.OK
    for who in ("127.0.0.1 reads", "127.0.0.1 writes"):
        assert found[f"close-to-open, {who}"].level is Level.OK
        assert report.measured[f"new_name_seen_s, {who}"]["stat"] is not None
    assert report.unreachable == {}
    assert list(tmp_path.iterdir()) == []
    assert peer.heard.wait(DEADLINE_S)
    assert peer.said == ["127.0.0.1: examined together"]


def test_locks_that_stay_on_each_host(tmp_path: Path) -> None:
    """What nolock and nobrl do: within a host all is well."""
    peer = Peer(tmp_path, LyingVfs("locks exclude nobody"))
    try:
        report = examined(tmp_path, peer)
    finally:
        peer.stop()
    found = by_topic(report.findings)
    assert found["lock, two processes"].level is Level.OK
    assert found["lock, 127.0.0.1"].level is Level.UNFIT
    assert report.verdict == "unfit"


def test_the_peer_reads_stale_content(tmp_path: Path) -> None:
    peer = Peer(tmp_path, LyingVfs("reads are stale"))
    try:
        found = by_topic(examined(tmp_path, peer).findings)
    finally:
        peer.stop()
    assert found["close-to-open, 127.0.0.1 reads"].level is Level.UNFIT
    assert found["close-to-open, 127.0.0.1 writes"].level is Level.OK


def test_the_peer_has_mounted_it_differently(tmp_path: Path) -> None:
    peer = Peer(tmp_path, line=changed(NFS4, "local_lock=all"))
    try:
        report = examined(tmp_path, peer)
    finally:
        peer.stop()
    assert by_topic(report.findings)["local_lock=none, on 127.0.0.1"].level is Level.UNFIT
    assert by_topic(report.findings)["local_lock=none"].level is Level.OK


def test_the_peer_is_this_host(tmp_path: Path) -> None:
    """Its warnings are ours: they are not told twice."""
    peer = Peer(tmp_path, host=FakeHost(), line=NFS4_DEFAULT)
    try:
        report = examined(tmp_path, peer, line=NFS4_DEFAULT)
    finally:
        peer.stop()
    assert by_topic(report.findings)["peer 127.0.0.1"].level is Level.WARNING
    assert not any(finding.topic.endswith(", on 127.0.0.1") for finding in report.findings)


def test_the_peer_has_another_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "HELLO_PATIENCE_S", 0.05)
    (tmp_path / "elsewhere").mkdir()
    peer = Peer(tmp_path / "elsewhere")
    try:
        report = examined(tmp_path, peer)
    finally:
        peer.stop()
    assert by_topic(report.findings)["same directory, 127.0.0.1"].level is Level.UNFIT


class Answering:
    """A peer that answers what time it is: `at_s` on its clock, after `takes_s` on ours."""

    def __init__(self, machine: SampleMachine) -> None:
        self.machine = machine
        self.at_s = 7000.0
        self.takes_s = 0.002

    def call(self, operation: str) -> float:
        assert operation == "time"
        self.machine.clocks["CLOCK_BOOTTIME"] += self.takes_s
        return self.at_s


@pytest.mark.parametrize(
    ("theirs_s", "takes_s", "level"),
    [
        (10.0, 0.002, Level.OK),
        (10.05, 0.002, Level.OK),
        (10.2, 0.002, Level.UNFIT),
        (9.8, 0.002, Level.UNFIT),
        (10.2, 0.3, Level.OK),
    ],
    ids=["same", "half a percent", "fast", "slow", "too far away to tell"],
)
def test_the_rate_of_another_clock(theirs_s: float, takes_s: float, level: Level) -> None:
    machine = SampleMachine(clocks={"CLOCK_BOOTTIME": 100.0})
    peer: Any = Answering(machine)
    rate = PeerRate(machine, peer)
    assert 0 < rate.left_s() <= 0.5
    machine.clocks["CLOCK_BOOTTIME"] = 110.0
    assert rate.left_s() == 0
    peer.at_s, peer.takes_s = 7000 + theirs_s, takes_s
    assert rate.judge("beta").level is level


def test_nobody_listens(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    report = examine(str(tmp_path), [("127.0.0.1", port)], Outside(machine=SampleMachine(NFS4)))
    assert "--as-peer" in report.unreachable["127.0.0.1"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 400 Bad Request\r\n",
        b"[]\n",
        b'{"result": 7}\n',
        b"{}\n",
        b'{"errno": "x"}\n',
        b'{"errno": 2, "error": "No such file or directory"}\n',
    ],
)
def test_something_else_listens(tmp_path: Path, answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def once() -> None:
            sock, _ = server.accept()
            with sock:
                sock.recv(4096)
                sock.sendall(answer)

        thread = threading.Thread(target=once)
        thread.start()
        report = examine(str(tmp_path), [server.getsockname()], Outside(machine=SampleMachine(NFS4)))
        thread.join()
    assert list(report.unreachable) == ["127.0.0.1"]


def test_who_cannot_write_here_gets_nothing_done(tmp_path: Path, peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "HELLO_PATIENCE_S", 0.05)
    with connect("127.0.0.1", peer.port) as hands:
        with pytest.raises(PeerError, match="hello first"):
            hands.call("put", "x", "text")
        with pytest.raises(NotSharedError):
            hands.hello(RUN, NONCE)
        (tmp_path / f"amq-doctor-{RUN}-{HELLO}").write_text("another nonce")
        with pytest.raises(NotSharedError):
            hands.hello(RUN, NONCE)
        with pytest.raises(PeerError, match="hello first"):
            hands.call("put", "x", "text")
        with pytest.raises(PeerError, match="cannot be done"):
            hands.hello("../../etc", NONCE)
        (tmp_path / f"amq-doctor-{RUN}-{HELLO}").write_text(NONCE)
        assert hands.hello(RUN, NONCE)["host"] == "beta"
        hands.call("put", "x", "text")
    assert (tmp_path / f"amq-doctor-{RUN}-x").read_text() == "text"


def test_whatever_is_asked_is_answered(tmp_path: Path, peer: Peer) -> None:
    (tmp_path / f"amq-doctor-{RUN}-{HELLO}").write_text(NONCE)
    hello = json.dumps({"hello": RUN, "nonce": NONCE, "version": remote.VERSION}).encode()
    questions = [
        b"",
        b"7",
        b"[]",
        b"null",
        b"{}",
        b"\xff",
        b'{"hello": 7}',
        b'{"do": 7}',
        hello,
        b'{"do": "put"}',
        b'{"do": "put", "with": 7}',
        b'{"do": "put", "with": []}',
        b'{"do": "__class__", "with": []}',
        b'{"do": "lock", "with": ["/etc/passwd"]}',
        b'{"do": "unlock", "with": ["x"]}',
        b"[" * 60_000,
        b'{"do": "put", "with": ["x", 7]}',
    ]
    with socket.create_connection(("127.0.0.1", peer.port)) as sock, sock.makefile("rwb") as stream:
        for question in questions:
            stream.write(question + b"\n")
            stream.flush()
            answer = json.loads(stream.readline())
            assert "refused" in answer or "result" in answer, question
    with connect("127.0.0.1", peer.port) as hands:  # and the next one is served
        assert hands.hello(RUN, NONCE)["boot_id"] == "boot-2"


def test_another_version(peer: Peer) -> None:
    with connect("127.0.0.1", peer.port) as hands:
        question = hands._ask({"hello": RUN, "nonce": NONCE, "version": 99})
        with pytest.raises(PeerError, match="same amq"):
            question()


def test_a_caller_that_goes_away_leaves_no_lock(tmp_path: Path, peer: Peer) -> None:
    (tmp_path / f"amq-doctor-{RUN}-{HELLO}").write_text(NONCE)
    with connect("127.0.0.1", peer.port) as hands:
        hands.hello(RUN, NONCE)
        assert hands.call("lock", "x")
    with connect("127.0.0.1", peer.port) as hands:
        hands.hello(RUN, NONCE)
        assert hands.call("lock", "x")


def test_who_introduces_itself_as_what(tmp_path: Path) -> None:
    peer = Peer(tmp_path, host=SystemHost())
    (tmp_path / f"amq-doctor-{RUN}-{HELLO}").write_text(NONCE)
    try:
        with connect("127.0.0.1", peer.port) as hands:
            told = hands.hello(RUN, NONCE)
    finally:
        peer.stop()
    assert told["host"] == SystemHost().name()
    assert told["mount"]["type"] == "nfs4"
    assert all(finding["topic"] for finding in told["findings"])


def test_a_host_name_that_cannot_be_one(tmp_path: Path) -> None:
    report = examine(str(tmp_path), [("a..b", 61612)], Outside(machine=SampleMachine(NFS4)))
    assert "label empty or too long" in report.unreachable["a..b"]
