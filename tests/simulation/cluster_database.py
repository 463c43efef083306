"""Clusters whose directory is a database: the real `Cluster` and register of gateways and operators, on the model of
PostgreSQL. What its stores are in stays what it was.

Beside the faults of every cluster the server crashes, its commits wait, and a statement that writes a table is struck:
before the server has it, while it holds its locks, or when it is committed and its answer is on its way. Invariant:
what is committed there is what the world knows as its tables (`Tables.made`), at that time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from random import Random
from types import MappingProxyType
from typing import TYPE_CHECKING
from unittest.mock import patch

from amq.cluster import directory
from amq.cluster.directory import CLUSTER_FILE, STORES_DIRECTORY, TABLES_DIRECTORY, Cluster, ClusterNode, StoreTable
from amq.cluster.placement import Placement
from amq.store.document import encode
from amq.store.postgres.register import SqlRegister
from tests.simulation.database import PHASES, POSTGRES, DatabaseHost
from tests.simulation.faults import Fault
from tests.simulation.gateways import CLUSTER_ID
from tests.simulation.scheduler import Process
from tests.simulation.sql_client import SqlDoor, connecting
from tests.simulation.sql_server import Effect, Request, SqlServer

if TYPE_CHECKING:
    from tests.simulation.cluster import ClusterWorld

IN_DATABASE = "in-database"
PLACE = "postgresql://amq@db/cluster"
BLOWS = ("lose", "lose", "kill", "pause", "late_and_lose", "crash")
TABLE = "name"  # the kind of the statement that makes a document


class TableServer(SqlServer):
    """`told` hears when something is committed."""

    def told(self) -> None: ...

    def _take_place(self, effects: list[Effect]) -> None:
        super()._take_place(effects)
        self.told()


class SqlDirectory(Cluster):
    """The cluster for one process; the world knows its stores by their names."""

    world: ClusterWorld

    def nodes(self) -> list[ClusterNode]:
        return []

    def location(self, name: str, table: StoreTable | None = None) -> str:  # noqa: ARG002
        return name

    def place(self, placement: Placement, places: Mapping[str, str] = MappingProxyType({})) -> StoreTable:
        self.world.oracle.log(f"table {placement.number} is written{', something moves' if placement.before else ''}")
        return super().place(placement, places)


class ClusterDatabase:
    """The database of `world`'s cluster, and what goes wrong with it."""

    def __init__(self, world: ClusterWorld) -> None:
        self._world = world
        dice = Random(f"database of cluster {world.seed}")
        self.server = server = TableServer(Random(dice.getrandbits(64)), True, 4 << 20)
        server.scheduler, server.store = world.scheduler, PLACE
        server.synchronous = dice.random() < 0.5
        server.lag_s = dice.choice((0.0005, 0.003, 0.02))
        server.commit_s = dice.choice((0.0003, 0.002, 0.01))
        server.on_moment = self._moment
        server.told = self._committed  # type: ignore[method-assign]
        self._latency_s = dice.choice((0.0002, 0.001, 0.005))
        self._hosts = {
            node.name: DatabaseHost(world.scheduler, node, server, POSTGRES, Random(dice.getrandbits(64)))
            for node in world.nodes
        }
        self._ready_at = 0.0
        self._opening: Process  # that opens the directory just now
        self._struck: list[tuple[str, str, float]] = []  # phase, blow, seconds

    def make(self) -> None:
        """As `amq cluster init` does, with the world's first table."""
        process = self._world.nodes[0].spawn("init")

        def work() -> None:
            register = self._register(process)
            register.make((TABLES_DIRECTORY, STORES_DIRECTORY))
            first = self._world.tables.newest
            located = StoreTable({name: f"/mnt/{name}" for name in first.stores}, first.placement)
            register.write(TABLES_DIRECTORY, "1.json", directory._encode_table(located), "1")
            register.write("", CLUSTER_FILE, encode("cluster", {"id": CLUSTER_ID}), "1")

        process.start("init", work)

    def directory(self, process: Process) -> SqlDirectory:
        """Raises AmqError."""
        self._opening = process
        found = SqlDirectory(PLACE)
        found.world = self._world
        return found

    def _register(self, process: Process) -> SqlRegister:
        return SqlRegister(SqlDoor(PLACE, process, self.server))

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Once for the whole run: processes of the world take turns, so one that patched something for a moment would
        leave behind what another had put there."""
        scheduler = self._world.scheduler
        with (
            patch.object(directory, "open_register", lambda _: self._register(self._opening)),
            connecting(
                scheduler,
                lambda process: self._hosts[process.host.name],
                lambda: scheduler.now >= self._ready_at,
                self._latency_s,
            ),
        ):
            yield

    def _committed(self) -> None:
        """The world learns of new tables."""
        made, names = self._world.tables.made, self.server.tables.names
        while (file := names.get((TABLES_DIRECTORY, f"{len(made) + 1}.json"))) is not None:
            body = directory.decode("cluster-table", self.server.tables.data(file), PLACE)
            placement = Placement.from_json(len(made) + 1, body["placement"])
            made.append((self._world.scheduler.now, StoreTable(dict.fromkeys(body["stores"], ""), placement)))
            self._world.oracle.log(f"table {placement.number} is made")

    def unknown(self) -> list[str]:
        """Tables in the database that do not follow one another, at the end."""
        names = [name for place, name in self.server.tables.names if place == TABLES_DIRECTORY]
        return sorted({*names} - {f"{number}.json" for number in range(1, len(self._world.tables.made) + 1)})

    # -- what goes wrong ----------------------------------------------------------------------------------------------

    def hang(self, seconds: float) -> None:
        """The server is gone for a while."""
        self._ready_at = max(self._ready_at, self._world.scheduler.now + seconds)
        self.server.crash()

    def strike(self, choice: int, seconds: float) -> None:
        """The next statement that writes a table is struck."""
        blow = BLOWS[choice // len(PHASES) % len(BLOWS)]
        self._struck.append((PHASES[choice % len(PHASES)], blow, seconds))

    def end(self) -> None:
        self._struck.clear()
        self._ready_at = min(self._ready_at, self._world.scheduler.now)

    def _moment(self, phase: str, request: Request) -> None:
        kind = request.plan.statement.kind if request.plan is not None else ""
        found = next((each for each in self._struck if each[0] == phase and kind == TABLE), None)
        if found is not None:
            self._struck.remove(found)
            _, blow, seconds = found
            self._world.oracle.log(f"STRIKE a table: {blow} when it is {phase}")
            self._world.oracle.counts[f"table {phase}: {blow}"] += 1
            self._blow(request, blow, seconds)

    def _blow(self, request: Request, blow: str, seconds: float) -> None:
        backend, scheduler, server = request.backend, self._world.scheduler, self.server
        if blow == "pause":
            backend.process.paused_until = max(backend.process.paused_until, scheduler.now + seconds)
        elif blow == "kill":
            scheduler.at(scheduler.now, lambda: self._world.end_process(backend.process))
        elif blow == "crash":
            scheduler.at(scheduler.now, server.crash)
        else:
            server.slow_s += seconds if blow == "late_and_lose" else 0.0
            scheduler.at(scheduler.now, lambda: server.end(backend))

    def died(self, process: Process) -> None:
        """The kernel closes its connections."""
        for session in self.server.clients.pop(process, ()):
            session.close()


def database_schedule(found: list[Fault], world: ClusterWorld) -> list[Fault]:
    """`found`, and changes of the placement, most of which meet trouble in the database. A new store is made in
    another way."""
    dice, more, at = Random(f"strikes of {world.seed}"), [], 0.5
    while at < world.faults_s:
        if dice.random() < 0.8:
            more.append(Fault(at, "strike_table", dice.randrange(1 << 16), dice.uniform(0.1, 2.0)))
        for later in (0.01, 0.01 + dice.uniform(0.0, 0.02)):
            more.append(Fault(at + later, "place", dice.randrange(12), dice.uniform(0.3, 3.0)))
        if dice.random() < 0.2:
            more.append(Fault(at + dice.uniform(0.0, 2.0), "hang_directory", 0, dice.uniform(0.1, 3.0)))
        at += dice.uniform(0.5, 4.0)
    kept = [fault for fault in found if fault.kind != "add_store"]
    return sorted([*kept, *more], key=lambda fault: fault.at)


def strike_table(world: ClusterWorld, fault: Fault) -> None:
    assert world.database is not None
    world.database.strike(fault.target, fault.seconds)
