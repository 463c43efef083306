"""Subscription: one consumer of one queue, its credit and what it has not acknowledged yet."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Protocol

from amq.broker.names import is_gathered
from amq.broker.queue import Queue
from amq.errors import CommandError
from amq.message import Batch, Message
from amq.protocols.commands import ACK_AUTO, ACK_CLIENT, CREDIT_MAX, Subscribe
from amq.selectors import Selector

PRIORITY_MIN, PRIORITY_MAX = -128, 127  # of consumers: a byte in ActiveMQ
_NUMBER = re.compile(r"[+-]?[0-9]{1,9}")


class Waiter(Protocol):
    """A party that is told when something is durable."""

    def confirm(self, receipt: str) -> None: ...
    def fail(self, error: Exception, receipt: str) -> None: ...


class Peer(Protocol):
    """The connection as the broker sees it. Nothing is sent before the end of the turn, and then only if the lease is
    valid.
    """

    def subscribed(self, command: Subscribe) -> Any:
        """The facts that `deliver` needs of this subscription; kept as `Subscription.wire`."""
        ...

    def deliver(self, subscription: Subscription, message: Message, redelivered: int) -> None: ...
    def browsed(self, command: Subscribe) -> None:
        """The browse that `command` began has shown everything."""
        ...

    def deliver_batch(self, subscription: Subscription, batch: Batch) -> None:
        """Deliver many messages, none of them large, for the first time, to a subscription that needs no credit."""
        ...

    def confirm(self, receipt: str, outcome: str = "") -> None:
        """A command is done. `outcome` = how, where there is more than one way."""
        ...

    def fail(self, error: Exception, receipt: str = "") -> None:
        """Tell the client; the connection closes where `error.fatal`."""
        ...

    def close(self) -> None:
        """Close when what is pending has been sent."""
        ...

    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...


class Farewell:
    """Confirms the DISCONNECT when all before it is committed, and ends the connection."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer

    def confirm(self, receipt: str) -> None:
        self._peer.confirm(receipt)
        self._peer.close()


def option_boolean(options: Mapping[str, str], name: str) -> bool:
    """The option `name`, false where there is none. Raises CommandError."""
    text = options.get(name, "false").lower()
    if text not in ("true", "false"):
        raise CommandError(f"{name} {text[:40]!r} is neither true nor false", code="OPTION_INVALID")
    return text == "true"


def option_number(options: Mapping[str, str], name: str, minimum: int, maximum: int) -> int:
    """The option `name`, 0 where there is none. Raises CommandError."""
    text = options.get(name, "0")
    if _NUMBER.fullmatch(text) and minimum <= int(text) <= maximum:
        return int(text)
    raise CommandError(f"{name} {text[:40]!r} is not a number from {minimum} to {maximum}", code="OPTION_INVALID")


class Subscription:
    """`credit` = deliveries that may still be outstanding; `is_ready` = stands in the queue's line. Raises CommandError
    and SelectorError where the command has options or a selector that cannot be understood.
    """

    __slots__ = (
        "auto", "credit", "cumulative", "ended", "exclusive", "id", "in_transactions", "is_ready", "peer", "prefetch",
        "priority", "queue", "refund", "selector", "unacked", "wire",
    )  # fmt: skip

    def __init__(self, command: Subscribe, queue: Queue, peer: Peer, prefetch: int) -> None:
        self.id = command.id
        self.queue = queue
        self.peer = peer
        self.auto = command.ack == ACK_AUTO
        self.cumulative = command.ack == ACK_CLIENT
        self.exclusive = option_boolean(command.options, "exclusive")
        self.priority = option_number(command.options, "priority", PRIORITY_MIN, PRIORITY_MAX)
        self.selector = Selector(command.selector, command.message_id_prefix) if command.selector else None
        self.in_transactions = 0  # messages that it has acknowledged or refused in transactions that are open
        self.prefetch = prefetch
        self.credit = 1 << 62 if self.auto else prefetch  # an auto consumer is bounded by its socket alone
        self.refund = 1  # credit that each acknowledgement gives back; 0 = it asks for each message, see `pulling`
        if "credit" in command.options:
            if self.auto or command.browser or is_gathered(command.destination):
                raise CommandError(
                    "credit is for consumers of one queue or topic that acknowledge: leave it out with ack:auto, for "
                    "browses, and for patterns of queues",
                    code="NOT_SUPPORTED",
                )
            self.refund, self.credit = 0, option_number(command.options, "credit", 0, CREDIT_MAX)
        self.unacked: dict[int, Message] = {}  # by seq, in order of delivery
        self.is_ready = False
        self.ended = False
        self.wire = peer.subscribed(command)

    is_guest = False  # True: it consumes the queue beside others, and does not keep it alive

    def park(self) -> None:
        """It left the line, where it was met without being ready; only a guest is."""
        raise AssertionError("a consumer that is not ready stands in line")

    def part(self) -> None:
        """The queue is forgotten; only a guest's can be."""
        raise AssertionError("a queue with a consumer is forgotten")

    def make_ready(self) -> None:
        """Stand in line for messages, if there is credit."""
        if not self.is_ready and self.credit > 0:
            self.is_ready = True
            self.queue.make_ready(self)

    def make_unready(self) -> None:
        if self.is_ready:
            self.is_ready = False
            self.queue.make_unready(self)

    def settle(self, seq: int) -> list[Message]:
        """Take from `unacked` what an acknowledgement of `seq` covers: all up to it where cumulative. Empty =
        unknown.
        """
        unacked = self.unacked
        if seq not in unacked:
            return []
        if not self.cumulative:
            return [unacked.pop(seq)]
        settled = []
        for delivered in list(unacked):
            settled.append(unacked.pop(delivered))
            if delivered == seq:
                break
        return settled
