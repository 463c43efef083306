"""Throttles: what a user may send in a second, and how often an address may connect."""

from __future__ import annotations

import socket
import ssl
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amq.core.errors import AccessError
from amq.security.users_edit import add_user
from amq.transports import doorkeeper
from amq.transports.bucket import Bucket
from amq.transports.doorkeeper import Doorkeeper
from bench.wire import WireError
from tests.brokers import Brokers
from tests.certificates import Authority, needs_openssl
from tests.fakes import FakeClock
from tests.patience import DEADLINE_S
from tests.transports.test_doorkeeper import HERE, THERE, Limits


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0, 30)), max_size=30))
def test_no_more_is_taken_than_the_rate_allows(steps: list[tuple[float, float]]) -> None:
    """A sender that always waits as told takes what a full bucket holds, one piece, and the rate."""
    rate, now, taken = 10.0, 0.0, 0.0
    bucket = Bucket(rate, now)
    for idle_s, amount in steps:
        now += idle_s
        assert taken <= rate + rate * now + 1e-6, "before this piece"
        wait_s = bucket.take(amount, rate, rate, now)
        taken += amount
        assert wait_s <= amount / rate + 1e-6, "no wait for what others took long ago"
        now += wait_s


def test_messages_and_bytes_of_a_user_count_together() -> None:
    clock = FakeClock()
    limits = Limits(throttle_messages=10, throttle_size_bytes=1000)
    door = Doorkeeper(clock, lambda: limits)
    assert door.wait_s("alice", 10, 10) == 0
    assert door.wait_s("alice", 5, 10) == pytest.approx(0.5)  # of another connection
    assert door.wait_s("bob", 1, 3000) == pytest.approx(2)
    clock.advance(0.5)
    assert door.wait_s("alice", 0, 100) == 0
    limits.throttle_messages = 0
    assert door.wait_s("alice", 10_000, 10) == 0
    limits.throttle_size_bytes = 0
    assert door.wait_s("alice", 0, 10_000) == 0


def test_an_address_that_connects_too_often_is_refused() -> None:
    clock = FakeClock()
    limits = Limits(new_connections_per_minute=6, max_connections_per_address=0)
    door = Doorkeeper(clock, lambda: limits)
    for _ in range(6):
        door.arrive(HERE)
    with pytest.raises(AccessError, match="newConnectionsPerMinute") as raised:
        door.arrive(HERE)
    assert raised.value.code == "TOO_MANY"
    door.arrive(THERE)
    clock.advance(10.1)  # one more
    door.arrive(HERE)
    with pytest.raises(AccessError):
        door.arrive(HERE)
    limits.new_connections_per_minute = 0
    door.arrive(HERE)
    assert not door.arrivals


def test_what_is_known_of_users_and_addresses_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doorkeeper, "ADDRESSES_MAX", 10)
    monkeypatch.setattr(doorkeeper, "USERS_MAX", 10)
    limits = Limits(new_connections_per_minute=6, throttle_size_bytes=10)
    door = Doorkeeper(FakeClock(), lambda: limits)
    for number in range(100):
        door.arrive(f"10.0.0.{number}")
        door.wait_s(f"user{number}", 1, 1)
    assert len(door.arrivals) == len(door._sent) == 10


@pytest.mark.deep
def test_a_throttled_producer_waits_and_others_do_not(tmp_path: Path) -> None:
    """The broker's own clock: the messages cannot be confirmed sooner than the rate allows."""
    users = tmp_path / "users"
    for name in ("alice", "bob"):
        add_user(str(users), name, "word of " + name)
    with Brokers(tmp_path, usersFile=users, anonymous="no", throttleMessages=20) as brokers:
        broker = brokers.master()
        with (
            broker.connect(login="alice", passcode="word of alice") as alice,
            broker.connect(login="bob", passcode="word of bob") as bob,
        ):
            began = time.monotonic()
            for number in range(50):
                alice.send("SEND", {"destination": "/queue/a", "receipt": number}, b"x")
                if number % 5 == 4:  # several reads
                    alice.receipt(str(number), DEADLINE_S)
            took_s = time.monotonic() - began
            # 20 at once, 25 more at 20 a second; the last five are confirmed before their wait.
            assert took_s >= 1.2
            for number in range(600):  # half a minute of alice's rate, for which bob does not wait
                alice.send("SEND", {"destination": "/queue/a", "receipt": f"late {number}"}, b"x")
            bob.send("SEND", {"destination": "/queue/b", "receipt": "bob"}, b"x")
            bob.receipt("bob", DEADLINE_S)


def test_an_address_is_told_why_it_is_refused(tmp_path: Path) -> None:
    with Brokers(tmp_path, newConnectionsPerMinute=3) as brokers:
        broker = brokers.master()
        refused = []
        for _ in range(5):
            try:
                with broker.connect():
                    pass
            except WireError as error:
                refused.append(str(error))
        assert refused
        assert all("newConnectionsPerMinute" in each for each in refused)


@needs_openssl
def test_an_address_that_connects_too_often_gets_no_handshake(authority: Authority, tmp_path: Path) -> None:
    pair = authority.pair("server")
    more = {"certificate": pair.certificate, "certificateKey": pair.key, "newConnectionsPerMinute": 3}
    with Brokers(tmp_path, scheme="stomp+ssl", **more) as brokers:
        broker = brokers.master()
        context = ssl.create_default_context(cafile=str(authority.trust))
        made, cut = 0, 0
        for _ in range(8):
            with socket.create_connection(("127.0.0.1", broker.port), DEADLINE_S) as plain:
                try:
                    with context.wrap_socket(plain, server_hostname="localhost"):
                        made += 1
                except (ssl.SSLError, ConnectionError):
                    cut += 1
        assert 0 < made <= 3, "each counts once"
        assert made + cut == 8
        assert "newConnectionsPerMinute" in broker.wait_event("TLS handshake failed")["reason"]
