"""STOMP 1.2 load generator: producers and consumers as processes with one blocking socket each.

Invariant: a result is returned only when every message was confirmed, delivered exactly once and acknowledged; anything
else raises `LoadError`. It must never be the limit of what it measures, so nothing is done per message that can be done
per batch: frames stand prebuilt in a ring and get only a stamp before they leave, receipts are counted by counting NUL
bytes, one regular expression finds all acknowledgement ids of one recv, one write answers them. Work that
needs more time (latencies, the receiver of each message) is done when the clock has stopped.

A body starts with 16 digits of monotonic microseconds at sending, 4 of the producer and 8 of the message's number.
"""

from __future__ import annotations

import dataclasses
import gc
import math
import multiprocessing
import multiprocessing.connection
import re
import resource
import signal
import socket
import ssl
import struct
import threading
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from amq.client import tls
from amq.client.uri import BrokerUri
from amq.core.errors import AmqError

HEAD_BYTES = 28
STAMP_BYTES = 16
BATCH_FRAMES_MAX = 256
RING_BYTES = 64 << 20  # of frames that a producer keeps ready
RECEIPT_BYTES_MIN = len(b"RECEIPT\nreceipt-id:00000000\n\n\0")
RECV_BYTES = 1 << 20
POLL_S = 0.1
DRAIN_IDLE_S = 1.0  # a queue is empty if nothing comes for so long
DRAIN_S = 60.0
MODES = ("both", "send", "recv")
ACKS = ("auto", "client", "client-individual")


class LoadError(AmqError):
    """A message is missing or came twice, a receipt is missing, or a connection broke."""

    code = "LOAD_FAILED"


@dataclasses.dataclass(frozen=True)
class Load:
    """The work to do. `window` = sends of one producer that may be unconfirmed at a time; `tls` = speak TLS as this URI
    says, None = without; `consumer_port` = where consumers connect, 0 = at `port`, too."""

    port: int
    host: str = "127.0.0.1"
    producers: int = 1
    consumers: int = 1
    messages: int = 10_000
    size_bytes: int = 1024
    window: int = 256
    persistent: bool = True
    ack: str = "client-individual"
    mode: str = "both"
    prefetch: int = 1000
    destination: str = "/queue/bench"
    login: str = ""
    passcode: str = ""
    timeout_s: float = 60.0
    tls: BrokerUri | None = None
    consumer_port: int = 0

    def __post_init__(self) -> None:
        if self.size_bytes < HEAD_BYTES:
            raise LoadError(f"size is {self.size_bytes} bytes, the stamp alone needs {HEAD_BYTES}: make it larger")
        if self.mode not in MODES or self.ack not in ACKS:
            raise LoadError(f"mode is one of {MODES}, ack one of {ACKS}")
        if min(self.messages, self.window, self.prefetch, self.producers, self.consumers) < 1:
            raise LoadError("messages, window, prefetch, producers, consumers: at least 1 (mode leaves a side out)")

    def quota(self, producer: int) -> int:
        return self.messages // self.producers + (producer < self.messages % self.producers)


@dataclasses.dataclass(frozen=True)
class LoadResult:
    """The figures of a run. Rates are messages/s; latencies microseconds by percentile name, empty if meaningless.

    `per_s` = messages over the time from the first send (or subscription) to the last receipt or delivery.
    `generator_cpu_us` = CPU time that the generator itself used, per message.
    """

    messages: int
    seconds: float
    per_s: float
    delivery_us: dict[str, int]
    confirm_us: dict[str, int]
    generator_cpu_us: float


class _Shared:
    """Shared by parent and workers beside the pipes: a starting gate, a count per worker and the word "done".

    The last one to come to the gate takes the time of the start before it opens: on a busy machine the workers may
    be done before the parent runs again.
    """

    def __init__(self, context: Any, parties: int, load: Load) -> None:
        self.start_us = context.RawValue("q", 0)
        self.gate = context.Barrier(parties, self._start)
        self.received = context.RawArray("q", load.consumers)
        self.confirmed = context.RawArray("q", load.producers)
        self.done = context.RawValue("b", 0)

    def _start(self) -> None:
        self.start_us.value = _now_us()


def _now_us() -> int:
    return time.monotonic_ns() // 1000


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def encode(command: str, headers: Mapping[str, object], body: bytes = b"") -> bytes:
    """One frame. Header values must need no escaping."""
    lines = "".join(f"{key}:{value}\n" for key, value in headers.items())
    return f"{command}\n{lines}\n".encode() + body + b"\0"


def percentiles(values: Sequence[int]) -> dict[str, int]:
    """p50, p99, p99.9 and max of `values` by nearest rank; empty for no values."""
    if not values:
        return {}
    ordered = sorted(values)
    ranks = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999, "max": 1.0}
    return {name: ordered[math.ceil(len(ordered) * share) - 1] for name, share in ranks.items()}


def _dial(load: Load, port: int = 0) -> socket.socket | _TlsSocket:
    """A connection that has logged in. Raises LoadError, OSError."""
    tcp = socket.create_connection((load.host, port or load.port), load.timeout_s)
    tcp.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock: socket.socket | _TlsSocket = tcp
    if load.tls is not None:
        try:
            sock = _TlsSocket(tcp, tls.client_context(load.tls.options), tls.server_name(load.tls))
        except ssl.SSLError as error:
            raise LoadError(f"TLS: {tls.reason_of(error, load.tls)}") from error
    headers = {"accept-version": "1.2", "host": "/", "heart-beat": "0,0"}
    if load.login:
        headers |= {"login": load.login, "passcode": load.passcode}
    sock.sendall(encode("CONNECT", headers))
    answer = b""
    while b"\0" not in answer:
        data = sock.recv(4096)
        if not data:
            raise LoadError("the broker closed the connection instead of answering CONNECT")
        answer += data
    if not answer.lstrip().startswith(b"CONNECTED"):
        raise LoadError(f"CONNECT was answered by {answer[:500]!r}")
    sock.settimeout(None)
    return sock


class _TlsSocket:
    """A blocking socket that speaks TLS: of the methods of a socket those that are used here.

    Python's own reads one record at a time, with two calls of the system: its consumers would acknowledge 16 messages
    at a time where others acknowledge a thousand, and what is measured would be that.
    """

    def __init__(self, sock: socket.socket, context: ssl.SSLContext, server_name: str) -> None:
        """Raises ssl.SSLError, OSError."""
        self._socket = sock
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_hostname=server_name)
        self._read, self._plain = memoryview(bytearray(RECV_BYTES)), memoryview(bytearray(RECV_BYTES))
        self.setsockopt, self.settimeout, self.close = sock.setsockopt, sock.settimeout, sock.close
        while not self._has_shaken_hands():
            if not (data := sock.recv(RECV_BYTES)):
                raise ConnectionResetError("the broker closed the connection in the middle of the TLS handshake")
            self._incoming.write(data)

    def __enter__(self) -> _TlsSocket:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _has_shaken_hands(self) -> bool:
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        finally:
            self._socket.sendall(self._outgoing.read())
        return True

    def sendall(self, data: bytes | memoryview) -> None:
        self._tls.write(data)
        self._socket.sendall(self._outgoing.read())

    def recv(self, size: int) -> bytes:
        return bytes(self._plain[: self.recv_into(self._plain[:size])])

    def recv_into(self, room: memoryview) -> int:
        """All that has come, as far as there is room; 0 = the broker has closed the connection."""
        while not (size := self._decrypted(room)):
            read = self._socket.recv_into(self._read)
            if not read:
                return 0
            self._incoming.write(self._read[:read])
        return size

    def _decrypted(self, room: memoryview) -> int:
        size = 0
        try:
            while size < len(room) and (self._incoming.pending or self._tls.pending()):
                read = cast(int, self._tls.read(len(room) - size, room[size:]))
                if not read:
                    break
                size += read
        except ssl.SSLWantReadError:  # a part of a record
            pass
        return size


def _within(sock: socket.socket | _TlsSocket, seconds: float, option: int = socket.SO_RCVTIMEO) -> None:
    """Let the kernel end a recv, or a send, after `seconds` with BlockingIOError: no poll call before each."""
    sock.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", int(seconds), int(seconds % 1 * 1e6)))


def _ring(load: Load, slots: int) -> tuple[bytearray, int, int]:
    """Up to `slots` SEND frames in a row with receipts 0…; the bytes of one; where its body's head stands."""
    headers: dict[str, object] = {"destination": load.destination, "content-length": load.size_bytes}
    headers |= {"persistent": str(load.persistent).lower(), "receipt": "%08d"}
    frame = encode("SEND", headers, b"x" * load.size_bytes)
    frame_bytes = len(frame) + len(b"%08d" % 0) - len(b"%08d")
    slots = max(1, min(slots, RING_BYTES // frame_bytes))
    ring = bytearray().join(frame.replace(b"%08d", b"%08d" % slot) for slot in range(slots))
    return ring, frame_bytes, frame_bytes - load.size_bytes - 1


def _produce(load: Load, index: int, shared: _Shared) -> dict[str, Any]:
    ring, frame_bytes, head_at = _ring(load, max(load.window, BATCH_FRAMES_MAX))
    slots = len(ring) // frame_bytes
    view = memoryview(ring)
    sock = _dial(load)
    _within(sock, load.timeout_s)
    _within(sock, load.timeout_s, socket.SO_SNDTIMEO)
    quota, sent, confirmed = load.quota(index), 0, 0
    # Be woken for an eighth of a window of receipts, not for each: a broker that trickles them one by one would have to
    # share the processor with us. So many bytes always come: more than twice as many receipts are missing while we wait
    # (more, since a part of the next one may have been read already; twice, since the kernel does not count what this
    # recv has taken: for the rest it wakes us when all that we asked for has come once more). With TLS, any number of
    # receipts may be in the part of a record that has been read already.
    refill = max(1, load.window // 8) if load.tls is None else 1
    if refill > 1:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, refill * RECEIPT_BYTES_MIN)
    sends, confirms = array("q"), array("q")  # pairs of (microseconds, how many)
    shared.gate.wait(load.timeout_s)
    cpu_s = _cpu_s()
    while confirmed < quota:
        slot = sent % slots
        count = min(quota - sent, load.window - (sent - confirmed), BATCH_FRAMES_MAX, slots - slot)
        if count:
            now_us = _now_us()
            prefix = b"%016d%04d%%08d" % (now_us, index)
            first, end = slot * frame_bytes, (slot + count) * frame_bytes
            for serial, at in enumerate(range(first + head_at, end, frame_bytes), sent):
                ring[at : at + HEAD_BYTES] = prefix % serial
            try:
                sock.sendall(view[first:end])
            except BlockingIOError:
                late = f"the broker takes nothing for {load.timeout_s} s"
                raise LoadError(f"producer {index}: {late}, {confirmed} of {sent} confirmed") from None
            sent += count
            sends.extend((now_us, count))
            if sent < quota and sent - confirmed < load.window:
                continue
        if refill > 1 and sent - confirmed <= 2 * refill:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)
            refill = 1
        try:
            data = sock.recv(RECV_BYTES)
        except BlockingIOError:
            late = f"no receipt for {load.timeout_s} s"
            raise LoadError(f"producer {index}: {late}, {confirmed} of {sent} confirmed") from None
        if not data or b"ERROR" in data:
            raise LoadError(f"producer {index}: {confirmed} of {sent} confirmed, then {data[:500]!r}")
        count = data.count(b"\0")
        confirmed += count
        shared.confirmed[index] = confirmed
        confirms.extend((_now_us(), count))
    return {"cpu_s": _cpu_s() - cpu_s, "sends": sends, "confirms": confirms}


def _message_pattern(load: Load) -> re.Pattern[bytes]:
    """Matches one whole MESSAGE: (ack id, head of the body). The rest of the body is skipped without a look."""
    ack = rb"" if load.ack == "auto" else rb"ack:([^\n]+)\n(?:[^\n]+\n)*?"
    rest = load.size_bytes - HEAD_BYTES
    return re.compile(rb"MESSAGE\n(?:[^\n]+\n)*?%b\n(\d{%d}).{%d}\0" % (ack, HEAD_BYTES, rest), re.DOTALL)


def _subscribe(load: Load, index: int, sock: socket.socket | _TlsSocket) -> None:
    headers: dict[str, object] = {"id": index, "destination": load.destination, "ack": load.ack}
    headers |= {"activemq.prefetchSize": load.prefetch, "prefetch-count": load.prefetch}
    if load.mode == "both":
        headers["receipt"] = "subscribed"
    sock.sendall(encode("SUBSCRIBE", headers))
    if load.mode == "both":
        data = b""
        while not data.endswith((b"\0", b"\0\n")):
            data += sock.recv(4096) or b"\0"
        if b"RECEIPT" not in data:
            raise LoadError(f"consumer {index}: SUBSCRIBE was answered by {data!r}")


def _consume(load: Load, index: int, shared: _Shared) -> dict[str, Any]:
    pattern = _message_pattern(load)
    buffer = bytearray(max(RECV_BYTES, 4 * load.size_bytes))
    view = memoryview(buffer)
    sock = _dial(load, load.consumer_port)
    heads: list[bytes] = []
    arrivals = array("q")  # pairs of (microseconds, how many)
    held = 0
    if load.mode == "both":
        _subscribe(load, index, sock)
    shared.gate.wait(load.timeout_s)
    cpu_s = _cpu_s()
    if load.mode == "recv":
        _subscribe(load, index, sock)
    _within(sock, POLL_S)
    leaving = False
    while True:
        try:
            size = held + sock.recv_into(view[held:])
        except BlockingIOError:
            if shared.done.value and not leaving:
                # The receipt of DISCONNECT proves that the broker has taken every acknowledgement before it.
                sock.sendall(encode("DISCONNECT", {"receipt": "bye"}))
                leaving = True
            continue
        if size == held:
            raise LoadError(f"consumer {index}: the broker closed the connection after {len(heads)} messages")
        end = buffer.rfind(b"\0", 0, size) + 1
        if end:
            found = pattern.findall(buffer, 0, end)
            if len(found) != buffer.count(b"\0", 0, end):
                _explain(index, pattern, bytes(view[:end]), leaving)
                break
            now_us = _now_us()
            if load.ack == "auto":
                heads += found
            else:
                acks, batch = zip(*found, strict=True)
                last = acks[-1:] if load.ack == "client" else acks
                sock.sendall(b"ACK\nid:" + b"\n\n\0ACK\nid:".join(last) + b"\n\n\0")
                heads += batch
            arrivals.extend((now_us, len(found)))
            shared.received[index] = len(heads)
            buffer[: size - end] = buffer[end:size]
        held = size - end
    return {"cpu_s": _cpu_s() - cpu_s, "heads": b"".join(heads), "arrivals": arrivals}


def _explain(index: int, pattern: re.Pattern[bytes], data: bytes, leaving: bool) -> None:
    """Something other than a MESSAGE came: fine when it is the receipt of our DISCONNECT, and nothing else."""
    others = [frame for frame in pattern.sub(b"", data).split(b"\0") if frame.strip()]
    if not (leaving and len(others) == 1 and b"RECEIPT" in others[0] and not pattern.search(data)):
        raise LoadError(f"consumer {index}: unexpected frames {others[:3]!r:.600}, messages after the last one")


def _work(job: Any, load: Load, index: int, shared: _Shared, pipe: multiprocessing.connection.Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group: the parent ends its workers
    gc.disable()
    try:
        pipe.send(job(load, index, shared))
    except (LoadError, OSError, threading.BrokenBarrierError) as error:
        shared.gate.abort()
        pipe.send(f"{type(error).__name__}: {error}")


def run(load: Load, show: Callable[[int], None] = lambda _done: None) -> LoadResult:
    """Run the load once. Raises LoadError when anything is missing, doubled or broken.

    show   is called many times a second with the number of messages that have been received (confirmed, in mode send)
    """
    context = multiprocessing.get_context("fork")
    jobs: list[tuple[Any, int]] = []
    if load.mode != "send":
        jobs += [(_consume, index) for index in range(load.consumers)]
    if load.mode != "recv":
        jobs += [(_produce, index) for index in range(load.producers)]
    shared = _Shared(context, len(jobs) + 1, load)
    workers, pipes = [], []
    try:
        for job, index in jobs:
            ours, theirs = context.Pipe(duplex=False)
            worker = context.Process(target=_work, args=(job, load, index, shared, theirs), daemon=True)
            worker.start()
            theirs.close()
            workers.append(worker)
            pipes.append(ours)
        reports = _collect(load, shared, pipes, show)
        for worker in workers:
            worker.join(load.timeout_s)
    finally:
        for worker in workers:
            if worker.is_alive():
                worker.kill()
            worker.join()
            worker.close()
        for pipe in pipes:
            pipe.close()
    return _result(load, shared.start_us.value, reports)


def drain(load: Load) -> str:
    """Remove what a run that broke off left in its queue. Returns what prevented that, "" = the queue is empty."""
    deadline = time.monotonic() + DRAIN_S
    try:
        with _dial(dataclasses.replace(load, timeout_s=DRAIN_IDLE_S), load.consumer_port) as sock:
            headers = {"id": "drain", "destination": load.destination, "ack": "auto"}
            sock.sendall(encode("SUBSCRIBE", headers))
            sock.settimeout(DRAIN_IDLE_S)
            while time.monotonic() < deadline:
                try:
                    if not sock.recv(RECV_BYTES):
                        return "the broker closed the connection"
                except TimeoutError:
                    return ""  # nothing comes any more
            return f"not all could be removed within {DRAIN_S:g} s"
    except (LoadError, OSError) as error:
        return str(error)


def _collect(
    load: Load, shared: _Shared, pipes: list[multiprocessing.connection.Connection], show: Callable[[int], None]
) -> list[dict[str, Any]]:
    """The workers' reports. Opens the gate, says "done" when everything was received, raises on the first failure."""
    failures: list[str] = []
    reports: list[dict[str, Any]] = []
    try:
        shared.gate.wait(load.timeout_s)
    except threading.BrokenBarrierError:
        failures.append("the workers did not all get connected")
    waiting = list(pipes)
    seen, moved_at_s = (0, 0), time.monotonic()
    while waiting:
        for pipe in multiprocessing.connection.wait(waiting, 0.005):
            assert isinstance(pipe, multiprocessing.connection.Connection)
            waiting.remove(pipe)
            try:
                report = pipe.recv()
            except EOFError:
                report = "a worker died"
            if isinstance(report, str):
                failures.append(report)
            else:
                reports.append(report)
        received = sum(shared.received)
        show(sum(shared.confirmed) if load.mode == "send" else received)
        if received >= load.messages:
            shared.done.value = 1
        if (received, len(waiting)) != seen:
            seen, moved_at_s = (received, len(waiting)), time.monotonic()
        if time.monotonic() - moved_at_s > load.timeout_s and load.mode != "send":
            failures.append(f"{received} of {load.messages} messages received, then nothing for {load.timeout_s} s")
        if failures:
            break
    if failures:
        # A broken gate is only ever the consequence of what another worker says.
        raise LoadError("; ".join(text for text in failures if "BrokenBarrier" not in text) or failures[0])
    return reports


def _result(load: Load, start_us: int, workers: list[dict[str, Any]]) -> LoadResult:
    arrivals, confirms = [], []
    end_us = 0
    heads: list[bytes] = []
    for worker in workers:
        for times in (worker.get("arrivals"), worker.get("confirms")):
            if times:
                end_us = max(end_us, times[-2])
        if "heads" in worker:
            mine = [worker["heads"][at : at + HEAD_BYTES] for at in range(0, len(worker["heads"]), HEAD_BYTES)]
            heads += mine
            arrivals += [
                now_us - int(head[:STAMP_BYTES]) for now_us, head in zip(_spread(worker["arrivals"]), mine, strict=True)
            ]
        else:
            pairs = zip(_spread(worker["sends"]), _spread(worker["confirms"]), strict=True)
            confirms += [confirmed_us - sent_us for sent_us, confirmed_us in pairs]
    if load.mode != "send":
        _verify(load, heads)
    seconds = (end_us - start_us) / 1e6
    return LoadResult(
        messages=load.messages,
        seconds=round(seconds, 6),
        per_s=round(load.messages / seconds, 1),
        delivery_us=percentiles(arrivals) if load.mode == "both" else {},
        confirm_us=percentiles(confirms) if load.mode != "recv" else {},
        generator_cpu_us=round(sum(worker["cpu_s"] for worker in workers) / load.messages * 1e6, 2),
    )


def _spread(pairs: array[int]) -> list[int]:
    """(time, how many), (time, how many), … → each time as often as it counts."""
    return [now_us for at in range(0, len(pairs), 2) for now_us in [pairs[at]] * pairs[at + 1]]


def _verify(load: Load, heads: list[bytes]) -> None:
    """Every message once and no other. A backlog sent by an earlier run is only counted."""
    distinct = set(heads)
    twice = len(heads) - len(distinct)
    if twice or len(heads) != load.messages:
        raise LoadError(f"{len(heads)} messages received instead of {load.messages}, {twice} of them more than once")
    if load.mode == "both":
        producers = range(load.producers)
        wanted = {b"%04d%08d" % (index, serial) for index in producers for serial in range(load.quota(index))}
        missing = wanted - {head[STAMP_BYTES:] for head in distinct}
        if missing:
            raise LoadError(f"{len(missing)} messages missing, others came instead: was {load.destination} empty?")
