"""Detects from the first bytes of a connection which protocol a client speaks, so that one port can serve several.

Also names protocols that are not served (yet), for an error that says what happened instead of "garbage".
Invariant: at most `FIRST_BYTES_MAX` bytes are needed for an answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from amq.core.errors import ProtocolError

FIRST_BYTES_MAX: Final = 64

Signature = tuple[int | None, ...]  # bytes, None = any

_STOMP = (
    b"CONNECT STOMP SEND SUBSCRIBE UNSUBSCRIBE ACK NACK BEGIN COMMIT ABORT DISCONNECT CONNECTED MESSAGE RECEIPT ERROR"
).split()
_HTTP = b"GET HEAD POST PUT DELETE OPTIONS PATCH TRACE CONNECT PRI".split()
_MQTT_NAMES = (b"\x00\x04MQTT", b"\x00\x06MQIsdp")
_LENGTH_BYTES_MAX = 4  # of an MQTT "remaining length"

# Of protocols that are served, and of others that a client may try here.
SIGNATURES: Final[dict[str, tuple[Signature, ...]]] = {
    "stomp": tuple((*command, end) for command in _STOMP for end in b"\r\n"),
    "http": tuple((*method, *b" ") for method in _HTTP),
    "amqp": (tuple(b"AMQP"),),
    "openwire": ((0, None, None, None, 1, *b"ActiveMQ"),),
    "mqtt": tuple((0x10, *([None] * n), *name) for n in range(1, _LENGTH_BYTES_MAX + 1) for name in _MQTT_NAMES),
    "tls": ((0x16, 0x03),),
}
_KNOWN: Final = tuple((name, signature) for name, signatures in SIGNATURES.items() for signature in signatures)


def detect(first: bytes, served: Iterable[tuple[str, Signature]] = ()) -> str | None:
    """The name of the protocol that `first`, the bytes received so far, begins: of one of `served`, or of those known
    here.

    "stomp", "openwire", "amqp", "mqtt", "http", "tls"; None = more bytes are needed. ProtocolError: none of these.
    Line ends before a text protocol's first line are allowed for.
    """
    begun = first[:FIRST_BYTES_MAX].lstrip(b"\r\n")
    if not begun and len(first) < FIRST_BYTES_MAX:
        return None
    undecided = False
    for name, signature in (*served, *_KNOWN) if begun else ():
        if all(expected in (None, byte) for expected, byte in zip(signature, begun, strict=False)):
            if len(begun) >= len(signature):
                return name
            undecided = True
    if undecided and len(first) < FIRST_BYTES_MAX:
        return None
    raise ProtocolError(
        f"the first bytes {first[:16]!r} belong to no protocol that is known here: is this the right port?",
        code="PROTOCOL_UNKNOWN",
    )
