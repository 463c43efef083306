"""The protocol as a connection sees it: bytes in, commands out; replies, deliveries in, bytes out. No I/O or clock."""

from __future__ import annotations

from typing import Any, Protocol

from amq.message import Batch, Message
from amq.protocols.commands import Command, Subscribe


class ServerProtocol(Protocol):
    """The broker's side of one connection. Never raises on bad input: the last command is then `Malformed`."""

    name: str

    def receive(self, data: bytes) -> list[Command]:
        """Commands completed by `data`. After `Malformed` everything further is ignored."""
        ...

    def close(self) -> None:
        """Nothing is received any more: let go of what was buffered."""
        ...

    def pending(self) -> bool:
        """True while a frame has begun and is not complete (for the timeout on unfinished frames)."""
        ...

    def connected(self, session: str, heartbeat_ms: tuple[int, int]) -> bytes:
        """Answer to Connect. `heartbeat_ms` = (what the broker can send, what it wants)."""
        ...

    def receipt(self, receipt: str, outcome: str = "") -> bytes:
        """Confirm that a command is done; `outcome` = how, where there is more than one way."""
        ...


    def error(self, error: Exception, receipt: str = "") -> bytes:
        """Tell the client why; the connection is closed afterwards where `error.fatal`."""
        ...

    def subscription(self, command: Subscribe) -> Any:
        """The facts of a subscription that `delivery` needs, computed once."""
        ...

    def delivery(self, subscription: Any, message: Message, redelivered: int, /) -> bytes:
        """One message for one subscription; `redelivered` = how many times it was delivered before."""
        ...

    def large_delivery(self, subscription: Any, message: Message, redelivered: int) -> tuple[bytes, ...]:
        """The bytes of `delivery` in pieces, of which the message's body is one: it is not copied."""
        ...

    def end_of_browse(self, command: Subscribe) -> bytes:
        """The browse that `command` began has shown everything."""
        ...

    def batch(self, subscription: Any, batch: Batch) -> bytes:
        """Many messages for one subscription, each delivered for the first time. The part that other
        subscriptions share is written once, and kept in `batch`.
        """
        ...

    def heartbeat(self) -> bytes: ...
