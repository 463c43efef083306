"""Leasing: messages that are set apart for a reader which reads them as often as it likes, and settles them later.

A lease is a prepared transaction that acknowledges messages which nobody was given: one group of the journal moves them
to the hidden queue of held messages, and names them in the order in which they would have been delivered. So it
survives everything, and ends as any prepared transaction does. Invariants: the leases of one cursor have growing
numbers, the broker's seqs; what a lease holds and in which order never changes; to ask again, beyond the same number,
gives the same lease, also on the next master. A client that takes a cursor gets an epoch, a durable number that grows:
the broker rejects a request with an older epoch, and the reading of a lease with one. Each user has cursors, leases and
epochs alone; those of an earlier version, which stored no user, are for all users who may lease there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from heapq import merge
from typing import Any

from amq.broker.actions import Action
from amq.broker.core import Core
from amq.broker.names import PREPARED_NAME, check_browsed, check_queue, is_topic
from amq.broker.queues.browser import LOOK_ROWS, Browser
from amq.broker.queues.queue import ConsumerOwner, Queue
from amq.broker.queues.rows import Rows
from amq.broker.queues.runs import STEP_RUNS, InRuns, QueueRunBrowser, Runs
from amq.broker.topics.durables import Durables
from amq.broker.transactions.direct import NOT_PERMITTED, DirectReads, PlacesBrowser
from amq.broker.transactions.two_phase import PreparedBrowser, TwoPhase
from amq.broker.waiters import Answering, Refusing
from amq.core.destination import Pattern, Source, is_wildcard, told, wire_name
from amq.core.errors import AccessError, CommandError
from amq.core.message import Message
from amq.core.xid import key_of
from amq.journal.batch import Waiter
from amq.journal.hidden import HELD_SCHEME, told_name
from amq.journal.reader import RecordRun
from amq.journal.records import Group, LeaseOwner, Moved, Prepared
from amq.protocols.commands import LeaseMessages, LeaseReading, SettleLeases, Subscribe
from amq.security.login import NO_USER, User

CURSOR_CHARACTERS_MAX = 256
MESSAGES_MAX = 10_000  # in one lease: about 10 ms of the event loop
SIZE_MAX = 64 << 20  # bytes in one lease
QUEUES_MAX = 10_000  # of a pattern, told at once
CURSORS_MAX = 1000  # of which is counted how their messages are read


class Leasing:
    """Carries out Lease and SettleLeases."""

    def __init__(self, core: Core, durables: Durables, two_phase: TwoPhase, direct: DirectReads) -> None:
        self._direct = direct
        self._core = core
        self._durables = durables
        self._two_phase = two_phase
        self._coming: dict[LeaseOwner, list[tuple[Prepared, Group]]] = {}  # those on their way
        # (user, cursor) → messages read from the store, and not from there
        self._reads: dict[tuple[str, str], tuple[int, int]] = {}

    def lease(self, command: LeaseMessages, waiter: Waiter, client_id: str, user: User = NO_USER) -> None:
        """Raises CommandError, AccessError."""
        core, number = self._core, self._core.next_seq()
        if is_wildcard(command.sources) and not command.messages and not command.take:
            core.when_durable(Answering(waiter, self._queues(command, user.name)))
            return
        owner = self._owner(command, client_id, user.name)
        name = owner.queue
        if command.after >= number:
            raise CommandError(
                f"no lease of this store has the number {command.after}: it is of another store, or of a copy of this "
                "one that went on",
                code="UNKNOWN_LEASE",
            )
        if not command.take and self._is_taken(owner, command.epoch, waiter):
            return
        if any(command.reads):
            self._count((owner.user, owner.cursor), command.reads)
        known: list[tuple[Prepared, Group | None]] = [(each, None) for each in self._leases(owner)]
        known += self._coming.get(owner, ())
        known = [each for each in known if each[0].seq > command.after]
        found, group = known[command.skip] if command.skip < len(known) else (None, None)
        queue = core.state.queues.get(name)
        source = queue if command.skip == len(known) and command.messages else None
        if source is not None and core.homes is not None and core.homes.withholds(name):
            source = None  # as if nothing waited: it moves when what is leased is settled
        if source is not None:
            _check_takes(source)  # before the cursor changes hands
        if command.take:  # this comes behind what is coming
            _, group = self._two_phase.mark(owner.of_epochs)
        if source is None:
            core.when_durable(self._answering(waiter, command, found, owner, user), group)
            return
        seqs = self._take(source, min(command.messages, MESSAGES_MAX), min(command.size or SIZE_MAX, SIZE_MAX))
        if not seqs:
            core.when_durable(self._answering(waiter, command, None, owner, user), group)
            return
        lease = Prepared(
            owner.xid(number),
            number,
            core.clock.wall_ms(),
            command.timeout_ms,
            owner.of_leases,
            acks={name: seqs},
            user=owner.user,
        )
        group = Group([Moved(name, HELD_SCHEME + name, seqs), lease])
        self._coming.setdefault(owner, []).append((lease, group))
        self._two_phase.append(group, self._answering(waiter, command, lease, owner, user))

    def settle(self, command: SettleLeases, waiter: Waiter, client_id: str, user: str = "") -> int:
        """Returns how many messages are acknowledged by it. Raises CommandError, AccessError."""
        owner = self._owner(command, client_id, user)
        if self._is_taken(owner, command.epoch, waiter):
            return 0
        ended = [each for each in self._leases(owner) if each.seq <= command.through]
        self._two_phase.finish_together(ended, command.commit, waiter)
        return sum(len(each.acks[owner.queue]) for each in ended) if command.commit else 0

    def _newest_epoch(self, owner: LeaseOwner) -> int:
        """The newest epoch of a cursor, also of an earlier version; -1 = none."""
        return max(self._two_phase.newest(each.of_epochs) for each in (owner, owner.without_user()))

    def _is_taken(self, owner: LeaseOwner, epoch: int, waiter: Waiter) -> bool:
        """Is `epoch`, which the client gave, over? Then it is told, as soon as the newer one is durable. Raises
        CommandError."""
        newest = self._newest_epoch(owner)
        if epoch in (0, newest):
            return False
        error = _taken(owner, epoch, newest)
        group = self._two_phase.marking(owner.of_epochs)
        if group is None:
            raise error
        self._core.when_durable(Refusing(waiter, error), group)
        return True

    def check_epoch(self, owner: LeaseOwner, epoch: int) -> None:
        """Raises CommandError where a newer epoch of the cursor is durable."""
        found = self._core.state.prepared.markers.get(owner.of_epochs)
        if epoch and found is not None and found[0].batch > epoch:
            raise _taken(owner, epoch, found[0].batch)

    def browser(
        self, command: Subscribe, session: ConsumerOwner, prefetch: int, client_id: str, user: User = NO_USER
    ) -> Browser:
        """A browser of the queue or durable subscription that `command` names, of prepared transactions, or of the
        messages of a lease. Raises CommandError, AccessError."""
        browse = command.browse
        assert browse is not None
        if browse.reading is not None:
            kind = LeaseRunBrowser if browse.in_runs else LeaseBrowser
            return kind(command, browse.reading, self._core, self, session, prefetch)
        queue = None
        if command.subscription_name:
            queue = self._core.state.queue(
                self._durables.queue_of(command.subscription_name, client_id, command.sources, user.name)
            )
        else:
            check_browsed(command.sources)
        if command.sources == (PREPARED_NAME,):
            return PreparedBrowser(command, self._core, self._two_phase, session, prefetch)
        if browse.places:
            return PlacesBrowser(command, self._core, session, prefetch, queue, self._direct, user)
        if browse.in_runs and queue is None and not command.filter.selector:
            return QueueRunBrowser(command, self._core, session, prefetch)
        return Browser(command, self._core, session, prefetch, queue)

    def is_leased(self, lease: Prepared) -> None:
        """It is durable."""
        for key, coming in list(self._coming.items()):
            stays = [each for each in coming if each[0] is not lease]
            if stays:
                self._coming[key] = stays
            else:
                del self._coming[key]

    def lease_of(self, reading: LeaseReading, user: str) -> tuple[LeaseOwner, Prepared]:
        """The lease that `user` wants to read, and its owner. Raises CommandError."""
        owner, prepared = LeaseOwner(_checked(reading.cursor), "", user), self._core.state.prepared
        xid = owner.xid(reading.number)
        # Also while its end is on its way: a crash may undo that.
        found = prepared.get(key_of(user, xid)) or prepared.get(xid)
        if found is None:
            raise lost(xid)
        (queue,) = found[0].acks
        return owner._replace(queue=queue), found[0]

    def _leases(self, owner: LeaseOwner) -> list[Prepared]:
        """Those of a cursor whose end is not on its way, oldest first."""
        ending = self._two_phase.ending
        found = [
            each
            for each in self._core.state.prepared.of_owner(owner.of_leases)
            if owner.queue in each.acks and each.user in (owner.user, "") and each.key not in ending
        ]
        return sorted(found, key=lambda each: each.seq)

    def _owner(self, command: LeaseMessages | SettleLeases, client_id: str, user: str) -> LeaseOwner:
        """Raises CommandError, AccessError."""
        return LeaseOwner(_checked(command.cursor), self._name(command, client_id, user), user)

    def _name(self, command: LeaseMessages | SettleLeases, client_id: str, user: str) -> str:
        """Full name of the queue from which is leased. Raises CommandError, AccessError."""
        first, *others = command.sources
        if is_topic(first):
            return self._durables.queue_of(command.cursor, client_id, command.sources, user)
        if others or not isinstance(first, str):
            raise _no_queue(command.sources)
        check_queue(first)
        return first

    def _answering(
        self, waiter: Waiter, command: LeaseMessages, lease: Prepared | None, owner: LeaseOwner, user: User
    ) -> Waiter:
        """Answers `waiter` when that is durable. Where the messages stand is known only then."""
        name = owner.queue
        queue = self._core.state.queues.get(name)
        facts = {
            "lease": lease.seq if lease is not None else 0,
            "messages": len(lease.acks[name]) if lease is not None else 0,
            "waiting": queue.waiting if queue is not None else 0,
            "waitingBytes": queue.stored_bytes if queue is not None else 0,
            "store": self._core.journal.store_uuid.hex()[:12],
            "epoch": max(0, self._newest_epoch(owner)),
        }
        reads = self._reads.get((owner.user, owner.cursor))
        if reads is not None:
            facts["direct"], facts["fallback"] = reads
        if lease is None or not (command.places or command.size):
            return Answering(waiter, json.dumps(facts))
        if not command.places:
            return Made(waiter, lambda: json.dumps({**facts, "size": self._size(lease, name)}))
        if not self._direct.are_permitted(user, str(command.sources[0])):
            return Answering(waiter, json.dumps({**facts, "indirect": NOT_PERMITTED}))
        return Made(waiter, lambda: json.dumps({**facts, **self._places(lease, name)}))

    def _places(self, lease: Prepared, name: str) -> dict[str, Any]:
        queue = self._core.state.queues.get(HELD_SCHEME + name)
        if queue is None or lease.key not in self._core.state.prepared:
            return {"indirect": "ended"}
        return self._direct.of_lease(queue, lease.acks[name], str(lease.xid))

    def _size(self, lease: Prepared, name: str) -> int:
        """Bytes of its records."""
        queue, rows = self._core.state.queues.get(HELD_SCHEME + name), Rows()
        return sum(rows.sizes) if queue is not None and rows.add_disk(queue, lease.acks[name]) else 0

    def _count(self, whose: tuple[str, str], reads: tuple[int, int]) -> None:
        """Count direct reads, in memory alone, of the cursors that read last."""
        direct, others = self._reads.pop(whose, (0, 0))
        self._reads[whose] = direct + reads[0], others + reads[1]
        while len(self._reads) > CURSORS_MAX:
            del self._reads[next(iter(self._reads))]

    def _queues(self, command: LeaseMessages, user: str) -> str:
        """The queues of a pattern that hold messages, or leases of the cursor: name → how many wait."""
        pattern, owner = command.sources[0], LeaseOwner(_checked(command.cursor), "", user)
        if len(command.sources) > 1 or not isinstance(pattern, Pattern):
            raise _no_queue(command.sources)
        mine = (each for each in self._core.state.prepared.of_owner(owner.of_leases) if each.user in (user, ""))
        leased = {name for each in mine for name in each.acks}
        queues = self._core.state.queues
        found: dict[str, int] = {}
        for name in filter(pattern.stands_for, sorted(leased.union(queues))):
            waiting = queues[name].waiting if name in queues else 0
            if (waiting or name in leased) and len(found) < QUEUES_MAX:
                found[wire_name(name)] = waiting
        return json.dumps(
            {
                "lease": 0,
                "messages": 0,
                "waiting": sum(found.values()),
                "queues": found,
                "store": self._core.journal.store_uuid.hex()[:12],
            }
        )

    # -- which messages -----------------------------------------------------------------------------------------------

    def _take(self, queue: Queue, count: int, size: int) -> list[int]:
        """Take the first that wait out of their places, as if they were delivered. Returns their seqs, in order."""
        now_ms = self._core.clock.wall_ms()
        taken: list[int] = []
        for priority in range(len(queue.levels) - 1, -1, -1):
            chosen: list[int] = []
            for seq, message_bytes in _line(queue, priority, now_ms):
                count, size = count - 1, size - message_bytes
                if count < 0 or (size < 0 and (taken or chosen)):
                    count = 0
                    break
                chosen.append(seq)
            _take_out(queue, priority, {seq for seq in chosen if seq in queue.messages} if queue.messages else set())
            queue.set_apart(priority, chosen)
            taken += chosen
            if count <= 0:
                break
        return taken


class LeaseBrowser(Browser):
    """Shows what a lease holds, in its order, from one position up to before another, also what has expired since."""

    shows_expired = True
    __slots__ = ("_epoch", "_lease", "_leased_by", "_leasing", "_position", "_seqs")

    def __init__(
        self,
        command: Subscribe,
        reading: LeaseReading,
        core: Core,
        leasing: Leasing,
        owner: ConsumerOwner,
        prefetch: int,
    ) -> None:
        self._leasing = leasing
        self._leased_by, self._lease = leasing.lease_of(reading, owner.user)
        name = self._leased_by.queue
        if not owner.may(Action.CONSUME, name):  # whatever destination the reader has named
            raise lost(str(self._lease.xid))
        self._epoch = reading.epoch
        leasing.check_epoch(self._leased_by, self._epoch)
        super().__init__(command, core, owner, prefetch, core.state.queue(HELD_SCHEME + name))
        self._position = reading.begin
        self._seqs = self._lease.acks[name][: reading.end]

    @property
    def leased(self) -> str:
        """Full name of the queue whose messages it shows."""
        return self._leased_by.queue

    def _next(self) -> Message | None:
        if self._lease.key not in self._core.state.prepared:
            self.owner.end_with(self, lost(str(self._lease.xid)))
        elif self._batch:
            return self._from_batch()
        elif self._position < len(self._seqs):
            try:
                self._leasing.check_epoch(self._leased_by, self._epoch)
            except CommandError as error:
                self.owner.end_with(self, error)
            else:
                self._read_on()
        else:
            self._finish()
        return None

    def _read_on(self) -> None:
        self._look([*self._rows().places()])

    def _rows(self) -> Rows:
        """Where the next ones stand."""
        rows = Rows()
        is_there = rows.add_disk(self.queue, self._seqs[self._position : self._position + LOOK_ROWS])
        assert is_there, "what a lease holds leaves with its end"
        return rows.head(self._core.pager.look_bytes())

    def _looked(self, messages: list[Message] | None) -> None:
        if messages is not None:
            self._position += len(messages)
        super()._looked(messages)


class LeaseRunBrowser(InRuns, LeaseBrowser):
    """The same in runs."""

    __slots__ = ("_runs",)

    def __init__(
        self,
        command: Subscribe,
        reading: LeaseReading,
        core: Core,
        leasing: Leasing,
        owner: ConsumerOwner,
        prefetch: int,
    ) -> None:
        self._runs = Runs()
        super().__init__(command, reading, core, leasing, owner, prefetch)

    def step(self, now_ms: int) -> None:  # noqa: ARG002
        """Show on as far as there is room. Once a turn."""
        for _ in range(STEP_RUNS):
            if not self.may_show():
                return
            if self._runs and self._lease.key in self._core.state.prepared:
                self._core.memory.give_back(self._runs.show(self))
            else:
                self._next()
        self._core.pager.again(self.queue)

    def _read_on(self) -> None:
        self._looking = True
        rows = self._rows()

        def found(runs: list[RecordRun | Message] | None) -> None:
            """Read; or copied forward meanwhile (None), and to be looked for again."""
            self._looking = False
            if runs is not None and not self.done:
                self._position += len(rows)
                self._runs.fill(runs, rows.seqs)
                self._core.memory.take(self.held_bytes)
            self._core.dirty[self.queue] = None
            self._core.wake()

        self._core.pager.look_at_runs(self.queue, rows, found)


class Made:
    """Tells `waiter` that it is done, with a result that is made then."""

    __slots__ = ("_make", "_waiter")

    def __init__(self, waiter: Waiter, make: Callable[[], str]) -> None:
        self._waiter = waiter
        self._make = make

    def done(self, result: str = "") -> None:  # noqa: ARG002
        self._waiter.done(self._make())

    def failed(self, error: Exception) -> None:
        self._waiter.failed(error)


def lost(xid: str) -> CommandError:
    return CommandError(
        f"{xid[:200]} is over: it was acknowledged, or given back by somebody or by its timeout", code="UNKNOWN_LEASE"
    )


def _no_queue(sources: Sequence[Source]) -> AccessError:
    return AccessError(f"{wire_name(told(sources))} is not a queue: give /queue/NAME", code="DESTINATION_REFUSED")


def _checked(cursor: str) -> str:
    """Raises CommandError where `cursor` cannot be the name of a cursor."""
    if not 0 < len(cursor) <= CURSOR_CHARACTERS_MAX or "," in cursor or not cursor.isprintable():
        raise CommandError(
            f"cursor {cursor[:40]!r}: give up to {CURSOR_CHARACTERS_MAX} printable characters, no comma",
            code="CURSOR_INVALID",
        )
    return cursor


def _taken(owner: LeaseOwner, epoch: int, newest: int) -> CommandError:
    cursor, told = owner.cursor, told_name(owner.queue)
    where = wire_name(told) if told == owner.queue else told
    if epoch > newest:
        why = f"epoch {epoch} of cursor {cursor!r} at {where} is of another store, or of a later copy of this one"
        return CommandError(f"{why}: start again", code="UNKNOWN_LEASE")
    return CommandError(
        f"another program took cursor {cursor!r} of {where} after this one: this one must stop. Give each "
        "program a cursor (subscription) of its own",
        code="CURSOR_TAKEN",
    )


def _check_takes(queue: Queue) -> None:
    """Raises CommandError where messages are not anybody's, or not to be kept."""
    if queue.exclusive is not None:
        raise CommandError(f"{wire_name(queue.name)} has an exclusive consumer: end that", code="QUEUE_IN_USE")
    if queue.retention is not None:
        raise CommandError(f"{wire_name(queue.name)} keeps last values, or a ring: consume it", code="NOT_SUPPORTED")


def _line(queue: Queue, priority: int, now_ms: int) -> Iterator[tuple[int, int]]:
    """(seq, size) of persistent messages that wait, in memory or on disk, by seq."""
    level, backlog = queue.levels[priority], queue.backlogs.get(priority)
    here = (
        (message.seq, message.size)
        for message in level
        if message.segment is not None and not 0 < message.expires_ms <= now_ms
    )
    if backlog is None:
        return here
    on_disk = backlog.unexpired(now_ms)
    return merge(here, on_disk) if level else on_disk


def _take_out(queue: Queue, priority: int, seqs: set[int]) -> None:
    """They leave the level, where they stand near the front."""
    level, stays = queue.levels[priority], []
    while seqs:
        message = level.popleft()
        if message.seq in seqs:
            seqs.remove(message.seq)
        else:
            stays.append(message)
    level.extendleft(reversed(stays))
