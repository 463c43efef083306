"""Detects from the first bytes of a connection which protocol a client speaks, so that one port can serve several.

Also names protocols that are not served (yet), for an error that says what happened instead of "garbage".
Invariant: at most `FIRST_BYTES_MAX` bytes are needed for an answer.
"""

from __future__ import annotations

from typing import Final

from amq.errors import ProtocolError

FIRST_BYTES_MAX: Final = 64

_Pattern = tuple[int | None, ...]  # None = any byte

_STOMP = (
    b"CONNECT STOMP SEND SUBSCRIBE UNSUBSCRIBE ACK NACK BEGIN COMMIT ABORT DISCONNECT "
    b"CONNECTED MESSAGE RECEIPT ERROR"
).split()
_HTTP = b"GET HEAD POST PUT DELETE OPTIONS PATCH TRACE CONNECT PRI".split()
_MQTT_NAMES = (b"\x00\x04MQTT", b"\x00\x06MQIsdp")
_LENGTH_BYTES_MAX = 4  # of an MQTT "remaining length"

_SIGNATURES: Final[tuple[tuple[str, _Pattern], ...]] = (
    *(("stomp", (*command, end)) for command in _STOMP for end in b"\r\n"),
    *(("http", (*method, *b" ")) for method in _HTTP),
    ("amqp", tuple(b"AMQP")),
    ("openwire", (0, None, None, None, 1, *b"ActiveMQ")),
    *(("mqtt", (0x10, *([None] * n), *name)) for n in range(1, _LENGTH_BYTES_MAX + 1) for name in _MQTT_NAMES),
    ("tls", (0x16, 0x03)),
)


def detect(first: bytes) -> str | None:
    """The name of the protocol that `first`, the bytes received so far, begins.

    "stomp", "openwire", "amqp", "mqtt", "http", "tls"; None = more bytes are needed. ProtocolError: none of these.
    Line ends before a text protocol's first line are allowed for.
    """
    begun = first[:FIRST_BYTES_MAX].lstrip(b"\r\n")
    if not begun and len(first) < FIRST_BYTES_MAX:
        return None
    undecided = False
    for name, pattern in _SIGNATURES if begun else ():
        if all(expected in (None, byte) for expected, byte in zip(pattern, begun, strict=False)):
            if len(begun) >= len(pattern):
                return name
            undecided = True
    if undecided and len(first) < FIRST_BYTES_MAX:
        return None
    raise ProtocolError(
        f"the first bytes {first[:16]!r} belong to no protocol that is known here: is this the right port?",
        code="PROTOCOL_UNKNOWN",
    )
