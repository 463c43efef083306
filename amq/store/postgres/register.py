"""The register in a database: one entry for each document, which the key of the table of names lets be made once.

The tables are those of a store, and so are the rights: whoever may read one document may read all.
"""

from __future__ import annotations

from amq.core.errors import ConfigError
from amq.store.postgres.board import SqlBoard
from amq.store.postgres.database import Database


class SqlRegister:
    """See `amq.store.register.Register`."""

    def __init__(self, database: Database) -> None:
        self.board = SqlBoard(database)
        self._database = database

    def make(self, directories: tuple[str, ...]) -> None:
        self._database.make_tables()
        for directory in directories:
            self._database.make_directory(directory)

    def place(self, directory: str, name: str = "") -> str:
        return self._database.place(directory, name)

    def place_of_store(self, directory: str, name: str) -> str:  # noqa: ARG002 (tables have no directory)
        """That of tables with a prefix in the same database."""
        try:
            return self._database.url.below(name)
        except ConfigError as error:
            raise ConfigError(
                f"the tables of store {name!r} cannot be named after it ({error.description}): take a short name of "
                "letters, digits and '_', or say where the store is",
                code=error.code,
            ) from None

    def names(self, directory: str, asker: str = "") -> list[str]:  # noqa: ARG002 (the database always answers itself)
        return self._database.names(directory)

    def read(self, directory: str, name: str) -> bytes:
        return self._database.load(directory, name)

    def write(self, directory: str, name: str, data: bytes, attempt: str, *, private: bool = False) -> None:  # noqa: ARG002
        self._database.create(directory, name, data)

    def remove(self, directory: str, name: str) -> None:
        self._database.delete(directory, [name])

    def is_private(self, directory: str, name: str) -> bool:  # noqa: ARG002 (the rights on the tables decide)
        return True
