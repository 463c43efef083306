"""Operations: what an operator changes. Each works in steps of a bounded part of a queue, with a turn of the broker
between, and says how much it did.

Invariants: a message that is moved is at every moment in exactly one of the two queues, also after a crash, because the
record that stores it there takes it out here. Messages that consumers hold stay where they are. Messages that come
meanwhile are left alone: an operation ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from itertools import islice
from typing import Final

from amq.broker.broker import Broker
from amq.broker.names import check_queue, is_topic
from amq.broker.queues.queue import Queue
from amq.broker.queues.redelivery import CAUSE as CAUSE
from amq.core.destination import QUEUE_SCHEME, wire_name
from amq.core.errors import AccessError, AmqError, CommandError, StoreFullError
from amq.core.message import ORIGINAL_DESTINATION, Message, Sharing, without
from amq.journal.records import ACKED, PURGED, Consumed, Group
from amq.management.messages import FoundMessage, Look, message_of, origin_of, seq_of, take, take_seqs

STEP_MESSAGES: Final = 100
STEP_BYTES: Final = 64 << 10  # of messages in memory that a purge takes at once
MOVE_MESSAGES: Final = 32
ALL: Final = 1 << 62
REASON, DELIVERIES, EXPIRES = "dead-letter-reason", "dead-letter-deliveries", "original-expires"
_OF_DEAD_LETTERS: Final = frozenset({ORIGINAL_DESTINATION, REASON, DELIVERIES, EXPIRES, CAUSE})
Target = Callable[[Message], str]  # full name of the queue to which a message goes, "" = it stays


class Done:
    """A waiter that an operation awaits."""

    def __init__(self) -> None:
        self._future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(self, result: str = "") -> None:  # noqa: ARG002
        if not self._future.done():
            self._future.set_result(None)

    def failed(self, error: Exception) -> None:
        if not self._future.done():
            self._future.set_exception(error)

    async def wait(self) -> None:
        """Wait until the operation is durable. Raises its error."""
        await self._future


@dataclass(frozen=True, slots=True)
class Selected:
    """The messages of a queue that are meant: those with `ids`, where there are any; of them what `selector` selects;
    at most `limit`."""

    ids: tuple[str, ...] = ()
    selector: str = ""
    limit: int = ALL

    @property
    def is_everything(self) -> bool:
        return not self.ids and not self.selector and self.limit == ALL


async def purge(broker: Broker, queue: Queue, selected: Selected) -> int:
    """Delete messages of `queue`. Returns how many."""
    if selected.is_everything:
        return await _purge_all(broker, queue)
    count = 0
    async with aclosing(_looked_at(broker, queue, selected)) as parts:
        async for found in parts:
            await _free(broker, queue)
            seqs = {each.message.seq for each in found}
            count += await _drop(broker, queue, take_seqs(broker, queue, seqs))
    return count


async def _purge_all(broker: Broker, queue: Queue) -> int:
    until, count = broker.newest_seq, 0
    while True:
        await _free(broker, queue)
        taken = _next_ones(broker, queue, until)
        if not taken:
            return count
        count += await _drop(broker, queue, taken)


def _next_ones(broker: Broker, queue: Queue, until: int) -> list[Message]:
    """Some that wait in `queue` and came up to `until`; none where nothing is left. They are in no line."""
    late = list(islice((seq for seq in queue.delayed if seq <= until), STEP_MESSAGES))
    taken = [queue.delayed.pop(seq)[1] for seq in late] or queue.take_oldest(STEP_BYTES)
    if not taken and queue.backlogs:
        backlog = min(queue.backlogs.values(), key=lambda each: each.first)
        places = backlog.head(ALL, STEP_MESSAGES)
        taken = broker.state.take_from_disk(queue, {place.seq for place in places if place.seq <= until})
    newer = [message for message in taken if message.seq > until]
    if newer:
        _put_back(broker, queue, newer)
    return [message for message in taken if message.seq <= until]


async def _drop(broker: Broker, queue: Queue, messages: list[Message]) -> int:
    """`messages`, which are in no line, leave for good. Returns how many when that is durable."""
    seqs = [message.seq for message in messages if message.segment is not None]
    for message in messages:
        if message.segment is None:
            broker.state.remove(queue, message)
    done = Done()
    if seqs:
        broker.journal.append_record(Consumed(queue.name, PURGED, sorted(seqs)))
    broker.journal.confirm(done)
    broker.wake()
    await done.wait()
    return len(messages)


async def move(broker: Broker, queue: Queue, selected: Selected, target: Target) -> int:
    """Messages of `queue` go to where `target` says. Returns how many. Raises StoreFullError."""
    count = 0
    async with aclosing(_looked_at(broker, queue, selected)) as parts:
        async for found in parts:
            await _free(broker, queue)
            going = [(each.message, name) for each in found if (name := target(each.message))]
            count += await _move_some(broker, queue, going)
    return count


async def _move_some(broker: Broker, queue: Queue, going: list[tuple[Message, str]]) -> int:
    for message, name in going:
        check_room(broker, message, name)
    names = {message.seq: name for message, name in going}
    taken = take(broker, queue, [message for message, _ in going])
    if not taken:
        return 0
    made = [_made(broker, message, body, names[message.seq]) for message, body in taken]
    try:
        done = _append(broker, queue, [message for message, _ in taken], made)
    except AmqError:  # together they are too large for a record: nothing was done
        _put_back(broker, queue, [message for message, _ in taken])
        raise
    await done.wait()
    return len(taken)


def _put_back(broker: Broker, queue: Queue, messages: list[Message]) -> None:
    broker.wait_again(queue, messages)
    broker.dirty[queue] = None
    broker.wake()


def _append(broker: Broker, queue: Queue, taken: list[Message], made: list[Message]) -> Done:
    """All of `taken` leave, and `made` come in their place."""
    done = Done()
    seqs = [message.seq for message in taken if message.segment is not None]
    stored = [message for message in made if message.persistent]
    if stored or seqs:
        group = Group([*stored, *([Consumed(queue.name, ACKED, seqs)] if seqs else [])])
        try:
            broker.append_group(group).confirms.append((done, group))
        except AmqError:
            for message in made:
                broker.memory.free(message)
            raise
    else:
        done.done()
    for message in made:
        if not message.persistent:
            broker.state.store(message, None)
    for message in taken:
        if message.segment is None:
            broker.state.remove(queue, message)
    broker.wake()
    return done


async def copy(broker: Broker, queue: Queue, selected: Selected, name: str) -> int:
    """Messages of `queue` are in that other queue as well. Returns how many."""
    count = 0
    async with aclosing(_looked_at(broker, queue, selected)) as parts:
        async for found in parts:
            for each in found:
                check_room(broker, each.message, name)
            made = [_made(broker, each.message, each.message.body, name) for each in found]
            await _append(broker, queue, [], made).wait()
            count += len(made)
    return count


async def send(broker: Broker, message: Message) -> None:
    """As a client's message, with diverts and composites; returns when it is safe. Raises StoreFullError."""
    message.timestamp_ms = broker.clock.wall_ms()
    done, routing = Done(), broker.routing
    name = message.destination
    check_room(broker, message, name)
    route = routing.of(name)
    if route == (name,) and is_topic(name):
        broker.known_topics.use(name)
        message.shared = Sharing(None)
        room = routing.publish(message, done)
    else:
        room = routing.send(routing.copies(message, route, None), done)
    if room is not None:
        raise no_room(name)
    broker.wake()
    await done.wait()


def retried(message: Message) -> str:
    """Where a dead letter goes back to: the queue for which it was meant; "" = it stays."""
    origin = origin_of(message)
    name = origin.removeprefix("/queue/")
    return QUEUE_SCHEME + name if name != origin and "," not in name and REASON in (message.properties or {}) else ""


# -- parts -------------------------------------------------------------------------------------------------------------


async def _looked_at(broker: Broker, queue: Queue, selected: Selected) -> AsyncGenerator[list[FoundMessage], None]:
    """The messages that are meant and are there now, in parts of `MOVE_MESSAGES`."""
    left, until = selected.limit, broker.newest_seq
    if selected.ids:
        for id in selected.ids[:left]:
            found = await message_of(broker, queue, seq_of(broker, id))
            if found is None:
                raise CommandError(f"{id[:100]} is not in {wire_name(queue.name)}", code="MESSAGE_UNKNOWN")
            yield [found]
        return
    with Look(broker, queue, selected.selector) as look:
        while left > 0:
            page = await look.page(min(left, MOVE_MESSAGES))
            some = [each for each in page.found if each.message.seq <= until]
            if some:
                yield some
                left -= len(some)
            if page.after is None:
                return


async def _free(broker: Broker, queue: Queue) -> None:
    """Wait until no transaction takes effect in `queue`."""
    while broker.is_held(queue):
        await asyncio.sleep(0)


def check_room(broker: Broker, message: Message, name: str) -> None:
    """Raises StoreFullError where a send of `message` to the destination `name` would have to wait."""
    if broker.journal.full and message.persistent:
        raise StoreFullError("the store's disk is full: nothing was stored")
    queue = broker.state.queues.get(name)
    room = broker.limits.room_for(Message(name, b"", persistent=message.persistent), queue, in_transaction=False)
    if room is not None:
        raise no_room(name)


def _made(broker: Broker, message: Message, body: bytes, name: str) -> Message:
    """`message` as it goes to the queue `name`. A dead letter that goes back to where it was meant is none any more."""
    properties, envelope = without(message, _OF_DEAD_LETTERS if retried(message) == name else ())
    made = Message(
        name,
        body,
        properties or None,
        message.content_type,
        message.priority,
        message.persistent,
        message.timestamp_ms,
        message.expires_ms,
        "",
        message.content,
        broker.next_seq(),
        envelope,
    )
    broker.memory.admit(made)
    return made


def queue_of(broker: Broker, name: str) -> Queue:
    """The queue of the full name `name`. Raises CommandError where there is none."""
    try:
        check_queue(name)
    except AccessError as error:
        raise CommandError(error.description, code=error.code) from error
    queue = broker.state.queues.get(name)
    if queue is None:
        raise unknown(f"there is no queue {wire_name(name)[:200]}: `amq queues` lists them")
    return queue


def no_room(name: str) -> StoreFullError:
    return StoreFullError(
        f"{wire_name(name)[:200]} has no room now (queueLimit, memoryLimit or storeLimit): nothing more was done",
        code="NO_ROOM",
    )


def unknown(why: str) -> AmqError:
    return CommandError(why, code="NOT_FOUND")
