"""Acceptance: a group of real brokers on one store, killed and robbed of its lock file, loses nothing.

tests/lock/test_lock_processes.py has processes that pause, tests/cli/test_start.py those that stop or are refused.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from brokers import SERVING, SHORT, Brokers
from traffic import WINDOW, Producer, deliveries

from tests.patience import DEADLINE_S

pytestmark = pytest.mark.deep


def test_kill_9_loses_nothing_doubles_nothing_and_keeps_order(brokers: Brokers) -> None:
    group = [brokers.master("a"), brokers.slave("b"), brokers.slave("c")]
    producer = Producer(group)
    producer.start()
    for kills in range(1, 6):
        producer.wait_confirmed(200)
        (victim,) = [broker for broker in group if broker.said(SERVING)]
        victim.kill()
        producer.wait_confirmed(WINDOW + 1)  # more than the dead master's last words
        assert producer.failovers >= kills
        victim.start().wait_slave()  # it comes back, behind the others
    confirmed = producer.stop()
    assert deliveries(group, len(confirmed)) == [b"message %d" % number for number in sorted(confirmed)]


def remove(lock: Path) -> None:
    lock.unlink()


def replace(lock: Path) -> None:
    stranger = lock.with_name("stranger")
    stranger.write_bytes(b"not a lock")
    stranger.rename(lock)


@pytest.mark.parametrize("rob", [remove, replace])
def test_a_stolen_lock_file_ends_in_one_master(brokers: Brokers, rob: Callable[[Path], None]) -> None:
    """The master takes the new file, or a slave is quicker and takes over; in either case nothing is lost."""
    group = [brokers.master("a", **SHORT), brokers.slave("b", **SHORT), brokers.slave("c", **SHORT)]
    producer = Producer(group)
    producer.start()
    for _ in range(5):
        producer.wait_confirmed(50)
        until_exists(brokers.store / "lock")
        rob(brokers.store / "lock")
        producer.wait_confirmed(50)
    confirmed = producer.stop()
    assert deliveries(group, len(confirmed)) == [b"message %d" % number for number in sorted(confirmed)]
    assert all(broker.alive for broker in group)


def until_exists(path: Path) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} was not made again"
        time.sleep(0.005)
