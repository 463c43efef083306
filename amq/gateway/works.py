"""Works: the transactions of a client's connection over several homes.

Each begins in its home when the first part of it goes there; a transaction lives in one home. An end of one that is not
known here, as after a failover, is a question to every home.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, Protocol

from amq.core.errors import CommandError, TransactionRolledBackError
from amq.gateway.answers import all_lines, in_all
from amq.gateway.homes import RoutedHome
from amq.protocols.commands import (
    Abort,
    AbortBatch,
    Begin,
    Command,
    Commit,
    Invalid,
    ListPrepared,
    Prepare,
    Send,
    SendMany,
    Settle,
)

TRANSACTIONS_MAX: Final = 10_000
_CURE: Final = "place these destinations in one store (amq cluster place), or use a connection for each"


class WorkSession(Protocol):
    """A session of the client."""

    number: int


class WorksClient(Protocol):
    """The client's connection: see `amq.gateway.router`."""

    works: dict[str, RoutedWork]

    def home_to(self, name: str) -> RoutedHome: ...
    def indices(self, name: str) -> list[int]: ...
    def anchor(self, name: str) -> RoutedHome: ...
    def all_homes(self) -> list[RoutedHome]: ...
    def answer_now(self, command: Command) -> None: ...
    def pass_on(self, session: int, home: RoutedHome, command: Command) -> None: ...
    def to_all(self, session: int, homes: Iterable[RoutedHome], command: Command, **joined: Any) -> None: ...


class RoutedWork:
    """A transaction of the client, begun in `session`. `home` None = nothing was done in it; `is_lost`: its home was
    lost, so it is rolled back."""

    __slots__ = ("home", "is_lost", "session")

    def __init__(self, session: int) -> None:
        self.session = session
        self.home: RoutedHome | None = None
        self.is_lost = False


def begin(client: WorksClient, session: WorkSession, command: Begin) -> None:
    work = client.works.get(command.transaction)
    if work is not None and work.home is not None and not work.is_lost:  # it may have ended there
        client.pass_on(session.number, work.home, command)
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
    return work


def work_in(client: WorksClient, name: str, home: RoutedHome) -> RoutedHome:
    """The home of that transaction, of which a part is in `home`. Raises CommandError where that is another."""
    work = _work(client, name)
    if work.is_lost:
        raise _rolled_back(name)
    if work.home is None:
        work.home = home
        home.put(work.session, Begin(name))
    if work.home is not home:
        raise CommandError(
            f"transaction {name!r} is in store {work.home.store}, and this part of it belongs to store "
            f"{home.store}: a transaction has one store. {_CURE}",
            code="TRANSACTION_OVER_STORES",
        )
    return home


def home_in(client: WorksClient, transaction: str, names: Iterable[str]) -> RoutedHome:
    """The home where messages for `names` become a part of that transaction."""
    work = _work(client, transaction)
    for name in names:
        indices = client.indices(name)
        home = client.home_to(name)
        if work.home is not None and work.home.index in indices:
            home = work.home
        work_in(client, transaction, home)
    assert work.home is not None
    return work.home


def spoil(client: WorksClient, command: Command) -> None:
    """`command` failed: a transaction of which it would have been a part never commits without it."""
    if not isinstance(command, Send | SendMany | Settle | Invalid) or not command.transaction:
        return
    work = client.works.get(command.transaction)
    if work is None or work.is_lost:
        return
    del client.works[command.transaction]
    if work.home is not None:
        work.home.put(work.session, Abort(command.transaction))


def end(client: WorksClient, session: WorkSession, command: Commit | Prepare | Abort) -> None:
    name = command.transaction
    work = client.works.get(name)
    if work is None:
        if isinstance(command, Abort) or (isinstance(command, Commit) and not command.outcome_id):
            _work(client, name)
        ask_all(client, session, command)
        return
    if work.is_lost and isinstance(command, Commit) and not command.outcome_id:
        del client.works[name]
        raise _rolled_back(name)
    if work.is_lost and isinstance(command, Abort):
        work.home = None
    if work.home is None and (isinstance(command, Prepare) or (isinstance(command, Commit) and command.outcome_id)):
        work_in(client, name, client.anchor(name))
    if work.home is None:
        del client.works[name]
        client.answer_now(command)
        return
    del client.works[name]  # the next command may begin another one of that name

    def ended(error: Exception | None) -> None:
        if error is not None and not isinstance(error, TransactionRolledBackError):
            client.works.setdefault(name, work)  # it goes on, or its home knows better

    client.to_all(session.number, [work.home], command, ended=ended)


def end_session(client: WorksClient, number: int) -> None:
    """The transactions of that session end with it, in their homes too."""
    for name in [name for name, work in client.works.items() if work.session == number]:
        del client.works[name]


def ask_all(client: WorksClient, session: WorkSession, command: Command) -> None:
    """Ask each store: it is not known here which of them has what was prepared."""
    client.to_all(session.number, client.all_homes(), command, is_question=True)


def abort_batch(client: WorksClient, session: WorkSession, command: AbortBatch) -> None:
    client.to_all(session.number, client.all_homes(), command, outcome=in_all)


def list_prepared(client: WorksClient, session: WorkSession, command: ListPrepared) -> None:
    client.to_all(session.number, client.all_homes(), command, outcome=all_lines)


def _rolled_back(name: str) -> TransactionRolledBackError:
    return TransactionRolledBackError(
        f"transaction {name!r} was rolled back: its store has got another master. Run it again"
    )
