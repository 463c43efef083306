"""SelectorDispatch: which waiting message goes to which consumer, where that is not simply the first to the next one:
where consumers have selectors, or messages are in groups.

Each consumer has a cursor: the messages up to there have been looked at for it and are not for it. So none is looked at
twice for one consumer, unless it came back or something changed, and a message that nobody wants blocks nobody.
Messages that wait on disk alone are looked at in windows of at most 1 MiB, wherever a consumer's cursor stands, and
only those that are handed out are taken into memory. Messages are delivered by priority, then by seq, to each consumer.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from amq.broker.queues.backlog import NEVER
from amq.broker.queues.groups import Groups, ends_group
from amq.broker.queues.paging import Pager
from amq.broker.queues.queue import Dispatcher, Queue, Subscription
from amq.broker.selecting import Selecting
from amq.core.message import LARGE_BODY_BYTES, Message
from amq.selectors import Selector

STEPS_MAX = 5000  # messages looked at, and selectors asked, in one turn for one queue
WINDOW_ROWS = 2048
FEW = 8  # messages are taken out of a level one by one


class _Position:
    """How far one consumer is. `cursor` = seq by priority, `served` = when it got something last, in deliveries."""

    __slots__ = ("cursor", "served")

    def __init__(self, priorities: int) -> None:
        self.cursor = [0] * priorities
        self.served = 0


class _Window:
    """Messages that wait on disk, read to be looked at: those of one priority with seqs after `after`."""

    __slots__ = ("after", "is_large", "last", "messages", "priority")

    def __init__(self, priority: int, after: int, messages: list[Message]) -> None:
        self.priority = priority
        self.after = after
        self.last = messages[-1].seq
        self.is_large = messages[-1].size > LARGE_BODY_BYTES
        self.messages = {message.seq: message for message in messages}


class _Line:
    """Ready consumers, those of the highest priority first, and within a priority in turn."""

    def __init__(self) -> None:
        self._ranks: dict[int, dict[Subscription, None]] = {}
        self._order: list[int] = []  # negative priorities, ascending

    def __iter__(self) -> Iterator[Subscription]:
        for rank in self._order:
            yield from self._ranks[rank]

    def __bool__(self) -> bool:
        return bool(self._order)

    def __contains__(self, subscription: Subscription) -> bool:
        return subscription in self._ranks.get(-subscription.priority, ())

    def add(self, subscription: Subscription) -> None:
        """Last of its priority."""
        rank = -subscription.priority
        if rank not in self._ranks:
            self._ranks[rank] = {}
            insort(self._order, rank)
        self._ranks[rank][subscription] = None

    def remove(self, subscription: Subscription) -> None:
        rank = -subscription.priority
        del self._ranks[rank][subscription]
        if not self._ranks[rank]:
            del self._ranks[rank]
            self._order.remove(rank)


class SelectorDispatch:
    """Of one queue, while it is needed."""

    def __init__(self, queue: Queue, owner: Dispatcher, pager: Pager, selecting: Selecting) -> None:
        self.queue = queue
        self.groups = Groups(queue.options.group_buckets, len(queue.levels))
        self.positions: dict[Subscription, _Position] = {}
        self.far = [0] * len(queue.levels)  # no cursor is beyond, by priority
        self.steps = 0  # that are left in this turn
        self.deliveries = 0
        self.held_bytes = 0  # bytes of the window
        self.wants: list[tuple[int, int]] = []  # (priority, seq): windows after these are needed to go on
        self._owner = owner
        self._pager = pager
        self._selecting = selecting
        self._window: _Window | None = None
        self._looking = False
        self._turn = 0  # of those that want a window
        for subscription in queue.subscriptions:
            self.join(subscription)

    def is_needed(self) -> bool:
        """Would the queue go wrong without?"""
        return bool(self.groups) or any(each.selector is not None for each in self.queue.subscriptions)

    def join(self, subscription: Subscription) -> None:
        """A new consumer: it has seen nothing yet."""
        is_known = self.groups.claim(subscription)  # elsewhere: its queue comes from there
        if self.queue.options.group_rebalance and not is_known:
            for owner in self.groups.owners():
                self.groups.move(self.groups.of(owner), self.positions[owner].cursor)
        self.positions[subscription] = _Position(len(self.far))

    def leave(self, subscription: Subscription) -> None:
        """A consumer has gone and holds nothing, but for what is in open transactions. Call again when these end: until
        then its groups are nobody's."""
        position = self.positions.get(subscription)
        if position is not None:
            self.groups.move(self.groups.of(subscription), position.cursor)
            self.free_groups()
            if not subscription.in_transactions:
                del self.positions[subscription]

    def known(self) -> dict[str, list[int]]:
        """See `Groups.known`."""
        return self.groups.known()

    def expect(self, known: Mapping[str, Sequence[int]]) -> None:
        """See `Groups.expect`. Consumers that are here get their buckets now."""
        self.groups.expect(known)
        for subscription in self.positions:
            self.groups.claim(subscription)

    def expect_nobody(self) -> None:
        """Messages that still waited for their consumer are for any consumer."""
        for priority, seq in enumerate(self.groups.expect_nobody()):
            self.came(priority, seq)

    def close(self) -> None:
        """Let go of everything: the queue needs this dispatch no longer."""
        self._set_window(None)

    def came(self, priority: int, seq: int) -> None:
        """A message is in the queue, new or again."""
        if seq <= self.far[priority]:
            self.far[priority] = seq - 1
            for position in self.positions.values():
                position.cursor[priority] = min(position.cursor[priority], seq - 1)

    def free_groups(self) -> None:
        """Messages that waited for the owners of groups that are free now are for any consumer."""
        for priority, seq in enumerate(self.groups.freed()):
            self.came(priority, seq)

    @property
    def is_looking(self) -> bool:
        """Is it reading a window of the messages on disk, or does it go on in the next turn?"""
        return self._looking or self.steps <= 0

    def dispatch(self, now_ms: int) -> None:
        """Hand out messages that a consumer with room wants."""
        queue = self.queue
        self.free_groups()
        self.steps = self._selecting.take(STEPS_MAX)
        self.wants = []
        expired: list[Message] = []
        if queue.guests:
            queue.park_guests()
        in_line = [each for each in (*queue.ready, *queue.outranked) if queue.exclusive in (None, each)]
        in_line.sort(key=lambda each: self.positions[each].served)
        for priority in range(len(queue.levels) - 1, -1, -1):
            if in_line and (queue.levels[priority] or priority in queue.backlogs):
                scan = _Scan(self, self._owner, self._pager, priority, in_line, now_ms)
                scan.run()
                expired += scan.expired
                in_line = [each for each in in_line if each.is_ready and each not in scan.blocked]
        if expired:
            self._owner.expire(queue, expired)
        if queue.guests:
            queue.park_guests()
        if self.steps <= 0:
            self._pager.again(queue)
        self._selecting.left += self.steps
        self._look()

    # -- what waits on disk alone -------------------------------------------------------------------------------------

    def seen(self, priority: int, at: int, seq: int) -> Message | None:
        """The message with that seq, which waits on disk, for a consumer that has looked up to `at`; None = a window
        after `at` is needed."""
        window = self._window
        if window is None or window.priority != priority or window.after > at:
            return None
        return window.messages.get(seq)

    def take(self, message: Message) -> None:
        """A message of the window is going to be delivered."""
        assert self._window is not None
        del self._window.messages[message.seq]  # if it comes back it is looked for again: its body may be a socket's
        self._pager.page_in(self.queue, [message])
        self._release(message.size)

    def _look(self) -> None:
        """Read the next window. Consumers that want one elsewhere get theirs in turn."""
        window = self._window
        if window is not None and (self._is_passed(window) or (window.is_large and not self.queue.ready)):
            self._set_window(None)
        if self.wants and not self._looking:
            self._turn += 1
            priority, at = self.wants[self._turn % len(self.wants)]
            pager = self._pager
            places = self.queue.backlogs[priority].after(at, NEVER, pager.look_bytes(), WINDOW_ROWS)
            self._looking = True
            pager.look(self.queue, places, partial(self._looked, priority, at))

    def _is_passed(self, window: _Window) -> bool:
        return all(each.cursor[window.priority] >= window.last for each in self.positions.values())

    def _looked(self, priority: int, after: int, messages: list[Message] | None) -> None:
        self._looking = False
        if self.queue.selection is self and messages is not None:
            self._set_window(_Window(priority, after, messages))
        self._pager.again(self.queue)

    def _set_window(self, window: _Window | None) -> None:
        self._release(self.held_bytes)
        self._window = window
        if window is not None:
            self.held_bytes = sum(message.size for message in window.messages.values())
            self._pager.memory.take(self.held_bytes)

    def _release(self, size: int) -> None:
        self.held_bytes -= size
        self._pager.memory.give_back(size)


class _Scan:
    """One walk over the waiting messages of one priority, from where the hindmost consumer is.

    pending   those whose cursors are further, the nearest last; they are asked from there on
    blocked   consumers that need a window of the messages on disk
    """

    def __init__(
        self,
        selection: SelectorDispatch,
        owner: Dispatcher,
        pager: Pager,
        priority: int,
        in_line: list[Subscription],
        now_ms: int,
    ) -> None:
        self._selection = selection
        self._dispatcher = owner
        self._pager = pager
        self._queue = selection.queue
        self._positions = selection.positions
        self._priority = priority
        self._now_ms = now_ms
        self._level = selection.queue.levels[priority]
        self._asked = _Line()
        # A stable sort: of those that are equally far the first in line is asked first.
        self._pending = [*reversed(in_line)]
        self._pending.sort(key=lambda each: -self._positions[each].cursor[priority])
        self._taken: set[int] = set()
        self._at = 0  # everything up to here was looked at
        self._row = 0  # of the level, which comes next
        self.blocked: set[Subscription] = set()
        self.expired: list[Message] = []

    def run(self) -> None:
        """Until everything was looked at, nobody is ready or the turn is over."""
        selection, priority, level = self._selection, self._priority, self._level
        while selection.steps > 0 and (self._asked or self._pending):
            if not self._asked:
                self._at = self._positions[self._pending[-1]].cursor[priority]
                self._row = bisect_right(level, self._at, key=_seq)
            backlog = self._queue.backlogs.get(priority)
            on_disk = backlog.seq_after(self._at) if backlog else NEVER
            in_memory = level[self._row].seq if self._row < len(level) else NEVER
            seq = min(on_disk, in_memory)
            if seq == NEVER:
                break
            while self._pending and self._positions[self._pending[-1]].cursor[priority] < seq:
                self._asked.add(self._pending.pop())
            if in_memory == seq:
                message: Message | None = level[self._row]
                self._row += 1
            else:
                message = selection.seen(priority, self._at, seq)
            if message is None:
                selection.wants.append((priority, self._at))
                self.blocked.update(self._asked)
                self._pass(list(self._asked))
                continue
            selection.steps -= 1
            self._at = seq
            self._offer(message)
        self._pass(list(self._asked))
        selection.far[priority] = max(selection.far[priority], self._at)
        self._take_out()

    def _offer(self, message: Message) -> None:
        selection = self._selection
        if message.expires_ms and message.expires_ms <= self._now_ms:
            self._take(message)
            self.expired.append(message)
            return
        bucket = selection.groups.bucket(message)
        subscription = self._owner(message, bucket) if selection.groups.is_owned(bucket) else self._first(message)
        if subscription is None:
            return
        self._take(message)
        if bucket >= 0:
            selection.groups.own(bucket, subscription)
        self._deliver(subscription, message)
        if bucket >= 0 and ends_group(message):
            cursor = list(self._positions[subscription].cursor)
            cursor[self._priority] = self._at
            selection.groups.move([bucket], cursor)
            if subscription.auto:  # it holds nothing: nothing else would come back to this
                self._pager.again(self._queue)
        if not subscription.is_ready:  # nor the others of its connection, if their socket is full
            self._pass([each for each in self._asked if not each.is_ready])

    def _owner(self, message: Message, bucket: int) -> Subscription | None:
        """The owner of the group, if it can take the message now."""
        owner = self._selection.groups.owner(bucket)
        if owner is not None and (owner.selector is None or owner.selector.matches(message)):
            return owner if owner in self._asked else None
        self._selection.groups.skip(bucket, self._priority, message.seq)
        return None

    def _first(self, message: Message) -> Subscription | None:
        """The first consumer in line that wants the message."""
        refused: set[Selector] = set()
        for subscription in self._asked:
            selector = subscription.selector
            if selector is None:
                return subscription
            if selector not in refused:
                self._selection.steps -= selector.steps
                if selector.matches(message):
                    return subscription
                refused.add(selector)
        return None

    def _take(self, message: Message) -> None:
        if message.seq in self._queue.messages:
            self._taken.add(message.seq)
        else:
            self._selection.take(message)

    def _deliver(self, subscription: Subscription, message: Message) -> None:
        selection, queue = self._selection, self._queue
        selection.deliveries += 1
        self._positions[subscription].served = selection.deliveries
        self._asked.remove(subscription)
        self._asked.add(subscription)
        subscription.spend()
        if subscription.credit <= 0:
            subscription.make_unready()
        before = queue.redelivered.get(message.seq)
        if subscription.auto:
            self._dispatcher.consumed(queue, message)
        else:
            subscription.unacked[message.seq] = message
        subscription.peer.deliver(subscription, message, before[0] if before else 0)

    def _pass(self, subscriptions: list[Subscription]) -> None:
        """They are asked no more; everything up to here was looked at for them."""
        for subscription in subscriptions:
            self._asked.remove(subscription)
            self._positions[subscription].cursor[self._priority] = self._at

    def _take_out(self) -> None:
        """The messages that were taken leave the level."""
        level, taken = self._level, self._taken
        while level and level[0].seq in taken:
            taken.discard(level.popleft().seq)
        if len(taken) <= FEW:
            for seq in taken:
                del level[bisect_left(level, seq, key=_seq)]
            return
        start = bisect_left(level, min(taken), key=_seq)  # nobody wants what is before, which may be very much
        tail = [level.pop() for _ in range(len(level) - start)]
        level.extend(message for message in reversed(tail) if message.seq not in taken)


def _seq(message: Message) -> int:
    return message.seq
