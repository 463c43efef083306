"""Link: the gateway's end of a link; `RemoteConnection`: one client's connection on it.

A link may begin before its socket does: connections are opened at once, and what they say waits in the link, each
within its window. Clients may go meanwhile: the link keeps what they have asked for while that takes at most
`LEFT_BYTES_MAX` for all of them, and drops the rest. Invariants: a link confirms nothing by itself; each command that
asks for an answer gets one, or its connection ends; a link that is lost ends all its connections, and is never used
again.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable, Collection, Sequence
from random import Random, SystemRandom
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from amq.broker.recipient import Recipient
from amq.broker.sessions.links import Client
from amq.broker.sessions.traffic import Traffic
from amq.core.errors import AmqError, CommandError
from amq.core.proof import NONCE_BYTES
from amq.link import calls, commands
from amq.link.calls import HOME, OPENING, ClientOpening, Home
from amq.link.channel import GRANT_BYTES, WINDOW_BYTES, Inlet, Outlet
from amq.link.framing import LEAD_BYTES, LINK, NUMBER, Kind, LinkError, LinkFrame, framed
from amq.link.hello import LinkHello, certificate_refused
from amq.link.socket import LinkHub, LinkSocket
from amq.protocols.commands import (
    CloseSession,
    Command,
    Failure,
    InSession,
    Scope,
    Send,
    SendRun,
    Subscribe,
    Unsubscribe,
)

LEFT_BYTES_MAX: Final = 4 << 20  # of clients that have gone before the link has begun
LEFT_BYTES: Final = 4 << 10  # that each of them takes, beside what it said
ALL_BUT_CONNECTION: Final = frozenset(Scope) - {Scope.CONNECTION}
_ANSWERED: Final = (Subscribe, Unsubscribe, CloseSession)  # the home confirms these, whether the client asks or not


class RemoteConsumer:
    """Implements `amq.broker.recipient.QueueConsumer`."""

    __slots__ = ("ended", "wire")

    queue = None

    def __init__(self, wire: Any) -> None:
        self.wire = wire
        self.ended = False


class _Asked(NamedTuple):
    """A command that begins or ends consumers, as long as the home has not answered it."""

    command: Command
    receipt: object
    session: int
    consumer: int  # the number of the one that it begins, 0 = none


class RemoteConnection:
    """Implements `amq.transports.hub.ServedConnection`. `lost` is called when the link is."""

    def __init__(self, link: Link, number: int, recipient: Recipient, client: Client) -> None:
        self._link = link
        self._number = number
        self._recipient = recipient
        self.client = client
        self.traffic = Traffic()
        self.is_closed = False
        self.lost: Callable[[RemoteConnection, AmqError], None] = _tell
        self.unanswered: list[object] = []  # when it is lost: tokens without an answer, in the order of their commands
        self._is_lost = False
        self._outlet = Outlet(number, link.write, self._flow)
        self._inlet = Inlet()
        self._is_writable = True
        self._kept: deque[LinkFrame] = deque()  # that the home says while the client does not read
        self._kept_bytes = 0
        self._is_catching_up = False
        self._is_paused = False
        self._session = 0  # of the command that was sent last
        self._receipts: dict[int, object] = {}  # by number: tokens of the client, and `_Asked`
        self._runs: dict[int, Sequence[object]] = {}  # by the number of the first: tokens of the messages of a run
        self._receipt = 0  # the last number
        self._consumers: dict[int, RemoteConsumer] = {}
        self._consumer = 0  # the last number
        self._names: dict[tuple[int, str], int] = {}  # of consumers: session and id

    @property
    def recipient(self) -> Recipient:
        return self._recipient

    # -- ServedConnection ---------------------------------------------------------------------------------------------

    def handle(self, commands: list[Command], *, until_s: float = 0.0) -> list[Command]:  # noqa: ARG002
        """All of `commands` cross at once: to pass them on costs little."""
        session = 0
        for command in commands:
            if self.is_closed:
                break
            if command.__class__ is InSession:
                assert isinstance(command, InSession)
                session = command.session
                continue
            try:
                self._say(command, session)
            except _UNWRITABLE as error:
                failed = CommandError(f"the command cannot be passed on: {error}")
                self._recipient.fail(Failure(failed, Scope.COMMAND, command.receipt, session))
        self._link.hurry()
        self._flow()
        return []

    def _say(self, command: Command, session: int) -> None:
        """Raises `UNWRITABLE`."""
        receipt = consumer = 0
        if command.__class__ is SendRun:
            assert isinstance(command, SendRun)
            if command.receipts is not None:
                receipt = self._receipt + 1
        elif command.receipt is not None or isinstance(command, _ANSWERED):
            receipt = self._receipt + 1
        if command.__class__ is Subscribe:
            consumer = self._consumer + 1
        asked = receipt
        if receipt and command.__class__ is not Send and getattr(command.receipt, "is_question", False):
            asked |= commands.SURVIVED
        found = commands.written(self._number, command, asked, consumer)
        if session != self._session:
            self._session = session
            self._outlet.put(Kind.SESSION, calls.of_size(self._number, session))
        if receipt:
            self._note(command, session, consumer, asked)
        self._outlet.put(*found)

    def _note(self, command: Command, session: int, consumer: int, asked: int) -> None:
        """An answer is to come, to the receipt `asked`."""
        first = self._receipt + 1
        if command.__class__ is SendRun:
            assert isinstance(command, SendRun)
            assert command.receipts is not None
            if command.receipts.__class__ is list:
                self._receipts.update(enumerate(command.receipts, first))
            else:
                self._runs[first] = command.receipts
            self._receipt += len(command.receipts)
            return
        self._receipt = first
        if not isinstance(command, _ANSWERED):
            self._receipts[asked] = command.receipt
            return
        self._receipts[asked] = _Asked(command, command.receipt, session, consumer)
        if consumer:
            assert isinstance(command, Subscribe)
            self._consumer = consumer
            self._consumers[consumer] = RemoteConsumer(self._recipient.subscribed(command, session))

    def set_writable(self, writable: bool) -> None:
        self._is_writable = writable
        if writable and not self.is_closed:
            self._catch_up()
            self._grant()
            self._flow()

    @property
    def is_lost(self) -> bool:
        return self._is_lost

    @is_lost.setter
    def is_lost(self, lost: bool) -> None:
        self._is_lost = lost
        if not self.is_closed:
            self._outlet.put(Kind.LOST, calls.of_size(self._number, int(lost)))

    def lose(self) -> None:
        self.is_lost = True
        self.set_writable(False)

    def expire_transactions(self, now: float) -> None:
        """The home does that, by its own clock."""

    def close(self) -> None:
        if self.is_closed:
            return
        self._forget()
        if self._link.keeps(self._number, self._outlet.flight_bytes, self._outlet.waits):
            self._outlet.put(Kind.CLOSE, calls.numbered(self._number))
        else:
            self._outlet.close()

    def _forget(self) -> None:
        self.is_closed = True
        for consumer in self._consumers.values():
            consumer.ended = True
        self._consumers.clear()
        self._names.clear()
        self._receipts.clear()
        self._runs.clear()
        self._kept.clear()
        self._inlet.close()

    def end(self, error: AmqError) -> None:
        """The link is lost."""
        self._outlet.close()
        if not self.is_closed:
            self._catch_up(at_any_rate=True)
        if not self.is_closed:
            self._spread()
            asked = sorted(self._receipts.items(), key=_place)
            self.unanswered = [each.receipt if isinstance(each, _Asked) else each for _, each in asked]
            self._forget()
            self.lost(self, error)
            self.unanswered = []

    # -- windows ------------------------------------------------------------------------------------------------------

    def _flow(self) -> None:
        """Read the client, or not: as the home keeps up."""
        must_pause = self._outlet.is_full or self._link.is_full or self._kept_bytes > 2 * WINDOW_BYTES
        if must_pause == self._is_paused or self.is_closed:
            return
        self._is_paused = must_pause
        if must_pause:
            self._link.wait(self)
            self._recipient.pause_reading()
        else:
            self._recipient.resume_reading()

    def go_on(self) -> None:
        """The link has room again."""
        self._flow()

    def _grant(self) -> None:
        size = self._inlet.grant()
        if size:
            self._link.write(framed(Kind.GRANT, calls.of_size(self._number, size)))

    # -- what the home says -------------------------------------------------------------------------------------------

    def take(self, frame: LinkFrame) -> None:
        """Raises LinkError."""
        if frame.kind == Kind.GRANT:
            self._outlet.granted(calls.read_size(frame))
            self._flow()
            return
        if self.is_closed:
            return
        whole = self._inlet.take(frame)
        if whole is None:
            if self._is_writable:
                self._grant()
            return
        if whole.kind not in _TAKERS:
            raise LinkError(f"the home sent a frame of kind {whole.kind}, which is not known")
        if whole.kind == Kind.FAIL:  # it may end the connection, whether the client reads or not
            self._catch_up(at_any_rate=True)
        elif self._kept or (not self._is_writable and whole.kind not in _ANSWERS):
            self._kept.append(whole)
            self._kept_bytes += _weight(whole)
            self._flow()
            return
        _TAKERS[whole.kind](self, whole)
        if self._inlet.taken_bytes >= GRANT_BYTES and self._is_writable:
            self._grant()

    def _catch_up(self, at_any_rate: bool = False) -> None:
        """Pass on what was kept, as long as the client reads."""
        kept = self._kept
        if not kept or self._is_catching_up:
            return
        self._is_catching_up = True
        try:
            while kept and (self._is_writable or at_any_rate) and not self.is_closed:
                frame = kept.popleft()
                self._kept_bytes -= _weight(frame)
                _TAKERS[frame.kind](self, frame)
        except LinkError as error:
            self._link.fail(error)
        finally:
            self._is_catching_up = False
        self._link.wake()

    def _consumer_of(self, number: int) -> RemoteConsumer | None:
        consumer = self._consumers.get(number)
        if consumer is None:
            error = LinkError(f"the home delivers to consumer {number}, which is not known")
            self._recipient.fail(Failure(error, Scope.CONNECTION))
        return consumer

    def _deliver(self, frame: LinkFrame) -> None:
        number, message, redelivered = calls.read_delivery(frame)
        consumer = self._consumer_of(number)
        if consumer is not None:
            self._recipient.deliver(consumer, message, redelivered)

    def _deliver_many(self, frame: LinkFrame) -> None:
        number, messages = calls.read_deliveries(frame)
        consumer = self._consumer_of(number)
        if consumer is not None:
            self._recipient.deliver_all(consumer, messages)

    def _deliver_records(self, frame: LinkFrame) -> None:
        number, destination, run, seq, redelivered = calls.read_records(frame)
        consumer = self._consumer_of(number)
        if consumer is not None:
            self._recipient.deliver_run(consumer, destination, run, seq, redelivered)

    def _browsed(self, frame: LinkFrame) -> None:
        consumer = self._consumer_of(calls.read_consumer(frame))
        if consumer is not None:
            self._recipient.browsed(consumer)

    def _confirm(self, frame: LinkFrame) -> None:
        number, outcome = calls.read_confirmation(frame)
        receipt = self._answered(number, done=True)
        if receipt is not None:
            self._recipient.confirm(receipt, outcome)

    def _confirm_many(self, frame: LinkFrame) -> None:
        numbers = calls.read_confirmations(frame)
        while self._runs and numbers:
            numbers = self._confirm_run(numbers)
        if numbers:
            self._confirm_each(numbers)

    def _confirm_run(self, numbers: list[int]) -> list[int]:
        """Confirm the run that begins with the first of `numbers`, or what comes before the next one. Returns the
        others."""
        runs, first = self._runs, numbers[0]
        run = runs.get(first)
        if run is None:
            at = next((place for place, number in enumerate(numbers) if number in runs), len(numbers))
            if any(number not in self._receipts for number in numbers[:at]):
                self._spread()
            self._confirm_each(numbers[:at])
            return numbers[at:]
        size = len(run)
        if numbers[:size] == [*range(first, first + size)]:
            del runs[first]
            self._recipient.confirm_all(run)
            return numbers[size:]
        self._spread()
        return numbers

    def _spread(self) -> None:
        """From now on the messages of each run have their own tokens."""
        for first, run in self._runs.items():
            self._receipts.update(enumerate(run, first))
        self._runs.clear()

    def _confirm_each(self, numbers: list[int]) -> None:
        known = self._receipts
        if _Asked in {known[number].__class__ for number in numbers if number in known}:
            receipts = [self._answered(number, done=True) for number in numbers]
        else:
            receipts = [known.pop(number, None) for number in numbers]
        if None in receipts:
            receipts = [receipt for receipt in receipts if receipt is not None]
        if receipts:
            self._recipient.confirm_all(receipts)

    def _fail(self, frame: LinkFrame) -> None:
        failure: Failure = calls.statement(frame, calls.FAILURE)
        number = failure.receipt
        assert isinstance(number, int)
        receipt = self._answered(number, done=False) if number else None
        if failure.scope is Scope.CONSUMER:
            self._end_consumers(failure.session, failure.consumer)
        self._recipient.fail(failure._replace(receipt=receipt))

    def _answered(self, number: int, done: bool) -> object:
        """The client's token of that command, None = there is nobody to tell: also where it was answered before, by an
        error."""
        if number not in self._receipts:
            self._spread()
        found = self._receipts.pop(number, None)
        if not isinstance(found, _Asked):
            return found
        command, session = found.command, found.session
        if isinstance(command, Subscribe):
            if done:
                self._names[session, command.id] = found.consumer
            else:
                self._end_consumer(found.consumer)
        elif done and isinstance(command, Unsubscribe):
            self._end_consumers(session, command.id)
        elif done and isinstance(command, CloseSession):
            self._end_consumers(command.session)
        return found.receipt

    def _end_consumers(self, session: int, id: str | None = None) -> None:
        """Those of a session, or that one."""
        gone = [key for key in self._names if key[0] == session] if id is None else [(session, id)]
        for key in gone:
            number = self._names.pop(key, None)
            if number is not None:
                self._end_consumer(number)

    def _end_consumer(self, number: int) -> None:
        consumer = self._consumers.pop(number, None)
        if consumer is not None:
            consumer.ended = True

    def end_by_home(self) -> None:
        """The home has ended it, and all that it said before is here. The last call."""
        if not self.is_closed:
            self._catch_up(at_any_rate=True)
        if not self.is_closed:
            self.close()
            self._recipient.close()
        self._outlet.close()


_UNWRITABLE: Final = commands.UNWRITABLE
# A client that sends on is not read before it reads these.
_ANSWERS: Final = frozenset((Kind.CONFIRM, Kind.CONFIRM_MANY))
_ANSWER_WEIGHT: Final = 16  # a receipt takes so many times the bytes that it has on a link
_TAKERS: Final[dict[int, Callable[[RemoteConnection, LinkFrame], None]]] = {
    Kind.DELIVER: RemoteConnection._deliver,
    Kind.DELIVER_MANY: RemoteConnection._deliver_many,
    Kind.DELIVER_RECORDS: RemoteConnection._deliver_records,
    Kind.BROWSED: RemoteConnection._browsed,
    Kind.CONFIRM: RemoteConnection._confirm,
    Kind.CONFIRM_MANY: RemoteConnection._confirm_many,
    Kind.FAIL: RemoteConnection._fail,
}


def _place(asked: tuple[int, object]) -> int:
    """Of a command among all of its connection."""
    return asked[0] & ~commands.SURVIVED


def _weight(frame: LinkFrame) -> int:
    """Bytes that a frame takes which is kept."""
    size = len(frame.data) + len(frame.body)
    return size * _ANSWER_WEIGHT if frame.kind in _ANSWERS else size


def _tell(connection: RemoteConnection, error: AmqError) -> None:
    connection.recipient.fail(Failure(error, Scope.CONNECTION))


def _nothing(link: Link, error: AmqError) -> None:
    """Nobody wants to know."""


class Link:
    """`lost` is called once, when all its connections have heard. `home` = as it said when the link began; None = the
    link has no socket yet. `is_full`: the socket takes no more. `is_orderly`: the home has ended it, and has carried
    out nothing that it has not answered."""

    def __init__(self, hub: LinkHub, secret: bytes, entropy: Random | None = None) -> None:
        self._hub = hub
        self._secret = secret
        self._entropy = entropy or SystemRandom()
        self._socket: LinkSocket | None = None
        self._connected: asyncio.Future[Home] | None = None
        self._early: dict[int, list[bytes | memoryview]] = {}  # by connection: frames from before the link began
        self._left_bytes = 0  # of connections among those that are closed
        self._held: dict[RemoteConnection, None] = {}  # connections that wait for room
        self._number = 0  # of the last connection
        self.home: Home | None = None
        self.connections: dict[int, RemoteConnection] = {}
        self.is_lost = False
        self.is_full = self.is_orderly = False
        self.lost: Callable[[Link, AmqError], None] = _nothing

    async def connect(self, address: str, tls: ssl.SSLContext | None = None) -> Home:
        """Get a socket to the master at `address`: `tcp://HOST:PORT`, `ssl://HOST:PORT`, `unix:///PATH`. Raises
        LinkError where it refuses, and OSError; the link then waits on, for another address."""
        assert self._socket is None, "the link has a socket"
        loop = self._hub.loop
        answer: asyncio.Future[Home] = loop.create_future()
        self._connected = answer
        hello = LinkHello(False, self._secret, self._entropy.randbytes(NONCE_BYTES))
        self._socket = socket = LinkSocket(self._hub, hello, self, begins=True)
        url = urlsplit(address)
        try:
            if url.scheme == "unix":
                await loop.create_unix_connection(lambda: socket, url.path)
            else:
                context = tls if url.scheme == "ssl" else None
                name = url.hostname if context is not None else None
                host, port = url.hostname or "", url.port or 0
                await loop.create_connection(lambda: socket, host, port, ssl=context, server_hostname=name)
            return await answer
        except BaseException as error:
            self._connected = self._socket = None
            socket.abort()
            if isinstance(error, ssl.SSLCertVerificationError):
                raise certificate_refused(address, error) from error
            raise

    def open(
        self,
        recipient: Recipient,
        client: Client,
        owner: str,
        protocol: str,
        *,
        peer_name: str = "",
        survives: Collection[Scope] = ALL_BUT_CONNECTION,
    ) -> RemoteConnection:
        """A connection of `client` at the home. `owner` = what the names of its temporary destinations begin with;
        `survives` = as of its codec. Where the home refuses it, `recipient.fail` hears so. Raises LinkError where the
        link is lost."""
        if self.is_lost:
            raise LinkError("the link to the home is lost: open another one", code="LINK_LOST")
        self._number += 1
        number = self._number
        connection = self.connections[number] = RemoteConnection(self, number, recipient, client)
        user, scopes = client.user, tuple(scope for scope in Scope if scope in survives)
        opening = ClientOpening(
            user.name,
            tuple(sorted(user.roles)),
            client.id,
            client.instance,
            client.exclusive,
            owner,
            protocol,
            peer_name,
            scopes,
            client.since_ms,
        )
        self.write(framed(Kind.OPEN, calls.stated(number, OPENING, opening)))
        return connection

    def write(self, *pieces: Any) -> None:
        """Send a frame."""
        if self.home is None or self._socket is None:
            if not self.is_lost:
                (number,) = NUMBER.unpack_from(pieces[0], LEAD_BYTES)
                self._early.setdefault(number, []).extend(pieces)
            return
        self._socket.write(*pieces)

    def hurry(self) -> None:
        """Long frames need not wait for the end of the round."""
        if self._socket is not None and self.home is not None:
            self._socket.hurry()

    def keeps(self, number: int, said_bytes: int, is_cut: bool) -> bool:
        """That connection closes. Shall the home hear of it, and of the `said_bytes` before? `is_cut`: something large
        is not written as a whole. Where not, the link has dropped it."""
        if self.home is not None or self.is_lost:
            return True
        size = LEFT_BYTES + said_bytes
        if said_bytes and not is_cut and self._left_bytes + size <= LEFT_BYTES_MAX:
            self._left_bytes += size
            return True
        del self.connections[number]
        self._early.pop(number, None)
        return False

    def wake(self) -> None:
        """There is something for clients at the end of this round."""
        self._hub.turn.wake()

    def fail(self, error: AmqError) -> None:
        """The home broke the protocol."""
        if self._socket is not None:
            self._socket.fail(error)

    def wait(self, connection: RemoteConnection) -> None:
        """`connection` goes on when the socket has room."""
        if self.is_full:
            self._held[connection] = None

    def close(self) -> None:
        """All connections are closed, and no more will be opened."""
        socket = self._socket
        if socket is not None:
            socket.finish()
        self.lose(LinkError("the link was closed", code="LINK_LOST"))

    def lose(self, error: AmqError) -> None:
        """The link is lost, or never came to be: all its connections end."""
        if self.is_lost:
            return
        self.is_lost = True
        self._early.clear()
        self._held.clear()
        socket, self._socket = self._socket, None
        if socket is not None:
            socket.abort()
        connections, self.connections = self.connections, {}
        for connection in connections.values():
            connection.end(error)
        self.lost(self, error)

    # -- LinkOwner ----------------------------------------------------------------------------------------------------

    def begun(self, name: str) -> None:
        """The home says who it is, next."""

    def take(self, frame: LinkFrame) -> None:
        (number,) = NUMBER.unpack_from(frame.data)
        if self.home is None:
            if frame.kind != Kind.WELCOME or self._connected is None or self._socket is None:
                raise LinkError("the home does not say who it is")
            self.home = calls.statement(frame, HOME)
            early, self._early = self._early, {}
            if early:
                self._socket.write(b"".join(piece for said in early.values() for piece in said))
            if not self._connected.done():
                self._connected.set_result(self.home)
            return
        if number == LINK:
            if frame.kind == Kind.CLOSE:
                self.is_orderly = True
                self.lose(LinkError(f"{self.home.broker} is not the master any more", code="LINK_LOST"))
            elif frame.kind != Kind.BEAT:
                raise LinkError(f"the home sent a frame of kind {frame.kind} about the link")
            return
        connection = self.connections.get(number)
        if connection is None:
            raise LinkError(f"the home names connection {number}, which is not open")
        if frame.kind == Kind.CLOSE:
            connection.end_by_home()
            del self.connections[number]
            return
        connection.take(frame)

    def taken(self, until_s: float) -> None:  # noqa: ARG002
        """Everything was passed on already: clients that have much to read need not wait for others."""
        self._hub.turn.hurry()

    def flush(self) -> None:
        """Everything was written already."""

    def set_full(self, full: bool) -> None:
        self.is_full = full
        if not full:
            held, self._held = self._held, {}
            for connection in held:
                connection.go_on()

    def ended(self, error: AmqError) -> None:
        if self.home is not None:
            self._socket = None
            self.lose(error)
        elif self._connected is not None and not self._connected.done():
            self._connected.set_exception(error)
