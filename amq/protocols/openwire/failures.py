"""Errors as Java exceptions: what a client's program catches.

A client makes an object of the class that is named, so each must have a constructor that takes a text. Names of
`javax.jms` are understood by the clients of `jakarta.jms` too.
"""

from __future__ import annotations

from typing import Final

from amq.core.errors import AccessError, AmqError, SelectorError, StoreFullError, TransactionRolledBackError
from amq.protocols.openwire.table import Throwable

_JMS: Final = "javax.jms."
_BY_CODE: Final = {
    "CLIENT_ID_IN_USE": _JMS + "InvalidClientIDException",
    "DESTINATION_INVALID": _JMS + "InvalidDestinationException",
    "DESTINATION_REFUSED": _JMS + "InvalidDestinationException",
    "DESTINATION_UNKNOWN": "org.apache.activemq.DestinationDoesNotExistException",  # its text begins with the name
    "SUBSCRIPTION_UNKNOWN": _JMS + "InvalidDestinationException",
    "UNKNOWN_SUBSCRIPTION": _JMS + "InvalidDestinationException",
    "QUEUE_FULL": _JMS + "ResourceAllocationException",
    "MEMORY_FULL": _JMS + "ResourceAllocationException",
    "STORE_LIMIT": _JMS + "ResourceAllocationException",
}
XA_PROTOCOL, XA_UNKNOWN, XA_ROLLED_BACK, XA_FAILED = -6, -4, 100, -3  # as XAException names them


def throwable(error: Exception) -> Throwable:
    """The exception that a client's program gets for `error`."""
    return Throwable(_class_of(error), f"{error} [{error.code}]" if isinstance(error, AmqError) else str(error))


def _class_of(error: Exception) -> str:
    if isinstance(error, SelectorError):
        return _JMS + "InvalidSelectorException"
    if isinstance(error, TransactionRolledBackError):
        return _JMS + "TransactionRolledBackException"
    if isinstance(error, StoreFullError):
        return _JMS + "ResourceAllocationException"
    found = _BY_CODE.get(error.code) if isinstance(error, AmqError) else None
    if found is not None:
        return found
    return "java.lang.SecurityException" if isinstance(error, AccessError) else _JMS + "JMSException"


def rolled_back(error: Exception) -> Throwable:
    """The exception for a commit that did not take place."""
    return Throwable(_JMS + "TransactionRolledBackException", throwable(error).message)


def xa_exception(error: Exception) -> Throwable:
    """The exception for a command of an XA transaction: its message ends with the code that the client reads."""
    code = XA_FAILED
    if isinstance(error, TransactionRolledBackError):
        code = XA_ROLLED_BACK
    elif isinstance(error, AmqError):
        code = {"UNKNOWN_TRANSACTION": XA_UNKNOWN, "XID_IN_USE": -8, "XID_COMMITTED": 7}.get(error.code, XA_PROTOCOL)
    return Throwable("javax.transaction.xa.XAException", f"{error} xaErrorCode:{code}")
