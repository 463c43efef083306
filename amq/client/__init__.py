"""The failover-URL client: `connect` (synchronous), `amq.aio.connect` (asyncio). See docs/client.md."""

from amq.client.connection import Connection, connect
from amq.client.errors import (
    BrokerError,
    CallTimeoutError,
    CommitOutcomeUnknownError,
    ConnectError,
    ConnectionClosedError,
    ConnectionLostError,
    DeliveryLostError,
    FailoverTimeoutError,
    FlushError,
    TransactionRetryError,
    UriError,
)
from amq.client.leases import Lease
from amq.client.requests import ConnectionEvent, EventKind
from amq.client.session import Browser, Consumer, Message, Producer, Session
from amq.client.two_phase import PreparedTransaction

__all__ = [
    "BrokerError",
    "Browser",
    "CallTimeoutError",
    "CommitOutcomeUnknownError",
    "ConnectError",
    "Connection",
    "ConnectionClosedError",
    "ConnectionEvent",
    "ConnectionLostError",
    "Consumer",
    "DeliveryLostError",
    "EventKind",
    "FailoverTimeoutError",
    "FlushError",
    "Lease",
    "Message",
    "PreparedTransaction",
    "Producer",
    "Session",
    "TransactionRetryError",
    "UriError",
    "connect",
]
