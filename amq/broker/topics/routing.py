"""Routing: where a message goes that was sent to a destination which stands for others.

Three things lead elsewhere: a composite name (`queue://a,topic://b`), diverts (an option of destinations, each perhaps
with a selector), and a virtual topic, whose messages also go to every queue that was made to consume it
(`Consumer.NAME.VirtualTopic.X`, see `amq.broker.topics.virtual`).
Invariants: a message gets to all of its destinations or to none, its persistent parts in one record of the journal, and
to each of them once: a part that somebody else's record is just storing is waited for; what was led somewhere is not
led on from there.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from amq.broker.core import Core
from amq.broker.names import check_sent_to, is_queued, is_temporary, is_topic
from amq.broker.queues.limits import Limits
from amq.broker.queues.rooms import Room
from amq.broker.recipient import Recipient
from amq.broker.topics.durables import Durables
from amq.broker.topics.topics import Topics
from amq.broker.topics.virtual import Makes, VirtualTopics
from amq.broker.transactions.commits import Commits
from amq.broker.transactions.transaction import Transaction, memory_bytes
from amq.broker.waiters import Together
from amq.config.diverts import parse_diverts
from amq.core.errors import AccessError, CommandError
from amq.core.message import Copier, Message, Sharing
from amq.core.remembered import ENTRY_BYTES, Remembered
from amq.journal.batch import Waiter
from amq.selectors import Selector

ROUTES_BYTES_MAX = 4 << 20  # of names whose routes are remembered


class Forked(tuple[str, ...]):
    """A route where selectors decide: all destinations that a message may reach. `of` gives those of one message."""

    parts: list[tuple[tuple[str, ...], list[_Led]]]  # a destination with its audience, and its diverts

    def of(self, message: Message) -> tuple[str, ...]:
        """Where `message` goes, at least to one destination."""
        found: dict[str, None] = {}
        for own, diverts in self.parts:
            taken = [led for led in diverts if led.selector is None or led.selector.matches(message)]
            found.update(dict.fromkeys(_led(own, taken)))
        return tuple(found)


class _Led(NamedTuple):
    """A divert with what it leads to: its target, and who hears that as well."""

    targets: tuple[str, ...]
    exclusive: bool
    selector: Selector | None


def _led(own: tuple[str, ...], taken: list[_Led]) -> Iterator[str]:
    """The destinations of a message to `own` which the diverts `taken` take. Where one of them is exclusive, only the
    exclusive ones count."""
    exclusive = [led for led in taken if led.exclusive]
    if not exclusive:
        yield from own
    for led in exclusive or taken:
        yield from led.targets


class Routing:
    """Knows where everything goes that is sent."""

    def __init__(
        self, core: Core, topics: Topics, durables: Durables, limits: Limits, commits: Commits, make: Makes
    ) -> None:
        self._core = core
        self._topics = topics
        self._durables = durables
        self._limits = limits
        self._commits = commits
        self._routes: Remembered[tuple[str, ...]] = Remembered(ROUTES_BYTES_MAX)
        self.virtual = VirtualTopics(core, make, self.forget_routes)

    def reconfigure(self) -> None:
        """Options changed."""
        self.forget_routes()

    def forget_routes(self) -> None:
        """Messages that are sent from now on may go elsewhere."""
        self._routes.clear()

    def of(self, name: str) -> tuple[str, ...]:
        """The destinations of a message to `name`: itself alone, as a rule. Raises AccessError, CommandError."""
        return self._routes.get(name) or self._find(name, (name,))

    def of_all(self, names: tuple[str, ...]) -> tuple[str, ...]:
        """The destinations of a message to all of `names`. Raises AccessError, CommandError."""
        key = "\0".join(names)
        return self._routes.get(key) or self._find(key, names)

    def _find(self, key: str, names: tuple[str, ...]) -> tuple[str, ...]:
        found: dict[str, None] = {}
        parts: list[tuple[tuple[str, ...], list[_Led]]] = []
        limit = self._core.config.max_composite_destinations
        if len(names) > limit:
            raise AccessError(
                f"a composite destination of {len(names)} names: this broker takes up to {limit} "
                "(maxCompositeDestinations); send to fewer at a time, or to a topic",
                code="DESTINATION_INVALID",
            )
        for part in names:
            check_sent_to(part)
            own: tuple[str, ...] = (part,)
            diverts: list[_Led] = []
            if not is_temporary(part):
                own, diverts = self.audience(part), self._diverts(part)
            parts.append((own, diverts))
            if any(led.selector is not None for led in diverts):
                found.update(dict.fromkeys([*own, *(name for led in diverts for name in led.targets)]))
            else:
                found.update(dict.fromkeys(_led(own, diverts)))
        route = tuple(found)
        if any(led.selector is not None for _, diverts in parts for led in diverts):
            route = Forked(route)
            route.parts = parts
        return self._routes.keep(key, route, len(key) + ENTRY_BYTES * len(route))

    def audience(self, name: str) -> tuple[str, ...]:
        """A destination, and the queues that consume it if it is a virtual topic."""
        return tuple(dict.fromkeys((name, *self.virtual.queues_of(name)))) if is_topic(name) else (name,)

    def _led_to(self, name: str) -> tuple[str, ...]:
        led = self._core.led(name)
        return self.audience(name) if led == name else (led,)

    def _diverts(self, name: str) -> list[_Led]:
        """The diverts of messages that are sent to `name`."""
        options = self._core.state.options_of(name)
        kind = "topic" if is_topic(name) else "queue"
        return [
            _Led(
                self._led_to(divert.target),
                options.divert_exclusive if divert.exclusive is None else divert.exclusive,
                Selector(divert.selector) if divert.selector else None,
            )
            for divert in parse_diverts(options.divert)
            if divert.source in ("", kind)
        ]

    def is_possible(self, name: str) -> bool:
        """Can a message to `name` go now where it would be led?"""
        try:
            self.of(name)
        except CommandError:
            return False
        return True

    def copies(self, message: Message, route: tuple[str, ...], peer: Recipient | None) -> list[Message]:
        """`message` for each of its destinations. They share the body; queues, also in the journal."""
        if type(route) is Forked:
            route = route.of(message)
        made: list[Message] = []
        queues = [name for name in route if is_queued(name)]
        shared, copier = Sharing(peer, len(queues) - 1, encodes=False), Copier(message)
        stays_too = message.destination in queues
        for name in route:
            if len(queues) > 1 and is_queued(name):
                copy = copier.copy(name)
                copy.original, copy.shared = message, shared
                if stays_too:  # shared properties count once, until the last of them has gone
                    copy.header_bytes = copier.led()[1]
                made.append(copy)
                continue
            made.append(copier.message(name))
            if not is_queued(name):
                made[-1].shared = Sharing(peer)
        return made

    def publish(self, message: Message, waiter: Waiter) -> Room | None:
        """Send `message` to its topic. Returns what it must wait for, None = nothing."""
        if self._durables.hears(message.destination):
            return self.send([message], waiter)
        self._topics.publish(message, waiter)
        return None

    def send(self, messages: list[Message], waiter: Waiter) -> Room | None:
        """Send `messages`, copies of one, together. Returns the room that they must wait for, None = none.

        A message that is stored already, or is being stored, is not stored again. Raises StoreFullError,
        TransactionRolledBackError.
        """
        core = self._core
        transaction = self._commits.begin()
        known = []
        for message in messages:
            name, id = message.queue_name, message.duplicate_id
            if message.persistent and id and is_queued(name) and core.is_duplicate(message):
                known.append(message)
            else:
                transaction.add([message])
        if known and not transaction.sends:  # resent: what went to topics did so as well
            self._confirm_with(known, None, waiter)
            return None
        sends = transaction.sends
        for message in sends:
            if message.shared is not None:
                message.shared.others = len(sends) - 1
        transaction.sends_to_durables = True
        _, stored_by_others = self._commits.add_copies(transaction)
        if stored_by_others and not transaction.sends:  # resent: what it was sent for is not done yet
            self._confirm_with(stored_by_others, None, waiter)
            return None
        room = self._limits.room_to_commit(transaction)
        if room is None:
            core.memory.take(memory_bytes(transaction.sends + transaction.published))
            self._confirm_with(known + stored_by_others, transaction, waiter)
        return room

    def _confirm_with(self, known: list[Message], transaction: Transaction | None, waiter: Waiter) -> None:
        """Commit `transaction`, None = there is nothing to commit. Confirmed when that is done, and what is on its way
        of `known` for somebody else."""
        core, queue = self._core, self._core.state.queue
        found = [queue(message.queue_name).duplicates_pending.get(message.duplicate_id) for message in known]
        records = {id(record): record for record in found if record is not None}
        part: Waiter = Together(waiter, len(records) + 1) if records else waiter
        if transaction is None:
            core.when_durable(part)
        else:
            self._commits.commit(transaction, part, "")
        for record in records.values():
            core.when_durable(part, record)
