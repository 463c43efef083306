"""Virtual topics: the queues that consume a topic (`Consumer.NAME.VirtualTopic.X`), each with a copy of its messages.

Such a queue consumes its topic as long as it exists, also while nobody consumes the queue. A consumer of a pattern of
such queues (`Consumer.NAME.VirtualTopic.>`) has one made for each topic that gets a message: on the account of its
user, and only if that user may consume it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import structlog

from amq.broker.actions import Action
from amq.broker.core import Core
from amq.broker.queues.queue import Queue, Subscription
from amq.broker.topics.patterns import Patterns
from amq.config.patterns import parse_pattern
from amq.core.destination import ANY_REST, ANY_WORD, QUEUE_SCHEME, Pattern, matches, pattern_words, wire_name, words_of
from amq.core.errors import AccessError

Makes = Callable[[str, Sequence[str]], None]
_log = structlog.get_logger("amq.routing")


class VirtualTopics:
    """`make` = may a user have these queues made? It raises AccessError where not. `changed` is called when a topic may
    lead to other queues than before."""

    def __init__(self, core: Core, make: Makes, changed: Callable[[], None]) -> None:
        config = core.config
        self._core = core
        self._make = make
        self._changed = changed
        self._topics = parse_pattern(config.virtual_topics) if config.virtual_topics else ()
        self._prefix = pattern_words(config.virtual_topic_consumers.removesuffix("."))
        first = self._prefix[0]
        # The full names of all queues that consume a virtual topic begin with this.
        self.consumers_begin = QUEUE_SCHEME if first in (ANY_WORD, ANY_REST) else f"{QUEUE_SCHEME}{first}."
        self._consumers: dict[str, dict[str, None]] = {}  # topic → queues that consume it; both are full names
        # By the topics that they mean: consumers of patterns, and the beginning of the names of their queues.
        self._patterns: Patterns[tuple[Subscription, str]] = Patterns()

    def appeared(self, queue: Queue) -> None:
        """A new queue, which stays if it consumes a virtual topic: it is there to wait for messages."""
        topic = self._topic_of(queue.name)
        if topic:
            queue.stays = True
            self._consumers.setdefault(topic, {})[queue.name] = None
            self._changed()

    def _topic_of(self, name: str) -> str:
        """The virtual topic that the queue of that name consumes, "" = none."""
        words = words_of(name)
        count = len(self._prefix)
        if not self._topics or len(words) <= count or not matches(self._prefix, words[:count]):
            return ""
        return "topic://" + ".".join(words[count:]) if matches(self._topics, words[count:]) else ""

    def began(self, wildcard: Subscription) -> None:
        """A consumer of several queues has come."""
        for prefix, topics in self._meant_by(wildcard):
            self._patterns.add(topics, (wildcard, prefix))
            self._changed()

    def ended(self, wildcard: Subscription) -> None:
        """A consumer of several queues has gone: no more queues are made for it."""
        for prefix, topics in self._meant_by(wildcard):
            self._patterns.discard(topics, (wildcard, prefix))
            self._changed()

    def _meant_by(self, wildcard: Subscription) -> Iterator[tuple[str, Sequence[str]]]:
        """The beginning of the queues' names, and the words of the topics, for each pattern that names one NAME."""
        count = len(self._prefix)
        for source in wildcard.sources if self._topics else ():
            if not isinstance(source, Pattern) or source.scheme != QUEUE_SCHEME or len(source.words) <= count:
                continue
            prefix = source.words[:count]
            if ANY_WORD not in prefix and ANY_REST not in prefix and matches(self._prefix, prefix):
                yield QUEUE_SCHEME + ".".join(prefix) + ".", source.words[count:]

    def queues_of(self, topic: str) -> Iterator[str]:
        """The queues that get a copy of a message to `topic`, a full name; some may not be there yet."""
        there = self._consumers.get(topic, {})
        yield from there
        words = words_of(topic)
        if not self._patterns or not matches(self._topics, words):
            return
        for wildcard, prefix in self._patterns.match(words):
            name = prefix + ".".join(words)
            if name in there or not wildcard.owner.may(Action.CONSUME, name):
                continue
            try:
                self._make(wildcard.owner.user, (name,))
            except AccessError as error:
                _log.warning("a queue of a virtual topic cannot be made", queue=wire_name(name), reason=str(error))
            else:
                yield name
