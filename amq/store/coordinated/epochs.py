"""The epochs in a coordinator: `epochs/<number>.json`, one entry for each mastership.

Invariant: an epoch is made by a compare-and-set from nothing, which succeeds for one broker only.
"""

from __future__ import annotations

import errno

from amq.core.errors import StoreError
from amq.store.coordinator import ABSENT, VALUE_BYTES_MAX, Coordinator, KeyEntry
from amq.store.epoch import EPOCHS_KEPT, Epoch, decode_epoch, encode_epoch, epoch_name, epoch_numbers, read_epochs

EPOCHS = "epochs"


class CoordinatedEpochs:
    """See `amq.store.epoch.Epochs`."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    def check(self) -> None:
        if not self.numbers():
            raise StoreError(
                f"{self._coordinator.url}: no broker was ever master here; give the store that `amq start --store` "
                "was given",
                code="STORE_MISSING",
            )

    def numbers(self) -> list[int]:
        return epoch_numbers(self._coordinator.names(EPOCHS))

    def newest_number(self) -> int:
        return max(self.numbers(), default=0)

    def read(self, number: int) -> Epoch:
        return decode_epoch(number, self._entry(number).value, self.place(number))

    def newest(self, asker: str = "") -> Epoch | None:  # noqa: ARG002 (the coordinator always answers itself)
        number = self.newest_number()
        return self.read(number) if number else None

    def all(self) -> list[Epoch]:
        return read_epochs(self.numbers(), self.read)

    def place(self, number: int) -> str:
        return f"{self._coordinator.url}: {_key(number)}"

    def size(self, number: int) -> int:
        return len(self._entry(number).value)

    def make(self) -> None:
        """An entry needs no directory."""

    def link(self, epoch: Epoch, attempt: str) -> bool:
        data = encode_epoch(epoch, attempt)
        if len(data) > VALUE_BYTES_MAX:
            raise OSError(
                errno.EFBIG, "the epoch names more segments than an entry has room for", self.place(epoch.number)
            )
        return self._coordinator.compare_and_set(_key(epoch.number), data, ABSENT) is not None

    def prune(self, own: Epoch, keep: int = EPOCHS_KEPT) -> int:
        old = [number for number in self.numbers() if number <= own.number - keep]
        found = filter(None, [self._coordinator.read(_key(number)) for number in old])
        return sum(self._coordinator.remove(each.key, each.revision) for each in found)

    def _entry(self, number: int) -> KeyEntry:
        found = self._coordinator.read(_key(number))
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "is not in the coordinator", self.place(number))
        return found


def _key(number: int) -> str:
    return f"{EPOCHS}/{epoch_name(number)}"
