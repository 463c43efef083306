"""Worlds whose store is in a database: the whole broker, on the real adapter, on a model of PostgreSQL.

The database has one standby, synchronous in half of the worlds; in the others it lags. Faults strike, beside those of
all worlds, at a statement: before the server has it, while it holds its locks, or when it is committed and its answer
is on its way. After a failover that lost commits no broker may serve until a person accepts it.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from random import Random
from typing import Any
from unittest.mock import patch

from amq.store.postgres.election import SqlElection
from tests.simulation.faults import Fault
from tests.simulation.features import Feature
from tests.simulation.hosts import HostCache, Mount
from tests.simulation.oracle import STORE
from tests.simulation.scheduler import Process
from tests.simulation.sql_client import GONE_S, SqlDoor, connecting
from tests.simulation.sql_server import Request, SqlServer
from tests.simulation.world import Slot, World

NAME = "database"
POSTGRES = Mount("postgresql", False, 0.0, False, False, 0.0, 1e9, True)
PHASES = ("sent", "locked", "committed")
KINDS = ("chunk", "chunk", "claim", "name")
BLOWS = (
    "kill",
    "pause",
    "pause_and_lose",
    "lose",
    "lose",
    "lose_host",
    "late_and_lose",
    "pause_and_lose_lock",
    "crash_server",
    "fail_over",
    "cancel",
)
# For the rules of "A store in a database": (phase, statement, blow, shortest, longest in periods).
WORST = {
    "late insert": ("locked", "chunk", "late_and_lose", 0.1, 0.5),
    "late name": ("locked", "name", "late_and_lose", 0.1, 0.5),
    "old master": ("sent", "chunk", "pause_and_lose", 0.5, 4.0),
    "insert in doubt": ("sent", "chunk", "lose", 0.1, 0.2),
    "answer lost": ("committed", "chunk", "lose", 0.1, 0.2),
    "cancelled commit": ("locked", "chunk", "cancel", 0.1, 0.3),
    "lagging standby": ("committed", "chunk", "fail_over", 0.1, 0.2),
    "stopped at a lock": ("locked", "chunk", "pause_and_lose_lock", 16.0, 24.0),
}
NOT_HERE = ("rot", "fail_sync", "fail_call")  # in their place a statement is struck


class DatabaseHost(HostCache):
    """A host with connections to the server in place of a mounted file system."""

    def lose_locks(self, only: str = "") -> None:  # noqa: ARG002 (a lock ends with its connection)
        assert isinstance(self.server, SqlServer)
        self.locks_lost += any(holder.host is self for holder in self.server.advisory.values())
        self.server.lose(self)

    def cut(self, seconds: float) -> None:
        super().cut(seconds)
        self._scheduler.after(GONE_S, self._silent)

    def _silent(self) -> None:
        if not self.connected() and self._scheduler.now - self.silent_since >= GONE_S:
            self.lose_locks()


class Database(Feature):
    """What goes wrong with it, and what must not happen then."""

    def prepare(self, world: World) -> None:
        assert isinstance(world, SqlWorld)
        self.world, self.server = world, world.database
        self.server.on_moment = self._moment

    def schedule(self, faults: list[Fault]) -> list[Fault]:
        return [self._statement(fault) if fault.kind in (*NOT_HERE, *WORST) else fault for fault in faults]

    def _statement(self, fault: Fault) -> Fault:
        dice, period_s = self.dice, self.world.period_s
        nth = dice.choice((1, 1, 2, 3, 5, 8))
        if fault.kind in WORST or dice.random() < 0.5:
            phase, kind, blow, shortest, longest = WORST.get(fault.kind) or dice.choice(list(WORST.values()))
            seconds = dice.uniform(shortest, longest) * period_s
        else:
            phase, kind, blow = dice.choice(PHASES), dice.choice(KINDS), dice.choice(BLOWS)
            seconds = fault.seconds
        return Fault(fault.at, "trip", fault.target, seconds, phase, kind, False, nth, blow)

    def _moment(self, phase: str, request: Request) -> None:
        """A statement is at `phase`: does a trip wait for that?"""
        kind = request.plan.statement.kind if request.plan is not None else "commit"
        for trip in [trip for trip in self.world.trips if trip[0].strikes(phase, kind, False) and kind]:
            trip[1] -= 1
            if trip[1] <= 0:
                self.world.trips.remove(trip)
                self._strike(trip[0], request)

    def _strike(self, fault: Fault, request: Request) -> None:
        """In a separate event, and before the statement goes on."""
        self.oracle.log(f"STRIKE {fault}")
        self.oracle.counts[f"statement {fault.blow}"] += 1
        server, backend, now = self.server, request.backend, self.world.scheduler.now
        slot = next((slot for slot in self.world.slots if slot.process is backend.process), None)
        if fault.blow == "late_and_lose":
            server.slow_s = fault.seconds
        if fault.blow.startswith("pause") and slot is not None and slot.process is not None:
            slot.process.paused_until = max(slot.process.paused_until, now + fault.seconds)

        def blow() -> None:
            if fault.blow == "kill" and slot is not None:
                self.world.end_process(slot.process)
            elif fault.blow == "lose":
                server.end(backend)
            elif fault.blow in ("lose_host", "pause_and_lose"):
                backend.host.lose_locks()
            elif fault.blow in ("late_and_lose", "pause_and_lose_lock"):
                for holder in [other for other in server.advisory.values() if other.host is backend.host]:
                    if holder is not backend:
                        server.end(holder)
            elif fault.blow == "crash_server":
                server.crash()
            elif fault.blow == "fail_over":
                self._fail_over()
            elif fault.blow == "cancel":
                server.hung_until = now + fault.seconds
                self.world.scheduler.after(fault.seconds * 0.6, self._cancel)

        self.world.scheduler.at(now, blow)

    def _cancel(self) -> None:
        """A person has enough of waiting for the standby, and promotes it soon after."""
        self.server.cancel_waits()
        if self.dice.random() < 0.7:
            self.world.scheduler.after(self.dice.random() * 0.05, self._fail_over)

    def _fail_over(self) -> None:
        """Once: what a second one may lose nobody could say."""
        if self.server.failed_over or self.world.peace:
            return
        self.server.fail_over()
        self.oracle.counts["failovers"] += 1
        self.oracle.counts["failovers that lost commits"] += self.incomplete
        self.oracle.log(f"failover: {self.server.lost_commits} commits are lost")
        if not self.incomplete and not self.server.synchronous:
            self.world.scheduler.after(self.dice.uniform(0.5, 4.0), self._accept)

    def _accept(self) -> None:
        """A person compared, found nothing missing, and ran `amq store accept`."""
        self.server.by_hand(lambda tables: setattr(tables, "server", self.server.identity))

    @property
    def incomplete(self) -> bool:
        """A promoted standby that was not synchronous lacks what was committed: nobody may serve."""
        return self.server.lost_commits > 0 and not self.server.synchronous

    def linked(self, slot: Slot, number: int) -> None:
        if self.incomplete:
            self.oracle.broken("P1", f"{slot.name} begins epoch {number} on a standby that lacks commits")

    def excuses(self, slot: Slot, failure: Any) -> bool:  # noqa: ARG002
        """It may refuse a promoted standby. Where that was synchronous it may have seen a commit whose wait was
        cancelled, which nobody confirmed: then a person accepts."""
        if getattr(failure, "code", "") != "STORE_INCOMPLETE" or not self.server.failed_over:
            return False
        if self.server.synchronous:
            self.oracle.counts["lost commits noticed"] += 1
            self.world.scheduler.after(1.0, self._accept)
        return not self.server.synchronous or self.server.lost_commits > 0

    def watch(self) -> None:
        """No client that pauses holds a lock of the server."""
        if self.server.blocked_by_idle:
            self.oracle.broken("P6", "a client that stood still inside a transaction kept others from their locks")


class SqlWorld(World):
    """A world on a database."""

    mounts = (POSTGRES,)
    server_type = SqlServer
    host_type = DatabaseHost
    aside: Mapping[str, type[Feature]] = {NAME: Database}

    def __init__(
        self,
        seed: int,
        faults: list[Fault] | None = None,
        focus: tuple[str, ...] = (),
        features: tuple[str, ...] | None = (NAME,),
    ) -> None:
        dice = Random(f"database of {seed}")
        self._ready_at = 0.0
        super().__init__(seed, faults, focus, features)
        server = self.database
        server.scheduler = self.scheduler
        server.store = STORE
        server.synchronous = dice.random() < 0.5
        server.lag_s = dice.choice((0.0005, 0.003, 0.02) if server.synchronous else (0.0005, 0.01, 0.3))
        server.commit_s = dice.choice((0.0003, 0.002, 0.01))
        self._latency_s = dice.choice((0.0002, 0.001, 0.005))

    @property
    def database(self) -> SqlServer:
        assert isinstance(self.server, SqlServer)
        return self.server

    @property
    def _feature(self) -> Database:
        return next(feature for feature in self._made if isinstance(feature, Database))

    @property
    def server_ready_at(self) -> float:
        return self._ready_at

    @server_ready_at.setter
    def server_ready_at(self, when: float) -> None:
        """The server stops, and takes connections again at `when`."""
        self._ready_at = when
        if when:
            self.database.crash()

    def _door(self, cache: HostCache, process: Process) -> Any:  # noqa: ARG002
        return SqlDoor(STORE, process, self.database)

    def _settings(self) -> AbstractContextManager[object]:
        def host_of(process: Process) -> HostCache:
            return self.caches[self.machines.index(process.host)]

        stack = ExitStack()
        # Nobody waits in the queue of the server: a wake-up proves nothing, and polling finds the lock as well.
        stack.enter_context(patch.object(SqlElection, "watch", lambda *_: nullcontext(OSError("no queue"))))
        stack.enter_context(
            connecting(self.scheduler, host_of, lambda: self.scheduler.now >= self._ready_at, self._latency_s)
        )
        return stack

    def _check(self) -> None:
        self._feature.watch()
        super()._check()

    def _make_peace(self) -> None:
        super()._make_peace()
        self.database.hung_until = self.scheduler.now

    def settled(self) -> bool:
        if self._feature.incomplete:  # every broker stops, as often as it is started
            return not any(slot.master for slot in self.slots)
        return super().settled()

    def _finish(self) -> None:
        self._feature.watch()
        if not self._feature.incomplete:
            super()._finish()
