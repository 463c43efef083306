"""The asyncio face: Consumer, Browser, Message. Their promises are at the synchronous ones."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Self

from amq.client.core import PULL_ANSWER_S_MAX, Delivery, Subscription
from amq.client.errors import ConnectionClosedError
from amq.client.message import ReceivedMessage
from amq.protocols.stomp.runs import MESSAGES, Run, read_run

if TYPE_CHECKING:
    from amq.client.aio import Session


class Consumer:
    """Receives from one destination. Iterate over it with `async for`, or await `receive`."""

    def __init__(self, session: Session, subscription: Subscription) -> None:
        self._session = session
        self._subscription = subscription
        self._driver = session._driver
        self._core = session._core

    async def receive(self, timeout: float | None = None) -> Message | None:
        """The next message; None when there was none for `timeout` seconds (None = wait for one, 0 = do not wait)."""
        subscription = self._subscription
        if not subscription.ready():
            limit_s = math.inf if timeout is None else timeout
            self._core.want(subscription)
            came = await self._driver.wait(subscription.gate, subscription.ready, limit_s)
            if not came and not await self._was_late():
                return None
        delivery = self._core.take(subscription)
        if delivery is None:
            return None
        self._driver.kick()
        return Message(self._session, delivery)

    async def _was_late(self) -> bool:
        request, driver = self._core.want_no_more(self._subscription), self._driver
        if request is None:
            return False
        if not await driver.wait(request.gate, lambda: request.done, PULL_ANSWER_S_MAX):
            self._core.give_up(request, driver.clock.monotonic())
        return self._subscription.ready()

    async def messages(self, timeout: float | None = None) -> AsyncIterator[Message]:
        """Messages, until there is none for `timeout` seconds (None = for ever) or the consumer is closed."""
        while True:
            try:
                message = await self.receive(timeout)
            except ConnectionClosedError:
                return
            if message is None:
                return
            yield message

    def __aiter__(self) -> AsyncIterator[Message]:
        return self.messages()

    async def close(self, timeout: float | None = None) -> None:
        """Unsubscribe; what was delivered and not acknowledged goes back to the queue."""
        request = self._core.unsubscribe(self._subscription)
        self._driver.kick()
        await self._session.connection._await(request, "unsubscribe", timeout)
        if self in self._session._consumers:
            self._session._consumers.remove(self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if not self._session.connection.closed:
            await self.close()


class Browser(Consumer):
    """Looks at messages and takes none. `receive` gives None at the end too: then `finished` is true. After a failover
    the browse begins anew, so that messages may be shown again (by their `id`).
    """

    async def receive_many(self, timeout: float | None = None) -> list[Message]:
        """All messages that have arrived, in order; [] where `receive` gives None."""
        return [Message(self._session, delivery) for delivery in await self._take_all(timeout)]

    async def receive_runs(self, timeout: float | None = None) -> list[Run | Message]:
        """The same of a lease reader with `runs`: most messages come many together, in a `Run`."""
        return [
            read_run(delivery.frame) if delivery.frame.command == MESSAGES else Message(self._session, delivery)
            for delivery in await self._take_all(timeout)
        ]

    async def _take_all(self, timeout: float | None) -> list[Delivery]:
        subscription, limit_s = self._subscription, math.inf if timeout is None else timeout
        if not await self._driver.wait(subscription.gate, subscription.ready, limit_s):
            return []
        deliveries = self._core.take_all(subscription)
        self._driver.kick()
        return deliveries

    @property
    def finished(self) -> bool:
        """Everything that was there when the browse began has been received."""
        return self._subscription.finished and not self._subscription.buffer


class Message(ReceivedMessage["Session"]):
    """A received message that can be acknowledged."""

    __slots__ = ()

    async def ack(self, *, wait: bool = False, timeout: float | None = None) -> None:
        """Done with it: the broker forgets it. `wait` until the broker has confirmed that."""
        await self._settle("ACK", wait, timeout)

    async def nack(self, *, requeue: bool = False, wait: bool = False, timeout: float | None = None) -> None:
        """Refuse it: it goes to the dead letters. With `requeue` it comes again, after `redeliveryDelay`, as often as
        `maximumRedeliveries` allows."""
        await self._settle("NACK", wait, timeout, requeue)

    async def _settle(self, command: str, wait: bool, timeout: float | None, requeue: bool = False) -> None:
        request = self._session._core.settle(self._delivery, command, wait, requeue)
        self._session._driver.kick()
        await self._session.connection._await(request, command, timeout)
