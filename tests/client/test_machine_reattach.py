"""The client machine and a broker that keeps a lost connection, or does not: each byte is said by hand."""

from __future__ import annotations

import random

import pytest

from amq.client.core import ProducerCore, SessionCore, Subscription
from amq.client.errors import ConnectionLostError, DeliveryLostError
from amq.client.link import Close, Link, OpenLink
from amq.client.machine import Machine
from amq.client.requests import EventKind
from amq.client.states import State
from amq.client.uri import parse
from amq.core.errors import TransactionRolledBackError
from amq.protocols.stomp.frame import FrameReader, encode

URL = "failover:(stomp://a:1)?reconnectWindow=5000&confirmationWindowSize=1000&randomize=false"
GRANTED = [("amq-reconnect-token", "secret"), ("amq-reconnect-window", "4000"), ("amq-confirmation-window", "40000")]


class Talk:
    """The machine, and what it says to a broker that this is."""

    def __init__(self, url: str = URL) -> None:
        self.machine = Machine(parse(url), random.Random(1))
        self.now = 100.0
        self.said = b""  # on all links of one connection, without the CONNECT of those that go on
        self.heard = 0
        self.link: Link
        self.machine.start(self.now)
        self.open()

    def open(self) -> dict[str, str]:
        """Let it connect; the headers of its CONNECT."""
        action = self.machine.actions.pop()
        while isinstance(action, Close):
            action = self.machine.actions.pop()
        assert isinstance(action, OpenLink)
        self.link = action.link
        self.machine.opened(self.link, self.now)
        self._connect = self.link.take_output(self.now)
        self.asked = FrameReader().feed(self._connect)[0].headers
        return self.asked

    def say(self, data: bytes) -> None:
        self.heard += len(data)
        self.machine.received(self.link, data, self.now)

    def accept(self, *headers: tuple[str, str], rest: bytes = b"") -> None:
        self.said, self.heard = self._connect, 0
        self.say(encode("CONNECTED", [("version", "1.2"), *headers]) + rest)

    def go_on(self, lacks: int = 0, rest: bytes = b"") -> None:
        """Give the connection back. The broker lacks this many bytes of what was said."""
        count = len(self.said) - lacks
        connected = encode("CONNECTED", [("version", "1.2"), *GRANTED, ("amq-received", str(count))])
        self.said = self.said[:count]
        self.heard += len(rest)
        self.machine.received(self.link, connected + rest, self.now)

    def hear(self) -> bytes:
        data = b""
        while part := self.link.take_output(self.now):
            data += part
        self.said += data
        return data

    def lose(self) -> None:
        self.machine.failed(self.link, ConnectionLostError("reset"), self.now)
        self.tick(0.02)

    def tick(self, seconds: float) -> None:
        self.now += seconds
        self.machine.tick(self.now)

    def kinds(self) -> list[EventKind]:
        return [event.kind for event in self.machine.events]

    def subscribe(self, session: SessionCore) -> Subscription:
        subscription, request = session.subscribe("/queue/q", 10, "", {})
        self.hear()
        self.say(encode("RECEIPT", [("receipt-id", request.receipt.decode())]))
        return subscription


def message(subscription: Subscription, number: int) -> bytes:
    headers = [("subscription", subscription.id), ("message-id", f"m{number}"), ("ack", f"0-{number}")]
    return encode("MESSAGE", headers, b"%d" % number)


def test_what_was_cut_is_said_again_and_the_rest_goes_on() -> None:
    talk = Talk()
    talk.accept(*GRANTED)
    session, transacted = SessionCore(talk.machine, False, "client-individual"), SessionCore(talk.machine, True, "auto")
    subscription = talk.subscribe(session)
    transacted.current()
    delivery = message(subscription, 1)
    talk.say(delivery[:-7])
    first = talk.hear()
    assert first.startswith(b"BEGIN\n")
    talk.lose()
    assert talk.machine.state is State.CONNECTING
    assert transacted.current().doomed is None
    connect = talk.open()
    assert connect["amq-reconnect-token"] == "secret"
    assert connect["amq-received"] == str(talk.heard)
    assert connect["amq-repeats-from"] == "0"
    assert not session.may_send(), "it would wait where nobody counts it"
    talk.go_on(len(first) - 3, delivery[-7:])
    assert talk.hear() == first[3:]
    assert [each.frame.body for each in subscription.buffer] == [b"1"]
    session.settle(subscription.buffer[0], "ACK", False)
    request = transacted.start_commit()
    assert talk.hear().startswith(b"ACK\nid:0-1\n\n\0COMMIT\n")
    assert request is not None
    talk.say(encode("RECEIPT", [("receipt-id", request.receipt.decode())]))
    assert request.done
    assert request.error is None
    assert talk.kinds() == [EventKind.INTERRUPTED, EventKind.REATTACHED]
    assert talk.machine.epoch == 1


def test_an_acknowledgement_while_the_connection_is_lost_waits_for_it() -> None:
    talk = Talk()
    talk.accept(*GRANTED)
    session = SessionCore(talk.machine, False, "client-individual")
    subscription = talk.subscribe(session)
    talk.say(message(subscription, 1))
    talk.lose()
    request = session.settle(subscription.buffer[0], "ACK", True)
    assert request is not None
    assert not request.done
    talk.open()
    assert not talk.machine.reaches
    talk.go_on()
    assert talk.machine.reaches
    assert talk.hear().startswith(b"ACK\n")


@pytest.mark.parametrize("how", ["refused", "late", "absurd", "error"])
def test_a_connection_that_nobody_keeps_is_set_up_anew(how: str) -> None:
    talk = Talk()
    talk.accept(*GRANTED)
    session, transacted = SessionCore(talk.machine, False, "client-individual"), SessionCore(talk.machine, True, "auto")
    subscription = talk.subscribe(session)
    talk.say(message(subscription, 1))
    producer = ProducerCore(session, "/queue/q")
    sent = producer.send(b"x", None, True, 4, 0, "", "id", True)
    delivery = subscription.buffer[0]
    transacted.current()
    talk.hear()
    if how == "error":
        talk.say(encode("ERROR", [("message", "no"), ("code", "SOME_CODE")]))
        talk.tick(0.02)
    else:
        talk.lose()
        assert list(subscription.buffer) == [delivery]
    if how == "late":
        link = talk.machine.actions[-1].link
        talk.machine.failed(link, ConnectionLostError("nobody is there"), talk.now)
        deadline = talk.machine.deadline()
        assert deadline is not None
        while talk.now < 104.1:
            talk.tick(0.5)
            for action in talk.machine.actions:
                if isinstance(action, OpenLink) and not action.link.dropped:
                    talk.machine.failed(action.link, ConnectionLostError("nobody is there"), talk.now)
        assert not subscription.buffer, "it comes again"
        while not isinstance(talk.machine.actions[-1], OpenLink) or talk.machine.actions[-1].link.dropped:
            talk.tick(0.1)
    headers = talk.open()
    assert ("amq-reconnect-token" in headers) == (how in ("refused", "absurd"))
    if how == "absurd":
        talk.go_on(-1)
        talk.tick(0.3)
        assert "amq-reconnect-token" not in talk.open()
    talk.accept(*GRANTED)
    said = talk.hear()
    while b"SEND" not in said:  # after an ERROR one thing at a time
        receipt = said.partition(b"receipt:")[2].partition(b"\n")[0]
        talk.say(encode("RECEIPT", [("receipt-id", receipt.decode())]))
        said += talk.hear()
    assert said.count(b"SUBSCRIBE\n") == 1
    assert said.count(b"SEND\n") == 1
    assert sent is not None
    assert sent.replayed
    with pytest.raises(DeliveryLostError):
        session.settle(delivery, "ACK", False)
    with pytest.raises(TransactionRolledBackError):
        transacted.start_commit()
    talk.say(encode("RECEIPT", [("receipt-id", said.rpartition(b"receipt:")[2].partition(b"\n")[0].decode())]))
    assert EventKind.REATTACHED not in talk.kinds()
    assert talk.machine.epoch == 2


def test_a_link_that_breaks_while_it_is_restored_goes_on_too() -> None:
    talk = Talk()
    talk.accept(*GRANTED)
    session = SessionCore(talk.machine, True, "auto")
    session.current()
    request = session.start_commit()
    assert request is not None
    talk.lose()
    talk.open()
    talk.accept(*GRANTED)  # not given back: the outcome is asked for, and all else waits for the answer
    producer = ProducerCore(SessionCore(talk.machine, False, "auto"), "/queue/q")
    first = talk.hear()
    assert first.startswith(b"COMMIT\n")
    producer.send(b"x", None, True, 4, 0, "", "id", False)
    talk.lose()
    talk.open()
    talk.go_on(len(first))
    assert talk.hear() == first, "and no other: the commit is still the barrier"
    talk.say(encode("RECEIPT", [("receipt-id", request.receipt.decode())]))
    assert request.done
    assert talk.hear().startswith(b"SEND\n")
    assert talk.kinds() == [EventKind.INTERRUPTED, EventKind.FAILOVER], "one interruption, however long it took"


def test_a_client_confirms_what_it_received_and_forgets_what_is_confirmed() -> None:
    talk = Talk()
    talk.accept(*GRANTED[:2], ("amq-confirmation-window", "400"))
    session = SessionCore(talk.machine, False, "auto")
    subscription = talk.subscribe(session)
    for number in range(10):
        talk.say(message(subscription, number))
    told = [frame for frame in FrameReader().feed(talk.hear()) if frame.command == "RECEIVED"]
    assert len(told) >= 5, "each time that a quarter of 400 bytes has come"
    assert int(told[-1].headers["bytes"]) <= talk.heard
    window = talk.link.window
    assert window is not None
    talk.say(b"RECEIVED\nbytes:%d\n\n\0" % len(talk.said))
    assert window.held_bytes == 0
    producer = ProducerCore(session, "/queue/q")
    for _ in range(30):
        producer.send(b"x" * 100, None, True, 4, 0, "", "id", False)
        talk.hear()
    assert 0 < window.held_bytes <= 1000
    talk.lose()
    assert talk.open()["amq-repeats-from"] == str(window.start)


def test_a_broker_that_does_not_know_it_costs_nothing() -> None:
    talk = Talk()
    talk.accept()
    assert talk.link.window is None
    talk.lose()
    assert "amq-reconnect-token" not in talk.open()


@pytest.mark.parametrize("query", ["?timeout=1", "?reconnectWindow=5000&confirmationWindowSize=-1"])
def test_a_client_that_does_not_want_it_does_not_ask(query: str) -> None:
    assert not [name for name in Talk(f"failover:(stomp://a:1){query}").asked if name.startswith("amq-re")]


def test_an_application_may_close_while_the_connection_is_lost() -> None:
    talk = Talk()
    talk.accept(*GRANTED)
    session = SessionCore(talk.machine, True, "auto")
    session.current()
    talk.lose()
    session.close([])
    talk.machine.close(talk.now)
    assert talk.machine.state is State.CLOSED
    assert talk.machine.deadline() is None
