"""The bench of many subscriptions, against a real broker: it counts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bench import subscriptions
from bench.wire import Connection
from tests.brokers import Broker


@pytest.fixture
def producer(broker: Broker) -> Iterator[Connection]:
    with Connection(broker.port) as connection:
        yield connection


@pytest.fixture
def consumer(broker: Broker) -> Iterator[Connection]:
    with Connection(broker.port) as connection:
        yield connection


def test_each_message_comes_to_the_subscription_it_fits(producer: Connection, consumer: Connection) -> None:
    subscriptions.subscribe(consumer, range(50), subscriptions.SELECTOR)
    wanted = [serial * 7 % 50 for serial in range(300)]
    sent, seconds = subscriptions.drive(producer, [consumer], wanted, 64, 100)
    assert sent == 300
    assert seconds > 0
