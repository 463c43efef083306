"""Script: what workloads are written with: a disk, brokers one after the other, a client, and the oracle.

Invariant: what a client asks for is attempted in the oracle before it can reach the disk, and decided in the turn in
which the client is told.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from amq.core.errors import AmqError
from tests.broker.world import Client
from tests.crash.disk import Disk
from tests.crash.oracle import BROKEN, OUTCOME, PUT, REMEMBER, TAKE, Effect, Operation, Oracle, Violation
from tests.crash.process import CONFIG, Process


def body_of(name: str, size: int = 700) -> bytes:
    return f"<{name}>".encode().ljust(size, b".")


class RehearsalError(Exception):
    """The workload does not do what it is there for."""


class Script:
    """One disk, one serving broker at a time, one client at a time, and the oracle that hears all of it. What a client
    asks for reaches the disk with the next `step` or `settle`."""

    def __init__(self, capacity: int = 1 << 40, allocates: bool = True, **config: Any) -> None:
        self.config = config
        self.disk = Disk(capacity=capacity, allocates=allocates)
        self.oracle = Oracle({**CONFIG, **config}["duplicate_window"])
        self._waiting: dict[tuple[Client, str], Operation] = {}
        self.start("first")

    # -- processes ----------------------------------------------------------------------------------------------------

    def start(self, name: str, host: str = "") -> None:
        """A process takes over and serves: what it found stands from the moment it may have shown it."""
        try:
            self.broker = Process(self.disk, name, host, settle=False, **self.config)
        except AmqError as error:
            raise Violation(f"a takeover in the workload failed: {error}") from error
        self.broker.decided = self._decided
        self.oracle.observe(self.broker.shown_at, self.broker.found)
        self.settle()
        self.client = self.broker.connect()

    def step(self, count: int = 1) -> None:
        """`count` times a turn and one thing of the journal thread: what came in then is on its way."""
        for _ in range(count):
            self.broker.turn()
            self.broker.runner.step()

    def step_until(self, condition: Callable[[], bool], why: str) -> None:
        """Up to the moment of which `why` tells."""
        while not condition():
            self.broker.turn()
            self.require(self.broker.runner.step(), why)

    def step_until_written(self, end: bytes) -> None:
        """Up to a write that ends so. Nobody learned of it as yet."""
        calls = len(self.disk.log)
        self.step_until(lambda: any(call.data.endswith(end) for call in self.disk.log[calls:]), f"{end!r} is written")

    def settle(self) -> None:
        """Everything happens that can. What the broker itself is sure of must hold."""
        try:
            self.broker.settle()
            self.broker.check()
            assert not self.broker.failures
        except BROKEN as error:
            raise Violation(f"at work: {error!r}") from error

    def require(self, condition: bool, why: str) -> None:
        """This run is worth exploring."""
        if not condition:
            raise RehearsalError(why)

    def _decided(self, client: Client, receipt: str, code: str) -> None:
        operation = self._waiting.pop((client, receipt), None)
        if operation is not None:
            self.oracle.decide(operation, len(self.disk.log), not code)

    # -- a client -----------------------------------------------------------------------------------------------------

    def expect(self, receipt: str, *effects: Effect) -> None:
        self._waiting[self.client, receipt] = self.oracle.attempt(len(self.disk.log), *effects)

    def reconnect(self) -> None:
        """The client is gone without a word; another one comes."""
        self.client.lose()
        self.client = self.broker.connect()

    def send(self, name: str, queue: str = "a", size: int = 700, dup: str = "") -> None:
        body = body_of(name, size)
        ids: list[Effect] = [(REMEMBER, queue, dup)] if dup else []
        self.expect(self.client.send(body, queue, duplicate_id=dup), (PUT, queue, body), *ids)

    def resend(self, name: str, queue: str, dup: str) -> None:
        """A failover client that saw no receipt sends again: confirmed, stored once."""
        self.expect(self.client.send(body_of(name), queue, duplicate_id=dup))

    def ack(self, *names: str, queue: str = "a") -> None:
        for name in names:
            body = self.delivered(name)
            self.expect(self.client.ack(body), (TAKE, queue, body))

    def nack(self, name: str, queue: str = "a") -> None:
        """Refused: it moves to the dead-letter queue."""
        body = self.delivered(name)
        self.expect(self.client.nack(body), (TAKE, queue, body), (PUT, "DLQ." + queue, body))

    def transact(
        self, sends: list[tuple[str, str]], acks: list[tuple[str, str]], outcome: str = "", abort: bool = False
    ) -> None:
        """A transaction over sends (name, queue), each with a duplicate id, and acknowledgements (name, queue)."""
        self.client.begin()
        effects: list[Effect] = []
        for name, queue in sends:
            self.client.send(body_of(name), queue, transaction="t", duplicate_id=f"id of {name}")
            effects += [(PUT, queue, body_of(name)), (REMEMBER, queue, f"id of {name}")]
        for name, queue in acks:
            body = self.delivered(name)
            self.client.ack(body, "t")
            effects.append((TAKE, queue, body))
        if outcome:
            effects.append((OUTCOME, "", outcome))
        if abort:
            self.client.abort()
        else:
            self.expect(self.client.commit(outcome_id=outcome), *effects)

    def delivered(self, name: str) -> bytes:
        found = [body for body in self.client.bodies if body.startswith(f"<{name}>".encode())]
        self.require(len(found) > 0, f"{name} is delivered")
        return found[0]
