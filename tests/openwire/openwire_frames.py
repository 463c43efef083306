"""As much of OpenWire as tests of others' clients need: frames, and which of them answer a request."""

from __future__ import annotations

from collections.abc import Iterator

RESPONSES = (30, 31, 32, 33, 34)  # Response, ExceptionResponse, DataResponse, DataArrayResponse, IntegerResponse


def frames(data: bytes) -> Iterator[bytes]:
    """The whole frames in `data`, which begins with one, without their sizes."""
    at = 0
    while at + 4 <= len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        if at + 4 + size > len(data):
            return
        yield data[at + 4 : at + 4 + size]
        at += 4 + size


def has_response(data: bytes) -> bool:
    """Does a request's answer lie in these frames?"""
    return any(frame[0] in RESPONSES for frame in frames(data))
