"""The failover-URL client: `connect` (synchronous), `amq.aio.connect` (asyncio). See docs/client.md."""

from amq.client.columns import Columns
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
from amq.client.leases import LeaseRequest
from amq.client.leases import MessageLease as Lease
from amq.client.requests import ConnectionEvent, EventKind
from amq.client.session import Browser, Consumer, Message, Producer, Session
from amq.client.two_phase import PreparedTransaction
from amq.client.whereabouts import Whereabouts
from amq.core.errors import (
    AccessError,
    AmqError,
    CommandError,
    ProtocolError,
    SelectorError,
    StoreFullError,
    TransactionRolledBackError,
)
from amq.protocols.stomp.runs import Run

__all__ = [
    "AccessError",
    "AmqError",
    "BrokerError",
    "Browser",
    "CallTimeoutError",
    "Columns",
    "CommandError",
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
    "LeaseRequest",
    "Message",
    "PreparedTransaction",
    "Producer",
    "ProtocolError",
    "Run",
    "SelectorError",
    "Session",
    "StoreFullError",
    "TransactionRetryError",
    "TransactionRolledBackError",
    "UriError",
    "Whereabouts",
    "connect",
]
