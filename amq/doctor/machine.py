"""The door to the kernel's own information: /proc, /sys, statfs, clocks. Tests replace it by samples.

Invariant: reads only.
"""

from __future__ import annotations

import ctypes
import os
import time
from typing import Protocol

_STATFS_BYTES = 256  # more than struct statfs has anywhere; its first word is the type


class ThisHost(Protocol):
    def read(self, path: str) -> str:
        """Content of the small file `path` of /proc or /sys; "" if it is missing or not readable."""
        ...

    def names(self, directory: str) -> list[str]:
        """The sorted names in `directory` of /proc or /sys; empty if it does not exist."""
        ...

    def mount_id(self, directory: str) -> int:
        """The id of the directory's mount in /proc/self/mountinfo. Raises OSError."""
        ...

    def magic(self, directory: str) -> int:
        """The type that statfs(2) gives. Raises OSError."""
        ...

    def clock_s(self, name: str) -> float:
        """Seconds on the clock `CLOCK_…`."""
        ...


class SystemMachine:
    """The machine that this process runs on."""

    _libc = ctypes.CDLL(None, use_errno=True)

    @staticmethod
    def read(path: str) -> str:
        try:
            with open(path, encoding="utf-8", errors="replace") as file:
                return file.read()
        except OSError:
            return ""

    @staticmethod
    def names(directory: str) -> list[str]:
        try:
            return sorted(os.listdir(directory))
        except OSError:
            return []

    @staticmethod
    def mount_id(directory: str) -> int:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)  # also makes an automounter mount it
        try:
            with open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as file:
                return next(int(line.split()[1]) for line in file if line.startswith("mnt_id:"))
        finally:
            os.close(fd)

    def magic(self, directory: str) -> int:
        buffer = ctypes.create_string_buffer(_STATFS_BYTES)
        if self._libc.statfs(os.fsencode(directory), buffer) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), directory)
        return ctypes.c_ulong.from_buffer(buffer).value

    @staticmethod
    def clock_s(name: str) -> float:
        return time.clock_gettime(getattr(time, name))
