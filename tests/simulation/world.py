"""The world of one run: machines, file server, network, brokers with a supervisor, applications, faults. One seed gives
one history; `run(seed)` is all that most callers need.

A run has two parts: faults for `FAULTS_S`, then peace, in which within `PEACE_S` exactly one master must serve, every
application be content and every queue be empty (liveness).
"""

from __future__ import annotations

import errno
import gc
import logging
import math
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any
from unittest.mock import patch

import structlog

from amq.broker.events import RoleChanged
from amq.config.destination_options import DestinationOptions
from amq.config.schema import BrokerConfig
from amq.config.transport_url import parse_transport_url
from amq.core.errors import AmqError
from amq.core.message import LARGE_BODY_BYTES
from amq.node.member import Hosting, Member, Role
from amq.security.login import Claim, Login, User
from amq.transports.probe import Refusal
from tests.large import large_from
from tests.simulation.clients import Application, Consumer, Mover, Producer, TransactedProducer
from tests.simulation.door import SimVfs
from tests.simulation.faults import FAULTS_S, Fault, schedule
from tests.simulation.features import Feature
from tests.simulation.hosts import HostCache, Mount
from tests.simulation.limits import DLQ
from tests.simulation.network import Network
from tests.simulation.oracle import STORE, Oracle
from tests.simulation.scheduler import HostDoor, Killed, Machine, Process, Scheduler, Task
from tests.simulation.storage import Server
from tests.simulation.swarm import ASIDE, FEATURES, choose

PEACE_S = 90.0
CHECK_EVERY_S = 3.1
LOOK_EVERY_S = 0.2
DEAF_SHARE = 0.25  # of the runs have brokers that cannot open their transports for a while
PORT = 61613
LARGE_EVERY = 3  # this many seeds have one in which bodies of more than LARGE_BYTES are large
LARGE_BYTES = 100
POLICIES = ("block", "fail", "drop-oldest")
RATE_MAX = 0.0049  # clocks of two hosts differ by less than 1 %
MOUNTS = (
    Mount("local", False, 0.0, False, False, 0.0, 1e9, False),
    Mount("nfs4 hard", True, 0.0, True, False, 0.0, 2.5, True),
    Mount("nfs4 soft, default cache", True, 3.0, True, False, 3.0, 2.5, True),
    Mount("nfs without fencing", True, 1.5, False, False, 0.0, 2.5, False),
    Mount("gfs2", False, 0.0, False, False, 0.0, 1.0, False),
    Mount("smb", True, 0.0, False, True, 4.0, 4.0, True),
)
FATAL_CODES = ("STORE_CORRUPT", "STORE_INCOMPLETE", "STORE_FOREIGN_FILE", "STORE_NEWER_FORMAT", "INTERNAL_ERROR")


async def anybody(_: Claim) -> Login:
    return Login(User("anybody"), "password")


def _member(
    config: BrokerConfig, authenticate: Any, *, vfs: SimVfs, replace_process: Callable[[], None], **doors: Any
) -> Member:
    hosting = Hosting(replace_process)
    return Member(config, authenticate, store=vfs.store(config.store), hosting=hosting, **doors)


class Release:
    """The code that brokers run: here that of this checkout. `config` makes of one of ours what it takes."""

    name = "today's"
    service: Any = staticmethod(_member)
    stopped: Any = Role.STOPPED
    role_changed: Any = RoleChanged

    def config(self, config: BrokerConfig) -> Any:
        return config


TODAY = Release()


class Slot:
    """One broker as its operator sees it: started again whenever it ends. `release` is installed, `running` is what its
    last process runs."""

    def __init__(self, name: str, machine: Machine, config: BrokerConfig) -> None:
        self.name = name
        self.machine = machine
        self.config = config
        self.release = self.running = TODAY
        self.process: Process | None = None
        self.vfs: SimVfs | None = None
        self.service: Member | None = None

    @property
    def master(self) -> bool:
        alive = self.process is not None and self.process.alive
        return alive and self.service is not None and self.service.role.value == Role.MASTER.value


@dataclass
class Result:
    """How a run ended. `violation` is empty where every promise was kept."""

    seed: int
    violation: str
    digest: str
    faults: list[Fault]
    mount: str
    counts: Counter[str]
    simulated_s: float
    steps: int
    tail: list[str]
    features: tuple[str, ...]


class World:
    """Everything of one run, made from `seed`; `faults` and `features` in place of those that the seed would give;
    `focus` = kinds of faults, and blows of `WORST`, to which it is limited. Another kind of store is a subclass."""

    mounts: tuple[Mount, ...] = MOUNTS
    server_type: type[Server] = Server
    host_type: type[HostCache] = HostCache
    aside: Mapping[str, type[Feature]] = ASIDE

    def __init__(
        self,
        seed: int,
        faults: list[Fault] | None = None,
        focus: tuple[str, ...] = (),
        features: tuple[str, ...] | None = None,
    ) -> None:
        self.seed = seed
        rng = Random(seed)
        self.rng = Random(rng.getrandbits(64))
        self.scheduler = Scheduler(Random(rng.getrandbits(64)))
        self.scheduler.on_crash = self._crashed
        self.mount = rng.choice(self.mounts)
        self.period_s = rng.choice((0.6, 1.0, 1.6))
        self.server = self.server_type(Random(rng.getrandbits(64)), self.mount.sync_names, 4 << 20)
        self.server.create("/mnt", directory=True)
        self.server.sync_directory(self.server.root)
        self.oracle = Oracle(self.scheduler, self.server)
        self.network = Network(
            self.scheduler,
            Random(rng.getrandbits(64)),
            rng.choice((0.0005, 0.002, 0.02)),
            rng.choice((0.0, 0.05, 0.5)),
            rng.choice((0.0, 0.0, 0.002, 0.02)),
        )
        self.stall_chance = rng.choice((0.0, 0.0, 0.0005, 0.003))
        self.short_chance = rng.choice((0.0, 0.0, 0.1))
        self.vfs_latency_s = rng.choice((0.0002, 0.001, 0.01))
        self.server_ready_at = 0.0
        self.peace = False
        self.machines: list[Machine] = []
        self.caches: list[HostCache] = []
        self.slots: list[Slot] = []
        self.applications: list[tuple[Application, Machine]] = []
        self.trips: list[list[Any]] = []  # [fault, calls left]
        self.rotten: list[Callable[[], None]] = []  # how the operator restores what rotted
        self.features = choose(seed) if features is None else features
        known = {**FEATURES, **self.aside}
        self.oracle.checkers = self._made = [known[name](self.oracle, seed) for name in self.features]
        self._make_brokers(rng)
        self.deaf = self._deafness()
        self.network.deaf = self._is_deaf
        self._make_applications(rng)
        self.faults = schedule(Random(rng.getrandbits(64)), self.period_s, focus) if faults is None else faults
        for feature in self._made:
            feature.prepare(self)
            if faults is None:
                self.faults = feature.schedule(self.faults)

    # -- what there is ------------------------------------------------------------------------------------------------

    def _machine(self, name: str, rng: Random) -> Machine:
        rate = 1.0 + rng.choice((-RATE_MAX, 0.0, RATE_MAX, rng.uniform(-RATE_MAX, RATE_MAX)))
        machine = Machine(self.scheduler, name, rate, Random(rng.getrandbits(64)))
        self.machines.append(machine)
        return machine

    def _make_brokers(self, rng: Random) -> None:
        hosts = 1 if self.mount.kind == "local" else rng.choice((2, 2, 3))
        for i in range(hosts):
            machine = self._machine(f"host{i}", rng)
            dice = Random(rng.getrandbits(64))
            self.caches.append(self.host_type(self.scheduler, machine, self.server, self.mount, dice))
        segment_bytes = rng.choice((4 << 10, 16 << 10, 64 << 10))
        uneven = rng.random() < 0.3
        memory_limit_bytes = rng.choice((1 << 30, 30_000))
        dice = Random(rng.getrandbits(64))
        checkpoint_distance_bytes = dice.choice((0, 3 << 10, 20 << 10))
        limits = self._limits(segment_bytes)
        for i in range(max(2, hosts + rng.randrange(2))):
            machine = self.machines[i % hosts]
            period_s = self.period_s * (rng.choice((0.3, 1.0, 2.0)) if uneven else 1.0)
            config = BrokerConfig(
                name=f"broker{i}",
                store=STORE,
                transports=(f"stomp://{machine.name}:{PORT + i}",),
                lock_keep_alive_period_s=period_s,
                lock_acquire_sleep_interval_s=rng.choice((0.1, 0.5)),
                journal_segment_size_bytes=segment_bytes,
                journal_reserve_bytes=64 << 10,
                store_free_floor_bytes=128 << 10,
                maximum_redeliveries=-1,
                heart_beat_send_s=1.0,
                heart_beat_receive_s=1.0,
                journal_batch_size_bytes=rng.choice((2 << 10, 1 << 20)),
                transaction_timeout_s=20.0,
                memory_limit_bytes=memory_limit_bytes,
                checkpoint_distance_bytes=checkpoint_distance_bytes,
                slave_follow_interval_s=dice.choice((0.0, 0.02, 0.25)),
                **limits,
            )
            self.slots.append(Slot(f"broker{i}", machine, config))

    def _deafness(self) -> dict[int, float]:
        """Port → until when its broker cannot open it, in some runs; in peace at least one broker can serve. The dice
        are their own: nothing else moves."""
        dice = Random(f"deaf brokers of {self.seed}")
        if dice.random() >= DEAF_SHARE:
            return {}
        deaf = dice.sample(range(len(self.slots)), dice.randint(1, len(self.slots)))
        ends = [dice.choice((5.0, 20.0, FAULTS_S, math.inf)) for _ in deaf]
        if len(deaf) == len(self.slots):
            ends[0] = min(ends[0], FAULTS_S)
        return {PORT + i: until for i, until in zip(deaf, ends, strict=True)}

    def _is_deaf(self, _host: str, port: int) -> bool:
        return self.scheduler.now < self.deaf.get(port, 0.0)

    def _probe(self, transports: Sequence[str]) -> tuple[Refusal, ...]:
        """What the real probe finds, in the simulated network."""
        urls = [parse_transport_url(text) for text in transports]
        self.oracle.counts["probes"] += 1
        return tuple(
            Refusal(str(url), url.port, errno.EADDRNOTAVAIL, "not here")
            for url in urls
            if self._is_deaf(url.host, url.port)
        )

    def _limits(self, segment_bytes: int) -> dict[str, Any]:
        """Options of the brokers: how much queues and store may take. Their dice are their own: nothing else moves."""
        dice = Random(f"limits of {self.seed}")
        queue_limit_bytes = dice.choice((0, 1_000, 4_000))
        # Of what the limit allows beyond six segments half is promised: more than the ids of a run take.
        store_limit_bytes = dice.choice((0, 0, 16, 20)) * max(segment_bytes, 8 << 10)
        options = {
            "queue_limit_bytes": queue_limit_bytes,
            "queue_limit_policy": dice.choice(POLICIES),
            "store_limit_bytes": store_limit_bytes,
            "producer_flow_control": dice.choice(("block", "fail")),
            "destinations": (DestinationOptions(f"{DLQ}>", {"queue_limit_bytes": 0}),),
        }
        for feature in self._made:
            options |= feature.options()
            options["destinations"] += feature.destinations
        return options

    def _make_applications(self, rng: Random) -> None:
        uris = ",".join(f"{slot.config.transports[0]}?heartBeat=1000&connectTimeout=1000" for slot in self.slots)
        # Most of what a run of 20,000 seeds would do else is to knock at doors that are closed.
        delay_ms = Random(f"patience of {self.seed}").choice((200, 2000))
        url = f"failover:({uris})?maxReconnectDelay={delay_ms}"
        body_bytes = rng.choice((40, 400, 3000))
        made: list[Any] = [
            partial(Producer, queue="a", burst=1, body_bytes=body_bytes),
            partial(Producer, queue="b", burst=rng.choice((5, 20)), body_bytes=body_bytes),
            partial(TransactedProducer, queues=["a", "c"]),
            partial(Producer, queue="c", burst=2, body_bytes=body_bytes),
            partial(Mover, source="c", target="d"),
            *(partial(Consumer, queue=queue, prefetch=rng.choice((1, 3, 20))) for queue in "aabd"),
        ]
        self._add_applications(made, url, rng)
        dice = Random(f"late ones of {self.seed}")  # their own: nothing else moves
        dead = [DLQ + queue for queue in "abcdk"]
        late: list[Any] = [
            partial(Producer, queue="k", burst=2, body_bytes=body_bytes, pause_s=1.0),
            lambda *known: Consumer(*known, "k", 5, late=True),
            lambda *known: Consumer(*known, dead[0], 5, *dead[1:], late=dice.random() < 0.5),
        ]
        self._add_applications(late, url, dice)
        for feature in self._made:
            self._add_applications(feature.applications(), url, feature.dice)

    def _add_applications(self, made: list[Any], url: str, dice: Random) -> None:
        for make in made:
            name = f"client{len(self.applications)}"
            application = make(name, url, self.oracle, Random(dice.getrandbits(64)))
            self.applications.append((application, self._machine(name, dice)))

    # -- brokers ------------------------------------------------------------------------------------------------------

    def start_broker(self, slot: Slot) -> None:
        if not slot.machine.up or (slot.process is not None and slot.process.alive):
            return
        slot.process = process = slot.machine.spawn(slot.name)
        slot.running = slot.release
        process.loop.network = self.network
        process.stall_chance = 0.0 if self.peace else self.stall_chance
        process.stall_s = self.period_s
        cache = self.caches[self.machines.index(slot.machine)]
        slot.vfs = vfs = self._door(cache, process)
        vfs.short_chance, vfs.latency_s = self.short_chance, self.vfs_latency_s
        vfs.on_call = partial(self._on_call, slot, process)
        self.oracle.log(f"{slot.name} starts as pid {process.pid} on {slot.machine.name}")
        process.run_loop(lambda: self._broker_main(slot, process, vfs))

    def _door(self, cache: HostCache, process: Process) -> Any:
        """The door to the store of one process."""
        return SimVfs(cache, process, lambda: self.server_ready_at)

    def _ways(self, process: Process) -> dict[str, Any]:  # noqa: ARG002
        """Further doors of a broker."""
        return {}

    def _settings(self) -> AbstractContextManager[object]:
        """What else holds while this world runs."""
        return nullcontext()

    async def _broker_main(self, slot: Slot, process: Process, vfs: SimVfs) -> None:
        release = slot.running
        service = release.service(
            release.config(slot.config),
            anybody,
            vfs=vfs,
            clock=process,
            host=HostDoor(process),
            entropy=Random(process.rng.getrandbits(64)),
            threads=process,
            make_runner=process.runner,
            replace_process=lambda: self._replace(slot, process),
            probe=self._probe if self.deaf else None,
            **self._ways(process),
        )
        slot.service = service
        service.events.listen(release.role_changed, lambda event: self.oracle.log(f"{slot.name} is {event.role}"))
        await service.start()
        await service.wait_for(release.stopped)
        failure = service.failure
        self.oracle.log(f"{slot.name} stopped: {failure.code if failure is not None else 'cleanly'}")
        excused = any(path in str(failure) for path in self.oracle.excused)
        excused = excused or any(feature.excuses(slot, failure) for feature in self._made)
        if failure is not None and failure.code in FATAL_CODES and not excused:
            self.oracle.broken("P5", f"{slot.name} stopped with {failure.code}: {failure}")
        self.scheduler.after(0.001, lambda: self.end_process(slot.process if slot.process is process else None))

    def _replace(self, slot: Slot, process: Process) -> None:
        self.oracle.counts["replaced"] += 1
        self.oracle.log(f"{slot.name} replaces its process")
        self.end_process(process)
        raise Killed

    def stop_broker(self, slot: Slot) -> None:
        """The operator stops a broker in good order; its supervisor starts it again."""
        process, service = slot.process, slot.service
        if process is None or service is None or not process.alive or process.loop._kept == []:
            return
        self.oracle.log(f"operator stops {slot.name}")
        process.loop.call_soon_threadsafe(lambda: process.loop.keep(process.loop.create_task(service.stop())))

    def end_process(self, process: Process | None, silent: bool = False) -> None:
        """Kill it (it may have ended by itself: then nothing is left to do but to close); its slot starts it again."""
        if process is None or not process.alive:
            return
        process.kill()
        self.network.process_died(process, silent)
        for slot in self.slots:
            if slot.process is process and slot.vfs is not None:
                slot.vfs.died()
                wait_s = self.rng.choice((0.05, 0.5, 2.0))
                self.scheduler.after(wait_s, partial(self.start_broker, slot))

    def power_off(self, machine: Machine, seconds: float) -> None:
        if not machine.up:
            return
        self.caches[self.machines.index(machine)].power_off()
        if self.mount.kind == "local":
            self.server.crash()
        for process in list(machine.processes):
            self.end_process(process, silent=True)
        self.scheduler.after(seconds, lambda: self.power_on(machine))

    def power_on(self, machine: Machine) -> None:
        if machine.up:
            return
        self.caches[self.machines.index(machine)].power_on()
        for slot in self.slots:
            if slot.machine is machine:
                self.start_broker(slot)

    # -- clients ------------------------------------------------------------------------------------------------------

    def start_client(self, application: Application, machine: Machine) -> None:
        process = machine.spawn(application.name)
        process.loop.network = self.network
        application.start(process)

    def kill_client(self, index: int) -> None:
        application, machine = self.applications[index % len(self.applications)]
        process = application.process
        if process is not None and process.alive:
            process.kill()
            self.network.process_died(process, silent=False)
            self.scheduler.after(self.rng.random(), partial(self.start_client, application, machine))

    # -- the run ------------------------------------------------------------------------------------------------------

    def _crashed(self, task: Task, error: Exception) -> None:
        where = traceback.extract_tb(error.__traceback__)[-1]
        at = f"{where.filename.rpartition('/')[2]}:{where.lineno} in {where.name}"
        self.oracle.broken("code", f"{task.process.name}, {task.name}: {type(error).__name__}: {error} at {at}")

    def _on_call(self, slot: Slot, process: Process, method: str, path: str, after: bool, detail: str) -> None:
        if not after:
            self.oracle.log(f"{slot.name} {method} {path} {detail}")
        elif method == "link" and "/epochs/" in path:
            number = int(path.rpartition("/")[2].partition(".")[0])
            self.oracle.linked(number)
            for feature in self._made:
                feature.linked(slot, number)
        due = [trip for trip in self.trips if trip[0].strikes(method, path, after)]
        if not due:
            return
        for trip in due:
            trip[1] -= 1
        ripe = [trip for trip in due if trip[1] <= 0]
        self.trips = [trip for trip in self.trips if trip not in ripe]
        for fault, _ in ripe:
            self._strike(fault, slot, process)

    def _strike(self, fault: Fault, slot: Slot, process: Process) -> None:
        from tests.simulation.injection import strike

        strike(self, fault, slot, process)

    @contextmanager
    def _watch(self, vfs: SimVfs, _path: str, wake: Callable[[], None]) -> Iterator[OSError | None]:
        """In place of that of the election in files: the kernel of a local file system wakes who waits for the lock."""
        if self.mount.kind != "local":
            yield OSError("no file events on a network")
            return
        watcher = (vfs.process, wake)
        vfs.cache.watchers.append(watcher)
        try:
            yield None
        finally:
            vfs.cache.watchers.remove(watcher)

    def settled(self) -> bool:
        """One master, every application content, every queue empty."""
        masters = [slot for slot in self.slots if slot.master]
        if len(masters) != 1 or any(not application.content() for application, _ in self.applications):
            return False
        service = masters[0].service
        assert service is not None
        master = service.master
        return master is not None and not any(queue.stored for queue in master.broker.state.queues.values())

    def _check(self) -> None:
        self.oracle.check_journal()
        self.scheduler.after(CHECK_EVERY_S, self._check)

    def run(self) -> Result:
        from tests.simulation.injection import inject

        oracle, scheduler = self.oracle, self.scheduler
        large = large_from(LARGE_BYTES if self.seed % LARGE_EVERY == 0 else LARGE_BODY_BYTES)
        with (
            self._quiet(),
            oracle.observing(),
            large,
            patch("amq.store.files.election.watch", self._watch),
            ExitStack() as settings,
        ):
            settings.enter_context(self._settings())
            for feature in self._made:
                settings.enter_context(feature.settings())
            for slot in self.slots:
                scheduler.after(self.rng.random(), partial(self.start_broker, slot))
            return self._play(inject, FAULTS_S)

    def _play(self, inject: Callable[[Any, Fault], None], faults_s: float) -> Result:
        """What clients do, and the faults, until all is settled or a promise is broken."""
        oracle, scheduler = self.oracle, self.scheduler
        for application, machine in self.applications:
            scheduler.after(self.rng.random(), partial(self.start_client, application, machine))
        for fault in self.faults:
            scheduler.at(fault.at, partial(inject, self, fault))
        scheduler.after(CHECK_EVERY_S, self._check)
        scheduler.run(faults_s + 2.0, oracle.over)
        if not oracle.over():
            self._make_peace()
            self._wait_until_settled()
        if not oracle.over():
            if self.settled():
                self._finish()
            else:
                oracle.broken("liveness", self._diagnosis())
        result = self._result()
        self._tear_down()
        return result

    def _finish(self) -> None:
        self.oracle.check_journal()
        self.oracle.finish()

    def _wait_until_settled(self) -> None:
        """As long as something moves: what slow consumers have before them may take more than `PEACE_S`."""
        oracle, scheduler = self.oracle, self.scheduler
        moved, end, last = -1, 0.0, scheduler.now + PEACE_S * 10
        while not oracle.over() and not self.settled():
            if oracle.counts["acknowledged"] > moved:
                moved, end = oracle.counts["acknowledged"], scheduler.now + PEACE_S
            if scheduler.now >= min(end, last):
                break
            scheduler.run(scheduler.now + LOOK_EVERY_S, oracle.over)

    def _make_peace(self) -> None:
        """Faults are over. What they have set in motion goes on by itself."""
        self.peace = True
        self.oracle.log("peace")
        self.trips.clear()
        for restore in self.rotten:
            restore()
        self.network.heal()
        for cache in self.caches:
            cache.cut_until = min(cache.cut_until, self.scheduler.now)
            cache.faults.clear()
        for machine in self.machines[: len(self.caches)]:
            for process in machine.processes:
                process.stall_chance = 0.0
            self.power_on(machine)
        for application, _ in self.applications:
            application.stopping = True

    def _diagnosis(self) -> str:
        masters = [slot.name for slot in self.slots if slot.master]
        waiting = [application.name for application, _ in self.applications if not application.content()]
        left: list[str] = []
        for slot in self.slots:
            if slot.master and slot.service is not None and slot.service.master is not None:
                queues = slot.service.master.broker.state.queues.values()
                left += [f"{queue.name}: {queue.stored}" for queue in queues if queue.stored]
        since = f"{PEACE_S:g} s of peace in which nothing moved"
        return f"after {since}: masters {masters}, waiting {waiting}, left in queues {left}"

    def _result(self) -> Result:
        counts = self.oracle.counts
        counts["cuts"] = self.network.cuts
        counts["late writes"] = sum(cache.late_writes for cache in self.caches)
        counts["locks lost"] = sum(cache.locks_lost for cache in self.caches)
        counts["torn writes"] = self.server.torn_writes
        return Result(
            self.seed,
            self.oracle.violation,
            self.oracle.digest(),
            self.faults,
            self.mount.kind,
            counts,
            self.scheduler.now,
            self.scheduler.steps,
            list(self.oracle.tail),
            self.features,
        )

    def _tear_down(self) -> None:
        for machine in self.machines:
            for process in machine.processes:
                if process.alive:
                    process.kill()
                self.scheduler.reap(process)
                process.loop.bury()

    @contextmanager
    def _quiet(self) -> Iterator[None]:
        """Logs go into the history; what dead processes leave unfinished is no news; garbage is collected last."""
        before = structlog.get_config()
        structlog.configure(processors=[self._logged], cache_logger_on_first_use=False)
        loggers = [logging.getLogger(name) for name in ("amq.client", "asyncio")]
        disabled = [logger.disabled for logger in loggers]
        collecting = gc.isenabled()
        gc.disable()
        told = sys.unraisablehook

        def tell(unraisable: Any) -> None:
            if not isinstance(unraisable.exc_value, Killed):  # a coroutine of a dead process met a door at its end
                told(unraisable)

        sys.unraisablehook = tell
        for logger in loggers:
            logger.disabled = True
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)
                warnings.simplefilter("ignore", ResourceWarning)
                yield
                gc.collect()
        finally:
            for logger, was in zip(loggers, disabled, strict=True):
                logger.disabled = was
            structlog.configure(**before)
            sys.unraisablehook = told
            if collecting:
                gc.enable()

    def _logged(self, _logger: Any, level: str, event: dict[str, Any]) -> Any:
        task = self.scheduler.current
        if task is not None and task.process.alive and level != "debug":
            facts = [f"{key}={value}" for key, value in event.items() if isinstance(value, str | int | float)]
            self.oracle.log(f"{task.process.name} says {' '.join(facts)}")
            if level == "critical" and "exc_info" in event:
                self.oracle.log(f"  because of {event['exc_info']!r}")
        raise structlog.DropEvent


def run(
    seed: int, faults: list[Fault] | None = None, focus: tuple[str, ...] = (), features: tuple[str, ...] | None = None
) -> Result:
    """One run."""
    from tests.simulation import cluster, database, replicas

    kinds: dict[str, Callable[..., Any]] = {
        database.NAME: database.SqlWorld,
        cluster.NAME: cluster.ClusterWorld,
        cluster.MOVES: cluster.MovingWorld,
        replicas.NAME: replicas.ReplicationWorld,
    }
    kind = next((kinds[name] for name in features or () if name in kinds), World)
    try:
        result: Result = kind(seed, faults, focus, features).run()
        return result
    except AmqError as error:  # the harness itself must never meet one
        raise AssertionError(f"seed {seed}: {error}") from error
