"""Backlog: the messages of one queue and priority that wait on disk alone. In memory each is a row of four numbers.

Invariant: rows are sorted by seq, over all chunks and within each. A row costs 24 bytes (32 where messages of its chunk
expire); chunks are small enough that to insert or delete in the middle moves little, and large enough to be few.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import repeat
from typing import NamedTuple

CHUNK_ROWS = 2048
NEVER = 1 << 63  # as first seq: no message


Columns = list["array[int]"]  # of some rows: seqs, segments, offsets, sizes, and times of expiry where some do


class Place(NamedTuple):
    """Where a message stands. `segment` = code of the segment, `offset` and `size` bytes of its record in there."""

    seq: int
    segment: int
    offset: int
    size: int


class _Chunk:
    __slots__ = ("expires", "next_expiry_ms", "offsets", "segments", "seqs", "sizes")

    def __init__(self) -> None:
        self.seqs = array("Q")
        self.segments = array("Q")
        self.offsets = array("I")
        self.sizes = array("I")
        self.expires: array[int] | None = None  # wall-clock milliseconds, 0 = never
        self.next_expiry_ms = NEVER  # none expires before

    def columns(self) -> Columns:
        columns = [self.seqs, self.segments, self.offsets, self.sizes]
        return columns if self.expires is None else [*columns, self.expires]

    def put(self, row: int, place: Place, expires_ms: int) -> None:
        if expires_ms and self.expires is None:
            self.expires = array("Q", bytes(8 * len(self.seqs)))
        for column, value in zip(self.columns(), (*place, expires_ms), strict=False):
            column.insert(row, value)
        if expires_ms:
            self.next_expiry_ms = min(self.next_expiry_ms, expires_ms)

    def delete(self, start: int, stop: int) -> None:
        for column in self.columns():
            del column[start:stop]

    def split(self) -> _Chunk:
        """Keep the first half, return the second."""
        other = _Chunk()
        half = len(self.seqs) // 2
        other.seqs, other.segments = self.seqs[half:], self.segments[half:]
        other.offsets, other.sizes = self.offsets[half:], self.sizes[half:]
        if self.expires is not None:
            other.expires, other.next_expiry_ms = self.expires[half:], self.next_expiry_ms
        self.delete(half, 2 * half + 1)
        return other

    def place(self, row: int) -> Place:
        return Place(self.seqs[row], self.segments[row], self.offsets[row], self.sizes[row])


class Backlog:
    """A sorted list of places."""

    __slots__ = ("_chunks", "_count", "_firsts", "first")

    def __init__(self) -> None:
        self._chunks: list[_Chunk] = []
        self._firsts: list[int] = []  # first seq of each chunk
        self._count = 0
        self.first = NEVER  # its smallest seq

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Place]:
        for chunk in self._chunks:
            for row in range(len(chunk.seqs)):
                yield chunk.place(row)

    def __contains__(self, seq: int) -> bool:
        return self.find(seq) is not None

    def add(self, seq: int, segment: int, offset: int, size: int, expires_ms: int = 0) -> None:
        """A message that is not here yet. At the end, where nearly all are added, this is four appends."""
        if self._chunks:
            chunk = self._chunks[-1]
            seqs = chunk.seqs
            if seqs[-1] < seq:
                if len(seqs) >= CHUNK_ROWS:
                    chunk = self._append_chunk(seq)
            else:
                chunk = self._chunk_for(seq)
        else:
            chunk = self._append_chunk(seq)
            self.first = seq
        self._count += 1
        seqs = chunk.seqs
        if not expires_ms and chunk.expires is None and (not seqs or seqs[-1] < seq):
            seqs.append(seq)
            chunk.segments.append(segment)
            chunk.offsets.append(offset)
            chunk.sizes.append(size)
            return
        chunk.put(bisect_left(seqs, seq), Place(seq, segment, offset, size), expires_ms)
        if seq < self.first:
            self.first = self._firsts[0] = seq

    def find(self, seq: int) -> Place | None:
        found = self._locate(seq)
        return self._chunks[found[0]].place(found[1]) if found else None

    def row(self, seq: int) -> tuple[int, ...] | None:
        """Seq, segment, offset, size and time of expiry of a message; None = it is not here."""
        found = self._locate(seq)
        if found is None:
            return None
        chunk, row = self._chunks[found[0]], found[1]
        return *chunk.place(row), chunk.expires[row] if chunk.expires is not None else 0

    def move(self, seq: int, segment: int, offset: int, size: int) -> None:
        """The message, if it is here, stands elsewhere now."""
        found = self._locate(seq)
        if found:
            chunk, row = self._chunks[found[0]], found[1]
            chunk.segments[row], chunk.offsets[row], chunk.sizes[row] = segment, offset, size

    def discard(self, seqs: Iterable[int]) -> list[Columns]:
        """Take out those of `seqs` that are here. Returns them by seq, in pieces."""
        gone: list[Columns] = []
        done = 0
        # Consumers acknowledge in turns; what they do together stands side by side. Measured: half the time of a drain.
        seqs = sorted(seqs)
        while done < len(seqs):
            seq = seqs[done]
            done += 1
            found = self._locate(seq)
            if found is None:
                continue
            i, row = found
            chunk = self._chunks[i]
            last = row + 1  # those that stand side by side, as nearly all do, go at once
            while last < len(chunk.seqs) and done < len(seqs) and chunk.seqs[last] == seqs[done]:
                last += 1
                done += 1
            gone.append([column[row:last] for column in chunk.columns()])
            self._count -= last - row
            chunk.delete(row, last)
            if not chunk.seqs:
                del self._chunks[i], self._firsts[i]
            elif row == 0:
                self._firsts[i] = chunk.seqs[0]
        self.first = self._firsts[0] if self._firsts else NEVER
        return gone

    def head(self, bytes_max: int, rows_max: int) -> list[Place]:
        """The oldest, at least one, as far as both limits allow. They stay here."""
        found: list[Place] = []
        for chunk in self._chunks:
            rows = 0
            for size in chunk.sizes[: rows_max - len(found)]:
                if bytes_max < size and (found or rows):
                    break
                bytes_max -= size
                rows += 1
            found += map(Place, chunk.seqs[:rows], chunk.segments[:rows], chunk.offsets[:rows], chunk.sizes[:rows])
            if rows < len(chunk.seqs):
                break
        return found

    def seq_after(self, seq: int) -> int:
        """The next seq here that is larger; NEVER where there is none."""
        i = max(0, bisect_right(self._firsts, seq) - 1)
        for chunk in self._chunks[i : i + 2]:
            row = bisect_right(chunk.seqs, seq)
            if row < len(chunk.seqs):
                return chunk.seqs[row]
        return NEVER

    def after(self, seq: int, until: int, bytes_max: int, rows_max: int) -> list[Place]:
        """Those behind `seq` and before `until`, at least one, as far as both limits allow. They stay here."""
        found: list[Place] = []
        i = max(0, bisect_right(self._firsts, seq) - 1)
        while i < len(self._chunks) and self._firsts[i] < until:
            chunk = self._chunks[i]
            for row in range(bisect_right(chunk.seqs, seq), bisect_left(chunk.seqs, until)):
                bytes_max -= chunk.sizes[row]
                if found and (bytes_max < 0 or len(found) >= rows_max):
                    return found
                found.append(chunk.place(row))
            i += 1
        return found

    def rows_after(self, seq: int) -> Columns | None:
        """The columns of some rows whose seqs are the next after `seq`; None = there are none. Two calls with no other
        in between leave none out, and with others none that stays."""
        i = max(0, bisect_right(self._firsts, seq) - 1)
        for chunk in self._chunks[i : i + 2]:
            row = bisect_right(chunk.seqs, seq)
            if row < len(chunk.seqs):
                return [column[row:] for column in chunk.columns()]
        return None

    def unexpired(self, now_ms: int) -> Iterator[tuple[int, int]]:
        """(seq, size) of those whose time is not over, by seq. Nothing may come or go meanwhile."""
        for chunk in self._chunks:
            for seq, size, expires_ms in zip(chunk.seqs, chunk.sizes, chunk.expires or repeat(0), strict=False):
                if not 0 < expires_ms <= now_ms:
                    yield seq, size

    def extend(self, columns: Columns) -> bool:
        """Add rows, seqs ascending, all behind what is here. False, and nothing is done, where they are not."""
        seqs = columns[0]
        if self._chunks and self._chunks[-1].seqs[-1] >= seqs[0]:
            return False
        if not self._chunks:
            self.first = seqs[0]
        chunk = self._append_chunk(seqs[0])
        chunk.seqs, chunk.segments, chunk.offsets, chunk.sizes = columns[:4]
        if len(columns) > 4:
            chunk.expires = columns[4]
            chunk.next_expiry_ms = min(filter(None, columns[4]), default=NEVER)
        self._count += len(seqs)
        return True

    def due(self, now_ms: int, rows_max: int) -> list[Place]:
        """Some whose time is over. They stay here. Looks only where the earliest expiry of a chunk has passed."""
        found: list[Place] = []
        for chunk in self._chunks:
            if chunk.next_expiry_ms > now_ms or chunk.expires is None:
                continue
            rows = [row for row, expires_ms in enumerate(chunk.expires) if 0 < expires_ms <= now_ms]
            found += map(chunk.place, rows[: rows_max - len(found)])
            if len(found) >= rows_max:
                return found
            chunk.next_expiry_ms = min(filter(None, chunk.expires), default=NEVER)
        return found

    @property
    def next_due_ms(self) -> int:
        """None expires earlier; NEVER = none does."""
        return min((chunk.next_expiry_ms for chunk in self._chunks), default=NEVER)

    def _locate(self, seq: int) -> tuple[int, int] | None:
        """(which chunk, which row of it)"""
        if not self._chunks or seq > self._chunks[-1].seqs[-1] or seq < self._firsts[0]:
            return None
        i = bisect_right(self._firsts, seq) - 1
        seqs = self._chunks[i].seqs
        row = bisect_left(seqs, seq)
        return (i, row) if row < len(seqs) and seqs[row] == seq else None

    def _append_chunk(self, seq: int) -> _Chunk:
        chunk = _Chunk()
        self._chunks.append(chunk)
        self._firsts.append(seq)
        return chunk

    def _chunk_for(self, seq: int) -> _Chunk:
        """The chunk into which `seq` belongs; one that is full is split before."""
        i = max(0, bisect_right(self._firsts, seq) - 1)
        chunk = self._chunks[i]
        if len(chunk.seqs) < CHUNK_ROWS:
            return chunk
        other = chunk.split()
        self._chunks.insert(i + 1, other)
        self._firsts.insert(i + 1, other.seqs[0])
        return other if seq > other.seqs[0] else chunk
