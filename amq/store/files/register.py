"""The register in files: one for each document, finished under another name and then linked, as epochs are."""

from __future__ import annotations

import os
from contextlib import suppress

from amq.store.files.board import FileBoard
from amq.store.files.vfs import Vfs, listdir_fresh, read_file, write_all

_OTHERS = 0o077


class FileRegister:
    """See `amq.store.register.Register`."""

    def __init__(self, vfs: Vfs, place: str) -> None:
        self.board = FileBoard(vfs, place)
        self._vfs = vfs
        self._place = place

    def make(self, directories: tuple[str, ...]) -> None:
        for each in (self._place, *map(self.place, directories)):
            self._make(each)

    def _make(self, path: str) -> None:
        with suppress(FileExistsError):
            try:
                self._vfs.mkdir(path)
            except FileNotFoundError:
                self._make(os.path.dirname(path))
                self._vfs.mkdir(path)

    def place(self, directory: str, name: str = "") -> str:
        return os.path.join(self._place, *filter(None, (directory, name)))

    def place_of_store(self, directory: str, name: str) -> str:
        return self.place(directory, name)

    def names(self, directory: str, asker: str = "") -> list[str]:
        place = self.place(directory)
        return listdir_fresh(self._vfs, place, asker) if asker else self._vfs.listdir(place)

    def read(self, directory: str, name: str) -> bytes:
        return read_file(self._vfs, self.place(directory, name))

    def write(self, directory: str, name: str, data: bytes, attempt: str, *, private: bool = False) -> None:
        vfs, path = self._vfs, self.place(directory, name)
        draft = f"{path}.{attempt}"
        try:
            fd = vfs.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if private else 0o640)
            try:
                write_all(vfs, fd, data, 0)
                vfs.fsync(fd)
            finally:
                vfs.close(fd)
            try:
                vfs.link(draft, path)
            except FileExistsError:
                # A network client that sends a lost request again can be told EEXIST about its own success.
                if not self._is_same(draft, path):
                    raise
        except OSError as error:
            error.filename = error.filename or path  # a full disk names no file
            raise
        finally:
            with suppress(FileNotFoundError):
                vfs.unlink(draft)
        vfs.fsync_directory(os.path.dirname(path))

    def remove(self, directory: str, name: str) -> None:
        with suppress(FileNotFoundError):
            self._vfs.unlink(self.place(directory, name))

    def is_private(self, directory: str, name: str) -> bool:
        return not self._vfs.stat(self.place(directory, name)).st_mode & _OTHERS

    def _is_same(self, one: str, other: str) -> bool:
        return self._vfs.stat(one).st_ino == self._vfs.stat(other).st_ino
