"""The record of a group at its coordinator, with the newest epoch in it: `group`. Older epochs: `epochs/NUMBER.json`.

Invariants: record and epoch change at one moment, by compare-and-set; an epoch is history before it is replaced.
"""

from __future__ import annotations

import errno
from typing import NamedTuple

from amq.core.errors import StoreError
from amq.store.coordinator import ABSENT, VALUE_BYTES_MAX, Coordinator, KeyEntry
from amq.store.document import decode, encode, field
from amq.store.epoch import (
    EPOCHS_KEPT,
    Epoch,
    decode_epoch,
    encode_epoch,
    epoch_json,
    epoch_name,
    epoch_numbers,
    epoch_of,
    read_epochs,
)
from amq.store.replica.group import NO_GROUP, GroupRecord

KIND = GROUP = "group"
EPOCHS = "epochs"
PRUNED_MAX = 16  # old epochs that one takeover removes; it meets one, unless others before it have failed there


class KnownRecord(NamedTuple):
    """The record as `revision`, and its epoch, None = no broker was ever master."""

    revision: int
    record: GroupRecord
    epoch: Epoch | None


class GroupBook:
    """Reads and replaces the record. Every call may hang in the coordinator, and raises OSError if that fails."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator

    def read(self) -> KnownRecord:
        """The newest record. Raises CorruptError, NewerFormatError."""
        return self.known(self._coordinator.read(GROUP))

    def known(self, found: KeyEntry | None) -> KnownRecord:
        """The record in the entry `found`. Raises CorruptError, NewerFormatError."""
        if found is None:
            return KnownRecord(ABSENT, NO_GROUP, None)
        place = self.place(GROUP)
        body = decode(KIND, found.value, place)
        members = frozenset(str(each) for each in field(body, "members", list, place))
        numbers = [field(body, name, int, place) for name in ("term", "copies", "before", "sealed")]
        epoch = epoch_of(field(body, "epoch", dict, place), place, field(body, "format", int, place))
        record = GroupRecord(numbers[0], members, numbers[1], numbers[2], numbers[3], epoch.number)
        return KnownRecord(found.revision, record, epoch)

    def replace(self, known: KnownRecord, record: GroupRecord, epoch: Epoch) -> KnownRecord:
        """Replace the record of `known.revision`; returns the one that is there then. After an OSError it is unknown
        whether it is this one."""
        assert record.epoch == epoch.number
        older = known.epoch if known.epoch is not None and known.epoch.number != epoch.number else None
        body = {
            "term": record.term,
            "members": sorted(record.members),
            "copies": record.copies,
            "before": record.before,
            "sealed": record.sealed,
            "epoch": epoch_json(epoch),
            "format": epoch.format,
        }
        data = encode(KIND, body)
        if len(data) > VALUE_BYTES_MAX:
            raise OSError(errno.EFBIG, "the epoch names more segments than an entry has room for", self.place(GROUP))
        history = (_key(older.number), encode_epoch(older)) if older is not None else None
        revision = self._coordinator.compare_and_set(GROUP, data, known.revision, history)
        return KnownRecord(revision, record, epoch) if revision is not None else self.read()

    def place(self, key: str) -> str:
        return f"{self._coordinator.url}: {key}"


class ReplicaEpochs:
    """See `amq.store.epoch.Epochs`. `link(epoch, attempt)` makes one of the election that this member has won."""

    def __init__(self, book: GroupBook, coordinator: Coordinator) -> None:
        self._book = book
        self._coordinator = coordinator

    def check(self) -> None:
        if not self.newest_number():
            raise StoreError(
                f"{self._coordinator.url}: no broker was ever master here; give the store that `amq start --store` "
                "was given",
                code="STORE_MISSING",
            )

    def numbers(self) -> list[int]:
        newest = self.newest_number()
        older = [number for number in epoch_numbers(self._coordinator.names(EPOCHS)) if number < newest]
        return [*older, newest] if newest else []

    def newest_number(self) -> int:
        return self._book.read().record.epoch

    def read(self, number: int) -> Epoch:
        newest = self._book.read().epoch
        if newest is not None and newest.number == number:
            return newest
        return decode_epoch(number, self._older(number), self.place(number))

    def newest(self, asker: str = "") -> Epoch | None:  # noqa: ARG002 (the coordinator always answers itself)
        return self._book.read().epoch

    def all(self) -> list[Epoch]:
        return read_epochs(self.numbers(), self.read)

    def place(self, number: int) -> str:
        return self._book.place(_key(number))

    def size(self, number: int) -> int:
        return len(encode_epoch(self.read(number)))

    def make(self) -> None:
        """An entry needs no directory."""

    def prune(self, own: Epoch, keep: int = EPOCHS_KEPT) -> int:
        """Each takeover looks for the last ones alone."""
        last = own.number - keep
        keys = [_key(number) for number in range(max(last - PRUNED_MAX + 1, 1), last + 1)]
        found = self._coordinator.read_all(*keys).values() if keys else ()
        return sum(self._coordinator.remove(each.key, each.revision) for each in found)

    def _older(self, number: int) -> bytes:
        found = self._coordinator.read(_key(number))
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "is not in the coordinator", self.place(number))
        return found.value


def _key(number: int) -> str:
    return f"{EPOCHS}/{epoch_name(number)}"
