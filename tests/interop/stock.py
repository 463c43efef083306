"""stomp.py, unmodified, with a listener that tests can wait on."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import stomp  # type: ignore[import-untyped]
from brokers import Broker

from tests.patience import DEADLINE_S

VERSIONS: dict[str, Callable[..., Any]] = {
    "1.0": stomp.StompConnection10,
    "1.1": stomp.StompConnection11,
    "1.2": stomp.StompConnection12,
}
_receipts = itertools.count(1)


class Listener(stomp.ConnectionListener):  # type: ignore[misc]
    """Everything that the library told us."""

    def __init__(self) -> None:
        self.messages: list[Any] = []
        self.errors: list[Any] = []
        self.receipts: list[str] = []
        self.connects: list[Any] = []
        self.heartbeats = 0
        self.heartbeat_timeouts = 0
        self._changed = threading.Condition()

    def wait(self, condition: Callable[[], bool], what: str, timeout_s: float = DEADLINE_S) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, timeout_s), f"no {what}; errors: {self.errors}"

    def wait_messages(self, count: int, timeout_s: float = DEADLINE_S) -> list[Any]:
        self.wait(lambda: len(self.messages) >= count, f"{count} messages", timeout_s)
        return self.messages

    @contextlib.contextmanager
    def _note(self) -> Iterator[None]:
        with self._changed:
            yield
            self._changed.notify_all()

    def on_connected(self, frame: Any) -> None:
        with self._note():
            self.connects.append(frame)

    def on_message(self, frame: Any) -> None:
        with self._note():
            self.messages.append(frame)

    def on_error(self, frame: Any) -> None:
        with self._note():
            self.errors.append(frame)

    def on_receipt(self, frame: Any) -> None:
        with self._note():
            self.receipts.append(frame.headers["receipt-id"])

    def on_heartbeat(self) -> None:
        with self._note():
            self.heartbeats += 1

    def on_heartbeat_timeout(self) -> None:
        with self._note():
            self.heartbeat_timeouts += 1


class Stock:
    """A connection of stomp.py and its listener. `version` is the protocol's."""

    def __init__(self, brokers: Sequence[Broker], version: str = "1.2", **options: Any) -> None:
        self.version = version
        self.listener = Listener()
        options = {"try_loopback_connect": False, "prefer_localhost": False, "reconnect_attempts_max": 100} | options
        hosts = [("127.0.0.1", broker.port) for broker in brokers]
        self.connection = VERSIONS[version](hosts, **options)
        self.connection.set_listener("test", self.listener)

    def confirmed(self, act: Callable[..., Any], *words: Any, **headers: Any) -> None:
        """Call a method of the connection with a receipt, and wait for that."""
        receipt = f"r{next(_receipts)}"
        act(*words, receipt=receipt, **headers)
        self.listener.wait(
            lambda: receipt in self.listener.receipts or bool(self.listener.errors), f"receipt for {act.__name__}"
        )
        assert receipt in self.listener.receipts, [error.body for error in self.listener.errors]

    def send(self, body: str | bytes, queue: str = "/queue/a", **headers: Any) -> None:
        self.confirmed(self.connection.send, queue, body, **headers)

    def subscribe(self, queue: str = "/queue/a", ack: str = "auto", number: str = "1") -> None:
        self.connection.subscribe(queue, id=number, ack=ack)

    def ack(self, frame: Any, **options: Any) -> None:
        names = {"1.2": ["ack"], "1.1": ["message-id", "subscription"], "1.0": ["message-id"]}[self.version]
        self.confirmed(self.connection.ack, *(frame.headers[name] for name in names), **options)

    def __enter__(self) -> Stock:
        self.connection.connect(wait=True)
        return self

    def __exit__(self, *_: object) -> None:
        # After an error the broker closes the connection, and stomp.py learns of that at any moment.
        if not self.listener.errors and self.connection.is_connected():
            self.connection.disconnect(receipt=f"bye{next(_receipts)}")
        self.connection.transport.stop()
