"""Many messages of one transaction for one queue, taken in at once; and the memory that open transactions take.

Invariant: nothing is decided here otherwise than message by message: what needs a decision (no such queue, a limit that
is reached) is left to that.
"""

from __future__ import annotations

from amq.broker.core import Core
from amq.broker.memory import cost, cost_of_run
from amq.broker.names import is_stored
from amq.broker.scheduling.scheduler import SCHEDULING
from amq.broker.topics.routing import Routing
from amq.broker.transactions.transaction import Transaction
from amq.core.errors import CommandError
from amq.core.message import header_bytes_of_natives
from amq.journal.records.message import Run
from amq.journal.records.section import encode_sections
from amq.protocols.commands import Command, Send, SendMany, Transfer


def add(core: Core, routing: Routing, transaction: Transaction, command: SendMany) -> bool:
    """Add what is to be sent. False: one by one, please. Raises AccessError."""
    name, headers, bodies = command.like.destination, command.headers, command.bodies
    if headers is not None and not all(SCHEDULING.isdisjoint(names) for names in headers.lists):
        return False
    queue = core.state.queues.get(name)
    header_bytes = _header_bytes(command)
    size = cost_of_run(bodies, header_bytes)
    if queue is None:
        led_elsewhere = routing.of(name) != (name,) or not is_stored(name)
    else:
        led_elsewhere = queue.is_diverted
    if (
        led_elsewhere
        or core.memory.taken_bytes + size > core.memory.limit_bytes
        or (queue is not None and queue.stored_bytes + queue.pending_bytes >= queue.limit_bytes)
        or core.journal.at_limit
        or transaction.size + size > core.config.max_transaction_size_bytes
    ):
        return False
    command.like.timestamp_ms = core.clock.wall_ms()
    take_memory(core, transaction, size)
    sections = encode_sections(headers, len(bodies)) if headers is not None else None
    transaction.queued.append(Run(command.like, bodies, sections, header_bytes, command.natives))
    return True


def take_memory(core: Core, transaction: Transaction, size: int) -> None:
    """`size` more bytes are held by `transaction`. Raises CommandError where that is too much for one."""
    limit = core.config.max_transaction_size_bytes
    if transaction.size + size > limit:
        raise CommandError(
            f"transaction {transaction.name!r} would be larger than {limit} bytes: commit more often",
            code="TRANSACTION_TOO_LARGE",
        )
    transaction.size += size
    core.memory.take(size)


def held_bytes(command: Command) -> int:
    """Bytes that a command takes while it waits."""
    if isinstance(command, Send):
        return cost(command.message)
    if isinstance(command, Transfer):
        return sum(map(cost, command.messages))
    if not isinstance(command, SendMany):
        return 0
    return cost_of_run(command.bodies, _header_bytes(command))


def _header_bytes(command: SendMany) -> int:
    if command.natives is not None:
        return header_bytes_of_natives(command.natives)
    return command.headers.memory_bytes(len(command.bodies)) if command.headers is not None else 0
