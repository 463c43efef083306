"""Worlds with a cluster: several stores, each with a file server and members of its own, nodes that have a member of
every store, gateways, and applications that know the gateways alone.

All that can run for real does: members, gateways, links, placement, and `amq cluster place`. The world gives clocks,
network, file servers and the cluster's directory. A store is a `StoreWorld`: the faults of single stores are those of
all worlds. At the end, when everything is delivered and all clients are gone, nothing of them may be left in a gateway,
on a link or in a home.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any
from unittest.mock import patch

from amq.broker.homes import Homes
from amq.cli import cluster_moving, cluster_placing
from amq.cli.orders import OrderError
from amq.cluster import seeing
from amq.cluster.directory import StoreTable
from amq.cluster.placement import SPREAD
from amq.cluster.preference import priorities
from amq.config.destination_options import DestinationOptions
from amq.config.schema import BrokerConfig
from amq.core.errors import AmqError
from amq.core.message import LARGE_BODY_BYTES
from amq.gateway.members import MemberWays
from tests.large import large_from
from tests.simulation.clients import Application, Consumer, Mover, Producer, TransactedProducer
from tests.simulation.cluster_database import IN_DATABASE, ClusterDatabase, database_schedule
from tests.simulation.cluster_faults import inject, moving_schedule, schedule
from tests.simulation.cluster_features import add_feature
from tests.simulation.cluster_moving import MOMENTS, MOVES, Carrier, in_small_steps, roaming
from tests.simulation.cluster_oracle import ClusterOracle, StoreOracle
from tests.simulation.cluster_rolling import ROLLING, Versions, rolling_schedule
from tests.simulation.door import SimVfs
from tests.simulation.faults import FAULTS_S, Fault
from tests.simulation.gateways import CLUSTER_ID, SECRET, Directory, GatewaySlot, Tables, finder, no_tls
from tests.simulation.hosts import HostCache
from tests.simulation.network import Network
from tests.simulation.oracle import STORE
from tests.simulation.scheduler import Machine, Process, Scheduler
from tests.simulation.storage import Server
from tests.simulation.world import CHECK_EVERY_S, LARGE_BYTES, LARGE_EVERY, MOUNTS, Result, Slot, World

NAME = "cluster"
PORT, LINK_PORT = 61613, 7000
MOVABLE = "wander"
PATIENT_S = 300.0  # how long applications wait for an answer in some worlds: an answer that never comes is seen
QUIET_S = 60.0  # after which all that clients had must be gone


class SpreadProducer(Producer):
    """Of a destination that lives in every store. A new connection may lead to another store, which knows no ids."""

    async def once(self) -> None:
        assert isinstance(self.oracle, ClusterOracle)
        self.oracle.unsure.update(self._pending)
        await super().once()


def spanning(rng: Random) -> list[Any]:
    """Applications whose transactions have parts in two stores."""
    return [
        partial(TransactedProducer, queues=["left", "right"]),
        partial(Mover, source="left", target="right"),
        partial(Consumer, queue="right", prefetch=rng.choice((1, 3, 20))),
    ]


class StoreWorld(World):
    """One store of a cluster: its file server, its member at each node, its oracle."""

    def __init__(self, cluster: ClusterWorld, number: int, rng: Random) -> None:
        self.cluster = cluster
        self.name = f"s{number + 1}"
        self.number = number
        self.seed = cluster.seed
        self.rng = Random(rng.getrandbits(64))
        self.scheduler, self.network = cluster.scheduler, cluster.network
        self.machines, self.applications = cluster.machines, cluster.applications
        self.mount = rng.choice(MOUNTS[1:])
        self.period_s = cluster.period_s * rng.choice((0.5, 1.0, 1.0))
        self.server = Server(Random(rng.getrandbits(64)), self.mount.sync_names, 4 << 20)
        self.server.create("/mnt", directory=True)
        self.server.sync_directory(self.server.root)
        self.oracle: StoreOracle = StoreOracle(cluster.oracle, self.name, self.scheduler, self.server)
        self.stall_chance = rng.choice((0.0, 0.0, 0.0005))
        self.short_chance = rng.choice((0.0, 0.0, 0.1))
        self.vfs_latency_s = rng.choice((0.0002, 0.001, 0.01))
        self.server_ready_at = 0.0
        self.trips, self.rotten, self._made, self.deaf = [], [], [], {}
        self.features = ()
        self.begun = False
        self.caches = [
            HostCache(self.scheduler, node, self.server, self.mount, Random(rng.getrandbits(64)))
            for node in cluster.nodes
        ]
        self.slots = [Slot(f"{self.name}.{node.name}", node, self._config(node, rng)) for node in cluster.nodes]
        for slot in self.slots:
            cluster.oracle.stores[slot.name] = self.oracle

    @property
    def peace(self) -> bool:
        return self.cluster.peace

    def _config(self, machine: Machine, rng: Random) -> BrokerConfig:
        return BrokerConfig(
            name=machine.name,
            store=STORE,
            transports=(f"stomp://{machine.name}:{PORT + 10 + self.number}",),
            link_listen=f"tcp://{machine.name}:{LINK_PORT + self.number}",
            link_secret_file="/mnt/cluster/secret",
            lock_keep_alive_period_s=self.period_s,
            lock_acquire_sleep_interval_s=0.5,
            journal_segment_size_bytes=rng.choice((4 << 10, 64 << 10)),
            journal_reserve_bytes=64 << 10,
            store_free_floor_bytes=128 << 10,
            maximum_redeliveries=-1,
            heart_beat_send_s=1.0,
            heart_beat_receive_s=1.0,
            transaction_timeout_s=20.0,
            memory_limit_bytes=self.cluster.memory_limit_bytes,
            checkpoint_distance_bytes=rng.choice((0, 20 << 10)),
            slave_follow_interval_s=rng.choice((0.1, 0.5)),
            queue_limit_bytes=self.cluster.queue_limit_bytes,
            failback_delay_s=rng.choice((2.0, 60.0)),
            destinations=(
                DestinationOptions(self.cluster.led, {"divert": self.cluster.led_to, "divert_exclusive": True}),
            ),
        )

    def begin(self) -> None:
        """Every node starts its member."""
        if not self.begun:
            self.begun = True
            for slot in self.slots:
                self.scheduler.after(self.rng.random(), partial(self.start_broker, slot))

    def start_broker(self, slot: Slot) -> None:
        if self.begun and slot.machine.up and (slot.process is None or not slot.process.alive):
            slot.config = self._placed(slot, old=self.rng.random() < 0.3)
            super().start_broker(slot)

    def _placed(self, slot: Slot, old: bool = False) -> BrokerConfig:
        """Its configuration with the newest table that the node sees, or `old`: with one that it has seen before."""
        seen = self.cluster.tables.seen(slot.machine, self.scheduler.now)
        made = [
            table for _, table in self.cluster.tables.made if table.number <= seen.number and self.name in table.stores
        ]
        if not made:
            return slot.config
        table = made[-min(len(made), self.rng.randint(1, 3))] if old else made[-1]
        names = [node.name for node in self.cluster.nodes]
        placed = {
            "cluster": CLUSTER_ID,
            "store": self.name,
            "number": table.number,
            "placement": table.placement.to_json(),
        }
        priority = priorities(table.stores, dict.fromkeys(names, 1.0), slot.machine.name)[self.name]
        return replace(slot.config, placed=placed, priority=priority)

    def look_at_tables(self, slot: Slot) -> None:
        """The node has looked at the cluster's directory."""
        process, service = slot.process, slot.service
        if (
            process is None
            or not process.alive
            or service is None
            or self.scheduler.now < self.cluster.tables.hung_until
        ):
            return
        seen = self.cluster.tables.seen(slot.machine, self.scheduler.now)
        if slot.config.placed is None or slot.config.placed["number"] < seen.number:
            config = slot.config = self._placed(slot)
            process.loop.call_soon_threadsafe(service.reconfigure, config)

    def end_process(self, process: Process | None, silent: bool = False) -> None:
        self.cluster.end_process(process, silent)

    def power_off(self, machine: Machine, seconds: float) -> None:
        self.cluster.power_off(machine, seconds)

    def kill_client(self, index: int) -> None:
        self.cluster.kill_client(index)

    def _ways(self, process: Process) -> dict[str, Any]:
        find = self.cluster.finder(process)

        def make(hub: Any, secret: bytes, threads: Any, entropy: Random) -> MemberWays:
            return MemberWays(hub, secret, threads, entropy, lambda name: name, no_tls, find)

        return {"peers": make}

    def door(self, process: Process) -> SimVfs:
        """For a process that is no member."""
        cache = self.caches[self.machines.index(process.host)]
        vfs = SimVfs(cache, process, lambda: self.server_ready_at)
        vfs.latency_s = self.vfs_latency_s
        return vfs

    def left(self) -> list[str]:
        """What its master holds of gateways' clients when there are none."""
        found = []
        for slot in self.slots:
            master = slot.service.master if slot.master and slot.service is not None else None
            if master is None:
                continue
            links: Any = master._links
            found += [f"a part or decision {key}" for key in master.broker.spanning.since]
            found += [f"connection {number}" for number in master.connections]
            found += [f"session of {each}" for each in master.broker.connections]
            found += [f"owner {owner}" for owner in links.owners]
            found += [f"{len(links.strangers)} strangers"] * bool(links.strangers)
            for link in links.links:
                held = [len(link.clients), len(link._held), len(link._worked)]
                found += [f"on a link: clients, held, worked: {held}"] * any(held)
        return [f"{self.name} holds {each}" for each in found]


class ClusterWorld(World):
    """Everything of one run: see `World`."""

    stores: list[StoreWorld]
    faults_s = FAULTS_S

    def __init__(
        self,
        seed: int,
        faults: list[Fault] | None = None,
        focus: tuple[str, ...] = (),
        features: tuple[str, ...] | None = None,
    ) -> None:
        self.seed = seed
        rng = Random(f"cluster {seed}")
        self.call_s = rng.choice((8.0, PATIENT_S))
        self.rng = Random(rng.getrandbits(64))
        self.scheduler = Scheduler(Random(rng.getrandbits(64)))
        self.scheduler.on_crash = self._crashed
        self.period_s = rng.choice((0.6, 1.0, 1.6))
        self.oracle: ClusterOracle = ClusterOracle(self.scheduler, Server(Random(0), True, 0))
        self.network = Network(
            self.scheduler,
            Random(rng.getrandbits(64)),
            rng.choice((0.0005, 0.002, 0.02)),
            rng.choice((0.0, 0.05, 0.5)),
            rng.choice((0.0, 0.0, 0.0005, 0.005)),
        )
        self.peace = False
        self.features = features or (NAME,)
        self.machines: list[Machine] = []
        self.slots, self._made = [], []
        self.applications: list[tuple[Application, Machine]] = []
        self.movable = MOVABLE
        self.memory_limit_bytes = rng.choice((1 << 30, 30_000))
        self.queue_limit_bytes = rng.choice((0, 0, 2_000))
        for i in range(rng.choice((2, 2, 2, 3))):
            self._machine(f"n{i}", rng)
        self.nodes = list(self.machines)
        self._hooks: list[list[Any]] = []  # [class, method, process or None, calls left, then]
        count = rng.choice((2, 2, 3))
        self.tables = Tables([f"s{i + 1}" for i in range(count)])
        self.tables.lag_s = {node.name: rng.choice((0.0, 0.0, 0.3, 3.0)) for node in self.nodes}
        self.led, self.led_to = self._apart()
        self.divert = DestinationOptions(self.led, {"divert": self.led_to, "divert_exclusive": True})
        self.stores = [StoreWorld(self, i, rng) for i in range(count + 1)]  # the last one is added later, perhaps
        self.mount = self.stores[0].mount
        self.gateways = self._make_gateways(rng)
        self.carriers = []
        if {MOVES, IN_DATABASE} & {*self.features}:  # operators of a database have rivals, and leave steps behind
            self.carriers = [Carrier(self, node) for node in self.nodes]
        self._make_applications(rng)
        for name in self.features:
            if name not in (NAME, MOVES, ROLLING, IN_DATABASE):
                add_feature(self, name)
        dice = Random(rng.getrandbits(64))
        self.faults = schedule(dice, self.period_s, count, focus) if faults is None else faults
        if MOVES in self.features:
            self.oracle.carries = True
            if faults is None:
                self.faults = moving_schedule(self.faults, Random(f"moves of {seed}"), self.faults_s)
        self.versions = Versions(self) if ROLLING in self.features else None
        if self.versions is not None and faults is None:
            self.faults = rolling_schedule(self.faults, self)
        self.database = ClusterDatabase(self) if IN_DATABASE in self.features else None
        if self.database is not None and faults is None:
            self.faults = database_schedule(self.faults, self)
        self._operators: list[Process] = []

    def _apart(self) -> tuple[str, str]:
        """Two queues with different homes: messages for the first are led to the second."""
        placement = self.tables.newest.placement
        first = placement.home_of("queue://led")
        names = (f"led.to.{number}" for number in range(1000))
        return "led", next(name for name in names if placement.home_of(f"queue://{name}") != first)

    def _make_gateways(self, rng: Random) -> list[GatewaySlot]:
        found = []
        each = rng.choice((1, 1, 2))
        for node in self.nodes:
            for i in range(each):
                config = BrokerConfig(
                    name=node.name,
                    store=STORE,
                    transports=(f"stomp://{node.name}:{PORT + i}",),
                    heart_beat_send_s=1.0,
                    heart_beat_receive_s=1.0,
                    memory_limit_bytes=self.memory_limit_bytes,
                )
                found.append(GatewaySlot(self, f"gateway-{node.name}-{i}", node, config))
        return found

    def _applications(self, rng: Random) -> list[Any]:
        """Makers of the applications."""
        body_bytes = rng.choice((40, 400, 3000))
        return [
            partial(Producer, queue="a", burst=1, body_bytes=body_bytes),
            partial(Producer, queue="n.1", burst=rng.choice((5, 20)), body_bytes=body_bytes),
            partial(Producer, queue="n.2", burst=2, body_bytes=body_bytes),
            partial(Producer, queue=MOVABLE, burst=1, body_bytes=body_bytes, pause_s=2.0),
            partial(SpreadProducer, queue="many", burst=3, body_bytes=body_bytes),
            partial(TransactedProducer, queues=["x.{t}", "y.{t}"]),
            partial(Mover, source="y.{t}", target="z.{t}"),
            *spanning(rng),
            *(partial(Consumer, queue=queue, prefetch=rng.choice((1, 3, 20))) for queue in ("a", "a", "n.*", "n.1")),
            *(partial(Consumer, queue=queue, prefetch=rng.choice((1, 3, 20))) for queue in ("x.{t}", "z.{t}", MOVABLE)),
            *(partial(Consumer, queue="many", prefetch=rng.choice((1, 3, 20))) for _ in range(2)),
            partial(Producer, queue=self.led, burst=rng.choice((2, 10)), body_bytes=body_bytes),
            partial(Consumer, queue=self.led_to, prefetch=rng.choice((1, 20))),
            partial(Producer, queue="k", burst=2, body_bytes=body_bytes, pause_s=1.0),
            lambda *known: Consumer(*known, "k", 5, late=True),
        ]

    def _make_applications(self, rng: Random) -> None:
        uris = [f"{slot.config.transports[0]}?heartBeat=1000&connectTimeout=1000" for slot in self.gateways]
        made = self._applications(rng)
        first = self.tables.newest.placement.placed("many", SPREAD).settled()
        first = first.placed("left", "s1").settled().placed("right", "s2").settled()
        first = replace(first, number=1, since=1, before=None)
        self.tables.made[0] = (-1e9, StoreTable(self.tables.newest.locations, first))
        if MOVES in self.features and not isinstance(self, MovingWorld):
            made += roaming(Random(f"what roams in {self.seed}"))
        for make in made:
            rng.shuffle(uris)
            url = f"failover:({','.join(uris)})?maxReconnectDelay={rng.choice((200, 2000))}"
            self._add_applications([make], url, rng)

    # -- processes ----------------------------------------------------------------------------------------------------

    def equip(self, process: Process) -> None:
        process.loop.network = self.network

    def finder(self, process: Process) -> Any:
        """How a gateway in `process` finds the master of a store."""
        return finder(lambda name: self.store(name).door(process))

    def store(self, name: str) -> StoreWorld:
        return next(store for store in self.stores if store.name == name)

    def end_process(self, process: Process | None, silent: bool = False) -> None:
        if process is None or not process.alive:
            return
        process.kill()
        self.network.process_died(process, silent)
        if self.database is not None:
            self.database.died(process)
        for store in self.stores:
            for slot in store.slots:
                if slot.process is process and slot.vfs is not None:
                    slot.vfs.died()
                    wait_s = self.rng.choice((0.05, 0.5, 2.0))
                    self.scheduler.after(wait_s, partial(store.start_broker, slot))
        for part in (*self.gateways, *self.carriers):
            if part.process is process:
                self.scheduler.after(self.rng.choice((0.05, 0.5, 2.0)), part.start)

    def power_off(self, machine: Machine, seconds: float) -> None:
        if not machine.up:
            return
        for store in self.stores:
            store.caches[self.nodes.index(machine)].power_off()
        for process in list(machine.processes):
            self.end_process(process, silent=True)
        self.scheduler.after(seconds, lambda: self.power_on(machine))

    def power_on(self, machine: Machine) -> None:
        if machine.up:
            return
        for store in self.stores:
            store.caches[self.nodes.index(machine)].power_on()
            for slot in store.slots:
                if slot.machine is machine:
                    store.start_broker(slot)
        for part in (*self.gateways, *self.carriers):
            if part.machine is machine:
                part.start()

    def directory(self, process: Process) -> Any:
        """The cluster's directory, as `process` reaches it. Raises AmqError."""
        return Directory(self, process) if self.database is None else self.database.directory(process)

    # -- the operator -------------------------------------------------------------------------------------------------

    def operate(self, choice: int = 0, finish: bool = False) -> Process | None:
        """`amq cluster place` of the queues that may move; `finish` = bring to an end what others have begun. None =
        another one is at work; in a database it may have a rival."""
        self._operators = [each for each in self._operators if each.alive]
        if len(self._operators) > (self.database is not None):
            return None
        up = [node for node in self.nodes if node.up]
        if not up:
            return None
        process = up[choice % len(up)].spawn("operator")
        self._operators.append(process)
        self.equip(process)
        names = list(self.tables.newest.stores)
        rules = self.tables.newest.placement.layout.rules
        target = names[choice // 2 % len(names)]
        if finish:
            target = rules.get(MOVABLE) or self.tables.newest.placement.home_of("queue://" + MOVABLE)
        self.oracle.counts["places tried"] += 1

        def work() -> None:
            self.oracle.move((MOVABLE,))
            try:
                place: Any = cluster_placing.place.callback
                place("", MOVABLE, target, False, 10.0, True)
            except (OrderError, AmqError, OSError) as error:
                self.oracle.log(f"the operator fails: {error}")
                self.oracle.counts["places refused"] += getattr(error, "code", "") == "CONFLICT"
            else:
                self.oracle.log(f"the operator has placed {MOVABLE} in {target}")
                self.oracle.counts["placed"] += 1
            finally:
                if self.tables.newest.placement.before is None and not any(
                    other.alive for other in self._operators if other is not process
                ):
                    self.oracle.move(())
            self.scheduler.after(0.0, lambda: self.end_process(process))

        process.start("operator", work)
        return process

    def add_store(self) -> None:
        """`amq cluster add-store`, once."""
        store, table = self.stores[-1], self.tables.newest
        if store.begun or table.placement.before is not None:
            return
        placement = table.placement.with_store(store.name)
        self.tables.add(StoreTable({**table.locations, store.name: ""}, placement), self.nodes[0], self.scheduler.now)
        self.oracle.log(f"{store.name} is added by table {placement.number}")
        self.oracle.spread = ("many",)  # a gateway that knows of it may lead a client to another store than before
        self.oracle.unsure.update(id for id, sent in self.oracle.sent.items() if sent.queue == "many")
        store.begin()

    def after_next(
        self, owner: Any, name: str, process: Process | None, then: Callable[[], None], nth: int = 1
    ) -> None:
        """Call `then` in `process`, None = in any, before its `nth` call of that method from now on."""
        self._hooks.append([owner, name, process, nth, then])

    def _hooked(self, owner: Any, name: str) -> Any:
        method = getattr(owner, name)

        def call(this: Any, *args: Any, **options: Any) -> Any:
            task = self.scheduler.current
            for hook in [*self._hooks]:
                if hook[:2] == [owner, name] and task is not None and hook[2] in (None, task.process):
                    hook[3] -= 1
                    if not hook[3]:
                        self._hooks.remove(hook)
                        hook[4]()
            return method(this, *args, **options)

        return patch.object(owner, name, call)

    # -- the run ------------------------------------------------------------------------------------------------------

    @contextmanager
    def _operating(self) -> Iterator[None]:
        """`amq cluster place` runs in a simulated process."""

        def process() -> Process:
            assert self.scheduler.current is not None
            return self.scheduler.current.process

        class Time:
            monotonic = staticmethod(lambda: process().monotonic())
            sleep = staticmethod(lambda seconds: self.scheduler.sleep(seconds / process().host.rate))

        with (
            patch.object(cluster_placing, "Cluster", lambda _: self.directory(process())),
            patch.object(cluster_moving, "Cluster", lambda _: self.directory(process())),
            patch.object(cluster_placing, "time", Time),
            patch.object(cluster_moving, "time", Time),
            patch.object(seeing, "_store_of", lambda name: self.store(name).door(process()).store(STORE)),
            patch.object(cluster_placing, "print_json", lambda _: None),
            patch.object(seeing, "runs", lambda _: True),
        ):
            yield

    @contextmanager
    def _watch(self, *_: Any) -> Iterator[OSError | None]:
        yield OSError("no file events on a network")

    def run(self) -> Result:
        oracle, scheduler = self.oracle, self.scheduler
        with (
            self._quiet(),
            oracle.observing(),
            large_from(LARGE_BYTES if self.seed % LARGE_EVERY == 0 else LARGE_BODY_BYTES),
            patch("amq.store.files.election.watch", self._watch),
            patch("tests.simulation.clients.CALL_S", self.call_s),
            patch("amq.node.mastership.link_secret", lambda _: SECRET),
            self._operating(),
            ExitStack() as settings,
        ):
            for owner, name in MOMENTS if MOVES in self.features else ((Homes, "offer"),):
                settings.enter_context(self._hooked(owner, name))
            settings.enter_context(in_small_steps())
            if self.versions is not None:
                settings.enter_context(self.versions.in_force())
            for feature in self._made:
                settings.enter_context(feature.settings())
            if self.database is not None:
                settings.enter_context(self.database.in_force())
                self.database.make()
            for store in self.stores[:-1]:
                store.begin()
            for part in (*self.gateways, *self.carriers):
                scheduler.after(self.rng.random(), part.start)
            scheduler.after(0.3, self._look_at_tables)
            return self._play(inject, self.faults_s)

    def _look_at_tables(self) -> None:
        for store in self.stores:
            for slot in store.slots:
                store.look_at_tables(slot)
        newest = self.tables.newest.placement
        if self.peace and newest.before is not None and newest.step is None:
            self.operate(finish=True)
        elif self.peace and newest.step is not None and not self.carriers:  # an operator left it to the nodes
            self.carriers = [Carrier(self, node) for node in self.nodes]
            for carrier in self.carriers:
                carrier.start()
        self.scheduler.after(0.3, self._look_at_tables)

    def _check(self) -> None:
        for store in self.stores:
            if store.begun:
                store.oracle.check_journal()
        self.scheduler.after(CHECK_EVERY_S, self._check)

    def settled(self) -> bool:
        """One master for each store, every application content, every queue empty, no change under way."""
        if self.tables.newest.placement.before is not None:
            return False
        if any(not application.content() for application, _ in self.applications):
            return False
        return all(self._is_settled(store) for store in self.stores if store.begun)

    def _is_settled(self, store: StoreWorld) -> bool:
        masters = [slot for slot in store.slots if slot.master]
        if len(masters) != 1 or masters[0].service is None or masters[0].service.master is None:
            return False
        return not any(queue.stored for queue in masters[0].service.master.broker.state.queues.values())

    def _make_peace(self) -> None:
        self.peace = True
        self.oracle.log("peace")
        self.network.heal()
        if self.versions is not None:
            self.versions.finish()
        self.tables.lag_s.clear()
        if self.database is not None:
            self.database.end()
        for store in self.stores:
            store.trips.clear()
            for cache in store.caches:
                cache.cut_until = min(cache.cut_until, self.scheduler.now)
                cache.faults.clear()
        for machine in self.nodes:
            for process in machine.processes:
                process.stall_chance = 0.0
            self.power_on(machine)
        for application, _ in self.applications:
            application.stopping = True

    def _finish(self) -> None:
        """Everything is delivered: is all of it true, and nothing left behind?"""
        for store in self.stores:
            if store.begun:
                store.oracle.check_journal()
        self.oracle.finish()
        if self.database is not None and (unknown := self.database.unknown()):
            self.oracle.broken("P4", f"tables {', '.join(unknown)} do not follow those before them")
        for application, _ in self.applications:
            if application.process is not None:
                application.process.kill()
                self.network.process_died(application.process, silent=False)
        until = self.scheduler.now + QUIET_S
        while self.left() and self.scheduler.now < until and not self.oracle.over():
            self.scheduler.run(self.scheduler.now + 1.0, self.oracle.over)
        if left := self.left():
            self.oracle.broken("bounds", f"{QUIET_S:g} s after the last client has gone: {'; '.join(left[:10])}")

    def left(self) -> list[str]:
        found = [each for gateway in self.gateways for each in gateway.left()]
        return found + [each for store in self.stores if store.begun for each in store.left()]

    def _diagnosis(self) -> str:
        masters = {
            store.name: [slot.name for slot in store.slots if slot.master] for store in self.stores if store.begun
        }
        waiting = [application.name for application, _ in self.applications if not application.content()]
        left = []
        for store in self.stores:
            for slot in store.slots:
                if slot.master and slot.service is not None and slot.service.master is not None:
                    queues = slot.service.master.broker.state.queues.values()
                    left += [f"{store.name} {queue.name}: {queue.stored}" for queue in queues if queue.stored]
        return f"nothing moved in peace: masters {masters}, waiting {waiting}, left in queues {left}"

    def _result(self) -> Result:
        counts = self.oracle.counts
        counts["cuts"] = self.network.cuts
        for store in self.stores:
            counts["late writes"] += sum(cache.late_writes for cache in store.caches)
            counts["locks lost"] += sum(cache.locks_lost for cache in store.caches)
        mounts = ", ".join(store.mount.kind for store in self.stores if store.begun)
        return Result(
            self.seed,
            self.oracle.violation,
            self.oracle.digest(),
            self.faults,
            mounts,
            counts,
            self.scheduler.now,
            self.scheduler.steps,
            list(self.oracle.tail),
            self.features,
        )


class MovingWorld(ClusterWorld):
    """What roams alone, and few seconds: moves under faults, many of them in a short time."""

    faults_s = 10.0

    def _applications(self, rng: Random) -> list[Any]:
        return roaming(rng)
