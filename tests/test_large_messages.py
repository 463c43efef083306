"""Messages of 100 MiB through a real broker: what its memory grows by, who waits for whom, that every byte is right.

Invariant: "growth" is the peak of the resident set (VmHWM) above what the broker took just before, so that one more
copy of a body cannot hide.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.brokers import ROOT, Broker, Brokers
from tests.patience import DEADLINE_S
from tests.sampling import sampled

MIB = 1 << 20
BODY_BYTES = 100 * MIB
# One body, and what a slice here, a buffer there take. A second copy would make it 2.
GROWTH_MAX = 1.3
BLOCK = bytes(range(251)) * 4178  # a little more than 1 MiB; 251 is prime, so that a shifted block is seen
CHUNK = BLOCK[:MIB]


class Peer:
    """A STOMP client that never has a whole body in memory."""

    def __init__(self, port: int, receive_buffer_bytes: int = 0) -> None:
        self._socket = socket.socket()
        if receive_buffer_bytes:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer_bytes)
        self._socket.settimeout(DEADLINE_S)
        self._socket.connect(("127.0.0.1", port))
        self._buffer = bytearray()
        self.command("CONNECT", {"accept-version": "1.2", "host": "x"})
        assert self.head()[0] == "CONNECTED"

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def write(self, data: bytes) -> None:
        self._socket.sendall(data)

    def command(self, command: str, headers: dict[str, str]) -> None:
        self.write(_head(command, headers) + b"\0")

    def ask(self, command: str, headers: dict[str, str]) -> None:
        """Send a command and wait for its receipt."""
        self.command(command, {**headers, "receipt": "asked"})
        self.receipt("asked")

    def receipt(self, receipt: str) -> None:
        command, headers = self.head()
        assert (command, headers.get("receipt-id")) == ("RECEIPT", receipt), (command, headers)
        self.take(1)

    def send(self, queue: str, size: int = BODY_BYTES, number: int = 0, **headers: str) -> None:
        """A message of `size` bytes; waits for the receipt, unless it is part of a transaction."""
        known = {"destination": f"/queue/{queue}", "number": str(number), "receipt": f"sent-{number}", **headers}
        known["content-length"] = str(size)
        self.write(_head("SEND", known))
        for start in range(0, size, MIB):
            self.write(CHUNK[: size - start])
        self.write(b"\0")
        self.receipt(f"sent-{number}")

    def subscribe(self, queue: str, ack: str = "client-individual", prefetch: int = 1) -> None:
        headers = {"id": queue, "destination": f"/queue/{queue}", "ack": ack, "activemq.prefetchSize": str(prefetch)}
        self.command("SUBSCRIBE", headers)

    def delivery(self) -> dict[str, str]:
        """The headers of the next message, all of whose bytes came and were right."""
        command, headers = self.head()
        assert command == "MESSAGE", (command, headers)
        left = int(headers["content-length"])
        while left:
            size = min(left, MIB)
            assert self.take(size) == CHUNK[:size]
            left -= size
        assert self.take(1) == b"\0"
        return headers

    def head(self) -> tuple[str, dict[str, str]]:
        """Command and headers of the next frame."""
        while self._buffer[:1] == b"\n" or b"\n\n" not in self._buffer:
            if self._buffer[:1] == b"\n":
                del self._buffer[:1]
            else:
                self._fill()
        block, _, self._buffer = self._buffer.partition(b"\n\n")
        command, *lines = block.lstrip(b"\0").decode().split("\n")
        return command, dict(line.split(":", 1) for line in lines)

    def take(self, size: int) -> bytes:
        while len(self._buffer) < size:
            self._fill()
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data

    def read_slowly(self, size: int) -> None:
        """Take that much out of the socket, and no more."""
        data = self._socket.recv(size)
        assert data
        self._buffer += data

    def _fill(self) -> None:
        data = self._socket.recv(MIB)
        assert data, "the broker closed the connection"
        self._buffer += data


def _head(command: str, headers: dict[str, str]) -> bytes:
    return "".join([f"{command}\n", *(f"{name}:{value}\n" for name, value in headers.items()), "\n"]).encode()


class Memory:
    """Of a process, in bytes."""

    def __init__(self, pid: int | str) -> None:
        self._directory = Path(f"/proc/{pid}")
        self.start()

    def start(self) -> None:
        """From here on the peak counts."""
        (self._directory / "clear_refs").write_text("5")
        self.before = self._read("VmRSS")

    def growth(self) -> int:
        return self._read("VmHWM") - self.before

    def now(self) -> int:
        """More than before, at this moment."""
        return self._read("VmRSS") - self.before

    def _read(self, name: str) -> int:
        for line in (self._directory / "status").read_text().splitlines():
            if line.startswith(name + ":"):
                return int(line.split()[1]) * 1024
        raise AssertionError(f"no {name} in the status of the process")


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Brokers(tmp_path) as brokers:
        made = brokers.master()
        with Peer(made.port) as peer:  # what is loaded and made once
            peer.send("warm", 3 * MIB)
            peer.subscribe("warm")
            peer.ask("ACK", {"id": peer.delivery()["ack"]})
        yield made


@pytest.mark.deep
def test_one_copy_in_and_one_copy_out(broker: Broker) -> None:
    memory = Memory(broker.pid)
    with Peer(broker.port) as producer:
        producer.send("a", number=1)
        producer.send("a", number=2)
        producer.send("a", number=3)
    assert memory.growth() < GROWTH_MAX * BODY_BYTES
    assert memory.now() < 0.1 * BODY_BYTES, "it waits on the disk alone"
    memory.start()
    for number in (1, 2, 3):
        with Peer(broker.port) as consumer:
            consumer.subscribe("a")
            headers = consumer.delivery()
            assert headers["number"] == str(number)
            consumer.ask("ACK", {"id": headers["ack"]})
    assert memory.growth() < GROWTH_MAX * BODY_BYTES


@pytest.mark.deep
def test_slow_consumers_hold_one_body_each_and_nobody_back(broker: Broker) -> None:
    """One reads a few bytes now and then; others take what comes, large and small, at their own pace."""
    with Peer(broker.port) as producer, Peer(broker.port, 64 << 10) as slow, Peer(broker.port) as quick:
        producer.send("slow", number=1)
        producer.send("slow", number=2)
        memory = Memory(broker.pid)
        slow.subscribe("slow", prefetch=10)
        slow.read_slowly(1024)
        quick.subscribe("quick", prefetch=10)
        for number in range(3):
            producer.send("quick", 8 * MIB, number)
            headers = quick.delivery()
            assert headers["number"] == str(number)
            quick.ask("ACK", {"id": headers["ack"]})
            slow.read_slowly(1024)
        assert memory.growth() < GROWTH_MAX * BODY_BYTES
        for number in (1, 2):
            headers = slow.delivery()
            assert headers["number"] == str(number)
            slow.ask("ACK", {"id": headers["ack"]})
        # Number 1 is gone, so number 2 is half of the journal: compaction copies it while it is delivered.
        assert memory.growth() < (1 + GROWTH_MAX) * BODY_BYTES


@pytest.mark.deep
def test_given_back_refused_and_in_a_transaction(broker: Broker) -> None:
    """Its body is read again each time: for the next consumer, and for the move to the dead-letter queue."""
    with Peer(broker.port) as peer:
        memory = Memory(broker.pid)
        peer.command("BEGIN", {"transaction": "t"})
        peer.send("a", number=1, transaction="t")
        peer.ask("COMMIT", {"transaction": "t"})
        assert memory.growth() < GROWTH_MAX * BODY_BYTES
        assert memory.now() < 0.1 * BODY_BYTES
        with Peer(broker.port) as first:
            first.subscribe("a")
            assert "redelivered" not in first.delivery()
        with Peer(broker.port) as broken:
            broken.subscribe("a")
            assert broken.head()[1]["redelivered"] == "true"  # and it goes without having read the body
        peer.subscribe("a")
        headers = peer.delivery()
        assert (headers["redelivered"], headers["JMSXDeliveryCount"]) == ("true", "3")
        peer.ask("NACK", {"id": headers["ack"]})
        peer.subscribe("DLQ.a")
        headers = peer.delivery()
        assert headers["number"] == "1"
        peer.ask("ACK", {"id": headers["ack"]})
        assert memory.growth() < GROWTH_MAX * BODY_BYTES
        assert memory.now() < 0.1 * BODY_BYTES


CLIENT = """
import asyncio, json, sys, threading
import amq, amq.client.aio
from tests.patience import DEADLINE_S
from tests.test_large_messages import CHUNK, MIB, Memory

url, face, size = sys.argv[1], sys.argv[2], int(sys.argv[3])
body = (CHUNK * (size // MIB + 1))[:size]
grown = []

def threads():
    with amq.connect(url) as connection, connection.session() as session:
        producer, consumer = session.producer("/queue/a"), session.consumer("/queue/a", prefetch=1)
        producer.send(b"x" * 3 * MIB)  # what is made once
        consumer.receive(DEADLINE_S).ack(wait=True)
        memory = Memory("self")
        producer.send(body)
        grown.append(memory.growth())
        memory.start()
        message = consumer.receive(DEADLINE_S)
        grown.append(memory.growth())
        message.ack(wait=True)
        return message.body

async def loop():
    async with await amq.client.aio.connect(url) as connection:
        session = connection.session()
        producer, consumer = session.producer("/queue/a"), await session.consumer("/queue/a", prefetch=1)
        await producer.send(b"x" * 3 * MIB)
        await (await consumer.receive(DEADLINE_S)).ack(wait=True)
        memory = Memory("self")
        await producer.send(body)
        grown.append(memory.growth())
        memory.start()
        message = await consumer.receive(DEADLINE_S)
        grown.append(memory.growth())
        await message.ack(wait=True)
        return message.body

assert (threads() if face == "threads" else asyncio.run(loop())) == body
print(json.dumps(grown))
"""


@pytest.mark.parametrize("face", sampled(["threads", "asyncio"]))
def test_our_client_makes_no_second_copy(broker: Broker, face: str) -> None:
    """With default settings. The consumer's prefetch has the message on its way while the producer still waits for its
    receipt: what both take together is what counts."""
    url = f"failover:(stomp://127.0.0.1:{broker.port})"
    done = subprocess.run(
        [sys.executable, "-c", CLIENT, url, face, str(BODY_BYTES)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=2 * DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    sent, received = json.loads(done.stdout)
    assert max(sent, received) < GROWTH_MAX * BODY_BYTES
