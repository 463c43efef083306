"""Refusals: how many commands of one connection may be refused before it ends.

Each costs the broker an exception and a frame, and a program that goes on regardless does nothing else. A client that
is refused now and then for ever lives on.
"""

from __future__ import annotations

from typing import Final

from amq.core.errors import ProtocolError
from amq.transports.bucket import Bucket

REFUSALS_MAX: Final = 1000  # at once,
REFUSALS_RATE: Final = 100  # and this many more in each second
# Late words about a delivery or a consumer that has just ended: not the client's fault.
LATE: Final = frozenset({"UNKNOWN_DELIVERY", "UNKNOWN_SUBSCRIPTION"})


class Refusals:
    """Those of one connection. Reads no clock."""

    __slots__ = ("_left",)

    def __init__(self) -> None:
        self._left: Bucket | None = None  # None = no command was refused yet

    def one_more(self, code: str, now_s: float) -> ProtocolError | None:
        """A command was refused with `code`. Returns the error with which the connection ends, None = it lives on."""
        if code in LATE:
            return None
        if self._left is None:
            self._left = Bucket(REFUSALS_MAX, now_s)
        if self._left.take_whole(1, REFUSALS_RATE, REFUSALS_MAX, now_s):
            return None
        return ProtocolError(
            f"more than {REFUSALS_MAX} commands of this connection were refused: look at their errors, and change the "
            "program",
            code="REFUSALS_TOO_MANY",
        )
