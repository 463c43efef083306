"""The epochs of a store in files, for those who only read them."""

from __future__ import annotations

import os

from amq.store.epoch import EPOCHS_DIRECTORY, Epoch, newest_number, read_epoch
from amq.store.files.vfs import Vfs


class FileEpochs:
    """See `amq.store.epoch.Epochs`."""

    def __init__(self, vfs: Vfs, store: str) -> None:
        self._vfs = vfs
        self._store = store

    def newest_number(self) -> int:
        try:
            return newest_number(self._vfs.listdir(os.path.join(self._store, EPOCHS_DIRECTORY)))
        except FileNotFoundError:
            return 0

    def read(self, number: int) -> Epoch:
        return read_epoch(self._vfs, self._store, number)
