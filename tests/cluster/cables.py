"""The cables between gateways and masters: relays that cut a link, slow it down, or leave it half open.

Each relay listens at HOST, at the port of the home to which it leads. Invariant: bytes pass in order and unchanged; a
connection that was made half open passes none any more, and neither end hears of the end of the other one.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

HOST, HOME = "127.0.0.2", "127.0.0.1"
PIECE_BYTES = 16 << 10


@dataclass(eq=False)
class Wire:
    """One connection."""

    ends: list[asyncio.StreamWriter]
    is_half_open: bool = False

    def break_off(self) -> None:
        for end in self.ends:
            _close(end)


@dataclass
class Cable:
    """All connections to one port. `delay_s` = of each piece that passes."""

    is_cut: bool = False
    delay_s: float = 0.0
    wires: set[Wire] = field(default_factory=set)


class Cables:
    """A separate thread carries the bytes."""

    def __init__(self, ports: Iterable[int]) -> None:
        self._cables = {port: Cable() for port in ports}
        self._loop = asyncio.new_event_loop()
        self._servers = [
            self._loop.run_until_complete(asyncio.start_server(self._taker(port), HOST, port)) for port in self._cables
        ]
        self._thread = threading.Thread(target=self._loop.run_forever, name="cables")
        self._thread.start()

    def cut(self, port: int) -> None:
        """Both ends hear of it at once, and no new connection comes through."""
        self._change(port, lambda cable: setattr(cable, "is_cut", True))
        self._change(port, lambda cable: [wire.break_off() for wire in cable.wires])

    def slow_down(self, port: int, delay_s: float) -> None:
        self._change(port, lambda cable: setattr(cable, "delay_s", delay_s))

    def half_open(self, port: int) -> None:
        """What is connected now never says anything again."""
        self._change(port, lambda cable: [setattr(wire, "is_half_open", True) for wire in cable.wires])

    def mend(self, port: int) -> None:
        """New connections pass, and those that were slow."""
        self._change(port, lambda cable: cable.__setattr__("is_cut", False))
        self.slow_down(port, 0.0)

    def close(self) -> None:
        async def end() -> None:
            for server in self._servers:
                server.close()
            for cable in self._cables.values():
                cable.is_cut = True
                for wire in cable.wires:
                    wire.break_off()
            await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}))

        asyncio.run_coroutine_threadsafe(end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _change(self, port: int, act: Callable[[Cable], object]) -> None:
        done = threading.Event()

        def change() -> None:
            act(self._cables[port])
            done.set()

        self._loop.call_soon_threadsafe(change)
        done.wait()

    def _taker(self, port: int) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], object]:
        cable = self._cables[port]

        async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if cable.is_cut:
                _close(writer)
                return
            try:
                from_home, to_home = await asyncio.open_connection(HOME, port)
            except OSError:
                _close(writer)
                return
            wire = Wire([writer, to_home])
            if cable.is_cut:  # meanwhile
                wire.break_off()
                return
            cable.wires.add(wire)
            try:
                await asyncio.gather(
                    self._carry(cable, wire, reader, writer, to_home),
                    self._carry(cable, wire, from_home, to_home, writer),
                )
            finally:
                cable.wires.discard(wire)
                wire.break_off()

        return take

    async def _carry(
        self,
        cable: Cable,
        wire: Wire,
        reader: asyncio.StreamReader,
        own: asyncio.StreamWriter,
        to: asyncio.StreamWriter,
    ) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(PIECE_BYTES):
                if cable.delay_s:
                    await asyncio.sleep(cable.delay_s)
                if not wire.is_half_open:
                    to.write(data)
                    await to.drain()
        _close(own)
        if not wire.is_half_open:
            _close(to)


def _close(end: asyncio.StreamWriter) -> None:
    """The other side hears of it, though processes that were forked meanwhile have the socket as well."""
    with contextlib.suppress(OSError):  # it was closed before
        end.get_extra_info("socket").shutdown(socket.SHUT_RDWR)
    end.transport.abort()
