"""The bench of large transactions, against a real broker: each kind does what it says."""

from __future__ import annotations

import pytest

from bench import transactions
from bench.wire import Connection
from tests.brokers import Broker
from tests.sampling import sampled


@pytest.mark.parametrize("kind", sampled(transactions.KINDS, 5))
def test_each_kind_of_work_comes_to_its_end(broker: Broker, kind: str) -> None:
    with Connection(broker.port) as connection:
        work = transactions.KINDS[kind]
        work.begin(connection, 30)
        work.end(connection)
