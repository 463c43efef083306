"""SEND frames of a transaction that follow each other with the very same headers: read once, not once a message.

A producer of many messages writes such frames. Invariant: a frame that is taken here is the one that the general path
would have read. All other frames, and incomplete ones, are left to the general path.
"""

from __future__ import annotations

from collections.abc import Callable

from amq.core.message import Message
from amq.protocols.commands import Command, Send, SendMany

WINDOW_BYTES = 64 << 10  # searched at once for frames without content-length


def take(
    data: bytes, position: int, block: bytes, like: Send, body_bytes_max: int, append: Callable[[Command], None]
) -> int:
    """Take the frames at `position` whose command, headers and blank line are `block`, as those of `like` were. Returns
    where they end."""
    first = like.message
    if like.receipt or first.properties is not None or first.duplicate_id or first.envelope is not None:
        return position
    if not data.startswith(block, position):
        return position
    if b"\ncontent-length:" in block:
        bodies = _measured(data, position, block, len(first.body))
    else:
        bodies = _terminated(data, position, block, body_bytes_max)
    if bodies:
        alike = Message.made_of(first, first.destination, None)
        alike.body = b""
        append(SendMany(alike, bodies, like.transaction))
    return position + len(bodies) * (len(block) + 1) + sum(map(len, bodies))


def _measured(data: bytes, position: int, block: bytes, length: int) -> list[bytes]:
    """Bodies of this many bytes, whatever is in them."""
    bodies, size, step = [], len(data), len(block)
    while data.startswith(block, position):
        start = position + step
        position = start + length + 1
        if position > size or data[position - 1]:
            break
        bodies.append(data[start : position - 1])
    return bodies


def _terminated(data: bytes, position: int, block: bytes, body_bytes_max: int) -> list[bytes]:
    """Bodies that end at their first NUL. Looked for in windows: however the frames change, the work is linear."""
    bodies: list[bytes] = []
    behind = b"\0" + block
    while data.startswith(block, position):
        window = data[position + len(block) : position + WINDOW_BYTES]
        *some, last = window.split(behind)
        if window.count(b"\0") - last.count(b"\0") > len(some) or body_bytes_max < WINDOW_BYTES:
            for i, body in enumerate(some):
                if b"\0" in body or len(body) > body_bytes_max:  # something else stands behind it
                    some, last = some[:i], body
                    break
        body, end, _ = last.partition(b"\0")
        if end and len(body) <= body_bytes_max:
            some.append(body)
        if not some:
            break
        bodies += some
        position += (len(block) + 1) * len(some) + sum(map(len, some))
    return bodies
