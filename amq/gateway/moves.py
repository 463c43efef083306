"""Move: a destination of a client's connection has got another home, and the table here does not say so yet.

The commands that failed for that reason come again, once, when there is a newer table. Where the destination is on its
way to its new home, with all that it holds, they come again until that has it, or `ARRIVING_S` are over. Meanwhile the
client is not read, and what it has said waits. Invariant: what goes to one destination keeps its order. So the homes
that refused something refuse all messages to these destinations behind it, until they hear `GoOn`: it may live there
again when such a message comes.
"""

from __future__ import annotations

from typing import Final, Protocol

from amq.broker.access import homed
from amq.broker.recipient import Recipient
from amq.gateway.homes import GatewayCluster, RoutedHome
from amq.protocols.commands import Command, Credit, Extend, Failure, GoOn, InSession, Settle, SettleRun

MOVED: Final = "MOVED"  # code: the destination has another home
MOVING: Final = "MOVING"  # code: the destination is on its way to its home
HOME_CODES: Final = frozenset((MOVED, MOVING))
ARRIVING_S: Final = 60.0


class MovedClient(Protocol):
    """The client's connection: see `amq.gateway.router`."""

    peer: Recipient
    cluster: GatewayCluster
    is_closed: bool
    is_repeating: bool
    move: Move | None
    homes_of: int
    moving_until_s: float
    waits: bool

    def handle(self, commands: list[Command]) -> list[Command]: ...
    def route(self, commands: list[Command], number: int) -> int: ...
    def flush(self) -> None: ...
    def forget_homes(self) -> None: ...
    def pause(self, reason: object) -> None: ...
    def resume(self, reason: object) -> None: ...


def passes(command: Command) -> bool:
    """May it pass commands before it that wait? Settlements outside transactions may, and the room of consumers."""
    return isinstance(command, Settle | SettleRun | Credit | Extend) and not getattr(command, "transaction", "")


class Move:
    """`repeated` = commands that come again when there is a newer table, with their sessions and errors; `homes` =
    where they were; `held` = what came behind them."""

    def __init__(self, client: MovedClient) -> None:
        """The client is not read until it goes on."""
        self._client = client
        self._is_asked = False
        self.homes: set[RoutedHome] = set()
        self.repeated: list[tuple[int, Command, Failure]] = []
        self.held: list[Command] = []
        self.is_known = True  # the table that was asked for has come, or there is none
        self.is_arriving = False  # is one of the destinations on its way?
        client.waits = True
        client.pause(MOVED)
        if not self._is_in_time():
            client.moving_until_s = client.cluster.clock.monotonic() + ARRIVING_S

    def _is_in_time(self) -> bool:
        return self._client.cluster.clock.monotonic() < self._client.moving_until_s

    def repeat(self, session: int, command: Command, failure: Failure) -> None:
        """`command` comes again when a newer table is there, or fails so. Meanwhile its home answers for all messages
        that are on their way there."""
        self.is_arriving = self.is_arriving or getattr(failure.error, "code", "") == MOVING
        self.repeated.append((session, command, failure))
        if not self._is_asked:
            self._is_asked, self.is_known = True, False
            self._client.cluster.renew(self._renewed)

    def _renewed(self, is_newer: bool) -> None:
        client = self._client
        if client.move is not self:
            return
        table = client.cluster.placement
        names = (name for _, command, _ in self.repeated for name in homed(command))
        if self._is_in_time() and any(map(table.is_moving, names)):
            self.is_arriving = True
            client.cluster.renew(self._renewed)
            return
        self.is_known = True
        is_newer = is_newer or client.homes_of < table.number  # it was read since its homes were found
        client.forget_homes()
        if not is_newer and not self.is_arriving:
            for _, _, failure in self.repeated:
                client.peer.fail(failure)
            self.repeated.clear()
        client.cluster.later(self.go_on)

    def go_on(self) -> None:
        """Repeat what comes again, and carry out what waits, where both are possible now."""
        client = self._client
        if client.move is not self or not self.is_known or any(home.kept_bytes for home in self.homes):
            return
        client.move = None
        for home in self.homes:
            home.put(0, GoOn())
        client.is_repeating = not (self.is_arriving and self._is_in_time())
        for session, command, _ in self.repeated:
            client.route([command], session)
        client.is_repeating = False
        client.flush()
        client.resume(MOVED)
        if self.held and not client.is_closed:
            client.handle(self.held)

    def hold(self, commands: list[Command]) -> list[Command]:
        """Keep those of `commands` that must wait for the newer table. Returns the others."""
        passing: list[Command] = []
        number, held, passed = 0, -1, 0
        for command in commands:
            if isinstance(command, InSession):
                number = command.session
                continue
            if passes(command):
                if passed != number:
                    passing.append(InSession(number))
                    passed = number
                passing.append(command)
            else:
                if held != number:
                    self.held.append(InSession(number))
                    held = number
                self.held.append(command)
        return passing
