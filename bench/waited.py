"""How long does another client wait while one client attacks the broker?

A client sends a message each 30 ms and waits for its receipt. Meanwhile a client with a login, in a separate process,
does again and again what costs the broker most. Each row is one attack; the first has none.
"""

from __future__ import annotations

import argparse
import multiprocessing
import socket
import ssl
import struct
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.synchronize import Event
from typing import Any, Final, NamedTuple

from rich.table import Table

from amq.protocols.openwire import table as wire
from amq.protocols.openwire.hello import MAGIC
from amq.protocols.openwire.primitives import encode_map
from amq.protocols.openwire.table import Structure, frame, structure
from amq.protocols.openwire.wire import optional_bytes
from bench import brokers, cli
from bench.tls import certificate
from bench.wire import WireConnection, WireError, encode

SECONDS: Final = 10.0
EVERY_S: Final = 0.03
PATIENCE_S: Final = 120.0
EXAMPLES: Final = ("", "--attack 'refused commands' --seconds 30", "--quick", "--json waited.json")
VERSION: Final = 12
ID: Final = structure(wire.CONNECTION_ID, value="ID:attack-1-1:1")
SESSION: Final = structure(wire.SESSION_ID, connection="ID:attack-1-1:1", value=1)
PRODUCER: Final = structure(wire.PRODUCER_ID, connection="ID:attack-1-1:1", session=1, value=1)
CONSUMER: Final = structure(wire.CONSUMER_ID, connection="ID:attack-1-1:1", session=1, value=1)


class Ports(NamedTuple):
    """`tls` is that of STOMP over TLS."""

    stomp: int
    openwire: int
    tls: int


class Waited(NamedTuple):
    """One row: `sent` messages of the other client, and how long their receipts took."""

    attack: str
    sent: int
    median_ms: float
    p99_ms: float
    max_ms: float
    broker_cpu_s: float


# -- attacks -----------------------------------------------------------------------------------------------------------


def said(kind: int, number: int, **fields: Any) -> bytes:
    return frame(structure(kind, command_id=number, response_required=True, **fields), VERSION)


@contextmanager
def openwire(port: int) -> Iterator[socket.socket]:
    """A connection that has logged in, with a session and a producer. Nothing that comes is read."""
    hello = bytes((wire.WIRE_FORMAT_INFO,)) + MAGIC + struct.pack(">i", VERSION) + optional_bytes(encode_map({}))
    with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as sock:
        sock.sendall(
            struct.pack(">i", len(hello))
            + hello
            + said(wire.CONNECTION_INFO, 1, id=ID)
            + said(wire.SESSION_INFO, 2, id=SESSION)
            + said(wire.PRODUCER_INFO, 3, id=PRODUCER, destination=structure(wire.QUEUE, name="attack"))
        )
        yield sock


def message(number: int, destination: Structure, **fields: Any) -> bytes:
    id = structure(wire.MESSAGE_ID, producer=PRODUCER, producer_sequence=number)
    usual = {"command_id": number, "producer": PRODUCER, "destination": destination, "id": id, "priority": 4}
    return frame(Structure(wire.BYTES_MESSAGE, {**usual, **fields}), VERSION)


def nothing(ports: Ports) -> None:  # noqa: ARG001
    time.sleep(PATIENCE_S)


def refused(ports: Ports) -> None:
    queue = structure(wire.QUEUE, name="attack")
    with openwire(ports.openwire) as sock:
        sock.sendall(
            b"".join(
                said(
                    wire.CONSUMER_INFO,
                    9 + n,
                    id=CONSUMER,
                    destination=queue,
                    prefetch=1,
                    selector="a = 1 AND " * 9 + "=",
                )
                for n in range(8000)
            )
        )
        _drain(sock)


def json_commit(ports: Ports) -> None:
    body = b'{"xids": [' + b",".join([b"[]"] * (5 << 20)) + b"]}"
    _stomp(ports, encode("COMMIT", {"owner": "o", "batch": 1, "content-length": len(body)}, body))


def json_allowed(ports: Ports) -> None:
    body = b'{"xids": [' + b",".join([b"[]"] * 49_000) + b"]}"
    _stomp(ports, encode("COMMIT", {"owner": "o", "batch": 1, "content-length": len(body)}, body))


def series(ports: Ports) -> None:
    _stomp(ports, encode("COMMIT", {"owner": "o", "batch": 1, "series": "x*100000"}))


def small(ports: Ports) -> None:
    connection = WireConnection(ports.stomp)
    while True:
        connection.send_bytes(encode("SEND", {"destination": "/topic/a"}) * 8000)


@contextmanager
def tls_client(ports: Ports) -> Iterator[ssl.SSLSocket]:
    """A client of STOMP over TLS that has connected."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection(("127.0.0.1", ports.tls)) as plain, context.wrap_socket(plain) as sock:
        sock.sendall(encode("CONNECT", {"accept-version": "1.2", "host": "/"}))
        sock.recv(4096)
        yield sock


def small_tls(ports: Ports) -> None:
    """One record of TLS for each frame."""
    with tls_client(ports) as sock:
        one = encode("SEND", {"destination": "/topic/a"})
        while True:
            sock.sendall(one)


def tiny_tls(ports: Ports) -> None:
    """Records of one byte, a line end."""
    with tls_client(ports) as sock:
        while True:
            sock.sendall(b"\n")


def compressed(ports: Ports) -> None:
    """65 KB that inflate to 64 MiB, for a consumer that must get the bytes themselves."""
    content = struct.pack(">i", 64 << 20) + zlib.compress(bytes(64 << 20))
    queue = structure(wire.QUEUE, name="compressed")
    reader = WireConnection(ports.stomp)
    reader.send("SUBSCRIBE", {"id": 1, "destination": "/queue/compressed"})
    with openwire(ports.openwire) as sock:
        for number in range(10, 1000):
            sock.sendall(message(number, queue, compressed=True, content=content))
            with suppress(TimeoutError):
                reader.next_frame(1.0)


def properties(ports: Ports) -> None:
    """Messages of 1,000 small properties for 900 selectors."""
    topic = structure(wire.TOPIC, name="properties")
    subscriptions = b"".join(
        encode("SUBSCRIBE", {"id": n, "destination": "/topic/properties", "selector": f"p{n} = 'x' AND q{n} > {n}"})
        for n in range(900)
    )
    marshalled = encode_map({f"p{n}": n for n in range(1000)})
    WireConnection(ports.stomp).send_bytes(subscriptions)
    with openwire(ports.openwire) as sock:
        for number in range(10, 1000):
            sock.sendall(message(number, topic, properties=marshalled, content=b"x"))
            time.sleep(0.2)


def like(ports: Ports) -> None:
    """1,500 selectors with LIKE, and headers of 9 KB."""
    connection = WireConnection(ports.stomp)
    connection.send_bytes(
        b"".join(
            encode("SUBSCRIBE", {"id": n, "destination": "/topic/like", "selector": f"h LIKE '%_a%{n}_b%'"})
            for n in range(1500)
        )
    )
    while True:
        connection.send_bytes(encode("SEND", {"destination": "/topic/like", "h": "ab" * 4500}) * 20)
        time.sleep(0.2)


def _stomp(ports: Ports, data: bytes) -> None:
    connection = WireConnection(ports.stomp)
    try:
        connection.send_bytes(data)
        _drain(connection.socket)
    finally:
        connection.close()


def _drain(sock: socket.socket) -> None:
    """Until the broker closes, or says nothing for a while."""
    sock.settimeout(1.0)
    with suppress(TimeoutError):
        while sock.recv(1 << 20):
            pass


ATTACKS: Final[dict[str, Callable[[Ports], None]]] = {
    "none": nothing,
    "refused commands": refused,
    "COMMIT, 16 MiB of JSON": json_commit,
    "COMMIT, allowed JSON": json_allowed,
    "COMMIT of a series": series,
    "smallest frames": small,
    "smallest frames, TLS": small_tls,
    "records of one byte, TLS": tiny_tls,
    "compressed messages": compressed,
    "properties × selectors": properties,
    "selectors with LIKE": like,
}
QUICK: Final = ("none", "refused commands", "COMMIT of a series")


def attack(name: str, ports: Ports, begun: Event) -> None:
    """Again and again, until the process is ended."""
    begun.set()
    while True:
        with suppress(OSError, WireError):  # the broker ends connections that break its limits
            ATTACKS[name](ports)


# -- measuring ---------------------------------------------------------------------------------------------------------


def waits(port: int, seconds: float) -> list[float]:
    """How long each receipt took, ms."""
    client = WireConnection(port, timeout_s=PATIENCE_S)
    found: list[float] = []
    end = time.monotonic() + seconds
    while (began := time.monotonic()) < end:
        client.send("SEND", {"destination": "/topic/other", "receipt": len(found)}, b"x")
        client.receipt(str(len(found)), PATIENCE_S)
        took = time.monotonic() - began
        found.append(took * 1000)
        time.sleep(max(0.0, EVERY_S - took))
    client.close()
    return found


def measure(name: str, seconds: float, args: argparse.Namespace) -> Waited:
    """Raises OSError, WireError, BrokerError."""
    group = brokers.BrokerGroup("amq", directory=args.dir, options=cli.amq_options(args), openwire=True)
    broker = group.brokers[0]
    assert isinstance(broker, brokers.AmqBroker)
    pem, key = certificate(group.directory)
    ports = Ports(broker.port, group.openwire_ports[0], brokers.free_port())
    secure = ("-o", f"certificate={pem}", "-o", f"certificateKey={key}")
    broker.more = ("--transport", f"stomp+ssl://127.0.0.1:{ports.tls}", *secure)
    with group:
        processes = multiprocessing.get_context("fork")
        begun = processes.Event()
        attacker = processes.Process(target=attack, args=(name, ports, begun), daemon=True)
        attacker.start()
        begun.wait(PATIENCE_S)
        before_s = broker.cpu_s()
        try:
            found = sorted(waits(broker.port, seconds))
            broker.check()
        finally:
            attacker.kill()
            attacker.join()
        cpu_s = broker.cpu_s() - before_s
    return Waited(name, len(found), found[len(found) // 2], found[len(found) * 99 // 100], found[-1], cpu_s)


def table(rows: list[Waited]) -> Table:
    shown = Table(title="how long another client waited for a receipt")
    for heading in ("attack", "sent", "median", "p99", "worst", "broker CPU"):
        shown.add_column(heading, justify="left" if heading == "attack" else "right")
    for row in rows:
        times = (f"{each:.1f} ms" for each in (row.median_ms, row.p99_ms, row.max_ms))
        shown.add_row(row.attack, f"{row.sent:,}", *times, f"{row.broker_cpu_s:.1f} s")
    return shown


def main() -> None:
    parser = cli.parser("waited", __doc__, EXAMPLES, peers=False)
    parser.add_argument("--attack", choices=list(ATTACKS), action="append", help="may be repeated; default: all")
    parser.add_argument("--seconds", type=float, metavar="S", default=SECONDS, help="of each; default %(default)s")
    args = parser.parse_args()
    cli.terminate_on_signal()
    seconds = min(args.seconds, 1.0) if args.quick else args.seconds
    rows: list[Waited] = []
    try:
        for name in args.attack or (QUICK if args.quick else ATTACKS):
            cli.progress(name)
            rows.append(measure(name, seconds, args))
    except (OSError, WireError, brokers.BrokerProcessError) as error:
        sys.exit(f"failed: {error}")
    cli.show(args, {"rows": [row._asdict() for row in rows]}, table(rows))


if __name__ == "__main__":
    main()
