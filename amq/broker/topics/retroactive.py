"""Recalling: a new durable subscription that asks for it (`activemq.retroactive`) begins with the messages that its
topics keep.

A message that was sent before the subscription was there, and is on its way, is not kept yet and not stored for it. So
the broker chooses the messages when all those have been handed out. Invariants: the subscription gets the messages that
are kept then, and those sent since it is there: none twice, none missing between, in the order in which they were sent,
for the seqs of the recalled ones were set apart when it began; nobody consumes it before all of them are stored.
"""

from __future__ import annotations

from collections import deque

from amq.broker.core import Core
from amq.broker.recipient import Recipient
from amq.broker.topics.durables import Durables
from amq.broker.topics.topics import Topics
from amq.broker.transactions.commits import Commits
from amq.broker.transactions.transaction import Transaction, memory_bytes
from amq.broker.waiters import Call
from amq.core.errors import StoreFullError
from amq.core.message import Copy, Message, Sharing
from amq.journal.records import Record
from amq.journal.records.subscription import Subscribed

RECALLED_MAX = 1 << 20  # messages of one subscription
PIECE_BYTES = 1 << 20  # of bodies that are stored together


class RetroactiveReplay:
    """The messages with which one subscription begins, on their way there."""

    def __init__(self, replays: RetroactiveReplays, core: Core, record: Subscribed, peer: Recipient) -> None:
        self._replays = replays
        self._core = core
        self._record = record
        self._peer = peer
        self._first_seq = core.next_seq(RECALLED_MAX)
        self._left: deque[tuple[Message, int]] = deque()  # with its seq there
        self._piece = 0  # how many of these are on their way
        self.is_refused = False  # the disk is full
        replays.topics.on_their_way += 1  # messages that are sent from now on stay behind
        core.journal.confirm(Call(self._handed_out, self._refused))

    def _handed_out(self) -> None:
        """Everything sent before is durable."""
        topics = self._replays.topics
        topics.on_their_way -= 1
        topics.hand_out(self._core.clock.wall_ms(), everything=True)
        self._choose()
        self.go_on()

    def _stored(self) -> None:
        """A piece is durable."""
        self._take_piece_off()
        self.go_on()

    def _refused(self, _error: Exception) -> None:
        """The disk is full: the piece is stored when it is not, see `RetroactiveReplays.sweep`. So is what was
        sent again."""
        self.is_refused = True

    def go_on(self) -> None:
        """Store the next piece."""
        core = self._core
        self.is_refused = False
        while self._left and self._replays.durables.knows(self._record):
            transaction = self._replays.commits.begin()
            resent = self._fill(transaction)
            if resent is not None:
                core.when_durable(Call(self.go_on, self._refused), resent)
                return
            core.memory.take(memory_bytes(transaction.sends))
            waits = any(copy.persistent for copy in transaction.sends)
            try:
                self._replays.commits.commit(transaction, Call(self._stored if waits else _nothing, self._refused), "")
            except StoreFullError:
                self.is_refused = True
                return
            if waits:
                return
            self._take_piece_off()
        self._replays.ended(self._record)

    def _fill(self, transaction: Transaction) -> Record | None:
        """The next piece, without what the subscription has got already. Returns the record on its way that stores some
        of it: a message that was sent again meanwhile comes once, and may yet fail."""
        core, name = self._core, self._record.queue
        ids: set[str] = set()  # a message that a client sent twice is kept twice
        size = self._piece = 0
        for message, seq in self._left:
            copy = Copy.of(message, name, seq)
            copy.original, copy.shared = message, Sharing(None, encodes=False)
            id = copy.duplicate_id if copy.persistent else ""
            if id and core.is_duplicate(copy):
                resent = core.state.queue(name).duplicates_pending.get(copy.duplicate_id)
                if resent is not None:
                    return resent
            elif not id or id not in ids:
                transaction.sends.append(copy)
                ids.add(id)
            self._piece += 1
            size += len(copy.body) + copy.header_bytes
            if size >= PIECE_BYTES:
                break
        return None

    def _take_piece_off(self) -> None:
        for _ in range(self._piece):
            self._left.popleft()
        self._piece = 0

    def _choose(self) -> None:
        record, core = self._record, self._core
        own = self._peer if record.no_local else None
        durables, buffer = self._replays.durables, self._replays.topics.recovery_buffer
        selector = durables.selector_of(record)
        found = buffer.find(record.sources, selector, own, core.clock.wall_ms())
        self._left.extend((message, self._first_seq + i) for i, message in enumerate(found[-RECALLED_MAX:]))


def _nothing() -> None:
    """Nobody waits for what is not stored."""


class RetroactiveReplays:
    """All that are under way; `Core.replaying` has the names of their queues."""

    def __init__(self, core: Core, topics: Topics, durables: Durables, commits: Commits) -> None:
        self._core = core
        self.topics = topics
        self.durables = durables
        self.commits = commits
        durables.replay = self.begin
        self._under_way: dict[str, RetroactiveReplay] = {}

    def begin(self, record: Subscribed, peer: Recipient) -> None:
        """The new subscription `record`, of a consumer on the connection `peer`, asks for it."""
        self._core.replaying[record.queue] = None
        self._under_way[record.queue] = RetroactiveReplay(self, self._core, record, peer)

    def ended(self, record: Subscribed) -> None:
        """All is stored, or the subscription has ended."""
        del self._under_way[record.queue], self._core.replaying[record.queue]
        self._core.wake()

    def sweep(self) -> None:
        """Try again where the disk was full. Call every second or so."""
        for recall in [each for each in self._under_way.values() if each.is_refused and not self._core.journal.full]:
            recall.go_on()
