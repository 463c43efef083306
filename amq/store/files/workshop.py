"""The workshop in files: `journal.before-repair-NAME/` holds links to the originals and, below `repaired/`, a store
with the second journal."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress

from amq.store.epoch import Epoch, encode_epoch
from amq.store.files.epochs import FileEpochs
from amq.store.files.log import FileLog
from amq.store.files.others import check_own
from amq.store.files.vfs import ToolVfs, read_file, write_all
from amq.store.segment_log import CHECKPOINTS_DIRECTORY, JOURNAL_DIRECTORY

KEPT_PREFIX = "journal.before-repair-"
SCRATCH = "repaired"
MARKER = "repair.json"


class FileAside:
    """See `amq.store.workshop.Aside`."""

    def __init__(self, vfs: ToolVfs, store: str, place: str) -> None:
        self._vfs = vfs
        self._place = place
        self._journal = os.path.join(store, JOURNAL_DIRECTORY)
        self._scratch = os.path.join(place, SCRATCH)
        self._prepared = os.path.join(self._scratch, JOURNAL_DIRECTORY)
        self.log = FileLog(vfs, self._scratch)

    def names(self) -> list[str]:
        return self._vfs.listdir(self._place)

    def write_mark(self, data: bytes) -> None:
        write_file(self._vfs, os.path.join(self._place, MARKER), data)

    def read_mark(self) -> bytes:
        return read_file(self._vfs, os.path.join(self._place, MARKER))

    def move_in(self, names: Iterable[str]) -> None:
        for name in names:
            self._vfs.link(os.path.join(self._prepared, name), os.path.join(self._journal, name))
        self._vfs.fsync_directory(self._journal)

    def clear(self) -> None:
        for directory in (self._prepared, self._scratch):
            with suppress(FileNotFoundError):
                for name in self._vfs.listdir(directory):
                    if name != JOURNAL_DIRECTORY:
                        self._vfs.unlink(os.path.join(directory, name))
                self._vfs.rmdir(directory)
        self._vfs.fsync_directory(self._place)


class FileWorkshop:
    """See `amq.store.workshop.Workshop`."""

    def __init__(self, vfs: ToolVfs, store: str) -> None:
        self._vfs = vfs
        self._store = store
        self._epochs = FileEpochs(vfs, store)

    def check(self) -> None:
        check_own(self._vfs, self._store)

    def unfinished(self) -> list[str]:
        found = []
        for name in sorted(self._vfs.listdir(self._store)):
            if name.startswith(KEPT_PREFIX):
                place = os.path.join(self._store, name)
                with suppress(NotADirectoryError, FileNotFoundError):  # somebody has moved or deleted it
                    if SCRATCH in self._vfs.listdir(place):
                        found.append(place)
        return found

    def aside(self, place: str) -> FileAside:
        return FileAside(self._vfs, self._store, place)

    def keep(self, name: str, segments: Iterable[str], checkpoints: Iterable[str]) -> str:
        place = os.path.join(self._store, KEPT_PREFIX + name)
        self._vfs.mkdir(place)
        epochs: list[int] = []
        with suppress(FileNotFoundError):
            epochs = self._epochs.numbers()
        for original in (
            *(os.path.join(self._store, JOURNAL_DIRECTORY, each) for each in segments),
            *(self._epochs.place(number) for number in epochs),
            *(os.path.join(self._store, CHECKPOINTS_DIRECTORY, each) for each in checkpoints),
        ):
            self._vfs.link(original, os.path.join(place, os.path.basename(original)))
        self._vfs.fsync_directory(place)
        self._vfs.fsync_directory(self._store)
        return place

    def rebuild(self, epoch: Epoch, attempt: str) -> None:
        path = self._epochs.place(epoch.number)
        with suppress(FileExistsError):
            self._vfs.mkdir(os.path.dirname(path))
        temporary = f"{path}.{attempt}"
        write_file(self._vfs, temporary, encode_epoch(epoch))
        self._vfs.replace(temporary, path)
        self._vfs.fsync_directory(os.path.dirname(path))

    def take_out(self, place: str) -> bool:
        directory, name = os.path.split(place)
        if name not in self._vfs.listdir(directory):
            return False
        self._vfs.unlink(place)
        self._vfs.fsync_directory(directory)
        return True


def write_file(vfs: ToolVfs, path: str, data: bytes) -> None:
    """Write the small file `path`, durably with its name."""
    fd = vfs.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        write_all(vfs, fd, data, 0)
        vfs.fsync(fd)
    finally:
        vfs.close(fd)
    vfs.fsync_directory(os.path.dirname(path))
