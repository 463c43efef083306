"""Peer: one client, and all that is kept for it. Bytes to commands to session, deliveries and receipts to bytes.

It keeps order and bounds. Output is gathered and written once a turn. A client that does not read gets no deliveries
beyond `consumerBufferSize`, and of a large body one slice after the other as the socket takes them; when answers to its
commands exceed that size as well, the client is not read until it reads. An ended peer holds on to nothing, and nothing
forms a cycle with it: reference counting alone frees it.

A peer has one `Socket`, and may outlive it. One with a lifeline counts what it received, tells the client so, and keeps
copies of what it wrote. When its socket breaks it is parked (`amq.transports.parking`) with its codec and half a frame,
its sessions and its output. Its client comes back on the socket of a peer that has just logged in: the older peer takes
that socket over, and the newer one is gone. Invariants: each byte of the two streams has one effect, as both sides
count what they received and say again what the other lacks; a parked peer ends when its time is over, at the latest.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import structlog

from amq.broker.recipient import QueueConsumer
from amq.broker.sessions.connection import LOOK_AFTER
from amq.broker.sessions.links import Client
from amq.broker.sessions.traffic import Traffic
from amq.core.errors import AccessError, AmqError, ProtocolError
from amq.core.message import LARGE_BODY_BYTES, CostlyError, Message, MessageBatch
from amq.journal.reader import RecordRun
from amq.protocols.codec import Codec, RunWriter, StepWriter
from amq.protocols.commands import (
    Command,
    Connect,
    Failure,
    LoginStep,
    Reattach,
    Reattachable,
    Scope,
    Send,
    SendMany,
    SendRun,
    Subscribe,
)
from amq.security.login import Claim, Exchange, Login
from amq.transports.authenticating import Authenticating
from amq.transports.hub import Codecs, Hub, ServedConnection
from amq.transports.parking import Lifeline
from amq.transports.refusals import Refusals
from amq.transports.shares import FRAMES_MAX
from amq.transports.socket import LOGIN, OUTPUT, SILENT, STALLED, THROTTLED, WORK, Socket, Stream
from amq.transports.translating import Later
from amq.transports.window import IDLE_BYTES

SLICE_BYTES = 256 << 10  # of a large body
LINGER_S = 5.0  # how long a closing connection may take to read its last frames
LOGIN_LOOK_S = 60.0  # so often the wall clock is asked whether a login has ended
PARKED_TICK_S = 1.0  # so often the transactions of a client that is not there are looked at
NOT_PERMITTED = "NOT_PERMITTED"
_log = structlog.get_logger("amq.connection")


class Peer:
    """Implements `amq.broker.recipient.Recipient`, and `amq.transports.socket.SocketOwner`."""

    def __init__(self, hub: Hub[Peer], number: int, codecs: Codecs) -> None:
        self._hub = hub
        self._codecs = codecs
        self.number = number
        self._owner = f"{hub.epoch}-{number}."  # the names of our temporary destinations begin so
        self.user = ""
        self.client_id = ""
        self.peer_name = self.peer_address = ""  # of its latest socket
        self.socket: Socket | None = None  # None = it is parked, or has ended
        self.codec: Codec | None = None
        self.client: ServedConnection | None = None  # from the login on
        self._first = b""
        # Commands that came while the login is checked, or that are left when the share of the connection is used up.
        self._held: list[Command] = []
        self._login: asyncio.Task[None] | None = None
        self._authenticating: Authenticating | None = None  # in several steps, which are not all done
        self._out: list[bytes] = []
        self.output_bytes = 0
        self._slices: deque[bytes | memoryview] = deque()  # a large body and what follows it: before all of `_out`
        self._lent_bytes = 0  # memory of large bodies that is ours until they are written
        self._later: Later | None = None  # deliveries that a thread makes ready
        self._holds_back = False  # the session learned that there is no room for deliveries
        self._output_bytes_max = hub.config.consumer_buffer_size_bytes
        self.is_closing = False
        self._login_ends_at_s = math.inf  # wall time
        self._login_end: asyncio.TimerHandle | None = None
        self._unread_for: set[str] = set()  # why it is not read, whatever its socket
        self._is_patient = False  # it may log in when it likes, as long as it shows that it is there
        self._is_behind = False  # it has still to learn where the group is
        self.frame_bytes = 0  # of a frame that is not complete
        self._throttled: asyncio.TimerHandle | None = None
        self._received_bytes = 0  # ever
        self._traffic = Traffic()
        self._lifeline: Lifeline | None = None
        self._parked_until_s = 0.0  # monotonic
        self._parked: asyncio.TimerHandle | None = None
        self._refusals = Refusals()
        self._again: list[bytes] = []  # the client lacks it: it goes out before everything else

    # -- its socket ---------------------------------------------------------------------------------------------------

    def attach(self, socket: Socket) -> None:
        """From now on `socket` is its own."""
        self.socket, socket.peer = socket, self

    @property
    def has_shown_login(self) -> bool:
        """True while it is up to the broker to go on with the login of this client, and from the login on."""
        steps = self._authenticating
        return self._login is not None and (steps is None or not steps.waits)

    def arrived(self) -> None:
        hub, socket = self._hub, self.socket
        assert socket is not None
        self.peer_name, self.peer_address = socket.name, socket.address
        try:
            if not hub.opened(self):
                told = f"the broker has {hub.places.maximum()} connections already"
                raise hub.door.too_many("maxConnections", told, "close some, or use one for several sessions")
            if not socket.has_arrived:
                hub.door.arrive(self.peer_address)
            hub.door.enter(self.number, self.peer_address)
        except AccessError as error:
            self._refuse(error)

    def receive(self, data: bytes, now_s: float) -> None:
        self._received_bytes += len(data)
        codec, hub = self.codec, self._hub
        if codec is None:
            codec = self._detect(data)
            if codec is None:
                return
            data, self._first = self._first, b""
        turn = hub.turn
        turn.talkers.append(self.number)
        if not turn.is_due:
            turn.wake()
        if self._held or codec.has_more:  # it came before reading stopped: what is left comes first
            self.frame_bytes += len(data)
            codec.receive(data, 0)
            return
        commands = codec.receive(data, FRAMES_MAX)
        if codec.unsaid:
            self._say(codec)
        if self._lifeline is not None:
            self._count(self._lifeline)
        client, socket = self.client, self.socket
        if client is None or socket is None or codec.has_more or len(commands) > LOOK_AFTER // 4:
            self._work(commands, len(data), hub.turn.shares.until_s(now_s))
            return
        if codec.pending:
            if commands or not socket.frame_since_s:
                socket.frame_since_s, self.frame_bytes = now_s, 0
            self.frame_bytes += len(data)
        else:
            socket.frame_since_s = 0.0
        if commands:
            client.handle(commands)
        config = hub.config
        if config.throttle_messages or config.throttle_size_bytes:
            self._throttle(len(data), commands)

    def _detect(self, data: bytes) -> Codec | None:
        self._first += data
        try:
            self.codec = self._codecs.codec(self._first, self._owner)
        except ProtocolError as error:
            self._refuse(error)
            return None
        return self.codec

    def _work(self, commands: list[Command], size: int, until_s: float) -> None:
        """Carry out `commands` and what else has been received, until `until_s`; the rest waits, and the client is not
        read meanwhile. `size` = of the bytes that were just read."""
        codec, hub = self.codec, self._hub
        assert codec is not None
        hub.turn.wake()
        if size:
            self.frame_bytes = size if commands else self.frame_bytes + size
        read_bytes, is_new, completed = size, size > 0, False
        while True:
            completed = completed or bool(commands)
            client, config = self.client, hub.config
            if client is None:
                if commands:
                    self._held = commands
                    steps = self._authenticating
                    if self._login is None:
                        self._unread(LOGIN)
                        self._login = hub.loop.create_task(self._log_in())
                    elif steps is not None and steps.waits:
                        self._unread(LOGIN)
                        steps.answer(self._held.pop(0))
                    break
            else:
                if is_new and (config.throttle_messages or config.throttle_size_bytes):
                    self._throttle(read_bytes, commands)
                read_bytes, is_new = 0, True
                if commands:
                    self._held = client.handle(commands, until_s=until_s)
            if self.is_closing or not (self._held or codec.has_more):
                break
            if self._held or hub.clock.monotonic() >= until_s:
                self._time_frame(False, anew=True)
                self._unread(WORK)
                hub.turn.shares.wait(self)
                return
            commands = codec.receive(b"", FRAMES_MAX)
            if codec.unsaid:
                self._say(codec)
            if self._lifeline is not None:
                self._count(self._lifeline)
        self._read_for(WORK)
        self._time_frame(codec.pending, anew=completed)

    def _time_frame(self, pending: bool, anew: bool) -> None:
        """A frame that is not complete has so long to become so. `anew`: it has begun with what was read last."""
        socket = self.socket
        if socket is not None and not pending:
            socket.frame_since_s = 0.0
        elif socket is not None and (anew or not socket.frame_since_s):
            socket.frame_since_s = socket.last_read_s

    def go_on(self, share_s: float) -> float:
        """The share of this connection in a later round: see `amq.transports.shares`."""
        now_s = self._hub.clock.monotonic
        until_s = now_s() + share_s
        commands, self._held = self._held, []
        self._work(commands, 0, until_s)
        return until_s - now_s()

    def _throttle(self, size: int, commands: list[Command]) -> None:
        """Read on only when the user may send more."""
        runs = sum(len(each.bodies) for each in commands if isinstance(each, SendMany | SendRun))
        sends = runs + sum(isinstance(each, Send) for each in commands)
        wait_s = self._hub.door.wait_s(self.user, sends, size)
        if wait_s and not self.is_closing:
            self._unread(THROTTLED)
            if self._throttled is not None:
                self._throttled.cancel()
            self._throttled = self._hub.loop.call_later(wait_s, self._read_for, THROTTLED)

    def _say(self, codec: Codec) -> None:
        """The codec has something to say of itself. A client that promises to be heard may log in late."""
        self._put(codec.unsaid)
        codec.unsaid = b""
        beats_ms, is_stranger = codec.beats_ms, self.client is None and self._login is None
        if beats_ms is not None and beats_ms[1] and is_stranger and not self._is_patient and self.socket is not None:
            self._is_patient = True
            self.socket.agree(beats_ms)

    def _unread(self, reason: str) -> None:
        """Do not read the client as long as there is `reason`, also on its next socket."""
        if self.is_closing:
            return
        self._unread_for.add(reason)
        if self.socket is not None:
            self.socket.unread(reason)

    def _read_for(self, reason: str) -> None:
        """`reason` is over."""
        self._unread_for.discard(reason)
        if self.socket is not None:
            self.socket.read_for(reason)

    def pause_reading(self) -> None:
        self._unread(STALLED)

    def resume_reading(self) -> None:
        self._read_for(STALLED)

    def lost(self, exc: Exception | None) -> None:
        self.socket = None
        if not self._park(exc):
            self._end(exc)

    def _end(self, exc: Exception | None) -> None:
        """Nothing of it is left."""
        self.is_closing = True
        for timer in (self._parked, self._throttled):
            if timer is not None:
                timer.cancel()
        self._end_at(math.inf)
        if self._login is not None and not self._login.done():
            self._login.cancel()
        self._login = None  # it refers to this
        if self._authenticating is not None:
            self._authenticating.close()
            self._authenticating = None
        if self.client is not None:
            self.client.close()
            self.client = None  # it refers to this
        if self.codec is not None:  # it may be asked for a receipt yet, and has buffered what came of a frame
            self.codec.close()
        self._held.clear()
        self._hub.turn.shares.forget(self)
        self._first = b""
        self._forget_output()
        self._hub.closed(self)
        self._hub.door.leave(self.number)
        if self._lifeline is not None:
            self._hub.parking.forget(self, self._lifeline)
            self._lifeline = None
        _log.debug("connection closed", connection=self.number, peer=self.peer_name, error=str(exc) if exc else None)

    def resume(self) -> None:
        if self._slices:
            self._hub.turn.unsent[self] = None
            self._hub.turn.wake()
        else:
            self._caught_up()

    def _caught_up(self) -> None:
        """The client has read (nearly) all that was written."""
        socket = self.socket
        if socket is not None and socket.behind_bytes:
            socket.behind_bytes = 0
            socket.read_for(OUTPUT)
        self._let_go_on()
        if self._is_behind:
            self.tell_brokers()

    def hold_back(self) -> None:
        if self.client is not None:
            self._holds_back = True
            self.client.set_writable(False)

    def _let_go_on(self) -> None:
        """There is room for deliveries again, unless a thread makes some ready that come before."""
        if self._later:
            return
        self._holds_back = False
        if self.client is not None and not self.is_closing:
            self.client.set_writable(True)

    # -- what the broker says -----------------------------------------------------------------------------------------

    def subscribed(self, command: Subscribe, session: int) -> Any:
        assert self.codec is not None
        return self.codec.subscription(command, session)

    def deliver(self, subscription: QueueConsumer, message: Message, redelivered: int) -> None:
        self._traffic.delivered += 1
        if self._later:  # given out before the client was held back: it waits behind that
            self._deliver_later(subscription, redelivered, message)
            return
        try:
            if len(message.body) > LARGE_BODY_BYTES:
                self._deliver_large(subscription, message, redelivered)
                return
            if redelivered:
                message = self._hub.shown(subscription.queue, message)
            frame = self.codec.delivery(subscription.wire, message, redelivered)  # type: ignore[union-attr]
        except CostlyError:
            self._deliver_later(subscription, redelivered, message)
            return
        out = self._out
        if not out:
            self._hub.turn.unsent[self] = None
        out.append(frame)
        self.output_bytes += len(frame)
        if self.output_bytes > self._output_bytes_max:
            self.hold_back()

    def deliver_all(self, subscription: QueueConsumer, messages: Sequence[Message]) -> None:
        self._traffic.delivered += len(messages)
        count = 0
        if not self._later:
            data, count = self.codec.deliveries(subscription.wire, messages)  # type: ignore[union-attr]
            if count:
                self._gather(data)
        if count < len(messages):  # the next one takes a thread, and those behind it wait for that
            self._deliver_later(subscription, 0, *messages[count:])

    def deliver_batch(self, subscription: QueueConsumer, batch: MessageBatch) -> None:
        self._traffic.delivered += len(batch.messages)
        try:
            frames = self.codec.batch(subscription.wire, batch)  # type: ignore[union-attr]
        except CostlyError:
            self._deliver_later(subscription, 0, *batch.messages)
            return
        self._gather(frames)

    def deliver_run(
        self,
        subscription: QueueConsumer,
        destination: str,
        run: RecordRun,
        seq: int,
        redelivered: Sequence[tuple[int, int]],
    ) -> None:
        self._traffic.delivered += len(run.sizes)
        writer: RunWriter = subscription.wire
        self._gather(writer.run(destination, run.data, run.sizes, seq, redelivered))

    def _gather(self, data: bytes) -> None:
        if not self._out:
            self._hub.turn.unsent[self] = None
        self._out.append(data)
        self.output_bytes += len(data)
        if self.output_bytes > self._output_bytes_max:
            self.hold_back()

    def _deliver_large(self, subscription: QueueConsumer, message: Message, redelivered: int) -> None:
        """The body is not copied; where the disk has it too it is in memory for this socket alone, until written."""
        told = self._hub.shown(subscription.queue, message) if redelivered else message
        pieces = self.codec.large_delivery(subscription.wire, told, redelivered)  # type: ignore[union-attr]
        self._lent_bytes += self._hub.lend(subscription.queue, message)
        self._slice(pieces)

    def _deliver_later(self, subscription: QueueConsumer, redelivered: int, *messages: Message) -> None:
        """A thread makes them ready; whatever else is for this client waits."""
        if self._later is None:
            self._later = Later(self._hub, self._slice)
        for message in messages:
            self._later.add(self.codec, subscription, message, redelivered)  # type: ignore[arg-type]
        self.hold_back()

    def _slice(self, pieces: Iterable[bytes]) -> None:
        """They are written as the socket takes them, behind all that is there."""
        self._slices += self._out
        self._out, self.output_bytes = [], 0
        for piece in pieces:
            view = memoryview(piece)
            self._slices += [view[start : start + SLICE_BYTES] for start in range(0, len(view), SLICE_BYTES)]
        self._hub.turn.unsent[self] = None
        self.hold_back()

    def browsed(self, subscription: QueueConsumer) -> None:
        self._put(self.codec.end_of_browse(subscription.wire))  # type: ignore[union-attr]

    def confirm(self, receipt: object, outcome: str = "") -> None:
        data = self.codec.receipt(receipt, outcome)  # type: ignore[union-attr]
        out = self._out  # as `_put`, for each message of a producer with receipts: two calls less
        if not out:
            turn = self._hub.turn
            turn.unsent[self] = None
            if not turn.is_due:
                turn.wake()
        out.append(data)
        self.output_bytes += len(data)

    def confirm_all(self, receipts: Sequence[object]) -> None:
        self._put(self.codec.receipts(receipts))  # type: ignore[union-attr]

    def tell_brokers(self) -> None:
        """The addresses of the group have changed. A client that does not read learns when it has read."""
        if self.is_closing or self.client is None or self.codec is None:
            return
        socket = self.socket
        self._is_behind = socket is not None and bool(socket.is_full or self._slices or socket.behind_bytes)
        if not self._is_behind and (data := self.codec.brokers(self._brokers())):
            self._put(data)

    def _brokers(self) -> Sequence[str]:
        socket = self.socket
        return () if socket is None else self._hub.brokers(socket.is_loopback, socket.is_tls)

    def fail(self, failure: Failure) -> None:
        """Say why, and close unless the codec survives it."""
        if self.is_closing:
            return
        error, codec = failure.error, self.codec
        if not isinstance(error, AmqError):
            _log.error("internal error", connection=self.number, exc_info=error)
        if error.__class__ is AccessError and error.code == NOT_PERMITTED:
            self._hub.door.denied(self.user, self.peer_name, error)
        ends = codec is None or failure.scope not in codec.survives
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
        if codec is not None:
            self._put(codec.error(failure))
        if not ends:
            too_many = self._refusals.one_more(getattr(error, "code", ""), self._hub.clock.monotonic())
            if too_many is not None:
                self._refuse(too_many)
        else:
            if self.client is not None:
                self.client.close()
            stays_s = 0.0
            if refusal is not None and codec is not None and codec.returns:
                stays_s = self._hub.door.keep(self.number, refusal)
            self._close(stays_s)

    def _refuse(self, error: Exception, receipt: object = None) -> None:
        """The connection cannot go on. `receipt` = the token of the command for which."""
        self.codec = self.codec or self._codecs.answering(self._owner)
        self.fail(Failure(error, Scope.CONNECTION, receipt))

    def close(self) -> None:
        """Send what is pending, then close; the client may take `LINGER_S` to read it and close too. A client that was
        refused may be held back before that, until the next call."""
        self._close(0.0)

    def _close(self, stays_s: float) -> None:
        """`stays_s` = the socket is open so long after a refusal."""
        socket = self.socket
        if socket is None:
            if not self.is_closing:
                self._end(None)
            return
        if self.is_closing and not socket.stays_s:
            return
        self.is_closing = True
        socket.stays_s = stays_s
        if self.codec is not None:
            self.codec.close()
        self._held.clear()
        self._hub.turn.shares.forget(self)
        self._hub.turn.unsent[self] = None
        self._hub.turn.wake()
        socket.close_in(stays_s or LINGER_S, self.close if stays_s else self.abort)

    def abort(self) -> None:
        """Close at once; what is pending is thrown away."""
        socket = self.socket
        if socket is None:
            if not self.is_closing:
                self._end(None)
            return
        self.is_closing = True
        self._forget_output()
        socket.abort()

    def cut(self) -> None:
        """Shut the socket down from another thread; the event loop notices when it can."""
        socket = self.socket
        if socket is not None:
            socket.cut()

    def send_out(self, now: bool = False) -> None:
        """Write what gathered in this turn, in one piece; of large bodies, and what is behind them, as much as the
        socket takes. `now`: before the turn goes on. Called by the turn, when the lease is valid."""
        socket, out, lifeline = self.socket, self._out, self._lifeline
        stream = socket.stream if socket is not None else None
        if socket is None or stream is None or stream.is_closing() or socket.is_over:
            self._leave_output()
            return
        if self._again:
            self._repeat(socket, stream)
        if out or self._slices:
            if socket.is_full or self._slices:
                socket.behind_bytes += self.output_bytes
                if socket.behind_bytes > self._output_bytes_max and not self.is_closing:
                    socket.unread(OUTPUT)
            self._out, self.output_bytes = [], 0
            if self._slices:
                self._slices += out
                self._write_slices(socket, stream)
            else:
                data = b"".join(out) if len(out) > 1 else out[0]
                if lifeline is not None:
                    lifeline.sent(data)
                (stream.write_now if now else stream.write)(data)
            if not socket.is_full and not self._slices:
                if socket.behind_bytes:
                    self._caught_up()
                elif self._holds_back:
                    self._let_go_on()
        if self.is_closing and not self._slices and not socket.stays_s:
            socket.finish()

    def _write_slices(self, socket: Socket, stream: Stream) -> None:
        slices = self._slices
        while slices and not socket.is_full:
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
        """There is no socket to write to. The next one will have it, where there may be one."""
        lifeline = self._lifeline
        if lifeline is None or self.is_closing:
            self._forget_output()
            return
        for piece in self._slices:
            lifeline.sent(bytes(piece))
        self._slices.clear()
        self._return_memory()
        if self._out:
            lifeline.sent(b"".join(self._out))
            self._out, self.output_bytes = [], 0

    def _forget_output(self) -> None:
        self._out.clear()
        self._again.clear()
        self._slices.clear()
        self._return_memory()
        if self._later is not None:
            self._later.close()
            self._later = None  # it refers to this

    def _put(self, data: bytes) -> None:
        if not self._out:
            self._hub.turn.unsent[self] = None
            self._hub.turn.wake()
        self._out.append(data)
        self.output_bytes += len(data)

    # -- the login ----------------------------------------------------------------------------------------------------

    async def _log_in(self) -> None:
        """Check the login that the first command brings or begins, then let the rest in."""
        hub, codec, socket = self._hub, self.codec, self.socket
        if not self._held or codec is None or socket is None:  # it was closed before this began
            return
        command = self._held.pop(0)
        steps = self._authenticating
        shown: Connect | Exchange
        if isinstance(command, Connect):
            shown = command
        elif isinstance(command, LoginStep) and steps is None:
            self._authenticating = shown = steps = Authenticating(command, self._pose)
        else:
            self._refuse(getattr(command, "error", ProtocolError("log in before anything else")), command.receipt)
            return
        self._unread(LOGIN)
        try:
            proven = steps.proven if steps is not None else None
            login = proven if proven is not None else await self._check(shown, socket)
        except AmqError as error:
            hub.door.refused(shown.login, self.peer_address, self.peer_name, error)
            self._refuse(error, command.receipt)
            return
        finally:
            self._read_for(LOGIN)
        if self.is_closing:  # it took longer than a client may: the client got the error
            return
        if not isinstance(command, Connect):
            assert steps is not None
            steps.proven, self._login = login, None  # and a Connect is due
            self._pose(steps.last, is_last=True)
            return
        self._authenticating = None
        self.client_id = command.client_id
        hub.door.logged_in(self.user, self.client_id, self.peer_name, login.shown)
        self._login_ends_at_s = login.ends_at_s
        client, asked = Client(login.user, self.client_id, command.instance, command.exclusive), command.reattach
        try:
            if asked is not None and self._is_back(client, asked):
                return
            served = hub.admit(self, self._owner, client, codec.name)
            waiting = hub.waits_for(served)
            if waiting is not None and not await self._let_in(served, waiting):
                return
        except AmqError as error:  # where the store is out of reach, the client's library tries again, unanswered
            self._refuse(error, command.receipt if isinstance(error, AccessError) else None)
            return
        self.client = served
        self._traffic = self.client.traffic
        if asked is not None:
            self._lifeline = hub.parking.grant(self, asked)
        self._put(self._connected(codec, None))
        socket.agree(codec.beats_ms or (0, 0))
        self._end_at(self._login_ends_at_s)
        held, self._held = self._held, []
        if held or codec.has_more:
            self._work(held, 0, hub.turn.shares.until_s(hub.clock.monotonic()))

    async def _let_in(self, served: ServedConnection, waiting: Awaitable[None]) -> bool:
        """Wait for that; the client is not read meanwhile. False = it has gone. Raises AmqError."""
        self._unread(LOGIN)
        try:
            await waiting
        except BaseException:
            served.close()
            raise
        finally:
            self._read_for(LOGIN)
        if self.is_closing:
            served.close()
            return False
        return True

    async def _check(self, shown: Connect | Exchange, socket: Socket) -> Login:
        """Let the client in that logs in so. Raises AmqError."""
        hub = self._hub
        address, name = self.peer_address, self.peer_name

        def missed(error: AmqError) -> None:
            hub.door.refused(shown.login, address, name, error)

        certificate = socket.stream.certificate if socket.stream is not None else None
        check = partial(hub.door.check, address)
        claim = Claim("", "", socket.is_loopback, certificate or None, check, missed)
        if isinstance(shown, Connect):
            claim = replace(claim, login=shown.login, passcode=shown.passcode)
        else:
            claim = replace(claim, exchange=shown)
        check()
        login = await hub.authenticate(claim)
        self.user = login.user.name
        if not self.is_closing:
            hub.door.let_in(self.number, self.user)
        return login

    def _pose(self, challenge: bytes, is_last: bool = False) -> None:
        """Answer a step of a login: the next one is up to the client, which may have sent it ahead."""
        codec, socket = self.codec, self.socket
        if codec is None or socket is None or self.is_closing:
            return
        self._put(cast(StepWriter, codec).challenge(challenge, is_last))
        self._read_for(LOGIN)
        if not self._is_patient:
            socket.await_login()
        held, self._held = self._held, []
        if held or codec.has_more:
            self._work(held, 0, self._hub.turn.shares.until_s(self._hub.clock.monotonic()))

    def _connected(self, codec: Codec, received: int | None) -> bytes:
        lifeline, granted = self._lifeline, None
        if lifeline is not None:
            window_ms, window_bytes = round(lifeline.window_s * 1000), lifeline.window.bytes_max
            granted = Reattachable(lifeline.token, window_ms, window_bytes, received)
        return codec.connected(str(self.number), self._brokers(), granted)

    def _end_at(self, ends_at_s: float) -> None:
        """The login counts until then. Clocks are set, so a look comes at least each `LOGIN_LOOK_S`."""
        if self._login_end is not None:
            self._login_end.cancel()
            self._login_end = None
        self._login_ends_at_s = ends_at_s
        if ends_at_s == math.inf or self.is_closing:
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

    # -- time ---------------------------------------------------------------------------------------------------------

    def beat(self, now_s: float, has_to_speak: bool) -> None:
        socket, lifeline, codec = self.socket, self._lifeline, self.codec
        if lifeline is not None and self._received_bytes - lifeline.told >= IDLE_BYTES:
            self._tell_received(lifeline)
        is_silent = not self._out and not self._slices and socket is not None and not socket.is_full
        if has_to_speak and is_silent and codec is not None:
            self._put(codec.heartbeat())
        if self.client is not None:
            self.client.expire_transactions(now_s)

    def too_late(self, error: ProtocolError) -> None:
        if error.code != SILENT or not self._lose(str(error)):
            self._refuse(error)

    def has_vanished(self, why: str) -> None:
        if not self._lose(why):
            self.abort()

    def _lose(self, why: str) -> bool:
        """The socket does not lead to the client any more: wait for the client on its next one. False where it may not
        come back."""
        socket = self.socket
        if self._lifeline is None or self.is_closing or socket is None:
            return False
        socket.leave()
        self.lost(ConnectionError(why))
        return True

    # -- what both sides count, for a client that may come back on another socket --------------------------------------

    def _count(self, lifeline: Lifeline) -> None:
        """Something was read."""
        confirmed = self.codec.confirmed  # type: ignore[union-attr]
        if confirmed != lifeline.confirmed:
            lifeline.confirm(confirmed)
        if self._received_bytes - lifeline.told >= lifeline.step:
            self._tell_received(lifeline)

    def _tell_received(self, lifeline: Lifeline) -> None:
        lifeline.told = self._received_bytes
        self._put(self.codec.received(lifeline.told))  # type: ignore[union-attr]

    def _repeat(self, socket: Socket, stream: Stream) -> None:
        """Say what the client lacks: it was sent before, and is counted already."""
        again, self._again = self._again, []
        stream.write(b"".join(again))
        if not self._out and not self._slices and not socket.is_full:
            self._let_go_on()

    # -- the socket is gone, and the client comes back -----------------------------------------------------------------

    def _park(self, exc: Exception | None) -> bool:
        """Wait for the client. False where it cannot come back, or need not."""
        lifeline, client, codec, hub = self._lifeline, self.client, self.codec, self._hub
        if lifeline is None or client is None or codec is None or self.is_closing or client.is_closed:
            return False
        if hub.parking.is_closed:
            return False
        window_bytes = lifeline.window.bytes_max
        unfinished_bytes = self.frame_bytes if codec.pending else 0
        window_s = min(lifeline.window_s, hub.config.reconnect_window_s)
        if not window_s or max(unfinished_bytes, sum(map(len, self._slices))) > window_bytes:
            return False
        self._parked_until_s = hub.clock.monotonic() + window_s
        client.lose()
        self._again.clear()  # the next socket gets it anew
        self._leave_output()
        hub.closed(self)  # it counts no more among those that are there
        hub.door.leave(self.number)
        hub.parking.park(self)
        _log.info(
            "connection lost: kept for its client",
            connection=self.number,
            peer=self.peer_name,
            seconds=window_s,
            error=str(exc) if exc else None,
        )
        self._tick_parked()
        return True

    def _tick_parked(self) -> None:
        now_s = self._hub.clock.monotonic()
        if now_s >= self._parked_until_s:
            _log.info("connection ended: its client did not come back in time", connection=self.number)
            self._end(None)
            return
        assert self.client is not None
        self.client.expire_transactions(now_s)
        if self.client is not None:  # else that was its end
            wait_s = min(self._parked_until_s - now_s, PARKED_TICK_S)
            self._parked = self._hub.loop.call_later(wait_s, self._tick_parked)

    def _is_back(self, client: Client, asked: Reattach) -> bool:
        """Our client has logged in, and wants its older peer back. True: that has our socket, and this one is gone; or
        our socket broke meanwhile. False: it begins anew; whoever it is, it is not told why."""
        older = self._hub.parking.find(asked.token) if asked.token else None
        codec, socket = self.codec, self.socket
        if socket is None or socket.is_closing:
            return True
        if older is None or codec is None or self._held or codec.pending:
            return False
        if not older._may_come_back(client, asked, codec.name):
            return False
        self.is_closing = True
        self.socket = None
        self._hub.closed(self)
        self._hub.door.leave(self.number)
        older._come_back(socket, codec, asked)
        older._end_at(self._login_ends_at_s)
        codec.close()
        return True

    def _may_come_back(self, client: Client, asked: Reattach, protocol: str) -> bool:
        lifeline, ours = self._lifeline, self.client
        if lifeline is None or ours is None or self.is_closing or ours.is_closed:
            return False
        is_same = ours.client == client and self.codec is not None and self.codec.name == protocol
        return is_same and lifeline.window.covers(asked.received) and asked.repeats_from <= self._received_bytes

    def _come_back(self, socket: Socket, greeter: Codec, asked: Reattach) -> None:
        """The client is back on `socket`, where `greeter` read its login. `_may_come_back` must have been true."""
        hub, lifeline, client, codec = self._hub, self._lifeline, self.client, self.codec
        assert lifeline is not None
        assert client is not None
        assert codec is not None
        if self.socket is not None:  # the client noticed first that the older socket leads nowhere
            self.socket.leave()
            client.lose()
        if self._parked is not None:
            self._parked.cancel()
        hub.parking.unpark(self)
        self.attach(socket)
        self.peer_name, self.peer_address = socket.name, socket.address
        hub.reopened(self)
        hub.door.come_back(self.number, self.peer_address, self.user)
        for reason in self._unread_for:
            socket.unread(reason)
        self._time_frame(codec.pending, anew=True)
        self._holds_back = True  # until the client has what it lacks
        lifeline.confirm(asked.received)
        lifeline.told = self._received_bytes
        self._again = [self._connected(greeter, lifeline.told), *lifeline.window.since(asked.received)]
        self.tell_brokers()  # once more: what is repeated may hold older lists
        client.is_lost = False
        hub.turn.unsent[self] = None
        hub.turn.wake()
        socket.agree(greeter.beats_ms or (0, 0))
        _log.info("connection kept: its client is back", connection=self.number, peer=self.peer_name)
