"""NeutralCodec: the broker's side of the neutral protocol (`tests.neutral.wire`). Bytes in, commands out; replies in,
bytes out.

It is the proof that the contract of protocols and broker knows no protocol: nothing in `amq/` knows of this one, which
has many sessions, credit, outcomes, exact names and errors that keep the connection. Invariant: `receive` never raises,
and yields nothing after `Malformed` or `Disconnect`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from amq.core.errors import AmqError, CommandError, ProtocolError
from amq.core.message import Message, MessageBatch, neutral
from amq.node.catalogue import ServedProtocol, Surroundings
from amq.protocols.codec import ALL_FRAMES
from amq.protocols.commands import (
    CREDIT_MAX,
    Abort,
    Begin,
    CloseSession,
    Command,
    Commit,
    Connect,
    Credit,
    Disconnect,
    Failure,
    InSession,
    Invalid,
    LeaseReading,
    LoginStep,
    Malformed,
    OpenSession,
    Outcome,
    Reattach,
    Reattachable,
    Scope,
    Send,
    SendToMany,
    Settle,
    SettleSet,
    Subscribe,
    Unsubscribe,
)
from tests.neutral.messages import BIG, NAME, checked, read_message, told
from tests.neutral.wire import FRAME_BYTES_MAX, HEAD, MAGIC, STRANGER_BYTES_MAX, Op, frame, read_source, unpack
from tests.subscribing import subscribe


class NeutralCodec:
    """Implements `amq.protocols.codec.Codec`. Clients are told `epoch` and `message_id_prefix`. The token of a
    command, and what `delivery` needs of a consumer, begin with its session."""

    name = NAME
    returns: ClassVar[bool] = False
    survives: ClassVar[frozenset[Scope]] = frozenset(Scope) - {Scope.CONNECTION}
    unsaid = b""
    beats_ms: tuple[int, int] | None = None
    has_more = False

    def __init__(self, epoch: int = 0, message_id_prefix: str = "ID:") -> None:
        self._identity = epoch, message_id_prefix
        self._data = b""
        self._is_magic_read = self._is_closed = False
        self._connect: Command | None = None  # it came with the first step of a login, and counts after the last one
        self.frame_bytes_max = STRANGER_BYTES_MAX
        self.is_proven = False
        self.confirmed = 0

    def receive(self, data: bytes, frames_max: int = ALL_FRAMES) -> list[Command]:
        commands: list[Command] = []
        session = 0  # that of the commands which come next: each read begins in session 0
        self._data += b"" if self._is_closed else data
        self.has_more = False
        if self._connect is not None and self.is_proven:
            commands.append(self._connect)
            self._connect, self.frame_bytes_max = None, FRAME_BYTES_MAX
        try:
            while True:
                if frames_max <= 0:
                    self.has_more = self.pending
                    break
                frames_max -= 1
                if (found := self._next()) is None:
                    break
                op, number, receipt, values = found
                inside = 0 if op in (Op.OPEN, Op.CONNECT, Op.RECEIVED) else number
                if inside != session:
                    commands.append(InSession(inside))
                    session = inside
                if op == Op.RECEIVED:
                    self.confirmed = int(checked(*values, BIG))
                elif op == Op.LOGIN:
                    commands.append(self._step(*values))
                elif op != Op.BEAT:
                    if op == Op.CONNECT:
                        self.frame_bytes_max = FRAME_BYTES_MAX
                    commands.append(_READERS[op](number, (number, receipt) if receipt else None, *values))
                if op == Op.DISCONNECT:
                    self.close()
        except (ValueError, TypeError, KeyError, IndexError, AttributeError) as error:  # a frame that no reader takes
            if session:  # wherever it was cut
                commands.append(InSession(0))
            why = ProtocolError(f"a frame that is none: {type(error).__name__}: {error}", code="FRAME_INVALID")
            commands.append(Malformed(why))
            self.close()
        return commands

    def _next(self) -> tuple[int, int, int, list[Any]] | None:
        """The next frame that is here: operation, session, number of the command, values. Raises ValueError."""
        if not self._is_magic_read:
            if len(self._data) < len(MAGIC):
                return None
            self._data, self._is_magic_read = self._data.removeprefix(MAGIC), True
        if len(self._data) < HEAD.size:
            return None
        size, op, session, number = HEAD.unpack_from(self._data)
        if not HEAD.size - 4 <= size <= self.frame_bytes_max:
            raise ValueError(f"it has {size} bytes")
        if len(self._data) < 4 + size:
            return None
        values = unpack(self._data[HEAD.size : 4 + size])
        self._data = self._data[4 + size :]
        return op, session, number, values

    def _step(self, mechanism: str, response: bytes, *connect: Any) -> Command:
        """A step of a login; with what CONNECT has too, there will be no CONNECT."""
        if connect:
            self._connect = _connect(0, None, "", "", *connect)
        return LoginStep(checked(response, bytes), _text(mechanism))

    def challenge(self, challenge: bytes, is_last: bool) -> bytes:
        self.is_proven = is_last
        self.has_more = self.has_more or (is_last and self._connect is not None)
        return frame(Op.CHALLENGE, challenge, is_last)

    def close(self) -> None:
        self._is_closed, self._data, self.has_more = True, b"", False

    @property
    def pending(self) -> bool:
        return bool(self._data)

    def connected(
        self,
        session: str,
        brokers: Sequence[str] = (),
        reattachable: Reattachable | None = None,
    ) -> bytes:
        granted = list(reattachable) if reattachable is not None else None
        return frame(Op.CONNECTED, session, *self._identity, [*brokers], granted)

    def brokers(self, brokers: Sequence[str]) -> bytes:
        return frame(Op.BROKERS, [*brokers])

    def received(self, count: int) -> bytes:
        return frame(Op.RECEIVED, count)

    def receipt(self, receipt: Any, outcome: str = "") -> bytes:
        return frame(Op.DONE, outcome, session=receipt[0], number=receipt[1])

    def receipts(self, receipts: Sequence[Any]) -> bytes:
        return b"".join(map(self.receipt, receipts))

    def error(self, failure: Failure) -> bytes:
        error, number = failure.error, failure.receipt[1] if isinstance(failure.receipt, tuple) else 0
        code = error.code if isinstance(error, AmqError) else "INTERNAL_ERROR"
        return frame(
            Op.FAILED, failure.scope.name, failure.consumer, code, str(error), session=failure.session, number=number
        )

    def subscription(self, command: Subscribe, session: int) -> tuple[int, str]:
        return session, command.id

    def delivery(self, subscription: tuple[int, str], message: Message, redelivered: int) -> bytes:
        values = subscription[1], message.seq, redelivered, message.destination, told(message), neutral(message).body
        return frame(Op.DELIVERY, *values, session=subscription[0])

    def large_delivery(self, subscription: Any, message: Message, redelivered: int) -> tuple[bytes, ...]:
        whole, body = self.delivery(subscription, message, redelivered), neutral(message).body
        return whole[: len(whole) - len(body)], body

    def end_of_browse(self, subscription: tuple[int, str]) -> bytes:
        return frame(Op.BROWSED, subscription[1], session=subscription[0])

    def deliveries(self, subscription: tuple[int, str], messages: Sequence[Message]) -> tuple[bytes, int]:
        return b"".join([self.delivery(subscription, message, 0) for message in messages]), len(messages)

    def batch(self, subscription: Any, batch: MessageBatch) -> bytes:
        return b"".join([self.delivery(subscription, message, 0) for message in batch.messages])

    def may_repeat(self, until: int) -> None:
        """It looks for no duplicates."""

    def heartbeat(self) -> bytes:
        return frame(Op.BEAT)


# -- frames → commands: each takes session, token and values, and raises ValueError or TypeError for those of no command


def _connect(
    _session: int, _token: Any, login: str, passcode: str, client_id: str, instance: str, wish: Any = None
) -> Command:
    reattach = None if wish is None else Reattach(*map(checked, wish, (BIG, BIG, str, BIG, BIG)))
    return Connect(_text(login), _text(passcode), _text(client_id), _text(instance), reattach)


def _transaction(session: int, name: str) -> str:
    """Its name for the broker: sessions of this protocol share no transactions."""
    return f"{session}:{_text(name)}" if name else ""


def _send(session: int, token: Any, destinations: list[str], body: bytes, about: dict[str, Any]) -> Command:
    names = tuple(dict.fromkeys(map(_name, destinations)))
    try:
        message, name = read_message(names[0], checked(body, bytes), about)
    except CommandError as error:
        return Invalid(error.with_traceback(None), token, _transaction(session, about.get("transaction", "")))
    transaction = _transaction(session, name)
    if len(names) > 1:
        return SendToMany(message, names, token, transaction)
    return Send(message, token, transaction)


def _subscribe(_session: int, token: Any, id: str, sources: list[Any], options: dict[str, Any]) -> Command:
    fields = {name: checked(value, _OPTIONS[name]) for name, value in options.items()}
    if "reading" in fields:
        fields["reading"] = LeaseReading(*map(checked, fields["reading"], (BIG, str, BIG)))
    named = tuple(dict.fromkeys(map(read_source, sources)))
    return subscribe(_text(id), named if len(named) > 1 else named[0], token, **fields)


def _credit(_session: int, token: Any, id: str, credit: int, drain: bool) -> Command:
    return Credit(_text(id), checked(credit, range(CREDIT_MAX + 1)), token, checked(drain, bool))


def _settle(session: int, token: Any, consumer: str, which: Any, outcome: str, transaction: str) -> Command:
    """`which` = the seq of one delivery, a list of some, or a map: a range."""
    after = _text(consumer), token, _transaction(session, transaction), Outcome[outcome]
    if isinstance(which, dict):
        return Settle(checked(which["last"], BIG), *after, first=checked(which["first"], BIG))
    if isinstance(which, list):
        return SettleSet([checked(seq, BIG) for seq in which], *after)
    return Settle(checked(which, BIG), *after)


_READERS: dict[int, Callable[..., Command]] = {
    Op.CONNECT: _connect,
    Op.SEND: _send,
    Op.SUBSCRIBE: _subscribe,
    Op.CREDIT: _credit,
    Op.SETTLE: _settle,
    Op.OPEN: lambda session, token: OpenSession(session, token),
    Op.CLOSE: lambda session, token: CloseSession(session, token),
    Op.UNSUBSCRIBE: lambda _session, token, id, name: Unsubscribe(_text(id), token, _text(name)),
    Op.BEGIN: lambda session, token, transaction: Begin(_transaction(session, transaction), token),
    Op.COMMIT: lambda session, token, transaction, outcome_id: Commit(
        _transaction(session, transaction), token, _text(outcome_id)
    ),
    Op.ABORT: lambda session, token, transaction: Abort(_transaction(session, transaction), token),
    Op.DISCONNECT: lambda _session, token: Disconnect(token),
}
_OPTIONS: dict[str, type | range] = {
    "acknowledges": bool,
    "prefetch": range(1 << 31),
    "credit": range(CREDIT_MAX + 1),
    "selector": str,
    "browser": bool,
    "subscription_name": str,
    "shared": bool,
    "exclusive": bool,
    "priority": range(-128, 128),
    "no_local": bool,
    "retroactive": bool,
    "pending_limit": range(-1, 1 << 31),
    "reading": list,
}


def _text(value: Any) -> str:
    return str(checked(value, str))


def _name(value: Any) -> str:
    source = read_source(value)
    if not isinstance(source, str):
        raise ValueError(f"{value!r} is not one destination")
    return source


def _make(surroundings: Surroundings, _owner: str) -> NeutralCodec:
    return NeutralCodec(surroundings.epoch, surroundings.message_id_prefix)


NEUTRAL = ServedProtocol("neutral", "the neutral protocol", [tuple(MAGIC)], _make)
