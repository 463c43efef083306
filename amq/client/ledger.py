"""Unanswered requests, the window of unconfirmed sends, and failures that nobody was told yet.

Invariants: each request that is entered ends exactly once; a producer is remembered only while one of its sends with
`wait=False` is unconfirmed, or has failed and nobody was told.
"""

from __future__ import annotations

from amq.client.errors import DeliveryLostError, FlushError
from amq.client.requests import AFTER_LOSS, AfterLoss, Gate, Request, RequestKind, SendOwner, open_gate
from amq.core.errors import AmqError, CommandError

UNTOLD_MAX = 10_000  # failures of sends with `wait=False`; the next such send raises them


class Ledger:
    """Unanswered requests, oldest first, and the window of unconfirmed sends.

    room_gate   opened when there is room to send again
    untold      failures of sends with `wait=False` that nobody was told yet
    """

    __slots__ = (
        "_owners",
        "_requests",
        "_window_bytes",
        "_window_messages",
        "room_gate",
        "unconfirmed",
        "unconfirmed_bytes",
        "untold",
    )

    def __init__(self, window_messages: int, window_bytes: int) -> None:
        if window_messages < 1 or window_bytes < 1:
            raise CommandError(
                f"send_window_messages={window_messages}, send_window_bytes={window_bytes}: write numbers from 1"
            )
        self._requests: dict[bytes, Request] = {}
        self._owners: dict[SendOwner, None] = {}
        self.untold = 0
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

    def unflushed(self, session: object) -> list[SendOwner]:
        """The producers of `session` that have something to wait for, or to tell."""
        return [owner for owner in self._owners if owner.session is session]

    def take_failures(self, owner: SendOwner) -> list[tuple[str, AmqError]]:
        """The failures of `owner`, to be told now."""
        failures, owner.failures = owner.failures, []
        self.untold -= len(failures)
        if failures and not owner.unconfirmed:
            del self._owners[owner]
        return failures

    def check_untold(self, session: object) -> None:
        """Raises FlushError where failures pile up that nobody asks for."""
        if self.untold >= UNTOLD_MAX:
            failures = [failure for owner in self.unflushed(session) for failure in self.take_failures(owner)]
            if failures:
                raise FlushError(failures)

    def enter(self, request: Request) -> None:
        self._requests[request.receipt] = request
        if request.kind is RequestKind.SEND:
            self.unconfirmed += 1
            self.unconfirmed_bytes += len(request.frame) + len(request.body)
            owner = request.owner
            if owner is not None:
                owner.unconfirmed += 1
                if owner.unconfirmed == 1:
                    self._owners[owner] = None

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
        if request.kind is RequestKind.SEND:
            self.unconfirmed -= 1
            self.unconfirmed_bytes -= len(request.frame) + len(request.body)
            owner = request.owner
            if owner is not None:
                owner.unconfirmed -= 1
                if error is not None:
                    owner.failures.append((request.subject, error))
                    self.untold += 1
                if not owner.unconfirmed:
                    if not owner.failures:
                        del self._owners[owner]
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
