"""Large transactions against real brokers: the takeover behind one, and what other clients notice of its commit."""

from __future__ import annotations

import select
from pathlib import Path

import pytest
from brokers import Brokers

from bench.wire import WireConnection, encode
from tests.patience import DEADLINE_S

MESSAGES = 250_000
PERIOD = "400ms"
STARTS_MAX = 10  # a busy machine may withhold its processor for longer than PERIOD, though not each time


def send_all(connection: WireConnection, messages: int, queue: str = "/queue/bulk") -> None:
    """Begin a transaction and send `messages` in it."""
    connection.send("BEGIN", {"transaction": "t"})
    frame = encode("SEND", {"destination": queue, "transaction": "t", "content-length": "4"}, b"body")
    for _ in range(messages // 1000):
        connection.socket.sendall(frame * 1000)


@pytest.mark.deep
def test_a_start_behind_a_large_transaction_keeps_its_first_mastership(tmp_path: Path) -> None:
    """The lease thread applied the transaction itself, longer than the lease may go unchecked: the store could not be
    started any more."""
    with Brokers(tmp_path, lockKeepAlivePeriod=PERIOD, checkpointDistance="0B") as brokers:
        broker = brokers.master()
        with broker.connect(timeout_s=DEADLINE_S) as connection:
            send_all(connection, MESSAGES)
            connection.send("COMMIT", {"transaction": "t", "receipt": "done"})
            connection.receipt("done", DEADLINE_S)
        starts = 0
        while starts == 0 or any(map(broker.said, ("fencing", "lease has run out", "mastership lost"))):
            assert starts < STARTS_MAX, broker.log_text()
            starts += 1
            broker.kill()
            broker.start().wait_serving()
            assert broker.said("journal read")[0]["messages"] == MESSAGES


@pytest.mark.deep
def test_others_are_served_while_a_large_transaction_commits(tmp_path: Path) -> None:
    """The event loop paused twice: while the COMMIT was encoded, and while it took effect."""
    with Brokers(tmp_path) as brokers:
        broker = brokers.master()
        with broker.connect(timeout_s=DEADLINE_S) as connection, broker.connect(timeout_s=DEADLINE_S) as other:
            send_all(connection, MESSAGES)
            words = {"destination": "/queue/other", "persistent": "false", "receipt": "other"}
            for _ in range(10):
                other.send("SEND", words)
                other.receipt("other", DEADLINE_S)
            connection.send("COMMIT", {"transaction": "t", "receipt": "done"})
            served = 0
            connection.socket.setblocking(False)
            while not _has_input(connection):
                other.send("SEND", words)
                other.receipt("other", DEADLINE_S)
                served += 1
            connection.socket.settimeout(DEADLINE_S)
            connection.receipt("done", DEADLINE_S)
        assert served > 30, "two or three before"


def _has_input(connection: WireConnection) -> bool:
    return bool(select.select([connection.socket], [], [], 0)[0])
