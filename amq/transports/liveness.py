"""Liveness of an accepted TCP connection whose peer sends no heart-beats: a host that vanished says nothing more.

While nothing is unacknowledged the kernel probes the peer (TCP keep-alive) and ends the connection by itself. While
output is unacknowledged it does not probe, and retries for a quarter of an hour; `vanished` then asks the kernel what
it knows. TCP_USER_TIMEOUT would do both, but it also ends the connection of a living peer that does not read for
that long, as a slow consumer may.
"""

from __future__ import annotations

import socket
import struct
from typing import Protocol

KEEP_ALIVE_PROBES = 3
PROBES_UNANSWERED_MIN = 2  # of a peer whose window is full; one may be under way
_TCP_INFO_BYTES = 104
_RETRANSMITS_AT, _PROBES_AT, _LAST_ACK_AT = 2, 3, 56  # struct tcp_info of Linux


class TcpSocket(Protocol):
    """The part of a socket that is needed here; asyncio and uvloop have classes of their own."""

    @property
    def family(self) -> int: ...
    def fileno(self) -> int: ...
    def getsockopt(self, level: int, option: int, size: int, /) -> bytes: ...
    def setsockopt(self, level: int, option: int, value: int, /) -> None: ...


def watch(handle: TcpSocket, ttl_s: float) -> bool:
    """Let the kernel end the connection when an idle peer answers no probe for about `ttl_s` seconds.

    False where `handle` is not a TCP socket: nothing watches it then.
    """
    if handle.family not in (socket.AF_INET, socket.AF_INET6):
        return False
    interval_s = max(1, round(ttl_s / 2 / KEEP_ALIVE_PROBES))
    idle_s = max(1, round(ttl_s) - interval_s * KEEP_ALIVE_PROBES)
    handle.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    handle.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle_s)
    handle.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, interval_s)
    handle.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEP_ALIVE_PROBES)
    return True


def vanished(handle: TcpSocket, ttl_s: float) -> bool:
    """True when the peer has not acknowledged anything for `ttl_s` seconds although the kernel asked it again."""
    info = handle.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    if len(info) < _TCP_INFO_BYTES:
        return False
    asked = info[_RETRANSMITS_AT] > 0 or info[_PROBES_AT] >= PROBES_UNANSWERED_MIN
    (last_ack_ms,) = struct.unpack_from("=I", info, _LAST_ACK_AT)
    return asked and last_ack_ms >= ttl_s * 1000
