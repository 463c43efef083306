"""The copyist: keeps the copy of this member, whoever asks.

Invariant: `handle` returns an answer when all that it says is durable. After an error of the disk it answers nothing;
where the disk was only full it begins anew from what is there.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from typing import Any

from amq.doors.clock import Clock
from amq.store.replica.disk import CopyDisk
from amq.store.replica.keeper import Keeper, KeptState
from amq.store.segment_log import NoRoomError

FULL_PAUSE_S = 1.0  # after the disk was found full


class Copyist:
    """The copy on `disk`, whose state is `kept`. Any thread may call; calls wait for each other, and for the disk."""

    def __init__(self, disk: CopyDisk, kept: KeptState, clock: Clock) -> None:
        self.disk = disk
        self.keeper = Keeper(kept)
        self.mutex = threading.RLock()
        self._clock = clock
        self._failed: Exception | None = None
        self._again_at = 0.0

    def handle(self, message: Any) -> Any:
        """Carry out a message to the copy. Returns the answer, None = there is none. Raises OSError, AmqError."""
        with self.mutex:
            self._go_on()
            work = self.keeper.handle(message)
            answer = work.answer
            try:
                for request in work.requests:
                    answer = self.disk.carry_out(request) or answer
            except Exception as error:
                self._failed, self._again_at = error, self._clock.monotonic() + FULL_PAUSE_S
                raise
            return answer

    def write(self, name: str, start: int, end: int, pieces: Iterable[bytes]) -> None:
        """Write what this member is about to append as master, so that it can fail before others hear of it. Raises
        NoRoomError, and nothing is there; OSError."""
        with self.mutex:
            self._go_on()
            self.disk.write(name, start, end, pieces)

    def check(self) -> None:
        """Whether the directory is still there: a master writes on into files that have no name any more. Raises
        StoreError, OSError: then the copy is lost, and answers nothing."""
        with self.mutex:
            try:
                self.disk.check()
            except Exception as error:
                self._failed = error
                raise

    def cut(self) -> None:
        """Remove the writes that the copy does not keep. Raises OSError."""
        with self.mutex:
            self._go_on()
            self.disk.cut()

    def close(self) -> None:
        with self.mutex:
            self.disk.close()

    def _go_on(self) -> None:
        """Raise the error that ended the copy. If the disk was full, look whether it has room again."""
        if self._failed is None:
            return
        if not isinstance(self._failed, NoRoomError) or self._clock.monotonic() < self._again_at:
            raise self._failed
        self._again_at = self._clock.monotonic() + FULL_PAUSE_S
        self.keeper = Keeper(self.disk.load())
        self._failed = None
