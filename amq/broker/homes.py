"""Homes: which destinations live in this store of a cluster, and how it takes over a newer table.

The table in force is the one that the journal has recorded last (`amq.broker.state.obeyed`). A newer one takes away at
once, before its record is written, and gives only when the record is durable; others learn its number only then. So
a store never serves what a later master of it would refuse, and a table that needs the number of all stores exists only
after each of them has given up for good what it takes away (docs/master-slave.md, "One home for each destination").

A move takes along what a destination holds. By its table this store gives up what is moving, holds it until it has
sent all of it (`leaving`; `amq.broker.moving`), and is given what others have sent here when they hold nothing of it.
A table that would take a destination of which a transaction is prepared, or messages are leased, waits here for their
end, and so long nothing changes. Where leases alone hold a move, no new ones are granted (`withholds`): a reader that
settles what it has read, before it asks for more, lets the move go on.

Without a table, and so without a cluster, nothing here is asked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass
from typing import Any

import structlog

from amq.broker.names import is_temporary
from amq.broker.state.state import State
from amq.cluster.placement import SLOTS, SPREAD, STEP_BYTES, Placement
from amq.core.destination import Pattern, Source, wire_name
from amq.core.errors import CommandError, NewerFormatError
from amq.core.message import SUBSCRIPTION_SCHEME, GivenIds, ids_of_cluster
from amq.core.remembered import Remembered
from amq.journal.hidden import OUTBOX_SCHEME, SENT_SCHEME, home_name, is_hidden, real_name, told_name
from amq.journal.journal import Journal
from amq.journal.records import Group, ObeyedTable, Prepared, decider_of, is_of_lease, stores_of

KNOWN_BYTES_MAX = 4 << 20  # of names whose homes are remembered
HELD_TOLD_MAX = 20  # destinations that are named to operators
REASON_CHARS_MAX = 500  # of the reason that a refusal gives
FEW = 1000  # messages, of
FEW_BYTES = 1 << 20  # together, that a step takes without copies
DUE_TOLD_MAX = 64  # slots whose destinations have not begun to move
WITHHELD_SWEEPS = 60  # no new leases for so long; then as long, so that a reader that has ended starves no other
_log = structlog.get_logger("amq.placement")


@dataclass(slots=True)
class Sent:
    """Messages and bytes that this mastership has sent to other stores by moves, and its rate lately."""

    sent: int = 0
    sent_bytes: int = 0
    bytes_a_second: int = 0


@dataclass(frozen=True, slots=True)
class Stuck:
    """A queue of the journal that leaves, and that its next home has refused since then, with the newest reason."""

    queue: str
    reason: str
    since_ms: int


@dataclass(slots=True)
class Copied:
    """How much of what waits for its step the next homes have copies of, and how much is still to be copied."""

    copied: int = 0
    copied_bytes: int = 0
    to_copy: int = 0
    to_copy_bytes: int = 0


@dataclass(slots=True)
class Bound:
    """Something that holds a move: a lease, or (`is_lease` false) something that readers of leases do not end. `queue`
    of the journal, and the `homes` of that: none where it is in every store, because it means a pattern."""

    queue: str
    homes: Sequence[str]
    is_lease: bool = False


class Homes:
    """`changed()` is called when destinations live elsewhere from now on: whoever uses them must be asked again.
    `facts` is for operators, replaced as a whole; other threads read it. They see it as `fact`."""

    fact = "placement"

    def __init__(self, state: State, journal: Journal, changed: Callable[[], None]) -> None:
        self.facts: Mapping[str, Any] = {}
        self._state = state
        self._journal = journal
        self._changed = changed
        self._placements: tuple[Placement, ...] = ()  # a destination lives here if all of them say so
        self._coming: ObeyedTable | None = None
        self._known: Remembered[str] = Remembered(KNOWN_BYTES_MAX)
        self._store = ""
        self._waiting: Mapping[str, Any] | None = None  # a table of a move that is not taken over yet
        self._awaited: Placement | None = None  # the same
        self.leaving: dict[str, None] = {}  # queues of the journal that must be sent to their new homes
        self.frozen: set[str] = set()  # these, and queues to which others send what moves here: nobody gets anything
        self._without: Placement | None = None  # the last table by which another store leaves
        self.owes_rest = False  # it leaves, and has not sent what belongs to no destination
        self.sent = Sent()
        self.stuck: Stuck | None = None
        self.copies: dict[str, bool] = {}  # queues of the journal to be copied before their step; has enough been?
        self.to_copy = Copied()
        self._due: dict[int, list[str]] = {}  # by slot: queues that leave with a later step
        self._later: AbstractSet[int] = frozenset()  # slots that the next step does not take
        self._swept = 0  # times, since nothing is to be copied for the next step
        # Of queues that leave, and had consumers: which of these had which buckets of groups.
        self.owners: dict[str, dict[str, list[int]]] = {}
        self.empty: dict[str, None] = {}  # those of them of which nothing is stored: the next home hears of the rest

    # -- asking -------------------------------------------------------------------------------------------------------

    def let_in(self) -> None:
        """Raises CommandError where no client may come in."""

    def refusal(self) -> CommandError:
        """The error for a client that is sent away."""
        raise AssertionError("a store of a cluster serves")

    def check(self, name: Source) -> None:
        """Raises CommandError where the destination of that full name lives in another store. A temporary one is where
        its connection is, since only that has it. A pattern means what lives here, as long as anything does."""
        if isinstance(name, Pattern):
            if any(self._is_left(placement) for placement in self._placements):
                raise CommandError(f"store {self._store} leaves the cluster: use the other stores", code="MOVED")
        elif self.home_of(name):
            raise self._moved(name)

    def _is_left(self, placement: Placement) -> bool:
        """Does nothing live in this store by that table?"""
        return placement.leaving == self._store and placement.is_last_step

    def check_taken(self, queue: str) -> None:
        """Raises CommandError where what another store has sent here for that queue of the journal does not belong
        here, now or when all has arrived."""
        if not self.takes(queue):
            raise self._moved(next(filter(self.home_of, self._homes_of(queue))))

    def takes(self, queue: str) -> bool:
        """Does what another store has sent here for that queue of the journal belong here, now or when all has
        arrived?"""
        for name in self._homes_of(queue):
            if self.home_of(name):
                if len(self._placements) > 1 or not self._placements[0].comes(self._store, name):
                    return False
                self.frozen.add(queue)
        return True

    def check_copied(self, source: str) -> None:
        """Raises CommandError where no copies may come for that destination: it is not about to live here."""
        if not self.awaits(source):
            raise CommandError(f"{wire_name(source)[:200]} does not move to this store now", code="MOVED")

    def awaits(self, source: str) -> bool:
        """Is that destination about to live here alone, by a move that is under way?"""
        return bool(self._placements) and self._placements[0].awaits(self._store, source)

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
        placement = self._placements[-1]
        home = placement.home_of(name)
        return home if placement.layout.is_in(self._store, home) else placement.target_of(name)

    def message_ids(self) -> GivenIds | None:
        """Those of this store as clients of gateways see them. None = no table is in force yet."""
        obeyed = self._state.obeyed.record
        if obeyed is None or not self._placements:
            return None
        return ids_of_cluster(obeyed.cluster, self._placements[-1].places.index(self._store))

    def _moved(self, name: str) -> CommandError:
        home, number, code = self.home_of(name), self._placements[-1].number, "MOVED"
        if home not in (self._store, SPREAD) and self._placements[-1].is_moving(home_name(name)):
            why, code = f"is moving to store {home} with what it holds: try again in a moment", "MOVING"
        elif home in (self._store, SPREAD):
            code = "MOVING"
            why = f"is about to live in {'this store' if home == self._store else 'every store'}: try again in a moment"
        else:
            why = f"lives in store {home}: connect there, or to a port of the cluster"
        return CommandError(f"{wire_name(name)[:200]} {why} (table {number}; this is store {self._store})", code=code)

    @property
    def number(self) -> int:
        """That of the table that is recorded, 0 = none is."""
        return self._placements[0].number if self._placements else 0

    @property
    def is_another_leaving(self) -> bool:
        """Does another store leave the cluster now?"""
        return any(placement.leaving not in ("", self._store) for placement in self._placements)

    def gets_temporary(self, name: str) -> bool:
        """Was that temporary destination in a store that leaves, or that has left last?"""
        return self._without is not None and self._without.home_of(name) == self._without.leaving

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
            self._forget_figures(self._placements[0])
            self._tell(looks=self._placements[0].before is not None)  # a takeover has no time for all queues
        if offered is not None:
            self.offer(offered)

    def _forget_figures(self, placement: Placement) -> None:
        """The next home of what has left counts it."""
        for name, queue in self._state.queues.items():
            if queue.acknowledged and not queue.stored and placement.leaves(self._store, home_name(name)):
                queue.enqueued, queue.acknowledged, queue.brought = 0, 0, (0, 0)

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
        if newest is not None and placement.step is not None and (bound := self._bound(placement)):
            if self._waiting is None:
                _log.info("a step of a move waits for transactions and leases to end", table=found.number, held=bound)
            self._waiting, self._awaited = offered, placement
            self.facts = {**self.facts, "waits": bound}
            return
        changes = newest is not None and placement.before is not None and placement.step is None
        if changes and (held := self._held(placement)):
            _log.warning("a table of the cluster is refused: it would strand messages", table=found.number, held=held)
            self.facts = {**self.facts, "refused": found.number, "held": held}
            return
        self._waiting = self._awaited = None
        if placement.step is not None:
            self._note_consumers(placement)
        self._coming = found
        self._placements = (*self._placements, placement)
        self._take()
        self._journal.append_record(found)

    def withholds(self, queue: str) -> bool:
        """Is no new lease of that queue of the journal granted, because a move waits, or the next step of it, for the
        end of leases alone?"""
        placement = self._placements[0] if self._placements else None
        if (coming := self._awaited) is not None:
            return self._is_bound(coming, self._homes_of(queue)) and not any(
                not each.is_lease and self._is_bound(coming, each.homes) for each in self._bounds()
            )
        if placement is None or placement.step is None or len(self._placements) > 1:
            return False
        if not all(self.copies.values()) or self._swept // WITHHELD_SWEEPS % 2:
            return False
        slots = self._slots_waiting(placement, self._homes_of(queue))
        return bool(slots) and slots.isdisjoint(self._later)

    def _note_consumers(self, placement: Placement) -> None:
        """Note what consumers of queues that leave have there, while they are there. These queues stay until their next
        home knows it."""
        before, self.owners = self.owners, {}
        for name, queue in self._state.queues.items():
            if not (queue.subscriptions or queue.awaits) or is_temporary(name) or queue.is_hidden:
                continue
            if any(placement.leaves(self._store, home) for home in self._homes_of(name)):
                queue.awaits = True
                now = queue.selection.known() if queue.selection is not None else {}
                self.owners[name] = now or before.get(name, {})

    def sweep(self) -> None:
        """Call every second or so: what a move waits for may have ended."""
        if self._waiting is not None:
            self.offer(self._waiting)
        if self._placements and self._placements[0].step is not None and self._waiting is None:
            self._swept = self._swept + 1 if all(self.copies.values()) else 0
            self.tell_progress()

    def has_left(self, queue: str) -> None:
        """All that this store had of that queue of the journal is in another store."""
        del self.leaving[queue]
        self.owners.pop(queue, None)
        if not self.leaving:
            self.tell_progress()

    def stands_still(self, queue: str, reason: str, now_ms: int) -> None:
        """The next home of that queue of the journal refuses what it is sent, until it takes something."""
        since_ms = self.stuck.since_ms if self.stuck is not None and self.stuck.queue == queue else now_ms
        self.stuck = Stuck(queue, reason[:REASON_CHARS_MAX], since_ms)
        self.tell_progress()

    def has_told(self, queues: Iterable[str]) -> None:
        """The next home knows what there is to know of these of `empty`."""
        for queue in queues:
            self.empty.pop(queue, None)
            self.owners.pop(queue, None)
        if not self.empty:
            self.tell_progress()

    def next_home(self, queue: str) -> str:
        """The store to which a queue of the journal that leaves goes."""
        return self._placements[0].target_of(next(iter(self._homes_of(queue)), queue))

    def copied_to(self, queue: str) -> str:
        """The store that gets copies of a queue of the journal."""
        return self._placements[0].heir_of(next(iter(self._homes_of(queue)), queue))

    def has_copied(self, queue: str) -> None:
        """The step may take that queue of `copies`."""
        self.copies[queue] = True
        self.tell_progress()

    def sources_of(self, queue: str) -> Sequence[str]:
        """The destinations to which a queue of the journal belongs, none where it is in every store."""
        return self._homes_of(queue)

    def next_home_of_rest(self) -> str:
        """The store that gets what belongs to no destination, when this one has nothing else; "" = it may keep that."""
        placement = self._placements[0]
        return placement.next_decider if self._is_left(placement) and self.owes_rest else ""

    @property
    def has_given_rest(self) -> bool:
        """Does another store know which batches and commits took place here? No more batch may begin."""
        return bool(self._placements) and self._is_left(self._placements[0]) and not self.owes_rest

    def marked(self) -> None:
        """A batch that was prepared before that is committed."""
        if self.has_given_rest:
            self.owes_rest = True
            self.tell_progress()

    @property
    def rate_bytes(self) -> int:
        """The most that a move may send a second, 0 = no limit."""
        step = self._placements[0].step
        return 0 if step is None else step.rate_bytes

    def tell_progress(self, known: Mapping[str, Any] | None = None) -> None:
        """Of a move, by the table that is recorded. `known` = facts that nobody has heard: others never see a step
        without what it must send."""
        placement, queues = self._placements[0], self._state.queues
        names = sorted({home_name(name) for name in (*self.leaving, *self.empty)})
        busy, leased = set[int](), set[int]()
        for each in self._bounds():
            (leased if each.is_lease else busy).update(self._slots_waiting(placement, each.homes))
        self._choose(placement, busy, leased)
        busy |= leased
        facts = {
            **(known or self.facts),
            "held": [wire_name(name) for name in names[:HELD_TOLD_MAX]],
            "left": sum(queues[name].stored for name in self.leaving if name in queues),
            "left_bytes": sum(queues[name].stored_bytes for name in self.leaving if name in queues),
            **asdict(self.sent),
            **asdict(self.to_copy),
            "copying": not all(self.copies.values()),
            "busy": sorted(busy),
        }
        facts.pop("stuck", None)
        if self.stuck is not None and self.stuck.queue in self.leaving:
            facts["stuck"] = self._told_of(self.stuck)
        if placement.leaving:
            facts |= {"rest": self._rest(placement), "peers": sorted(self._peers())}
        facts.pop("waits", None)
        if facts != self.facts:
            self.facts = facts

    def _told_of(self, stuck: Stuck) -> dict[str, Any]:
        name = next(iter(self._homes_of(stuck.queue)), stuck.queue)
        return {
            "destination": wire_name(name),
            "store": self.next_home(stuck.queue),
            "reason": stuck.reason,
            "since_ms": stuck.since_ms,
        }

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
        if (held := self.facts["held"]) and self._placements[0].step is None:
            _log.warning("destinations that live elsewhere have messages here", table=placed.number, held=held)
        else:
            _log.info("a table of the cluster is in force", table=placed.number)

    def _take(self) -> None:
        self._known.clear()
        if self.is_another_leaving:
            self._without = next(each for each in self._placements if each.leaving)
        self._changed()

    def _tell(self, looks: bool = True) -> None:
        """Of the table that is recorded, and of no newer one. `looks` for what must not stay here."""
        placement = self._placements[0]
        held = self._held(placement) if looks else []
        facts: dict[str, Any] = {"number": placement.number, "since": placement.since, "held": held}
        self.leaving, self.frozen, self.owes_rest = {}, set(), self._is_left(placement)
        self.copies, self.to_copy, self._due, self.empty = {}, Copied(), {}, {}
        self._later, self._swept = frozenset(), 0
        if placement.step is not None:
            self._begin_step(placement, facts)
            return
        if placement.before is not None and not placement.joining and self._remembers(placement):
            facts["remembers"] = True
        self.facts = facts

    def _begin_step(self, placement: Placement, facts: Mapping[str, Any]) -> None:
        """Find what leaves with this step of a move, and tell what leaves later."""
        due = Counter[int]()
        for name, queue in self._state.queues.items():
            if not self._holds(name):
                continue
            homes = self._homes_of(name)
            if not homes and placement.leaving == self._store:  # it is in every store, because it means a pattern
                if placement.is_last_step:
                    self.leaving[name] = None
                    self.frozen.add(name)
                else:
                    due[SLOTS - 1] += queue.stored_bytes
            for home in homes:
                if placement.leaves(self._store, home):
                    self.leaving[name] = None
                    self.frozen.add(name)
                elif placement.comes(self._store, home):
                    self.frozen.add(name)
                elif placement.waits(self._store, home):
                    due[slot := placement.slot_in_move(home)] += max(1, queue.stored_bytes)
                    if not is_hidden(name) and placement.heir_of(home) != SPREAD:
                        self._due.setdefault(slot, []).append(name)
        self.empty = {name: None for name in self.owners if name not in self.leaving}
        told = sorted(due.items())[:DUE_TOLD_MAX]
        self.tell_progress({**facts, "due": told, "due_bytes": due.total(), "cut": len(told) < len(due)})

    def _choose(self, placement: Placement, busy: AbstractSet[int], leased: AbstractSet[int]) -> None:
        """The queues that the next step takes, as `next_step` chooses it: they are copied before. Where nothing else is
        left, that are those with leases, which are to end."""
        assert placement.step is not None
        found: dict[str, bool] = {}
        total = 0
        slots = self._due.keys() - busy
        later = {*self._due, *busy, *leased}
        for slot in sorted((slots - leased) or (slots | (leased - busy))) if not placement.step.returns else ():
            names = self._due.get(slot, ())
            queues = [self._state.queues[name] for name in names if name in self._state.queues]
            size = sum(queue.stored_bytes for queue in queues)
            if total and total + size > STEP_BYTES:
                break
            total += size
            later.discard(slot)
            found |= {queue.name: self.copies.get(queue.name, False) for queue in queues if queue.stored}
        self._later = later
        count = sum(self._state.queues[name].stored for name in found)
        self.copies = found if self.copies or count > FEW or total > FEW_BYTES else {}

    def _remembers(self, placement: Placement) -> bool:
        """Does a queue that leaves by `placement` remember ids?"""
        known = (name for name, queue in self._state.queues.items() if queue.duplicates and self._holds(name))
        return any(placement.leaves(self._store, home) for name in known for home in self._homes_of(name))

    def _rest(self, placement: Placement) -> list[str]:
        """Of a store that leaves: what it still holds and does not send. The first of it."""
        if not self._is_left(placement):
            return []
        found = [str(each.xid) for each, _ in self._state.prepared.values()]
        found += [name for name, queue in self._state.queues.items() if queue.stored and name not in self.leaving]
        found = [name for name in found if not name.startswith(SENT_SCHEME)]
        if self.owes_rest:
            found.append("outcomes of commits")
        return [wire_name(told_name(name)) for name in sorted(found)[:HELD_TOLD_MAX]]

    def _peers(self) -> set[str]:
        """The stores that must answer this one: about parcels that are open, and transactions over several stores."""
        found = {parcel.store for parcel, _ in self._state.parcels.values()}
        for prepared, _ in self._state.prepared.values():
            if decider := decider_of(prepared.xid):
                found |= {decider, *stores_of(prepared.owner)}
        return found - {"", self._store}

    def _holds(self, name: str) -> bool:
        queue = self._state.queues[name]
        if name.startswith((OUTBOX_SCHEME, SENT_SCHEME)):  # what is prepared keeps a step waiting
            return False
        return bool(queue.stored or queue.stays or queue.duplicates)

    def _homes_of(self, queue: str) -> Sequence[str]:
        """The destinations to which a queue of the journal belongs: that of a durable subscription to all its topics.
        It has none where it is in every store, because it means a pattern."""
        queue = real_name(queue)
        if not queue.startswith(SUBSCRIPTION_SCHEME):
            return (home_name(queue),)
        record = self._state.subscriptions.get(queue)
        sources = () if record is None else record.sources
        return () if any(isinstance(each, Pattern) for each in sources) else sources[:1]  # type: ignore[return-value]

    def _bound(self, placement: Placement) -> list[str]:
        """Destinations that leave by `placement`, and that cannot now."""
        bound = (each for each in self._bounds() if self._is_bound(placement, each.homes))
        found = {(*each.homes, told_name(each.queue))[0] for each in bound}
        return [wire_name(name) for name in sorted(found)[:HELD_TOLD_MAX]]

    def _is_bound(self, placement: Placement, homes: Sequence[str]) -> bool:
        """Does what has these homes leave by `placement`?"""
        return any(placement.leaves(self._store, home) for home in homes) or (not homes and self._is_left(placement))

    def _slots_waiting(self, placement: Placement, homes: Sequence[str]) -> set[int]:
        """The slots with which what has these homes leaves later."""
        if not homes:
            return {SLOTS - 1} if placement.leaving == self._store and not placement.is_last_step else set()
        return {placement.slot_in_move(home) for home in homes if placement.waits(self._store, home)}

    def _bounds(self) -> Iterator[Bound]:
        """Prepared transactions, leases, and durable subscriptions to several topics: all that holds a move."""
        on_their_way = (record for batch in self._journal.on_their_way() for record in batch.records)
        for record in (*(each for each, _ in self._state.prepared.values()), *on_their_way):
            for part in record.records if isinstance(record, Group) else (record,):
                if isinstance(part, Prepared):
                    is_lease = is_of_lease(part.owner)
                    for name in (*part.sends, *part.acks):
                        yield Bound(name, self._homes_of(name), is_lease)
        for name, subscribed in self._state.subscriptions.items():
            homes = [each for each in subscribed.sources if not isinstance(each, Pattern)]
            if homes and len(subscribed.sources) > 1:
                yield Bound(name, homes)

    def _held(self, placement: Placement) -> list[str]:
        """Destinations that must not stay here by `placement`, and of which this store holds something: messages,
        durable subscriptions, prepared transactions, leases, queues that wait for the messages of a virtual topic. The
        first of them, by name."""
        found = {name for name in self._holding() if placement.leaves(self._store, name)}
        return [wire_name(name) for name in sorted(found)[:HELD_TOLD_MAX]]

    def _holding(self) -> Iterator[str]:
        for name, queue in self._state.queues.items():
            if name.startswith((SUBSCRIPTION_SCHEME, OUTBOX_SCHEME, SENT_SCHEME)):
                continue
            if queue.stored or queue.stays:
                yield from self._homes_of(name)
        for prepared, _ in self._state.prepared.values():
            yield from map(home_name, prepared.sends)
        for record in self._state.subscriptions.values():
            yield from (each for each in record.sources if not isinstance(each, Pattern))
