"""Homes: which destinations live in this store of a cluster, and how it takes over a newer table.

The table in force is the one that the journal has recorded last (`amq.broker.state.obeyed`). A newer one takes away at
once, before its record is written, and gives only when the record is durable; others learn its number only then. So
a store never serves what a later master of it would refuse, and a table that needs the number of all stores exists only
after each of them has given up for good what it takes away (docs/master-slave.md, "One home for each destination").

Without a table, and so without a cluster, nothing here is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import structlog

from amq.broker.names import is_temporary
from amq.broker.state.state import State
from amq.cluster.placement import SPREAD, Placement
from amq.core.destination import Pattern, wire_name
from amq.core.errors import CommandError, NewerFormatError
from amq.core.message import SUBSCRIPTION_SCHEME
from amq.core.remembered import Remembered
from amq.journal.hidden import OUTBOX_SCHEME, home_name
from amq.journal.journal import Journal
from amq.journal.records import ObeyedTable

KNOWN_BYTES_MAX = 4 << 20  # of names whose homes are remembered
HELD_TOLD_MAX = 20  # destinations that are named to operators
_log = structlog.get_logger("amq.placement")


class Homes:
    """`changed()` is called when destinations live elsewhere from now on: whoever uses them must be asked again.
    `facts` is for operators, replaced as a whole; other threads read it."""

    def __init__(self, state: State, journal: Journal, changed: Callable[[], None]) -> None:
        self.facts: Mapping[str, Any] = {}
        self._state = state
        self._journal = journal
        self._changed = changed
        self._placements: tuple[Placement, ...] = ()  # a destination lives here if all of them say so
        self._coming: ObeyedTable | None = None
        self._known: Remembered[str] = Remembered(KNOWN_BYTES_MAX)
        self._store = ""

    # -- asking -------------------------------------------------------------------------------------------------------

    def check(self, name: str) -> None:
        """Raises CommandError where the destination of that full name lives in another store. A temporary one is where
        its connection is, since only that has it."""
        if self.home_of(name):
            raise self._moved(name)

    def home_of(self, name: str) -> str:
        """The store where the destination lives, "" = in this one, perhaps among others."""
        home = self._known.get(name)
        if home is None:
            home = self._known.keep(name, self._find(name))
        return home

    def _find(self, name: str) -> str:
        name = home_name(name)
        if is_temporary(name) or name.startswith(OUTBOX_SCHEME):
            return ""
        if all(placement.is_home(self._store, name) for placement in self._placements):
            return ""
        return self._placements[-1].home_of(name)

    def _moved(self, name: str) -> CommandError:
        home, number = self.home_of(name), self._placements[-1].number
        if home in (self._store, SPREAD):
            why = f"is about to live in {'this store' if home == self._store else 'every store'}: try again in a moment"
        else:
            why = f"lives in store {home}: connect there, or to a port of the cluster"
        return CommandError(
            f"{wire_name(name)[:200]} {why} (table {number}; this is store {self._store})", code="MOVED"
        )

    def is_this(self, store: str) -> bool:
        """Is that this one?"""
        return store == self._store

    # -- taking over a table ------------------------------------------------------------------------------------------

    def begin(self, offered: Mapping[str, Any] | None) -> None:
        """All of the journal was read. `offered` = the newest table of the cluster that this broker knows, None = it is
        in no cluster. Raises NewerFormatError where the recorded table cannot be read."""
        record = self._state.obeyed.record
        if record is not None:
            try:
                self._placements = (Placement.from_json(record.number, record.placement),)
            except ValueError as error:
                raise NewerFormatError(f"table {record.number} of the store: {error}: upgrade this broker") from error
            self._store = record.store
            self._take()
            self._tell(looks=self._placements[0].before is not None)  # a takeover has no time for all queues
        if offered is not None:
            self.offer(offered)

    def offer(self, offered: Mapping[str, Any]) -> None:
        """The cluster has this table now. An older one than the store has recorded changes nothing."""
        found = ObeyedTable(offered["cluster"], offered["store"], offered["number"], offered["placement"])
        newest = self._coming or self._state.obeyed.record
        if newest is not None and (newest.cluster, newest.store) != (found.cluster, found.store):
            _log.error(
                "the store obeys the table of another cluster, and goes on with it: serve it from there",
                cluster=newest.cluster,
                as_store=newest.store,
                table=newest.number,
            )
            return
        if newest is not None and newest.number >= found.number:
            return
        placement = Placement.from_json(found.number, found.placement)
        self._store = found.store
        if newest is not None and placement.before is not None and (held := self._held(placement)):
            _log.warning("a table of the cluster is refused: it would strand messages", table=found.number, held=held)
            self.facts = {**self.facts, "refused": found.number, "held": held}
            return
        self._coming = found
        self._placements = (*self._placements, placement)
        self._take()
        self._journal.append_record(found)

    def recorded(self, placed: ObeyedTable) -> None:
        """The record is durable, and ours: what the table gives to this store it has from now on. A record that was
        only written again changes nothing."""
        if self._placements[0].number == placed.number and self.facts:
            return
        self._placements = tuple(each for each in self._placements if each.number >= placed.number)
        if self._coming is not None and self._coming.number <= placed.number:
            self._coming = None
        self._take()
        self._tell()
        if held := self.facts["held"]:
            _log.warning("destinations that live elsewhere have messages here", table=placed.number, held=held)
        else:
            _log.info("a table of the cluster is in force", table=placed.number)

    def _take(self) -> None:
        self._known.clear()
        self._changed()

    def _tell(self, looks: bool = True) -> None:
        """Of the table that is recorded, and of no newer one. `looks` for what must not stay here."""
        placement = self._placements[0]
        held = self._held(placement) if looks else []
        self.facts = {"number": placement.number, "since": placement.since, "held": held}

    def _held(self, placement: Placement) -> list[str]:
        """Destinations that must not stay here by `placement`, and of which this store holds something: messages,
        durable subscriptions, prepared transactions, leases, queues that wait for the messages of a virtual topic. The
        first of them, by name."""
        found = {name for name in self._holding() if placement.leaves(self._store, name)}
        return [wire_name(name) for name in sorted(found)[:HELD_TOLD_MAX]]

    def _holding(self) -> Iterator[str]:
        for name, queue in self._state.queues.items():
            if name.startswith((SUBSCRIPTION_SCHEME, OUTBOX_SCHEME)):
                continue
            if queue.stored or queue.stays:
                yield home_name(name)
        for record in self._state.subscriptions.values():
            yield from (each for each in record.sources if not isinstance(each, Pattern))
