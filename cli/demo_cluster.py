"""`amq demo --cluster` kills the nodes of a cluster one after the other while messages flow, and gives a verdict.

Each store has a queue, with a client that sends numbers to it and a client that takes them; both fail over from one
gateway to another. A prober connects to each node that lives again and again.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TypeVar

from amq.cli import demo_common
from amq.cli.demo_brokers import SERVING, DemoNode, free_port
from amq.cli.demo_common import STALL_S
from amq.cli.demo_timeline import TimeLine, as_svg, as_text, time_line
from amq.cli.demo_traffic import NumberSender, NumberTaker
from amq.cli.demo_view import REFRESH_S, Picture, PlainView
from amq.cluster.directory import Cluster
from amq.core.destination import QUEUE_SCHEME
from amq.core.errors import AmqError

PATIENCE_S = 300.0  # dozens of processes start in that time, whatever else the machine has to do
PHASE_MESSAGES = 100  # of each queue, that come before and after a kill
PROBE_S = 0.02  # between two connections of a prober
BEFORE_S = 0.3  # a time line begins so long before its kill
T = TypeVar("T")


@dataclass(slots=True)
class NodeKill:
    """One kill -9 of a node with all its processes. `taken` = store → the node that took it over; `longest_wait_s` =
    longest wait for a confirmation after it; `line` = what has happened to each store, None = not known yet."""

    node: str
    messages: int
    stores: list[str]
    taken: dict[str, str] = field(default_factory=dict)
    serving_s: float = 0.0
    longest_wait_s: float = 0.0
    line: TimeLine | None = None


@dataclass(slots=True)
class ClusterVerdict(demo_common.DemoVerdict):
    """The result of the demo. `lost` = messages that were confirmed and did not come; `left` = messages that the
    journals still hold at the end; `probes` = connections to nodes that lived, of which `refused` failed."""

    queues: int
    stores: int
    confirmed: int
    received: int
    seconds: float
    lost: int
    disordered: int
    kills: list[NodeKill]
    delivered_again: int
    stored_twice: int
    acks_undone: int
    probes: int
    refused: int
    longest_wait_s: float
    left: int
    problems: list[str] = field(default_factory=list)

    def sentences(self) -> Iterator[tuple[bool, str]]:
        rate = self.confirmed / self.seconds if self.seconds else 0.0
        took = f"{self.confirmed:,} messages confirmed in {self.seconds:.1f} s ({rate:,.0f}/s)"
        flow = f"{took}, {self.received:,} received from {self.queues} queues in {self.stores} stores"
        yield not self.lost and self.confirmed > 0, f"{flow}: lost {self.lost:,}"
        yield self.disordered == 0, f"{self.disordered} messages came out of the order of their queue"
        if self.kills:
            taken = "; ".join(
                f"of {kill.node} "
                + (", ".join(f"{store} by {node}" for store, node in kill.taken.items()) or "nothing")
                for kill in self.kills
            )
            done = all(kill.taken.keys() == set(kill.stores) for kill in self.kills)
            yield done, f"{len(self.kills)} nodes killed with -9; taken over: {taken}"
        refusals = f"{self.refused} of {self.probes:,} connections to living nodes were refused"
        yield (
            self.refused == 0 and self.probes > 0,
            f"{refusals}; longest wait of a client: {self.longest_wait_s:.1f} s",
        )
        again = f"{self.delivered_again:,} messages were delivered again after a kill and dropped by their id"
        yield self.stored_twice == 0, f"{again}; {self.stored_twice} were stored twice"
        yield self.acks_undone == 0, f"{self.acks_undone} confirmed acknowledgements were undone"
        yield demo_common.left_sentence(self.left, self.problems)


class Prober(threading.Thread):
    """Connects to a node again and again, and counts that and refusals, while it watches (`watch`)."""

    def __init__(self, name: str, port: int) -> None:
        super().__init__(name=f"prober of {name}")
        self.probes = 0
        self.refused = 0
        self._port = port
        self._stopping = threading.Event()
        self._watching = False
        self._connecting = threading.Lock()

    def run(self) -> None:
        while not self._stopping.wait(PROBE_S):
            with self._connecting:
                if self._watching:
                    self._probe()

    def watch(self, wanted: bool) -> None:
        """With False it returns when no connection is under way any more."""
        with self._connecting:
            self._watching = wanted

    def stop(self) -> None:
        self._stopping.set()
        if self.ident is not None:
            self.join()

    def _probe(self) -> None:
        self.probes += 1
        try:
            socket.create_connection(("127.0.0.1", self._port), STALL_S).close()
        except OSError:
            self.refused += 1


@dataclass(frozen=True, slots=True)
class _Flow:
    """The clients of a queue."""

    sender: NumberSender
    taker: NumberTaker

    @property
    def done(self) -> int:
        """How many numbers have been confirmed, and have come."""
        return min(self.sender.confirmed, self.taker.received)


class ClusterDemo:
    """One run. Everything but clients and probers happens on the main thread."""

    def __init__(
        self, directory: str, nodes: int, stores: int, kills: int, view: PlainView, picture: str | None = None
    ) -> None:
        """`picture` = a file for the time lines of all kills."""
        self._view = view
        self._picture = picture
        self._masters_seen: list[tuple[float, str, str]] = []  # when, store, node
        self._kills_wanted = kills
        self._kills: list[NodeKill] = []
        self._cluster = Cluster.create(
            os.path.join(directory, "cluster"), {f"s{number}": "" for number in range(1, stores + 1)}
        )
        self._stores = list(self._cluster.table().stores)
        ports = stores + 1  # of a node: that of its gateway, then one for each store
        first = free_port(nodes * ports)
        self._nodes = [
            DemoNode(
                name,
                first + index * ports,
                self._cluster.directory,
                os.path.join(directory, f"{name}.log"),
                self._on_master,
            )
            for index, name in enumerate(f"node-{number}" for number in range(1, nodes + 1))
        ]
        self._probers = {node.name: Prober(node.name, node.port) for node in self._nodes}
        self._flows = [self._flow(self._queue_in(store)) for store in self._stores]
        self._finished = False

    def run(self) -> ClusterVerdict:
        """Raises AmqError if the demo cannot go on."""
        self._view.event(f"{len(self._nodes)} nodes, {len(self._stores)} stores in {self._cluster.directory}")
        processes = len(self._nodes) * (len(self._stores) + 2)  # the node itself, its gateway
        self._view.event(f"{processes} processes start")
        for node in self._nodes:
            node.start()
        self._until(self._is_whole, "cluster in which each store has a master and each node is ready")
        began = time.monotonic()
        for prober in self._probers.values():
            prober.watch(True)
            prober.start()
        for flow in self._flows:
            flow.taker.start()
            flow.sender.start()
        self._flow_on()
        for _ in range(self._kills_wanted):
            self._kill()
        self._finish()
        seconds = time.monotonic() - began
        for prober in self._probers.values():
            prober.stop()
        if self._picture:
            Path(self._picture).write_text(as_svg([kill.line for kill in self._kills if kill.line is not None]))
        self._view.event("all messages have come; the nodes stop")
        for node in self._nodes:
            node.stop()
        return self._verdict(seconds)

    def end(self) -> None:
        """Leave nothing behind: no process, no thread."""
        for prober in self._probers.values():
            prober.stop()
        for node in self._nodes:
            node.end()
        for flow in self._flows:
            for client in (flow.sender, flow.taker):
                if client.ident is not None:
                    client.stop()

    # -- what happens -------------------------------------------------------------------------------------------------

    def _kill(self) -> None:
        """Kill the next node that serves a store, wait until others serve its stores, then start it again."""
        victim = self._until(lambda: self._next() if self._is_whole() else None, "node to be killed")
        kill = NodeKill(victim.name, self._confirmed, sorted(victim.serves))
        self._kills.append(kill)
        self._view.event(
            f"kill -9 {victim.name} (pid {victim.pid}), which serves {victim.detail}, at message {kill.messages:,}"
        )
        self._probers[victim.name].watch(False)
        killed_at = victim.kill()
        kill.taken = self._until(lambda: self._taken(kill.stores), "other masters")
        kill.serving_s = round(time.monotonic() - killed_at, 3)
        self._flow_on()
        kill.longest_wait_s = self._longest_wait_s(killed_at)
        self._view.event(
            f"all {len(self._flows)} queues go on; the longest wait for a confirmation was "
            f"{kill.longest_wait_s * 1000:.0f} ms"
        )
        waits = {store: flow.sender.waits for store, flow in zip(self._stores, self._flows, strict=True)}
        kill.line = time_line(victim.name, killed_at, time.monotonic(), BEFORE_S, self._masters_seen, waits)
        for row in as_text(kill.line):
            self._view.event(row)
        self._view.event(f"{victim.name} starts again")
        began = time.monotonic()
        victim.start()
        self._until(lambda: victim.role == SERVING, f"gateway of {victim.name}")
        self._view.event(f"{victim.name} listens again after {time.monotonic() - began:.1f} s")
        self._probers[victim.name].watch(True)

    def _next(self) -> DemoNode | None:
        """The node to kill: of those that serve a store, the first one that was killed least often."""
        return min((node for node in self._nodes if node.serves), key=lambda node: node.kills, default=None)

    def _finish(self) -> None:
        """The senders end; the takers have time until nothing has come for STALL_S."""
        self._view.event("the demo waits until each node is master or slave of each store")
        self._until(self._is_whole, "cluster in which every node is up")
        self._flow_on()
        for flow in self._flows:
            flow.sender.finish()
        self._until(lambda: not any(flow.sender.is_alive() for flow in self._flows), "end of the senders")
        self._finished = True
        received, moved_at = 0, time.monotonic()
        while any(flow.taker.is_alive() for flow in self._flows) and time.monotonic() - moved_at < STALL_S:
            self._look()
            if received != self._received:
                received, moved_at = self._received, time.monotonic()

    def _verdict(self, seconds: float) -> ClusterVerdict:
        left, problems = 0, []
        for store in self._stores:
            more, found = demo_common.left_in(self._cluster.location(store))
            left += more
            problems += [f"{store}: {problem}" for problem in found]
        takers = [flow.taker for flow in self._flows]
        return ClusterVerdict(
            queues=len(self._flows),
            stores=len(self._stores),
            confirmed=self._confirmed,
            received=self._received,
            seconds=seconds,
            lost=sum(flow.taker.lost(flow.sender.confirmed) for flow in self._flows),
            disordered=sum(taker.disordered for taker in takers),
            kills=self._kills,
            delivered_again=sum(taker.dropped for taker in takers),
            stored_twice=sum(taker.stored_twice for taker in takers),
            acks_undone=sum(taker.acks_undone for taker in takers),
            probes=sum(prober.probes for prober in self._probers.values()),
            refused=sum(prober.refused for prober in self._probers.values()),
            longest_wait_s=self._longest_wait_s(),
            left=left,
            problems=problems,
        )

    # -- how it is now ------------------------------------------------------------------------------------------------

    @property
    def _confirmed(self) -> int:
        return sum(flow.sender.confirmed for flow in self._flows)

    @property
    def _received(self) -> int:
        return sum(flow.taker.received for flow in self._flows)

    def _longest_wait_s(self, since: float = 0.0) -> float:
        return round(max(flow.sender.longest_wait_s(since) for flow in self._flows), 3)

    def _masters(self) -> dict[str, DemoNode]:
        """Store → the node that serves it."""
        return {store: node for node in self._nodes for store in node.serves}

    def _taken(self, stores: list[str]) -> dict[str, str] | None:
        """Store → the name of the node that serves it. None if one of them has no master."""
        masters = self._masters()
        return {store: masters[store].name for store in stores} if masters.keys() >= set(stores) else None

    def _is_whole(self) -> bool:
        """Does each node serve clients, and is each a master or a slave of each store?"""
        ready = all(
            node.role == SERVING and len(node.serves) + len(node.follows) == len(self._stores) for node in self._nodes
        )
        return ready and len(self._masters()) == len(self._stores)

    def _flow_on(self) -> None:
        """Wait until so many messages more have passed through each queue."""
        goals = [(flow, flow.done + PHASE_MESSAGES) for flow in self._flows]
        self._until(lambda: all(flow.done >= goal for flow, goal in goals), "flow of messages through each queue")

    def _until(self, found: Callable[[], T | None], what: str) -> T:
        """Wait for what `found` returns, other than None and False. Raises AmqError if it takes too long."""
        deadline = time.monotonic() + PATIENCE_S
        while not (it := found()):
            self._look()
            if time.monotonic() > deadline:
                state = "; ".join(
                    f"{each.name} is {each.role}, serves {each.detail or 'nothing'}, last said {each.last_words()}"
                    for each in self._nodes
                )
                raise AmqError(f"no {what} within {PATIENCE_S:g} s: {state}", code="DEMO_FAILED")
        return it

    def _look(self) -> None:
        """AmqError where a node or a client has failed. Draw, and wait a moment."""
        for node in self._nodes:
            node.check()
        for flow in self._flows:
            for client in (flow.sender, flow.taker):
                if client.failure is not None:
                    raise AmqError(f"{client.name}: {client.failure}", code="DEMO_FAILED") from client.failure
        notes = [f"{self._confirmed:,} messages confirmed, {self._received:,} received from {len(self._flows)} queues"]
        self._view.show(Picture(self._nodes, self._kills_wanted + 1, len(self._kills), notes, ("node", "serves")))
        time.sleep(REFRESH_S / 5)

    def _on_master(self, node: DemoNode, store: str, reason: str) -> None:
        self._masters_seen.append((time.monotonic(), store, node.name))
        self._view.event(f"{node.name} is the master of {store}: {reason}")

    def _queue_in(self, store: str) -> str:
        """A queue that lives in `store`."""
        home_of = self._cluster.table().placement.home_of
        return next(name for number in count(1) if home_of(QUEUE_SCHEME + (name := f"demo.{number}")) == store)

    def _flow(self, queue: str) -> _Flow:
        url = f"failover:({','.join(node.url for node in self._nodes)})"
        sender = NumberSender(url, f"/queue/{queue}")
        return _Flow(sender, NumberTaker(url, f"/queue/{queue}", lambda: sender.confirmed if self._finished else None))
