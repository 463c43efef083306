"""Acceptance: a group of real brokers on one store, killed, paused and robbed of its lock file, loses nothing."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from brokers import SERVING, SHORT, Broker, Brokers
from traffic import QUEUE, WINDOW, Producer, connect_any, drain, send

from bench.wire import WireError
from tests.patience import DEADLINE_S

pytestmark = pytest.mark.deep
LONG = "30s"  # a keep-alive period that no takeover in these tests may wait for


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
    with connect_any(group) as connection:
        bodies = drain(connection, len(confirmed))
    assert bodies == [b"message %d" % number for number in sorted(confirmed)]


def test_a_confirmed_acknowledgement_is_never_undone(brokers: Brokers) -> None:
    group = [brokers.master("a"), brokers.slave("b")]
    with group[0].connect() as connection:
        for number in range(20):
            send(connection, b"%d" % number)
        connection.send("SUBSCRIBE", {"destination": QUEUE, "id": "1", "ack": "client-individual"})
        delivered = [connection.next_frame(DEADLINE_S) for _ in range(20)]
        for frame in delivered[::2]:
            connection.send("ACK", {"id": frame.headers["ack"], "receipt": frame.body.decode()})
            connection.receipt(frame.body.decode(), DEADLINE_S)
        group[0].kill()
    with connect_any(group) as connection:
        assert drain(connection, 10) == [frame.body for frame in delivered[1::2]]


def test_a_killed_master_is_followed_without_wait(brokers: Brokers) -> None:
    master = brokers.master("a", lockKeepAlivePeriod=LONG)
    for name in "bcdef":
        slave = brokers.slave(name, lockKeepAlivePeriod=LONG)
        master.kill()
        serving = slave.wait_serving()
        assert serving["reason"].endswith("is gone from this host"), serving
        master = slave


def test_sigterm_hands_over_without_wait(brokers: Brokers) -> None:
    first = brokers.master("a", lockKeepAlivePeriod=LONG)
    second = brokers.slave("b", lockKeepAlivePeriod=LONG)
    with first.connect() as connection:
        send(connection, b"kept")
        assert first.stop() == 0
        with pytest.raises((WireError, OSError)):  # told by the end of the connection, not left hanging
            connection.next_frame(DEADLINE_S)
    serving = second.wait_serving()
    assert serving["waited_s"] == 0
    assert serving["epoch"] == 2
    with second.connect() as connection:
        assert drain(connection, 1) == [b"kept"]
    assert second.stop() == 0


def test_a_slave_ends_at_once_when_told(brokers: Brokers) -> None:
    brokers.master("a")
    assert brokers.slave("b").stop() == 0


def test_a_name_is_taken_once(brokers: Brokers) -> None:
    brokers.master("a")
    twin = brokers.add("a").start()
    assert twin.wait_exit() == 5
    assert "'a'" in twin.log_text()
    assert "NAME_IN_USE" in twin.log_text()


def test_a_paused_master_goes_on_after_proving_its_lock(brokers: Brokers) -> None:
    """It still holds the lock, so nobody took over; but it confirms nothing before it has looked."""
    master, slave = brokers.master("a", **SHORT), brokers.slave("b", hungMasterTimeout=0)
    with master.connect() as connection:
        send(connection, b"before")
        master.freeze()
        connection.send("SEND", {"destination": QUEUE, "receipt": "1"}, b"meanwhile")
        with pytest.raises(TimeoutError):
            connection.next_frame(3.0)  # three keep-alive periods
        master.thaw()
        connection.receipt("1", DEADLINE_S)
        send(connection, b"after")
        assert drain(connection, 3) == [b"before", b"meanwhile", b"after"]
    assert not slave.said("lock acquired")
    assert os.listdir(brokers.store / "epochs") == ["0000000001.json"]


def test_a_paused_master_that_was_deposed_confirms_nothing(brokers: Brokers) -> None:
    """The stale lock: the paused master holds the lock of a file that is no longer at the path."""
    master, slave = brokers.master("a", **SHORT), brokers.slave("b")
    with master.connect() as connection:
        send(connection, b"before")
        master.freeze()
        connection.send("SEND", {"destination": QUEUE, "receipt": "1"}, b"meanwhile")
        os.unlink(brokers.store / "lock")
        assert slave.wait_serving()["epoch"] == 2
        with slave.connect() as other:
            send(other, b"after")
        master.thaw()
        with pytest.raises((WireError, OSError)):
            connection.receipt("1", DEADLINE_S)
    master.wait_event("mastership lost")
    with slave.connect() as other:
        assert drain(other, 2) == [b"before", b"after"]
    slave.kill()  # and the deposed one has rejoined
    assert master.wait_serving(after=serving_lines(master))["epoch"] == 3


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
    with connect_any(group) as connection:
        assert drain(connection, len(confirmed)) == [b"message %d" % number for number in sorted(confirmed)]
    assert all(broker.alive for broker in group)


def test_fail_if_locked(brokers: Brokers) -> None:
    brokers.master("a")
    second = brokers.add("b", failIfLocked="true").start()
    assert second.wait_exit() == 5
    assert "STORE_LOCKED" in second.log_text()


def test_a_keep_alive_of_zero_is_refused_with_the_reason(brokers: Brokers) -> None:
    broker = brokers.add("a", lockKeepAlivePeriod="0").start()
    assert broker.wait_exit() == 3
    assert "two masters can exist" in broker.log_text()
    assert not brokers.store.exists()


def test_non_persistent_messages_end_with_their_master(brokers: Brokers) -> None:
    first, second = brokers.master("a"), brokers.slave("b")
    with first.connect() as connection:
        send(connection, b"fleeting", persistent="false")
        send(connection, b"kept", persistent="true")
        first.kill()
    second.wait_serving()
    with second.connect() as connection:
        assert drain(connection, 1) == [b"kept"]


def until_exists(path: Path) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while not path.exists():
        assert time.monotonic() < deadline, f"{path} was not made again"
        time.sleep(0.005)


def serving_lines(broker: Broker) -> int:
    """Log lines up to and including the last "serving": wait for a later one `after` this."""
    return max(number for number, line in enumerate(broker.log, 1) if line.get("event") == SERVING)
