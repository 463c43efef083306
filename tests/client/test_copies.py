"""Messages that a gateway delivers again on the same connection: the program gets each once, and none after its
acknowledgement was confirmed."""

from __future__ import annotations

import pytest
from world import World

from amq.client.core import SessionCore, Subscription
from amq.protocols.stomp.frame import Frame

Q = "/queue/q"


class Consuming:
    """A consumer at a gateway, which gives it messages as the test says."""

    def __init__(self, ack: str = "client-individual", transacted: bool = False) -> None:
        self.world = World("failover:(stomp://a:1)", script=self._answer).connect()
        self.machine = self.world.machine
        self.machine.is_at_gateway = True
        self.session: SessionCore = self.world.session(transacted, ack)
        self.answers = True
        self.subscription: Subscription
        self.subscription, _ = self.session.subscribe(Q, 5, "", {})
        self.world.settle()

    def _answer(self, _: object, frame: Frame) -> str | None:
        return "ignore" if frame.command in ("ACK", "NACK") else None

    def come(self, *names: str) -> None:
        for name in names:
            headers = {"subscription": self.subscription.id, "message-id": name, "ack": f"0-{name}"}
            self.subscription.deliver(Frame("MESSAGE", headers, name.encode()), self.machine.epoch)

    def take(self) -> str:
        delivery = self.session.take(self.subscription)
        assert delivery is not None
        self.last = delivery
        return delivery.frame.body.decode()

    @property
    def waiting(self) -> list[str]:
        return [each.frame.body.decode() for each in self.subscription.buffer]


@pytest.mark.parametrize("ack", ["client-individual", "client"])
def test_what_waits_is_there_once(ack: str) -> None:
    consuming = Consuming(ack)
    consuming.come("1", "2", "3", "2", "3", "4")
    assert consuming.waiting == ["1", "2", "3", "4"]


@pytest.mark.parametrize("ack", ["client-individual", "client"])
@pytest.mark.parametrize("wait", [True, False])
def test_what_is_acknowledged_does_not_come_again(ack: str, wait: bool) -> None:
    consuming = Consuming(ack)
    consuming.come("1", "2", "3")
    assert (consuming.take(), consuming.take()) == ("1", "2")
    last = consuming.last
    consuming.come("1", "2", "3")
    assert consuming.waiting == ["1", "2", "3"]
    consuming.session.settle(last, "ACK", wait)
    assert consuming.waiting == (["3"] if ack == "client" else ["1", "3"])


@pytest.mark.parametrize("ack", ["client-individual", "client"])
def test_a_copy_of_what_is_being_acknowledged_is_left_out(ack: str) -> None:
    consuming = Consuming(ack)
    consuming.come("1", "2")
    consuming.take()
    request = consuming.session.settle(consuming.last, "ACK", wait=True)
    assert request is not None
    consuming.come("1", "2")
    assert consuming.waiting == ["2"]


def test_what_was_refused_comes_again_before_the_answer() -> None:
    consuming = Consuming()
    consuming.come("1")
    consuming.take()
    assert consuming.session.settle(consuming.last, "NACK", wait=True, requeue=True) is not None
    consuming.come("1")
    assert consuming.take() == "1"


def test_an_acknowledgement_that_asks_for_no_answer_is_no_promise() -> None:
    """It may have been too early to have an effect: then the message comes again."""
    consuming = Consuming()
    consuming.come("1")
    consuming.take()
    consuming.session.settle(consuming.last, "ACK", wait=False)
    consuming.come("1")
    assert consuming.take() == "1"


def test_three_deliveries_of_a_message_are_settled_by_one_acknowledgement() -> None:
    consuming = Consuming()
    consuming.come("1", "2")
    consuming.take()
    first = consuming.last
    consuming.come("1", "1")
    assert consuming.waiting == ["2", "1"]
    consuming.session.settle(first, "ACK", wait=True)
    assert consuming.waiting == ["2"]


def test_a_transaction_takes_a_message_once() -> None:
    consuming = Consuming(transacted=True)
    consuming.come("1", "2")
    consuming.take()
    consuming.come("1", "2", "3")
    assert consuming.waiting == ["2", "3"]
    assert consuming.session.start_commit() is not None
    consuming.come("1", "2")
    assert consuming.waiting == ["3", "2"]


def test_what_was_rolled_back_comes_again() -> None:
    consuming = Consuming(transacted=True)
    consuming.come("1")
    consuming.take()
    consuming.session.start_rollback()
    consuming.come("1")
    assert consuming.take() == "1"


def test_nothing_is_kept_of_what_is_settled() -> None:
    consuming = Consuming()
    copies = consuming.subscription.copies
    assert copies is not None
    for number in range(3000):
        consuming.come(str(number))
        consuming.take()
        consuming.session.settle(consuming.last, "ACK", wait=False)
    assert not copies._known
    assert not copies._copied
    assert not copies._asked


def test_nothing_is_known_at_a_broker_and_after_a_failover() -> None:
    consuming = Consuming()
    copies = consuming.subscription.copies
    assert copies is not None
    consuming.come("1")
    consuming.subscription.interrupt()
    assert not copies._known
    consuming.machine.is_at_gateway = False
    consuming.come("1", "1")
    assert consuming.waiting == ["1", "1"]
