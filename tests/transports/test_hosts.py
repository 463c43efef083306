"""Addresses: what counts together, what is shown, and a real broker that strangers with a whole network meet."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from ipaddress import IPv6Address
from pathlib import Path
from random import Random

import pytest

from amq.core.errors import AccessError
from amq.transports import doorkeeper
from amq.transports.doorkeeper import Doorkeeper
from amq.transports.hosts import counted, shown
from tests.brokers import ROOT
from tests.fakes import FakeClock
from tests.patience import DEADLINE_S
from tests.transports.test_doorkeeper import WRONG, Limits

IN_A_NAMESPACE = (
    "ip link set lo up && ip addr add 2001:db8::1/64 dev lo nodad && "
    'ip -6 route add local 2001:db8::/32 dev lo table local && exec "$@"'
)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("::ffff:a00:1", "10.0.0.1"),
        ("::1", "::/64"),
        ("2001:db8::1", "2001:db8::/64"),
        ("2001:0DB8:0:0:ffff::", "2001:db8::/64"),
        ("2001:db8:0:1::1", "2001:db8:0:1::/64"),
        ("fe80::1%eth0", "fe80::%eth0/64"),
        ("fe80::2%eth1", "fe80::%eth1/64"),
        ("", ""),
        ("unknown", "unknown"),
        ("2001:db8::/64", "2001:db8::/64"),
        ("10.0.0.1:5", "10.0.0.1:5"),
    ],
)
def test_an_address_counts_under_one_name(address: str, expected: str) -> None:
    assert counted(address) == expected
    assert counted(expected) == expected


@pytest.mark.parametrize(
    ("peer", "expected"),
    [
        (("10.0.0.1", 5), "10.0.0.1:5"),
        (("::ffff:10.0.0.1", 5, 0, 0), "10.0.0.1:5"),
        (("2001:db8::1", 5, 0, 0), "[2001:db8::1]:5"),
        (("fe80::1%eth0", 5, 0, 2), "[fe80::1%eth0]:5"),
    ],
)
def test_a_peer_is_shown_as_a_url_has_it(peer: tuple[str, int], expected: str) -> None:
    assert shown(peer) == expected


def test_all_addresses_of_a_network_have_one_limit() -> None:
    limits = Limits(new_connections_per_minute=3)
    door = Doorkeeper(FakeClock(), lambda: limits)
    for number in range(3):
        door.arrive(f"2001:db8::{number}")
        door.refused("alice", f"2001:db8::{number}", "peer", WRONG)
    with pytest.raises(AccessError, match="the network 2001:db8::/64 has opened 3 connections"):
        door.arrive("2001:db8::9")
    with pytest.raises(AccessError, match="3 logins of the network 2001:db8::/64 failed"):
        door.check("2001:db8::9")
    door.enter(1, "2001:db8::1")
    door.enter(2, "2001:db8::2")
    with pytest.raises(AccessError, match="the network 2001:db8::/64 has 2 connections already"):
        door.enter(3, "2001:db8::3")
    door.come_back(2, "2001:db8:0:1::2", "alice")  # from elsewhere
    door.enter(3, "2001:db8::3")
    for number, elsewhere in ((4, "2001:db8:0:1::1"), (5, "10.0.0.1")):
        door.arrive(elsewhere)
        door.check(elsewhere)
        door.enter(number, elsewhere)
    for number in range(1, 6):
        door.leave(number)
    assert not door.addresses
    assert not door.address_of


def test_an_ipv4_address_is_the_same_on_a_socket_for_both() -> None:
    door = Doorkeeper(FakeClock(), lambda: Limits())
    door.enter(1, "10.0.0.1")
    door.enter(2, "::ffff:10.0.0.1")
    door.enter(3, "::ffff:10.0.0.2")
    with pytest.raises(AccessError, match="this address has 2 connections"):
        door.enter(4, "::ffff:10.0.0.1")


def test_the_tables_stay_small_whoever_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    """One network with many addresses takes one place; as many networks as come take no more than there are places."""
    monkeypatch.setattr(doorkeeper, "ADDRESSES_MAX", 100)
    limits = Limits(max_connections_per_address=0, failed_logins_per_minute=5, new_connections_per_minute=10**6)
    door, random = Doorkeeper(FakeClock(), lambda: limits), Random(24)
    tables = door.failures, door.arrivals, door.addresses

    def come(number: int, address: str) -> None:
        door.arrive(address)
        door.enter(number, address)
        door.check(address)
        door.refused("alice", address, "peer", WRONG)
        door.leave(number)

    limits.failed_logins_per_minute = 10**5
    for number in range(2000):
        come(number, str(IPv6Address((0x20010DB8 << 96) + random.getrandbits(64))))
    assert [len(table) for table in tables] == [1, 1, 0]
    for number in range(2000):
        come(number, str(IPv6Address((0x20010DB8 << 96) + random.getrandbits(96))))
        assert len(door.failures) <= 100
        assert len(door.arrivals) <= 100
    assert [len(table) for table in tables] == [100, 100, 0]


@pytest.mark.skipif(
    not (shutil.which("unshare") and shutil.which("ip")) and os.environ.get("CI") != "true",
    reason="unshare (util-linux) and ip (iproute2) are not installed",
)
def test_a_real_broker_counts_a_network_as_one(tmp_path: Path) -> None:
    """Each stranger connects from a separate address, in a network namespace that has whole networks of them."""
    done = subprocess.run(
        [
            "unshare",
            "--map-root-user",
            "--net",
            "sh",
            "-c",
            IN_A_NAMESPACE,
            "sh",
            sys.executable,
            "-m",
            "tests.transports.ipv6_strangers",
            str(tmp_path),
        ],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=DEADLINE_S,
        check=False,
    )
    if done.stderr.startswith("unshare:") and os.environ.get("CI") != "true":
        pytest.skip(f"this host lets nobody make a network namespace: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["guesses of a network"] == ["LOGIN_REFUSED"] * 3 + ["TOO_MANY_FAILED_LOGINS"] * 3
    assert found["a user of the next network"] == "CONNECTED"
    assert found["connections of a network"] == ["open"] * 4 + ["TOO_MANY"] * 2
    assert found["a connection of the next network"] == "open"
    assert found["peer"].startswith("[2001:db8:0:1::")
