"""Settlements over several homes: each acknowledgement or refusal goes where its message was delivered from.

The number of a delivery names its home. Where that home was lost since, the delivery is an old one: the home says
whether somebody holds the message again. Invariants: nothing is confirmed that its home has not confirmed; a settlement
over several homes is confirmed when each has answered; what this connection does not hold is an error.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from functools import partial
from typing import Any, Protocol

from amq.broker.sessions.traffic import Traffic
from amq.core.errors import CommandError
from amq.gateway import works
from amq.gateway.answers import Joined
from amq.gateway.consumers import Consumer, ConsumerHome, in_homes
from amq.gateway.homes import INDEX_BITS, INDEX_MASK, RoutedHome
from amq.protocols.commands import (
    NOT_HELD,
    OLDEST,
    Command,
    Failure,
    Outcome,
    Scope,
    Settle,
    SettleAgain,
    SettleIfHeld,
    SettleRun,
    SettleSet,
)


class SettlingSession(Protocol):
    """The session that settles."""

    number: int
    consumers: dict[str, Consumer]


class SettlingClient(works.WorksClient, Protocol):
    """The client's connection: see `amq.gateway.router`."""

    traffic: Traffic
    homes: dict[int, RoutedHome]

    def home_at(self, index: int) -> RoutedHome: ...
    def is_place(self, index: int) -> bool: ...
    def pass_part(self, session: int, home: ConsumerHome, command: Any) -> None: ...
    def route(self, commands: list[Command], number: int) -> int: ...


def settle(client: SettlingClient, session: SettlingSession, command: Settle) -> None:
    consumer = session.consumers.get(command.consumer)
    if consumer is None and not command.consumer:
        consumer = next((each for each in session.consumers.values() if command.seq in each.held), None)
    if isinstance(command, SettleSet):
        if not command.transaction and any(_is_old(client, seq) for seq in command.seqs):
            _settle_each(client, session, command)
        else:
            _settle_set(client, session, command, consumer, command.seqs)
    elif consumer is not None and consumer.is_divided:
        covered = consumer.covered(command.first, command.seq)
        if covered:
            _settle_set(client, session, command, consumer, covered)
        elif _is_of_removed(client, command):
            return
        elif command.transaction or not _is_old(client, command.seq):
            raise _not_held(command)
        else:
            _settle_late(client, session.number, command)
    else:
        _settle_range(client, session, command, consumer)


def _settle_range(client: SettlingClient, session: SettlingSession, command: Settle, consumer: Consumer | None) -> None:
    """In one home; whether the deliveries are there is that home's word."""
    index, first = command.seq & INDEX_MASK, command.first
    home = client.homes.get(index)
    if home is None or (first not in (None, OLDEST) and first & INDEX_MASK != index):
        if _is_of_removed(client, command):
            return
        raise _not_held(command)
    if command.transaction:
        works.work_in(client, command.transaction, home, command.outcome is Outcome.ACCEPTED)
    if not command.transaction and _is_old(client, command.seq):
        deals = partial(_was_lost, client, session.number, copy(command))
        receipt = Joined(command.receipt, session.number, command=command, deals=deals)
        command = SettleIfHeld(
            command.seq, command.consumer, receipt, "", command.outcome, command.first, command.reason
        )
    branch = None if consumer is None else consumer.branches.get(index)
    if branch is not None and first is None:
        branch.unsettled = max(0, branch.unsettled - 1)
    elif branch is not None and first == OLDEST and command.seq == branch.newest:
        branch.unsettled = 0
    client.traffic.acknowledged += command.outcome is Outcome.ACCEPTED
    command.seq >>= INDEX_BITS
    command.first = first and first >> INDEX_BITS
    if command.__class__ is SettleIfHeld:
        home.ask(session.number, command)
    else:
        client.pass_part(session.number, home, command)


def _is_of_removed(client: SettlingClient, command: Settle) -> bool:
    """Is that delivery of a store that was removed, and does nobody want an answer? The message comes again."""
    index = command.seq & INDEX_MASK
    asks = command.receipt is not None or bool(command.transaction)
    return not asks and index not in client.homes and not client.is_place(index)


def _is_old(client: SettlingClient, seq: int) -> bool:
    """May that delivery be from before its home was lost?"""
    home = client.homes.get(seq & INDEX_MASK)
    return home is not None and seq <= home.old


def _was_lost(client: SettlingClient, number: int, command: Settle, joined: Joined) -> bool:
    """A settlement of what may be such a delivery has its answer. True: it was one."""
    if joined.outcomes != [NOT_HELD]:
        return False
    _settle_late(client, number, command)
    client.cluster.later(client.flush)
    return True


def _settle_late(client: SettlingClient, number: int, command: Settle) -> None:
    """A settlement of such a delivery: the message comes again, has left for good, or somebody else has it."""
    if command.receipt is None:
        return
    if command.first is not None or command.outcome is not Outcome.ACCEPTED:
        client.peer.fail(Failure(_not_held(command), Scope.COMMAND, command.receipt, number))
        return
    again = SettleAgain(command.seq >> INDEX_BITS, command.consumer, command.receipt)
    client.pass_on(number, client.home_at(command.seq & INDEX_MASK), again)


def _settle_each(client: SettlingClient, session: SettlingSession, command: SettleSet) -> None:
    """Deliveries of which some may be such ones."""
    receipt, seqs = command.receipt, command.seqs
    if receipt is not None:
        raise _not_held(command)
    for seq in seqs:
        settle(client, session, Settle(seq, command.consumer, None, "", command.outcome, None, command.reason))


def _settle_set(
    client: SettlingClient, session: SettlingSession, command: Settle, consumer: Consumer | None, seqs: Iterable[int]
) -> None:
    """All of `seqs`, each in its home."""
    parts: list[tuple[RoutedHome, list[int]]] = []
    for index, found in in_homes(seqs, INDEX_MASK).items():
        home = client.homes.get(index)
        if home is None:
            raise _not_held(command)
        if command.transaction:
            works.work_in(client, command.transaction, home, command.outcome is Outcome.ACCEPTED)
        parts.append((home, found))
    receipt = command.receipt
    if receipt is not None and len(parts) > 1:
        receipt = Joined(receipt, session.number, len(parts), command=command)
    for home, found in parts:
        branch = None if consumer is None else consumer.branches.get(home.index)
        if consumer is not None and branch is not None:
            branch.unsettled = max(0, branch.unsettled - len(found))
            for seq in found:
                consumer.held.pop(seq, None)
        if command.outcome is Outcome.ACCEPTED:
            client.traffic.acknowledged += len(found)
        own = [seq >> INDEX_BITS for seq in found]
        part = SettleSet(own, command.consumer, receipt, command.transaction, command.outcome, command.reason)
        if len(parts) > 1 and receipt is not None:
            home.ask(session.number, part)
        else:
            client.pass_part(session.number, home, part)


def settle_run(client: SettlingClient, session: SettlingSession, command: SettleRun) -> None:
    consumer, seqs = session.consumers.get(command.consumer), command.seqs
    index = seqs[0] & INDEX_MASK
    branch = None if consumer is None or consumer.is_divided else consumer.branches.get(index)
    if branch is None or min(seqs) <= branch.home.old or {seq & INDEX_MASK for seq in seqs} != {index}:
        for each in command.one_by_one():
            client.route([each], session.number)
        return
    branch.unsettled = max(0, branch.unsettled - len(seqs))
    client.traffic.acknowledged += len(seqs)
    command.seqs = [seq >> INDEX_BITS for seq in seqs]
    branch.home.put(session.number, command)


def settle_again(client: SettlingClient, session: SettlingSession, command: SettleAgain) -> None:
    if (command.seq & INDEX_MASK) not in client.homes and not client.is_place(command.seq & INDEX_MASK):
        raise _not_held(command)
    home = client.home_at(command.seq & INDEX_MASK)
    command.seq >>= INDEX_BITS
    client.pass_on(session.number, home, command)


def _not_held(command: Settle) -> CommandError:
    name = "acknowledgement" if command.outcome is Outcome.ACCEPTED else "refusal"
    return CommandError(
        f"{name} of a message that this connection does not hold: it was acknowledged before, its subscription ended "
        "or does not acknowledge, or it was delivered on an earlier connection",
        code="UNKNOWN_DELIVERY",
    )
