"""Fills a queue with millions of messages, and empties it: as fast as the broker, and every message counted.

Invariant: `fill` returns when the broker has confirmed everything, `drain` when each message of a `fill` was delivered
exactly once and each acknowledgement taken; anything else raises. Each message carries its number in the first 12 bytes
of its body. Only every 256th send asks for a receipt: the broker works through a connection in order.
"""

from __future__ import annotations

import gc
import multiprocessing
import re
import time
from collections.abc import Callable
from typing import Any

from bench.load import LoadError
from bench.wire import WireConnection, WireError, encode

BODY_BYTES = 1024
SERIAL_BYTES = 12
BATCH_MESSAGES = 256
BATCHES_UNCONFIRMED_MAX = 16
PATIENCE_S = 120.0  # without any progress
REPORT_EVERY_S = 5.0
RECEIVE_BYTES = 1 << 20
CONSUMERS = 4
_MARK = b"#" * SERIAL_BYTES  # where the number goes
_MESSAGE = re.compile(rb"MESSAGE\n(?:[^\n]+\n)*?ack:([^\n]+)\n(?:[^\n]+\n)*\n(\d{%d})x*\0" % SERIAL_BYTES)

Progress = Callable[[str], None]


def quiet(_text: str) -> None:
    """Progress for nobody."""


def _batch(destination: str, size_bytes: int, count: int) -> tuple[bytearray, list[int]]:
    """`count` SEND frames, the last with a receipt; where in them the message's number goes."""
    headers: dict[str, object] = {"destination": destination, "content-length": size_bytes, "persistent": "true"}
    body = _MARK + b"x" * (size_bytes - SERIAL_BYTES)
    frames = encode("SEND", headers, body) * (count - 1) + encode("SEND", headers | {"receipt": "batch"}, body)
    return bytearray(frames), [found.start() for found in re.finditer(_MARK, frames)]


def fill(
    port: int,
    messages: int,
    destination: str,
    *,
    size_bytes: int = BODY_BYTES,
    queues: bool = False,
    progress: Progress = quiet,
) -> float:
    """Send `messages` durable messages, numbered from 0; returns messages/s.

    With `queues`, each goes to a separate queue, `destination` followed by a point and the message's number.
    Raises OSError, WireError.
    """
    target = f"{destination}.{_MARK.decode()}" if queues else destination
    start_s = reported_s = time.monotonic()
    with WireConnection(port, timeout_s=PATIENCE_S) as connection:
        frames, marks = _batch(target, size_bytes, min(BATCH_MESSAGES, messages))
        marks_per_message = 2 if queues else 1
        unconfirmed = 0
        for first in range(0, messages, BATCH_MESSAGES):
            if messages - first < BATCH_MESSAGES:
                frames, marks = _batch(target, size_bytes, messages - first)
            for number, at in enumerate(marks, first * marks_per_message):
                frames[at : at + SERIAL_BYTES] = b"%012d" % (number // marks_per_message)
            connection.socket.sendall(frames)
            unconfirmed += 1
            while unconfirmed >= BATCHES_UNCONFIRMED_MAX:
                unconfirmed -= len(connection.read(PATIENCE_S))
            now_s = time.monotonic()
            if now_s - reported_s > REPORT_EVERY_S:
                reported_s = now_s
                progress(f"sent {first:,} of {messages:,}, {first / (now_s - start_s):,.0f}/s")
        while unconfirmed:
            unconfirmed -= len(connection.read(PATIENCE_S))
    return messages / (time.monotonic() - start_s)


class _Shared:
    """`seen[n]` = deliveries of message n; `received` = messages by consumer."""

    def __init__(self, context: Any, messages: int, consumers: int) -> None:
        self.seen = context.RawArray("B", messages)
        self.received = context.RawArray("q", consumers)
        self.last_s = context.RawArray("d", consumers)
        self.failed = context.RawArray("c", 2000)
        self.done = context.RawValue("b", 0)


def _consume(port: int, destination: str, index: int, shared: _Shared) -> None:
    gc.disable()
    try:
        with WireConnection(port, timeout_s=PATIENCE_S) as connection:
            _take_all(connection, destination, index, shared)
    except (OSError, LoadError, WireError) as error:
        shared.failed.value = f"consumer {index}: {error}".encode()[:1999]


def _take_all(connection: WireConnection, destination: str, index: int, shared: _Shared) -> None:
    headers = {"id": index, "destination": destination, "ack": "client-individual"}
    connection.send("SUBSCRIBE", headers | {"activemq.prefetchSize": 1000, "prefetch-count": 1000})
    sock, seen, held = connection.socket, shared.seen, b""
    sock.settimeout(0.1)
    while not shared.done.value:
        try:
            data = sock.recv(RECEIVE_BYTES)
        except TimeoutError:
            continue
        if not data:
            raise LoadError("the broker closed the connection")
        data = held + data
        end = data.rfind(b"\0") + 1
        found = _MESSAGE.findall(data, 0, end)
        if len(found) != data.count(b"\0", 0, end):
            raise LoadError(f"something else than messages came: {_MESSAGE.sub(b'', data[:end])[:300]!r}")
        held = data[end:]
        if found:
            acks, serials = zip(*found, strict=True)
            sock.sendall(b"ACK\nid:" + b"\n\n\0ACK\nid:".join(acks) + b"\n\n\0")
            try:
                for serial in serials:
                    seen[int(serial)] += 1
            except IndexError:
                raise LoadError(f"a message came that was not sent: was {destination} empty before?") from None
            shared.last_s[index] = time.monotonic()
            shared.received[index] += len(found)
    connection.send("DISCONNECT", {"receipt": "bye"})  # its receipt proves that every acknowledgement was taken
    connection.receipt("bye", PATIENCE_S)


def drain(
    port: int, messages: int, destination: str, *, consumers: int = CONSUMERS, progress: Progress = quiet
) -> float:
    """Receive and acknowledge what one `fill` sent; messages/s from the subscription to the last delivery.

    Raises LoadError when a message is missing or came twice.
    """
    context = multiprocessing.get_context("fork")
    shared = _Shared(context, messages, consumers)
    workers = [
        context.Process(target=_consume, args=(port, destination, index, shared), daemon=True)
        for index in range(consumers)
    ]
    start_s = moved_s = reported_s = time.monotonic()
    received = 0
    try:
        for worker in workers:
            worker.start()
        while received < messages:
            time.sleep(0.005)  # the consumers have the processors; when the last message came, they know themselves
            now_s = time.monotonic()
            before, received = received, sum(shared.received)
            moved_s = now_s if received > before else moved_s
            if shared.failed.value or not all(worker.is_alive() for worker in workers):
                raise LoadError(shared.failed.value.decode() or "a consumer died")
            if now_s - moved_s > PATIENCE_S:
                raise LoadError(f"{received} of {messages} messages received, then nothing for {PATIENCE_S:g} s")
            if now_s - reported_s > REPORT_EVERY_S:
                reported_s = now_s
                progress(f"received {received:,} of {messages:,}, {received / (now_s - start_s):,.0f}/s")
        shared.done.value = 1
        for worker in workers:
            worker.join(PATIENCE_S)
    finally:
        for worker in workers:
            if worker.is_alive():
                worker.kill()
            if worker.pid is not None:
                worker.join()
            worker.close()
    if shared.failed.value:
        raise LoadError(shared.failed.value.decode())
    _verify(messages, sum(shared.received), bytes(shared.seen))
    end_s: float = max(shared.last_s)
    return messages / (end_s - start_s)


def _verify(messages: int, received: int, seen: bytes) -> None:
    if received != messages or seen.count(1) != messages:
        missing, twice = seen.count(0), messages - seen.count(0) - seen.count(1)
        raise LoadError(f"{received} messages received instead of {messages}: {missing} missing, {twice} came twice")
