"""The errors of the client, each with a code and the cure.

Errors that the broker reports (`AccessError`, `StoreFullError`, `TransactionRolledBackError`, …) are those of
`amq.core.errors`: `broker_error` maps the `code` header of an ERROR frame to them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from amq.core.errors import (
    AccessError,
    AmqError,
    CommandError,
    ConfigError,
    ProtocolError,
    SelectorError,
    StoreFullError,
    TransactionRolledBackError,
)
from amq.protocols.stomp.frame import Frame


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
    """The connection broke and the URL (or its attempts) allows no failover. Calls in flight may have succeeded."""

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


class TransactionRetryError(CallTimeoutError):
    """No answer in time about what is to become of a prepared transaction: ask again, of whichever broker is master.

    It stays prepared until somebody ends it, or its timeout; and what took place is answered again.
    """

    code = "TRANSACTION_RETRY"


class DeliveryLostError(AmqError):
    """The message was delivered on a connection (or by a consumer) that is gone: it cannot be acknowledged any more.

    The broker delivers it again. Where it must not be processed twice, do so in a transaction or remember its id.
    """

    code = "DELIVERY_LOST"


class CommitOutcomeUnknownError(AmqError):
    """The connection broke during the commit and the broker cannot (or did not in time) say what became of it.

    Only with brokers other than amq, after a timeout, or when the connection ended for good. Run the transaction again
    with the same `outcome_id` (or `exactly_once` with that as its `id`): if it took place, it does not do so again.
    With another make of broker ("" = it knows no such ids) give its messages the same duplicate ids.
    """

    code = "COMMIT_OUTCOME_UNKNOWN"

    def __init__(self, description: str, *, outcome_id: str = "") -> None:
        super().__init__(description)
        self.outcome_id = outcome_id


def commit_unknown(error: AmqError, outcome_id: str) -> CommitOutcomeUnknownError:
    """The connection ended by `error` while the broker had the commit."""
    why = f"the connection ended before the broker reported the outcome of the commit {outcome_id}: {error}"
    unknown = CommitOutcomeUnknownError(why, outcome_id=outcome_id)
    unknown.__cause__ = error
    return unknown


def transaction_refused(error: AmqError) -> TransactionRolledBackError:
    """The broker refused something that was sent in a transaction, by `error`. It keeps the code of that error, by
    which callers know that a second run would end in the same way."""
    why = f"the broker refused a part of the transaction, and rolled it back: {error.description}"
    refused = TransactionRolledBackError(why, code=error.code)
    refused.__cause__ = error
    return refused


class FlushError(AmqError):
    """Some messages that were sent with `wait=False` were not accepted. `failures` = [(duplicate id, error), …]."""

    code = "SEND_FAILED"

    def __init__(self, failures: list[tuple[str, AmqError]]) -> None:
        first_id, first = failures[0]
        count = "1 message was" if len(failures) == 1 else f"{len(failures)} messages were"
        super().__init__(f"{count} not accepted; the first, {first_id}: {first}")
        self.failures = failures


@contextmanager
def gathered(failures: list[tuple[str, AmqError]]) -> Iterator[None]:
    """Collect the failures of a FlushError of the block in `failures`, and go on."""
    try:
        yield
    except FlushError as error:
        failures += error.failures


class BrokerError(AmqError):
    """An ERROR frame whose `code` this client does not know, or which has none (another make of broker)."""

    code = "BROKER_ERROR"
    fatal = True


_CODES: dict[type[AmqError], str] = {
    AccessError: "ACCESS_REFUSED DESTINATION_REFUSED LINK_STOLEN LOGIN_EXPIRED LOGIN_REFUSED LOGIN_REQUIRED "
    "NOT_PERMITTED QUOTA_EXCEEDED TOO_MANY_FAILED_LOGINS",
    CommandError: "BATCH_DIFFERS BATCH_MISMATCH BATCH_TOO_OLD COMMAND_REFUSED CURSOR_INVALID CURSOR_TAKEN "
    "DESTINATION_INVALID MERGED MERGING MOVED MOVING NOT_SUPPORTED OUTCOME_ID_INVALID PLACE_UNKNOWN QUEUE_IN_USE "
    "SOURCES_OVER_STORES SUBSCRIPTION_DIFFERS SUBSCRIPTION_IN_USE TEMPORARY_QUEUES_TOO_MANY TRANSACTIONS_TOO_MANY "
    "TRANSACTION_TOO_LARGE UNKNOWN_LEASE UNKNOWN_SUBSCRIPTION UNKNOWN_TRANSACTION "
    "XID_COMMITTED XID_INVALID",
    DeliveryLostError: "ACK_ID_UNKNOWN UNKNOWN_DELIVERY",
    ProtocolError: "BODY_INVALID BODY_TOO_BIG BODY_UNEXPECTED COMMAND_UNKNOWN CONTENT_LENGTH_INVALID "
    "ESCAPE_UNDEFINED FRAME_INVALID FRAME_UNTERMINATED HEADERS_TOO_BIG HEADERS_TOO_MANY HEADER_INVALID "
    "HEADER_MISSING HEADER_TOO_LONG NOT_CONNECTED PROTOCOL_ERROR PROTOCOL_UNKNOWN PROTOCOL_UNSUPPORTED "
    "SUBSCRIPTION_EXISTS VERSION_UNSUPPORTED",
    SelectorError: "INVALID_SELECTOR SELECTOR_TOO_LARGE",
    StoreFullError: "MEMORY_FULL QUEUE_FULL STORE_FULL STORE_LIMIT",
    TransactionRolledBackError: "ALREADY_COMMITTED BATCH_COMMITTED DUPLICATE_ID TRANSACTION_ROLLED_BACK "
    "TRANSACTION_TIMEOUT XID_IN_USE",
}
_BY_CODE = {code: error for error, codes in _CODES.items() for code in codes.split()}
# The broker's troubles, not those of what we asked: asked again elsewhere or later it can succeed.
_TRANSIENT = frozenset(
    {
        "CONNECT_TIMEOUT",
        "FRAME_TIMEOUT",
        "HEARTBEAT_TIMEOUT",
        "HOME_UNAVAILABLE",
        "LOGIN_UNAVAILABLE",
        "MERGED",
        "MERGING",
        "OWNERSHIP_LOST",
        "STORE_LOST",
        "STORE_UNUSABLE",
        "TOO_MANY",
        "TOO_MANY_FAILED_LOGINS",
    }
)
_OTHER_PROTOCOL = frozenset({"PROTOCOL_UNKNOWN", "PROTOCOL_UNSUPPORTED", "VERSION_UNSUPPORTED"})


def broker_error(code: str, description: str) -> AmqError:
    """The exception for an ERROR frame with this `code` header ("" = none); it keeps the code."""
    return _BY_CODE.get(code, BrokerError)(description, code=code or None)


def error_of(frame: Frame) -> AmqError:
    """The typed error of an ERROR frame: what `message` says, and the body's first line where that adds something."""
    message, code = frame.headers.get("message", ""), frame.headers.get("code", "")
    body = frame.body.decode(errors="replace")
    if _BY_CODE.get(code) is SelectorError and body:
        return broker_error(code, body[:500])  # its further lines point at the column
    detail = body.strip().partition("\n")[0][:500]
    if detail.startswith(message) or not message:
        message, detail = detail, ""
    text = f"{message}: {detail}" if detail and detail not in message else message
    return broker_error(code, text or "the broker reports an error without saying which")


def is_transient(error: AmqError) -> bool:
    """The broker that says so cannot serve now, whatever one asks."""
    return error.code in _TRANSIENT


def is_final(error: AmqError) -> bool:
    """To connect again would not help: another client with our client id has our place and would lose it, or a message
    is larger than the URL allows and would come again."""
    return error.code in ("LINK_STOLEN", "FRAME_TOO_LARGE")


def is_refusal(error: AmqError) -> bool:
    """During the handshake: trying again will not help. An ERROR without code comes from another make of broker.

    A server of another version or protocol does not refuse us: other members may speak ours.
    """
    if error.code in _OTHER_PROTOCOL:
        return False
    return isinstance(error, AccessError | ProtocolError) or error.code == BrokerError.code


def final_error(url: str, error: AmqError, *, failover: bool, causes: str = "", limit: str = "") -> AmqError:
    """The error that the application gets when the client gives up because of `error`. `causes` lists those of all
    brokers; `limit` says why the client does not go on, "" = there was one attempt."""
    if failover:
        final: AmqError = ConnectError(f"{url}: no broker answers{limit and f' after {limit}'}: {causes or error}")
    else:
        final = ConnectionLostError(f"the connection broke: {error}")
    final.__cause__ = error
    return final
