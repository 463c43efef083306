"""Many messages of one transaction for one queue, taken in at once; and the memory that open transactions take.

Invariant: nothing is decided here otherwise than message by message: what needs a decision (no such queue, a limit that
is reached) is left to that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from amq.broker.queue import MESSAGE_OVERHEAD_BYTES
from amq.broker.transaction import Transaction
from amq.errors import CommandError
from amq.message import Message
from amq.protocols.commands import Command, Send, SendMany

if TYPE_CHECKING:
    from amq.broker.broker import Broker


def add(broker: Broker, transaction: Transaction, messages: list[Message]) -> bool:
    """Add `messages`, which differ in their bodies alone and have no properties. False: one by one, please."""
    queue = broker.queues.get(messages[0].destination)
    size = _bytes(messages)
    if (
        queue is None
        or queue.is_diverted
        or broker.memory_bytes + size > broker.config.memory_limit_bytes
        or queue.stored_bytes + queue.pending_bytes >= queue.limit_bytes
        or broker.journal.at_limit  # type: ignore[union-attr]
        or transaction.size + size > broker.config.max_transaction_size_bytes
    ):
        return False
    now_ms = broker.clock.wall_ms()
    for message in messages:
        message.timestamp_ms = now_ms
    take_memory(broker, transaction, size)
    transaction.sends += messages
    return True


def take_memory(broker: Broker, transaction: Transaction, size: int) -> None:
    """`size` more bytes are held by `transaction`. Raises CommandError where that is too much for one."""
    limit = broker.config.max_transaction_size_bytes
    if transaction.size + size > limit:
        raise CommandError(
            f"transaction {transaction.name!r} would be larger than {limit} bytes: commit more often",
            code="TRANSACTION_TOO_LARGE",
        )
    transaction.size += size
    broker.memory_bytes += size


def held_bytes(command: Command) -> int:
    """What a command takes while it waits."""
    if isinstance(command, Send):
        return len(command.message.body) + MESSAGE_OVERHEAD_BYTES
    return _bytes(command.messages) if isinstance(command, SendMany) else 0


def _bytes(messages: list[Message]) -> int:
    """What messages take that share nothing."""
    return sum([len(message.body) for message in messages]) + MESSAGE_OVERHEAD_BYTES * len(messages)
