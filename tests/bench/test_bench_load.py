"""The load generator counts right, and refuses to report a rate for work that was not done."""

from __future__ import annotations

import dataclasses
import os
import socket
import ssl
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from amq.cli import load as generator
from bench import brokers
from bench.load import ACKS, Load, LoadError, Result, run
from tests.certificates import Authority, needs_openssl
from tests.patience import DEADLINE_S


def load(port: int, **changes: object) -> Load:
    small = Load(port, producers=2, consumers=2, messages=501, size_bytes=100, window=7, timeout_s=DEADLINE_S)
    return dataclasses.replace(small, **changes)  # type: ignore[arg-type]


def plausible(result: Result) -> bool:
    counted = result.messages == 501 and abs(result.per_s * result.seconds - 501) < 5
    return counted and result.per_s > 0 and result.generator_cpu_us > 0


@pytest.mark.parametrize("ack", ACKS)
def test_both_sides(memory_port: int, ack: str) -> None:
    result = run(load(memory_port, ack=ack))
    assert plausible(result)
    assert 0 < result.delivery_us["p50"] <= result.delivery_us["p99"] <= result.delivery_us["max"]
    assert 0 < result.confirm_us["p50"] <= result.confirm_us["max"]


class SleepyParent:
    """A starting gate behind which the process that made it does not run until all messages have come."""

    def __init__(self, gate: Any, received: Sequence[int]) -> None:
        self._gate, self._received, self._parent = gate, received, os.getpid()

    def wait(self, timeout_s: float) -> None:
        self._gate.wait(timeout_s)
        if os.getpid() == self._parent:
            deadline_s = time.monotonic() + timeout_s
            while sum(self._received) < 501:
                assert time.monotonic() < deadline_s, "the workers are not done"
                time.sleep(0.001)  # they tell of it in shared memory alone

    def abort(self) -> None:
        self._gate.abort()


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
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            sock, (_, port) = server.accept()
            with sock:
                sock.recv(4096)
                sock.sendall(b"CONNECTED\nversion:1.2\n\n\0")
                frames = 0
                while frames < count:
                    frames += sock.recv(1 << 16).count(b"\0")
                for part in (receipts[: count // 2], receipts[count // 2 :]):
                    sock.sendall(b"".join(part))
                    while unread_bytes(port):
                        time.sleep(0.001)
                sock.recv(1)  # until it goes

        thread = threading.Thread(target=serve)
        thread.start()
        sending = Load(server.getsockname()[1], producers=1, messages=count, size_bytes=100, window=256, mode="send")
        result = run(dataclasses.replace(sending, timeout_s=DEADLINE_S))
        thread.join()
    assert result.messages == count
    assert result.seconds < DEADLINE_S, "until the recv gave up"


@pytest.mark.parametrize("mode", ["both", "recv"])
def test_workers_that_are_done_before_the_parent_runs(
    memory_port: int, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Shared(generator._Shared):
        def __init__(self, context: Any, parties: int, consumers: int) -> None:
            super().__init__(context, parties, consumers)
            self.gate = SleepyParent(self.gate, self.received)

    if mode == "recv":
        run(load(memory_port, mode="send"))
    monkeypatch.setattr(generator, "_Shared", Shared)
    assert plausible(run(load(memory_port, mode=mode)))


@pytest.mark.parametrize(
    ("flaw", "why"),
    [("lose", "then nothing"), ("double", "instead of 501|unexpected frames"), ("corrupt", "unexpected frames")],
)
def test_no_rate_for_a_liar(memory_kind: str, flaw: str, why: str) -> None:
    with brokers.Group(memory_kind, options={"flaw": flaw}) as group, pytest.raises(LoadError, match=why):
        run(load(group.ports[0], timeout_s=2.0))


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
