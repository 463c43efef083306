"""State: the queues of a store, and the one way in which they change.

`apply(record, segment)` is that way. It serves the replay at takeover, the slave that follows the journal and live
traffic alike: a command becomes a record, the record becomes durable, then it is applied. So what the master became by
working, a replay becomes by reading. The state knows nothing of clients, and asks nobody: it notes in `arrived` and
`changes` what a broker that serves from it has to act on. Before one does, messages wait on disk alone: a replay keeps
no bodies.

Invariant: a message that moves is in one queue, and not in both or in neither, after a replay from any position: a
checkpoint that is dumped meanwhile notes the move, and the segment that holds the record of it outlives those of the
messages.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Container
from collections.abc import Set as AbstractSet
from dataclasses import replace
from itertools import accumulate, chain, compress, islice, repeat
from typing import Any, Final

from amq.broker.memory import MESSAGE_OVERHEAD_BYTES, Memory, cost_of_all, cost_of_run
from amq.broker.names import SCHEDULE_SCHEME, real_name, shelves
from amq.broker.queues.backlog import Columns, Place
from amq.broker.queues.bundles import Bundle
from amq.broker.queues.queue import RUN_BODY_BYTES_MAX, Queue
from amq.broker.scheduling.schedule import Schedule
from amq.broker.state.changes import Change, Ended
from amq.broker.state.obeyed import Obeyed
from amq.broker.state.parcels import MOVES, Parcels
from amq.broker.state.prepared import PreparedTransactions
from amq.broker.state.subscription_table import SubscribedTable
from amq.broker.state.window import IdWindows
from amq.broker.transfer.outbox_queue import OutboxQueue
from amq.config.policies import Policies
from amq.config.store_options import StoreOptions
from amq.core.destination import plain_name
from amq.core.message import LARGE_BODY_BYTES, SUBSCRIPTION_SCHEME, Copy, Message, Stub
from amq.journal.follower import DivergedError
from amq.journal.hidden import HELD_SCHEME, OUTBOX_SCHEME, SENT_SCHEME, is_hidden, outbox_target
from amq.journal.live import Segment
from amq.journal.records import (
    ACKED,
    Consumed,
    Copies,
    Group,
    Marker,
    Moved,
    ObeyedTable,
    Parcel,
    Prepared,
    Record,
    Resolved,
    Run,
    ServingFold,
    Subscribed,
    Trimmed,
)
from amq.journal.recovery import Recovered

# Of an outbox: nothing leaves it but for where it goes.
_OUTBOX: Final[dict[str, Any]] = {
    "divert": "",
    "last_value_key": "",
    "ring_size": 0,
    "queue_limit_policy": "block",
    "expiry_queue": "",
}


class State(ServingFold[Segment]):
    """The content of the journal, and where in it each part stands."""

    def __init__(self, config: StoreOptions) -> None:
        self.config = config
        self._policies = Policies(config)
        self.serves = False  # does a broker serve from it?
        self.arrived: dict[Queue, None] = {}  # queues to which messages came since the broker dispatched
        self.changes: list[Change] = []  # what else records did since the broker looked; while one serves
        self._equip: Callable[[Queue], None] | None = None
        self.queues: dict[str, Queue] = {}
        self.outcomes = IdWindows(config.outcome_window)  # commits that took place
        self.prepared = PreparedTransactions()
        self.subscriptions = SubscribedTable()  # durable ones
        self.obeyed = Obeyed()
        self.parcels = Parcels()
        self.memory = Memory(config.memory_limit_bytes)
        self.expiring: dict[Queue, None] = {}  # queues of messages with an expiry time, and perhaps others
        self.emptied: dict[Queue, None] = {}  # may be idle: `forget_idle` looks at no others
        # While a checkpoint is written: messages that went from memory back to the disk alone.
        self.paged_out: dict[Queue, dict[int, Message]] | None = None
        self.moved_counts: dict[int, tuple[int, int]] = {}  # of those that moved, by seq: their counts at that time
        self.trimmed = Trimmed()  # the segments that count no more
        self.newest_seq = 0  # of all messages: newer ones were not copied, and need not be looked for
        self.segments: dict[int, Segment] = {}  # by code: those in which messages stand that wait on disk

    def serve(self, equip: Callable[[Queue], None]) -> None:
        """A broker serves from now on. `equip` gives a queue that comes into being what only a master has."""
        self.serves, self._equip = True, equip

    def configure(self, config: StoreOptions) -> None:
        """Options changed."""
        self.config = config
        self._policies = Policies(config)
        self.memory.set_limit(config.memory_limit_bytes)
        for name, queue in self.queues.items():
            queue.configure(self.options_of(name))

    def queue(self, name: str) -> Queue:
        """The queue of that full name; it comes into being when it is first used."""
        queue = self.queues.get(name)
        if queue is None:
            queue = self.queues[name] = _kind_of(name)(name, self.options_of(name))
            self.emptied[queue] = None
            if self._equip is not None:
                self._equip(queue)
        return queue

    def options_of(self, name: str) -> StoreOptions:
        """The configuration for the destination of that full name; of a durable subscription that of its topic."""
        if name in self.subscriptions:
            name = self.subscriptions[name].topics[0]
        options = self._policies.of(plain_name(outbox_target(real_name(name))))
        if is_hidden(name):
            return replace(options, duplicate_window=0, queue_limit_bytes=0, divert="")
        if name.startswith(OUTBOX_SCHEME):
            return replace(options, **_OUTBOX, shared_dead_letter_queue=self.config.shared_dead_letter_queue)
        return options

    def forget_idle(self, busy: Container[Queue] = ()) -> list[Queue]:
        """Forget queues that hold nothing, but for those that are `busy`. Returns those that are in no table now."""
        emptied, self.emptied = self.emptied, {}
        forgotten = []
        for queue in emptied:
            if queue in busy or queue.duplicates_pending or queue.pending_bytes:
                self.emptied[queue] = None
            elif queue.is_idle():
                del self.queues[queue.name]
                queue.forget()
                forgotten.append(queue)
                self.arrived.pop(queue, None)
                self.expiring.pop(queue, None)
        return forgotten

    def hold(self, segment: Segment) -> Segment:
        """Messages that wait on disk are in `segment`."""
        self.segments[segment.code] = segment
        return segment

    def check_places(self, recovered: Recovered) -> None:
        """Every message is in a segment that is there. A checkpoint of another store's past would say otherwise.
        Raises DivergedError.
        """
        there = {segment.code for segment in recovered.segments}
        for code, segment in self.segments.items():
            if segment.live and code not in there and segment.key not in recovered.trimmed:
                raise DivergedError(f"messages stand in {segment.name}, which does not count")
        if self.prepared:
            self.prepared.check_places(there, recovered.trimmed)

    def settle(self, trimmed: Trimmed) -> None:
        """All is read. Messages in segments that are `trimmed` left long ago: these segments were not deleted yet when
        they were read, or the record of the leaving was.
        """
        self.trimmed = trimmed
        undone: set[int] = set()
        if trimmed.epoch:
            undone = {code for code, segment in self.segments.items() if segment.live and segment.key in trimmed}
            self.subscriptions.settle(trimmed)
            self.prepared.settle(trimmed)
        for queue in self.queues.values():
            if undone:
                rows = [place.seq for each in queue.backlogs.values() for place in each if place.segment in undone]
                self._discard(queue, rows)
            if queue.name.startswith(SUBSCRIPTION_SCHEME) and queue.name not in self.subscriptions:
                self._end_subscription(queue)  # the word of its end was trimmed, what it remembered was not
            if queue.duplicates:
                queue.duplicates.settle()
        if self.outcomes.by_owner:
            self.outcomes.settle()

    @property
    def stored(self) -> int:
        """Messages that have not left their queue."""
        return sum(queue.stored for queue in self.queues.values())

    # -- the one way in which state changes ---------------------------------------------------------------------------

    def apply(self, record: Record, segment: Segment | None) -> None:
        """Let `record` take effect. `segment` is where it stands, None = not in the journal (non-persistent)."""
        if isinstance(record, Message):
            self.store(record, segment)
        else:
            assert segment is not None
            record.apply(self, segment)

    def take_effect(self, record: Record, offset: int, size: int, segment: Segment | None) -> None:
        """`record`, `size` bytes at `offset` of `segment`, is committed."""
        if isinstance(record, Message):
            record.offset, record.size = offset, size
            self.store(record, segment)
        else:
            assert segment is not None
            record.place(offset, size)
            record.apply(self, segment)

    def _note_change(self, change: Change) -> None:
        if self.serves:
            self.changes.append(change)

    def end_group(self, group: Group, segment: Segment) -> None:
        """All of its records have taken effect."""
        if group.outcome_id:
            self.outcomes.remember(group.outcome_id, group.seq, segment)
            self._note_change(group)

    def store(self, message: Message, segment: Segment | None) -> None:
        """`message` is stored; or one that is stored already was copied forward, as a replay finds it, and is in
        `segment` now."""
        name = message.destination if message.__class__ is Message else message.queue_name
        queue = self.queues.get(name) or self.queue(name)
        message.segment = segment
        if segment is not None:
            if message.seq > self.newest_seq:
                self.newest_seq = message.seq
            elif (place := queue.find(message.seq) or self._stands_beside(queue, message.seq, segment)) is not None:
                self._stands_again(queue, message, segment, place)
                return
            if message.__class__ is Copy:
                segment.share(message.offset, message.size)
            else:
                segment.live += 1
                segment.live_bytes += message.size
            if message.duplicate_id:
                queue.remember(message, segment)
        if message.expires_ms:
            self.expiring[queue] = None
        if queue.retention is not None:
            queue.retention.came(message)
        self.arrived[queue] = None
        # A message waits on disk alone where older ones do, and where its queue holds more than is still free: so each
        # of many takes its share, and one alone half of all (a dynamic threshold). A large one always, unless a
        # consumer takes it now; what is scheduled always. All of them where nobody serves.
        memory = self.memory
        if segment is None or (
            self.serves
            and not (queue.is_hidden or queue.fires or message.priority in queue.backlogs)
            and (len(message.body) <= LARGE_BODY_BYTES or queue.is_awaited())
            and queue.resident_bytes + memory.taken_bytes <= memory.paging_bytes
        ):
            queue.store(message)
            return
        if self.serves:
            queue.met(message.size)
            memory.free(message)
        queue.store_on_disk(message, self.hold(segment).code)

    def store_run(self, run: Run, segment: Segment) -> None:
        """`store` for each message of `run`. Where they differ in their bodies alone, nothing is asked of each."""
        if run.sections is not None or run.natives is not None:
            self.store_all(run.stored(), segment)
            return
        cost = run.body_bytes + (run.like.header_bytes + MESSAGE_OVERHEAD_BYTES) * len(run.bodies)
        is_plain = run.largest <= RUN_BODY_BYTES_MAX
        like, count = run.like, len(run.bodies)
        is_bare = is_plain and not like.expires_ms and like.envelope is None
        if is_bare and (queue := self._keeping(like, run.seq, count, cost)) is not None:
            times, place = array("Q", (like.timestamp_ms,)) * count, (run.seq, run.offset, run.size)
            self.newest_seq = run.seq + count - 1
            queue.store_bundle(Bundle(like, segment, place, [*run.bodies], times, run.sizes[:]), cost)
            return
        self.store_all(run.stored(segment=segment), segment, cost, run.size, is_plain)

    def store_alike(self, messages: list[Message], segment: Segment | None) -> None:
        """`store` for each of `messages`: plain ones for one destination, which stand side by side in `segment`."""
        first, cost = messages[0], cost_of_all(messages)
        is_plain = max([len(message.body) for message in messages]) <= RUN_BODY_BYTES_MAX
        bundle = Bundle.of_messages(messages, segment) if segment is not None and is_plain else None
        if bundle is not None and (queue := self._keeping(first, first.seq, bundle.count, cost)) is not None:
            self.newest_seq = messages[-1].seq
            queue.store_bundle(bundle, cost)
        else:
            self.store_all(messages, segment)

    def _keeping(self, like: Message, seq: int, count: int, cost: int) -> Queue | None:
        """The queue of `count` new messages from `seq` on, of that `cost` together, none of them large, if they arrive
        there as a bundle."""
        queue = self.queues.get(like.destination) or self.queue(like.destination)
        if (
            self.serves
            and seq > self.newest_seq
            and not queue.is_hidden
            and queue.retention is None
            and queue.resident_bytes + cost + self.memory.taken_bytes <= self.memory.paging_bytes
            and queue.takes_together(count, like.priority)
        ):
            self.arrived[queue] = None
            return queue
        return None

    def store_all(
        self, messages: list[Message], segment: Segment | None, cost: int = 0, size: int = 0, is_plain: bool = False
    ) -> None:
        """`store` for each of `messages`: of one destination and priority, in the order of their seqs, without ids.
        Those of a run know their `segment`: `cost` = the sum of their `cost`, `size` that of their records, `is_plain`:
        see `Queue`."""
        first = messages[0]
        queue = self.queues.get(first.destination) or self.queue(first.destination)
        memory, is_run = self.memory, cost > 0
        cost = cost or cost_of_all(messages)
        is_known = segment is not None and first.seq <= self.newest_seq
        stays = segment is None or (
            self.serves
            and not (queue.is_hidden or queue.fires or first.priority in queue.backlogs)
            and (cost <= LARGE_BODY_BYTES or max([len(message.body) for message in messages]) <= LARGE_BODY_BYTES)
            and queue.resident_bytes + cost + memory.taken_bytes <= memory.paging_bytes
        )
        if is_known or queue.retention is not None or not stays:
            for message in messages:
                self.store(message, segment)
            return
        if segment is not None:
            if not is_run:
                for message in messages:
                    message.segment = segment
                    size += message.size
            self.newest_seq = messages[-1].seq
            segment.live += len(messages)
            segment.live_bytes += size
        if first.expires_ms:
            self.expiring[queue] = None
        self.arrived[queue] = None
        queue.store_all(messages, cost, size, is_plain)

    def _stands_again(self, queue: Queue, message: Message, segment: Segment, place: Place) -> None:
        before = self.segments[place.segment]
        segment.refers.add(before.code)
        self.hold(segment)
        queue.move(message.seq, segment.code, message.offset, message.size, place.size)
        before.leave(place.offset, place.size)
        if message.__class__ is Copy:
            segment.share(message.offset, message.size)
        else:
            segment.live += 1
            segment.live_bytes += message.size
        if message.duplicate_id:  # a checkpoint may have the message and not its id
            queue.remember(message, segment)

    def _stands_beside(self, queue: Queue, seq: int, segment: Segment) -> Place | None:
        """A message was copied where it stood, in `queue`. Where the word of its move went with what was copied, an old
        checkpoint has it elsewhere: it moves now. Returns where it stands."""
        for name in shelves(queue.name):
            if name != queue.name and (other := self.queues.get(name)) is not None and other.find(seq) is not None:
                self.transfer(Moved(name, queue.name, [seq]), segment)
                return queue.find(seq)
        return None

    def leave(self, consumed: Consumed, segment: Segment) -> None:
        queue = self.queues.get(consumed.destination) or self.queue(consumed.destination)
        if queue.backlogs:
            self._discard(queue, consumed.seqs, segment)
        seqs = consumed.seqs
        if queue.settled and not (seqs := self._leave_together(queue, seqs, segment)):
            return
        here = queue.singles
        if queue.folded and not here.keys() >= set(seqs):
            here = queue.messages
        found = map(here.get, dict.fromkeys(seqs))
        self.remove_all(queue, [message for message in found if message is not None], segment)
        if consumed.reason == ACKED and consumed.destination.startswith(HELD_SCHEME):
            self._dequeued(consumed)

    def _leave_together(self, queue: Queue, seqs: list[int], said_in: Segment) -> list[int]:
        """The bundles that begin with some of `seqs`, and end with others, leave. Returns those that are in none."""
        settled, others = queue.settled, []
        at = 0
        while at < len(seqs):
            bundle = settled.get(seqs[at])
            if bundle is None:
                others.append(seqs[at])
                at += 1
                continue
            count, segment = bundle.count, bundle.segment
            last = at + count - 1
            if last >= len(seqs) or seqs[last] != bundle.seq + count - 1:  # the record is taken in slices
                queue.take_apart()
                return others + seqs[at:]
            del settled[bundle.seq]
            at += count
            cost = bundle.cost
            queue.remove_bundle(bundle, cost)
            self.memory.taken_bytes -= cost
            segment.live -= count
            segment.live_bytes -= bundle.size
            if segment is not said_in:
                said_in.refers.add(segment.code)
        if not queue.folded:
            self.emptied[queue] = None
        return others

    def _dequeued(self, consumed: Consumed) -> None:
        """A prepared transaction, or a lease, is committed: its messages have left the queue from which they came."""
        named = self.queues.get(consumed.destination.removeprefix(HELD_SCHEME))
        if named is not None:
            named.acknowledged += len(consumed.seqs)

    def come_back(self, queue: str, counts: list[tuple[int, int, int]], segment: Segment) -> None:
        found = self.queue(queue)
        for seq, deliveries, failures in counts:
            # While serving, a return is counted at once: it may have come back again before this was durable.
            more = (deliveries, failures) > found.redelivered.get(seq, (0, 0))
            if code := found.stands_in(seq):
                segment.refers.add(code)
                if more:
                    found.redelivered[seq] = (deliveries, failures)

    def page_in(self, queue: Queue, messages: list[Message]) -> list[Message]:
        """`messages` of one priority, oldest first, were read from the disk and are in memory now. Returns those that
        have not left meanwhile: the caller knows where they go.
        """
        gone = queue.take_rows([message.seq for message in messages])
        if sum(len(columns[0]) for columns in gone) < len(messages):
            here = {seq for columns in gone for seq in columns[0]}
            messages = [message for message in messages if message.seq in here]
        places = chain.from_iterable(zip(*columns[:4], strict=True) for columns in gone)
        for message, (seq, code, offset, size) in zip(messages, places, strict=True):
            assert message.seq == seq
            message.segment, message.offset, message.size = self.segments[code], offset, size
        self.memory.take(queue.hold(messages))
        for browser in queue.browsers if messages else ():
            browser.paged_in(messages)
        return messages

    def take_from_disk(self, queue: Queue, seqs: AbstractSet[int]) -> list[Message]:
        """Those of `seqs` that wait on disk alone are in memory now, without their bodies, and in no level: they are
        about to leave."""
        taken: list[Message] = []
        for priority, columns in queue.backlogs.discard(seqs):
            times = columns[4] if len(columns) > 4 else repeat(0)
            for seq, code, offset, size, expires_ms in zip(*columns[:4], times, strict=False):
                message = Stub(queue.name, b"", None, "", priority, expires_ms=expires_ms, seq=seq)
                message.segment, message.offset, message.size = self.segments[code], offset, size
                taken.append(message)
        self.memory.take(queue.hold(taken))
        return taken

    def page_out_again(self, queue: Queue, message: Message) -> None:
        """A stored message that was in memory, and that no level and no consumer has, waits on disk from now on."""
        segment = self.hold(_segment(message))
        if self.paged_out is not None:
            self.paged_out.setdefault(queue, {})[message.seq] = message
        queue.let_go(message)
        queue.page_out(message, segment.code)
        self.memory.free(message)

    def copied(self, copies: Copies, segment: Segment) -> None:
        first, source = copies.first, copies.source
        segment.refers.add(source.code)
        self.hold(segment)
        for name, moves in copies.moves.items():
            queue = self.queues[name]
            messages = queue.messages
            for seq, offset in moves:
                known = messages.get(seq)
                if known is not None:
                    known.segment, known.offset = segment, first + offset
                    continue
                place = queue.find(seq)
                assert place is not None, "a copy of what has left would bring it back after a crash"
                queue.move(seq, segment.code, first + offset, place.size, place.size)
        for offset, size, holders in copies.shared:
            for name, seq in holders:
                self._move_shared(self.queues[name], seq, segment, first + offset, size)
        count = copies.messages - sum(len(holders) for _, _, holders in copies.shared)
        moved_bytes = copies.size - sum(size for _, size, _ in copies.shared)
        source.live -= count
        source.live_bytes -= moved_bytes
        segment.live += count
        segment.live_bytes += moved_bytes
        for name, id, seq in copies.ids:
            self.queues[name].duplicates.stand(id, seq, segment)
        self._note_change(copies)

    def prepare(self, prepared: Prepared, segment: Segment) -> None:
        self.prepared.put(prepared, segment)
        self._note_change(prepared)

    def resolve(self, resolved: Resolved, segment: Segment) -> None:
        self.outcomes.remember(resolved.outcome_id, resolved.seq, segment)
        if (found := self.prepared.remove(resolved.key)) is not None:
            segment.refers.update({found[1].code} - {segment.code})
            self._note_change(Ended(found[0], resolved.committed))

    def mark(self, marker: Marker, segment: Segment) -> None:
        self.prepared.mark(marker, segment)
        self._note_change(marker)

    def obey(self, placed: ObeyedTable, segment: Segment) -> None:
        if self.obeyed.apply(placed, segment):
            self._note_change(placed)

    def ship(self, parcel: Parcel, segment: Segment) -> None:
        before = self.parcels.last(parcel.channel) if parcel.channel == MOVES else None
        self.parcels.put(parcel, segment)
        if before is not None and before.store and not parcel.store and parcel.number > before.number:
            self._uncount(before)

    def _uncount(self, parcel: Parcel) -> None:
        """A parcel of a move is over. If its messages have left, they count as if they had never been here: their next
        home counts them."""
        for name, seqs in parcel.queues.items():
            queue = self.queues.get(name)
            if queue is not None and seqs and not queue.stands_in(seqs[0]):
                came, left = queue.brought
                queue.brought = came - len(seqs), left - len(seqs)

    def trim(self, mark: Trimmed) -> None:
        self.trimmed = mark
        for code in [code for code, segment in self.segments.items() if segment.key in mark and not segment.live]:
            del self.segments[code]
        self._note_change(mark)

    def subscribe(self, record: Subscribed, segment: Segment) -> None:
        self.subscriptions.apply(record, segment)
        if record.definition:
            queue = self.queue(record.queue)
            queue.stays = True
            queue.configure(self.options_of(record.queue))  # its topics may be others now
        else:
            self._end_subscription(self.queue(record.queue))

    def _end_subscription(self, queue: Queue) -> None:
        queue.stays = False
        queue.duplicates.forget()
        self.emptied[queue] = None

    def _move_shared(self, queue: Queue, seq: int, segment: Segment, offset: int, size: int) -> None:
        """A message whose record others share is there now: with those that hold it still, so in fewer bytes."""
        known = queue.messages.get(seq)
        if known is not None:
            _segment(known).leave(known.offset, known.size)
            queue.rewritten(known, size)
            known.segment, known.offset = segment, offset
        else:
            place = queue.find(seq)
            assert place is not None, "a copy of what has left would bring it back after a crash"
            self.segments[place.segment].leave(place.offset, place.size)
            queue.move(seq, segment.code, offset, size, place.size)
        segment.share(offset, size)

    def remove(self, queue: Queue, message: Message) -> None:
        """`message`, which is in memory, has left. No level and no consumer has it."""
        queue.remove(message)
        segment = message.segment
        if isinstance(segment, Segment):
            if segment.shared:
                segment.leave(message.offset, message.size)
            else:
                segment.live -= 1
                segment.live_bytes -= message.size
        if message.shared is None:  # as `Memory.free`, without a call: this is the hot path
            self.memory.taken_bytes -= len(message.body) + message.header_bytes + MESSAGE_OVERHEAD_BYTES
        else:
            self.memory.free(message)
        if not queue.singles:
            self.emptied[queue] = None

    def remove_all(self, queue: Queue, messages: list[Message], said_in: Segment | None = None) -> None:
        """`remove` for each of `messages`, as a record in the segment `said_in` says, if there is one."""
        if not messages:
            return
        rows, segment = queue.singles, messages[0].segment
        size = taken_bytes = 0
        is_mixed = is_shared = False
        for message in messages:
            del rows[message.seq]
            size += message.size
            taken_bytes += len(message.body) + message.header_bytes
            if message.segment is not segment:
                is_mixed = True
            if message.shared is not None:
                is_shared = True
        taken_bytes += len(messages) * MESSAGE_OVERHEAD_BYTES
        if is_mixed:
            stored_bytes = sum(map(queue.cost, messages))
            parts = [(message.segment, [message], message.size) for message in messages]
        else:
            stored_bytes = taken_bytes if segment is None else size
            parts = [(segment, messages, size)]
        for segment, some, size in parts:
            if not isinstance(segment, Segment):
                continue
            if said_in is not None and segment is not said_in:
                said_in.refers.add(segment.code)
            if segment.shared:
                for message in some:
                    segment.leave(message.offset, message.size)
            else:
                segment.live -= len(some)
                segment.live_bytes -= size
        queue.removed_all(messages, stored_bytes, taken_bytes)
        if is_shared:
            self.memory.free_all(messages)
        else:
            self.memory.taken_bytes -= taken_bytes
        if not rows:
            self.emptied[queue] = None

    def _discard(self, queue: Queue, seqs: list[int], segment: Segment | None = None) -> None:
        """Those of `seqs` that wait on disk leave the queue: `segment` says so."""
        for _, codes, offsets, sizes, *_ in queue.discard(seqs):
            for code in set(codes):
                if segment is not None and code != segment.code:
                    segment.refers.add(code)
                if self.segments[code].shared:
                    for offset, size in compress(zip(offsets, sizes, strict=True), map(code.__eq__, codes)):
                        self.segments[code].leave(offset, size)
                    continue
                here = sizes if codes.count(code) == len(codes) else compress(sizes, map(code.__eq__, codes))
                self.segments[code].live -= codes.count(code)
                self.segments[code].live_bytes -= sum(here)
        if not queue.backlogs:
            self.emptied[queue] = None

    def remember_ids(self, queue: str, ids: list[tuple[str, int]], segment: Segment) -> None:
        window = self.queue(queue).own_duplicates()
        for id, seq in ids:
            window.stand(id, seq, segment)

    def remember_outcomes(self, ids: list[tuple[str, int]], segment: Segment) -> None:
        for id, seq in ids:
            self.outcomes.stand(id, seq, segment)

    # -- messages that move: in columns, as a batch of a pipeline may move a million when it commits -------------------

    def transfer(self, moved: Moved, segment: Segment) -> None:
        """Messages are in another queue, on disk alone, at the place where they stood."""
        source, target = self.queue(moved.source), self.queue(moved.target)
        known = source.redelivered
        counts = {seq: known.pop(seq) for seq in moved.seqs if seq in known} if known else {}
        if self.paged_out is not None:
            self.moved_counts |= counts
        for priority, columns in self._taken(source, moved.seqs):
            segment.refers.update({*columns[1]} - {segment.code})
            self._put(target, priority, columns)
            if moved.source.startswith(SENT_SCHEME):
                target.enqueued += len(columns[0])
        for seq, count in counts.items():
            target.redelivered[seq] = max(count, target.redelivered.get(seq, (0, 0)))
        for id, seq in moved.ids:
            target.duplicates_pending.pop(id, None)
            target.own_duplicates().remember(id, seq, segment)
        self.arrived[target] = None
        if target.retention is not None:
            target.retention.moved_in(moved.seqs)
        for browser in target.browsers if moved.source.startswith(SENT_SCHEME) else ():
            browser.moved_in(moved.seqs)

    def _taken(self, queue: Queue, seqs: list[int]) -> list[tuple[int, Columns]]:
        """Those of `seqs` that are stored leave the queue: by priority, and by seq in each piece."""
        there = queue.messages
        if gone := [there[seq] for seq in seqs if seq in there] if there else []:
            for segment in {id(message.segment): message.segment for message in gone}.values():
                assert isinstance(segment, Segment)
                self.hold(segment)
            self.memory.free_all(gone)
        self.emptied[queue] = None
        return queue.transfer_out(seqs)

    def _put(self, queue: Queue, priority: int, columns: Columns) -> None:
        """Stored messages wait on disk in `queue`, where they were not before; or only some were not, in a replay from
        a checkpoint that was made while they moved."""
        seqs, codes, offsets, sizes, *_ = columns
        if queue.add_rows(priority, columns):
            if queue.expiring:
                self.expiring[queue] = None
            if self.paged_out is not None:
                self._note(queue, priority, columns)
        elif len(seqs) > 1:
            half = len(seqs) // 2
            for part in (slice(half), slice(half, None)):
                self._put(queue, priority, [column[part] for column in columns])
        else:
            self.segments[codes[0]].leave(offsets[0], sizes[0])

    def _note(self, queue: Queue, priority: int, columns: Columns) -> None:
        """The checkpoint that is being dumped may have looked at `queue` already."""
        assert self.paged_out is not None
        noted = self.paged_out.setdefault(queue, {})
        times = columns[4] if len(columns) > 4 else repeat(0)
        for seq, code, offset, size, expires_ms in zip(*columns[:4], times, strict=False):
            stub = Message(queue.name, b"", None, "", priority, True, 0, expires_ms, seq=seq)
            stub.segment, stub.offset, stub.size = self.segments[code], offset, size
            noted[seq] = stub

    def stage(self, run: Run, segment: Segment) -> None:
        """The messages of `run` are stored in `segment`."""
        queue, count, expires_ms = self.queue(run.queue_name), len(run.bodies), run.like.expires_ms
        assert queue.is_hidden, "elsewhere they might not wait on disk"
        columns = [
            array("Q", run.seqs),
            array("Q", [segment.code]) * count,
            array("I", islice(accumulate(run.sizes, initial=run.offset), count)),
            run.sizes,
        ]
        if expires_ms:
            columns.append(array("Q", [expires_ms]) * count)
            self.expiring[queue] = None
        is_last = queue.add_rows(run.like.priority, columns)
        assert is_last, "seqs are given in the order in which they are stored"
        self.hold(segment)
        segment.live += count
        segment.live_bytes += run.size
        queue.enqueued += count
        self.arrived[queue] = None
        if self.serves:
            queue.met(run.size)
            self.memory.give_back(cost_of_run(run.bodies, run.header_bytes))


def _kind_of(queue: str) -> type[Queue]:
    if queue.startswith(SCHEDULE_SCHEME):
        return Schedule
    return OutboxQueue if queue.startswith(OUTBOX_SCHEME) else Queue


def _segment(message: Message) -> Segment:
    assert isinstance(message.segment, Segment)
    return message.segment
