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
from amq.core.errors import ProtocolError, TransactionRolledBackError
from amq.core.message import LARGE_BODY_BYTES
from amq.protocols.stomp.frame import Frame, encode
from tests.large import large_from
from tests.patience import DEADLINE_S

URL = "failover:(stomp://a:1,stomp://b:2)?randomize=false&nested.heartBeat=0"


class Cutter:
    """A world whose first link breaks after so many bytes in one direction; `sent`, `received` count that link's."""

    def __init__(self, cut_sent: int | None = None, cut_received: int | None = None) -> None:
        self.world = World(URL, alive="ab")
        self.sent = self.received = 0
        self._cut_sent = cut_sent
        self._cut_received = cut_received

    def settle(self) -> None:
        """Let everything happen that needs no time."""
        world = self.world
        while True:
            world.act()
            if world.pending:
                world.answer()
                continue
            moved = [self._exchange(link) for link in list(world.wires)]
            if not any(moved) and not world.machine.actions:
                return

    def _exchange(self, link: Link) -> bool:
        """Move bytes of `link` both ways, as far as it lives."""
        world, conversation = self.world, self.world.wires[link]
        if link.uri.host != "a":
            sent = world.to_broker(link)
            return world.to_client(link) or sent
        queued, room = len(b"".join(link.out)), None if self._cut_sent is None else self._cut_sent - self.sent
        world.to_broker(link, room)
        moved = queued if room is None else min(queued, room)
        self.sent += moved
        queued, room = len(conversation.out), None if self._cut_received is None else self._cut_received - self.received
        if room is None or room > 0:
            world.to_client(link, room)
            moved += queued - len(conversation.out)
            self.received += queued - len(conversation.out)
        if link in world.wires and (self.sent == self._cut_sent or self.received == self._cut_received):
            world.cut(link)
            world.alive = {"b"}
            return True
        return moved > 0

    def flow(self) -> None:
        """Until connected and quiet."""
        self.settle()
        world = self.world
        while not world.machine.flowing:
            deadline = world.machine.deadline()
            assert deadline is not None
            world.now = max(world.now, deadline)
            world.machine.tick(world.now)
            self.settle()


def converse(cut_sent: int | None = None, cut_received: int | None = None) -> Cutter:
    """Send, consume and commit over a link that breaks somewhere, and look at what came of it."""
    cutter = Cutter(cut_sent, cut_received)
    world = cutter.world
    world.machine.start(world.now)
    cutter.flow()
    producer, transacted = ProducerCore(world.session(), "/queue/in"), world.session(transacted=True)
    requests = [world.send(producer, str(number)) for number in range(3)]
    cutter.flow()
    consumer, _ = transacted.subscribe("/queue/in", 2, "", {})
    out = ProducerCore(transacted, "/queue/out")
    committed: list[str] = []
    while len(committed) < 3:
        try:
            cutter.flow()
            body = world.receive(consumer)
            assert body is not None, "the message is lost"
            world.send(out, body + "!")
            request = transacted.start_commit()
            cutter.flow()
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
    cutter.settle()
    return cutter


@pytest.mark.deep
@pytest.mark.parametrize("large", [LARGE_BODY_BYTES, 0])
def test_a_link_that_breaks_at_every_byte(large: int) -> None:
    """Also where each body counts as large, and goes its own way beside the head of its frame."""
    with large_from(large):
        whole = converse()
        assert whole.sent > 1000
        assert whole.received > 500
        for offset in range(whole.sent):
            converse(cut_sent=offset)
        for offset in range(whole.received):
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
        url = f"failover:({broker.uri})?timeout={DEADLINE_S * 1000:.0f}&initialReconnectDelay=1"
        with amq.connect(url) as connection:
            producer = connection.session().producer("/queue/q")
            for number in range(5):
                producer.send(str(number))
            consumer = connection.session().consumer("/queue/q", prefetch=2)
            done: list[str] = []
            while len(store.acknowledged) < 5:
                message = consumer.receive(DEADLINE_S)
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


@pytest.mark.parametrize(
    ("uri", "login", "passcode", "told"),
    [
        ("stomp://me:mine@a", "you", "yours", "login:me\npasscode:mine\n"),
        ("stomp://me@a", "me", "secret", "login:me\npasscode:secret\n"),
        ("stomp://me@a", "", "secret", "login:me\npasscode:secret\n"),
        ("stomp://me@a", "you", "yours", "login:me\npasscode:\n"),
        ("stomp://a", "you", "yours", "login:you\npasscode:yours\n"),
        ("stomp://a", "", "yours", ""),
    ],
)
def test_whose_login_and_passcode_connect_carries(uri: str, login: str, passcode: str, told: str) -> None:
    frame = connect_frame(parse(uri).uris[0], login, passcode, "", "i").decode()
    assert "".join(f"{line}\n" for line in frame.split("\n") if line.startswith(("login:", "passcode:"))) == told


def test_connect_carries_a_virtual_host() -> None:
    uri = parse("stomp://a?virtualHost=v&heartBeat=7").uris[0]
    assert connect_frame(uri, "", "", "", "i") == (
        b"CONNECT\naccept-version:1.2\nhost:v\nheart-beat:7,7\namq-client-instance:i\namq-runs:1\n\n\0"
    )
