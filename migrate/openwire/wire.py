"""One connection to a broker that speaks OpenWire: bytes to commands, requests to answers, keep-alives. Pure: no I/O.

Invariants: each request gets its answer or the connection's end, never both; what the peer says before its
WireFormatInfo is taken for another protocol and named; nothing is sent on before both sides have agreed on a version.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from amq.client.errors import ConnectionLostError
from amq.core.errors import AccessError, AmqError, CommandError, ProtocolError
from amq.protocols.openwire import table
from amq.protocols.openwire.frames import Frames
from amq.protocols.openwire.hello import HELLO_BYTES_MAX, INACTIVITY_MS, MAGIC, VERSION_MIN, hello
from amq.protocols.openwire.primitives import decode_map
from amq.protocols.openwire.table import VERSION_MAX, Structure, Throwable, decode, frame, structure
from amq.protocols.openwire.wire import INT, FieldReader

FRAME_BYTES_MAX: Final = 1 << 30  # of a frame of a broker that announces no limit, or a higher one
SESSION: Final = 1
_RESPONSE_BYTES: Final = 10
SILENT_INTERVALS_MAX: Final = 2
_BEGIN: Final = bytes((table.WIRE_FORMAT_INFO,)) + MAGIC
_STRANGERS: Final = (
    (b"HTTP/", "HTTP: that is the port of its web console; name the one for JMS clients (61616)"),
    (b"ERROR", "STOMP: name the port for JMS clients (61616)"),
    (b"CONNECTED", "STOMP: name the port for JMS clients (61616)"),
    (b"AMQP", "AMQP: name the port for JMS clients (61616)"),
    (b"\x15\x03", "TLS: write ssl:// for this port"),
)
Answer = Callable[[Structure | AmqError], None]


class Wire:
    """`whose` = as errors name it. `on_dispatch` = called with each MessageDispatch. `frame_bytes_max`, `server` = what
    the peer says of itself; `version` = that both speak, 0 = it has not said anything yet."""

    def __init__(self, whose: str, connection: str, now: float) -> None:
        self.whose = whose
        self.id = structure(table.CONNECTION_ID, value=connection)
        self.connection = connection
        self.version = 0
        self.server = ""
        self.frame_bytes_max = FRAME_BYTES_MAX
        self.on_dispatch: Callable[[Structure], None] = lambda _found: None
        self.failure: AmqError | None = None
        self.waiting: dict[int, Answer] = {}  # by command id
        self._frames = Frames(HELLO_BYTES_MAX)
        self._command_id = 0
        self._interval_s = INACTIVITY_MS / 1000
        self._sent_at = self._heard_at = now
        self._out = [hello(FRAME_BYTES_MAX, "amq migrate")]
        self.out_bytes = 0

    # -- out

    def send(self, found: Structure, answer: Answer | None = None) -> int:
        """Send a command; `answer` is called with the response, or with the error that the peer gives. ValueError
        where it cannot be written, CommandError where it is larger than the peer takes."""
        self._command_id += 1
        found.fields["command_id"] = self._command_id
        found.fields["response_required"] = answer is not None
        data = frame(found, self.version)
        if len(data) - INT.size > self.frame_bytes_max:
            raise CommandError(
                f"{self.whose} takes frames of up to {self.frame_bytes_max} bytes (maxFrameSize), this one has "
                f"{len(data) - INT.size}: raise the limit of that broker",
                code="FRAME_TOO_LARGE",
            )
        if answer is not None:
            self.waiting[self._command_id] = answer
        self._out.append(data)
        self.out_bytes += len(data)
        return self._command_id

    def take_output(self, now: float) -> bytes:
        """The bytes to be written."""
        if not self._out:
            return b""
        data = b"".join(self._out)
        self._out.clear()
        self.out_bytes = 0
        self._sent_at = now
        return data

    def beat(self, now: float, listens: bool) -> None:
        """The time is `now`. `listens`: what the peer sends is read. Raises ConnectionLostError where it is silent."""
        if not listens:
            self._heard_at = now
        if not self.version or not self._interval_s:
            return
        if now - self._heard_at > self._interval_s * SILENT_INTERVALS_MAX:
            raise ConnectionLostError(f"{self.whose} has been silent for {now - self._heard_at:.0f} s")
        if now - self._sent_at > self._interval_s / 3:
            self.send(structure(table.KEEP_ALIVE_INFO))

    @property
    def beat_s(self) -> float:
        """So often `beat` is to be called."""
        return self._interval_s / 4 if self._interval_s else 3600.0

    # -- in

    def receive(self, data: bytes, now: float) -> None:
        """`data` has come. Raises AmqError where the connection cannot go on."""
        self._heard_at = now
        if not self.version and not self._frames.pending:
            self._check_protocol(data)
        self._frames.push(data)
        try:
            while (found := self._frames.next_frame()) is not None:
                self._take(found)
        except ValueError as error:
            raise ProtocolError(f"{self.whose} sends a command that is none: {error}", code="FRAME_INVALID") from error

    def _check_protocol(self, data: bytes) -> None:
        size, begin = data[: INT.size], data[INT.size : INT.size + len(_BEGIN)]
        if b"\0\0".startswith(size[:2]) and _BEGIN.startswith(begin):
            return
        words = data.lstrip(b"\r\n")
        said = next((name for first, name in _STRANGERS if words.startswith(first)), "another protocol")
        raise ProtocolError(f"{self.whose} does not answer in OpenWire but in {said}", code="PROTOCOL_UNKNOWN")

    def _take(self, data: bytes) -> None:
        type = data[0]
        if not self.version:
            self._agree(data)
        elif type == table.RESPONSE and len(data) == _RESPONSE_BYTES:
            answer = self.waiting.pop(INT.unpack_from(data, 6)[0], None)
            if answer is not None:
                answer(structure(table.RESPONSE))
        elif type == table.MESSAGE_DISPATCH:
            found = decode(data, self.version)
            # One without a message, which says that there is no more, names no destination.
            if found.get("consumer") is None or (found.get("message") and found.get("destination") is None):
                raise ValueError("a dispatch names no consumer, or no destination")
            self.on_dispatch(found)
        elif table.RESPONSE <= type <= table.INTEGER_RESPONSE:
            found = decode(data, self.version)
            answer = self.waiting.pop(found.get("correlation_id", 0), None)
            if answer is not None:
                answer(error_of(self.whose, found.get("exception")) if type == table.EXCEPTION_RESPONSE else found)
        elif type == table.KEEP_ALIVE_INFO:
            if decode(data, self.version).get("response_required"):
                self.send(structure(table.KEEP_ALIVE_INFO))
        elif type == table.CONNECTION_ERROR:
            raise error_of(self.whose, decode(data, self.version).get("exception"))
        elif type == table.CONSUMER_CONTROL and decode(data, self.version).get("close"):
            raise ConnectionLostError(f"{self.whose} has ended the consumer of this command")
        elif type == table.SHUTDOWN_INFO:
            raise ConnectionLostError(f"{self.whose} is about to stop")

    def _agree(self, data: bytes) -> None:
        reader = FieldReader(data)
        reader.take(1 + len(MAGIC))
        version, said = reader.integer(), decode_map(reader.optional_bytes())
        if version < VERSION_MIN:
            raise ProtocolError(
                f"{self.whose} speaks version {version} of OpenWire, this command {VERSION_MIN} to {VERSION_MAX}: it "
                "is ActiveMQ before 5.4; upgrade it first",
                code="VERSION_UNSUPPORTED",
            )
        self.version = min(version, VERSION_MAX)
        self.server = str(said.get("ProviderName", ""))
        limit, interval_ms = said.get("MaxFrameSize", FRAME_BYTES_MAX), said.get("MaxInactivityDuration", 0)
        if isinstance(limit, int) and 0 < limit < FRAME_BYTES_MAX:
            self.frame_bytes_max = limit
        if isinstance(interval_ms, int):
            self._interval_s = max(0, min(interval_ms, INACTIVITY_MS)) / 1000
        self._frames.bytes_max = FRAME_BYTES_MAX


def error_of(whose: str, thrown: Throwable | None) -> AmqError:
    """The exception that the broker tells as one of ours."""
    name, said = (thrown.name or "", thrown.message or "") if thrown is not None else ("", "")
    words = f"{whose}: {said or name or 'an error without a word'}"
    if name.endswith("SecurityException"):
        return AccessError(words, code="LOGIN_REFUSED" if "user" in said.lower() else "ACCESS_REFUSED")
    if name.endswith("InvalidClientIDException"):
        return AccessError(words, code="CLIENT_ID_IN_USE")
    code = "QUEUE_FULL" if name.endswith("ResourceAllocationException") else "COMMAND_REFUSED"
    return CommandError(words, code=code)
