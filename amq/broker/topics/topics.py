"""Topics: a message to a topic goes to all that are subscribed to it at that moment.

Each subscription has a separate queue, a `TopicQueue`, which is in no table of stored queues and whose messages are
not in the journal; all of them hold one and the same Message. Invariants: what one producer sent arrives in that order
at each subscription, also across a commit; the body of a message counts once for the memory limit, however many hold
it, and its overhead once for each; a consumer that keeps no pace holds at most `pendingMessageLimit` messages, and no
more memory than its share.

Messages wait in `arrived` until the end of the turn and are then handed out together: a consumer that is ready and
acknowledges by itself gets the whole batch at once, encoded once for all, and holds nothing here. Messages that had to
wait for it go out in batches, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from amq.broker.actions import Action
from amq.broker.core import Core
from amq.broker.events import Discarded, SlowConsumer
from amq.broker.memory import MESSAGE_OVERHEAD_BYTES, cost
from amq.broker.names import ADVISORY_PREFIX, is_temporary, is_topic
from amq.broker.queues.queue import NO_LIMIT, Dispatcher, Subscription
from amq.broker.topics.audience import Audience
from amq.broker.topics.buffer import TopicBuffer
from amq.broker.topics.known import KnownTopics
from amq.broker.topics.patterns import Patterns
from amq.broker.topics.recovery_buffer import RecoveryBuffer
from amq.config.store_options import StoreOptions
from amq.core.destination import Pattern, Source, means, told, words_of
from amq.core.errors import CommandError
from amq.core.message import LARGE_BODY_BYTES, Message, MessageBatch
from amq.core.remembered import Remembered
from amq.journal.batch import Waiter
from amq.journal.records import Group
from amq.protocols.commands import Subscribe
from amq.selectors import Selector

BATCH_BYTES_MAX = 256 << 10  # about what a consumer gets before its socket is looked at again
FRAME_BYTES = 100  # of a frame beside body and headers
SHARE_MIN = 1 / 256
ROUTES_BYTES_MAX = 4 << 20  # of names whose subscriptions are remembered


class TopicQueue(TopicBuffer):
    """The messages that wait for one subscription, `subscription`, which is the only one that this queue ever has."""

    __slots__ = (
        "_limit_asked",
        "_topics",
        "discarded",
        "is_bounded",
        "is_slow",
        "limit",
        "no_local",
        "retroactive",
        "subscription",
    )

    subscription: Subscription
    chooses = False

    def __init__(
        self, topics: Topics, command: Subscribe, sources: tuple[Source, ...], options: StoreOptions, prefix: str
    ) -> None:
        asked = command.flow.pending_limit
        self._limit_asked = NO_LIMIT if asked < 0 else asked  # 0 = the consumer does not say
        wanted = command.filter
        selector = Selector(wanted.selector, wanted.ids or prefix) if wanted.selector else None
        super().__init__(told(sources), sources, options, selector)
        self._topics = topics
        self.no_local = command.filter.no_local
        self.retroactive = command.filter.retroactive
        self.is_slow = False  # it was told so, and has not caught up since
        self.discarded = 0

    def configure(self, options: StoreOptions) -> None:
        super().configure(options)
        self.limit = self._limit_asked or options.pending_message_limit or NO_LIMIT
        self.is_bounded = self.limit < NO_LIMIT or options.pending_message_limit > 0

    def join(self, subscription: Subscription, owner: Dispatcher) -> None:
        super().join(subscription, owner)
        self.subscription = subscription
        self._topics.begin(self)

    def leave(self, subscription: Subscription) -> None:
        super().leave(subscription)
        self.is_closed = True
        self._topics.end(self)
        del self.subscription  # it refers to this queue: together they would outlive their connection

    def takes(self, batch: MessageBatch) -> bool:
        subscription = self.subscription
        if not subscription.unlimited or not subscription.is_ready or self.messages:
            return False
        self.enqueued += len(batch.messages)
        self.acknowledged += len(batch.messages)
        subscription.peer.deliver_batch(subscription, batch)
        return True

    def wants(self, message: Message) -> bool:
        return not (self.no_local and message.shared is not None and message.shared.origin is self.subscription.peer)

    def is_for(self, topic: str) -> bool:
        """Does it get what is sent to that topic?"""
        return any(means(source, topic) for source in self.sources) and self.may_have(topic)

    def may_have(self, topic: str) -> bool:
        return self.is_closed or self.subscription.owner.may(Action.CONSUME, topic)

    def dispatch(self, owner: Dispatcher, now_ms: int) -> None:
        super().dispatch(owner, now_ms)
        if self.is_bounded and not self.is_closed:
            self._topics.keep_bounds(self)

    def _hand_out(self, owner: Dispatcher, now_ms: int) -> None:
        """To a consumer that acknowledges by itself as many at a time as its socket may get at once. Measured with a
        hundred of them, each of which falls behind at times: 2.4 times as many deliveries as one by one."""
        if self.chooses or self.expiring or not self.subscription.unlimited:
            super()._hand_out(owner, now_ms)
            return
        subscription = self.subscription
        while subscription.is_ready and (messages := self._take_first()):
            if len(messages) > 1:
                self._topics.encodes(messages)
                subscription.peer.deliver_batch(subscription, MessageBatch(messages))
            else:
                subscription.peer.deliver(subscription, messages[0], 0)
            for message in messages:
                owner.consumed(self, message)

    def _take_first(self) -> list[Message]:
        """The next messages, of one priority: one that is large, or up to `BATCH_BYTES_MAX`."""
        taken: list[Message] = []
        level = next((level for level in reversed(self.levels) if level), None)
        size = 0
        while level and size < BATCH_BYTES_MAX and not (taken and len(level[0].body) > LARGE_BODY_BYTES):
            message = level.popleft()
            taken.append(message)
            size += len(message.body) + message.header_bytes + FRAME_BYTES
        return taken


class Publication:
    """Messages for topics that take effect when what is before them in the journal is durable."""

    def __init__(self, topics: Topics, messages: list[Message]) -> None:
        self._topics = topics
        self._messages = messages

    def done(self, result: str = "") -> None:  # noqa: ARG002
        self._topics.on_their_way -= 1
        self._topics.arrived += self._messages

    def failed(self, error: Exception) -> None:  # noqa: ARG002
        """The transaction of which they are a part did not take place."""
        self._topics.on_their_way -= 1
        self._topics.withdraw(self._messages)


class TopicListener(Protocol):
    """Is told of subscriptions to advisories."""

    def listens(self, queue: TopicQueue) -> None: ...
    def left(self) -> None: ...


class Topics:
    """The subscriptions to topics, and the messages that were sent and not handed out yet."""

    def __init__(self, core: Core) -> None:
        self.arrived: list[Message] = []  # in the order in which they were sent
        self.on_their_way = 0  # publications that wait for the journal
        self.discarded = 0  # messages that slow consumers have lost
        self.recovery_buffer = RecoveryBuffer(core)
        self.advisories: TopicListener
        self.provide: Callable[[str], object]  # makes the temporary queue of that name, if its connection is there
        self._core = core
        self.handed_out: list[Message] = []  # in this turn
        self._named: dict[str, Audience[TopicBuffer]] = {}  # by the name that they are subscribed to
        self._patterns: Patterns[TopicBuffer] = Patterns()
        self._selective = 0  # subscriptions with a selector
        self._spanning = 0  # subscriptions that may get messages of several topics
        self._queues: dict[TopicBuffer, None] = {}
        self._routes: Remembered[tuple[Audience[TopicBuffer], ...]] = Remembered(ROUTES_BYTES_MAX)
        self.known = KnownTopics(core, self._named)

    # -- subscriptions ------------------------------------------------------------------------------------------------

    def subscribe(self, command: Subscribe, sources: tuple[Source, ...]) -> TopicQueue:
        """A queue for the subscription that `command` asks for, to those of its parts that are `sources`; messages come
        when that has joined it."""
        core = self._core
        return TopicQueue(self, command, sources, core.state.options_of(str(sources[0])), core.message_id_prefix)

    def begin(self, queue: TopicQueue) -> None:
        """Its consumer is there: from now on `queue` gets what is sent."""
        self.open(queue)
        if _is_of_advisories(queue):
            self.advisories.listens(queue)
        if queue.retroactive:
            self._replay(queue)

    def end(self, queue: TopicQueue) -> None:
        """Its consumer has gone."""
        if _is_of_advisories(queue):
            self.advisories.left()
        self.close(queue)

    def open(self, queue: TopicBuffer) -> None:
        """From now on `queue` gets what is sent."""
        self._queues[queue] = None
        self._spanning += _spans(queue)
        self._selective += queue.selector is not None
        for source in queue.sources:
            if isinstance(source, Pattern):
                self._patterns.add(source.words, queue)
                self._routes.clear()
                continue
            self._named.setdefault(source, Audience()).add(queue, queue.selector)
            self._routes.pop(source, None)
            self.known.use(source)

    def close(self, queue: TopicBuffer) -> None:
        """From now on `queue` gets nothing more."""
        del self._queues[queue]
        self._spanning -= _spans(queue)
        self._selective -= queue.selector is not None
        for source in queue.sources:
            if isinstance(source, Pattern):
                self._patterns.discard(source.words, queue)
                self._routes.clear()
                continue
            named = self._named[source]
            named.discard(queue, queue.selector)
            if not named:
                del self._named[source]
            self._routes.pop(source, None)

    def queues(self) -> list[TopicBuffer]:
        """Of all subscriptions."""
        return list(self._queues)

    def forget_routes(self) -> None:
        """Users may read other topics than before."""
        self._routes.clear()

    def reconfigure(self) -> None:
        """Options changed."""
        for queue in self.queues():
            queue.configure(self._core.state.options_of(str(queue.sources[0])))
            self._core.dirty[queue] = None
        self.recovery_buffer.reconfigure(self._core.clock.wall_ms())

    def consumers(self, name: str) -> int:
        """How many subscriptions get what is sent to that topic."""
        return sum(map(len, self.route(name)))

    def route(self, name: str) -> tuple[Audience[TopicBuffer], ...]:
        """The consumers that get the messages of the topic `name`."""
        route = self._routes.get(name)
        if route is None:
            if is_temporary(name):
                self.provide(name)
            named = self._named.get(name)
            others: Audience[TopicBuffer] = Audience()
            patterned = self._patterns.match(words_of(name)) if is_topic(name) else ()
            for queue in dict.fromkeys(patterned):
                if name in queue.sources or (name.startswith(ADVISORY_PREFIX) and not _is_of_advisories(queue)):
                    continue
                if queue.may_have(name):
                    others.add(queue, queue.selector)
            route = tuple(audience for audience in (named, others) if audience)
            self._routes.keep(name, route, sum(map(len, route)) * 100)
        return route

    # -- sending ------------------------------------------------------------------------------------------------------

    def publish(self, message: Message, waiter: Waiter | None = None) -> None:
        """Hand `message` out at the end of this turn. `waiter` is told with that."""
        core = self._core
        core.memory.admit(message)
        if not self.on_their_way:
            self.arrived.append(message)
            if waiter is not None:
                waiter.done()
            return
        journal = core.journal
        self.on_their_way += 1  # earlier messages wait for the journal: stay behind them
        journal.confirm(Publication(self, [message]))
        if waiter is not None:
            journal.confirm(waiter)

    def publish_with(self, group: Group, messages: list[Message]) -> None:
        """Hand `messages`, counted already, out when `group` is durable; now where there is nothing to wait for."""
        waits = bool(group.records or group.outcome_id)
        if not waits and not self.on_their_way:
            self.arrived += messages
            return
        self.on_their_way += 1
        self._core.journal.confirm(Publication(self, messages), group if waits else None)

    def withdraw(self, messages: list[Message]) -> None:
        """Messages that were counted and will not be handed out."""
        for message in messages:
            self._core.memory.give_back(cost(message))

    # -- handing out --------------------------------------------------------------------------------------------------

    def hand_out(self, now_ms: int, *, everything: bool = False) -> None:
        """Give what arrived to the present subscribers. Where very many selectors have to be asked some of it waits for
        the next turn, unless `everything` must go."""
        arrived = self.arrived.copy()
        if self._selective and not everything:
            arrived = arrived[: self._affordable(arrived)]
        del self.arrived[: len(arrived)]
        if self.arrived:
            self._core.wake()
        self.handed_out += arrived
        for name, messages in self._runs(arrived, now_ms):
            self.known.sent(name, len(messages))
            kept = self.recovery_buffer.keep(name, messages)
            self._fan_out(self.route(name), messages)
            if kept:
                self.recovery_buffer.trim(name, messages, now_ms)

    def _affordable(self, messages: list[Message]) -> int:
        """How many of them this turn has steps for: at least one."""
        selecting, steps = self._core.selecting, dict[str, int]()
        for count, message in enumerate(messages):
            name = message.destination
            if name not in steps:
                steps[name] = sum(audience.some.steps for audience in self.route(name))
            if count and selecting.left < steps[name]:
                return count
            selecting.left -= steps[name]
        return len(messages)

    def encodes(self, messages: list[Message]) -> None:
        """Keep the bytes that protocols write of these waiting messages until the end of the turn, for others."""
        for message in messages:
            assert message.shared is not None
            if message.shared.encoded is None:
                message.shared.encoded = {}
                self.handed_out.append(message)

    def end_turn(self) -> None:
        """The encoded messages have been used."""
        if self.handed_out:
            for message in self.handed_out:
                assert message.shared is not None
                message.shared.encoded = None
            self.handed_out.clear()

    def _runs(self, messages: list[Message], now_ms: int) -> Iterator[tuple[str, list[Message]]]:
        """`messages` in pieces of one topic each. Where somebody has subscribed to several topics at once the pieces
        are in the order in which all was sent, else each topic is one piece, of up to BATCH_BYTES_MAX."""
        core = self._core
        keep_order = bool(self._spanning)
        pieces: dict[str, tuple[list[Message], int]] = {}
        for message in messages:
            # Its taker counts it.
            core.memory.give_back(cost(message))
            if 0 < message.expires_ms <= now_ms:
                continue
            name = message.destination
            if keep_order and pieces and name not in pieces:
                yield from self._complete(pieces)
            piece, size = pieces.get(name) or ([], 0)
            message.seq = core.next_seq()
            piece.append(message)
            size += len(message.body) + message.header_bytes + FRAME_BYTES
            pieces[name] = piece, size
            if size >= BATCH_BYTES_MAX:
                del pieces[name]
                yield name, piece
        yield from self._complete(pieces)

    @staticmethod
    def _complete(pieces: dict[str, tuple[list[Message], int]]) -> Iterator[tuple[str, list[Message]]]:
        for name, (piece, _) in pieces.items():
            yield name, piece
        pieces.clear()

    def _fan_out(self, route: Sequence[Audience[TopicBuffer]], messages: list[Message]) -> None:
        """`messages` to each consumer of `route` that wants them."""
        core = self._core
        whole = MessageBatch(messages)
        large = any(len(message.body) > LARGE_BODY_BYTES for message in messages)
        for audience in route:
            for queue in audience.everything:
                if queue.no_local:
                    self._give(queue, MessageBatch([message for message in messages if queue.wants(message)]), large)
                else:
                    self._give(queue, whole, large)
            if audience.some:
                selected: dict[TopicBuffer, list[Message]] = {}
                for message in messages:
                    for queue in audience.some.matching(message):
                        if queue.wants(message):
                            selected.setdefault(queue, []).append(message)
                for queue, mine in selected.items():
                    self._give(queue, MessageBatch(mine), large)
        for message in messages:
            shared = message.shared
            assert shared is not None
            if shared.others:
                core.memory.take(len(message.body) + message.header_bytes + shared.others * MESSAGE_OVERHEAD_BYTES)
                shared.others -= 1

    def _give(self, queue: TopicBuffer, batch: MessageBatch, large: bool) -> None:
        """At once, or into the queue."""
        core, messages = self._core, batch.messages
        if not messages:
            return
        if not large and queue.takes(batch):
            return
        for message in messages:
            queue.accept(message)
        core.dirty[queue] = None
        if queue.expiring:
            core.state.expiring[queue] = None

    def _replay(self, queue: TopicQueue) -> None:
        """Messages that were handed out before `queue` was there come first."""
        core = self._core
        own = queue.subscription.peer if queue.no_local else None
        for message in self.recovery_buffer.find(queue.sources, queue.selector, own, core.clock.wall_ms()):
            if not queue.may_have(message.destination):
                continue
            queue.accept(message)
            core.memory.take(MESSAGE_OVERHEAD_BYTES)
            core.dirty[queue] = None
        if queue.expiring:
            core.state.expiring[queue] = None

    # -- slow consumers -----------------------------------------------------------------------------------------------

    def keep_bounds(self, queue: TopicQueue) -> None:
        """Take from a slow consumer what it may not hold, or its connection. The memory that it may hold is as much as
        is still free, so that each of many takes its share, and SHARE_MIN of all in any case."""
        core = self._core
        if queue.is_slow and not queue.waiting:
            queue.is_slow = False
        free_bytes = core.memory.free_to_page_bytes
        share_bytes = max(free_bytes, int(core.config.memory_limit_bytes * SHARE_MIN))
        if len(queue.messages) <= queue.limit and queue.resident_bytes <= share_bytes:
            return
        excess = queue.waiting - queue.limit
        if queue.resident_bytes > share_bytes:
            average = queue.resident_bytes // len(queue.messages)
            excess = max(excess, (queue.resident_bytes - share_bytes) // average + 1)
        if excess <= 0 or not queue.waiting:
            return
        policy = queue.options.slow_consumer_policy
        if not queue.is_slow:
            queue.is_slow = True
            if SlowConsumer in core.events.heard:
                number = getattr(queue.subscription.peer, "number", 0)
                names = tuple(map(str, queue.sources))
                core.events.tell(SlowConsumer(number, queue.subscription.id, names, policy, queue.limit))
        if policy == "disconnect":
            queue.subscription.owner.end_with(
                queue.subscription,
                CommandError(
                    f"the subscription to {queue.name} is too slow: more messages wait for it than pendingMessageLimit "
                    "and the free memory allow; consume faster, or ask for more by activemq.maximumPendingMessageLimit",
                    code="SLOW_CONSUMER",
                ),
            )
            return
        messages = queue.take_oldest_messages(excess)
        for message in messages:
            core.consumed(queue, message)
        queue.discarded += len(messages)
        self.discarded += len(messages)
        if Discarded in core.events.heard:
            core.events.tell(Discarded(queue.subscription.id, tuple(map(str, queue.sources)), len(messages)))


def _spans(queue: TopicBuffer) -> bool:
    """May it get messages of several topics?"""
    return len(queue.sources) > 1 or isinstance(queue.sources[0], Pattern)


def _is_of_advisories(queue: TopicBuffer) -> bool:
    return any(str(source).startswith(ADVISORY_PREFIX) for source in queue.sources)
