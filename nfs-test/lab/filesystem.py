"""What a world asks of the file system that its brokers share. One class for each make: nfs.py, gfs2.py, smb.py."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

from lab.guest import Guest

SERVER = 1  # the guest that serves files, or only votes
MOUNT = "/srv/amq"
DISK_BYTES = 400 << 20


class FileSystem(Protocol):
    """`lease_s`: how long it keeps the locks of a host that is gone, as configured; shown beside what is measured."""

    lease_s: int

    def disks(self, work: Path, hosts: Sequence[int]) -> Mapping[int, Mapping[str, str]]:
        """Make the disks of the guests: {guest: {"ubd0": path}}. Before they boot. `hosts`: all but the server."""
        ...

    def set_up(self, guests: Mapping[int, Guest]) -> None:
        """Serve and mount, on guests that have booted."""
        ...

    def remount(self, guest: Guest) -> None:
        """Let the next look at the store on `guest` come from no cache."""
        ...

    def close(self) -> None:
        """End what runs outside the guests."""
        ...


def make_ext4(path: Path) -> None:
    make_sparse(path, DISK_BYTES)
    subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", str(path)], check=True, capture_output=True)


def make_sparse(path: Path, size_bytes: int) -> None:
    with open(path, "wb") as disk:
        disk.truncate(size_bytes)


def together(jobs: Sequence[Callable[[], object]]) -> None:
    """Do all `jobs` at once; raise the first error."""
    with ThreadPoolExecutor(len(jobs)) as pool:
        for job in [pool.submit(job) for job in jobs]:
            job.result()
