"""STOMP frames: bytes ↔ (command, headers, body), for versions 1.0, 1.1 and 1.2, for either side of a connection.

    COMMAND EOL *(name ":" value EOL) EOL *OCTET NUL *(EOL)         EOL = LF or CR LF

Invariants: a reader never buffers more than its `FrameLimits` allow and refuses a frame as soon as it is known to
exceed them; its work is linear in the bytes fed, however they are cut into chunks; whatever the bytes, it yields frames
or ends in one `ProtocolError`. A body that comes in pieces is gathered in the very bytes that the frame then has: there
is not a second copy. Specifications: https://stomp.github.io (stomp-specification-1.0, -1.1, -1.2).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from io import BytesIO
from typing import Final

from amq.core.errors import ProtocolError

VERSIONS: Final = ("1.0", "1.1", "1.2")
COMMAND_BYTES_MAX: Final = 16  # the longest command of the specifications has 11

# These are written before the peers have agreed on a version, so their headers are never escaped.
UNESCAPED_COMMANDS: Final = frozenset({"CONNECT", "STOMP", "CONNECTED"})
_COMMANDS: Final = frozenset(
    {
        "ABORT",
        "ACK",
        "BEGIN",
        "COMMIT",
        "CONNECT",
        "CONNECTED",
        "CREDIT",
        "DISCONNECT",
        "ERROR",
        "MESSAGE",
        "MESSAGES",
        "NACK",
        "RECEIPT",
        "SEND",
        "SENDMANY",
        "STOMP",
        "SUBSCRIBE",
        "UNSUBSCRIBE",
    }
)
# Content-length counts in these. Clients answer with all headers of a MESSAGE, and in any other frame no body follows.
_WITH_BODIES: Final = frozenset({"ERROR", "MESSAGE", "MESSAGES", "SEND", "SENDMANY"})
LINE_END_BYTES: Final = 2  # may be where no body may be

_EOLS = re.compile(rb"[\r\n]*")
_ESCAPED = re.compile(r"\\(.?)", re.DOTALL)
_TRIMMED = " \t\r"  # may surround a name or value in 1.0, whose own examples write `login: <username>`
_UNESCAPES: dict[str, dict[str, str]] = {
    "1.0": {},
    "1.1": {"\\": "\\", "n": "\n", "c": ":"},
    "1.2": {"\\": "\\", "n": "\n", "c": ":", "r": "\r"},
}
_ESCAPES = {
    version: str.maketrans({character: "\\" + letter for letter, character in table.items()})
    for version, table in _UNESCAPES.items()
}


@dataclass(frozen=True, slots=True)
class FrameLimits:
    """The limits of one frame. A frame that exceeds a limit is a fatal `ProtocolError`.

    header_count_max        headers of a frame
    header_bytes_max        one header line
    header_block_bytes_max  command and all header lines together
    body_bytes_max          the body
    """

    header_count_max: int = 1000
    header_bytes_max: int = 10 * 1024
    header_block_bytes_max: int = 64 * 1024
    body_bytes_max: int = 100 * 1024 * 1024


# A client should accept these: a delivery is larger than the SEND that it came from, by the headers that the broker
# adds and by escapes where the sender's version needed none. The broker limits the size of a body (`maxFrameSize`).
DELIVERY_LIMITS: Final = FrameLimits(
    header_count_max=1100,
    header_bytes_max=24 * 1024,
    header_block_bytes_max=256 * 1024,
    body_bytes_max=1 << 30,
)


class Frame:
    """One frame. `headers` are unescaped, in the order sent; of a repeated header the first occurrence counts."""

    __slots__ = ("body", "command", "headers")

    def __init__(self, command: str, headers: dict[str, str], body: bytes = b"") -> None:
        self.command = command
        self.headers = headers
        self.body = body

    def __repr__(self) -> str:
        return f"<Frame {self.command} {self.headers!r} {len(self.body)} B>"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Frame):
            return NotImplemented
        return (self.command, self.headers, self.body) == (other.command, other.headers, other.body)

    __hash__ = None  # type: ignore[assignment]


def escape(text: str, version: str) -> str:
    """`text` (a header's name or value) as `version` writes it. 1.0 has no escapes."""
    return text.translate(_ESCAPES[version])


def unescape(text: str, version: str) -> str:
    """The reverse of `escape`. ProtocolError for an escape that `version` does not define; 1.0 has no escapes."""
    table = _UNESCAPES[version]
    if not table or "\\" not in text:
        return text

    def replace(match: re.Match[str]) -> str:
        character = table.get(match[1])
        if character is None:
            raise ProtocolError(
                f"undefined escape {match[0]!r} in a header: STOMP {version} knows only "
                + " ".join("\\" + letter for letter in table),
                code="ESCAPE_UNDEFINED",
            )
        return character

    return _ESCAPED.sub(replace, text)


def encode(command: str, headers: Iterable[tuple[str, str]], body: bytes = b"", version: str = "1.2") -> bytes:
    """The bytes of a frame. `content-length` is the caller's: without it the body ends at its first NUL.

    ValueError when the frame cannot be written in `version`: a line break (or a colon in a name) where nothing is
    escaped (1.0, CONNECT, CONNECTED), or a NUL in a body without content-length.
    """
    escaped = version != "1.0" and command not in UNESCAPED_COMMANDS
    lines = [command]
    measured = False
    for name, value in headers:
        measured = measured or name == "content-length"
        if escaped:
            name, value = escape(name, version), escape(value, version)
        elif "\n" in name or "\n" in value or ":" in name:
            raise ValueError(f"header {name!r} holds a character that {command} of STOMP {version} cannot carry")
        if not name:
            raise ValueError("a header needs a name")
        lines.append(f"{name}:{value}")
    if not measured and b"\0" in body:
        raise ValueError("a body that holds a NUL needs a content-length header")
    return b"%b\n\n%b\0" % ("\n".join(lines).encode(), body)


class FrameReader:
    """Turns a stream of bytes into frames.

    Use `feed`, or `push` and then `next_frame` until it gives None when a frame changes how the next must be read
    (`version` may be set between two frames). Neither raises: once the stream is broken, `error` says why, frames that
    were complete before have been handed out, and everything further is ignored.

    version     how headers are unescaped; the default also fits frames before CONNECTED, which have no escapes
    error       the ProtocolError that ended the stream, or None
    unfinished  the frame whose headers are known and whose body is not complete (also: in whose body `error` occurred)
    buffer, offset
                bytes from `offset` on are pushed and not consumed; between frames a caller may consume whole frames
                itself by moving `offset`
    """

    __slots__ = ("_body", "_length", "_scanned", "buffer", "error", "limits", "offset", "unfinished", "version")

    def __init__(self, limits: FrameLimits | None = None, version: str = "1.2") -> None:
        self.limits = limits or FrameLimits()
        self.version = version
        self.error: ProtocolError | None = None
        self.unfinished: Frame | None = None
        self.buffer = b""
        self.offset = 0
        self._scanned = 0  # bytes of the buffer in which the end of the headers is known not to be
        self._body: BytesIO | None = None  # of the unfinished frame, as far as it came
        self._length = -1  # of the unfinished frame's body, -1 = up to the first NUL

    def feed(self, data: bytes) -> list[Frame]:
        """Frames completed by `data`, all read as `version`."""
        self.push(data)
        return list(iter(self.next_frame, None))

    def push(self, data: bytes) -> None:
        """Take `data` in; `next_frame` then gives what it completed."""
        if self.error is None:
            rest = self.buffer[self.offset :] if self.offset else self.buffer
            self.buffer = rest + data if rest else data
            self.offset = 0

    def clear(self) -> None:
        """All that was pushed has been read."""
        self.buffer, self.offset, self._scanned = b"", 0, 0

    @property
    def pending(self) -> bool:
        """True while a frame has begun and is not complete. (Line ends between frames begin nothing.)"""
        return self.error is None and (self.unfinished is not None or self.offset < len(self.buffer))

    def next_frame(self) -> Frame | None:
        """The next complete frame; None when more bytes are needed or `error` is set."""
        if self.error is not None:
            return None
        try:
            if self.unfinished is None and not self._read_headers():
                return None
            return self._read_body()
        except ProtocolError as error:
            self.error = error.with_traceback(None)  # a traceback would hold this reader
            self.buffer, self.offset, self._body = b"", 0, None
            return None

    def _read_headers(self) -> bool:
        match = _EOLS.match(self.buffer, self.offset)
        assert match is not None
        buffer, start = self.buffer, match.end()
        if start:  # not where the last call stopped: line ends came first, or the caller consumed a frame
            self._scanned = 0
        begin = start + max(0, self._scanned - 2)  # the blank line may have been cut in two
        bound = start + self.limits.header_block_bytes_max + 3
        end = buffer.find(b"\n\n", begin, bound)
        end_crlf = buffer.find(b"\n\r\n", begin, bound if end < 0 else end + 2)
        if end < 0 and end_crlf < 0:
            # Compact: what is left is less than a header block, or it is refused here.
            self.buffer, self.offset = buffer[start:], 0
            if start == len(buffer):
                return False
            self._check_unfinished_headers(self._scanned)
            self._scanned = len(self.buffer)
            return False
        self._scanned = 0
        block = buffer[start:end] if end_crlf < 0 else buffer[start:end_crlf]
        self.offset = end + 2 if end_crlf < 0 else end_crlf + 3
        try:
            self._check_lines(block, block.count(b"\n"))
            if len(block) > self.limits.header_block_bytes_max:
                raise self._header_block_too_big()
        except ProtocolError:
            check_command(_first_line(block))  # a reader of pieces reports a wrong command first
            raise
        self.unfinished = frame = parse_header_block(block, self.version)
        self._length = self._content_length(frame)
        return True

    def _check_unfinished_headers(self, scanned: int) -> None:
        block = self.buffer
        check_command(_first_line(block))
        if block.find(b"\n", scanned) >= 0:
            self._check_lines(block, block.count(b"\n") - 1)
        elif len(block) - block.rfind(b"\n") - 1 > self.limits.header_bytes_max:
            raise self._header_line_too_long()
        if len(block) > self.limits.header_block_bytes_max + len(b"\n\r"):
            raise self._header_block_too_big()

    def _check_lines(self, block: bytes, header_count: int) -> None:
        limits = self.limits
        if len(block) > limits.header_bytes_max and max(map(len, block.split(b"\n"))) > limits.header_bytes_max:
            raise self._header_line_too_long()
        if header_count > limits.header_count_max:
            raise ProtocolError(
                f"a frame has more than {limits.header_count_max} headers: send fewer, or put them into the body",
                code="HEADERS_TOO_MANY",
            )

    def _header_line_too_long(self) -> ProtocolError:
        return ProtocolError(
            f"a header line is longer than {self.limits.header_bytes_max} bytes: put long values into the body",
            code="HEADER_TOO_LONG",
        )

    def _header_block_too_big(self) -> ProtocolError:
        return ProtocolError(
            f"the headers of a frame take more than {self.limits.header_block_bytes_max} bytes: "
            "put long values into the body",
            code="HEADERS_TOO_BIG",
        )

    def _content_length(self, frame: Frame) -> int:
        text = frame.headers.get("content-length")
        if text is None or (frame.command not in _WITH_BODIES and frame.command in _COMMANDS):
            return -1
        if not (text.isascii() and text.isdecimal()):
            raise ProtocolError(f"content-length {text[:40]!r} is not a number of bytes", code="CONTENT_LENGTH_INVALID")
        digits = text.lstrip("0") or "0"
        if len(digits) > 19 or int(digits) > self.limits.body_bytes_max:
            raise self._body_too_big(f"content-length {digits[:20]} says a body")
        return int(digits)

    def _body_too_big(self, what: str) -> ProtocolError:
        if self.limits.body_bytes_max <= LINE_END_BYTES and self.unfinished is not None:
            why = f"a {self.unfinished.command[:20]} frame must not have a body here"
            return ProtocolError(why, code="BODY_UNEXPECTED")
        return ProtocolError(
            f"{what} larger than {self.limits.body_bytes_max} bytes: split the message, or raise the broker's limit",
            code="BODY_TOO_BIG",
        )

    def _read_body(self) -> Frame | None:
        frame, buffer, start, length = self.unfinished, self.buffer, self.offset, self._length
        assert frame is not None
        body = self._body
        before = body.tell() if body is not None else 0
        if length < 0:
            end = buffer.find(b"\0", start)
            stop = len(buffer) if end < 0 else end
            if before + stop - start > self.limits.body_bytes_max:
                raise self._body_too_big("a body is")
        else:
            stop = min(start + length - before, len(buffer))
            end = stop if stop < len(buffer) else -1
            if end >= 0 and buffer[end]:
                raise ProtocolError(
                    f"no NUL after the {length} bytes of body that content-length gives: count bytes, not characters",
                    code="FRAME_UNTERMINATED",
                )
        if end < 0:
            if body is None:
                self._body = body = BytesIO()
            body.write(buffer[start:stop])
            self.buffer, self.offset = b"", 0
            return None
        if body is not None:
            body.write(buffer[start:stop])
            frame.body = body.getvalue()  # hands over its own bytes: it copies only what somebody writes to again
            self._body = None
        else:
            frame.body = buffer[start:stop]
        self.offset = end + 1
        self.unfinished = None
        return frame


def _first_line(block: bytes) -> bytes:
    """The first line, as far as it tells whether it is a command."""
    return block[: COMMAND_BYTES_MAX + 2].split(b"\n", 1)[0].removesuffix(b"\r")


def check_command(line: bytes) -> None:
    """ProtocolError unless `line` could be (the beginning of) a STOMP command."""
    if len(line) > COMMAND_BYTES_MAX or not (line.isalpha() and line.isupper()):
        raise ProtocolError(
            f"expected a STOMP frame, found {line[:COMMAND_BYTES_MAX]!r}: is this the right port and protocol?",
            code="FRAME_INVALID",
        )


def parse_header_block(block: bytes, version: str) -> Frame:
    """The frame (without body) of a header block: command and header lines, without the blank line that ends them."""
    try:
        text = block.decode()
    except UnicodeDecodeError as error:
        check_command(_first_line(block))  # a reader of pieces reports a wrong command first
        why = f"headers are not UTF-8: {error.reason} at byte {error.start}"
        raise ProtocolError(why, code="HEADER_INVALID") from None
    lines = text.split("\n")
    command = lines[0].removesuffix("\r")
    if command not in _COMMANDS:
        check_command(command.encode())
    unescaped = command in UNESCAPED_COMMANDS
    # In 1.2 a CR is always part of a line end. Before, it is data, unless this frame's lines evidently end in CR LF.
    if "\r" in text and (version == "1.2" or unescaped or lines[0] != command):
        lines = [line.removesuffix("\r") for line in lines]
        if version == "1.2" and not unescaped and any("\r" in line for line in lines):
            raise ProtocolError("a header holds a bare carriage return: escape it as \\r", code="HEADER_INVALID")
    headers: dict[str, str] = {}
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if version == "1.0":
            name, value = name.strip(_TRIMMED), value.strip(_TRIMMED)
        elif "\\" in line and not unescaped:
            name, value = unescape(name, version), unescape(value, version)
        if not colon or not name:
            raise ProtocolError(f"header line {line[:60]!r} is not name:value", code="HEADER_INVALID")
        if name not in headers:
            headers[name] = value
    return Frame(command, headers)
