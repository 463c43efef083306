"""SpanningEnd: the commit, or the prepare, of a client's transaction that has parts in several stores.

Each store but one prepares its part. Then the decider commits its own share with the decision, and the others commit.
Where the client itself prepares the transaction, the decider prepares its own share last, under the client's xid: the
end of that is the decision. Invariants: the client hears that it is committed, or prepared, when the word of the
decider is durable, and not before; later commands of its session wait for that, so order is kept in each store. Where
this gateway ends in the middle of it, the stores bring it to the same end among themselves
(`amq.broker.transactions.spanning`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import structlog

from amq.broker.recipient import Recipient
from amq.broker.sessions.links import Client
from amq.core.errors import AmqError, TransactionRolledBackError
from amq.gateway.answers import Joined
from amq.gateway.homes import GatewayCluster, RoutedHome
from amq.journal.records import span_xid
from amq.protocols.commands import (
    DECIDED,
    Abort,
    Command,
    Commit,
    Decide,
    EndPart,
    Failure,
    InSession,
    Prepare,
    PreparePart,
    Scope,
)

_log = structlog.get_logger("amq.gateway")


class SpanningClient(Protocol):
    """The client's connection: see `amq.gateway.router`."""

    peer: Recipient
    cluster: GatewayCluster
    commits: dict[SpanningEnd, None]
    is_closed: bool

    @property
    def client(self) -> Client: ...
    def new_id(self) -> str: ...
    def handle(self, commands: list[Command]) -> list[Command]: ...
    def flush(self) -> None: ...
    def pause(self, reason: object) -> None: ...
    def resume(self, reason: object) -> None: ...


class CommittingSession(Protocol):
    """The session that commits, or prepares."""

    number: int
    commit: SpanningEnd | None


class SpanningEnd:
    """`ended` is called when it is decided, or never will be."""

    is_decided = False

    def __init__(
        self,
        client: SpanningClient,
        session: CommittingSession,
        decider: RoutedHome,
        others: list[RoutedHome],
        command: Any,
        ended: Callable[[], None],
    ) -> None:
        self._client = client
        self._session = session
        self._decider = decider
        self._others = others
        self._command = command
        self._ended = ended
        self._user = client.client.user.name
        self._xid = span_xid(decider.store, client.new_id())
        self._waits = {*others}  # homes without an answer
        self._prepared: list[RoutedHome] = []
        self._error: AmqError | None = None
        self._is_answered = False
        self._held: list[Command] = []
        self._held_of = -1  # the session of the last one of these

    def begin(self) -> None:
        self._session.commit = self
        self._client.commits[self] = None
        command, owner, batch = self._command, "", 0
        if isinstance(command, Prepare):
            owner, batch = command.owner, command.batch
        for home in self._others:
            part = PreparePart(command.transaction, self._xid, owner=owner, batch=batch)
            self._ask(home, part, self._prepared_in)

    def _decide(self) -> None:
        """All parts are prepared: ask the decider."""
        raise NotImplementedError

    def hold(self, number: int, command: Command) -> None:
        """`command` of that session waits for the decision. The client is not read meanwhile."""
        if not self._held:
            self._client.pause(self)
        if number != self._held_of:
            self._held.append(InSession(number))
            self._held_of = number
        self._held.append(command)

    def lost(self, home: RoutedHome) -> None:
        """The link to `home` is broken."""

    def _ask(self, home: RoutedHome, command: Any, answered: Callable[[RoutedHome, Joined], None]) -> None:
        def deals(joined: Joined) -> bool:
            self._client.cluster.later(self._client.flush)
            answered(home, joined)
            return True

        # As a question its error does not end the connection.
        command.receipt = Joined(None, self._session.number, is_question=True, command=command, deals=deals)
        home.ask(self._session.number, command)

    def _prepared_in(self, home: RoutedHome, joined: Joined) -> None:
        self._waits.discard(home)
        if joined.error is None:
            self._prepared.append(home)
        elif self._error is None:
            self._error = _not_prepared(home, joined.error.error)
        if self._waits:
            return
        if self._error is not None:
            self._give_up(self._error)
        else:
            self._decide()

    @property
    def _stores(self) -> tuple[str, ...]:
        return tuple(each.store for each in self._others)

    def _give_up(self, error: AmqError | None) -> None:
        """End without a decision. `error` None: an earlier transaction of that name has committed."""
        for home in self._others:
            if home in self._prepared:
                self._ask(home, EndPart(self._xid, self._user, False), _ignored)
            else:
                self._ask(home, Abort(self._command.transaction), _ignored)
        self._ask(self._decider, Abort(self._command.transaction), _ignored)
        self._client.cluster.later(partial(self._is_over, error))

    def _is_over(self, error: AmqError | None) -> None:
        """Forget the transaction: each home knows the decision."""
        if not self._client.is_closed:
            del self._client.commits[self]
            self._answer(error)
            self._go_on()

    def _answer(self, error: AmqError | None = None) -> None:
        """Answer the client, once."""
        if self._is_answered:
            return
        self._is_answered = True
        receipt = self._command.receipt
        if error is not None:
            self._client.peer.fail(Failure(error, Scope.COMMAND, receipt, self._session.number))
        elif receipt is not None:
            self._client.peer.confirm(receipt)

    def _go_on(self) -> None:
        """Carry out the commands that were held."""
        if self._client.is_closed:
            return
        self._session.commit = None
        self._ended()
        held, self._held = self._held, []
        if held:
            self._client.handle(held)
            self._client.resume(self)


class SpanningCommit(SpanningEnd):
    """Commit the transaction in one phase, for the client."""

    _is_in_doubt = False

    def _decide(self) -> None:
        command: Commit = self._command
        decide = Decide(command.transaction, None, command.outcome_id, self._xid, self._stores)
        self._ask(self._decider, decide, self._decided)

    def _decided(self, _: RoutedHome, joined: Joined) -> None:
        if joined.error is not None:
            self._give_up(_error_of(joined))
        elif joined.outcomes != [DECIDED]:  # an earlier commit of that name took place
            self._give_up(None)
        else:
            self.is_decided = True
            self._waits = {*self._others}
            for home in self._others:
                self._ask(home, EndPart(self._xid, self._user, True), self._committed_in)
            self._client.cluster.later(self._go_on)

    def _committed_in(self, home: RoutedHome, joined: Joined) -> None:
        self._waits.discard(home)
        if joined.error is not None:
            self._is_in_doubt = True
            reason = str(joined.error.error)
            _log.error("a part of a transaction was not committed", xid=self._xid, of_store=home.store, reason=reason)
        if self._waits:
            return
        self._answer()
        del self._client.commits[self]
        if not self._is_in_doubt:  # no part will ask for the decision any more
            self._decider.put(self._session.number, EndPart(self._xid, self._user, True))

    def lost(self, home: RoutedHome) -> None:
        """If the home has not committed its part yet, it does so when it is back."""
        if self.is_decided and home in self._waits:
            self._answer()


class SpanningPrepare(SpanningEnd):
    """Prepare the transaction, for the client."""

    def _decide(self) -> None:
        command: Prepare = self._command
        whole = Prepare(
            command.transaction,
            command.xid,
            command.timeout_ms,
            command.owner,
            command.batch,
            span=self._xid,
            stores=self._stores,
        )
        self._ask(self._decider, whole, self._decided)

    def _decided(self, _: RoutedHome, joined: Joined) -> None:
        if joined.error is not None:
            self._give_up(_error_of(joined))
        else:
            self._client.cluster.later(partial(self._is_over, None))


def _error_of(joined: Joined) -> AmqError:
    assert joined.error is not None
    error = joined.error.error
    return error if isinstance(error, AmqError) else AmqError(str(error))


def _ignored(_: RoutedHome, __: Joined) -> None:
    """Tell the client that the transaction was rolled back, whatever happened."""


def _not_prepared(home: RoutedHome, error: Exception) -> AmqError:
    code = getattr(error, "code", "") or "TRANSACTION_ROLLED_BACK"
    if code == "BATCH_COMMITTED":  # of which the other stores may have nothing yet: this is for a person
        code = "BATCH_DIFFERS"
    return TransactionRolledBackError(
        f"the transaction has parts in several stores, and was rolled back in all: store {home.store} says: {error}",
        code=code,
    )
