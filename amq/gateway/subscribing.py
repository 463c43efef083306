"""Consumers over several homes: how they begin, get credit and end.

A consumer has a branch in each home of its sources. Invariants: it is in all of them or in none, once all have
answered; the credit of all branches together is never more than the client gave; a drain asks one home after the other.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from copy import copy
from functools import partial
from typing import Any, Final, Protocol

from amq.core.destination import Source
from amq.core.errors import CommandError
from amq.core.message import GivenIds
from amq.gateway.answers import Joined, asking
from amq.gateway.consumers import Consumer, ConsumerHome, HomeBranch
from amq.gateway.homes import INDEX_BITS, INDEX_MASK, GatewayCluster, RoutedHome
from amq.protocols.commands import Browse, Command, Credit, Extend, Subscribe, Unsubscribe

_MESSAGE_ID: Final = "JMSMessageID"  # in a selector


class SubscribingSession(Protocol):
    """The session of a consumer; `consumers` by id."""

    number: int
    consumers: dict[str, Consumer]


class SubscribingClient(Protocol):
    """The client's connection: see `amq.gateway.router`."""

    cluster: GatewayCluster
    ids: GivenIds | None
    is_closed: bool

    @property
    def sessions(self) -> Mapping[int, SubscribingSession]: ...
    def all_homes(self) -> list[RoutedHome]: ...
    def only_home(self, sources: tuple[Source, ...]) -> RoutedHome: ...
    def parts(self, sources: Iterable[Source]) -> dict[RoutedHome, tuple[Source, ...]]: ...
    def once(self, command: Command, parts: int = 1) -> Command | None: ...
    def answer_now(self, command: Command) -> None: ...
    def pass_on(self, session: int, home: ConsumerHome, command: Command) -> None: ...
    def to_all(self, session: int, homes: Iterable[ConsumerHome], command: Command, **joined: Any) -> None: ...
    def flush(self) -> None: ...


def subscribe(client: SubscribingClient, session: SubscribingSession, command: Subscribe) -> None:
    if command.id in session.consumers:
        raise CommandError(f"this connection has a subscription {command.id!r} already: use another id")
    sources, browse = command.sources, command.browse
    parts = client.parts(sources)
    if browse is not None and browse != Browse():
        home = client.only_home(sources)
        command = copy(command)
        command.browse = browse._replace(range=_range_at(home, browse.range))
    if len(parts) == 1:
        own: dict[ConsumerHome, Subscribe] = {home: asking(command, None) for home in parts}
    else:
        own = {home: _part(command, found) for home, found in parts.items()}
    if client.ids is not None and _MESSAGE_ID in command.filter.selector:
        for at, part in own.items():
            part.filter = part.filter._replace(ids=client.ids._replace(place=at.index))
    consumer = session.consumers[command.id] = Consumer(command, session.number)
    consumer.open_in(own)
    ended = partial(_subscribed, client, consumer)
    again = client.once(command, len(own))
    receipt = Joined(command.receipt, session.number, len(own), again=again, command=command, ended=ended)
    for branch in consumer.branches.values():
        branch.home.ask(session.number, branch.subscribe(receipt))


def _subscribed(client: SubscribingClient, consumer: Consumer, error: Exception | None) -> None:
    """All homes have answered. It is in all of them, or in none."""
    session = client.sessions.get(consumer.session)
    if error is None or session is None or session.consumers.get(consumer.id) is not consumer:
        return
    del session.consumers[consumer.id]
    end_in(client, consumer, consumer.begun if consumer.is_divided else ())


def end_in(client: SubscribingClient, consumer: Consumer, homes: Container[ConsumerHome]) -> None:
    """It has ended for its client. Whether it had ended in one of `homes` before is nothing that it hears."""
    for branch in consumer.branches.values():
        if branch.home in homes:
            quiet = Joined(None, consumer.session, is_question=True, deals=lambda _: True)
            branch.home.ask(consumer.session, Unsubscribe(consumer.id, quiet))
    consumer.end()
    client.cluster.later(client.flush)


def unsubscribe(client: SubscribingClient, session: SubscribingSession, command: Unsubscribe) -> None:
    consumer = session.consumers.get(command.id)
    if consumer is None and command.subscription_name:
        client.to_all(session.number, client.all_homes(), command, is_question=True)
        return
    homes = [branch.home for branch in _consumer(session, command.id).branches.values()]
    if not command.subscription_name:
        session.consumers.pop(command.id).end()
        client.to_all(session.number, homes, command)
        return

    def ended(error: Exception | None) -> None:
        found = None if error is not None else session.consumers.pop(command.id, None)
        if found is not None:
            found.end()

    client.to_all(session.number, homes, command, ended=ended)


def credit(client: SubscribingClient, session: SubscribingSession, command: Credit) -> None:
    consumer = session.consumers.get(command.id)
    if consumer is None or (consumer.is_divided and not consumer.has_credit):
        raise CommandError(f"subscription {command.id!r} did not begin with credit: subscribe with a credit of 0")
    if not consumer.is_divided:
        consumer.grant(command.credit)
        client.pass_on(session.number, next(iter(consumer.branches.values())).home, command)
        return
    consumer.is_drained = command.drain
    consumer.asks += 1
    if command.drain and command.credit:
        consumer.grant(0)
        consumer.credit = command.credit
        _drain(client, consumer, command, [*consumer.branches.values()], consumer.asks)
        return
    shares = consumer.grant(command.credit)
    receipt = Joined(command.receipt, session.number, len(shares), command=command)
    for branch, share in shares:
        branch.home.ask(session.number, Credit(command.id, share, receipt, command.drain, command.wait_ms))


def _drain(client: SubscribingClient, consumer: Consumer, command: Credit, left: list[HomeBranch], number: int) -> None:
    """The homes are asked one after the other for what is there, until the credit is used. Only then does the
    consumer wait, and in each of them."""
    credit = consumer.credit - consumer.used
    if consumer.asks != number or not consumer.branches or credit <= 0:
        client.answer_now(command)
    elif left:
        branch, *others = left
        next_one = partial(_drained, client, consumer, command, others, number)
        receipt = Joined(None, consumer.session, command=command, ended=next_one)
        branch.share = credit
        branch.home.ask(consumer.session, Credit(consumer.id, credit, receipt, drain=True))
    elif command.wait_ms and not consumer.used:
        shares = consumer.grant(consumer.credit)
        receipt = Joined(command.receipt, consumer.session, len(shares), command=command)
        for branch, share in shares:
            again = Credit(consumer.id, share, receipt, drain=True, wait_ms=command.wait_ms)
            branch.home.ask(consumer.session, again)
    else:
        client.answer_now(command)


def _drained(
    client: SubscribingClient, consumer: Consumer, command: Credit, left: list[HomeBranch], number: int, _: object
) -> None:
    """One home has no more for it now."""
    client.cluster.later(partial(_drain_on, client, consumer, command, left, number))


def _drain_on(
    client: SubscribingClient, consumer: Consumer, command: Credit, left: list[HomeBranch], number: int
) -> None:
    if not client.is_closed:
        _drain(client, consumer, command, left, number)
        client.flush()


def extend(client: SubscribingClient, session: SubscribingSession, command: Extend) -> None:
    consumer = _consumer(session, command.id)
    branches = [*consumer.branches.values()]
    if not consumer.is_divided:
        flow = branches[0].command.flow
        if flow.prefetch:  # for when it begins anew
            branches[0].command.flow = flow._replace(prefetch=max(1, flow.prefetch + command.change))
        client.pass_on(session.number, branches[0].home, command)
        return
    changes = consumer.extend(command.change) if consumer.is_limited else []
    if not changes:
        client.answer_now(command)
        return
    receipt = Joined(command.receipt, session.number, len(changes), command=command)
    for branch, change in changes:
        branch.home.ask(session.number, Extend(command.id, change, receipt))


def _consumer(session: SubscribingSession, id: str) -> Consumer:
    consumer = session.consumers.get(id)
    if consumer is None:
        raise CommandError(f"this connection has no subscription {id!r}", code="UNKNOWN_SUBSCRIPTION")
    return consumer


def _part(command: Subscribe, sources: tuple[Source, ...]) -> Subscribe:
    part = asking(command, None)
    part.sources = sources
    return part  # type: ignore[no-any-return]


def _range_at(home: RoutedHome, range: Any) -> Any:
    """The part of a browse as that home knows it."""
    if range is None:
        return None
    places = [None if place is None else (place[0], place[1] >> INDEX_BITS) for place in range]
    if any(place is not None and place[1] & INDEX_MASK != home.index for place in range):
        raise CommandError("this place is in another store: take those of a browse of this queue", code="PLACE_UNKNOWN")
    return range._replace(after=places[0], until=places[1])
