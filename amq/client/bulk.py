"""Many messages in one call: their frames in one piece, without a step for each where all heads are the same.

Only in a transaction, so none of them asks for a receipt or needs an id: its commit or prepare tells how all ended.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from amq.client.core import VERSION, ProducerCore, as_bytes, rare_headers
from amq.core.errors import CommandError
from amq.core.message import DEFAULT_PRIORITY, LARGE_BODY_BYTES
from amq.protocols.stomp.frame import escape

PIECE_MESSAGES = 1000  # written at once
PIECE_BYTES = 1 << 20
TEXT = b"\namq-msg-type:text"  # of a body with a length, which else is bytes

Headers = Sequence[Mapping[str, object] | None]


def send(
    core: ProducerCore,
    bodies: Sequence[bytes],
    headers: Headers | None,
    text: bool,
    persistent: bool,
    priority: int,
    expires_ms: int,
) -> None:
    """Write `bodies`, none of which is large alone or together; `SessionCore.may_send` must have been true."""
    session = core.session
    if not session.transacted:
        raise CommandError("only a transacted session sends many messages in one call: session(transacted=True)")
    head = (
        f"SEND\ndestination:{escape(core.destination, VERSION)}\npersistent:{'true' if persistent else 'false'}\n"
        f"transaction:{session.current().name}"
    ).encode() + rare_headers(None, priority, expires_ms, "")
    machine = session.machine
    if len(bodies) == 1 and len(bodies[0]) > LARGE_BODY_BYTES:
        head += rare_headers(headers[0] if headers else None, DEFAULT_PRIORITY, 0, "") + (TEXT if text else b"")
        machine.write(b"%b\ncontent-length:%d\n\n" % (head, len(bodies[0])), bodies[0])
    else:
        machine.write(encode(head, bodies, headers, text))


def encode(head: bytes, bodies: Sequence[bytes], headers: Headers | None, text: bool) -> bytes:
    """SEND frames of these bodies, which all begin with `head` (without a line end)."""
    if headers is None:
        length = len(bodies[0])
        if text:
            start = head + b"\n\n"
            frames = start + (b"\0" + start).join(bodies) + b"\0"
            if frames.count(b"\0") == len(bodies):
                return frames
        elif all(len(body) == length for body in bodies):
            start = b"%b\ncontent-length:%d\n\n" % (head, length)
            return start + (b"\0" + start).join(bodies) + b"\0"
        extras = [b""] * len(bodies)
    else:
        extras = [rare_headers(extra, DEFAULT_PRIORITY, 0, "") if extra else b"" for extra in headers]
    return b"".join(
        [
            b"%b%b\n\n%b\0" % (head, extra, body)
            if text and b"\0" not in body
            else b"%b%b%b\ncontent-length:%d\n\n%b\0" % (head, extra, TEXT if text else b"", len(body), body)
            for extra, body in zip(extras, bodies, strict=True)
        ]
    )


def checked(bodies: Sequence[bytes], headers: Headers | None) -> Sequence[bytes]:
    """`bodies` as bytes. Raises CommandError where one is of another type, or `headers` are not as many."""
    if headers is not None and len(headers) != len(bodies):
        raise CommandError(f"{len(bodies)} bodies and headers for {len(headers)}: give one entry to each body")
    if set(map(type, bodies)) <= {bytes}:
        return bodies
    return [as_bytes(body, "bytes, .encode() and text=True for str") for body in bodies]


def pieces(bodies: Sequence[bytes]) -> list[slice]:
    """Divide `bodies` into parts to be written at once: a thousand, or a mebibyte, or one larger body alone."""
    if len(bodies) <= PIECE_MESSAGES and sum(map(len, bodies)) <= PIECE_BYTES:
        return [slice(0, len(bodies))] if bodies else []
    found, start, size = [], 0, 0
    for i, body in enumerate(bodies):
        if i > start and (i - start == PIECE_MESSAGES or size + len(body) > PIECE_BYTES):
            found.append(slice(start, i))
            start, size = i, 0
        size += len(body)
    found.append(slice(start, len(bodies)))
    return found
