"""NeutralClient: a client of the neutral protocol. Calls give bytes, bytes give events; no I/O."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from typing import Any, NamedTuple

from amq.core.destination import Source
from amq.protocols.commands import Outcome, Reattach, Reattachable, Scope
from tests.neutral.wire import HEAD, MAGIC, Op, frame, packed_source, unpack


class Delivered(NamedTuple):
    session: int
    consumer: str
    seq: int
    redelivered: int
    destination: str
    about: dict[str, Any]
    body: bytes


class Failed(NamedTuple):
    """`number` = of the command that failed, 0 = of none."""

    session: int
    number: int
    scope: Scope
    consumer: str
    code: str
    text: str


class NeutralClient:
    """What one connection says, and what it has been told: `done` by number of the command, `errors`, `deliveries`,
    `browsed`; (session, consumer) is whose a delivery is."""

    def __init__(self) -> None:
        self.connected = ""
        self.brokers: list[str] = []  # where the group is, as last told
        self.epoch = 0
        self.message_id_prefix = ""
        self.done: dict[int, str] = {}
        self.errors: list[Failed] = []
        self.deliveries: list[Delivered] = []
        self.browsed: list[tuple[int, str]] = []
        self.reattachable: Reattachable | None = None
        self.received: list[int] = []  # bytes of ours that the broker says it has
        self.challenges: list[tuple[bytes, bool]] = []  # of a login in steps, and whether each is the last one
        self.told: list[Any] = []  # all of these, in the order in which they came
        self.number = 0  # of the latest command
        self._numbers = count(1)
        self._data = b""

    def receive(self, data: bytes) -> None:
        self._data += data
        while len(self._data) >= HEAD.size:
            size, op, session, number = HEAD.unpack_from(self._data)
            if len(self._data) < 4 + size:
                return
            values = unpack(self._data[HEAD.size : 4 + size])
            self._data = self._data[4 + size :]
            self._told(op, session, number, values)

    def _told(self, op: int, session: int, number: int, values: list[Any]) -> None:
        if op == Op.CONNECTED:
            self.connected, self.epoch, self.message_id_prefix = values[:3]
            self.brokers = values[3]
            self.reattachable = Reattachable(*values[4]) if values[4] is not None else None
        elif op == Op.CHALLENGE:
            self.challenges.append((values[0], values[1]))
        elif op == Op.BROKERS:
            self.brokers = values[0]
        elif op == Op.RECEIVED:
            self.received.append(values[0])
        elif op == Op.DONE:
            assert number not in self.done, "one command, two answers"
            self.done[number] = values[0]
            self.told.append(number)
        elif op == Op.FAILED:
            self.errors.append(Failed(session, number, Scope[values[0]], *values[1:]))
            self.told.append(self.errors[-1])
        elif op == Op.DELIVERY:
            self.deliveries.append(Delivered(session, *values))
            self.told.append(self.deliveries[-1])
        elif op == Op.BROWSED:
            self.browsed.append((session, values[0]))
            self.told.append(self.browsed[-1])
        else:
            assert op == Op.BEAT, op

    # -- what it says -------------------------------------------------------------------------------------------------

    def _frame(self, op: Op, *values: Any, session: int = 0) -> bytes:
        self.number = next(self._numbers)
        return frame(op, *values, session=session, number=self.number)

    def connect(self, client_id: str = "", instance: str = "", reattach: Reattach | None = None) -> bytes:
        wish = [list(reattach)] if reattach is not None else []
        return MAGIC + frame(Op.CONNECT, "alice", "secret", client_id, instance, *wish)

    @staticmethod
    def step(response: bytes, mechanism: str = "", *connect: str) -> bytes:
        """One step of a login, without the MAGIC; with client id and instance CONNECT is in it."""
        return frame(Op.LOGIN, mechanism, response, *connect)

    def open(self, session: int) -> bytes:
        return self._frame(Op.OPEN, session=session)

    def close(self, session: int) -> bytes:
        return self._frame(Op.CLOSE, session=session)

    def send(self, destinations: str | list[str], body: bytes, session: int = 0, **about: Any) -> bytes:
        names = [destinations] if isinstance(destinations, str) else destinations
        return self._frame(Op.SEND, names, body, about, session=session)

    def subscribe(self, id: str, *sources: Source, session: int = 0, **options: Any) -> bytes:
        return self._frame(Op.SUBSCRIBE, id, [*map(packed_source, sources)], options, session=session)

    def credit(self, id: str, credit: int, session: int = 0, *, drain: bool = False) -> bytes:
        return self._frame(Op.CREDIT, id, credit, drain, session=session)

    def unsubscribe(self, id: str = "", session: int = 0, subscription_name: str = "") -> bytes:
        return self._frame(Op.UNSUBSCRIBE, id, subscription_name, session=session)

    def settle(
        self,
        which: int | Iterable[int],
        consumer: str = "",
        outcome: Outcome = Outcome.ACCEPTED,
        session: int = 0,
        transaction: str = "",
        first: int | None = None,
    ) -> bytes:
        """One delivery; with `first` all from there to it; or a set."""
        values: Any = which if isinstance(which, int) else [*which]
        if first is not None:
            values = {"first": first, "last": which}
        return self._frame(Op.SETTLE, consumer, values, outcome.name, transaction, session=session)

    def begin(self, transaction: str, session: int = 0) -> bytes:
        return self._frame(Op.BEGIN, transaction, session=session)

    def commit(self, transaction: str, session: int = 0, outcome_id: str = "") -> bytes:
        return self._frame(Op.COMMIT, transaction, outcome_id, session=session)

    def abort(self, transaction: str, session: int = 0) -> bytes:
        return self._frame(Op.ABORT, transaction, session=session)

    def disconnect(self) -> bytes:
        return self._frame(Op.DISCONNECT)
