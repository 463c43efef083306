"""StompCodec: the broker's side of a STOMP 1.0, 1.1 or 1.2 connection. Bytes in, commands out; replies in, bytes out.

Invariants: `receive` never raises and, once it has yielded `Malformed` or `Disconnect`, yields nothing more; the tight
loop for SEND and ACK yields exactly what the general path yields (it leaves to it everything that it does not fully
understand); only ids that this codec wrote come back as `Ack`.

Specifications: https://stomp.github.io (stomp-specification-1.0, -1.1, -1.2). Extensions: docs/stomp.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final

from amq.core.destination import told
from amq.core.errors import AmqError, ProtocolError
from amq.core.message import (
    BYTES,
    DEFAULT_PRIORITY,
    LIFTED,
    SHORT_BYTES_MAX,
    TEXT,
    Envelope,
    Message,
    MessageBatch,
    lift,
    plain,
)
from amq.core.message_run import MessageRun
from amq.core.remembered import Remembered
from amq.protocols.codec import ALL_FRAMES, RARE_FRAMES
from amq.protocols.commands import (
    CREDIT_MAX,
    OLDEST,
    Begin,
    Command,
    Connect,
    Credit,
    Disconnect,
    Failure,
    Malformed,
    Outcome,
    Reattachable,
    Scope,
    Send,
    SendToMany,
    Settle,
    SettleRun,
    Subscribe,
    Unsubscribe,
)
from amq.protocols.stomp import leases, locating, reattaching, repeated, runs, subscribing, transactions, transformation
from amq.protocols.stomp.delivery import RESERVED, Deliveries, DeliveryFormat, header_line
from amq.protocols.stomp.destination import destinations, full_name, reply_to, sources
from amq.protocols.stomp.frame import LINE_END_BYTES, VERSIONS, Frame, FrameLimits, FrameReader, encode
from amq.protocols.stomp.subscribing import ACK_AUTO, ACK_CLIENT, subscription_name
from amq.protocols.stomp.subscribing import boolean as _boolean
from amq.protocols.stomp.subscribing import number as _number
from amq.protocols.stomp.transformation import TRANSFORMATION, Translation

_STRANGER_HEADERS_BYTES_MAX: Final = 64 << 10  # before CONNECT; a body is not allowed there
_DESTINATIONS_BYTES_MAX: Final = 256 << 10  # of names that are remembered, for each connection
_RETIRED_MAX: Final = 1000  # ended subscriptions whose acknowledgements, on their way, are still understood
_OUTCOME_HEADER_CHARACTERS_MAX: Final = 8000
_ERROR_MESSAGE_CHARACTERS_MAX: Final = 200
_BROKERS_RECEIPT_CHARACTERS_MAX: Final = 64
_BETWEEN_RECEIPTS: Final = "\n\n\0RECEIPT\nreceipt-id:"
_ACK_BYTES_MAX: Final = 160  # of an ACK that has nothing but an id and perhaps a receipt
_INT32_MAX: Final = 2**31 - 1
_INT64_MAX: Final = 2**63 - 1
_KINDS: Final = {"text": TEXT, "bytes": BYTES}
_NO_PROPERTIES: Final = RESERVED | LIFTED
_Route = tuple[str, tuple[str, ...]]  # where a SEND goes: full name, of several with commas between; each name once


class _Subscription:
    """The part of a subscription that the codec keeps; travels as the token of its Subscribe."""

    __slots__ = ("acknowledges", "destination", "first", "id", "index", "named", "transformation")

    def __init__(self, id: str, index: int, destination: str, ack: str, named: bool, transformation: str) -> None:
        self.id = id
        self.index = index  # never used twice in a connection
        self.destination = destination
        self.acknowledges = ack != ACK_AUTO
        # Where a range of deliveries begins that an acknowledgement covers: see `Settle`.
        self.first = OLDEST if ack == ACK_CLIENT else None
        self.named = named  # False: a 1.0 client gave no id
        self.transformation = transformation  # of the maps that it gets, "" = none


class StompCodec:
    """Implements `amq.protocols.codec.Codec`.

    limits              of frames
    message_id_prefix   `message-id` is this and the message's seq; must not end in a digit
    server_name         `name/version`, for CONNECTED
    default_persistent  whether a SEND without `persistent` header is persistent
    owner               what the names of the connection's temporary destinations begin with, `3-17.`
    strict_destinations whether a destination without a known prefix is an error, or a queue of that name
    identity            further headers of CONNECTED: who answers
    heartbeat_ms        what the broker can send, and what it wants
    cluster             the id of the cluster of which this is a gateway, "" = it is a broker
    """

    name = "stomp"
    returns: ClassVar[bool] = False
    survives: ClassVar[frozenset[Scope]] = frozenset()  # STOMP knows no error that leaves the connection open
    unsaid = b""
    has_more = pending = False

    def __init__(
        self,
        limits: FrameLimits | None = None,
        message_id_prefix: str = "ID:",
        server_name: str = "amq",
        default_persistent: bool = True,
        identity: tuple[tuple[str, str], ...] = (),
        owner: str = "0-0.",
        strict_destinations: bool = True,
        heartbeat_ms: tuple[int, int] = (0, 0),
        cluster: str = "",
    ) -> None:
        assert message_id_prefix
        assert not message_id_prefix[-1].isdigit()
        assert server_name.isprintable()
        self.version = "1.0"  # agreed on; until then what every client understands
        self.confirmed = 0  # this many bytes of ours the client says it has
        self._limits = limits or FrameLimits()
        self._reader = FrameReader(
            replace(
                self._limits,
                body_bytes_max=LINE_END_BYTES,
                header_block_bytes_max=min(self._limits.header_block_bytes_max, _STRANGER_HEADERS_BYTES_MAX),
            )
        )
        self._message_id_prefix = message_id_prefix
        self._server_name = server_name
        self._default_persistent = default_persistent
        self._identity = identity
        self._owner = owner
        self._write_as("1.0")
        self._strict_destinations = strict_destinations
        self._heartbeat_ms = heartbeat_ms
        self._cluster = cluster
        self.beats_ms: tuple[int, int] | None = None
        self._brokers_receipt = ""  # the id of the receipt that tells the client where the group is
        self._connected = False
        self._takes_runs = False  # the client asked for frames of many messages
        self._closed = False
        self._destinations: Remembered[_Route] = Remembered(_DESTINATIONS_BYTES_MAX)  # by what SENDs wrote
        self._shapes = repeated.Shapes()
        self._block_max = min(self._limits.header_block_bytes_max, self._limits.header_bytes_max, SHORT_BYTES_MAX)
        self._subscriptions: dict[str, _Subscription] = {}
        self._by_index: dict[str, _Subscription] = {}  # by index, as written in `ack`; also some that have ended
        self._retired: deque[str] = deque()  # indexes of ended subscriptions, oldest first
        self._subscribed_count = 0

    # ---- bytes → commands

    def receive(self, data: bytes, frames_max: int = ALL_FRAMES) -> list[Command]:
        """Commands completed by `data`, of about `frames_max` frames. After `Malformed` or `Disconnect` everything
        further is ignored."""
        if self._closed:
            return []
        commands: list[Command] = []
        reader, left = self._reader, frames_max
        self.has_more = False
        if data:
            if not reader.buffer and reader.unfinished is None and self.version != "1.0":
                position, left = self._receive_frequent(commands, data, 0, left)
                if position == len(data):  # as nearly always: the reader need not have it
                    self.pending = False
                    return commands
                data = data[position:]
            reader.push(data)
        while not self._closed:
            if self.version != "1.0" and reader.unfinished is None:
                reader.offset, left = self._receive_frequent(commands, reader.buffer, reader.offset, left)
                if reader.offset == len(reader.buffer):
                    reader.clear()
                    self.pending = False
                    return commands
            if left <= 0:
                self.has_more = True
                break
            left -= RARE_FRAMES
            frame = reader.next_frame()
            receipt = None
            try:
                if frame is None:
                    if reader.error is None:
                        break
                    if reader.unfinished is not None:
                        receipt = _receipt(reader.unfinished.headers)
                        self._check_first(reader.unfinished.command)
                    raise reader.error
                if frame.command == reattaching.RECEIVED and self._connected:
                    self.confirmed = reattaching.count_of(frame)
                    continue
                receipt = _receipt(frame.headers)
                if self._takes_runs and frame.command == runs.SENDMANY:
                    commands += runs.commands(frame, self._checked_send, self._limits)
                else:
                    commands.append(self._command(frame))
            except AmqError as error:
                # Its traceback would hold this frame, and with that all that was received.
                commands.append(Malformed(error.with_traceback(None), receipt))
                self.close()
        self.pending = self._reader.pending
        return commands

    def close(self) -> None:
        """Nothing is received any more: let go of what was buffered."""
        self._closed = True
        self.has_more = self.pending = False
        self._reader = FrameReader(self._limits)

    def _receive_frequent(self, commands: list[Command], data: bytes, position: int, left: int) -> tuple[int, int]:
        """Consume at most `left` SEND and ACK frames of `data` in their usual form, from `position` up to the first
        frame that is anything else. Returns where that begins, and how many of `left` remain.

        Such a frame, also one with an error, is left for the general path. Not used for 1.0, which trims headers.
        """
        shapes, append, size, block_max = self._shapes, commands.append, len(data), self._block_max
        ack_start = b"ACK\nid:" if self.version == "1.2" else b"\0"
        try:
            while left > 0 and position < size:
                left -= 1
                if data.startswith(b"SEND\n", position):
                    end = data.find(b"\n\n", position, position + block_max)
                    if end < 0:
                        break
                    # The head without the value of its receipt: frames of which it is the same differ in nothing else.
                    at = data.find(repeated.RECEIPT, position, end) + repeated.RECEIPT_BYTES
                    if at < repeated.RECEIPT_BYTES:
                        line_end, key = at, data[position:end]
                    else:
                        line_end = data.find(b"\n", at, end + 1)
                        key = data[position:at] + data[line_end:end]
                    start, shape = end + 2, shapes.get(key)
                    if shape is not None:
                        stop = start + shape.length if shape.length >= 0 else data.find(b"\0", start)
                        receipt = data[at:line_end].decode()
                        if (
                            not start <= stop < size
                            or data[stop]
                            or stop - start > self._limits.body_bytes_max
                            or "\\" in receipt
                            or "\r" in receipt
                        ):
                            break
                        send = Send(shape.like.with_body(data[start:stop]), receipt or None)
                    else:
                        found = self._new_send(data, position, end)
                        if found is None:
                            break
                        send, stop = found
                        shapes.meet(key, send, data[start:stop])
                    begin, position = position, stop + 1
                    if send.transaction:
                        append(send)
                        if send.__class__ is Send:
                            block, body_max = data[begin:start], self._limits.body_bytes_max
                            position = repeated.take(data, position, block, send, body_max, append)
                    elif left and data.startswith(repeated.AGAIN, position) and send.__class__ is Send:
                        body_max = self._limits.body_bytes_max
                        command, position, count = repeated.run(
                            data, begin, start, stop, send, block_max, body_max, left
                        )
                        append(command)
                        left -= count
                    else:
                        append(send)
                elif data.startswith(ack_start, position):
                    end = data.find(b"\n\n\0", position, position + _ACK_BYTES_MAX)
                    if end < 0:
                        break
                    index, _, seq = data[position + 7 : end].decode().partition("-")
                    subscription, token = self._by_index.get(index), None
                    if not seq.isdecimal():
                        seq, mark, token = seq.partition("\nreceipt:")
                        if not mark or "\n" in token or "\\" in token or "\r" in token:
                            break
                    if subscription is None or len(seq) > 19 or not (seq.isascii() and seq.isdecimal()):
                        break
                    position = end + 3
                    if token is None and left and subscription.first is None and data.startswith(ack_start, position):
                        seqs, position = repeated.acks(data, position, index, int(seq), left)
                        left -= len(seqs) - 1
                        if len(seqs) > 1:
                            append(SettleRun(seqs, subscription.id))
                            continue
                    append(Settle(int(seq), subscription.id, token or None, "", Outcome.ACCEPTED, subscription.first))
                elif data[position] == 0x0A:
                    position += 1
                else:
                    break
        except (ValueError, AmqError):
            pass  # not understood here: the general path reads this frame again and tells what is wrong with it
        return position, left

    def _new_send(self, data: bytes, position: int, end: int) -> tuple[Send, int] | None:
        """The SEND whose head is `data[position:end]`, and where its body ends. None = it is left to the general path,
        as it is where this raises ValueError or AmqError."""
        limits = self._limits
        text = data[position + 5 : end].decode()
        if "\\" in text or "\r" in text:
            return None
        lines = text.split("\n")
        headers: dict[str, str] = {}
        for line in lines:  # in two thirds of the time of a comprehension
            name, value = line.split(":", 1)  # raises ValueError where it has no colon
            headers[name] = value
        if len(headers) != len(lines) or len(lines) > limits.header_count_max or "" in headers:
            return None
        start = end + 2
        length = headers.get("content-length")
        if length is None:
            stop = data.find(b"\0", start)
            if not 0 <= stop - start <= limits.body_bytes_max:
                return None
        else:
            if len(length) > 18 or not (length.isascii() and length.isdecimal()):
                return None
            stop = start + int(length)
            if stop >= len(data) or data[stop] or stop - start > limits.body_bytes_max:
                return None
        return self._send(headers, data[start:stop]), stop

    def _command(self, frame: Frame) -> Command:
        command, headers = frame.command, frame.headers
        if not self._connected:
            self._check_first(command)
            if frame.body:
                _check_empty(frame)
            return self._connect(headers)
        if command == "SEND":
            return self._checked_send(headers, frame.body)
        handler = self._HANDLERS.get(command)
        if handler is None:
            if command in ("CONNECT", "STOMP"):
                raise ProtocolError("a second CONNECT: this connection is open already")
            raise ProtocolError(f"{command!r} is not a command that a client may send", code="COMMAND_UNKNOWN")
        if frame.body and transactions.takes_body(command, headers):
            batch = transactions.commit if command == "COMMIT" else transactions.abort
            return batch(headers, _receipt(headers), frame.body)
        if frame.body and self.version != "1.0":
            _check_empty(frame)
        return handler(self, headers, _receipt(headers))

    def _check_first(self, command: str) -> None:
        if not self._connected and command not in ("CONNECT", "STOMP"):
            why = f"{command[:20]} before CONNECT: the first frame must be CONNECT or STOMP"
            raise ProtocolError(why, code="NOT_CONNECTED")

    def _connect(self, headers: dict[str, str]) -> Connect:
        accepted = headers.get("accept-version")
        common = ["1.0"] if accepted is None else [v for v in VERSIONS if v in map(str.strip, accepted.split(","))]
        if not common:
            raise ProtocolError(
                f"no common version: the client accepts {accepted!r:.100}, this broker speaks {', '.join(VERSIONS)}",
                code="VERSION_UNSUPPORTED",
            )
        version = common[-1]
        beats_ms = (0, 0)
        if version == "1.0":
            headers = {name.strip(): value.strip() for name, value in headers.items()}
        elif "heart-beat" in headers:
            beats_ms = _agreed(self._heartbeat_ms, _heartbeat_ms(headers["heart-beat"]))
        brokers_receipt = headers.get("amq-brokers-receipt", "")
        if len(brokers_receipt) > _BROKERS_RECEIPT_CHARACTERS_MAX:
            raise ProtocolError(
                f"amq-brokers-receipt has more than {_BROKERS_RECEIPT_CHARACTERS_MAX} characters: name a shorter id",
                code="HEADER_INVALID",
            )
        self._brokers_receipt = "" if version == "1.0" else brokers_receipt
        self.version = self._reader.version = version
        self._reader.limits = self._limits
        self._write_as(version)
        self._connected = True
        self.beats_ms = beats_ms
        self._takes_runs = version == "1.2" and runs.is_asked(headers)
        get = headers.get
        return Connect(
            get("login", ""),
            get("passcode", ""),
            get("client-id", ""),
            get("amq-client-instance", ""),
            reattaching.asked(headers) if version == "1.2" else None,
        )

    def _checked_send(self, headers: dict[str, str], body: bytes) -> Send:
        _check_lengths(headers)
        return self._send(headers, body)

    def _send(self, headers: dict[str, str], body: bytes) -> Send:
        """`headers` become the message's properties: do not use them afterwards."""
        pop = headers.pop
        written = pop("destination", "")
        destination, names = self._destinations.get(written) or self._route(written)
        content = BYTES if pop("content-length", None) is not None else TEXT
        receipt = pop("receipt", None) or None
        persistent = self._default_persistent
        if not headers and len(names) == 1:
            return Send(Message(destination, body, None, "", DEFAULT_PRIORITY, persistent, 0, 0, "", content), receipt)
        in_transaction = _transaction(headers) if "transaction" in headers else ""
        persistent_text = pop("persistent", None)
        if persistent_text is not None:
            persistent = persistent_text == "true" or _boolean("persistent", persistent_text)
        content_type = pop("content-type", "")
        duplicate_id = pop("_AMQ_DUPL_ID", "")
        priority = DEFAULT_PRIORITY
        expires_ms = 0
        envelope: Envelope | None = None
        if headers:
            if "priority" in headers:
                priority = _number("priority", pop("priority"), 9)
            if "expires" in headers:
                expires_ms = _number("expires", pop("expires"), _INT64_MAX)
            if "amq-msg-type" in headers:
                content = _KINDS.get(headers["amq-msg-type"], content)
            if not _NO_PROPERTIES.isdisjoint(headers):
                if not RESERVED.isdisjoint(headers):
                    headers = {name: value for name, value in headers.items() if name not in RESERVED}
                if "reply-to" in headers:
                    headers["reply-to"] = reply_to(headers["reply-to"], self._owner)
                envelope = lift(headers)
        message = Message(
            destination,
            body,
            headers or None,
            content_type,
            priority,
            persistent,
            0,
            expires_ms,
            duplicate_id,
            content,
            0,
            envelope,
        )
        if TRANSFORMATION in headers:
            message = transformation.sent(message, headers[TRANSFORMATION])
        if len(names) > 1:
            return SendToMany(message, names, receipt, in_transaction)
        return Send(message, receipt, in_transaction)

    def _subscribe(self, headers: dict[str, str], receipt: object) -> Subscribe:
        written = headers.get("destination", "")
        if not written:
            raise _missing("SUBSCRIBE", "destination")
        named = sources(written, self._owner, self._strict_destinations)
        destination = told(named)
        id = headers.get("id", "")
        is_named = bool(id)
        if not is_named:
            if self.version != "1.0" or "id" in headers:
                raise _missing("SUBSCRIBE", "id")
            id = destination
        if id in self._subscriptions:
            raise ProtocolError(
                f"this connection has a subscription {id[:100]!r} already: give each its own id, or UNSUBSCRIBE first",
                code="SUBSCRIPTION_EXISTS",
            )
        index = self._subscribed_count
        ack, form = subscribing.ack_mode(headers), transformation.asked(headers)
        token = _Subscription(id, index, destination, ack, is_named, form)
        if not self._takes_runs:
            headers.pop(runs.HEADER, None)
        command = subscribing.subscribe(headers, id, named, receipt, token)
        self._subscribed_count += 1
        self._subscriptions[id] = self._by_index[str(index)] = token
        return command

    def _unsubscribe(self, headers: dict[str, str], receipt: object) -> Unsubscribe:
        id, name = headers.get("id", ""), subscription_name(headers)
        if not id and not name:
            if self.version != "1.0":
                raise _missing("UNSUBSCRIBE", "id")
            if "destination" not in headers:
                raise ProtocolError("UNSUBSCRIBE needs an id or a destination header", code="HEADER_MISSING")
            destination = told(sources(headers["destination"], self._owner, self._strict_destinations))
            ids = [id for id, known in self._subscriptions.items() if known.destination == destination]
            id = destination if destination in ids or not ids else ids[0]
        ended = self._subscriptions.pop(id, None)
        if ended is not None:
            self._retired.append(str(ended.index))
            if len(self._retired) > _RETIRED_MAX:
                del self._by_index[self._retired.popleft()]
        return Unsubscribe(id, receipt, name)

    def _credit(self, headers: dict[str, str], receipt: object) -> Credit:
        for name in ("id", "credit"):
            if not headers.get(name):
                raise _missing("CREDIT", name)
        credit = _number("credit", headers["credit"], CREDIT_MAX)
        return Credit(headers["id"], credit, receipt, drain=credit == 0)

    def _ack(self, headers: dict[str, str], receipt: object) -> Settle:
        seq, subscription, first = self._acknowledged("ACK", headers)
        return Settle(seq, subscription, receipt, _transaction(headers), Outcome.ACCEPTED, first)

    def _nack(self, headers: dict[str, str], receipt: object) -> Settle:
        if self.version == "1.0":
            raise ProtocolError("STOMP 1.0 has no NACK: connect with accept-version:1.1 or 1.2", code="COMMAND_UNKNOWN")
        seq, subscription, first = self._acknowledged("NACK", headers)
        requeue = _boolean("requeue", headers.get("requeue", "false"))
        return Settle(
            seq, subscription, receipt, _transaction(headers), Outcome.FAILED if requeue else Outcome.REJECTED, first
        )

    def _acknowledged(self, command: str, headers: dict[str, str]) -> tuple[int, str, int | None]:
        """Seq and subscription id of the message that an ACK or NACK names, and the first seq that it covers."""
        if self.version == "1.2":
            id = headers.get("id", "")
            if not id:
                raise _missing(command, "id")
            index, _, digits = id.partition("-")
            known = self._by_index.get(index)
            if known is None:
                raise _unknown_id(command, "id", id, "the ack header of a MESSAGE")
            subscription, first = known.id, known.first
        else:
            id = headers.get("message-id", "")
            if not id:
                raise _missing(command, "message-id")
            subscription = headers.get("subscription", "") if self.version == "1.1" else ""
            if self.version == "1.1" and not subscription:
                raise _missing(command, "subscription")
            first = self._first(subscription)
            digits = id.removeprefix(self._message_id_prefix)
            if digits == id:
                raise _unknown_id(command, "message-id", id, "the message-id header of a MESSAGE")
        if len(digits) > 19 or not (digits.isascii() and digits.isdecimal()):
            raise _unknown_id(command, "id", id, "an id taken from a MESSAGE")
        return int(digits), subscription, first

    def _first(self, subscription: str) -> int | None:
        """Where the range begins that an acknowledgement covers. A 1.0 client does not say of which of its
        subscriptions it speaks: a range is meant if all of them say so, or else a message would be acknowledged that
        was not."""
        if subscription:
            known = self._subscriptions.get(subscription)
            return known.first if known is not None else None
        explicit = [each.first for each in self._subscriptions.values() if each.acknowledges]
        return OLDEST if explicit and None not in explicit else None

    def _begin(self, headers: dict[str, str], receipt: object) -> Begin:
        return Begin(transactions.transaction("BEGIN", headers), receipt)

    def _disconnect(self, headers: dict[str, str], receipt: object) -> Disconnect:  # noqa: ARG002
        self.close()
        return Disconnect(receipt)

    def _abort(self, headers: dict[str, str], receipt: object) -> Command:
        return transactions.abort(headers, receipt)

    def _commit(self, headers: dict[str, str], receipt: object) -> Command:
        return transactions.commit(headers, receipt)

    def _lease(self, headers: dict[str, str], receipt: object) -> Command:
        return leases.lease(headers, receipt)

    def _where(self, headers: dict[str, str], receipt: object) -> Command:
        return locating.where(headers, receipt)

    # One table for all connections: bound methods would make each codec refer to itself, and stay in memory.
    _HANDLERS: ClassVar[dict[str, Callable[[StompCodec, dict[str, str], object], Command]]] = {
        "ABORT": _abort,
        "ACK": _ack,
        "BEGIN": _begin,
        "COMMIT": _commit,
        "DISCONNECT": _disconnect,
        "NACK": _nack,
        "CREDIT": _credit,
        "LEASE": _lease,
        "SUBSCRIBE": _subscribe,
        "UNSUBSCRIBE": _unsubscribe,
        "WHERE": _where,
    }

    def _route(self, written: str) -> _Route:
        """Raises ProtocolError, AccessError."""
        if not written:
            raise _missing("SEND", "destination")
        names = destinations(written, self._owner, self._strict_destinations)
        full = names[0] if len(names) == 1 else full_name(written, self._owner, self._strict_destinations)
        return self._destinations.keep(written, (full, names), len(full) + sum(map(len, names)))

    # ---- replies and deliveries → bytes

    def connected(self, session: str, brokers: Sequence[str] = (), reattachable: Reattachable | None = None) -> bytes:
        """Answer to Connect. `brokers` = where the group is."""
        headers = [("version", self.version), ("session", session), ("server", self._server_name), *self._identity]
        if self.version != "1.0":
            headers.append(("heart-beat", f"{self._heartbeat_ms[0]},{self._heartbeat_ms[1]}"))
            if urls := ",".join(locating.own_urls(brokers)):
                headers.append(("brokers", urls))
        if self._takes_runs:
            headers.append((runs.HEADER, runs.VERSION))
            if self._cluster:  # only for a client of ours, which then may ask WHERE
                headers.append((locating.CLUSTER, self._cluster))
        if reattachable is not None:
            headers += reattaching.granted(reattachable)
        return encode("CONNECTED", headers)

    def brokers(self, brokers: Sequence[str]) -> bytes:
        """The receipt that CONNECT asked for: one more each time the group changes."""
        urls = ",".join(locating.own_urls(brokers))
        if not self._brokers_receipt or not urls:
            return b""
        return encode("RECEIPT", [("receipt-id", self._brokers_receipt), ("brokers", urls)], version=self.version)

    def received(self, count: int) -> bytes:
        """RECEIVED frame: this many bytes of the client are here."""
        return reattaching.received(count)

    def receipt(self, receipt: Any, outcome: str = "") -> bytes:
        """RECEIPT frame; `receipt` as a command carried it."""
        if len(outcome) > _OUTCOME_HEADER_CHARACTERS_MAX:  # of a frame of ours alone: it has more to say
            body = outcome.encode()
            head = f"RECEIPT\n{header_line('receipt-id', receipt, self.version)}content-length:{len(body)}\n\n"
            return head.encode() + body + b"\0"
        if outcome:
            lines = header_line("receipt-id", receipt, self.version) + header_line("outcome", outcome, self.version)
            return f"RECEIPT\n{lines}\n\0".encode()
        if receipt.isalnum():
            return f"RECEIPT\nreceipt-id:{receipt}\n\n\0".encode()
        return f"RECEIPT\n{header_line('receipt-id', receipt, self.version)}\n\0".encode()

    def receipts(self, receipts: Sequence[Any]) -> bytes:
        """RECEIPT frames, none with an outcome."""
        if all(map(str.isalnum, receipts)):
            return f"RECEIPT\nreceipt-id:{_BETWEEN_RECEIPTS.join(receipts)}\n\n\0".encode()
        return b"".join(map(self.receipt, receipts))

    def error(self, failure: Failure) -> bytes:
        """ERROR frame: a short `message`, the error's `code`, its whole description as the body."""
        error, receipt = failure.error, failure.receipt
        if isinstance(error, AmqError):
            code, description = error.code, error.description
        else:
            code, description = "INTERNAL_ERROR", "the broker failed to carry this out: its log says why"
        message = description.split("\n", 1)[0][:_ERROR_MESSAGE_CHARACTERS_MAX]
        body = description.encode(errors="replace")
        headers = [("message", message), ("code", code)]
        if code == "VERSION_UNSUPPORTED":
            headers.append(("version", ",".join(VERSIONS)))
        if isinstance(receipt, str):
            headers.append(("receipt-id", receipt))
        headers += [("content-type", "text/plain"), ("content-length", str(len(body)))]
        lines = "".join([header_line(name, value, self.version) for name, value in headers])
        return f"ERROR\n{lines}\n".encode(errors="replace") + body + b"\0"

    def subscription(self, command: Subscribe, session: int) -> DeliveryFormat:  # noqa: ARG002
        """The facts of a subscription that `delivery` needs. `command` is one that `receive` gave."""
        known = command.token  # not looked up by id: an UNSUBSCRIBE that came in the same bytes has been read already
        assert isinstance(known, _Subscription)
        id = known.id if known.named else ""
        form = self._deliveries.format(id, known.index, known.acknowledges, known.destination)
        form.transformation = known.transformation
        if command.browse is not None and command.browse.in_runs:
            return runs.RunFormat(form, self.version, self._owner)
        return form

    def _write_as(self, version: str) -> None:
        self._deliveries = Deliveries(version, self._message_id_prefix, self._owner)
        self.delivery: Callable[[DeliveryFormat, Message, int], bytes] = self._deliveries.encode

    def large_delivery(self, subscription: DeliveryFormat, message: Message, redelivered: int) -> tuple[bytes, ...]:
        """The same, in pieces: the message's body is one of them."""
        message = plain(message)
        return self._deliveries.encode(subscription, message, redelivered, head_only=True), message.body, b"\0"

    def translation(self, subscription: DeliveryFormat) -> Translation:
        """The function by which a thread makes a message ready of which `delivery` raised CostlyError."""
        return Translation(subscription.transformation)

    def end_of_browse(self, subscription: DeliveryFormat) -> bytes:
        """Tells the client that it has seen everything."""
        return self._deliveries.end_of_browse(subscription)

    def deliveries(self, subscription: DeliveryFormat, messages: Sequence[Message]) -> tuple[bytes, int]:
        """Messages for one subscription, each for the first time, up to the first that is costly; and how many."""
        if isinstance(messages, MessageRun) and (frames := self._deliveries.encode_run(subscription, messages)):
            return frames, len(messages)
        return self._deliveries.encode_all(subscription, messages)

    def batch(self, subscription: DeliveryFormat, batch: MessageBatch) -> bytes:
        """Many messages for one subscription, each delivered for the first time."""
        return self._deliveries.encode_batch(subscription, batch)

    def may_repeat(self, until: int) -> None:
        """Clients of STOMP look for no duplicates."""

    def heartbeat(self) -> bytes:
        """The line end that says: I am alive."""
        return b"\n"


def _check_empty(frame: Frame) -> None:
    """Some clients write a line end there. Raises ProtocolError where it is more."""
    if frame.body.strip(b"\r\n"):
        raise ProtocolError(f"a {frame.command} frame must not have a body", code="BODY_UNEXPECTED")


def _receipt(headers: dict[str, str]) -> str | None:
    """The token of a command for its answer, None = nobody asks."""
    return headers.get("receipt") or None


def _missing(command: str, header: str) -> ProtocolError:
    return ProtocolError(f"{command} without the header {header}: add it", code="HEADER_MISSING")


def _unknown_id(command: str, header: str, value: str, source: str) -> ProtocolError:
    return ProtocolError(
        f"{command} with {header} {value[:100]!r}, which this connection never gave out: use {source}",
        code="ACK_ID_UNKNOWN",
    )


def _check_lengths(headers: dict[str, str]) -> None:
    """Raises ProtocolError where a header of a SEND is longer than the journal can store."""
    for name in ("content-type", "_AMQ_DUPL_ID"):
        if name in headers and len(headers[name].encode()) > SHORT_BYTES_MAX:
            raise ProtocolError(
                f"header {name} has more than {SHORT_BYTES_MAX} bytes, which is the most that can be stored: "
                "send a shorter one",
                code="HEADER_TOO_LONG",
            )


def _agreed(ours_ms: tuple[int, int], theirs_ms: tuple[int, int]) -> tuple[int, int]:
    """How often each side sends: each way the larger of what one side can do and the other wants; 0 = not at all. Each
    parameter is (what that side can do, what it wants)."""
    (we_can, we_want), (they_can, they_want) = ours_ms, theirs_ms
    return max(we_can, they_want) if we_can and they_want else 0, max(they_can, we_want) if they_can and we_want else 0


def _heartbeat_ms(text: str) -> tuple[int, int]:
    first, comma, second = text.partition(",")
    if not comma:
        raise ProtocolError(f"heart-beat {text[:40]!r} is not two numbers, as in 10000,10000", code="HEADER_INVALID")
    return _number("heart-beat", first.strip(), _INT32_MAX), _number("heart-beat", second.strip(), _INT32_MAX)


def _transaction(headers: dict[str, str]) -> str:
    """Takes the transaction out of `headers`; "" where there is none."""
    transaction = headers.pop("transaction", None)
    if transaction == "":
        raise ProtocolError("the transaction header is empty: name it, or leave the header out", code="HEADER_INVALID")
    return transaction or ""
