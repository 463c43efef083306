"""A STOMP broker in a page, in memory, to try the benchmarks on: and a liar on request.

    python memory_broker.py PORT [FLAW]

Flaws, each on every 50th occasion: `lose` confirms a send and forgets it, `double` stores it twice, `corrupt` changes
its body.
"""

from __future__ import annotations

import asyncio
import itertools
import sys
from collections import deque

from bench.wire import Frame, FrameReader, encode

FLAW_EVERY = 50


class Message:
    def __init__(self, seq: int, body: bytes) -> None:
        self.seq = seq
        self.body = body


class Subscription:
    def __init__(self, connection: Connection, headers: dict[str, str]) -> None:
        self.connection = connection
        self.id = headers["id"]
        self.queue = headers["destination"]
        self.ack = headers.get("ack", "auto")
        self.prefetch = int(headers.get("prefetch-count", "1000"))
        self.unacked: dict[str, Message] = {}


class Store:
    """Queues and who listens to them."""

    def __init__(self, flaw: str) -> None:
        self.flaw = flaw
        self.queues: dict[str, deque[Message]] = {}
        self.subscriptions: dict[str, deque[Subscription]] = {}
        self.known: set[str] = set()
        self.seqs = itertools.count(1)
        self.occasions = itertools.count(1)

    def lies(self, *flaws: str) -> bool:
        return self.flaw in flaws and next(self.occasions) % FLAW_EVERY == 0

    def store(self, queue: str, body: bytes, duplicate_id: str) -> None:
        if duplicate_id and duplicate_id in self.known:
            return
        self.known.add(duplicate_id)
        waiting = self.queues.setdefault(queue, deque())
        if self.lies("lose"):
            return
        if self.lies("corrupt"):
            body += b"!"
        waiting.append(Message(next(self.seqs), body))
        if self.lies("double"):
            waiting.append(Message(next(self.seqs), body))

    def deliver(self, queue: str) -> None:
        waiting = self.queues.get(queue)
        takers = self.subscriptions.get(queue, deque())
        while waiting:
            for _ in range(len(takers)):
                takers.rotate(-1)
                if len(takers[0].unacked) < takers[0].prefetch:
                    break
            else:
                return
            takers[0].connection.deliver(takers[0], waiting.popleft())

    def put_back(self, queue: str, messages: list[Message]) -> None:
        self.queues[queue].extendleft(reversed(messages))


class Connection(asyncio.Protocol):
    def __init__(self, store: Store) -> None:
        self.store = store
        self.reader = FrameReader()
        self.subscriptions: dict[str, Subscription] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def connection_lost(self, _error: Exception | None) -> None:
        for subscription in self.subscriptions.values():
            self.store.subscriptions[subscription.queue].remove(subscription)
            self.store.put_back(subscription.queue, list(subscription.unacked.values()))
            self.store.deliver(subscription.queue)

    def data_received(self, data: bytes) -> None:
        queues = set()
        for frame in self.reader.feed(data):
            queues.add(self.handle(frame))
            if "receipt" in frame.headers:
                self.transport.write(encode("RECEIPT", {"receipt-id": frame.headers["receipt"]}))
        for queue in queues:
            self.store.deliver(queue)

    def handle(self, frame: Frame) -> str:
        """Returns the queue in which there may be something to deliver now, or ""."""
        if frame.command in ("CONNECT", "STOMP"):
            self.transport.write(encode("CONNECTED", {"version": "1.2", "heart-beat": "0,0"}))
        elif frame.command == "SEND":
            queue = frame.headers["destination"]
            self.store.store(queue, frame.body, frame.headers.get("_AMQ_DUPL_ID", ""))
            return queue
        elif frame.command == "SUBSCRIBE":
            subscription = Subscription(self, frame.headers)
            self.subscriptions[subscription.id] = subscription
            self.store.queues.setdefault(subscription.queue, deque())
            self.store.subscriptions.setdefault(subscription.queue, deque()).append(subscription)
            return subscription.queue
        elif frame.command == "ACK":
            return self.acknowledge(frame.headers["id"])
        return ""

    def acknowledge(self, ack: str) -> str:
        subscription = self.subscriptions[ack.partition(".")[0]]
        acked = list(itertools.takewhile(lambda key: key != ack, subscription.unacked))
        for key in [*(acked if subscription.ack == "client" else ()), ack]:
            del subscription.unacked[key]
        return subscription.queue

    def deliver(self, subscription: Subscription, message: Message) -> None:
        headers = {"subscription": subscription.id, "message-id": message.seq, "destination": subscription.queue}
        if subscription.ack != "auto":
            ack = f"{subscription.id}.{message.seq}"
            headers["ack"] = ack
            subscription.unacked[ack] = message
        self.transport.write(encode("MESSAGE", headers | {"content-length": len(message.body)}, message.body))


async def serve(port: int, flaw: str) -> None:
    store = Store(flaw)
    server = await asyncio.get_running_loop().create_server(lambda: Connection(store), "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(int(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else ""))
