"""RecoveryBuffer: the latest messages of topics, for clients that subscribe later and ask for them
(`activemq.retroactive`).

The options `subscriptionRecoveryCount`, `…Size` and `…Duration` say of which topics, and how many. Invariants: the
messages here were handed out, in that order, and a message that is handed out is put here before anything else happens.
So a consumer that gets the messages here when it subscribes, and then those that are handed out, misses none and gets
none twice. Under all options, all of them together take no more memory than is free, and SHARE_MAX of `memoryLimit`:
the oldest goes.
"""

from __future__ import annotations

import weakref
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from amq.broker.core import Core
from amq.broker.memory import cost
from amq.broker.names import ADVISORY_PREFIX
from amq.config.store_options import StoreOptions
from amq.core.destination import TOPIC_SCHEME, Pattern, Source
from amq.core.message import Message
from amq.selectors import Selector

SHARE_MAX = 1 / 4
NAMES_MAX = 10_000  # topics for which the broker remembers whether it keeps anything


class _Kept(NamedTuple):
    message: Message
    sender: Callable[[], object]  # the connection that sent it, None when that is gone


class _Topic:
    """The kept messages of one topic. `size` = bytes of memory, as `memoryLimit` counts them."""

    __slots__ = ("kept", "name", "options", "size")

    def __init__(self, name: str, options: StoreOptions) -> None:
        self.name = name
        self.options = options
        self.kept: deque[_Kept] = deque()
        self.size = 0

    def is_too_much(self, now_ms: int) -> bool:
        options = self.options
        count, size = options.subscription_recovery_count, options.subscription_recovery_size_bytes
        return (
            0 < count < len(self.kept)
            or 0 < size < self.size
            or self.kept[0].message.timestamp_ms < _oldest_ms(options, now_ms)
        )


class RecoveryBuffer:
    """Call `keep` with what is being handed out, `trim` when that is done, and `sweep` every second or so."""

    def __init__(self, core: Core) -> None:
        self.size = 0  # bytes of memory that all takes
        self._core = core
        self._topics: dict[str, _Topic] = {}  # none of them empty
        self._all: OrderedDict[int, _Topic] = OrderedDict()  # by seq of the message, the oldest first
        self._options: dict[str, StoreOptions | None] = {}  # None = nothing is kept

    def keep(self, name: str, messages: list[Message]) -> bool:
        """Keep `messages` of the topic `name`, which nobody else holds yet. False: that topic keeps nothing."""
        options = self._options[name] if name in self._options else self._options_of(name)
        if options is None:
            return False
        topic = self._topics.get(name)
        if topic is None:
            topic = self._topics[name] = _Topic(name, options)
        for message in messages:
            assert message.shared is not None
            message.shared.others += 1
            origin = message.shared.origin
            topic.kept.append(_Kept(message, _nobody if origin is None else weakref.ref(origin)))
            size = cost(message)
            topic.size += size
            self.size += size
            self._all[message.seq] = topic
        return True

    def trim(self, name: str, messages: list[Message], now_ms: int) -> None:
        """`messages`, the latest of the topic `name`, have been handed out and counted: forget what is too much."""
        for message in messages:
            assert message.shared is not None
            message.shared.origin = None  # a connection is not to live as long as what it sent
        self._trim_topic(self._topics[name], now_ms)
        self._trim_all()

    def sweep(self, now_ms: int) -> None:
        """Forget what is too old, and what takes memory that others need."""
        for topic in list(self._topics.values()):
            self._trim_topic(topic, now_ms)
        self._trim_all()

    def reconfigure(self, now_ms: int) -> None:
        """Options changed."""
        self._options.clear()
        for topic in list(self._topics.values()):
            options = self._options_of(topic.name)
            topic.options = options or topic.options
            while options is None and topic.kept:
                self._forget(topic)
        self.sweep(now_ms)

    def find(
        self, sources: Iterable[Source], selector: Selector | None, receiver: object, now_ms: int
    ) -> list[Message]:
        """The kept messages that a subscription to `sources`, topics or patterns of them, would have got, oldest first.
        `receiver` = the connection whose own messages it does not want, None = it wants them."""
        found: list[Message] = []
        for topic in self._matching(sources):
            oldest_ms = _oldest_ms(topic.options, now_ms)
            for message, sender in topic.kept:
                if message.timestamp_ms < oldest_ms or 0 < message.expires_ms <= now_ms:
                    continue
                if receiver is not None and sender() is receiver:
                    continue
                if selector is None or selector.matches(message):
                    found.append(message)
        found.sort(key=_seq)
        return found

    def messages(self) -> Iterator[Message]:
        """All that is kept."""
        for topic in self._topics.values():
            for kept in topic.kept:
                yield kept.message

    def _matching(self, sources: Iterable[Source]) -> list[_Topic]:
        found: dict[str, _Topic] = {}
        for source in sources:
            if isinstance(source, Pattern):
                found.update({name: each for name, each in self._topics.items() if source.stands_for(name)})
            elif source in self._topics:
                found[source] = self._topics[source]
        return list(found.values())

    def _options_of(self, name: str) -> StoreOptions | None:
        if len(self._options) >= NAMES_MAX:
            self._options.clear()
        options: StoreOptions | None = self._core.state.options_of(name)
        assert options is not None
        keeps = (
            options.subscription_recovery_count
            or options.subscription_recovery_size_bytes
            or options.subscription_recovery_duration_s
        )
        if not keeps or not name.startswith(TOPIC_SCHEME) or name.startswith(ADVISORY_PREFIX):
            options = None
        self._options[name] = options
        return options

    def _trim_topic(self, topic: _Topic, now_ms: int) -> None:
        while topic.kept and topic.is_too_much(now_ms):
            self._forget(topic)

    def _trim_all(self) -> None:
        core = self._core
        while self.size > core.config.memory_limit_bytes * SHARE_MAX or (
            self.size and core.memory.taken_bytes > core.memory.paging_bytes
        ):
            self._forget(next(iter(self._all.values())))

    def _forget(self, topic: _Topic) -> None:
        """The oldest message of `topic`."""
        message = topic.kept.popleft().message
        del self._all[message.seq]
        size = cost(message)
        topic.size -= size
        self.size -= size
        if not topic.kept:
            del self._topics[topic.name]
        self._core.memory.free(message)


def _oldest_ms(options: StoreOptions, now_ms: int) -> int:
    """Messages that were sent before that time are too old; 0 = none are."""
    duration_s = options.subscription_recovery_duration_s
    return now_ms - round(duration_s * 1000) if duration_s else 0


def _nobody() -> None:
    return None


def _seq(message: Message) -> int:
    return message.seq
