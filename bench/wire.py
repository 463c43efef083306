"""STOMP 1.2 over blocking sockets, just enough for measuring and checking a broker from outside.

Independent of `amq` on purpose: what checks the broker must not share its parser. `load.py` has its own faster way with
frames; everything that looks at single frames (takeover, recovery, soak) reads them here.
Spec: https://stomp.github.io/stomp-specification-1.2.html
"""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from typing import NamedTuple

RECV_BYTES = 1 << 18


class WireError(Exception):
    """The broker closed the connection, sent ERROR, or answered with something that is not STOMP."""


class WireFrame(NamedTuple):
    command: str
    headers: dict[str, str]
    body: bytes


def encode(command: str, headers: Mapping[str, object], body: bytes = b"") -> bytes:
    """One frame. Header values must need no escaping."""
    lines = "".join(f"{key}:{value}\n" for key, value in headers.items())
    return f"{command}\n{lines}\n".encode() + body + b"\0"


class WireFrameReader:
    """Bytes in, frames out. First header of a repeated name wins; heart-beats between frames are skipped."""

    def __init__(self) -> None:
        self._buffer = b""

    def feed(self, data: bytes) -> list[WireFrame]:
        buffer = self._buffer + data if self._buffer else data
        frames = []
        position = 0
        while True:
            while buffer[position : position + 1] in (b"\n", b"\r"):
                position += 1
            head_end = buffer.find(b"\n\n", position)
            if head_end < 0:
                break
            command, *lines = buffer[position:head_end].decode().split("\n")
            headers: dict[str, str] = {}
            for line in lines:
                key, _, value = line.partition(":")
                headers.setdefault(key, value)
            body_at = head_end + 2
            length = headers.get("content-length")
            end = body_at + int(length) if length is not None else buffer.find(b"\0", body_at)
            if end < 0 or end >= len(buffer):
                break
            if buffer[end] != 0:
                raise WireError(f"{command} frame does not end in NUL after {end - body_at} bytes of body")
            frames.append(WireFrame(command, headers, buffer[body_at:end]))
            position = end + 1
        self._buffer = buffer[position:]
        return frames


class WireConnection:
    """One STOMP connection. Methods raise `OSError` (`TimeoutError` included) or `WireError` when it is broken."""

    def __init__(
        self,
        port: int,
        host: str = "127.0.0.1",
        timeout_s: float = 10.0,
        login: str = "",
        passcode: str = "",
        want_heartbeat_ms: int = 0,
        client_id: str = "",
        instance: str = "",
    ) -> None:
        """`instance` = a name of this client object, which all its connections give."""
        self.port = port
        self.pending: list[WireFrame] = []
        self._reader = WireFrameReader()
        self.socket = socket.create_connection((host, port), timeout_s)
        try:
            self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            headers = {"accept-version": "1.2", "host": "/", "heart-beat": f"0,{want_heartbeat_ms}"}
            if login:
                headers |= {"login": login, "passcode": passcode}
            if client_id:
                headers["client-id"] = client_id
            if instance:
                headers["amq-client-instance"] = instance
            self.send("CONNECT", headers)
            self.connected = self.next_frame(timeout_s)
            if self.connected.command != "CONNECTED":
                raise WireError(f"CONNECT was answered by {self.connected.command}: {self.connected}")
        except BaseException:
            self.socket.close()
            raise

    def send(self, command: str, headers: Mapping[str, object], body: bytes = b"") -> None:
        self.socket.sendall(encode(command, headers, body))

    def send_bytes(self, data: bytes) -> None:
        self.socket.sendall(data)

    def read(self, timeout_s: float) -> list[WireFrame]:
        """Frames that have come in, waiting up to `timeout_s` for the first bytes. Empty = only part of a frame came.

        Raises TimeoutError when nothing came.
        """
        if self.pending:
            frames, self.pending = self.pending, []
            return frames
        self.socket.settimeout(max(timeout_s, 0.0005))
        data = self.socket.recv(RECV_BYTES)
        if not data:
            raise WireError("the broker closed the connection")
        frames = self._reader.feed(data)
        for frame in frames:
            if frame.command == "ERROR":
                raise WireError(f"ERROR from the broker: {frame.headers.get('message', '')} {frame.body[:200]!r}")
        return frames

    def next_frame(self, timeout_s: float) -> WireFrame:
        """The next frame, or TimeoutError after `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while True:
            frames = self.read(deadline - time.monotonic())
            if frames:
                self.pending = frames[1:]
                return frames[0]
            if time.monotonic() >= deadline:
                raise TimeoutError(f"no whole frame within {timeout_s} s")

    def receipt(self, receipt: str, timeout_s: float) -> list[WireFrame]:
        """Wait for the RECEIPT with that id; whatever came before it is returned."""
        before: list[WireFrame] = []
        deadline = time.monotonic() + timeout_s
        while True:
            frame = self.next_frame(deadline - time.monotonic())
            if frame.command == "RECEIPT" and frame.headers.get("receipt-id") == receipt:
                return before
            before.append(frame)

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> WireConnection:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
