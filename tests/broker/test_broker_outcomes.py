"""Four outcomes of a delivery: accepted, released, failed, rejected; alone, in ranges and sets, in transactions."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from amq.core.destination import Pattern, pattern_words
from amq.core.message import Message
from amq.protocols.commands import (
    OLDEST,
    Abort,
    Begin,
    Commit,
    Outcome,
    Prepare,
    Scope,
    Send,
    Settle,
    SettleSet,
    Unsubscribe,
)
from tests.broker.many import ManyClient
from tests.broker.world import World
from tests.large import large_from

BODIES = [b"0", b"1", b"2", b"3"]
DLQ = "DLQ.a"
# Those that may be a part of a transaction.
OUTCOMES = (Outcome.ACCEPTED, Outcome.RELEASED, Outcome.FAILED, Outcome.REJECTED)
BACK = (Outcome.RELEASED, Outcome.FAILED)


@pytest.fixture
def world(make_world: Callable[..., World]) -> World:
    return make_world(maximum_redeliveries=1)


@pytest.fixture
def client(world: World) -> ManyClient:
    """Holds four messages in session 1."""
    client = ManyClient(world)
    client.open(1)
    for body in BODIES:
        client.ask(Send(Message("queue://a", body)))
    client.consume("c", "a", session=1, credit=4)
    world.settle()
    return client


def counts(client: ManyClient) -> dict[bytes, int]:
    """Redeliveries, as another consumer sees them that looks on."""
    client.consume("look", "a", browser=True)
    client.world.settle()
    client.ask(Unsubscribe("look"))
    found = {each.body: each.redelivered for each in client.given if each.consumer == "look"}
    client.given = [each for each in client.given if each.consumer != "look"]
    return found


@pytest.mark.parametrize("outcome", [each for each in OUTCOMES if each is not Outcome.ACCEPTED])
def test_only_what_is_accepted_can_be_prepared(world: World, client: ManyClient, outcome: Outcome) -> None:
    """All else would happen before the word of the transaction's end."""
    client.ask(Begin("t"), session=1)
    client.settle(b"0", outcome=outcome, session=1, transaction="t")
    asked = client.ask(Prepare("t", "xid"), session=1)
    world.settle()
    (failure,) = client.failures
    assert (failure.receipt, failure.code) == (asked, "NOT_SUPPORTED")
    assert not world.broker.state.prepared
    client.grant("c", 1, session=1)
    world.settle()
    assert client.given[-1].body == b"0", "the transaction was rolled back"
    world.check_at_rest()


@pytest.mark.parametrize("transaction", ["", "t"])
@pytest.mark.parametrize("persistent", [True, False])
def test_released_counts_nothing_failed_counts_rejected_is_a_dead_letter(
    world: World, transaction: str, persistent: bool
) -> None:
    client = ManyClient(world)
    client.open(1)
    for body in BODIES:
        client.ask(Send(Message("queue://a", body, persistent=persistent)))
    client.consume("c", "a", session=1, credit=4)
    world.settle()
    if transaction:
        client.ask(Begin("t"), session=1)
    for body, outcome in zip(BODIES, OUTCOMES, strict=True):
        client.settle(body, outcome=outcome, session=1, transaction=transaction)
    if transaction:
        world.settle()
        assert world.stored() == BODIES
        client.ask(Commit("t"), session=1)
    world.settle()
    assert counts(client) == {b"1": 0, b"2": 1}
    assert world.stored(DLQ) == [b"3"]
    client.grant("c", 2, session=1)
    world.settle()
    assert [each[3:] for each in client.given[-2:]] == [(b"1", 0), (b"2", 1)]
    if persistent:
        world.check_at_rest()
        world.crash_and_recover()
        assert world.stored() == [b"1", b"2"]
        assert world.stored(DLQ) == [b"3"]
        assert {count[0] for count in world.broker.state.queues["queue://a"].redelivered.values()} <= {1, 2}
    world.check_at_rest()


def test_a_message_is_released_again_and_again(world: World, client: ManyClient) -> None:
    """`maximumRedeliveries` counts failures."""
    for _ in range(10):
        client.settle(b"0", session=1, outcome=Outcome.RELEASED)
        client.grant("c", 1, session=1)
        world.settle()
        assert client.given[-1][3:] == (b"0", 0)
    for deliveries in (1, 2):
        client.settle(b"0", session=1, outcome=Outcome.FAILED)
        client.grant("c", 1, session=1, drain=True)
        world.settle()
        assert (client.given[-1][3:] == (b"0", deliveries)) is (deliveries == 1)
        client.settle(b"1", session=1, outcome=Outcome.RELEASED)
        client.grant("c", 1, session=1)
        world.settle()
    assert world.stored(DLQ) == [b"0"]
    world.check_at_rest()


@pytest.mark.parametrize("outcome", OUTCOMES)
@pytest.mark.parametrize("transaction", ["", "t"])
@pytest.mark.parametrize("way", ["range", "from the oldest", "set"])
def test_several_at_once(world: World, client: ManyClient, outcome: Outcome, transaction: str, way: str) -> None:
    seqs = [client.seq(body, 1) for body in BODIES]
    if transaction:
        client.ask(Begin("t"), session=1)
    first = seqs[1] if way == "range" else OLDEST
    chosen = [b"3", b"1"] if way == "set" else [b"1", b"2"] if way == "range" else [b"0", b"1", b"2"]
    command = Settle(seqs[2], "c", None, transaction, outcome, first)
    if way == "set":
        command = SettleSet([seqs[3], seqs[1]], "c", None, transaction, outcome)
    receipt = client.ask(command, session=1)
    world.settle()
    held = [body for body in BODIES if body not in chosen]
    assert [each.body for each in client.consumers["c"].unacked.values()] == held
    if transaction:
        assert world.stored() == BODIES
        client.ask(Commit("t"), session=1)
    world.settle()
    assert receipt in client.confirmed
    remain = BODIES if outcome in BACK else held
    assert world.stored() == remain
    assert world.stored(DLQ) == (chosen if outcome is Outcome.REJECTED else [])
    expected = {body: int(outcome is Outcome.FAILED and body in chosen) for body in remain}
    assert counts(client) == expected
    world.check_at_rest()
    client.grant("c", 9, session=1)
    world.settle()
    assert [each.body for each in client.given[4:]] == (sorted(chosen) if outcome in BACK else []), "in the old order"
    world.check_at_rest()


@pytest.mark.parametrize("outcome", OUTCOMES)
@pytest.mark.parametrize("ends", ["abort", "session", "connection"])
def test_a_transaction_that_is_rolled_back_gives_all_of_it_back(
    world: World, client: ManyClient, outcome: Outcome, ends: str
) -> None:
    client.ask(Begin("t"), session=1)
    client.settle(b"1", b"2", session=1, outcome=outcome, transaction="t")
    world.settle()
    end: dict[str, Callable[[], object]] = {
        "abort": lambda: client.ask(Abort("t"), session=1),
        "session": lambda: client.end(1),
        "connection": client.lose,
    }
    end[ends]()
    world.settle()
    assert world.stored() == BODIES
    assert world.stored(DLQ) == []
    other = ManyClient(world)
    other.consume("c", "a", credit=9)
    world.settle()
    assert sorted(other.bodies) == ([b"1", b"2"] if ends == "abort" else BODIES)
    world.check_at_rest()


@pytest.mark.parametrize("outcome", OUTCOMES)
@pytest.mark.parametrize("destination", ["queue://a", "topic://a", "pattern"])
@pytest.mark.parametrize("commits", [True, False])
def test_a_consumer_may_end_before_the_transaction_that_settles_for_it(
    world: World, outcome: Outcome, destination: str, commits: bool
) -> None:
    """What a topic's consumer held goes with it, whatever the outcome; what is of a queue stays."""
    client = ManyClient(world)
    client.open(1)
    source = Pattern("queue://", pattern_words("a.*")) if destination == "pattern" else destination
    name = "queue://a.x" if destination == "pattern" else destination
    client.consume("c", source, session=1, credit=9)
    world.settle()
    for body in BODIES[:2]:
        client.ask(Send(Message(name, body)))
    world.settle()
    client.ask(Begin("t"), session=1)
    client.settle(b"0", session=1, outcome=outcome, transaction="t")
    client.ask(Unsubscribe("c"), session=1)
    world.settle()
    client.ask(Commit("t") if commits else Abort("t"), session=1)
    world.settle_and_check()
    assert client.failures == []
    if name.startswith("queue://"):
        gone = commits and outcome in (Outcome.ACCEPTED, Outcome.REJECTED)
        assert world.stored(name.removeprefix("queue://")) == BODIES[gone:2]
    else:
        assert world.broker.memory.taken_bytes == 0


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_of_a_topic(world: World, outcome: Outcome) -> None:
    client = ManyClient(world)
    client.open(1)
    client.consume("c", "topic://t", session=1, credit=2)
    for body in BODIES:
        client.ask(Send(Message("topic://t", body)))
    world.settle()
    client.settle(b"0", session=1, outcome=outcome)
    client.grant("c", 1, session=1)
    world.settle()
    back = outcome in BACK
    assert client.given[-1][3:] == (b"0", int(outcome is Outcome.FAILED)) if back else (b"2", 0)
    world.check_at_rest()
    world.lose(client)
    world.check_at_rest()


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_of_a_wildcard_across_its_queues(world: World, outcome: Outcome) -> None:
    client = ManyClient(world)
    client.open(1)
    client.consume("c", Pattern("queue://", pattern_words("o.*")), "topic://t", session=1, credit=9)
    names = ["queue://o.1", "queue://o.2", "topic://t", "queue://o.1"]
    for name, body in zip(names, BODIES, strict=True):
        client.ask(Send(Message(name, body)))
        world.settle()
    assert client.bodies_of("c", 1) == BODIES
    client.ask(Settle(client.seq(b"2", 1), "c", None, "", outcome, client.seq(b"1", 1)), session=1)
    world.settle()
    assert len(client.given) == (6 if outcome in BACK else 4), "what comes again finds the credit that is left"
    assert {each.redelivered for each in client.given[4:]} <= {int(outcome is Outcome.FAILED)}
    assert (world.stored("o.2") == []) is (outcome not in BACK)
    assert sorted(each.body for each in client.consumers["c"].unacked.values()) == (
        BODIES if outcome in BACK else [b"0", b"3"]
    )
    world.check_at_rest()


def test_a_failed_settlement_spoils_its_transaction_and_no_other(world: World, client: ManyClient) -> None:
    client.ask(Begin("t"), session=1)
    client.ask(Begin("u"), session=1)
    client.settle(b"0", session=1, transaction="t")
    client.settle(b"1", session=1, transaction="u")
    client.ask(SettleSet([client.seq(b"2", 1), 5], "c", None, "t"), session=1)
    client.ask(Commit("t"), session=1)
    client.ask(Commit("u"), session=1)
    world.settle()
    assert [told[:2] for told in client.failures] == [
        ("UNKNOWN_DELIVERY", Scope.COMMAND),
        ("UNKNOWN_TRANSACTION", Scope.COMMAND),
    ]
    assert world.stored() == [b"0", b"2", b"3"]
    assert [each.body for each in client.consumers["c"].unacked.values()] == [b"2", b"3"]
    world.check_at_rest()


def test_a_browsed_message_is_accepted_or_released_which_makes_room(world: World, client: ManyClient) -> None:
    client.consume("look", "a", browser=True, prefetch=1)
    world.settle()
    for n, outcome in enumerate((Outcome.ACCEPTED, Outcome.RELEASED, Outcome.REJECTED, Outcome.FAILED)):
        seq = client.seq(BODIES[min(n, 2)])
        client.ask(Settle(seq, "look", None, "", outcome))
        world.settle()
        assert len(client.bodies_of("look")) == min(n + 2, 3)
    assert [told[:2] for told in client.failures] == [("NOT_SUPPORTED", Scope.COMMAND)] * 2
    assert world.stored() == BODIES
    world.check_at_rest()


@pytest.mark.parametrize("outcome", OUTCOMES)
@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("large", [True, False])
def test_a_durable_subscription_may_end_before_the_transaction(
    world: World, outcome: Outcome, commits: bool, large: bool
) -> None:
    with large_from(0 if large else 1 << 20):
        client = ManyClient(world, client_id="me")
        client.open(1)
        client.consume("c", "topic://t", session=1, subscription_name="s", credit=9)
        world.settle()
        for body in BODIES[:3]:
            client.ask(Send(Message("topic://t", body)))
            world.settle()
        client.ask(Begin("t"), session=1)
        client.settle(b"0", b"1", session=1, outcome=outcome, transaction="t")
        client.ask(Unsubscribe("c", None, "s"), session=1)
        world.settle()
        client.ask(Commit("t") if commits else Abort("t"), session=1)
        world.settle()
        world.sweep()
        assert client.failures == []
        world.check_at_rest()
        assert world.broker.memory.taken_bytes == 0
        assert world.stored(DLQ) == []
        world.crash_and_recover()
        world.check_at_rest()
