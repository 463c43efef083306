"""The bench of scheduled messages, against a real broker: it counts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bench import scheduling
from bench.wire import Connection
from tests.brokers import Broker


@pytest.fixture
def consumer(broker: Broker) -> Iterator[Connection]:
    with Connection(broker.port) as connection:
        headers = {"id": "1", "destination": scheduling.NEAR_QUEUE, "ack": "auto", "receipt": "s"}
        connection.send("SUBSCRIBE", headers)
        connection.receipt("s", scheduling.TIMEOUT_S)
        yield connection


def test_all_come_and_are_a_little_late(broker: Broker, consumer: Connection) -> None:
    with Connection(broker.port) as producer:
        assert scheduling.schedule(producer, scheduling.NEAR_QUEUE, [300, 100, 200] * 15, 1024, 10) > 0
    late = scheduling.lateness_ms(consumer, 45, scheduling.TIMEOUT_S)
    assert len(late) == 45
    assert all(value >= -1 for value in late)
