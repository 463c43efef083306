"""Hub, ServedConnection, PeerTurn and Codecs: the surroundings of a peer.

A process that has the broker serves a client by a `ClientConnection`, and its turn is `amq.transports.turn.Turn`. A
gateway has others: its connections lead to brokers elsewhere.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Sequence
from typing import Any, Protocol, TypeVar

from amq.broker.sessions.links import Client
from amq.broker.sessions.traffic import Traffic
from amq.config.node_options import NodeOptions
from amq.core.message import Message
from amq.doors.clock import Clock
from amq.protocols.codec import Codec
from amq.protocols.commands import Command
from amq.security.login import Claim, Login
from amq.transports.doorkeeper import Doorkeeper
from amq.transports.parking import Parkable, Parking
from amq.transports.places import Places
from amq.transports.shares import Shares
from amq.transports.translating import Translator

C = TypeVar("C", bound=Parkable)  # the peers


class ServedConnection(Protocol):
    """The part of a client's connection that carries out its commands: `ClientConnection`, or one that leads to it."""

    traffic: Traffic
    is_closed: bool
    is_lost: bool  # it has no socket, and its client may come back on another one

    @property
    def client(self) -> Client: ...
    def handle(self, commands: list[Command], *, until_s: float = math.inf) -> list[Command]:
        """Carry out `commands` in order: those of session 0, up to an `InSession`. Returns those that are left at
        `until_s`, monotonic, for another call. The caller wakes the turn."""
        ...

    def set_writable(self, writable: bool) -> None:
        """The socket has room (again), or has not: nothing is delivered then."""

    def lose(self) -> None:
        """The socket is gone. It keeps what it holds for its client, and nothing is delivered to it."""

    def expire_transactions(self, now: float) -> None:
        """Roll back what was not used for longer than the limit. `now` = monotonic."""

    def close(self) -> None:
        """The client is gone: what it held goes back to the queues."""


class Sender(Protocol):
    """A connection that has output."""

    @property
    def output_bytes(self) -> int:
        """Bytes that a turn may write before its end."""
        ...

    def send_out(self, now: bool = False) -> None: ...


class PeerTurn(Protocol):
    """The end of a round of the event loop, as connections see it.

    is_due   at the end of this round
    talkers  numbers of connections that sent something lately
    unsent   connections that have output
    is_gated nothing may leave before its end
    """

    is_due: bool
    talkers: deque[int]
    unsent: dict[Sender, None]
    is_gated: bool
    shares: Shares

    def wake(self) -> None:
        """There is something to do at the end of this round."""

    def hurry(self) -> None:
        """Write at once what is much, where this is not gated."""


class Hub(Protocol[C]):
    """The surroundings that a peer needs."""

    clock: Clock
    epoch: int
    loop: asyncio.AbstractEventLoop
    door: Doorkeeper
    places: Places
    parking: Parking[C]
    translator: Translator

    @property
    def turn(self) -> PeerTurn: ...
    @property
    def config(self) -> NodeOptions: ...

    def admit(self, peer: C, owner: str, client: Client, protocol: str) -> ServedConnection:
        """Serve a client that has logged in by `protocol`. `owner` = what the names of its temporary destinations begin
        with."""
        ...

    def waits_for(self, served: ServedConnection) -> Awaitable[None] | None:
        """The client of `served` hears that it is in when that has ended well; None = now. It raises AmqError."""
        ...

    # `queue` is that of a `QueueConsumer`.
    def shown(self, queue: Any, message: Message) -> Message:
        """`message` for a consumer that gets it again."""
        ...

    def lend(self, queue: Any, message: Message) -> int:
        """The large body of `message` is for one consumer. Returns how many bytes to `take_back` once it is written."""
        ...

    def take_back(self, size: int) -> None: ...
    async def authenticate(self, claim: Claim) -> Login: ...
    def brokers(self, loopback: bool, tls: bool = False) -> Sequence[str]:
        """Where a client finds the brokers of the group, () = it is not told. `loopback`: it is on this host; `tls`: it
        speaks TLS."""
        ...

    def opened(self, peer: C) -> bool: ...
    def closed(self, peer: C) -> None: ...
    def reopened(self, peer: C) -> None:
        """It has a socket again: that of a peer which is closed now."""
        ...


class Codecs(Protocol):
    """The protocols that the port of a connection serves."""

    def codec(self, first: bytes, owner: str) -> Codec | None:
        """A codec for a connection that begins so; None = more bytes are needed. `owner` = what the names of its
        temporary destinations begin with. Raises ProtocolError."""
        ...

    def answering(self, owner: str) -> Codec:
        """A codec that tells an error to a client whose protocol is not known."""
        ...
