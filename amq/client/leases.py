"""Leases of the client: messages that are set apart for a cursor, read as often as wanted, and settled later.

Invariant: each request may be repeated, on the next master too, and gets the same answer; a reader of a lease goes on
where it was when its connection broke.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from amq.client.core import Subscription
from amq.client.requests import Request, RequestKind
from amq.core.errors import CommandError, ProtocolError
from amq.protocols.stomp.frame import Frame, encode
from amq.protocols.stomp.runs import HEADER, MESSAGES, VERSION
from amq.protocols.stomp.runs import MESSAGES_MAX as MAX
from amq.protocols.stomp.subscribing import number

if TYPE_CHECKING:
    from amq.client.machine import Machine

MESSAGES_MAX = 10_000  # that a broker puts into one lease
STOP_MAX = 999_999_999


@dataclass(frozen=True, slots=True)
class MessageLease:
    """Messages that are set apart, or the word that there are none.

    number     by which it is read and settled; of one cursor a later lease has a larger one. 0 = there is none
    messages   how many are in it
    waiting    how many wait at its destination that nobody has
    store      which store it is in
    epoch      that of the cursor: of the client that took it last; 0 = no client ever took it
    waiting_bytes  of the messages that its destination holds beside leases
    direct     where in the store the messages stand, in the words of the broker; None = it does not say
    indirect   why it does not say
    queues     the queues of a pattern that hold something: name → messages that wait
    size       bytes of the records of its messages, where the question had a size or asked for places; else 0
    reads      messages of the cursor that were read from the store, and messages that the broker had to send although
               the reader reads the store, since this master began
    """

    number: int
    messages: int
    waiting: int
    store: str
    epoch: int = 0
    waiting_bytes: int = 0
    direct: Mapping[str, Any] | None = None
    indirect: str = ""
    queues: Mapping[str, int] = field(default_factory=dict)
    size: int = 0
    reads: tuple[int, int] = (0, 0)

    @classmethod
    def parse(cls, outcome: str) -> MessageLease:
        """The answer of a broker. Raises ProtocolError."""
        try:
            found = json.loads(outcome)
            return cls(
                found["lease"],
                found["messages"],
                found["waiting"],
                found["store"],
                found.get("epoch", 0),
                found.get("waitingBytes", 0),
                found if "places" in found else None,
                found.get("indirect", ""),
                found.get("queues", {}),
                found.get("size", 0),
                (found.get("direct", 0), found.get("fallback", 0)),
            )
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

    def deliver(self, frame: Frame, epoch: int) -> None:
        super().deliver(frame, epoch)
        if frame.command == MESSAGES:
            self.delivered += messages_in(frame) - 1

    def interrupt(self) -> None:
        self.delivered -= sum(messages_in(delivery.frame) for delivery in self.buffer)
        super().interrupt()


def messages_in(frame: Frame) -> int:
    """How many messages it brings. Raises ProtocolError."""
    return number("messages", frame.headers.get("messages", ""), MAX) if frame.command == MESSAGES else 1


class LeaseRequest(NamedTuple):
    """A question of `Connection.lease_many`; the words are those of `Connection.lease`. `skip`: this many leases beyond
    `after` are left out, those that questions before this one make among them. `reads`: messages that a task has read
    from the store, and messages that it had to get from the broker although it reads the store."""

    destination: str
    cursor: str
    after: int = 0
    messages: int = MESSAGES_MAX
    size: int = 0
    lease_timeout: float = 0
    take: bool = False
    epoch: int = 0
    places: bool = False
    skip: int = 0
    reads: tuple[int, int] = (0, 0)


def ask(
    machine: Machine,
    destination: str,
    cursor: str,
    after: int,
    messages: int,
    size: int,
    lease_timeout: float,
    take: bool,
    epoch: int,
    places: bool = False,
    skip: int = 0,
    reads: tuple[int, int] = (0, 0),
) -> Request:
    """LEASE; the request's `outcome` is the answer."""
    headers = [("destination", destination), ("cursor", cursor), ("after", str(after)), ("messages", str(messages))]
    if size:
        headers.append(("bytes", str(size)))
    if lease_timeout:
        headers.append(("timeout", str(round(lease_timeout * 1000))))
    if take:
        headers.append(("take", "true"))
    if places:
        headers.append(("places", "true"))
    if skip:
        headers.append(("skip", str(skip)))
    headers += [(name, str(count)) for name, count in zip(("direct", "fallback"), reads, strict=True) if count]
    return _request(machine, "LEASE", [*headers, *_epoch(epoch)], cursor)


def settle(machine: Machine, acknowledge: bool, destination: str, cursor: str, through: int, epoch: int) -> Request:
    """COMMIT or ABORT all leases of a cursor up to number `through`."""
    command = "COMMIT" if acknowledge else "ABORT"
    headers = [("destination", destination), ("cursor", cursor), ("through", str(through)), *_epoch(epoch)]
    return _request(machine, command, headers, cursor)


def reading(
    cursor: str, number: int, start: int, stop: int | None, epoch: int, in_runs: bool = False
) -> dict[str, str]:
    """Headers of the SUBSCRIBE that reads what a lease holds. Raises CommandError."""
    if start < 0 or (stop is not None and stop < start):
        raise CommandError(f"positions {start} to {stop}: the first is 0, and the end is not before the start")
    positions = f"{start}-{STOP_MAX if stop is None else stop}"
    headers = {"cursor": cursor, "lease": str(number), "positions": positions, **dict(_epoch(epoch))}
    return headers | {HEADER: VERSION} if in_runs else headers


def _epoch(epoch: int) -> list[tuple[str, str]]:
    return [("epoch", str(epoch))] if epoch else []


def _request(machine: Machine, command: str, headers: list[tuple[str, str]], subject: str) -> Request:
    if not subject:
        raise CommandError("give the cursor a name")
    receipt = machine.next_receipt()
    return machine.request(
        RequestKind.RESOLVE, receipt, encode(command, [*headers, ("receipt", receipt.decode())]), subject
    )
