"""Translating: deliveries whose bodies take longer to show to a client than the event loop may wait: a compressed body
that swells, or a large map, for a consumer of another protocol.

A thread makes them ready, one at a time for the whole broker, and consumers of one message share the result. Meanwhile
the connection gets no other deliveries, as if its socket were full, so that these keep their order. Invariants:
`Memory` counts each body from before it is made until its consumer's socket has it; the next one is begun where there
is memory for the largest, or when none is held.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable
from typing import Any, NamedTuple, Protocol

from amq.broker.memory import Memory
from amq.broker.recipient import QueueConsumer
from amq.core.message import LARGE_BODY_BYTES, THREAD_BYTES_MAX, Content, Message, bare, with_content
from amq.doors.threads import JobRunner
from amq.protocols.codec import Codec

Translate = Callable[[Message], Message]  # for one kind of consumers; equal ones are equal


class HeldBody:
    """The memory of a body that is ready: `size` bytes, and how many connections have not written it yet."""

    __slots__ = ("holders", "size")

    def __init__(self, size: int, holders: int) -> None:
        self.size = size
        self.holders = holders


Then = Callable[[Message, HeldBody], None]


class _Job(NamedTuple):
    message: Message
    translate: Translate
    then: list[Then]


class Translator:
    """The thread of one broker, which `make_runner` makes when it is needed for the first time."""

    def __init__(self, memory: Memory, make_runner: Callable[[], JobRunner], freed: Callable[[], None]) -> None:
        self._memory = memory
        self._make_runner = make_runner
        self._freed = freed
        self._runner: JobRunner | None = None
        self._jobs: dict[Hashable, _Job] = {}  # in the order in which they were asked for
        self._is_busy = False
        self.held_bytes = 0  # of bodies that are ready, and not yet written
        self._is_closed = False

    def ask(self, message: Message, translate: Translate, then: Then) -> None:
        """Call `then` when `message` is ready. The caller gives the memory back by `release`."""
        parts = message.body, message.properties, message.envelope
        key = (message.seq, message.destination, translate, *map(id, parts))  # of objects that the job holds
        job = self._jobs.get(key)
        if job is None:
            self._jobs[key] = _Job(message, translate, [then])
            self.step()
        else:
            job.then.append(then)

    def release(self, held: HeldBody) -> None:
        """One of those who have that body needs it no more."""
        held.holders -= 1
        if not held.holders:
            self.held_bytes -= held.size
            self._memory.give_back(held.size)
            self._freed()
            self.step()

    def step(self) -> None:
        """Begin the next one, where there is memory. Call every second or so, too."""
        memory = self._memory
        has_room = memory.taken_bytes + THREAD_BYTES_MAX <= memory.limit_bytes
        if self._is_busy or self._is_closed or not self._jobs or not (has_room or not self.held_bytes):
            return
        if self._runner is None:
            self._runner = self._make_runner()
        self._is_busy = True
        memory.take(THREAD_BYTES_MAX)
        key, job = next(iter(self._jobs.items()))
        message, translate = job.message, job.translate
        self._runner.submit(lambda: translate(message), lambda found, error: self._done(key, found, error))

    def _done(self, key: Hashable, found: Message | None, error: Exception | None) -> None:
        """An error is not a mistake of the client: its consumers get the body as it came, which is better than none."""
        self._is_busy = False
        self._memory.give_back(THREAD_BYTES_MAX)
        job = self._jobs.pop(key)
        if self._is_closed:
            return
        ready = bare(job.message) if found is None or error is not None else found
        held = HeldBody(len(ready.body) + ready.header_bytes, len(job.then))
        self.held_bytes += held.size
        self._memory.take(held.size)
        for then in job.then:
            then(ready, held)
        self._freed()
        self.step()

    def close(self) -> None:
        """Translate no more bodies."""
        self._is_closed = True
        if self._runner is not None:
            self._runner.close()

    def is_alive(self) -> bool:
        return self._runner is not None and self._runner.is_alive()


class Waker(Protocol):
    def wake(self) -> None: ...


class Lender(Protocol):
    """The broker, as far as its connections need it here."""

    translator: Translator

    @property
    def turn(self) -> Waker: ...
    def lend(self, queue: Any, message: Message) -> int: ...
    def take_back(self, size: int) -> None: ...


class _Waiting(NamedTuple):
    codec: Codec
    subscription: QueueConsumer
    message: Message
    redelivered: int
    lent_bytes: int  # of a large body as it came


class Later:
    """The deliveries of one connection that are being made ready, in order. `write` takes the pieces of each, unless
    its consumer has ended."""

    def __init__(self, lender: Lender, write: Callable[[Iterable[bytes]], None]) -> None:
        self._lender = lender
        self._write = write
        self._waiting: deque[_Waiting] = deque()
        self._held: list[HeldBody] = []  # of what was delivered, and is not yet written
        self._is_closed = False

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, codec: Codec, subscription: QueueConsumer, message: Message, redelivered: int) -> None:
        """`message` may leave its queue, or its body the memory, before it is ready."""
        if self._is_closed:
            return
        content = Content(message.content, message.body, message.content_type)
        held = with_content(message, content, message.properties, message.envelope)
        large = len(message.body) > LARGE_BODY_BYTES
        lent_bytes = self._lender.lend(subscription.queue, message) if large else 0
        self._waiting.append(_Waiting(codec, subscription, held, redelivered, lent_bytes))
        if len(self._waiting) == 1:
            self._ask()

    def _ask(self) -> None:
        first = self._waiting[0]
        translate = first.codec.translation(first.subscription.wire)
        self._lender.translator.ask(first.message, translate, self._ready)

    def _ready(self, message: Message, held: HeldBody) -> None:
        if self._is_closed:
            self._lender.translator.release(held)
            return
        first = self._waiting.popleft()
        if first.lent_bytes:
            self._lender.take_back(first.lent_bytes)
        if first.subscription.ended:
            self._lender.translator.release(held)
            self._write([first.codec.heartbeat()])  # so the connection goes on as behind any other output
        else:
            self._held.append(held)
            self._write(first.codec.large_delivery(first.subscription.wire, message, first.redelivered))
        self._lender.turn.wake()
        if self._waiting:
            self._ask()

    def written(self) -> None:
        """The client's socket has all that was delivered."""
        held, self._held = self._held, []
        for each in held:
            self._lender.translator.release(each)

    def close(self) -> None:
        """There is nobody any more to whom anything could be delivered."""
        self._is_closed = True
        self.written()
        for each in self._waiting:
            self._lender.take_back(each.lent_bytes)
        self._waiting.clear()
