"""LinkSocket: one end's socket of a link: hello, frames, signs of life, and the work of a round.

Invariants: a stranger has `HELLO_S` to prove that it knows the secret; an end that hears nothing for `SILENCE_S` gives
the link up; output is written by the turn, once, or by a gateway before that (`hurry`); frames are taken for a share of
a round, as the commands of any other connection (`amq.transports.shares`), and the socket is not read while some wait.
"""

from __future__ import annotations

import asyncio
import os
import socket as sockets
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Protocol, cast

import structlog

from amq.core.errors import AmqError
from amq.doors.clock import Clock
from amq.link.calls import numbered
from amq.link.framing import LINK, Kind, LinkError, LinkFrame, LinkFrames, framed
from amq.link.hello import LinkHello
from amq.transports.hub import PeerTurn
from amq.transports.shares import FRAMES_MAX, FULL_READS_MAX

HELLO_S: Final = 10.0
GOODBYE_S: Final = 1.0  # to read why it was refused
BEAT_S: Final = 5.0
SILENCE_S: Final = 30.0
SECOND_LOOK_S: Final = 1.0  # a host that was held up reads what came meanwhile before it gives a link up
OUTPUT_BYTES_MAX: Final = 1 << 20  # that the socket has not taken: connections are held back then
FULL_READ_BYTES: Final = 200_000
PIECES_MAX: Final = 1024  # of one call of the kernel
_log = structlog.get_logger("amq.link")


class LinkHub(Protocol):
    """The surroundings that a link needs."""

    clock: Clock
    loop: asyncio.AbstractEventLoop

    @property
    def turn(self) -> PeerTurn: ...


class LinkOwner(Protocol):
    """One end of a link."""

    def begun(self, name: str) -> None:
        """The other end, at the address `name`, has proved that it knows the secret."""

    def take(self, frame: LinkFrame) -> None:
        """Raises LinkError."""

    def taken(self, until_s: float) -> None:
        """All frames of a share have been taken: carry out what they ask for until then, monotonic."""

    def flush(self) -> None:
        """The turn is about to write."""

    def set_full(self, full: bool) -> None:
        """The other end does not read, or it does again."""

    def ended(self, error: AmqError) -> None:
        """The link is gone; the last call."""


class LinkSocket(asyncio.Protocol):
    """Implements `amq.transports.hub.Sender` and `amq.transports.shares.Worker`."""

    output_bytes = 0  # its owner says when to `hurry`

    def __init__(
        self,
        hub: LinkHub,
        hello: LinkHello,
        owner: LinkOwner,
        begins: bool,
        manager: Callable[[], asyncio.Protocol] | None = None,
    ) -> None:
        """`begins`: this end speaks first. `manager()` makes the protocol that goes on where the other end is a
        manager; the owner hears no more then."""
        self._hub = hub
        self._hello = hello
        self._owner: LinkOwner | None = owner
        self._begins = begins
        self._manager = manager
        self._frames = LinkFrames()
        self._waiting: deque[LinkFrame] = deque()  # that were received, and not yet taken
        self._out: list[bytes | memoryview] = []
        self._has_pieces = False  # there are long ones in `_out`
        self._fd = -1  # of a socket to which bytes are written as they are
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._heard_s = 0.0  # monotonic
        self._has_spoken = False  # since the last beat
        self._seems_silent = False
        self._full_reads = 0  # in this round
        self._is_paused = False
        self._is_stopped = False  # nothing is read any more
        self._is_finishing = False
        self._waits_for_other = False  # which is to close
        self._is_writing = False
        self.name = ""  # of the other end

    # -- asyncio.Protocol ---------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(OUTPUT_BYTES_MAX)
        peer: Any = transport.get_extra_info("peername")
        self.name = f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else "a socket of this host"
        found = transport.get_extra_info("socket")
        if found is not None and not self._hub.turn.is_gated and transport.get_extra_info("sslcontext") is None:
            self._fd = found.fileno()
        self._heard_s = self._hub.clock.monotonic()
        self._timer = self._hub.loop.call_later(HELLO_S, self._too_late)
        if self._begins:
            self.write(self._hello.begin())

    def data_received(self, data: bytes) -> None:
        owner = self._owner
        if owner is None or self._is_stopped:
            return
        self._heard_s = self._hub.clock.monotonic()
        self._seems_silent = False
        try:
            if not self._hello.is_done:
                data = self._greet(data, owner)
            frames = self._frames.receive(data) if data else []
        except LinkError as error:
            self.fail(error)
            return
        if len(data) >= FULL_READ_BYTES:
            self._full_reads += 1
            if self._full_reads == 1:
                self._hub.loop.call_soon(self._begin_round)
        is_behind = bool(self._waiting)
        self._waiting += frames
        if frames and not is_behind:
            self._work(self._hub.turn.shares.until_s(self._heard_s))
        self._read_or_not()

    def _greet(self, data: bytes, owner: LinkOwner) -> bytes:
        """Returns the bytes behind the hello. Raises LinkError."""
        try:
            answer, rest = self._hello.receive(data)
        except LinkError as error:
            if error.code == "LINK_VERSION" and not self._begins:
                self.write(self._hello.begin())  # so the other end can say why
            raise
        if answer:
            self.write(answer)
        if self._hello.is_done:
            assert self._timer is not None
            self._timer.cancel()
            if self._hello.manages and self._manager is not None:
                self._hand_on(self._manager(), rest)
                return b""
            self._timer = self._hub.loop.call_later(BEAT_S, self._beat)
            owner.begun(self.name)
        return rest

    def _hand_on(self, protocol: asyncio.Protocol, rest: bytes) -> None:
        """Another protocol goes on with this socket, behind the hello."""
        transport, self._transport, self._owner = self._transport, None, None
        assert transport is not None
        transport.write(b"".join(self._out))
        self._out.clear()
        transport.set_write_buffer_limits()
        transport.set_protocol(protocol)
        protocol.connection_made(transport)
        if rest:
            protocol.data_received(rest)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        if self._owner is not None:
            self._owner.set_full(True)

    def resume_writing(self) -> None:
        if self._owner is not None:
            self._owner.set_full(False)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport, self._fd = None, -1
        if self._begins and self._hello.has_heard and not self._hello.is_done:
            text = (
                f"{self.name} closed the link after the proof of this end: it stops, or it has another secret; give "
                "all nodes of the cluster the same linkSecretFile"
            )
            self._end(LinkError(text, code="LINK_REFUSED"))
        else:
            self._end(LinkError(f"the link to {self.name} broke: {exc or 'the other end closed it'}", code="LINK_LOST"))

    # -- the end ------------------------------------------------------------------------------------------------------

    def fail(self, error: AmqError) -> None:
        """The link cannot go on. The rest of the hello is still sent."""
        transport = self._transport
        if transport is not None and self._out and not self._hello.is_done:
            self._is_finishing = True
            self._hub.loop.call_later(GOODBYE_S, transport.abort)
        elif transport is not None:
            transport.abort()
        self._end(error)

    def finish(self) -> None:
        """Say what there is to say, then close."""
        self._is_finishing = True
        self.has_output()
        self._end(LinkError(f"the link to {self.name} was closed", code="LINK_LOST"))

    def part(self, last: bytes) -> None:
        """Say `last`, then wait for the other end to close: to close first would throw away what it has not read.
        Nothing that it says is heard."""
        self._is_finishing = self._waits_for_other = True
        self._end(LinkError(f"the link to {self.name} was closed", code="LINK_LOST"))
        self.write(last)
        self._is_stopped, self._full_reads = False, 0
        self._read_or_not()
        self._hub.loop.call_later(GOODBYE_S, self.abort)

    @property
    def is_open(self) -> bool:
        return self._transport is not None

    def abort(self) -> None:
        """Close at once; what is pending is thrown away."""
        self._out.clear()
        if self._transport is not None:
            self._transport.abort()
        self._end(LinkError(f"the link to {self.name} was closed", code="LINK_LOST"))

    def cut(self) -> None:
        """Shut the socket down, from any thread; the event loop notices when it can."""
        transport = self._transport
        found = transport.get_extra_info("socket") if transport is not None else None
        descriptor = found.fileno() if found is not None else -1
        if descriptor < 0:
            return
        handle = sockets.socket(fileno=descriptor)
        try:
            with suppress(OSError):  # it was closed already
                handle.shutdown(sockets.SHUT_RDWR)
        finally:
            handle.detach()

    def _end(self, error: AmqError) -> None:
        owner, self._owner = self._owner, None
        if owner is None:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._waiting.clear()
        self._hub.turn.shares.forget(self)
        if not self._is_finishing:
            self._out.clear()
        owner.ended(error)

    # -- output -------------------------------------------------------------------------------------------------------

    def write(self, data: bytes, *more: bytes | memoryview) -> None:
        """Send it at the end of the turn."""
        if not self._out and not self._is_writing:
            self.has_output()
        self._out.append(data)
        if more:
            self._out += more
            self._has_pieces = True

    def has_output(self) -> None:
        """The turn shall call `send_out`."""
        self._hub.turn.unsent[self] = None
        self._hub.turn.wake()

    def send_out(self, now: bool = False) -> None:  # noqa: ARG002
        """Called by the turn."""
        if self._owner is not None:
            self._is_writing = True
            self._owner.flush()
            self._is_writing = False
        transport = self._transport
        if transport is None or transport.is_closing():
            self._out.clear()
            return
        if self._out:
            out, self._out = self._out, []
            self._has_spoken = True
            if self._has_pieces:
                self._has_pieces = False
                transport.writelines(out)
            else:
                transport.write(b"".join(out))
        if self._is_finishing and not self._waits_for_other:
            transport.close()

    def hurry(self) -> None:
        """Write long pieces before the turn does: for an end that holds nothing back. The other end then works while
        this one goes on with the round. The transport keeps what the socket does not take."""
        transport = self._transport
        if not self._has_pieces or self._fd < 0 or transport is None or transport.is_closing():
            return
        if transport.get_write_buffer_size():
            return  # the socket is full
        out, self._out, self._has_pieces = self._out, [], False
        try:
            written = os.writev(self._fd, out[:PIECES_MAX])
        except OSError:  # full or broken: the transport finds that out too, and knows what to do
            written = 0
        self._has_spoken = True
        at = 0
        while at < len(out) and written >= len(out[at]):
            written -= len(out[at])
            at += 1
        if at < len(out):
            transport.writelines([memoryview(out[at])[written:], *out[at + 1 :]])

    # -- input --------------------------------------------------------------------------------------------------------

    def stop_reading(self) -> None:
        """Take nothing more."""
        self._is_stopped = True
        self._waiting.clear()
        self._read_or_not()

    def _begin_round(self) -> None:
        self._full_reads = 0
        self._read_or_not()

    def _read_or_not(self) -> None:
        pause = bool(self._waiting) or self._full_reads >= FULL_READS_MAX or self._is_stopped
        transport = self._transport
        if pause == self._is_paused or transport is None or transport.is_closing():
            return
        self._is_paused = pause
        if pause:
            transport.pause_reading()
        else:
            self._heard_s = self._hub.clock.monotonic()
            transport.resume_reading()

    def _work(self, until_s: float) -> None:
        """Take what was received, until then; the rest waits for a later round."""
        waiting, owner, hub = self._waiting, self._owner, self._hub
        hub.turn.wake()
        try:
            taken = 0
            while waiting and owner is not None:
                owner.take(waiting.popleft())
                taken += 1
                if not taken % FRAMES_MAX and hub.clock.monotonic() >= until_s:
                    break
        except LinkError as error:
            self.fail(error)
            return
        if self._owner is None:
            return
        self._owner.taken(until_s)
        if waiting:
            hub.turn.shares.wait(self)

    def go_on(self, share_s: float) -> float:
        """The share of this link in a later round."""
        now_s = self._hub.clock.monotonic
        until_s = now_s() + share_s
        self._work(until_s)
        self._read_or_not()
        return until_s - now_s()

    # -- time ---------------------------------------------------------------------------------------------------------

    def _too_late(self) -> None:
        self.fail(LinkError(f"{self.name} did not prove within {HELLO_S:g} s that it knows the secret of the cluster"))

    def _beat(self) -> None:
        if self._owner is None:
            return
        if not self._has_spoken:
            self.write(framed(Kind.BEAT, numbered(LINK)))
        self._has_spoken = False
        wait_s = BEAT_S
        if self._is_paused:
            self._heard_s = self._hub.clock.monotonic()
        elif self._hub.clock.monotonic() - self._heard_s > SILENCE_S:
            if self._seems_silent:
                self.fail(LinkError(f"the link to {self.name} is silent: nothing came for {SILENCE_S:g} s"))
                return
            self._seems_silent, wait_s = True, SECOND_LOOK_S
        self._timer = self._hub.loop.call_later(wait_s, self._beat)
