"""Works: the transactions of a client's connection over several homes.

A transaction begins in a home when the first part of it goes there. Its end is given to its home; where it has several,
`amq.gateway.spanning` commits or prepares it in all of them or in none. An end of one that is not known here, as after
a failover, is a question to every home. A transaction of a pipeline's batch always has a part in one and the same
store, which decides it: there the batch is committed, with its marker, whichever stores have its messages.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Protocol

from amq.broker.names import is_queued
from amq.core.errors import CommandError, TransactionRolledBackError
from amq.core.message import Message
from amq.gateway.answers import all_lines, in_all
from amq.gateway.homes import RoutedHome
from amq.gateway.spanning import CommittingSession, SpanningClient, SpanningCommit, SpanningPrepare
from amq.journal.records import decider_of
from amq.protocols.commands import (
    Abort,
    AbortBatch,
    Begin,
    Command,
    Commit,
    CommitBatch,
    Finish,
    Invalid,
    ListPrepared,
    Prepare,
    Send,
    SendMany,
    Settle,
)

TRANSACTIONS_MAX: Final = 10_000


class WorksClient(SpanningClient, Protocol):
    """The client's connection: see `amq.gateway.router`."""

    works: dict[str, RoutedWork]

    def home_to(self, name: str) -> RoutedHome: ...
    def indices(self, name: str) -> list[int]: ...
    def anchor(self, name: str) -> RoutedHome: ...
    def batch_home(self) -> RoutedHome: ...
    def all_homes(self) -> list[RoutedHome]: ...
    def answer_now(self, command: Command) -> None: ...
    def pass_on(self, session: int, home: RoutedHome, command: Command) -> None: ...
    def to_all(self, session: int, homes: Iterable[RoutedHome], command: Command, **joined: Any) -> None: ...


class RoutedWork:
    """A transaction of the client, begun in `session`.

    homes      where it has parts, in the order of the first of each
    decider    the one of these that commits in one phase; None = it has no parts
    lost       the last one of these that was lost: so it is rolled back
    is_ending  it is just being committed in several homes
    """

    __slots__ = ("_is_bound", "decider", "homes", "is_ending", "lost", "session")

    def __init__(self, session: int) -> None:
        self.session = session
        self.homes: list[RoutedHome] = []
        self.decider: RoutedHome | None = None
        self.lost: RoutedHome | None = None
        self.is_ending = False
        self._is_bound = False

    def add(self, home: RoutedHome, name: str, may_prepare: bool) -> None:
        """A part in `home`. Where it cannot be prepared, the home is the one that need not."""
        if home not in self.homes:
            self.homes.append(home)
            home.put(self.session, Begin(name))
        if self.decider is None or not (may_prepare or self._is_bound):
            self.decider = home
            self._is_bound = not may_prepare

    def has_lost(self, home: RoutedHome) -> None:
        """The way to that home is broken."""
        if home in self.homes and not self.is_ending:
            self.homes.remove(home)
            self.lost = home

    def abort(self, name: str) -> None:
        """Roll it back, where it is open, without an answer."""
        for home in self.homes:
            home.put(self.session, Abort(name))


def begin(client: WorksClient, session: CommittingSession, command: Begin) -> None:
    work = client.works.get(command.transaction)
    if work is not None and len(work.homes) == 1 and work.lost is None:  # it may have ended there
        client.pass_on(session.number, work.homes[0], command)
        return
    if work is not None:
        raise CommandError(f"transaction {command.transaction!r} is open already")
    if len(client.works) >= TRANSACTIONS_MAX:
        raise CommandError(
            f"this connection has {TRANSACTIONS_MAX} open transactions already: end some of them",
            code="TRANSACTIONS_TOO_MANY",
        )
    client.works[command.transaction] = RoutedWork(session.number)
    client.answer_now(command)


def _work(client: WorksClient, name: str) -> RoutedWork:
    work = client.works.get(name)
    if work is None:
        raise CommandError(f"there is no open transaction {name!r} on this connection", code="UNKNOWN_TRANSACTION")
    if work.is_ending:
        raise CommandError(
            f"transaction {name!r} is being committed by another session of this connection: begin another one",
            code="UNKNOWN_TRANSACTION",
        )
    return work


def work_in(client: WorksClient, name: str, home: RoutedHome, may_prepare: bool = True) -> RoutedHome:
    """`home`, where that transaction has a part from now on. `may_prepare`: the part may be prepared."""
    work = _work(client, name)
    if work.lost is not None:
        raise _rolled_back(name)
    work.add(home, name, may_prepare)
    return home


def home_in(client: WorksClient, transaction: str, name: str, message: Message) -> RoutedHome:
    """The home where `message` for `name` becomes a part of that transaction."""
    work = _work(client, transaction)
    indices = client.indices(name)
    home = next((home for home in work.homes if home.index in indices), None) or client.home_to(name)
    return work_in(client, transaction, home, message.persistent and is_queued(name))


def spoil(client: WorksClient, command: Command) -> None:
    """`command` failed: a transaction of which it would have been a part never commits without it."""
    if not isinstance(command, Send | SendMany | Settle | Invalid) or not command.transaction:
        return
    work = client.works.get(command.transaction)
    if work is None or work.lost is not None or work.is_ending:
        return
    del client.works[command.transaction]
    work.abort(command.transaction)


def end(client: WorksClient, session: CommittingSession, command: Commit | Prepare | Abort) -> None:
    name = command.transaction
    work = client.works.get(name)
    if work is None:
        if isinstance(command, Abort) or (isinstance(command, Commit) and not command.outcome_id):
            _work(client, name)
        ask_all(client, session, command)
        return
    _work(client, name)
    if work.lost is not None:
        del client.works[name]
        work.abort(name)
        if isinstance(command, Abort):
            client.answer_now(command)
        elif _has_outcome(command):
            client.to_all(session.number, [work.lost], command)
        else:
            raise _rolled_back(name)
        return
    if isinstance(command, Prepare) and command.owner:
        work.decider = work_in(client, name, client.batch_home())
    elif not work.homes and _has_outcome(command):
        work_in(client, name, client.anchor(name))
    if len(work.homes) > 1 and not isinstance(command, Abort):
        _end_in_all(client, session, command, work)
        return
    del client.works[name]  # the next command may begin another one of that name

    def ended(error: Exception | None) -> None:
        is_over = isinstance(error, TransactionRolledBackError) or len(work.homes) > 1
        if error is not None and not is_over:
            client.works.setdefault(name, work)  # it goes on, or its home knows better

    # A transaction that a home has ended already, because it was idle, is rolled back as well.
    client.to_all(session.number, work.homes, command, ended=ended, is_question=len(work.homes) > 1)


def _has_outcome(command: Commit | Prepare | Abort) -> bool:
    """May it be asked for later how this ended?"""
    return isinstance(command, Prepare) or (isinstance(command, Commit) and bool(command.outcome_id))


def _end_in_all(client: WorksClient, session: CommittingSession, command: Commit | Prepare, work: RoutedWork) -> None:
    work.is_ending = True
    decider, name = work.decider, command.transaction
    assert decider is not None
    others = [home for home in work.homes if home is not decider]

    def ended() -> None:
        del client.works[name]

    kind = SpanningPrepare if isinstance(command, Prepare) else SpanningCommit
    kind(client, session, decider, others, command, ended).begin()


def end_session(client: WorksClient, number: int) -> None:
    """The transactions of that session end with it, in their homes too."""
    for name in [name for name, work in client.works.items() if work.session == number and not work.is_ending]:
        del client.works[name]


def finish(client: WorksClient, session: CommittingSession, command: Finish) -> None:
    """Raises CommandError for a transaction over several stores: one of them could refuse what the others did."""
    if decider := decider_of(command.xid):
        raise CommandError(
            f"store {decider} decides how {command.xid} ends. A part is ended by hand at the port of its own store",
            code="XID_INVALID",
        )
    ask_all(client, session, command)


def ask_all(client: WorksClient, session: CommittingSession, command: Command) -> None:
    """Ask each store: it is not known here which of them has what was prepared."""
    client.to_all(session.number, client.all_homes(), command, is_question=True)


def commit_batch(client: WorksClient, session: CommittingSession, command: CommitBatch) -> None:
    client.to_all(session.number, [client.batch_home()], command, is_question=True)


def abort_batch(client: WorksClient, session: CommittingSession, command: AbortBatch) -> None:
    client.to_all(session.number, client.all_homes(), command, outcome=in_all)


def list_prepared(client: WorksClient, session: CommittingSession, command: ListPrepared) -> None:
    client.to_all(session.number, client.all_homes(), command, outcome=all_lines)


def _rolled_back(name: str) -> TransactionRolledBackError:
    return TransactionRolledBackError(
        f"transaction {name!r} was rolled back: its store has got another master. Run it again"
    )
