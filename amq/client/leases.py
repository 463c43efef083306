"""Leases of the client: messages that are set apart for a cursor, read as often as wanted, and settled later.

Invariant: each request may be repeated, on the next master too, and gets the same answer; a reader of a lease goes on
where it was when its connection broke.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from amq.client.core import Subscription
from amq.client.requests import Kind, Request
from amq.errors import CommandError, ProtocolError
from amq.protocols.stomp.frame import encode

if TYPE_CHECKING:
    from amq.client.machine import Machine

MESSAGES_MAX = 10_000  # that a broker puts into one lease
STOP_MAX = 999_999_999


@dataclass(frozen=True, slots=True)
class Lease:
    """Messages that are set apart, or the word that there are none.

    number     by which it is read and settled; of one cursor a later lease has a larger one. 0 = there is none
    messages   how many are in it
    waiting    how many wait at its destination that nobody has
    store      which store it is in
    epoch      that of the cursor: of the client that took it last; 0 = no client ever took it
    """

    number: int
    messages: int
    waiting: int
    store: str
    epoch: int = 0

    @classmethod
    def parse(cls, outcome: str) -> Lease:
        """The answer of a broker. Raises ProtocolError."""
        try:
            found = json.loads(outcome)
            return cls(found["lease"], found["messages"], found["waiting"], found["store"], found.get("epoch", 0))
        except (ValueError, TypeError, KeyError) as error:
            raise ProtocolError(f"this broker does not know leases: {outcome[:100]!r}") from error


class LeaseSubscription(Subscription):
    """The subscription of a lease's reader. A new link goes on behind the messages that were handed over."""

    __slots__ = ()

    def request(self, machine: Machine) -> Request:
        start, _, stop = dict(self._headers)["positions"].partition("-")
        headers, self._headers = self._headers, [each for each in self._headers if each[0] != "positions"]
        self._headers.append(("positions", f"{int(start) + self.delivered}-{stop}"))
        request = super().request(machine)
        self._headers = headers
        return request

    def interrupt(self) -> None:
        self.delivered -= len(self.buffer)
        super().interrupt()


def ask(
    machine: Machine, destination: str, cursor: str, after: int, messages: int, size: int, lease_timeout: float,
    take: bool, epoch: int,
) -> Request:  # fmt: skip
    """LEASE; the request's `outcome` is the answer."""
    headers = [("destination", destination), ("cursor", cursor), ("after", str(after)), ("messages", str(messages))]
    if size:
        headers.append(("bytes", str(size)))
    if lease_timeout:
        headers.append(("timeout", str(round(lease_timeout * 1000))))
    if take:
        headers.append(("take", "true"))
    return _request(machine, "LEASE", [*headers, *_epoch(epoch)], cursor)


def settle(
    machine: Machine, acknowledge: bool, destination: str, cursor: str, through: int, epoch: int
) -> Request:
    """COMMIT or ABORT all leases of a cursor up to number `through`."""
    command = "COMMIT" if acknowledge else "ABORT"
    headers = [("destination", destination), ("cursor", cursor), ("through", str(through)), *_epoch(epoch)]
    return _request(machine, command, headers, cursor)


def reading(cursor: str, number: int, start: int, stop: int | None, epoch: int) -> dict[str, str]:
    """Headers of the SUBSCRIBE that reads what a lease holds. Raises CommandError."""
    if start < 0 or (stop is not None and stop < start):
        raise CommandError(f"positions {start} to {stop}: the first is 0, and the end is not before the start")
    positions = f"{start}-{STOP_MAX if stop is None else stop}"
    return {"cursor": cursor, "lease": str(number), "positions": positions, **dict(_epoch(epoch))}


def _epoch(epoch: int) -> list[tuple[str, str]]:
    return [("epoch", str(epoch))] if epoch else []


def _request(machine: Machine, command: str, headers: list[tuple[str, str]], subject: str) -> Request:
    if not subject:
        raise CommandError("give the cursor a name")
    receipt = machine.next_receipt()
    return machine.request(Kind.RESOLVE, receipt, encode(command, [*headers, ("receipt", receipt.decode())]), subject)
