"""Which consumer gets a message: exclusive consumers, and consumers of different priorities."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from amq.protocols.stomp.subscribing import ACK_AUTO, ACK_INDIVIDUAL
from tests.broker.notation import Ack
from tests.broker.world import Client, World


def send(world: World, *bodies: bytes) -> None:
    producer = world.connect()
    for body in bodies:
        producer.send(body, receipt=False)
    world.settle_and_check()


def consumer(world: World, prefetch: int = 1000, ack: str = ACK_INDIVIDUAL, **options: str) -> Client:
    return world.consumer("a", ack, prefetch, options=options)


def acknowledge(client: Client) -> None:
    for seq in list(client.consumers["a"].unacked):
        client.do(Ack(seq, "a"))
    client.world.settle()


# -- exclusive consumers -----------------------------------------------------------------------------------------------


def test_an_exclusive_consumer_gets_everything(world: World) -> None:
    first, second = consumer(world), consumer(world, exclusive="true")
    third = consumer(world, exclusive="true")
    send(world, b"1", b"2", b"3")
    assert (first.bodies, second.bodies, third.bodies) == ([], [b"1", b"2", b"3"], [])


def test_nobody_gets_what_it_has_no_room_for(world: World) -> None:
    """It is the only one, however slow: that is what it is for."""
    other, exclusive = consumer(world), consumer(world, prefetch=1, exclusive="true")
    send(world, b"1", b"2")
    assert (other.bodies, exclusive.bodies) == ([], [b"1"])
    exclusive.ack(b"1")
    world.settle()
    assert (other.bodies, exclusive.bodies) == ([], [b"1", b"2"])


@pytest.mark.parametrize("how", ["lose", "unsubscribe"])
def test_the_next_exclusive_consumer_takes_over_where_it_stopped(world: World, how: str) -> None:
    first, second, ordinary = consumer(world, exclusive="true"), consumer(world, exclusive="true"), consumer(world)
    send(world, b"1", b"2", b"3")
    first.ack(b"1")
    world.settle()
    getattr(first, how)()
    world.settle()
    send(world, b"4")
    assert [d.body for d in second.deliveries] == [b"2", b"3", b"4"]
    assert ordinary.bodies == []
    world.check_at_rest()


def test_after_the_last_exclusive_consumer_the_others_go_on(world: World) -> None:
    exclusive, first, second = consumer(world, exclusive="true"), consumer(world), consumer(world)
    send(world, b"1", b"2")
    world.lose(exclusive)
    assert (first.bodies, second.bodies) == ([b"1"], [b"2"])


def test_the_heir_is_the_one_of_the_highest_priority(world: World) -> None:
    first = consumer(world, exclusive="true")
    low, high = consumer(world, exclusive="true"), consumer(world, exclusive="true", priority="5")
    send(world, b"1")
    assert (low.bodies, high.bodies) == ([], [])
    world.lose(first)
    assert (low.bodies, high.bodies) == ([], [b"1"])


def test_an_exclusive_consumer_whose_socket_is_full_keeps_its_place(world: World) -> None:
    exclusive, other = consumer(world, exclusive="true"), consumer(world)
    exclusive.session.set_writable(False)
    send(world, b"1")
    assert (exclusive.bodies, other.bodies) == ([], [])
    exclusive.session.set_writable(True)
    world.settle()
    assert (exclusive.bodies, other.bodies) == ([b"1"], [])


# -- priorities of consumers -------------------------------------------------------------------------------------------


def test_a_higher_priority_comes_first_while_it_has_credit(world: World) -> None:
    low, high, higher = consumer(world), consumer(world, 2, priority="1"), consumer(world, 1, priority="127")
    lowest = consumer(world, priority="-128")
    send(world, *(b"%d" % number for number in range(5)))
    assert (higher.bodies, high.bodies, low.bodies) == ([b"0"], [b"1", b"2"], [b"3", b"4"])
    assert lowest.bodies == []
    higher.ack(b"0")
    world.settle()
    send(world, b"5", b"6")
    assert (higher.bodies, low.bodies) == ([b"0", b"5"], [b"3", b"4", b"6"])


def test_within_a_priority_in_turn(world: World) -> None:
    low = consumer(world)
    first, second = consumer(world, 2, priority="3"), consumer(world, 2, priority="3")
    send(world, *(b"%d" % number for number in range(5)))
    assert (first.bodies, second.bodies, low.bodies) == ([b"0", b"2"], [b"1", b"3"], [b"4"])


def test_an_auto_consumer_of_a_higher_priority_is_overtaken_when_its_socket_is_full(world: World) -> None:
    low, high = consumer(world, ack=ACK_AUTO), consumer(world, ack=ACK_AUTO, priority="1")
    send(world, b"1")
    high.session.set_writable(False)
    send(world, b"2")
    high.session.set_writable(True)
    send(world, b"3")
    assert (high.bodies, low.bodies) == ([b"1", b"3"], [b"2"])


def test_who_is_behind_may_leave(world: World) -> None:
    low, high = consumer(world), consumer(world, priority="1")
    low.lose()
    send(world, b"1")
    world.lose(high)
    queue = world.broker.state.queues["queue://a"]
    assert not queue.ready
    assert not queue.outranked
    assert not queue.ranked


def test_a_lower_priority_gets_what_waits_on_disk(make_world: Callable[..., World]) -> None:
    world = make_world(memory_limit_bytes=16_000)
    for number in range(40):
        send(world, b"%d" % number + bytes(1000))
    assert world.broker.state.queues["queue://a"].backlogs
    high, low = consumer(world, 5, priority="1"), consumer(world)
    while len(high.bodies) + len(low.bodies) < 40:
        before = len(low.bodies)
        acknowledge(low)
        assert len(low.bodies) > before, "stands still"
    assert [int(body.rstrip(b"\0")) for body in high.bodies + low.bodies] == list(range(40))
    assert len(high.bodies) == 5


@pytest.mark.parametrize(
    "options", [{"exclusive": "perhaps"}, {"priority": "128"}, {"priority": "-129"}, {"priority": "high"}]
)
def test_options_that_make_no_sense_are_refused(world: World, options: dict[str, str]) -> None:
    client = consumer(world, **options)
    assert client.codes == ["OPTION_INVALID"]
    world.check_at_rest()
