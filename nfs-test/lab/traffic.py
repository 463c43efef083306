"""The clients of a run: producers and consumers over the failover URL, and a probe of each broker. They note what they
are told and judge nothing.

Invariant: `Sent` and `Acked` are noted only after the broker's receipt was read; `AckBegun` before the request leaves.
Times before a request are taken before, times after an answer are taken after: a checker that compares them errs to the
side of the broker by the time that a thread may be late, never to the other.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

import amq
from amq.client.errors import DeliveryLostError
from amq.core.errors import StoreFullError
from bench.wire import WireConnection as WireConnection
from bench.wire import WireError, WireFrame
from lab.broker import Broker
from lab.checker import nothing_lost
from lab.errors import ExpectationError
from lab.history import AckBegun, Acked, Closed, Delivered, History, Opened, Sent, now_s

QUEUE = "/queue/work"
PACE_S = 0.04
BIG_EVERY = 25  # messages; so that journal segments roll and are trimmed
BIG_BYTES = 48 << 10
PROBE_PACE_S = 0.05
QUIET_S = 1.5
QUIET_MAX_S = 20.0  # of a consumer that shall end, while confirmed messages have not come: a store may be handed over
UNCONFIRMED_MAX = 800  # of a probe: less than what the buffers of a stopped host take
LAST_RECEIPTS_S = 2.0  # how long a probe that shall end waits for them
SEND_DEADLINE_S = 5.0
DEFAULT = "default"  # the client that has no options
STORED = "-stored"  # ends the name of a probe's message that must be stored
HEART_BEAT_MS = 1000  # of clients and brokers
HEART_BEATS = (
    f"heart-beats every {HEART_BEAT_MS / 1000:g} s: a client leaves a silent host after {HEART_BEAT_MS / 500:g} s, "
    "with the defaults after 4 s"
)
OPTIONS = (
    f"?nested.heartBeat={HEART_BEAT_MS}&nested.connectTimeout=1000&maxReconnectDelay=100"
    "&timeout=180000&warnAfterReconnectAttempts=0"
)


class Traffic:
    """All clients. `start`, hurt brokers, `wait_confirmed`, `finish`."""

    def __init__(
        self,
        history: History,
        brokers: Sequence[Broker],
        queues: Sequence[str] = (),
        producers: int = 3,
        consumers: int = 2,
        default: bool = False,
    ) -> None:
        """With `default` one more producer, which has no option in its URL. `queues`: one producer and one consumer for
        each of these, and no probes, in the place of `producers` and `consumers` of one queue."""
        self.history = history
        self.default_url = f"failover:({','.join(broker.url for broker in brokers)})"
        self.url = self.default_url + OPTIONS
        self._hosts = {broker.guest.address: broker.name for broker in brokers}
        self._stop_producing, self._stop_consuming, self._stop_probing = (threading.Event() for _ in range(3))
        self._failures: list[str] = []
        self._refusals = 0
        sent_to, read_from = queues or [QUEUE] * producers, queues or [QUEUE] * consumers
        self._producers = [
            self._thread(f"producer{n}", partial(self._produce, f"p{n}", self.url, queue))
            for n, queue in enumerate(sent_to, start=1)
        ]
        if default:
            self._producers.append(self._thread(DEFAULT, partial(self._produce, DEFAULT, self.default_url, QUEUE)))
        self._consumers = [
            self._thread(f"consumer{n}", partial(self._consume, queue)) for n, queue in enumerate(read_from, start=1)
        ]
        self.probes = [Probe(history, broker, self._stop_probing) for broker in brokers if not queues]

    def start(self) -> None:
        for thread in (*self._producers, *self._consumers, *self.probes):
            thread.start()

    def confirmed(self) -> int:
        return sum(not sent.message.startswith("probe") for sent in self.history.of(Sent))

    @property
    def refusals(self) -> int:
        """How often the broker said that its store is full."""
        return self._refusals

    def wait(self, done: Callable[[], bool], what: str, timeout_s: float = 60.0) -> None:
        deadline = time.monotonic() + timeout_s
        while not done():
            self._raise_failures()
            if time.monotonic() > deadline:
                raise ExpectationError(f"clients: {what}: not within {timeout_s:g} s")
            time.sleep(0.02)

    def wait_each_confirmed(self, more: int, timeout_s: float = 60.0) -> None:
        """Until each producer has had so many messages more confirmed."""
        before = self._confirmed_by()

        def done() -> bool:
            now = self._confirmed_by()
            return len(now) == len(self._producers) and all(now[name] >= before[name] + more for name in now)

        self.wait(done, f"{more} more messages of each producer confirmed", timeout_s)

    def _confirmed_by(self) -> Counter[str]:
        return Counter(sent.message.partition("-")[0] for sent in self.history.of(Sent))

    def wait_confirmed(self, more: int, timeout_s: float = 60.0) -> None:
        target = self.confirmed() + more
        self.wait(lambda: self.confirmed() >= target, f"{more} more messages confirmed", timeout_s)

    def finish(self, timeout_s: float = 60.0) -> None:
        """Stop producing, wait until nothing is left to consume, stop all. ExpectationError when clients hang."""
        self._stop_producing.set()
        self._stop_probing.set()
        for thread in (*self._producers, *self.probes):
            self._join(thread, timeout_s)
        self._stop_consuming.set()  # each ends when its queue has been quiet for a while
        for thread in self._consumers:
            self._join(thread, timeout_s)
        self._raise_failures()

    def _join(self, thread: threading.Thread, timeout_s: float) -> None:
        thread.join(timeout_s)
        if thread.is_alive():
            raise ExpectationError(f"{thread.name} does not come to its end within {timeout_s:g} s")

    def _raise_failures(self) -> None:
        if self._failures:
            raise ExpectationError("; ".join(self._failures))

    def _thread(self, name: str, work: Callable[[], None]) -> threading.Thread:
        def run() -> None:
            try:
                work()
            except Exception as error:  # noqa: BLE001 - told to the thread that waits
                self._failures.append(f"{name}: {error!r}")

        return threading.Thread(target=run, name=name, daemon=True)

    def _host(self, connection: amq.Connection) -> str:
        uri = connection.uri
        return self._hosts[uri.host] if uri is not None else ""

    # -- one thread each -----------------------------------------------------------------------------------------------

    def _produce(self, name: str, url: str, queue: str) -> None:
        with amq.connect(url) as connection, connection.session() as session:
            producer = session.producer(queue)
            for number in itertools.count():
                if self._stop_producing.wait(PACE_S):
                    return
                message = f"{name}-{number}"
                body = message.encode() + b" " * (BIG_BYTES if number % BIG_EVERY == 0 else 0)
                began_s = now_s()
                while True:
                    try:
                        producer.send(body, duplicate_id=message)
                        break
                    except StoreFullError:
                        self._refusals += 1
                        if self._stop_producing.wait(0.5):
                            return
                self.history.note(Sent(message, self._host(connection), 0, began_s, now_s()))

    def _consume(self, queue: str) -> None:
        with amq.connect(self.url) as connection, connection.session() as session:
            consumer = session.consumer(queue, prefetch=20)
            heard_s = now_s()
            while True:
                got = consumer.receive(timeout=QUIET_S)
                if got is None:
                    if self._stop_consuming.is_set():
                        if now_s() - heard_s > QUIET_MAX_S or next(nothing_lost(self.history), None) is None:
                            return
                    else:
                        heard_s = now_s()
                    continue
                heard_s = now_s()
                message = got.text.partition(" ")[0]
                self.history.note(Delivered(message, self._host(connection), 0, now_s()))
                try:
                    self.history.note(AckBegun(message, now_s()))
                    got.ack(wait=True)
                except DeliveryLostError:
                    continue  # it comes again
                self.history.note(Acked(message, self._host(connection), now_s()))


class Probe(threading.Thread):
    """Talks to one broker alone, all the time, and never gives a connection up while the broker keeps it open.

    Sends messages that need not be stored (only the broker's lease keeps it from confirming them) and some that must,
    without waiting for receipts. Its parser is not the broker's.
    """

    def __init__(self, history: History, broker: Broker, stop: threading.Event) -> None:
        super().__init__(name=f"probe of {broker.name}", daemon=True)
        self._history = history
        self._broker = broker
        self._stop_probing = stop
        self._numbers = itertools.count()

    def run(self) -> None:
        while not self._stop_probing.is_set():
            try:
                connection = WireConnection(int(self._broker.url.rpartition(":")[2]), self._broker.guest.address, 1.0)
            except (OSError, WireError):
                self._stop_probing.wait(PROBE_PACE_S)
                continue
            with connection:
                self._talk(connection)

    def _talk(self, connection: WireConnection) -> None:
        host, epoch = self._broker.name, int(connection.connected.headers["amq-epoch"])
        self._history.note(Opened(host, epoch, now_s()))
        waiting: dict[str, float] = {}  # message → when its send began
        try:
            connection.send("SUBSCRIBE", {"destination": f"/queue/probe.{host}", "id": "probe", "ack": "auto"})
            next_s, patient_until_s = 0.0, float("inf")
            while time.monotonic() < patient_until_s and not (self._stop_probing.is_set() and not waiting):
                if self._stop_probing.is_set():
                    patient_until_s = min(patient_until_s, time.monotonic() + LAST_RECEIPTS_S)
                elif time.monotonic() >= next_s and len(waiting) < UNCONFIRMED_MAX:
                    next_s = time.monotonic() + PROBE_PACE_S
                    self._send(connection, waiting)
                try:
                    frames = connection.read(PROBE_PACE_S / 2)
                except TimeoutError:
                    continue
                for frame in frames:
                    self._note(frame, epoch, waiting)
        except (OSError, WireError):
            self._history.note(Closed(host, epoch, now_s()))

    def _send(self, connection: WireConnection, waiting: dict[str, float]) -> None:
        number = next(self._numbers)
        stored = number % 4 == 0
        name = f"probe-{self._broker.name}-{number}" + (STORED if stored else "")
        destination = QUEUE if stored else f"/queue/probe.{self._broker.name}"
        headers = {"destination": destination, "persistent": "true" if stored else "false", "receipt": name}
        waiting[name] = now_s()
        connection.socket.settimeout(SEND_DEADLINE_S)
        connection.send("SEND", headers, name.encode())

    def _note(self, frame: WireFrame, epoch: int, waiting: dict[str, float]) -> None:
        at_s, host = now_s(), self._broker.name
        if frame.command == "RECEIPT":
            name = frame.headers["receipt-id"]
            self._history.note(Sent(name, host, epoch, waiting.pop(name), at_s, name.endswith(STORED)))
        elif frame.command == "MESSAGE":
            self._history.note(Delivered(frame.body.decode(), host, epoch, at_s))
