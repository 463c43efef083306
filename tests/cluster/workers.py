"""The clients of `tests.cluster.kills`: those of the soak, with transactions, and with the patience that a cluster on a
busy machine needs. They write the same history, which `bench.checker` judges.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from bench import amq_clients
from bench.clients import SUBSCRIPTION, CheckedConsumer, CheckedProducer, LoadWorker, Scoreboard, WorkerPlan
from bench.wire import WireConnection, WireError, WireFrame, encode

AMQ, TRANSACTED = "amq", "transacted"  # how a worker works, in its name
PATIENCE_S, PATIENCE_S_MAX = 4.0, 60.0
STORED_BEFORE = re.compile(r"message [0-9a-f]+-(\S+) was stored before: the whole transaction")


class Patient(LoadWorker):
    """It leaves a gateway that does not answer, and waits longer for each that follows, until one does."""

    retry_s = 0.1
    connect_s = PATIENCE_S

    def patience_s(self, connection: WireConnection) -> float:
        return self.connect_s if self.asks() else max(self.connect_s, super().patience_s(connection))

    def read(self, connection: WireConnection, wait_s: float) -> Sequence[WireFrame]:
        try:
            frames = super().read(connection, wait_s)
        except TimeoutError:
            self.connect_s = min(2 * self.connect_s, PATIENCE_S_MAX)
            raise
        if frames:
            self.connect_s = PATIENCE_S
        return frames

    def _connect(self) -> WireConnection:
        try:
            return super()._connect()
        except WireError:
            self.connect_s = min(2 * self.connect_s, PATIENCE_S_MAX)
            raise


class Producer(Patient, CheckedProducer):
    pass


class Consumer(Patient, CheckedConsumer):
    pass


class TransactedProducer(Producer):
    """What it sends at a time is one transaction. After a failure it sends each again as it was: where a message of one
    was stored before, all of it was."""

    def __init__(self, plan: WorkerPlan, board: Scoreboard, directory: Path) -> None:
        super().__init__(plan, board, directory)
        self._count = 0
        self._sent: dict[str, list[str]] = {}  # transaction → its messages, until it is confirmed

    def serve(self, connection: WireConnection) -> bool:
        try:
            for name in self._sent:
                self._send_again(connection, name)
            return super().serve(connection)
        except WireError as error:
            found = STORED_BEFORE.search(str(error))
            if found is not None:
                self.confirmed(next(name for name, messages in self._sent.items() if found[1] in messages))
            raise

    def send(self, connection: WireConnection, messages: Sequence[str]) -> None:
        known = {message for sent in self._sent.values() for message in sent}
        new = [message for message in messages if message not in known]
        if new:
            self._count += 1
            name = f"{self.plan.worker}.{self._count}"
            self._sent[name] = new
            self._send_again(connection, name)

    def _send_again(self, connection: WireConnection, name: str) -> None:
        data = [encode("BEGIN", {"transaction": name})]
        for message in self._sent[name]:
            self.history.add("send", self.number, message)
            receipt, part_of = f"receipt:{message}\n".encode(), f"transaction:{name}\n".encode()
            data.append(self.open[message].replace(receipt, part_of, 1))
        self.board.touched[self.plan.index] += len(self._sent[name])
        connection.send_bytes(b"".join([*data, encode("COMMIT", {"transaction": name, "receipt": name})]))

    def confirmed(self, receipt: str) -> None:
        for message in self._sent.pop(receipt):
            super().confirmed(message)


class TransactedConsumer(Consumer):
    """What it acknowledges at a time is one transaction."""

    def acknowledge(self, connection: WireConnection, held: Sequence[tuple[str, str]]) -> None:
        self.receipts += 1
        name = f"{self.plan.worker}.{self.receipts}"
        self.asked[name] = [message for message, _ in held]
        frames = [encode("BEGIN", {"transaction": name})]
        for message, ack in held:
            self.history.add("ack", self.number, message)
            frames.append(encode("ACK", {"id": ack, "transaction": name}))
        connection.send_bytes(b"".join([*frames, encode("COMMIT", {"transaction": name, "receipt": name})]))


def work(plan: WorkerPlan, board: Scoreboard, directory: Path) -> None:
    """Body of a worker process."""
    if AMQ in plan.worker.split("."):
        amq_clients.work(plan, board, directory)
        return
    os.nice(1)  # the nodes under test come first
    is_transacted = TRANSACTED in plan.worker.split(".")
    if plan.role == "producer":
        made: LoadWorker = (TransactedProducer if is_transacted else Producer)(plan, board, directory)
    else:
        made = (TransactedConsumer if is_transacted else Consumer)(plan, board, directory)
    made.run()


def subscribe_durably(plan: WorkerPlan, patience_s: float) -> None:
    """Begin the durable subscription of a consumer of a topic, before anything is sent to that."""
    until = time.monotonic() + patience_s
    while True:
        with (
            suppress(OSError, WireError),
            WireConnection(plan.ports[0], timeout_s=PATIENCE_S_MAX, client_id=plan.client_id) as connection,
        ):
            headers = {"id": "0", "destination": plan.queue, "ack": "client", "activemq.subscriptionName": SUBSCRIPTION}
            connection.send("SUBSCRIBE", headers | {"receipt": "begun"})
            connection.receipt("begun", PATIENCE_S_MAX)
            connection.send("DISCONNECT", {"receipt": "bye"})
            connection.receipt("bye", PATIENCE_S_MAX)
            return
        if time.monotonic() > until:
            raise TimeoutError(f"no durable subscription to {plan.queue} within {patience_s:g} s")
        time.sleep(Patient.retry_s)
