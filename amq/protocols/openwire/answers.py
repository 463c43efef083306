"""Answers that are more than "done": what a command asked for, as a token that the broker hands back.

A plain command's token is its number; these carry it with what the answer needs.
"""

from __future__ import annotations

from typing import Any

from amq.core.xid import Xid, parse
from amq.protocols.openwire import table
from amq.protocols.openwire.consumers import Consumer
from amq.protocols.openwire.failures import rolled_back, throwable, xa_exception
from amq.protocols.openwire.producers import Producer
from amq.protocols.openwire.table import Structure, Throwable, frame, structure
from amq.protocols.openwire.transactions import READ_ONLY, structure_of
from amq.protocols.openwire.wire import INT


class Answer:
    """`command_id` = of the command that is answered; `responds` = its client waits for a response."""

    __slots__ = ("command_id", "responds")

    def __init__(self, command_id: int, responds: bool = True) -> None:
        self.command_id = command_id
        self.responds = responds

    def done(self, outcome: str) -> Structure | None:  # noqa: ARG002
        """The answer where it was carried out, None = none."""
        return structure(table.RESPONSE, correlation_id=self.command_id) if self.responds else None

    def exception(self, error: Exception) -> Throwable:
        """The client is told this where the command failed."""
        return throwable(error)

    def failed(self) -> None:
        """The broker did not carry it out."""


class Opening(Answer):
    """Of a session, consumer or temporary destination, which the connection keeps in `where` by `key`."""

    __slots__ = ("key", "where")

    def __init__(self, found: Structure, where: dict[Any, Any], key: object) -> None:
        super().__init__(found.get("command_id", 0), bool(found.get("response_required")))
        self.where = where
        self.key = key

    def failed(self) -> None:
        self.where.pop(self.key, None)


class Windowed(Answer):
    """The answer to a producer that waits because too much is on its way: `size` bytes have come."""

    __slots__ = ("producer", "size")

    def __init__(self, producer: Producer, size: int) -> None:
        self.command_id = 0
        self.responds = False
        self.producer = producer
        self.size = size

    def done(self, outcome: str) -> Structure:  # noqa: ARG002
        return structure(table.PRODUCER_ACK, producer=self.producer.id, size=self.size)


class EndAnswer(Answer):
    """The end of a transaction. `taken` = what it acknowledges: by consumer, its names and the broker's numbers."""

    __slots__ = ("taken",)

    def __init__(self, command_id: int, responds: bool = True) -> None:
        super().__init__(command_id, responds)
        self.taken: dict[Consumer, dict[int, int]] = {}

    def failed(self) -> None:
        """The broker leaves the messages where they are: the client delivers them again."""
        for consumer, names in self.taken.items():
            consumer.held = names | consumer.held


class Committed(EndAnswer):
    """The answer to the commit of a local transaction."""

    __slots__ = ()

    def is_repeated(self, error: Exception) -> bool:
        """Does `error` say that this transaction took place before? The client did not hear of it, and sent all of it
        again. A message that was acknowledged in it would not have come again."""
        return not self.taken and getattr(error, "code", "") == "ALREADY_COMMITTED"

    def exception(self, error: Exception) -> Throwable:
        return rolled_back(error)


class EndedXa(EndAnswer):
    """The answer to the end of an XA transaction."""

    __slots__ = ()

    def exception(self, error: Exception) -> Throwable:
        return xa_exception(error)


class PreparedXa(EndedXa):
    """`result` = what XA's prepare answers: 0, or 3 where there was nothing to prepare."""

    __slots__ = ("result",)

    def __init__(self, command_id: int, responds: bool, result: int = 0) -> None:
        super().__init__(command_id, responds)
        self.result = result

    def read_only(self) -> PreparedXa:
        return PreparedXa(self.command_id, self.responds, READ_ONLY)

    def done(self, outcome: str) -> Structure:
        result = READ_ONLY if outcome else self.result  # the one that it can have: nothing was prepared
        return structure(table.INTEGER_RESPONSE, correlation_id=self.command_id, result=result)


class RecoveredXa(EndedXa):
    """The ids of what is prepared; those that are text are not a client's of XA."""

    __slots__ = ()

    def done(self, outcome: str) -> Structure:
        ids = [parse(written) for written in outcome.split("\n") if written]
        found = [structure_of(id) for id in ids if isinstance(id, Xid)]
        return structure(table.DATA_ARRAY_RESPONSE, correlation_id=self.command_id, data=found)


class Pulled(Answer):
    """A consumer asked for one message, when `dispatched` had been dispatched to it."""

    __slots__ = ("consumer", "dispatched", "number")

    def __init__(self, consumer: Consumer, command_id: int, responds: bool) -> None:
        super().__init__(command_id, responds)
        self.consumer = consumer
        self.dispatched = consumer.dispatched
        consumer.pulls += 1
        self.number = consumer.pulls

    def done(self, outcome: str) -> Structure | None:  # noqa: ARG002
        if self.consumer.dispatched > self.dispatched:
            return None
        if self.number != self.consumer.pulls:  # it has asked again, and would take this for the answer to that
            return None
        return nothing_for(self.consumer)


def nothing_for(consumer: Consumer) -> Structure:
    """The dispatch that says: there is nothing (more) for you."""
    found = table.decode(b"".join((consumer.head, table.nested(consumer.destination), b"\0\0\0\0\0")))
    assert found.type == table.MESSAGE_DISPATCH
    return found


def encoded(found: Structure | None, version: int) -> bytes:
    return b"" if found is None else frame(found, version)


def receipt_of(found: Structure) -> Answer | None:
    """The token of a command whose client may wait for a response."""
    return Answer(found.get("command_id", 0)) if found.get("response_required") else None


def answer_to(data: bytes | None) -> Answer | None:
    """The token of a command that could not be read."""
    if data is None or len(data) < 6 or data[0] == table.WIRE_FORMAT_INFO or not data[5]:
        return None
    return Answer(INT.unpack_from(data, 1)[0])
