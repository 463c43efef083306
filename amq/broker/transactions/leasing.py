"""Leasing: messages that are set apart for a reader which reads them as often as it likes, and settles them later.

A lease is a prepared transaction that acknowledges messages which nobody was given: one group of the journal moves them
to the hidden queue of held messages, and names them in the order in which they would have been delivered. So it
survives everything, and ends as any prepared transaction does. Invariants: the leases of one cursor have growing
numbers, the broker's seqs; what a lease holds and in which order never changes; to ask again, beyond the same number,
gives the same lease, also on the next master. A client that takes a cursor gets an epoch, a durable number that grows:
the broker rejects a request with an older epoch, and the reading of a lease with one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from heapq import merge

from amq.broker.core import Core
from amq.broker.names import PREPARED_NAME, check_browsed, check_queue, is_topic
from amq.broker.queues.backlog import Place
from amq.broker.queues.browser import LOOK_ROWS, Browser
from amq.broker.queues.queue import Owner, Queue
from amq.broker.topics.durables import Durables
from amq.broker.transactions.two_phase import PreparedBrowser, TwoPhase
from amq.broker.waiters import Answer, Refusal
from amq.destination import told, wire_name
from amq.errors import AccessError, CommandError
from amq.journal.batch import Waiter
from amq.journal.hidden import HELD_SCHEME, told_name
from amq.journal.records import LEASE, Group, Moved, Prepared
from amq.message import Message
from amq.protocols.commands import Lease, LeaseReading, SettleLeases, Subscribe

CURSOR_CHARACTERS_MAX = 256
MESSAGES_MAX = 10_000  # in one lease: about 10 ms of the event loop
SIZE_MAX = 64 << 20  # bytes in one lease


class Leasing:
    """Carries out Lease and SettleLeases."""

    def __init__(self, core: Core, durables: Durables, two_phase: TwoPhase) -> None:
        self._core = core
        self._durables = durables
        self._two_phase = two_phase
        self._coming: dict[tuple[str, str], tuple[Prepared, Group]] = {}  # (owner, queue) → newest on its way

    def lease(self, command: Lease, waiter: Waiter, client_id: str) -> None:
        """Raises CommandError, AccessError."""
        core, number = self._core, self._core.next_seq()
        name, owner = self._name(command, client_id), _owner(command.cursor)
        if command.after >= number:
            raise CommandError(
                f"no lease of this store has the number {command.after}: it is of another store, or of a copy of this "
                "one that went on",
                code="UNKNOWN_LEASE",
            )
        if not command.take and self._is_taken(command, name, waiter):
            return
        found, group = next((each for each in self._leases(owner, name) if each.seq > command.after), None), None
        if found is None and (owner, name) in self._coming and self._coming[owner, name][0].seq > command.after:
            found, group = self._coming[owner, name]
        queue = core.state.queues.get(name)
        source = queue if found is None and command.messages else None
        if source is not None:
            _check_takes(source)  # before the cursor changes hands
        if command.take:  # this comes behind what is coming
            _, group = self._two_phase.mark(_epochs(command.cursor, name))
        if source is None:
            core.await_duplicate(group, Answer(waiter, self._answer(found, name, queue, command.cursor)))
            return
        seqs = self._take(source, min(command.messages, MESSAGES_MAX), min(command.size or SIZE_MAX, SIZE_MAX))
        if not seqs:
            core.await_duplicate(group, Answer(waiter, self._answer(None, name, queue, command.cursor)))
            return
        lease = Prepared(
            f"{owner}:{number}", number, core.clock.wall_ms(), command.timeout_ms, owner, acks={name: seqs}
        )
        group = Group([Moved(name, HELD_SCHEME + name, seqs), lease])
        self._coming[owner, name] = lease, group
        self._two_phase.append(group, Answer(waiter, self._answer(lease, name, queue, command.cursor)))

    def settle(self, command: SettleLeases, waiter: Waiter, client_id: str) -> None:
        """Raises CommandError, AccessError."""
        name, owner = self._name(command, client_id), _owner(command.cursor)
        if self._is_taken(command, name, waiter):
            return
        ended = [each for each in self._leases(owner, name) if each.seq <= command.through]
        self._two_phase.finish_together(ended, command.commit, waiter)

    def _is_taken(self, command: Lease | SettleLeases, name: str, waiter: Waiter) -> bool:
        """Is the epoch of `command` over? Then the client is told, as soon as the newer one is durable. Raises
        CommandError."""
        owner = _epochs(command.cursor, name)
        newest = self._two_phase.newest(owner)
        if command.epoch in (0, newest):
            return False
        error, group = _taken(command.cursor, name, command.epoch, newest), self._two_phase.marking(owner)
        if group is None:
            raise error
        self._core.await_duplicate(group, Refusal(waiter, error))
        return True

    def check_epoch(self, cursor: str, name: str, epoch: int) -> None:
        """Raises CommandError where a newer epoch of the cursor is durable."""
        found = self._core.state.prepared.markers.get(_epochs(cursor, name))
        if epoch and found is not None and found[0].batch > epoch:
            raise _taken(cursor, name, epoch, found[0].batch)

    def browser(self, command: Subscribe, session: Owner, prefetch: int, client_id: str) -> Browser:
        """A browser of the queue or durable subscription that `command` names, of prepared transactions, or of the
        messages of a lease. Raises CommandError, AccessError."""
        if command.reading is not None:
            return LeaseBrowser(command, command.reading, self._core, self, session, prefetch)
        if command.subscription_name:
            queue = self._durables.queue_of(command.subscription_name, client_id, command.sources)
            return Browser(command, self._core, session, prefetch, queue)
        check_browsed(command.sources)
        if command.sources == (PREPARED_NAME,):
            return PreparedBrowser(command, self._core, self._two_phase, session, prefetch)
        return Browser(command, self._core, session, prefetch)

    def is_leased(self, lease: Prepared) -> None:
        """It is durable."""
        for key, (coming, _) in list(self._coming.items()):
            if coming is lease:
                del self._coming[key]

    def lease_of(self, reading: LeaseReading) -> Prepared:
        """The lease that somebody wants to read. Raises CommandError."""
        xid = f"{_owner(reading.cursor)}:{reading.number}"
        found = self._core.state.prepared.get(xid)  # also while its end is on its way: a crash may undo that
        if found is None:
            raise lost(xid)
        return found[0]

    def _leases(self, owner: str, name: str) -> list[Prepared]:
        """Those of a cursor whose end is not on its way, oldest first."""
        ending = self._two_phase.ending
        found = [
            each for xid, (each, _) in self._core.state.prepared.items()
            if each.owner == owner and name in each.acks and xid not in ending
        ]  # fmt: skip
        return sorted(found, key=lambda each: each.seq)

    def _name(self, command: Lease | SettleLeases, client_id: str) -> str:
        """Full name of the queue from which is leased. Raises CommandError, AccessError."""
        first, *others = command.sources
        if is_topic(first):
            return self._durables.queue_of(command.cursor, client_id, command.sources)
        if others or not isinstance(first, str):
            raise AccessError(
                f"{wire_name(told(command.sources))} is no queue: give /queue/NAME", code="DESTINATION_REFUSED"
            )
        check_queue(first)
        return first

    def _answer(self, lease: Prepared | None, name: str, queue: Queue | None, cursor: str) -> str:
        journal = self._core.journal
        return json.dumps({
            "lease": lease.seq if lease is not None else 0,
            "messages": len(lease.acks[name]) if lease is not None else 0,
            "waiting": queue.waiting if queue is not None else 0,
            "store": journal.store_uuid.hex()[:12],
            "epoch": max(0, self._two_phase.newest(_epochs(cursor, name))),
        })  # fmt: skip

    # -- which messages -----------------------------------------------------------------------------------------------

    def _take(self, queue: Queue, count: int, size: int) -> list[int]:
        """Take the first that wait out of their places, as if they were delivered. Returns their seqs, in order."""
        core, now_ms = self._core, self._core.clock.wall_ms()
        taken: list[int] = []
        for priority in range(len(queue.levels) - 1, -1, -1):
            chosen: list[int] = []
            for seq, message_bytes in _line(queue, priority, now_ms):
                count, size = count - 1, size - message_bytes
                if count < 0 or (size < 0 and (taken or chosen)):
                    count = 0
                    break
                chosen.append(seq)
            _take_out(queue, priority, {seq for seq in chosen if seq in queue.messages})
            taken += chosen
            if count <= 0:
                break
        core.state.take_from_disk(queue, {seq for seq in taken if seq not in queue.messages})
        return taken


class LeaseBrowser(Browser):
    """Shows what a lease holds, in its order, from one position up to before another, also what has expired since."""

    shows_expired = True
    __slots__ = ("_cursor", "_epoch", "_lease", "_leasing", "_position", "_seqs")

    def __init__(
        self, command: Subscribe, reading: LeaseReading, core: Core, leasing: Leasing, owner: Owner, prefetch: int
    ) -> None:
        self._leasing = leasing
        self._lease = self._leasing.lease_of(reading)
        ((name, seqs),) = self._lease.acks.items()
        self._cursor, self._epoch = reading.cursor, reading.epoch
        self._leasing.check_epoch(self._cursor, name, self._epoch)
        super().__init__(command, core, owner, prefetch, HELD_SCHEME + name)
        self._position = reading.begin
        self._seqs = seqs[: reading.end]

    def _next(self) -> Message | None:
        if self._lease.xid not in self._core.state.prepared:
            self.owner.end_with(self, lost(str(self._lease.xid)))
        elif self._batch:
            return self._from_batch()
        elif self._position < len(self._seqs):
            try:
                (name,) = self._lease.acks
                self._leasing.check_epoch(self._cursor, name, self._epoch)
            except CommandError as error:
                self.owner.end_with(self, error)
            else:
                self._look(self._places())
        else:
            self._finish()
        return None

    def _places(self) -> list[Place]:
        """Where the next ones stand."""
        seqs = self._seqs[self._position : self._position + LOOK_ROWS]
        size = self._core.pager.look_bytes()
        places: list[Place] = []
        while len(places) < len(seqs):
            run = self.queue.find_run(seqs, len(places))
            assert run, "what a lease holds leaves with its end"
            for place in run:
                size -= place.size
                if places and size < 0:
                    return places
                places.append(place)
        return places

    def _looked(self, messages: list[Message] | None) -> None:
        if messages is not None:
            self._position += len(messages)
        super()._looked(messages)


def lost(xid: str) -> CommandError:
    return CommandError(
        f"{xid[:200]} is over: it was acknowledged, or given back by somebody or by its timeout", code="UNKNOWN_LEASE"
    )


def _owner(cursor: str) -> str:
    if not 0 < len(cursor) <= CURSOR_CHARACTERS_MAX or "," in cursor or not cursor.isprintable():
        raise CommandError(
            f"cursor {cursor[:40]!r}: give up to {CURSOR_CHARACTERS_MAX} printable characters, no comma",
            code="CURSOR_INVALID",
        )
    return LEASE + cursor


def _epochs(cursor: str, name: str) -> str:
    """Owner of the markers that are the epochs of a cursor at the queue `name`. Cursors have no comma, and nobody else
    may have an owner with that beginning: so it is the owner of nothing else."""
    return f"{LEASE},{cursor},{name}"


def _taken(cursor: str, name: str, epoch: int, newest: int) -> CommandError:
    told = told_name(name)
    where = wire_name(told) if told == name else told
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
    here = (
        (message.seq, message.size)
        for message in queue.levels[priority]
        if message.segment is not None and not 0 < message.expires_ms <= now_ms
    )
    backlog = queue.backlogs.get(priority)
    return merge(here, backlog.unexpired(now_ms) if backlog is not None else ())


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
