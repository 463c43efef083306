"""Strangers at a TLS port, who stop in the middle of a handshake or break the records behind one: they cost little, and
others are served meanwhile."""

from __future__ import annotations

import socket
import ssl
from contextlib import ExitStack
from pathlib import Path
from random import Random

import pytest

from tests.brokers import Broker, Brokers
from tests.certificates import Authority, Pair, needs_openssl
from tests.patience import DEADLINE_S
from tests.transports.test_tls_ports import CONNECT, ask, client_context, dial, memory_kib, options

pytestmark = needs_openssl
STRANGERS = 20
STRANGERS_KIB_MAX = 10 << 10
BENT = 60
SEND = b"SEND\ndestination:/queue/q\nreceipt:%d\n\norder\0"


@pytest.fixture(scope="module")
def server(authority: Authority) -> Pair:
    return authority.pair("server")


class Raw:
    """A TLS client whose records the test sees before they are sent."""

    def __init__(self, broker: Broker, context: ssl.SSLContext) -> None:
        self.sock = socket.create_connection(("127.0.0.1", broker.port), DEADLINE_S)
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_hostname="localhost")

    def hello(self) -> bytes:
        """The first flight, not sent yet."""
        with pytest.raises(ssl.SSLWantReadError):
            self._tls.do_handshake()
        return self._out.read()

    def shake_hands(self) -> None:
        data = self.hello()
        while True:
            self.sock.sendall(data)
            self._in.write(self.sock.recv(1 << 16))
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                data = self._out.read()
                continue
            self.sock.sendall(self._out.read())
            return

    def record(self, data: bytes) -> bytes:
        """`data` encrypted, not sent yet."""
        self._tls.write(data)
        return self._out.read()

    def ends(self) -> None:
        """Until the broker has closed."""
        self.sock.settimeout(DEADLINE_S)
        try:
            while self.sock.recv(1 << 16):
                pass
        except ConnectionError:
            pass


def half(raw: Raw, number: int, dice: Random) -> None:
    """A handshake that goes on to some point, and is there, or a record of no handshake."""
    hello = raw.hello()
    record = bytes([dice.randrange(0x14, 0x18), 3, 3, 2, 0]) + dice.randbytes(0x200)
    kinds = [hello, hello[:1], hello[: len(hello) // 2], hello + b"\x14\x03\x03\x00\x01", hello + dice.randbytes(4000)]
    kinds += [record, b"\x16\x03\x01\x40\x00" + bytes(8 << 10)]
    raw.sock.sendall(kinds[number % len(kinds)])


def test_twenty_half_handshakes_cost_at_most_ten_mebibytes(authority: Authority, server: Pair, tmp_path: Path) -> None:
    dice, context = Random(7), client_context(authority)
    limits = {"handshakeTimeout": "60s", "maxHandshakes": STRANGERS}  # all places are taken: who waits long gives way
    with Brokers(tmp_path, **options(authority, server, **limits)) as brokers, ExitStack() as stack:
        broker = brokers.master()
        friend = stack.enter_context(dial(broker, context))
        assert ask(friend).startswith(b"CONNECTED\n")
        before = memory_kib(broker.pid)
        for number in range(STRANGERS):
            raw = Raw(broker, context)
            stack.enter_context(raw.sock)
            half(raw, number, dice)
            assert b"receipt-id:%d\n" % number in ask(friend, SEND % number), "the loop serves"
        with dial(broker, context) as other:
            assert ask(other).startswith(b"CONNECTED\n")
        assert memory_kib(broker.pid) - before <= STRANGERS_KIB_MAX


def bent(raw: Raw, dice: Random, number: int) -> bytes:
    """The bytes behind a right handshake: garbage, records that are cut or changed, and records of no use."""
    good = raw.record(CONNECT + SEND % number) if dice.random() < 0.8 else b""
    changed = bytearray(good or b"\0")
    changed[dice.randrange(len(changed))] ^= 1 << dice.randrange(8)
    return (
        dice.randbytes(dice.randrange(1, 3000)),
        good[: dice.randrange(len(good) + 1)],
        bytes(changed),
        good + b"\x17\x03\x03\xff\xff" + dice.randbytes(500),
        b"\x16\x03\x03\x00\x04\x01\x00\x00\x00" + good,
        b"\x15\x03\x03\x00\x02\x02\x28" + good,
        good + good,
    )[number % 7]


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_3, ssl.TLSVersion.TLSv1_2])
def test_bent_records_behind_a_handshake_end_their_connection_alone(
    authority: Authority, server: Pair, tmp_path: Path, version: ssl.TLSVersion
) -> None:
    dice, context = Random(24), client_context(authority)
    context.maximum_version = version
    with Brokers(tmp_path, **options(authority, server, tlsMinimumVersion="1.2", logLevel="debug")) as brokers:
        broker = brokers.master()
        with dial(broker, client_context(authority)) as friend:
            assert ask(friend).startswith(b"CONNECTED\n")
            files = len(list(Path(f"/proc/{broker.pid}/fd").iterdir()))
            for number in range(BENT):
                raw = Raw(broker, context)
                with raw.sock:
                    raw.shake_hands()
                    try:
                        raw.sock.sendall(bent(raw, dice, number))
                        raw.sock.shutdown(socket.SHUT_WR)
                    except OSError:
                        pass  # the broker was quicker
                    raw.ends()
                assert b"receipt-id:%d\n" % number in ask(friend, SEND % number), "the loop serves"
        # Some sockets are closed a round later; a leak would be one for each.
        assert len(list(Path(f"/proc/{broker.pid}/fd").iterdir())) < files + BENT // 4
        assert not broker.said("internal error")
        assert not [line for line in broker.log if "text" in line], "no traceback of the event loop"
