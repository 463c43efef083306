"""Broker: serves clients from the queues of one mastership.

Invariant: what is stored changes through `State.apply` alone, and of persistent things only when they are committed:
a command becomes a record, the record becomes durable, then it is applied. Non-persistent messages take the same path
without the journal in between. Runs on the event loop, synchronous and deterministic: the same calls give the same
state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from functools import partial
from operator import attrgetter
from typing import Any, ClassVar, Final, Protocol

from amq.broker.access import Access, anybody_may
from amq.broker.core import SEQ_EPOCH_SHIFT, Core
from amq.broker.events import Events, QueueForgotten, QueueMade
from amq.broker.homes import Homes
from amq.broker.memory import MESSAGE_OVERHEAD_BYTES, cost_of_run
from amq.broker.names import check_queue, is_topic
from amq.broker.permitted import PermittedRules
from amq.broker.queues.limits import Limits
from amq.broker.queues.queue import Queue
from amq.broker.queues.redelivery import Redelivery
from amq.broker.queues.retention import Retention
from amq.broker.quotas import Busy, Quotas
from amq.broker.scheduling.schedule import Schedule
from amq.broker.scheduling.scheduler import Scheduler
from amq.broker.selecting import TURN_STEPS
from amq.broker.sessions.links import Links
from amq.broker.sessions.pulling import Pulling
from amq.broker.sessions.temporary import Temporaries
from amq.broker.state.changes import Ended
from amq.broker.state.state import State
from amq.broker.storage.checkpointing import Checkpointer
from amq.broker.storage.trimming import Trimmer
from amq.broker.topics.advisories import AdvisedClient, Advisories
from amq.broker.topics.durables import Durables
from amq.broker.topics.retroactive import RetroactiveReplays
from amq.broker.topics.routing import Routing
from amq.broker.topics.topics import Topics
from amq.broker.topics.wildcards import WildcardSubscriptions
from amq.broker.transactions.commits import Commits
from amq.broker.transactions.direct import DirectReads
from amq.broker.transactions.effect import Effect
from amq.broker.transactions.leasing import Leasing
from amq.broker.transactions.readying import Readying
from amq.broker.transactions.spanning import Spanning
from amq.broker.transactions.transaction import Transaction
from amq.broker.transactions.two_phase import PendingPrepare, TwoPhase
from amq.broker.transfer.arrivals import Arrivals
from amq.broker.transfer.merging import MERGE, MergeOrder, Merging
from amq.broker.transfer.moving import Mover
from amq.broker.transfer.outbox import Outbox
from amq.broker.transfer.outbox_queue import OutboxQueue
from amq.broker.waiters import Reply
from amq.config.schema import BrokerConfig
from amq.core.destination import wire_name
from amq.core.errors import AmqError, CommandError, StoreFullError
from amq.core.message import DEFAULT_PRIORITY, SUBSCRIPTION_SCHEME, Message, heads
from amq.doors.clock import Clock
from amq.journal.batch import Confirm, OpenBatch, Waiter
from amq.journal.hidden import is_prepared
from amq.journal.journal import Journal
from amq.journal.records import EXPIRED, PURGED, Consumed, Copies, Group, Marker, ObeyedTable, Prepared, Record, Trimmed
from amq.journal.records.message import Run
from amq.security.permissions import Permissions

PAUSED_MAX = 10_000
# What holds something only while there is rare work for a turn, which asks once for all of it. They are never replaced.
RARE: Final = (
    *("topics.arrived", "topics.handed_out", "redelivery.timers", "scheduler.timers", "wildcards.joining"),
    *("pulling.withdrawn", "pulling.timers", "readying.under_way", "limits.waiting", "limits.overfull", "outbox.busy"),
    "viewing.looked",
)
_NOTHING: Final[frozenset[str]] = frozenset()


class Served(AdvisedClient, Busy, Protocol):
    """A client that is there."""

    def steal(self, error: AmqError) -> None: ...


class Broker(Core):
    """Serves clients from `state`, from `begin` on. `wake()` asks for a turn (see `turn`) to be run soon.

    A slave makes one ahead of time, with all helpers, while another thread reads the journal into `state`.
    """

    def __init__(
        self,
        state: State,
        journal: Journal,
        config: BrokerConfig,
        clock: Clock,
        wake: Callable[[], None],
        events: Events | None = None,
    ) -> None:
        super().__init__(state, journal, config, clock, wake, events)
        self.access = Access()
        self.connections: dict[Served, None] = {}  # clients that are connected, whatever names they choose
        self.paused: set[str] = set()  # full names of queues that give nothing to consumers, until this mastership ends
        self.links, self.pulling = Links(self), Pulling(self)
        self.topics = topics = Topics(self)
        self.durables = durables = Durables(self, topics.known)
        self.advisories, self.temporaries = Advisories(self, topics, durables), Temporaries(self, topics, self.links)
        self.advisories.temporaries, self.advisories.clients = self.temporaries.names, self.connections.keys
        self.known_topics = topics.known
        self.redelivery = redelivery = Redelivery(self)
        self.retention, self.wildcards = Retention(self), WildcardSubscriptions(self, topics)
        self.quotas = Quotas(self, durables, self.access, self.connections.keys)
        self.access.quota = self.quotas.made_by
        self.limits = Limits(self, redelivery, durables)
        self.commits = commits = Commits(self, topics, durables, redelivery)
        self.replays, self.readying = RetroactiveReplays(self, topics, durables, commits), Readying(self, durables)
        self.routing = Routing(self, topics, durables, self.limits, commits, self.quotas.made)
        self.arrivals = Arrivals(self, self.routing, self.limits, commits)
        self.outbox = Outbox(self, self.routing, commits, redelivery)
        self.moving = Mover(self, self.durables)
        self.arrivals.queue_of, self.arrivals.taken = self.moving.queue_of, self.moving.taken
        self.arrivals.came = self.moving.came
        self.wildcards.listener = self.routing.virtual
        self.scheduler = Scheduler(self, topics, redelivery, durables, self.routing, commits)
        self.two_phase = TwoPhase(self, commits, durables)
        self.spanning = self.two_phase.parts = Spanning(self, commits, self.two_phase)
        self.leasing = Leasing(self, durables, self.two_phase, DirectReads(self, self.access))
        self._checkpointer = Checkpointer(self)
        self.trimmer = Trimmer(self, self.two_phase.ending.keys())
        self._later: dict[Queue, None] = {}  # dirty, and held by what takes effect
        self._rare = (*attrgetter(*RARE)(self), heads.natives, self._later)

    def begin(self, epoch: int, behind_bytes: int = 0) -> None:
        """Serve: all of the journal was read into the state, and `journal` has begun that of `epoch`. `behind_bytes` =
        of the journal that no checkpoint covers."""
        state, journal = self.state, self.journal
        self.epoch, self._seq, self.behind_bytes = epoch, epoch << SEQ_EPOCH_SHIFT, behind_bytes
        self.message_id_prefix = f"ID:{journal.store_uuid.hex()[:12]}-"
        if state.config is not self.config:
            state.configure(self.config)
        for queue in list(state.queues.values()):
            self._equip(queue)
            self.dirty[queue] = None  # it may be over its limit
            if isinstance(queue, Schedule):
                self.scheduler.found(queue)
        if state.trimmed.epoch and any(segment.key in state.trimmed for segment in journal.segments):
            journal.trim(state.trimmed)  # a crash came between the mark and the deletion
        state.segments = {segment.code: segment for segment in journal.segments}
        state.serve(self._equip)
        if state.prepared:
            self.two_phase.start_serving()
            self.spanning.start_serving()
        if state.subscriptions:
            self.durables.load()
        if state.obeyed.record is not None or self.config.placed is not None:
            self._begin_homes(state.obeyed.record)
        self.wake()

    def _begin_homes(self, obeyed: ObeyedTable | None) -> None:
        if obeyed is not None and obeyed.cluster == MERGE:
            self.homes = Merging(self, self.connections, self.moving.channel, self._live_elsewhere)
        else:
            self.homes = Homes(self.state, self.journal, self._live_elsewhere)
        self.homes.begin(self.config.placed)
        self.moving.channel.begin()
        self.arrivals.copies.begin()

    def reconfigure(self, config: BrokerConfig) -> None:
        """Options changed that may change while clients are served."""
        self.config = config
        self.state.configure(config)
        for queue in self.state.queues.values():
            self.retention.configure(queue)
            self.dirty[queue] = None  # it may be over its limit now
        self.topics.reconfigure()
        self.routing.reconfigure()
        self._checkpointer.reconfigure()
        self.journal.set_limit(config.store_limit_bytes)
        if config.placed is not None:
            self.homes = self.homes or Homes(self.state, self.journal, self._live_elsewhere)
            self.homes.offer(config.placed)
        self.wake()

    def permit(self, permissions: Permissions | None) -> None:
        """From now on these permissions decide, also for those who are there; None = everybody may do everything."""
        self.access.use(PermittedRules(permissions, self) if permissions is not None else anybody_may)
        self._ask_again()

    def merge(self, order: MergeOrder, waiter: Waiter) -> None:
        """All that is here goes to another store from now on, and all clients are closed; `waiter` learns when that is
        durable. Raises CommandError where it cannot be now, StoreFullError."""
        if isinstance(self.homes, Merging):
            raise self.homes.refusal()
        if self.homes is not None:
            why = "this store belongs to a cluster: use `amq cluster move` and `amq cluster remove-store`"
            raise CommandError(why, code="STORE_IN_CLUSTER")
        if self.journal.full:
            raise StoreFullError("the store's disk is full: the order could not be stored")
        batches = (batch.records for batch in self.journal.on_their_way())
        records = (record.records if isinstance(record, Group) else (record,) for each in batches for record in each)
        if self.state.prepared or any(isinstance(part, Prepared) for each in records for part in each):
            raise CommandError(
                "transactions are prepared, or messages are leased to a pipeline: end them first (`amq transactions "
                "list` names them), or stop the pipeline",
                code="TRANSACTIONS_PREPARED",
            )
        merging = Merging(self, self.connections, self.moving.channel, self._live_elsewhere)
        merging.order = order
        for client in list(self.connections):
            client.steal(merging.refusal())
        self.homes = merging
        merging.start(order)
        self.journal.confirm(waiter)

    def _live_elsewhere(self) -> None:
        """Destinations have other homes than before."""
        assert self.homes is not None
        self.homes_version += 1
        self.access.ask_homes(self.homes.check)
        self._ask_again()

    def _ask_again(self) -> None:
        """Clients that are connected may not do now what they did."""
        self.topics.forget_routes()
        self.routing.forget_routes()
        for client in list(self.connections):
            client.check_again()
        self.wake()

    def stop_serving(self) -> None:
        """The mastership ends: nothing more is written."""
        self._effect = None
        self._checkpointer.abandon()
        self.outbox.stop()
        self.moving.channel.stop()
        self.moving.copying.stop()
        self.spanning.stop()
        self.advisories.stop()

    # -- what the state has become ------------------------------------------------------------------------------------

    def _equip(self, queue: Queue) -> None:
        """`queue` has come into being, or was found."""
        if queue.__class__ is OutboxQueue:
            self.outbox.appeared(queue)
        elif not (queue.is_hidden or queue.fires or queue.name.startswith(SUBSCRIPTION_SCHEME)):
            if queue.name.startswith(self.routing.virtual.consumers_begin):
                self.routing.virtual.appeared(queue)
            if queue.options.last_value_key or queue.options.ring_size:
                self.retention.configure(queue)
            if self.state.serves:  # before, there is no consumer
                self.wildcards.appeared(queue)
            if QueueMade in self.events.heard:
                self.events.tell(QueueMade(queue.name))

    def _forget_idle(self) -> None:
        for queue in self.state.forget_idle(self.dirty):
            self.quotas.forgotten(queue.name)
            if QueueForgotten in self.events.heard and not queue.is_hidden:
                self.events.tell(QueueForgotten(queue.name, queue.enqueued, queue.acknowledged))

    def _act(self) -> None:
        """Act on what records have changed: they are durable, and have taken effect."""
        changes, self.state.changes = self.state.changes, []
        for change in changes:
            self.ACTIONS[change.__class__](self, change)

    def _prepared(self, prepared: Prepared) -> None:
        self.two_phase.is_prepared(prepared)
        self.leasing.is_leased(prepared)
        self.spanning.is_there(prepared)

    def _ended(self, ended: Ended) -> None:
        self.two_phase.ended(ended.prepared, ended.committed)
        self.spanning.has_ended(ended.prepared, ended.committed)
        self.pins.release(str(ended.prepared.xid))

    def _marked(self, marker: Marker) -> None:
        self.two_phase.is_marked(marker)

    def _committed_by_name(self, group: Group) -> None:
        self.outcomes_pending.pop(group.outcome_id, None)

    def _copied(self, copies: Copies) -> None:
        self.trimmer.copied(copies)

    def _placed(self, placed: ObeyedTable) -> None:
        if self.homes is not None:
            self.homes.recorded(placed)
            self.arrivals.copies.tidy()
            self.moving.step()

    def _trimmed(self, mark: Trimmed) -> None:
        self.journal.delete_trimmed(mark)
        self.trimmer.trimmed()

    ACTIONS: ClassVar[dict[type, Callable[[Broker, Any], None]]] = {
        Prepared: _prepared,
        Ended: _ended,
        Marker: _marked,
        Group: _committed_by_name,
        Copies: _copied,
        Trimmed: _trimmed,
        ObeyedTable: _placed,
    }

    # -- what the journal tells ---------------------------------------------------------------------------------------

    def committed(self, batch: OpenBatch) -> None:
        """The batch is durable and ours."""
        if batch.in_slices:
            self.journal.hold(batch)
            self._effect = Effect(self.state, batch)
            self.wake()
            return
        state, segment, offset = self.state, batch.segment, batch.offset
        alike: list[Message] = []  # plain ones for one queue that follow each other, whoever sent them
        store_all = state.store_alike if batch.in_runs else state.store_all  # those between runs belong to these
        for record, chunk in zip(batch.records, batch.chunks, strict=True):
            size = len(chunk)
            if record.__class__ is Message:
                record.offset, record.size = offset, size
                is_plain = record.priority == DEFAULT_PRIORITY and not (record.duplicate_id or record.expires_ms)
                if alike and not (is_plain and record.destination == alike[0].destination):
                    store_all(alike, segment)
                    alike = []
                if is_plain:
                    alike.append(record)
                else:
                    state.store(record, segment)
            else:
                if alike:
                    store_all(alike, segment)
                    alike = []
                state.take_effect(record, offset, size, segment)
            offset += size
        if len(alike) == 1 and not batch.in_runs:  # as a lone client's: two calls less
            state.store(alike[0], segment)
        elif alike:
            store_all(alike, segment)
        self._took_effect(batch)

    def _go_on(self, effect: Effect) -> None:
        """A large transaction is committed, and takes effect in slices, one a turn."""
        goes_on = effect.step()
        if self.state.changes:
            self._act()
        if not goes_on:
            self._effect = None
            self.journal.release()
            self._took_effect(effect.batch)
        self.wake()

    def _took_effect(self, batch: OpenBatch) -> None:
        """Tell those that waited for it."""
        if self.state.changes:
            self._act()
        self.wake()
        for waiter, _ in batch.confirms:
            if waiter.__class__ is Reply:  # as it does that itself: a call less for each message
                waiter.peer.confirm(waiter.receipt)
            else:
                waiter.done()
        if self.awaiting.by_identity:
            for record in batch.records:
                for waiter in self.awaiting.take(record):
                    waiter.done()
        if len(self.journal.segments) > 1:
            self.trimmer.step()
        if self.journal.bytes_written >= self._checkpointer.due_bytes:
            self._checkpointer.step()

    def rejected(self, refused: list[Confirm], records: list[Record]) -> None:
        """The disk is full: take back what these records had promised."""
        why = StoreFullError("the store's disk is full: nothing of this was stored, send it again later")
        for record in records:
            if isinstance(record, Message):
                self.withdraw(record)
            elif isinstance(record, Run):
                self.memory.give_back(cost_of_run(record.bodies, record.header_bytes))
                self.state.queue(record.queue_name).met(sum(record.sizes))
            elif isinstance(record, Group) and isinstance(record.origin, Transaction | PendingPrepare):
                self.outcomes_pending.pop(record.outcome_id, None)
                record.origin.withdraw()
                self.spanning.withdrawn(record)
            elif isinstance(record, Copies):
                self.trimmer.rejected(record)
            elif isinstance(record, Group):  # a dead letter: it stays where it was
                for part in record.records:
                    if isinstance(part, Consumed):
                        queue = self.state.queue(part.destination)
                        self.redelivery.put_back(queue, [queue.messages[seq] for seq in part.seqs])
                    elif isinstance(part, Message):
                        self.withdraw(part)
        for waiter, _ in refused:
            waiter.failed(why)
        for record in records:
            for waiter in self.awaiting.take(record):
                waiter.failed(why)
        self.wake()

    # -- what sessions ask --------------------------------------------------------------------------------------------

    def store(self, message: Message, waiter: Waiter) -> None:
        """Admit and store a message outside any transaction; `waiter` learns when it is safe."""
        journal = self.journal
        if message.persistent:
            if message.duplicate_id and self.is_duplicate(message):
                pending = self.state.queue(message.destination).duplicates_pending
                self.when_durable(waiter, pending.get(message.duplicate_id))
                return
            if journal.full:
                raise StoreFullError("the store's disk is full: the message was not stored, send it again later")
            if message.duplicate_id:
                self.admit_id(message, message)
            self._seq += 1
            message.seq = self._seq
            # `Memory.admit`, and below `Queue.expect`, without a call: this is the hot path.
            self.memory.taken_bytes += len(message.body) + message.header_bytes + MESSAGE_OVERHEAD_BYTES
            batch = journal.open
            try:
                journal.append(message)
            except Exception:
                self.withdraw(message)
                raise
            size = message.size = len(batch.chunks[-1])
            queue = self.state.queues.get(message.destination) or self.state.queue(message.destination)
            queue.pending_bytes += size
            batch.confirms.append((waiter, message))
        else:
            self._seq += 1
            message.seq = self._seq
            self.memory.admit(message)
            self.state.store(message, None)
            waiter.done()

    def store_run(self, run: Run, waiter: Waiter) -> bool:
        """`store` for all messages of `run`, in its order, for the queue of that name, which is there. `waiter` hears
        once. False: something has to be decided about one of them (a limit is near), and nothing is done."""
        memory, journal, like = self.memory, self.journal, run.like
        queue = self.state.queues[run.queue_name]
        if like.persistent:
            size = run.record_bytes()
            cost = run.body_bytes + len(run.bodies) * MESSAGE_OVERHEAD_BYTES + run.header_bytes
        else:
            size = cost = cost_of_run(run.bodies, run.header_bytes)
        if (
            memory.taken_bytes + cost > memory.limit_bytes
            or queue.stored_bytes + queue.pending_bytes + size > queue.limit_bytes
            or journal.at_limit
            or journal.full
        ):
            return False
        run.seq = self._seq + 1
        if not like.persistent:
            self._seq += len(run.bodies)
            memory.take(cost)
            self.state.store_all(run.messages(), None)
            waiter.done()
            return True
        batch = journal.open
        if not journal.append_run(run):
            return False
        self._seq += len(run.bodies)
        memory.take(cost)
        queue.expect(size)
        batch.confirms.append((waiter, run))
        return True

    def expire(self, queue: Queue, messages: list[Message]) -> None:
        if queue.fires:
            self.scheduler.fire(queue, messages)
        elif queue.__class__ is OutboxQueue:
            self.outbox.expired(queue, messages)
        elif queue.is_hidden:  # a retained message goes nowhere else, and nobody consumed it
            self.journal.append_record(Consumed(queue.name, EXPIRED, [message.seq for message in messages]))
        else:
            self.redelivery.expire(queue, messages)

    def arm(self, queue: Queue) -> None:
        assert isinstance(queue, Schedule)
        self.scheduler.arm(queue)

    def delete(self, name: str, waiter: Waiter) -> None:
        """That queue or topic is not wanted any more: the messages that wait there are thrown away. Raises CommandError
        where somebody consumes it, AccessError where it is neither."""
        if is_topic(name):
            if self.known_topics.is_subscribed(name):
                raise _in_use(name)
            self.known_topics.forget(name)
            waiter.done()
            return
        check_queue(name)
        queue = self.state.queues.get(name)
        if queue is None:
            waiter.done()
            return
        if any(not each.is_guest for each in queue.subscriptions):
            raise _in_use(name)
        seqs = self.empty(queue)
        if seqs:
            self.journal.append_record(Consumed(name, PURGED, seqs))
        self.journal.confirm(waiter)
        self.wake()

    def pause(self, name: str, pauses: bool) -> None:
        """The queue of that full name gives its consumers nothing more, or does so again. Sends and browses go on; so
        does what is settled. Raises CommandError where too many queues are paused."""
        if not pauses:
            self.paused.discard(name)
        elif len(self.paused) >= PAUSED_MAX and name not in self.paused:
            raise CommandError(f"{PAUSED_MAX} queues are paused already: resume some of them", code="LIMIT_REACHED")
        else:
            self.paused.add(name)
        if name in self.state.queues:
            self.dirty[self.state.queues[name]] = None
        self.wake()

    # -- upkeep -------------------------------------------------------------------------------------------------------

    def dispatch(self) -> None:
        """Deliver what can be delivered. Once a turn."""
        now_ms = self.clock.wall_ms()
        self.selecting.left = TURN_STEPS
        wildcards, taken_bytes = self.wildcards, self.memory.taken_bytes
        is_rare = any(self._rare) or self.pager.waits or self.two_phase.has_work or wildcards.woken
        if is_rare or self._effect is not None:
            taken_bytes = self._begin_turn(now_ms)
        held = _NOTHING if self._effect is None and self.homes is None else self._not_given()
        while self.dirty or (wildcards.waking and wildcards.wake_next()):
            dirty = list(self.dirty)
            self.dirty.clear()
            for queue in dirty:
                if held and queue.name in held:
                    self._later[queue] = None
                    continue
                if self.paused and queue.name in self.paused:
                    for browser in queue.browsers:
                        browser.step(now_ms)
                else:
                    (queue.retention or queue).dispatch(self, now_ms)
                if queue.stored_bytes > queue.drops_above:
                    self.limits.over(queue)
        if any(self._rare) or heads.last is not None:
            self._end_turn()
        if self.pager.waits and self.memory.taken_bytes < taken_bytes:
            self.wake()  # a reader that lacked memory was asked before some came free

    def _begin_turn(self, now_ms: int) -> int:
        """Some of the rare work is there, before queues are dispatched. Returns the bytes of memory that were taken
        when readers of the disk had been asked."""
        if self.viewing.looked:
            self.viewing.turn()
        if self._effect is not None:
            self._go_on(self._effect)
        if self.pager.waits:
            self.pager.feed()
        taken_bytes = self.memory.taken_bytes
        if self.topics.arrived:
            self.topics.hand_out(now_ms)
        if self.redelivery.timers:
            self.redelivery.step()
        if self.scheduler.timers:
            self.scheduler.step(now_ms)
        if self.two_phase.has_work:
            self.two_phase.step()
        if self.wildcards.woken or self.wildcards.joining:
            self.wildcards.step()
        return taken_bytes

    def _end_turn(self) -> None:
        """Some of the rare work is there, after queues were dispatched."""
        self.dirty.update(self._later)
        self._later.clear()
        if self.outbox.busy:
            self.outbox.step()
        if self.topics.handed_out:
            self.topics.end_turn()
        if heads.natives or heads.last is not None:
            heads.clear()
        if self.pulling.withdrawn or self.pulling.timers:
            self.pulling.step()
        if self.readying.under_way:
            self.readying.step()
        if self.limits.waiting or self.limits.overfull:
            self.limits.step()

    def _not_given(self) -> AbstractSet[str]:
        """Full names of queues of which nothing is given to anybody now: a transaction takes effect there, or they are
        on their way from or to another store."""
        frozen = self.homes.frozen if self.homes is not None else _NOTHING
        return frozen if self._effect is None else frozen | self._effect.held

    def dispatch_some(self, queues: Iterable[Queue]) -> None:
        """Deliver what can be delivered of `queues` before the end of the turn."""
        now_ms = self.clock.wall_ms()
        held = _NOTHING if self._effect is None and self.homes is None else self._not_given()
        for queue in queues:
            if queue.name not in held and queue.name not in self.paused:
                (queue.retention or queue).dispatch(self, now_ms)

    def sweep(self) -> None:
        """Expire messages that nobody fetches; forget queues that hold nothing. Call every second or so."""
        now_ms = self.clock.wall_ms()
        self.limits.sweep()
        self.two_phase.sweep(now_ms)
        self.spanning.sweep()
        self.redelivery.step()  # a host that was suspended has its alarm too late
        self.scheduler.step(now_ms)
        self.topics.recovery_buffer.sweep(now_ms)
        self.replays.sweep()
        self.known_topics.sweep()
        self.temporaries.sweep()
        if self.homes is not None:
            self.homes.sweep()
            self.moving.step()
        frozen = self.homes.frozen if self.homes is not None else _NOTHING
        for queue in list(self.state.expiring):
            if queue.name in frozen:
                continue
            if not queue.expiring or is_prepared(queue.name) or queue.fires or queue.__class__ is OutboxQueue:
                del self.state.expiring[queue]
                continue
            expired = queue.take_expired(now_ms)
            if expired:
                self.expire(queue, expired)
            if queue.backlogs:
                self.pager.take_expired(queue, now_ms, partial(self.expire, queue))
        self.outbox.sweep()
        self.trimmer.step()  # in any case: nothing else may call it in an idle broker
        self._forget_idle()


def _in_use(name: str) -> CommandError:
    return CommandError(f"{wire_name(name)} has consumers: close them first", code="DESTINATION_IN_USE")
