"""The queues of a broker, their consumers, and their messages, asked for as any JMS client could.

A broker tells a new subscriber to its advisories what there is already. ActiveMQ does so before it answers a
subscription that wants no asynchronous dispatch; ours says last who is master.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from amq.protocols.openwire import table
from amq.protocols.openwire.table import Structure, structure
from amq_migrate.openwire.peer import ANSWER_S, OtherBroker
from amq_migrate.openwire.wire import SESSION

QUEUES_MAX: Final = 30_000  # that are found by advisories: the broker sends this many ahead of acknowledgements
BROWSE_PREFETCH: Final = 500
BROWSE_S: Final = 30.0  # without a message of the browse
STANDARD, INDIVIDUAL = 2, 4
OURS: Final = "amq/"  # so begins the name of a broker of amq
_ADVISORY: Final = "ActiveMQ.Advisory."
_LAST: Final = _ADVISORY + "MasterBroker"


def queue_of(name: str) -> Structure:
    return structure(table.QUEUE, name=name)


@contextmanager
def consuming(
    peer: OtherBroker, value: int, destination: Structure, prefetch: int, browser: bool = False
) -> Iterator[Structure]:
    """The id of a consumer that is there within the block. Raises AmqError."""
    id = structure(table.CONSUMER_ID, connection=peer.wire.connection, session=SESSION, value=value)
    peer.request(
        structure(
            table.CONSUMER_INFO,
            id=id,
            destination=destination,
            prefetch=prefetch,
            browser=browser,
            asynchronous=destination.type == table.QUEUE,
        )
    )
    yield id
    peer.request(structure(table.REMOVE_INFO, id=id, last_delivered=-1))


def acknowledge(peer: OtherBroker, found: Structure, consumer: Structure, kind: int) -> None:
    """The dispatch `found`, of one message, is dealt with."""
    id = found.fields["message"].get("id")
    peer.wire.send(
        structure(
            table.MESSAGE_ACK,
            destination=found.get("destination"),
            consumer=consumer,
            kind=kind,
            first=id if kind == STANDARD else None,
            last=id,
            count=1,
        )
    )


class Looking:
    """Looks at one broker. `number` = the first of its consumers."""

    def __init__(self, peer: OtherBroker, number: int = 1000) -> None:
        self._peer = peer
        self._number = number

    def queues(self) -> list[str]:
        """The names of its queues; empty where it has none, or tells nobody (advisorySupport="false")."""
        found: dict[str, None] = {}
        for told in self._advisories("Queue"):
            destination = told.get("destination") if told.type == table.DESTINATION_INFO else None
            if destination is not None and destination.type == table.QUEUE and not told.get("kind"):
                found[destination.get("name", "")] = None
        return sorted(found)

    def consumers(self, queue: str) -> int:
        """How many consumers the queue has; 0 where the broker tells nobody of those that were there before."""
        return sum(told.type == table.CONSUMER_INFO for told in self._advisories(f"Consumer.Queue.{queue}"))

    def count(self, queue: str, at_most: int) -> int:
        """How many messages are on the queue, those that were dispatched to others among them."""
        shown: list[Structure | None] = []
        peer = self._peer

        def on_dispatch(found: Structure) -> None:
            shown.append(found.get("message") and structure(table.MESSAGE))
            if found.get("message") is not None and len(shown) < at_most:
                acknowledge(peer, found, found.fields["consumer"], STANDARD)

        with self._consuming(on_dispatch, queue_of(queue), min(BROWSE_PREFETCH, max(1, at_most)), browser=True):
            seen = -1
            while len(shown) > seen and None not in shown and len(shown) < at_most:
                seen = len(shown)
                peer.wait(lambda: len(shown) > seen, BROWSE_S, f"does not show what is on the queue {queue}")  # noqa: B023
        return min(at_most, sum(each is not None for each in shown))

    def _advisories(self, kind: str) -> list[Structure]:
        """The causes of those that the broker tells a new subscriber."""
        told: list[Structure] = []
        ends: list[bool] = []
        peer = self._peer

        def on_dispatch(found: Structure) -> None:
            ends.append(found.fields["destination"].get("name") == _LAST)
            message = found.get("message")
            if message is not None and message.get("data_structure") is not None:
                told.append(message.get("data_structure"))
                acknowledge(peer, found, found.fields["consumer"], STANDARD)

        with self._consuming(on_dispatch, structure(table.TOPIC, name=f"{_ADVISORY}{kind},{_LAST}"), QUEUES_MAX):
            if peer.wire.server.startswith(OURS):
                peer.wait(lambda: any(ends[-1:]), ANSWER_S, "does not say who is master")
        return told

    @contextmanager
    def _consuming(
        self, on_dispatch: Callable[[Structure], None], destination: Structure, prefetch: int, browser: bool = False
    ) -> Iterator[None]:
        """A separate consumer, whose dispatches go to `on_dispatch`, and those of others to whoever got them."""
        wire = self._peer.wire
        before = wire.on_dispatch
        self._number += 1
        number = self._number

        def of_all(found: Structure) -> None:
            (on_dispatch if found.fields["consumer"].get("value") == number else before)(found)

        wire.on_dispatch = of_all
        try:
            with consuming(self._peer, number, destination, prefetch, browser=browser):
                yield
        finally:
            wire.on_dispatch = before
