"""Strangers with IPv6 networks of their own meet a real broker. Run in a network namespace: see test_hosts.py.

    python -m tests.transports.ipv6_strangers DIR

prints as JSON what each of them was told.
"""

from __future__ import annotations

import json
import re
import socket
import sys
from pathlib import Path

from amq.security.users_edit import add_user
from bench.wire import encode
from tests.brokers import Broker
from tests.patience import DEADLINE_S

HOME, PORT = "2001:db8::1", 61613
IPV6_FREEBIND = 78  # linux/in6.h; not in Python's socket module


class HomeBroker(Broker):
    """Listens at `HOME`."""

    host = f"[{HOME}]"


def call(address: str) -> socket.socket:
    """A connection from that address."""
    sock = socket.socket(socket.AF_INET6)
    sock.setsockopt(socket.IPPROTO_IPV6, IPV6_FREEBIND, 1)
    sock.settimeout(DEADLINE_S)
    sock.bind((address, 0))
    sock.connect((HOME, PORT))
    return sock


def told(sock: socket.socket) -> str:
    """The code of the broker's ERROR, or the name of another first frame."""
    data = b""
    while b"\0" not in data and (part := sock.recv(4096)):
        data += part
    code = re.search(rb"\ncode:(\w+)", data)
    return (code[1] if code else data.partition(b"\n")[0]).decode()


def log_in(address: str, passcode: str) -> str:
    with call(address) as sock:
        sock.sendall(encode("CONNECT", {"accept-version": "1.2", "login": "alice", "passcode": passcode}))
        return told(sock)


def stays_open(sock: socket.socket) -> str:
    """A login is refused where the limit was met; before that a connection says nothing."""
    sock.sendall(encode("CONNECT", {"accept-version": "1.2", "login": "alice", "passcode": "right"}))
    answer = told(sock)
    return "open" if answer == "CONNECTED" else answer


def main(folder: Path) -> None:
    add_user(str(folder / "users"), "alice", "right")
    options = {
        "usersFile": folder / "users",
        "anonymous": "no",
        "failedLoginsPerMinute": 3,
        "maxConnectionsPerAddress": 4,
        "auditLog": "all",
    }
    broker = HomeBroker(folder / "store", "a", PORT, options).start()
    try:
        broker.wait_event("master: serving clients")
        found: dict[str, object] = {
            "guesses of a network": [log_in(f"2001:db8:0:1::{number}", f"no {number}") for number in range(1, 7)],
            "a user of the next network": log_in("2001:db8:0:2::1", "right"),
        }
        sockets = [call(f"2001:db8:0:3::{number}") for number in range(1, 7)]
        found["connections of a network"] = [stays_open(sock) for sock in sockets]
        with call("2001:db8:0:4::1") as sock:
            found["a connection of the next network"] = stays_open(sock)
        found["peer"] = broker.wait_event("login refused")["peer"]
        for sock in sockets:
            sock.close()
        print(json.dumps(found))
    finally:
        broker.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
