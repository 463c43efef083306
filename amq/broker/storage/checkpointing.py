"""Checkpointer: writes a checkpoint beside the traffic, whenever the journal has grown by a good deal.

It holds nothing up: each turn of the loop gives a few rows to the thread that reads for this core, which writes and
syncs them. Nothing depends on it, so its errors are told and that is all. No lease is asked for: what is in it was
applied, and so was confirmed under the lease, even if the lease was lost since.
"""

from __future__ import annotations

from collections.abc import Generator

import structlog

from amq.broker.core import Core
from amq.broker.state.snapshot import Block, dump
from amq.journal.checkpoint import HEAD, CheckpointFile, encode_head

PIECE_BYTES = 256 << 10  # written and synced at once
NEVER = 1 << 62
SIZE_RATIO = 4  # the journal grows by this many times the size of a checkpoint before the next one
_log = structlog.get_logger("amq.broker")


class Checkpointer:
    """Call `step` after a committed batch with which the journal's `bytes_written` has come to `due_bytes`."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._journal = core.journal
        self._covered_bytes: int | None = None  # of the bytes that this journal has written, None = not yet looked at
        self.due_bytes = 0
        self._last_bytes = 0  # size of the last one
        self._file: CheckpointFile | None = None
        self._blocks: Generator[Block, None, None] | None = None

    def reconfigure(self) -> None:
        """`checkpointDistance` may have changed."""
        self._set_due(self._file)

    def _set_due(self, file: CheckpointFile | None) -> None:
        """`file` is being written from now on; None = the next one can begin when it is due."""
        self._file = file
        if self._covered_bytes is None:
            return
        distance = self._core.config.checkpoint_distance_bytes
        self.due_bytes = self._covered_bytes + max(distance, SIZE_RATIO * self._last_bytes)
        if file is not None or not distance:
            self.due_bytes = NEVER

    def step(self) -> None:
        """Begin the next checkpoint, which is due. The first batch shows when that is."""
        journal = self._journal
        if self._covered_bytes is None:
            self._covered_bytes = -self._core.behind_bytes
            self._set_due(None)
            if journal.bytes_written < self.due_bytes:
                return
        position = journal.position()
        if position is None or journal.full:
            return
        self._covered_bytes = journal.bytes_written
        self._set_due(journal.checkpoint(position))
        assert self._file is not None
        self._blocks = dump(self._core.state, lambda: journal.segments)
        self._write(self._file.frame(HEAD, encode_head(position, self._core.state.trimmed, journal.store_uuid)))

    def _write(self, data: bytes) -> None:
        """Write `data` and some more blocks; or finish."""
        file, blocks = self._file, self._blocks
        assert file is not None
        assert blocks is not None
        parts, size = [data], len(data)
        for kind, payload in blocks:
            parts.append(file.frame(kind, payload))
            size += len(parts[-1])
            if size >= PIECE_BYTES:
                break
        if size:
            self._journal.reader.run(lambda: file.write(b"".join(parts)), self._written)
        else:
            self._journal.reader.run(file.finish, self._finished)

    def _written(self, _: object, error: Exception | None) -> None:
        if error is not None:
            self._failed(error)
        else:
            self._write(b"")

    def _finished(self, _: object, error: Exception | None) -> None:
        if error is not None:
            self._failed(error)
            return
        assert self._file is not None
        self._last_bytes = self._file.size
        self._set_due(None)
        _log.debug("checkpoint written", size_bytes=self._last_bytes)

    def _failed(self, error: Exception) -> None:
        _log.warning("no checkpoint could be written: the next start will take longer", reason=str(error))
        file = self._forget()
        if file is not None:
            self._journal.reader.run(file.discard, lambda _result, _error: None)

    def abandon(self) -> None:
        """Forget the one that is being written. Nothing is deleted: perhaps the store is another's by now."""
        file = self._forget()
        if file is not None:
            self._journal.reader.run(file.close, lambda _result, _error: None)

    def _forget(self) -> CheckpointFile | None:
        if self._blocks is not None:
            self._blocks.close()
        file, self._blocks = self._file, None
        self._set_due(None)
        return file
