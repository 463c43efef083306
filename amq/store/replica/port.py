"""The port of a replicated store to its other members.

Invariant: nothing of `OtherCopies` is trusted. A message may be lost, late, double or out of order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from amq.store.port import EventLoop

# Called with the sender, its message, and a way to answer. With a message to a copy it may wait for the disk, which
# holds that sender back; else it returns at once.
Receive = Callable[[str, Any, Callable[[Any], None]], None]


class OtherCopies(Protocol):
    """The other members of a group, by the ids of their copies. Any thread may call."""

    def send(self, member: str, message: Any) -> object:
        """Send `message` to the copy of `member`. Never waits: where that member cannot be reached, or is too slow,
        the message is lost."""
        ...

    def members(self) -> frozenset[str]:
        """The ids of those that can be reached now."""
        ...

    def gone(self) -> frozenset[str]:
        """The ids of those whose connection has ended, and that were dialled in vain since: their process is likely to
        have ended. A member that is silent, or has never been reached, is not among them."""
        ...

    def hear_on(self, loop: EventLoop | None) -> None:
        """Answers may be taken in `loop` from now on, None = not any more. Called in that loop."""
        ...

    def hear(self) -> None:
        """Take the answers that have come and wait for the loop of `hear_on`. Waits for nothing."""
        ...

    def close(self) -> None: ...
