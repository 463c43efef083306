"""Consumers that ask for each message: they get what they ask for, and nothing unasked."""

from __future__ import annotations

from typing import Any

import pytest

from amq.protocols.commands import Credit
from amq.protocols.stomp.subscribing import ACK_AUTO, ACK_INDIVIDUAL
from tests.broker.world import Client, World


def puller(world: World, queue: str = "a", **options: Any) -> Client:
    return world.consumer(queue, options={"credit": "0"}, id="a", **options)


def ask(client: Client, credit: int = 1) -> str:
    receipt = client.world.next_receipt()
    client.do(Credit("a", credit, receipt))
    return receipt


def until_confirmed(client: Client, receipt: str) -> None:
    for _ in range(100):
        client.world.turn()
        if receipt in client.confirmed:
            return
        client.world.runner.step()
    raise AssertionError("the receipt does not come")


def test_nothing_comes_unasked_and_acknowledging_asks_for_nothing(world: World) -> None:
    client = puller(world)
    world.send(b"1", b"2", b"3")
    assert client.bodies == []
    ask(client)
    world.settle()
    assert client.bodies == [b"1"]
    client.ack(b"1")
    world.settle()
    assert client.bodies == [b"1"]
    ask(client, 5)
    world.settle()
    assert client.bodies == [b"1", b"2", b"3"]
    client.nack(b"2", requeue=True)
    world.settle()
    assert client.bodies == [b"1", b"2", b"3", b"2"], "three of the five are left"
    world.check_at_rest()


def test_what_others_want_does_not_wait_for_it(world: World) -> None:
    client, other = puller(world), world.connect()
    ask(client)
    world.settle()
    other.subscribe(prefetch=10)
    world.send(b"1", b"2", b"3")
    assert (client.bodies, other.bodies) == ([b"1"], [b"2", b"3"])
    world.check_at_rest()


def test_credit_can_be_taken_back(world: World) -> None:
    client = puller(world)
    ask(client)
    world.settle()
    receipt = ask(client, 0)
    world.settle()
    assert receipt in client.confirmed
    world.send(b"1")
    assert client.bodies == []
    world.check_at_rest()


@pytest.mark.parametrize("crash", [True, False])
@pytest.mark.parametrize("selector", ["", "k = 'x'"])
def test_asked_and_taken_back_in_one_breath_a_message_comes_if_there_is_one(
    world: World, crash: bool, selector: str
) -> None:
    """Also one that must be read from the disk first; and its receipt comes behind it."""
    world.send(b"1", b"2", properties={"k": "x"})
    if crash:
        world.crash_and_recover()
    client = puller(world, selector=selector)
    for number, body in enumerate([b"1", b"2"], 1):
        ask(client)
        receipt = ask(client, 0)
        until_confirmed(client, receipt)
        assert len(client.bodies) == number
        assert client.bodies[-1] == body
        client.ack(body)
    ask(client)
    receipt = ask(client, 0)
    world.settle()
    assert receipt in client.confirmed
    assert len(client.bodies) == 2
    world.check_at_rest()


def test_a_withdrawal_that_waits_ends_with_its_subscription(world: World) -> None:
    world.send(b"1")
    world.crash_and_recover()
    client = puller(world)
    ask(client)
    ask(client, 0)
    world.turn()
    world.lose(client)
    assert world.broker.pulling.withdrawn == []
    assert world.stored() == [b"1"]
    world.check_at_rest()


def test_of_a_topic(world: World) -> None:
    client = puller(world, "topic://t")
    world.send(b"1", b"2", queue="topic://t")
    assert client.bodies == []
    ask(client)
    world.settle()
    assert client.bodies == [b"1"]


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"ack": ACK_AUTO}, "NOT_SUPPORTED"),
        ({"browser": True}, "NOT_SUPPORTED"),
        ({"queue": "queue://a.>"}, "NOT_SUPPORTED"),
        ({"options": {"credit": "many"}}, "OPTION_INVALID"),
        ({"options": {"credit": "-1"}}, "OPTION_INVALID"),
    ],
)
def test_where_it_is_not_to_be_had(world: World, fields: dict[str, Any], code: str) -> None:
    fields = {"ack": ACK_INDIVIDUAL, "queue": "queue://a", "options": {"credit": "0"}} | fields
    client = world.consumer(id="s", **fields)
    assert client.codes == [code]


def test_credit_for_who_did_not_begin_with_it(world: World) -> None:
    for subscribe in (True, False):
        client = world.connect()
        if subscribe:
            client.subscribe(prefetch=1)
        ask(client)
        world.settle()
        assert client.codes == ["COMMAND_REFUSED"]
