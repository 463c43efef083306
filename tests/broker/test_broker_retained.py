"""Retained messages, as the journal has them: in a hidden queue for each topic, where the newest counts.

No protocol serves them yet, so the tests write the records that one will write.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from amq.broker.events import Expired, QueueForgotten, QueueMade
from amq.core.message import Copy, Message
from amq.journal.hidden import RETAINED_SCHEME, is_hidden, real_name, told_name
from amq.journal.inspect import inspect
from amq.journal.records import PURGED, Consumed, Group, Record
from amq.journal.records.multicast import Multicast
from amq.protocols.stomp.destination import full_name as wire_to_full
from amq.protocols.stomp.subscribing import ACK_AUTO
from tests.broker.world import World

TOPIC = "topic://a.b"
NAME = RETAINED_SCHEME + TOPIC
MakeWorld = Callable[..., World]


def retained(world: World, name: str = NAME) -> dict[int, Message]:
    queue = world.broker.state.queues.get(name)
    return world.everything(queue) if queue is not None else {}


def retain(world: World, body: bytes, topic: str = TOPIC, *, expires_ms: int = 0, others: tuple[str, ...] = ()) -> None:
    """`body` takes the place of what the topic retained; in one record with the messages of `others`, if any."""
    broker, name = world.broker, RETAINED_SCHEME + topic
    message = Message(topic, body, {"k": "v"}, expires_ms=expires_ms, duplicate_id="id")
    record: Message | Multicast = message
    held = [message]
    if others:
        copies = [Copy.of(message, queue, broker.next_seq()) for queue in (name, *others)]
        record, held = Multicast(message, [name, *others], copies=copies), [*copies]
    else:
        message.send_to(name)
        message.seq = broker.next_seq()
    for each in held:
        broker.memory.admit(each)
    older: list[Record] = [Consumed(name, PURGED, list(retained(world, name)))] if retained(world, name) else []
    broker.append_group(Group([record, *older]))
    world.settle()


def bodies(world: World, name: str = NAME) -> list[bytes]:
    return [message.body for message in retained(world, name).values()]


def places(world: World) -> set[tuple[int, int]]:
    """(segment, offset) of the two that are retained."""
    queues = [world.broker.state.queues[name] for name in (NAME, RETAINED_SCHEME + "topic://c")]
    return {(place.segment, place.offset) for queue in queues for each in queue.backlogs.values() for place in each}


@pytest.fixture
def world(make_world: MakeWorld) -> World:
    return make_world(journal_segment_size_bytes=4096, checkpoint_distance_bytes=2048)


def test_what_its_queue_is_called() -> None:
    assert is_hidden(NAME)
    assert real_name(NAME) == TOPIC
    assert told_name(NAME) == "retained message of topic://a.b"


@pytest.mark.parametrize("others", [(), ("queue://q",)])
def test_the_newest_counts_on_every_next_master(world: World, others: tuple[str, ...]) -> None:
    """After a crash, from a checkpoint, and where compaction has copied it; a follower has it too."""
    for number in range(3):
        retain(world, b"%d" % number, others=others)
        retain(world, b"other %d" % number, "topic://c")
        pump = world.connect()
        pump.subscribe("pump", ACK_AUTO)
        pump.send(bytes(2000), "pump")
        world.settle()
        world.crash_and_recover()
        assert bodies(world) == [b"%d" % number]
    assert world.stored("q") == ([b"0", b"1", b"2"] if others else [])
    pump = world.connect()
    pump.subscribe("pump", ACK_AUTO)
    pump.subscribe("q", ACK_AUTO)
    before = places(world)
    for _ in range(160):
        pump.send(bytes(500), "pump")
        world.settle()
        world.follow()
    world.check()
    assert places(world).isdisjoint(before), "they were copied forward"
    world.crash_and_recover()
    assert (bodies(world), bodies(world, RETAINED_SCHEME + "topic://c")) == ([b"2"], [b"other 2"])
    world.check_at_rest()
    inspection, liveness = inspect(world.log, lambda: (world.epoch, world.sealed))
    assert inspection.problems == []
    assert [liveness.destinations[name].live for name in (NAME, RETAINED_SCHEME + "topic://c")] == [1, 1]
    assert not liveness.duplicates.get(NAME)


def test_it_waits_on_disk_alone_and_no_ids_are_remembered(world: World) -> None:
    retain(world, b"1")
    queue = world.broker.state.queues[NAME]
    assert (queue.messages, queue.resident_bytes, len(queue.duplicates), queue.duplicates_pending) == ({}, 0, 0, {})
    assert world.broker.memory.taken_bytes == 0
    (message,) = retained(world).values()
    assert (message.properties, message.seq) == ({"k": "v"}, next(iter(retained(world))))


def test_nobody_addresses_it_or_hears_of_it(world: World) -> None:
    heard: list[object] = []
    for kind in (QueueMade, QueueForgotten, Expired):
        world.broker.events.listen(kind, heard.append)
    retain(world, b"1", expires_ms=world.clock.wall_ms() + 1000)
    assert wire_to_full(NAME, "1.", strict=False).startswith("queue://"), "no name that a client writes is one of these"
    for browser in (False, True):
        client = world.consumer(NAME, ACK_AUTO, browser=browser)
        assert client.codes == ["DESTINATION_REFUSED"]
    client = world.consumer("queue://>", ACK_AUTO, id="all")
    assert client.bodies == []
    assert bodies(world) == [b"1"]
    assert heard == []


def test_it_expires_and_goes_nowhere_else(make_world: MakeWorld) -> None:
    world = make_world(expiry_queue="late", expired_messages="dead-letter")
    retain(world, b"soon", expires_ms=world.clock.wall_ms() + 1000)
    retain(world, b"never", "topic://c")
    world.crash_and_recover()
    world.sweep(2.0)
    assert (bodies(world), bodies(world, RETAINED_SCHEME + "topic://c")) == ([], [b"never"])
    world.sweep()
    assert {*world.broker.state.queues} == {RETAINED_SCHEME + "topic://c"}
    world.check_at_rest()
    world.crash_and_recover()
    assert (bodies(world), bodies(world, RETAINED_SCHEME + "topic://c")) == ([], [b"never"])


def test_half_of_a_group_is_none(make_world: MakeWorld) -> None:
    """The older one stays where the newer one was not written whole."""
    world = make_world()
    retain(world, b"old")
    broker = world.broker
    message = Message(NAME, b"new", seq=broker.next_seq())
    broker.memory.admit(message)
    broker.append_group(Group([message, Consumed(NAME, PURGED, list(retained(world)))]))
    world.journal.flush()
    world.crash_and_recover(torn=0.5, jobs=0)
    assert bodies(world) == [b"old"]
