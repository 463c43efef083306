"""One connection of a stock client, whichever it is: stomp.py, or stompit in a Node process.

A wire carries frames by the library's own calls and waits for their receipts; it knows nothing of failover. Invariant:
each `request` ends by its receipt, by `Refused` (the broker's ERROR) or by `Lost`, and what came before a loss can
still be received afterwards by nobody.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import subprocess
import threading
from collections import defaultdict, deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import stomp  # type: ignore[import-untyped]
from stomp.exception import StompException  # type: ignore[import-untyped]

from tests.patience import DEADLINE_S

DRIVER = Path(__file__).parent / "node" / "driver.js"


class Lost(Exception):
    """The connection is gone: what was not answered may have been carried out or not."""


class Refused(Exception):
    """The broker's ERROR: it did not carry this out. The connection ends with it."""


class Delivery(NamedTuple):
    """A MESSAGE, and the wire that brought it."""

    wire: Wire
    headers: dict[str, str]
    body: str


class Wire:
    """What the libraries have in common. They call `told_…` in threads of their own."""

    _numbers = itertools.count(1)

    def __init__(self) -> None:
        self.lost = ""  # why the connection is gone
        self._error = ""
        self._receipts: dict[str, dict[str, str]] = {}
        self._inboxes: dict[str, deque[Delivery]] = defaultdict(deque)
        self._changed = threading.Condition()

    def write(self, command: str, headers: dict[str, str], body: str, receipt: str) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def request(self, command: str, headers: Mapping[str, str], body: str = "") -> dict[str, str]:
        """Send a frame with a receipt and wait for that. Returns the headers of the RECEIPT, as far as known."""
        receipt = f"r{next(self._numbers)}"
        if self.lost:
            raise Lost(self.lost)
        self.write(command, dict(headers), body, receipt)
        with self._changed:
            if not self._changed.wait_for(lambda: receipt in self._receipts or self._error or self.lost, DEADLINE_S):
                raise AssertionError(f"no answer to {command} {headers}")
            if receipt in self._receipts:
                return self._receipts.pop(receipt)
        if self._error:
            raise Refused(self._error)
        raise Lost(self.lost)

    def receive(self, subscription: str, timeout_s: float) -> Delivery | None:
        """The next message of a subscription, None after `timeout_s`. Raises Lost: what waited comes again."""
        with self._changed:
            inbox = self._inboxes[subscription]
            self._changed.wait_for(lambda: inbox or self.lost, timeout_s)
            if self.lost:
                raise Lost(self.lost)
            return inbox.popleft() if inbox else None

    def wait_lost(self) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self.lost, DEADLINE_S), "the end of the connection was not noticed"

    def told_receipt(self, receipt: str, headers: dict[str, str]) -> None:
        with self._changed:
            self._receipts[receipt] = headers
            self._changed.notify_all()

    def told_message(self, headers: dict[str, str], body: str) -> None:
        with self._changed:
            self._inboxes[headers["subscription"]].append(Delivery(self, headers, body))
            self._changed.notify_all()

    def told_error(self, why: str) -> None:
        """An ERROR: the broker closes the connection."""
        with self._changed:
            self._error = why
            self.lost = self.lost or why
            self._changed.notify_all()

    def told_lost(self, why: str) -> None:
        with self._changed:
            self.lost = self.lost or why or "the connection broke"
            self._changed.notify_all()


class StompPyWire(Wire):
    """A connection of stomp.py. Raises Lost where there is no broker."""

    def __init__(self, port: int, headers: dict[str, str]) -> None:
        super().__init__()
        self._connection = stomp.StompConnection12(
            [("127.0.0.1", port)],
            try_loopback_connect=False,
            prefer_localhost=False,
            reconnect_attempts_max=1,
            reconnect_sleep_initial=0.0,
        )
        self._connection.set_listener("wire", _Listener(self))
        try:
            self._connection.connect(wait=True, headers=headers)
        except (StompException, OSError) as error:
            self._connection.transport.stop()
            raise Lost(f"port {port}: {error!r}") from None

    def write(self, command: str, headers: dict[str, str], body: str, receipt: str) -> None:
        try:
            self._write(command, headers, body, receipt)
        except (StompException, OSError) as error:
            raise Lost(repr(error)) from None

    def _write(self, command: str, headers: dict[str, str], body: str, receipt: str) -> None:
        connection = self._connection
        if command == "SEND":
            connection.send(headers.pop("destination"), body, headers=headers, receipt=receipt)
        elif command == "SUBSCRIBE":
            destination, id_, ack = (headers.pop(name) for name in ("destination", "id", "ack"))
            connection.subscribe(destination, id_, ack, headers=headers, receipt=receipt)
        elif command == "UNSUBSCRIBE":
            connection.unsubscribe(headers.pop("id"), headers=headers, receipt=receipt)
        elif command == "ACK":
            connection.ack(headers["id"], headers.get("transaction"), receipt)
        elif command == "NACK":
            connection.nack(headers.pop("id"), headers.pop("transaction", None), receipt, **headers)
        elif command in ("BEGIN", "COMMIT", "ABORT") and "transaction" in headers:
            getattr(connection, command.lower())(headers.pop("transaction"), headers=headers, receipt=receipt)
        else:
            connection.send_frame(command, headers | {"receipt": receipt})

    def close(self) -> None:
        if not self.lost:
            try:
                self.request("DISCONNECT", {})
            except Lost:
                self.lost = "closed"
        self._connection.transport.stop()


class _Listener(stomp.ConnectionListener):  # type: ignore[misc]
    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def on_receipt(self, frame: Any) -> None:
        self._wire.told_receipt(frame.headers["receipt-id"], frame.headers)

    def on_message(self, frame: Any) -> None:
        self._wire.told_message(frame.headers, frame.body)

    def on_error(self, frame: Any) -> None:
        self._wire.told_error(f"{frame.headers['message']} {frame.body}")

    def on_disconnected(self) -> None:
        self._wire.told_lost("stomp.py says: disconnected")


class Node:
    """The process in which stompit runs; `modules` is the folder that npm filled."""

    def __init__(self, modules: Path) -> None:
        self._wires: dict[int, NodeWire] = {}
        self._process = subprocess.Popen(
            [shutil.which("node") or "node", str(DRIVER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"NODE_PATH": str(modules)},
            text=True,
        )
        self._lock = threading.Lock()  # one line at a time
        self._reader = threading.Thread(target=self._read, name="stompit")
        self._reader.start()

    def connect(self, port: int, headers: dict[str, str]) -> NodeWire:
        return NodeWire(self, port, headers)

    def tell(self, wire: NodeWire, **order: Any) -> None:
        self._wires[wire.number] = wire
        assert self._process.stdin is not None
        assert self._process.poll() is None, f"the Node process has ended with code {self._process.returncode}"
        with self._lock:
            self._process.stdin.write(json.dumps({"wire": wire.number, **order}) + "\n")
            self._process.stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            event = json.loads(line)
            self._wires[event["wire"]].told(event)
        for wire in self._wires.values():
            wire.told_lost("the Node process has ended")

    def close(self) -> int:
        """Its exit code."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            with contextlib.suppress(BrokenPipeError):  # it has ended: its code says so
                self._process.stdin.close()
            code = self._process.wait(DEADLINE_S)
        finally:
            self._process.kill()
            self._process.wait()
            self._reader.join()
            self._process.stdout.close()
        return code


class NodeWire(Wire):
    """A connection of stompit. It does not tell the headers of a RECEIPT. Raises Lost where there is no broker."""

    def __init__(self, node: Node, port: int, headers: dict[str, str]) -> None:
        super().__init__()
        self.number = next(self._numbers)
        self._node = node
        self._open = False
        node.tell(self, open=port, headers=headers)
        with self._changed:
            assert self._changed.wait_for(lambda: self._open or self.lost, DEADLINE_S), "stompit does not connect"
        if self.lost:
            raise Lost(self.lost)

    def told(self, event: dict[str, Any]) -> None:
        what = event["event"]
        if what == "receipt":
            self.told_receipt(event["id"], {})
        elif what == "message":
            self.told_message(event["headers"], event["body"])
        elif what == "error":
            self.told_error(event["why"])
        elif what == "lost":
            self.told_lost(event["why"])
        else:
            with self._changed:
                self._open = True
                self._changed.notify_all()

    def write(self, command: str, headers: dict[str, str], body: str, receipt: str) -> None:
        self._node.tell(self, command=command, headers=headers, body=body, receipt=receipt)

    def close(self) -> None:
        if not self.lost:
            self._node.tell(self, close=True)
            self.wait_lost()
