"""Clients for tests that hurt brokers: a producer that resends what was not confirmed, and a drain of a queue.

They speak STOMP through `bench.wire`, which shares no code with the broker. Invariant: `confirmed` holds exactly those
messages whose RECEIPT was read.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from bench.wire import WireConnection, WireError
from tests.brokers import Broker
from tests.patience import DEADLINE_S

QUEUE = "/queue/orders"
WINDOW = 20  # messages that a producer has unconfirmed


def connect_any(brokers: Sequence[Broker], timeout_s: float = DEADLINE_S) -> WireConnection:
    """A connection to whichever of `brokers` serves clients, as a failover client would find it."""
    deadline, patience_s = time.monotonic() + timeout_s, 1.0
    while True:
        for broker in brokers:
            try:
                return WireConnection(broker.port, timeout_s=patience_s)  # a process that is stopped answers nothing
            except TimeoutError:
                patience_s = min(2 * patience_s, timeout_s)  # or the machine is slow
            except (OSError, WireError):
                continue
        logs = "\n".join(f"{broker.name}:\n{broker.log_text()}" for broker in brokers)
        assert time.monotonic() < deadline, f"no master within {timeout_s:g} s\n{logs}"
        time.sleep(0.01)


def send(
    connection: WireConnection, body: bytes, *, queue: str = QUEUE, timeout_s: float = DEADLINE_S, **headers: str
) -> None:
    """Send one message and wait until it is confirmed. WireError where the broker refuses it."""
    words = {"destination": queue, "receipt": "sent", "content-length": str(len(body))} | headers
    connection.send("SEND", words, body)
    connection.receipt("sent", timeout_s)


class Producer(threading.Thread):
    """Sends numbered messages, `window` unconfirmed at a time, until stopped; resends after every failure under the
    same `_AMQ_DUPL_ID`, as a failover client does. A broker that confirms nothing for `patience_s` is left. The numbers
    begin with `first`, and with `pause_s` it rests so long after each confirmation."""

    def __init__(
        self,
        brokers: Sequence[Broker],
        window: int = WINDOW,
        queue: str = QUEUE,
        patience_s: float = DEADLINE_S,
        *,
        first: int = 0,
        pause_s: float = 0.0,
    ) -> None:
        super().__init__(name="producer", daemon=True)  # a failed test ends without it
        self.confirmed: list[int] = []
        self.failure: BaseException | None = None
        self.failovers = 0
        self.longest_s = 0.0  # between two confirmations, since somebody set it
        self._brokers = brokers
        self._window = window
        self._patience_s = patience_s
        self.queue = queue
        self._first = first
        self._pause_s = pause_s
        self._stopping = threading.Event()
        self._progress = threading.Condition()

    def wait_confirmed(self, more: int, timeout_s: float = DEADLINE_S) -> None:
        """Until `more` messages were confirmed from now on."""
        with self._progress:
            target = len(self.confirmed) + more
            done = self._progress.wait_for(lambda: len(self.confirmed) >= target or self.failure is not None, timeout_s)
        assert done, f"only {len(self.confirmed)} of {target} messages confirmed within {timeout_s:g} s"
        assert self.failure is None, repr(self.failure)

    def stop(self) -> list[int]:
        """End after what is on its way was confirmed; the numbers of all confirmed messages."""
        self._stopping.set()
        self.join()
        assert self.failure is None, repr(self.failure)
        return self.confirmed

    def run(self) -> None:
        try:
            self._produce()
        except BaseException as error:  # noqa: BLE001 - handed to the thread that waits
            with self._progress:
                self.failure = error
                self._progress.notify_all()

    def _produce(self) -> None:
        number = self._first
        unconfirmed: list[int] = []
        confirmed_s = time.monotonic()
        while unconfirmed or not self._stopping.is_set():
            try:
                with connect_any(self._brokers) as connection:
                    for resent in unconfirmed:
                        self._send(connection, resent)
                    while unconfirmed or not self._stopping.is_set():
                        while len(unconfirmed) < self._window and not self._stopping.is_set():
                            unconfirmed.append(number)  # before it is sent: who knows how far it comes
                            number += 1
                            self._send(connection, unconfirmed[-1])
                        first = unconfirmed[0]
                        connection.receipt(str(first), self._patience_s)
                        now_s = time.monotonic()
                        with self._progress:
                            self.longest_s = max(self.longest_s, now_s - confirmed_s)
                            confirmed_s = now_s
                            self.confirmed.append(unconfirmed.pop(0))
                            self._progress.notify_all()
                        if self._pause_s:
                            self._stopping.wait(self._pause_s)
            except (OSError, WireError):
                self.failovers += 1

    def _send(self, connection: WireConnection, number: int) -> None:
        body = f"message {number}".encode()
        headers = {"destination": self.queue, "receipt": number, "_AMQ_DUPL_ID": f"id-{number}"}
        connection.send("SEND", headers, body)


def drain(connection: WireConnection, expected: int, queue: str = QUEUE, timeout_s: float = DEADLINE_S) -> list[bytes]:
    """Consume and acknowledge all that is in `queue`, in the order of delivery; `expected` only says how much to await.

    Ends with a sentinel sent behind everything, so that one message too many is seen as well as one too few. Nothing is
    acknowledged before that. So where the store behind a gateway gets another master, all of it comes again from the
    first message on, with the same ids, and counts anew: a message that is stored twice has two ids.
    """
    bodies, last = _deliveries(connection, expected, queue, timeout_s)
    connection.send("ACK", {"id": last, "receipt": "drained"})
    connection.receipt("drained", timeout_s)
    connection.send("UNSUBSCRIBE", {"id": "drain", "receipt": "left"})
    connection.receipt("left", timeout_s)
    return bodies


def deliveries(
    brokers: Sequence[Broker], expected: int, queue: str = QUEUE, timeout_s: float = DEADLINE_S
) -> list[bytes]:
    """What a consumer at the master among `brokers` gets, in the order of delivery, as by `drain`. It acknowledges
    nothing: so it asks again where a master only now sees that it must leave its clients, as one may that has
    confirmed all that a test waits for."""
    until = time.monotonic() + timeout_s
    while True:
        with connect_any(brokers, timeout_s) as connection:
            try:
                return _deliveries(connection, expected, queue, timeout_s)[0]
            except (OSError, WireError):
                if time.monotonic() > until:
                    raise


def check_all_kept(brokers: Sequence[Broker], producer: Producer) -> None:
    """Every message that was confirmed is there, once, in the order in which it was sent."""
    confirmed = producer.stop()
    bodies = [int(body.split()[1]) for body in deliveries(brokers, len(confirmed), producer.queue)]
    assert bodies == sorted(set(bodies)), "stored twice, or out of order"
    assert set(confirmed) <= set(bodies)


def _deliveries(connection: WireConnection, expected: int, queue: str, timeout_s: float) -> tuple[list[bytes], str]:
    """The bodies before the first sentinel, and the id by which that is acknowledged with all before it."""
    send(connection, b"the end", queue=queue)
    prefetch = expected + 10
    connection.send("SUBSCRIBE", {"destination": queue, "id": "drain", "ack": "client", "prefetch-count": prefetch})
    bodies: dict[str, bytes] = {}
    while True:
        frame = connection.next_frame(timeout_s)
        if frame.command != "MESSAGE":
            continue
        if frame.body == b"the end":
            return [*bodies.values()], frame.headers["ack"]
        id = frame.headers["message-id"]
        if id in bodies:
            bodies.clear()
        bodies[id] = frame.body
