"""What a link writes before the turn does: all of it comes, in order; and nothing of an end that holds back."""

from __future__ import annotations

import asyncio
import socket
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from amq.core.proof import NONCE_BYTES
from amq.doors.clock import SystemClock
from amq.gateway.turn import HURRIED_BYTES, GatewayTurn
from amq.link.hello import LinkHello
from amq.link.socket import LinkSocket
from tests.link.linking import SECRET

PIECE = Random(1).randbytes(60_000)
SMALL_BYTES = 8 << 10  # of the kernel's buffers


class SilentTurn(GatewayTurn):
    """It writes when the test says so."""

    def _run(self) -> None: ...


class GatedTurn(SilentTurn):
    """The turn of a master."""

    is_gated = True


class OneEnd:
    """A link's socket, whose other end the test reads."""

    def __init__(self, turn: GatewayTurn) -> None:
        loop = asyncio.get_running_loop()
        self.turn = turn
        hub: Any = SimpleNamespace(clock=SystemClock(), loop=loop, turn=turn)
        owner: Any = SimpleNamespace(flush=lambda: None, set_full=lambda _: None, ended=lambda _: None)
        hello = LinkHello(False, SECRET, bytes(NONCE_BYTES))
        self.first = LinkHello(False, SECRET, bytes(NONCE_BYTES)).begin()
        self.link = LinkSocket(hub, hello, owner, begins=True)

    async def connect(self) -> socket.socket:
        ours, other = socket.socketpair()
        for each in (ours, other):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SMALL_BYTES)
            each.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SMALL_BYTES)
            each.setblocking(False)
        await asyncio.get_running_loop().create_connection(lambda: self.link, sock=ours)
        return other


@pytest.mark.parametrize("count", [1, 20, 1500])
async def test_long_pieces_that_hurry_come_whole_and_in_order(count: int) -> None:
    loop = asyncio.get_running_loop()
    end = OneEnd(SilentTurn(loop))
    other = await end.connect()
    piece = PIECE if count < 100 else PIECE[:50]
    end.link.write(b"before", piece)
    for _ in range(count):
        end.link.write(b"lead", memoryview(piece))
    end.link.hurry()
    at_once = other.recv(1 << 20)
    assert at_once.startswith(end.first + b"before")
    end.link.write(b"behind")
    end.link.hurry()  # nothing is long
    end.link.send_out()
    expected = b"".join((end.first, b"before", piece, *[b"lead" + piece] * count, b"behind"))
    found = at_once
    while len(found) < len(expected):
        found += await loop.sock_recv(other, 1 << 20)
    assert found == expected
    end.link.abort()
    other.close()


async def test_a_master_writes_nothing_before_its_turn() -> None:
    end = OneEnd(GatedTurn(asyncio.get_running_loop()))
    other = await end.connect()
    end.link.write(b"lead", PIECE)
    end.link.hurry()
    with pytest.raises(BlockingIOError):
        other.recv(1)
    end.link.abort()
    other.close()


class Reader:
    """A client: `told` = its output, and whether it came before the end of the turn."""

    def __init__(self, turn: GatewayTurn, output_bytes: int, others: list[Reader] | None = None) -> None:
        self.turn = turn
        self.output_bytes = output_bytes
        self.others = others or []
        self.told: list[tuple[int, bool]] = []
        turn.unsent[self] = None

    def send_out(self, now: bool = False) -> None:
        self.told.append((self.output_bytes, now))
        for other in self.others:
            self.turn.unsent.pop(other, None)


async def test_clients_with_much_to_read_get_it_before_the_end_of_the_turn() -> None:
    turn = GatewayTurn(asyncio.get_running_loop())
    few, much = Reader(turn, 100), Reader(turn, HURRIED_BYTES)
    turn.wake()
    turn.hurry()
    assert (few.told, much.told) == ([], [(HURRIED_BYTES, True)])
    turn.hurry()
    await asyncio.sleep(0)
    assert (few.told, much.told) == ([(100, False)], [(HURRIED_BYTES, True)])


async def test_a_client_that_goes_while_another_is_written_hurts_nobody() -> None:
    turn = GatewayTurn(asyncio.get_running_loop())
    other = Reader(turn, HURRIED_BYTES)
    turn.unsent.clear()
    Reader(turn, HURRIED_BYTES, [other])
    turn.unsent[other] = None
    turn.hurry()
    assert not turn.unsent
    assert other.told == []
