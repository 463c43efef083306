"""The bench of scheduled messages, against a real broker: it counts, and says so where something is wrong."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bench import scheduling
from bench.load import LoadError
from bench.wire import Connection, encode
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


def test_one_that_is_missing_is_told(broker: Broker, consumer: Connection) -> None:
    with Connection(broker.port) as producer:
        scheduling.schedule(producer, scheduling.NEAR_QUEUE, [1, 60_000], 1024)
    with pytest.raises(LoadError, match="only 1 of 2 scheduled messages came"):
        scheduling.lateness_ms(consumer, 2, 1.0)


def test_one_that_is_early_is_told(broker: Broker, consumer: Connection) -> None:
    with Connection(broker.port) as producer:
        producer.send_bytes(encode("SEND", {"destination": scheduling.NEAR_QUEUE}, b"9999999999999;"))
        with pytest.raises(LoadError, match="too early"):
            scheduling.lateness_ms(consumer, 1, scheduling.TIMEOUT_S)
