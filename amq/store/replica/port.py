"""The ports of a replicated store: the other members, and what is known of the format of a segment.

Invariant: nothing of `OtherCopies` is trusted. A message may be lost, late, double or out of order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from amq.store.segment_log import Reader

# Called with the sender, its message, and a way to answer. With a message to a copy it may wait for the disk, which
# holds that sender back; else it returns at once.
Receive = Callable[[str, Any, Callable[[Any], None]], None]


class OtherCopies(Protocol):
    """The other members of a group, by the ids of their copies. Any thread may call."""

    def send(self, member: str, message: Any) -> None:
        """Send `message` to the copy of `member`. Never waits: where that member cannot be reached, or is too slow,
        the message is lost."""
        ...

    def members(self) -> frozenset[str]:
        """The ids of those that can be reached now."""
        ...

    def close(self) -> None: ...


class SegmentFormat(Protocol):
    """The journal's knowledge of segments, which a store only stores. `head_bytes` of each come before all writes."""

    @property
    def head_bytes(self) -> int: ...

    def key(self, name: str) -> tuple[int, int] | None:
        """Epoch and number of the segment `name`, both from 1; None = no segment has such a name."""
        ...

    def name(self, epoch: int, number: int) -> str: ...

    def whole(self, segment: Reader, torn: tuple[int, int] = (0, 0)) -> int:
        """Where the last whole write of a segment ends that may be torn at its end; 0 = it has none. Several writes
        between the offsets `torn` may be there in part, if nothing follows. Raises CorruptError."""
        ...

    def end_within(self, segment: Reader, start: int, end: int, size: int) -> int:
        """Where the last write ends that begins at `start` or behind it and ends by `start + size`; else the first.
        The segment is whole up to `end`, and a write begins at `start`; 0 = at its head. Raises CorruptError."""
        ...
