"""Broker: serves clients from the queues of one mastership.

Invariant: what is stored changes through `State.apply` alone, and of persistent things only when they are committed:
a command becomes a record, the record becomes durable, then it is applied. Non-persistent messages take the same path
without the journal in between. Runs on the event loop, synchronous and deterministic: the same calls give the same
state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from amq.broker.advisories import Advisories
from amq.broker.checkpointing import Checkpointer
from amq.broker.durables import Durables
from amq.broker.effect import Effect
from amq.broker.gathering import Gatherings
from amq.broker.limits import Dropping, Limits
from amq.broker.links import Links
from amq.broker.memory import MESSAGE_OVERHEAD_BYTES
from amq.broker.names import wire_name
from amq.broker.paging import Pager
from amq.broker.pulling import Pulling
from amq.broker.queue import Queue
from amq.broker.readying import Readiness, Readying
from amq.broker.recalling import Recalls
from amq.broker.redelivery import Redelivery
from amq.broker.retention import Retention
from amq.broker.routing import Routing
from amq.broker.scheduler import Scheduler
from amq.broker.state import State
from amq.broker.subscription import Peer, Waiter
from amq.broker.temporary import Temporaries
from amq.broker.topics import Topics
from amq.broker.transaction import Transaction
from amq.broker.trimming import Trimmer
from amq.broker.two_phase import Preparing, TwoPhase
from amq.clock import Clock
from amq.config.schema import BrokerConfig
from amq.errors import StoreFullError, TransactionRolledBackError
from amq.journal.batch import Confirmable, OpenBatch
from amq.journal.journal import Journal
from amq.journal.multicast import Multicast
from amq.journal.records import (
    DEAD_LETTERED,
    EXPIRED,
    PURGED,
    Consumed,
    Copies,
    Group,
    Marker,
    Prepared,
    Record,
    Trimmed,
    takes_space,
)
from amq.journal.recovery import Segment
from amq.journal.run import Run
from amq.message import LARGE_BODY_BYTES, SUBSCRIPTION_SCHEME, Message

OVERDUE = "expired"  # the reason in dead letters
NO_ROOM_S = 5.0  # what cannot be moved, as the disk is full, waits so long, or until `sweep` finds room for it
SEQ_EPOCH_SHIFT = 44  # a seq is epoch << 44 | counter: unique for ever, growing, also past those of earlier masters


class Broker:
    """Serves clients from `state`, into which all of the journal was read. `wake()` asks for a turn (see `turn`) to be
    run soon; `behind_bytes` = of the journal that no checkpoint covers.
    """

    def __init__(
        self, state: State, journal: Journal, config: BrokerConfig, clock: Clock, epoch: int, wake: Callable[[], None],
        behind_bytes: int = 0,
    ) -> None:  # fmt: skip
        self.state = state
        self.memory = state.memory
        self.journal = journal
        self.config = config
        self.clock = clock
        self.epoch = epoch
        self.wake = wake
        self._seq = epoch << SEQ_EPOCH_SHIFT
        self.dirty: dict[Queue, None] = {}  # queues to dispatch in this turn
        self.on_queue: list[Callable[[Queue], None]] = []  # called when one comes into being
        self.outcomes_pending: dict[str, Group] = {}
        # (outcome, transaction) that were reported as rolled back, which must stay true; oldest first.
        self.outcomes_refused: dict[tuple[str, str], None] = {}
        self._followers: dict[int, list[tuple[Waiter, str]]] = {}  # id of a record on its way → others that wait for it
        self._effect: Effect | None = None  # of a commit that is not done yet
        self.limits, self.links = Limits(self), Links(self)
        self.topics, self.advisories = Topics(self), Advisories(self)
        self.temporaries, self.durables, self.recalls = Temporaries(self), Durables(self), Recalls(self)
        self.routing, self.gatherings, self.pulling = Routing(self), Gatherings(self), Pulling(self)
        self.redelivery, self.retention = Redelivery(self), Retention(self)
        self.scheduler, self.two_phase = Scheduler(self), TwoPhase(self)
        self.readying = Readying(self)
        for queue in state.queues.values():
            self.made(queue)
        self.reconfigure(config)
        if any(segment.key in state.trimmed for segment in journal.segments):
            journal.trim(state.trimmed)  # a crash came between the mark and the deletion
        self.trimmer, self.pager = Trimmer(self, journal), Pager(self, journal)
        self._checkpointer = Checkpointer(self, journal, behind_bytes)
        state.segments = {segment.code: segment for segment in journal.segments}
        state.server = self
        self.scheduler.start()
        self.two_phase.start_serving()
        self.durables.load()

    def reconfigure(self, config: BrokerConfig) -> None:
        """Options changed that may change while clients are served."""
        self.config = config
        self.state.configure(config)
        for queue in self.state.queues.values():
            self.retention.configure(queue)
            self.dirty[queue] = None  # it may be over its limit now
        self.topics.reconfigure()
        self.routing.reconfigure()
        self.journal.set_limit(config.store_limit_bytes)
        self.wake()

    def stop_serving(self) -> None:
        """The mastership ends: nothing more is written."""
        self._effect = None
        self._checkpointer.abandon()

    def fetch(self, queue: Queue, priority: int) -> None:
        """A consumer waits for what is on disk."""
        self.pager.fetch(queue, priority)

    def fetch_ahead(self, queue: Queue) -> None:
        """Consumers are going to wait for what is on disk."""
        self.pager.fetch_ahead(queue)

    def lend(self, queue: Queue, message: Message) -> int:
        """The large body of `message`, just delivered, is its consumer's from now on: where the disk has it nobody else
        keeps it. Returns how many bytes the consumer must `take_back` when it has written or forgotten it.
        """
        size = len(message.body)
        if message.segment is not None:
            self._drop_body(queue, message)
            self.memory.take(size)
        elif queue.messages.get(message.seq) is message:
            return 0  # not persistent and not acknowledged: it is the queue's
        else:
            self.memory.take(size)
        self.memory.lend(size)
        return size

    def _drop_body(self, queue: Queue, message: Message) -> None:
        """The disk alone has the large body of `message` from now on, and the others that share it."""
        size = len(message.body)
        queue.strip(message)
        if message.shared is not None and message.shared.others:
            message.shared.others -= 1
            message.shared = None
            self.memory.take(message.header_bytes)  # the others share what is counted
        else:
            self.memory.give_back(size)

    def take_back(self, size: int) -> None:
        """Lent memory is free again."""
        self.memory.take_back(size)
        self.wake()

    # -- what the state tells: see `Server` ----------------------------------------------------------------------------

    def made(self, queue: Queue) -> None:
        if not (queue.is_hidden or queue.fires or queue.name.startswith(SUBSCRIPTION_SCHEME)):
            for tell in self.on_queue:
                tell(queue)

    def keeps(self, queue: Queue, message: Message) -> bool:
        """A message waits on disk alone where older ones do, and where its queue holds more than is still free: so each
        of many takes its share, and one alone half of all (a dynamic threshold). A large one always, unless a consumer
        takes it now; what is scheduled always.
        """
        self.dirty[queue] = None
        if message.segment is None:
            return True
        queue.met(message.size)
        keeps = (
            not (queue.is_hidden or queue.fires or message.priority in queue.backlogs)
            and (len(message.body) <= LARGE_BODY_BYTES or self._is_awaited(queue))
            and queue.resident_bytes <= self.memory.free_to_page_bytes
        )
        if not keeps:
            self.memory.free(message)
        return keeps

    @staticmethod
    def _is_awaited(queue: Queue) -> bool:
        """Does a consumer take the next message now?"""
        return not any(queue.levels) and any(each.is_ready for each in queue.ready)

    def arrived(self, queue: Queue) -> None:
        self.dirty[queue] = None

    def was_staged(self, run: Run) -> None:
        queue = self.state.queue(run.queue_name)
        queue.met(run.size)
        self.memory.give_back(sum(map(len, run.bodies)) + len(run.bodies) * MESSAGE_OVERHEAD_BYTES)
        self.dirty[queue] = None

    def was_prepared(self, prepared: Prepared) -> None:
        self.two_phase.is_prepared(prepared)

    def was_resolved(self, prepared: Prepared, committed: bool) -> None:
        self.two_phase.ended(prepared, committed)

    def was_marked(self, marker: Marker) -> None:
        self.two_phase.is_marked(marker)

    def was_committed(self, group: Group) -> None:
        self.outcomes_pending.pop(group.outcome_id, None)

    def was_copied(self, copies: Copies) -> None:
        self.trimmer.copied(copies)

    def was_trimmed(self, mark: Trimmed) -> None:
        self.journal.delete_trimmed(mark)
        self.trimmer.trimmed()

    # -- what the journal tells ---------------------------------------------------------------------------------------

    def committed(self, batch: OpenBatch) -> None:
        """The batch is durable and ours."""
        if batch.in_slices:
            self.journal.hold(batch)
            self._effect = Effect(self, batch)
            self.wake()
            return
        segment = batch.segment
        apply = self.state.apply
        offset = batch.offset
        for record, chunk in zip(batch.records, batch.chunks, strict=True):
            if record.__class__ is Message:
                record.offset, record.size = offset, len(chunk)
                apply(record, segment)
            else:
                self.take_effect(record, offset, len(chunk), segment)
            offset += len(chunk)
        self._took_effect(batch)

    def take_effect(self, record: Record, offset: int, size: int, segment: Segment | None) -> None:
        """`record`, `size` bytes at `offset` of `segment`, is committed."""
        if record.__class__ is Message:
            record.offset, record.size = offset, size
        elif record.__class__ is Group:
            record.place(offset)
        elif record.__class__ is Copies:
            record.offset = offset
        self.state.apply(record, segment)

    def _go_on(self, effect: Effect) -> None:
        """A large transaction is committed, and takes effect in slices, one a turn."""
        if not effect.step():
            self._effect = None
            self.journal.release()
            self._took_effect(effect.batch)
        self.wake()

    @property
    def is_taking_effect(self) -> bool:
        """Has a large transaction begun to take effect, and is not done?"""
        return self._effect is not None

    def is_held(self, queue: Queue) -> bool:
        """Is nobody given anything from `queue`, since a transaction takes effect there?"""
        return self._effect is not None and queue.name in self._effect.held

    def _took_effect(self, batch: OpenBatch) -> None:
        """Tell those that waited for it."""
        for peer, receipt, _ in batch.confirms:
            if receipt:
                peer.confirm(receipt)
        if self._followers:
            for record in batch.records:
                for follower, receipt in self._followers.pop(id(record), ()):
                    if receipt:
                        follower.confirm(receipt)
        self.trimmer.step()
        self._checkpointer.step()
        self.wake()

    def rejected(self, refused: list[tuple[Confirmable, str, Record | None]], records: list[Record]) -> None:
        """The disk is full: take back what these records had promised."""
        why = StoreFullError("the store's disk is full: nothing of this was stored, send it again later")
        for record in records:
            if isinstance(record, Message):
                self.withdraw(record)
            elif isinstance(record, Group) and isinstance(record.origin, Transaction | Preparing):
                self.outcomes_pending.pop(record.outcome_id, None)
                record.origin.withdraw()
            elif isinstance(record, Copies):
                self.trimmer.rejected(record)
            elif isinstance(record, Group):  # a dead letter: it stays where it was
                for part in record.records:
                    if isinstance(part, Consumed):
                        queue = self.state.queue(part.destination)
                        self.redelivery.put_back(queue, [queue.messages[seq] for seq in part.seqs])
                    elif isinstance(part, Message):
                        self.withdraw(part)
        for peer, receipt, _ in refused:
            peer.fail(why, receipt)  # type: ignore[attr-defined]
        for record in records:
            for follower, receipt in self._followers.pop(id(record), ()):
                follower.fail(why, receipt)
        self.wake()

    def withdraw(self, message: Message) -> None:
        """A message that was admitted and will not be stored."""
        self.memory.free(message)
        if message.seq and message.persistent:  # it got past `admit_id`
            queue = self.state.queue(message.queue_name)
            queue.met(message.size)
            queue.duplicates_pending.pop(message.duplicate_id, None)

    # -- what sessions ask --------------------------------------------------------------------------------------------

    def next_seq(self, count: int = 1) -> int:
        """The first of `count` seqs, one after the other, that nobody else gets."""
        self._seq += count
        return self._seq - count + 1

    def oldest_on_its_way(self) -> int:
        """Seq of the oldest message that is on its way to the journal, or of which the effect has begun; where there is
        none, one that no message has yet. Recalled messages do not count: their seqs are older than they are."""
        for batch in self.journal.on_their_way():
            for record in batch.records:
                for part in record.records if isinstance(record, Group) else (record,):
                    if isinstance(part, Message | Run):
                        return part.seq
                    if isinstance(part, Multicast) and not any(name in self.recalls for name in part.queues):
                        return part.seqs[0]
        return self.next_seq()

    def store(self, message: Message, peer: Peer, receipt: str) -> None:
        """Admit and store a message outside any transaction; `receipt` is confirmed when it is safe."""
        journal = self.journal
        if message.persistent:
            if message.duplicate_id and self.is_duplicate(message):
                pending = self.state.queue(message.destination).duplicates_pending
                self.follow(pending.get(message.duplicate_id), peer, receipt)
                return
            if journal.full:
                raise StoreFullError("the store's disk is full: the message was not stored, send it again later")
            if message.duplicate_id:
                self.admit_id(message, message)
            self._seq += 1
            message.seq = self._seq
            self.memory.admit(message)
            batch = journal.open
            try:
                journal.append(message)
            except Exception:
                self.withdraw(message)
                raise
            message.size = len(batch.chunks[-1])
            queue = self.state.queues.get(message.destination) or self.state.queue(message.destination)
            queue.expect(message.size)
            batch.confirms.append((peer, receipt, message))
        else:
            self._seq += 1
            message.seq = self._seq
            self.memory.admit(message)
            self.state.store(message, None)
            if receipt:
                peer.confirm(receipt)

    def is_duplicate(self, message: Message) -> bool:
        """Has the destination stored, or is it storing, a message with this producer-given id?"""
        queue = self.state.queue(message.queue_name)
        return message.duplicate_id in queue.duplicates or message.duplicate_id in queue.duplicates_pending

    def admit_id(self, message: Message, record: Record) -> None:
        """From here on the producer-given id of `message` is taken: it is on its way in `record`."""
        if self.config.duplicate_window:
            self.state.queue(message.queue_name).duplicates_pending[message.duplicate_id] = record

    def followers_of(self, record: Record) -> list[tuple[Waiter, str]]:
        """The followers that `follow` noted. They are forgotten."""
        return self._followers.pop(id(record), [])

    def follow(self, record: Record | None, peer: Waiter, receipt: str) -> None:
        """Confirm to `peer` what `record` does for somebody else: when it is committed, never if it is rejected. None =
        it is committed already."""
        if record is None:
            self.journal.confirm(peer, receipt)
        else:
            self._followers.setdefault(id(record), []).append((peer, receipt))

    def consumed(self, queue: Queue, message: Message) -> None:
        """The consumer is done with `message`: it leaves the queue when that is durable."""
        if message.segment is not None:
            self.journal.open.consumed[queue.name].append(message.seq)
        else:
            self.state.remove(queue, message)

    def give_back(self, queue: Queue, messages: list[Message], failed: Iterable[int], refused: bool = False) -> None:
        """Delivered messages return unacknowledged. Those whose seq is in `failed` count as failed deliveries, and wait
        for `redeliveryDelay`; one that failed too often goes to the dead-letter queue, and so do all where the consumer
        `refused` them."""
        self.redelivery.give_back(queue, messages, failed, refused)

    def wait_again(self, queue: Queue, messages: Iterable[Message]) -> None:
        """Messages that nobody has stand in line again, large ones on the disk."""
        here = []
        for message in messages:
            if message.size > LARGE_BODY_BYTES and message.segment is not None:
                self.state.page_out_again(queue, message)
            else:
                here.append(message)
        queue.put_back(here)

    # -- expiry and dead letters --------------------------------------------------------------------------------------

    def expire(self, queue: Queue, messages: list[Message]) -> None:
        """Messages past their time, already out of the queue's order."""
        if queue.fires:
            self.scheduler.fire(queue, messages)
            return
        persistent = []
        kept = []
        moves = queue.moves_expired
        for message in messages:
            if moves and self.can_move(queue, message):
                self.dead_letter(queue, message, OVERDUE)
            elif moves:
                kept.append(message)
            elif message.segment is None:
                self.state.remove(queue, message)
            else:
                persistent.append(message.seq)
        if persistent:
            self.journal.append_record(Consumed(queue.name, EXPIRED, persistent))
        for message in kept:
            if message.size > LARGE_BODY_BYTES and message.segment is not None:
                self._drop_body(queue, message)
        self.redelivery.put_off(queue, kept, NO_ROOM_S)
        self.wake()

    def can_move(self, queue: Queue, message: Message) -> bool:
        """May `message` go to another queue, and has the disk room for that?"""
        return not queue.is_dead_letter_queue and not (self.journal.full and message.persistent)

    def dead_letter(self, queue: Queue, message: Message, reason: str) -> None:
        """Move `message`, which no consumer holds any more and which can be moved, to the dead-letter queue, one that
        expired to the expiry queue, or drop it where policy says so."""
        if message.segment is None and not queue.options.dead_letter_non_persistent:
            self.state.remove(queue, message)
        elif message.is_stripped:
            self.pager.fetch_body(queue, message, partial(self._dead_letter_fetched, queue, message, reason))
        else:
            self._move(queue, message, reason, message.body)

    def _dead_letter_fetched(self, queue: Queue, message: Message, reason: str, body: bytes) -> None:
        if self.can_move(queue, message):
            self._move(queue, message, reason, body)
        else:
            self.redelivery.put_back(queue, [message])

    def _move(self, queue: Queue, message: Message, reason: str, body: bytes) -> None:
        moved = self._moved(queue, message, reason, body)
        if message.segment is not None:
            self.append_group(Group([moved, Consumed(queue.name, DEAD_LETTERED, [message.seq])]))
            return
        self.state.remove(queue, message)
        if moved.persistent:  # from a topic
            self.append_group(Group([moved]))
        else:
            self.state.store(moved, None)

    def drop(self, queue: Queue, messages: list[Message], dropping: Dropping, reason: str) -> bool:
        """Messages that no consumer holds go to the dead-letter queue together, from a dead-letter queue for good.
        False: the disk has no room to move them, and nothing was done. `dropping` is told when the disk has it."""
        persistent = [message for message in messages if message.segment is not None]
        is_last = queue.is_dead_letter_queue
        if persistent and not is_last and self.journal.full:
            return False
        for message in messages:
            if message.segment is None and is_last:
                self.state.remove(queue, message)
            elif message.segment is None:
                self.dead_letter(queue, message, reason)
        if persistent:
            batch = self.journal.open
            seqs = [message.seq for message in persistent]
            if is_last:
                self.journal.append_record(Consumed(queue.name, PURGED, seqs))
                batch.confirms.append((dropping, reason, None))
            else:
                moved = [self._moved(queue, message, reason, message.body) for message in persistent]
                group = Group([*moved, Consumed(queue.name, DEAD_LETTERED, seqs)])
                self.append_group(group)
                batch.confirms.append((dropping, reason, group))
        self.wake()
        return True

    def _moved(self, queue: Queue, message: Message, reason: str, body: bytes) -> Message:
        """The message that stands for `message` on the dead-letter or expiry queue."""
        deliveries, _ = queue.redelivered.get(message.seq, (0, 0))
        properties = dict(message.properties or {})
        properties["original-destination"] = wire_name(message.destination)
        properties["dead-letter-reason"] = reason
        properties["dead-letter-deliveries"] = str(deliveries)
        name = queue.dead_letter_name(message)
        if reason == OVERDUE:
            properties["original-expires"] = str(message.expires_ms)
            name = queue.expiry_name or name
        moved = Message.made_of(message, name, properties, self.next_seq())
        moved.body, moved.expires_ms, moved.duplicate_id = body, 0, ""
        self.memory.admit(moved)
        if self.advisories.heard:
            self.advisories.dead_lettered(message, moved)
        return moved

    def append_group(self, group: Group, ready: Readiness | None = None) -> OpenBatch:
        """To the journal, and count what is on its way, as far as that is not known. Returns the batch with which it
        goes. Raises CommandError where it is too large."""
        batch = self.journal.open
        self.journal.append_record(group)
        pending = ready.pending_bytes if ready is not None else self._measure(group)
        for name, size in pending.items():
            self.state.queue(name).expect(size)
        return batch

    @staticmethod
    def _measure(group: Group) -> dict[str, int]:
        """Note how many bytes each message takes, which is known now. Returns those on their way to each queue."""
        pending: dict[str, int] = {}
        for part, (_, size) in zip(group.records, group.places, strict=True):
            if part.__class__ is Message:
                part.size = size
                name = part.destination
                pending[name] = pending.get(name, 0) + size
                continue
            held = (part,) if isinstance(part, Message | Run) else part.copies if isinstance(part, Multicast) else ()
            for message in held:
                message.size = size
                name = message.queue_name
                pending[name] = pending.get(name, 0) + size
        return pending

    # -- transactions -------------------------------------------------------------------------------------------------

    def commit(self, transaction: Transaction, peer: Waiter, receipt: str, outcome_id: str) -> None:
        """Everything in `transaction` takes effect together. After any exception it is rolled back. Raises
        TransactionRolledBackError, StoreFullError."""
        if (outcome_id, transaction.name) in self.outcomes_refused:
            transaction.roll_back()
            raise TransactionRolledBackError("this commit was asked for after a failover and declared rolled back")
        if outcome_id in self.state.outcomes or outcome_id in self.outcomes_pending:
            raise transaction.roll_back_repeated(outcome_id)
        try:
            group = self._append_commit(transaction, peer, receipt, outcome_id)
        except Exception:
            transaction.roll_back()
            raise
        transaction.finish(group)

    def _append_commit(self, transaction: Transaction, peer: Waiter, receipt: str, outcome_id: str) -> Group:
        """The group of `transaction`, on its way to the journal. After an exception the caller rolls back."""
        self.durables.complete(transaction)
        group = transaction.to_group(outcome_id)
        if not transaction.has_room() and takes_space(group):
            transaction.roll_back()
            raise StoreFullError("the store's disk is full: the transaction was rolled back")
        ready = transaction.readiness
        looks = ready is None or not ready.admit(group)
        for item in transaction.queued:
            if item.__class__ is Run:
                item.seq = self.next_seq(len(item.bodies))
                continue
            if looks and item.duplicate_id and item.persistent:  # type: ignore[union-attr]
                if self.is_duplicate(item):  # type: ignore[arg-type]
                    raise transaction.roll_back_duplicate(group, item)  # type: ignore[arg-type]
                self.admit_id(item, group)  # type: ignore[arg-type]
            if not item.seq:
                self._seq += 1
                item.seq = self._seq
        if group.records or outcome_id:
            if outcome_id:
                group.seq = self.next_seq()
            batch = self.append_group(group, ready)
            batch.confirms.append((peer, receipt, group))
            if outcome_id:
                self.outcomes_pending[outcome_id] = group
        elif receipt:
            peer.confirm(receipt)
        return group

    # -- upkeep -------------------------------------------------------------------------------------------------------

    def dispatch(self) -> None:
        """Deliver what can be delivered. Once a turn."""
        now_ms = self.clock.wall_ms()
        if self._effect is not None:
            self._go_on(self._effect)
        held = self._effect.held if self._effect is not None else frozenset()
        later: dict[Queue, None] = {}
        self.pager.feed()
        if self.topics.arrived:
            self.topics.hand_out(now_ms)
        if self.redelivery.timers:
            self.redelivery.step()
        if self.scheduler.timers:
            self.scheduler.step(now_ms)
        self.gatherings.step()
        while self.dirty or (self.gatherings.waking and self.gatherings.wake_next()):
            dirty, self.dirty = self.dirty, {}
            for queue in dirty:
                if queue.name in held:
                    later[queue] = None
                    continue
                (queue.keeper or queue).dispatch(self, now_ms)
                if queue.stored_bytes > queue.options.queue_limit_bytes > 0:
                    self.limits.over(queue)
        self.dirty = later
        self.topics.end_turn()
        self.pulling.step()
        self.readying.step()
        self.limits.step()

    def sweep(self) -> None:
        """Expire messages that nobody fetches; forget queues that hold nothing. Call every second or so."""
        now_ms = self.clock.wall_ms()
        self.limits.sweep()
        self.two_phase.sweep(now_ms)
        self.redelivery.step()  # a host that was suspended has its alarm too late
        self.scheduler.step(now_ms)
        self.topics.recent.sweep(now_ms)
        self.recalls.sweep()
        for queue in list(self.state.expiring):
            if not queue.expiring or queue.is_hidden or queue.fires:
                del self.state.expiring[queue]
                continue
            expired = queue.take_expired(now_ms)
            if expired:
                self.expire(queue, expired)
            if queue.backlogs:
                self.pager.take_expired(queue, now_ms)
        self.trimmer.step()  # in any case: nothing else may call it in an idle broker
        self.state.forget_idle(self.dirty)
