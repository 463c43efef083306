"""Peers: the masters of the other stores of the cluster, as this one reaches them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from amq.broker.recipient import Recipient
from amq.core.errors import AmqError
from amq.protocols.commands import Command


class PeerConnection(Protocol):
    """A connection to the master of another store."""

    @property
    def is_closed(self) -> bool: ...
    def handle(self, commands: list[Command], *, until_s: float = 0.0) -> list[Command]: ...
    def close(self) -> None: ...


class Peers(Protocol):
    """The ways to other stores. Implemented outside of the broker, by links (`amq.link`)."""

    def open(
        self, store: str, recipient: Recipient, protocol: str, lost: Callable[[AmqError], None], user: str = ""
    ) -> PeerConnection:
        """A connection to the master of `store`, which operators see as one of `protocol`. Its commands wait until
        that master is found, for at most 30 s. `recipient` gets the answers, each once; an error of a command ends
        nothing. `lost` is called when it has ended: commands that were not answered may have been carried out, or not.
        Raises AmqError."""
        ...
