"""The load generator of `amq perf`: a rate only for messages that came once, whole, and in time."""

from __future__ import annotations

import dataclasses
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from amq.cli import load as generator
from amq.cli.load import ACKS, Load, LoadError, LoadResult, run
from tests.brokers import Brokers
from tests.certificates import Authority, needs_openssl
from tests.patience import DEADLINE_S

COUNT = 501
MESSAGE = b"MESSAGE\nsubscription:0\nmessage-id:%d\ndestination:/queue/bench\ncontent-length:100\n\n%016d%012d%s\0"


def load(port: int, **changes: object) -> Load:
    small = Load(port, producers=2, consumers=2, messages=COUNT, size_bytes=100, window=7, timeout_s=DEADLINE_S)
    return dataclasses.replace(small, **changes)  # type: ignore[arg-type]


def plausible(result: LoadResult) -> bool:
    counted = result.messages == COUNT and abs(result.per_s * result.seconds - COUNT) < 5
    return counted and result.per_s > 0 and result.generator_cpu_us > 0


@contextmanager
def one_client(serve: Callable[[socket.socket, int], None]) -> Iterator[int]:
    """Port of a broker for a single client: `serve` gets its socket and the client's port behind CONNECTED."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            sock, (_, port) = server.accept()
            with sock, suppress(ConnectionError):  # a client that has seen enough
                sock.recv(4096)
                sock.sendall(b"CONNECTED\nversion:1.2\n\n\0")
                serve(sock, port)
                while data := sock.recv(4096):  # until it goes
                    if b"DISCONNECT\n" in data:
                        sock.sendall(b"RECEIPT\nreceipt-id:bye\n\n\0")

        thread = threading.Thread(target=accept)
        thread.start()
        yield server.getsockname()[1]
        thread.join()


class SleepyParent:
    """A starting gate behind which the process that made it does not run until all messages have come."""

    def __init__(self, gate: Any, received: Sequence[int]) -> None:
        self._gate, self._received, self._parent = gate, received, os.getpid()

    def wait(self, timeout_s: float) -> None:
        self._gate.wait(timeout_s)
        if os.getpid() == self._parent:
            deadline_s = time.monotonic() + timeout_s
            while sum(self._received) < COUNT:
                assert time.monotonic() < deadline_s, "the workers are not done"
                time.sleep(0.001)  # they tell of it in shared memory alone

    def abort(self) -> None:
        self._gate.abort()


@pytest.mark.parametrize("ack", ACKS)
def test_workers_that_are_done_before_the_parent_runs(
    brokers: Brokers, ack: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Shared(generator._Shared):
        def __init__(self, context: Any, parties: int, load: Load) -> None:
            super().__init__(context, parties, load)
            self.gate = SleepyParent(self.gate, self.received)

    port = brokers.master("a").port
    run(load(port, mode="send"))
    monkeypatch.setattr(generator, "_Shared", Shared)
    assert plausible(run(load(port, ack=ack, mode="recv")))
    result = run(load(port, ack=ack))
    assert plausible(result)
    assert 0 < result.delivery_us["p50"] <= result.delivery_us["p99"] <= result.delivery_us["max"]
    assert 0 < result.confirm_us["p50"] <= result.confirm_us["max"]


def unread_bytes(port: int) -> int:
    """What the socket of this process group that is bound to `port` has received, and nobody has read."""
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        _, local, _, _, queues, *_ = line.split()
        if int(local.rpartition(":")[2], 16) == port:
            return int(queues.partition(":")[2], 16)
    raise AssertionError("there is no such socket")


def test_the_last_receipts_come_in_parts() -> None:
    """A recv that has taken the first of them is woken for as many more as it wanted in all: it timed out."""
    count = 40  # a window of 256 lets it wait for 32 receipts at a time
    receipts = [b"RECEIPT\nreceipt-id:%08d\n\n\0" % number for number in range(count)]

    def serve(sock: socket.socket, port: int) -> None:
        frames = 0
        while frames < count:
            frames += sock.recv(1 << 16).count(b"\0")
        for part in (receipts[: count // 2], receipts[count // 2 :]):
            sock.sendall(b"".join(part))
            while unread_bytes(port):
                time.sleep(0.001)

    with one_client(serve) as port:
        result = run(load(port, producers=1, messages=count, window=256, mode="send"))
    assert result.messages == count
    assert result.seconds < DEADLINE_S, "until the recv gave up"


@pytest.mark.parametrize(
    ("numbers", "last", "why"),
    [
        (range(COUNT - 1), b"", "of 501 messages received, then nothing"),
        ([0, *range(COUNT - 1)], b"", "501 messages received instead of 501, 1 of them more than once"),
        (range(COUNT), b"!", "unexpected frames"),
    ],
    ids=["lost", "doubled", "changed"],
)
def test_no_rate_for_a_liar(numbers: Sequence[int], last: bytes, why: str) -> None:
    """A broker that says nothing wrong but `last`, in its last body."""

    def serve(sock: socket.socket, _port: int) -> None:
        assert b"SUBSCRIBE\n" in sock.recv(4096)
        bodies = [MESSAGE % (number, number, number, b"x" * 72) for number in numbers]
        sock.sendall(b"".join(bodies)[:-1] + last + b"\0")

    with one_client(serve) as port, pytest.raises(LoadError, match=why):
        run(load(port, consumers=1, mode="recv", ack="auto", timeout_s=DEADLINE_S if len(numbers) == COUNT else 1.0))


@needs_openssl
def test_a_socket_that_speaks_tls(authority: Authority) -> None:
    """Records that come in parts, several in one read, more than there is room for, and a broker that sends nothing."""
    pair = authority.pair("server")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    ours, theirs = socket.socketpair()
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = context.wrap_bio(there, back, server_side=True)

    def shake_hands() -> None:
        while True:
            try:
                server.do_handshake()
            except ssl.SSLWantReadError:
                theirs.sendall(back.read())
                there.write(theirs.recv(1 << 16))
            else:
                return

    thread = threading.Thread(target=shake_hands)
    thread.start()
    sock = generator._TlsSocket(ours, ssl.create_default_context(cafile=str(authority.trust)), "localhost")
    thread.join()
    generator._within(sock, 0.05)
    server.write(b"a" * 30_000)
    server.write(b"b" * 10)
    records = back.read()
    theirs.sendall(records[:20_000])
    room = bytearray(1 << 20)
    assert sock.recv_into(memoryview(room)) == 16_384
    with pytest.raises(BlockingIOError):
        sock.recv(4096)
    theirs.sendall(records[20_000:])
    assert sock.recv(4096) == b"a" * 4096
    assert sock.recv_into(memoryview(room)) == 30_000 - 16_384 - 4096 + 10
    sock.sendall(b"c" * 40_000)
    while there.pending < 40_000:
        there.write(theirs.recv(1 << 16))
    assert b"".join(server.read(1 << 16) for _ in range(3)) == b"c" * 40_000
    with pytest.raises(ssl.SSLWantReadError):
        server.unwrap()
    theirs.sendall(back.read())
    theirs.close()
    assert sock.recv(4096) == b""
    sock.close()
