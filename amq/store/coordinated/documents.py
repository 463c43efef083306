"""The register in a coordinator: each document is an entry `DIRECTORY/NAME`, which is set once.

Invariant: an entry that is there is never set again. A user who may read the coordinator may read all documents.
"""

from __future__ import annotations

import errno
import os

from amq.core.errors import ConfigError
from amq.store.coordinated.board import CoordinatedBoard
from amq.store.coordinator import ABSENT, VALUE_BYTES_MAX, Coordinator
from amq.store.host import Host

DOCUMENTS = "documents"
ROOT = "-"  # where the documents are that have no directory


class CoordinatedRegister:
    """See `amq.store.register.Register`."""

    def __init__(self, coordinator: Coordinator, host: Host) -> None:
        self.board = CoordinatedBoard(coordinator, host)
        self._coordinator = coordinator

    def make(self, directories: tuple[str, ...]) -> None:
        for each in directories:
            self._coordinator.compare_and_set(_key("", each), b"a directory", ABSENT)

    def place(self, directory: str, name: str = "") -> str:
        return f"{self._coordinator.url}: {_key(directory, name)}"

    def place_of_store(self, directory: str, name: str) -> str:
        raise ConfigError(
            f"{self._coordinator.url} has room for the table of a cluster, and not for store {name} ({directory}): say "
            "where each store is, as --store 'replica:///…'",
            code="STORE_URL_INVALID",
        )

    def names(self, directory: str, asker: str = "") -> list[str]:  # noqa: ARG002 (the coordinator answers itself)
        if directory and self._coordinator.read(_key("", directory)) is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.place(directory))
        return self._coordinator.names(f"{DOCUMENTS}/{directory or ROOT}")

    def read(self, directory: str, name: str) -> bytes:
        found = self._coordinator.read(_key(directory, name))
        if found is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.place(directory, name))
        return found.value.partition(b"\n")[2]

    def write(self, directory: str, name: str, data: bytes, attempt: str, *, private: bool = False) -> None:  # noqa: ARG002
        place, value = self.place(directory, name), attempt.encode() + b"\n" + data
        if len(value) > VALUE_BYTES_MAX:
            raise OSError(errno.EFBIG, "the document is longer than an entry may be", place)
        if self._coordinator.compare_and_set(_key(directory, name), value, ABSENT) is None:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), place)

    def remove(self, directory: str, name: str) -> None:
        found = self._coordinator.read(_key(directory, name))
        if found is not None:
            self._coordinator.remove(found.key, found.revision)

    def is_private(self, directory: str, name: str) -> bool:  # noqa: ARG002
        """Reading is a right of the whole coordinator, as changing is."""
        return True


def _key(directory: str, name: str) -> str:
    return f"{DOCUMENTS}/{directory or ROOT}/{name}"
