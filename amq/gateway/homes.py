"""RoutedHome: one of the stores in which a client's connection has something, as the connection sees it.

It gives what comes from there the numbers by which the client knows it: the number of a message in its store, and
behind that the index of the store. So nothing is looked up when the client settles a message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from amq.broker.recipient import QueueConsumer, Recipient
from amq.broker.sessions.links import Client
from amq.core.errors import AmqError
from amq.core.message import STORE_BITS, Message, MessageBatch
from amq.core.message_run import MessageRun
from amq.doors.clock import Clock
from amq.gateway.answers import BYTES, TOKEN, Joined, Kept, KeptRun
from amq.gateway.consumers import Consumer, HomeBranch
from amq.journal.reader import RecordRun
from amq.protocols.commands import Command, Failure, InSession, MakeSure, OpenSession, SendRun, Subscribe
from amq.transports.hub import ServedConnection

INDEX_BITS: Final = STORE_BITS
INDEX_MASK: Final = (1 << INDEX_BITS) - 1
ALL_NUMBERS: Final = 1 << 80  # no message has that number


class Loss(NamedTuple):
    """How the way to a home was lost. `unanswered` = tokens of what it has not answered, in the order of the commands;
    `is_orderly`: it has carried out none of these; `was_linked` False = no master was found."""

    error: AmqError
    unanswered: Sequence[Any] = ()
    is_orderly: bool = False
    was_linked: bool = True


class HomeTable(Protocol):
    """A table of the homes of all destinations. `stores` = names, of which the places never change."""

    @property
    def stores(self) -> Sequence[str]: ...
    @property
    def places(self) -> Sequence[str]:
        """The stores by their places, "" = it was removed."""
        ...

    @property
    def number(self) -> int: ...
    @property
    def decider(self) -> str:
        """The store that decides the batches of pipelines."""
        ...

    def home_of(self, name: str) -> str:
        """The store in which the destination of that full name lives; anything that is not a store = in each."""
        ...

    def stores_of(self, name: str) -> Sequence[str]:
        """The stores in which it lives."""
        ...

    def stores_of_patterns(self) -> Sequence[str]:
        """The stores in which a consumer of a pattern consumes."""
        ...

    def is_moving(self, name: str) -> bool:
        """Does no store serve the destination, because it is on its way to another home?"""
        ...


class GatewayCluster(Protocol):
    """The surroundings of routed connections."""

    clock: Clock

    @property
    def placement(self) -> HomeTable:
        """The newest table that is known here."""
        ...

    def open_home(self, store: str, home: RoutedHome, client: Client, owner: str, protocol: str) -> ServedConnection:
        """A connection of `client` to the master of `store`, which may have to be found first. `home` gets what comes
        from there: each message belongs to it, and gets another number. Raises AmqError."""
        ...

    def renew(self, done: Callable[[bool], None]) -> None:
        """Read the table again. `done` is called once: is there a newer one?"""

    def locate(self, stores: Sequence[str], done: Callable[[Mapping[str, Sequence[str]]], None]) -> None:
        """Where do clients find the masters of `stores`? `done` is called once, later, with the addresses of each."""

    def later(self, call: Callable[[], None]) -> None:
        """Call that soon, but not now."""

    def give_up(self) -> None:
        """This process ends: nobody waits for the master of a store any more."""


class HomesOwner(Protocol):
    """The client's connection, as its homes see it: see `amq.gateway.router`."""

    peer: Recipient
    touched: list[RoutedHome]
    waits: bool

    def subscribed(self, home: RoutedHome, command: Subscribe, session: int) -> HomeBranch: ...
    def balance(self, consumer: Consumer) -> None: ...
    def answer(self, joined: Joined) -> None: ...
    def answered(self, home: RoutedHome) -> None: ...
    def failed(self, home: RoutedHome, failure: Failure) -> None: ...
    def ends(self) -> None: ...
    def pause(self, home: RoutedHome) -> None: ...
    def resume(self, home: RoutedHome) -> None: ...
    def lost(self, home: RoutedHome, loss: Loss) -> None: ...


class RoutedHome:
    """Implements `amq.broker.recipient.Recipient` for one connection to a store.

    out             commands that go there together, of which the last ones are of session `session`
    asked, answered how many answers were asked for, and have come
    unsure          sessions in which a message was sent without asking
    is_making_sure  answers are on their way only to learn that such messages have come
    kept_bytes      of messages that are on their way
    made            temporary destinations there that the client has made
    old             deliveries up to that number may be from before the home was lost; -1 = it never was
    losses          how often it was lost, one time after the other, since it has answered anything
    """

    def __init__(self, router: HomesOwner, store: str, index: int) -> None:
        self._router = router
        self.store = store
        self.index = index
        self.connection: ServedConnection | None = None
        self.out: list[Command] = []
        self.session = 0
        self.sessions: set[int] = {0}
        self.asked = self.answered = 0
        self.unsure: set[int] = set()
        self.is_making_sure = False
        self.kept_bytes = 0
        self.made: set[str] = set()
        self.old = -1
        self.losses = 0
        self._answered_before = -1  # when it was lost

    @property
    def peer(self) -> Recipient:
        """The client."""
        return self._router.peer

    @property
    def unanswered(self) -> int:
        return self.asked - self.answered

    @property
    def is_unsure(self) -> bool:
        """Was a message sent without asking?"""
        return bool(self.unsure)

    def make_sure(self, ended: Callable[[Exception | None], None]) -> None:
        """Ask behind such messages, in each of their sessions, for a message waits for room in its own one: with the
        answers they are stored, and `ended` is called."""
        sessions = sorted(self.unsure & self.sessions) or [0]
        self.unsure.clear()
        self.is_making_sure = True
        joined = Joined(None, sessions[0], len(sessions), ended=ended)
        for session in sessions:
            self.ask(session, MakeSure(joined))

    def put(self, session: int, command: Command) -> None:
        """`command` of that session goes there with the others of this read."""
        if not self.out:
            self._router.touched.append(self)
            self.session = 0
        if session != self.session:
            if session not in self.sessions:
                self.sessions.add(session)
                if self.session:  # it may have ended
                    self.out.append(InSession(0))
                self.out.append(OpenSession(session))
            self.out.append(InSession(session))
            self.session = session
        self.out.append(command)

    def ask(self, session: int, command: Command) -> None:
        """The same of a command with a receipt."""
        self.asked += 1
        self.put(session, command)

    def end(self) -> None:
        """The client's connection has ended: what it holds there goes back."""
        connection, self.connection = self.connection, None
        self.out.clear()
        if connection is not None:
            connection.close()

    def lost(self, loss: Loss) -> None:
        """The way to the master of the store is broken."""
        self.losses = 1 if self.answered > self._answered_before else self.losses + 1
        self._answered_before = self.answered
        self.old = ALL_NUMBERS
        unsent = [receipt for command in self.out for receipt in _receipts(command) if receipt is not None]
        self._router.lost(self, loss._replace(unanswered=[*loss.unanswered, *unsent]))

    def begun(self, newest_seq: int) -> int:
        """A master answers, which has messages up to that one. Returns up to which number the client may have had
        messages that come now, -1 = it had none."""
        if self.old >= 0:
            self.old = newest_seq << INDEX_BITS | INDEX_MASK
        return self.old

    # -- what comes from there ----------------------------------------------------------------------------------------

    def subscribed(self, command: Subscribe, session: int) -> HomeBranch:
        return self._router.subscribed(self, command, session)

    def deliver(self, subscription: QueueConsumer, message: Message, redelivered: int) -> None:
        branch: HomeBranch = subscription.wire
        message.seq = seq = message.seq << INDEX_BITS | self.index
        if branch.acknowledges:
            branch.unsettled += 1
            branch.newest = seq
        if branch.counts and branch.consumer.delivered(branch, seq):
            self._router.balance(branch.consumer)
        self._router.peer.deliver(branch, message, redelivered)

    def deliver_all(self, subscription: QueueConsumer, messages: Sequence[Message]) -> None:
        branch: HomeBranch = subscription.wire
        self._router.peer.deliver_all(branch, self._number(branch, messages))

    def deliver_batch(self, subscription: QueueConsumer, batch: MessageBatch) -> None:
        branch: HomeBranch = subscription.wire
        self._number(branch, batch.messages)
        self._router.peer.deliver_batch(branch, batch)

    def _number(self, branch: HomeBranch, messages: Sequence[Message]) -> Sequence[Message]:
        """`messages`, with the numbers that the client gets."""
        index = self.index
        if isinstance(messages, MessageRun):
            messages = messages.numbered(INDEX_BITS, index)
            newest = messages.seqs[-1]
        else:
            for message in messages:
                message.seq = message.seq << INDEX_BITS | index
            newest = messages[-1].seq
        if branch.acknowledges:
            branch.unsettled += len(messages)
            branch.newest = newest
        if branch.counts:
            consumer = branch.consumer
            used = [consumer.delivered(branch, message.seq) for message in messages]  # all of them
            if any(used):
                self._router.balance(consumer)
        return messages

    def deliver_run(
        self,
        subscription: QueueConsumer,
        destination: str,
        run: RecordRun,
        seq: int,
        redelivered: Sequence[tuple[int, int]],
    ) -> None:
        branch: HomeBranch = subscription.wire
        self._router.peer.deliver_run(branch, destination, run, seq << INDEX_BITS | self.index, redelivered)

    def browsed(self, subscription: QueueConsumer) -> None:
        branch: HomeBranch = subscription.wire
        consumer = branch.consumer
        branch.is_shown = True
        consumer.shows -= 1
        if not consumer.shows:
            self._router.peer.browsed(branch)

    def confirm(self, receipt: Any, outcome: str = "") -> None:
        self.answered += 1
        kind = receipt.__class__
        if kind is Kept:
            self.kept_bytes -= receipt[BYTES]
            self._router.peer.confirm(receipt[TOKEN])
        elif receipt.confirmed(outcome):
            self._router.answer(receipt)
        if self._router.waits:
            self._router.answered(self)

    def confirm_all(self, receipts: Sequence[Any]) -> None:
        if receipts.__class__ is KeptRun:
            self._confirm_run(receipts)
            return
        if {receipt.__class__ for receipt in receipts} != {Kept}:
            for receipt in receipts:
                self.confirm(receipt)
            return
        self.answered += len(receipts)
        self.kept_bytes -= sum([receipt[BYTES] for receipt in receipts])
        self._router.peer.confirm_all([receipt[TOKEN] for receipt in receipts])
        if self._router.waits:
            self._router.answered(self)

    def _confirm_run(self, run: KeptRun) -> None:
        self.answered += len(run)
        self.kept_bytes -= run.bytes
        self._router.peer.confirm_all(run.tokens)
        if self._router.waits:
            self._router.answered(self)

    def fail(self, failure: Failure) -> None:
        receipt: Any = failure.receipt
        if receipt is not None:
            self.answered += 1
        if receipt.__class__ is Kept:
            self.kept_bytes -= receipt[BYTES]
        self._router.failed(self, failure)
        if self._router.waits:
            self._router.answered(self)

    def close(self) -> None:
        self._router.ends()

    def pause_reading(self) -> None:
        self._router.pause(self)

    def resume_reading(self) -> None:
        self._router.resume(self)


def _receipts(command: Command) -> Sequence[Any]:
    return command.receipts or () if isinstance(command, SendRun) else (command.receipt,)
