"""Messages that move from queue to queue in the journal: whoever reads it, from wherever, and whatever compaction did
to it meanwhile, finds them where they stand."""

from __future__ import annotations

import random
from collections import defaultdict, deque
from collections.abc import Callable
from typing import Any

import pytest

from amq.broker.names import shelves
from amq.broker.waiters import Unasked
from amq.core.message import Message
from amq.journal.records import ACKED, Consumed, Group, Moved, Record, Redelivered
from amq.protocols.stomp.subscribing import ACK_AUTO
from tests.broker.world import Client, World
from tests.sampling import sampled

MakeWorld = Callable[..., World]
SEEDS = range(12)
REAL, SENT, HELD = shelves("queue://a")


def append(world: World, *records: Record) -> None:
    world.journal.append_record(Group(list(records)))
    world.settle()


def store(world: World, body: bytes, name: str = SENT, **fields: Any) -> None:
    world.broker.store(Message(name, body, **fields), Unasked(world.connect(), 0))
    world.settle()


def set_apart(world: World, seqs: list[int], name: str) -> None:
    """They are in no line of their queue any more, as those of a lease."""
    take(world, seqs)
    queue = world.broker.state.queue(name)
    for priority in list(queue.backlogs):
        queue.set_apart(priority, seqs)


def take(world: World, seqs: list[int]) -> None:
    """As a consumer has them that acknowledged them: out of the order of their queue."""
    queue = world.broker.state.queue(REAL)
    for i, level in enumerate(queue.levels):
        if level:
            queue.levels[i] = deque(message for message in level if message.seq not in seqs)


def seqs_of(world: World, name: str) -> list[int]:
    queue = world.broker.state.queues.get(name)
    return list(world.everything(queue)) if queue is not None else []


def test_moved_messages_are_delivered_where_they_stand(make_world: MakeWorld) -> None:
    """In the order in which they were sent, whichever queue they were in meanwhile."""
    world = make_world()
    producer = world.connect()
    for body in (b"1", b"2", b"3"):
        store(world, body, expires_ms=world.clock.wall_ms() + 60_000)
    producer.send(b"4", priority=9)
    producer.send(b"5")
    world.settle()
    assert (world.stored(), len(seqs_of(world, SENT))) == ([b"4", b"5"], 3)
    append(world, Moved(SENT, REAL, seqs_of(world, SENT)))
    world.check_at_rest()
    world.crash_and_recover()
    consumer = world.consumer()
    assert consumer.bodies == [b"4", b"1", b"2", b"3", b"5"]
    assert {delivery.message.destination for delivery in consumer.deliveries} == {"queue://a"}
    world.check_at_rest()


def test_hidden_queues_are_seen_by_nobody(make_world: MakeWorld) -> None:
    world = make_world()
    producer, consumer, browser = world.connect(), world.connect(), world.connect()
    store(world, b"1", expires_ms=1)
    consumer.subscribe(">")
    browser.subscribe(">", browser=True)
    store(world, b"2", HELD)
    producer.send(b"3", "b")
    world.settle()
    world.sweep(3600)
    assert (consumer.bodies, len(seqs_of(world, SENT)), len(seqs_of(world, HELD))) == ([b"3"], 1, 1)
    assert b"1" not in browser.bodies
    assert b"2" not in browser.bodies


def test_what_was_moved_and_left_is_forgotten(make_world: MakeWorld) -> None:
    world = make_world()
    store(world, b"1")
    seqs = seqs_of(world, SENT)
    append(world, Moved(SENT, REAL, seqs))
    append(world, Moved(REAL, HELD, seqs))
    append(world, Consumed(HELD, ACKED, seqs))
    world.broker.sweep()
    assert world.broker.state.queues == {}
    world.check_at_rest()
    world.crash_and_recover()
    assert world.broker.state.stored == 0


def test_ids_come_along(make_world: MakeWorld) -> None:
    """The hidden queue does not know them; the one that gets the message does, also when the message has left."""
    world = make_world()
    store(world, b"1", duplicate_id="x")
    (seq,) = seqs_of(world, SENT)
    append(world, Moved(SENT, REAL, [seq], [("x", seq)]))
    append(world, Consumed(REAL, ACKED, [seq]))
    for _ in range(2):
        world.send(b"again", duplicate_id="x")
        assert world.stored() == []
        world.crash_and_recover()


def test_a_return_that_becomes_durable_while_the_message_leaves_is_counted(make_world: MakeWorld) -> None:
    world = make_world()
    store(world, b"1", HELD)
    seqs = seqs_of(world, HELD)
    set_apart(world, seqs, HELD)
    append(world, Redelivered(HELD, [(seqs[0], 2, 1)]))
    append(world, Moved(HELD, REAL, seqs))
    for _ in range(2):
        assert world.broker.state.queues[REAL].redelivered == {seqs[0]: (2, 1)}
        world.check_at_rest()
        world.crash_and_recover()


@pytest.mark.parametrize("source", [REAL, SENT, HELD])
@pytest.mark.parametrize("target", [REAL, SENT, HELD])
def test_a_moved_message_keeps_no_segment(make_world: MakeWorld, source: str, target: str) -> None:
    """Its record has the name of a queue in which it stands no more: compaction finds it all the same."""
    world = make_world(journal_segment_size_bytes=4096)
    store(world, b"1", source, duplicate_id="x")
    (seq,) = seqs_of(world, source)
    if source != target:
        take(world, [seq])
        append(world, Moved(source, target, [seq], [("x", seq)] if target == REAL else []))
    first = world.segments()[0]
    pump, producer = world.connect(), world.connect()
    pump.subscribe("pump", ACK_AUTO)
    for _ in range(60):
        producer.send(bytes(500), "pump")
        world.settle()
    assert first not in world.segments()
    assert seqs_of(world, target) == [seq]
    world.check_at_rest()
    world.crash_and_recover()
    assert seqs_of(world, target) == [seq]


def pumped(world: World, producer: Client) -> None:
    """Traffic goes by, which fills segments."""
    for _ in range(5):
        producer.send(bytes(500), "pump")
    world.settle()


@pytest.mark.parametrize("seed", sampled(SEEDS))
def test_whatever_is_moved_copied_and_read(make_world: MakeWorld, seed: int) -> None:
    """A walk: messages come, move about and leave, beside traffic that makes compaction copy them; takeovers read the
    journal from its first byte, from each checkpoint, and along with the master, and find the same."""
    dice = random.Random(seed)
    world = make_world(journal_segment_size_bytes=4096, checkpoint_distance_bytes=dice.choice([2048, 1 << 40]))
    places: dict[str, list[int]] = defaultdict(list)
    ids: dict[int, str] = {}
    copied = 0
    for step in range(220):
        if step % 55 == 0:
            trimmer = world.broker.trimmer
            copied += trimmer._copied_bytes if trimmer is not None else 0
            world.crash_and_recover()
            pump = world.connect()
            pump.subscribe("pump", ACK_AUTO)
            producer = world.connect()
        world.follow(dice.choice([500, 1 << 30]))
        before = {name: set(seqs_of(world, name)) for name in (REAL, SENT)}
        what = dice.random()
        if what < 0.3:
            name = dice.choice([REAL, SENT])
            store(world, bytes(dice.randrange(300)), name, duplicate_id=f"m{step}", priority=dice.randrange(10))
            (seq,) = set(seqs_of(world, name)) - before[name]
            places[name].append(seq)
            ids[seq] = f"m{step}"
        elif what < 0.6:
            source, target = dice.choice([(SENT, REAL), (REAL, HELD), (HELD, REAL)])
            seqs = dice.sample(places[source], min(3, len(places[source])))
            set_apart(world, seqs, source)
            if dice.random() < 0.3:  # compaction goes on before the record is written
                for _ in range(4):
                    pumped(world, producer)
            append(world, Moved(source, target, seqs, [(ids[seq], seq) for seq in seqs] if source == SENT else []))
            places[source] = [seq for seq in places[source] if seq not in seqs]
            places[target] += seqs
        elif what < 0.75:
            name = dice.choice([REAL, SENT, HELD])
            seqs = dice.sample(places[name], min(2, len(places[name])))
            take(world, seqs)
            append(world, Consumed(name, ACKED, seqs))
            places[name] = [seq for seq in places[name] if seq not in seqs]
        else:
            pumped(world, producer)
        assert {name: seqs_of(world, name) for name in (REAL, SENT, HELD)} == {
            name: sorted(places[name]) for name in (REAL, SENT, HELD)
        }
        world.check()
    world.check_at_rest()
    assert copied > 0
    assert world.failures == []
