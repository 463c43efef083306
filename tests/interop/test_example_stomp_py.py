"""examples/stomp_py.py sends through ten takeovers."""

from __future__ import annotations

import runpy
import threading
from pathlib import Path
from typing import Any

import pytest
from brokers import Brokers

import amq
from tests.patience import DEADLINE_S

pytestmark = pytest.mark.deep
PROGRAM = Path(__file__).resolve().parents[2] / "examples/stomp_py.py"
KILLS = 10


def sender(ports: list[int]) -> Any:
    """The `Sender` of the program, with the ports of this group."""
    return runpy.run_path(str(PROGRAM))["Sender"]([("127.0.0.1", port) for port in ports])


def test_each_message_is_stored_once_through_ten_kills(brokers: Brokers) -> None:
    group = [brokers.master("a"), brokers.slave("b")]
    found = sender([broker.port for broker in group])
    master, sent, stop = 0, [], threading.Event()

    def send() -> None:
        while not stop.is_set():
            found.send("/queue/orders", f"order {len(sent)}", id=f"order-{len(sent)}")
            sent.append(f"order {len(sent)}")

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    try:
        for _ in range(KILLS):
            before = len(sent)
            group[master].kill()
            master = 1 - master
            group[master].wait_serving()
            group[1 - master].start().wait_slave()
            _wait_for_more(sent, before + 10, thread)
    finally:
        stop.set()
        thread.join(DEADLINE_S)
    assert not thread.is_alive()
    with amq.connect(f"stomp://127.0.0.1:{group[master].port}") as connection, connection.session() as session:
        assert [message.text for message in session.browser("/queue/orders")] == sent


def _wait_for_more(sent: list[str], count: int, thread: threading.Thread) -> None:
    for _ in range(6000):
        if len(sent) >= count:
            return
        thread.join(0.01)
        assert thread.is_alive(), "the program ended"
    raise AssertionError(f"it sent {len(sent)} messages, and not {count}: it does not come back")
