"""Core: what everything that serves from a state has in common: the way to the journal, and to memory.

Invariant: a record is appended in the order in which it was admitted, and its promise is taken back where the disk
rejects it. `Broker` is the one class that derives from it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable

from amq.broker import unowned
from amq.broker.events import Events
from amq.broker.homes import Homes
from amq.broker.queues.paging import Pager
from amq.broker.queues.queue import Queue
from amq.broker.queues.selector_dispatch import SelectorDispatch
from amq.broker.queues.viewing import Viewing
from amq.broker.selecting import Selecting
from amq.broker.state.state import State
from amq.broker.storage.pins import Pins
from amq.broker.transactions.effect import Effect
from amq.broker.transactions.refused import Refused
from amq.broker.transfer.peers import Peers
from amq.broker.waiters import Awaiting
from amq.config.schema import BrokerConfig
from amq.core.message import LARGE_BODY_BYTES, Message
from amq.doors.clock import Clock
from amq.journal.batch import OpenBatch, Waiter
from amq.journal.hidden import HELD_SCHEME, outbox_name
from amq.journal.journal import Journal
from amq.journal.records import Consumed, Group, Record
from amq.journal.records.message import Run
from amq.journal.records.multicast import Multicast

SEQ_EPOCH_SHIFT = 44  # a seq is epoch << 44 | counter: unique for ever, growing, also past those of earlier masters


class Core(ABC):
    """`state`, into which the journal is read, and `journal`, which goes on. `wake()` asks for a turn. Until `begin`
    the state is another thread's, and nothing here looks into it.

    dirty             queues to dispatch in this turn
    events            the port where all that happens is told
    message_id_prefix  is before a message's seq in the id that the broker gives it. It is the store's
    epoch             that of the mastership, from `begin` on
    behind_bytes      of the journal that no checkpoint covered then
    replaying         full names of queues of durable subscriptions whose first messages are being chosen
    pins              segments that are not deleted yet, because clients read them
    awaiting          those that wait for records on their way: see `when_durable`
    outcomes_pending  commits on their way that have a name
    outcomes_refused  commits that were reported as rolled back, which must stay true
    homes             which destinations live in this store, None = all: it is in no cluster
    homes_version     grows when they may be others
    peers             the ways to the other stores, None = there are none
    """

    epoch: int
    behind_bytes: int
    homes: Homes | None = None
    homes_version = 0
    peers: Peers | None = None
    message_id_prefix: str
    _seq: int

    def __init__(
        self,
        state: State,
        journal: Journal,
        config: BrokerConfig,
        clock: Clock,
        wake: Callable[[], None],
        events: Events | None = None,
    ) -> None:
        self.state = state
        self.memory = state.memory
        self.journal = journal
        self.config = config
        self.clock = clock
        self.wake = wake
        self.dirty = state.arrived
        self.events = events if events is not None else Events()
        self.replaying: dict[str, None] = {}
        self.outcomes_pending: dict[str, Group] = {}
        self.outcomes_refused = Refused(lambda: self.config.outcome_window)
        self.pins = Pins(clock)
        self.viewing = Viewing()
        self.selecting = Selecting()
        self.pager = Pager(state, journal, self.dirty, wake)
        self.fetch, self.fetch_ahead = self.pager.fetch, self.pager.fetch_ahead
        self.awaiting = Awaiting()
        self._effect: Effect | None = None  # of a commit that is not done yet

    @abstractmethod
    def expire(self, queue: Queue, messages: list[Message]) -> None:
        """Messages past their time, already out of the queue's order."""

    @abstractmethod
    def arm(self, queue: Queue) -> None:
        """A schedule has changed."""

    def selection(self, queue: Queue) -> SelectorDispatch:
        """Chooses from now on who gets a message of `queue`."""
        return SelectorDispatch(queue, self, self.pager, self.selecting)

    # -- on the way to the journal ------------------------------------------------------------------------------------

    def next_seq(self, count: int = 1) -> int:
        """The first of `count` seqs, one after the other, that nobody else gets."""
        self._seq += count
        return self._seq - count + 1

    @property
    def newest_seq(self) -> int:
        """The last seq that anybody has."""
        return self._seq

    def oldest_on_its_way(self) -> int:
        """Seq of the oldest message that is on its way to the journal, or of which the effect has begun; where there is
        none, one that no message has yet. Messages of a retroactive replay do not count: their seqs are older than they
        are."""
        for batch in self.journal.on_their_way():
            for record in batch.records:
                for part in record.records if isinstance(record, Group) else (record,):
                    if isinstance(part, Message | Run):
                        return part.seq
                    if isinstance(part, Multicast) and not any(name in self.replaying for name in part.queues):
                        return part.seqs[0]
        return self.next_seq()

    def led(self, name: str) -> str:
        """The name under which this store stores what it leads to `name`, a destination: an outbox where that lives
        elsewhere."""
        return outbox_name(name) if self.homes is not None and self.homes.home_of(name) else name

    def is_duplicate(self, message: Message) -> bool:
        """Has the destination stored, or is it storing, a message with this producer-given id of the same user?"""
        queue, id = self.state.queue(message.queue_name), message.duplicate_id
        if id in queue.duplicates or id in queue.duplicates_pending:
            return True
        return queue.may_hold_unowned and unowned.is_duplicate(queue, message, self.config)

    def admit_id(self, message: Message, record: Record) -> None:
        """From here on the producer-given id of `message` is taken: it is on its way in `record`."""
        if self.config.duplicate_window:
            self.state.queue(message.queue_name).duplicates_pending[message.duplicate_id] = record

    def when_durable(self, waiter: Waiter, record: Record | None = None) -> None:
        """Tell `waiter` when `record`, which is on its way for another command, is committed; it fails if the record is
        rejected. None = when all that was appended before is durable."""
        if record is None:
            self.journal.confirm(waiter)
        else:
            self.awaiting.add(record, waiter)

    def consumed(self, queue: Queue, message: Message) -> None:
        """The consumer is done with `message`: it leaves the queue when that is durable."""
        if message.segment is not None:
            self.journal.open.consumed[queue.name].append(message.seq)
        else:
            self.state.remove(queue, message)

    def consumed_all(self, queue: Queue, messages: list[Message]) -> None:
        """`consumed` for each of `messages`."""
        seqs = [each.seq for each in messages if each.segment is not None]
        if seqs:
            self.journal.open.consumed[queue.name] += seqs
        if len(seqs) < len(messages):
            self.state.remove_all(queue, [each for each in messages if each.segment is None])

    def consumed_run(self, queue: Queue, seqs: range) -> None:
        """`consumed` for each of these, which are in the journal."""
        self.journal.open.consumed[queue.name] += seqs

    def has_left(self, queue: Queue, seq: int) -> bool:
        """Does nobody get that message from `queue` any more, once all that is on its way to the journal is there?"""
        for batch in self.journal.on_their_way():
            records = (each for each in batch.records if isinstance(each, Consumed) and each.destination == queue.name)
            if seq in batch.consumed.get(queue.name, ()) or any(seq in record.seqs for record in records):
                return True
        held = self.state.queues.get(HELD_SCHEME + queue.name)  # in prepared transactions
        return not any(each is not None and each.stands(seq) for each in (queue, held))

    def withdraw(self, message: Message) -> None:
        """A message that was admitted and will not be stored."""
        self.memory.free(message)
        if message.seq and message.persistent:  # it got past `admit_id`
            queue = self.state.queue(message.queue_name)
            queue.met(message.size)
            queue.duplicates_pending.pop(message.duplicate_id, None)

    def append_group(self, group: Group, pending: dict[str, int] | None = None) -> OpenBatch:
        """To the journal, and count what is on its way; `pending` = {full name of a queue: bytes}, where that is known.
        Returns the batch with which it goes. Raises CommandError where it is too large.
        """
        batch = self.journal.open
        self.journal.append_record(group)
        if pending is None:
            pending = self._measure(group)
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

    @property
    def is_taking_effect(self) -> bool:
        """Has a large transaction begun to take effect, and is not done?"""
        return self._effect is not None

    def is_reading(self, queue: Queue) -> bool:
        """Are messages of `queue` being read from the disk?"""
        return self.pager.is_reading(queue)

    def lacks_memory(self, queue: Queue) -> bool:
        """Does a read of `queue` from the disk wait for memory that comes free by itself?"""
        return self.pager.lacks_memory(queue)

    def is_held(self, queue: Queue) -> bool:
        """Is nobody given anything from `queue`, since a transaction takes effect there?"""
        return self._effect is not None and queue.name in self._effect.held

    # -- in memory ----------------------------------------------------------------------------------------------------

    def lend(self, queue: Queue, message: Message) -> int:
        """The large body of `message`, just delivered, is its consumer's from now on: where the disk has it nobody else
        keeps it. Returns how many bytes the consumer must `take_back` when it has written or forgotten it.
        """
        size = len(message.body)
        if message.segment is not None:
            self.drop_body(queue, message)
            self.memory.take(size)
        elif queue.messages.get(message.seq) is message:
            return 0  # not persistent and not acknowledged: it is the queue's
        else:
            self.memory.take(size)
        self.memory.lend(size)
        return size

    def drop_body(self, queue: Queue, message: Message) -> None:
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

    def empty(self, queue: Queue) -> list[int]:
        """The messages that wait in `queue` are in no line any more. Messages that are not persistent have left.
        Returns the seqs of the persistent ones, which leave when a record says so."""
        here = queue.take_out(queue.messages.keys())
        for message in here:
            if message.segment is None:
                self.state.remove(queue, message)
        seqs = [message.seq for message in here if message.segment is not None]
        return seqs + [place.seq for backlog in queue.backlogs.values() for place in backlog]

    def wait_again(self, queue: Queue, messages: Iterable[Message]) -> None:
        """Messages that nobody has are in line again, large ones on the disk."""
        here = []
        for message in messages:
            if message.size > LARGE_BODY_BYTES and message.segment is not None:
                self.state.page_out_again(queue, message)
            else:
                here.append(message)
        queue.put_back(here)
