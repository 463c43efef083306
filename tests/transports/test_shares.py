"""Shares: however much a client sends at once, and whatever it costs, others wait for a few of its commands only.

The clock of these tests goes on by 1 ms at each look, so a share of 3 ms is three looks, and what is done between two
of them is bounded by a number.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from random import Random

import pytest

from amq.broker.sessions.connection import LOOK_AFTER, ClientConnection
from amq.protocols.commands import Command
from amq.protocols.openwire import table
from amq.protocols.openwire.table import structure
from amq.transports import refusals
from amq.transports import socket as socket_module
from amq.transports.peer import Peer as Connection
from amq.transports.shares import FRAMES_MAX
from tests.fakes import FakeClock
from tests.protocols.openwire.conversation import (
    CONSUMER,
    ID,
    QUEUE,
    SESSION,
    TRANSACTION,
    frames,
    greeting,
    login,
    said,
)
from tests.transports import served as harness
from tests.transports.served import CONNECT, Peer, Served, frame

LOOKS = 6  # in a share or a round: what takes longer has at most one more
BETWEEN = (LOOKS + 1) * max(LOOK_AFTER, FRAMES_MAX)  # commands of one connection in a round, at most
CALLS_MAX = 20_000  # of functions between two looks at the clock; measured: 10,800, for 16 bad selectors
PING = frame("SEND", {"destination": "/queue/ping", "receipt": "ping"}, b"x")


class Looked(FakeClock):
    """Goes on by a millisecond at each look, while `ticks`."""

    ticks = False

    def monotonic(self) -> float:
        if self.ticks:
            self.advance(0.001)
        return super().monotonic()


class Ended:
    """Counts commands of one connection after which another one was looked at."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done: list[ClientConnection] = []  # the connection of each command, in the order in which they were done
        handle = ClientConnection.handle
        ended = self

        class Noting(list[Command]):
            def __init__(self, commands: list[Command], connection: ClientConnection) -> None:
                super().__init__(commands)
                self.connection = connection

            def __getitem__(self, which: slice) -> list[Command]:  # type: ignore[override]
                found = super().__getitem__(which)
                if which.stop is not None:
                    ended.done += [self.connection] * len(found)
                return found

        def noted(self: ClientConnection, commands: list[Command], *args: object, **named: object) -> object:
            return handle(self, Noting(commands, self), *args, **named)  # type: ignore[arg-type]

        monkeypatch.setattr(ClientConnection, "handle", noted)


def serve(path: Path, test: Callable[[Served, Looked], Awaitable[None]]) -> None:
    async def with_clock(served: Served) -> None:
        clock = served.hub.clock = served.world.broker.clock = Looked()  # type: ignore[assignment]
        await test(served, clock)

    harness.serve(path, with_clock)


async def openwire(served: Served) -> Peer:
    peer = await served.connect(greeting() + login())
    await served.say(peer, said(table.SESSION_INFO, 2, id=SESSION))
    peer.read()
    return peer


def bad_selectors(count: int) -> bytes:
    return b"".join(
        said(table.CONSUMER_INFO, 3 + n, True, id=CONSUMER, destination=QUEUE, selector=f"a = = {n}", prefetch=1)
        for n in range(count)
    )


def small(count: int) -> bytes:
    """Frames of two kinds, of the fewest bytes."""
    return frame("SEND", {"destination": "/topic/a"}) * count


def rare(count: int) -> bytes:
    return b"".join(
        frame("BEGIN", {"transaction": f"t{n}"}) + frame("ABORT", {"transaction": f"t{n}"}) for n in range(count // 2)
    )


@pytest.mark.parametrize("kind", [small, rare, bad_selectors])
def test_another_client_is_answered_before_a_flood_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Callable[[int], bytes]
) -> None:
    """All of the flood came in one read; each connection went on until its read was done."""
    monkeypatch.setattr(refusals, "REFUSALS_MAX", 1 << 20)
    count = 4000

    async def test(served: Served, clock: Looked) -> None:
        attacker = await openwire(served) if kind is bad_selectors else await served.connect(CONNECT)
        other = await served.connect(CONNECT)
        other.read()
        ended = Ended(monkeypatch)
        clock.ticks = True
        attacker.connection.socket.data_received(kind(count))
        assert len(ended.done) <= BETWEEN
        assert attacker.connection.socket.unread_for >= {socket_module.WORK}
        behind = len(ended.done)
        other.write(PING)
        await served.until(lambda: b"receipt-id:ping" in other.read(), "the receipt")
        at = next(i for i, each in enumerate(ended.done) if each is other.connection.client)
        assert at - behind <= 3 * BETWEEN, "the flood goes on in later rounds only"
        assert served.hub.turn.shares.waiting, "and is not done yet"
        await served.until(lambda: not served.hub.turn.shares.waiting, "the end of the flood")
        mine = [each for each in ended.done if each is attacker.connection.client]
        assert len(mine) >= count, "all is carried out"
        assert socket_module.WORK not in attacker.connection.socket.unread_for

    serve(tmp_path, test)


def test_floods_of_many_connections_share_a_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(served: Served, clock: Looked) -> None:
        attackers = [await served.connect(CONNECT) for _ in range(20)]
        ended = Ended(monkeypatch)
        clock.ticks = True
        for each in attackers:
            each.connection.socket.data_received(small(1000))
        first = {id(each): ended.done.count(each) for each in ended.done}
        assert len(first) == 20, "each has had a little"
        assert len(ended.done) <= BETWEEN + 20 * (2 + 4), "all together a round"
        await served.until(lambda: not served.hub.turn.shares.waiting, "the end")
        assert len(ended.done) == 20_000

    serve(tmp_path, test)


def test_commands_keep_their_order_over_many_shares(tmp_path: Path) -> None:
    """With transactions, receipts and a DISCONNECT in the middle; nothing after that is carried out."""

    async def test(served: Served, clock: Looked) -> None:
        dice = Random(7)
        peer = await served.connect(CONNECT)
        reader = await served.connect(CONNECT, frame("SUBSCRIBE", {"id": "s", "destination": "/queue/a"}))
        clock.ticks = True
        data, expected, number = b"", [], 0
        for n in range(300):
            bodies = [f"m{number + i}" for i in range(dice.randrange(1, 5))]
            number += len(bodies)
            inside = {"transaction": f"t{n}"} if dice.random() < 0.5 else {}
            commits = dice.random() < 0.7
            data += frame("BEGIN", {"transaction": f"t{n}", "receipt": f"b{n}"}) if inside else b""
            for body in bodies:
                data += frame("SEND", {"destination": "/queue/a", "receipt": body, **inside}, body.encode())
            data += frame("COMMIT" if commits else "ABORT", {**inside, "receipt": f"e{n}"}) if inside else b""
            expected += bodies if commits or not inside else []
        data += frame("DISCONNECT", {"receipt": "bye"}) + small(3)
        peer.connection.socket.data_received(data)
        assert peer.connection in served.hub.turn.shares.waiting
        heard = b""

        def is_done() -> bool:
            nonlocal heard
            heard += peer.read()
            return b"receipt-id:bye" in heard

        await served.until(is_done, "the farewell")

        def has_all() -> bool:
            reader.read()
            return reader.said.count(b"MESSAGE\n") >= len(expected)

        await served.until(has_all, "all messages")
        await served.rest()
        reader.read()
        bodies = [part.rpartition(b"\n\n")[2].decode() for part in reader.said.split(b"\0") if b"MESSAGE\n" in part]
        assert bodies == expected
        told = [line[11:].decode() for line in heard.split(b"\n") if line.startswith(b"receipt-id:m")]
        assert sorted(told) == sorted(f"m{n}" for n in range(number))

    serve(tmp_path, test)


def test_a_client_that_goes_while_its_commands_wait_leaves_nothing(tmp_path: Path) -> None:
    async def test(served: Served, clock: Looked) -> None:
        peer = await served.connect(CONNECT)
        clock.ticks = True
        peer.connection.socket.data_received(small(2000))
        assert served.hub.turn.shares.waiting
        peer.connection.abort()
        await served.until(lambda: not served.connections, "the end")
        assert not served.hub.turn.shares.waiting
        assert not peer.connection._held

    serve(tmp_path, test)


def test_what_comes_while_the_login_is_checked_waits_unread(tmp_path: Path) -> None:
    async def test(served: Served, clock: Looked) -> None:
        clock.ticks = True
        peer = await served.connect()
        peer.connection.socket.data_received(CONNECT + small(1000) + PING)
        assert len(peer.connection._held) <= 1 + FRAMES_MAX
        assert socket_module.LOGIN in peer.connection.socket.unread_for
        await served.until(lambda: b"receipt-id:ping" in peer.read() or b"receipt-id:ping" in peer.said, "the receipt")

    serve(tmp_path, test)


def test_a_connection_with_many_refused_commands_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "REFUSALS_MAX", 10)

    async def test(served: Served, clock: Looked) -> None:  # noqa: ARG001
        peer = await openwire(served)
        await served.say(peer, bad_selectors(8))
        assert not peer.connection.is_closing
        peer.connection.socket.data_received(bad_selectors(200))
        await served.until(lambda: peer.connection.is_closing, "the end")
        await served.rest()
        peer.read()
        answers = [each for each in frames(peer.said) if each.type == table.EXCEPTION_RESPONSE]
        assert len(answers) <= 8 + 3
        assert b"REFUSALS_TOO_MANY" in peer.said

    serve(tmp_path, test)


def test_refused_commands_are_forgiven_with_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refusals, "REFUSALS_MAX", 10)

    async def test(served: Served, clock: Looked) -> None:
        peer = await openwire(served)
        for _ in range(5):
            await served.say(peer, bad_selectors(9))
            clock.advance(1.0)
        assert not peer.connection.is_closing

    serve(tmp_path, test)


def stomp_commands(dice: Random) -> bytes:
    """One of each kind that a connection survives, cheap and dear; few are usual sends."""
    n = dice.randrange(1000)
    return dice.choice(
        [
            frame("SEND", {"destination": f"/queue/{n % 7}", "receipt": n}, b"x" * dice.choice([0, 9, 900])),
            frame("SEND", {"destination": f"/topic/{n % 7}", **{f"p{i}": i for i in range(dice.choice([0, 40]))}}),
            frame("SEND", {"destination": "/queue/a,/queue/b,/topic/c"}, b"y"),
            frame("SEND", {"destination": "/queue/later", "AMQ_SCHEDULED_DELAY": 60_000}),
            frame("SEND", {"destination": "/queue/map", "transformation": "jms-map-json"}, b'{"a":[1,2]}'),
            frame("SUBSCRIBE", {"id": dice.random(), "destination": f"/queue/{n % 7}", "selector": f"a > {n}"}),
            frame("SUBSCRIBE", {"id": dice.random(), "destination": f"/topic/{n % 7}"}),
            frame("BEGIN", {"transaction": dice.random()}),
            b"\n" * n,
        ]
    )


def openwire_commands(dice: Random) -> bytes:
    """Nearly all are refused, for different reasons."""
    n = dice.randrange(1000)
    id = structure(table.CONSUMER_ID, connection="ID:host-1-1:1", session=1, value=n)
    return dice.choice(
        [
            said(table.KEEP_ALIVE_INFO),
            said(table.CONSUMER_INFO, n, True, id=id, destination=QUEUE, selector="(" * n + "a", prefetch=1),
            said(table.CONSUMER_INFO, n, True, id=id, destination=QUEUE, selector=f"a{n} LIKE '%b%'", prefetch=1),
            said(table.CONSUMER_INFO, n, True, id=id, destination=QUEUE, subscription_name="\x1b", prefetch=1),
            said(table.REMOVE_INFO, n, True, id=id),
            said(table.TRANSACTION_INFO, n, True, connection=ID, transaction=TRANSACTION, kind=n % 9),
        ]
    )


def mixture(kind: Callable[[Random], bytes], seed: int, size: int) -> bytes:
    dice, data, length = Random(seed), list[bytes](), 0
    while length < size:
        data.append(kind(dice))
        length += len(data[-1])
    return b"".join(data)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", [stomp_commands, openwire_commands])
def test_any_mixture_of_commands_gives_way_after_its_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Callable[[Random], bytes], seed: int
) -> None:
    monkeypatch.setattr(refusals, "REFUSALS_MAX", 1 << 20)

    async def test(served: Served, clock: Looked) -> None:
        peer = await (served.connect(CONNECT) if kind is stomp_commands else openwire(served))
        ended = Ended(monkeypatch)
        steps: list[int] = []
        work = Connection._work

        def counted(self: Connection, *args: object) -> None:
            before = len(ended.done)
            work(self, *args)  # type: ignore[arg-type]
            steps.append(len(ended.done) - before)

        monkeypatch.setattr(Connection, "_work", counted)
        clock.ticks = True
        peer.connection.socket.data_received(mixture(kind, seed, 100_000))
        await served.until(lambda: peer.read() is None or not served.hub.turn.shares.waiting, "the end")
        assert not peer.connection.is_closing, peer.said[-500:]
        assert len(steps) > 5
        assert max(steps) <= BETWEEN

    serve(tmp_path, test)


@pytest.mark.parametrize("kind", [stomp_commands, openwire_commands, None])
def test_no_step_is_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Callable[[Random], bytes] | None
) -> None:
    """None = the smallest frames."""
    monkeypatch.setattr(refusals, "REFUSALS_MAX", 1 << 20)
    calls, steps = 0, list[int]()

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    class Counted(Looked):
        def monotonic(self) -> float:
            nonlocal calls
            steps.append(calls)
            calls = 0
            return super().monotonic()

    def counted(work: Callable[..., None]) -> Callable[..., None]:
        def measured(*args: object) -> None:
            nonlocal calls
            calls = 0
            sys.setprofile(count)
            try:
                work(*args)
            finally:
                sys.setprofile(None)
                steps.append(calls)

        return measured

    async def test(served: Served) -> None:
        clock = served.hub.clock = served.world.broker.clock = Counted()  # type: ignore[assignment]
        clock.ticks = True
        peer = await (openwire(served) if kind is openwire_commands else served.connect(CONNECT))
        monkeypatch.setattr(Connection, "_work", counted(Connection._work))
        data = mixture(kind, 1, 250_000) if kind is not None else small(9000)[: 256 << 10]
        for _ in range(3):
            peer.connection.socket.data_received(data)
            await served.until(lambda: peer.read() is None or not served.hub.turn.shares.waiting, "the end")

    harness.serve(tmp_path, test)
    assert len(steps) > 100, "each step looks at the clock"
    assert max(steps) < CALLS_MAX
