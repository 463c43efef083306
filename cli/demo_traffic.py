"""The clients of the demos: one sends every line of the file, the other writes what it receives to the output. In a
cluster, one sends numbers to each queue, and another one takes them.

All are what an application would be: one thread, one connection by the failover URL. The receiver keeps the books that
the verdict needs. A message that was delivered again after a failover is dropped by its duplicate id; under another
message id it would have been stored twice, and after a confirmed acknowledgement it must not come at all.
"""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from collections.abc import Callable

from amq.client import Connection, ConnectionEvent, Consumer, DeliveryLostError, EventKind, Message, Session, connect

BATCH_MAX = 256
POLL_S = 0.2
PAUSE_S = 0.002
SEND_PAUSE_S = 0.005  # of numbers
NOTED_S = 0.05  # a shorter wait for a confirmation is no pause worth a note
CONNECT_S = 30.0


class LineClient(threading.Thread):
    """A client thread. `failure` is what ended it before its time."""

    def __init__(self, name: str, url: str) -> None:
        super().__init__(name=name)
        self.failovers = 0
        self.failure: BaseException | None = None
        self.connection: Connection | None = None
        self._url = url
        self._stopping = threading.Event()

    def run(self) -> None:
        try:
            with connect(self._url, on_event=self._on_event, timeout=CONNECT_S) as self.connection:
                self._work(self.connection)
        except Exception as error:  # noqa: BLE001 (kept for the main thread, which ends the demo with it)
            if not self._stopping.is_set():
                self.failure = error

    def stop(self) -> None:
        """End now, from any thread; whatever the client waits for raises."""
        self._stopping.set()
        if self.connection is not None:
            self.connection.abort()
        self.join()

    def _work(self, connection: Connection) -> None:
        raise NotImplementedError

    def _on_event(self, event: ConnectionEvent) -> None:
        if event.kind is EventKind.FAILOVER:
            self.failovers += 1


class LineSender(LineClient):
    """Sends each line of a file as one message, pipelined. Line `n` waits until `may_send(n)`."""

    def __init__(self, url: str, queue: str, path: str, may_send: Callable[[int], bool]) -> None:
        super().__init__("demo-sender", url)
        self.sent = 0
        self._queue = queue
        self._path = path
        self._may_send = may_send

    @property
    def confirmed(self) -> int:
        return self.sent - (self.connection.unconfirmed if self.connection is not None else 0)

    def _work(self, connection: Connection) -> None:
        with open(self._path, "rb") as lines, connection.session() as session:
            producer = session.producer(self._queue)
            for number, line in enumerate(lines):
                while not self._may_send(number):
                    if self._stopping.wait(PAUSE_S):
                        return
                producer.send(line, wait=False)
                self.sent = number + 1
            producer.flush()


class Taker(LineClient):
    """Takes the messages of a queue until `_is_done`, and acknowledges only what it has kept (`_keep`).

    received         messages that came, without those that came again
    dropped          deliveries of messages that had been kept already
    stored_twice     messages that came under two message ids: must stay 0
    acks_undone      messages that came again although their acknowledgement was confirmed: must stay 0
    first_after(t)   monotonic seconds of the first delivery after the first failover after t, 0 = none yet
    """

    def __init__(self, name: str, url: str, queue: str) -> None:
        super().__init__(name, url)
        self.received = 0
        self.dropped = 0
        self.stored_twice = 0
        self.acks_undone = 0
        self._queue = queue
        self._message_ids: dict[str, str] = {}  # duplicate id → message id of what was kept
        self._confirmed: set[str] = set()  # duplicate ids whose acknowledgement the broker has confirmed
        self._reconnected = False
        self._firsts: list[float] = []

    def first_after(self, killed_at: float) -> float:
        return next((at for at in self._firsts if at > killed_at), 0.0)

    @abstractmethod
    def _is_done(self) -> bool:
        """Has everything come?"""

    @abstractmethod
    def _keep(self, messages: list[Message]) -> None:
        """Keep what is new, in the order in which it came."""

    def _on_event(self, event: ConnectionEvent) -> None:
        super()._on_event(event)
        if event.kind is EventKind.FAILOVER:
            self._reconnected = True

    def _work(self, connection: Connection) -> None:
        with connection.session(ack="client") as session:
            consumer = session.consumer(self._queue, prefetch=1000)
            while not self._is_done() and not self._stopping.is_set():
                batch = self._take(consumer)
                if not batch:
                    self._clear_doubt(session)
                else:
                    self._keep([message for message in batch if self._is_new(message)])
                    self.received = len(self._message_ids)
                    self._acknowledge(batch)

    def _take(self, consumer: Consumer) -> list[Message]:
        batch: list[Message] = []
        while len(batch) < BATCH_MAX:
            message = consumer.receive(0 if batch else POLL_S)
            if message is None:
                break
            if self._reconnected:
                self._reconnected = False
                self._firsts.append(time.monotonic())
            batch.append(message)
        return batch

    def _is_new(self, message: Message) -> bool:
        """False for a message that was kept already; says which promise is broken, if one is."""
        known = self._message_ids.get(message.duplicate_id)
        if known is None:
            self._message_ids[message.duplicate_id] = message.id
            return True
        if known != message.id:
            self.stored_twice += 1
        elif message.duplicate_id in self._confirmed:
            self.acks_undone += 1
        else:
            self.dropped += 1
        return False

    def _acknowledge(self, batch: list[Message]) -> None:
        """Everything up to the last of the batch, and wait until the broker has confirmed that."""
        try:
            batch[-1].ack(wait=True)
        except DeliveryLostError:
            return  # the connection broke: whatever the broker does not know to be acknowledged comes again
        self._confirmed.update(message.duplicate_id for message in batch)

    def _clear_doubt(self, session: Session) -> None:
        """A broker that went away may have stored an acknowledgement that it did not confirm: the message does not
        come again. A browse shows what consumers hold, too, so what it does not show is acknowledged.
        """
        if not (doubted := self._message_ids.keys() - self._confirmed):
            return
        with session.browser(self._queue) as browser:
            while not browser.finished:
                doubted -= {message.duplicate_id for message in browser.receive_many(POLL_S)}
        self._confirmed |= doubted


class Receiver(Taker):
    """Writes `expected` lines to `output`."""

    def __init__(self, url: str, queue: str, output: str, expected: int) -> None:
        super().__init__("demo-receiver", url, queue)
        self._path = output
        self._expected = expected

    def _work(self, connection: Connection) -> None:
        with open(self._path, "wb") as self._output:
            super()._work(connection)

    def _is_done(self) -> bool:
        return self.received >= self._expected

    def _keep(self, messages: list[Message]) -> None:
        self._output.writelines(message.body for message in messages)
        self._output.flush()


class NumberSender(LineClient):
    """Sends 0, 1, 2 and so on, each one after the confirmation of the one before, until `finish`.

    confirmed  how many the broker has confirmed
    waits      those for a confirmation that took longer than NOTED_S
    """

    def __init__(self, url: str, queue: str) -> None:
        super().__init__(f"demo-sender of {queue}", url)
        self.confirmed = 0
        self._queue = queue
        self._finished = threading.Event()
        self.waits: list[tuple[float, float]] = []  # monotonic seconds: of sends, and of their confirmations

    def finish(self) -> None:
        self._finished.set()

    def longest_wait_s(self, since: float = 0.0) -> float:
        """From a send to its confirmation, among those that came after the monotonic seconds `since`."""
        return max((at - began for began, at in self.waits[:] if at > since), default=0.0)

    def _work(self, connection: Connection) -> None:
        with connection.session() as session:
            producer = session.producer(self._queue)
            while not self._finished.wait(SEND_PAUSE_S) and not self._stopping.is_set():
                began = time.monotonic()
                producer.send(b"%d" % self.confirmed)
                self.confirmed += 1
                at = time.monotonic()
                if at - began > NOTED_S:
                    self.waits.append((began, at))


class NumberTaker(Taker):
    """Keeps the numbers that come, until as many acknowledgements are confirmed as `expected()` says.

    disordered  numbers that came after a higher one: must stay 0
    """

    def __init__(self, url: str, queue: str, expected: Callable[[], int | None]) -> None:
        """`expected()` = how many numbers there are, None = not known yet."""
        super().__init__(f"demo-receiver of {queue}", url, queue)
        self.numbers: set[int] = set()
        self.disordered = 0
        self._highest = -1
        self._expected = expected

    def lost(self, confirmed: int) -> int:
        """How many of the first `confirmed` numbers have not come."""
        return len(set(range(confirmed)) - self.numbers)

    def _is_done(self) -> bool:
        expected = self._expected()
        return expected is not None and len(self._confirmed) >= expected

    def _keep(self, messages: list[Message]) -> None:
        for message in messages:
            number = int(message.body)
            self.disordered += number < self._highest
            self._highest = max(self._highest, number)
            self.numbers.add(number)
