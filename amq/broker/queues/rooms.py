"""Room: what the commands of a session wait for.

Sessions that wait for the same room form one line, so rooms are compared by what they are about. Each says whether it
is there, and whether acknowledgements of the waiting client can help to make it. If they can, the client is read on,
and the room gives the error for a client that only sends on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

from amq.broker.core import Core
from amq.broker.names import real_name
from amq.broker.queues.queue import Queue
from amq.broker.transactions.transaction import Transaction
from amq.core.errors import StoreFullError
from amq.core.units import format_size
from amq.journal.hidden import told_name

_CURE = "produce on a separate connection"


class Room(Protocol):
    """A reason to wait. `by_consumers` = acknowledgements can make room."""

    by_consumers: ClassVar[bool]

    def is_there(self, share: float) -> bool:
        """May the session go on? Less than `share` of each limit must be taken."""

    def lacking(self) -> StoreFullError:
        """The error for a session that cannot wait; asked only `by_consumers`."""


@dataclass(frozen=True, slots=True)
class MemoryRoom:
    """The broker's memory."""

    by_consumers: ClassVar[bool] = True
    core: Core

    def is_there(self, share: float) -> bool:
        return self.core.memory.taken_bytes < share * self.core.memory.limit_bytes

    def lacking(self) -> StoreFullError:
        return StoreFullError(
            f"the broker's memory limit is reached and this connection sends on: {_CURE}", code="MEMORY_FULL"
        )


@dataclass(frozen=True, slots=True)
class StoreRoom:
    """The store below its limit. A full disk is another matter: it is not known when there is room again, so all sends
    are rejected."""

    by_consumers: ClassVar[bool] = True
    core: Core

    def is_there(self, share: float = 1.0) -> bool:  # noqa: ARG002
        journal = self.core.journal
        return not journal.at_limit or journal.disk_full

    def lacking(self) -> StoreFullError:
        return StoreFullError(f"{self.description()}: {_CURE}", code="STORE_LIMIT")

    def description(self) -> str:
        """Name the limit that is reached, for the text of an error."""
        return f"the store is at its limit of {format_size(self.core.config.store_limit_bytes)} (storeLimit)"


@dataclass(frozen=True, slots=True)
class QueueRoom:
    """A queue below its limit. A queue that drops its oldest messages gives room as soon as `is_dropping` is
    false."""

    by_consumers: ClassVar[bool] = True
    queue: Queue
    is_dropping: Callable[[Queue], bool]

    def is_there(self, share: float) -> bool:
        queue = self.queue
        drops = queue.options.queue_limit_policy == "drop-oldest" and not self.is_dropping(queue)
        return drops or queue.taken_bytes < share * queue.limit_bytes

    def lacking(self) -> StoreFullError:
        return StoreFullError(f"{full(self.queue)}: {_CURE}", code="QUEUE_FULL")


@dataclass(frozen=True, slots=True)
class PromisedRoom:
    """A queue that is below its limit together with what prepared transactions hold for it, in the hidden queue
    `promised`."""

    by_consumers: ClassVar[bool] = True
    core: Core
    promised: Queue

    def is_there(self, share: float) -> bool:
        queue = self._queue()
        return queue.taken_bytes + self.promised.taken_bytes < share * queue.limit_bytes

    def lacking(self) -> StoreFullError:
        return StoreFullError(f"{full(self._queue())}: {_CURE}", code="QUEUE_FULL")

    def _queue(self) -> Queue:
        return self.core.state.queue(real_name(self.promised.name))


@dataclass(frozen=True, slots=True)
class EffectRoom:
    """The end of a large transaction that takes effect."""

    by_consumers: ClassVar[bool] = False
    core: Core

    def is_there(self, share: float) -> bool:  # noqa: ARG002
        return not self.core.is_taking_effect

    def lacking(self) -> StoreFullError:
        raise AssertionError("the client is not read")


@dataclass(frozen=True, slots=True)
class ReplayRoom:
    """The end of the retroactive replay into the queue of that full name."""

    by_consumers: ClassVar[bool] = True
    core: Core
    name: str

    def is_there(self, share: float) -> bool:  # noqa: ARG002
        return self.name not in self.core.replaying

    def lacking(self) -> StoreFullError:
        return StoreFullError(
            "the first messages of the durable subscription are being chosen and this connection sends on: wait for "
            f"the receipt of the subscription, or {_CURE}",
            code="MEMORY_FULL",
        )


@dataclass(frozen=True, slots=True)
class ReadyRoom:
    """A large transaction that is ready to commit: see `Readying`."""

    by_consumers: ClassVar[bool] = False
    transaction: Transaction

    def is_there(self, share: float) -> bool:  # noqa: ARG002
        return self.transaction.readiness is None or self.transaction.readiness.is_done

    def lacking(self) -> StoreFullError:
        raise AssertionError("the client is not read")


def full(queue: Queue) -> str:
    """`queue` is at its limit, as errors say it."""
    limit, name = format_size(queue.options.queue_limit_bytes), told_name(queue.name).replace("queue://", "queue ", 1)
    return f"{name} is at its limit of {limit} (queueLimit, queueLimitPolicy {queue.options.queue_limit_policy})"
