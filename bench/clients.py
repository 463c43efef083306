"""Producers and consumers of the soak: each a process with one raw socket that comes back to whoever is the master.

They know nothing of `amq` and keep the rules of any good client: a producer sends again, in order and under the same
duplicate id, what was not confirmed when the connection broke; a consumer acknowledges what it got and asks for a
receipt. Every step goes to the history (`bench.history`) before the bytes leave and after they came, so that the
checker can judge. On purpose they sometimes drop their connection in the midst of everything.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import math
import os
import random
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.history import HistoryWriter
from bench.wire import WireConnection, WireError, WireFrame, encode

HEARTBEAT_MS = 500
SILENCE_S = 2.0  # nothing heard for so long while something is due: try the others
CONNECT_TIMEOUT_S = 0.5
RETRY_PAUSE_S = 0.01
READ_S = 0.02
LEAVE_S = 10.0
BODY_BYTES_MAX = 2000
SUBSCRIPTION = "durable"  # of consumers of topics


@dataclasses.dataclass(frozen=True)
class WorkerPlan:
    """What a worker has to do. `drop_every` = about how many messages pass between connections dropped on purpose;
    `options` = of the failover URL of `bench.amq_clients`. A consumer of a topic is a durable subscriber."""

    worker: str
    role: str
    queue: str
    ports: tuple[int, ...]
    seed: int
    index: int
    window: int = 64
    per_s: float = 200.0
    ack: str = "client-individual"
    drop_every: int = 3000
    client_id: str = ""
    heartbeat_ms: int = HEARTBEAT_MS
    options: str = ""


class Scoreboard:
    """Counters that workers show and flags that the parent sets, in shared memory."""

    def __init__(self, context: Any, workers: int) -> None:
        self.confirmed = context.RawArray("q", workers)  # sends, or acknowledgements of distinct messages
        self.unknown = context.RawArray("q", workers)  # acknowledgements whose receipt was lost with the connection
        self.touched = context.RawArray("q", workers)  # sends, or deliveries, repeated ones included
        self.stop_producing = context.RawValue(ctypes.c_bool, False)
        self.stop_consuming = context.RawValue(ctypes.c_bool, False)


def body_of(message: str) -> bytes:
    """The body that belongs to a message's name: the name, then filler whose length and content follow from it."""
    digest = zlib.crc32(message.encode())
    size = digest % BODY_BYTES_MAX
    return f"{message}|".encode() + (b"%08x" % digest) * (size // 8)


class LoadWorker:
    """Connects, runs `serve` until it returns, connects again when the connection breaks."""

    retry_s = RETRY_PAUSE_S
    connect_s = CONNECT_TIMEOUT_S

    def __init__(self, plan: WorkerPlan, board: Scoreboard, directory: Path) -> None:
        self.plan = plan
        self.board = board
        self.random = random.Random(plan.seed)
        self.history = HistoryWriter(directory, plan.worker, plan.role, plan.queue)
        self.number = 0  # of the connection
        self.heard_s = 0.0
        self.until_drop = 0

    def run(self) -> None:
        try:
            while True:
                with contextlib.suppress(OSError, WireError), self._connect() as connection:
                    self.heard_s = time.monotonic()
                    self.until_drop = int(self.random.expovariate(1 / self.plan.drop_every)) + 1
                    if self.serve(connection):
                        return
                if self.gone():
                    return
                time.sleep(self.retry_s)
        finally:
            self.history.close()

    def serve(self, connection: WireConnection) -> bool:
        """Work on one connection. True = everything is done; False or an error = connect again."""
        raise NotImplementedError

    def gone(self) -> bool:
        """Whether to give up while there is no connection."""
        return bool(self.board.stop_consuming.value)

    def _connect(self) -> WireConnection:
        ports = list(self.plan.ports)
        self.random.shuffle(ports)
        for port in ports:
            with contextlib.suppress(OSError, WireError):
                connection = WireConnection(
                    port,
                    timeout_s=self.connect_s,
                    want_heartbeat_ms=self.plan.heartbeat_ms,
                    client_id=self.plan.client_id,
                    instance=self.plan.client_id and self.plan.worker,
                )
                self.number += 1
                epoch = connection.connected.headers.get("amq-epoch", "0")
                self.history.add("open", self.number, detail=f"{port}/{epoch}")
                return connection
        raise WireError("nobody answers")

    def read(self, connection: WireConnection, wait_s: float) -> Sequence[WireFrame]:
        """Frames within `wait_s`; raises when the broker has been silent for too long."""
        try:
            frames = connection.read(wait_s)
        except TimeoutError:
            if time.monotonic() - self.heard_s > self.patience_s(connection):
                raise
            return ()
        self.heard_s = time.monotonic()
        return frames

    def patience_s(self, connection: WireConnection) -> float:
        """How long the broker may be silent: less when an answer is due, else two of the heart-beats it promised."""
        if self.asks():
            return SILENCE_S
        promised_ms = int(connection.connected.headers.get("heart-beat", "0,0").partition(",")[0])
        return max(SILENCE_S, 2.5 * max(promised_ms, HEARTBEAT_MS) / 1000) if promised_ms else math.inf

    def asks(self) -> bool:
        """Whether something was asked for and is not answered."""
        raise NotImplementedError

    def drops(self, count: int) -> bool:
        """Whether it is time to drop the connection on purpose, after `count` more messages."""
        self.until_drop -= count
        return self.until_drop <= 0


class CheckedProducer(LoadWorker):
    """Sends `plan.per_s` messages a second in bursts, at most `plan.window` unconfirmed."""

    def __init__(self, plan: WorkerPlan, board: Scoreboard, directory: Path) -> None:
        super().__init__(plan, board, directory)
        self.serial = 0
        self.open: dict[str, bytes] = {}  # message → its frame, in the order of sending
        self.start_s = time.monotonic()

    def asks(self) -> bool:
        return bool(self.open)

    def serve(self, connection: WireConnection) -> bool:
        self.send(connection, list(self.open))
        while True:
            stopping = self.board.stop_producing.value
            if stopping and not self.open:
                return True
            if not stopping:
                self.send(connection, self._new_messages())
            for frame in self.read(connection, READ_S):
                if frame.command == "RECEIPT":
                    self.confirmed(frame.headers["receipt-id"])

    def confirmed(self, receipt: str) -> None:
        """The broker has sent this receipt, which has the name of a message."""
        if self.open.pop(receipt, None) is not None:
            self.history.add("sent", self.number, receipt)
            self.board.confirmed[self.plan.index] += 1

    def _new_messages(self) -> list[str]:
        due = int((time.monotonic() - self.start_s) * self.plan.per_s) - self.serial
        count = min(max(due, 0), self.plan.window - len(self.open))
        if due > self.plan.window:  # after a pause go on at the planned rate instead of making up for it
            self.start_s = time.monotonic() - (self.serial + count) / self.plan.per_s
        messages = []
        for _ in range(count):
            self.serial += 1
            message = f"{self.plan.worker}-{self.serial:08d}"
            headers = {"destination": self.plan.queue, "persistent": "true", "receipt": message}
            body = body_of(message)
            headers |= {"content-length": str(len(body)), "_AMQ_DUPL_ID": f"{self.plan.seed:x}-{message}"}
            self.open[message] = encode("SEND", headers, body)
            messages.append(message)
        return messages

    def send(self, connection: WireConnection, messages: Sequence[str]) -> None:
        if not messages:
            return
        for message in messages:
            self.history.add("send", self.number, message)
        self.board.touched[self.plan.index] += len(messages)
        data = b"".join([self.open[message] for message in messages])
        if self.drops(len(messages)):
            connection.send_bytes(data[: self.random.randrange(len(data))])
            raise WireError("dropped on purpose, in the midst of a frame")
        connection.send_bytes(data)


class CheckedConsumer(LoadWorker):
    """Acknowledges everything it gets, in batches of random size, and counts what is confirmed."""

    def __init__(self, plan: WorkerPlan, board: Scoreboard, directory: Path) -> None:
        super().__init__(plan, board, directory)
        self.done: set[str] = set()  # acknowledged and confirmed
        self.unknown: set[str] = set()  # acknowledged, the connection broke before the receipt, not seen again
        self.asked: dict[str, list[str]] = {}  # receipt → messages that it will confirm
        self.receipts = 0

    def asks(self) -> bool:
        return bool(self.asked)

    def serve(self, connection: WireConnection) -> bool:
        for messages in self.asked.values():
            self.unknown.update(messages)
        self.asked.clear()
        self._show()
        held: list[tuple[str, str]] = []  # (message, ack id) delivered, not acknowledged yet
        headers = {"id": "0", "destination": self.plan.queue, "ack": self.plan.ack}
        if self.plan.queue.startswith("/topic/"):
            headers["activemq.subscriptionName"] = SUBSCRIPTION
        connection.send("SUBSCRIBE", headers | {"activemq.prefetchSize": "100", "prefetch-count": "100"})
        leave_s = 0.0
        while True:
            frames = self.read(connection, READ_S)
            for frame in frames:
                if frame.command == "MESSAGE":
                    held.append(self._delivered(frame))
                elif frame.command == "RECEIPT":
                    if frame.headers["receipt-id"] == "bye":
                        return True
                    self._confirmed(self.asked.pop(frame.headers["receipt-id"]))
            if self.drops(sum(frame.command == "MESSAGE" for frame in frames)):
                raise WireError("dropped on purpose, with deliveries that nobody acknowledged")
            if held and not leave_s and (not frames or self.random.random() < 0.7):
                self.acknowledge(connection, held)
                held = []
            if self.board.stop_consuming.value:
                now_s = time.monotonic()
                if not leave_s:
                    # What the broker still wants to deliver comes before this receipt, and goes to the history.
                    connection.send("DISCONNECT", {"receipt": "bye"})
                    leave_s = now_s + LEAVE_S
                elif now_s > leave_s:
                    return True

    def _delivered(self, frame: WireFrame) -> tuple[str, str]:
        message = frame.body.partition(b"|")[0].decode(errors="replace")[:100]
        message = "".join(letter if letter.isprintable() else "?" for letter in message)
        self.history.add("recv", self.number, message, frame.headers.get("message-id", "").replace("\\c", ":"))
        if frame.body != body_of(message):
            self.history.add("bad", self.number, message, f"{len(frame.body)} bytes, {frame.body[:60]!r}")
        self.unknown.discard(message)
        self.board.touched[self.plan.index] += 1
        return message, frame.headers["ack"]

    def acknowledge(self, connection: WireConnection, held: Sequence[tuple[str, str]]) -> None:
        for message, _ in held:
            self.history.add("ack", self.number, message)
        groups = [list(held)] if self.plan.ack == "client" else [[item] for item in held]
        frames = []
        for group in groups:
            self.receipts += 1
            receipt = f"{self.plan.worker}.{self.receipts}"
            self.asked[receipt] = [message for message, _ in group]
            frames.append(encode("ACK", {"id": group[-1][1], "receipt": receipt}))
        connection.send_bytes(b"".join(frames))

    def _confirmed(self, messages: Sequence[str]) -> None:
        for message in messages:
            self.history.add("acked", self.number, message)
        self.done.update(messages)
        self._show()

    def _show(self) -> None:
        self.board.confirmed[self.plan.index] = len(self.done)
        self.board.unknown[self.plan.index] = len(self.unknown - self.done)


def work(plan: WorkerPlan, board: Scoreboard, directory: Path) -> None:
    """Body of a worker process."""
    os.nice(1)  # the brokers under test come first
    (CheckedProducer if plan.role == "producer" else CheckedConsumer)(plan, board, directory).run()
