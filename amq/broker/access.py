"""Access: the one door for permission. Every command passes it before it does anything.

`DEMANDS` says of each command which actions on which destinations it is; a command that is neither there nor in `FREE`
cannot be carried out, so no new one can forget the door. The rules are a function that can be replaced while clients
are served; without rules everybody who has logged in may do everything.

To ask for each message would cost too much, so a session remembers to which destinations its user may send, in a table
that the sessions of one user share and that new rules empty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from weakref import WeakValueDictionary

from amq.broker.actions import Action as Action
from amq.broker.names import is_temporary
from amq.broker.scheduling.scheduler import MANAGEMENT
from amq.core.destination import Source, parts, wire_name
from amq.core.errors import AccessError
from amq.protocols.commands import (
    Abort,
    AbortBatch,
    AskDecision,
    Begin,
    CloseParcel,
    CloseProducer,
    CloseSession,
    Command,
    Commit,
    CommitBatch,
    Credit,
    Decide,
    DeleteDestination,
    Disconnect,
    EndPart,
    Extend,
    Finish,
    ForgetOutcome,
    GoOn,
    Invalid,
    LeaseMessages,
    Leave,
    ListPrepared,
    Locate,
    MakeSure,
    MakeTemporary,
    Malformed,
    Nothing,
    OpenProducer,
    OpenSession,
    Prepare,
    PreparePart,
    RemoveTemporary,
    Send,
    SendMany,
    SendRun,
    SendToMany,
    Settle,
    SettleAgain,
    SettleIfHeld,
    SettleLeases,
    SettleRun,
    SettleSet,
    Subscribe,
    TakeCopies,
    Transfer,
    Unsubscribe,
)
from amq.security.login import User

REMEMBERED_MAX = 1000  # destinations of one user
REMEMBERED_CHARS_MAX = 256  # of one name; longer ones (composites) are asked for each time

Rules = Callable[[User, Action, str], bool]
Demand = tuple[Action, str]


def anybody_may(user: User, action: Action, destination: str) -> bool:  # noqa: ARG001
    """No rules."""
    return True


class Sendable(set[str]):
    """Destinations to which one user may send, as the rules say now."""


class Access:
    """The door. `rules(user, action, destination)` decides; `destination` is a full name or pattern of one, of a
    transaction its id, of batches their owner."""

    def __init__(self) -> None:
        self._rules: Rules = anybody_may
        self.quota: Callable[[str, Command], None] = lambda *_: None  # told the name of the user; may raise, too
        self._check_home: Callable[[Source], None] | None = None
        self._remembered: WeakValueDictionary[User, Sendable] = WeakValueDictionary()

    def use(self, rules: Rules) -> None:
        """From now on these rules decide, also for sessions that there are."""
        self._rules = rules
        self._forget_all()

    def ask_homes(self, check: Callable[[Source], None]) -> None:
        """From now on `check(full name of a destination, or pattern)` decides which live in this store: it raises
        CommandError."""
        self._check_home = check
        self._forget_all()

    def check_home(self, destination: Source) -> None:
        """Raises CommandError where the destination lives in another store."""
        if self._check_home is not None:
            self._check_home(destination)

    def _forget_all(self) -> None:
        for remembered in self._remembered.values():
            remembered.clear()

    def may(self, user: User, action: Action, destination: str) -> bool:
        """May `user`?"""
        return self._rules(user, action, destination)

    def check(self, user: User, action: Action, destination: str) -> None:
        """Raises AccessError where `user` may not."""
        if not self._rules(user, action, destination):
            name = wire_name(destination) if "://" in destination else destination
            raise AccessError(
                f"user {user.name!r} may not {action.value} {name[:200]}: log in as a user who may, or ask an "
                "administrator of the broker for this right",
                code="NOT_PERMITTED",
            )

    def sendable(self, user: User) -> Sendable:
        """The destinations of which `let_in` has found that `user` may send there."""
        remembered = self._remembered.get(user)
        if remembered is None:
            remembered = self._remembered[user] = Sendable()
        return remembered

    def forget(self, name: str) -> None:
        """The user of this name is asked about again, whatever roles a login of this user brings."""
        for user, remembered in self._remembered.items():
            if user.name == name:
                remembered.clear()

    def let_in(self, user: User, command: Command) -> None:
        """Raises AccessError where `user` may not do a part of what `command` is, CommandError where that belongs to
        another store."""
        for action, destination in DEMANDS[command.__class__](command):
            self.check(user, action, destination)
        if self._check_home is not None:
            used: Iterable[Source] = command.sources if isinstance(command, Subscribe) else homed(command)
            for each in used:
                self._check_home(each)
        self.quota(user.name, command)
        if command.__class__ is Send:
            name = command.message.destination
            if len(name) <= REMEMBERED_CHARS_MAX:
                remembered = self.sendable(user)
                if len(remembered) >= REMEMBERED_MAX:
                    remembered.clear()
                remembered.add(name)


def _send_to(*destinations: str) -> Iterable[Demand]:
    return [(Action.MANAGE_SCHEDULE if name == MANAGEMENT else Action.SEND, name) for name in destinations]


def _subscribe(command: Subscribe) -> Iterable[Demand]:
    for name in map(str, command.sources):
        if command.browse is not None:
            yield Action.BROWSE, name
            if command.subscription_name:
                yield Action.CREATE_DURABLE, name
            continue
        yield Action.CREATE_TEMPORARY if is_temporary(name) else Action.CONSUME, name
        if command.subscription_name:
            yield Action.CREATE_DURABLE, name


def _lease(command: LeaseMessages | SettleLeases) -> Iterable[Demand]:
    return [(Action.LEASE, str(source)) for source in command.sources]


def _prepare(command: Prepare) -> Iterable[Demand]:
    yield Action.PREPARE, str(command.xid)
    if command.owner:
        yield Action.PREPARE_BATCH, command.owner


def _unsubscribe(command: Unsubscribe) -> Iterable[Demand]:
    if command.subscription_name:
        yield Action.DELETE_DURABLE, command.subscription_name


DEMANDS: Mapping[type[Command], Callable[..., Iterable[Demand]]] = {
    Send: lambda command: _send_to(command.message.destination),
    SendToMany: lambda command: _send_to(*command.destinations),
    SendMany: lambda command: _send_to(command.like.destination),
    SendRun: lambda command: _send_to(command.like.destination),
    Subscribe: _subscribe,
    Unsubscribe: _unsubscribe,
    Prepare: _prepare,
    Finish: lambda command: [(Action.FINISH, str(command.xid))],
    ForgetOutcome: lambda command: [(Action.FINISH, str(command.xid))],
    CommitBatch: lambda command: [(Action.FINISH_BATCH, command.owner)],
    ListPrepared: lambda command: [(Action.LIST_PREPARED, "")],  # noqa: ARG005
    DeleteDestination: lambda command: [(Action.DELETE, command.name)],
    MakeTemporary: lambda command: [(Action.CREATE_TEMPORARY, command.name)],
    AbortBatch: lambda command: [(Action.FINISH_BATCH, command.owner)],
    OpenProducer: lambda command: _send_to(*parts(command.destination)) if command.destination else (),
    LeaseMessages: _lease,
    SettleLeases: _lease,
}
# Commands that only go on with what the same connection was let in to do, or end it; where a name would live, which
# says nothing of what is there; and those of other masters, which no protocol of clients has.
FREE: frozenset[type[Command]] = frozenset(
    {
        Settle,
        SettleSet,
        SettleRun,
        SettleAgain,
        SettleIfHeld,
        Credit,
        Extend,
        Begin,
        Commit,
        Abort,
        PreparePart,
        Decide,
        EndPart,
        AskDecision,
        Disconnect,
        Invalid,
        Malformed,
        Locate,
        Nothing,
        Leave,
        MakeSure,
        GoOn,
        OpenSession,
        CloseSession,
        RemoveTemporary,
        CloseProducer,
        Transfer,
        TakeCopies,
        CloseParcel,
    }
)
# For these the session asks only where it does not remember that its user may.
ASKED_ELSEWHERE = FREE | {Send, SendRun}


def homed(command: Command) -> list[str]:
    """Full names of the destinations that `command` begins to use. A pattern means those of this store; what was begun
    here is ended here."""
    if isinstance(command, Subscribe | LeaseMessages):
        return [source for source in command.sources if isinstance(source, str)]
    return [name for action, name in DEMANDS[command.__class__](command) if action is Action.SEND]
