"""Direct reads: clients that can read the files of the store are told where leased or browsed messages stand.

A place is a fact about bytes that are committed, and no byte of a segment ever changes. So a client may read there as
long as the file is there, and compares checksum and seq of each record. The segments that an answer names stay a while
(`Pins`). The newest segment, with its salt, is told as well: no other store has it, nor a copy of this one that went on
by itself.
"""

from __future__ import annotations

import json
from array import array
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from amq.broker.access import Access, Action
from amq.broker.core import Core
from amq.broker.queues.backlog import NEVER
from amq.broker.queues.browser import Browser
from amq.broker.queues.queue import Owner, Queue
from amq.destination import wire_name
from amq.errors import CommandError
from amq.journal import places
from amq.journal.live import Segment
from amq.message import Message
from amq.protocols.commands import Subscribe
from amq.security.login import User

EVERYBODY = "*"
ROWS_MAX = 10_000  # told at once
NOT_PERMITTED, STARTING, MOVING = "not-permitted", "starting", "moving"


class DirectReads:
    """Answers for clients, with the access rules of `access`."""

    def __init__(self, core: Core, access: Access) -> None:
        self._core = core
        self._access = access

    def are_permitted(self, user: User, name: str) -> bool:
        """May `user` be told where messages of the destination `name` stand?"""
        allowed = {each.strip() for each in self._core.config.direct_reads.split(",")} - {""}
        return (EVERYBODY in allowed or user.name in allowed) and self._access.may(user, Action.READ_STORE, name)

    def facts(self) -> dict[str, Any] | None:
        """The client knows the store by these; None where the first segment of this master is not there yet."""
        journal = self._core.journal
        newest = journal.newest_segment()
        return None if newest is None else {"uuid": journal.store_uuid.hex(), "newest": newest}

    def of_lease(self, queue: Queue, seqs: list[int], key: str) -> dict[str, Any]:
        """Where those stand that a lease holds, in its order; or why that is not told. They are pinned for `key`."""
        facts = self.facts()
        if facts is None:
            return {"indirect": STARTING}
        rows = Rows()
        if not rows.add_disk(queue, seqs):
            return {"indirect": MOVING}
        return {**facts, **self.told(rows, queue, key)}

    def told(self, rows: Rows, queue: Queue, key: object) -> dict[str, Any]:
        """The places of `rows`, which are pinned for `key`."""
        config, known = self._core.config, queue.redelivered
        codes = set(rows.codes)
        self._core.pins.pin(key, codes, config.direct_read_time_s, config.direct_read_segments)
        before = {i: known[seq][0] for i, seq in enumerate(rows.seqs) if seq in known} if known else {}
        return {"places": places.pack(rows.seqs, rows.codes, rows.offsets, rows.sizes, before), "size": sum(rows.sizes)}


class Rows:
    """Messages and where they stand, by columns."""

    __slots__ = ("codes", "offsets", "seqs", "sizes")

    def __init__(self) -> None:
        self.seqs: array[int] = array("Q")
        self.codes: array[int] = array("Q")
        self.offsets: array[int] = array("I")
        self.sizes: array[int] = array("I")

    def __len__(self) -> int:
        return len(self.seqs)

    def add(self, seq: int, code: int, offset: int, size: int) -> None:
        self.seqs.append(seq)
        self.codes.append(code)
        self.offsets.append(offset)
        self.sizes.append(size)

    def add_columns(self, columns: Sequence[array[int]], start: int = 0, stop: int | None = None) -> None:
        """Rows of a backlog."""
        for mine, theirs in zip((self.seqs, self.codes, self.offsets, self.sizes), columns, strict=False):
            mine.extend(theirs[start:stop])

    def add_disk(self, queue: Queue, seqs: list[int]) -> bool:
        """All of `seqs`, in this order, from the disk. False where one is not there."""
        start = 0
        while start < len(seqs):
            found = next((each for one in queue.backlogs.values() if (each := one.columns_of(seqs, start))), None)
            if found is None:
                return False
            self.add_columns(found)
            start += len(found[0])
        return True


class Page(NamedTuple):
    """Some messages of one queue, in the order of a browse. `last`: priority and seq behind which it goes on; `others`:
    messages between that have no place, as they are not persistent."""

    rows: Rows
    first: tuple[int, int]
    last: tuple[int, int]
    others: int


class PlacesBrowser(Browser):
    """Shows where the messages of a browse stand, some thousand at a time: each page is a message with JSON. A client
    without the right to read the store learns how many there are, and where a page begins and ends."""

    __slots__ = ("_direct", "_user")

    def __init__(
        self, command: Subscribe, core: Core, owner: Owner, prefetch: int, queue: Queue | None, direct: DirectReads,
        user: User,
    ) -> None:
        if command.selector:
            raise CommandError("a browse of places has no selector: leave it out", code="NOT_SUPPORTED")
        self._direct = direct
        self._user = user
        super().__init__(command, core, owner, prefetch, queue)

    def step(self, now_ms: int) -> None:
        """One page a turn."""
        may_show = self.is_ready and self.credit > 0 and not (self.done or self._waits)
        if not may_show or self._core.is_held(self.queue):
            return
        page = self._page(now_ms)
        if page is not None:
            self.spend()
            seq = page.last[1]
            if not self.auto:
                self.unacked[seq] = _PAGE
            body = json.dumps(self._facts(page)).encode()
            self.peer.deliver(self, Message(self.queue.name, body, seq=seq), 0)
        elif not self.done:
            self._go_on()
        self._core.pager.again(self.queue)

    def _facts(self, page: Page) -> dict[str, Any]:
        rows = page.rows
        found: dict[str, Any] = {
            "queue": wire_name(self.queue.name), "messages": len(rows), "others": page.others,
            "first": page.first, "last": page.last, "size": sum(rows.sizes),
        }  # fmt: skip
        if not all(self._direct.are_permitted(self._user, str(source)) for source in self.sources):
            return {**found, "indirect": NOT_PERMITTED}
        facts = self._direct.facts()
        if facts is None:
            return {**found, "indirect": STARTING}
        return {**found, **facts, **self._direct.told(rows, self.queue, frozenset(rows.codes))}

    def _page(self, now_ms: int) -> Page | None:
        """The next messages of this queue and priority; None = there are none."""
        rows, others, first = Rows(), 0, 0
        for seq, columns in self._next_ones(now_ms):
            first = first or (columns[0][0] if columns else seq)
            if columns:
                rows.add_columns(columns)
                self._seq = rows.seqs[-1]
            else:
                others += self._add(rows, seq)
                self._seq = seq
            if len(rows) + others >= ROWS_MAX:
                break
        priority = self._priority
        return Page(rows, (priority, first), (priority, self._seq), others) if first else None

    def _next_ones(self, now_ms: int) -> Iterator[tuple[int, Sequence[array[int]]]]:
        """(seq, nothing) of a message in memory, (0, columns) of several on disk, by seq."""
        here, queue = self._here[self._priority], self.queue
        while True:
            row = bisect_left(here, self._seq + 1)
            in_memory = here[row] if row < len(here) else NEVER
            backlog = queue.backlogs.get(self._priority)
            columns = backlog.rows_after(self._seq) if backlog else None
            on_disk = columns[0][0] if columns is not None and columns[0][0] < self._stored_until else NEVER
            if min(in_memory, on_disk) > self._until:
                return
            if in_memory < on_disk:
                message = queue.messages.get(in_memory)
                if message is None or 0 < message.expires_ms <= now_ms or in_memory in self._moved:
                    self._seq = in_memory  # it left, waits on disk since, or is not shown
                    if message is None and (place := queue.find(in_memory)) is not None:
                        yield 0, [array("Q", [place.seq]), array("Q", [place.segment]), array("I", [place.offset]),
                                  array("I", [place.size])]  # fmt: skip
                    continue
                yield in_memory, ()
                continue
            assert columns is not None
            stop = bisect_left(columns[0], min(in_memory, self._stored_until))
            shown = _shown([column[:stop] for column in columns], now_ms, self._moved)
            if len(shown[0]):
                yield 0, shown
            self._seq = max(self._seq, columns[0][stop - 1])

    def _add(self, rows: Rows, seq: int) -> int:
        """A message in memory. 1 where it has no place."""
        message = self.queue.messages.get(seq)
        if message is None:
            return 0
        if not isinstance(message.segment, Segment):
            return 1
        rows.add(seq, message.segment.code, message.offset, message.size)
        return 0


_PAGE = Message("", b"")  # stands for a page that was shown and not acknowledged


def _shown(columns: list[array[int]], now_ms: int, moved: set[int]) -> list[array[int]]:
    """The rows that a browse shows."""
    if len(columns) < 5 and not moved:
        return columns
    times = columns[4] if len(columns) > 4 else array("Q", bytes(8 * len(columns[0])))
    keep = [
        row for row, (seq, expires_ms) in enumerate(zip(columns[0], times, strict=True))
        if not 0 < expires_ms <= now_ms and seq not in moved
    ]  # fmt: skip
    return [array(column.typecode, [column[row] for row in keep]) for column in columns[:4]]
