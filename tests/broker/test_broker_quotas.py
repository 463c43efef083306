"""Quotas: how many queues and subscriptions a user may have, and that nothing is left behind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from amq.core.destination import source
from amq.core.message import Message
from amq.protocols.commands import Browse, Filter, Send, SendToMany, Subscribe, Unsubscribe
from amq.selectors import selector as selector_module
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
    assert limited.broker.quotas.queues["alice"] == len(limited.broker.quotas.makers) <= 3
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
    assert limited.broker.quotas.makers == {"queue://d": "alice"}


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
        client.do(Subscribe("1", "topic://t", subscription_name=name))
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
    assert not world.broker.quotas.makers
    assert not world.broker.quotas.queues
    assert not world.broker.quotas.durable


# -- selectors ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def selective(make_world: Callable[..., World]) -> World:
    return make_world(max_selector_terms=3, max_selector_terms_per_user=6)


def three(number: int) -> str:
    return f"a = {number} OR b = {number} OR c = {number}"


@pytest.mark.parametrize("destination", ["queue://q", "topic://t"])
def test_the_terms_of_the_selectors_of_a_user_are_counted(selective: World, destination: str) -> None:
    one, two, long, late = [selective.connect(number, user="alice") for number in "1234"]
    long.do(Subscribe("long", destination, filter=Filter(three(1) + " OR d = 1")))
    assert codes(selective, long) == ["SELECTOR_TOO_LARGE"]
    one.do(Subscribe("1", destination, filter=Filter(three(1))))
    two.do(Subscribe("2", destination, filter=Filter(three(2))))
    two.do(Subscribe("4", destination))
    late.do(Subscribe("3", destination, filter=Filter("a IS NULL")))
    assert codes(selective, late) == ["QUOTA_EXCEEDED"]
    one.unsubscribe("1")
    two.do(Subscribe("3", destination, filter=Filter("a IS NULL")))
    bob = selective.connect("5", user="bob")
    bob.do(Subscribe("1", destination, filter=Filter(three(3))))
    assert codes(selective, one) == codes(selective, two) == codes(selective, bob) == []
    assert selective.broker.quotas.terms == {"alice": 4, "bob": 3}
    for client in (one, two, bob):
        client.lose()
    selective.settle()
    assert not selective.broker.quotas.terms


def test_browses_and_wildcards_count_too(selective: World) -> None:
    client = selective.connect("1", user="alice")
    client.do(Subscribe("1", "queue://q", filter=Filter(three(1)), browse=Browse()))
    client.do(Subscribe("2", source("queue://a.>"), filter=Filter(three(2))))
    client.do(Subscribe("3", "queue://q", filter=Filter("a = 1"), browse=Browse()))
    assert codes(selective, client) == ["QUOTA_EXCEEDED"]
    client.lose()
    selective.settle()
    assert not selective.broker.quotas.terms


def test_a_durable_subscription_goes_on_with_a_selector_that_was_stored_before_there_was_a_limit(
    make_world: Callable[..., World],
) -> None:
    world = make_world(max_selector_terms=0)
    client = world.connect("1", user="alice")
    client.do(Subscribe("s", "topic://t", filter=Filter(three(1) + " OR d = 1"), subscription_name="news"))
    assert codes(world, client) == []
    world.lose(client)
    world.broker.reconfigure(replace(world.broker.config, max_selector_terms=3))
    client = world.connect("1", user="alice")
    client.do(Subscribe("s", "topic://t", filter=Filter(three(1) + " OR d = 1"), subscription_name="news"))
    assert codes(world, client) == []
    client = world.connect("2", user="alice")
    client.do(Subscribe("o", "topic://t", filter=Filter(three(1) + " OR d = 2"), subscription_name="other"))
    assert codes(world, client) == ["SELECTOR_TOO_LARGE"]


def test_the_names_of_durable_subscriptions_that_have_ended_are_forgotten(make_world: Callable[..., World]) -> None:
    world = make_world(max_subscriptions_per_user=10_000)
    client = world.connect("1", user="alice")
    for number in range(200):
        client.do(Subscribe("s", "topic://t", filter=Filter("a = 1"), subscription_name=f"n{number}"))
        client.do(Unsubscribe("s", subscription_name=f"n{number}"))
        world.settle()
    assert client.codes == []
    assert len(world.broker.quotas.durable["alice"]) <= 33


# -- rights come before work -------------------------------------------------------------------------------------------


def test_a_selector_is_read_only_when_its_user_may_subscribe(
    make_world: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make_world()
    world.broker.access.use(lambda user, action, name: user.name == "alice")  # noqa: ARG005
    read: list[str] = []
    real = selector_module.parse

    def counting(text: str, *rest: Any) -> Any:
        read.append(text)
        return real(text, *rest)

    monkeypatch.setattr(selector_module, "parse", counting)
    asked = [
        Subscribe("1", "queue://q", filter=Filter("a = 101")),
        Subscribe("2", "topic://t", filter=Filter("a = 102")),
        Subscribe("3", "queue://q", filter=Filter("a = 103"), browse=Browse()),
        Subscribe("4", "topic://t", filter=Filter("a = 104"), subscription_name="news"),
        Subscribe("5", source("queue://a.>"), filter=Filter("a = 105")),
        Subscribe("6", (source("topic://a.>"), "queue://b"), filter=Filter("a = 106")),
    ]
    for command in asked:
        eve = world.connect(command.id, user="eve")
        eve.do(command)
        assert codes(world, eve) == ["NOT_PERMITTED"]
    assert read == []
    alice = world.connect("a", user="alice")
    for command in asked:
        alice.do(command)
        world.settle()
    assert alice.codes == []
    assert read == [f"a = {number}" for number in range(101, 107)]  # each text once
