"""The files and the journal's thread of one broker process, a step at a time, as `tests.broker.world` wants them."""

from __future__ import annotations

import os
from collections import deque
from typing import Any

from amq.doors.threads import Done, Job
from amq.journal.format import HEADER_BYTES
from amq.store.files.vfs import SystemVfs


class ProcessFiles(SystemVfs):
    """The files of one process, all closed when it dies. Syncs do nothing: no power fails here, torn tails are cut by
    hand. `written` = (path, offset, bytes) of the last batch.
    """

    def __init__(self) -> None:
        self.paths: dict[int, str] = {}
        self.written = ("", 0, 0)
        self._synced = True

    def open(self, path: str, flags: int, mode: int = 0o640) -> int:
        fd: int = SystemVfs.open(path, flags, mode)
        self.paths[fd] = path
        return fd

    def close(self, fd: int) -> None:
        del self.paths[fd]
        os.close(fd)

    def pwrite(self, fd: int, data: bytes | bytearray | memoryview, offset: int) -> int:  # type: ignore[override]
        written = os.pwrite(fd, data, offset)
        path, start, size = self.written
        if not self._synced and (path, start + size) == (self.paths[fd], offset):
            self.written = (path, start, size + written)  # the next piece of a large batch
        elif offset >= HEADER_BYTES and self.paths[fd].endswith(".seg"):
            self.written = (self.paths[fd], offset, written)
            self._synced = False
        return written

    def fsync(self, fd: int) -> None:  # type: ignore[override]
        assert fd in self.paths
        self._synced = True

    fdatasync = fsync  # type: ignore[assignment]

    @staticmethod
    def fsync_directory(path: str) -> None:
        assert os.path.isdir(path)

    def die(self) -> None:
        for fd in list(self.paths):
            self.close(fd)


class StepRunner:
    """A JobRunner in two steps: `work` does the next job on the disk, `post` tells the broker of the oldest done."""

    def __init__(self) -> None:
        self.jobs: deque[tuple[Job, Done]] = deque()
        self.finished: deque[tuple[Done, Any, Exception | None]] = deque()

    def submit(self, job: Job, done: Done) -> None:
        self.jobs.append((job, done))

    def close(self) -> None:
        self.jobs.clear()

    def is_alive(self) -> bool:
        return True

    def work(self) -> None:
        job, done = self.jobs.popleft()
        result, failure = None, None
        try:
            result = job()
        except Exception as error:  # noqa: BLE001 (as the real runner does)
            failure = error
        self.finished.append((done, result, failure))

    def post(self) -> None:
        done, result, failure = self.finished.popleft()
        done(result, failure)

    def step(self) -> bool:
        """Do one thing; False where there is nothing to do."""
        if self.finished:
            self.post()
        elif self.jobs:
            self.work()
        else:
            return False
        return True
