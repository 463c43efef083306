"""WireFormatInfo: the first words of both sides, which agree on version, limits and keep-alives.

Both sides announce; each takes the smaller version and the shorter interval, and of the switches only what both want.
So what this broker says decides: loose encoding, no cache, no stack traces. One encoded message then serves every
connection.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from amq.core.errors import ProtocolError
from amq.core.values import Int32
from amq.protocols.openwire.primitives import decode_map, encode_map
from amq.protocols.openwire.table import VERSION_MAX, WIRE_FORMAT_INFO
from amq.protocols.openwire.wire import INT, FieldReader, optional_bytes

MAGIC: Final = b"ActiveMQ"
HELLO_BYTES_MAX: Final = 4096
VERSION_MIN: Final = 6  # older ones lack fields without which a client cannot be served after a takeover
INACTIVITY_MS: Final = 30_000
INITIAL_DELAY_MS: Final = 10_000


class Hello(NamedTuple):
    """The agreement. `inactivity_ms` = a side that hears nothing for so long gives up; 0 = none does."""

    version: int
    inactivity_ms: int


def read_hello(data: bytes) -> Hello:
    """The agreement with a client by its WireFormatInfo, a frame without its size. Raises ValueError, ProtocolError."""
    reader = FieldReader(data)
    if reader.unsigned_byte() != WIRE_FORMAT_INFO or reader.take(len(MAGIC)) != MAGIC:
        raise ValueError("the first command is not a WireFormatInfo")
    version, said = reader.integer(), decode_map(reader.optional_bytes())
    if version < VERSION_MIN:
        raise ProtocolError(
            f"the client speaks version {version} of OpenWire, this broker {VERSION_MIN} to {VERSION_MAX}: use a newer "
            "client library",
            code="VERSION_UNSUPPORTED",
        )
    interval = said.get("MaxInactivityDuration", 0)
    return Hello(
        min(version, VERSION_MAX), max(0, min(interval, INACTIVITY_MS)) if isinstance(interval, int) else INACTIVITY_MS
    )


def hello(frame_bytes_max: int, server_name: str) -> bytes:
    """The broker's own WireFormatInfo, with its size."""
    options = encode_map(
        {
            "TightEncodingEnabled": False,
            "CacheEnabled": False,
            "StackTraceEnabled": False,
            "TcpNoDelayEnabled": True,  # without it the client waits for the acknowledgement of each small packet
            "SizePrefixDisabled": False,
            "CacheSize": Int32(0),
            "MaxInactivityDuration": INACTIVITY_MS,
            "MaxInactivityDurationInitalDelay": INITIAL_DELAY_MS,
            "MaxInactivityDurationInitialDelay": INITIAL_DELAY_MS,
            "MaxFrameSize": frame_bytes_max,
            "ProviderName": server_name,
        }
    )
    data = bytes((WIRE_FORMAT_INFO,)) + MAGIC + INT.pack(VERSION_MAX) + optional_bytes(options)
    return INT.pack(len(data)) + data
