"""Pager: brings messages that wait on disk into memory before consumers ask for them.

A queue's backlog keeps what it has until the bodies are here: a message is in its backlog or in `Queue.messages`, never
in both, never in neither. One read for a queue and priority at a time, off the event loop. Large messages are read one
by one, and beyond the memory limit only while no other large one is on its way.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import Any

from amq.broker.memory import MESSAGE_OVERHEAD_BYTES
from amq.broker.names import real_name
from amq.broker.queues.backlog import Place
from amq.broker.queues.queue import Queue
from amq.broker.queues.rows import Rows
from amq.broker.state.state import State
from amq.core.message import LARGE_BODY_BYTES, Message
from amq.journal.journal import Journal
from amq.journal.live import Segment
from amq.journal.reader import RecordRun

AHEAD_BYTES_MAX = 1 << 20  # read at once for one queue
AHEAD_ROWS = 2048
LOOK_BYTES_MIN = 64 << 10  # read at once by a browser, when there is no memory to spare
Looked = Callable[[list[Message] | None], None]
LookedAtRuns = Callable[[list[RecordRun | Message] | None], None]


class Pager:
    """Call `fetch` when a consumer waits, `fetch_ahead` when it soon will."""

    def __init__(self, state: State, journal: Journal, dirty: dict[Queue, None], wake: Callable[[], None]) -> None:
        """`dirty` = the queues to dispatch in this turn, `wake()` asks for one."""
        self.memory = state.memory
        self.page_in = state.page_in
        self._journal = journal
        self._dirty = dirty
        self._wake = wake
        self.waits = False
        self._under_way: set[tuple[Queue, int]] = set()
        self._hungry: dict[Queue, None] = {}
        self._brought: dict[Queue, int] = {}  # messages, by the last read
        self._reading_bytes = 0
        self._reading_large = 0  # reads that bring a large message
        self._bodies: deque[tuple[Queue, Message, Callable[[bytes], None]]] = deque()  # asked for with `fetch_body`
        self._reading_body = False
        self._looks: deque[tuple[Queue, list[Place] | Rows, Callable[[list[Any] | None], None]]] = deque()
        self._looking = False
        self._again: dict[Queue, None] = {}
        self._leaving: set[int] | None = None  # `Journal.leaving` of this turn, where somebody asked

    def fetch(self, queue: Queue, priority: int) -> None:
        """Read the oldest messages of that backlog."""
        if (queue, priority) in self._under_way:
            return
        ahead_bytes = self._ahead_bytes(queue)
        rows = max(1, min(AHEAD_ROWS, ahead_bytes // MESSAGE_OVERHEAD_BYTES))
        places = queue.backlogs[priority].head(ahead_bytes, rows) if ahead_bytes else []
        if places and self._has_room(places[0].size):
            self._read(queue, priority, places, partial(self._fetched, queue))
        else:
            self._hungry[queue] = None
            self.waits = True

    def fetch_ahead(self, queue: Queue) -> None:
        """Read on where less than half of the messages of the last read wait in memory."""
        priority = max(queue.backlogs)
        if 2 * len(queue.levels[priority]) < self._brought.get(queue, 1):
            self.fetch(queue, priority)

    def feed(self) -> None:
        """Call once a turn while something `waits`: a reader that lacked memory may try again where there is some."""
        self._next_body()
        self._next_look()
        self._dirty |= self._again
        self._again = {}
        self._leaving = None
        for queue in [queue for queue in self._hungry if self._ahead_bytes(queue)]:
            del self._hungry[queue]
            self._dirty[queue] = None
        self.waits = bool(self._bodies or self._looks or self._hungry)

    def take_expired(self, queue: Queue, now_ms: int, then: Callable[[list[Message]], None]) -> None:
        """Hand to `then` what waits on disk and is past its time."""
        for priority, backlog in queue.backlogs.items():
            if (queue, priority) not in self._under_way and (places := backlog.due(now_ms, AHEAD_ROWS)):
                sizes = accumulate(place.size for place in places)
                some = [place for place, size in zip(places, sizes, strict=True) if size < AHEAD_BYTES_MAX]
                if self._has_room(places[0].size):
                    self._read(queue, priority, some or places[:1], then)

    def is_reading(self, queue: Queue) -> bool:
        """Is anything of `queue` being read?"""
        return any((queue, priority) in self._under_way for priority in queue.backlogs)

    def lacks_memory(self, queue: Queue) -> bool:
        """Does a read of `queue` wait for memory that comes free by itself? Memory that consumers and open
        transactions hold does not: their client may wait for the answer to this question."""
        if queue not in self._hungry or not queue.backlogs:
            return False
        if self._ahead_bytes(queue):
            return True  # in the next turn, or when a large body is written
        if self._leaving is None:
            self._leaving = self._journal.leaving()
        return not queue.messages.keys().isdisjoint(self._leaving)

    def take_oldest(self, queue: Queue, size_bytes: int, then: Callable[[list[Message]], None]) -> None:
        """Hand to `then` the oldest waiting messages, of any priority, as far as they are on disk; nothing where that
        is being read already. They are in no level."""
        priority = min(queue.backlogs, key=lambda each: queue.backlogs[each].first)
        if (queue, priority) not in self._under_way:
            until = queue.oldest_beside(priority)
            head = queue.backlogs[priority].head(min(size_bytes, AHEAD_BYTES_MAX), AHEAD_ROWS)
            places = [place for place in head if place.seq < until]
            if self._has_room(places[0].size):
                self._read(queue, priority, places, then)

    def _ahead_bytes(self, queue: Queue) -> int:
        """How much may be read now. A queue of which nobody holds anything may always have its next message: what fills
        the memory may wait for that one."""
        is_held = len(queue.messages) > sum(map(len, queue.levels))
        return max(min(AHEAD_BYTES_MAX, self._free_bytes() // 4), 0 if is_held else 1)

    def _free_bytes(self) -> int:
        return self.memory.free_to_page_bytes - self._reading_bytes

    def _has_room(self, size: int) -> bool:
        """May a message of `size` be read now? A large one that does not fit may if it is the only one on its way:
        consumers that wait for nothing but their sockets make room in the end."""
        alone = self.memory.lent_bytes == 0 and self._reading_large == 0
        return size <= LARGE_BODY_BYTES or alone or size <= self._free_bytes()

    def _read(self, queue: Queue, priority: int, places: list[Place], then: Callable[[list[Message]], None]) -> None:
        key = (queue, priority)
        self._under_way.add(key)
        self._count(_sizes(places), 1)
        self._journal.reader.read([(place, queue.name) for place in places], partial(self._done, key, places, then))

    def _count(self, sizes: Sequence[int], sign: int) -> None:
        """A read begins or ends. Its messages take more memory than disk, small ones many times as much."""
        self._reading_bytes += sign * (sum(sizes) + len(sizes) * MESSAGE_OVERHEAD_BYTES)
        self._reading_large += sign * (max(sizes) > LARGE_BODY_BYTES)

    def _done(
        self,
        key: tuple[Queue, int],
        places: list[Place],
        then: Callable[[list[Message]], None],
        messages: list[Message] | None,
        error: Exception | None,
    ) -> None:
        self._under_way.discard(key)
        self._count(_sizes(places), -1)
        self._wake()  # somebody may wait for that memory
        queue, priority = key
        backlog = queue.backlogs.get(priority)
        if backlog is None:
            self._dirty[queue] = None  # all of it went meanwhile: consumers that waited may have others
            return
        if isinstance(error, FileNotFoundError) and any(backlog.find(place.seq) != place for place in places):
            self._dirty[queue] = None  # copied forward meanwhile, and their segment deleted: again
            self._wake()
            return
        if error is not None:
            self._journal.fail_reading(error)
            return
        assert messages is not None
        then(self.page_in(queue, messages))
        self._dirty[queue] = None  # whatever it was read for, a consumer may have waited for the end of this read

    def _fetched(self, queue: Queue, messages: list[Message]) -> None:
        if queue.backlogs:
            self._brought[queue] = len(messages)
        else:
            self._brought.pop(queue, None)
        queue.put_back(messages)

    # -- a single body ------------------------------------------------------------------------------------------------

    def fetch_body(self, queue: Queue, message: Message, then: Callable[[bytes], None]) -> None:
        """Read the body of `message`, which is stripped and in no backlog, no level and no consumer's hands. One such
        body at a time, when there is memory for it."""
        self._bodies.append((queue, message, then))
        self.waits = True
        self._wake()

    def after_bodies(self, then: Callable[[], None]) -> None:
        """Call `then` when the bodies that were asked for so far are read, at once where there are none."""
        if not self._bodies:
            then()
            return
        queue, message, before = self._bodies.pop()

        def go_on(body: bytes) -> None:
            before(body)
            then()

        self._bodies.append((queue, message, go_on))

    def _next_body(self) -> None:
        if self._bodies and not self._reading_body and self._has_room(self._bodies[0][1].size):
            queue, message, _ = self._bodies[0]
            place = _place(message)
            self._reading_body = True
            self._count([place.size], 1)
            self._journal.reader.read([(place, queue.name)], partial(self._body_read, place))

    def _body_read(self, place: Place, messages: list[Message] | None, error: Exception | None) -> None:
        self._reading_body = False
        self._count([place.size], -1)
        self._wake()
        _, message, then = self._bodies[0]
        if isinstance(error, FileNotFoundError) and _place(message) != place:
            return  # copied forward meanwhile, and its segment deleted: again
        if error is not None:
            self._journal.fail_reading(error)
            return
        assert messages is not None
        self._bodies.popleft()
        then(messages[0].body)

    # -- looking ------------------------------------------------------------------------------------------------------

    def again(self, queue: Queue) -> None:
        """Dispatch `queue` in the next turn too: there is much to do."""
        self._again[queue] = None
        self.waits = True
        self._wake()

    def look_bytes(self) -> int:
        """How much may be looked at together."""
        return max(LOOK_BYTES_MIN, min(AHEAD_BYTES_MAX, self._free_bytes() // 4))

    def look(self, queue: Queue, places: list[Place], then: Looked) -> None:
        """Read copies of messages, which stay where they are. None = look again: they were copied forward meanwhile.
        One look at a time in the whole broker, when there is memory for it."""
        self._looks.append((queue, places, then))
        self.waits = True
        self._wake()

    def look_at_runs(self, queue: Queue, rows: Rows, then: LookedAtRuns) -> None:
        """The same, but plain messages come in runs, as their records are there."""
        self._looks.append((queue, rows, then))
        self.waits = True
        self._wake()

    def _next_look(self) -> None:
        if self._looks and not self._looking and self._has_room(_sizes(self._looks[0][1])[0]):
            queue, what, _ = self._looks[0]
            self._looking = True
            self._count(_sizes(what), 1)
            name = real_name(queue.name)  # a hidden one's messages look as they did before
            if isinstance(what, Rows):
                self._journal.reader.read_runs(what.columns, name, self._looked)
            else:
                self._journal.reader.read([(place, name) for place in what], self._looked)

    def _looked(self, found: list[Any] | None, error: Exception | None) -> None:
        queue, what, then = self._looks.popleft()
        self._looking = False
        self._count(_sizes(what), -1)
        self._wake()
        places = what.places() if isinstance(what, Rows) else what
        if isinstance(error, FileNotFoundError) and any(_where(queue, place.seq) != place for place in places):
            then(None)
        elif error is not None:
            self._journal.fail_reading(error)
        else:
            then(found)


def _sizes(what: list[Place] | Rows) -> Sequence[int]:
    return what.sizes if isinstance(what, Rows) else [place.size for place in what]


def _where(queue: Queue, seq: int) -> Place | None:
    """Where in the journal a message stands that has not left `queue`."""
    message = queue.messages.get(seq)
    return _place(message) if message is not None else queue.find(seq)


def _place(message: Message) -> Place:
    assert isinstance(message.segment, Segment)
    return Place(message.seq, message.segment.code, message.offset, message.size)
