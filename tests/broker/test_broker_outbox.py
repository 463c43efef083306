"""Outbox: what a store leads to another one gets there exactly once, in order."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from amq.config.destination_options import DestinationOptions
from amq.core.errors import CommandError
from amq.core.message import Message
from amq.journal.hidden import outbox_name
from amq.management import views
from amq.protocols.commands import CloseParcel, Finish, Prepare, Transfer
from tests.broker.outboxes import TABLE, Stores, content, names_of

OURS, OURS_TOO, _ = names_of("s1")
THEIRS, THEIRS_TOO, _ = names_of("s2")
DIVERTED = (
    DestinationOptions(OURS, {"divert": THEIRS}),
    DestinationOptions(OURS_TOO, {"expiry_queue": THEIRS, "maximum_redeliveries": 0}),
)


@pytest.fixture
def make_stores(tmp_path: Path) -> Iterator[Callable[..., Stores]]:
    made: list[Stores] = []

    def make(**config: Any) -> Stores:
        made.append(Stores(tmp_path, **{"destinations": DIVERTED, **config}))
        return made[-1]

    yield make
    for stores in made:
        stores.close()


@pytest.fixture
def stores(make_stores: Callable[..., Stores]) -> Stores:
    return make_stores()


def send(stores: Stores, count: int, first: int = 0, queue: str = OURS, **fields: Any) -> list[bytes]:
    client = stores.worlds["s1"].connect()
    bodies = [b"%d" % number for number in range(first, first + count)]
    for body in bodies:
        client.send(body, queue, **fields)
    stores.worlds["s1"].settle()
    assert client.errors == []
    return bodies


def waiting(stores: Stores) -> int:
    queue = stores.worlds["s1"].broker.state.queues.get(outbox_name("queue://" + THEIRS))
    return queue.stored if queue is not None else 0


def test_a_divert_leads_to_another_store_in_order(stores: Stores) -> None:
    bodies = send(stores, 50, properties={"k": "v"}, priority=7, expires_ms=1 << 50, timestamp_ms=1)
    assert waiting(stores) == 50
    stores.settle(1)
    assert stores.worlds["s2"].stored(THEIRS) == bodies
    assert stores.worlds["s1"].stored(OURS) == bodies
    assert waiting(stores) == 0
    queue = stores.worlds["s2"].broker.state.queues["queue://" + THEIRS]
    first = next(iter(stores.worlds["s2"].everything(queue).values()))
    assert first.properties == {"k": "v", "original-destination": f"/queue/{OURS}"}
    assert (first.priority, first.expires_ms) == (7, 1 << 50)
    assert first.timestamp_ms == stores.worlds["s1"].clock.wall_ms() - 1000
    assert stores.ways.said[-1][1].__class__ is Transfer
    for world in stores.worlds.values():
        world.check()


def test_an_idle_outbox_holds_no_connection(stores: Stores) -> None:
    send(stores, 1)
    stores.settle(10)
    assert len(stores.ways.open_ways) == 1
    stores.settle(12)
    assert stores.ways.open_ways == []
    assert stores.worlds["s2"].broker.connections == {}
    send(stores, 1, 1)
    stores.settle(1)
    assert stores.worlds["s2"].stored(THEIRS) == [b"0", b"1"]


def test_nobody_else_sees_an_outbox(stores: Stores) -> None:
    send(stores, 3)
    client = stores.worlds["s1"].connect()
    client.subscribe("queue://>", id="all")
    stores.worlds["s1"].settle()
    assert sorted(client.bodies) == [b"0", b"1", b"2"]
    for name in (outbox_name("queue://" + THEIRS), "outbox://>"):
        other = stores.worlds["s1"].connect()
        other.subscribe(name, id="x")
        stores.worlds["s1"].settle()
        assert other.codes == ["DESTINATION_REFUSED"]


def test_what_expired_and_what_failed_goes_where_the_options_say(stores: Stores) -> None:
    world = stores.worlds["s1"]
    send(stores, 1, queue=OURS_TOO, expires_ms=world.clock.wall_ms() + 1000)
    stores.settle(5)
    assert stores.worlds["s2"].stored(THEIRS) == [b"0"]
    queue = stores.worlds["s2"].broker.state.queues["queue://" + THEIRS]
    (message,) = stores.worlds["s2"].everything(queue).values()
    assert message.properties["original-destination"] == f"/queue/{OURS_TOO}"
    assert message.properties["dead-letter-reason"] == "expired"
    assert message.expires_ms == 0


def test_a_repeated_send_is_forwarded_once(stores: Stores) -> None:
    send(stores, 1, duplicate_id="id")
    stores.settle(1)
    send(stores, 1, duplicate_id="id")
    stores.settle(1)
    assert stores.worlds["s2"].stored(THEIRS) == [b"0"]


def test_transactions_lead_to_another_store(stores: Stores) -> None:
    """Also one that was prepared before a message that came to the outbox earlier than it."""
    world = stores.worlds["s1"]
    client = world.connect()
    client.begin()
    client.send(b"prepared", OURS, transaction="t")
    client.do(Prepare("t", "x1", receipt="p"))
    client.begin("u")
    client.send(b"committed", OURS, transaction="u")
    client.commit("u")
    stores.settle(1)
    assert stores.worlds["s2"].stored(THEIRS) == [b"committed"]
    stores.crash("s1")
    stores.settle(1)
    other = world.connect()
    other.do(Finish("x1", True, "f"))
    stores.settle(1)
    assert other.errors == []
    assert stores.worlds["s2"].stored(THEIRS) == [b"committed", b"prepared"]
    assert waiting(stores) == 0


def test_a_divert_to_a_topic_reaches_who_hears_it_there(make_stores: Callable[..., Stores]) -> None:
    virtual = next(f"VirtualTopic.{n}" for n in range(1000) if TABLE.home_of(f"topic://VirtualTopic.{n}") == "s2")
    stores = make_stores(destinations=(DestinationOptions(OURS, {"divert": f"topic://{virtual}"}),))
    consumer = stores.worlds["s2"].connect()
    consumer.subscribe(f"Consumer.c.{virtual}", id="queue")
    hearer = stores.worlds["s2"].connect()
    hearer.subscribe(f"topic://{virtual}", ack="auto")
    stores.settle(1)
    send(stores, 2)
    stores.settle(1)
    assert consumer.bodies == hearer.bodies == [b"0", b"1"]


def test_what_is_not_persistent_goes_as_well(stores: Stores) -> None:
    send(stores, 1, persistent=False)
    send(stores, 1, 1)
    stores.settle(1)
    assert stores.worlds["s2"].stored(THEIRS) == [b"0", b"1"]
    assert waiting(stores) == 0
    stores.worlds["s1"].check()


def test_a_large_message_and_many_parcels(stores: Stores) -> None:
    bodies = [b"a" * (3 << 20), *(b"%d" % number * 400_000 for number in range(10, 20))]
    client = stores.worlds["s1"].connect()
    for body in bodies:
        client.send(body, OURS)
    stores.settle(2)
    assert stores.worlds["s2"].stored(THEIRS) == bodies
    assert sum(command.__class__ is Transfer for _, command in stores.ways.said) > 5
    stores.worlds["s1"].check()


@pytest.mark.parametrize("lost", ["s1", "s2"])
@pytest.mark.parametrize("step", range(12))
def test_a_crash_at_any_step_neither_loses_nor_doubles(stores: Stores, step: int, lost: str) -> None:
    """One after the other: a job of the disk, a turn, or what is on its way."""
    bodies = send(stores, 5)
    _go(stores, step)
    stores.crash(lost, jobs=step % 3)
    bodies += send(stores, 3, 5)
    stores.settle()
    assert stores.worlds["s2"].stored(THEIRS) == bodies
    assert waiting(stores) == 0


@pytest.mark.parametrize("step", range(12))
def test_a_link_that_breaks_at_any_step_neither_loses_nor_doubles(stores: Stores, step: int) -> None:
    bodies = send(stores, 5)
    _go(stores, step)
    for way in [*stores.ways.open_ways]:
        way.lose()
    bodies += send(stores, 3, 5)
    stores.settle()
    assert stores.worlds["s2"].stored(THEIRS) == bodies


def _go(stores: Stores, steps: int) -> None:
    for number in range(steps):
        match number % 3:
            case 0:
                for world in stores.worlds.values():
                    world.turn()
                for way in stores.ways.open_ways:
                    way.leave()
            case 1:
                for world in stores.worlds.values():
                    world.runner.step()
            case _:
                for way in [*stores.ways.open_ways]:
                    way.carry()


def test_a_parcel_that_was_closed_is_refused_however_late_it_comes(stores: Stores) -> None:
    client = stores.worlds["s2"].connect()
    client.do(CloseParcel("other/x", 5, "close"))
    stores.worlds["s2"].settle()
    assert (client.confirmed, client.outcomes) == (["close"], ["0"])
    stores.crash("s2")
    late = stores.worlds["s2"].connect()
    late.do(Transfer("other/x", 5, [Message("queue://" + THEIRS, b"x")], receipt="late"))
    stores.worlds["s2"].settle()
    assert late.codes == ["PARCEL_CLOSED"]
    assert stores.worlds["s2"].stored(THEIRS) == []


def test_what_another_store_refuses_waits_and_then_goes_to_the_dead_letter_queue(stores: Stores) -> None:
    send(stores, 3)
    refused = stores.worlds["s2"].broker.arrivals.take

    def take(transfer: Transfer, waiter: Any) -> Any:
        if any(message.body == b"1" for message in transfer.messages):
            raise CommandError("it is not good", code="DESTINATION_INVALID")
        return refused(transfer, waiter)

    stores.worlds["s2"].broker.arrivals.take = take
    stores.settle(3)
    assert waiting(stores) == 2, "the first one came alone"
    (row,) = stores.worlds["s1"].broker.outbox.rows()
    assert (row.destination, row.store, row.messages, row.trouble) == (f"queue://{THEIRS}", "s2", 2, "it is not good")
    assert row.since_ms == stores.worlds["s1"].clock.wall_ms() - 3000
    assert views.outboxes().row(row) == {
        "name": f"/queue/{THEIRS}",
        "messages": 2,
        "bytes": row.bytes,
        "since_ms": row.since_ms,
        "to_store": "s2",
        "reason": "it is not good",
    }
    assert stores.worlds["s1"].broker.outbox.facts == {}
    stores.settle(10)
    facts = stores.worlds["s1"].broker.outbox.facts
    assert facts == {"destination": row.destination, "since_ms": row.since_ms, "reason": "it is not good"}
    said = len(stores.ways.said)
    stores.settle(400)
    assert len(stores.ways.said) - said < 60, "a message that is refused is not sent in a hot loop"
    assert stores.worlds["s2"].stored(THEIRS) == [b"0", b"2"]
    assert stores.worlds["s1"].stored("ActiveMQ.DLQ") == [b"1"]
    queue = stores.worlds["s1"].broker.state.queues["queue://ActiveMQ.DLQ"]
    (message,) = stores.worlds["s1"].everything(queue).values()
    assert message.properties["original-destination"] == f"/queue/{THEIRS}"
    assert "refused by another store: it is not good" in message.properties["dead-letter-reason"]


def test_a_destination_that_has_come_here_gets_what_waited(stores: Stores) -> None:
    bodies = send(stores, 4)
    moved = TABLE.placed(THEIRS, "s1")
    for placement in (moved, moved.settled()):
        for store, world in stores.worlds.items():
            world.broker.reconfigure(dataclasses.replace(world.config, placed=content(placement, store)))
        if placement.before is not None:
            stores.settle(3)
    stores.settle(60)
    assert stores.worlds["s1"].stored(THEIRS) + stores.worlds["s2"].stored(THEIRS) == bodies
    assert waiting(stores) == 0
