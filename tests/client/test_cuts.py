"""One conversation, cut at every byte, in either direction, on either face: the outcome is always the same."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from fake_broker import Broker, Store
from world import World

import amq
from amq.client import DeliveryLostError
from amq.client.core import ProducerCore
from amq.client.link import Link, connect_frame
from amq.client.uri import parse
from amq.errors import ProtocolError, TransactionRolledBackError
from amq.protocols.stomp.frame import Frame, encode

URL = "failover:(stomp://a:1,stomp://b:2)?randomize=false&nested.heartBeat=0"


def converse(cut_sent: int | None = None, cut_received: int | None = None) -> tuple[World, int, int]:
    """Send, consume and commit, while the first link breaks after so many bytes. Returns the bytes of that link too."""
    world = World(URL, alive="ab")
    sent = received = 0

    def exchange() -> None:
        nonlocal sent, received
        while True:
            world.act()
            if world.pending:
                world.answer()
                continue
            moved = False
            for link in list(world.wires):
                first = link.uri.host == "a"
                room = cut_sent - sent if first and cut_sent is not None else None
                queued = len(b"".join(link.out))
                world.to_broker(link, room)
                sent += min(queued, room if room is not None else queued) if first else 0
                moved = moved or queued > 0
                conversation = world.wires[link]
                room = cut_received - received if first and cut_received is not None else None
                before = len(conversation.out)
                if room is None or room > 0:
                    moved = world.to_client(link, room) or moved
                received += before - len(conversation.out) if first else 0
                if first and link in world.wires and (sent == cut_sent or received == cut_received):
                    world.cut(link)
                    world.alive = {"b"}
                    moved = True
            if not moved and not world.pending and not world.machine.actions:
                return

    def finish() -> None:
        exchange()
        while not world.machine.flowing:
            deadline = world.machine.deadline()
            assert deadline is not None
            world.now = max(world.now, deadline)
            world.machine.tick(world.now)
            exchange()

    world.machine.start(world.now)
    finish()
    plain, transacted = world.session(), world.session(transacted=True)
    producer = ProducerCore(plain, "/queue/in")
    requests = [world.send(producer, str(number)) for number in range(3)]
    finish()
    consumer, _ = transacted.subscribe("/queue/in", 2, "", {})
    out = ProducerCore(transacted, "/queue/out")
    finish()
    committed: list[str] = []
    while len(committed) < 3:
        try:
            finish()
            if not consumer.ready():
                raise AssertionError("the message is lost")
            body = world.receive(consumer)
            assert body is not None
            world.send(out, body + "!")
            request = transacted.start_commit()
            finish()
            assert request is not None
            assert request.done
            if request.error is not None:
                raise request.error
            committed.append(body)
        except TransactionRolledBackError:
            transacted.start_rollback()
    assert all(request is not None and request.done and request.error is None for request in requests)
    assert committed == ["0", "1", "2"]
    assert world.store.bodies("/queue/out") == [b"0!", b"1!", b"2!"]
    assert world.store.acknowledged == [b"0", b"1", b"2"]
    world.machine.close(world.now)
    exchange()
    return world, sent, received


def test_a_link_that_breaks_at_every_byte() -> None:
    _, sent, received = converse()
    assert sent > 1000
    assert received > 500
    for offset in range(sent):
        converse(cut_sent=offset)
    for offset in range(received):
        converse(cut_received=offset)


def cuts() -> Iterator[tuple[str, int]]:
    rng = random.Random(7)
    for direction in ("cut_sent", "cut_received"):
        for offset in sorted(rng.sample(range(900), 25)):
            yield direction, offset


@pytest.mark.parametrize(("direction", "offset"), list(cuts()))
def test_a_socket_that_breaks_at_some_bytes(direction: str, offset: int) -> None:
    """The same on real sockets, at some offsets: what the pure machine cannot show is in the drivers."""
    store = Store()
    with Broker(store, **{direction: offset}) as broker:
        url = f"failover:({broker.uri})?timeout=20000&initialReconnectDelay=1"
        with amq.connect(url) as connection:
            producer = connection.session().producer("/queue/q")
            for number in range(5):
                producer.send(str(number))
            consumer = connection.session().consumer("/queue/q", prefetch=2)
            done: list[str] = []
            while len(store.acknowledged) < 5:
                message = consumer.receive(20)
                assert message is not None
                try:
                    message.ack(wait=True)
                except DeliveryLostError:
                    pass
                else:
                    done.append(message.text)
        assert store.added["/queue/q"] == [b"0", b"1", b"2", b"3", b"4"]
        assert store.acknowledged == [b"0", b"1", b"2", b"3", b"4"]


# ---- the link's own reading: a short cut for plain receipts must not change what is read

FRAMES = [
    encode("RECEIPT", [("receipt-id", "17")]),
    encode("RECEIPT", [("receipt-id", "18")]) + b"\n",
    encode("RECEIPT", [("receipt-id", "a:b")]),
    encode("RECEIPT", [("receipt-id", "19"), ("content-length", "0")]),
    b"\n\n",
    encode("MESSAGE", [("subscription", "1"), ("content-length", "4")], b"a\0\nb"),
    b"RECEIPT\r\nreceipt-id:20\r\n\r\n\0",
    encode("RECEIPT", [("x", "y"), ("receipt-id", "21")]),
]
READ = ["17", "18", "a:b", "19", "MESSAGE", "20", "21"]


def read(chunks: list[bytes]) -> list[str]:
    link = Link(parse("stomp://a").uris[0], 0.0)
    out: list[str] = []
    for chunk in chunks:
        for item in link.receive(chunk, 0.0):
            if isinstance(item, Frame):
                out.append(item.headers["receipt-id"] if item.command == "RECEIPT" else item.command)
            else:
                out.append(item.decode().replace("\\c", ":"))
    return out


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 11, 1000])
def test_receipts_are_read_in_any_chunks(size: int) -> None:
    data = b"".join(FRAMES)
    assert read([data[at : at + size] for at in range(0, len(data), size)]) == READ


def test_frames_before_junk_are_not_lost() -> None:
    link = Link(parse("stomp://a").uris[0], 0.0)
    got = []
    with pytest.raises(ProtocolError):
        for item in link.receive(FRAMES[0] + FRAMES[3] + b"\x01\x02\n\n", 0.0):
            got.append(item)
    assert len(got) == 2


def test_connect_carries_a_virtual_host() -> None:
    uri = parse("stomp://a?virtualHost=v&heartBeat=7").uris[0]
    assert connect_frame(uri, "", "", "") == b"CONNECT\naccept-version:1.2\nhost:v\nheart-beat:7,7\n\n\0"
