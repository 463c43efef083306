"""The head of a message's record in a segment, with its framing: `records.message.FRAMED_MESSAGE`, for NumPy."""

from __future__ import annotations

import numpy as np

from amq.journal.records.message import FRAMED_MESSAGE

MESSAGE_HEAD = np.dtype(
    [
        ("size", "<u4"),
        ("crc", "<u4"),
        ("kind", "u1"),
        ("seq", "<i8"),
        ("queue", "<u4"),
        ("flags", "u1"),
        ("priority", "u1"),
        ("timestamp", "<i8"),
        ("expires", "<i8"),
        ("type_bytes", "<u2"),
        ("id_bytes", "<u2"),
        ("property_bytes", "<u4"),
    ]
)
assert MESSAGE_HEAD.itemsize == FRAMED_MESSAGE.size
