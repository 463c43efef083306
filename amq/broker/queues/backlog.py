"""Backlog: the messages of one queue and priority that wait on disk alone. In memory each is a row of four numbers.

Invariant: rows are sorted by seq, over all chunks and within each. A row costs 24 bytes (32 where messages of its chunk
expire); chunks are small enough that to insert or delete in the middle moves little, and large enough to be few.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator
from itertools import repeat
from operator import attrgetter
from typing import NamedTuple

from amq.core.message import Message

CHUNK_ROWS = 2048
NEVER = 1 << 63  # as first seq: no message


Columns = list["array[int]"]  # of some rows: seqs, segments, offsets, sizes, and times of expiry where some do
TYPECODES = "QQIIQ"  # of these columns
_PLACE = [*map(attrgetter, ("seq", "segment.code", "offset", "size", "expires_ms"))]  # the same of a stored message


def columns_of(rows: Iterable[tuple[int, ...]]) -> Columns:
    """Rows of five numbers, at least one, as columns by seq."""
    columns = [array(code, column) for code, column in zip(TYPECODES, zip(*sorted(rows), strict=True), strict=True)]
    return columns if any(columns[4]) else columns[:4]


def columns_of_stored(messages: list[Message]) -> Columns:
    """Where stored messages stand, at least one, as columns by seq."""
    messages.sort(key=attrgetter("seq"))
    columns = [array(code, map(part, messages)) for code, part in zip(TYPECODES, _PLACE, strict=True)]
    return columns if any(columns[4]) else columns[:4]


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

    @classmethod
    def of(cls, columns: Columns) -> _Chunk:
        chunk = cls()
        chunk.put_all(0, columns)
        return chunk

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

    def put_all(self, row: int, columns: Columns) -> None:
        """Rows come in together, the first as `row`."""
        more = columns[4] if len(columns) > 4 else None
        if self.expires is None and more is not None:
            self.expires = array("Q", bytes(8 * len(self.seqs)))
        elif self.expires is not None and more is None:
            columns = [*columns, array("Q", bytes(8 * len(columns[0])))]
        for mine, theirs in zip(self.columns(), columns, strict=True):
            mine[row:row] = theirs
        if more is not None:
            self.next_expiry_ms = min(self.next_expiry_ms, min(filter(None, more), default=NEVER))

    def delete(self, start: int, stop: int) -> None:
        for column in self.columns():
            del column[start:stop]

    def split(self, row: int) -> _Chunk:
        """Keep the rows before `row`, return the others."""
        other = _Chunk()
        other.seqs, other.segments = self.seqs[row:], self.segments[row:]
        other.offsets, other.sizes = self.offsets[row:], self.sizes[row:]
        if self.expires is not None:
            other.expires, other.next_expiry_ms = self.expires[row:], self.next_expiry_ms
        self.delete(row, len(self.seqs))
        return other

    def side_by_side(self, row: int, seqs: list[int], start: int) -> int:
        """How many rows from `row` on, of which the first does, hold `seqs` from `start` on."""
        most = min(len(self.seqs) - row, len(seqs) - start)
        ends_alike = self.seqs[row + most - 1] == seqs[start + most - 1]
        if ends_alike and self.seqs[row : row + most].tolist() == seqs[start : start + most]:  # as nearly all do
            return most
        count = 1
        while count < most and self.seqs[row + count] == seqs[start + count]:
            count += 1
        return count

    def place(self, row: int) -> Place:
        return Place(self.seqs[row], self.segments[row], self.offsets[row], self.sizes[row])


class Backlog:
    """A sorted list of places."""

    __slots__ = ("_count", "chunks", "first", "firsts")

    def __init__(self) -> None:
        self.chunks: list[_Chunk] = []
        self.firsts: list[int] = []  # first seq of each chunk
        self._count = 0
        self.first = NEVER  # its smallest seq

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[Place]:
        for chunk in self.chunks:
            for row in range(len(chunk.seqs)):
                yield chunk.place(row)

    def __contains__(self, seq: int) -> bool:
        return self.find(seq) is not None

    def add(self, seq: int, segment: int, offset: int, size: int, expires_ms: int = 0) -> None:
        """A message that is not here yet. At the end, where nearly all are added, this is four appends."""
        if self.chunks:
            chunk = self.chunks[-1]
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
            self.first = self.firsts[0] = seq

    def find(self, seq: int) -> Place | None:
        found = self._locate(seq)
        return self.chunks[found[0]].place(found[1]) if found else None

    def columns_of(self, seqs: list[int], start: int) -> Columns | None:
        """Where those of `seqs` from `start` on stand, as far as they stand side by side; None = that one is not
        here."""
        found = self._locate(seqs[start])
        if found is None:
            return None
        chunk, row = self.chunks[found[0]], found[1]
        stop = row + chunk.side_by_side(row, seqs, start)
        return [column[row:stop] for column in (chunk.seqs, chunk.segments, chunk.offsets, chunk.sizes)]

    def move(self, seq: int, segment: int, offset: int, size: int) -> None:
        """The message, if it is here, stands elsewhere now."""
        found = self._locate(seq)
        if found:
            chunk, row = self.chunks[found[0]], found[1]
            chunk.segments[row], chunk.offsets[row], chunk.sizes[row] = segment, offset, size

    def discard(self, seqs: Iterable[int]) -> list[Columns]:
        """Take out those of `seqs` that are here. Returns them by seq, in pieces."""
        gone: list[Columns] = []
        done = 0
        # Consumers acknowledge in turns; what they do together stands side by side. Measured: half the time of a drain.
        seqs = sorted(seqs)
        while done < len(seqs):
            found = self._locate(seqs[done])
            if found is None:
                done += 1
                continue
            i, row = found
            chunk = self.chunks[i]
            count = chunk.side_by_side(row, seqs, done)
            last = row + count
            done += count
            gone.append([column[row:last] for column in chunk.columns()])
            self._count -= last - row
            chunk.delete(row, last)
            if not chunk.seqs:
                del self.chunks[i], self.firsts[i]
            elif row == 0:
                self.firsts[i] = chunk.seqs[0]
        self.first = self.firsts[0] if self.firsts else NEVER
        return gone

    def head(self, bytes_max: int, rows_max: int) -> list[Place]:
        """The oldest, at least one, as far as both limits allow. They stay here."""
        found: list[Place] = []
        for chunk in self.chunks:
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
        i = max(0, bisect_right(self.firsts, seq) - 1)
        for chunk in self.chunks[i : i + 2]:
            row = bisect_right(chunk.seqs, seq)
            if row < len(chunk.seqs):
                return chunk.seqs[row]
        return NEVER

    def after(self, seq: int, until: int, bytes_max: int, rows_max: int) -> list[Place]:
        """Those behind `seq` and before `until`, at least one, as far as both limits allow. They stay here."""
        found: list[Place] = []
        i = max(0, bisect_right(self.firsts, seq) - 1)
        while i < len(self.chunks) and self.firsts[i] < until:
            chunk = self.chunks[i]
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
        i = max(0, bisect_right(self.firsts, seq) - 1)
        for chunk in self.chunks[i : i + 2]:
            row = bisect_right(chunk.seqs, seq)
            if row < len(chunk.seqs):
                return [column[row:] for column in chunk.columns()]
        return None

    def unexpired(self, now_ms: int) -> Iterator[tuple[int, int]]:
        """(seq, size) of those whose time is not over, by seq. Nothing may come or go meanwhile."""
        for chunk in self.chunks:
            for seq, size, expires_ms in zip(chunk.seqs, chunk.sizes, chunk.expires or repeat(0), strict=False):
                if not 0 < expires_ms <= now_ms:
                    yield seq, size

    def extend(self, columns: Columns) -> bool:
        """Add rows, seqs ascending. False, and nothing is done, where one of them is here, or one that is here belongs
        between them."""
        seqs, chunks, firsts = columns[0], self.chunks, self.firsts
        i = bisect_right(firsts, seqs[0]) - 1
        row = bisect_left(chunks[i].seqs, seqs[0]) if i >= 0 else 0
        is_inside = i >= 0 and row < len(chunks[i].seqs)
        behind = chunks[i].seqs[row] if is_inside else firsts[i + 1] if i + 1 < len(firsts) else NEVER
        if behind <= seqs[-1]:
            return False
        room = CHUNK_ROWS - len(seqs)
        if is_inside and len(chunks[i].seqs) > room:
            self._insert(i + 1, [chunks[i].split(row)])
        if i >= 0 and len(chunks[i].seqs) <= room:
            chunks[i].put_all(row, columns)
        elif i + 1 < len(chunks) and len(chunks[i + 1].seqs) <= room:
            chunks[i + 1].put_all(0, columns)
            firsts[i + 1] = seqs[0]
        else:
            starts = range(0, len(seqs), CHUNK_ROWS)
            self._insert(i + 1, [_Chunk.of([column[at : at + CHUNK_ROWS] for column in columns]) for at in starts])
        self._count += len(seqs)
        self.first = firsts[0]
        return True

    def add_all(self, columns: Columns) -> None:
        """Add rows that are not here, seqs ascending."""
        if not self.extend(columns):
            for row in zip(*columns, strict=True):
                self.add(*row)

    def due(self, now_ms: int, rows_max: int) -> list[Place]:
        """Some whose time is over. They stay here. Looks only where the earliest expiry of a chunk has passed."""
        found: list[Place] = []
        for chunk in self.chunks:
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
        """A moment before which no message expires; NEVER = none does."""
        return min((chunk.next_expiry_ms for chunk in self.chunks), default=NEVER)

    def _locate(self, seq: int) -> tuple[int, int] | None:
        """(which chunk, which row of it)"""
        if not self.chunks or seq > self.chunks[-1].seqs[-1] or seq < self.firsts[0]:
            return None
        i = bisect_right(self.firsts, seq) - 1
        seqs = self.chunks[i].seqs
        row = bisect_left(seqs, seq)
        return (i, row) if row < len(seqs) and seqs[row] == seq else None

    def _append_chunk(self, seq: int) -> _Chunk:
        chunk = _Chunk()
        self.chunks.append(chunk)
        self.firsts.append(seq)
        return chunk

    def _chunk_for(self, seq: int) -> _Chunk:
        """The chunk into which `seq` belongs; one that is full is split before."""
        i = max(0, bisect_right(self.firsts, seq) - 1)
        chunk = self.chunks[i]
        if len(chunk.seqs) < CHUNK_ROWS:
            return chunk
        other = chunk.split(len(chunk.seqs) // 2)
        self._insert(i + 1, [other])
        return other if seq > other.seqs[0] else chunk

    def _insert(self, i: int, chunks: list[_Chunk]) -> None:
        self.chunks[i:i] = chunks
        self.firsts[i:i] = [chunk.seqs[0] for chunk in chunks]


class Backlogs(dict[int, Backlog]):
    """Backlogs by priority. None is empty."""

    @property
    def rows(self) -> int:
        """The number of rows in all backlogs."""
        return sum(map(len, self.values()))

    def own(self, priority: int) -> Backlog:
        """The backlog of that priority, to be added to."""
        backlog = self.get(priority)
        if backlog is None:
            backlog = self[priority] = Backlog()
        return backlog

    def find(self, seq: int) -> Place | None:
        """Where a message stands; None = it is not here."""
        for backlog in self.values():
            if (place := backlog.find(seq)) is not None:
                return place
        return None

    def move(self, seq: int, segment: int, offset: int, size: int) -> None:
        """The message, if it is here, stands elsewhere now."""
        for backlog in self.values():
            backlog.move(seq, segment, offset, size)

    def discard(self, seqs: Collection[int], priorities: Iterable[int] | None = None) -> list[tuple[int, Columns]]:
        """Take out those of `seqs` that are here, in all or in these priorities. Returns them by priority, and by seq
        in each piece."""
        gone: list[tuple[int, Columns]] = []
        for priority in list(self) if priorities is None else priorities:
            backlog = self.get(priority)
            if backlog is not None:
                gone += [(priority, columns) for columns in backlog.discard(seqs)]
                if not backlog:
                    del self[priority]
        return gone
