"""A slow consumer of a full broker: its producers block, others go on, and nothing differs with a gateway between."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

import pytest
import uvloop

from amq.node.catalogue import PROTOCOLS
from tests.broker.world import World
from tests.link.linking import Linked
from tests.transports.served import CONNECT, Peer, Served, frame

KIB: Final = 1 << 10
BODY_BYTES: Final = 10 * KIB
SENT: Final = 150  # more than a link's window has room for
STORE_BYTES: Final = 64 * BODY_BYTES
FIRST: Final = "confirmed while the consumer is slow"
# The limit that is met, by what is full. At that of a queue only its own producers block.
LIMITS: Final[dict[str, dict[str, Any]]] = {
    "queue": {"queue_limit_bytes": STORE_BYTES, "queue_limit_policy": "block"},
    "memory": {"memory_limit_bytes": STORE_BYTES},
    "store": {"store_limit_bytes": 1 << 20, "journal_segment_size_bytes": 1 << 16},
}


def receipts(peer: Peer) -> list[bytes]:
    peer.read()
    return re.findall(rb"RECEIPT\n(?:.*\n)*?receipt-id:(.*)\n", peer.said)


def bodies(peer: Peer) -> list[bytes]:
    peer.read()
    return re.findall(rb"\n\n(\d{4})\.{%d}" % (BODY_BYTES - 4), peer.said)


def acks(said: bytes) -> bytes:
    return b"".join(frame("ACK", {"id": ack.decode()}) for ack in re.findall(rb"\nack:(.*)\n", said))


async def pour(served: Served, peer: Peer, data: bytes) -> bytes:
    """Write `data` until the broker reads no more. Returns the rest."""
    while data:
        before = len(data)
        for _ in range(3):
            data = data[peer.write(data[: 1 << 18]) :]
            await served.rest()
        if len(data) == before:
            break
    return data


async def story(served: Served, persistent: str) -> dict[str, Any]:
    """What clients see."""
    found: dict[str, Any] = {}
    slow, producer, other = [await served.connect(CONNECT.replace(b"client-id:c\n", b"")) for _ in range(3)]
    await served.say(slow, frame("SUBSCRIBE", {"id": 1, "destination": "/queue/a", "ack": "client-individual"}))
    await served.say(other, frame("SUBSCRIBE", {"id": 1, "destination": "/queue/b", "ack": "auto"}))
    headers: dict[str, object] = {"destination": "/queue/a", "persistent": persistent}
    sends = b"".join(
        frame("SEND", headers | {"receipt": f"r{n}"}, b"%04d" % n + b"." * (BODY_BYTES - 4)) for n in range(SENT)
    )
    rest = await pour(served, producer, sends)
    found[FIRST] = receipts(producer)
    await served.say(other, frame("SEND", {"destination": "/queue/b", "receipt": "b"}, b"small"))
    found["others confirmed"], found["others got"] = receipts(other), b"small" in other.said
    assert b"ERROR" not in producer.said + other.said
    done = 0
    for _ in range(20 * SENT):
        rest = rest[producer.write(rest[: 1 << 18]) :]
        slow.read()
        whole = slow.said.rfind(b"\0") + 1
        if whole > done:
            done, came = whole, slow.said[done:whole]
            await served.say(slow, acks(came))
        await served.rest()
        if len(receipts(producer)) == SENT == len(bodies(slow)):
            break
    found["confirmed"], found["got"] = receipts(producer), bodies(slow)
    found["others confirmed at last"] = receipts(other)
    found["others got at last"] = b"small" in other.said
    return found


def played(path: Path, kind: type[Served], test: Callable[[Served], Awaitable[dict[str, Any]]], **config: Any) -> Any:
    world = World(path, **config)

    async def main() -> dict[str, Any]:
        served = kind(world, PROTOCOLS)
        try:
            return await test(served)
        finally:
            served.stop()

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(main())
    finally:
        world.close()


@pytest.mark.parametrize("limit", LIMITS)
def test_a_slow_consumer_of_a_full_broker_blocks_the_same_producers_through_a_gateway(
    tmp_path: Path, limit: str
) -> None:
    persistent = "false" if limit == "memory" else "true"
    alone, linked = [
        played(tmp_path / kind.__name__, kind, lambda served: story(served, persistent), **LIMITS[limit])
        for kind in (Served, Linked)
    ]
    every = [b"%04d" % number for number in range(SENT)]
    assert (alone["got"], alone["confirmed"]) == (every, [b"r%d" % number for number in range(SENT)])
    assert alone["others got"] == (limit == "queue")
    for found in (alone, linked):
        assert 0 < len(found[FIRST]) < SENT
    if limit == "store":  # its limit is looked at once a batch, and reads and batches are not the same
        alone[FIRST] = linked[FIRST]
    assert linked == alone
