"""Remembered: what was found out about names that clients give, so that it need not be found out again.

Names are as long as headers may be, and there may be any number of them, so that bytes are bounded, not only entries.
"""

from __future__ import annotations

from typing import TypeVar

Value = TypeVar("Value")
ENTRY_BYTES = 150  # of a key and a small value beside their characters


class Remembered(dict[str, Value]):
    """Values by name. `keep` forgets all where it would take more than about `bytes_max`."""

    __slots__ = ("_bytes", "_bytes_max")

    def __init__(self, bytes_max: int) -> None:
        super().__init__()
        self._bytes_max = bytes_max
        self._bytes = 0

    def keep(self, name: str, value: Value, size: int = 0) -> Value:
        """Remember `value`, which takes `size` bytes beside what any entry takes. A new name only."""
        taken = ENTRY_BYTES + len(name) + size
        if self._bytes + taken > self._bytes_max:
            self.clear()
        if taken <= self._bytes_max:
            self[name] = value
            self._bytes += taken
        return value

    def clear(self) -> None:
        super().clear()
        self._bytes = 0
