"""The port of the register: documents that are written once and stay, whole or not at all, such as tables of a cluster.

Invariant: of two that write a document of one name, one succeeds. So a number in the name is a compare-and-set.
"""

from __future__ import annotations

from typing import Protocol

from amq.store.board import Board


class Register(Protocol):
    """The documents at one place, by the directory ("" or one word) and the name of each. Every call may hang."""

    @property
    def board(self) -> Board:
        """The seats and slots of those who share the register."""
        ...

    def make(self, directories: tuple[str, ...]) -> None:
        """Make what is missing for documents there. Raises StoreError, OSError."""
        ...

    def place(self, directory: str, name: str = "") -> str:
        """Where that is, for people."""
        ...

    def place_of_store(self, directory: str, name: str) -> str:
        """Path or URL of store `name`, which lives beside the register. Raises ConfigError where it cannot have one."""
        ...

    def names(self, directory: str, asker: str = "") -> list[str]:
        """`asker`, a name that nobody else uses, asks for the answer of the place itself, where otherwise a network
        client may give an older one. Raises FileNotFoundError where nothing was made yet, StoreError, OSError."""
        ...

    def read(self, directory: str, name: str) -> bytes:
        """Raises FileNotFoundError where it is missing, StoreError, OSError."""
        ...

    def write(self, directory: str, name: str, data: bytes, attempt: str, *, private: bool = False) -> None:
        """Write a new document, durably; no other user may read a `private` one. `attempt` is unique. Raises
        FileExistsError where there is one, StoreError, OSError."""
        ...

    def remove(self, directory: str, name: str) -> None:
        """Remove a document that no one needs any more, where it is there. Raises StoreError, OSError."""
        ...

    def is_private(self, directory: str, name: str) -> bool:
        """Can nobody read the document but who may change it? Raises OSError."""
        ...
