"""One TCP connection to one broker as the state machine sees it: bytes out, frames in, heart-beats. No I/O."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from amq.client.uri import BrokerUri
from amq.core.errors import ProtocolError
from amq.protocols.commands import Reattach
from amq.protocols.stomp import reattaching, runs
from amq.protocols.stomp.frame import DELIVERY_LIMITS, Frame, FrameReader, encode
from amq.protocols.stomp.locating import CLUSTER
from amq.protocols.stomp.recurring import Recurring
from amq.transports.window import IDLE_BYTES, Window, step_bytes

VERSION = "1.2"
BROKERS_RECEIPT = "brokers"  # no request has such an id: theirs are numbers
SILENT_INTERVALS_MAX = 2  # a broker that misses this many of its heart-beats counts as lost
SLICE_BYTES = 256 << 10  # of a large body
HANDSHAKE_BODY_BYTES_MAX = 1 << 20  # of an ERROR that a server sends before it has accepted us
LATE_S = 0.1  # a look at the clock that comes later than this says more about this process than about the broker
PIECE_BYTES = 1 << 20  # written at once where there is one
_RECEIPT = b"RECEIPT\nreceipt-id:"
_RECEIPT_END = b"\n\n\0"


class Link:
    """The state of one TCP connection.

    out         bytes to be written, taken with `take_output`
    sliced      a large body, in slices, is among them: take on only when what was taken is written
    deadline    monotonic seconds when the step under way (TCP connection, handshake) has taken too long, or None
    accepted    CONNECTED has arrived
    looks_up    the driver waits for the addresses of the host
    dropped     the machine has done with it: whatever the driver still hears of it is ignored
    congested   set by the driver while the kernel takes no more bytes: senders wait
    cluster     the id of the cluster of which this broker is a gateway, "" = of none
    takes_runs  the broker knows frames of many messages
    window      what the broker may lack of our bytes; None = when the socket breaks, the broker keeps nothing for us
    token       with which another link goes on where this one broke, "" = none can
    kept_s      for so long
    """

    __slots__ = (
        "_again",
        "_last_received_at",
        "_last_sent_at",
        "_reader",
        "_receive_limit_s",
        "_received_bytes",
        "_recurring",
        "_send_every_s",
        "_step",
        "_told_bytes",
        "accepted",
        "cluster",
        "congested",
        "deadline",
        "dropped",
        "kept_s",
        "looks_up",
        "out",
        "server",
        "sliced",
        "takes_runs",
        "token",
        "uri",
        "window",
    )

    def __init__(self, uri: BrokerUri, deadline: float) -> None:
        self.uri = uri
        self.out: list[bytes | memoryview] = []
        self.sliced = False
        self.deadline: float | None = deadline
        self.accepted = False
        self.dropped = False
        self.looks_up = False
        self.congested = False
        self.server = ""
        self.cluster = ""
        self.takes_runs = False
        self.window: Window | None = None
        self.token = ""
        self.kept_s = 0.0
        self._again: list[bytes] = []  # the broker lacks it: it goes out before `out`
        self._received_bytes = self._told_bytes = 0  # that have come; that the broker knows to have come
        self._step = 0  # after this many it is told
        self._reader = FrameReader(replace(DELIVERY_LIMITS, body_bytes_max=HANDSHAKE_BODY_BYTES_MAX), VERSION)
        self._recurring = Recurring()
        self._send_every_s = 0.0
        self._receive_limit_s = 0.0
        self._last_sent_at = 0.0
        self._last_received_at = 0.0

    def ask(self, window_ms: int, window_bytes: int, lost: Link | None) -> list[tuple[str, str]]:
        """The headers of CONNECT that ask the broker to keep what we hold when the socket breaks, and to give back what
        it keeps of `lost`."""
        self.window = Window(window_bytes)
        if lost is None:
            return reattaching.asking(Reattach(window_ms, window_bytes))
        assert lost.window is not None
        asked = Reattach(window_ms, window_bytes, lost.token, lost._received_bytes, lost.window.start)
        return reattaching.asking(asked)

    def accept(self, connected: Frame, now: float, lost: Link | None = None) -> bool:
        """Take over what CONNECTED says. True: this link goes on where `lost` broke. ProtocolError when the broker
        speaks no version of ours."""
        version = connected.headers.get("version", "1.0")
        if version != VERSION:
            raise ProtocolError(f"{self.uri} answers in STOMP {version}, this client needs {VERSION}")
        granted = reattaching.answer(connected.headers)
        offered = self.uri.options.heart_beat_ms
        sends_ms, wants_ms = _heart_beat(connected.headers.get("heart-beat", "0,0"))
        if offered and wants_ms:
            self._send_every_s = max(offered, wants_ms) / 2000  # twice as often as promised: a late thread is no death
        if offered and sends_ms:
            self._receive_limit_s = max(offered, sends_ms) / 1000 * SILENT_INTERVALS_MAX
        self._last_sent_at = self._last_received_at = now
        self.server = connected.headers.get("server", "")
        self.cluster = connected.headers.get(CLUSTER, "")
        self.takes_runs = runs.is_asked(connected.headers)
        self.accepted = True
        self.deadline = None
        self._reader.limits = replace(DELIVERY_LIMITS, body_bytes_max=self.uri.options.max_frame_size)
        if granted is None:
            self.window = None
            return False
        self.token, self.kept_s = granted.token, granted.window_ms / 1000
        self._step = step_bytes(granted.window_bytes)
        if granted.received is None or lost is None:
            return False
        self._go_on(lost, granted.received)
        return True

    def _go_on(self, lost: Link, received_bytes: int) -> None:
        """The broker has this many bytes of `lost`, and says from here on what we lack."""
        window, rest = lost.window, self._reader.buffer[self._reader.offset :]
        if window is None or not window.covers(received_bytes):
            raise ProtocolError(f"{self.uri} says that it has {received_bytes} bytes of ours, which cannot be")
        self._again = window.since(received_bytes)
        self.out, lost.out = lost.out, []
        self.sliced, lost.sliced = lost.sliced, False
        self.window, lost.window = window, None
        self._told_bytes = lost._received_bytes
        self._received_bytes = lost._received_bytes + len(rest)
        self._reader, self._recurring = lost._reader, lost._recurring
        self._reader.push(rest)

    def confirmed(self, frame: Frame) -> None:
        """The broker says how many bytes of ours it has. Raises ProtocolError."""
        count = reattaching.count_of(frame)
        if self.window is not None:
            self.window.confirm(count)

    def give_up(self) -> None:
        """Nobody knows how much of what was taken is written: no link can go on where this one breaks."""
        self.window, self.token = None, ""

    def _tell_received(self) -> None:
        self._told_bytes = self._received_bytes
        self.out.append(reattaching.received(self._told_bytes))

    @property
    def silence_s_max(self) -> float:
        """So long the broker may be silent, as negotiated; 0 = for ever."""
        return self._receive_limit_s

    def receive(self, data: bytes, now: float) -> Iterator[Frame | bytes]:
        """Frames completed by `data`; a plain RECEIPT as the bytes of its id. Raises ProtocolError after the last."""
        self._last_received_at = now
        self._received_bytes += len(data)
        self._reader.push(data)
        if self.token and self._received_bytes - self._told_bytes >= self._step:
            self._tell_received()
        while True:
            reader, recurring = self._reader, self._recurring  # others once CONNECTED is read, where we go on
            if reader.unfinished is None:
                while (frame := recurring.take(reader)) is not None:
                    yield frame
                buffer, offset = reader.buffer, reader.offset
                while buffer.startswith(_RECEIPT, offset):  # the bulk of what a producer gets: not worth a Frame
                    start = offset + len(_RECEIPT)
                    end = buffer.find(b"\n", start)
                    if end < 0 or buffer[end : end + 3] != _RECEIPT_END:
                        break
                    offset = end + 3
                    if buffer.startswith(b"\n", offset):
                        offset += 1
                    reader.offset = offset
                    yield buffer[start:end]
            frame = reader.next_frame()
            if frame is None:
                break
            if frame.command == "MESSAGE":
                recurring.learn(frame)
            yield frame
        if reader.error is not None:
            if self.accepted and reader.error.code == "BODY_TOO_BIG":
                raise ProtocolError(
                    f"{self.uri} sends a message with a body of more than {self.uri.options.max_frame_size} bytes: set "
                    "maxFrameSize in the broker URL to that of the brokers",
                    code="FRAME_TOO_LARGE",
                ) from reader.error
            raise reader.error

    def put(self, frame: bytes, body: bytes) -> None:
        """A frame to be written. Where its body is large it comes apart and is not copied: `frame` is then its head."""
        if not body:
            self.out.append(frame)
            return
        view = memoryview(body)
        slices = [view[start : start + SLICE_BYTES] for start in range(0, len(view), SLICE_BYTES)]
        self.sliced = True
        self.out += [frame, *slices, b"\0"]  # in one step: a signal's handler may raise between two

    def take_output(self, now: float) -> bytes:
        """Take the bytes that wait to be written, in one piece: all, or about `PIECE_BYTES` while `sliced`."""
        out, window = self.out, self.window
        if self._again:
            data, self._again = b"".join(self._again), []
            return data
        if not out:
            return b""
        self._last_sent_at = now
        if not self.sliced:
            data = b"".join(out)
            if window is not None:
                window.push(data)
            out.clear()
            return data
        count = size = 0
        while size < PIECE_BYTES and count < len(out):
            size += len(out[count])
            count += 1
        data = b"".join(out[:count])
        if window is not None:
            window.push(data)
        del out[:count]
        self.sliced = bool(out)
        return data

    def forget_output(self) -> None:
        """Nothing of it can be written any more, unless another link goes on where this one broke."""
        if not self.token:
            self.out.clear()
            self.sliced = False

    def beat(self, now: float) -> None:
        """Write a heart-beat if one is due. ProtocolError when the broker was silent for too long."""
        due = self.next_deadline()
        if due is not None and now - due > LATE_S:  # this process was held up: what came meanwhile is not read yet
            self._last_received_at = min(now, self._last_received_at + now - due)
        if self._receive_limit_s and now - self._last_received_at >= self._receive_limit_s:
            silent_s = now - self._last_received_at
            raise ProtocolError(f"{self.uri} was silent for {silent_s:.1f} s", code="HEART_BEAT_MISSED")
        if self._send_every_s and now - self._last_sent_at >= self._send_every_s:
            if self.token and self._received_bytes - self._told_bytes >= IDLE_BYTES:
                self._tell_received()
            elif not self.out:  # else it stands behind a large body that goes out slowly, and would come too late
                self.out.append(b"\n")
            self._last_sent_at = now

    def next_deadline(self) -> float | None:
        """When the machine must be woken for this link: monotonic seconds, None = never."""
        if not self.accepted:
            return self.deadline
        times = []
        if self._send_every_s:
            times.append(self._last_sent_at + self._send_every_s)
        if self._receive_limit_s:
            times.append(self._last_received_at + self._receive_limit_s)
        return min(times, default=None)


@dataclass(frozen=True)
class OpenLink:
    """Begin a TCP connection to `link.uri`; report `opened` or `failed`."""

    link: Link


@dataclass(frozen=True)
class Close:
    """Write what `link` still has to say, as far as that is possible at once, then close its socket."""

    link: Link


@dataclass(frozen=True)
class Fetch:
    """Read the list of brokers at `source`, a path or a URL; report `fetched`."""

    source: str


@dataclass(frozen=True)
class Keep:
    """Write `text` to the file `path`, beside everything else."""

    path: str
    text: str


Action = OpenLink | Close | Fetch | Keep


def connect_frame(
    uri: BrokerUri, login: str, passcode: str, client_id: str, instance: str, learns: bool = False
) -> bytes:
    """The CONNECT frame. Login and passcode of the URI win over those of the application, whose passcode also serves
    the same login in a URI. `instance` tells the broker that an older connection is ours and given up, before it
    notices itself. `learns`: it shall tell us each change of its group.

    Raises ValueError if one of them holds a line break, which CONNECT cannot carry.
    """
    options = uri.options
    headers = [("accept-version", VERSION), ("host", options.virtual_host or uri.host)]
    headers.append(("heart-beat", f"{options.heart_beat_ms},{options.heart_beat_ms}"))
    if uri.login:
        login, passcode = uri.login, uri.passcode or (passcode if login in ("", uri.login) else "")
    if login:
        headers += [("login", login), ("passcode", passcode)]
    if client_id:
        headers.append(("client-id", client_id))
    headers.append(("amq-client-instance", instance))
    headers.append((runs.HEADER, runs.VERSION))
    if learns:
        headers.append(("amq-brokers-receipt", BROKERS_RECEIPT))
    return encode("CONNECT", headers)


def with_headers(connect: bytes, headers: list[tuple[str, str]]) -> bytes:
    """A CONNECT frame with further headers."""
    lines = "".join(f"{name}:{value}\n" for name, value in headers)
    return connect.removesuffix(b"\n\0") + lines.encode() + b"\n\0"


def _heart_beat(text: str) -> tuple[int, int]:
    sends, _, wants = text.partition(",")
    if not (sends.strip().isdecimal() and wants.strip().isdecimal() and len(text) < 32 and text.isascii()):
        raise ProtocolError(f"heart-beat {text[:40]!r} of CONNECTED is not two numbers")
    return int(sends), int(wants)
