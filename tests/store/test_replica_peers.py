"""The network between members of a group: what passes, who is refused, and what a slow or silent one costs others."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
import structlog

from amq.core.errors import ConfigError, StoreError
from amq.doors.threads import SystemThreads
from amq.store.open import open_coordinator
from amq.store.replica import peer_network, peer_socket, roster
from amq.store.replica.messages import TO_A_COPY, Append, AskPromise, RefusedBallot, SegmentWrite, Stored
from amq.store.replica.peer_hello import HELLO_BYTES, MemberName, PeerHello
from amq.store.replica.peer_network import STRANGERS_MAX, PeerNetwork, PeerSettings
from amq.store.replica.peer_tls import PeerTls
from amq.store.replica.peers import open_peers
from amq.store.replica.url import ReplicaUrl
from amq.store.replica.wire import Framer
from tests.certificates import Authority, needs_openssl
from tests.cluster.cables import HOST as CABLE_HOST
from tests.cluster.cables import Cables
from tests.patience import DEADLINE_S

SECRET = b"sixteen bytes at least"
QUICK_BEAT_S = 0.05


def until(condition: Callable[[], Any]) -> Any:
    """Wait until `condition` holds."""
    never = threading.Event()
    for _ in range(int(DEADLINE_S * 100)):
        found = condition()
        if found:
            return found
        never.wait(0.01)
    raise AssertionError("it never came to that")


class Copy:
    """A member whose copy answers with how far it is, and notes what comes. `gate` holds it back."""

    def __init__(self, me: str, *, secret: bytes = SECRET, group: str = "fish", tls: PeerTls | None = None) -> None:
        self.me = me
        self.taken: list[tuple[str, Any]] = []
        self.answers: list[tuple[str, Any]] = []
        self.heard_in = 0  # the thread that took the last one
        self.gate = threading.Event()
        self.gate.set()
        host = "localhost" if tls is not None else "127.0.0.1"
        settings = PeerSettings(me, group, (host, 0), "", secret, tls)
        self.network = PeerNetwork(settings, self._receive, SystemThreads(), Random(me))
        self.network.start()
        self.port = int(self.network.address.rpartition(":")[2])
        self.dialled = f"{host}:{self.port}"

    def _receive(self, sender: str, message: Any, answer: Callable[[Any], None]) -> None:
        if not isinstance(message, TO_A_COPY):
            self.heard_in = threading.get_ident()
            self.answers.append((sender, message))
            return
        self.gate.wait(DEADLINE_S)
        self.taken.append((sender, message))
        answer(Stored(message.term, message.upto) if isinstance(message, Append) else RefusedBallot(9))


@contextmanager
def copies(*made: Copy, strange: bool = False) -> Iterator[None]:
    """They know each other, or are `strange`."""
    try:
        if not strange:
            meet(*made)
        yield
    finally:
        for each in made:
            each.gate.set()
            each.network.close()


def meet(*made: Copy) -> None:
    for each in made:
        each.network.meet({other.me: other.dialled for other in made})


def connected(*made: Copy) -> None:
    everyone = frozenset(each.me for each in made)
    until(lambda: all(each.network.members() == everyone - {each.me} for each in made))


def write(number: int, data: bytes = b"abc") -> Append:
    return Append(7, 7, number, number + 1, SegmentWrite("7-1", number, data))


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_network, "BEAT_S", QUICK_BEAT_S)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def tls_of(authority: Authority, name: str, trust: Path | None = None) -> PeerTls:
    pair = authority.pair(name)
    return PeerTls(str(trust or authority.trust), str(pair.certificate), str(pair.key))


# -- what passes -------------------------------------------------------------------------------------------------------


def test_messages_and_answers_pass_in_order() -> None:
    a, b, c = Copy("a"), Copy("b"), Copy("c")
    with copies(a, b, c):
        connected(a, b, c)
        large = write(100, os.urandom(3 << 20))
        for other in "bc":
            assert a.network.send(other, AskPromise(9))
            for number in range(50):
                assert a.network.send(other, write(number))
            assert a.network.send(other, large)
        assert b.network.send("c", AskPromise(10))
        until(lambda: len(a.answers) == 104 and b.answers)
        sent = [("a", each) for each in (AskPromise(9), *map(write, range(50)), large)]
        assert b.taken == sent
        assert [each for each in c.taken if each[0] == "a"] == sent
        answered = [RefusedBallot(9), *(Stored(7, number + 1) for number in range(50)), Stored(7, 101)]
        assert [message for member, message in a.answers if member == "b"] == answered
        assert b.answers == [("c", RefusedBallot(9))]


@needs_openssl
def test_messages_pass_over_tls(authority: Authority) -> None:
    a, b = (Copy(name, secret=b"", tls=tls_of(authority, name)) for name in "ab")
    with copies(a, b):
        connected(a, b)
        large = write(1, os.urandom(3 << 20))
        for message in (write(0), large, write(2)):
            a.network.send("b", message)
        until(lambda: len(a.answers) == 3)
        assert b.taken == [("a", write(0)), ("a", large), ("a", write(2))]


class LikeUvloop(asyncio.SelectorEventLoop):
    """A socket that it reads does not block any more, as with uvloop."""

    def add_reader(self, fd: Any, callback: Callable[..., Any], *args: Any) -> None:
        os.set_blocking(fd, False)
        super().add_reader(fd, callback, *args)


@contextmanager
def running_loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = LikeUvloop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        yield loop
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def ask(copy: Copy, other: str) -> int:
    """Have `other` answer. Returns the thread that took the answer."""
    before = len(copy.answers)
    until(lambda: copy.network.send(other, AskPromise(9)))
    until(lambda: len(copy.answers) > before)
    return copy.heard_in


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("is_encrypted", [False, pytest.param(True, marks=needs_openssl)])
def test_answers_are_taken_in_an_event_loop_as_long_as_it_is_given(
    request: pytest.FixtureRequest, is_encrypted: bool
) -> None:
    authority = request.getfixturevalue("authority") if is_encrypted else None
    a, b = (Copy(each, tls=tls_of(authority, each) if authority else None) for each in "ab")
    with running_loop() as loop, copies(a, b):
        connected(a, b)
        thread = heard_on(loop, a)
        a.answers.clear()
        for number in range(500):
            a.network.send("b", write(number))
        until(lambda: len(a.answers) == 500)
        assert [message.position for _, message in a.answers] == [*range(1, 501)]
        sock = a.network._diallers["b"].sock
        assert sock is not None
        sock.cut()
        until(lambda: a.network._diallers["b"].sock not in (sock, None))
        until(lambda: ask(a, "b") == thread)
        loop.call_soon_threadsafe(a.network.hear_on, None)
        until(lambda: ask(a, "b") != thread)
        for _ in range(3):
            assert ask(a, "b") != thread


def heard_on(loop: asyncio.AbstractEventLoop, a: Copy) -> int:
    """Lend the answers of member b to `loop`. Returns the thread of `loop`, which has taken one."""
    thread = asyncio.run_coroutine_threadsafe(_ident(), loop).result()
    loop.call_soon_threadsafe(a.network.hear_on, loop)
    until(lambda: ask(a, "b") == thread)
    return thread


async def _ident() -> int:
    return threading.get_ident()


@pytest.mark.usefixtures("quick")
def test_answers_are_taken_while_the_event_loop_is_busy() -> None:
    a, b = Copy("a"), Copy("b")
    with running_loop() as loop, copies(a, b):
        connected(a, b)
        thread = heard_on(loop, a)
        may_go = threading.Event()
        loop.call_soon_threadsafe(may_go.wait, DEADLINE_S)
        for _ in range(10):
            assert ask(a, "b") != thread
        may_go.set()
        until(lambda: ask(a, "b") == thread)


def test_a_member_that_an_event_loop_reads_may_be_slow() -> None:
    a, b = Copy("a"), Copy("b")
    with running_loop() as loop, copies(a, b):
        connected(a, b)
        heard_on(loop, a)
        sock = a.network._diallers["b"].sock
        assert sock is not None
        b.gate.clear()
        number = 0
        while not sock.waiting_bytes:
            a.network.send("b", write(number, bytes(1 << 20)))
            number += 1
        b.gate.set()
        until(lambda: len(b.taken) > number)
        assert a.network._diallers["b"].sock is sock


@pytest.mark.usefixtures("quick")
def test_a_network_ends_while_an_event_loop_reads_it() -> None:
    a, b = Copy("a"), Copy("b")
    with running_loop() as loop:
        with copies(a, b):
            connected(a, b)
            thread = heard_on(loop, a)
        until(lambda: not a.network._running)  # a thread that has just begun is not waited for
        assert asyncio.run_coroutine_threadsafe(_ident(), loop).result() == thread


def test_a_member_that_comes_back_elsewhere_is_dialled_there() -> None:
    a, b = Copy("a"), Copy("b")
    with copies(a, b):
        connected(a, b)
        b.network.close()
        until(lambda: not a.network.members())
        again = Copy("b")
        with copies(again):
            meet(a, again)
            connected(a, again)
        (state,) = a.network.states()
        assert (state.member, state.address) == ("b", again.dialled)


def test_a_member_whose_process_has_ended_is_gone_until_it_is_back() -> None:
    a, b = Copy("a"), Copy("b")
    with copies(a, b):
        a.network.meet({"b": b.dialled, "never": b.dialled.rpartition(":")[0] + ":1"})
        connected(a, b)
        assert not a.network.gone()
        b.network.close()
        until(lambda: a.network.gone() == {"b"})
        a.network.meet({})  # the roster has noticed, too
        assert a.network.gone() == {"b"}
        again = Copy("b")
        with copies(again):
            meet(a, again)
            connected(a, again)
            assert not a.network.gone()


def test_a_connection_that_flaps_makes_no_member_gone() -> None:
    a, b = Copy("a"), Copy("b")
    with copies(a, b):
        for _ in range(5):
            connected(a, b)
            sock = a.network._diallers["b"].sock
            assert sock is not None
            sock.cut()
            until(lambda before=sock: a.network._diallers["b"].sock not in (before, None))
            assert not a.network.gone()


# -- who is refused ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("other", "cure"),
    [
        ({"secret": b"another secret, as long"}, "give all members of the group the same secretFile"),
        ({"group": "bird"}, "give both the same group"),
    ],
    ids=["secret", "group"],
)
def test_a_wrong_member_is_told_once_with_a_cure(other: dict[str, Any], cure: str) -> None:
    with structlog.testing.capture_logs() as logs:
        a, b = Copy("a"), Copy("b", **other)
        with copies(a, b):
            refused = until(lambda: [each for each in logs if each["event"] == "a member's connection was refused"])
            until(lambda: cure in a.network.states()[0].reason)
            until(lambda: a.network._refused + b.network._refused > 5)  # they try again
            assert not a.network.members() | b.network.members()
    assert cure in refused[0]["reason"]
    assert refused[0]["code"] == "PEER_REFUSED"
    told = [each for each in logs if each["event"] == "a member cannot be reached" and each["member"] == "b"]
    assert len(told) == 1, told
    assert told[0]["code"] == "PEER_REFUSED"
    assert not a.taken + b.taken


@needs_openssl
def test_a_certificate_of_another_authority_is_refused(authority: Authority, tmp_path: Path) -> None:
    stranger = Authority(tmp_path / "stranger")
    a = Copy("a", tls=tls_of(authority, "a1"))
    b = Copy("b", tls=tls_of(stranger, "b1", authority.trust))  # it trusts the others
    with copies(a, b), structlog.testing.capture_logs() as logs:
        (at_a,) = until(lambda: [each for each in a.network.states() if "certificate" in each.reason])
        assert "is refused" in at_a.reason
        assert "set caFile" in at_a.reason
        until(lambda: [each for each in logs if each["event"] == "a member's connection was refused"])
        assert not a.network.members() | b.network.members()


@needs_openssl
def test_without_a_certificate_nothing_is_said(authority: Authority) -> None:
    a = Copy("a", tls=tls_of(authority, "a2"))
    with copies(a), closing(socket.create_connection(("localhost", a.port))) as sock:
        sock.sendall(hello("x", "a").begin() + b"x" * 32)
        sock.settimeout(DEADLINE_S)
        with suppress(ConnectionResetError):
            assert len(sock.recv(4096)) < HELLO_BYTES, "no hello, at most the alert of TLS"


def hello(me: str, wanted: str, secret: bytes = SECRET) -> PeerHello:
    return PeerHello(MemberName("fish", me), secret, os.urandom(32), wanted)


def drained(sock: socket.socket) -> bytes:
    """What comes until the other end has closed."""
    sock.settimeout(DEADLINE_S)
    data = b""
    with suppress(ConnectionResetError):
        while part := sock.recv(1 << 16):
            data += part
    return data


@pytest.mark.parametrize("said", [b"GET / HTTP/1.1\r\n\r\n" * 30, b"\0" * 1000, b"AMQCOPY\n" + b"\xff" * 1000])
def test_garbage_ends_the_connection(said: bytes) -> None:
    a = Copy("a")
    with copies(a), closing(socket.create_connection(("127.0.0.1", a.port))) as sock:
        sock.sendall(said)
        assert len(drained(sock)) <= HELLO_BYTES
        assert not a.taken


def test_a_stranger_that_floods_costs_nothing() -> None:
    """What comes behind a hello is not read before the proof was right."""
    a = Copy("a")
    with copies(a), closing(socket.create_connection(("127.0.0.1", a.port))) as sock:
        stranger = hello("x", "a", b"not the right secret at all")
        sock.sendall(stranger.begin())
        sock.settimeout(DEADLINE_S)
        stranger.hear(sock.recv(HELLO_BYTES, socket.MSG_WAITALL))
        frame = b"".join(Framer().framed(write(0)).pieces)
        with suppress(BrokenPipeError, ConnectionResetError):
            sock.sendall(stranger.prove() + frame * 100_000)
        drained(sock)
        assert not a.taken


@pytest.mark.usefixtures("quick")
def test_garbage_behind_the_proof_ends_the_connection_alone() -> None:
    a, b = Copy("a"), Copy("b")
    with copies(a, b), structlog.testing.capture_logs() as logs:
        connected(a, b)
        with closing(socket.create_connection(("127.0.0.1", a.port))) as sock:
            other = hello("x", "a")
            sock.sendall(other.begin())
            sock.settimeout(DEADLINE_S)
            other.hear(sock.recv(HELLO_BYTES, socket.MSG_WAITALL))
            sock.sendall(other.prove())
            other.check(sock.recv(32, socket.MSG_WAITALL))
            sock.sendall(b"\xff" * 100)
            drained(sock)
        until(lambda: [each for each in logs if each.get("code") == "PEER_BROKEN"])
        b.network.send("a", write(0))
        until(lambda: b.answers)


@pytest.mark.usefixtures("quick")
def test_a_slow_hello_is_cut() -> None:
    a = Copy("a")
    with copies(a), closing(socket.create_connection(("127.0.0.1", a.port))) as sock:
        sock.settimeout(QUICK_BEAT_S)
        said, at = hello("x", "a").begin(), 0
        never = threading.Event()
        with pytest.raises((ConnectionError, EOFError)):
            while True:
                sock.sendall(said[at : at + 1])
                at = min(at + 1, HELLO_BYTES - 2)
                never.wait(QUICK_BEAT_S / 2)
        until(lambda: not a.network._hellos)


def test_a_member_comes_in_through_a_flood_of_strangers() -> None:
    a = Copy("a")
    with copies(a), ExitStack() as flood:
        for _ in range(3 * STRANGERS_MAX):
            flood.enter_context(closing(socket.create_connection(("127.0.0.1", a.port))))
        until(lambda: a.network._hellos)
        b = Copy("b")
        with copies(b):
            meet(a, b)
            connected(a, b)
            assert len(a.network._strangers) <= STRANGERS_MAX


def test_strangers_that_come_and_go_leave_nothing() -> None:
    a = Copy("a")
    with copies(a):
        files, threads = len(os.listdir("/proc/self/fd")), threading.active_count()
        for number in range(100):
            with closing(socket.create_connection(("127.0.0.1", a.port))) as sock:
                sock.sendall(b"x" * (number % 3) * HELLO_BYTES)
        until(lambda: a.network._refused == 100 and len(a.network._running) == 2)
        until(lambda: threading.active_count() <= threads)
        assert len(os.listdir("/proc/self/fd")) <= files
    assert not a.network._running


# -- slow, silent, cut -------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("quick")
def test_a_slow_member_delays_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_socket, "WAITING_BYTES_MAX", 4 << 20)
    a, b, c = Copy("a"), Copy("b"), Copy("c")
    with copies(a, b, c):
        connected(a, b, c)
        b.gate.clear()
        data, sent = bytes(1 << 20), 0
        while a.network.send("b", write(sent, data)):  # the buffers of the system fill, then ours
            sent += 1
            assert sent < 1000
        states = {state.member: state for state in a.network.states()}
        assert states["b"].dropped == 1
        assert states["b"].waiting_bytes <= 4 << 20
        a.network.send("c", write(1, data))
        until(lambda: len(a.answers) == 1)
        assert not b.taken
        b.gate.set()
        until(lambda: len(a.answers) == 1 + sent)
        assert [message.after for _, message in b.taken] == [*range(sent)]
        assert a.network.send("b", write(sent))


@pytest.mark.usefixtures("quick")
def test_a_member_whose_disk_hangs_keeps_its_connection() -> None:
    a, b = Copy("a"), Copy("b")
    with copies(a, b):
        connected(a, b)
        b.gate.clear()
        a.network.send("b", write(0))
        ticks = b.network._ticks
        until(lambda: b.network._ticks > ticks + 2 * peer_network.SILENCE_TICKS)
        assert b.network._authors.keys() == {"a"}
        b.gate.set()
        until(lambda: a.answers)


@pytest.mark.usefixtures("quick")
def test_a_cut_cable_is_noticed_and_mended() -> None:
    a, b = Copy("a"), Copy("b")
    cables = Cables([b.port])
    try:
        with copies(a, b, strange=True), structlog.testing.capture_logs() as logs:
            a.network.meet({"b": f"{CABLE_HOST}:{b.port}"})
            until(lambda: cables._cables[b.port].wires)
            until(lambda: "b" in a.network.members())
            cables.cut(b.port)
            until(lambda: "b" not in a.network.members())
            assert not a.network.send("b", write(0))
            cables.mend(b.port)
            until(lambda: "b" in a.network.members())
            a.network.send("b", write(1))
            until(lambda: a.answers)
            cables.half_open(b.port)
            until(lambda: any("nothing was heard" in each.get("reason", "") for each in logs))
            until(lambda: "b" in a.network.members())
            a.network.send("b", write(2))
            until(lambda: len(a.answers) > 1)
    finally:
        cables.close()


# -- with a coordinator ------------------------------------------------------------------------------------------------


@pytest.fixture
def shared(tmp_path: Path) -> str:
    (tmp_path / "shared").mkdir()
    return f"file://{tmp_path / 'shared'}"


def url(tmp_path: Path, shared: str, more: str = "") -> ReplicaUrl:
    return ReplicaUrl.parse(f"replica://{tmp_path}?group=fish&coordinator={shared}{more}")


def test_members_find_each_other_at_the_coordinator(tmp_path: Path, shared: str) -> None:
    coordinator = open_coordinator(shared)
    came: list[tuple[str, Any]] = []

    def receive(sender: str, message: Any, answer: Callable[[Any], None]) -> None:
        came.append((sender, message))
        if isinstance(message, TO_A_COPY):
            answer(RefusedBallot(5))

    with ExitStack() as opened:
        a, b = (open_peers(name, coordinator, url(tmp_path, shared), receive, SystemThreads()) for name in "ab")
        opened.callback(a.close)
        opened.callback(b.close)
        until(lambda: a.members() == {"b"} and b.members() == {"a"})
        a.send("b", AskPromise(4))
        until(lambda: ("b", RefusedBallot(5)) in came)
        # The session of b is over, though b goes on: its seat comes back.
        found = coordinator.read("members/b")
        assert found is not None
        coordinator.remove("members/b", found.revision)
        until(lambda: coordinator.names("members") == ["a", "b"])
        assert coordinator.read("secret") is not None


def test_a_copied_directory_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, shared: str) -> None:
    monkeypatch.setattr(roster, "STEP_S", 0.2)
    coordinator = open_coordinator(shared)
    session = coordinator.open_session()
    try:
        session.hold("members/a", b"127.0.0.1:9 other")
        with pytest.raises(StoreError, match="another process keeps the copy a"):
            open_peers("a", coordinator, url(tmp_path, shared), lambda *_: None, SystemThreads())
    finally:
        session.close()


@pytest.mark.parametrize(
    ("content", "mode", "why"),
    [(b"short", 0o600, "has 5 bytes"), (SECRET, 0o644, "chmod 600"), (None, 0, "cannot be read")],
)
def test_a_secret_file_that_cannot_be_used(
    tmp_path: Path, shared: str, content: bytes | None, mode: int, why: str
) -> None:
    path = tmp_path / "secret"
    if content is not None:
        path.write_bytes(content)
        path.chmod(mode)
    with pytest.raises(ConfigError, match=why):
        open_peers(
            "a",
            open_coordinator(shared),
            url(tmp_path, shared, f"&secretFile={path}"),
            lambda *_: None,
            SystemThreads(),
        )


def test_an_address_of_everywhere_is_refused(tmp_path: Path, shared: str) -> None:
    with pytest.raises(ConfigError, match="set announced=HOST:PORT"):
        open_peers(
            "a",
            open_coordinator(shared),
            url(tmp_path, shared, "&listen=0.0.0.0:0"),
            lambda *_: None,
            SystemThreads(),
        )


def test_frames_of_several_writers_do_not_mix() -> None:
    """Two threads send on one connection; the socket takes parts."""
    a, b = Copy("a"), Copy("b")
    with copies(a, b):
        connected(a, b)
        writers = [
            threading.Thread(target=lambda: [a.network.send("b", write(n, os.urandom(70_000))) for n in range(20)])
            for _ in range(3)
        ]
        for each in writers:
            each.start()
        for each in writers:
            each.join()
        until(lambda: len(a.answers) == 60)
