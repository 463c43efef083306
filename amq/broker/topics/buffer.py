"""TopicBuffer: messages of topics, or for a temporary queue, that wait in memory for subscribers.

It has all that consumers need of a queue, and nothing of it is stored: it is in no table of the state, no record names
it, and it has no `queueLimit`. The holder of its messages counts the memory that they take.
"""

from __future__ import annotations

from amq.broker.queues.queue import NO_LIMIT, Dispatcher, Queue
from amq.config.store_options import StoreOptions
from amq.core.destination import Source
from amq.core.message import Message, MessageBatch
from amq.selectors import Selector


class TopicBuffer(Queue):
    """`sources` = topics, or patterns of them; `selector` chooses of their messages. Once it `is_closed`, its messages
    belong to nobody and are dropped with the next turn; those in a transaction go with the transaction."""

    __slots__ = ("is_closed", "selector", "sources")

    delays = False
    no_local = False

    def __init__(
        self, name: str, sources: tuple[Source, ...], options: StoreOptions, selector: Selector | None = None
    ) -> None:
        super().__init__(name, options)
        self.sources = sources
        self.selector = selector
        self.is_closed = False
        self.stays = True  # the state did not make it, and never forgets it

    def configure(self, options: StoreOptions) -> None:
        super().configure(options)
        self.limit_bytes = self.drops_above = NO_LIMIT

    @property
    def is_dead_letter_queue(self) -> bool:
        """Messages of a subscription that has ended go nowhere."""
        return self.is_closed or super().is_dead_letter_queue

    def may_have(self, topic: str) -> bool:  # noqa: ARG002
        """May its user read that topic? A temporary queue is no topic of anybody."""
        return True

    def wants(self, message: Message) -> bool:  # noqa: ARG002
        """Is `message`, which its selector matches, for it?"""
        return True

    def takes(self, batch: MessageBatch) -> bool:  # noqa: ARG002
        """Give `batch`, which is new, right to the consumer, if nothing waits before it. False: it has to wait."""
        return False

    def accept(self, message: Message) -> None:
        """It waits here from now on."""
        assert message.shared is not None
        message.shared.others += 1
        self.store(message)

    def dispatch(self, owner: Dispatcher, now_ms: int) -> None:
        if not self.is_closed:
            super().dispatch(owner, now_ms)
            return
        for message in self.take_oldest_messages(len(self.messages)):
            owner.consumed(self, message)
        for browser in self.browsers:
            browser.step(now_ms)

    def take_oldest_messages(self, count: int) -> list[Message]:
        """Remove and return up to `count` of the oldest waiting messages, of any priority."""
        taken: list[Message] = []
        while count > len(taken):
            levels = sorted((level for level in self.levels if level), key=lambda level: level[0].seq)
            if not levels:
                break
            until = levels[1][0].seq if len(levels) > 1 else NO_LIMIT
            while count > len(taken) and levels[0] and levels[0][0].seq < until:
                taken.append(levels[0].popleft())
        return taken
