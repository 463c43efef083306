"""Reattachment: a connection that outlives its socket for a while, and goes on when its client is back on another one.

It is parked meanwhile (`amq.transports.parking`). Its client comes back on the socket of a connection that has just
logged in, and that one is then gone. Invariants: each byte of the two streams has one effect, as both sides count what
they received and say again what the other one lacks; a parked connection ends when its time is over, at the latest.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

import structlog

from amq.broker.sessions.links import Client
from amq.protocols.commands import Connect, Reattach
from amq.transports.connection import Connection
from amq.transports.hub import Codecs, Hub
from amq.transports.parking import Lifeline, Parking
from amq.transports.reading import OUTPUT, TURN
from amq.transports.stream import Stream

PARKED_TICK_S = 1.0  # so often the transactions of a client that is not there are looked at
_log = structlog.get_logger("amq.connection")


class Home(Hub[Connection], Protocol):
    """The surroundings that a connection needs which may lose its socket."""

    parking: Parking[ReattachableConnection]

    def reopened(self, connection: Connection) -> None:
        """It has a socket again: that of a connection which is closed now."""
        ...


class ReattachableConnection(Connection):
    """One client: one accepted socket from first byte to last, or several, one after the other."""

    _hub: Home

    def __init__(self, hub: Home, number: int, codecs: Codecs) -> None:
        super().__init__(hub, number, codecs)
        self._parked_until = 0.0  # monotonic; 0 = there is a socket

    # -- what a connection does otherwise ------------------------------------------------------------------------------

    def connection_lost(self, exc: Exception | None) -> None:
        self._without_socket()
        if not self._park(exc):
            self._end(exc)

    def close(self) -> None:
        if self._parked_until and not self._closing:
            self._end(None)
        else:
            super().close()

    def abort(self) -> None:
        if self._parked_until and not self._closing:
            self._end(None)
        else:
            super().abort()

    def _end(self, exc: Exception | None) -> None:
        super()._end(exc)
        if self._lifeline is not None:
            self._hub.parking.forget(self, self._lifeline)
            self._lifeline = None

    def _admit(self, client: Client, command: Connect) -> None:
        asked = command.reattach
        if asked is not None and self._is_back(client, asked, command.heartbeat_ms):
            return
        super()._admit(client, command)
        if asked is not None:
            self._lifeline = self._hub.parking.grant(self, asked)

    def _leave_output(self) -> None:
        if self._lifeline is None or self._closing:
            super()._leave_output()
        else:
            self._keep_output(self._lifeline)

    def _lose(self, why: str) -> bool:
        """Wait for the client on its next socket, or end. False where it may not come back."""
        if self._lifeline is None or self._closing:
            return False
        stream = self._stream
        assert stream is not None
        stream.hand_to(asyncio.Protocol())  # which hears the end in place of this
        stream.abort()
        self._without_socket()
        error = ConnectionError(why)
        if not self._park(error):
            self._end(error)
        return True

    # -- the socket is gone --------------------------------------------------------------------------------------------

    def _keep_output(self, lifeline: Lifeline) -> None:
        """There is no socket to write to: the next one will have it."""
        for piece in self._slices:
            lifeline.sent(bytes(piece))
        self._slices.clear()
        self._return_memory()
        if self._out:
            lifeline.sent(b"".join(self._out))
            self._out, self._out_bytes = [], 0

    def _park(self, exc: Exception | None) -> bool:
        """The socket is gone: wait for the client. False where it cannot come back, or need not."""
        lifeline, client, protocol, hub = self._lifeline, self.client, self.protocol, self._hub
        if lifeline is None or client is None or protocol is None or self._closing or client.is_closed:
            return False
        if hub.parking.is_closed:
            return False
        window_bytes = lifeline.window.bytes_max
        unfinished_bytes = self._frame_bytes if protocol.pending else 0
        window_s = min(lifeline.window_s, hub.config.reconnect_window_s)
        if not window_s or max(unfinished_bytes, sum(map(len, self._slices))) > window_bytes:
            return False
        self._parked_until = hub.clock.monotonic() + window_s
        client.lose()
        self._again.clear()  # the next socket gets it anew
        self._keep_output(lifeline)
        self._unread_for -= {OUTPUT, TURN}
        hub.closed(self)  # it counts no more among those that are there
        hub.door.leave(self.number)
        hub.parking.park(self)
        _log.info(
            "connection lost: kept for its client",
            connection=self.number,
            peer=self.peer_name,
            seconds=window_s,
            error=str(exc) if exc else None,
        )
        self._tick_parked()
        return True

    def _tick_parked(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        now = self._hub.clock.monotonic()
        if now >= self._parked_until:
            _log.info("connection ended: its client did not come back in time", connection=self.number)
            self._end(None)
            return
        assert self.client is not None
        self.client.expire_transactions(now)
        if self.client is not None:  # else that was its end
            wait_s = min(self._parked_until - now, PARKED_TICK_S)
            self._timer = self._hub.loop.call_later(wait_s, self._tick_parked)

    # -- the client is back --------------------------------------------------------------------------------------------

    def _is_back(self, client: Client, asked: Reattach, heartbeat_ms: tuple[int, int]) -> bool:
        """Our client has logged in, and wants its older connection back. True: it has it, on our socket, and this
        connection is gone; or our socket broke meanwhile. False: it begins anew; whoever it is, it is not told why."""
        older = self._hub.parking.find(asked.token) if asked.token else None
        protocol, stream = self.protocol, self._stream
        if stream is None or stream.is_closing():
            return True
        if older is None or protocol is None or self._held or protocol.pending:
            return False
        if not older._may_go_on(client, asked, protocol.name):
            return False
        self._closing = True
        self._stream = None
        if self._timer is not None:
            self._timer.cancel()
        self._hub.closed(self)
        self._hub.door.leave(self.number)
        older._go_on(self, stream, asked)
        older._end_at(self._login_ends_at_s)
        older._start_timer(heartbeat_ms)
        protocol.close()
        return True

    def _may_go_on(self, client: Client, asked: Reattach, protocol: str) -> bool:
        lifeline, ours = self._lifeline, self.client
        if lifeline is None or ours is None or self._closing or ours.is_closed:
            return False
        is_same = ours.client == client and self.protocol is not None and self.protocol.name == protocol
        return is_same and lifeline.window.covers(asked.received) and asked.repeats_from <= self._received_bytes

    def _go_on(self, newer: ReattachableConnection, stream: Stream, asked: Reattach) -> None:
        """The client is back on `stream`, where `newer` read its login. `_may_go_on` must have been true."""
        hub, lifeline = self._hub, self._lifeline
        assert lifeline is not None
        assert self.protocol is not None
        assert newer.protocol is not None
        assert self.client is not None
        if self._stream is not None:  # the client noticed first that the older socket leads nowhere
            self._stream.hand_to(asyncio.Protocol())
            self._stream.abort()
            self._without_socket()
            self.client.lose()
        hub.parking.unpark(self)
        hub.reopened(self)
        self.peer_address = newer.peer_address
        hub.door.come_back(self.number, self.peer_address, self.user)
        now = hub.clock.monotonic()
        self._parked_until = 0.0
        self._last_read, self._seemed_silent = now, False
        self._frame_since = now if self.protocol.pending else 0.0
        self._socket_full, self._holds_back = False, True  # until the client has what it lacks
        self._behind_bytes = self._full_reads = 0
        self._stream, self._watched, self.peer_name = stream, newer._watched, newer.peer_name
        self._is_loopback, self._is_tls = newer._is_loopback, newer._is_tls
        self._full_read_bytes = stream.full_read_bytes
        stream.hand_to(self)
        self._unread_for -= {OUTPUT, TURN}
        self._paused_at = 0.0
        if self._unread_for:
            self._paused_at = now
            stream.pause_reading()
        lifeline.confirm(asked.received)
        lifeline.told = self._received_bytes
        self._again = [self._connected(newer.protocol, lifeline.told), *lifeline.window.since(asked.received)]
        self.tell_brokers()  # once more: what is repeated may hold older lists
        self.client.is_lost = False
        hub.turn.unsent[self] = None
        hub.turn.wake()
        _log.info("connection kept: its client is back", connection=self.number, peer=self.peer_name)
