"""Direct reads: clients that can read the files of the store learn where leased or browsed messages stand.

A place is a fact about bytes that are committed, and no byte of a segment ever changes. So a client may read there as
long as the file is there, and compares checksum and seq of each record. The segments that an answer names stay a while
(`Pins`). The newest segment, with its salt, is told as well: no other store has it, nor a copy of this one that went on
by itself.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from amq.broker.access import Access, Action
from amq.broker.core import Core
from amq.broker.queues.queue import ConsumerOwner, Queue
from amq.broker.queues.rows import Rows
from amq.broker.queues.rows_browser import RowsBrowser
from amq.core.destination import wire_name
from amq.core.errors import CommandError
from amq.core.message import Message
from amq.journal import places
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
        """May `user` learn where messages of the destination `name` stand?"""
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


class PlacesPage(NamedTuple):
    """Some messages of one queue, in the order of a browse. `last`: priority and seq behind which it goes on; `others`:
    messages between that have no place, as they are not persistent."""

    rows: Rows
    first: tuple[int, int]
    last: tuple[int, int]
    others: int


class PlacesBrowser(RowsBrowser):
    """Shows where the messages of a browse stand, some thousand at a time: each page is a message with JSON. A client
    without the right to read the store, or that wants the bounds alone, learns how many there are, and where a page
    begins and ends; then nothing is pinned."""

    __slots__ = ("_bounds", "_direct", "_user")

    def __init__(
        self,
        command: Subscribe,
        core: Core,
        owner: ConsumerOwner,
        prefetch: int,
        queue: Queue | None,
        direct: DirectReads,
        user: User,
    ) -> None:
        if command.filter.selector:
            raise CommandError("a browse of places has no selector: leave it out", code="NOT_SUPPORTED")
        assert command.browse is not None
        self._bounds = command.browse.bounds
        self._direct = direct
        self._user = user
        super().__init__(command, core, owner, prefetch, queue)

    def step(self, now_ms: int) -> None:
        """One page a turn."""
        if not self.may_show():
            return
        page = self._page(now_ms)
        if page is not None:
            self.spend()
            seq = page.last[1]
            if not self.auto:
                self.unacked[seq] = _PAGE
            body = json.dumps(self._facts(page)).encode()
            self.peer.deliver(self, Message(self.queue.name, body, seq=seq), 0)
        else:
            self._go_on()
        self._core.pager.again(self.queue)

    def _facts(self, page: PlacesPage) -> dict[str, Any]:
        rows = page.rows
        found: dict[str, Any] = {
            "queue": wire_name(self.queue.name),
            "messages": len(rows),
            "others": page.others,
            "first": page.first,
            "last": page.last,
            "size": sum(rows.sizes),
        }
        if self._bounds:
            return found
        if not all(self._direct.are_permitted(self._user, str(source)) for source in self.sources):
            return {**found, "indirect": NOT_PERMITTED}
        facts = self._direct.facts()
        if facts is None:
            return {**found, "indirect": STARTING}
        return {**found, **facts, **self._direct.told(rows, self.queue, frozenset(rows.codes))}

    def _page(self, now_ms: int) -> PlacesPage | None:
        """The next messages of this queue and priority; None = there are none."""
        rows, others, first = Rows(), 0, 0
        while len(rows) + others < ROWS_MAX and (found := self.some(now_ms)) is not None:
            self._seq, some = found
            if isinstance(some, Message):
                others += 1
                first = first or some.seq
            elif some:
                rows.add_columns(some.columns)
                first = first or some.seqs[0]
        priority = self._priority
        return PlacesPage(rows, (priority, first), (priority, self._seq), others) if first else None


_PAGE = Message("", b"")  # stands for a page that was shown and not acknowledged
