"""Outcome ids and duplicate ids that 0.1 stored without a user: they answer if no other user can have given them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from amq.broker.transactions import readying
from amq.protocols.commands import Finish, Prepare
from tests.broker.world import Client, World

LIBRARY = "0123456789abcdef01234567-17"  # of our client library: nobody else knows its digits
CHOSEN = "order-17"
LOGINS = {"certificate_user": "cn"}
# Config, id, does the old record answer?
CASES = [({}, CHOSEN, True), ({}, LIBRARY, True), (LOGINS, CHOSEN, False), (LOGINS, LIBRARY, True)]
cases = pytest.mark.parametrize(("config", "id", "answers"), CASES)


def old(world: World) -> Client:
    """Gives ids that are stored as 0.1 stored them."""
    return world.connect()


def taken_over(world: World, client_id: str = "") -> Client:
    """A client of the next master."""
    world.settle()
    world.crash_and_recover()
    return world.connect(client_id, user="alice")


@cases
def test_a_message_that_was_stored(
    make_world: Callable[..., World], config: dict[str, str], id: str, answers: bool
) -> None:
    world = make_world(**config)
    old(world).send(b"before", duplicate_id=id)
    client = taken_over(world)
    receipt = client.send(b"again", duplicate_id=id)
    again = client.send(b"and again", duplicate_id=id)
    world.settle()
    assert {receipt, again} <= set(client.confirmed)
    assert world.stored() == ([b"before"] if answers else [b"before", b"again"])
    world.check_at_rest()


@cases
@pytest.mark.parametrize("large", [False, True])
def test_a_message_in_a_transaction(
    make_world: Callable[..., World],
    monkeypatch: pytest.MonkeyPatch,
    config: dict[str, str],
    id: str,
    answers: bool,
    large: bool,
) -> None:
    monkeypatch.setattr(readying, "is_large", lambda _: large)
    world = make_world(**config)
    old(world).send(b"before", duplicate_id=id)
    client = taken_over(world)
    client.begin()
    client.send(b"again", duplicate_id=id, transaction="t")
    client.commit()
    world.settle()
    assert client.codes == (["DUPLICATE_ID"] if answers else [])
    assert world.stored() == ([b"before"] if answers else [b"before", b"again"])


@cases
def test_a_message_that_is_prepared(
    make_world: Callable[..., World], config: dict[str, str], id: str, answers: bool
) -> None:
    world = make_world(**config)
    client = old(world)
    client.begin()
    client.send(b"before", duplicate_id=id, transaction="t")
    client.do(Prepare("t", "xid", receipt="p"))
    client = taken_over(world)
    receipt = client.send(b"again", duplicate_id=id)
    world.settle()
    assert (receipt in client.confirmed) is not answers, "it waits for the end of that transaction"
    client.do(Finish("xid", True, "f"))
    world.settle()
    assert receipt in client.confirmed
    assert len(world.stored()) == (1 if answers else 2)


@cases
def test_a_message_for_a_durable_subscription(
    make_world: Callable[..., World], config: dict[str, str], id: str, answers: bool
) -> None:
    world = make_world(**config)
    world.connect("c").subscribe("topic://news", subscription_name="d")
    old(world).send(b"before", "topic://news", duplicate_id=id)
    client = taken_over(world)
    client.send(b"again", "topic://news", duplicate_id=id)
    world.settle()
    reader = world.consumer("topic://news", subscription_name="d", client_id="c")
    assert reader.bodies == ([b"before"] if answers else [b"before", b"again"])


@cases
def test_a_commit(make_world: Callable[..., World], config: dict[str, str], id: str, answers: bool) -> None:
    world = make_world(**config)
    client = old(world)
    client.begin()
    client.send(b"before", transaction="t")
    client.commit(outcome_id=id)
    client = taken_over(world)
    asked = client.commit("other", id)
    world.settle()
    assert (asked in client.confirmed) is answers
    client = world.connect(user="alice")
    client.begin()
    client.send(b"again", transaction="t")
    client.commit(outcome_id=id)
    world.settle()
    assert client.codes == (["ALREADY_COMMITTED"] if answers else [])
    assert world.stored() == ([b"before"] if answers else [b"before", b"again"])
    world.check_at_rest()


def test_nobody_looks_for_old_ids_where_there_are_none(world: World) -> None:
    client = world.connect(user="alice")
    for number in range(3):
        client.send(b"x", duplicate_id=str(number))
    world.settle()
    assert not world.broker.state.queue("queue://a").may_hold_unowned
