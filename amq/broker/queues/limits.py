"""Limits: what becomes of sends where memory, the store or their queue is full, and of the oldest messages of a queue
that drops those.

Consumers always go on. A session whose commands wait is in `waiting`, under the `Room` that the first of these
commands waits for; what makes that room wakes a turn, and the turn looks. A queue takes messages as long as it is
below its limit, so one message or transaction may lead past it, and no message is too large for an empty queue.
Messages on their way to the disk count as if they were stored.
"""

from __future__ import annotations

from functools import partial
from typing import Protocol

from amq.broker.core import Core
from amq.broker.events import MemoryLimitLeft, MemoryLimitReached, QueueLimitLeft, QueueLimitReached
from amq.broker.queues.queue import Queue
from amq.broker.queues.redelivery import Redelivery
from amq.broker.queues.rooms import MemoryRoom, PromisedRoom, QueueRoom, Room, StoreRoom, full
from amq.broker.topics.durables import Durables
from amq.broker.transactions.transaction import Transaction
from amq.core.errors import StoreFullError, TransactionRolledBackError
from amq.core.message import Message
from amq.journal.hidden import SENT_SCHEME

GO_ON_SHARE = 0.9  # of a limit: when less is taken producers go on
LEFT_SHARE = 0.75  # of a limit: when less is taken the log says so; lower, so that it is not said every second
DROP_BYTES = 256 << 10  # of messages in one record that drops them
DROPPING_BYTES_MAX = 4 << 20  # of one queue, on their way out
DROPPED = "queue limit"  # the reason in dead letters


class Stalled(Protocol):
    """A session whose commands wait."""

    def unstall(self) -> None:
        """There is room again."""

    def read_on(self) -> None:
        """There is none yet; but what the session was given meanwhile may be acknowledged."""


class Dropping:
    """Messages of `queue` whose leaving is on its way to the disk. The journal tells what became of it."""

    def __init__(self, limits: Limits, queue: Queue, size: int) -> None:
        self._limits = limits
        self._queue = queue
        self._size = size

    def done(self, result: str = "") -> None:  # noqa: ARG002
        self._limits.dropped(self._queue, self._size)

    def failed(self, error: Exception) -> None:  # noqa: ARG002
        """They are back in their places."""
        self._limits.dropped(self._queue, self._size)


class Limits:
    """Ask `room_for` and `room_to_commit` before something is stored. Call `step` once a turn, and `sweep`
    every second."""

    def __init__(self, core: Core, redelivery: Redelivery, durables: Durables) -> None:
        self.waiting: dict[Room, dict[Stalled, bool]] = {}  # → does it consume as well?
        self._core = core
        self._memory, self._store = MemoryRoom(core), StoreRoom(core)
        self._redelivery = redelivery
        self._durables = durables
        self.overfull: dict[Queue, None] = {}  # queues that hold too much and drop it
        self._dropping: dict[Queue, int] = {}  # bytes of messages whose leaving is on its way
        self._reached: dict[Queue, None] = {}  # as was told
        self._memory_reached = False  # as was told

    # -- sends --------------------------------------------------------------------------------------------------------

    def room_for(self, message: Message, queue: Queue | None, in_transaction: bool) -> Room | None:
        """The room that a send must wait for, None = none. Raises StoreFullError where it is refused."""
        core = self._core
        config = core.config
        fails = config.producer_flow_control == "fail"
        if not in_transaction and message.persistent and message.duplicate_id and core.is_duplicate(message):
            return None
        if core.memory.is_full:
            self._reach_memory()
            if fails:
                raise StoreFullError("the broker's memory limit is reached: send again later", code="MEMORY_FULL")
            return self._memory
        if in_transaction:  # it counts when that commits
            return None
        if message.persistent and not self._store.is_there():
            if fails:
                raise StoreFullError(
                    f"{self._store.description()}: the message was not stored, send it again later", code="STORE_LIMIT"
                )
            return self._store
        if queue is None or queue.taken_bytes < queue.limit_bytes:
            return None
        self._reach(queue)
        policy = queue.options.queue_limit_policy
        if policy == "fail":
            raise StoreFullError(f"{full(queue)}: the message was not stored, send it again later", code="QUEUE_FULL")
        return None if policy == "drop-oldest" and not self._is_dropping(queue) else self._room_in(queue)

    def room_to_commit(self, transaction: Transaction, prepares: bool = False) -> Room | None:
        """The room that a commit must wait for, or with `prepares` the first phase of one, None = none. Raises
        TransactionRolledBackError where it is refused.

        The messages that the transaction takes out of a queue make room there for those that it sends: it must not
        wait for itself.
        """
        queues = self._core.state.queues
        ready = transaction.readiness
        # queue → does something persistent come there?
        into = ready.into if ready is not None else self._copied_to(transaction)
        for item in transaction.queued if ready is None else ():
            into[item.queue_name] = item.persistent or into.get(item.queue_name, False)
        if any(into.values()) and not self._store.is_there():
            if self._core.config.producer_flow_control == "fail":
                raise TransactionRolledBackError(
                    f"{self._store.description()}: the transaction was rolled back, try again later", code="STORE_LIMIT"
                )
            return self._store
        wanted: Room | None = None
        for name in into:
            promised = queues.get(SENT_SCHEME + name) if prepares else None
            queue = self._core.state.queue(name) if promised is not None else queues.get(name)
            if queue is None:
                continue
            taken_bytes = queue.taken_bytes + (promised.taken_bytes if promised is not None else 0)
            if taken_bytes < queue.limit_bytes:
                continue
            freed = sum(
                queue.cost(message) for subscription, message in transaction.acks if subscription.queue is queue
            )
            if taken_bytes - freed < queue.limit_bytes:
                continue
            self._reach(queue)
            policy = queue.options.queue_limit_policy
            if policy == "fail":
                raise TransactionRolledBackError(
                    f"{full(queue)}: the transaction was rolled back, try again later", code="QUEUE_FULL"
                )
            if policy == "block" or self._is_dropping(queue):
                wanted = self._room_in(queue) if promised is None else PromisedRoom(self._core, promised)
        return wanted

    def _copied_to(self, transaction: Transaction) -> dict[str, bool]:
        """Where its commit puts copies for durable subscriptions; and are these persistent?"""
        found: dict[str, bool] = {}
        for message in transaction.published if not transaction.sends_to_durables else ():
            for name in self._durables.holders(message):
                found[name] = message.persistent or found.get(name, False)
        return found

    def wait(self, session: Stalled, room: Room, consumes: bool) -> None:
        """`session` is woken when there is `room`. With `consumes`: and asked to read on until then."""
        self.waiting.setdefault(room, {})[session] = consumes

    def forget(self, session: Stalled, room: Room) -> None:
        """`session` waits no longer for `room`, if it did."""
        sessions = self.waiting.get(room, {})
        sessions.pop(session, None)
        if not sessions:
            self.waiting.pop(room, None)

    # -- once a turn --------------------------------------------------------------------------------------------------

    def over(self, queue: Queue) -> None:
        """`queue` holds more than it may, and drops the oldest."""
        self.overfull[queue] = None

    def step(self) -> None:
        """Drop the messages that are too many, and resume sessions that waited for room that is there."""
        for queue in list(self.overfull):
            self._drop_oldest(queue)
        for room, sessions in list(self.waiting.items()):
            if room.is_there(GO_ON_SHARE):
                for session in list(sessions):  # a session that must wait again does so behind the others
                    self.forget(session, room)
                    session.unstall()
                    if not room.is_there(1.0):
                        break
            else:
                for session in [session for session, consumes in sessions.items() if consumes]:
                    session.read_on()

    def sweep(self) -> None:
        """Tell of queues that have left their limit, and of memory that there is again."""
        core = self._core
        if self._memory_reached and core.memory.taken_bytes <= LEFT_SHARE * core.memory.limit_bytes:
            self._memory_reached = False
            if MemoryLimitLeft in core.events.heard:
                core.events.tell(MemoryLimitLeft(core.memory.limit_bytes))
        for queue in list(self._reached):
            if queue.taken_bytes <= LEFT_SHARE * queue.options.queue_limit_bytes or not queue.options.queue_limit_bytes:
                del self._reached[queue]
                if QueueLimitLeft in self._core.events.heard:
                    self._core.events.tell(QueueLimitLeft(queue.name, queue.options.queue_limit_bytes))

    def _room_in(self, queue: Queue) -> Room:
        return QueueRoom(queue, self._is_dropping)

    def _reach(self, queue: Queue) -> None:
        if queue not in self._reached:
            self._reached[queue] = None
            if QueueLimitReached in self._core.events.heard:
                options = queue.options
                reached = QueueLimitReached(queue.name, options.queue_limit_bytes, options.queue_limit_policy)
                self._core.events.tell(reached)

    def _reach_memory(self) -> None:
        core = self._core
        if not self._memory_reached:
            self._memory_reached = True
            if MemoryLimitReached in core.events.heard:
                core.events.tell(MemoryLimitReached(core.memory.limit_bytes))

    # -- dropping -----------------------------------------------------------------------------------------------------

    def _is_dropping(self, queue: Queue) -> bool:
        """Is room being made, or will it be when so much is stored? Then it is worth while to wait for it."""
        return (
            queue in self._dropping
            or queue.pending_bytes >= queue.options.queue_limit_bytes
            or self._core.pager.is_reading(queue)
        )

    def _excess_bytes(self, queue: Queue) -> int:
        return queue.stored_bytes - self._dropping.get(queue, 0) - queue.drops_above

    def _drop_oldest(self, queue: Queue) -> None:
        """Take out the oldest that no consumer has. Messages on disk are read first: they may have to be moved."""
        core, pager = self._core, self._core.pager
        if core.journal.full and not queue.is_dead_letter_queue:
            return  # nothing can be moved: to read it would be for nothing, again and again
        while (excess := self._excess_bytes(queue)) > 0:
            self._reach(queue)
            if self._dropping.get(queue, 0) >= DROPPING_BYTES_MAX:
                return
            if queue.delayed:
                self._redelivery.hurry(queue, min(excess, DROP_BYTES))
            messages = queue.take_oldest(min(excess, DROP_BYTES))
            if messages:
                if not self._drop(queue, messages):
                    return
            elif queue.backlogs:
                pager.take_oldest(queue, excess, partial(self._read, queue))
                return
            else:
                break  # consumers have all of it
        del self.overfull[queue]

    def _read(self, queue: Queue, messages: list[Message]) -> None:
        """The oldest messages that waited on disk. Some may have to stay by now."""
        excess = self._excess_bytes(queue)
        count = 0
        while count < len(messages) and excess > 0:
            excess -= queue.cost(messages[count])
            count += 1
        self._core.wait_again(queue, messages[count:])
        if count:
            self._drop(queue, messages[:count])
        self._core.dirty[queue] = None
        self._core.wake()

    def _drop(self, queue: Queue, messages: list[Message]) -> bool:
        """Let them go; False where the disk is too full to move them."""
        size = sum(queue.cost(message) for message in messages if message.segment is not None)
        if size:
            self._dropping[queue] = self._dropping.get(queue, 0) + size
        if self._redelivery.drop(queue, messages, Dropping(self, queue, size), DROPPED):
            return True
        self.dropped(queue, size)
        self._core.wait_again(queue, messages)
        return False

    def dropped(self, queue: Queue, size: int) -> None:
        """`size` bytes of messages on their way out have left, or are back."""
        self._dropping[queue] -= size
        if not self._dropping[queue]:
            del self._dropping[queue]
