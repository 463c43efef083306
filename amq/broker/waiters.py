"""Waiters: who learns what became of a command."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from amq.broker.recipient import Recipient
from amq.journal.batch import Waiter
from amq.journal.records import Record
from amq.protocols.commands import Failure, Scope


class Reply:
    """The answer that `peer` asked for with its command of that session: `receipt` is its own token for that."""

    __slots__ = ("_session", "peer", "receipt")

    def __init__(self, peer: Recipient, receipt: object, session: int) -> None:
        self.peer = peer
        self.receipt = receipt
        self._session = session

    def done(self, result: str = "") -> None:
        self.peer.confirm(self.receipt, result)

    def failed(self, error: Exception) -> None:
        self.peer.fail(Failure(error, Scope.COMMAND, self.receipt, self._session))


class Replies:
    """The answers that `peer` asked for with commands of that session which came as one: a token, or None, for each."""

    __slots__ = ("_peer", "_receipts", "_session")

    def __init__(self, peer: Recipient, receipts: Sequence[object], session: int) -> None:
        self._peer = peer
        self._receipts = receipts
        self._session = session

    def done(self, result: str = "") -> None:  # noqa: ARG002
        receipts = [receipt for receipt in self._receipts if receipt is not None]
        if receipts:
            self._peer.confirm_all(receipts)

    def failed(self, error: Exception) -> None:
        for receipt in self._receipts:
            self._peer.fail(Failure(error, Scope.COMMAND, receipt, self._session))


class Unasked:
    """`peer` asked for no answer: it hears of a failure only."""

    __slots__ = ("_peer", "_session")

    def __init__(self, peer: Recipient, session: int) -> None:
        self._peer = peer
        self._session = session

    def done(self, result: str = "") -> None:
        """Nobody asked."""

    def failed(self, error: Exception) -> None:
        self._peer.fail(Failure(error, Scope.COMMAND, None, self._session))


class Call:
    """Calls `done` or `failed`: for the broker's own steps that wait for the journal."""

    __slots__ = ("_done", "_failed")

    def __init__(self, done: Callable[[], None], failed: Callable[[Exception], None]) -> None:
        self._done = done
        self._failed = failed

    def done(self, result: str = "") -> None:  # noqa: ARG002
        self._done()

    def failed(self, error: Exception) -> None:
        self._failed(error)


class Answering:
    """Tells `waiter` that it is done, with this result."""

    __slots__ = ("_result", "_waiter")

    def __init__(self, waiter: Waiter, result: str) -> None:
        self._waiter = waiter
        self._result = result

    def done(self, result: str = "") -> None:  # noqa: ARG002
        self._waiter.done(self._result)

    def failed(self, error: Exception) -> None:
        self._waiter.failed(error)


class Refusing:
    """Refuses what `waiter` asked for with `error`, when what stands against it is durable."""

    __slots__ = ("_error", "_waiter")

    def __init__(self, waiter: Waiter, error: Exception) -> None:
        self._waiter = waiter
        self._error = error

    def done(self, result: str = "") -> None:  # noqa: ARG002
        self._waiter.failed(self._error)

    def failed(self, error: Exception) -> None:
        self._waiter.failed(error)


class Awaiting:
    """The waiters for a record that another client caused. Equal records say the same, so each is known by its
    identity, and is kept while a waiter waits for it."""

    __slots__ = ("by_identity",)

    def __init__(self) -> None:
        self.by_identity: dict[int, tuple[Record, list[Waiter]]] = {}

    def add(self, record: Record, waiter: Waiter) -> None:
        """`waiter` waits for `record`."""
        self.by_identity.setdefault(id(record), (record, []))[1].append(waiter)

    def take(self, record: Record) -> list[Waiter]:
        """Forget and return the waiters for `record`."""
        found = self.by_identity.pop(id(record), None)
        return found[1] if found is not None else []


class Together:
    """Tells `waiter` when all of the `count` that it waits for are done, or at the first that fails."""

    __slots__ = ("_count", "_waiter")

    def __init__(self, waiter: Waiter, count: int) -> None:
        self._waiter = waiter
        self._count = count

    def done(self, result: str = "") -> None:  # noqa: ARG002
        self._count -= 1
        if not self._count:
            self._waiter.done()

    def failed(self, error: Exception) -> None:
        if self._count > 0:
            self._count = 0
            self._waiter.failed(error)
