"""Time of the STOMP codec per frame, without sockets, broker or journal: `python -m bench.codec`, one line a case.

Each case is the best of several runs, so that other work on the machine counts little.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from amq.core.message import Message
from amq.protocols.commands import Send, Subscribe
from amq.protocols.stomp.codec import StompCodec
from amq.protocols.stomp.frame import encode

BODY = b"x" * 1024
FRAMES_PER_CHUNK = 100
CHUNKS = 50
ROUNDS = 7


def server(version: str = "1.2", ack: str = "client-individual") -> tuple[StompCodec, Subscribe]:
    """A codec that is connected and has one subscription."""
    stomp = StompCodec(message_id_prefix="ID:1f3a-")
    stomp.receive(encode("CONNECT", [("accept-version", version), ("host", "bench")]))
    headers = [("id", "s1"), ("destination", "/queue/orders"), ("ack", ack)]
    (command,) = stomp.receive(encode("SUBSCRIBE", headers, version=version))
    assert isinstance(command, Subscribe)
    return stomp, command


def best_ns(run: Callable[[], int]) -> float:
    """Nanoseconds per frame of the fastest of ROUNDS runs; `run` returns how many frames it did."""
    best = float("inf")
    for _ in range(ROUNDS):
        start = time.perf_counter_ns()
        count = run()
        best = min(best, (time.perf_counter_ns() - start) / count)
    return best


def receiving(frame: Callable[[int], bytes], version: str = "1.2", cut: int = 0) -> float:
    """Chunks of whole frames or, with `cut`, of `cut` bytes each (frames are then cut anywhere)."""
    chunks = [b"".join(frame(c * FRAMES_PER_CHUNK + i) for i in range(FRAMES_PER_CHUNK)) for c in range(CHUNKS)]
    if cut:
        stream = b"".join(chunks)
        chunks = [stream[at : at + cut] for at in range(0, len(stream), cut)]

    def run() -> int:
        stomp, _ = server(version)
        count = sum(len(stomp.receive(chunk)) for chunk in chunks)
        assert count == FRAMES_PER_CHUNK * CHUNKS
        return count

    return best_ns(run)


def send(headers: list[tuple[str, str]], body: bytes = BODY) -> Callable[[int], bytes]:
    return lambda i: encode("SEND", [*headers, ("receipt", f"r-{i}")], body)


def delivering(message: Message, redelivered: int = 0, ack: str = "client-individual") -> float:
    stomp, command = server(ack=ack)
    form = stomp.subscription(command)

    def run() -> int:
        for seq in range(5000):
            message.seq = seq
            stomp.delivery(form, message, redelivered)
        return 5000

    return best_ns(run)


def receipts() -> float:
    stomp, _ = server()

    def run() -> int:
        for i in range(5000):
            stomp.receipt(f"r-{i}")
        return 5000

    return best_ns(run)


def main() -> None:
    usual = [("destination", "/queue/orders"), ("content-length", "1024"), ("persistent", "true")]
    rich = [*usual, ("_AMQ_DUPL_ID", "p-1"), ("correlation-id", "c-1"), ("region", "north"), ("content-type", "a/b")]
    sent = server()[0].receive(send(rich)(0))[0]
    assert isinstance(sent, Send)
    plain = Message("queue://orders", BODY, timestamp_ms=1_700_000_000_000)
    sent.message.timestamp_ms = 1_700_000_000_000
    text = [("destination", "/queue/orders"), ("persistent", "true")]
    cases: dict[str, Callable[[], float]] = {
        "SEND, 4 headers, 1 KiB": lambda: receiving(send(usual)),
        "SEND, 4 headers, 1 KiB, cut every 64 KiB": lambda: receiving(send(usual), cut=65536),
        "SEND, 4 headers, 1 KiB, cut every 700 B": lambda: receiving(send(usual), cut=700),
        "SEND, 3 headers, text": lambda: receiving(send(text)),
        "SEND, 8 headers": lambda: receiving(send(rich)),
        "SEND, escaped header (general path)": lambda: receiving(send([*usual, ("note", "a:b")])),
        "ACK 1.2": lambda: receiving(lambda i: encode("ACK", [("id", f"0-{i}")])),
        "ACK 1.2 with receipt (general path)": lambda: receiving(
            lambda i: encode("ACK", [("id", f"0-{i}"), ("receipt", f"{i}")])
        ),
        "ACK 1.1 (general path)": lambda: receiving(
            lambda i: encode("ACK", [("message-id", f"ID:1f3a-{i}"), ("subscription", "s1")], version="1.1"), "1.1"
        ),
        "delivery": lambda: delivering(plain),
        "delivery, auto": lambda: delivering(plain, ack="auto"),
        "delivery, redelivered": lambda: delivering(plain, 1),
        "delivery, properties": lambda: delivering(sent.message),
        "receipt": receipts,
    }
    for label, case in cases.items():
        print(f"{label:45} {case():8.0f} ns")


if __name__ == "__main__":
    main()
