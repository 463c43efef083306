"""A wall clock that is before 1970, as after the loss of a battery: nothing counts negative milliseconds."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from brokers import Brokers

import amq
from amq.doors.clock import SystemClock
from tests.patience import DEADLINE_S

BEFORE_1970 = "import time\ntime.time_ns = lambda: -86_400_000_000_000\n"


def test_a_clock_before_1970_counts_from_the_start_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: 1_500_000)
    assert SystemClock.wall_ms() == 1
    monkeypatch.setattr(time, "time_ns", lambda: -1)
    monkeypatch.setattr(time, "clock_gettime", {time.CLOCK_BOOTTIME: 12.3456}.get)
    assert SystemClock.wall_ms() == 12_345


def test_a_broker_and_a_client_before_1970_deliver(
    brokers: Brokers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Messages, delays and time-outs all work, also after a restart from the journal."""
    (tmp_path / "sitecustomize.py").write_text(BEFORE_1970)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(time, "time_ns", lambda: -86_400_000_000_000)
    broker = brokers.master("a")
    with amq.connect(f"stomp://127.0.0.1:{broker.port}") as connection:
        producer = connection.session().producer("/queue/q")
        producer.send("plain")
        producer.send("expires", time_to_live=0.001)
        producer.send("lives", time_to_live=1000)
        producer.send("late", delay=0.2)
    broker.kill()
    broker.start().wait_serving()
    with amq.connect(f"stomp://127.0.0.1:{broker.port}") as connection:
        consumer = connection.session().consumer("/queue/q")
        received = [consumer.receive(DEADLINE_S) for _ in range(3)]
    assert [message and message.text for message in received] == ["plain", "lives", "late"]
