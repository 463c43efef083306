"""A browse that needs no message itself, only where it stands."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from operator import attrgetter

from amq.broker.queues.backlog import NEVER, Place
from amq.broker.queues.browser import LOOK_ROWS, Browser
from amq.broker.queues.rows import Rows
from amq.core.message import Message
from amq.journal.live import Segment

# The columns of messages in memory.
_PARTS = [*zip("QQII", map(attrgetter, ("seq", "segment.code", "offset", "size")), strict=True)]


class RowsBrowser(Browser):
    """A browse that needs no message itself, only where it stands."""

    __slots__ = ()

    def some(self, now_ms: int) -> tuple[int, Rows | Message] | None:
        """The next ones of this priority: those that are in the journal, or one that does not; and the seq through
        which that goes. None = there are none. The caller moves `_seq`."""
        here = self._here[self._priority]
        row = bisect_right(here, self._seq)
        in_memory = here[row] if row < len(here) else NEVER
        backlog = self.queue.backlogs.get(self._priority)
        on_disk = backlog.seq_after(self._seq) if backlog else NEVER
        if on_disk >= self._stored_until:
            on_disk = NEVER
        end = min(self._until + 1, self._stop())
        if min(in_memory, on_disk) >= end:
            return None
        if in_memory < on_disk:
            return self._in_memory(here[row : min(row + LOOK_ROWS, bisect_left(here, min(on_disk, end), row))], now_ms)
        columns = backlog.rows_after(self._seq) if backlog else None
        assert columns is not None
        # The same: it went back to the disk meanwhile.
        count = bisect_left(columns[0], min(max(in_memory, on_disk + 1), self._stored_until, end))
        return columns[0][count - 1], Rows(_shown([column[:count] for column in columns], now_ms, self._moved))

    def _in_memory(self, seqs: Sequence[int], now_ms: int) -> tuple[int, Rows | Message]:
        """The first of these, which were in memory; at least one."""
        found = [*map(self.queue.messages.get, seqs)]
        if None in found or self._moved or not all(map(_is_plain, found)):
            return self._one_by_one(seqs, found, now_ms)
        return seqs[-1], Rows([array(code, map(part, found)) for code, part in _PARTS])

    def _one_by_one(
        self, seqs: Sequence[int], found: Sequence[Message | None], now_ms: int
    ) -> tuple[int, Rows | Message]:
        moved, rows, through = self._moved, Rows(), 0
        for seq, message in zip(seqs, found, strict=True):
            if message is None:  # it left, or went back to the disk
                if (place := self.queue.find(seq)) is not None:
                    rows.add(place)
            elif 0 < message.expires_ms <= now_ms or seq in moved:
                pass
            elif isinstance(message.segment, Segment):
                rows.add(Place(seq, message.segment.code, message.offset, message.size))
            elif through:
                break
            else:
                return seq, message
            through = seq
        return through, rows


def _is_plain(message: Message | None) -> bool:
    """Does it stand in the journal, and does not expire?"""
    return message is not None and message.segment.__class__ is Segment and not message.expires_ms


def _shown(columns: list[array[int]], now_ms: int, moved: set[int]) -> list[array[int]]:
    """The rows that a browse shows."""
    if len(columns) < 5 and not moved:
        return columns
    times = columns[4] if len(columns) > 4 else array("Q", bytes(8 * len(columns[0])))
    keep = [
        row
        for row, (seq, expires_ms) in enumerate(zip(columns[0], times, strict=True))
        if not 0 < expires_ms <= now_ms and seq not in moved
    ]
    return [array(column.typecode, [column[row] for row in keep]) for column in columns[:4]]
