"""Which requests are unanswered, and how much may still be sent. Invariant: what is entered ends exactly once."""

from __future__ import annotations

from amq.client.errors import DeliveryLostError
from amq.client.requests import AFTER_LOSS, AfterLoss, Gate, Kind, Request, open_gate
from amq.errors import AmqError, CommandError


class Ledger:
    """Unanswered requests, oldest first, and the window of unconfirmed sends.

    room_gate   opened when there is room to send again
    """

    __slots__ = ("_requests", "_window_bytes", "_window_messages", "room_gate", "unconfirmed", "unconfirmed_bytes")

    def __init__(self, window_messages: int, window_bytes: int) -> None:
        if window_messages < 1 or window_bytes < 1:
            raise CommandError(
                f"send_window_messages={window_messages}, send_window_bytes={window_bytes}: write numbers from 1"
            )
        self._requests: dict[bytes, Request] = {}
        self._window_messages = window_messages
        self._window_bytes = window_bytes
        self.unconfirmed = 0
        self.unconfirmed_bytes = 0
        self.room_gate: Gate = []

    def __len__(self) -> int:
        return len(self._requests)

    def all(self) -> list[Request]:
        return list(self._requests.values())

    @property
    def has_room(self) -> bool:
        return self.unconfirmed < self._window_messages and self.unconfirmed_bytes < self._window_bytes

    def enter(self, request: Request) -> None:
        self._requests[request.receipt] = request
        if request.kind is Kind.SEND:
            self.unconfirmed += 1
            self.unconfirmed_bytes += len(request.frame) + len(request.body)
            if request.owner is not None:
                request.owner.unconfirmed += 1

    def find(self, receipt: bytes) -> Request | None:
        return self._requests.get(receipt)

    def link_lost(self, error: AmqError) -> None:
        """The connection broke because of `error`: what can be asked again stays, the rest ends."""
        for request in self.all():
            fate = AFTER_LOSS[request.kind]
            if fate is AfterLoss.REPLAY:
                request.replayed = True
            elif fate is AfterLoss.SUCCEED:
                self.end(request, None)
            else:
                self.end(request, DeliveryLostError(f"the connection broke before the receipt: {error}"))

    def end(self, request: Request, error: AmqError | None) -> None:
        """`request` is answered (None) or failed; its waiters are woken."""
        del self._requests[request.receipt]
        request.done = True
        request.error = error
        if request.kind is Kind.SEND:
            self.unconfirmed -= 1
            self.unconfirmed_bytes -= len(request.frame) + len(request.body)
            owner = request.owner
            if owner is not None:
                owner.unconfirmed -= 1
                if error is not None:
                    owner.failures.append((request.subject, error))
                if not owner.unconfirmed:
                    open_gate(owner.gate)
            # Wake seldom, for many sends: only when half of the window is free.
            if (
                self.room_gate
                and self.unconfirmed <= self._window_messages // 2
                and self.unconfirmed_bytes <= self._window_bytes // 2
            ):
                open_gate(self.room_gate)
        if request.gate:
            open_gate(request.gate)
