"""A client with many sessions, whose connection survives every error but its own end: as protocols have them that are
not STOMP. Its commands go to the broker as they are, in no protocol's notation.

Invariant: `failures` are in the order in which they left the broker; an error about a consumer or delivery says in
which session it is.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from amq.broker.queues.queue import Subscription
from amq.core.destination import Source
from amq.core.errors import AmqError
from amq.core.message import Message
from amq.protocols.commands import (
    CloseSession,
    Command,
    Credit,
    Failure,
    InSession,
    OpenSession,
    Outcome,
    Scope,
    Settle,
    SettleSet,
    Subscribe,
)
from tests.broker.world import Client, World, full_name
from tests.subscribing import subscribe


class Told(NamedTuple):
    """An error, as the client sees it."""

    code: str
    scope: Scope
    session: int
    consumer: str
    receipt: object


class Given(NamedTuple):
    session: int
    consumer: str
    seq: int
    body: bytes
    redelivered: int


class ManyClient(Client):
    """`given` = deliveries, with their sessions; `events` = all that it was told, in order."""

    def __init__(self, world: World, **who: str) -> None:
        self.failures: list[Told] = []
        self.given: list[Given] = []
        self.events: list[object] = []
        super().__init__(world, **who)
        world.clients.append(self)

    # -- Peer ---------------------------------------------------------------------------------------------------------

    def subscribed(self, command: Subscribe, session: int) -> object:  # noqa: ARG002
        return session

    def deliver(self, subscription: Subscription, message: Message, redelivered: int) -> None:
        given = Given(subscription.wire, subscription.id, message.seq, message.body, redelivered)
        super().deliver(subscription, message, redelivered)  # which lends a large body
        self._out += [lambda: self.given.append(given), lambda: self.events.append(given)]

    def browsed(self, subscription: Subscription) -> None:
        super().browsed(subscription)
        self._out.append(lambda: self.events.append(("end of browse", subscription.id)))

    def confirm(self, receipt: object, outcome: str = "") -> None:
        super().confirm(receipt, outcome)
        self._out.append(lambda: self.events.append(receipt))

    def fail(self, failure: Failure) -> None:
        if failure.scope is Scope.CONNECTION or self._closing:
            super().fail(failure)
            return
        assert isinstance(failure.error, AmqError), failure.error
        told = Told(failure.error.code, failure.scope, failure.session, failure.consumer, failure.receipt)
        self._out += [lambda: self.failures.append(told), lambda: self.events.append(told)]

    # -- the program --------------------------------------------------------------------------------------------------

    def ask(self, *commands: Command, session: int = 0) -> str:
        """In that session. The last one asks for a receipt, which is returned."""
        receipt = commands[-1].receipt = self.world.next_receipt()
        assert self.reading, "the broker does not read from this client"
        self.session.handle([InSession(session), *commands] if session else [*commands])
        return receipt

    def open(self, *sessions: int) -> None:
        for session in sessions:
            self.ask(OpenSession(session))

    def end(self, session: int) -> str:
        return self.ask(CloseSession(session), session=session)

    def consume(self, id: str, *sources: Source, session: int = 0, acknowledges: bool = True, **options: Any) -> str:
        named = tuple(full_name(each) if isinstance(each, str) else each for each in sources)
        return self.ask(subscribe(id, named, acknowledges=acknowledges, **options), session=session)

    def grant(self, id: str, credit: int, *, session: int = 0, drain: bool = False) -> str:
        return self.ask(Credit(id, credit, drain=drain), session=session)

    def settle(
        self,
        *bodies: bytes,
        outcome: Outcome = Outcome.ACCEPTED,
        session: int = 0,
        consumer: str = "",
        transaction: str = "",
    ) -> str:
        """The latest deliveries of these bodies in that session: of several, as a set."""
        seqs = [self.seq(body, session) for body in bodies]
        if len(seqs) > 1:
            return self.ask(SettleSet(seqs, consumer, None, transaction, outcome), session=session)
        return self.ask(Settle(seqs[0], consumer, None, transaction, outcome), session=session)

    def seq(self, body: bytes, session: int = 0) -> int:
        return next(each.seq for each in reversed(self.given) if (each.session, each.body) == (session, body))

    def bodies_of(self, consumer: str, session: int = 0) -> list[bytes]:
        """What that consumer was given, in order."""
        return [each.body for each in self.given if (each.session, each.consumer) == (session, consumer)]
