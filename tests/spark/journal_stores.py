"""Stores with known contents, made of real journals: records of all kinds, several segments, two epochs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from amq.core import values
from amq.core.message import BYTES, MAP, TEXT, Copy, Envelope, Message, Native
from amq.core.ownership import owned
from amq.core.values import Int32, Value
from amq.journal.records import ACKED, DEAD_LETTERED, Consumed, Group, Marker, Moved, Prepared, Redelivered, Resolved
from amq.journal.records.multicast import Multicast
from pyspark_amq.journal import SEQ_EPOCH_BITS
from tests.files import write_epoch
from tests.journal.journal_world import World

QUEUES = ("queue://a", "queue://b", "sent://queue://b")
# What JSON cannot say of a message: properties, envelope, content.
EXTENDED: tuple[tuple[dict[str, Value] | None, Envelope, int], ...] = (
    ({"n": Int32(7), "yes": True, "raw": b"\x00"}, Envelope("ID:1", b"\x01\xff", "queue://r", "order"), BYTES),
    (None, Envelope(correlation_id="c-1"), MAP),
    (None, Envelope(correlation_id="plain"), TEXT),
    ({"JMSXGroupID": "g"}, Envelope(correlation_id="c-2", native=Native("unknown", b"data")), BYTES),
)


def made(path: Path, **config: Any) -> World:
    """A store with an epoch file, and the journal of that epoch."""
    world = World(path, **config)
    write_epoch(world.store, world.epoch, world.sealed)
    return world


def take_over(world: World) -> None:
    world.end()
    world.begin()
    write_epoch(world.store, world.epoch, world.sealed)


def message(world: World, name: str, **more: Any) -> Message:
    world.sent += 1
    seq = (world.epoch << SEQ_EPOCH_BITS) + world.sent
    fields = {"timestamp_ms": 1_700_000_000_000 + world.sent, "seq": seq, **more}
    return Message(name, b"body %d" % world.sent, **fields)


def fill(world: World, rounds: int) -> None:
    """Records of all kinds, in batches of their own and together."""
    queues = 3
    for number in range(rounds):
        plain = [message(world, QUEUES[i % queues]) for i in range(7)]
        for each in plain:
            world.journal.append(each)
        rich = message(
            world,
            "queue://a",
            properties={"correlation-id": f"k{number}", "café": "\N{SNOWMAN}"},
            priority=9,
            content_type="text/plain",
            duplicate_id=owned("ann", f"ID:{number}"),
            expires_ms=1_800_000_000_000,
            content=TEXT,
        )
        copy = message(world, "queue://c", seq=plain[0].seq)
        dead = Group([Consumed("queue://a", DEAD_LETTERED, [plain[3].seq]), message(world, "queue://DLQ")])
        world.journal.append_record(Group([rich, Consumed("queue://b", ACKED, [plain[1].seq])], f"out{number}", 5))
        world.journal.append_record(dead)
        world.journal.append_record(Group([copy]))
        world.commit()
        world.journal.append_record(Redelivered("queue://a", [(plain[0].seq, 2, 1), (plain[3].seq, 1, 0)]))
        world.journal.append_record(Moved("sent://queue://b", "queue://b", [plain[2].seq], [("x", plain[2].seq)]))
        topic = message(world, "topic://news", properties={"JMSXGroupID": "g"})
        seqs = [topic.seq, topic.seq + 1_000, topic.seq + 2_000]
        names = ["queue://a", "subscription://s", "queue://b"]
        copies = [Copy.of(topic, name, seq) for name, seq in zip(names, seqs, strict=True)]
        world.journal.append_record(Multicast(topic, names, seqs, copies))
        for properties, envelope, content in EXTENDED:
            typed = message(
                world, "queue://a", properties=properties, envelope=envelope, content=content, content_type="a/b"
            )
            typed.body = values.encode({"n": number}) if content == MAP else b"extended"
            world.journal.append(typed)
            copies = [Copy.of(typed, name, typed.seq + 3_000 + n) for n, name in enumerate(names)]
            world.journal.append_record(Multicast(typed, names, [copy.seq for copy in copies], copies))
        world.journal.append_record(Prepared("x1", 3, 4, 5, "owner", 6, {"queue://b": [7]}))
        world.journal.append_record(Resolved("x1", True, 8))
        world.journal.append_record(Marker("owner", number))
        world.journal.append_record(Consumed("queue://b", ACKED, []))
        world.commit()


def filled(path: Path, **config: Any) -> World:
    """Two epochs, of several segments each where those are small; behind a seal stands what a deposed master wrote."""
    world = made(path, **config)
    fill(world, 30)
    take_over(world)
    sealed = next(name for name, end in reversed(world.sealed.items()) if end)
    with open(os.path.join(world.directory, sealed), "ab") as file:
        file.write(b"\xb7BAT late writes of a deposed master")
    fill(world, 20)
    world.end()
    return world
