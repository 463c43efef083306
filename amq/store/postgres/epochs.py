"""The epochs in a database: a document for each mastership in the directory `epochs`.

Invariant: name and document come to be in one statement, behind the fence. The name is unique, which makes it the
compare-and-swap on which everything rests.
"""

from __future__ import annotations

from contextlib import suppress

from amq.core.errors import StoreError
from amq.store.epoch import EPOCHS_KEPT, Epoch, decode_epoch, encode_epoch, epoch_name, epoch_numbers, read_epochs
from amq.store.postgres.database import EPOCHS, Database


class SqlEpochs:
    """See `amq.store.epoch.Epochs`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def check(self) -> None:
        try:
            self._database.names(EPOCHS)
        except FileNotFoundError:
            raise StoreError(
                f"{self._database.url.text}: no broker was ever master here; give the store that `amq start --store` "
                "was given",
                code="STORE_MISSING",
            ) from None

    def numbers(self) -> list[int]:
        return epoch_numbers(self._database.names(EPOCHS))

    def newest_number(self) -> int:
        with suppress(FileNotFoundError):
            return max(self.numbers(), default=0)
        return 0

    def read(self, number: int) -> Epoch:
        return decode_epoch(number, self._database.load(EPOCHS, epoch_name(number)), self.place(number))

    def newest(self, asker: str = "") -> Epoch | None:  # noqa: ARG002 (the database always answers itself)
        number = self.newest_number()
        return self.read(number) if number else None

    def all(self) -> list[Epoch]:
        return read_epochs(self.numbers() if self.newest_number() else [], self.read)

    def place(self, number: int) -> str:
        return self._database.place(EPOCHS, epoch_name(number))

    def size(self, number: int) -> int:
        return self._database.size(EPOCHS, epoch_name(number))[0]

    def make(self) -> None:
        self._database.make_directory(EPOCHS)

    def link(self, epoch: Epoch, attempt: str) -> bool:
        try:
            self._database.create(EPOCHS, epoch_name(epoch.number), encode_epoch(epoch, attempt))
        except FileExistsError:
            return False
        return True

    def prune(self, own: Epoch, keep: int = EPOCHS_KEPT) -> int:
        """A name with a dot before it is of a broker that made an epoch under another name first, as on files."""
        names = self._database.names(EPOCHS)
        old = [epoch_name(number) for number in epoch_numbers(names) if number <= own.number - keep]
        return len(self._database.delete(EPOCHS, old + [name for name in names if name.startswith(".")]))
