"""The generator of load on topics, against a real broker: it counts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bench import fanout
from bench.load import Load
from tests.brokers import Brokers


@pytest.fixture
def brokers(tmp_path: Path) -> Iterator[Brokers]:
    with Brokers(tmp_path) as brokers:
        yield brokers


def test_every_subscriber_gets_everything(brokers: Brokers) -> None:
    broker = brokers.master("a")
    load = Load(broker.port, consumers=5, messages=700, size_bytes=1024, window=100, destination="/topic/t")
    result = fanout.run(load)
    assert result.messages == 700
    assert result.per_s == pytest.approx(5 * 700 / result.seconds, rel=0.01)
