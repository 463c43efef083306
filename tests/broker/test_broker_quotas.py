"""Quotas: how many queues and subscriptions a user may have, and that nothing is left behind."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from amq.destination import source
from amq.message import Message
from amq.protocols.commands import Send, SendToMany, Subscribe
from tests.broker.world import Client, World


@pytest.fixture
def limited(make_world: Callable[..., World]) -> World:
    return make_world(max_queues_per_user=3, max_subscriptions_per_user=3)


def codes(world: World, client: Client) -> list[str]:
    world.settle()
    return client.codes


def test_a_user_makes_so_many_queues(limited: World) -> None:
    one, two = limited.connect("1", user="alice"), limited.connect("2", user="alice")
    one.send(b"x", "a")
    two.do(Subscribe("s", "queue://b"))
    two.send(b"x", "c")
    one.send(b"x", "a")  # it is there
    one.send(b"x", "topic://t")
    assert codes(limited, one) == codes(limited, two) == []
    one.send(b"x", "d")
    assert codes(limited, one) == ["QUOTA_EXCEEDED"]
    assert "queue://d" not in limited.broker.state.queues
    bob = limited.connect("3", user="bob")
    bob.send(b"x", "d")
    assert codes(limited, bob) == []
    two.send(b"x", "d")  # somebody else has made it
    assert codes(limited, two) == []


def test_a_composite_counts_for_each_of_its_queues(limited: World) -> None:
    client = limited.connect("1", user="alice")
    names = tuple(f"queue://{name}" for name in "abcd")
    client.do(SendToMany(Message(",".join(names), b"x"), names))
    assert codes(limited, client) == ["QUOTA_EXCEEDED"]
    assert not limited.broker.state.queues.keys() & set(names)


def test_queues_that_are_gone_make_room_also_for_the_same_ones_again(limited: World) -> None:
    client = limited.connect("1", user="alice")
    for round_number in range(20):
        name = f"q{round_number % 5}"
        client.send(b"x", name)
        client.subscribe(name, id=f"s{round_number}")
        limited.settle()
        client.ack(b"x")
        client.unsubscribe(f"s{round_number}")
        limited.settle()
        limited.broker.sweep()
        limited.settle()
    assert client.codes == []
    assert limited.broker.quotas._queues["alice"] == len(limited.broker.quotas._makers) <= 3
    for name in ("q0", "q1", "q2"):  # of which it is remembered that the user may send there
        client.send(b"x", name)
    client.send(b"x", "q3")
    assert codes(limited, client) == ["QUOTA_EXCEEDED"]
    assert sum(name.startswith("queue://q") for name in limited.broker.state.queues) == 3


def test_queues_that_a_transaction_would_make_count_until_it_ends(limited: World) -> None:
    client = limited.connect("1", user="alice")
    client.begin("t")
    for name in "abc":
        client.send(b"x", name, transaction="t")
    client.send(b"x", "a", transaction="t")
    other = limited.connect("2", user="alice")
    other.send(b"x", "d")
    assert codes(limited, other) == ["QUOTA_EXCEEDED"]
    client.abort("t")
    again = limited.connect("2", user="alice")
    again.send(b"x", "d")
    assert codes(limited, again) == codes(limited, client) == []
    assert limited.broker.quotas._makers == {"queue://d": "alice"}


def test_a_user_has_so_many_consumers(limited: World) -> None:
    one, two = limited.connect("1", user="alice"), limited.connect("2", user="alice")
    one.do(Subscribe("1", "topic://t"), Subscribe("2", source("topic://>")), Subscribe("3", "topic://u"))
    assert codes(limited, one) == []
    two.do(Subscribe("1", "topic://t"))
    assert codes(limited, two) == ["QUOTA_EXCEEDED"]
    one.unsubscribe("2")
    again = limited.connect("2", user="alice")
    again.do(Subscribe("1", "topic://t"))
    assert codes(limited, again) == []
    assert limited.broker.quotas.consumers == {"alice": 3}
    for client in (one, two, again):
        client.lose()
    limited.settle()
    assert not limited.broker.quotas.consumers


def test_a_user_has_so_many_durable_subscriptions_and_they_end(limited: World) -> None:
    def durable(name: str) -> list[str]:
        client = limited.connect("c", user="alice")
        client.do(Subscribe("1", "topic://t", subscription_name=name, acknowledges=False))
        limited.settle()
        client.lose()
        limited.settle()
        return client.codes

    assert [durable(name) for name in "abca"] == [[]] * 4
    assert durable("d") == ["QUOTA_EXCEEDED"]
    client = limited.connect("c", user="alice")
    client.unsubscribe("", subscription_name="b")
    assert codes(limited, client) == []
    client.lose()
    assert durable("d") == []


def test_without_limits_nothing_is_kept(make_world: Callable[..., World]) -> None:
    world = make_world()
    client = world.connect("1", user="alice")
    for number in range(50):
        client.do(Send(Message(f"queue://q{number}", b"x")), Subscribe(f"s{number}", f"queue://p{number}"))
    assert codes(world, client) == []
    assert not world.broker.quotas._makers
    assert not world.broker.quotas._queues
    assert not world.broker.quotas._durable
