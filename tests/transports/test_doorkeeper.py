"""The doorkeeper: how many come in, how often one may guess, and what the audit log has."""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from amq.core.errors import AccessError
from amq.security.users_edit import add_user
from amq.transports import doorkeeper
from amq.transports.doorkeeper import LINES_MAX, LINES_S, MINUTE_S, Doorkeeper
from bench.wire import WireError, encode
from tests.brokers import Brokers
from tests.fakes import FakeClock
from tests.patience import DEADLINE_S

HERE, THERE = "10.0.0.1", "10.0.0.2"
WRONG = AccessError("wrong", code="LOGIN_REFUSED")
SECRET, GUESS = "correct horse battery", "staple-of-a-stranger"


@dataclass
class Limits:
    max_connections_per_address: int = 2
    max_connections_per_user: int = 2
    failed_logins_per_minute: int = 3
    new_connections_per_minute: int = 0
    throttle_messages: int = 0
    throttle_size_bytes: int = 0
    audit_log: str = "all"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def limits() -> Limits:
    return Limits()


@pytest.fixture
def door(clock: FakeClock, limits: Limits) -> Doorkeeper:
    return Doorkeeper(clock, lambda: limits)


def test_connections_of_an_address_are_counted(door: Doorkeeper) -> None:
    door.enter(1, HERE)
    door.enter(2, HERE)
    door.enter(3, THERE)
    with pytest.raises(AccessError, match="maxConnectionsPerAddress") as raised:
        door.enter(4, HERE)
    assert raised.value.code == "TOO_MANY"
    door.leave(4)  # it was never in
    door.leave(1)
    door.leave(1)
    door.enter(5, HERE)
    with pytest.raises(AccessError):
        door.enter(6, HERE)


def test_connections_of_a_user_are_counted_from_wherever_they_come(door: Doorkeeper) -> None:
    for number, address in ((1, HERE), (2, THERE)):
        door.enter(number, address)
        door.let_in(number, "alice")
    door.enter(3, HERE)
    with pytest.raises(AccessError, match="maxConnectionsPerUser"):
        door.let_in(3, "alice")
    door.let_in(3, "bob")
    door.leave(1)
    door.come_back(1, THERE, "alice")  # as many as before
    door.leave(2)
    door.let_in(4, "alice")


def test_no_limits_and_nothing_is_left_behind(door: Doorkeeper, limits: Limits) -> None:
    limits.max_connections_per_address = limits.max_connections_per_user = limits.failed_logins_per_minute = 0
    for number in range(100):
        door.enter(number, HERE)
        door.let_in(number, "alice")
        door.refused("x", HERE, "peer", WRONG)
        door.check(HERE)
    for number in range(100):
        door.leave(number)
    for left in (door.addresses, door.users, door.address_of, door.user_of, door.failures):
        assert not left


def test_who_guesses_too_often_waits(door: Doorkeeper, clock: FakeClock) -> None:
    for _ in range(3):
        door.check(HERE)
        door.refused("alice", HERE, "peer", WRONG)
    with pytest.raises(AccessError, match="failedLoginsPerMinute") as raised:
        door.check(HERE)
    assert raised.value.code == "TOO_MANY_FAILED_LOGINS"
    door.refused("alice", HERE, "peer", raised.value)  # which makes it no longer
    door.check(THERE)
    clock.advance(MINUTE_S + 1)
    door.check(HERE)
    assert not door.failures


def test_who_guesses_a_hundred_times_at_once_costs_no_more_than_who_guesses_slowly(tmp_path: Path) -> None:
    """All are there before the first one has been found wrong. Those who were right before still get in."""
    users = tmp_path / "users"
    add_user(str(users), "alice", SECRET)
    with Brokers(tmp_path, usersFile=users, anonymous="no", failedLoginsPerMinute=5) as brokers:
        broker = brokers.master()
        known = broker.connect(login="alice", passcode=SECRET)
        strangers = [socket.create_connection(("127.0.0.1", broker.port)) for _ in range(100)]
        for number, stranger in enumerate(strangers):
            stranger.sendall(encode("CONNECT", {"accept-version": "1.2", "login": "alice", "passcode": f"no {number}"}))
        said = b""
        for stranger in strangers:
            stranger.settimeout(DEADLINE_S)
            while part := stranger.recv(4096):
                said += part
            stranger.close()
        assert said.count(b"code:LOGIN_REFUSED") == 5
        assert said.count(b"code:TOO_MANY_FAILED_LOGINS") == 95
        known.send("SEND", {"destination": "/queue/a", "receipt": "1"}, b"x")
        known.receipt("1", DEADLINE_S)
        known.close()


def test_addresses_are_bounded(door: Doorkeeper, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doorkeeper, "ADDRESSES_MAX", 10)
    for number in range(100):
        for _ in range(9):
            door.refused("x", f"10.0.0.{number}", "peer", WRONG)
    assert len(door.failures) == 10
    assert all(len(times) == 3 for times in door.failures.values())


def test_strangers_do_not_fill_the_audit_log(door: Doorkeeper, clock: FakeClock, limits: Limits) -> None:
    with capture_logs() as lines:
        for _ in range(3 * LINES_MAX):
            door.refused("x" * 1000, HERE, "peer", WRONG)
        clock.advance(LINES_S + 1)
        door.denied("eve", "peer", AccessError("no", code="NOT_PERMITTED"))
        limits.audit_log = "none"
        door.denied("eve", "peer", AccessError("no", code="NOT_PERMITTED"))
    assert len(lines) == LINES_MAX + 1
    assert lines[-1]["others_since"] == 2 * LINES_MAX
    assert all(len(line["user"]) <= doorkeeper.NAME_CHARS_MAX for line in lines)


def test_logins_are_written_where_asked_for(door: Doorkeeper, limits: Limits) -> None:
    with capture_logs() as lines:
        door.logged_in("alice", "c", "peer", "certificate")
        limits.audit_log = "refusals"
        door.logged_in("alice", "c", "peer", "password")
    assert [(line["event"], line["shown"]) for line in lines] == [("login", "certificate")]


def test_a_real_broker_refuses_and_tells_without_secrets(tmp_path: Path) -> None:
    """Everything that a whole run logged has neither the password nor the guesses."""
    users, rules = tmp_path / "users", tmp_path / "permissions.toml"
    add_user(str(users), "alice", SECRET)
    rules.write_text('[roles]\nshop = ["alice"]\n[queues.mine]\nwrite = ["shop"]\n')
    options = {
        "usersFile": users,
        "anonymous": "no",
        "permissionsFile": rules,
        "failedLoginsPerMinute": 3,
        "auditLog": "all",
        "maxConnectionsPerUser": 1,
        "maxConnectionsPerAddress": 4,
        "logLevel": "debug",
    }
    with Brokers(tmp_path, **options) as brokers:
        broker = brokers.master()
        with broker.connect(login="alice", passcode=SECRET) as client:
            client.send("SEND", {"destination": "/queue/mine", "receipt": "1"}, b"body-of-a-message")
            client.receipt("1", DEADLINE_S)
            with pytest.raises(WireError, match="maxConnectionsPerUser"):
                broker.connect(login="alice", passcode=SECRET)
            client.send("SEND", {"destination": "/queue/other", "receipt": "2"}, b"x")
            with pytest.raises(WireError, match="may not send to"):
                client.receipt("2", DEADLINE_S)
        for number in range(3):
            with pytest.raises(WireError, match="wrong"):
                broker.connect(login="alice", passcode=f"{GUESS}-{number}")
        with pytest.raises(WireError, match="failedLoginsPerMinute"):
            broker.connect(login="alice", passcode=SECRET)
        assert broker.wait_event("not permitted")["user"] == "alice"
        assert broker.wait_event("login refused")["code"] == "TOO_MANY"
        assert [line["user"] for line in broker.said("login") if line["event"] == "login"] == ["alice"]
        broker.stop()
        everything = json.dumps(broker.log)
        assert "TOO_MANY_FAILED_LOGINS" in everything
        for secret in (SECRET, GUESS, "body-of-a-message"):
            assert secret not in everything
