"""Reopening: the way to a home is lost, and what a client has there begins anew at the next master of that store.

Sessions, consumers, producers and temporary destinations begin again as they were. Commands without an answer are
repeated in the old order, before anything newer: all of them where the old master said at its end that it had not
carried them out, and otherwise those that cannot be carried out twice, such as a message with a duplicate id, a
question, and a command with the same effect the second time. An acknowledgement with a receipt takes the message out
where it has not left and nobody else has it. A transaction that was open is rolled back, and its client hears so where
it goes on with it.

Invariants: the client hears of a command once; nothing is confirmed that was not carried out, or that the end of the
connection to the old master did not bring about; a home that is lost again and again without an answer ends the
client's connection.
"""

from __future__ import annotations

from copy import copy
from functools import partial
from typing import Any, Final, Protocol

from amq.broker.recipient import Recipient
from amq.core.errors import AmqError, CommandError, TransactionRolledBackError
from amq.core.message import Message
from amq.gateway.answers import OUTCOME, SENT, SESSION, Joined, Kept
from amq.gateway.consumers import Consumer, HomeBranch
from amq.gateway.homes import INDEX_BITS, INDEX_MASK, Loss, RoutedHome
from amq.protocols.commands import (
    Abort,
    Begin,
    CloseProducer,
    CloseSession,
    Command,
    Commit,
    Credit,
    Disconnect,
    Extend,
    Failure,
    ForgetOutcome,
    MakeTemporary,
    OpenProducer,
    Outcome,
    RemoveTemporary,
    Scope,
    SendRun,
    SendToMany,
    Settle,
    SettleAgain,
    Subscribe,
    Unsubscribe,
)

LOSSES_MAX: Final = 3  # one after the other, without an answer between: what is repeated may be what ends the master
# The end of the connection brings the same about.
_DONE: Final = (Abort, CloseProducer, CloseSession, Disconnect, Extend, RemoveTemporary)
# These fail the second time: that they find nothing is success.
_ENDING: Final = (ForgetOutcome, Unsubscribe)


class HomesClient(Protocol):
    """The client's connection: see `amq.gateway.router`."""

    peer: Recipient
    is_closed: bool
    is_ending: bool

    @property
    def sessions(self) -> dict[int, Any]: ...
    @property
    def works(self) -> dict[str, Any]: ...
    @property
    def producers(self) -> dict[str, tuple[RoutedHome, str]]: ...
    def open(self, home: RoutedHome) -> None: ...
    def end_consumer(self, number: int, id: str, home: RoutedHome) -> Consumer | None: ...
    def not_resumed(self, consumer: Consumer, home: RoutedHome, joined: Joined) -> bool: ...


def reopen(client: HomesClient, home: RoutedHome, loss: Loss) -> None:
    """Begin anew what `client` had in `home`. Raises AmqError where that is not possible."""
    unanswered = [receipt for receipt in loss.unanswered if receipt is not None]
    _check(client, home, loss, unanswered)
    if client.is_ending:
        for receipt in unanswered:
            home.confirm(receipt)
        return
    home.sessions = {0}
    client.open(home)
    for work in client.works.values():
        work.has_lost(home)
    for name in home.made:
        home.ask(0, MakeTemporary(name, Joined(None, 0, deals=_ignore)))
    begun = {id(receipt.command): receipt for receipt in unanswered if _begins(receipt)}
    for session in [*client.sessions.values()]:
        for consumer in [*session.consumers.values()]:
            branch = consumer.branches.get(home.index)
            if branch is not None:
                _resume(client, home, branch, begun.get(id(consumer.command)))
    for producer, (where, destination) in [*client.producers.items()]:
        if where is home:
            home.put(0, OpenProducer(producer, destination))
    for receipt in unanswered:
        if client.is_closed:
            return
        if receipt.__class__ is Kept:
            _repeat_kept(home, receipt)
        elif not _begins(receipt):
            _repeat_joined(client, home, receipt, loss.is_orderly)


def _check(client: HomesClient, home: RoutedHome, loss: Loss, unanswered: list[Any]) -> None:
    """Raises AmqError where something can neither be repeated nor be answered."""
    if client.is_ending and any(not isinstance(_command(each), Disconnect) for each in unanswered):
        raise loss.error
    if (unanswered and not loss.was_linked) or home.losses > LOSSES_MAX:
        raise loss.error
    if home.is_unsure or home.is_making_sure:
        raise AmqError("a message that asks for no answer may be lost")
    if not all(_is_repeatable(each, loss.is_orderly) for each in unanswered):
        raise AmqError("a command may have been carried out, and would be carried out twice")


def _command(receipt: Any) -> Command | None:
    return receipt.command if receipt.__class__ is Joined else None


def _begins(receipt: Any) -> bool:
    return isinstance(_command(receipt), Subscribe)


def _is_repeatable(receipt: Any, is_orderly: bool) -> bool:
    """Can it be given to another master, though the one before it may have carried it out, unless that was orderly?"""
    if receipt.__class__ is Kept:
        sent = receipt[SENT]
        if isinstance(sent, Message):
            return is_orderly or bool(sent.duplicate_id)
        return is_orderly or not isinstance(sent, SendRun)  # which has no ids
    command = receipt.command
    if command is None:
        return not receipt.is_asked
    if isinstance(command, SendToMany) and not command.transaction:
        return is_orderly or bool(command.message.duplicate_id)
    return is_orderly or not (isinstance(command, Commit) and _is_unnamed(command))


def _ignore(_: Joined) -> bool:
    return True


# -- consumers ---------------------------------------------------------------------------------------------------------


def _resume(client: HomesClient, home: RoutedHome, branch: HomeBranch, asked: Joined | None) -> None:
    """Begin a consumer anew. `asked` = the token of its beginning, where that was not answered."""
    consumer = branch.consumer
    if branch.command.browse is not None and asked is None:
        if branch.is_shown:
            del consumer.branches[home.index]
        else:
            client.end_consumer(consumer.session, consumer.id, home)
            error = CommandError(f"the store {home.store} has got another master: browse again", code="STORE_LOST")
            client.peer.fail(Failure(error, Scope.CONSUMER, None, consumer.session, consumer.id))
        return
    command = consumer.reopened(branch, INDEX_MASK)
    if asked is None:
        command.receipt = Joined(None, consumer.session, deals=partial(client.not_resumed, consumer, home))
        home.ask(consumer.session, command)
    else:
        command.receipt = asked
        home.put(consumer.session, command)


# -- what was not answered ---------------------------------------------------------------------------------------------


def _repeat_kept(home: RoutedHome, receipt: Kept) -> None:
    sent, number = receipt[SENT], receipt[SESSION]
    if sent is None:
        _fail(home, receipt, _unsure(), number)
    elif isinstance(sent, str):
        _fail(home, receipt, _lost_work(sent), number)
    elif not isinstance(sent, int):
        command = receipt.command()
        command.message = copy(command.message)
        command.message.seq = 0
        command.receipt = receipt
        home.put(number, command)
    elif receipt[OUTCOME] is Outcome.ACCEPTED:
        home.put(number, SettleAgain(*receipt.settled(), receipt))
    elif receipt[OUTCOME] in (Outcome.RELEASED, Outcome.RETURNED):
        home.confirm(receipt)
    else:
        _fail(home, receipt, _unsure(), number)


def _repeat_joined(client: HomesClient, home: RoutedHome, receipt: Joined, is_orderly: bool) -> None:
    command, number = receipt.command, receipt.session
    if (
        command is None
        or isinstance(command, _DONE)
        or (isinstance(command, Unsubscribe) and not _deletes(command))
        or (isinstance(command, Settle) and not receipt.is_asked)
    ):
        home.confirm(receipt)
    elif command.__class__ is Settle and _accepts_one(command):
        home.put(number, SettleAgain(command.seq >> INDEX_BITS, command.consumer, receipt))
    elif isinstance(command, Settle) and not isinstance(command, SettleAgain):
        is_part = bool(command.transaction)
        _fail(home, receipt, _lost_work(command.transaction) if is_part else _unsure(), number)
    elif _is_lost(command):
        _fail(home, receipt, _lost_work(command.transaction), number)  # type: ignore[attr-defined]
    elif isinstance(command, Credit):
        _repeat_credit(client, home, command, receipt)
    else:
        again = copy(command)
        if isinstance(again, SendToMany):
            again.message = copy(again.message)
            again.message.seq = 0
        if isinstance(command, _ENDING) and not is_orderly:
            receipt.is_repeated = receipt.is_question = True  # the connection survives it
        again.receipt = receipt
        home.put(number, again)


def _accepts_one(command: Settle) -> bool:
    """Is it the acceptance of one delivery, in no transaction?"""
    return command.first is None and command.outcome is Outcome.ACCEPTED and not command.transaction


def _is_lost(command: Command) -> bool:
    """Was it lost with the transaction of which it is a part, or the end without a name?"""
    if isinstance(command, SendToMany):
        return bool(command.transaction)
    return command.__class__ is Begin or (isinstance(command, Commit) and _is_unnamed(command))


def _is_unnamed(command: Commit) -> bool:
    return command.__class__ is Commit and not command.outcome_id


def _deletes(command: Unsubscribe) -> bool:
    return bool(command.subscription_name)


def _repeat_credit(client: HomesClient, home: RoutedHome, command: Credit, receipt: Joined) -> None:
    session = client.sessions.get(receipt.session)
    consumer = None if session is None else session.consumers.get(command.id)
    branch = None if consumer is None else consumer.branches.get(home.index)
    if branch is None:
        home.confirm(receipt, "0")
    else:
        again = Credit(command.id, max(0, branch.share), receipt, command.drain, command.wait_ms)
        home.put(receipt.session, again)


def _fail(home: RoutedHome, receipt: object, error: AmqError, number: int) -> None:
    home.fail(Failure(error, Scope.COMMAND, receipt, number))


def _unsure() -> CommandError:
    return CommandError(
        "the store has got another master, and may not have carried this out: if not, the message comes again",
        code="UNKNOWN_DELIVERY",
    )


def _lost_work(name: str) -> TransactionRolledBackError:
    return TransactionRolledBackError(
        f"transaction {name!r} was rolled back: its store has got another master. Run it again"
    )
