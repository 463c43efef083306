"""Ports for the brokers of tests.

A port that is asked of the kernel and let go again may be given to another connection before the broker listens on it.
These lie below the range of outgoing connections, no port is named twice in a process, and each process begins
elsewhere: several runs of the tests beside each other seldom meet. The processes of one run never do: a broker that
restarts on its port finds it free.
"""

from __future__ import annotations

import itertools
import os
import socket
from pathlib import Path

PORTS = range(10_240, 32_768)  # Linux gives 32768 and above to outgoing connections (ip_local_port_range)
STRIDE = 7_919  # a prime: neighbours in process ids begin far from each other


def share(worker: str, workers: int) -> range:
    """The ports of the process `worker` of pytest-xdist, "gw0" is the first of `workers`."""
    return PORTS[int(worker.removeprefix("gw")) :: workers]


_ours = share(os.environ.get("PYTEST_XDIST_WORKER", "gw0"), int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))
_first = os.getpid() * STRIDE % len(_ours)
_ports = itertools.cycle([*_ours[_first:], *_ours[:_first]])


def free_port() -> int:
    """A TCP port of the loopback interface that nobody listens on, and that no other test learns of."""
    for port in itertools.islice(_ports, len(_ours)):
        with socket.socket() as sock:
            try:
                sock.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError(f"all of our ports from {PORTS[0]} to {PORTS[-1]} are in use")


def unread(port: int) -> int:
    """How many established connections to this port hold bytes that the process has not read: see proc(5)."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    ours = [row for row in rows if row[1].endswith(f":{port:04X}") and row[3] == "01"]
    return sum(row[4].split(":")[1] != "00000000" for row in ours)
