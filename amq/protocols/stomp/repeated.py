"""SEND frames of a transaction that follow each other with the very same headers: read once, not once a message.

That is what a producer of many messages writes. Invariant: what is taken here is what the general path would have read;
whatever is not exactly so, a frame that is not complete among it, is left to that.
"""

from __future__ import annotations

from collections.abc import Callable

from amq.message import Message
from amq.protocols.commands import Command, Send, SendMany


def take(
    data: bytes, position: int, block: bytes, like: Send, body_bytes_max: int, append: Callable[[Command], None]
) -> int:
    """Take the frames at `position` whose command, headers and blank line are `block`, as those of `like` were. Returns
    where they end."""
    first = like.message
    if like.receipt or first.properties is not None or first.duplicate_id or not data.startswith(block, position):
        return position
    messages: list[Message] = []
    size, step = len(data), len(block)
    length = len(first.body) if b"\ncontent-length:" in block else -1
    destination, priority, persistent = first.destination, first.priority, first.persistent
    expires_ms, text, content_type = first.expires_ms, first.text, first.content_type
    while data.startswith(block, position):
        start = position + step
        stop = start + length if length >= 0 else data.find(b"\0", start)
        if not 0 <= stop < size or data[stop] or stop - start > body_bytes_max:
            break
        body = data[start:stop]
        messages.append(
            Message(destination, body, None, content_type, priority, persistent, 0, expires_ms, "", text)
        )
        position = stop + 1
    if messages:
        append(SendMany(messages, like.transaction))
    return position
