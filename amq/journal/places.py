"""Places: where in the journal of a store messages stand, for clients that can read its files. Spec: docs/stomp.md.

Columns of numbers, of which each but the first is told as the difference to the one before, compressed: what was
written one after the other takes hardly more than nothing. Invariant: `unpack` gives what `pack` was given, or raises
ProtocolError; it never takes more memory than the number of messages that the caller expects.
"""

from __future__ import annotations

import base64
import operator
import struct
import sys
import zlib
from array import array
from collections.abc import Sequence
from itertools import accumulate, islice
from typing import NamedTuple

from amq.core.errors import ProtocolError

VERSION = 1
SEGMENTS_MAX = 1 << 16
_HEAD = struct.Struct("<BxxxIII")  # version, messages, segments, messages delivered before
_LEVEL = 1  # of compression: 0.03 µs a message


class MessagePlaces(NamedTuple):
    """Of messages, in the order in which they are delivered.

    seqs         of each
    segments     (epoch, number) of those in which they stand
    index        of each: which of `segments`
    offsets      of each: where its record begins, bytes
    sizes        of each: bytes of its record
    redelivered  position of each that was delivered before → how often
    """

    seqs: array[int]
    segments: list[tuple[int, int]]
    where: array[int]
    offsets: array[int]
    sizes: array[int]
    redelivered: dict[int, int]

    def __len__(self) -> int:
        return len(self.seqs)


def pack(
    seqs: Sequence[int], codes: array[int], offsets: array[int], sizes: array[int], redelivered: dict[int, int]
) -> str:
    """Pack places as text. `codes` of the segments, `sizes` of typecode I. About 0.2 µs a message."""
    used = sorted(set(codes))
    parts = [
        _HEAD.pack(VERSION, len(seqs), len(used), len(redelivered)),
        _bytes(array("Q", used)),
        _bytes(_differences(seqs)),
        _bytes(_differences(offsets)),
        _bytes(sizes),
    ]
    if len(used) > 1:
        rows = {code: row for row, code in enumerate(used)}
        parts.append(_bytes(array("H", map(rows.__getitem__, codes))))
    parts += [_bytes(array("I", redelivered)), _bytes(array("I", redelivered.values()))]
    return base64.b64encode(zlib.compress(b"".join(parts), _LEVEL)).decode("ascii")


def unpack(text: str, count: int) -> MessagePlaces:
    """The places of `count` messages. Raises ProtocolError."""
    size_max = _HEAD.size + 8 * SEGMENTS_MAX + (8 + 8 + 4 + 2 + 4 + 4) * count
    try:
        reader = zlib.decompressobj()
        data = reader.decompress(base64.b64decode(text, validate=True), size_max)
        version, found, used, known = _HEAD.unpack_from(data)
        if version != VERSION or found != count or reader.unconsumed_tail or used > SEGMENTS_MAX or known > count:
            raise ValueError(f"version {version}, {found} messages")
        at = _HEAD.size
        columns: list[array[int]] = []
        for code, rows in (
            ("Q", used),
            ("q", count),
            ("q", count),
            ("I", count),
            ("H", count if used > 1 else 0),
            ("I", known),
            ("I", known),
        ):
            column = array(code)
            stop = at + rows * column.itemsize
            if stop > len(data):
                raise ValueError("it ends too early")
            column.frombytes(data[at:stop])
            columns.append(_native(column))
            at = stop
    except (ValueError, zlib.error, struct.error) as error:
        raise ProtocolError(f"the places of messages are damaged: {error}") from error
    codes, seqs, offsets, sizes, index, positions, times = columns
    if used < 2:
        index = array("H", bytes(2 * count))
    if max(index, default=-1) >= used or max(positions, default=-1) >= count:
        raise ProtocolError("the places of messages are damaged: a segment or message is named that is not there")
    return MessagePlaces(
        array("q", accumulate(seqs)),
        [(code >> 32, code & 0xFFFFFFFF) for code in codes],
        index,
        array("q", accumulate(offsets)),
        sizes,
        dict(zip(positions, times, strict=True)),
    )


def _differences(numbers: Sequence[int]) -> array[int]:
    """The first, then what each is more than the one before."""
    found = array("q", numbers[:1])
    found.extend(map(operator.sub, islice(numbers, 1, None), numbers))
    return found


def _native(column: array[int]) -> array[int]:
    if sys.byteorder == "big":
        column.byteswap()
    return column


def _bytes(column: array[int]) -> bytes:
    if sys.byteorder == "big":
        column = column[:]
        column.byteswap()
    return column.tobytes()
