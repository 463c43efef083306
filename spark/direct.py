"""Direct reads: a task reads leased messages from the files of the store, where the broker says that they stand.

Invariants: a row is given only if the record at its place has the right checksum and the seq that the lease names, in a
store that shows the newest segment of the broker. The caller asks the broker for all other messages.
The caller asks at the end whether the leases are still there: until then nobody else has their messages.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from types import TracebackType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from amq.client import Run
from amq.core.errors import ConfigError, CorruptError, StoreError
from amq.journal import places
from amq.journal.format import HEADER_BYTES, RECORD_BYTES, crc32, segment_key, segment_name
from amq.journal.records.message import MESSAGE
from amq.journal.records.section import EXTENDED
from amq.journal.segment import list_segments, read_header
from amq.store.open import open_directory
from amq.store.segment_log import Reader, SegmentLog
from pyspark_amq.heads import MESSAGE_HEAD
from pyspark_amq.leases import STORES, Direct
from pyspark_amq.records import heads_of

CHUNK_ROWS, CHUNK_BYTES = 16_384, 16 << 20  # read together
GAP_BYTES = 64 << 10  # records that are no further apart are read with one call
NO_MOUNT, GONE, STALE, CHECKSUM, NATIVE = "no-mount", "gone", "stale", "checksum", "native"  # reasons to ask the broker

_Numbers = npt.NDArray[Any]


class StoreDiffersError(ConfigError):
    """The directory of the option `store` is the store of another broker, or a copy that was used on."""

    code = "STORE_DIFFERS"


class UnreadableError(Exception):
    """These messages cannot be read here; the broker can. `reason` is one of the words above."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True)
class LeasedPart:
    """Positions `start` to `stop` of a lease: their records, or the reason why there are none."""

    start: int
    stop: int
    run: Run | None
    reason: str = ""


class StoreFiles:
    """The segments of a mounted store, each opened once. Use it in `with`."""

    def __init__(self, store: str, log: SegmentLog | None = None) -> None:
        self._store = store
        self._log = log or open_directory(store).log
        self._files: dict[tuple[int, int], Reader] = {}
        self._failed: dict[tuple[int, int], str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for segment in self._files.values():
            segment.close()
        self._files.clear()

    @classmethod
    def of(cls, directory: str, uuid: str) -> StoreFiles:
        """Those of the store with that id in `directory`, which is of a store or of a cluster of stores. Raises
        StoreDiffersError."""
        try:
            names = sorted(os.listdir(os.path.join(directory, STORES)))
        except OSError:
            return cls(directory)
        for name in names:
            found = cls(os.path.join(directory, STORES, name))
            if found.uuid() == uuid:
                return found
        raise cls(directory)._differs()

    def uuid(self) -> str:
        """The id of the store by its newest segment, "" = that cannot be read."""
        for name in list_segments(self._log)[-1:]:
            with suppress(UnreadableError):
                found: str = self._header(*segment_key(name))[1].store_uuid.hex()
                return found
        return ""

    def check(self, direct: Direct) -> None:
        """Is this the store of which the broker speaks? Raises UnreadableError where that cannot be seen,
        StoreDiffersError where it is another."""
        epoch, number, salt = direct.newest
        try:
            found = self._header(epoch, number)[1]
        except UnreadableError as error:
            if error.reason == GONE:
                self._check_any(direct.uuid)
                raise UnreadableError(STALE) from error
            raise
        if found.store_uuid.hex() != direct.uuid or found.salt != salt:
            raise self._differs()

    def segment(self, epoch: int, number: int, uuid: str) -> Reader:
        """Raises UnreadableError, StoreDiffersError."""
        key = epoch, number
        if key in self._failed:
            raise UnreadableError(self._failed[key])
        if key not in self._files:
            try:
                self._files[key], header = self._header(epoch, number)
            except UnreadableError as error:
                self._failed[key] = error.reason
                raise
            if header.store_uuid.hex() != uuid:
                raise self._differs()
        return self._files[key]

    def _header(self, epoch: int, number: int) -> tuple[Reader, Any]:
        segment = self._files.get((epoch, number))
        try:
            if segment is None:
                segment = self._files[epoch, number] = self._log.open(segment_name(epoch, number))
            header = read_header(segment.place, segment.read(0, HEADER_BYTES))
        except OSError as error:
            is_there = os.path.isdir(self._log.place())
            raise UnreadableError(_reason(error) if is_there else NO_MOUNT) from error
        except (StoreError, CorruptError) as error:
            raise UnreadableError(CHECKSUM) from error
        if header is None:
            raise UnreadableError(STALE)
        return segment, header

    def _check_any(self, uuid: str) -> None:
        """The newest segment is not there: is this another store?"""
        if self.uuid() not in ("", uuid):
            raise self._differs()

    def _differs(self) -> StoreDiffersError:
        return StoreDiffersError(
            f"{self._store} is not the store of this broker, but another one or a copy that was used on: give "
            "the mount of its store in option 'store', or leave that option out"
        )

    def read(self, direct: Direct, start: int, stop: int, destination: str) -> Iterator[LeasedPart]:
        """Positions `start` to `stop` of a lease of `destination`, in order. Raises StoreDiffersError,
        ProtocolError."""
        try:
            self.check(direct)
        except UnreadableError as error:
            yield LeasedPart(start, stop, None, error.reason)
            return
        found = places.unpack(direct.packed, direct.messages)
        index, sizes = np.frombuffer(found.where, np.uint16), np.frombuffer(found.sizes, np.uint32).astype(np.int64)
        while start < stop:
            end = _chunk_end(index, sizes, start, stop)
            try:
                yield LeasedPart(start, end, self._chunk(direct, found, start, end, destination))
            except UnreadableError as error:
                yield LeasedPart(start, end, None, error.reason)
            start = end

    def _chunk(self, direct: Direct, found: places.MessagePlaces, start: int, end: int, destination: str) -> Run:
        """The records of positions in one segment."""
        segment = self.segment(*found.segments[found.where[start]], direct.uuid)
        offsets = np.frombuffer(found.offsets, np.int64)[start:end]
        sizes = found.sizes[start:end]
        try:
            data = _records(segment, offsets, np.asarray(sizes, np.int64))
        except OSError as error:
            raise UnreadableError(_reason(error)) from error
        known = {place - start: times for place, times in found.redelivered.items() if start <= place < end}
        run = Run(destination, f"ID:{direct.uuid[:12]}-", sizes, memoryview(data), known)
        _check(run, np.frombuffer(found.seqs, np.int64)[start:end])
        return run


def _records(segment: Reader, offsets: _Numbers, sizes: _Numbers) -> bytes:
    """The records, one after the other."""
    stops = offsets + sizes
    gaps = offsets[1:] - stops[:-1]
    breaks = [0, *(np.flatnonzero((gaps < 0) | (gaps > GAP_BYTES)) + 1).tolist(), len(offsets)]
    pieces: list[bytes] = []
    for first, last in pairwise(breaks):
        base, size = int(offsets[first]), int(stops[last - 1] - offsets[first])
        data = segment.read(base, size)
        if len(data) < size:
            raise UnreadableError(STALE)
        inner = np.flatnonzero(gaps[first : last - 1]) + first + 1  # where a run without a gap ends
        cuts = [first, *inner.tolist(), last]
        for one, other in pairwise(cuts):
            pieces.append(data[int(offsets[one]) - base : int(stops[other - 1]) - base])
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _check(run: Run, seqs: _Numbers) -> None:
    """Raises UnreadableError where these are not the records of the messages `seqs`, or need the broker to be read."""
    if min(run.sizes) < MESSAGE_HEAD.itemsize:
        raise UnreadableError(NATIVE)  # no message of one queue
    heads, starts = heads_of(run)
    if (heads["kind"] != MESSAGE).any() or (heads["flags"] & EXTENDED).any():
        raise UnreadableError(NATIVE)
    if (heads["seq"] != seqs).any() or (heads["size"] + RECORD_BYTES != np.diff(starts)).any():
        raise UnreadableError(CHECKSUM)
    view, ends = run.records, starts.tolist()
    for crc, first, last in zip(heads["crc"].tolist(), ends, ends[1:], strict=False):
        if crc32(view[first + RECORD_BYTES : last], MESSAGE) != crc:
            raise UnreadableError(CHECKSUM)


def _chunk_end(index: _Numbers, sizes: _Numbers, start: int, stop: int) -> int:
    """The end of a chunk: it is in one segment, and not too large."""
    last = min(stop, start + CHUNK_ROWS)
    other = np.flatnonzero(index[start:last] != index[start])
    if len(other):
        last = start + int(other[0])
    fits = int(np.searchsorted(np.cumsum(sizes[start:last]), CHUNK_BYTES, "right"))
    return start + max(1, min(fits, last - start))


def _reason(error: OSError) -> str:
    return GONE if error.errno in (errno.ENOENT, errno.ESTALE) else NO_MOUNT
