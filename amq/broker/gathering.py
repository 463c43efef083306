"""Gathering: one subscription that consumes several queues, named by a pattern or one by one, and topics beside them.

In each of its queues it has a `Member`, which is a consumer like any other. Invariants: all members together have the
credit of one subscription, so a prefetch of 1 is one message and not one for each queue; `unacked` is what the members
hold, in the order of delivery, so that a cumulative acknowledgement covers what came before it, from whichever queue;
a queue that comes into being gets a member of each gathering that means it, and one that is forgotten lets them go.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from amq.broker.names import is_pattern, is_stored, words_of
from amq.broker.patterns import Patterns
from amq.broker.queue import Queue
from amq.broker.subscription import Peer, Subscription
from amq.config.destinations import matches
from amq.message import Message
from amq.protocols.commands import Subscribe

if TYPE_CHECKING:
    from amq.broker.broker import Broker

TOPICS = ""  # stands for the queue of all topics of a gathering, which are one subscription there


class _Held(dict[int, Message]):
    """What a member holds. Its gathering knows of it too."""

    __slots__ = ("_all",)

    def __init__(self, everything: dict[int, Message]) -> None:
        super().__init__()
        self._all = everything

    def __setitem__(self, seq: int, message: Message) -> None:
        super().__setitem__(seq, message)
        self._all[seq] = message


class Member(Subscription):
    """The consumer of one queue, for a gathering."""

    __slots__ = ("gathering",)

    is_guest = True

    def __init__(self, gathering: Gathering, command: Subscribe, queue: Queue, peer: Peer) -> None:
        self.gathering = gathering
        credit = gathering.credit
        super().__init__(command, queue, peer, gathering.prefetch)
        gathering.credit = credit
        self.unacked = _Held(gathering.unacked)

    @property
    def credit(self) -> int:
        """That of all members together."""
        return self.gathering.credit

    @credit.setter
    def credit(self, value: int) -> None:
        self.gathering.credit = value
        if value <= 0:
            self.gathering.exhausted(self)

    def part(self) -> None:
        """Its queue, in which it holds nothing, is forgotten."""
        self.make_unready()
        del self.gathering.members[self.queue.name]


class Gathering(Subscription):
    """What the client sees as one subscription. `queue` is an empty one of its own, that stands for all."""

    __slots__ = ("_broker", "command", "members")

    def __init__(self, command: Subscribe, broker: Broker, peer: Peer) -> None:
        names = dict.fromkeys(command.destination.split(","))
        options = broker.options_of(next(iter(names)))
        super().__init__(command, Queue(command.destination, options), peer, command.prefetch or options.prefetch_size)
        self._broker = broker
        self.command = command
        self.members: dict[str, Member] = {}  # by full name of the queue
        topics = [name for name in names if not is_stored(name)]
        if topics:
            self.add(TOPICS, broker.topics.subscribe(command, tuple(topics)))
        for name in names:
            if is_stored(name) and not is_pattern(name):
                self.add(name, broker.queue(name))

    def add(self, name: str, queue: Queue) -> None:
        """Consume that queue too."""
        member = self.members[name] = Member(self, self.command, queue, self.peer)
        queue.join(member, self._broker)
        if self.is_ready:
            member.make_ready()
        self._broker.dirty[queue] = None

    def holder(self, message: Message) -> Member:
        """Who holds, or held, `message`."""
        return self.members.get(message.destination) or self.members[TOPICS]

    def make_ready(self) -> None:
        if not self.is_ready and self.credit > 0:
            self.is_ready = True
            for member in self.members.values():
                member.make_ready()
                self._broker.dirty[member.queue] = None

    def make_unready(self) -> None:
        self.is_ready = False
        for member in self.members.values():
            member.make_unready()

    def exhausted(self, spender: Member) -> None:
        """The credit of all is spent; `spender` leaves the line by itself."""
        self.is_ready = False
        for member in self.members.values():
            if member is not spender:
                member.make_unready()

    def settle(self, seq: int) -> list[Message]:
        settled = super().settle(seq)
        for message in settled:
            del self.holder(message).unacked[message.seq]
        return settled


class Gatherings:
    """All that there are. They are told of new queues."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._patterns: Patterns[Gathering] = Patterns()
        broker.on_queue.append(self._appeared)

    def subscribe(self, command: Subscribe, peer: Peer) -> Gathering:
        """A new one, with all queues that there are."""
        gathering = Gathering(command, self._broker, peer)
        for meant in _queues_of(command):
            pattern = words_of(meant)
            self._patterns.add(pattern, gathering)  # also a single queue: it may be forgotten, and come again
            for name in list(self._broker.queues) if is_pattern(meant) else ():
                if is_stored(name) and name not in gathering.members and matches(pattern, words_of(name)):
                    gathering.add(name, self._broker.queues[name])
        return gathering

    def unsubscribe(self, gathering: Gathering) -> None:
        """It gets no more queues."""
        for meant in _queues_of(gathering.command):
            self._patterns.discard(words_of(meant), gathering)

    def _appeared(self, queue: Queue) -> None:
        if self._patterns:
            for gathering in self._patterns.match(words_of(queue.name)):
                if queue.name not in gathering.members:
                    gathering.add(queue.name, queue)


def _queues_of(command: Subscribe) -> Iterable[str]:
    """Full names of its queues, and patterns of them."""
    return filter(is_stored, dict.fromkeys(command.destination.split(",")))
