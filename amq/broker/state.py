"""State: the queues of a store, and the one way in which they change.

`apply(record, segment)` is that way. It serves the replay at takeover, the slave that follows the journal and live
traffic alike: a command becomes a record, the record becomes durable, then it is applied. So what the master became by
working, a replay becomes by reading. While nobody is served messages wait on disk alone: a replay keeps no bodies.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import replace
from itertools import chain, compress, repeat
from typing import TYPE_CHECKING

from amq.broker.backlog import Place
from amq.broker.memory import MESSAGE_OVERHEAD_BYTES, Memory, cost
from amq.broker.moving import move
from amq.broker.names import SCHEDULE_SCHEME, plain_name, real_name, shelves
from amq.broker.prepared import PreparedTransactions
from amq.broker.queue import Queue
from amq.broker.schedule import Schedule
from amq.broker.staging import stage
from amq.broker.subscribed import SubscribedTable
from amq.broker.window import Window
from amq.config.destinations import Policies
from amq.config.schema import BrokerConfig
from amq.journal.follower import DivergedError
from amq.journal.journal import Journal
from amq.journal.multicast import Multicast
from amq.journal.records import (
    Consumed,
    Copies,
    Destination,
    Duplicates,
    Group,
    Marker,
    Moved,
    Outcomes,
    Prepared,
    Previous,
    Record,
    Redelivered,
    Resolved,
    Trimmed,
    is_hidden,
)
from amq.journal.recovery import Recovered, Segment
from amq.journal.run import Run
from amq.journal.subscription import Subscribed
from amq.message import LARGE_BODY_BYTES, SUBSCRIPTION_SCHEME, Copy, Message, Stub

if TYPE_CHECKING:
    from amq.broker.trimming import Trimmer
    from amq.broker.two_phase import TwoPhase


class State:
    """The content of the journal, and where in it each part stands. `journal` is None as long as nobody is served."""

    def __init__(self, config: BrokerConfig) -> None:
        self.config = config
        self._policies = Policies(config)
        self.queues: dict[str, Queue] = {}
        self.outcomes = Window(config.outcome_window)  # commits that took place
        self.prepared = PreparedTransactions()
        self.outcomes_pending: dict[str, Group] = {}
        self.subscriptions = SubscribedTable()  # durable ones
        self.memory = Memory(config.memory_limit_bytes)
        self.journal: Journal | None = None
        self.dirty: dict[Queue, None] = {}  # queues to dispatch in this turn
        self.expiring: dict[Queue, None] = {}  # queues of messages with an expiry time, and perhaps others
        self.on_queue: list[Callable[[Queue], None]] = []  # called when one comes into being
        self.emptied: dict[Queue, None] = {}  # may be idle: `Broker.sweep` looks at no others
        # While a checkpoint is written: messages that went from memory back to the disk alone.
        self.paged_out: dict[Queue, dict[int, Message]] | None = None
        self.moved_counts: dict[int, tuple[int, int]] = {}  # of those that moved, by seq: their counts at that time
        self.trimmed = Trimmed()  # the segments that count no more
        self.newest_seq = 0  # of the messages of a replay: newer ones were not copied, and need not be looked for
        self._trimmer: Trimmer | None = None
        self._two_phase: TwoPhase | None = None
        self._segments: dict[int, Segment] = {}  # by code: those in which messages stand that wait on disk

    def queue(self, name: str) -> Queue:
        """The queue of that full name; it comes into being when it is first used."""
        queue = self.queues.get(name)
        if queue is None:
            kind = Schedule if name.startswith(SCHEDULE_SCHEME) else Queue
            queue = self.queues[name] = kind(name, self.options_of(name))
            self.emptied[queue] = None
            tells = not (queue.is_hidden or queue.fires or name.startswith(SUBSCRIPTION_SCHEME))
            for tell in self.on_queue if tells else ():
                tell(queue)
        return queue

    def options_of(self, name: str) -> BrokerConfig:
        """The configuration for the destination of that full name; of a durable subscription that of its topic."""
        if name in self.subscriptions:
            name = self.subscriptions[name].topics[0]
        options = self._policies.of(plain_name(real_name(name)))
        if is_hidden(name):
            return replace(options, duplicate_window=0, queue_limit_bytes=0, divert="")
        return options

    def forget_idle(self) -> None:
        """Forget queues that hold nothing."""
        emptied, self.emptied = self.emptied, {}
        for queue in emptied:
            if queue in self.dirty or queue.duplicates_pending or queue.pending_bytes:
                self.emptied[queue] = None
            elif queue.is_idle():
                del self.queues[queue.name]
                queue.forget()
                self.expiring.pop(queue, None)

    def hold(self, segment: Segment) -> Segment:
        """Messages that wait on disk stand in `segment`."""
        self._segments[segment.code] = segment
        return segment

    def check_places(self, recovered: Recovered) -> None:
        """Every message stands in a segment that is there. A checkpoint of another store's past would say otherwise.
        Raises DivergedError.
        """
        there = {segment.code for segment in recovered.segments}
        for code, segment in self._segments.items():
            if segment.live and code not in there and segment.key not in recovered.trimmed:
                raise DivergedError(f"messages stand in {segment.name}, which does not count")
        self.prepared.check_places(there, recovered.trimmed)

    def settle(self, trimmed: Trimmed) -> None:
        """All is read. Messages in segments that are `trimmed` left long ago: these segments were not deleted yet when
        they were read, or the record of the leaving was.
        """
        self.trimmed = trimmed
        undone = {code for code, segment in self._segments.items() if segment.live and segment.key in trimmed}
        self.subscriptions.settle(trimmed)
        for queue in self.queues.values():
            if undone:
                rows = [place.seq for each in queue.backlogs.values() for place in each if place.segment in undone]
                self._discard(queue, rows)
            if queue.name.startswith(SUBSCRIPTION_SCHEME) and queue.name not in self.subscriptions:
                self._end_subscription(queue)  # the word of its end was trimmed, what it remembered was not
            queue.duplicates.settle()
        self.outcomes.settle()
        self.prepared.settle(trimmed)

    @property
    def stored(self) -> int:
        """Messages that have not left their queue."""
        return sum(queue.stored for queue in self.queues.values())

    # -- the one way in which state changes ---------------------------------------------------------------------------

    def apply(self, record: Record, segment: Segment | None) -> None:
        """Let `record` take effect. `segment` is where it stands, None = not in the journal (non-persistent)."""
        kind = record.__class__
        if kind is Message:
            if self.journal is None:
                self._apply_copy(record, segment)  # type: ignore[arg-type]
            else:
                self._apply_message(record, segment)  # type: ignore[arg-type]
        elif isinstance(record, Consumed):
            assert segment is not None
            queue = self.queue(record.destination)
            if queue.backlogs:
                self._discard(queue, record.seqs, segment)
            seen = segment
            for seq in record.seqs:
                message = queue.messages.get(seq)
                if message is not None:
                    if message.segment is not seen and message.segment is not segment:
                        seen = _segment(message)
                        segment.refers.add(seen.code)
                    self._remove(queue, message)
        elif isinstance(record, Redelivered):
            assert segment is not None
            queue = self.queue(record.destination)
            for seq, deliveries, failures in record.counts:
                # While serving, a return is counted at once: it may have come back again before this was durable.
                more = (deliveries, failures) > queue.redelivered.get(seq, (0, 0))
                if code := queue.stands_in(seq):
                    segment.refers.add(code)
                    if more:
                        queue.redelivered[seq] = (deliveries, failures)
        elif isinstance(record, Group):
            for part in record.records:
                if isinstance(part, Message) and self.journal is None:
                    self._apply_copy(part, segment)
                else:
                    self.apply(part, segment)
            self.end_group(record, segment)
        elif isinstance(record, Copy):
            self._apply_message(record, segment)
        elif isinstance(record, Multicast):
            for copy in record.copies or record.held():
                if self.journal is None:
                    self._apply_copy(copy, segment)
                else:
                    self._apply_message(copy, segment)
        elif isinstance(record, Copies):
            assert segment is not None
            self._apply_copies(record, segment)
        elif isinstance(record, Duplicates):
            assert segment is not None
            self._apply_ids(self.queue(record.destination).own_duplicates(), record.ids, segment)
        elif isinstance(record, Outcomes):
            assert segment is not None
            self._apply_ids(self.outcomes, record.ids, segment)
        elif isinstance(record, Moved | Prepared | Resolved | Marker | Subscribed | Run):
            assert segment is not None
            self._apply_rare(record, segment)
        elif isinstance(record, Trimmed):
            self.trimmed = record
            for code in [code for code, s in self._segments.items() if s.key in record and not s.live]:
                del self._segments[code]
            if self.journal is not None and self._trimmer is not None:
                self.journal.delete_trimmed(record)
                self._trimmer.trimmed()
        else:
            assert isinstance(record, Destination | Previous)

    def end_group(self, group: Group, segment: Segment | None) -> None:
        """All of its records have taken effect."""
        if group.outcome_id and segment is not None:
            self.outcomes_pending.pop(group.outcome_id, None)
            self.outcomes.remember(group.outcome_id, group.seq, segment)

    def _apply_message(self, message: Message, segment: Segment | None) -> None:
        is_copy = message.__class__ is Copy
        name = message.queue_name if is_copy else message.destination
        queue = self.queues.get(name) or self.queue(name)
        message.segment = segment
        if message.expires_ms:
            queue.expiring += 1
            self.expiring[queue] = None
        queue.enqueued += 1
        if queue.keeper is not None:
            queue.keeper.came(message)
        if segment is not None:
            if is_copy:
                segment.share(message.offset, message.size)
            else:
                segment.live += 1
                segment.live_bytes += message.size
            queue.stored_bytes += message.size
            if self.journal is not None:
                queue.pending_bytes -= message.size
            if message.duplicate_id:
                queue.remember(message, segment)
            if self.journal is None or self._pages_out(queue, message):
                self.hold(segment)
                queue.page_out(message, segment.code)
                if self.journal is not None:
                    self.memory.free(message)
                    self.dirty[queue] = None
                return
        else:
            queue.stored_bytes += queue.cost(message)
        queue.messages[message.seq] = message
        queue.resident_bytes += cost(message)
        queue.push(message)
        self.dirty[queue] = None

    def _pages_out(self, queue: Queue, message: Message) -> bool:
        """Does a message that has just been stored wait on disk alone? Where older ones do, and where its queue holds
        more than is still free: so each of many takes its share, and one alone half of all (a dynamic threshold). A
        large one always, unless a consumer takes it now; what is scheduled always.
        """
        if queue.is_hidden or (queue.backlogs and message.priority in queue.backlogs):
            return True
        if len(message.body) > LARGE_BODY_BYTES:
            taken = not any(queue.levels) and any(each.is_ready for each in queue.ready)
            if not taken:
                return True
        return queue.fires or queue.resident_bytes > self.memory.free_to_page_bytes

    def page_in(self, queue: Queue, messages: list[Message]) -> list[Message]:
        """`messages` of one priority, oldest first, were read from the disk and are in memory now. Returns those that
        have not left meanwhile: the caller knows where they go.
        """
        gone = queue.discard([message.seq for message in messages])
        if sum(len(columns[0]) for columns in gone) < len(messages):
            here = {seq for columns in gone for seq in columns[0]}
            messages = [message for message in messages if message.seq in here]
        places = chain.from_iterable(zip(*columns[:4], strict=True) for columns in gone)
        segments, resident, taken = self._segments, queue.messages, len(messages) * MESSAGE_OVERHEAD_BYTES
        for message, (seq, code, offset, size) in zip(messages, places, strict=True):
            assert message.seq == seq
            message.segment, message.offset, message.size = segments[code], offset, size
            resident[seq] = message
            taken += len(message.body) + message.header_bytes
        queue.resident_bytes += taken
        self.memory.take(taken)
        for browser in queue.browsers if messages else ():
            browser.paged_in(messages)
        return messages

    def take_from_disk(self, queue: Queue, seqs: AbstractSet[int]) -> list[Message]:
        """Those of `seqs` that wait on disk alone are in memory now, without their bodies, and in no level: they are
        about to leave."""
        taken: list[Message] = []
        for priority, backlog in list(queue.backlogs.items()):
            for columns in backlog.discard(seqs):
                times = columns[4] if len(columns) > 4 else repeat(0)
                for seq, code, offset, size, expires_ms in zip(*columns[:4], times, strict=False):
                    message = Stub(queue.name, b"", None, "", priority, expires_ms=expires_ms, seq=seq)
                    message.segment, message.offset, message.size = self._segments[code], offset, size
                    queue.messages[seq] = message
                    taken.append(message)
            if not backlog:
                del queue.backlogs[priority]
        queue.resident_bytes += len(taken) * MESSAGE_OVERHEAD_BYTES
        self.memory.take(len(taken) * MESSAGE_OVERHEAD_BYTES)
        return taken

    def page_out_again(self, queue: Queue, message: Message) -> None:
        """A stored message that was in memory, and that no level and no consumer has, waits on disk from now on."""
        segment = self.hold(_segment(message))
        if self.paged_out is not None:
            self.paged_out.setdefault(queue, {})[message.seq] = message
        del queue.messages[message.seq]
        queue.page_out(message, segment.code)
        queue.resident_bytes -= cost(message)
        self.memory.free(message)

    def _apply_copy(self, message: Message, segment: Segment | None) -> None:
        """A message of a replay: perhaps one that is stored already and was copied forward. It stands there now."""
        queue = self.queue(message.queue_name)
        assert segment is not None
        place = None
        if message.seq > self.newest_seq:
            self.newest_seq = message.seq
        else:
            place = queue.find(message.seq) or self._stands_beside(queue, message.seq, segment)
        if place is None:
            self._apply_message(message, segment)
            return
        before = self._segments[place.segment]
        segment.refers.add(before.code)
        self.hold(segment)
        queue.move(message.seq, segment.code, message.offset, message.size)
        queue.stored_bytes += message.size - place.size
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
                move(self, Moved(name, queue.name, [seq]), segment)
                return queue.find(seq)
        return None

    def _apply_copies(self, copies: Copies, segment: Segment) -> None:
        """Messages that compaction copied forward stand in `segment` now."""
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
                queue.move(seq, segment.code, first + offset, place.size)
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
            self.queues[name].duplicates.moved(id, seq, segment)
        if self._trimmer is not None:
            self._trimmer.copied(copies)

    def _apply_subscribed(self, record: Subscribed, segment: Segment) -> None:
        """A durable subscription is there, stands elsewhere now, or has ended."""
        self.subscriptions.apply(record, segment)
        if record.definition:
            self.queue(record.queue).stays = True
        else:
            self._end_subscription(self.queue(record.queue))

    def _end_subscription(self, queue: Queue) -> None:
        queue.stays = False
        queue.duplicates.forget()
        self.emptied[queue] = None

    def _apply_rare(self, record: Moved | Prepared | Resolved | Marker | Subscribed | Run, segment: Segment) -> None:
        if isinstance(record, Moved):
            move(self, record, segment)
        elif isinstance(record, Run):
            if is_hidden(record.queue_name):
                stage(self, record, segment)
            else:
                for message in record.stored():
                    self._apply_message(message, segment)
        elif isinstance(record, Subscribed):
            self._apply_subscribed(record, segment)
        else:
            self.prepared.apply(record, segment, self.outcomes, self._two_phase)

    def _move_shared(self, queue: Queue, seq: int, segment: Segment, offset: int, size: int) -> None:
        """A message whose record others share stands there now: with those that hold it still, so in fewer bytes."""
        known = queue.messages.get(seq)
        if known is not None:
            before_bytes = known.size
            _segment(known).leave(known.offset, known.size)
            known.segment, known.offset, known.size = segment, offset, size
        else:
            place = queue.find(seq)
            assert place is not None, "a copy of what has left would bring it back after a crash"
            before_bytes = place.size
            self._segments[place.segment].leave(place.offset, place.size)
            queue.move(seq, segment.code, offset, size)
        queue.stored_bytes += size - before_bytes
        segment.share(offset, size)

    def _remove(self, queue: Queue, message: Message) -> None:
        del queue.messages[message.seq]
        queue.resident_bytes -= cost(message)
        queue.stored_bytes -= queue.cost(message)
        if message.segment is not None:
            segment = _segment(message)
            if segment.shared:
                segment.leave(message.offset, message.size)
            else:
                segment.live -= 1
                segment.live_bytes -= message.size
        if message.expires_ms:
            queue.expiring -= 1
        if queue.redelivered:
            queue.redelivered.pop(message.seq, None)
        queue.acknowledged += 1
        self.memory.free(message)
        if not queue.messages:
            self.emptied[queue] = None

    def _discard(self, queue: Queue, seqs: list[int], segment: Segment | None = None) -> None:
        """Those of `seqs` that wait on disk leave the queue: `segment` says so."""
        for gone, codes, offsets, sizes, *expires in queue.discard(seqs):
            for code in set(codes):
                if segment is not None and code != segment.code:
                    segment.refers.add(code)
                if self._segments[code].shared:
                    for offset, size in compress(zip(offsets, sizes, strict=True), map(code.__eq__, codes)):
                        self._segments[code].leave(offset, size)
                    continue
                here = sizes if codes.count(code) == len(codes) else compress(sizes, map(code.__eq__, codes))
                self._segments[code].live -= codes.count(code)
                self._segments[code].live_bytes -= sum(here)
            queue.stored_bytes -= sum(sizes)
            for column in expires:
                queue.expiring -= len(column) - column.count(0)
            if queue.redelivered:
                for seq in gone:
                    queue.redelivered.pop(seq, None)
            queue.acknowledged += len(gone)
        if not queue.backlogs:
            self.emptied[queue] = None

    def _apply_ids(self, window: Window, ids: list[tuple[str, int]], segment: Segment) -> None:
        for id, seq in ids:
            if self.journal is None:
                window.remember(id, seq, segment)
            else:
                window.moved(id, seq, segment)


def _segment(message: Message) -> Segment:
    assert isinstance(message.segment, Segment)
    return message.segment
