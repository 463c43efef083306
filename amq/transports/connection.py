"""Connection: one client's socket. Bytes to commands to session, deliveries and receipts to bytes.

It keeps order and bounds. Output is gathered and written once a turn. A client that does not read gets no deliveries
beyond `consumerBufferSize`, and of a large body one slice after the other as the socket takes them; when answers to its
commands exceed that size as well, the connection is not read until the client reads. A client that does not finish a
frame, or does not log in, is told so and closed. An ended connection holds on to nothing, and nothing forms a cycle
with it: reference counting alone frees it.

A connection with a lifeline counts what it received, tells the client so, and keeps copies of what it wrote. Its socket
may break, and another one take its place: see `amq.transports.reattachment`.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, cast

import structlog

from amq.broker.queues.queue import Subscription
from amq.broker.queues.redelivery import shown
from amq.broker.sessions.connection import LOOK_AFTER, ClientConnection
from amq.broker.sessions.links import Client
from amq.broker.sessions.traffic import Traffic
from amq.core.errors import AccessError, AmqError, ProtocolError
from amq.core.message import LARGE_BODY_BYTES, CostlyError, Message, MessageBatch
from amq.journal.reader import RecordRun
from amq.protocols.codec import Codec
from amq.protocols.commands import (
    Command,
    Connect,
    Failure,
    Reattachable,
    Scope,
    Send,
    SendMany,
    Subscribe,
)
from amq.security.login import Claim
from amq.transports import liveness
from amq.transports.hosts import is_loopback
from amq.transports.hub import Codecs, Hub
from amq.transports.parking import Lifeline
from amq.transports.reading import LOGIN, OUTPUT, THROTTLED, TURN, WORK, Reading
from amq.transports.refusals import Refusals
from amq.transports.shares import FRAMES_MAX, FULL_READS_MAX
from amq.transports.stream import Stream, stream_over
from amq.transports.translating import Later
from amq.transports.window import IDLE_BYTES

FRAME_RATE_BYTES_MIN = 64 << 10  # bytes a second that a large frame must come in at
IGNORED_BYTES_MAX = 256 << 20  # a client that talks on before it listens still learns why
SLICE_BYTES = 256 << 10  # of a large body
LINGER_S = 5.0  # how long a closing connection may take to read its last frames
LOGIN_LOOK_S = 60.0  # so often the wall clock is asked whether a login has ended
SECOND_LOOK_S = 0.05  # a client that seems silent: what the kernel holds from it is read first
NOT_PERMITTED = "NOT_PERMITTED"
_log = structlog.get_logger("amq.connection")


class Connection(Reading, asyncio.Protocol):
    """One client: one accepted socket, from first byte to last."""

    def __init__(self, hub: Hub[Connection], number: int, codecs: Codecs) -> None:
        self._hub = hub
        self._clock = hub.clock
        self._codecs = codecs
        self.number = number
        self._owner = f"{hub.epoch}-{number}."  # the names of our temporary destinations begin so
        self.user = ""
        self.client_id = ""
        self.peer_name = self.peer_address = ""
        self.has_arrived = False  # the door learned of it before its TLS handshake
        self._is_loopback = False  # the client is on this host
        self._is_tls = False
        self.protocol: Codec | None = None
        self.client: ClientConnection | None = None  # from the login on
        self._stream: Stream | None = None
        self._first = b""
        # Commands that came while the login is checked, or that are left when the share of the connection is used up.
        self._held: list[Command] = []
        self._login: asyncio.Task[None] | None = None
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._slices: deque[bytes | memoryview] = deque()  # a large body and what follows it: before all of `_out`
        self._lent_bytes = 0  # memory of large bodies that is ours until they are written
        self._later: Later | None = None  # deliveries that a thread makes ready
        self._socket_full = False
        self._holds_back = False  # the session learned that there is no room for deliveries
        self._behind_bytes = 0  # of answers written since the socket is full: deliveries have stopped
        self._output_bytes_max = hub.config.consumer_buffer_size_bytes
        self._closing = self._said_goodbye = False
        self._stays_s = 0.0  # its socket is open so long after a refusal
        self._timer: asyncio.Handle | None = None
        self._login_ends_at_s = math.inf  # wall time
        self._login_end: asyncio.TimerHandle | None = None
        self._last_read = 0.0
        self._unread_for: set[str] = set()  # why we do not read; empty = we do
        self._paused_at = 0.0  # since when, 0 = we do read
        self._seemed_silent = False
        self._is_patient = False  # it may log in when it likes, as long as it shows that it is there
        self._is_behind = False  # it has still to learn where the group is
        self._frame_since = 0.0
        self._frame_bytes = 0
        self._full_read_bytes = Stream.full_read_bytes
        self._full_reads = 0  # in this turn
        self._throttled: asyncio.TimerHandle | None = None
        self._heartbeat_send_s = 0.0
        self._heartbeat_receive_s = 0.0
        self._watched: liveness.TcpSocket | None = None  # its peer may vanish without a word
        self._received_bytes = 0  # ever
        self._traffic = Traffic()
        self._lifeline: Lifeline | None = None
        self._refusals = Refusals()
        self._again: list[bytes] = []  # the client lacks it: it goes out before everything else

    # -- asyncio.Protocol ---------------------------------------------------------------------------------------------

    @property
    def has_shown_login(self) -> bool:
        """True from the moment at which the broker begins to check a login of this client."""
        return self._login is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transport is a separate class, not a subclass
        self._stream = stream = stream_over(cast(asyncio.Transport, transport), self._output_bytes_max // 2)
        self.peer_name, self.peer_address = stream.peer_name, stream.peer_address
        self._is_loopback, self._is_tls = is_loopback(stream.peer_address), stream.tls
        self._full_read_bytes = stream.full_read_bytes
        ttl_s = self._hub.config.connection_ttl_s
        if stream.socket is not None and ttl_s and liveness.watch(stream.socket, ttl_s):
            self._watched = stream.socket
        if self._hub.places.is_reserved(stream.descriptor):
            self.abort()
            return
        if not self._hub.opened(self):
            self.protocol = self._codecs.answering(self._owner)
            told = f"the broker has {self._hub.places.maximum()} connections already"
            self._refuse(self._hub.door.too_many("maxConnections", told, "close some, or use one for several sessions"))
            return
        try:
            if not self.has_arrived:
                self._hub.door.arrive(self.peer_address)
            self._hub.door.enter(self.number, self.peer_address)
        except AccessError as error:
            self.protocol = self._codecs.answering(self._owner)
            self._refuse(error)
            return
        self._last_read = self._hub.clock.monotonic()
        self._timer = self._hub.loop.call_later(self._hub.config.connect_timeout_s, self._connect_late)

    def data_received(self, data: bytes) -> None:
        if self._closing:
            self._ignore(data)
            return
        self._received_bytes += len(data)
        protocol = self.protocol
        if protocol is None:
            protocol = self._detect(data)
            if protocol is None:
                return
            data, self._first = self._first, b""
        hub = self._hub
        if len(data) >= self._full_read_bytes:
            self._full_reads += 1
            if self._full_reads == 1:
                hub.loop.call_soon(self._begin_turn)
            elif self._full_reads == FULL_READS_MAX:
                self._unread(TURN)
        self._last_read = hub.clock.monotonic()
        hub.turn.talkers.append(self.number)
        if self._held or protocol.has_more:  # it came before reading stopped: what is left comes first
            self._frame_bytes += len(data)
            protocol.receive(data, 0)
            return
        commands = protocol.receive(data, FRAMES_MAX)
        if protocol.unsaid:
            self._say(protocol)
        if self._lifeline is not None:
            self._count(self._lifeline)
        client = self.client
        if client is None or protocol.has_more or len(commands) > LOOK_AFTER // 4:
            self._work(commands, len(data), hub.turn.shares.until_s(self._last_read))
            return
        if protocol.pending:
            if commands or not self._frame_since:
                self._frame_since, self._frame_bytes = self._last_read, 0
            self._frame_bytes += len(data)
        else:
            self._frame_since = 0.0
        if commands:
            client.handle(commands)
        config = hub.config
        if config.throttle_messages or config.throttle_size_bytes:
            self._throttle(len(data), commands)

    def _work(self, commands: list[Command], size: int, until_s: float) -> None:
        """Carry out `commands` and what else has been received, until `until_s`; the rest waits, and the client is not
        read meanwhile. `size` = of the bytes that were just read."""
        protocol, hub = self.protocol, self._hub
        assert protocol is not None
        if size:
            self._frame_bytes = size if commands else self._frame_bytes + size
        read_bytes, is_new, completed = size, size > 0, False
        while True:
            completed = completed or bool(commands)
            client, config = self.client, hub.config
            if client is None:
                if commands:
                    self._held = commands
                    if self._login is None:
                        self._unread(LOGIN)
                        self._login = hub.loop.create_task(self._connect())
                    break
            else:
                if is_new and (config.throttle_messages or config.throttle_size_bytes):
                    self._throttle(read_bytes, commands)
                read_bytes, is_new = 0, True
                if commands:
                    self._held = client.handle(commands, until_s=until_s)
            if self._closing or not (self._held or protocol.has_more):
                break
            if self._held or hub.clock.monotonic() >= until_s:
                self._frame_since = 0.0
                self._unread(WORK)
                hub.turn.shares.wait(self)
                return
            commands = protocol.receive(b"", FRAMES_MAX)
            if protocol.unsaid:
                self._say(protocol)
            if self._lifeline is not None:
                self._count(self._lifeline)
        self._read_for(WORK)
        if not protocol.pending:
            self._frame_since = 0.0
        elif completed or not self._frame_since:
            self._frame_since = self._last_read

    def go_on(self, share_s: float) -> float:
        """The share of this connection in a later round: see `amq.transports.shares`."""
        now_s = self._hub.clock.monotonic
        until_s = now_s() + share_s
        commands, self._held = self._held, []
        self._work(commands, 0, until_s)
        return until_s - now_s()

    def _throttle(self, size: int, commands: list[Command]) -> None:
        """Read on only when the user may send more."""
        sends = sum(len(each.bodies) if isinstance(each, SendMany) else isinstance(each, Send) for each in commands)
        wait_s = self._hub.door.wait_s(self.user, sends, size)
        if wait_s and not self._closing:
            self._unread(THROTTLED)
            if self._throttled is not None:
                self._throttled.cancel()
            self._throttled = self._hub.loop.call_later(wait_s, self._read_for, THROTTLED)

    def _say(self, protocol: Codec) -> None:
        """The codec has something to say of itself. A client that promises to be heard may log in late."""
        self._put(protocol.unsaid)
        protocol.unsaid = b""
        promise = protocol.patience_ms
        if promise and promise[0] and self.client is None and self._login is None and not self._is_patient:
            self._is_patient = True
            self._start_timer(promise)

    def _ignore(self, data: bytes) -> None:
        """The client talks on after our last word."""
        stream = self._stream
        if stream is not None:
            stream.ignored_bytes += len(data)
            if stream.ignored_bytes > IGNORED_BYTES_MAX:
                self.abort()

    def _begin_turn(self) -> None:
        self._full_reads = 0
        self._read_for(TURN)

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._without_socket()
        self._end(exc)

    def _without_socket(self) -> None:
        if self._stream is not None:
            self._stream.lost()
            self._stream = None
        self._watched = None

    def _end(self, exc: Exception | None) -> None:
        """Nothing of it is left."""
        self._closing = True
        for timer in (self._timer, self._throttled):
            if timer is not None:
                timer.cancel()
        self._end_at(math.inf)
        if self._login is not None and not self._login.done():
            self._login.cancel()
        if self.client is not None:
            self.client.close()
            self.client = None  # it refers to this
        if self.protocol is not None:  # it may be asked for a receipt yet, and has buffered what came of a frame
            self.protocol.close()
        self._held.clear()
        self._hub.turn.shares.forget(self)
        self._first = b""
        self._forget_output()
        self._hub.closed(self)
        self._hub.door.leave(self.number)
        _log.debug("connection closed", connection=self.number, peer=self.peer_name, error=str(exc) if exc else None)

    def pause_writing(self) -> None:
        self._socket_full = True
        self._hold_back()

    def resume_writing(self) -> None:
        self._socket_full = False
        if self._slices:
            self._hub.turn.unsent[self] = None
            self._hub.turn.wake()
        else:
            self._caught_up()

    def _caught_up(self) -> None:
        """The client has read (nearly) all that was written."""
        if self._behind_bytes:
            self._behind_bytes = 0
            self._read_for(OUTPUT)
        self._let_go_on()
        if self._is_behind:
            self.tell_brokers()

    def _hold_back(self) -> None:
        """No deliveries until the client has read."""
        if self.client is not None:
            self._holds_back = True
            self.client.set_writable(False)

    def _let_go_on(self) -> None:
        """There is room for deliveries again, unless a thread makes some ready that come before."""
        if self._later:
            return
        self._holds_back = False
        if self.client is not None and not self._closing:
            self.client.set_writable(True)

    # -- Peer: what the broker says -----------------------------------------------------------------------------------

    def subscribed(self, command: Subscribe, session: int) -> Any:
        assert self.protocol is not None
        return self.protocol.subscription(command, session)

    def deliver(self, subscription: Subscription, message: Message, redelivered: int) -> None:
        self._traffic.delivered += 1
        try:
            if len(message.body) > LARGE_BODY_BYTES:
                self._deliver_large(subscription, message, redelivered)
                return
            if redelivered:
                message = shown(subscription.queue, message)
            frame = self.protocol.delivery(subscription.wire, message, redelivered)  # type: ignore[union-attr]
        except CostlyError:
            self._deliver_later(subscription, redelivered, message)
            return
        out = self._out
        if not out:
            self._hub.turn.unsent[self] = None
        out.append(frame)
        self._out_bytes += len(frame)
        if self._out_bytes > self._output_bytes_max:
            self._hold_back()

    def deliver_batch(self, subscription: Subscription, batch: MessageBatch) -> None:
        self._traffic.delivered += len(batch.messages)
        try:
            frames = self.protocol.batch(subscription.wire, batch)  # type: ignore[union-attr]
        except CostlyError:
            self._deliver_later(subscription, 0, *batch.messages)
            return
        self._gather(frames)

    def deliver_run(
        self,
        subscription: Subscription,
        destination: str,
        run: RecordRun,
        seq: int,
        redelivered: Sequence[tuple[int, int]],
    ) -> None:
        self._traffic.delivered += len(run.sizes)
        frame = subscription.wire.run(destination, run.data, run.sizes, seq, redelivered)
        self._gather(frame)

    def _gather(self, data: bytes) -> None:
        if not self._out:
            self._hub.turn.unsent[self] = None
        self._out.append(data)
        self._out_bytes += len(data)
        if self._out_bytes > self._output_bytes_max:
            self._hold_back()

    def _deliver_large(self, subscription: Subscription, message: Message, redelivered: int) -> None:
        """The body is not copied; where the disk has it too it is in memory for this socket alone, until written."""
        told = shown(subscription.queue, message) if redelivered else message
        pieces = self.protocol.large_delivery(subscription.wire, told, redelivered)  # type: ignore[union-attr]
        self._lent_bytes += self._hub.lend(subscription.queue, message)
        self._slice(pieces)

    def _deliver_later(self, subscription: Subscription, redelivered: int, *messages: Message) -> None:
        """A thread makes them ready; whatever else is for this client waits."""
        if self._later is None:
            self._later = Later(self._hub, self._slice)
        for message in messages:
            self._later.add(self.protocol, subscription, message, redelivered)  # type: ignore[arg-type]
        self._hold_back()

    def _slice(self, pieces: Iterable[bytes]) -> None:
        """They are written as the socket takes them, behind all that is there."""
        self._slices += self._out
        self._out, self._out_bytes = [], 0
        for piece in pieces:
            view = memoryview(piece)
            self._slices += [view[start : start + SLICE_BYTES] for start in range(0, len(view), SLICE_BYTES)]
        self._hub.turn.unsent[self] = None
        self._hold_back()

    def browsed(self, subscription: Subscription) -> None:
        self._put(self.protocol.end_of_browse(subscription.wire))  # type: ignore[union-attr]

    def confirm(self, receipt: object, outcome: str = "") -> None:
        data = self.protocol.receipt(receipt, outcome)  # type: ignore[union-attr]
        out = self._out  # as `_put`, for each message of a producer with receipts: two calls less
        if not out:
            turn = self._hub.turn
            turn.unsent[self] = None
            if not turn.is_due:
                turn.wake()
        out.append(data)
        self._out_bytes += len(data)

    def tell_brokers(self) -> None:
        """The addresses of the group have changed. A client that does not read learns when it has read."""
        if self._closing or self.client is None or self.protocol is None:
            return
        self._is_behind = bool(self._socket_full or self._slices or self._behind_bytes)
        if not self._is_behind and (data := self.protocol.brokers(self._hub.brokers(self._is_loopback, self._is_tls))):
            self._put(data)

    def fail(self, failure: Failure) -> None:
        """Say why, and close unless the protocol survives it."""
        if self._closing:
            return
        error, protocol = failure.error, self.protocol
        if not isinstance(error, AmqError):
            _log.error("internal error", connection=self.number, exc_info=error)
        if error.__class__ is AccessError and error.code == NOT_PERMITTED:
            self._hub.door.denied(self.user, self.peer_name, error)
        ends = protocol is None or failure.scope not in protocol.survives
        refusal = error if ends and isinstance(error, AccessError) else None
        if refusal is not None:
            self._hub.door.ended(self.number, self.peer_name, refusal)
        else:  # a client that lives on could fill the log
            (_log.info if ends else _log.debug)(
                "connection refused" if ends else "command refused",
                connection=self.number,
                peer=self.peer_name,
                code=getattr(error, "code", "INTERNAL"),
                reason=str(error),
            )
        if protocol is not None:
            self._put(protocol.error(failure))
        if not ends:
            too_many = self._refusals.one_more(getattr(error, "code", ""), self._hub.clock.monotonic())
            if too_many is not None:
                self._refuse(too_many)
        else:
            if self.client is not None:
                self.client.close()
            if refusal is not None and protocol is not None and protocol.returns:
                self._stays_s = self._hub.door.keep(self.number, refusal)
            self.close()

    def _refuse(self, error: Exception, receipt: object = None) -> None:
        """The connection cannot go on. `receipt` = the token of the command for which."""
        self.fail(Failure(error, Scope.CONNECTION, receipt))

    def close(self) -> None:
        """Send what is pending, then close; the client may take `LINGER_S` to read it and close too. A client that was
        refused may be held back before that, until the next call."""
        if self._closing:
            if not self._stays_s:
                return
            self._stays_s = 0.0
        self._closing = True
        for reason in list(self._unread_for):  # input is thrown away, but the end of the connection is noticed
            self._read_for(reason)
        if self.protocol is not None:
            self.protocol.close()
        self._held.clear()
        self._hub.turn.shares.forget(self)
        self._hub.turn.unsent[self] = None
        self._hub.turn.wake()
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._hub.loop.call_later(self._stays_s or LINGER_S, self.close if self._stays_s else self.abort)

    def abort(self) -> None:
        """Close at once; what is pending is thrown away."""
        self._closing = True
        self._forget_output()
        if self._stream is not None:
            self._stream.abort()

    def cut(self) -> None:
        """Shut the socket down from another thread; the event loop notices when it can."""
        stream = self._stream
        if stream is not None:
            stream.cut()

    def send_out(self, now: bool = False) -> None:
        """Write what gathered in this turn, in one piece; of large bodies, and what is behind them, as much as the
        socket takes. `now`: before the turn goes on. Called by the turn, when the lease is valid."""
        stream, out, lifeline = self._stream, self._out, self._lifeline
        if stream is None or stream.is_closing() or self._said_goodbye:
            self._leave_output()
            return
        if self._again:
            self._repeat(stream)
        if out or self._slices:
            if self._socket_full or self._slices:
                self._behind_bytes += self._out_bytes
                if self._behind_bytes > self._output_bytes_max:
                    self._unread(OUTPUT)
            self._out, self._out_bytes = [], 0
            if self._slices:
                self._slices += out
                self._write_slices(stream)
            else:
                data = b"".join(out) if len(out) > 1 else out[0]
                if lifeline is not None:
                    lifeline.sent(data)
                (stream.write_now if now else stream.write)(data)
            if not self._socket_full and not self._slices:
                if self._behind_bytes:
                    self._caught_up()
                elif self._holds_back:
                    self._let_go_on()
        if self._closing and not self._said_goodbye and not self._slices and not self._stays_s:
            self._said_goodbye = True
            stream.finish(self._hub.loop)

    def _write_slices(self, stream: Stream) -> None:
        slices = self._slices
        while slices and not self._socket_full:
            # A copy: what the transport holds back must not hold on to the whole body.
            piece = bytes(slices.popleft())
            if self._lifeline is not None:
                self._lifeline.sent(piece)
            stream.write(piece)
        if not slices:
            self._return_memory()

    def _return_memory(self) -> None:
        if self._lent_bytes:
            self._hub.take_back(self._lent_bytes)
            self._lent_bytes = 0
        if self._later is not None:
            self._later.written()

    def _leave_output(self) -> None:
        """There is no socket to write to: the client broke the protocol meanwhile, and is not there any more."""
        self._forget_output()

    def _forget_output(self) -> None:
        self._out.clear()
        self._again.clear()
        self._slices.clear()
        self._return_memory()
        if self._later is not None:
            self._later.close()
            self._later = None  # it refers to this

    # -- connecting ---------------------------------------------------------------------------------------------------

    def _put(self, data: bytes) -> None:
        if not self._out:
            self._hub.turn.unsent[self] = None
            self._hub.turn.wake()
        self._out.append(data)
        self._out_bytes += len(data)

    def _detect(self, data: bytes) -> Codec | None:
        self._first += data
        try:
            self.protocol = self._codecs.codec(self._first, self._owner)
        except ProtocolError as error:
            self.protocol = self._codecs.answering(self._owner)
            self._refuse(error)
            return None
        return self.protocol

    async def _connect(self) -> None:
        """Check the login that the first command brings, then let the rest in."""
        assert self.protocol is not None
        if not self._held:  # it was closed before this began
            return
        command = self._held.pop(0)
        if not isinstance(command, Connect):
            self._refuse(getattr(command, "error", ProtocolError("log in before anything else")), command.receipt)
            return
        self._unread(LOGIN)
        try:
            shown = self._stream.certificate if self._stream is not None else None
            check = partial(self._hub.door.check, self.peer_address)
            missed = partial(self._hub.door.refused, command.login, self.peer_address, self.peer_name)
            check()
            login = await self._hub.authenticate(
                Claim(command.login, command.passcode, self._is_loopback, shown or None, check, missed)
            )
            self.user = login.user.name
            if not self._closing:
                self._hub.door.let_in(self.number, self.user)
        except AmqError as error:
            self._hub.door.refused(command.login, self.peer_address, self.peer_name, error)
            self._refuse(error, command.receipt)
            return
        finally:
            self._read_for(LOGIN)
        if self._closing:  # it took longer than a client may: the client got the error
            return
        self.client_id = command.client_id
        self._hub.door.logged_in(self.user, self.client_id, self.peer_name, login.shown)
        self._login_ends_at_s = login.ends_at_s
        client = Client(login.user, self.client_id, command.instance, command.exclusive)
        try:
            self._admit(client, command)
        except AmqError as error:
            self._refuse(error, command.receipt)
            return
        if self.client is None:
            return
        self._put(self._connected(self.protocol, None))
        self._start_timer(command.heartbeat_ms)
        self._end_at(self._login_ends_at_s)
        held, self._held = self._held, []
        if held or self.protocol.has_more:
            self._work(held, 0, self._hub.turn.shares.until_s(self._hub.clock.monotonic()))

    def _admit(self, client: Client, command: Connect) -> None:  # noqa: ARG002
        """The login is right. Afterwards `self.client` is None where this connection has nobody to serve."""
        assert self.protocol is not None
        self.client = self._hub.admit(self, self._owner, client, self.protocol.name)
        self._traffic = self.client.traffic

    def _connected(self, protocol: Codec, received: int | None) -> bytes:
        config, lifeline = self._hub.config, self._lifeline
        offered_ms = (round(config.heart_beat_send_s * 1000), round(config.heart_beat_receive_s * 1000))
        brokers = self._hub.brokers(self._is_loopback, self._is_tls)
        if lifeline is None:
            return protocol.connected(str(self.number), offered_ms, brokers)
        window_ms, window_bytes = round(lifeline.window_s * 1000), lifeline.window.bytes_max
        granted = Reattachable(lifeline.token, window_ms, window_bytes, received)
        return protocol.connected(str(self.number), offered_ms, brokers, granted)

    # -- what both sides count, for a client that may come back on another socket --------------------------------------

    def _count(self, lifeline: Lifeline) -> None:
        """Something was read."""
        confirmed = self.protocol.confirmed  # type: ignore[union-attr]
        if confirmed != lifeline.confirmed:
            lifeline.confirm(confirmed)
        if self._received_bytes - lifeline.told >= lifeline.step:
            self._tell_received(lifeline)

    def _tell_received(self, lifeline: Lifeline) -> None:
        lifeline.told = self._received_bytes
        self._put(self.protocol.received(lifeline.told))  # type: ignore[union-attr]

    def _repeat(self, stream: Stream) -> None:
        """Say what the client lacks: it was sent before, and is counted already."""
        again, self._again = self._again, []
        stream.write(b"".join(again))
        if not self._out and not self._slices and not self._socket_full:
            self._let_go_on()

    # -- time ---------------------------------------------------------------------------------------------------------

    def _connect_late(self) -> None:
        if self._closing or self._login is not None:  # how long a login waits to be checked is up to the broker
            return
        if self._seemed_silent:
            self.protocol = self.protocol or self._codecs.answering(self._owner)
        why = f"no login within {self._hub.config.connect_timeout_s:g} s"
        self._too_late(ProtocolError(why, code="CONNECT_TIMEOUT"), self._connect_late)

    def _end_at(self, ends_at_s: float) -> None:
        """The login counts until then. Clocks are set, so a look comes at least each `LOGIN_LOOK_S`."""
        if self._login_end is not None:
            self._login_end.cancel()
            self._login_end = None
        self._login_ends_at_s = ends_at_s
        if ends_at_s == math.inf or self._closing:
            return
        left_s = ends_at_s - self._hub.clock.wall_ms() / 1000
        if left_s > 0:
            self._login_end = self._hub.loop.call_later(min(left_s, LOGIN_LOOK_S), self._end_at, ends_at_s)
            return
        self._refuse(
            AccessError(
                "the token with which this connection has logged in has expired: connect again with a new one",
                code="LOGIN_EXPIRED",
            )
        )

    def _too_late(self, error: ProtocolError, look_again: Callable[[], None]) -> None:
        """The client has not said in time what it should have. Where the event loop was held up, by a busy host or
        by long work, timers go off before the sockets are read: what came meanwhile is read before anybody is cut."""
        if self._seemed_silent:
            if error.code != "HEARTBEAT_TIMEOUT" or not self._lose(str(error)):
                self._refuse(error)
            return
        self._seemed_silent = True
        # A timer may go off before the sockets are read once more; what it puts off twice comes after that.
        self._timer = self._hub.loop.call_later(SECOND_LOOK_S, self._put_off, look_again, 2)

    def _put_off(self, look_again: Callable[[], None], times: int) -> None:
        """So many rounds of the event loop. `_timer` is what is under way, so that it can be taken back: a connection
        that is parked meanwhile has a separate timer."""
        if times:
            self._timer = self._hub.loop.call_soon(self._put_off, look_again, times - 1)
        else:
            look_again()

    def _start_timer(self, client_ms: tuple[int, int]) -> None:
        """Heart-beats as negotiated: each way the larger of what one side gives and the other wants; 0 = none."""
        config = self._hub.config
        client_sends_ms, client_wants_ms = client_ms
        if client_wants_ms and config.heart_beat_send_s:
            self._heartbeat_send_s = max(client_wants_ms / 1000, config.heart_beat_send_s)
        if client_sends_ms and config.heart_beat_receive_s:
            self._heartbeat_receive_s = max(client_sends_ms / 1000, config.heart_beat_receive_s)
        if self._timer is not None:
            self._timer.cancel()
        self._tick()

    def _tick(self) -> None:
        if self._closing:
            return
        now = self._hub.clock.monotonic()
        heard_until = self._paused_at if self._unread_for else now
        config = self._hub.config
        # A client that sends on at a decent rate may take longer than one that drips.
        limit_s = config.unfinished_frame_timeout_s + self._frame_bytes / FRAME_RATE_BYTES_MIN
        error: ProtocolError | None = None
        if self._frame_since and heard_until - self._frame_since > limit_s:
            error = ProtocolError(f"a frame was begun and not finished within {limit_s:.1f} s", code="FRAME_TIMEOUT")
        # Twice the interval, as the specification advises for the error margin of timers and network.
        elif self._heartbeat_receive_s and heard_until - self._last_read > 2 * self._heartbeat_receive_s:
            error = ProtocolError("no heart-beat from the client in time", code="HEARTBEAT_TIMEOUT")
        if error is not None:
            self._too_late(error, self._tick)
            return
        self._seemed_silent = False
        lifeline = self._lifeline
        if lifeline is not None and self._received_bytes - lifeline.told >= IDLE_BYTES:
            self._tell_received(lifeline)
        if self._heartbeat_send_s and not self._out and not self._slices and not self._socket_full:
            self._put(self.protocol.heartbeat())  # type: ignore[union-attr]
        if self.client is not None:
            self.client.expire_transactions(now)
        if self._has_vanished():
            return
        intervals = (
            self._heartbeat_send_s / 2,
            self._heartbeat_receive_s,
            config.unfinished_frame_timeout_s / 2,
            config.connection_ttl_s / 4 if self._watched is not None else 0.0,
        )
        self._timer = self._hub.loop.call_later(min(s for s in intervals if s), self._tick)

    def _has_vanished(self) -> bool:
        """True when the client's host does not answer any more. The connection is then closed."""
        ttl_s = self._hub.config.connection_ttl_s
        if self._watched is None or not ttl_s or (self._heartbeat_receive_s and not self._paused_at):
            return False
        if not liveness.vanished(self._watched, ttl_s):
            return False
        _log.info(
            "connection closed: the client's host does not answer",
            connection=self.number,
            peer=self.peer_name,
            connectionTtl=ttl_s,
        )
        if not self._lose("the client's host does not answer"):
            self.abort()
        return True

    def _lose(self, why: str) -> bool:  # noqa: ARG002
        """The socket does not lead to the client any more. False: the connection ends with it."""
        return False
