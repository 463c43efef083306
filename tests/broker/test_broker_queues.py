"""Queues and their consumers: order, sharing, prefetch, acknowledgement modes, messages that come back, priorities."""

from __future__ import annotations

import random
import tracemalloc
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from amq.broker.queues.queue import ROUNDS_MIN, RUN_BODY_BYTES_MAX, RUN_MESSAGES_MAX, Queue
from amq.core.message import Message
from amq.protocols.commands import Send, Subscribe
from amq.protocols.stomp.subscribing import ACK_AUTO, ACK_CLIENT, ACK_INDIVIDUAL
from tests.broker.notation import Ack
from tests.broker.world import World
from tests.large import large_from


def fill(world: World, count: int, queue: str = "a", **fields: object) -> list[bytes]:
    bodies = [b"%d" % i for i in range(count)]
    producer = world.connect()
    for body in bodies:
        producer.send(body, queue, receipt=False, **fields)  # type: ignore[arg-type]
    world.settle()
    return bodies


# -- order and sharing -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("persistent", [True, False])
def test_first_in_first_out(world: World, persistent: bool) -> None:
    bodies = fill(world, 20, persistent=persistent)
    assert world.consumer().bodies == bodies


def test_order_survives_batches_segments_and_takeover(make_world: Callable[..., World]) -> None:
    world = make_world(journal_segment_size_bytes=2048, journal_batch_size_bytes=300)
    bodies = fill(world, 100)
    assert len(world.segments()) > 3
    world.crash_and_recover()
    assert world.consumer().bodies == bodies


def test_order_of_those_that_were_overtaken_on_their_way_to_the_disk(make_world: Callable[..., World]) -> None:
    """What is not persistent does not wait for the disk; a large message then came before an older one of its kind."""
    world = make_world()
    with large_from(3):
        producer = world.connect()
        for body, persistent in ((b"1", True), (b"2 is large", True), (b"3", False), (b"4", True), (b"5", False)):
            producer.send(body, persistent=persistent, receipt=False)
        world.settle()
        world.connect().subscribe(prefetch=10)
        consumer = world.clients[-1]
        world.settle()
    assert consumer.bodies == [b"1", b"2 is large", b"3", b"4", b"5"]


def test_each_message_goes_to_one_consumer_in_turn(world: World) -> None:
    first, second, third = world.consumer(), world.consumer(), world.consumer()
    fill(world, 6)
    assert (first.bodies, second.bodies, third.bodies) == ([b"0", b"3"], [b"1", b"4"], [b"2", b"5"])


def test_a_message_sent_before_the_first_consumer_waits(world: World) -> None:
    bodies = fill(world, 3)
    assert world.consumer(ack=ACK_AUTO).bodies == bodies
    assert world.stored() == []


def test_queues_do_not_mix(world: World) -> None:
    fill(world, 2, "a")
    fill(world, 3, "b")
    assert len(world.consumer(queue="b").bodies) == 3
    assert world.stored("a") == [b"0", b"1"]


@pytest.mark.parametrize("ack", [ACK_CLIENT, ACK_INDIVIDUAL])
def test_prefetch_bounds_what_is_outstanding(world: World, ack: str) -> None:
    fill(world, 10)
    client = world.consumer(ack=ack, prefetch=3)
    assert client.bodies == [b"0", b"1", b"2"]
    client.ack(b"1")
    world.settle()
    assert client.bodies == [b"%d" % i for i in range(5 if ack == ACK_CLIENT else 4)]


def test_prefetch_of_one_shares_work_evenly(world: World) -> None:
    slow, fast = world.consumer(prefetch=1), world.consumer(prefetch=1)
    fill(world, 10)
    assert (slow.bodies, fast.bodies) == ([b"0"], [b"1"])
    for number in range(1, 9):
        fast.ack(b"%d" % number)
        world.settle()
        assert fast.bodies[-1] == b"%d" % (number + 1)
    assert slow.bodies == [b"0"]


def test_default_prefetch_is_configured(make_world: Callable[..., World]) -> None:
    world = make_world(prefetch_size=2)
    fill(world, 5)
    assert len(world.consumer().bodies) == 2


def test_auto_consumer_has_no_prefetch_limit_but_its_socket(world: World) -> None:
    client = world.consumer(ack=ACK_AUTO, prefetch=1)
    client.session.set_writable(False)
    bodies = fill(world, 5)
    assert client.bodies == []
    client.session.set_writable(True)
    world.settle()
    assert client.bodies == bodies


def test_a_slow_consumer_gets_nothing_and_the_others_go_on(world: World) -> None:
    slow, fast = world.consumer(), world.consumer()
    slow.session.set_writable(False)
    bodies = fill(world, 4)
    assert fast.bodies == bodies
    fast.ack(b"0")
    slow.session.set_writable(True)
    world.settle()
    fill(world, 2)
    assert (slow.bodies, fast.bodies[4:]) in (([b"0"], [b"1"]), ([b"1"], [b"0"]))


def test_a_consumer_that_becomes_slow_while_it_is_served_gets_no_more(world: World) -> None:
    """Of large messages, which are given to it one by one; of small ones it gets the run that was begun."""
    client = world.consumer()

    def full_at_two(*_: object) -> None:
        delivered.append(1)
        if len(delivered) == 2:
            client.session.set_writable(False)

    delivered: list[int] = []
    world.on_deliver = full_at_two
    bodies = [b"%d" % number + bytes(RUN_BODY_BYTES_MAX) for number in range(5)]
    sender = world.connect()
    for body in bodies:
        sender.send(body)
    world.settle()
    assert client.bodies == bodies[:2]
    client.ack(bodies[0])  # gives credit, but no room in the socket
    world.settle()
    assert client.bodies == bodies[:2]
    client.session.set_writable(True)
    world.settle()
    assert client.bodies == bodies
    world.check()


def test_a_slow_consumer_gets_no_more_than_the_run_that_was_begun(world: World) -> None:
    client = world.consumer(prefetch=10 * RUN_MESSAGES_MAX)
    world.on_deliver = lambda *_: client.session.set_writable(False)
    bodies = fill(world, 3 * RUN_MESSAGES_MAX)
    assert 0 < len(client.bodies) <= RUN_MESSAGES_MAX
    client.session.set_writable(True)
    world.settle()
    while len(client.bodies) < len(bodies):
        before = len(client.bodies)
        client.session.set_writable(True)
        world.settle()
        assert before < len(client.bodies) <= before + RUN_MESSAGES_MAX
    assert client.bodies == bodies
    world.check()


def worked(world: World, rng: random.Random) -> list[list[tuple[object, ...]]]:
    """What each client gets of a queue, where producers and consumers do what `rng` says."""
    producer = world.connect()
    clients = [world.connect() for _ in range(rng.randint(1, 3))]
    for number in range(rng.randint(1, 4)):
        ack, prefetch = rng.choice((ACK_AUTO, ACK_INDIVIDUAL, ACK_CLIENT)), rng.choice((0, 20, 100))
        rng.choice(clients).subscribe("a", ack, prefetch, id=str(number))
    world.settle()
    for burst in range(4):
        odd = rng.choice((0, 0, 0.02))
        for number in range(rng.choice((3, 40, 200))):
            is_odd = rng.random() < odd
            fields = rng.choice(({"expires_ms": 1 << 50}, {"priority": 9}, {"properties": {"JMSXGroupID": "g"}}))
            body = b"%d-%d" % (burst, number) + bytes(rng.choice((0, RUN_BODY_BYTES_MAX)) if is_odd else 0)
            persistent = rng.random() < 0.9
            producer.send(body, receipt=False, persistent=persistent, **(fields if is_odd else {}))
        world.settle()
        client = rng.choice(clients)
        for id, consumer in client.consumers.items() if rng.random() < 0.5 else ():
            client.do(*(Ack(seq, id) for seq in [*consumer.unacked][:15]))
        world.settle()
    world.check()
    return [[each[:4] for each in client.deliveries] for client in clients]


def shares(world: World, rng: random.Random) -> tuple[dict[object, int], list[tuple[object, ...]]]:
    """How many messages each consumer gets, and what all of them get together."""
    found = worked(world, rng)
    counts = Counter((number, each[0]) for number, deliveries in enumerate(found) for each in deliveries)
    return counts, sorted(each[1:] for deliveries in found for each in deliveries)


def test_messages_are_handed_out_in_rounds_as_they_are_one_by_one(
    make_world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    taken, handed_out = [], Queue._hand_out_rounds

    def hand_out(queue: Queue, owner: Any) -> None:
        before = queue.waiting
        handed_out(queue, owner)
        taken.append(before - queue.waiting)

    monkeypatch.setattr(Queue, "_hand_out_rounds", hand_out)
    for seed in range(12):
        monkeypatch.setattr("amq.broker.queues.queue.ROUNDS_MIN", ROUNDS_MIN)
        in_rounds = shares(make_world(), random.Random(seed))
        monkeypatch.setattr("amq.broker.queues.queue.ROUNDS_MIN", 1 << 30)
        assert in_rounds == shares(make_world(), random.Random(seed)), seed
    assert sum(map(bool, taken)) > 12


def test_two_subscriptions_of_one_connection_compete(world: World) -> None:
    client = world.connect()
    client.subscribe(id="one")
    client.subscribe(id="two")
    fill(world, 4)
    assert [delivery.subscription for delivery in client.deliveries] == ["one", "two", "one", "two"]


# -- acknowledgement ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("persistent", [True, False])
def test_individual_acknowledgement_is_of_that_message_alone(world: World, persistent: bool) -> None:
    fill(world, 4, persistent=persistent)
    client = world.consumer()
    receipt = client.ack(b"2")
    world.settle()
    assert receipt in client.confirmed
    assert world.stored() == [b"0", b"1", b"3"]
    world.check_at_rest()


def test_client_acknowledgement_is_cumulative(world: World) -> None:
    fill(world, 5)
    client = world.consumer(ack=ACK_CLIENT)
    client.ack(b"2")
    world.settle()
    assert world.stored() == [b"3", b"4"]
    client.ack(b"3")
    world.settle()
    assert world.stored() == [b"4"]
    world.check_at_rest()


def test_cumulative_acknowledgement_covers_its_own_subscription_only(world: World) -> None:
    first, second = world.consumer(ack=ACK_CLIENT), world.consumer(ack=ACK_CLIENT)
    fill(world, 4)
    second.ack(b"3")
    world.settle()
    assert world.stored() == [b"0", b"2"]
    assert first.bodies == [b"0", b"2"]


def test_cumulative_acknowledgement_follows_the_order_of_delivery(world: World) -> None:
    """Not that of sequence numbers: a message that came back is older than what was delivered before it."""
    first, second = world.consumer(ack=ACK_CLIENT, prefetch=1), world.consumer(ack=ACK_CLIENT, prefetch=2)
    fill(world, 3)
    assert (first.bodies, second.bodies) == ([b"0"], [b"1", b"2"])
    second.ack(b"1")
    world.lose(first)
    assert second.bodies == [b"1", b"2", b"0"]
    second.ack(b"2")
    world.settle()
    assert world.stored() == [b"0"]


def test_auto_acknowledges_by_delivering(world: World) -> None:
    fill(world, 3)
    client = world.consumer(ack=ACK_AUTO)
    world.lose(client)
    assert world.stored() == []
    assert world.consumer().bodies == []
    world.check_at_rest()


@pytest.mark.parametrize(
    "misdeed", ["twice", "never delivered", "auto", "after unsubscribe", "of another connection", "no subscription"]
)
def test_acknowledging_what_one_does_not_hold_is_an_error(world: World, misdeed: str) -> None:
    fill(world, 2)
    client = world.consumer(ack=ACK_AUTO if misdeed == "auto" else ACK_INDIVIDUAL)
    if misdeed == "twice":
        client.ack(b"0")
        client.ack(b"0")
    elif misdeed == "never delivered":
        client.do(Ack(12345, "a", "r"))
    elif misdeed == "no subscription":
        client.do(Ack(client.delivery(b"0").seq, "b", "r"))
    elif misdeed == "of another connection":
        other = world.consumer()
        other.do(Ack(client.delivery(b"0").seq, "a", "r"))
        client = other
    else:
        client.unsubscribe()
        client.ack(b"0")
    world.settle()
    assert client.codes == ["UNKNOWN_DELIVERY"]
    assert not client.connected
    world.check_at_rest()


@pytest.mark.parametrize("ack", [ACK_CLIENT, ACK_INDIVIDUAL])
def test_an_acknowledgement_without_subscription_finds_the_one_that_holds_the_message(world: World, ack: str) -> None:
    """STOMP 1.0 names the message only."""
    fill(world, 2, "a")
    fill(world, 2, "b")
    client = world.connect()
    client.subscribe("a", ack)
    client.subscribe("b", ack)
    world.settle()
    seq = next(delivery.seq for delivery in client.deliveries if delivery.subscription == "b")
    client.do(Ack(seq, "", "r"))
    world.settle()
    assert client.errors == []
    assert "r" in client.confirmed
    assert (world.stored("a"), world.stored("b")) == ([b"0", b"1"], [b"1"])


def test_acknowledgement_is_confirmed_when_it_is_durable_and_not_before(world: World) -> None:
    fill(world, 1)
    client = world.consumer()
    receipt = client.ack(b"0")
    world.turn()
    assert receipt not in client.confirmed
    world.runner.work()  # written and synced, but nobody knows yet
    world.turn()
    assert receipt not in client.confirmed
    world.settle()
    assert receipt in client.confirmed
    world.crash_and_recover()
    assert world.stored() == []


def test_acknowledgement_that_nobody_asked_about_is_stored_in_the_end(world: World) -> None:
    fill(world, 2)
    client = world.consumer()
    client.ack(b"0", receipt=False)
    world.turn()
    assert not world.runner.jobs  # it waits for company
    world.settle()
    world.crash_and_recover()
    assert world.stored() == [b"1"]


# -- messages that come back -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("how", ["lose", "unsubscribe", "disconnect"])
def test_what_a_consumer_leaves_takes_its_old_place(world: World, how: str, persistent: bool) -> None:
    first = world.consumer(prefetch=4)
    bodies = fill(world, 8, persistent=persistent)
    first.ack(b"1")
    getattr(first, how)()
    world.settle()
    second = world.consumer()
    assert second.bodies == [body for body in bodies if body != b"1"]
    assert [delivery.redelivered for delivery in second.deliveries] == [1, 1, 1, 0, 0, 0, 0]
    world.check()


def test_returned_messages_of_several_consumers_interleave_by_age(world: World) -> None:
    clients = [world.consumer(prefetch=3) for _ in range(3)]
    bodies = fill(world, 12)
    for client in (clients[1], clients[0], clients[2]):
        client.lose()
    world.settle()
    assert world.consumer().bodies == bodies


def test_the_count_of_redeliveries_grows_and_survives_a_takeover(world: World) -> None:
    fill(world, 1)
    for before in range(3):
        client = world.consumer()
        assert client.deliveries[0].redelivered == before
        world.lose(client)
    world.check_at_rest()
    world.crash_and_recover()
    assert world.consumer().deliveries[0].redelivered == 3


@pytest.mark.parametrize("persistent", [True, False])
def test_an_auto_consumer_is_told_of_redeliveries_too(world: World, persistent: bool) -> None:
    fill(world, 1, persistent=persistent)
    world.lose(world.consumer())
    assert world.consumer(ack=ACK_AUTO).deliveries[0].redelivered == 1


def test_counts_that_overtake_their_own_records_are_not_turned_back(world: World) -> None:
    """The record of an earlier return commits after a later return was counted."""
    fill(world, 1)
    world.consumer().lose()
    world.turn()  # the first return is on its way to the disk
    for _ in range(2):
        client = world.connect()
        client.subscribe()
        world.turn()
        client.lose()
    world.runner.step()
    world.runner.step()  # the first record is committed, the others are not
    late = world.connect()
    late.subscribe()
    world.turn()
    assert late.deliveries[0].redelivered == 3
    world.lose(late)
    assert world.consumer().deliveries[0].redelivered == 4
    world.check()


def test_a_takeover_alone_is_no_redelivery(world: World) -> None:
    """Nobody can say what became of it: the flag is not set, as docs/messaging.md says."""
    fill(world, 1)
    world.consumer()
    world.crash_and_recover()
    assert world.consumer().deliveries[0].redelivered == 0


# -- priorities --------------------------------------------------------------------------------------------------------


def test_higher_priority_first_and_first_in_first_out_within(world: World) -> None:
    producer = world.connect()
    for number, priority in enumerate([4, 0, 9, 4, 9, 0]):
        producer.send(b"%d%d" % (priority, number), priority=priority)
    world.settle()
    expected = [b"92", b"94", b"40", b"43", b"01", b"05"]
    assert world.consumer(prefetch=6).bodies == expected
    world.crash_and_recover()
    assert world.consumer().bodies == expected


def test_a_late_message_of_high_priority_overtakes_those_that_wait(world: World) -> None:
    client = world.consumer(prefetch=1)
    fill(world, 3)
    world.send(b"high", priority=9)
    assert client.bodies == [b"0"]
    client.ack(b"0")
    world.settle()
    assert client.bodies == [b"0", b"high"]


def test_a_returned_message_of_high_priority_is_first_again(world: World) -> None:
    first = world.consumer(prefetch=1)
    world.connect().send(b"high", priority=7)
    fill(world, 2)
    assert first.bodies == [b"high"]
    world.lose(first)
    assert world.consumer().bodies == [b"high", b"0", b"1"]


# -- subscribing -------------------------------------------------------------------------------------------------------


def test_what_cannot_be_served_is_refused(world: World) -> None:
    for act, code in [
        (lambda client: client.subscribe(selector="a = "), "INVALID_SELECTOR"),
        (lambda client: client.do(Send(Message("stream://a", b"x"), "r")), "DESTINATION_REFUSED"),
        (lambda client: client.do(Subscribe("s", "stream://a")), "DESTINATION_REFUSED"),
        (lambda client: (client.subscribe(), client.subscribe()), "COMMAND_REFUSED"),
        (lambda client: client.unsubscribe("nobody"), "UNKNOWN_SUBSCRIPTION"),
        (lambda client: client.commit("nobody"), "UNKNOWN_TRANSACTION"),
        (lambda client: client.abort("nobody"), "UNKNOWN_TRANSACTION"),
        (lambda client: client.send(b"x", transaction="nobody"), "UNKNOWN_TRANSACTION"),
        (lambda client: (client.begin(), client.begin()), "COMMAND_REFUSED"),
    ]:
        client = world.connect()
        act(client)  # type: ignore[no-untyped-call]
        world.settle()
        assert client.codes == [code]
        assert not client.connected
    world.check_at_rest()


def test_nothing_is_carried_out_after_an_error(world: World) -> None:
    client = world.connect()
    client.do(Ack(1, "a", "r1"), Ack(2, "a", "r2"))
    client.send(b"late")
    world.settle()
    assert client.errors == [("UNKNOWN_DELIVERY", "r1")]
    assert world.stored() == []


def test_the_receipt_of_a_disconnect_comes_last(world: World) -> None:
    client = world.connect()
    sent = [client.send(b"%d" % i) for i in range(3)]
    bye = client.disconnect()
    assert client.connected
    world.settle()
    assert client.confirmed == [*sent, bye]
    assert not client.connected


def test_a_queue_that_holds_nothing_is_forgotten(world: World) -> None:
    client = world.consumer()
    fill(world, 1)
    client.ack(b"0")
    world.settle()
    world.broker.sweep()
    assert world.broker.state.queues  # somebody listens
    world.lose(client)
    world.broker.sweep()
    assert not world.broker.state.queues


# -- very many of them -------------------------------------------------------------------------------------------------


def test_a_queue_of_one_message_costs_little(world: World) -> None:
    count = 2000
    messages = [Message(f"queue://{i}", b"", persistent=False, seq=i + 1) for i in range(count)]
    tracemalloc.start()
    for message in messages:
        world.broker.state.apply(message, None)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken / count < 2200


def test_a_sweep_looks_only_at_queues_where_something_may_be_due(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(100):
        world.connect().send(b"", str(i), receipt=False)
    world.connect().send(b"", "late", expires_ms=world.clock.wall_ms() + 1000)
    world.settle()
    world.broker.sweep()
    seen: list[str] = []
    monkeypatch.setattr(Queue, "is_idle", lambda queue: seen.append(queue.name))
    monkeypatch.setattr(Queue, "take_expired", lambda queue, _now: seen.append(queue.name) or [])
    world.broker.sweep()
    assert seen == ["queue://late"]
