"""WildcardSubscription: one subscription that consumes several queues, named by a pattern or one by one, and topics
beside them.

In each of its queues it has a `Branch`, which is a consumer like any other. Invariants: all branches together have the
credit of one subscription, so a prefetch of 1 is one message and not one for each queue; `unacked` is what the branches
hold, in the order of delivery, so that a cumulative acknowledgement covers what came before it, from whichever queue;
a queue that comes into being gets a branch of each wildcard subscription that means it, and one that is forgotten lets
them go.

A wildcard subscription may have very many branches, most of them of queues where nothing happens, and it runs out of
credit, or its socket is full, many times a second. So that costs nothing for each branch: they stay in the lines of
their queues. A queue that meets such a branch parks it, and only the parked ones come back, one by one as long as there
is room.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Protocol

from amq.broker.actions import Action
from amq.broker.core import Core
from amq.broker.names import is_stored
from amq.broker.queues.queue import ConsumerOwner, Fetching, Queue, Subscription
from amq.broker.topics.patterns import Patterns
from amq.broker.topics.topics import Topics
from amq.core.destination import Pattern, Source, is_of_queues, told, words_of
from amq.core.message import Message
from amq.protocols.commands import Subscribe

SLICE_QUEUES = 2000  # looked at, joined or woken in one turn: a few milliseconds
TOPICS = ""  # stands for the queue of all topics of a wildcard subscription, which are one subscription there


class _Held(dict[int, Message]):
    """The messages that a branch holds. Its wildcard subscription knows of them too."""

    __slots__ = ("_all",)

    def __init__(self, everything: dict[int, Message]) -> None:
        super().__init__()
        self._all = everything

    def __setitem__(self, seq: int, message: Message) -> None:
        super().__setitem__(seq, message)
        self._all[seq] = message


class Branch(Subscription):
    """The consumer of one queue, for a wildcard subscription."""

    __slots__ = ("_in_line", "wildcard")

    is_guest = True

    def __init__(
        self, wildcard: WildcardSubscription, command: Subscribe, queue: Queue, owner: ConsumerOwner, prefix: str
    ) -> None:
        self.wildcard = wildcard
        super().__init__(command, queue, owner, wildcard.prefetch, prefix)
        self.unacked = _Held(wildcard.unacked)

    def begin_with(self, credit: int) -> None:
        """The wildcard subscription has had it."""

    @property
    def credit(self) -> int:
        """That of all branches together."""
        return self.wildcard.credit

    @credit.setter
    def credit(self, value: int) -> None:
        self.wildcard.credit = value
        if value <= 0:
            self.wildcard.exhausted(self)

    @property
    def is_ready(self) -> bool:
        """Does it stand in its queue's line, and may it get something?"""
        return self._in_line and self.wildcard.is_ready

    @is_ready.setter
    def is_ready(self, value: bool) -> None:
        self._in_line = value

    def make_ready(self) -> None:
        if not self._in_line:
            self._in_line = True
            self.queue.make_ready(self)

    def make_unready(self) -> None:
        if self._in_line:
            self._in_line = False
            self.queue.make_unready(self)

    def park(self) -> None:
        """It has left the line, since the wildcard subscription has no room."""
        self._in_line = False
        self.wildcard.parked[self] = None

    def part(self) -> None:
        """Its queue, in which it holds nothing, is forgotten."""
        self.make_unready()
        self.wildcard.parked.pop(self, None)
        del self.wildcard.branches[self.queue.name]


class WildcardSubscription(Subscription):
    """Several subscriptions that the client sees as one. `queue` is a separate empty one, that stands for all.
    `parked` = branches whose queues may have something for them, oldest first: they are in no line."""

    __slots__ = ("_core", "_wildcards", "branches", "command", "parked")

    def __init__(self, command: Subscribe, core: Core, wildcards: WildcardSubscriptions, owner: ConsumerOwner) -> None:
        options = core.state.options_of(str(command.sources[0]))
        own = Queue(told(command.sources), options)
        super().__init__(command, own, owner, command.flow.prefetch or options.prefetch_size, core.message_id_prefix)
        self._core = core
        self._wildcards = wildcards
        self.command = command
        self.branches: dict[str, Branch] = {}  # by full name of the queue
        self.parked: dict[Branch, None] = {}
        topics = tuple(each for each in command.sources if not is_of_queues(each))
        if topics:
            self.add(TOPICS, wildcards.topics.subscribe(command, topics))
        for source in _queues_of(command):
            if not isinstance(source, Pattern):
                self.add(source, core.state.queue(source))

    def add(self, name: str, queue: Queue) -> None:
        """Consume that queue too."""
        prefix = self._core.message_id_prefix
        branch = self.branches[name] = Branch(self, self.command, queue, self.owner, prefix)
        queue.join(branch, self._core)
        if self.is_ready or name != TOPICS:
            branch.make_ready()
        self._core.dirty[queue] = None

    def wants(self, meant: Pattern, name: str) -> bool:
        """Is that queue one of those that are meant, and may its user consume it?"""
        return meant.stands_for(name) and self.owner.may(Action.CONSUME, name)

    def holder(self, message: Message) -> Branch:
        """The branch that holds, or held, `message`."""
        return self.branches.get(message.destination) or self.branches[TOPICS]

    def make_ready(self) -> None:
        if self.is_ready or self.credit <= 0:
            return
        self.is_ready = True
        if TOPICS in self.branches:
            self.branches[TOPICS].make_ready()
            self._core.dirty[self.branches[TOPICS].queue] = None
        if self.parked:
            self._wildcards.waking[self] = None

    def make_unready(self) -> None:
        self.is_ready = False
        if TOPICS in self.branches:
            self.branches[TOPICS].make_unready()

    def exhausted(self, spender: Branch) -> None:
        """The credit of all is spent; `spender` leaves the line by itself."""
        self.is_ready = False
        topics = self.branches.get(TOPICS)
        if spender is not topics:
            self.parked[spender] = None
            if topics is not None:
                topics.make_unready()

    def wake_next(self) -> bool:
        """The branch that was parked first is in line again. False: none is parked, or there is no room."""
        if not self.is_ready or not self.parked:
            return False
        branch = next(iter(self.parked))
        del self.parked[branch]
        branch.make_ready()
        self._core.dirty[branch.queue] = None
        return True

    def looks(self, core: Fetching) -> bool:
        wildcards = self._wildcards
        if self in wildcards.waking or self in wildcards.joining:
            return True
        return any(branch.looks(core) for branch in self.branches.values())

    def settle(self, seqs: Sequence[int]) -> list[Message]:
        settled = super().settle(seqs)
        for message in settled:
            del self.holder(message).unacked[message.seq]
        return settled


class Listener(Protocol):
    """Told of wildcard subscriptions."""

    def began(self, wildcard: Subscription) -> None: ...
    def ended(self, wildcard: Subscription) -> None: ...


class WildcardSubscriptions:
    """All that there are. They learn of new queues. `waking` = those that have room again, and parked branches. Call
    `step` once a turn."""

    listener: Listener  # set before the first subscription

    def __init__(self, core: Core, topics: Topics) -> None:
        self._core = core
        self.topics = topics
        self.waking: dict[WildcardSubscription, None] = {}
        self.woken = 0  # branches, in this turn
        self.joining: dict[WildcardSubscription, Iterator[None]] = {}  # that do not consume all of their queues yet
        self._patterns: Patterns[WildcardSubscription] = Patterns()

    def subscribe(self, command: Subscribe, owner: ConsumerOwner) -> WildcardSubscription:
        """A new one, with all queues that there are. Where these are very many, some come in later turns."""
        wildcard = WildcardSubscription(command, self._core, self, owner)
        for meant in _queues_of(command):
            self._patterns.add(_words(meant), wildcard)  # also a single queue: it may be forgotten, and come again
        self.joining[wildcard] = self._join(wildcard)
        self._go_on(wildcard)
        self.listener.began(wildcard)
        return wildcard

    def look_again(self, wildcard: WildcardSubscription) -> None:
        """Its user may consume more queues than before."""
        self.joining[wildcard] = self._join(wildcard)
        self._go_on(wildcard)

    def step(self) -> None:
        """A new turn begins."""
        self.woken = 0
        for wildcard in list(self.joining):
            self._go_on(wildcard)

    def _go_on(self, wildcard: WildcardSubscription) -> None:
        if next(self.joining[wildcard], True) is True:
            del self.joining[wildcard]
        else:
            self._core.wake()

    def _join(self, wildcard: WildcardSubscription) -> Iterator[None]:
        queues = self._core.state.queues
        for meant in _queues_of(wildcard.command):
            if not isinstance(meant, Pattern):
                continue
            for looked_at, name in enumerate(list(queues), 1):
                if is_stored(name) and name not in wildcard.branches and wildcard.wants(meant, name):
                    queue = queues.get(name)  # it may have been forgotten
                    if queue is not None:
                        wildcard.add(name, queue)
                if looked_at % SLICE_QUEUES == 0:
                    yield None

    def wake_next(self) -> bool:
        """The next branch of each that is waking has its turn. False: there is none, or there were enough for this turn
        of the broker."""
        if self.woken >= SLICE_QUEUES:
            self._core.wake()
            return False
        self.woken += len(self.waking)
        for wildcard in list(self.waking):
            if not wildcard.wake_next():
                del self.waking[wildcard]
        return bool(self.waking)

    def unsubscribe(self, wildcard: WildcardSubscription) -> None:
        """It gets no more queues."""
        self.waking.pop(wildcard, None)
        self.joining.pop(wildcard, None)
        for meant in _queues_of(wildcard.command):
            self._patterns.discard(_words(meant), wildcard)
        self.listener.ended(wildcard)

    def appeared(self, queue: Queue) -> None:
        """A new queue, which may be one of those that are consumed together."""
        if self._patterns:
            for wildcard in self._patterns.match(words_of(queue.name)):
                if queue.name not in wildcard.branches and wildcard.owner.may(Action.CONSUME, queue.name):
                    wildcard.add(queue.name, queue)


def _queues_of(command: Subscribe) -> Iterable[Source]:
    """Full names of its queues, and patterns of them."""
    return filter(is_of_queues, command.sources)


def _words(source: Source) -> Sequence[str]:
    return source.words if isinstance(source, Pattern) else words_of(source)
