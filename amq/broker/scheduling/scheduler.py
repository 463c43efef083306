"""Scheduler: messages that are to be delivered later, or again and again (`AMQ_SCHEDULED_DELAY` and others).

Each waits in the `Schedule` of its destination. When it falls due one group of the journal says that it has left there,
is where it was sent to, and, where it comes again, waits anew. Invariant: so it falls due once, also after a crash; and
its delivery follows a routing and options of that moment. Work in one step is bounded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from heapq import heapify, heappop, heappush

from amq.broker.core import Core
from amq.broker.names import SCHEDULE_SCHEME, check_sent_to, is_temporary, is_topic
from amq.broker.queues.backlog import NEVER
from amq.broker.queues.queue import Queue
from amq.broker.queues.redelivery import Redelivery
from amq.broker.scheduling.schedule import Schedule, schedule_name
from amq.broker.scheduling.timing import TIMES, Timing, fall_due
from amq.broker.topics.durables import Durables
from amq.broker.topics.routing import Routing
from amq.broker.topics.topics import Topics
from amq.broker.transactions.commits import Commits
from amq.broker.transactions.transaction import Transaction, memory_bytes
from amq.core.destination import TOPIC_SCHEME, Pattern, plain_name, source
from amq.core.errors import CommandError
from amq.core.message import Message, without
from amq.core.values import Properties, text
from amq.journal.batch import Waiter
from amq.journal.records import FIRED, PURGED, Consumed, Group

MANAGEMENT = TOPIC_SCHEME + "ActiveMQ.Scheduler.Management"
ACTION = "AMQ_SCHEDULER_ACTION"
JOB_ID = "scheduledJobId"
EXPIRES = "_AMQ_SCHED_EXPIRES"  # when it expires, while `expires_ms` says when it falls due
SCHEDULING = TIMES | {ACTION}  # a message with none of these is none of our business
_OURS = TIMES | {EXPIRES, JOB_ID}
_EXPIRY = re.compile(r"\d{1,20}", re.ASCII)
_SEQ = re.compile(r"(?:.*\D)?(\d{1,19})", re.ASCII)

STEP_MESSAGES = 1000  # of one schedule
STEP_MS = 5  # to the next look at one that had something due
FULL_MS = 1000  # to the next try where the disk is full
GROUP_BYTES = 256 << 10  # of messages in one record
TIMERS_SPARE = 64


class Firing(Transaction):
    """Messages of one schedule that fall due together: they leave it, and are delivered. `again` = of those that come
    again: seq → what is scheduled instead."""

    __slots__ = ("_messages", "_schedule", "_scheduler", "again")

    def __init__(self, scheduler: Scheduler, schedule: Schedule, messages: list[Message]) -> None:
        super().__init__(scheduler.core, scheduler.topics, scheduler.redelivery, "")
        self._scheduler = scheduler
        self._schedule = schedule
        self._messages = messages
        self.again: dict[int, list[Message]] = {}

    def to_group(self, outcome_id: str) -> Group:
        group = super().to_group(outcome_id)
        seqs = [message.seq for message in self._messages if message.segment is not None]
        if seqs:
            group.records.append(Consumed(self._schedule.name, FIRED, seqs))
        return group

    def finish(self, group: Group) -> None:
        for message in self._messages:
            if message.segment is None:
                self.core.consumed(self._schedule, message)
        super().finish(group)

    def has_room(self) -> bool:
        """True also at the limit of the store: see `Scheduler._is_held_up`."""
        journal = self.core.journal
        return not journal.disk_full

    def withdraw(self) -> None:
        super().withdraw()
        self._scheduler.put_back(self._schedule, [each for each in self._messages if each.segment is not None])

    def done(self, result: str = "") -> None:  # noqa: ARG002
        """It is stored."""
        self._scheduler.on_their_way.pop(self, None)

    def failed(self, error: Exception) -> None:  # noqa: ARG002
        """The disk is full: see `withdraw`."""
        self._scheduler.on_their_way.pop(self, None)


class Removal:
    """Messages whose removal is on its way: they do not fall due any more."""

    def __init__(self, scheduler: Scheduler, seqs: list[int]) -> None:
        self._scheduler = scheduler
        self._seqs = seqs

    def done(self, result: str = "") -> None:  # noqa: ARG002
        self._scheduler.leaving.difference_update(self._seqs)

    def failed(self, error: Exception) -> None:  # noqa: ARG002
        self._scheduler.leaving.difference_update(self._seqs)


class Scheduler:
    """Call `step` once a turn where `timers` holds something. `timers` = (when, number, schedule), a heap by wall
    clock: with the present one of each schedule that has any, and some that count no more."""

    def __init__(
        self, core: Core, topics: Topics, redelivery: Redelivery, durables: Durables, routing: Routing, commits: Commits
    ) -> None:
        self.core = core
        self.topics = topics
        self.redelivery = redelivery
        self._durables = durables
        self._routing = routing
        self._commits = commits
        self.timers: list[tuple[int, int, Schedule]] = []
        self._number = 0
        self.leaving: set[int] = set()  # seqs: on disk, and to be removed
        self.on_their_way: dict[Firing, None] = {}  # to the journal

    @property
    def due_s(self) -> float | None:
        """When `step` has something to do, monotonic; None = never."""
        if not self.timers:
            return None
        clock = self.core.clock
        return clock.monotonic() + max(0, self.timers[0][0] - clock.wall_ms()) / 1000

    def found(self, schedule: Schedule) -> None:
        """The replay is complete, and has found `schedule`."""
        schedule.look_on_disk()
        self.arm(schedule)

    def _schedules(self) -> list[Schedule]:
        return [queue for queue in self.core.state.queues.values() if isinstance(queue, Schedule)]

    # -- what comes in ------------------------------------------------------------------------------------------------

    def scheduled(self, message: Message, destinations: tuple[str, ...]) -> list[Message]:
        """The messages that are stored for `message` until its time has come: one for each of its destinations. Empty =
        it is to be sent now. Raises CommandError, AccessError."""
        properties = message.properties
        if properties is None or TIMES.isdisjoint(properties) or not self.core.config.scheduler_support:
            return []
        now_ms = self.core.clock.wall_ms()
        due_ms = Timing.parse(properties).first_ms(now_ms)
        kept = {name: value for name, value in properties.items() if name not in (EXPIRES, JOB_ID)}
        if message.expires_ms:
            kept[EXPIRES] = str(message.expires_ms)
        made = []
        for name in destinations:
            check_sent_to(name)
            persistent = message.persistent and not is_temporary(name)
            made.append(_waiting(message, schedule_name(name), kept, due_ms, persistent, now_ms, message.duplicate_id))
        return made

    def manage(self, message: Message, waiter: Waiter | None) -> bool:
        """Carry out what `message` asks for, if it was sent to the topic where that is done. `waiter` learns when
        it is durable. Raises CommandError."""
        properties = message.properties or {}
        action = properties.get(ACTION)
        if action is None or message.destination != MANAGEMENT:
            return False
        if action == "REMOVEALL":
            for schedule in self._schedules():
                on_disk = [place.seq for backlog in schedule.backlogs.values() for place in backlog]
                self._remove(schedule, [*schedule.messages, *on_disk])
        elif action == "REMOVE":
            job = text(properties.get(JOB_ID, ""))
            found = _SEQ.fullmatch(job)
            if found is None:
                raise CommandError(
                    f"{JOB_ID} {job[:80]!r} is the id of no scheduled message: give its "
                    "message-id, as `amq schedule list` shows it, such as 17592186044417",
                    code="SCHEDULE_INVALID",
                )
            seq = int(found[1])
            for schedule in self._schedules():
                if seq in schedule.messages or schedule.find(seq) is not None:
                    self._remove(schedule, [seq])
        else:
            raise CommandError(
                f"{ACTION} {text(action)[:40]!r} is not known here: it is REMOVE, with {JOB_ID}, or REMOVEALL",
                code="SCHEDULE_INVALID",
            )
        if waiter is not None:
            self.core.journal.confirm(waiter)
        return True

    def _remove(self, schedule: Schedule, seqs: list[int]) -> None:
        """Those of `seqs` that are still scheduled will not fall due."""
        journal = self.core.journal
        on_disk = []
        for seq in seqs:
            held = schedule.delayed.pop(seq, None)
            if held is None or held[1].segment is not None:
                on_disk.append(seq)
                # It is being delivered: that goes on, and is the last time.
                for firing in self.on_their_way:
                    on_disk += [message.seq for message in firing.again.get(seq, ())]
            else:
                self.core.consumed(schedule, held[1])
        if on_disk:
            self.leaving.update(on_disk)
            batch = journal.open
            journal.append_record(Consumed(schedule.name, PURGED, on_disk))
            batch.confirms.append((Removal(self, on_disk), None))

    # -- what goes out ------------------------------------------------------------------------------------------------

    def arm(self, schedule: Schedule, earliest_ms: int = 0) -> None:
        """Look at `schedule` when its first message falls due, and not before `earliest_ms`."""
        due_ms = max(schedule.due_ms, earliest_ms)
        if due_ms >= schedule.armed_ms:
            return
        schedule.armed_ms = due_ms
        self._number += 1
        heappush(self.timers, (due_ms, self._number, schedule))
        if len(self.timers) > TIMERS_SPARE + 2 * len(self.core.state.queues):
            self.timers[:] = [timer for timer in self.timers if timer[0] == timer[2].armed_ms]
            heapify(self.timers)
        self.core.wake()

    def step(self, now_ms: int) -> None:
        """Messages that are due leave their schedules."""
        core = self.core
        while self.timers and self.timers[0][0] <= now_ms:
            when_ms, _, schedule = heappop(self.timers)
            if schedule.armed_ms != when_ms or core.state.queues.get(schedule.name) is not schedule:
                continue
            schedule.armed_ms = NEVER
            if self._is_held_up(schedule):
                self.arm(schedule, now_ms + FULL_MS)
                continue
            self._deliver(schedule, schedule.take_due(now_ms, STEP_MESSAGES))
            core.pager.take_expired(schedule, now_ms, partial(self.fire, schedule))
            schedule.look_on_disk()
            self.arm(schedule, now_ms + STEP_MS)

    def fire(self, queue: Queue, messages: list[Message]) -> None:
        """Messages that fell due, and that have no place in `queue`, their schedule, any more."""
        assert isinstance(queue, Schedule)
        self._deliver(queue, messages)
        self.arm(queue)

    def _deliver(self, schedule: Schedule, messages: list[Message]) -> None:
        core = self.core
        if self.leaving:
            messages = [message for message in messages if message.seq not in self.leaving]
        if core.journal.disk_full:
            self.put_back(schedule, messages)
            return
        now_ms = core.clock.wall_ms()
        piece: list[Message] = []
        size = 0
        for message in sorted(messages, key=lambda each: (each.expires_ms, each.seq)):
            taken = len(message.body) + message.header_bytes
            if piece and size + taken > GROUP_BYTES:
                self._fire(schedule, piece, now_ms)
                piece, size = [], 0
            piece.append(message)
            size += taken
        if piece:
            self._fire(schedule, piece, now_ms)

    def _is_held_up(self, schedule: Schedule) -> bool:
        """Must what falls due there wait for room? At the limit of the store only until all that fell due before was
        consumed: nothing else gives the room of what is scheduled. And so long, or jobs that repeat for nobody would
        lead past it for ever. A message that would be led to another store waits, too."""
        homes = self.core.homes
        if (homes is not None and homes.home_of(schedule.target)) or not self._routing.is_possible(schedule.target):
            return True
        journal = self.core.journal
        if not journal.at_limit or journal.disk_full:
            return journal.disk_full
        return any(queue.taken_bytes for queue in self._targets(schedule))

    def _targets(self, schedule: Schedule) -> Iterator[Queue]:
        core = self.core
        for name in self._routing.of(schedule.target):
            for waiting in self._durables.heard_by(name) if is_topic(name) else (name,):
                if waiting in core.state.queues:
                    yield core.state.queues[waiting]

    def put_back(self, schedule: Schedule, messages: list[Message]) -> None:
        """The disk has no room for them: they are tried again."""
        self.core.wait_again(schedule, messages)
        self.arm(schedule, self.core.clock.wall_ms() + FULL_MS)

    def _fire(self, schedule: Schedule, messages: list[Message], now_ms: int) -> None:
        """Deliver `messages`, and schedule the next times, in one record."""
        core = self.core
        firing = Firing(self, schedule, messages)
        route = self._routing.of(schedule.target)
        for message in messages:
            properties = message.properties or {}
            expires_ms = int(text(properties.get(EXPIRES, "0")))
            job = properties.get(JOB_ID) or str(message.seq)
            due = fall_due(properties, message.expires_ms, now_ms)
            if due.is_delivered:
                kept, envelope = without(message, _OURS)
                if (due.again or JOB_ID in properties) and envelope is not None and envelope.native is not None:
                    # Each delivery of a repeated message is another one, also to a client that looks for duplicates.
                    envelope = envelope._replace(message_id=f"{core.message_id_prefix}{message.seq}")
                delivered = Message(
                    schedule.target,
                    message.body,
                    {**kept, JOB_ID: job},
                    message.content_type,
                    message.priority,
                    message.persistent,
                    now_ms,
                    expires_ms,
                    "",
                    message.content,
                    0,
                    envelope,
                )
                firing.add(self._routing.copies(delivered, route, None))
            for due_ms, rest in due.again if expires_ms == 0 or expires_ms > now_ms else ():
                waits = {**rest, JOB_ID: job}
                timestamp_ms = message.timestamp_ms
                again = _waiting(message, schedule.name, waits, due_ms, message.persistent, timestamp_ms, "")
                firing.sends.append(again)
                firing.again.setdefault(message.seq, []).append(again)
        core.memory.take(memory_bytes(firing.sends + firing.published))
        self.on_their_way[firing] = None
        self._commits.commit(firing, firing, "")


def check_scheduled(message: Message) -> None:
    """Raises CommandError, AccessError where `message`, which names a schedule, cannot be in one."""
    properties = message.properties or {}
    target = plain_name(message.destination).replace(".", "://", 1)
    check_sent_to(target)
    if isinstance(source(target), Pattern):
        raise CommandError(f"{message.destination}: a message is scheduled for one destination")
    Timing.parse(properties)
    if not message.expires_ms or not _EXPIRY.fullmatch(text(properties.get(EXPIRES, "0"))):
        raise CommandError(f"{message.destination}: a message that does not say when it falls due, or when it expires")


def _waiting(
    message: Message, name: str, properties: Properties, due_ms: int, persistent: bool, timestamp_ms: int, id: str
) -> Message:
    """The message that waits in the schedule of that name."""
    assert name.startswith(SCHEDULE_SCHEME)
    return Message(
        name,
        message.body,
        properties,
        message.content_type,
        message.priority,
        persistent,
        timestamp_ms,
        due_ms,
        id,
        message.content,
        0,
        message.envelope,
    )
