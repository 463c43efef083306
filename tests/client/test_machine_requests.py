"""What becomes of sends, deliveries and transactions when brokers refuse, fall silent, or go."""

from __future__ import annotations

import pytest
from fake_broker import CARRY_OUT_AND_CUT, CUT, IGNORE, Conversation
from world import World

from amq.client.core import ProducerCore
from amq.client.errors import (
    BrokerError,
    CallTimeoutError,
    CommitOutcomeUnknownError,
    ConnectionClosedError,
    ConnectionLostError,
    DeliveryLostError,
)
from amq.client.requests import EventKind
from amq.core.errors import AccessError, CommandError, ProtocolError, TransactionRolledBackError
from amq.protocols.stomp.frame import Frame, encode

TWO = "failover:(stomp://a:1,stomp://b:2)?randomize=false"
Q = "/queue/q"


def once(command: str, verdict: str | bytes):  # type: ignore[no-untyped-def]
    """A script that gives `verdict` on the first frame `command`."""
    left = [verdict]

    def script(_: Conversation, frame: Frame) -> str | bytes | None:
        return left.pop() if frame.command == command and left else None

    return script


# ---- sends


def test_unconfirmed_sends_are_replayed_in_order_with_their_ids() -> None:
    for delivered in range(0, 1200, 37):  # this many bytes of 10 sends reach the first broker
        world = World(TWO, alive="a").connect()
        producer = ProducerCore(world.session(), Q)
        requests = [world.send(producer, str(number)) for number in range(10)]
        link = world.machine.link
        assert link is not None
        world.to_broker(link, delivered)
        world.alive = {"b"}
        world.kill("a")
        requests += [world.send(producer, str(number)) for number in range(10, 15)]  # while there is no broker
        world.advance(1)
        assert [request.error for request in requests if request and request.done] == [None] * 15
        assert world.store.bodies(Q) == [str(number).encode() for number in range(15)]
        sent = [frame.headers["_AMQ_DUPL_ID"] for frame in world.store.frames if frame.command == "SEND"]
        assert len(set(sent)) == 15
        assert world.machine.unconfirmed == 0
        assert producer.owner.failures == []
        assert world.kinds() == [EventKind.INTERRUPTED, EventKind.FAILOVER]
        assert str(world.events[1].new_uri) == "stomp://b:2"
        assert world.events[1].duration_s > 0


def test_a_given_duplicate_id_is_kept() -> None:
    world = World(TWO).connect()
    producer = ProducerCore(world.session(), Q)
    world.send(producer, "x", "mine")
    world.send(producer, "x", "mine")
    world.settle()
    assert world.store.bodies(Q) == [b"x"]


def test_the_window_bounds_messages_and_bytes() -> None:
    world = World(TWO, send_window_messages=3).connect()
    session = world.session()
    producer = ProducerCore(session, Q)
    for number in range(3):
        world.send(producer, str(number))
    assert not session.may_send()
    woken: list[int] = []
    world.machine.room_gate.append(lambda: woken.append(world.machine.unconfirmed))
    world.settle()
    assert session.may_send()
    assert woken == [1], "woken once, when half of the window is free"
    world = World(TWO, send_window_bytes=100).connect()
    session = world.session()
    world.send(ProducerCore(session, Q), "y" * 100)
    assert not session.may_send()
    world.machine.link.congested = True  # type: ignore[union-attr]
    world.settle()
    assert not session.may_send()


def test_a_refused_send_fails_and_the_others_are_stored() -> None:
    def script(_: Conversation, frame: Frame) -> bytes | None:
        if frame.body == b"2":
            headers = [("message", "too big"), ("code", "BODY_TOO_BIG"), ("receipt-id", frame.headers["receipt"])]
            return encode("ERROR", headers)
        return None

    world = World(TWO, script=script).connect()
    producer = ProducerCore(world.session(), Q)
    requests = [world.send(producer, str(number)) for number in range(5)]
    world.settle()
    assert world.store.bodies(Q) == [b"0", b"1", b"3", b"4"]
    errors = [request.error for request in requests if request]
    assert isinstance(errors.pop(2), ProtocolError)
    assert errors == [None] * 4
    assert [error.code for _, error in producer.owner.failures] == ["BODY_TOO_BIG"]
    assert world.tried == ["a", "a"], "the broker is well: it is tried first, at once"


def test_the_culprit_is_found_where_the_error_names_none() -> None:
    def script(_: Conversation, frame: Frame) -> bytes | None:
        return encode("ERROR", [("message", "cannot read that")]) if frame.body == b"2" else None

    world = World(TWO, script=script).connect()
    producer = ProducerCore(world.session(), Q)
    requests = [world.send(producer, str(number)) for number in range(5)]
    world.advance(5)
    assert world.store.bodies(Q) == [b"0", b"1", b"3", b"4"]
    assert [request.error is None for request in requests if request] == [True, True, False, True, True]
    assert isinstance(requests[2] and requests[2].error, BrokerError)
    assert world.machine.is_flowing()


@pytest.mark.parametrize("code", ["OWNERSHIP_LOST", "STORE_LOST", "HOME_UNAVAILABLE"])
def test_a_broker_in_trouble_is_no_refusal(code: str) -> None:
    error = encode("ERROR", [("message", "fenced"), ("code", code), ("receipt-id", "2")])
    world = World(TWO, alive="ab", script=once("SEND", error)).connect()
    request = world.send(ProducerCore(world.session(), Q), "x")
    world.advance(1)
    assert request is not None
    assert request.done
    assert request.error is None
    assert world.tried == ["a", "b"]


@pytest.mark.parametrize("falls_back", [True, False])
def test_a_destination_that_has_moved_is_sent_to_by_the_gateway(falls_back: bool) -> None:
    error = encode("ERROR", [("message", "it lives in store s2"), ("code", "MOVED"), ("receipt-id", "2")])
    world = World(f"{TWO}&priorityBackup=true", alive="ab", script=once("SEND", error)).connect()
    world.machine.falls_back = falls_back
    request = world.send(ProducerCore(world.session(), Q), "x")
    world.advance(10)
    assert request is not None
    assert request.done
    assert (request.error is None) == falls_back
    assert world.tried == (["a", "b"] if falls_back else ["a", "a"]), "and does not come back"


def test_a_withdrawn_send_is_not_replayed_and_its_late_receipt_ignored() -> None:
    world = World(TWO).connect()
    producer = ProducerCore(world.session(), Q)
    first, second = world.send(producer, "1"), world.send(producer, "2")
    assert first is not None
    assert second is not None
    world.machine.withdraw(first, CallTimeoutError("late"), world.now)
    world.machine.withdraw(first, CallTimeoutError("again"), world.now)
    world.settle()
    assert isinstance(first.error, CallTimeoutError)
    assert second.error is None
    assert second.done
    world.kill("a")
    third = world.send(producer, "3")
    assert third is not None
    world.machine.withdraw(third, CallTimeoutError("late"), world.now)
    world.alive.add("a")
    world.advance(1)
    assert world.store.bodies(Q) == [b"1", b"2"]


def test_a_sender_in_a_doomed_transaction_is_woken_at_once() -> None:
    world = World(TWO).connect()
    session = world.session(transacted=True)
    world.send(ProducerCore(session, Q), "1")
    assert world.machine.link is not None
    world.machine.link.congested = True
    assert not session.may_send()
    woken: list[bool] = []
    world.machine.room_gate.append(lambda: woken.append(True))
    world.kill("a")
    assert woken
    with pytest.raises(TransactionRolledBackError):
        session.may_send()


# ---- consuming


def test_subscriptions_are_restored_and_old_deliveries_are_lost() -> None:
    world = World(TWO).connect()
    producer = ProducerCore(world.session(), Q)
    session = world.session()
    subscription, request = session.subscribe(Q, 2, "", {})
    for number in range(4):
        world.send(producer, str(number))
    world.settle()
    assert request.done
    assert len(subscription.buffer) == 2
    old = session.take(subscription)
    world.alive = {"b"}
    world.kill("a")
    assert not subscription.ready(), "what was prefetched is not valid any more"
    with pytest.raises(DeliveryLostError):
        session.settle(old, "ACK", False)
    world.advance(1)
    assert world.receive(subscription) == "0"
    delivery = session.take(subscription)
    assert delivery.frame.headers["redelivered"] == "true"
    assert session.settle(delivery, "ACK", False) is None
    assert session.settle(delivery, "ACK", False) is None, "a second time does nothing"
    world.settle()
    assert world.store.acknowledged == [b"1"]
    with pytest.raises(DeliveryLostError):
        session.settle(old, "ACK", False)


def test_an_acknowledgement_that_waits_is_confirmed_or_lost() -> None:
    world = World(TWO, alive="ab").connect()
    producer, session = ProducerCore(world.session(), Q), world.session()
    subscription, _ = session.subscribe(Q, 5, "", {})
    world.send(producer, "1")
    world.send(producer, "2")
    world.settle()
    first = session.settle(session.take(subscription), "ACK", True)
    world.settle()
    assert first is not None
    assert first.done
    assert first.error is None
    second = session.settle(session.take(subscription), "ACK", True)
    assert second is not None
    world.kill("a")
    assert isinstance(second.error, DeliveryLostError)


def test_cumulative_acknowledgement() -> None:
    world = World(TWO).connect()
    producer, session = ProducerCore(world.session(), Q), world.session(ack="client")
    subscription, _ = session.subscribe(Q, 10, "", {})
    for number in range(4):
        world.send(producer, str(number))
    world.settle()
    deliveries = [session.take(subscription) for _ in range(4)]
    session.settle(deliveries[2], "ACK", False)
    assert session.settle(deliveries[1], "ACK", False) is None, "covered already"
    world.settle()
    assert world.store.acknowledged == [b"0", b"1", b"2"]


def test_auto_acknowledges_when_it_hands_over() -> None:
    world = World(TWO, alive="ab").connect()
    producer, session = ProducerCore(world.session(), Q), world.session(ack="auto")
    subscription, _ = session.subscribe(Q, 10, "", {})
    for number in range(3):
        world.send(producer, str(number))
    world.settle()
    delivery = session.take(subscription)
    world.settle()
    assert world.store.acknowledged == [b"0"], "only what the application got, not what was prefetched"
    assert session.settle(delivery, "ACK", False) is None
    with pytest.raises(CommandError):
        session.settle(delivery, "NACK", False)
    world.kill("a")
    world.advance(1)
    assert [world.receive(subscription), world.receive(subscription)] == ["1", "2"]


def test_a_refused_subscription_ends_and_spares_the_connection() -> None:
    def script(_: Conversation, frame: Frame) -> bytes | None:
        if frame.headers.get("destination") == "/queue/secret":
            headers = [("message", "not for you"), ("code", "ACCESS_REFUSED"), ("receipt-id", frame.headers["receipt"])]
            return encode("ERROR", headers)
        return None

    world = World(TWO, script=script).connect()
    session = world.session()
    good, _ = session.subscribe(Q, 1, "", {})
    bad, request = session.subscribe("/queue/secret", 1, "", {})
    world.settle()
    assert isinstance(request.error, AccessError)
    with pytest.raises(AccessError):
        bad.ready()
    assert not good.ready()
    assert list(world.machine.subscriptions) == [good.id]
    assert world.machine.is_flowing()


def test_unsubscribe_gives_back_and_is_done_when_the_link_breaks() -> None:
    world = World(TWO, alive="ab").connect()
    producer, session = ProducerCore(world.session(), Q), world.session()
    subscription, _ = session.subscribe(Q, 5, "", {})
    world.send(producer, "1")
    world.settle()
    request = session.unsubscribe(subscription)
    assert session.unsubscribe(subscription) is None
    world.kill("a")
    assert request is not None
    assert request.done
    assert request.error is None
    world.advance(1)
    assert world.store.bodies(Q) == [b"1"], "not subscribed again"
    with pytest.raises(ConnectionClosedError):
        subscription.ready()


def test_a_withdrawn_subscription_is_taken_back() -> None:
    world = World(TWO, script=lambda _, f: IGNORE if f.command == "SUBSCRIBE" else None).connect()
    subscription, request = world.session().subscribe(Q, 5, "", {})
    link = world.machine.link
    assert link is not None
    world.to_broker(link)
    world.machine.withdraw(request, CallTimeoutError("late"), world.now)
    assert b"".join(link.out).startswith(b"UNSUBSCRIBE\nid:" + subscription.id.encode())
    assert subscription.ended


# ---- transactions


def test_commit_publishes_and_rollback_does_not() -> None:
    world = World(TWO).connect()
    session = world.session(transacted=True)
    producer = ProducerCore(session, Q)
    assert session.start_commit() is None
    assert session.start_rollback() is None
    for body, start in (("1", session.start_commit), ("2", session.start_rollback), ("3", session.start_commit)):
        assert world.send(producer, body) is None
        request = start()
        world.settle()
        assert request is not None
        assert request.done
        assert request.error is None
    assert world.store.bodies(Q) == [b"1", b"3"]
    assert not world.machine.transactions


def test_rollback_delivers_again_in_order() -> None:
    world = World(TWO).connect()
    producer, session = ProducerCore(world.session(), Q), world.session(transacted=True)
    for number in range(5):
        world.send(producer, str(number))
    subscription, _ = session.subscribe(Q, 3, "", {})
    world.settle()
    assert [world.receive(subscription) for _ in range(3)] == ["0", "1", "2"]
    world.settle()
    assert world.receive(subscription) == "3", "what is in the transaction does not count against prefetch"
    session.start_rollback()
    world.settle()
    got = []
    for _ in range(5):
        got.append(world.receive(subscription))
        world.settle()
    assert got == ["0", "1", "2", "3", "4"]
    session.start_commit()
    world.settle()
    assert sorted(world.store.acknowledged) == [b"0", b"1", b"2", b"3", b"4"]


def test_a_rolled_back_message_is_the_one_that_failed() -> None:
    """The broker blames the oldest unacknowledged delivery of a consumer that goes: that must be one we worked on."""
    world = World(TWO).connect()
    producer, session = ProducerCore(world.session(), Q), world.session(transacted=True)
    for number in range(6):
        world.send(producer, str(number))
    subscription, _ = session.subscribe(Q, 1, "", {})
    world.settle()
    assert world.receive(subscription) == "0"
    world.settle()
    held = next(iter(world.wires.values())).subscriptions[subscription.id].unacked
    assert [stored.body for stored in held.values()] == [b"0", b"1"], "prefetch 1, and the first of the transaction"
    assert world.receive(subscription) == "1"
    world.settle()
    assert [stored.body for stored in held.values()] == [b"0", b"2"]
    session.start_rollback()
    world.settle()
    assert world.receive(subscription) == "0"


def test_a_consumer_that_closes_in_a_transaction_stays_part_of_it() -> None:
    world = World(TWO).connect()
    producer, session = ProducerCore(world.session(), Q), world.session(transacted=True)
    world.send(producer, "1")
    subscription, _ = session.subscribe(Q, 1, "", {})
    world.settle()
    world.receive(subscription)
    session.unsubscribe(subscription)
    world.settle()
    assert world.store.bodies(Q) == []
    session.start_commit()
    world.settle()
    assert world.store.acknowledged == [b"1"]
    assert world.machine.is_flowing()


def test_an_open_transaction_is_rollback_only_after_a_failover() -> None:
    world = World(TWO, alive="ab").connect()
    session = world.session(transacted=True)
    producer = ProducerCore(session, Q)
    subscription, _ = session.subscribe("/queue/other", 5, "", {})
    woken: list[bool] = []
    world.send(producer, "lost")
    world.settle()
    subscription.gate.append(lambda: woken.append(True))
    world.kill("a")
    assert woken, "a blocked receive must hear of it"
    for call in (session.may_send, subscription.ready):
        with pytest.raises(TransactionRolledBackError, match="rollback"):
            call()
    world.advance(1)
    with pytest.raises(TransactionRolledBackError):
        session.may_send()
    with pytest.raises(TransactionRolledBackError) as rolled_back:
        session.start_commit()
    assert isinstance(rolled_back.value.__cause__, ConnectionLostError)
    world.send(producer, "kept")
    session.start_commit()
    world.settle()
    assert world.store.bodies(Q) == [b"kept"]


def test_a_transaction_waits_for_a_broker() -> None:
    world = World(TWO).connect()
    session = world.session(transacted=True)
    world.kill("a")
    assert not session.may_send()
    world.alive.add("a")
    world.advance(1)
    assert session.may_send()


@pytest.mark.parametrize(("verdict", "committed"), [(CUT, False), (CARRY_OUT_AND_CUT, True)])
def test_the_outcome_of_a_commit_in_flight_is_asked_for(verdict: str, committed: bool) -> None:
    world = World(TWO, alive="ab", script=once("COMMIT", verdict)).connect()
    session = world.session(transacted=True)
    producer, plain = ProducerCore(session, Q), ProducerCore(world.session(), "/queue/plain")
    subscription, _ = session.subscribe("/queue/in", 5, "", {})
    world.send(plain, "before")
    world.send(producer, "1")
    request = session.start_commit()
    during = world.send(plain, "during")
    world.advance(1)
    assert request is not None
    assert request.done
    assert during is not None
    assert during.done
    assert world.store.bodies(Q) == ([b"1"] if committed else [])
    assert isinstance(request.error, TransactionRolledBackError) is not committed
    assert world.store.bodies("/queue/plain") == [b"before", b"during"]
    assert world.machine.is_flowing()
    assert not subscription.ended
    assert world.kinds() == [EventKind.INTERRUPTED, EventKind.FAILOVER], "the ERROR of the answer is no news"
    commits = [frame for frame in world.store.frames if frame.command == "COMMIT"]
    assert len({frame.headers["amq-outcome-id"] for frame in commits}) == 1
    world.send(producer, "2")
    session.start_commit()
    world.settle()
    assert world.store.bodies(Q)[-1] == b"2"


def refusing(command: str, header: str):  # type: ignore[no-untyped-def]
    """A script that refuses each frame `command` whose transaction is that of `header`, without naming a receipt."""
    refusal = encode("ERROR", [("message", "may not send"), ("code", "NOT_PERMITTED")])

    def script(_: Conversation, frame: Frame) -> str | bytes | None:
        return refusal if frame.command == command and frame.headers.get("destination") == header else None

    return script


@pytest.mark.parametrize("is_committed", [False, True])
def test_a_refused_send_of_a_transaction_ends_it_with_that_error(is_committed: bool) -> None:
    """The caller learns that another run would end in the same way."""
    world = World(TWO, script=refusing("SEND", "/queue/secret")).connect()
    session = world.session(transacted=True)
    world.send(ProducerCore(session, "/queue/secret"), "1")
    if is_committed:
        request = session.start_commit()
        world.advance(1)
        assert request is not None
        error = request.error
    else:
        world.advance(1)
        with pytest.raises(TransactionRolledBackError) as raised:
            session.start_commit()
        error = raised.value
    assert isinstance(error, TransactionRolledBackError)
    assert error.code == "NOT_PERMITTED"
    assert isinstance(error.__cause__, AccessError)
    assert world.store.bodies("/queue/secret") == []
    world.send(ProducerCore(session, Q), "2")
    session.start_commit()
    world.advance(1)
    assert world.store.bodies(Q) == [b"2"], "the connection goes on"


def test_no_transaction_is_blamed_where_several_are_open() -> None:
    world = World(TWO, script=refusing("SEND", "/queue/secret")).connect()
    guilty, innocent = world.session(transacted=True), world.session(transacted=True)
    world.send(ProducerCore(innocent, Q), "1")
    world.send(ProducerCore(guilty, "/queue/secret"), "2")
    world.advance(1)
    for session in (guilty, innocent):
        with pytest.raises(TransactionRolledBackError) as raised:
            session.start_commit()
        assert raised.value.code == TransactionRolledBackError.code


def test_a_broker_that_cannot_tell_leaves_the_outcome_unknown() -> None:
    def script(conversation: Conversation, frame: Frame) -> str | bytes | None:
        if frame.command == "COMMIT":
            known = frame.headers["transaction"] in conversation.transactions
            receipt = ("receipt-id", frame.headers["receipt"])
            return CUT if known else encode("ERROR", [("message", "Invalid transaction id"), receipt])
        return None

    world = World(TWO, alive="ab", script=script).connect()
    session = world.session(transacted=True)
    world.send(ProducerCore(session, Q), "1")
    request = session.start_commit()
    world.advance(1)
    assert request is not None
    assert isinstance(request.error, CommitOutcomeUnknownError)
    assert world.machine.is_flowing()


def test_a_rollback_in_flight_is_done_when_the_link_breaks() -> None:
    world = World(TWO, alive="ab", script=once("ABORT", CUT)).connect()
    session = world.session(transacted=True)
    world.send(ProducerCore(session, Q), "1")
    request = session.start_rollback()
    world.advance(1)
    assert request is not None
    assert request.done
    assert request.error is None
    assert world.store.bodies(Q) == []
