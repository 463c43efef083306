"""The port of a repair: what it asks of a store besides the ports of a broker. For the holder of the lock.

A repair keeps all originals *aside*, in a place of its own, where it also writes a second journal that takes the place
of the first one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from amq.store.epoch import Epoch
from amq.store.segment_log import SegmentLog


class Aside(Protocol):
    """The place of one repair. `log` = the second journal, which is there until `clear`."""

    @property
    def log(self) -> SegmentLog: ...

    def names(self) -> list[str]:
        """The originals that are kept, by the names that they have in the store, and perhaps others."""
        ...

    def write_mark(self, data: bytes) -> None:
        """Keep `data`, durably."""
        ...

    def read_mark(self) -> bytes:
        """Raises FileNotFoundError."""
        ...

    def move_in(self, names: Iterable[str]) -> None:
        """Give these segments of `log` to the journal of the store, too, durably."""
        ...

    def clear(self) -> None:
        """Remove `log`, or what is left of it."""
        ...


class Workshop(Protocol):
    """Every call raises OSError where the store fails."""

    def check(self) -> None:
        """Raises StoreError if another product's broker keeps its messages here."""
        ...

    def unfinished(self) -> list[str]:
        """The places of repairs that have not cleared their second journal."""
        ...

    def aside(self, place: str) -> Aside:
        """That of the repair at `place`."""
        ...

    def keep(self, name: str, segments: Iterable[str], checkpoints: Iterable[str]) -> str:
        """Make a place for repair `name` that has these segments and checkpoints of the store and every epoch, durably.
        Returns it."""
        ...

    def rebuild(self, epoch: Epoch, attempt: str) -> None:
        """Put `epoch` in the place of what has its number, durably. `attempt` is unique."""
        ...

    def take_out(self, place: str) -> bool:
        """Remove what is at `place` in the store, durably; False = it is gone."""
        ...
