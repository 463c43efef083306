"""KnownTopics: the topics that are in use, so that clients can learn of those that there are.

A topic needs no making: it is there as soon as somebody sends to it, subscribes to it by its name, or says that he is
going to send. Invariants: at most TOPICS_MAX are known, and none of more is told; one that nobody has used for IDLE_S,
and to which nobody is subscribed, is forgotten. Temporary topics and those of advisories do not count.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterator

from amq.broker.core import Core
from amq.broker.events import TopicForgotten, TopicMade
from amq.broker.names import ADVISORY_PREFIX, is_topic

TOPICS_MAX = 10_000
IDLE_S = 60.0


class KnownTopics:
    """`subscribed` = full names that somebody is subscribed to; `durable` tells those of durable subscriptions."""

    def __init__(self, core: Core, subscribed: Container[str]) -> None:
        self.durable: Callable[[], Collection[str]] = tuple
        self._core = core
        self._subscribed = subscribed
        self._known: dict[str, int] = {}  # messages that were sent to each
        self.fresh: set[str] = set()  # of them, those that were used since `sweep` looked at them
        self._due_s = core.clock.monotonic() + IDLE_S

    def __iter__(self) -> Iterator[str]:
        """Full names, those that are known longest first."""
        return iter(list(self._known))

    def __len__(self) -> int:
        return len(self._known)

    def use(self, name: str) -> None:
        """Somebody uses the topic of that full name. Of another destination nothing is noted."""
        if name in self._known:
            self.fresh.add(name)
        elif is_topic(name) and not name.startswith(ADVISORY_PREFIX) and len(self._known) < TOPICS_MAX:
            self._known[name] = 0
            self.fresh.add(name)
            if TopicMade in self._core.events.heard:
                self._core.events.tell(TopicMade(name))

    def sent(self, name: str, messages: int) -> None:
        """Count `messages` that go to the subscribers of the topic of that full name."""
        if name not in self.fresh:
            self.use(name)
        if name in self._known:
            self._known[name] += messages

    def enqueued(self, name: str) -> int:
        """Messages that were sent to it since it is known, 0 where it is not."""
        return self._known.get(name, 0)

    def __contains__(self, name: str) -> bool:
        return name in self._known

    def forget(self, name: str) -> None:
        """Forget the topic, which nobody uses."""
        if name in self._known:
            del self._known[name]
            self.fresh.discard(name)
            if TopicForgotten in self._core.events.heard:
                self._core.events.tell(TopicForgotten(name))

    def is_subscribed(self, name: str) -> bool:
        """Is anybody subscribed to it by its name, be he away?"""
        return name in self._subscribed or name in self.durable()

    def sweep(self) -> None:
        """Forget what nobody has used for long. Once a second."""
        now_s = self._core.clock.monotonic()
        if now_s < self._due_s:
            return
        self._due_s = now_s + IDLE_S
        kept = self.fresh.union(self.durable())
        for name in self:
            if name not in kept and name not in self._subscribed:
                self.forget(name)
        self.fresh.clear()
