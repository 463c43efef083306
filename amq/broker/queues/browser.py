"""Browser: looks at the messages of a queue in the order of delivery, and disturbs nothing.

Invariant: browsing changes no message, no count and no place. It shows what was stored when it began and is still there
when its turn comes, once each: also what consumers hold, also what waits on disk alone. An acknowledgement that came
before it is in effect. It goes as far as the client takes messages, and keeps in memory one batch read from the disk,
and 8 bytes for each message that is in memory. To begin, it sorts at most `SORT_ROWS` of these in a turn. Browses share
what one may do in a turn: see `viewing`.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice

from amq.broker.actions import Action
from amq.broker.core import Core
from amq.broker.memory import cost
from amq.broker.queues.backlog import NEVER, Place
from amq.broker.queues.queue import PRIORITIES, ConsumerOwner, Fetching, Queue, Subscription
from amq.broker.waiters import Call
from amq.core.destination import TEMPORARY_QUEUE_SCHEME, Pattern, Source
from amq.core.message import LARGE_BODY_BYTES, Message
from amq.journal.live import Segment
from amq.protocols.commands import Range, Subscribe

STEP_MESSAGES = 1000  # looked at in one turn
LOOK_ROWS = 2048
SORT_ROWS = 2000
_ALL = Range()
_SEEN = Message("", b"")  # stands for what was shown and not acknowledged


class Browser(Subscription):
    """One browse of the queues that `command` names. Acknowledgements make room for more, and do nothing else."""

    shows_expired = False
    step_messages = 0  # looked at in one turn; 0 = STEP_MESSAGES
    __slots__ = (
        "_batch",
        "_core",
        "_here",
        "_is_new",
        "_later",
        "_looking",
        "_moved",
        "_priority",
        "_range",
        "_seq",
        "_stored_until",
        "_unsorted",
        "_until",
        "_waits",
        "done",
    )

    def __init__(
        self, command: Subscribe, core: Core, owner: ConsumerOwner, prefetch: int, queue: Queue | None = None
    ) -> None:
        """`queue` = the one to be looked at, None = those that `command` names."""
        assert command.browse is not None
        later: list[str] = []
        if queue is None:
            first, *later = _queues(core, command.sources[0], owner)
            queue = core.state.queue(first)
        super().__init__(command, queue, owner, prefetch, core.message_id_prefix)
        self._core = core
        self._later = deque(later)
        self._waits = True  # for acknowledgements that are on their way to the journal
        core.journal.confirm(Call(self._begin, lambda _: self._begin()))
        self._batch: deque[Message] = deque()  # read from the disk, to be shown next
        self._looking = False
        self._range = command.browse.range or _ALL
        self._priority = PRIORITIES - 1
        self._seq = 0  # everything of that priority up to here was shown, or is in `_batch`
        self._here: list[array[int]] = [array("Q") for _ in range(PRIORITIES)]
        self._unsorted: Iterator[int] | None = None  # those that were in memory at the beginning, and belong there
        self._moved: set[int] = set()  # seqs that a prepared transaction brought during this browse
        self.done = False
        self._join(self.queue)
        # What is sent to a temporary queue comes there at the end of the turn.
        self._is_new = queue.name.startswith(TEMPORARY_QUEUE_SCHEME)
        if not self._is_new:
            self._mark()

    def _begin(self) -> None:
        """All that was written before it has taken effect."""
        self._waits = False
        self._core.dirty[self.queue] = None
        self._core.wake()

    @property
    def held_bytes(self) -> int:
        """Bytes that it keeps in memory."""
        return sum(map(cost, self._batch))

    @property
    def position(self) -> tuple[int, int]:
        """Priority and seq up to which everything was shown: where another browse can go on."""
        return self._priority, self._batch[0].seq - 1 if self._batch else self._seq

    def make_ready(self) -> None:
        self.is_ready = True

    def make_unready(self) -> None:
        self.is_ready = False

    def looks(self, core: Fetching) -> bool:  # noqa: ARG002
        return not self.done

    def end(self) -> None:
        """The browse ends. Again = nothing."""
        if not self.done:
            self.done = self.ended = True
            self._core.memory.give_back(self.held_bytes)
            self._batch.clear()
            self._unsorted = None
            self._leave()

    def paged_in(self, messages: list[Message]) -> None:
        """Messages of the queue, of one priority, are in memory and no more on disk alone."""
        priority = messages[0].priority
        if priority <= self._priority:
            _insert(self._here[priority], sorted({each.seq for each in messages if each.seq < self._stored_until}))

    def moved_in(self, seqs: list[int]) -> None:
        """The messages of a prepared transaction wait in this queue now, on disk. A browse that has passed some of
        their places shows none of them; one that has not begun, all."""
        if self._seq or self._looking or self._priority < PRIORITIES - 1:
            self._moved.update(seqs)

    def may_show(self) -> bool:
        """Is there room, and nothing to wait for?"""
        if self._is_new and not self._waits and not self.done:
            self._is_new = False
            self._mark()
        is_ready = self.is_ready and self.credit > 0 and not (self.done or self._waits or self._looking)
        if not is_ready or self._core.is_held(self.queue):
            return False
        if self._unsorted is not None:  # on with that in the next turn
            self._sort_some(self._unsorted)
            self._core.pager.again(self.queue)
            return False
        return True

    def step(self, now_ms: int) -> None:
        """Show on as far as there is room. Once a turn."""
        if not self.may_show():
            return
        viewing, most = self._core.viewing, self.step_messages or STEP_MESSAGES
        steps = self.selector.steps if self.selector is not None else 1  # a selector may cost as much as several rows
        rows = max(1, viewing.share(most) // steps)
        shown = self._show(rows, now_ms)
        viewing.spend(shown * steps, most)
        if shown == rows:
            self._core.pager.again(self.queue)

    def _show(self, rows: int, now_ms: int) -> int:
        """Look at this many of the next messages; fewer where it must wait. Returns at how many."""
        for row in range(rows):
            if row and not self.may_show():
                return row
            message = self._next()
            if message is None:
                continue
            queue, seq = self.queue, message.seq
            if seq in self._moved:
                continue
            if message.expires_ms and message.expires_ms <= now_ms and not self.shows_expired:
                continue
            if self.selector is not None and not self.selector.matches(message):
                continue
            before = queue.redelivered.get(seq)
            self.spend()
            if not self.auto:
                self.unacked[seq] = _SEEN
            self.peer.deliver(self, message, before[0] if before else 0)
        return rows

    def _mark(self) -> None:
        """Messages that come from now on are not shown, nor those on their way: of a transaction that takes effect in
        slices, or in several queues, they would be a part."""
        self._stored_until = self._core.oldest_on_its_way()
        self._until = self._core.next_seq()
        self._enter(self.queue)

    def _join(self, queue: Queue) -> None:
        self.queue = queue
        queue.browsers = (*queue.browsers, self)
        self._core.dirty[queue] = None

    def _enter(self, queue: Queue) -> None:
        """Begin with `queue`, which it has joined."""
        self._priority, self._seq = self._range.after or (PRIORITIES - 1, 0)
        self._moved = set()
        self._here = [array("Q") for _ in range(PRIORITIES)]
        self._unsorted = iter([*queue.messages])
        self._sort_some(self._unsorted)

    def _sort_some(self, unsorted: Iterator[int]) -> None:
        """The next of them go to their places. A message that has left the memory meanwhile is not lost: it is found on
        disk, or comes back by `paged_in`."""
        messages, (after, until) = self.queue.messages, self._range
        first, last = 0, NEVER
        if after is not None and until is not None and after[0] == until[0]:
            first, last = after[1], until[1]
        viewing = self._core.viewing
        share = viewing.share(SORT_ROWS)
        seqs = [*islice(unsorted, share)]
        viewing.spend(len(seqs), SORT_ROWS)
        if len(seqs) < share:
            self._unsorted = None
        found: list[list[int]] = [[] for _ in range(PRIORITIES)]
        for seq in seqs:
            message = messages.get(seq) if first < seq <= last else None
            if message is not None and (message.segment is None or seq < self._stored_until):
                found[message.priority].append(seq)
        for here, some in zip(self._here, found, strict=True):
            _insert(here, sorted(some))

    def _next(self) -> Message | None:
        """The next message; None = there may be one behind what was looked at just now, or the browse is over."""
        queue = self.queue
        if self._batch:
            message = self._from_batch()
            stays = message.seq in queue.messages or queue.find(message.seq) is not None
            return message if stays else None
        here = self._here[self._priority]
        row = bisect_right(here, self._seq)
        in_memory = here[row] if row < len(here) else NEVER
        backlog = queue.backlogs.get(self._priority)
        on_disk = backlog.seq_after(self._seq) if backlog else NEVER
        if on_disk >= self._stored_until:
            on_disk = NEVER
        stop = self._stop()
        if min(in_memory, on_disk) > self._until:
            self._go_on()
        elif min(in_memory, on_disk) >= stop:
            self._finish()
        elif backlog and on_disk <= in_memory:
            # The same: it went back to the disk meanwhile.
            until = min(max(in_memory, on_disk + 1), self._stored_until, stop)
            self._look(backlog.after(self._seq, until, self._core.pager.look_bytes(), LOOK_ROWS))
        else:
            return self._from_memory(in_memory)
        return None

    def _stop(self) -> int:
        """The seq before which the range ends in this priority."""
        if self._range.until is None:
            return NEVER
        priority, seq = self._range.until
        return seq + 1 if self._priority == priority else NEVER if self._priority > priority else 0

    def _from_batch(self) -> Message:
        message = self._batch.popleft()
        self._core.memory.give_back(cost(message))
        return message

    def _from_memory(self, seq: int) -> Message | None:
        message = self.queue.messages.get(seq)
        if message is None or not message.is_stripped:
            self._seq = seq
            return detached(message) if message is not None else None
        assert isinstance(message.segment, Segment)
        self._look([Place(seq, message.segment.code, message.offset, message.size)])
        return None

    def _look(self, places: list[Place]) -> None:
        self._looking = True
        self._core.pager.look(self.queue, places, self._looked)

    def _looked(self, messages: list[Message] | None) -> None:
        """Read; or copied forward meanwhile (None), and to be looked for again."""
        self._looking = False
        if messages is not None and not self.done:
            self._seq = messages[-1].seq
            self._batch.extend(messages)
            self._core.memory.take(self.held_bytes)
        self._core.dirty[self.queue] = None
        self._core.wake()

    def _go_on(self) -> None:
        """With the next lower priority, the next queue, or not at all."""
        if self._priority:
            self._priority -= 1
            self._seq = 0
            return
        while self._later:
            queue = self._core.state.queues.get(self._later.popleft())
            if queue is not None and self.owner.may(Action.BROWSE, queue.name):
                self._leave()
                self._join(queue)
                self._enter(queue)
                return
        self._finish()

    def _finish(self) -> None:
        self.end()
        self.peer.browsed(self)

    def _leave(self) -> None:
        self.queue.browsers = tuple(each for each in self.queue.browsers if each is not self)
        self._core.state.emptied[self.queue] = None


def _insert(here: array[int], seqs: Sequence[int]) -> None:
    """Put `seqs`, ascending, into `here`, which is sorted and stays so, each once."""
    at = 0
    while at < len(seqs):
        row = bisect_left(here, seqs[at])
        if row == len(here):
            here.extend(seqs[at:])
            return
        if here[row] == seqs[at]:
            at += 1
            continue
        end = bisect_left(seqs, here[row], at)
        here[row:row] = array("Q", seqs[at:end])
        at = end


def _queues(core: Core, source: Source, owner: ConsumerOwner) -> list[str]:
    """Names of the queues that are meant: one, or by a pattern such as `queue://DLQ.>` all that are there now and that
    the user of `owner` may browse."""
    if isinstance(source, Pattern):
        meant = filter(source.stands_for, core.state.queues)
        return sorted(name for name in meant if owner.may(Action.BROWSE, name)) or [str(source)]
    return [source]


def detached(message: Message) -> Message:
    """For a socket that takes its time: a large one of the queue may leave the memory meanwhile, so it is copied."""
    if len(message.body) <= LARGE_BODY_BYTES:
        return message
    return Message.made_of(message, message.destination, message.properties, message.seq)
