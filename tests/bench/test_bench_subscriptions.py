"""The bench of many subscriptions, against a real broker: it counts, and says so where something is wrong."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bench import subscriptions
from bench.load import LoadError
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


def test_time_that_is_over_ends_it_with_what_was_sent_delivered(producer: Connection, consumer: Connection) -> None:
    subscriptions.subscribe(consumer, range(2), subscriptions.SELECTOR)
    assert subscriptions.drive(producer, [consumer], [0, 1] * 1000, 64, 10, longest_s=0.0)[0] == 0


def test_a_message_that_comes_elsewhere_is_told(producer: Connection, consumer: Connection) -> None:
    subscriptions.subscribe(consumer, [3], "kind IS NOT NULL")
    with pytest.raises(LoadError, match="fits 1 and came to 3"):
        subscriptions.drive(producer, [consumer], [3, 1, 3], 64, 10)


def test_a_message_that_comes_twice_is_told(producer: Connection, consumer: Connection) -> None:
    subscriptions.subscribe(consumer, [1, 2], "kind IS NOT NULL")
    with pytest.raises(LoadError, match="came twice"):
        subscriptions.drive(producer, [consumer], [1], 64, 10)


def test_a_message_that_does_not_come_is_told(
    producer: Connection, consumer: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscriptions, "TIMEOUT_S", 1.0)
    subscriptions.subscribe(consumer, [1], subscriptions.SELECTOR)
    with pytest.raises(LoadError, match="1 of 2 messages came"):
        subscriptions.drive(producer, [consumer], [1, 9], 64, 10)
