"""What can go wrong for a client, each with a code and the cure.

Errors that the broker reports (`AccessError`, `StoreFullError`, `TransactionRolledBackError`, …) are those of
`amq.errors`: `broker_error` maps the `code` header of an ERROR frame to them.
"""

from __future__ import annotations

from amq.errors import (
    AccessError,
    AmqError,
    CommandError,
    ConfigError,
    ProtocolError,
    StoreFullError,
    TransactionRolledBackError,
)


class UriError(ConfigError):
    """The broker URL cannot be used: says which part and what would be accepted."""

    code = "URI_INVALID"


class IllegalEventError(AmqError):
    """The machine was told something that cannot happen in its state. A mistake of the driver; nothing changed."""

    code = "ILLEGAL_EVENT"


class ConnectError(AmqError):
    """No broker of the URL could be reached within the attempts that the URL allows."""

    code = "CONNECT_FAILED"
    fatal = True


class ConnectionLostError(AmqError):
    """The connection broke and the URL (or its attempts) does not allow to fail over. What was in flight is unknown."""

    code = "CONNECTION_LOST"
    fatal = True


class ConnectionClosedError(AmqError):
    """The connection, session, producer or consumer was closed, by the application or by what `__cause__` names."""

    code = "CONNECTION_CLOSED"


class CallTimeoutError(AmqError, TimeoutError):
    """A call did not end in time; what it asked for may or may not have happened, and it is not tried any more.

    A send can safely be repeated: give `duplicate_id` of this error to the new send and the broker stores it once.
    """

    code = "CALL_TIMEOUT"

    def __init__(self, description: str, *, duplicate_id: str = "") -> None:
        super().__init__(description)
        self.duplicate_id = duplicate_id


class FailoverTimeoutError(CallTimeoutError):
    """As `CallTimeoutError`, and there was no broker to talk to when the time was over."""

    code = "FAILOVER_TIMEOUT"


class DeliveryLostError(AmqError):
    """The message was delivered on a connection (or by a consumer) that is gone: it cannot be acknowledged any more.

    The broker delivers it again. Where it must not be processed twice, do so in a transaction or remember its id.
    """

    code = "DELIVERY_LOST"


class CommitOutcomeUnknownError(AmqError):
    """The connection broke during the commit and the broker cannot (or did not in time) say what became of it.

    Only with brokers other than amq, or after a timeout. Run the transaction again with the same duplicate ids.
    """

    code = "COMMIT_OUTCOME_UNKNOWN"


class FlushError(AmqError):
    """Some messages that were sent with `wait=False` were not accepted. `failures` = [(duplicate id, error), …]."""

    code = "SEND_FAILED"

    def __init__(self, failures: list[tuple[str, AmqError]]) -> None:
        first_id, first = failures[0]
        super().__init__(f"{len(failures)} messages were not accepted; the first, {first_id}: {first}")
        self.failures = failures


class BrokerError(AmqError):
    """An ERROR frame whose `code` this client does not know, or which has none (another make of broker)."""

    code = "BROKER_ERROR"
    fatal = True


_BY_CODE: dict[str, type[AmqError]] = {
    error.code: error
    for error in (AccessError, CommandError, ProtocolError, StoreFullError, TransactionRolledBackError)
} | {
    "MEMORY_FULL": StoreFullError,
    "TRANSACTION_TIMEOUT": TransactionRolledBackError,
    "TRANSACTION_TOO_LARGE": CommandError,
    "UNKNOWN_TRANSACTION": CommandError,
    "NOT_SUPPORTED": CommandError,
    "UNKNOWN_DELIVERY": DeliveryLostError,
}


def broker_error(code: str, description: str) -> AmqError:
    """The exception for an ERROR frame with this `code` header ("" = none); it keeps the code."""
    return _BY_CODE.get(code, BrokerError)(description, code=code or None)
