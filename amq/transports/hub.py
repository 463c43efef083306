"""Hub and Codecs: the surroundings of a peer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol, TypeVar

from amq.broker.queues.queue import Queue
from amq.broker.sessions.connection import ClientConnection
from amq.broker.sessions.links import Client
from amq.config.node_options import NodeOptions
from amq.core.message import Message
from amq.doors.clock import Clock
from amq.protocols.codec import Codec
from amq.security.login import Claim, Login
from amq.transports.doorkeeper import Doorkeeper
from amq.transports.parking import Parkable, Parking
from amq.transports.places import Places
from amq.transports.translating import Translator
from amq.transports.turn import Turn

C = TypeVar("C", bound=Parkable)  # the peers


class Hub(Protocol[C]):
    """The surroundings that a peer needs."""

    clock: Clock
    turn: Turn
    epoch: int
    loop: asyncio.AbstractEventLoop
    door: Doorkeeper
    places: Places
    parking: Parking[C]
    translator: Translator

    @property
    def config(self) -> NodeOptions: ...

    def admit(self, peer: C, owner: str, client: Client, protocol: str) -> ClientConnection:
        """Serve a client that has logged in by `protocol`. `owner` = what the names of its temporary destinations begin
        with."""
        ...

    def lend(self, queue: Queue, message: Message) -> int: ...
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
