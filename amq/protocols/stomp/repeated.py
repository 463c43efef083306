"""SEND and ACK frames that follow each other with the same headers: read once, not once a message.

A producer of many messages writes such frames, in a transaction or with a receipt for each, and so does a consumer.
They come in one read, or one by one: `Shapes` remembers the heads of a connection that came before.
Invariant: a frame that is taken here is the one that the general path would have read. All other frames, and incomplete
ones, are left to the general path.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, NamedTuple

from amq.core.destination import QUEUE_SCHEME
from amq.core.message import Message
from amq.protocols.commands import Command, Send, SendMany, SendRun
from amq.protocols.stomp.transformation import TRANSFORMATION

WINDOW_BYTES = 64 << 10  # searched at once for frames without content-length
AGAIN = b"SEND\n"  # one that follows may belong to a run
RECEIPT: Final = b"\nreceipt:"
RECEIPT_BYTES: Final = len(RECEIPT)
SHAPES_MAX = 16  # of a connection
MET_MAX = 64  # heads of which only the hash is kept, until they are met again
_TRANSFORMATION = f"\n{TRANSFORMATION}:".encode()
_HEAD_BYTES_MAX = 1 << 10  # of a shape, and of the memory that its properties take
_BODY_BYTES_MAX = 16 << 10  # of a message in a run: beside larger bodies the steps do not count
_SEQ_DIGITS_MAX = 19
_ACK_END = b"\n\n\0"
_ALIKE_MIN, _ALIKE_MORE = 8, 4  # frames that are taken at once, at first; times as many each time


class Shape(NamedTuple):
    """The facts that the messages of frames with the same head share, whatever their receipts are.

    like    the message but for its body; not to be stored or changed
    length  of the body, -1 = it ends at the first NUL
    """

    like: Message
    length: int


class Shapes(dict[bytes, Shape]):
    """The shapes of the SEND frames of one connection outside transactions, by their heads without the values of their
    receipts. A head is learned when it is met the second time, so those that never come again cost little. Holds at
    most `SHAPES_MAX`."""

    __slots__ = ("_met",)

    def __init__(self) -> None:
        super().__init__()
        self._met: set[int] = set()

    def meet(self, head: bytes, send: Send, body: bytes) -> None:
        """A frame with this head and body, which has no shape, is `send`."""
        met, seen = self._met, hash(head)
        if seen not in met:
            if len(met) >= MET_MAX:
                met.clear()
            met.add(seen)
            return
        message = send.message
        if (
            send.transaction
            or send.__class__ is not Send
            or message.duplicate_id
            or _TRANSFORMATION in head  # which depends on the body
            or max(len(head), message.header_bytes) > _HEAD_BYTES_MAX
        ):
            return
        if len(self) >= SHAPES_MAX:
            self.clear()
        self[head] = Shape(message.with_body(b""), len(body) if b"\ncontent-length:" in head else -1)


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
        append(SendMany(first.with_body(b""), bodies, like.transaction))
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


def run(
    data: bytes, begin: int, start: int, stop: int, first: Send, block_max: int, body_bytes_max: int, frames_max: int
) -> tuple[Command, int, int]:
    """The run that begins with `first`, which is no part of a transaction: its frame begins at `begin` of `data`, its
    body at `start`, and ends at `stop`. At most `frames_max` frames follow, with heads of at most `block_max` bytes and
    bodies of at most `body_bytes_max`.
    Returns `first` alone, or all that differ from it in body and receipt only; where they end; how many follow it."""
    message, receipt, position = first.message, first.receipt, stop + 1
    length = stop - start
    if (
        not message.destination.startswith(QUEUE_SCHEME)  # what goes to a topic is routed message by message
        or message.envelope is not None
        or message.duplicate_id
        or length > _BODY_BYTES_MAX
    ):
        return first, position, 0
    block = data[begin:start]
    if _TRANSFORMATION in block:
        return first, position, 0
    bodies, size = [message.body], len(data)
    receipts: list[object] = [receipt]
    has_length = b"\ncontent-length:" in block
    before, mark, rest = block.partition(RECEIPT) if receipt is not None else (block, b"", b"")
    head, tail = before + mark, rest[rest.find(b"\n") :]
    body_bytes_max = min(body_bytes_max, _BODY_BYTES_MAX)
    until = 1  # number of bodies from which frames are tried at once again
    while len(bodies) <= frames_max and data.startswith(head, position):
        if has_length and len(bodies) >= until and size - position >= _ALIKE_MIN * (stop - begin):
            position = _take_alike(data, position, head, tail, length, block_max, frames_max, bodies, receipts)
            until = len(bodies) + _ALIKE_MIN
            continue
        at = end = position + len(head)
        if receipt is not None:
            end = data.find(b"\n", at, position + block_max)
            if end <= at or not data.startswith(tail, end):
                break
        body_at = end + len(tail)
        if has_length:
            body_end = body_at + length
        else:
            body_end = data.find(b"\0", body_at, body_at + body_bytes_max + 1)
        if not body_at <= body_end < size or data[body_end] or body_at - position > block_max:
            break
        if receipt is not None:
            token = data[at:end]
            if b"\\" in token or b"\r" in token or not token.isascii():
                break
            receipts.append(token.decode())
        bodies.append(data[body_at:body_end])
        position = body_end + 1
    if len(bodies) == 1:
        return first, position, 0
    return SendRun(message.with_body(b""), bodies, receipts if receipt is not None else None), position, len(bodies) - 1


def _take_alike(
    data: bytes,
    position: int,
    head: bytes,
    tail: bytes,
    length: int,
    block_max: int,
    frames_max: int,
    bodies: list[bytes],
    receipts: list[object],
) -> int:
    """Add `bodies` and `receipts` of the frames at `position` that have as many bytes as the first of them, since their
    receipts are equally long: all at once, without a step for each. Returns where they end. More frames are tried each
    time, so those that turn out to be different are few beside those that are taken."""
    has_receipt = head.endswith(RECEIPT)
    at = position + len(head)
    width = data.find(b"\n", at, position + block_max) - at if has_receipt else 0
    block_bytes = len(head) + width + len(tail)
    step = block_bytes + length + 1
    if width < has_receipt or block_bytes > block_max:
        return position
    frames = struct.Struct(f"{len(head)}s{width}s{len(tail)}s{length}sc")
    count, view = _ALIKE_MIN, memoryview(data)
    while True:
        count = min(count, frames_max + 1 - len(bodies), (len(data) - position) // step)
        if count < _ALIKE_MIN:
            return position
        stop = position + count * step
        heads, tokens, tails, found, ends = zip(*frames.iter_unpack(view[position:stop]), strict=True)
        if not heads.count(head) == tails.count(tail) == ends.count(b"\0") == count:
            return position
        if has_receipt:
            joined = b"\n".join(tokens)
            if joined.count(b"\n") >= count or b"\\" in joined or b"\r" in joined or not joined.isascii():
                return position
            receipts += joined.decode().split("\n")
        bodies += found
        position = stop
        count *= _ALIKE_MORE


def acks(data: bytes, position: int, index: str, seq: int, frames_max: int) -> tuple[list[int], int]:
    """`seq`, and those of the ACK frames from `position` on that differ from its own in their seq alone, at most
    `frames_max`; and where they end. `index` = that of their subscription."""
    head = f"ACK\nid:{index}-".encode()
    step, seqs = len(head), [seq]
    if len(data) - position > _ALIKE_MIN * step and data.startswith(head, position):  # all at once: no step for each
        stop = position + frames_max * (step + _SEQ_DIGITS_MAX + len(_ACK_END))
        *found, last = data[position + step : stop].split(_ACK_END + head)
        last, end, _ = last.partition(_ACK_END)
        if end and last.isdigit():
            found.append(last)
        del found[frames_max:]
        if b"" not in found and b"".join(found).isdigit() and max(map(len, found)) <= _SEQ_DIGITS_MAX:
            seqs += map(int, found)
            position += len(found) * (step + len(_ACK_END)) + sum(map(len, found))
    while len(seqs) <= frames_max and data.startswith(head, position):
        end_at = data.find(_ACK_END, position + step, position + step + _SEQ_DIGITS_MAX + len(_ACK_END))
        digits = data[position + step : end_at]
        if end_at < 0 or not digits.isdigit():
            break
        seqs.append(int(digits))
        position = end_at + len(_ACK_END)
    return seqs, position
