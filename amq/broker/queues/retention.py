"""Retention: queues that keep less than all: of each key the last value, or no more than this many messages.

A message that has to go leaves the queue by a record of the journal, as if it had been consumed; nobody reads it for
that. It is never taken from a consumer: a message that one holds may go when it comes back. Invariant, once a turn has
dispatched the queue: of each key at most one message waits that has that key, the newest, and at most `ringSize`
messages wait.

After a takeover nobody knows the keys of the messages on disk. So when such a queue is first used it is read through
once, one window at a time, and until that is done nothing is delivered from it. Sends go on meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import merge
from itertools import accumulate, islice

from amq.broker.core import Core
from amq.broker.queues.backlog import NEVER, Place
from amq.broker.queues.queue import PRIORITIES, Dispatcher, Queue
from amq.core.message import Message, header
from amq.journal.records import PURGED, Consumed

WINDOW_ROWS = 2048
UNREAD_ROWS = 64  # messages that were moved here, read at once
PURGED_MAX = 5000  # in one turn from one queue
KEYS_SPARE = 1000  # of messages that have left, and may stay known


class Retention:
    """Gives a retention policy to each queue whose options ask for one."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def configure(self, queue: Queue) -> None:
        """The options of `queue` are known, or may have changed. Only while clients are served."""
        options = queue.options
        wanted = (options.last_value_key, options.ring_size)
        if queue.is_hidden or queue.fires:
            return
        if queue.retention is None or queue.retention.options != wanted:
            queue.retention = RetentionPolicy(queue, self._core, wanted) if any(wanted) else None


class RetentionPolicy:
    """A queue's policy. `options` = (name of the key property, "" = none; how many may wait, 0 = any number)"""

    __slots__ = (
        "_at",
        "_core",
        "_is_looking",
        "_is_used",
        "_key",
        "_newest",
        "_priority",
        "_queue",
        "_size",
        "_superseded",
        "_unread",
        "options",
    )

    def __init__(self, queue: Queue, core: Core, options: tuple[str, int]) -> None:
        self.options = options
        self._key, self._size = options
        self._queue = queue
        self._core = core
        self._newest: dict[str, int] = {}  # key → seq of its newest message, which may have left
        self._superseded: set[int] = set()  # older ones, which have to go
        self._is_used = False
        self._is_looking = False
        # The messages on disk were looked at up to here, but for `_unread`.
        self._priority, self._at = 0 if self._key else PRIORITIES, 0
        self._unread: list[int] = []

    def came(self, message: Message) -> None:
        """`message` is stored in the queue."""
        self._is_used = True
        if (key := header(message, self._key)) is None:
            return
        seq, newest = message.seq, self._newest.get(key, 0)
        if newest and newest != seq:
            self._superseded.add(min(seq, newest))
        self._newest[key] = max(seq, newest)

    def moved_in(self, seqs: list[int]) -> None:
        """Messages of another queue wait here now, on disk."""
        if self._key:
            self._is_used = True
            self._unread += seqs

    def dispatch(self, owner: Dispatcher, now_ms: int) -> None:
        """Dispatch as `Queue.dispatch` does, but only messages that may stay."""
        queue = self._queue
        if (self._priority < PRIORITIES or self._unread) and not self._learn():
            return
        if self._superseded:
            gone = self._purge(self._superseded)
            self._superseded = {seq for seq in self._superseded - gone if seq in queue.messages}  # consumers have them
        queue.dispatch(owner, now_ms)
        if self._size and (excess := queue.waiting - self._size) > 0:
            self._purge(self._oldest(min(excess, PURGED_MAX)))
            if excess > PURGED_MAX:
                self._core.pager.again(queue)
        if len(self._newest) > 2 * queue.stored + KEYS_SPARE:
            there = self._newest.items()
            self._newest = {key: seq for key, seq in there if seq in queue.messages or queue.find(seq) is not None}

    # -- what has to go -----------------------------------------------------------------------------------------------

    def _oldest(self, count: int) -> set[int]:
        """Seqs of the oldest messages that wait, of any priority."""
        queue = self._queue
        lines: list[Iterable[int]] = [(message.seq for message in level) for level in queue.levels if level]
        lines += [(place.seq for place in backlog) for backlog in queue.backlogs.values()]
        return set(islice(merge(*lines, sorted(queue.delayed)), count))

    def _purge(self, seqs: set[int]) -> set[int]:
        """Take out those of `seqs` that wait; returns which."""
        core, queue = self._core, self._queue
        messages = queue.take_out(seqs)
        on_disk = queue.backlogs and core.state.take_from_disk(queue, seqs)
        persistent = [message.seq for message in messages if message.segment is not None]
        persistent += [message.seq for message in on_disk or ()]
        if persistent:
            core.journal.append_record(Consumed(queue.name, PURGED, sorted(persistent)))
        gone = set(persistent)
        for message in messages:
            if message.segment is None:
                gone.add(message.seq)
                core.consumed(queue, message)
        return gone

    # -- which keys there are -----------------------------------------------------------------------------------------

    def _learn(self) -> bool:
        """Go on looking at the waiting messages. False: the keys are not all known yet, or nobody needs them."""
        queue = self._queue
        if self._is_looking or not (self._is_used or queue.subscriptions or queue.browsers):
            return not queue.stored
        places = self._next_places()
        if places:
            self._is_looking = True
            self._core.pager.look(queue, places, self._looked)
            return False
        for message in queue.messages.values():
            self.came(message)
        return True

    def _next_places(self) -> list[Place]:
        """Where those stand that are to be looked at next; none where all is known."""
        queue, size = self._queue, self._core.pager.look_bytes()
        while self._priority < PRIORITIES:
            backlog = queue.backlogs.get(self._priority)
            if backlog and (places := backlog.after(self._at, NEVER, size, WINDOW_ROWS)):
                return places
            self._priority, self._at = self._priority + 1, 0
        while self._unread:
            places = [place for seq in self._unread[-UNREAD_ROWS:] if (place := queue.find(seq)) is not None]
            if places:
                sizes = accumulate(place.size for place in places[1:])
                return places[:1] + [place for place, total in zip(places[1:], sizes, strict=True) if total <= size]
            del self._unread[-UNREAD_ROWS:]
        return []

    def _looked(self, messages: list[Message] | None) -> None:
        """Read; or copied forward meanwhile (None), and to be looked for again."""
        self._is_looking = False
        if messages is not None:
            if self._priority < PRIORITIES:
                self._at = messages[-1].seq
            else:
                seen = {message.seq for message in messages}
                self._unread = [seq for seq in self._unread if seq not in seen]
            for message in messages:
                self.came(message)
        self._core.dirty[self._queue] = None
        self._core.wake()
