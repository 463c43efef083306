"""The failover machine: what it does after each fault, and that no sequence of events makes it forget a caller."""

from __future__ import annotations

import pytest
from fake_broker import CARRY_OUT_AND_CUT, CUT, IGNORE, Conversation
from world import World

from amq.client.core import ProducerCore
from amq.client.errors import (
    BrokerError,
    CallTimeoutError,
    CommitOutcomeUnknownError,
    ConnectError,
    ConnectionClosedError,
    ConnectionLostError,
    DeliveryLostError,
    IllegalEventError,
    UriError,
)
from amq.client.machine import DISCONNECT_S_MAX, PRIORITY_PROBE_EVERY_S, REFUSALS_MAX
from amq.client.requests import EventKind
from amq.client.states import State
from amq.errors import AccessError, CommandError, ProtocolError, StoreFullError, TransactionRolledBackError
from amq.protocols.stomp.frame import Frame, encode

TWO = "failover:(stomp://a:1,stomp://b:2)?randomize=false"
Q = "/queue/q"


def once(command: str, verdict: str | bytes):  # type: ignore[no-untyped-def]
    """A script that gives `verdict` on the first frame `command`."""
    left = [verdict]

    def script(_: Conversation, frame: Frame) -> str | bytes | None:
        return left.pop() if frame.command == command and left else None

    return script


# ---- connecting


def test_connects_to_the_first_that_listens() -> None:
    world = World(TWO, alive="b").connect()
    assert world.state is State.CONNECTED
    assert world.machine.is_flowing()
    assert world.tried == ["a", "b"], "the second follows at once"
    assert world.kinds() == []


def test_gives_up_after_the_allowed_rounds() -> None:
    world = World(TWO + "&maxReconnectAttempts=3", alive="").connect()
    world.advance(60)
    assert world.state is State.CLOSED
    assert world.tried == ["a", "b"] + ["a", "b"] * 2
    with pytest.raises(ConnectError, match="no broker answers"):
        world.machine.check_open()


def test_tries_for_ever_by_default_and_warns() -> None:
    world = World(TWO, alive="").connect()
    world.advance(60)
    assert world.state is State.WAITING
    assert len(world.tried) > 200, "a round each half second"
    assert [level for level, _ in world.machine.logs if level == 30]
    world.alive.add("b")
    world.advance(0.5)
    assert world.machine.is_flowing()


@pytest.mark.parametrize("url", ["stomp://a:1", "failover:(stomp://a:1)?maxReconnectAttempts=0"])
def test_without_failover_the_first_failure_is_the_last(url: str) -> None:
    world = World(url, alive="").connect()
    assert world.state is State.CLOSED
    with pytest.raises(ConnectError):
        world.machine.check_open()
    world = World(url).connect()
    world.kill("a")
    assert world.kinds() == [EventKind.INTERRUPTED, EventKind.DISCONNECT]
    with pytest.raises(ConnectionLostError):
        world.machine.check_open()


def test_a_refused_login_is_final_at_first_and_after_some_attempts_later() -> None:
    world = World(TWO, alive="ab", passcode="wrong", login="me")
    world.passcode = "right"
    world.connect()
    assert world.tried == ["a"]
    with pytest.raises(AccessError, match="passcode"):
        world.machine.check_open()

    world = World(TWO, alive="ab", login="me", passcode="old").connect()
    world.passcode = "new"
    world.kill("a")
    world.advance(60)
    assert world.tried.count("b") == REFUSALS_MAX
    with pytest.raises(AccessError):
        world.machine.check_open()
    assert world.kinds() == [EventKind.INTERRUPTED, EventKind.DISCONNECT]


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", ProtocolError),
        (encode("CONNECTED", [("version", "1.1")]), ProtocolError),
        (encode("CONNECTED", [("version", "1.2"), ("heart-beat", "x")]), ProtocolError),
        (encode("RECEIPT", [("receipt-id", "1"), ("x", "y")]), ProtocolError),
        (encode("ERROR", [("message", "User name or password is invalid.")]), BrokerError),
        (encode("ERROR", [("message", "no"), ("code", "VERSION_UNSUPPORTED")]), ProtocolError),
    ],
)
def test_what_is_no_stomp_broker_is_told_at_once(answer: bytes, error: type[Exception]) -> None:
    world = World(TWO, script=lambda *_: answer).connect()
    with pytest.raises(error):
        world.machine.check_open()
    assert world.tried == ["a"]


def test_a_broker_that_cannot_serve_now_is_tried_again() -> None:
    error = encode("ERROR", [("message", "maxConnections"), ("code", "TOO_MANY")])
    world = World(TWO, alive="ab", script=once("CONNECT", error)).connect()
    assert world.machine.is_flowing()
    assert world.tried == ["a", "b"]


def test_silence_in_connecting_and_handshake_ends_in_time() -> None:
    world = World(TWO + "&nested.connectTimeout=1000")
    world.machine.start(world.now)
    world.act()
    link = world.pending.pop()  # SYN without answer
    world.now += 1
    world.machine.tick(world.now)
    world.machine.failed(link, ConnectError("late"), world.now)  # the driver's own news come too late and are ignored
    assert world.state is State.CONNECTING
    world.act()
    world.alive.add("b")
    world.script = lambda *_: IGNORE
    world.answer()
    assert world.state is State.HANDSHAKE
    world.now += 1
    world.machine.tick(world.now)
    assert world.state is State.WAITING


def test_login_of_the_uri_comes_first_and_line_breaks_are_refused() -> None:
    world = World("failover:(stomp://u:p@a:1)", login="other", passcode="x", client_id="c1").connect()
    headers = world.store.frames[0].headers
    assert (headers["login"], headers["passcode"], headers["client-id"]) == ("u", "p", "c1")
    assert headers["accept-version"] == "1.2"
    with pytest.raises(UriError):
        World("stomp://a", login="a\nb")


# ---- sends


def test_unconfirmed_sends_are_replayed_in_order_with_their_ids() -> None:
    for delivered in range(0, 1200, 37):  # so many bytes of 10 sends reach the first broker
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


def test_a_broker_in_trouble_is_no_refusal() -> None:
    error = encode("ERROR", [("message", "fenced"), ("code", "OWNERSHIP_LOST"), ("receipt-id", "2")])
    world = World(TWO, alive="ab", script=once("SEND", error)).connect()
    request = world.send(ProducerCore(world.session(), Q), "x")
    world.advance(1)
    assert request is not None
    assert request.done
    assert request.error is None
    assert world.tried == ["a", "b"]


def test_a_full_store_refuses_all_that_is_behind() -> None:
    def script(_: Conversation, frame: Frame) -> bytes | None:
        if frame.command == "SEND" and len(world.store.bodies(Q)) >= 2:
            headers = [("message", "full"), ("code", "STORE_FULL"), ("receipt-id", frame.headers["receipt"])]
            return encode("ERROR", headers)
        return None

    world = World(TWO, script=script)
    world.connect()
    producer = ProducerCore(world.session(), Q)
    requests = [world.send(producer, str(number)) for number in range(50)]
    world.advance(1)
    assert [type(request.error) for request in requests if request] == [type(None)] * 2 + [StoreFullError] * 48
    assert len(world.tried) == 2
    assert world.machine.is_flowing()


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
    assert session.settle(delivery, "ACK", True) is None, "a second time does nothing"
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
    assert session.settle(deliveries[1], "ACK", True) is None, "covered already"
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
    assert session.settle(delivery, "ACK", True) is None
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
    assert world.store.acknowledged == [b"0", b"1", b"2", b"3", b"4"]


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


# ---- heart-beats, priority, close


def test_heart_beats_both_ways() -> None:
    world = World(TWO + "&nested.heartBeat=1000").connect()
    world.machine.close(world.now)
    world = World(TWO + "&nested.heartBeat=1000", alive="ab")
    world.heart_beat = "1000,1000"
    world.connect()
    link = world.machine.link
    assert link is not None
    beats = 0
    for _ in range(40):  # the broker beats: nothing happens, and we beat at least once a second
        world.now += 0.1
        world.machine.tick(world.now)
        if beat := link.take_output(world.now):
            assert beat == b"\n"
            beats += 1
        world.machine.received(link, b"\n", world.now)
    assert world.machine.link is link
    assert beats >= 4
    world.advance(1.9)
    assert world.machine.link is link
    world.advance(0.2)
    assert world.events[0].error is not None
    assert world.events[0].error.code == "HEART_BEAT_MISSED"
    assert world.tried == ["a", "b"]


def test_priority_backup_moves_back_when_no_transaction_is_open() -> None:
    world = World(TWO + "&priorityBackup=true", alive="b").connect()
    session = world.session(transacted=True)
    producer = ProducerCore(session, Q)
    subscription, _ = world.session().subscribe(Q, 5, "", {})
    world.send(producer, "1")
    world.settle()
    world.alive.add("a")
    world.advance(3 * PRIORITY_PROBE_EVERY_S)
    assert world.tried.count("a") >= 3, "it keeps trying"
    assert world.machine.link is not None
    assert world.machine.link.uri.host == "b"
    session.start_commit()
    world.settle()
    world.advance(PRIORITY_PROBE_EVERY_S)
    assert world.machine.link.uri.host == "a"
    assert world.kinds() == [EventKind.INTERRUPTED, EventKind.FAILOVER]
    assert len(world.wires) == 1
    assert world.receive(subscription) == "1"
    tried = len(world.tried)
    world.advance(60)
    assert len(world.tried) == tried, "at home there is nothing to look for"


def test_a_silent_preferred_broker_disturbs_nobody() -> None:
    world = World(TWO + "&priorityBackup=true&nested.connectTimeout=500", alive="b").connect()
    world.advance(PRIORITY_PROBE_EVERY_S - 0.1)
    world.now += 0.1
    world.machine.tick(world.now)
    world.act()
    assert len(world.pending) == 1
    world.now += 0.5
    world.machine.tick(world.now)
    world.act()
    assert world.pending == []
    assert world.machine.is_flowing()
    assert world.kinds() == []


def test_close_says_goodbye_and_ends_every_request() -> None:
    world = World(TWO).connect()
    session = world.session()
    request = world.send(ProducerCore(session, Q), "1")
    subscription, subscribing = session.subscribe(Q, 1, "", {})
    world.machine.close(world.now)
    assert world.state is State.CLOSING
    assert request is not None
    assert isinstance(request.error, ConnectionClosedError)
    assert isinstance(subscribing.error, ConnectionClosedError)
    with pytest.raises(ConnectionClosedError):
        subscription.ready()
    with pytest.raises(ConnectionClosedError):
        session.may_send()
    world.settle()
    assert world.state is State.CLOSED
    assert world.store.frames[-1].command == "DISCONNECT"
    assert world.kinds() == []


def test_close_does_not_wait_for_ever() -> None:
    world = World(TWO, script=lambda _, f: IGNORE if f.command == "DISCONNECT" else None).connect()
    world.machine.close(world.now)
    world.settle()
    world.advance(DISCONNECT_S_MAX - 0.1)
    assert world.state is State.CLOSING
    world.advance(0.2)
    assert world.state is State.CLOSED
    assert world.wires == {}
    assert world.machine.deadline() is None


@pytest.mark.parametrize("alive", ["", "a"])
def test_close_while_connecting(alive: str) -> None:
    world = World(TWO, alive=alive)
    world.machine.start(world.now)
    world.machine.close(world.now)
    world.act()
    assert world.state is State.CLOSED
    assert world.pending == []
    world.machine.close(world.now)


def test_illegal_events_change_nothing() -> None:
    world = World(TWO).connect()
    link = world.machine.link
    assert link is not None
    with pytest.raises(IllegalEventError):
        world.machine.start(world.now)
    with pytest.raises(IllegalEventError):
        world.machine.opened(link, world.now)
    foreign = World(TWO).connect().machine.link
    assert foreign is not None
    with pytest.raises(IllegalEventError):
        world.machine.received(foreign, b"\n", world.now)
    assert world.machine.is_flowing()
    assert world.machine.link is link


@pytest.mark.parametrize("junk", [b"MESSAGE\n\n\0" * 3, b"CONNECTED\nversion:1.2\n\n\0", b"\x00\xff", b"hello\n\n\0"])
def test_junk_from_the_broker_is_a_broken_link_at_worst(junk: bytes) -> None:
    world = World(TWO, alive="ab").connect()
    link = world.machine.link
    assert link is not None
    world.machine.received(link, junk, world.now)
    world.advance(1)
    assert world.machine.is_flowing()
