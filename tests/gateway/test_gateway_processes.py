"""Gateways as processes: one port serves all stores of a cluster, and answers whatever is killed."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

import amq
from amq.cluster.directory import Cluster
from amq.core.destination import QUEUE_SCHEME
from amq.core.errors import AccessError, CommandError
from bench.wire import WireConnection, WireError, encode
from tests.cluster.nodes import Node, Nodes, each_as_it_should_be, served_by
from tests.openwire_client import peer_as, peer_of, receive
from tests.patience import DEADLINE_S
from tests.test_large_messages import BODY_BYTES, CHUNK, GROWTH_MAX, MIB, Memory, Peer
from tests.traffic import Producer, drain, send

pytestmark = pytest.mark.deep
PROBE_S = 0.005  # between two connections of a prober
BLOCKS, BLOCK_BYTES = 320, 64 << 10  # more than the socket buffers, windows and limits of a test


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Nodes]]:
    """Start nodes of a cluster of `stores` stores; when it returns, each store is served by the node that should."""
    made: list[Nodes] = []

    def run(*names: str, stores: int = 2, **options: str) -> Nodes:
        nodes = Nodes(tmp_path, stores)
        made.append(nodes)
        for name in names:
            nodes.nodes[name].options |= options
            nodes.nodes[name].start()
        nodes.until(each_as_it_should_be)
        return nodes

    yield run
    for nodes in made:
        nodes.kill()


def queue_in(nodes: Nodes, store: str, like: str = "q") -> str:
    """The name of a queue whose home is `store`."""
    placement = Cluster(str(nodes.cluster)).table().placement
    return next(name for number in count() if placement.home_of(QUEUE_SCHEME + (name := f"{like}{number}")) == store)


def until(wanted: Callable[[], object], why: Callable[[], str]) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not wanted():
        assert time.monotonic() < deadline, why()
        time.sleep(0.02)


class Prober(threading.Thread):
    """Connects to a port again and again, and notes whether it was refused."""

    def __init__(self, port: int) -> None:
        super().__init__(name="prober", daemon=True)
        self.connected = 0
        self.refused = 0
        self._port = port
        self._stopping = threading.Event()

    def run(self) -> None:
        while not self._stopping.wait(PROBE_S):
            try:
                with socket.create_connection(("127.0.0.1", self._port), DEADLINE_S):
                    self.connected += 1
            except ConnectionRefusedError:
                self.refused += 1

    def stop(self) -> int:
        """How often it was refused."""
        self._stopping.set()
        self.join()
        assert self.connected
        return self.refused


def test_one_port_serves_the_queues_of_all_stores(start: Callable[..., Nodes]) -> None:
    nodes = start("a")
    port = nodes.nodes["a"].port
    first, second = (queue_in(nodes, store) for store in ("s1", "s2"))
    with WireConnection(port, timeout_s=DEADLINE_S) as wire:
        for queue in (first, second):
            send(wire, b"by hand", queue=f"/queue/{queue}")
            assert drain(wire, 1, f"/queue/{queue}") == [b"by hand"]
    with (
        amq.connect(f"failover:(stomp://127.0.0.1:{port})") as connection,
        connection.session() as session,
        connection.session(transacted=True) as transacted,
    ):
        for queue in (first, second):
            producer = transacted.producer(f"/queue/{queue}")
            for number in range(20):
                producer.send(f"message {number}", wait=False)
            transacted.commit()
            consumer = session.consumer(f"/queue/{queue}")
            for number in range(20):
                message = consumer.receive(DEADLINE_S)
                assert message is not None
                assert message.text == f"message {number}"
                message.ack()
        found = connection.where(f"/queue/{first}", f"/queue/{second}", "/queue/>")
        assert found is not None
        assert found.homes == ("s1", "s2", "")
        assert [*found.stores] == ["s1", "s2"]
        (master,) = found.stores["s1"]
        with amq.connect(str(master)) as direct, direct.session() as own:
            assert direct.where(f"/queue/{first}") is None, "a broker serves one store"
            own.producer(f"/queue/{first}").send(b"directly")
            with pytest.raises(CommandError, match="lives in store s2"):
                own.producer(f"/queue/{second}").send(b"astray")
    with amq.connect(f"failover:(stomp://127.0.0.1:{port})?redirect=true") as connection, connection.session() as own:
        for queue in (first, second):
            own.producer(f"/queue/{queue}").send(b"straight to the store")
        assert [*connection.direct] == ["s1", "s2"]
        assert port not in [uri.port for uri in connection.direct.values() if uri is not None]
        consumer = own.consumer(f"/queue/{second}")
        message = consumer.receive(DEADLINE_S)
        assert message is not None
        message.ack(wait=True)
    placed, again = queue_in(nodes, "s1", "placed"), {"_AMQ_DUPL_ID": "once"}
    with WireConnection(port, timeout_s=DEADLINE_S) as wire:
        send(wire, b"once", queue=f"/queue/{placed}", **again)
        assert drain(wire, 1, f"/queue/{placed}") == [b"once"]
        nodes.place(placed, "s2").check_returncode()
        send(wire, b"once", queue=f"/queue/{placed}", **again)
        assert drain(wire, 0, f"/queue/{placed}") == [], "its new home remembers the id"
    found = nodes.until(lambda found: sum(each["links"] for each in found["nodes"][0]["gateways"]) >= 2)
    assert all(each["pid"] for each in found["nodes"][0]["gateways"])
    assert nodes.nodes["a"].stop() == 0


class Sender(threading.Thread):
    """Sends `count` messages, each with a receipt, without waiting for any."""

    def __init__(self, wire: WireConnection, destination: str, count: int) -> None:
        super().__init__(name="sender", daemon=True)
        self._wire = wire
        self._frames = [
            encode(
                "SEND",
                {
                    "destination": destination,
                    "persistent": "true",
                    "receipt": str(number),
                    "content-length": BLOCK_BYTES + 6,
                },
                b"%06d" % number + bytes(BLOCK_BYTES),
            )
            for number in range(count)
        ]

    def run(self) -> None:
        for frame in self._frames:
            self._wire.send_bytes(frame)


def said(nodes: Nodes, event: str) -> Callable[[], bool]:
    return lambda: event in nodes.nodes["a"].log.read_text()


def works(port: int, queue: str) -> None:
    """A client sends to a queue, and consumes it."""
    with WireConnection(port, timeout_s=DEADLINE_S) as wire:
        for body in (b"0", b"1"):
            send(wire, body, queue=f"/queue/{queue}")
        assert drain(wire, 2, f"/queue/{queue}") == [b"0", b"1"]


def test_a_full_store_blocks_its_own_producers_and_nobody_else(start: Callable[..., Nodes]) -> None:
    nodes = start("a", storeLimit="9MiB", journalSegmentSize="1MiB", memoryLimit="64MiB")
    port = nodes.nodes["a"].port
    full, other = (queue_in(nodes, store) for store in ("s1", "s2"))
    with (
        WireConnection(port, timeout_s=DEADLINE_S) as producer,
        WireConnection(port, timeout_s=DEADLINE_S) as consumer,
    ):
        sender = Sender(producer, f"/queue/{full}", BLOCKS)
        sender.start()
        until(said(nodes, "storeLimit is reached"), nodes.logs)
        works(port, other)
        consumer.send("SUBSCRIBE", {"destination": f"/queue/{full}", "id": "c", "ack": "client-individual"})
        for number in range(BLOCKS):  # acknowledgements pass sends that wait, on the same link
            frame = consumer.next_frame(DEADLINE_S)
            assert (frame.command, frame.body[:6]) == ("MESSAGE", b"%06d" % number)
            consumer.send("ACK", {"id": frame.headers["ack"]})
        receipts = [producer.next_frame(DEADLINE_S).headers["receipt-id"] for _ in range(BLOCKS)]
        assert receipts == [str(number) for number in range(BLOCKS)]
        sender.join()
    assert nodes.nodes["a"].stop() == 0


def test_a_full_store_refuses_its_own_producers_where_they_shall_not_wait(start: Callable[..., Nodes]) -> None:
    nodes = start("a", storeLimit="9MiB", journalSegmentSize="1MiB", producerFlowControl="fail")
    port = nodes.nodes["a"].port
    full, other = (queue_in(nodes, store) for store in ("s1", "s2"))
    with WireConnection(port, timeout_s=DEADLINE_S) as producer, pytest.raises(WireError, match="at its limit of 9MiB"):
        for _ in range(BLOCKS):
            send(producer, bytes(BLOCK_BYTES), queue=f"/queue/{full}")
    works(port, other)
    with WireConnection(port, timeout_s=DEADLINE_S) as producer, pytest.raises(WireError, match="at its limit of 9MiB"):
        send(producer, bytes(BLOCK_BYTES), queue=f"/queue/{full}")


def test_a_large_body_is_in_a_gateway_once_at_most(start: Callable[..., Nodes]) -> None:
    """In by STOMP, out by STOMP and OpenWire. A link carries it in parts, so the gateway may have much less of it."""
    nodes = start("a", stores=1)
    node, (gateway,) = nodes.nodes["a"], nodes.nodes["a"].gateways
    with Peer(node.port) as peer:  # what is loaded and made once
        peer.send("warm", 3 * MIB)
        peer.subscribe("warm")
        peer.ask("ACK", {"id": peer.delivery()["ack"]})
    memory = Memory(gateway)
    with Peer(node.port) as producer:
        for number in (1, 2):
            producer.send("large", number=number)
    assert memory.growth() < GROWTH_MAX * BODY_BYTES
    memory.start()
    with Peer(node.port) as consumer:
        consumer.subscribe("large")
        headers = consumer.delivery()
        assert headers["number"] == "1"
        consumer.ask("ACK", {"id": headers["ack"]})
    assert memory.growth() < GROWTH_MAX * BODY_BYTES
    memory.start()
    with peer_of(f"tcp://127.0.0.1:{node.port}") as other:
        (found,) = receive(other, "large", 1)
    content = found.fields["content"]
    assert len(content) == BODY_BYTES
    assert content[-MIB:] == CHUNK
    assert memory.growth() < GROWTH_MAX * BODY_BYTES


def test_a_client_id_is_free_at_another_node_when_its_gateway_is_killed(start: Callable[..., Nodes]) -> None:
    nodes = start("a", "b", stores=1)
    first, second = (f"tcp://127.0.0.1:{nodes.nodes[name].port}" for name in "ab")
    peer = peer_as(first, "me")
    for url in (second, first):
        with pytest.raises(AccessError, match=r"in use by another connection, of 127\.0\.0\.1:"):
            peer_as(url, "me")
    (gateway,) = nodes.nodes["a"].gateways
    os.kill(gateway, signal.SIGKILL)
    peer.close()

    def comes_back() -> bool:
        with suppress(AccessError):  # its master does not know yet that the gateway is gone
            peer_as(second, "me").leave()
            return True
        return False

    until(comes_back, nodes.logs)


def test_a_living_node_answers_always_and_nothing_confirmed_is_lost(start: Callable[..., Nodes]) -> None:
    nodes = start("a", "b", stores=2)
    a, b = nodes.nodes["a"], nodes.nodes["b"]
    prober = Prober(b.port)
    prober.start()
    producers = [Producer([b], queue=f"/queue/{queue_in(nodes, store)}") for store in ("s1", "s2")]  # type: ignore[list-item]
    for producer in producers:
        producer.start()

    def progress() -> None:
        for producer in producers:
            producer.wait_confirmed(50)

    progress()
    of_b = next(store["store"] for store in nodes.status()["stores"] if store["master"] == "b")
    _kill(b, "member", of_b)
    progress()
    _kill(b, "gateway")
    progress()
    a.kill()
    nodes.until(served_by("b"))
    progress()

    assert prober.stop() == 0, nodes.logs()
    for producer, store in zip(producers, ("s1", "s2"), strict=True):
        confirmed = producer.stop()
        queue = f"/queue/{queue_in(nodes, store)}"
        with WireConnection(b.port, timeout_s=DEADLINE_S) as wire:
            bodies = [int(body.split()[1]) for body in drain(wire, len(confirmed) + 50, queue)]
        assert bodies == sorted(set(bodies)), "stored twice, or out of order"
        assert set(confirmed) <= set(bodies)
    assert b.stop() == 0


def _kill(node: Node, kind: str, store: str = "") -> None:
    """kill -9 of one gateway, or of the member of `store`."""
    before = node.gateways if kind == "gateway" else node.members_of(store)
    os.kill(before[0], signal.SIGKILL)
    after = (lambda: node.gateways) if kind == "gateway" else (lambda: node.members_of(store))
    until(lambda: len(after()) == len(before) and before[0] not in after(), node.log_text)
