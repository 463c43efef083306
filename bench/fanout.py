"""Load on a topic: one producer, many subscribers, all in one process and one loop.

Invariant: a result is returned only when every subscriber got as many messages as were sent, and the last one last. The
producer is never more than the window ahead of the slowest subscriber, so that no broker has a reason to throw messages
away; nothing is done per message but counting the NUL that ends it.
"""

from __future__ import annotations

import dataclasses
import resource
import select
import socket
import time

from bench.load import Load, LoadError, LoadResult
from bench.wire import WireConnection, encode

RECV_BYTES = 1 << 18
SEND_FRAMES_MAX = 64
SERIAL_DIGITS = 10
TAIL_BYTES = 256  # line ends that may stand behind the last frame


@dataclasses.dataclass
class _Subscriber:
    connection: WireConnection
    received: int = 0
    tail: bytes = b""  # the last bytes that came


def run(load: Load) -> LoadResult:
    """`load.messages` to `load.consumers` subscribers; `per_s` counts deliveries. Raises LoadError."""
    subscribers = [_subscribe(load, number) for number in range(load.consumers)]
    producer = WireConnection(load.port, load.host, load.timeout_s)
    try:
        return _run(load, producer, subscribers)
    except OSError as error:
        raise LoadError(f"a connection broke: {error}") from error
    finally:
        producer.close()
        for subscriber in subscribers:
            subscriber.connection.close()


def _subscribe(load: Load, number: int) -> _Subscriber:
    connection = WireConnection(load.port, load.host, load.timeout_s)
    headers = {"id": number, "destination": load.destination, "ack": "auto", "receipt": "subscribed"}
    connection.send("SUBSCRIBE", headers | {"activemq.prefetchSize": load.prefetch})
    connection.receipt("subscribed", load.timeout_s)
    return _Subscriber(connection)


def _run(load: Load, producer: WireConnection, subscribers: list[_Subscriber]) -> LoadResult:
    headers = {"destination": load.destination, "content-length": load.size_bytes, "persistent": "false"}
    head, _, _ = encode("SEND", headers).rpartition(b"\0")
    filler = b"x" * (load.size_bytes - SERIAL_DIGITS) + b"\0"
    poll = select.epoll()
    by_number = {subscriber.connection.socket.fileno(): subscriber for subscriber in subscribers}
    for number, subscriber in by_number.items():
        subscriber.connection.socket.setblocking(False)
        poll.register(number, select.EPOLLIN)
    out, sock = b"", producer.socket
    sock.setblocking(False)
    sent, slowest = 0, 0
    start_s = moved_s = time.monotonic()
    cpu_s = _cpu_s()
    while slowest < load.messages:
        if not out and sent < load.messages and sent - slowest < load.window:
            count = min(SEND_FRAMES_MAX, load.messages - sent, load.window - (sent - slowest))
            out = b"".join([b"%b%010d%b" % (head, serial, filler) for serial in range(sent, sent + count)])
            sent += count
        if out:
            out = out[_send(sock, out) :]
        for number, _ in poll.poll(0 if out or (sent - slowest < load.window and sent < load.messages) else 0.01):
            _receive(by_number[number], load.size_bytes + TAIL_BYTES)
        before, slowest = slowest, min(subscriber.received for subscriber in subscribers)
        now_s = time.monotonic()
        if slowest > before:
            moved_s = now_s
        elif now_s - moved_s > load.timeout_s:
            raise LoadError(f"a subscriber has {slowest} of {sent} messages, and no more for {load.timeout_s} s")
    seconds = time.monotonic() - start_s
    last = b"%010d" % (load.messages - 1)
    for subscriber in subscribers:
        if subscriber.received != load.messages or not subscriber.tail.endswith(last + filler):
            raise LoadError(f"a subscriber got {subscriber.received} messages instead of {load.messages}")
    cpu_us = (_cpu_s() - cpu_s) / load.messages * 1e6
    rate = load.messages * len(subscribers) / seconds
    return LoadResult(load.messages, round(seconds, 6), round(rate, 1), {}, {}, round(cpu_us, 2))


def _send(sock: socket.socket, data: bytes) -> int:
    try:
        return sock.send(data)
    except BlockingIOError:
        return 0


def _receive(subscriber: _Subscriber, keep_bytes: int) -> None:
    data = subscriber.connection.socket.recv(RECV_BYTES)
    if not data:
        raise LoadError(f"the broker closed a connection after {subscriber.received} messages")
    subscriber.received += data.count(b"\0")
    # A broker may send heart-beats, or a line end behind each frame.
    subscriber.tail = (subscriber.tail + data[-keep_bytes:])[-keep_bytes:].rstrip(b"\n")


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
