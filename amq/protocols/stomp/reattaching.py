"""Reattachment in STOMP 1.2: the headers of CONNECT and CONNECTED, and the frame RECEIVED, which both sides send: see
docs/stomp.md. Used by broker and client.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from amq.core.errors import ProtocolError
from amq.protocols.commands import Reattach, Reattachable
from amq.protocols.stomp.frame import Frame

WINDOW: Final = "amq-reconnect-window"
WINDOW_BYTES: Final = "amq-confirmation-window"
TOKEN: Final = "amq-reconnect-token"
RECEIVED_BYTES: Final = "amq-received"
REPEATS_FROM: Final = "amq-repeats-from"
RECEIVED: Final = "RECEIVED"
_COUNT_MAX: Final = 2**63 - 1


def asked(headers: Mapping[str, str]) -> Reattach | None:
    """The wish in a CONNECT, None = none. Raises ProtocolError."""
    if WINDOW not in headers:
        return None
    return Reattach(
        _count(headers, WINDOW),
        _count(headers, WINDOW_BYTES),
        headers.get(TOKEN, ""),
        _count(headers, RECEIVED_BYTES),
        _count(headers, REPEATS_FROM),
    )


def asking(reattach: Reattach) -> list[tuple[str, str]]:
    """The headers of CONNECT for it."""
    headers = [(WINDOW, str(reattach.window_ms)), (WINDOW_BYTES, str(reattach.window_bytes))]
    if reattach.token:
        headers += [(TOKEN, reattach.token), (RECEIVED_BYTES, str(reattach.received))]
        headers.append((REPEATS_FROM, str(reattach.repeats_from)))
    return headers


def granted(reattachable: Reattachable) -> list[tuple[str, str]]:
    """The headers of CONNECTED for it."""
    headers = [(TOKEN, reattachable.token), (WINDOW, str(reattachable.window_ms))]
    headers.append((WINDOW_BYTES, str(reattachable.window_bytes)))
    if reattachable.received is not None:
        headers.append((RECEIVED_BYTES, str(reattachable.received)))
    return headers


def answer(headers: Mapping[str, str]) -> Reattachable | None:
    """The grant in a CONNECTED, None = none. Raises ProtocolError."""
    if not headers.get(TOKEN):
        return None
    count = _count(headers, RECEIVED_BYTES) if RECEIVED_BYTES in headers else None
    return Reattachable(headers[TOKEN], _count(headers, WINDOW), _count(headers, WINDOW_BYTES), count)


def received(count: int) -> bytes:
    """The frame that confirms the first `count` bytes of the other side."""
    return b"RECEIVED\nbytes:%d\n\n\0" % count


def count_of(frame: Frame) -> int:
    """How many bytes a RECEIVED frame confirms. Raises ProtocolError."""
    return _count(frame.headers, "bytes")


def _count(headers: Mapping[str, str], name: str) -> int:
    text = headers.get(name, "0")
    if text.isascii() and text.isdecimal() and len(text) <= 19 and int(text) <= _COUNT_MAX:
        return int(text)
    raise ProtocolError(f"{name} {text[:40]!r} is not a number from 0 to {_COUNT_MAX}", code="HEADER_INVALID")
