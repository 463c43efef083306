"""Requests: frames that ask for a receipt, and how they ended.

Nothing here waits. A caller puts a function that wakes it into a `Gate`; the state machine opens the gate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from amq.client.uri import BrokerUri
from amq.core.errors import AmqError

Gate = list[Callable[[], object]]


def open_gate(gate: Gate) -> None:
    """Wake everybody who waits there."""
    if gate:
        wakes = gate[:]
        gate.clear()
        for wake in wakes:
            wake()


class AfterLoss(Enum):
    """The fate of an unanswered request when the connection breaks."""

    REPLAY = "sent again on the next connection, with the same ids"
    SUCCEED = "the broken connection did it"
    LOSE = "it cannot be done any more: DeliveryLostError"


class RequestKind(Enum):
    SEND = "SEND"
    SUBSCRIBE = "SUBSCRIBE"
    UNSUBSCRIBE = "UNSUBSCRIBE"
    END = "UNSUBSCRIBE of a durable subscription by its name"
    ACK = "ACK"
    CREDIT = "CREDIT"
    COMMIT = "COMMIT"  # of either kind: in one phase, or the first of two
    RESOLVE = "COMMIT or ABORT of what is prepared or leased, LEASE"
    ABORT = "ABORT"
    DISCONNECT = "DISCONNECT"


AFTER_LOSS = {
    RequestKind.SEND: AfterLoss.REPLAY,
    RequestKind.SUBSCRIBE: AfterLoss.REPLAY,
    RequestKind.UNSUBSCRIBE: AfterLoss.SUCCEED,
    RequestKind.END: AfterLoss.REPLAY,
    RequestKind.ACK: AfterLoss.LOSE,
    RequestKind.CREDIT: AfterLoss.SUCCEED,
    RequestKind.COMMIT: AfterLoss.REPLAY,
    RequestKind.RESOLVE: AfterLoss.REPLAY,
    RequestKind.ABORT: AfterLoss.SUCCEED,
    RequestKind.DISCONNECT: AfterLoss.SUCCEED,
}


@dataclass(slots=True, eq=False, repr=False)
class Request:
    """A frame that asks for a receipt.

    receipt   its id, unique in the life of the client connection
    frame     its bytes, the same each time it is sent; of a SEND with a large body, up to the body
    body      that large body, which is the application's own object, not a copy; else empty
    subject   what it is about: duplicate id of a SEND, subscription id, transaction name
    replayed  it was sent on more than one connection
    done      it has ended; `error` says how, None = confirmed
    gate      opened when it ends
    owner     the producer that sent it, told when it ends
    outcome   how it was confirmed, where there is more than one way
    outcome_id  of a COMMIT: the id by which its outcome can be learnt, and the transaction run again
    refused   of a COMMIT: the broker's answer to something that was sent in its transaction, if that broke the link
    """

    kind: RequestKind
    receipt: bytes
    frame: bytes
    subject: str
    owner: SendOwner | None = None
    body: bytes = b""
    outcome: str = field(init=False, default="")
    outcome_id: str = field(init=False, default="")
    replayed: bool = field(init=False, default=False)
    done: bool = field(init=False, default=False)
    error: AmqError | None = field(init=False, default=None)
    refused: AmqError | None = field(init=False, default=None)
    gate: Gate = field(init=False, default_factory=list)

    def __repr__(self) -> str:
        state = "open" if not self.done else self.error or "confirmed"
        return f"<{self.kind.value} {self.subject} {state}>"


@dataclass(slots=True, eq=False)
class SendOwner:
    """Book-keeping of one producer of `session`: how many of its sends with `wait=False` are unconfirmed, and which
    failed without anybody being told."""

    session: object
    destination: str
    unconfirmed: int = field(init=False, default=0)
    failures: list[tuple[str, AmqError]] = field(init=False, default_factory=list)
    gate: Gate = field(init=False, default_factory=list)  # opened when nothing is unconfirmed


class EventKind(Enum):
    """The kinds of events for listeners."""

    INTERRUPTED = "interrupted"  # the connection broke, failover begins
    FAILOVER = "failover"  # connected again, everything restored: on a new session of the broker
    REATTACHED = "reattached"  # connected again to the same session of the same broker: nothing was lost or set up anew
    DISCONNECT = "disconnect"  # the connection is gone for good, without the application's wish


@dataclass(slots=True, eq=False, repr=False)
class ConnectionEvent:
    """An event of the connection.

    old_uri     the broker before; new_uri the broker now (FAILOVER, REATTACHED)
    duration_s  how long the connection was interrupted (0 on INTERRUPTED)
    error       why it broke or was given up (INTERRUPTED, DISCONNECT)
    """

    kind: EventKind
    old_uri: BrokerUri | None
    new_uri: BrokerUri | None = None
    duration_s: float = 0.0
    error: AmqError | None = None

    def __repr__(self) -> str:
        uris = f"{self.old_uri} → {self.new_uri}" if self.new_uri else str(self.old_uri)
        return f"<{self.kind.name} {uris} {self.duration_s:.3f} s {self.error or ''}>"
