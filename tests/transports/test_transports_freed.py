"""Connections, subscriptions and queues that have ended are freed at once, by reference counting: the collector, which
looks at old objects once in hundreds of millions, has nothing to do."""

from __future__ import annotations

import gc
from collections import Counter
from pathlib import Path

import pytest

from amq.broker.queues.queue import Queue, Subscription
from amq.broker.sessions.connection import ClientConnection
from amq.broker.sessions.session import Session
from amq.core.message import Message
from amq.protocols.stomp.codec import StompCodec
from amq.protocols.stomp.frame import FrameReader
from amq.transports.peer import Peer
from amq.transports.socket import Socket
from tests.transports.served import CONNECT, Served, Uncollected, frame, serve

KINDS = (ClientConnection, FrameReader, Message, Peer, Queue, Session, Socket, StompCodec, Subscription)


def subscribe(destination: str, id: object = 1, ack: str = "client-individual", **options: str) -> bytes:
    options = {name.replace("_", "-"): value for name, value in options.items()}
    return frame("SUBSCRIBE", {"id": id, "destination": destination, "ack": ack, **options})


def send(destination: str, **headers: object) -> bytes:
    return frame("SEND", {"destination": destination, **headers}, b"x")


def unsubscribe(id: object = 1) -> bytes:
    return frame("UNSUBSCRIBE", {"id": id})


DURABLE = {"activemq.subscriptionName": "n"}
BEGIN = frame("BEGIN", {"transaction": "t"})
COMMIT = frame("COMMIT", {"transaction": "t", "receipt": "r"})
CASES: dict[str, list[bytes]] = {
    "no login": [],
    "half a login": [CONNECT[:-1]],
    "another protocol": [b"GET / HTTP/1.1\r\n\r\n"],
    "no login but SEND": [send("/queue/a")],
    "login": [CONNECT],
    "half a frame": [CONNECT, b"SEND\ndestination:/queue/a\ncontent-length:90000\n\n" + b"x" * 80000],
    "not STOMP": [CONNECT, b"foo\n\n\0"],
    "header missing": [CONNECT, frame("SUBSCRIBE", {"id": "1"})],
    "command refused": [CONNECT, unsubscribe()],
    "disconnect": [CONNECT, frame("DISCONNECT", {"receipt": "1"})],
    "send": [CONNECT, send("/queue/a", receipt=1), send("/queue/b")],
    "composite": [CONNECT, send("/queue/a,/queue/b,/topic/c")],
    "queue": [CONNECT, subscribe("/queue/a"), send("/queue/a")],
    "queue, unsubscribed": [CONNECT, subscribe("/queue/a"), unsubscribe()],
    "selector": [CONNECT, subscribe("/queue/a", selector="x = 1"), unsubscribe(), subscribe("/queue/a", 2)],
    "exclusive": [CONNECT, subscribe("/queue/a", **{"activemq.exclusive": "true", "activemq.priority": "3"})],
    "groups": [CONNECT, subscribe("/queue/g", ack="auto"), send("/queue/g", JMSXGroupID="g")],
    "credit": [CONNECT, subscribe("/queue/c", credit="2"), frame("CREDIT", {"id": 1, "credit": 3})],
    "topic": [CONNECT, subscribe("/topic/a"), send("/topic/a")],
    "topic, auto": [CONNECT, subscribe("/topic/a", ack="auto", selector="x is null"), send("/topic/a"), unsubscribe()],
    "topic pattern": [CONNECT, subscribe("/topic/>", **{"activemq.retroactive": "true"}), send("/topic/b")],
    "topic, transaction": [CONNECT, subscribe("/topic/a"), BEGIN, send("/topic/a", transaction="t"), COMMIT],
    "durable": [
        CONNECT,
        subscribe("/topic/a", **DURABLE),
        send("/topic/a"),
        frame("UNSUBSCRIBE", {"id": 1, **DURABLE}),
    ],
    "pattern": [CONNECT, subscribe("/queue/>", ack="auto"), send("/queue/new"), unsubscribe()],
    "pattern, open": [CONNECT, subscribe("/queue/>"), send("/queue/new")],
    "several": [CONNECT, subscribe("/queue/a,/queue/b,/topic/c"), send("/queue/b"), send("/topic/c")],
    "browser": [CONNECT, send("/queue/a"), subscribe("/queue/a", browser="true")],
    "temporary": [CONNECT, subscribe("/temp-queue/a"), send("/temp-queue/a"), send("/temp-queue/b")],
    "transaction": [CONNECT, BEGIN, send("/queue/a", transaction="t"), COMMIT],
    "transaction, open": [CONNECT, BEGIN, send("/queue/a", transaction="t"), send("/topic/a", transaction="t")],
    "transaction, acknowledged": [
        CONNECT,
        subscribe("/queue/>", ack="client"),
        send("/queue/a"),
        BEGIN,
        frame("ACK", {"id": "0-1"}),
    ],
    "unknown transaction": [CONNECT, COMMIT],
    "prepared": [
        CONNECT,
        BEGIN,
        send("/queue/p", transaction="t"),
        frame("COMMIT", {"transaction": "t", "amq-xid": "x", "amq-prepare": "true"}),
    ],
    "last value, ring": [CONNECT, subscribe("/queue/ring", ack="auto"), send("/queue/ring", k="1"), unsubscribe()],
    "expired": [CONNECT, subscribe("/queue/e"), send("/queue/e", expires=1)],
    "duplicates": [CONNECT, subscribe("/queue/d", ack="auto"), send("/queue/d", _AMQ_DUPL_ID="x"), unsubscribe()],
    "large": [
        CONNECT,
        subscribe("/queue/l", ack="auto"),
        frame("SEND", {"destination": "/queue/l"}, b"x" * (3 << 19)),
    ],
}


@pytest.mark.parametrize("name", CASES)
def test_nothing_is_left_to_the_collector(tmp_path: Path, name: str) -> None:
    async def test(served: Served) -> None:
        await once(served)  # what is made the first time is kept, and is no garbage
        with Uncollected() as uncollected:
            for _ in range(3):
                await once(served)
            served.world.broker.sweep()
            await served.rest()
            assert not uncollected.found()

    async def once(served: Served) -> None:
        peer = await served.connect(*CASES[name])
        peer.read()
        await served.rest()
        peer.read()
        await served.hang_up(peer)

    serve(tmp_path, test, last_value_key="k")


def living() -> Counter[str]:
    """Objects of ours in this process, by kind."""
    return Counter(kind.__name__ for each in gc.get_objects() for kind in KINDS if isinstance(each, kind))


def test_a_thousand_connections_leave_nothing(tmp_path: Path) -> None:
    """And some break off in the middle of a frame, whose bytes go with them."""

    async def test(served: Served) -> None:
        broken = b"SEND\ndestination:/queue/a\ncontent-length:90000000\n\n" + b"x" * (4 << 20)
        await served.hang_up(await served.connect(CONNECT, subscribe("/queue/a"), subscribe("/topic/a", 2)))
        with Uncollected() as uncollected:
            before = living()
            for number in range(1000):
                said = [broken] if number % 100 == 0 else [subscribe("/queue/a"), subscribe("/topic/a", 2)]
                peer = await served.connect(CONNECT + b"".join(said))
                peer.read()
                await served.hang_up(peer)
            del peer
            served.world.broker.sweep()
            assert not uncollected.found()
            assert living() - before == Counter(), "objects that nothing lets go"

    serve(tmp_path, test)


def test_many_subscriptions_and_queues_leave_nothing(tmp_path: Path) -> None:
    async def test(served: Served) -> None:
        peer = await served.connect(CONNECT, subscribe("/queue/old", "other"), subscribe("/queue/>", "all", "auto"))

        async def wave(start: int) -> None:
            for base in range(start, start + 1500, 50):
                numbers = range(base, base + 50)
                used = [
                    subscribe(f"/queue/{n}", n, "auto") + send(f"/queue/{n}") + subscribe("/topic/a", f"t{n}")
                    for n in numbers
                ]
                await served.say(peer, b"".join(used))
                peer.read()
                ended = [unsubscribe(n) + unsubscribe(f"t{n}") for n in numbers]
                await served.say(peer, b"".join(ended))
            await served.say(peer, subscribe("/queue/end", "end") + unsubscribe("end"))
            await served.until(swept, "the queues of a wave to be forgotten")
            await served.rest()

        def swept() -> bool:
            """A queue stays until the disk has its last acknowledgement."""
            served.world.broker.sweep()
            return not any(name.removeprefix("queue://").isdecimal() for name in served.world.broker.state.queues)

        await wave(0)
        with Uncollected() as uncollected:
            before = living()
            await wave(10_000)
            assert not uncollected.found()
            assert living() - before == Counter()

    serve(tmp_path, test)


def test_a_frame_that_breaks_off_is_forgotten_before_the_connection_is(tmp_path: Path) -> None:
    """The last connections that said something are remembered; their bytes are not. Nor while a client that was told
    of an error takes its time to close."""

    async def test(served: Served) -> None:
        begun = b"SEND\ndestination:/queue/a\ncontent-length:9000000\n\n" + b"x" * (1 << 20)
        gone = await served.connect(CONNECT, begun)
        connection = gone.connection
        await served.hang_up(gone)
        assert not connection.codec.pending
        lingering = await served.connect(CONNECT, b"UNSUBSCRIBE\nid:9\n\n\0" + begun)
        assert b"ERROR" in lingering.read()
        assert lingering.connection.number in served.connections
        assert not lingering.connection.codec.pending

    serve(tmp_path, test)
