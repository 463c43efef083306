"""The bench of large transactions, against a real broker: each kind does what it says, and waits are those of the time
that is measured."""

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


def test_the_longest_wait_is_one_that_overlaps_the_time() -> None:
    waits = [(0.0, 5.0), (6.0, 0.5), (7.0, 2.0), (10.0, 9.0)]
    assert transactions.longest_s(waits, 6.2, 10.0) == 2.0
    assert transactions.longest_s(waits, 5.5, 6.0) == 0.0
