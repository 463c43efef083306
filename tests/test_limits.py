"""Limits of queues with a real broker: one producer over each policy, with a consumer that goes on.

The broker's log says when the limit is reached: nothing here waits for time.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import amq
from amq.core.errors import AmqError
from tests.brokers import Broker, Brokers
from tests.patience import DEADLINE_S

LIMIT_KIB = 64
BODY = bytes(1000)
COUNT = 400  # six times the limit
REACHED = "a queue has reached queueLimit"


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[Brokers]:
    with Brokers(tmp_path) as brokers:
        yield brokers


def limited(brokers: Brokers, policy: str) -> Broker:
    return brokers.master(queueLimit=f"{LIMIT_KIB}KiB", queueLimitPolicy=policy, prefetchSize=1)


def url(broker: Broker) -> str:
    return f"stomp://127.0.0.1:{broker.port}"


def produce(broker: Broker, sent: list[int], errors: list[Exception]) -> None:
    try:
        with amq.connect(url(broker)) as connection:
            producer = connection.session().producer("/queue/q")
            for number in range(COUNT):
                producer.send(b"%03d" % number + BODY)
                sent.append(number)
    except AmqError as error:
        errors.append(error)


def consume(broker: Broker, queue: str, last: bytes) -> list[int]:
    """Numbers of what comes, up to the `last`."""
    found = []
    with amq.connect(url(broker)) as connection:
        consumer = connection.session().consumer(f"/queue/{queue}")
        while not found or found[-1] != int(last):
            message = consumer.receive(DEADLINE_S)
            assert message is not None, f"only {found}"
            found.append(int(message.body[:3]))
            message.ack(wait=True)
    return found


def test_block(brokers: Brokers) -> None:
    broker = limited(brokers, "block")
    sent: list[int] = []
    errors: list[Exception] = []
    thread = threading.Thread(target=produce, args=(broker, sent, errors))
    thread.start()
    try:
        said = broker.wait_event(REACHED)
        assert said["queue"] == "queue://q"
        assert len(sent) < 70
        assert consume(broker, "q", b"399") == list(range(COUNT))
    finally:
        thread.join(DEADLINE_S)
    assert not errors
    assert sent == list(range(COUNT))
    broker.wait_event("a queue is below queueLimit again")


def test_fail(brokers: Brokers) -> None:
    broker = limited(brokers, "fail")
    sent: list[int] = []
    errors: list[Exception] = []
    produce(broker, sent, errors)
    [error] = errors
    assert "queue q is at its limit of 64KiB" in str(error)
    assert "queueLimitPolicy fail" in str(error)
    assert 50 < len(sent) < 70
    assert consume(broker, "q", b"%03d" % sent[-1]) == sent
    broker.wait_event("a queue is below queueLimit again")


def test_drop_oldest(brokers: Brokers) -> None:
    broker = limited(brokers, "drop-oldest")
    sent: list[int] = []
    errors: list[Exception] = []
    produce(broker, sent, errors)
    assert not errors
    broker.wait_event(REACHED)
    kept = consume(broker, "q", b"399")
    assert kept == list(range(COUNT - len(kept), COUNT))
    assert len(kept) * 1000 <= LIMIT_KIB << 10
    letters = consume(broker, "DLQ.q", b"%03d" % (kept[0] - 1))
    assert letters == list(range(letters[0], kept[0]))  # the dead-letter queue has the same limit
    assert 50 < len(letters) <= (LIMIT_KIB << 10) // 1000
