"""MESSAGE frames: what does not change within a subscription is prepared once, the rest is one formatting step.

Invariant: headers that the broker vouches for (`RESERVED`) come from the broker only, whatever properties a message
has, and no property, name or value, can end a header line or a frame.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from amq.core.message import DEFAULT_PRIORITY, MAP, TEXT, CostlyError, Lifted, Message, MessageBatch, headers, plain
from amq.core.message_run import MessageRun
from amq.core.ownership import given
from amq.core.remembered import Remembered
from amq.protocols.stomp.destination import wire_name
from amq.protocols.stomp.frame import escape
from amq.protocols.stomp.transformation import shown

# Never taken from a message's properties: the broker's own headers on a MESSAGE, and those that Message has fields for.
# (A header without a name is none.)
RESERVED: Final = frozenset(
    {
        "",
        "ack",
        "browser",
        "content-length",
        "content-type",
        "destination",
        "expires",
        "JMSXDeliveryCount",
        "message-id",
        "persistent",
        "priority",
        "receipt",
        "redelivered",
        "subscription",
        "timestamp",
        "transaction",
        "_AMQ_DUPL_ID",
    }
)

_NAMES_BYTES_MAX: Final = 256 << 10  # of names whose lines are remembered, for each connection
# 1.0 has no escapes: what would end a line, a name or the frame is replaced, or the message could not be delivered.
# Its readers trim names: a property " ack" must not become an `ack` header.
_CLEAN_VALUE = str.maketrans("\n\r\0", "   ")
_CLEAN_NAME = {ord(":"): "_"} | dict.fromkeys(range(ord(" ") + 1), "_")


def header_line(name: str, value: str, version: str) -> str:
    """A header line with its line end. Never fails: what 1.0 cannot carry is replaced (see docs/stomp.md)."""
    if version == "1.0":
        return f"{name.translate(_CLEAN_NAME)}:{value.translate(_CLEAN_VALUE)}\n"
    line = f"{name}:{value}\n"
    if line.count(":") == 1 and line.count("\n") == 1 and "\\" not in line and "\r" not in line:
        return line
    return f"{escape(name, version)}:{escape(value, version)}\n"


class DeliveryFormat:
    """The facts of a subscription that `Deliveries.encode` needs: the beginning of its MESSAGE frames."""

    __slots__ = ("ack", "destination", "head", "id", "start", "transformation")

    def __init__(self, start: str, head: str, ack: str, id: str = "", destination: str = "") -> None:
        self.id = id  # as the client calls it, "" = it gave none
        self.destination = destination
        self.transformation = ""  # of maps, "" = they are shown as plain JSON
        self.start = start.encode("utf-8", "replace")  # everything before `message-id`
        self.head = head  # everything up to the sequence number of `message-id`
        self.ack = ack  # everything of the `ack` header up to its sequence number, "" = no such header


class Deliveries:
    """Writes the MESSAGE frames of one connection, in the version that it speaks."""

    __slots__ = ("_bare", "_key", "_message_id_prefix", "_owner", "_version", "_wire_names")

    def __init__(self, version: str, message_id_prefix: str, owner: str) -> None:
        self._owner = owner
        self._version = version
        self._message_id_prefix = message_id_prefix
        self._key = ("stomp", version, message_id_prefix)  # of the part that is encoded once for all connections
        self._bare = DeliveryFormat("", header_line("message-id", message_id_prefix, version)[:-1], "")
        self._wire_names: Remembered[str] = Remembered(_NAMES_BYTES_MAX)  # full name → "\ndestination:…\ntimestamp:"

    def format(self, subscription: str, index: int, explicit_ack: bool, destination: str = "") -> DeliveryFormat:
        """The format for a subscription, which the client calls `subscription` ("" = no id) and the codec `index`."""
        version = self._version
        start = "MESSAGE\n"
        if subscription:
            start += header_line("subscription", subscription, version)
        head = start + header_line("message-id", self._message_id_prefix, version)[:-1]
        ack = f"\nack:{index}-" if version == "1.2" and explicit_ack else ""
        return DeliveryFormat(start, head, ack, subscription, destination)

    def encode(self, form: DeliveryFormat, message: Message, redelivered: int, head_only: bool = False) -> bytes:
        """The MESSAGE frame of one delivery; `redelivered` = how many times it was delivered before.

        `head_only`: what is in it before the body.
        """
        if form.transformation and not head_only:
            message = shown(message, form.transformation)
        elif message.shared is not None and message.shared.encoded is not None and not redelivered and not head_only:
            own = f"{form.ack[1:]}{message.seq}\n".encode() if form.ack else b""
            return b"%b%b%b" % (form.start, own, self._common(message))
        elif message.envelope is not None and message.envelope.__class__ is not Lifted:
            message = plain(message) if message.content != MAP else shown(message, "")
        seq = message.seq
        body = message.body
        ack = f"{form.ack}{seq}" if form.ack else ""
        destination = self._wire_names.get(message.destination) or self._wire_name(message.destination)
        optional = "persistent:true\n" if message.persistent else ""
        if message.content != TEXT or b"\0" in body:
            optional = f"{optional}content-length:{len(body)}\n"
        if message.priority != DEFAULT_PRIORITY:
            optional = f"{optional}priority:{message.priority}\n"
        if (
            message.content_type
            or message.duplicate_id
            or message.expires_ms
            or message.properties
            or redelivered
            or message.envelope is not None
        ):
            optional += self._rare_headers(message, redelivered)
        head = f"{form.head}{seq}{ack}{destination}{message.timestamp_ms}\n{optional}\n".encode("utf-8", "replace")
        return head if head_only else head + body + b"\0"

    def encode_all(self, form: DeliveryFormat, messages: Sequence[Message]) -> tuple[bytes, int]:
        """`encode` for each of `messages`, for the first time; but none from the first on that is costly. And how many
        these are.

        A message with no more than a body and properties, as nearly all, is written right here: it saves two calls of
        ten. Messages that came in a run share their properties, which are written once.
        """
        frames: list[bytes] = []
        head, ack, name, where = form.head, form.ack, "", ""
        shared: Message | None = None  # the last one with headers of its own, which are `lines`
        lines = ""
        try:
            for message in messages:
                body = message.body
                if (
                    message.envelope is not None
                    or message.shared is not None
                    or message.duplicate_id
                    or message.expires_ms
                    or message.priority != DEFAULT_PRIORITY
                    or form.transformation
                ):
                    frames.append(self.encode(form, message, 0))
                    continue
                if message.destination != name:
                    name = message.destination
                    where = self._wire_names.get(name) or self._wire_name(name)
                seq = message.seq
                optional = "persistent:true\n" if message.persistent else ""
                if message.content != TEXT or b"\0" in body:
                    optional = f"{optional}content-length:{len(body)}\n"
                if message.properties or message.content_type:
                    if (
                        shared is None
                        or message.properties is not shared.properties
                        or message.content_type != shared.content_type
                    ):
                        shared, lines = message, self._rare_headers(message, 0)
                    optional += lines
                own = f"{head}{seq}{ack}{seq}" if ack else f"{head}{seq}"
                start = f"{own}{where}{message.timestamp_ms}\n{optional}\n"
                frames.append(b"%b%b\0" % (start.encode("utf-8", "replace"), body))
        except CostlyError:
            pass
        return b"".join(frames), len(frames)

    def encode_run(self, form: DeliveryFormat, run: MessageRun) -> bytes:
        """`encode` for each of `run`, for the first time; b"" = that is not possible for all of them at once."""
        like = run.like
        is_text = like.content == TEXT
        if (
            (is_text and run.has_nul)
            or like.envelope is not None
            or like.duplicate_id
            or like.expires_ms
            or like.priority != DEFAULT_PRIORITY
            or form.transformation
        ):
            return b""
        where = self._wire_names.get(like.destination) or self._wire_name(like.destination)
        middle = "persistent:true\n" if like.persistent else ""
        rare = self._rare_headers(like, 0) if like.properties or like.content_type else ""
        marks = (form.head, form.ack, where, middle, rare)
        head, ack, name, middle, rare = (mark.replace("%", "%%") for mark in marks)
        numbers = f"{head}%d{ack}%d" if ack else f"{head}%d"
        length = "" if is_text else "content-length:%d\n"
        frame = f"{numbers}{name}%d\n{middle}{length}{rare}\n%b\0".encode("utf-8", "replace")
        seqs, columns = run.seqs, [run.times, run.bodies] if is_text else [run.times, map(len, run.bodies), run.bodies]
        rows = zip(*([seqs, seqs] if ack else [seqs]), *columns, strict=True)
        return b"".join([frame % row for row in rows])

    def end_of_browse(self, form: DeliveryFormat) -> bytes:
        """The MESSAGE frame, which is no message, that ends a browse; as ActiveMQ writes it."""
        lines = [("subscription", form.id)] if form.id else []
        lines += [("browser", "end"), ("destination", wire_name(form.destination, self._owner)), ("message-id", "0")]
        head = "".join([header_line(name, value, self._version) for name, value in lines])
        return f"MESSAGE\n{head}\n\0".encode("utf-8", "replace")

    def encode_batch(self, form: DeliveryFormat, batch: MessageBatch) -> bytes:
        """The MESSAGE frames of deliveries, each for the first time, to a subscription without explicit acks."""
        if form.transformation:
            return b"".join([self.encode(form, message, 0) for message in batch.messages])
        pieces = batch.encoded.get(self._key)
        if pieces is None:
            pieces = batch.encoded[self._key] = [b"", *map(self._common, batch.messages)]
        return form.start.join(pieces)

    def _common(self, message: Message) -> bytes:
        """Everything of a first delivery that is the same for all subscriptions: from the `message-id` on."""
        shared = message.shared
        assert shared is not None
        assert shared.encoded is not None
        common = shared.encoded.get(self._key)
        if common is None:
            seen = message
            if message.envelope is not None:
                seen = plain(message) if message.content != MAP else shown(message, "")
            head = self.encode(self._bare, seen, 0, head_only=True)
            common = shared.encoded[self._key] = head + seen.body + b"\0"
        return common

    def _rare_headers(self, message: Message, redelivered: int) -> str:
        version = self._version
        lines = []
        if message.expires_ms:
            lines.append(f"expires:{message.expires_ms}\n")
        if redelivered:
            lines.append(f"redelivered:true\nJMSXDeliveryCount:{redelivered + 1}\n")
        if message.content_type:
            lines.append(header_line("content-type", message.content_type, version))
        if message.duplicate_id:
            lines.append(header_line("_AMQ_DUPL_ID", given(message.duplicate_id), version))
        properties = message.properties if message.envelope is None else headers(message)
        if properties:
            for name, value in properties.items():
                if name not in RESERVED:
                    lines.append(header_line(name, value, version))  # type: ignore[arg-type]  # all of them are text
        return "".join(lines)

    def _wire_name(self, destination: str) -> str:
        line = header_line("destination", wire_name(destination, self._owner), self._version)
        return self._wire_names.keep(destination, f"\n{line}timestamp:", len(line))
