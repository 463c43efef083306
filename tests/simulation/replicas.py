"""A replicated store in the simulation: the machines of `amq.store.replica`, and around them what a program would be.

Messages are lost, late, doubled and out of order; a crash loses what a disk has not synced; members stop, come back,
and one of them without its disk; the coordinator forgets nothing, but may be away, or its answer lost. The only
promises: every master begins with everything that was confirmed, no deposed master confirms anything else, and none
proves to itself that it is still the master.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random
from typing import Any, NamedTuple
from zlib import crc32

from amq.store.replica.candidate import Candidate
from amq.store.replica.group import NO_GROUP, GroupPolicy, GroupRecord
from amq.store.replica.keeper import CopyWork, Keeper, KeptState
from amq.store.replica.leader import Leader
from amq.store.replica.messages import (
    TO_A_COPY,
    CompareAndSet,
    Confirm,
    DiskRequest,
    Fetched,
    KeepData,
    KeepMark,
    KeepPiece,
    Lost,
    Promised,
    ReadBack,
    Say,
    SetAside,
    StartOver,
    Supply,
    SupplyPiece,
)
from tests.simulation.faults import Fault
from tests.simulation.world import Result

NAME = "replication"
FAULTS_S, PEACE_S = 12.0, 30.0
TICK_S = 0.1
PATIENCE_S = 3.0  # of a candidate
IN_DOUBT_MAX = 5  # writes that wait to be confirmed
ENTRIES_MAX = 4  # that are read at once
KINDS = (
    "kill",
    "kill",
    "pause",
    "cut",
    "cut",
    "isolate",
    "away",
    "away",
    "restart_all",
    "destroy",
    "rival",
    "rival",
    *["trip"] * 5,
)
BLOWS = ("kill", "isolate", "destroy")
MOMENTS = ("promised", "regrouped", "sealed", "piece")  # at which a trip strikes the member to which it happens


class BrokenPromiseError(Exception):
    """The checker has found a violation."""


class Entry(NamedTuple):
    """A write of `term` that ends at `upto`. No two writes have one `token`."""

    term: int
    upto: int
    token: str


@dataclass
class SimCopy:
    """The disk of one copy: what is durable."""

    promised: int = 0
    term: int = 0
    whole: bool = True
    log: list[Entry] = field(default_factory=list)
    pieces: list[Entry] = field(default_factory=list)

    def state(self) -> KeptState:
        return KeptState(self.promised, self.term, self.whole, self.position())

    def position(self) -> int:
        return self.log[-1].upto if self.log and self.log[-1].term == self.term else 0

    def apply(self, request: DiskRequest) -> None:
        if isinstance(request, KeepMark):
            if request.whole and not self.whole:
                self.log, self.pieces = self.pieces, []
            self.promised, self.term, self.whole, _ = request
        elif isinstance(request, KeepData):
            assert not self.log or request.data[0][:2] > self.log[-1][:2], "a copy writes behind its end"
            self.log += request.data
        elif isinstance(request, KeepPiece):
            self.pieces += request.data
        elif isinstance(request, SetAside):
            self.log = [entry for entry in self.log if entry.term != self.term or entry.upto <= request.position]
        elif isinstance(request, StartOver):
            self.log, self.pieces = [], []

    def after(self, term: int, position: int) -> list[Entry]:
        return [entry for entry in self.log if entry.term == term and entry.upto > position][:ENTRIES_MAX]


class ReplicaOracle:
    """What was confirmed, and what masters begin with."""

    def __init__(self) -> None:
        self.confirmed: dict[str, int] = {}  # token → term
        self.serving = 0
        self.log: list[Entry] = []  # with which that term began
        self.base: set[str] = set()
        self.counts: Counter[str] = Counter()
        self.history: list[str] = []

    def served(self, term: int, log: list[Entry]) -> None:
        """The master of `term` begins with `log`."""
        tokens = {entry.token for entry in log}
        lost = sorted(token for token, by in self.confirmed.items() if by < term and token not in tokens)
        if lost:
            raise BrokenPromiseError(f"confirmed and lost: the master of term {term} lacks {lost}")
        if term > self.serving:
            if log[: len(self.log)] != self.log:
                raise BrokenPromiseError(f"the log of term {term} does not begin with that of term {self.serving}")
            self.serving, self.base, self.log = term, tokens, log
        self.counts["terms"] += 1

    def confirm(self, entry: Entry) -> None:
        if entry.term < self.serving:
            self.counts["confirmed late"] += 1
            if entry.token not in self.base:
                raise BrokenPromiseError(f"two confirm: {entry} is not in the log of term {self.serving}")
        self.confirmed[entry.token] = entry.term
        self.counts["confirmed"] += 1

    def prove(self, term: int, newest: int, *, away: bool) -> None:
        """The master of `term` has proved that it was the master when the coordinator had `newest`."""
        if newest > term:
            raise BrokenPromiseError(f"two serve: the master of term {term} proved itself after term {newest} began")
        self.counts["proved without the coordinator" if away else "proved"] += 1


def told(record: GroupRecord) -> str:
    members = ",".join(sorted(record.members))
    return f"{record.copies} of {members} in term {record.term}, which sealed {record.before} at {record.sealed}"


class SimCoordinator:
    """It forgets nothing. Claims and revisions grow."""

    def __init__(self) -> None:
        self.record, self.revision, self.claims = NO_GROUP, 0, 0
        self.beat_at = -1.0

    def claim(self) -> int:
        self.claims += 1
        return self.claims

    def compare_and_set(self, revision: int, record: GroupRecord) -> tuple[int, GroupRecord]:
        if revision == self.revision:
            self.record, self.revision = record, revision + 1
        return self.revision, self.record


class SimReplica:
    """One machine: a copy on its disk, and the program around it, which dies and comes back. `id` is new when the disk
    is."""

    def __init__(self, world: ReplicationWorld, number: int) -> None:
        self.world, self.number = world, number
        self.disks = 0
        self.paused_until = 0.0
        self.life = 0  # odd = it runs
        self.new_disk()

    def new_disk(self) -> None:
        self.disks += 1
        self.disk = SimCopy()
        self.id = f"{'abcdef'[self.number]}{self.disks}"

    @property
    def alive(self) -> bool:
        return self.life % 2 == 1

    def start(self) -> None:
        if self.alive:
            return
        self.life += 1
        self.keeper = Keeper(self.disk.state())
        self.jobs: deque[tuple[str, CopyWork]] = deque()
        self.leader: Leader | None = None
        self.candidate: Candidate | None = None
        self.written: list[Entry] = []
        self.asked: dict[int, int] = {}  # question of this master → the term that the coordinator had then
        self.looking = False
        self.gives_up_at = 0.0
        self.world.later(self.world.rng.random() * TICK_S, self.tick, self)

    def crash(self) -> None:
        """What the disk has not synced may be there or not: of the request under way a part."""
        if not self.alive:
            return
        self.life += 1
        rng = self.world.rng
        if self.jobs and rng.random() < 0.7:
            requests = list(self.jobs[0][1].requests)
            for request in requests[: rng.randint(0, len(requests))]:
                if isinstance(request, KeepData) and rng.random() < 0.5:
                    request = KeepData(request.upto, request.data[:1])
                self.disk.apply(request)

    # -- the copy ------------------------------------------------------------------------------------------------------

    def receive(self, sender: str, message: Any) -> None:
        """To the copy, or an answer."""
        if isinstance(message, TO_A_COPY):
            self.jobs.append((sender, self.keeper.handle(message)))
            if len(self.jobs) == 1:
                self._work()
            return
        for machine in (self.leader, self.candidate):
            if machine is not None:
                machine.handle(sender, message)
        self._prove()
        self._perform()

    def _work(self) -> None:
        delay = 0.0 if not self.jobs[0][1].requests else self.world.rng.expovariate(1 / self.world.sync_s)
        self.world.later(delay, self._worked, self)

    def _worked(self) -> None:
        sender, work = self.jobs.popleft()
        answer = work.answer
        for request in work.requests:
            if isinstance(request, ReadBack):
                found = self.disk.after(request.term, request.after)
                answer = Fetched(request.term, request.after, found[-1].upto if found else request.after, found)
            else:
                self.disk.apply(request)
        self.world.send(self, sender, answer)
        if isinstance(answer, Promised):
            self.world.moment("promised", self)
        elif any(isinstance(request, KeepPiece) for request in work.requests):
            self.world.moment("piece", self)
        if self.jobs:
            self._work()

    # -- the master, or a candidate ------------------------------------------------------------------------------------

    def tick(self) -> None:
        world = self.world
        world.later(TICK_S * (0.5 + world.rng.random()), self.tick, self)
        if self.leader is not None:
            self._lead(self.leader)
        elif self.candidate is not None:
            self.candidate.tick()
            if world.now > self.gives_up_at:
                self.candidate = None
        elif not self.looking and world.rng.random() < 0.3:
            self.look()
        self._perform()

    def look(self, *, at_once: bool = False) -> None:
        """Ask the coordinator whether there is a master; `at_once`: try for it anyhow."""
        self.looking = True
        self.world.ask(self, partial(self._look, at_once), self._looked)
        self.world.later(1.0, self._look_again, self)

    def _look_again(self) -> None:
        self.looking = False

    def _look(self, at_once: bool) -> tuple[bool, GroupRecord]:
        """Beats are hints: some candidates try although there is a master."""
        coordinator = self.world.coordinator
        silent = self.world.now - coordinator.beat_at > 1.0
        return silent or at_once or self.world.rng.random() < self.world.haste, coordinator.record

    def _looked(self, found: tuple[bool, GroupRecord]) -> None:
        tries, record = found
        has_all = self.keeper.can_begin(record) or (self.keeper.whole and self.keeper.term == record.term)
        may = has_all and (self.id in record.members or not record.term)
        if tries and may and self.leader is None and self.candidate is None:
            self.world.ask(self, self.world.coordinator.claim, self._claimed)

    def _claimed(self, ballot: int) -> None:
        coordinator = self.world.coordinator
        self.world.ask(self, lambda: (coordinator.revision, coordinator.record), partial(self._begin, ballot))

    def _begin(self, ballot: int, found: tuple[int, GroupRecord]) -> None:
        if self.leader is None and self.candidate is None:
            revision, record = found
            others, policy = self.others(), self.world.policy
            self.candidate = Candidate(self.id, ballot, record, revision, self.keeper, others, policy)
            self.gives_up_at = self.world.now + PATIENCE_S
            self.world.oracle.counts["candidates"] += 1
            self._perform()

    def _lead(self, leader: Leader) -> None:
        world = self.world
        for other in world.replicas:
            if other.alive and not leader.stream.knows(other.id):
                leader.stream.meet(other.id)
        leader.tick()
        self.asked[leader.prove()] = world.coordinator.record.term
        world.ask(self, self._beat, lambda _: None)
        if leader.is_ready and len(self.written) - self.shown < IN_DOUBT_MAX:
            for _ in range(world.rng.choice((0, 0, 1, 1, 2, 3))):
                upto = leader.stream.end + world.rng.randint(1, 9)
                entry = Entry(leader.record.term, upto, f"{leader.record.term}.{len(self.written)}")
                self.written.append(entry)
                leader.append(upto, 1, [entry])

    def _prove(self) -> None:
        """The master learns that it was the master when it asked."""
        leader = self.leader
        for question in [each for each in self.asked if leader is not None and each <= leader.proved]:
            assert leader is not None
            self.world.oracle.prove(leader.record.term, self.asked.pop(question), away=self.is_away)

    @property
    def is_away(self) -> bool:
        """Whether it cannot reach the coordinator."""
        return self.world.away.get(self.number, 0.0) > self.world.now

    def _beat(self) -> None:
        self.world.coordinator.beat_at = self.world.now

    def _perform(self) -> None:
        """Carry out what the machines ask for."""
        while True:
            machine = self.leader or self.candidate
            wanted = machine.take() if machine is not None else []
            if not wanted:
                return
            for each in wanted:
                self._carry_out(machine, each)

    def _carry_out(self, machine: Any, wanted: Any) -> None:
        world = self.world
        if isinstance(wanted, Say):
            world.send(self, wanted.member, wanted.message)
        elif isinstance(wanted, Supply):
            found = self.disk.after(wanted.term, wanted.after)
            if found:
                upto = found[-1].upto
                machine.stream.supplied(wanted.member, wanted.term, wanted.after, upto, len(found), found)
        elif isinstance(wanted, SupplyPiece):
            base = [entry for entry in self.disk.log if entry.term < machine.record.term]
            start = wanted.number * ENTRIES_MAX
            last = start + ENTRIES_MAX >= len(base)
            if self.keeper.term == machine.record.term and self.disk.term == machine.record.term:
                world.oracle.counts["pieces"] += 1
                machine.stream.supplied_piece(wanted.member, wanted.number, last, base[start : start + ENTRIES_MAX])
        elif isinstance(wanted, Confirm):
            self._confirm(wanted.position)
        elif isinstance(wanted, CompareAndSet):
            world.asked.add(wanted)
            world.ask(self, partial(self._compare_and_set, wanted), partial(self._answered, machine))
        else:
            assert isinstance(wanted, Lost)
            world.note(self, f"lost: {wanted.reason}")
            if machine is self.leader:
                world.oracle.counts["masters deposed"] += 1
            self.leader = self.candidate = None

    def _compare_and_set(self, wanted: CompareAndSet) -> tuple[int, GroupRecord]:
        coordinator = self.world.coordinator
        before = coordinator.record
        answer = coordinator.compare_and_set(*wanted)
        if coordinator.record != before:
            self.world.moment("regrouped" if coordinator.record.term == before.term else "sealed", self)
        return answer

    def _answered(self, machine: Any, found: tuple[int, GroupRecord]) -> None:
        if machine is not self.leader and machine is not self.candidate:
            return
        before = machine.record
        machine.answered(*found)
        if machine is self.leader:
            if machine.record != before:
                self.world.note(self, f"group {told(machine.record)}")
                is_smaller = len(machine.record.members) < len(before.members)
                self.world.oracle.counts["smaller" if is_smaller else "other members"] += 1
        elif machine.won is not None:
            self._serve(machine)
        self._perform()

    def _serve(self, candidate: Candidate) -> None:
        record = candidate.won
        assert record is not None
        end = (record.before, record.sealed)
        log = [entry for entry in self.disk.log if entry[:2] <= end]
        self.world.note(self, f"serves {told(record)}")
        self.candidate = None
        self.world.oracle.served(record.term, log)
        self.written, self.shown, self.asked = [], 0, {}
        self.leader = Leader(self.id, record, candidate.revision, self.others(), self.world.policy)

    def others(self) -> list[str]:
        return [replica.id for replica in self.world.replicas if replica.alive]

    def _confirm(self, position: int) -> None:
        while self.shown < len(self.written) and self.written[self.shown].upto <= position:
            self.world.oracle.confirm(self.written[self.shown])
            self.shown += 1


class ReplicationWorld:
    """Everything of one run: see `tests.simulation.world.World`."""

    def __init__(
        self,
        seed: int,
        faults: list[Fault] | None = None,
        focus: tuple[str, ...] = (),
        features: tuple[str, ...] | None = None,  # noqa: ARG002 - it has its own
    ) -> None:
        self.seed = seed
        self.rng = Random(f"replicas {seed}")
        rng = Random(f"replicas' faults {seed}")
        self.loss, self.twice = rng.choice((0.0, 0.01, 0.1)), rng.choice((0.0, 0.05))
        self.delay_s, self.sync_s = rng.choice((0.002, 0.02, 0.1)), rng.choice((0.001, 0.01, 0.1))
        self.haste = rng.choice((0.0, 0.02, 0.2))
        self.policy = GroupPolicy(rng.choice((2, 3, 3, 4)), rng.choice((1, 2)))
        self.now, self.steps, self.peace = 0.0, 0, False
        self._heap: list[tuple[float, int, SimReplica | None, int, Callable[[], object]]] = []
        self.oracle, self.coordinator = ReplicaOracle(), SimCoordinator()
        self.cuts: dict[frozenset[int], float] = {}
        self.away: dict[int, float] = {}  # number of a replica → until when it does not reach the coordinator
        self.asked: set[CompareAndSet] = set()  # of the coordinator, which may still carry them out
        self.trips: list[tuple[Fault, Counter[str]]] = []
        self.replicas = [SimReplica(self, number) for number in range(self.policy.members + rng.choice((0, 0, 1)))]
        self.faults = schedule(rng, len(self.replicas), focus) if faults is None else faults

    # -- time ----------------------------------------------------------------------------------------------------------

    def later(self, seconds: float, action: Callable[[], object], replica: SimReplica | None = None) -> None:
        """Do it then, if `replica` still runs; later where it is paused."""
        self.steps += 1
        life = replica.life if replica is not None else 0
        heapq.heappush(self._heap, (self.now + seconds, self.steps, replica, life, action))

    def _run(self, until: float) -> None:
        while self._heap and self._heap[0][0] <= until:
            when, _, replica, life, action = heapq.heappop(self._heap)
            self.now = max(self.now, when)
            if replica is not None:
                if replica.life != life:
                    continue
                if replica.paused_until > self.now:
                    self.later(replica.paused_until - self.now, action, replica)
                    continue
            action()
        self.now = until

    # -- network -------------------------------------------------------------------------------------------------------

    def send(self, sender: SimReplica, to: str, message: Any) -> None:
        replica = next((each for each in self.replicas if each.id == to), None)
        if replica is None or message is None:
            return
        if replica is sender:
            self.later(0.0, partial(replica.receive, sender.id, message), replica)
            return
        for _ in range(1 + (self.rng.random() < self.twice)):
            if self.peace or self.rng.random() >= self.loss:
                delay = self.rng.expovariate(1 / self.delay_s)
                self.later(delay, partial(self._arrive, sender.number, sender.id, replica, message))

    def _arrive(self, number: int, sender: str, replica: SimReplica, message: Any) -> None:
        if replica.alive and self.cuts.get(frozenset((number, replica.number)), 0.0) <= self.now:
            self.later(0.0, partial(replica.receive, sender, message), replica)

    def ask(self, replica: SimReplica, call: Callable[[], Any], done: Callable[[Any], object]) -> None:
        """Ask the coordinator. Question or answer may be lost, or late."""
        self.later(self.rng.expovariate(1 / self.delay_s), partial(self._asked, replica, replica.life, call, done))

    def _asked(self, replica: SimReplica, life: int, call: Callable[[], Any], done: Callable[[Any], object]) -> None:
        if replica.is_away:
            return
        answer = call()
        if replica.life == life and (self.peace or self.rng.random() >= self.loss):
            self.later(self.rng.expovariate(1 / self.delay_s), partial(done, answer), replica)

    # -- the run -------------------------------------------------------------------------------------------------------

    def moment(self, place: str, replica: SimReplica) -> None:
        """Something happened to `replica` for which a trip may wait."""
        for trip in list(self.trips):
            fault, seen = trip
            seen[place] += 1
            if fault.place == place and seen[place] == fault.nth and not self.peace:
                self.trips.remove(trip)
                self.note(replica, f"{fault.blow} when {place}, for {fault.seconds}")
                self.oracle.counts[f"{fault.blow} when {place}"] += 1
                self.later(0.0, partial(strike, self, fault.blow, replica, fault.seconds))

    def note(self, replica: SimReplica, what: str) -> None:
        self.oracle.history.append(f"{self.now:8.3f} {replica.id} {what}")

    def run(self) -> Result:
        violation = ""
        try:
            for replica in self.replicas:
                self.later(self.rng.random(), replica.start)
            for fault in self.faults:
                self.later(fault.at, partial(inject, self, fault))
            self._run(FAULTS_S)
            self._make_peace()
            self._run(FAULTS_S + PEACE_S)
            self._check_end()
        except BrokenPromiseError as error:
            violation = str(error)
        counts, tail = self.oracle.counts, self.oracle.history
        digest = f"{crc32(repr((tail, sorted(counts.items()))).encode()):08x}"
        return Result(
            self.seed, violation, digest, self.faults, "replicas", counts, self.now, self.steps, tail, (NAME,)
        )

    def _make_peace(self) -> None:
        self.peace, self.haste = True, 0.0
        self.cuts, self.away = {}, {}
        for replica in self.replicas:
            replica.paused_until = 0.0
            replica.start()
        self._confirmed_before = len(self.oracle.confirmed)

    def _check_end(self) -> None:
        """A master serves, and all copies of its group are alike."""
        if len(self.oracle.confirmed) == self._confirmed_before:
            raise BrokenPromiseError(f"nothing was confirmed in peace: {told(self.coordinator.record)}")
        written: dict[tuple[int, int], str] = {}
        for replica in self.replicas:
            for entry in replica.disk.log:
                if written.setdefault(entry[:2], entry.token) != entry.token:
                    raise BrokenPromiseError(f"copies differ at {entry}")
        record = self.coordinator.record
        for replica in self.replicas:
            if replica.id in record.members and not (replica.disk.whole and replica.disk.term == record.term):
                raise BrokenPromiseError(f"copy {replica.id} stays behind {told(record)}: {replica.disk.state()}")


def schedule(rng: Random, replicas: int, focus: tuple[str, ...]) -> list[Fault]:
    """What goes wrong. A focus names kinds, and trips: "kill when sealed"."""
    trips = [
        (blow, place)
        for blow in BLOWS
        for place in MOMENTS
        if not focus or {"trip", f"{blow} when {place}"} & set(focus)
    ]
    kinds = [kind for kind in KINDS if not focus or kind in focus or (kind == "trip" and trips)]
    faults = []
    for _ in range(rng.choice((3, 8, 16))):
        kind = rng.choice(kinds)
        target, number = rng.randrange(replicas), rng.randrange(replicas)
        fault = Fault(rng.uniform(0.5, FAULTS_S), kind, target, rng.choice((0.1, 1.0, 3.0)), number=number)
        if kind == "trip":
            blow, place = rng.choice(trips)
            seconds, nth = rng.choice((0.01, 0.01, 0.1, 1.0)), rng.choice((1, 1, 2, 3))
            fault = replace(fault, seconds=seconds, blow=blow, place=place, nth=nth)
        faults.append(fault)
    return sorted(faults, key=lambda fault: fault.at)


def inject(world: ReplicationWorld, fault: Fault) -> None:
    """Let `fault` happen."""
    replica, until = world.replicas[fault.target], world.now + fault.seconds
    world.oracle.counts[fault.kind] += 1
    if fault.kind == "trip":
        world.trips.append((fault, Counter()))
        return
    world.note(replica, f"{fault.kind} for {fault.seconds}")
    if fault.kind in ("kill", "isolate"):
        strike(world, fault.kind, replica, fault.seconds)
    elif fault.kind == "rival":  # it cannot reach the master
        master = next((each.number for each in world.replicas if each.alive and each.leader is not None), fault.number)
        world.cuts[frozenset((fault.target, master))] = until
        if replica.alive:
            replica.look(at_once=True)
    elif fault.kind == "pause":
        replica.paused_until = until
    elif fault.kind == "cut":
        world.cuts[frozenset((fault.target, fault.number))] = until
    elif fault.kind == "away":
        for number in range(len(world.replicas)) if fault.number % 2 else (fault.target,):
            world.away[number] = until
    elif fault.kind == "restart_all":
        for each in world.replicas:
            each.crash()
            world.later(world.rng.random() * fault.seconds, each.start)
    else:
        _destroy(world, replica, fault.seconds)


def strike(world: ReplicationWorld, blow: str, replica: SimReplica, seconds: float) -> None:
    if blow == "kill":
        replica.crash()
        world.later(seconds, replica.start)
    elif blow == "destroy":
        _destroy(world, replica, seconds)
    else:
        for other in world.replicas:
            world.cuts[frozenset((replica.number, other.number))] = world.now + seconds


def _destroy(world: ReplicationWorld, replica: SimReplica, seconds: float) -> None:
    """One disk in a run is lost for good, where another copy has what was confirmed, and will have it."""
    coordinator = world.coordinator
    records = [coordinator.record, *(asked.record for asked in world.asked if asked.revision == coordinator.revision)]
    first = all(each.disks == 1 for each in world.replicas)
    if first and all(replica.id not in record.members or record.copies > 1 for record in records):
        world.oracle.counts["disks lost"] += 1
        replica.crash()
        replica.new_disk()
        world.later(seconds, replica.start)
