"""Kills on a cluster of three nodes and six stores, while clients of all kinds work through its gateways.

`python -m tests.cluster.kills --kills 100` does 100 of each kind, in an order and at moments that its seed decides:
processes are killed with -9 or stopped, stores hang, links break, destinations get other homes, nodes are upgraded.
Some happen at the same time, each at another node. After them the cluster must become whole again, and each client
must go on. Rounds of some kills end with queues that are drained, and with the verdict of `bench.checker` on what the
clients were told: it knows nothing of brokers, and finds what was lost, undone, doubled or came in another order.

Ctrl-C ends the kills: what was sent comes, and is judged. A second one ends the run at once, with the verdict so far.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import logging
import multiprocessing
import os
import random
import shutil
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any, NamedTuple

from amq.cli import demo_common, exits
from amq.core.errors import AmqError
from bench import history
from bench.checker import Violation, doubled, invented, lost, reordered, undone
from bench.clients import Scoreboard, WorkerPlan
from bench.history import Log
from tests.cluster.ground import ROOT, Ground, GroundNode, ServiceError, kill, thaw
from tests.cluster.workers import AMQ, TRANSACTED, subscribe_durably, work
from tests.patience import DEADLINE_S
from tests.processes import interrupts

NODES, STORES = 3, 6
PER_S = 20.0  # messages of each producer
GOES_ON = 5  # messages that each flow confirms and acknowledges after a kill
QUIET_S = 3.0  # of the drained queues, before the clients end
ROUND = 36  # kills
AT_ONCE = 3  # kills: one at each node
SHORT = 2 / 3  # of the faults last a fifth of the longest time at most: more of them happen in the same time
ALONE = "upgrade of links"  # it stops all nodes, one after the other
MOVING_PER_S = 4.0  # of a queue that moves
SPREAD_NAMES = "kills.spread."  # of queues that live in each store
INTERRUPTED = "the run was interrupted"
SHOWN_MAX = 20  # violations that the verdict spells out
MOVES = 10  # tries to move a destination that clients use: it must be empty
OPTIONS = {"lockKeepAlivePeriod": "2s", "hungMasterTimeout": "6s", "heartBeatSend": "2s"}


class Flow(NamedTuple):
    """The clients of one destination. `store` = its home, "" = it has several or moves."""

    queue: str
    store: str
    plans: Sequence[WorkerPlan]


class Hurt(NamedTuple):
    """What one kill did. `stores` = those whose master was hurt, or the way to it."""

    kind: str
    text: str
    stores: frozenset[str]
    began_us: int
    ended_us: int


# -- kills -------------------------------------------------------------------------------------------------------------


class Killer:
    """Hurts `ground` and mends it. Each kill is a method; it returns what it did, and the stores that it hurt.

    Invariant: of kills at the same time each has a node for itself, and one at a time lets a store hang. A kill that
    moves a queue may also kill a master at any node.
    """

    def __init__(self, ground: Ground, luck: random.Random, longest_s: float, commit: str = "") -> None:
        self.ground = ground
        self.luck = luck
        self.moves = Counter[str]()
        self._longest_s = longest_s
        self._commit = commit
        self._codes = {(False, False): ROOT}  # by: is it another version, are its links of another one?
        self._pause = threading.Event()
        self._hanging = threading.Lock()
        self._claiming = threading.Lock()
        self._claims: dict[int, GroundNode] = {}  # by thread
        self._starts = SimpleQueue[tuple[GroundNode, Future[None]] | None]()  # None = a kill has ended

    def hurt(self, kinds: Sequence[str], moving: str) -> list[Hurt]:
        """All of `kinds` at once. `moving` = a queue that may move. Raises ServiceError, AmqError."""
        with ThreadPoolExecutor(len(kinds), "kill") as pool:
            futures = [pool.submit(self._hurt, kind, moving) for kind in kinds]
            for _ in kinds:
                while asked := self._starts.get():
                    _start(*asked)
            found = [future.result() for future in futures]
        what = "; ".join(f"{hurt.kind}: {hurt.text}" for hurt in found)
        self.ground.until(self.ground.is_whole, f"whole cluster after {what}")
        ended_us = time.monotonic_ns() // 1000
        return [hurt._replace(ended_us=ended_us) for hurt in found]

    def _hurt(self, kind: str, moving: str) -> Hurt:
        began_us = time.monotonic_ns() // 1000
        try:
            text, stores = _KINDS[kind](self, moving) if kind == "place" else _KINDS[kind](self)
        finally:
            with self._claiming:
                self._claims.pop(threading.get_ident(), None)
            self._starts.put(None)
        return Hurt(kind, text, frozenset(stores), began_us, began_us)

    def _some_s(self) -> float:
        """How long a fault lasts: mostly short, and sometimes longer than a hung master has."""
        longest_s = self._longest_s / 5 if self.luck.random() < SHORT else self._longest_s
        return self.luck.uniform(0.1, longest_s)

    def _wait(self) -> float:
        seconds = self._some_s()
        self._pause.wait(seconds)
        return seconds

    def _claim(self, nodes: Iterable[GroundNode]) -> GroundNode | None:
        """One of `nodes` that no other kill has."""
        with self._claiming:
            free = [node for node in nodes if node not in self._claims.values()]
            if not free:
                return None
            self._claims[threading.get_ident()] = node = self.luck.choice(free)
            return node

    def _node(self) -> GroundNode:
        node = self._claim(self.ground.nodes)
        assert node is not None, "more kills at once than nodes"
        return node

    def _master(self) -> tuple[str, GroundNode]:
        """A store, and the node that serves it, which is claimed."""
        found: list[tuple[str, GroundNode]] = []

        def look() -> bool:
            served = self.ground.served()
            node = self._claim(node for node in self.ground.nodes if node in served.values())
            if node is not None:
                found.append((self.luck.choice([store for store in sorted(served) if served[store] is node]), node))
            return bool(found)

        self.ground.until(look, "master that no other kill has")
        return found[0]

    def _stores_of(self, node: GroundNode) -> list[str]:
        return [store for store, master in self.ground.served().items() if master is node]

    def gateway_killed(self) -> tuple[str, Iterable[str]]:
        node = self._node()
        kill(node.gateway())
        return f"gateway of {node.name}", ()

    def member_killed(self) -> tuple[str, Iterable[str]]:
        store, node = self._master()
        kill(node.member(store))
        return f"{node.name}, the master of {store}", [store]

    def node_killed(self) -> tuple[str, Iterable[str]]:
        node = self._node()
        stores = self._stores_of(node)
        node.kill()
        waited_s = self._wait()
        self._start(node)
        return f"{node.name}, the master of {', '.join(stores)}, started again after {waited_s:.1f} s", stores

    def gateway_stopped(self) -> tuple[str, Iterable[str]]:
        node = self._node()
        return f"gateway of {node.name} for {self._stop(node.gateway()):.1f} s", ()

    def member_stopped(self) -> tuple[str, Iterable[str]]:
        store, node = self._master()
        return f"{node.name}, the master of {store}, for {self._stop(node.member(store)):.1f} s", [store]

    def _stop(self, pid: int | None) -> float:
        pids = [] if pid is None else [pid]
        for each in pids:
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGSTOP)
        try:
            return self._wait()
        finally:
            thaw(pids)

    def node_stopped(self) -> tuple[str, Iterable[str]]:
        node = self._node()
        stores = self._stores_of(node)
        pids = node.freeze()
        try:
            waited_s = self._wait()
        finally:
            thaw(pids)
        return f"{node.name}, the master of {', '.join(stores)}, for {waited_s:.1f} s", stores

    def store_hangs(self) -> tuple[str, Iterable[str]]:
        """For its master alone, or for all nodes."""
        store, node = self._master()
        nodes = self.luck.choice(([node], self.ground.nodes))
        with self._hanging:
            self.ground.hangs.mkdir()
            for each in nodes:
                (self.ground.hangs / f"{each.name}.{store}").touch()
            try:
                waited_s = self._wait()
            finally:
                shutil.rmtree(self.ground.hangs)
        return f"{store} for {', '.join(each.name for each in nodes)}, {waited_s:.1f} s", [store]

    def link_cut(self) -> tuple[str, Iterable[str]]:
        store, node, port = self._link()
        self.ground.cables.cut(port)
        try:
            waited_s = self._wait()
        finally:
            self.ground.cables.mend(port)
        return f"links to {node.name}, the master of {store}, for {waited_s:.1f} s", [store]

    def link_slow(self) -> tuple[str, Iterable[str]]:
        store, node, port = self._link()
        delay_s = self.luck.uniform(0.05, 0.5)
        self.ground.cables.slow_down(port, delay_s)
        try:
            waited_s = self._wait()
        finally:
            self.ground.cables.mend(port)
        return f"links to {node.name}, the master of {store}, {delay_s:.2f} s late for {waited_s:.1f} s", [store]

    def link_half_open(self) -> tuple[str, Iterable[str]]:
        store, node, port = self._link()
        self.ground.cables.half_open(port)
        return f"links to {node.name}, the master of {store}", [store]

    def _link(self) -> tuple[str, GroundNode, int]:
        store, node = self._master()
        return store, node, self.ground.link_port(node, store)

    def placed(self, moving: str) -> tuple[str, Iterable[str]]:
        """A queue in use gets another home, while a master of a third store is killed every other time."""
        before = self.ground.cluster.table().placement.home_of(f"queue://{moving}")
        after, third = self.luck.sample([store for store in self.ground.stores if store != before], 2)
        killed = self.luck.random() < 0.5
        timer = threading.Timer(self._some_s() / 10, self._kill_master_of, [third]) if killed else None
        if timer is not None:
            timer.start()
        tries, moved = 0, False
        while not moved and tries < MOVES:
            tries += 1
            done = self.ground.amq("place", moving, after)
            moved = done.returncode == 0
            self.moves["moved" if moved else "in use" if done.returncode == exits.REFUSED else "failed"] += 1
            self.ground.look()
        if timer is not None:
            timer.join()
        how = "moved" if moved else f"did not move in {tries} tries: {done.stderr.strip()[-200:]}"
        beside = f", {third} lost its master" if killed else ""
        return f"{moving} from {before} to {after}: {how}{beside}", [third] if killed else ()

    def _kill_master_of(self, store: str) -> None:
        if (node := self.ground.master(store)) is not None:
            kill(node.member(store))

    def upgraded(self) -> tuple[str, Iterable[str]]:
        """A node goes on with other code."""
        node = self._node()
        stores = self._stores_of(node)
        is_other, link = self._version(node)
        self._restart(node, (not is_other, link))
        return f"{node.name} to {node.code.name}", stores

    def all_upgraded(self) -> tuple[str, Iterable[str]]:
        """All nodes, one after the other, to code whose links are of another version, or back."""
        for node in self.luck.sample(self.ground.nodes, len(self.ground.nodes)):
            is_other, link = self._version(node)
            self._restart(node, (is_other, not link))
            self.ground.until(self.ground.is_whole, f"whole cluster after an upgrade of {node.name}")
        return f"all nodes to {node.code.name}", self.ground.stores

    def _version(self, node: GroundNode) -> tuple[bool, bool]:
        return next(version for version, code in self._codes.items() if code == node.code)

    def _restart(self, node: GroundNode, version: tuple[bool, bool]) -> None:
        if version not in self._codes:
            is_other, link = version
            self._codes[version] = self.ground.other_code(is_other, link, self._commit)
        node.stop()
        node.code = self._codes[version]
        self._start(node)

    def _start(self, node: GroundNode) -> None:
        """By the main thread: a process ends with the thread that started it."""
        started = Future[None]()
        self._starts.put((node, started))
        started.result(DEADLINE_S)


def _start(node: GroundNode, started: Future[None]) -> None:
    try:
        node.start()
    except Exception as error:  # noqa: BLE001 - the thread that asked for it has it
        started.set_exception(error)
    else:
        started.set_result(None)


_KINDS: dict[str, Callable[..., tuple[str, Iterable[str]]]] = {
    "gateway -9": Killer.gateway_killed,
    "member -9": Killer.member_killed,
    "node -9": Killer.node_killed,
    "gateway stopped": Killer.gateway_stopped,
    "member stopped": Killer.member_stopped,
    "node stopped": Killer.node_stopped,
    "store hangs": Killer.store_hangs,
    "link cut": Killer.link_cut,
    "link slow": Killer.link_slow,
    "link half open": Killer.link_half_open,
    "place": Killer.placed,
    "upgrade": Killer.upgraded,
    "upgrade of links": Killer.all_upgraded,
}
KINDS = tuple(_KINDS)


# -- clients -----------------------------------------------------------------------------------------------------------


def flows_of(ground: Ground, number: int, seed: int, heartbeat_ms: int) -> list[Flow]:
    """The clients of round `number`: a destination of each kind, whose homes change from round to round; one that lives
    in each store, and one that moves."""
    ports = tuple(node.port for node in ground.nodes)
    stores = ground.stores[number % STORES :] + ground.stores[: number % STORES]
    kinds = ("single", "range", AMQ, TRANSACTED, "durable", "shared")
    found: list[Flow] = []
    counts = itertools.count()

    def plan(worker: str, role: str, queue: str, **more: Any) -> WorkerPlan:
        index = next(counts)
        more = {"per_s": PER_S, "client_id": f"{number}.{worker}.{role}"} | more
        options = "&timeout=600000&warnAfterReconnectAttempts=0"
        return WorkerPlan(
            f"{worker}.{role}",
            role,
            queue,
            ports,
            seed * 1000 + index,
            index,
            heartbeat_ms=heartbeat_ms,
            options=options,
            **more,
        )

    for kind, store in zip(kinds, itertools.cycle(stores)):
        scheme = "topic" if kind == "durable" else "queue"
        queue = f"/{scheme}/{next(iter(ground.names_in(store, f'kills.{number}.{kind}')))}"
        copies = 2 if kind == "shared" else 1
        ack = "client" if kind in ("range", AMQ) else "client-individual"
        plans = [
            plan(f"{kind}.{copy}", role, queue, ack=ack) for role in ("producer", "consumer") for copy in range(copies)
        ]
        found.append(Flow(queue, store, plans))
    spread = f"/queue/{SPREAD_NAMES}{number}"
    both = [plan(f"spread.{how}", role, spread) for role in ("producer", "consumer") for how in ("raw", AMQ)]
    found.append(Flow(spread, "", both))
    moving = f"/queue/kills.{number}.moving"
    never = 10**9
    found.append(
        Flow(
            moving,
            "",
            [plan("moving.0", role, moving, per_s=MOVING_PER_S, drop_every=never) for role in ("producer", "consumer")],
        )
    )
    return found


class Round:
    """The clients of some kills, from their begin to the verdict on what they were told."""

    def __init__(self, flows: Sequence[Flow], directory: Path) -> None:
        self.flows = flows
        self._directory = directory
        context = multiprocessing.get_context("fork")
        self._plans = [plan for flow in flows for plan in flow.plans]
        self._board = Scoreboard(context, len(self._plans))
        self._workers = [
            context.Process(target=work, args=(plan, self._board, directory), daemon=True, name=plan.worker)
            for plan in self._plans
        ]

    def start(self) -> None:
        for plan in self._plans:
            if plan.queue.startswith("/topic/") and plan.role == "consumer":
                subscribe_durably(plan, DEADLINE_S)
        for worker in self._workers:
            worker.start()

    def look(self) -> None:
        """Raises ServiceError where a client has died of what it was sent."""
        for worker in self._workers:
            if worker.exitcode:
                raise ServiceError(f"client {worker.name} ended with exit code {worker.exitcode}: see its traceback")

    def progress(self) -> list[tuple[int, int]]:
        """Of each flow: how many messages are confirmed, and how many acknowledgements."""
        return [(self._count(flow, "producer"), self._count(flow, "consumer")) for flow in self.flows]

    def _count(self, flow: Flow, role: str) -> int:
        return sum(self._board.confirmed[plan.index] for plan in flow.plans if plan.role == role)

    def goes_on(self, since: Sequence[tuple[int, int]]) -> bool:
        """Has each flow made progress?"""
        pairs = zip(since, self.progress(), strict=True)
        return all(now[0] >= then[0] + GOES_ON and now[1] >= then[1] + GOES_ON for then, now in pairs)

    def drain(self, ground: Ground) -> None:
        """No new messages; until all that was confirmed is acknowledged, or may be, and nothing comes for a while."""
        self._board.stop_producing.value = True
        seen: tuple[list[tuple[int, int]], int] = ([], 0)
        moved_s = time.monotonic()

        def is_done() -> bool:
            nonlocal seen, moved_s
            now = (self.progress(), sum(self._board.touched))
            if now != seen:
                seen, moved_s = now, time.monotonic()
            producing = any(
                worker.is_alive()
                for worker, plan in zip(self._workers, self._plans, strict=True)
                if plan.role == "producer"
            )
            settled = all(
                acked + sum(self._board.unknown[plan.index] for plan in flow.plans) >= confirmed
                for flow, (confirmed, acked) in zip(self.flows, now[0], strict=True)
            )
            return not producing and settled and time.monotonic() - moved_s > QUIET_S

        try:
            ground.until(is_done, "end of the queues")
        finally:
            self.end()

    def end(self) -> None:
        self._board.stop_producing.value = self._board.stop_consuming.value = True
        for worker in self._workers:
            if worker.pid is not None:
                worker.join(DEADLINE_S)
                if worker.is_alive():
                    worker.kill()
                    worker.join()

    def logs(self) -> list[Log]:
        return history.read(self._directory)


def judge(logs: Sequence[Log]) -> list[Violation]:
    """What was broken. The rule of two masters is left out: clients see gateways, and no epoch."""
    found = [Violation(rule.__name__, text) for rule in (lost, invented, undone, reordered) for text in rule(logs)]
    return found + [Violation(doubled.__name__, text) for text in doubled(logs, by_gateways=True)]


def gaps(flows: Sequence[Flow], logs: Sequence[Log], hurts: Sequence[Hurt]) -> Iterator[tuple[str, bool, float]]:
    """(kind, was its store hurt?, seconds): the longest wait for a confirmation during each kill, of those destinations
    whose store it hurt, and of those that nothing hurt then."""
    store_of = {flow.queue: flow.store for flow in flows if flow.store}
    times = [
        (store_of[log.queue], [event.time_us for event in log.events if event.kind == "sent"])
        for log in logs
        if log.role == "producer" and log.queue in store_of
    ]
    for hurt in hurts:
        longest: dict[bool, int] = {}
        others = [each.stores for each in hurts if each.began_us < hurt.ended_us and hurt.began_us < each.ended_us]
        at_the_same_time = frozenset().union(*others)
        for store, sent in times:
            is_hurt = store in hurt.stores
            if not is_hurt and store in at_the_same_time:
                continue
            for before, after in itertools.pairwise(sent):
                if after > hurt.began_us and before < hurt.ended_us:
                    longest[is_hurt] = max(longest.get(is_hurt, 0), after - before)
        yield from ((hurt.kind, is_hurt, wait_us / 1e6) for is_hurt, wait_us in longest.items())


# -- a campaign --------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Outcome:
    """`ended` = why it ended before its time, "" = it did not. `judged` = kills whose histories were checked."""

    seed: int
    kills: Counter[str] = dataclasses.field(default_factory=Counter)
    judged: int = 0
    rounds: int = 0
    confirmed: int = 0
    acknowledged: int = 0
    seconds: float = 0.0
    ended: str = ""
    violations: list[str] = dataclasses.field(default_factory=list)
    moves: Counter[str] = dataclasses.field(default_factory=Counter)
    waits: dict[str, dict[bool, list[float]]] = dataclasses.field(
        default_factory=lambda: defaultdict(lambda: defaultdict(list))
    )

    @property
    def is_good(self) -> bool:
        return not self.violations and self.judged > 0 and self.ended in ("", INTERRUPTED)

    def report(self) -> dict[str, Any]:
        shown = {key: value for key, value in vars(self).items() if key != "waits"}
        waits = {
            kind: {"of its stores" if hurt else "of other stores": _spread(found) for hurt, found in by_hurt.items()}
            for kind, by_hurt in self.waits.items()
        }
        return shown | {"longest_waits_s": waits, "ok": self.is_good}

    def verdict(self) -> str:
        lines = [
            f"{'✔' if self.is_good else '✘'} {sum(self.kills.values())} kills, of which {self.judged} are judged, in "
            f"{self.rounds} rounds and {self.seconds:,.0f} s; seed {self.seed}",
            f"  {self.confirmed:,} messages confirmed, {self.acknowledged:,} acknowledged; moves: {dict(self.moves)}",
        ]
        for kind, count in sorted(self.kills.items()):
            waits = self.waits.get(kind, {})
            parts = [
                f"{'its' if hurt else 'other'} stores {statistics.median(found):.1f} (at most {max(found):.1f}) s"
                for hurt, found in sorted(waits.items(), reverse=True)
            ]
            lines.append(f"  {kind:18} {count:4}  longest wait for a confirmation: {', '.join(parts) or 'not known'}")
        if self.ended:
            lines.append(f"  ended: {self.ended}")
        by_rule = Counter(text.partition(":")[0] for text in self.violations)
        for rule in ("lost", "invented", "undone", "doubled", "reordered"):
            lines.append(f"  {rule}: {by_rule.pop(rule, 0)}")
        return "\n".join([*lines, *(f"  {text}" for text in self.violations[:SHOWN_MAX])])


def _spread(found: Sequence[float]) -> dict[str, float]:
    return {"median": round(statistics.median(found), 3), "max": round(max(found), 3), "count": len(found)}


def run(
    directory: Path,
    kinds: Iterable[str],
    seed: int,
    say: Callable[[str], None],
    *,
    stores: int = STORES,
    per_round: int = ROUND,
    at_once: int = AT_ONCE,
    longest_s: float = 9.0,
    options: dict[str, str] = OPTIONS,
    commit: str = "",
) -> Outcome:
    """Kill `kinds` one after the other, and judge. What broke a promise stays in `directory`."""
    luck, found, began_s = random.Random(seed), Outcome(seed), time.monotonic()
    kinds = iter(kinds)
    heartbeat_ms = 1000 * int(options["heartBeatSend"].removesuffix("s"))
    try:
        ground = Ground(directory, NODES, stores, options)
        ground.amq("place", f"{SPREAD_NAMES}>", "spread").check_returncode()
        with ground:
            killer = Killer(ground, luck, longest_s, commit)
            while batch := list(itertools.islice(kinds, per_round)):
                flows = flows_of(ground, found.rounds, seed, heartbeat_ms)
                place = directory / f"round-{found.rounds}"
                place.mkdir()
                _play(ground, killer, Round(flows, place), together(batch, at_once), found, say)
                found.moves = killer.moves
                if found.violations:
                    return found
                shutil.rmtree(place)
            say("stopping the nodes, reading the journals")
            ground.stop()
            for store in ground.stores:
                _, problems = demo_common.left_in(ground.cluster.location(store))
                found.violations += [f"journal: {store}: {problem}" for problem in problems]
    except (ServiceError, AmqError, TimeoutError) as error:
        found.violations.append(f"service: {error}")
    except KeyboardInterrupt:
        found.ended = INTERRUPTED
    finally:
        found.seconds = time.monotonic() - began_s
    return found


def together(kinds: Sequence[str], at_once: int) -> Iterator[Sequence[str]]:
    """`kinds` in groups of kills that happen at the same time: each kind once."""
    left = list(kinds)
    while left:
        group = [left.pop(0)]
        others = [] if group == [ALONE] else [kind for kind in dict.fromkeys(left) if kind not in (ALONE, *group)]
        for kind in others[: at_once - 1]:
            left.remove(kind)
            group.append(kind)
        yield group


def _play(
    ground: Ground,
    killer: Killer,
    clients: Round,
    groups: Iterable[Sequence[str]],
    found: Outcome,
    say: Callable[[str], None],
) -> None:
    """One round. A client that dies and a cluster that stays broken are violations, too."""
    hurts: list[Hurt] = []
    ground.look = clients.look
    moving = clients.flows[-1].queue.removeprefix("/queue/")
    try:
        clients.start()
        ground.until(lambda: clients.goes_on([(0, 0)] * len(clients.flows)), "first messages of each flow")
        for kinds in groups:
            done = killer.hurt(kinds, moving)
            hurts += done
            found.kills.update(kinds)
            what = "; ".join(f"{hurt.kind}: {hurt.text}" for hurt in done)
            before = clients.progress()
            ground.until(lambda before=before: clients.goes_on(before), f"progress of each flow after {what}")
            count = sum(confirmed for confirmed, _ in clients.progress()) + found.confirmed
            took_s = time.monotonic() - min(hurt.began_us for hurt in done) / 1e6
            say(f"{found.kills.total():4}  {what}; all go on after {took_s:.1f} s; {count:,} confirmed")
        clients.drain(ground)
    finally:
        ground.look = lambda: None
        clients.end()
    found.rounds += 1
    found.confirmed += sum(confirmed for confirmed, _ in clients.progress())
    found.acknowledged += sum(acked for _, acked in clients.progress())
    logs = clients.logs()
    found.violations += map(str, judge(logs))
    found.judged += len(hurts)
    for kind, is_hurt, wait_s in gaps(clients.flows, logs, hurts):
        found.waits[kind][is_hurt].append(wait_s)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=100, help="of each kind (default %(default)s)")
    parser.add_argument("--kind", choices=KINDS, action="append", help="only these (default: all)")
    parser.add_argument(
        "--at-once",
        type=int,
        default=AT_ONCE,
        choices=range(1, NODES + 1),
        help="kills of different nodes (default %(default)s)",
    )
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "big"))
    parser.add_argument(
        "--commit", default="", help="upgrade from and to that one (default: this one as another version)"
    )
    parser.add_argument("--json", metavar="FILE", help="write the verdict there; - = to standard output")
    parser.add_argument("--keep", default="kills-failures", metavar="DIR", help="where the logs of a failure stay")
    args = parser.parse_args()
    logging.basicConfig(level=logging.ERROR, stream=sys.stderr)
    kinds = [*(args.kind or KINDS)] * args.kills
    random.Random(args.seed).shuffle(kinds)
    print(f"seed {args.seed}", file=sys.stderr, flush=True)
    asked = interrupts()
    until_asked = itertools.takewhile(lambda _: not asked.is_set(), kinds)
    home = Path(tempfile.mkdtemp(prefix="cluster-kills-"))
    found = run(
        home,
        until_asked,
        args.seed,
        lambda text: print(text, file=sys.stderr, flush=True),
        at_once=args.at_once,
        commit=args.commit,
    )
    if asked.is_set() and not found.ended:
        found.ended = INTERRUPTED
    if found.violations:
        shutil.copytree(home, Path(args.keep) / str(args.seed), dirs_exist_ok=True)
        found.violations.append(f"logs: {args.keep}/{args.seed}")
    shutil.rmtree(home)
    if args.json:
        text = json.dumps(found.report(), indent=2)
        print(text) if args.json == "-" else Path(args.json).write_text(text + "\n")
    print(found.verdict(), file=sys.stderr if args.json == "-" else sys.stdout)
    sys.exit(0 if found.is_good else 1)


if __name__ == "__main__":
    main()
