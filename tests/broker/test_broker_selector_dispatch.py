"""Message groups and selectors: each consumer gets what it may have, in order, and waits for nobody else's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from amq.broker.queues import selector_dispatch as picking
from amq.broker.queues.groups import GROUP_ID, GROUP_SEQ
from amq.core.message import Message
from amq.protocols.commands import Filter, Mode, Send, Subscribe
from amq.protocols.stomp.subscribing import ACK_AUTO, ACK_INDIVIDUAL
from amq.selectors import Selector
from tests.broker.notation import Ack
from tests.broker.world import Client, World
from tests.large import large_from

SMALL_BYTES = 40_000


def send(world: World, *bodies: bytes, **properties: str) -> None:
    producer = world.connect()
    for body in bodies:
        producer.send(body, properties=dict(properties), receipt=False)
    world.settle()


def send_group(world: World, *texts: str, last: bool = False) -> None:
    """`a1` = a message of group a."""
    producer = world.connect()
    for text in texts:
        properties = {GROUP_ID: text[0]} | ({GROUP_SEQ: "-1"} if last else {})
        producer.send(text.encode(), properties=properties, receipt=False)
    world.settle()


def consumer(
    world: World, selector: str = "", prefetch: int = 1000, ack: str = ACK_INDIVIDUAL, **options: str
) -> Client:
    return world.consumer("a", ack, prefetch, selector=selector, options=options)


def texts(client: Client) -> list[str]:
    return [body.rstrip(b"\0").decode() for body in client.bodies]


def acknowledge(client: Client, *bodies: str) -> None:
    for body in bodies:
        client.ack(body.encode())
    client.world.settle()
    client.world.check_at_rest()


# -- groups ------------------------------------------------------------------------------------------------------------


def test_a_group_goes_to_one_consumer(world: World) -> None:
    first, second = consumer(world), consumer(world)
    send_group(world, "a1", "b1", "a2", "a3", "b2", "c1")
    assert (texts(first), texts(second)) == (["a1", "a2", "a3", "c1"], ["b1", "b2"])
    world.check_at_rest()


def test_who_is_in_no_group_goes_round(world: World) -> None:
    first, second = consumer(world), consumer(world)
    send_group(world, "a1", "a2", "a3")
    send(world, b"x", b"y")
    send_group(world, "a4")
    assert (texts(first), texts(second)) == (["a1", "a2", "a3", "y", "a4"], ["x"])


def test_a_group_whose_owner_has_no_room_keeps_nobody_waiting(world: World) -> None:
    first, second = consumer(world, prefetch=1), consumer(world)
    send_group(world, "a1", "a2", "a3", "b1", "a4", "b2")
    assert (texts(first), texts(second)) == (["a1"], ["b1", "b2"])
    acknowledge(first, "a1")
    assert texts(first) == ["a1", "a2"]


@pytest.mark.parametrize("how", ["lose", "unsubscribe"])
def test_when_the_owner_goes_another_one_takes_all_in_order(world: World, how: str) -> None:
    first, second = consumer(world, prefetch=2), consumer(world)
    send_group(world, "a1", "a2", "a3", "b1", "a4")
    assert (texts(first), texts(second)) == (["a1", "a2"], ["b1"])
    getattr(first, how)()
    world.settle()
    assert texts(second) == ["b1", "a1", "a2", "a3", "a4"]
    assert [delivery.redelivered for delivery in second.deliveries] == [0, 1, 1, 0, 0]
    world.check_at_rest()


def test_what_an_open_transaction_of_the_old_owner_holds_keeps_the_group_from_others(world: World) -> None:
    first, second = consumer(world, prefetch=1), consumer(world)
    send_group(world, "a1", "a2")
    first.begin()
    first.ack(b"a1", "t")
    first.unsubscribe()
    world.settle()
    send_group(world, "a3", "b1")
    assert texts(second) == ["b1"]
    first.abort()
    world.settle()
    assert texts(second) == ["b1", "a1", "a2", "a3"]
    world.check_at_rest()


def test_it_is_free_when_that_transaction_commits(world: World) -> None:
    first, second = consumer(world, prefetch=1), consumer(world)
    send_group(world, "a1", "a2")
    first.begin()
    first.ack(b"a1", "t")
    first.unsubscribe()
    world.settle()
    assert texts(second) == []
    first.commit()
    world.settle()
    assert texts(second) == ["a2"]
    world.check_at_rest()


def test_the_last_message_of_a_group_sets_it_free_when_it_is_acknowledged(world: World) -> None:
    first, second = consumer(world), consumer(world)
    send_group(world, "a1", "a2")
    send_group(world, "a3", last=True)
    send_group(world, "a4")
    assert (texts(first), texts(second)) == (["a1", "a2", "a3"], [])
    acknowledge(first, "a1", "a3")
    assert texts(second) == [], "one of them is still being worked on"
    acknowledge(first, "a2")
    assert (texts(first), texts(second)) == (["a1", "a2", "a3"], ["a4"])


def test_a_consumer_that_acknowledges_by_itself_sets_it_free_at_once(world: World) -> None:
    first, second = consumer(world, ack=ACK_AUTO), consumer(world, ack=ACK_AUTO)
    send_group(world, "a1")
    send_group(world, "a2", last=True)
    send_group(world, "a3")
    assert (texts(first), texts(second)) == (["a1", "a2"], ["a3"])


def test_a_new_consumer_gets_new_groups_only(world: World) -> None:
    first = consumer(world)
    send_group(world, "a1", "b1")
    second = consumer(world)
    send_group(world, "a2", "b2", "c1")
    assert (texts(first), texts(second)) == (["a1", "b1", "a2", "b2"], ["c1"])


def test_or_its_share_of_the_old_ones(make_world: Callable[..., World]) -> None:
    world = make_world(group_rebalance=True)
    first = consumer(world)
    send_group(world, "a1", "b1", "a2")
    second = consumer(world)
    send_group(world, "a3", "b2")
    assert texts(second) == [], "not while the first has some of them"
    acknowledge(first, "b1")
    assert texts(second) == ["b2"]
    acknowledge(first, "a1", "a2")
    send_group(world, "a4")
    assert (texts(first), texts(second)) == (["a1", "b1", "a2", "a3", "a4"], ["b2"])
    world.check_at_rest()


def test_few_buckets_mean_common_owners(make_world: Callable[..., World]) -> None:
    world = make_world(group_buckets=1)
    first, second = consumer(world), consumer(world)
    send_group(world, "a1", "b1", "c1")
    assert (texts(first), texts(second)) == (["a1", "b1", "c1"], [])


def test_the_memory_does_not_grow_with_the_number_of_groups(world: World) -> None:
    consumer(world, ack=ACK_AUTO)
    producer = world.connect()
    for number in range(5000):
        producer.send(b"", properties={GROUP_ID: f"group {number}"}, persistent=False, receipt=False)
    world.settle()
    selection = world.broker.state.queues["queue://a"].selection
    assert selection is not None
    assert len(selection.groups._owners) == 1024 - sum(b not in selection.groups._owners for b in range(1024))
    assert len(selection.groups._owners) <= 1024
    assert not selection.groups._skipped


def test_groups_that_wait_on_disk(make_world: Callable[..., World]) -> None:
    world = make_world(memory_limit_bytes=SMALL_BYTES)
    producer = world.connect()
    for number in range(200):
        producer.send(b"%d" % number + bytes(1000), properties={GROUP_ID: f"{number % 7}"}, receipt=False)
        world.settle()
    world.crash_and_recover()
    clients = [consumer(world, prefetch=prefetch) for prefetch in (1, 3, 20)]
    drain(world, clients, 200)
    for client in clients:
        assert {int(text) % 7 for text in texts(client)}.isdisjoint(
            int(text) % 7 for other in clients if other is not client for text in texts(other)
        )
        assert texts(client) == sorted(texts(client), key=int)


def drain(world: World, clients: list[Client], count: int) -> None:
    done: Counter[Client] = Counter()
    while (delivered := sum(len(client.deliveries) for client in clients)) < count:
        for client in clients:
            for delivery in client.deliveries[done[client] :]:
                client.do(Ack(delivery.seq, "a"))
            done[client] = len(client.deliveries)
        world.settle_and_check()
        assert sum(len(client.deliveries) for client in clients) > delivered, f"stands still after {delivered}"


def test_the_queue_is_plain_again_when_its_consumers_have_gone(world: World) -> None:
    first = consumer(world)
    send_group(world, "a1")
    queue = world.broker.state.queues["queue://a"]
    assert queue.selection is not None
    world.lose(first)
    assert queue.selection is None
    assert world.broker.memory.taken_bytes == queue.resident_bytes
    assert texts(consumer(world)) == ["a1"]


# -- selectors ---------------------------------------------------------------------------------------------------------


def test_each_gets_what_it_wants(world: World) -> None:
    red, blue = consumer(world, "colour = 'red'"), consumer(world, "colour = 'blue'")
    for number, colour in enumerate(["red", "blue", "green", "red", "blue"]):
        send(world, b"%d" % number, colour=colour)
    assert (texts(red), texts(blue)) == (["0", "3"], ["1", "4"])
    assert world.stored() == [b"0", b"1", b"2", b"3", b"4"]
    world.check_at_rest()
    assert texts(consumer(world)) == ["2"]


def test_numbers_in_headers_are_numbers(world: World) -> None:
    client = consumer(world, "size > 9")
    for size in ("10", "9", "100", "big"):
        send(world, size.encode(), size=size)
    assert texts(client) == ["10", "100"]


def test_a_mistake_is_told_with_its_column(world: World) -> None:
    client = world.connect()
    told = []
    client.fail = lambda failure: told.append(  # type: ignore[method-assign]
        (failure.error.code, str(failure.error), failure.receipt)  # type: ignore[attr-defined]
    )
    receipt = client.subscribe("a", selector="colour = = 'red'")
    ((code, text, told_of),) = told
    assert (code, told_of) == ("INVALID_SELECTOR", receipt)
    assert "column 10" in text
    assert "queue://a" not in world.broker.state.queues or not world.broker.state.queues["queue://a"].subscriptions


def test_what_nobody_wants_is_looked_at_once_for_each(world: World) -> None:
    asked: Counter[bytes] = Counter()
    selector = Selector("colour = 'red'", world.broker.message_id_prefix)
    real = selector.matches

    def matches(message: Message) -> bool:
        asked[message.body] += 1
        return real(message)

    selector.matches = matches
    for number in range(50):
        send(world, b"%d" % number, colour="green")
    clients = [consumer(world, "colour = 'red'", prefetch=1), consumer(world, "colour = 'red'", prefetch=1)]
    for _ in range(20):
        send(world, b"red", colour="red")
        for client in clients:
            if client.deliveries:
                client.ack(b"red")
        world.settle()
    assert sum(len(client.deliveries) for client in clients) == 20
    assert max(count for body, count in asked.items() if body != b"red") <= 2


def test_what_comes_back_is_looked_at_again(world: World) -> None:
    first = consumer(world, "colour = 'red'")
    send(world, b"1", colour="red")
    send(world, b"2", colour="green")
    second = consumer(world, "colour IN ('red', 'green')")
    send(world, b"3", colour="red")
    assert (texts(first), texts(second)) == (["1", "3"], ["2"])
    world.lose(first)
    assert texts(second) == ["2", "1", "3"]


def test_what_overtook_on_the_way_to_the_disk_is_not_forgotten(world: World) -> None:
    """A message that is not persistent is there, and looked at, before an older one that is being stored."""
    client = consumer(world, "colour = 'red'")
    producer = world.connect()
    producer.send(b"1", properties={"colour": "red"}, receipt=False)
    producer.send(b"2", properties={"colour": "red"}, persistent=False, receipt=False)
    world.broker.dispatch()
    world.settle()
    assert sorted(texts(client)) == ["1", "2"]
    world.check_at_rest()


def test_a_higher_priority_comes_first_where_both_want_it(world: World) -> None:
    low, high = consumer(world), consumer(world, "colour = 'red'", prefetch=1, priority="5")
    for number, colour in enumerate(["green", "red", "red"]):
        send(world, b"%d" % number, colour=colour)
    assert (texts(low), texts(high)) == (["0", "2"], ["1"])


def test_an_exclusive_consumer_with_a_selector_keeps_the_rest_from_others(world: World) -> None:
    first, other = consumer(world, "colour = 'red'", exclusive="true"), consumer(world)
    send(world, b"1", colour="green")
    send(world, b"2", colour="red")
    assert (texts(first), texts(other)) == (["2"], [])
    world.lose(first)
    assert texts(other) == ["1", "2"]


def test_what_has_expired_is_not_delivered(world: World) -> None:
    producer = world.connect()
    producer.send(b"1", properties={"x": "1"}, expires_ms=world.clock.wall_ms() + 1000, receipt=False)
    producer.send(b"2", properties={"x": "1"}, receipt=False)
    world.settle()
    world.clock.advance(2)
    assert texts(consumer(world, "x = 1")) == ["2"]
    world.settle()
    assert world.stored() == [b"2"]


@pytest.fixture
def on_disk(make_world: Callable[..., World]) -> World:
    """1000 green messages, 20 red ones among them, nearly all on disk alone."""
    world = make_world(memory_limit_bytes=SMALL_BYTES)
    producer = world.connect()
    for number in range(1000):
        colour = "red" if number % 50 == 0 else "green"
        properties = {"colour": colour, "number": f"{number}"}
        producer.do(Send(Message("queue://a", b"%d" % number + bytes(500), properties), "r"))
        if number % 10 == 0:
            world.settle()
    world.settle()
    assert len(world.broker.state.queues["queue://a"].backlogs[4]) > 900
    return world


def test_a_consumer_finds_the_few_that_it_wants_on_the_disk(on_disk: World) -> None:
    world = on_disk
    client = consumer(world, "colour = 'red'", prefetch=3)
    drain(world, [client], 20)
    assert texts(client) == [str(number) for number in range(0, 1000, 50)]
    assert world.broker.memory.taken_bytes <= SMALL_BYTES + (64 << 10)
    queue = world.broker.state.queues["queue://a"]
    assert len(queue.messages) < 30, "what nobody wants stays on the disk"
    send(world, b"later", colour="red")
    client.ack(client.bodies[-1])
    world.settle()
    assert texts(client)[-1] == "later"


def test_the_disk_is_read_once_for_a_consumer(on_disk: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world = on_disk
    read: list[int] = []
    real = world.journal.reader.read
    monkeypatch.setattr(
        world.journal.reader,
        "read",
        lambda places, done: (read.extend(place.seq for place, _ in places), real(places, done)),
    )
    client = consumer(world, "colour = 'blue'")
    for _ in range(20):
        send(world, b"blue", colour="blue")
    assert len(client.deliveries) == 20
    assert len(read) <= 1030


def test_who_looks_at_old_messages_keeps_nobody_from_new_ones(on_disk: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """One consumer at the end of the queue, another one that has a thousand messages to look at."""
    world = on_disk
    monkeypatch.setattr(picking, "WINDOW_ROWS", 10)
    red = consumer(world, "colour = 'red' AND number > 900")
    assert texts(red) == ["950"]
    blue = world.connect()
    blue.do(Subscribe("a", "queue://a", Mode(True), filter=Filter("colour = 'blue'")))
    world.turn()
    world.connect().send(b"new", properties={"colour": "red", "number": "1001"}, receipt=False)
    turns = 0
    while b"new" not in red.bodies:
        world.runner.step()
        world.turn()
        turns += 1
        assert turns < 40, "it waits for a consumer that looks at all that is there"
    world.settle_and_check()


def test_large_messages(make_world: Callable[..., World]) -> None:
    world = make_world(memory_limit_bytes=SMALL_BYTES)
    with large_from(400):
        producer = world.connect()
        for number in range(40):
            producer.do(Send(Message("queue://a", b"%d" % number + bytes(500), {"n": f"{number}"}), "r"))
            world.settle()
        even, odd = consumer(world, "n / 2 * 2 = n", prefetch=2), consumer(world, "n / 2 * 2 <> n", prefetch=2)
        drain(world, [even, odd], 40)
        assert texts(even) == [f"{n}" for n in range(0, 40, 2)]
        assert texts(odd) == [f"{n}" for n in range(1, 40, 2)]
        assert world.broker.memory.lent_bytes == 0


def test_a_turn_looks_at_so_much_and_goes_on_in_the_next(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(picking, "STEPS_MAX", 10)
    send(world, *(b"%d" % number for number in range(100)), colour="green")
    send(world, b"red", colour="red")
    assert texts(consumer(world, "colour = 'red'")) == ["red"]


def test_browsing_with_a_selector(on_disk: World) -> None:
    client = on_disk.connect()
    client.subscribe("a", ACK_AUTO, selector="number < 100 AND colour = 'red'", browser=True)
    on_disk.settle()
    assert texts(client) == ["0", "50"]
    assert client.browsed_ids
