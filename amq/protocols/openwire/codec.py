"""OpenWireCodec: the broker's side of an OpenWire connection. Bytes in, commands out; replies in, bytes out.

Invariants: `receive` never raises and, once it has yielded `Malformed` or `Disconnect`, yields nothing more; each
command whose client waits for a response gets one; a one-way command that fails is told as a ConnectionError.

docs/openwire.md says how it differs from ActiveMQ.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final

from amq.core.destination import told
from amq.core.errors import AmqError, CommandError, ProtocolError
from amq.core.message import CostlyError, Message, MessageBatch
from amq.core.remembered import Remembered
from amq.protocols.codec import ALL_FRAMES, RARE_FRAMES
from amq.protocols.commands import (
    Browse,
    CloseProducer,
    CloseSession,
    Command,
    Connect,
    Credit,
    DeleteDestination,
    Disconnect,
    Failure,
    Filter,
    Flow,
    InSession,
    Invalid,
    Leave,
    MakeTemporary,
    Malformed,
    Mode,
    Nothing,
    OpenProducer,
    OpenSession,
    Outcome,
    Reattachable,
    RemoveTemporary,
    Scope,
    Send,
    SendMany,
    SendRun,
    SendToMany,
    Settle,
    Subscribe,
    Unsubscribe,
)
from amq.protocols.openwire import table
from amq.protocols.openwire.answers import (
    Answer,
    Committed,
    EndAnswer,
    EndedXa,
    Opening,
    PreparedXa,
    Pulled,
    RecoveredXa,
    Windowed,
    answer_to,
    encoded,
    nothing_for,
    receipt_of,
)
from amq.protocols.openwire.consumers import (
    DELIVERED,
    EXPIRED,
    INDIVIDUAL,
    POISON,
    REDELIVERED,
    STANDARD,
    Ack,
    Consumer,
    late,
    read_ack,
    read_single,
)
from amq.protocols.openwire.failures import throwable
from amq.protocols.openwire.frames import Frames, TooLarge
from amq.protocols.openwire.hello import HELLO_BYTES_MAX, Hello, hello, read_hello
from amq.protocols.openwire.ids import NO_IDENTITY, Identity, MessageIds
from amq.protocols.openwire.messages import (
    GROUP_ID,
    GROUP_SEQ,
    MESSAGE_TYPES,
    PIECES,
    PROPERTIES_MAX,
    dispatch_as_they_came,
    head_of,
    message_of,
    producer_text_in,
    read_message,
    write,
)
from amq.protocols.openwire.names import destinations, full_names, nested_destination, own_url, sources
from amq.protocols.openwire.producers import Producer
from amq.protocols.openwire.repeated import Sends, acknowledged, sends
from amq.protocols.openwire.table import Structure, decode, frame, nested, structure
from amq.protocols.openwire.transactions import BEGIN, END, FORGET, PREPARE, RECOVER, Step, Transactions, read_local
from amq.protocols.openwire.wire import INT, FieldReader, storable

STRANGER_BYTES_MAX: Final = 64 << 10  # of a frame before the login
HEADERS_BYTES_MAX: Final = 1 << 20  # of a frame, beside what a body may have
CONSUMERS_MAX: Final = 10_000  # of one connection
PRODUCERS_MAX: Final = 10_000
BEAT_MS_MIN: Final = 1000  # a client must not make the broker speak more often
_NAMES_BYTES_MAX: Final = 256 << 10  # of names that are remembered, for each connection
_TEMPORARY: Final = (table.TEMP_QUEUE, table.TEMP_TOPIC)
_WINDOWED_BYTES: Final = 1024  # that a client counts for each message, beside content and properties
_LONE_BYTES: Final = 14  # any message or acknowledgement has more
_RESPONSE: Final = INT.pack(10) + bytes((table.RESPONSE,)) + b"\0\0\0\0\0"
_ACK: Final = bytes((table.MESSAGE_ACK,))
_ABOUT: Final = frozenset({"UNKNOWN_DELIVERY", "UNKNOWN_SUBSCRIPTION"})  # late words about what has ended


class OpenWireCodec:
    """Implements `amq.protocols.codec.Codec`. `body_bytes_max` = of a message."""

    name = "openwire"
    survives: ClassVar[frozenset[Scope]] = frozenset(Scope) - {Scope.CONNECTION}
    returns: ClassVar[bool] = True  # with a failover URL
    confirmed = 0
    has_more = pending = False

    def __init__(
        self,
        body_bytes_max: int = 100 << 20,
        identity: Identity | None = None,
        server_name: str = "amq",
        rebalances: bool = False,
        properties_max: int = PROPERTIES_MAX,
    ) -> None:
        self._properties_max = properties_max
        self.unsaid = b""
        self.beats_ms: tuple[int, int] | None = None
        self._identity = identity = identity or NO_IDENTITY
        self._frame_bytes_max = body_bytes_max + HEADERS_BYTES_MAX
        self._server_name = server_name
        self._rebalances = rebalances
        self._frames = Frames(HELLO_BYTES_MAX)
        self._lone_bytes_max = 0  # of a frame with its size that `_receive_lone` may read; 0 = none before the login
        self._hello: Hello | None = None
        self._version = table.VERSION_MAX
        self._is_closed = False
        self._session = 0  # of the commands that are being read
        self._connect_id = 0
        self._connection: Structure | None = None
        self._tolerates_faults = False  # the client sends again what it has no answer for
        self._ids = MessageIds(identity)
        self._sessions: dict[int, int] = {}  # the client's number → the broker's
        self._session_count = 0
        self._producers: dict[bytes, Producer] = {}
        self._consumers: dict[bytes, Consumer] = {}
        self._transactions = Transactions()
        self._temporaries: dict[str, None] = {}
        self._routes: Remembered[tuple[str, ...]] = Remembered(_NAMES_BYTES_MAX)  # by destination, as hex
        self._names: Remembered[bytes] = Remembered(_NAMES_BYTES_MAX)  # full name → destination as a field

    # ---- bytes → commands

    def receive(self, data: bytes, frames_max: int = ALL_FRAMES) -> list[Command]:
        """Commands completed by `data`, of about `frames_max` frames; after `Malformed` or `Disconnect` no others."""
        commands: list[Command] = []
        if self._is_closed:
            return commands
        frames, left = self._frames, frames_max
        if frames.gathers or frames.to_skip or frames.at < len(frames.data):
            frames.push(data)
        else:
            if _LONE_BYTES < len(data) <= self._lone_bytes_max and left > 0:
                lone = self._receive_lone(data)
                if lone is not None:
                    if frames.at:
                        frames.data, frames.at = b"", 0
                    return lone
            frames.data, frames.at = data, 0
        self._session = 0
        self.has_more = False
        found: bytes | None = None
        while not self._is_closed:
            if self._connection is not None and self._version >= 10:
                left = self._receive_frequent(commands, left)
                if frames.at == len(frames.data):
                    break
            if left <= 0:
                self.has_more = frames.pending
                break
            left -= RARE_FRAMES
            found = None  # what is wrong with a frame's size is not a failure of the command before it
            try:
                found = frames.next_frame()
                if found is None:
                    break
                self._receive(found, commands)
            except TooLarge as error:
                self._fail(error, error.head, commands, error.size)
            except (ValueError, AmqError) as error:
                self._fail(error, found, commands)
        self.pending = bool(frames.gathers or frames.to_skip or frames.at < len(frames.data))
        return commands

    def _receive_lone(self, data: bytes) -> list[Command] | None:
        """The commands of `data`, where that is one usual message or acknowledgement and nothing else: what the general
        path makes of it, in half the steps. None = take that. A client that waits for each answer sends such data."""
        size = len(data)
        try:
            if INT.unpack_from(data)[0] != size - 4:
                return None
            kind = data[4]
            if kind in MESSAGE_TYPES:
                to = 31 + (data[13] << 8 | data[14])  # behind the producer's id
                producer = self._producers.get(data[10:to])
                if producer is None:
                    return None
                known = producer.known
                if known.transaction or not data.startswith(known.prefix, to):
                    return None
                found = known.read(
                    data, 4, to + len(known.prefix), size, producer.text if self._tolerates_faults else ""
                )
                if found is None:
                    return None
                receipt: Any = None
                if data[9]:
                    receipt = Answer(INT.unpack_from(data, 5)[0])
                elif producer.window:
                    receipt = Windowed(producer, _WINDOWED_BYTES + len(found[0].body) + found[1])
                return [producer.enters, Send(found[0], receipt)] if producer.session else [Send(found[0], receipt)]
            if kind != table.MESSAGE_ACK or data[10] != 1 or data[12] != 1:
                return None
            at = 15 + (data[13] << 8 | data[14])  # behind the destination
            to = at + 22 + (data[at + 4] << 8 | data[at + 5])
            consumer = self._consumers.get(data[at + 1 : to])
            if consumer is None or data[at] or data[to] != STANDARD or consumer.extension or consumer.is_pulling:
                return None
            name = read_single(data, to, size)
            if name is None or consumer.in_transactions:
                return None
            receipt = None
            if data[9]:
                if INT.unpack_from(data, size - 5)[0] > 1:
                    return None
                receipt = Answer(INT.unpack_from(data, 5)[0])
            seq = consumer.held.pop(name, None)
            if seq is None:
                return None
        except (ValueError, IndexError, struct.error, AmqError):  # the general path tells what is wrong with it
            return None
        settle = Settle(seq, consumer.id, receipt)
        return [consumer.enters, settle] if consumer.session else [settle]

    def _receive_frequent(self, commands: list[Command], left: int) -> int:
        """Consume at most `left` usual messages and acknowledgements, up to the first frame that is anything else. The
        general path reads that one, also if it has an error. Returns how many of `left` remain."""
        frames, producers, consumers = self._frames, self._producers, self._consumers
        data, at, available, bytes_max = frames.data, frames.at, len(frames.data), frames.bytes_max
        try:
            while left > 0 and at + 6 < available:
                left -= 1
                start = at + 4
                end = start + INT.unpack_from(data, at)[0]
                if not start + 10 < end <= available or end - start > bytes_max:
                    break
                kind = data[start]
                if kind in MESSAGE_TYPES:
                    to = start + 27 + (data[start + 9] << 8 | data[start + 10])  # behind the producer's id
                    producer = producers.get(data[start + 6 : to])
                    if producer is None or not data.startswith((known := producer.known).prefix, to):
                        break
                    to += len(known.prefix)
                    found = known.read(data, start, to, end, producer.text if self._tolerates_faults else "")
                    if found is None:
                        break
                    message, properties = found
                    receipt: Any = None
                    if data[start + 5]:
                        receipt = Answer(INT.unpack_from(data, start + 1)[0])
                    elif producer.window:
                        receipt = Windowed(producer, _WINDOWED_BYTES + len(message.body) + properties)
                    if known.transaction or data.startswith(data[start : start + 1], end + 4):
                        taken, end = self._send(producer, message, receipt, data, start, to, end, commands, left)
                        left -= taken
                    else:
                        if producer.session != self._session:
                            self._session = producer.session
                            commands.append(producer.enters)
                        commands.append(Send(message, receipt))
                elif kind == table.MESSAGE_ACK:
                    to = start + 11 + (data[start + 9] << 8 | data[start + 10])  # behind the destination
                    if data[start + 6] != 1 or data[start + 8] != 1 or data[to]:
                        break
                    begin, to = to + 1, to + 22 + (data[to + 4] << 8 | data[to + 5])
                    consumer = consumers.get(data[begin:to])
                    name = read_single(data, to, end) if consumer is not None else None
                    if consumer is None or name is None:
                        break
                    receipt = None
                    if data[start + 5]:
                        if name not in consumer.held or INT.unpack_from(data, end - 5)[0] > 1:
                            break
                        receipt = Answer(INT.unpack_from(data, start + 1)[0])
                    if name in consumer.held:
                        if consumer.session != self._session:
                            self._session = consumer.session
                            commands.append(consumer.enters)
                        if receipt is None and data[end + 4 : end + 5] == _ACK and left:
                            names, beyond = acknowledged(data, start, to, end, left)
                            if names and (run := consumer.settle_run([name, *names], data[to])) is not None:
                                commands.append(run)
                                left -= len(names)
                                at = beyond
                                continue
                        if data[to] == STANDARD and not (consumer.extension or consumer.is_pulling):  # as that does it
                            if consumer.in_transactions:
                                consumer.in_transactions.pop(name, None)
                            commands.append(Settle(consumer.held.pop(name), consumer.id, receipt))
                        else:
                            commands += consumer.settle_one(name, data[to], receipt)
                else:
                    break
                at = end
        except (ValueError, IndexError, struct.error, AmqError):
            pass  # not understood here: the general path reads this frame again and tells what is wrong with it
        frames.at = at
        return left

    def _send(
        self,
        producer: Producer,
        message: Message,
        receipt: Any,
        data: bytes,
        start: int,
        at: int,
        end: int,
        commands: list[Command],
        left: int,
    ) -> tuple[int, int]:
        """`message`, and at most `left` that follow it in the same form: how many these are, and where they end. It is
        in a transaction, or another one stands behind it. Raises CommandError."""
        known, session, transaction = producer.known, producer.session, ""
        if known.transaction:
            opened, steps = self._transactions.sending(known.transaction, session)
            session, transaction = opened.session, opened.name
            self._take(steps, commands)
        self._in(session, commands)
        if (
            data.startswith(data[start : start + 1], end + 4)  # else nothing follows, or something else
            and left
            and known.is_queue  # what goes to a topic is routed message by message
            and not message.duplicate_id
            and (receipt is None or not transaction)
        ):
            native = message.envelope.native.data  # type: ignore[union-attr]  # a known form is native
            more = sends(data, start, at, end, native, left, self._properties_max)
            if more.bodies:
                commands.append(_run_of(message, receipt, transaction, native, more))
                return len(more.bodies), more.end
        commands.append(Send(message, receipt, transaction))
        return 0, end

    def _fail(self, error: Exception, found: bytes | None, commands: list[Command], size: int = 0) -> None:
        """The command that begins with `found`, None = the stream itself, is wrong. A command that was understood fails
        alone. So does one whose client learns from the answer that it failed: a client with a failover URL would send
        it again on each new connection. `size` = of its frame where `found` is only the beginning."""
        error = error.with_traceback(None)
        answer = answer_to(found)
        if isinstance(error, CommandError):
            commands.append(Invalid(error, answer))
            return
        if not isinstance(error, AmqError):
            error = ProtocolError(f"a command that is none: {error}", code="FRAME_INVALID")
        if found and self._connection is not None:
            if found[0] in MESSAGE_TYPES and self._fail_message(error, found, size or len(found), commands):
                return
            if answer is not None:
                commands.append(Invalid(error, answer))
                return
        self._in(0, commands)
        commands.append(Malformed(error, answer))
        self.close()

    def _fail_message(self, error: AmqError, found: bytes, size: int, commands: list[Command]) -> bool:
        """The message that begins with `found` is not sent, nor is its transaction committed. False: the beginning does
        not say which."""
        try:
            producer_id, transaction = head_of(found)
        except ValueError:
            return False
        producer = self._producers.get(producer_id)
        receipt = answer_to(found)
        if receipt is None and producer is not None and producer.window:
            receipt = Windowed(producer, _WINDOWED_BYTES + size)
        session, name = producer.session if producer is not None else 0, ""
        if self._transactions.is_open(transaction):
            opened, steps = self._transactions.sending(transaction, session)
            session, name = opened.session, opened.name
            self._take(steps, commands)
        self._in(session, commands)
        commands.append(Invalid(error, receipt, name))
        return True

    def _receive(self, data: bytes, commands: list[Command]) -> None:
        """Raises ValueError, AmqError."""
        type = data[0]
        if self._hello is None:
            self._greet(data)
        elif type in MESSAGE_TYPES:
            self._message(data, commands)
        elif type == table.MESSAGE_ACK and self._connection is not None:
            self._acknowledge(read_ack(data, self._version), commands)
        elif (
            type == table.TRANSACTION_INFO and self._connection is not None and (local := read_local(data)) is not None
        ):
            self._transact_in(local.kind, local.key, local.id, local.command_id, local.responds, commands)
        elif type == table.RESPONSE:  # a client's own notes, that it sends along after a failover
            return
        else:
            found = decode(data, self._version)
            handler = self._HANDLERS.get(type)
            if self._connection is None and type not in _BEFORE_LOGIN:
                raise ProtocolError(f"a command of type {type} before ConnectionInfo", code="NOT_CONNECTED")
            if handler is None:
                raise ProtocolError(f"a client may not send commands of type {type}", code="COMMAND_UNKNOWN")
            handler(self, found, commands)

    def close(self) -> None:
        """Nothing is received any more: let go of what was buffered."""
        self._is_closed, self.has_more, self.pending = True, False, False
        self._frames.clear()

    def _in(self, session: int, commands: list[Command]) -> None:
        """The commands behind this are those of that session of the broker."""
        if session != self._session:
            self._session = session
            commands.append(InSession(session))

    def _take(self, steps: list[Step], commands: list[Command]) -> None:
        for session, command in steps:
            self._in(session, commands)
            commands.append(command)

    def _done(self, found: Structure, commands: list[Command]) -> None:
        """There is nothing to do but to answer."""
        receipt = receipt_of(found)
        if receipt is not None:
            commands.append(Nothing(receipt))

    # -- the connection -----------------------------------------------------------------------------------------------

    def _greet(self, data: bytes) -> None:
        self._hello = found = read_hello(data)
        self._version = found.version
        self._frames.bytes_max = STRANGER_BYTES_MAX
        identity = self._identity
        info = structure(
            table.BROKER_INFO,
            id=structure(table.BROKER_ID, value=identity.store),
            name=identity.broker,
        )
        self.unsaid += hello(self._frame_bytes_max, self._server_name) + frame(info, found.version)
        # A side that hears nothing for the whole interval gives up; the broker waits for twice what it is told.
        if found.inactivity_ms:
            self.beats_ms = max(found.inactivity_ms // 3, BEAT_MS_MIN), max(found.inactivity_ms // 2, BEAT_MS_MIN)
        else:
            self.beats_ms = 0, 0

    def _keep_alive(self, found: Structure, _commands: list[Command]) -> None:
        if found.get("response_required"):
            self.unsaid += self.heartbeat()

    def _connect(self, found: Structure, commands: list[Command]) -> None:
        if self._connection is not None:
            self._done(found, commands)
            return
        id = table.part(found.get("id"), table.CONNECTION_ID)
        if not storable(id.get("value", "")):
            raise ProtocolError("ConnectionInfo names no connection", code="FRAME_INVALID")
        command_id = found.get("command_id", 0)
        commands.append(
            Connect(
                storable(found.get("user_name", "")),
                found.get("password", ""),
                storable(found.get("client_id", "")),
                id.get("value"),
                None,
                Answer(command_id),
                exclusive=True,
            )
        )
        self._connection, self._connect_id = id, command_id
        self._tolerates_faults = self._tolerates_faults or found.get("fault_tolerant", False)
        self._ids.known_to = self._identity.newest_seq if found.get("failover_reconnect") else -1
        self._frames.bytes_max, self._frames.skips = self._frame_bytes_max, True
        if self._version >= 10:
            self._lone_bytes_max = INT.size + self._frame_bytes_max

    def _control(self, found: Structure, commands: list[Command]) -> None:
        if found.get("fault_tolerant"):
            self._tolerates_faults = True
        if self._connection is not None:
            self._done(found, commands)

    def _shut_down(self, _found: Structure, commands: list[Command]) -> None:
        self._in(0, commands)
        if self._connection is None:
            commands.append(Malformed(ProtocolError("the client left before it logged in", code="NOT_CONNECTED")))
        else:
            commands.append(Disconnect())
        self.close()

    # -- sessions, producers, temporary destinations ------------------------------------------------------------------

    def _open_session(self, found: Structure, commands: list[Command]) -> None:
        number = table.part(found.get("id"), table.SESSION_ID).get("value", 0)
        if number in self._sessions:
            self._done(found, commands)
            return
        self._session_count += 1
        self._sessions[number] = self._session_count
        self._in(0, commands)
        commands.append(OpenSession(self._session_count, Opening(found, self._sessions, number)))

    def _produce(self, found: Structure, commands: list[Command]) -> None:
        id = table.part(found.get("id"), table.PRODUCER_ID)
        if (key := nested(id)) in self._producers:
            self._done(found, commands)
            return
        if len(self._producers) >= PRODUCERS_MAX:
            raise CommandError(f"this connection has {PRODUCERS_MAX} producers: close some", code="PRODUCERS_TOO_MANY")
        destination = found.get("destination")
        names = destinations(destination) if destination is not None else ()
        session = self._sessions.get(id.get("session", 0), 0)
        producer = self._producers[key] = Producer(id, session, found.get("window", 0), self._properties_max)
        self._in(0, commands)
        commands += [OpenProducer(producer.text, name) for name in names]
        self._done(found, commands)

    def _destination(self, found: Structure, commands: list[Command]) -> None:
        destination = table.part(found.get("destination"), *table.DESTINATION_TYPES)
        names, removes = full_names(destination), bool(found.get("kind"))
        self._in(0, commands)
        if destination.type not in _TEMPORARY:
            if removes:
                commands += map(DeleteDestination, names[:-1])
                commands.append(DeleteDestination(names[-1], receipt_of(found)))
            else:  # it is there as soon as somebody uses it
                self._done(found, commands)
            return
        for name in names[:-1]:
            commands.append((RemoveTemporary if removes else MakeTemporary)(name))
        receipt = receipt_of(found) if removes else Opening(found, self._temporaries, names[-1])
        commands.append((RemoveTemporary if removes else MakeTemporary)(names[-1], receipt))
        for name in names:
            if removes:
                self._temporaries.pop(name, None)
            else:
                self._temporaries[name] = None

    def _remove_subscription(self, found: Structure, commands: list[Command]) -> None:
        self._in(0, commands)
        name = found.get("name", "")
        if not name:
            raise CommandError("RemoveSubscriptionInfo names no subscription", code="UNKNOWN_SUBSCRIPTION")
        commands.append(Unsubscribe("", receipt_of(found), name))

    def _remove(self, found: Structure, commands: list[Command]) -> None:
        id, last = table.part(found.get("id")), found.get("last_delivered", -1)
        receipt = receipt_of(found)
        if id.type == table.CONSUMER_ID:
            consumer = self._consumers.get(nested(id))
            if consumer is not None:
                self._end(consumer, last, commands, receipt)
                return
        elif id.type == table.PRODUCER_ID:
            producer = self._producers.pop(nested(id), None)
            if producer is not None:
                self._in(0, commands)
                commands.append(CloseProducer(producer.text))
        elif id.type == table.SESSION_ID:
            self._close_session(id.get("value", 0), last, commands, receipt)
            return
        elif id.type == table.CONNECTION_ID:
            self._leave(last, commands, receipt)
            return
        if receipt is not None:
            commands.append(Nothing(receipt))

    def _end(self, consumer: Consumer, last: int, commands: list[Command], receipt: object = None) -> None:
        del self._consumers[consumer.key]
        self._in(consumer.session, commands)
        commands += consumer.leave(last)
        if self._tolerates_faults:  # only such a client looks for duplicates
            self._ids.known_to = max(self._ids.known_to, consumer.newest_seen)
        commands.append(Unsubscribe(consumer.id, receipt))

    def _close_session(self, number: int, last: int, commands: list[Command], receipt: object) -> None:
        session = self._sessions.pop(number, None)
        if session is None:
            if receipt is not None:
                commands.append(Nothing(receipt))
            return
        for consumer in [each for each in self._consumers.values() if each.session == session]:
            self._end(consumer, last, commands)
        for key in [key for key, producer in self._producers.items() if producer.session == session]:
            self._in(0, commands)
            commands.append(CloseProducer(self._producers.pop(key).text))
        self._in(session, commands)
        commands.append(CloseSession(session, receipt))
        self._in(0, commands)

    def _leave(self, last: int, commands: list[Command], receipt: object) -> None:
        """The client is about to go; it closes the socket itself."""
        for number in list(self._sessions):
            self._close_session(number, last, commands, None)
        for consumer in list(self._consumers.values()):
            self._end(consumer, last, commands)
        self._in(0, commands)
        commands += map(RemoveTemporary, self._temporaries)
        self._temporaries.clear()
        commands.append(Leave(receipt))

    # -- consumers ----------------------------------------------------------------------------------------------------

    def _consume(self, found: Structure, commands: list[Command]) -> None:
        id = table.part(found.get("id"), table.CONSUMER_ID)
        key = nested(id)
        if key in self._consumers:
            self._done(found, commands)
            return
        if len(self._consumers) >= CONSUMERS_MAX:
            raise CommandError(f"this connection has {CONSUMERS_MAX} consumers: close some", code="CONSUMERS_TOO_MANY")
        destination = table.part(found.get("destination"), *table.DESTINATION_TYPES)
        named = sources(destination)
        text = f"{id.get('connection', '')}:{id.get('session', 0)}:{id.get('value', 0)}"
        prefetch, session = max(0, found.get("prefetch", 0)), self._sessions.get(id.get("session", 0), 0)
        consumer = Consumer(text, key, session, prefetch, destination, bool(found.get("browser")))
        self._in(session, commands)
        commands.append(
            Subscribe(
                text,
                named if len(named) > 1 else named[0],
                Mode(
                    acknowledges=True,
                    redelivers=True,
                    exclusive=bool(found.get("exclusive")),
                    priority=found.get("priority", 0),
                ),
                Flow(prefetch, None if prefetch or consumer.browses else 0, max(-1, found.get("pending_limit", 0))),
                Filter(found.get("selector", ""), bool(found.get("no_local")), bool(found.get("retroactive"))),
                Opening(found, self._consumers, key),
                consumer,
                subscription_name=storable(found.get("subscription_name", "")),
                browse=Browse() if consumer.browses else None,
            )
        )
        self._consumers[key] = consumer

    def _consumer_control(self, found: Structure, commands: list[Command]) -> None:
        consumer = self._consumers.get(nested(found.get("consumer")))
        if consumer is not None:
            self._in(consumer.session, commands)
            if found.get("close"):
                self._end(consumer, -1, commands)
            elif not (found.get("start") or found.get("stop") or found.get("flush")):
                commands += consumer.set_prefetch(max(0, found.get("prefetch", 0)))
        self._done(found, commands)

    def _pull(self, found: Structure, commands: list[Command]) -> None:
        consumer = self._consumers.get(nested(found.get("consumer")))
        if consumer is None or not consumer.is_pulling:
            self._done(found, commands)
            return
        self._in(consumer.session, commands)
        timeout_ms = found.get("timeout", 0)
        if not timeout_ms:
            consumer.pulls += 1
            commands.append(Credit(consumer.id, 1))
            return
        token = Pulled(consumer, found.get("command_id", 0), responds=False)
        commands.append(Credit(consumer.id, 1, token, drain=True, wait_ms=max(0, timeout_ms)))

    # -- messages -----------------------------------------------------------------------------------------------------

    def _message(self, data: bytes, commands: list[Command]) -> None:
        if self._connection is None:
            raise ProtocolError("a message before ConnectionInfo", code="NOT_CONNECTED")
        found = read_message(data, self._version)
        producer = self._producers.get(found.producer)
        receipt: Any = None
        if found.answer is not None:
            receipt = Answer(found.answer)
        elif producer is not None and producer.window:
            receipt = Windowed(producer, _WINDOWED_BYTES + len(found.content) + len(found.properties))
        session = producer.session if producer is not None else 0
        transaction = ""
        try:
            if found.transaction:
                opened, steps = self._transactions.sending(found.transaction, session)
                session, transaction = opened.session, opened.name
                self._take(steps, commands)
            names = self._route(found.destination)
            duplicate_id = ""
            if self._tolerates_faults and found.persistent:
                same = producer is not None and found.id.producer == found.producer
                text = producer.text if same and producer is not None else producer_text_in(found.id.producer)
                duplicate_id = found.id.text or f"{text}:{found.id.sequence}"
            name = names[0] if len(names) == 1 else told(names)
            message = message_of(found, name, duplicate_id, self._properties_max)
        except CommandError as error:
            self._in(session, commands)
            commands.append(Invalid(error.with_traceback(None), receipt, transaction))
            return
        if producer is not None and len(names) == 1 and self._version >= 10:
            producer.known.learn(data, found, names[0])
        if session != self._session:
            self._in(session, commands)
        if len(names) > 1:
            commands.append(SendToMany(message, names, receipt, transaction))
        else:
            commands.append(Send(message, receipt, transaction))

    def _route(self, destination: bytes) -> tuple[str, ...]:
        """Full names of where a message goes. Raises CommandError, ValueError."""
        key = destination.hex()
        names = self._routes.get(key)
        if names is None:
            names = destinations(table.read_nested(FieldReader(destination), self._version))
            self._routes.keep(key, names, sum(map(len, names)))
        return names

    def _acknowledge(self, ack: Ack, commands: list[Command]) -> None:
        consumer = self._consumers.get(ack.consumer)
        receipt = Answer(ack.command_id) if ack.wants_response else None
        seqs = consumer.covered(ack) if consumer is not None else []
        is_part = ack.transaction and ack.kind in (STANDARD, INDIVIDUAL)
        if is_part and (consumer is None or not consumer.holds(ack, seqs)):
            self._transactions.spoil(ack.transaction)
        if consumer is None or ack.kind == REDELIVERED or not (seqs or ack.kind == DELIVERED):
            if receipt is not None:
                self._in(consumer.session if consumer is not None else 0, commands)
                commands.append(late(consumer, ack, receipt))
            return
        self._in(consumer.session, commands)
        if ack.kind == DELIVERED:
            commands += consumer.extend(ack.messages)
        elif ack.transaction and ack.kind not in (POISON, EXPIRED):
            if consumer.browses or self._transactions.acknowledge(ack.transaction, consumer, seqs):
                commands += consumer.extend(len(seqs)) if ack.kind == INDIVIDUAL else []
            else:
                raise CommandError("an acknowledgement in a transaction that is not open", code="UNKNOWN_TRANSACTION")
        else:
            outcome = _OUTCOMES.get(ack.kind, Outcome.ACCEPTED) if not consumer.browses else Outcome.ACCEPTED
            reason = ack.reason or (_NO_CAUSE if ack.kind == POISON else "")
            commands += consumer.settle_all(ack, seqs, outcome, receipt, reason)
            return
        if receipt is not None:
            commands.append(Nothing(receipt))

    def _transact(self, found: Structure, commands: list[Command]) -> None:
        kind, id = found.get("kind", 0), found.get("transaction")
        command_id, responds = found.get("command_id", 0), bool(found.get("response_required"))
        if kind == RECOVER:
            self._take(Transactions.recover(RecoveredXa(command_id, responds)), commands)
            return
        id = table.part(id, table.LOCAL_TRANSACTION_ID, table.XA_TRANSACTION_ID)
        self._transact_in(kind, nested(id), id, command_id, responds, commands)

    def _transact_in(
        self, kind: int, key: bytes, id: Structure, command_id: int, responds: bool, commands: list[Command]
    ) -> None:
        """A step of the transaction `id`; `key` = the same as a field of commands."""
        if kind == BEGIN:
            self._transactions.begin(key, id)
        if kind in (BEGIN, END):
            if responds:
                commands.append(Nothing(Answer(command_id)))
            return
        answer: EndAnswer
        read_only: Answer | None = None
        if kind == PREPARE:
            answer = prepared = PreparedXa(command_id, responds)
            read_only = prepared.read_only()
        elif id.type == table.XA_TRANSACTION_ID:
            answer = EndedXa(command_id, responds)
        else:
            answer = Committed(command_id, responds)
        try:
            if kind == FORGET:
                steps = self._transactions.forget(key, id, answer)
            else:
                steps = self._transactions.end(kind, key, id, answer, read_only, answer.taken)
            self._take(steps, commands)
        except CommandError as error:
            commands.append(Invalid(error.with_traceback(None), answer))

    def _nothing(self, found: Structure, commands: list[Command]) -> None:
        self._done(found, commands)

    # One table for all connections: bound methods would make each codec refer to itself, and stay in memory.
    _HANDLERS: ClassVar[dict[int, Callable[[OpenWireCodec, Structure, list[Command]], None]]] = {
        table.CONNECTION_INFO: _connect,
        table.SESSION_INFO: _open_session,
        table.CONSUMER_INFO: _consume,
        table.PRODUCER_INFO: _produce,
        table.TRANSACTION_INFO: _transact,
        table.DESTINATION_INFO: _destination,
        table.REMOVE_SUBSCRIPTION_INFO: _remove_subscription,
        table.KEEP_ALIVE_INFO: _keep_alive,
        table.SHUTDOWN_INFO: _shut_down,
        table.REMOVE_INFO: _remove,
        table.CONTROL_COMMAND: _nothing,
        table.FLUSH_COMMAND: _nothing,
        table.CONSUMER_CONTROL: _consumer_control,
        table.CONNECTION_CONTROL: _control,
        table.MESSAGE_PULL: _pull,
    }

    # ---- replies and deliveries → bytes

    def connected(
        self,
        session: str,  # noqa: ARG002
        brokers: Sequence[str] = (),
        reattachable: Reattachable | None = None,  # noqa: ARG002
    ) -> bytes:
        """Answer to Connect. `brokers` = where the group is."""
        return _RESPONSE + INT.pack(self._connect_id) + self.brokers(brokers)

    def brokers(self, brokers: Sequence[str]) -> bytes:
        """Where the group is: the client tries these before the addresses that its URL names."""
        urls = list(dict.fromkeys(filter(None, map(own_url, brokers))))
        if not urls:
            return b""
        control = structure(table.CONNECTION_CONTROL, connected_brokers=",".join(urls), rebalance=self._rebalances)
        return frame(control, self._version)

    def received(self, count: int) -> bytes:
        raise NotImplementedError("no client of OpenWire asks to come back on another socket")

    def receipt(self, receipt: Any, outcome: str = "") -> bytes:
        """The command with that token is done."""
        if receipt.__class__ is Answer or receipt.__class__ is Committed:
            return _RESPONSE + INT.pack(receipt.command_id) if receipt.responds else b""
        assert isinstance(receipt, Answer)
        return encoded(receipt.done(outcome), self._version)

    def receipts(self, receipts: Sequence[Any]) -> bytes:
        """The commands with these tokens are done: one answer to all of a producer with a window."""
        if (first := receipts[0]).__class__ is Windowed and all(
            each.__class__ is Windowed and each.producer is first.producer for each in receipts
        ):
            return self.receipt(Windowed(first.producer, sum([each.size for each in receipts])))
        return b"".join([self.receipt(receipt) for receipt in receipts])

    def error(self, failure: Failure) -> bytes:
        """Tell the client why, and what ends with it."""
        error, receipt = failure.error, failure.receipt
        if isinstance(receipt, Committed) and receipt.is_repeated(error):
            return self.receipt(receipt)
        if isinstance(receipt, Answer):
            receipt.failed()
        if isinstance(receipt, Answer) and receipt.responds:
            answer = structure(
                table.EXCEPTION_RESPONSE, correlation_id=receipt.command_id, exception=receipt.exception(error)
            )
            return frame(answer, self._version)
        if getattr(error, "code", "") in _ABOUT and failure.scope is Scope.COMMAND:
            return b""
        said = b""
        if isinstance(receipt, Pulled):
            said = frame(nothing_for(receipt.consumer), self._version)
        elif isinstance(receipt, Windowed):  # or its producer would wait for ever
            said = encoded(receipt.done(""), self._version)
        if failure.scope is Scope.CONSUMER:
            said += self._closed(failure.consumer)
        told_error = structure(table.CONNECTION_ERROR, exception=throwable(error), connection=self._connection)
        return said + frame(told_error, self._version)

    def _closed(self, id: str) -> bytes:
        consumer = next((each for each in self._consumers.values() if each.id == id), None)
        if consumer is None:
            return b""
        del self._consumers[consumer.key]
        control = structure(
            table.CONSUMER_CONTROL,
            destination=consumer.destination,
            close=True,
            consumer=table.read_nested(FieldReader(consumer.key), self._version),
        )
        return frame(control, self._version)

    def subscription(self, command: Subscribe, session: int) -> Consumer:  # noqa: ARG002
        assert isinstance(command.token, Consumer)
        return command.token

    def delivery(self, consumer: Consumer, message: Message, redelivered: int) -> bytes:
        """One message for one consumer."""
        seq = message.seq
        if self._version >= 10 and seq > self._ids.known_to:  # else its client may know it
            if message.destination != consumer.opening_name:
                self._open(consumer, message.destination)
            pieces = dispatch_as_they_came(consumer.opening, (message,), redelivered)
            if pieces:
                consumer.dispatched += 1
                consumer.held[seq] = seq
                return b"".join(pieces)
        return b"".join(self._pieces(consumer, message, redelivered))

    def _open(self, consumer: Consumer, name: str) -> None:
        """Dispatches to `consumer` are of messages for the destination of that full name."""
        consumer.opening_name, consumer.opening = name, consumer.head + self._destination_of(name)

    def _as_they_came(self, consumer: Consumer, messages: Sequence[Message]) -> list[bytes]:
        """The pieces of the dispatches of `messages`, up to the first that must be written in general."""
        seqs = [message.seq for message in messages]
        if self._version < 10 or min(seqs) <= self._ids.known_to:
            return []
        if messages[0].destination != consumer.opening_name:
            self._open(consumer, messages[0].destination)
        pieces = dispatch_as_they_came(consumer.opening, messages, 0)
        if len(pieces) < PIECES * len(seqs):
            del seqs[len(pieces) // PIECES :]
        consumer.dispatched += len(seqs)
        consumer.held.update(zip(seqs, seqs, strict=True))
        return pieces

    def _destination_of(self, name: str) -> bytes:
        found = self._names.get(name)
        return found if found is not None else self._names.keep(name, nested_destination(name), len(name))

    def large_delivery(self, consumer: Consumer, message: Message, redelivered: int) -> tuple[bytes, ...]:
        """The same in pieces, of which the body is one."""
        return self._pieces(consumer, message, redelivered)

    def translation(self, consumer: Consumer) -> Callable[[Message], Message]:
        raise NotImplementedError("no message of others takes long to be written for OpenWire")

    def _pieces(self, consumer: Consumer, message: Message, redelivered: int) -> tuple[bytes, ...]:
        consumer.dispatched += 1
        destination = self._destination_of(message.destination)
        id = self._ids.new_id(message, self._version, self._tolerates_faults)
        consumer.held[self._ids.name_of(message.seq) if id else message.seq] = message.seq
        written = write(message, self._version, id)
        after = written.after
        properties = message.properties
        if properties is not None and GROUP_ID in properties and self._version >= 10:
            first = consumer.is_first_of(str(properties[GROUP_ID]), closes=properties.get(GROUP_SEQ) == -1)
            after = after[:-1] + (b"\1" if first else b"\0")
        size = len(consumer.head) + len(destination) + len(written.before) + len(written.body) + len(after) + 4
        return (
            b"".join((INT.pack(size), consumer.head, destination, written.before)),
            written.body,
            after + INT.pack(redelivered),
        )

    def end_of_browse(self, consumer: Consumer) -> bytes:
        """The browse of this consumer has shown everything."""
        return frame(nothing_for(consumer), self._version)

    def deliveries(self, consumer: Consumer, messages: Sequence[Message]) -> tuple[bytes, int]:
        """Messages for one consumer, each for the first time, up to the first that is costly; and how many."""
        pieces = self._as_they_came(consumer, messages)
        at = len(pieces) // PIECES
        with contextlib.suppress(CostlyError):
            while at < len(messages):
                pieces.append(self.delivery(consumer, messages[at], 0))
                at += 1
                if at < len(messages):
                    pieces += (more := self._as_they_came(consumer, messages[at:]))
                    at += len(more) // PIECES
        return b"".join(pieces), at

    def batch(self, consumer: Consumer, batch: MessageBatch) -> bytes:
        """Many messages for one consumer."""
        return b"".join([self.delivery(consumer, message, 0) for message in batch.messages])

    def may_repeat(self, until: int) -> None:
        if self._tolerates_faults:
            self._ids.known_to = max(self._ids.known_to, until)

    def heartbeat(self) -> bytes:
        return frame(structure(table.KEEP_ALIVE_INFO), self._version)


_BEFORE_LOGIN: Final = frozenset(
    {
        table.CONNECTION_INFO,
        table.KEEP_ALIVE_INFO,
        table.CONNECTION_CONTROL,
        table.SHUTDOWN_INFO,
    }
)
_NO_CAUSE: Final = "javax.jms.JMSException: the client gave the message up, and did not say why"
_OUTCOMES: Final = {POISON: Outcome.REJECTED, EXPIRED: Outcome.EXPIRED}


def _run_of(first: Message, receipt: Any, transaction: str, native: bytes, more: Sends) -> Command:
    """`first`, which has that native data, and the messages behind it as one command."""
    like = Message.made_of(first, first.destination, None)
    like.body = b""
    bodies, natives = [first.body, *more.bodies], [native, *more.natives]
    if transaction:
        return SendMany(like, bodies, transaction, None, natives)
    receipts: list[object] | None = None
    if receipt.__class__ is Answer:
        receipts = [receipt, *map(Answer, more.command_ids)]
    elif receipt is not None:
        sizes = zip(more.bodies, more.properties, strict=True)
        producer = receipt.producer
        receipts = [receipt, *[Windowed(producer, _WINDOWED_BYTES + len(body) + size) for body, size in sizes]]
    return SendRun(like, bodies, receipts, natives)
