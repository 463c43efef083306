"""The program for stomp.py in README.md sends through ten takeovers, as a reader pastes it."""

from __future__ import annotations

import re
import threading
from pathlib import Path
from typing import Any

import pytest
from brokers import Brokers

import amq

pytestmark = pytest.mark.deep
README = Path(__file__).resolve().parents[2] / "README.md"
KILLS = 10


def sender(ports: list[int]) -> Any:
    """The `Sender` of README.md, with the ports of this group."""
    (program,) = re.findall(r"```python\n(import queue\n.*?)```", README.read_text(), re.DOTALL)
    definitions, _, _ = program.partition("\nsender = ")
    found: dict[str, Any] = {}
    exec(compile(definitions, "README.md", "exec"), found)
    return found["Sender"]([("127.0.0.1", port) for port in ports])


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
        thread.join(60)
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
