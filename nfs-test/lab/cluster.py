"""A world whose guests are the nodes of one cluster: each is a member of every store, and has a gateway for clients.

Invariant: a queue lives in each store, with a producer and a consumer of its own that reach it through any gateway. So
what the checker finds was lost or undone in some store, and a store that nobody serves is a client that waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import Any

from amq.cluster.placement import Placement
from lab import checker
from lab.broker import SERVING, Broker, Line
from lab.filesystem import together
from lab.guest import Guest, Place
from lab.history import StoreFacts
from lab.traffic import Traffic
from lab.world import STORE, World

STORES = ("s1", "s2", "s3")
NODES = 3
MEMORY = "512M"  # of a guest with a node, a gateway, and a member of each store
START_S = 120.0  # fifteen processes, on a machine that has other work
RUNS = "all processes of the node run"
OPTIONS = {"failbackDelay": "1s"}


class Node(Broker):
    where = "--cluster"
    host = ""  # the link to its members is at the same address


class ClusterWorld(World):
    """`served` = (seconds, store, node, epoch) of each mastership, in the order in which they began."""

    def __init__(
        self, place: Place, command: Sequence[str], say: Callable[[str], None], verbose: bool, **options: Any
    ) -> None:
        super().__init__(place, command, say, verbose, hosts=NODES, memory=MEMORY, options=OPTIONS, **options)
        self.served: list[tuple[float, str, str, int]] = []
        self.brokers = [
            Node(broker.guest, place, command, STORE, self.options, self._noted, ("--gateways", "1"))
            for broker in self.brokers
        ]
        home_of = Placement.even(1, STORES).home_of
        names = (f"work{number}" for number in count(1))
        queues = [next(name for name in names if home_of(f"queue://{name}") == store) for store in STORES]
        self.traffic = Traffic(self.history, self.brokers, [f"/queue/{name}" for name in queues])

    def serve(self) -> None:
        self.say("starting nodes and clients")
        first = self.brokers[0].guest
        code, said = self.amq(first, "cluster", "init", "--cluster", STORE, "--stores", str(len(STORES)))
        assert code == 0, said
        for node in self.brokers:
            node.start()
        for node in self.brokers:
            node.wait_event(RUNS, START_S)
        self._served = True
        self.traffic.start()
        self.traffic.wait_each_confirmed(20, 180.0)

    def stores_of(self, node: Broker) -> list[str]:
        """The stores that it serves."""
        last = {store: name for _, store, name, _ in list(self.served)}
        return [store for store, name in last.items() if name == node.name]

    def wait_served_by(self, node: Broker, since_s: float, stores: Sequence[str]) -> None:
        """Until `node` serves `stores`, whose masters were hurt at `since_s`."""

        def taken() -> dict[str, float]:
            found = {store: at_s for at_s, store, name, _ in list(self.served) if at_s > since_s and name == node.name}
            return found if found.keys() >= set(stores) else {}

        found = self.wait(taken, 180.0)
        self.measures["takeover"] = max(found[store] for store in stores) - since_s
        self.say(f"{node.name} serves {', '.join(stores)} after {self.measures['takeover']:.1f} s")

    def finish(self) -> list[str]:
        running = self._end_clients() if self._served else []
        if not running:
            return self.findings
        self.say("reading the stores")
        guests = [node.guest for node in running]
        together([partial(self.files.remount, guest) for guest in guests])
        found: dict[str, StoreFacts] = {}

        def read(guest: Guest, stores: Sequence[str]) -> None:
            for store in stores:
                found[store] = self.store_facts(guest, f"{STORE}/stores/{store}")

        together([partial(read, guest, STORES[n :: len(guests)]) for n, guest in enumerate(guests)])
        of_stores = [f"{store}: {finding}" for store in STORES for finding in checker.check_store(found[store])]
        return [*self.findings, *of_stores, *checker.check(self.history)]

    def _ends_last(self, broker: Broker) -> bool:
        return bool(self.stores_of(broker))

    def _noted(self, broker: Broker, line: Line, at_s: float) -> None:
        """The epochs of several stores are no history of one: the checker does not see them."""
        if line.get("event") == SERVING:
            self.served.append((at_s, str(line["in_store"]), broker.name, int(line["epoch"])))
