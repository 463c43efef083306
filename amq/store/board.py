"""The port of the board: small documents that all members of a store see, in the words of the domain.

A *seat* belongs to one broker name: a running broker holds it, and writes who it is; the document of a broker that
stopped stays, and means nothing. A *slot* takes the last document that anybody wrote for the broker of that name.
Invariant: nothing of this is needed for safety. A document may be read while it is written: its checksum tells.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol


class SeatTakenError(Exception):
    """A running broker holds the seat. `read()` returns what it wrote."""

    def __init__(self, read: Callable[[], bytes]) -> None:
        super().__init__("a running broker holds the seat")
        self.read = read


class Posted(NamedTuple):
    """The document of a seat. `read()` returns its bytes as of now, until the next seat is asked for; `place` names it
    in errors."""

    name: str
    place: str
    read: Callable[[], bytes]


class Seat(Protocol):
    """The seat of this broker, held until `close`."""

    @property
    def place(self) -> str:
        """Where it is, for people."""
        ...

    def write(self, data: bytes) -> None:
        """Replace its document, durably. `data` is never shorter than what it replaces. Raises OSError."""
        ...

    def keep(self) -> bool:
        """Take it again where somebody has removed it: others would take this broker for gone. True = it was lost, and
        has no document now. Raises SeatTakenError, OSError."""
        ...

    def close(self) -> None:
        """Give it back. Raises OSError."""
        ...


class Board(Protocol):
    """The board of one store. Every call may hang in the store."""

    def take(self, name: str) -> Seat:
        """The seat of broker `name`. Raises SeatTakenError, OSError."""
        ...

    def seats(self, *, held: bool) -> Iterator[Posted]:
        """The seats that are held now, or those that are not, by name. Raises OSError."""
        ...

    def make_slot(self, name: str) -> None:
        """Make the slot of broker `name` where it is missing. Raises OSError."""
        ...

    def read_slot(self, name: str) -> bytes | None:
        """Its document, None = nothing was written yet. A slot that somebody removed is made again. Raises OSError."""
        ...

    def write_slot(self, name: str, data: bytes) -> bool:
        """Replace its document, durably; False = the slot is missing, so that broker reads none. Raises OSError."""
        ...

    def place_of_slot(self, name: str) -> str:
        """Where the slot is, for people."""
        ...

    def forget(self, name: str) -> None:
        """Remove seat and slot of broker `name`, which does not run. Raises OSError."""
        ...
