"""Many messages in one call: their frames are those that one by one would have been, whatever is in them."""

from __future__ import annotations

import array
import asyncio
from typing import Any

import pytest
from faces import AsyncFace, SyncFace
from fake_broker import Group

from amq.client import bulk
from amq.core.errors import CommandError, TransactionRolledBackError
from amq.core.message import LARGE_BODY_BYTES
from amq.protocols.stomp.frame import Frame, FrameReader
from tests.patience import DEADLINE_S

Q = "/queue/q"
HEAD = b"SEND\ndestination:/queue/x\ntransaction:t"


def frames(bodies: list[bytes], headers: bulk.Headers | None = None, text: bool = False) -> list[Frame]:
    return FrameReader().feed(b"CONNECT\n\n\0" + bulk.encode(HEAD, bodies, headers, text))[1:]


@pytest.mark.parametrize("text", [True, False])
@pytest.mark.parametrize(
    "bodies",
    [[b"one"], [b"one", b"two"], [b"", b""], [b"one", b"three"], [b"", b"x"], [b"a\0b", b"abc"], [b"\0", b"\0"]],
)
@pytest.mark.parametrize("headed", [False, True])
def test_what_is_read_is_what_was_sent(bodies: list[bytes], text: bool, headed: bool) -> None:
    headers = [{"n": i, "a:b": "c\nd"} if i else None for i in range(len(bodies))]
    found = frames(bodies, headers if headed else None, text)
    assert [frame.body for frame in found] == bodies
    for i, frame in enumerate(found):
        assert frame.command == "SEND"
        assert frame.headers["transaction"] == "t"
        assert frame.headers.get("n") == (str(i) if headed and i else None)
        assert frame.headers.get("a:b") == ("c\nd" if headed and i else None)
        bytes_to_the_broker = "content-length" in frame.headers and frame.headers.get("amq-msg-type") != "text"
        assert bytes_to_the_broker is not text


@pytest.mark.parametrize(
    "sizes", [[], [0], [1] * 1000, [1] * 2500, [bulk.PIECE_BYTES, 1, 1], [1, LARGE_BODY_BYTES + 1, 1], [300_000] * 9]
)
def test_pieces_are_small_and_whole(sizes: list[int]) -> None:
    bodies = [bytes(size) for size in sizes]
    pieces = [bodies[piece] for piece in bulk.pieces(bodies)]
    assert [body for piece in pieces for body in piece] == bodies
    for piece in pieces:
        assert 0 < len(piece) <= bulk.PIECE_MESSAGES
        assert len(piece) == 1 or sum(map(len, piece)) <= bulk.PIECE_BYTES


@pytest.mark.parametrize("face", [SyncFace, AsyncFace])
def test_many_messages_in_one_call(face: Any) -> None:
    async def scenario() -> None:
        bodies = [b"%d" % number for number in range(2500)] + [bytes(2 << 20), b"last"]
        with Group() as group:
            async with await face.connect(group.url) as connection:
                session = connection.session(transacted=True)
                producer = session.producer(Q)
                await producer.send_many(bodies, timeout=DEADLINE_S)
                assert group.store.bodies(Q) == []
                await session.commit()
                await producer.send_many([b"never"])
                group.take_over()
                with pytest.raises(TransactionRolledBackError):
                    while True:  # the next news from the broker says it
                        await producer.send_many([b"never"], timeout=DEADLINE_S)
                        await asyncio.sleep(0)
                await session.rollback()
                await producer.send_many([])
                await producer.send_many([b"after", b"wards"], headers=[{"a": 1}, None], text=True)
                await session.commit()
                with pytest.raises(CommandError, match="transacted"):
                    await connection.session().producer(Q).send_many([b"x"])
            assert group.store.bodies(Q) == [*bodies, b"after", b"wards"]

    asyncio.run(asyncio.wait_for(scenario(), DEADLINE_S))


@pytest.mark.parametrize("text", [True, False])
def test_a_large_body_is_what_it_was_sent_as(text: bool) -> None:
    async def scenario() -> None:
        with Group() as group:
            async with await SyncFace.connect(group.url) as connection:
                session = connection.session(transacted=True)
                body = b"x" * (LARGE_BODY_BYTES + 1)
                await session.producer(Q).send_many([body], text=text, timeout=DEADLINE_S)
                await session.commit()
            (stored,) = group.store.queues[Q]
            assert stored.body == body
            assert stored.headers.get("amq-msg-type") == ("text" if text else None)

    asyncio.run(asyncio.wait_for(scenario(), DEADLINE_S))


@pytest.mark.parametrize("face", [SyncFace, AsyncFace])
@pytest.mark.parametrize(
    ("bodies", "arguments", "says"),
    [
        ([b"a", {"a": 1}], {}, "a body of type dict cannot be sent: write bytes"),
        ([*[b"a"] * 2500, "b"], {}, "a body of type str cannot be sent: write bytes, [.]encode.. and text=True"),
        (b"abc", {}, "a body of type int"),
        ([b"a", b"b"], {"headers": [None]}, "2 bodies and headers for 1"),
        ([b"a"], {"headers": [None, None]}, "1 bodies and headers for 2"),
    ],
)
def test_what_cannot_be_sent_is_refused_before_anything_is_sent(
    face: Any, bodies: Any, arguments: Any, says: str
) -> None:
    async def scenario() -> None:
        with Group() as group:
            async with await face.connect(group.url) as connection:
                session = connection.session(transacted=True)
                with pytest.raises(CommandError, match=says):
                    await session.producer(Q).send_many(bodies, **arguments)
                await session.commit()
            assert group.store.bodies(Q) == []

    asyncio.run(asyncio.wait_for(scenario(), DEADLINE_S))


@pytest.mark.parametrize("face", [SyncFace, AsyncFace])
def test_whatever_holds_bytes_is_sent_as_its_bytes(face: Any) -> None:
    """A view counts its elements, not its bytes."""

    async def scenario() -> None:
        numbers = array.array("i", [1, 2, 3])
        bodies = [bytearray(b"a\0b"), memoryview(numbers), memoryview(b"c\0"), memoryview(bytes(2 << 20))]
        with Group() as group:
            async with await face.connect(group.url) as connection:
                session = connection.session(transacted=True)
                await session.producer(Q).send_many(bodies, text=True)
                await session.commit()
                for body in bodies:
                    await connection.session().producer(Q).send(body)
            assert group.store.bodies(Q) == [bytes(body) for body in bodies] * 2

    asyncio.run(asyncio.wait_for(scenario(), DEADLINE_S))
