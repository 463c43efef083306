"""Credit with drain: the consumer gets of what is there as much as it asked for, wherever that is; what is left of the
credit is taken back then, and that is the answer. Whether it acknowledges is another question."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from amq.broker.queues import browser, selector_dispatch
from amq.broker.topics import wildcards
from amq.core.destination import Pattern, pattern_words
from amq.core.message import Message
from amq.protocols.commands import Begin, Commit, Credit, Flow, Mode, Outcome, Scope, Send, Subscribe, Unsubscribe
from tests.broker.many import ManyClient
from tests.broker.world import World

ALL = Pattern("queue://", pattern_words("o.*"))
SMALL = {"memory_limit_bytes": 60_000}


def fill(world: World, count: int, to: str = "queue://a", size: int = 0, **properties: str) -> list[bytes]:
    producer = ManyClient(world)
    bodies = [b"%d" % n + bytes(size) for n in range(count)]
    for body in bodies:
        producer.ask(Send(Message(to, body, dict(properties) or None)))
        world.settle()
    return bodies


@pytest.fixture
def client(world: World) -> ManyClient:
    client = ManyClient(world)
    client.open(1)
    return client


def drained(client: ManyClient, id: str, credit: int, session: int = 1) -> list[bytes]:
    """What the consumer gets before it learns that its credit is spent or taken back. Nothing comes after that."""
    before = len(client.bodies_of(id, session))
    receipt = client.grant(id, credit, session=session, drain=True)
    client.world.settle()
    assert receipt in client.events, "it is told"
    late = [each for each in client.events[client.events.index(receipt) :] if getattr(each, "consumer", "") == id]
    assert not late, "what comes, comes before that"
    assert client.session.sessions[session]._subscriptions[id].credit <= 0
    return client.bodies_of(id, session)[before:]


@pytest.mark.parametrize("acknowledges", [True, False])
def test_it_gets_what_is_there_and_the_rest_of_its_credit_is_taken_back(
    world: World, client: ManyClient, acknowledges: bool
) -> None:
    bodies = fill(world, 3)
    client.consume("c", "a", session=1, credit=0, acknowledges=acknowledges)
    assert drained(client, "c", 2) == bodies[:2]
    assert drained(client, "c", 5) == bodies[2:]
    assert drained(client, "c", 5) == []
    late = fill(world, 1)
    assert client.bodies_of("c", 1) == bodies, "no credit is left"
    client.grant("c", 1, session=1)
    world.settle()
    assert client.bodies_of("c", 1) == bodies + late
    assert len(world.stored()) == (4 if acknowledges else 0)
    world.check_at_rest()


def test_drain_alone_takes_back_what_is_left(world: World, client: ManyClient) -> None:
    client.consume("c", "a", session=1, credit=5)
    bodies = fill(world, 2)
    assert drained(client, "c", 0) == []
    fill(world, 1)
    assert client.bodies_of("c", 1) == bodies
    world.check_at_rest()


@pytest.mark.parametrize("acknowledges", [True, False])
def test_what_is_on_the_disk_is_there(tmp_path: Path, acknowledges: bool) -> None:
    world = World(tmp_path, **SMALL)
    bodies = fill(world, 200, size=500)
    assert world.broker.state.queues["queue://a"].backlogs
    client = ManyClient(world)
    client.open(1)
    client.consume("c", "a", session=1, credit=0, acknowledges=acknowledges)
    found: list[bytes] = []
    credit = 20 if acknowledges else 120  # more than the memory takes, where nothing is held
    while found != bodies:
        some = drained(client, "c", credit)
        assert some == bodies[len(found) : len(found) + credit]
        if acknowledges:
            client.settle(*some, session=1, consumer="c")
        found += some
    assert drained(client, "c", credit) == []
    world.check_at_rest()
    world.close()


@pytest.mark.parametrize("source", ["o.a", ALL])
@pytest.mark.parametrize("holder", ["consumer", "transaction", "transaction of one that went"])
def test_memory_that_others_hold_is_not_waited_for(tmp_path: Path, source: str | Pattern, holder: str) -> None:
    """A client may read the answer before it acknowledges what fills the memory. What leaves makes room: that is waited
    for."""
    world = World(tmp_path, **SMALL)
    bodies = fill(world, 100, "queue://o.a", size=500)
    client = ManyClient(world)
    client.open(1)
    client.consume("holder", "o.a", session=1, credit=100)
    world.settle()
    held = client.bodies_of("holder", 1)
    assert held == bodies[: len(held)] != bodies, "the memory is full"
    if holder != "consumer":
        client.ask(Begin("t"), session=1)
        client.settle(*held, session=1, consumer="holder", transaction="t")
    client.ask(Unsubscribe("holder") if holder.endswith("went") else Credit("holder", 0), session=1)
    client.consume("c", source, session=1, credit=4)
    world.settle()
    assert drained(client, "c", 0) == []
    assert drained(client, "c", 3) == []
    if holder == "consumer":
        client.settle(*held, session=1, consumer="holder")
    else:
        client.ask(Commit("t"), session=1)
    assert drained(client, "c", 3) == bodies[len(held) :][:3]
    world.check_at_rest()
    world.close()


@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize("acknowledges", [True, False])
def test_with_a_selector_what_it_selects_is_there(
    tmp_path: Path, on_disk: bool, acknowledges: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many turns it takes to look at what is not for it."""
    monkeypatch.setattr(selector_dispatch, "STEPS_MAX", 20)
    world = World(tmp_path, **(SMALL if on_disk else {}))
    fill(world, 150, size=500, color="red")
    bodies = fill(world, 3, size=9, color="green")
    client = ManyClient(world)
    client.open(1)
    green = {"selector": "color = 'green'", "acknowledges": acknowledges}
    client.consume("c", "a", session=1, credit=0, **green)
    assert drained(client, "c", 2) == bodies[:2]
    assert drained(client, "c", 2) == bodies[2:]
    assert drained(client, "c", 2) == []
    world.check_at_rest()
    world.close()


@pytest.mark.parametrize("on_disk", [False, True])
@pytest.mark.parametrize("acknowledges", [True, False])
def test_a_browser_sees_on_as_far_as_it_asked(
    tmp_path: Path, on_disk: bool, acknowledges: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(browser, "STEP_MESSAGES", 10)
    world = World(tmp_path, **(SMALL if on_disk else {}))
    bodies = fill(world, 150, size=500)
    client = ManyClient(world)
    client.open(1)
    client.consume("c", "a", session=1, credit=0, browser=True, acknowledges=acknowledges)
    assert drained(client, "c", 45) == bodies[:45]
    assert "c" not in client.browsed_ids
    assert drained(client, "c", 500) == bodies[45:]
    assert "c" in client.browsed_ids
    assert len(world.stored()) == 150
    world.check_at_rest()
    world.close()


@pytest.mark.parametrize("acknowledges", [True, False])
def test_a_wildcard_gets_of_all_its_queues(
    world: World, client: ManyClient, acknowledges: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of those that it does not consume yet, as there are very many."""
    monkeypatch.setattr(wildcards, "SLICE_QUEUES", 3)
    names = [f"queue://o.{n}" for n in range(20)]
    for name in names:
        fill(world, 1, name)
    receipts = [
        client.ask(Subscribe("c", ALL, Mode(acknowledges), Flow(credit=0)), session=1),
        client.ask(Credit("c", 50, drain=True), session=1),
    ]
    world.settle()
    assert receipts == [each for each in client.events if each in receipts]
    assert client.events[-1] == receipts[-1]
    assert len(client.bodies_of("c", 1)) == 20
    assert drained(client, "c", 3) == []
    fill(world, 2, names[4])
    fill(world, 2, names[9])
    assert len(client.bodies_of("c", 1)) == 20, "its credit was taken back"
    assert len(drained(client, "c", 3)) == 3
    assert len(drained(client, "c", 3)) == 1
    world.check_at_rest()


@pytest.mark.parametrize("credit", [0, 2])
def test_a_wildcard_with_credit_stands_where_it_should(world: World, client: ManyClient, credit: int) -> None:
    """Members that have no room are parked, or in line, and not both."""
    fill(world, 1, "queue://o.1")
    client.consume("c", ALL, "topic://t", session=1, credit=credit)
    world.check()
    world.settle()
    fill(world, 1, "queue://o.2")
    fill(world, 2, "topic://t")
    assert len(client.bodies_of("c", 1)) == credit
    world.check_at_rest()
    client.grant("c", 9, session=1)
    world.settle()
    assert len(client.bodies_of("c", 1)) == 4
    world.check_at_rest()


def test_a_queue_that_comes_takes_no_credit_of_a_wildcard(world: World, client: ManyClient) -> None:
    client.consume("c", ALL, session=1, credit=0)
    client.grant("c", 2, session=1)
    world.settle()
    bodies = fill(world, 1, "queue://o.new")
    assert client.bodies_of("c", 1) == bodies
    world.check_at_rest()


@pytest.mark.parametrize("acknowledges", [True, False])
def test_a_topic_gives_what_waits(world: World, client: ManyClient, acknowledges: bool) -> None:
    client.consume("c", "topic://t", session=1, credit=1, acknowledges=acknowledges)
    bodies = fill(world, 4, "topic://t")
    assert client.bodies_of("c", 1) == bodies[:1]
    assert drained(client, "c", 2) == bodies[1:3]
    assert drained(client, "c", 2) == bodies[3:]
    assert drained(client, "c", 2) == []
    more = fill(world, 1, "topic://t")
    assert drained(client, "c", 2) == more
    world.check_at_rest()


def test_a_durable_subscription_does(world: World) -> None:
    client = ManyClient(world, client_id="me")
    client.open(1)
    client.consume("c", "topic://t", session=1, subscription_name="s", credit=0)
    bodies = fill(world, 3, "topic://t")
    assert drained(client, "c", 2) == bodies[:2]
    assert drained(client, "c", 2) == bodies[2:]
    world.check_at_rest()


def test_an_acknowledgement_gives_no_credit_back(world: World, client: ManyClient) -> None:
    bodies = fill(world, 5)
    client.consume("c", "a", session=1, credit=2)
    world.settle()
    for outcome in Outcome:
        assert client.bodies_of("c", 1)[-2:] == bodies[:2] or outcome is not Outcome.ACCEPTED
        held = client.bodies_of("c", 1)[-2:]
        client.settle(*held, session=1, outcome=outcome)
        seen = len(client.given)
        world.settle()
        assert len(client.given) == seen, "nobody asked for more"
        client.grant("c", 2, session=1)
        world.settle()
    world.check_at_rest()


def test_a_slow_client_gets_what_is_there_before_it_is_told(world: World, client: ManyClient) -> None:
    """Its socket is full for a while: that does not mean that nothing is there."""
    bodies = fill(world, 5)
    client.consume("c", "a", session=1, credit=0)
    client.session.set_writable(False)
    receipt = client.grant("c", 9, session=1, drain=True)
    world.settle()
    assert receipt not in client.confirmed
    client.session.set_writable(True)
    world.settle()
    assert client.bodies_of("c", 1) == bodies
    assert client.events[-1] == receipt
    assert drained(client, "c", 9) == []


@pytest.mark.parametrize("browses", [False, True])
@pytest.mark.parametrize("ends", ["consumer", "session", "connection"])
def test_a_drain_of_a_consumer_that_ends_waits_for_nothing(
    world: World, client: ManyClient, browses: bool, ends: str
) -> None:
    fill(world, 5)
    client.consume("c", "a", session=1, credit=0, browser=browses)
    client.session.set_writable(False)
    client.grant("c", 9, session=1, drain=True)
    world.settle()
    end: dict[str, Callable[[], object]] = {
        "consumer": lambda: client.ask(Unsubscribe("c"), session=1),
        "session": lambda: client.end(1),
        "connection": client.lose,
    }
    end[ends]()
    world.settle()
    assert world.broker.pulling.withdrawn == []
    world.check_at_rest()


def test_credit_is_of_consumers_that_began_with_it(world: World, client: ManyClient) -> None:
    client.consume("prefetch", "a", session=1)
    client.consume("auto", "a", session=1, acknowledges=False)
    for id in ("prefetch", "auto", "nobody"):
        receipt = client.grant(id, 1, session=1)
        world.settle()
        told = client.failures.pop()
        assert (told.scope, told.session, told.receipt) == (Scope.COMMAND, 1, receipt)
    assert [each.id for each in client.session.sessions[1].consumers()] == ["prefetch", "auto"]


def test_a_pre_settled_consumer_gets_so_many_and_they_are_gone(world: World, client: ManyClient) -> None:
    bodies = fill(world, 5)
    client.consume("c", "a", session=1, credit=3, acknowledges=False)
    world.settle()
    assert client.bodies_of("c", 1) == bodies[:3]
    assert world.stored() == bodies[3:]
    world.crash_and_recover()
    assert world.stored() == bodies[3:]
