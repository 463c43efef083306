"""How a cluster grows with its nodes: a model with simulated cores, beside the formula on paper.

Clients send and consume in a closed loop, each with a window. A message takes processor time of the gateway that the
producer has, of the member that is master of its store, and of the consumer's gateway. A process runs on one core at a
time, a node has some cores, and its network takes bytes at some rate in each direction. Nothing else costs anything:
disks, the clients and takeovers are not in the model. The formula takes all clients to be as fast as the slowest ones;
those that do not meet the busiest server are faster in the model. It is the least of

    cores        nodes · cores / (member + gateway)
    members      1 / (member · share), share = of all messages, that of the member with the most work
    gateways     the same with the share of the gateway with the most work
    network      the same with the bytes that the busiest node receives, or sends, for a message
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final

from rich.table import Table

from bench import cli

EXAMPLES = ("", "--cores 8 --stores 4", "--bytes 16384 --gbit 1")
NODES: Final = (1, 2, 4, 8)
BATCH: Final = 32  # messages that go their way together
BATCHES: Final = 8  # of a client: a window of 256
CLIENTS: Final = 32  # pairs of a producer and a consumer, for each node
HOP_S: Final = 0.0002
WARM_UP_S = 0.5  # until queues are as full as they get
MEASURED_S, QUICK_S = 1.0, 0.2


@dataclass(frozen=True, slots=True)
class Sizing:
    """`stores`, `gateways` and `cores` are those of each node. `hot`: all messages go to one store."""

    nodes: int
    cores: int = 4
    stores: int = 2
    gateways: int = 2
    member_us: float = 6.6
    gateway_us: float = 5.7
    message_bytes: int = 1024
    gbit: float = 10.0
    hot: bool = False


class Cores:
    """Processes share them: whoever has work waits for its turn, and does one batch."""

    def __init__(self, world: Model, count: int) -> None:
        self._world = world
        self._free = count
        self._ready: deque[Server] = deque()

    def take_turn(self, server: Server) -> None:
        self._ready.append(server)
        self.go_on()

    def go_on(self) -> None:
        while self._free and self._ready:
            self._free -= 1
            self._ready.popleft().run()

    def give_back(self) -> None:
        self._free += 1
        self.go_on()


class Server:
    """One process, or one direction of a network: it does one thing at a time. `kind` is for the report."""

    def __init__(self, world: Model, cores: Cores, kind: str) -> None:
        self._world = world
        self._cores = cores
        self.kind = kind
        self.busy_s = 0.0
        self._jobs: deque[tuple[float, Callable[[], None]]] = deque()
        self._is_ready = False

    def ask(self, cost_s: float, done: Callable[[], None]) -> None:
        self._jobs.append((cost_s, done))
        if not self._is_ready:
            self._is_ready = True
            self._cores.take_turn(self)

    def run(self) -> None:
        cost_s, done = self._jobs.popleft()
        self.busy_s += cost_s
        self._world.after(cost_s, lambda: self._finish(done))

    def _finish(self, done: Callable[[], None]) -> None:
        self._is_ready = bool(self._jobs)
        if self._is_ready:
            self._cores.take_turn(self)
        self._cores.give_back()
        done()


@dataclass(frozen=True, slots=True)
class ModelPair:
    """A producer at the gateway of node `first`, a consumer at that of `last`, a destination with its home."""

    first: tuple[int, int]
    home: tuple[int, int]
    last: tuple[int, int]


class Model:
    """One run. `now_s` is simulated."""

    def __init__(self, cluster: Sizing, seed: int = 1) -> None:
        self.cluster = cluster
        self.now_s = 0.0
        self.done = 0  # messages
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        nodes = range(cluster.nodes)
        cores = [Cores(self, cluster.cores) for _ in nodes]
        self._gateways = [[Server(self, each, "gateway") for _ in range(cluster.gateways)] for each in cores]
        self._members = [[Server(self, each, "member") for _ in range(cluster.stores)] for each in cores]
        self._ins = [Server(self, Cores(self, 1), "network") for _ in nodes]
        self._outs = [Server(self, Cores(self, 1), "network") for _ in nodes]
        self.clients = self._placed(Random(seed))

    def _placed(self, dice: Random) -> list[ModelPair]:
        """Clients meet any gateway; destinations are shared out evenly among the stores."""
        cluster = self.cluster
        homes = [(node, store) for store in range(cluster.stores) for node in range(cluster.nodes)]
        count = CLIENTS * cluster.nodes

        def shuffled(places: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
            return dice.sample([places[i % len(places)] for i in range(count)], count)

        gateways = [(node, number) for node in range(cluster.nodes) for number in range(cluster.gateways)]
        found = zip(shuffled(gateways), shuffled(homes[:1] if cluster.hot else homes), shuffled(gateways), strict=True)
        return [ModelPair(*each) for each in found]

    def after(self, seconds: float, call: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (self.now_s + seconds, next(self._numbers), call))

    def run(self, until_s: float) -> None:
        while self._heap and self._heap[0][0] <= until_s:
            self.now_s, _, call = heapq.heappop(self._heap)
            call()

    def begin(self) -> None:
        for number, client in enumerate(self.clients * BATCHES):
            self.after(number * 1e-6, lambda client=client: self._send(client))

    def _send(self, client: ModelPair) -> None:
        """One batch goes its way, and then the next one."""
        cluster = self.cluster
        half_s, member_s = BATCH * cluster.gateway_us / 2e6, BATCH * cluster.member_us / 1e6
        wire_s = BATCH * cluster.message_bytes * 8 / (cluster.gbit * 1e9)
        steps: list[tuple[Server, float]] = [(self._ins[client.first[0]], wire_s)]
        steps.append((self._gateways[client.first[0]][client.first[1]], half_s))
        steps += self._hop(client.first[0], client.home[0], wire_s)
        steps.append((self._members[client.home[0]][client.home[1]], member_s))
        steps += self._hop(client.home[0], client.last[0], wire_s)
        steps.append((self._gateways[client.last[0]][client.last[1]], half_s))
        steps.append((self._outs[client.last[0]], wire_s))
        self._step(client, deque(steps))

    def _hop(self, one: int, other: int, wire_s: float) -> list[tuple[Server, float]]:
        return [(self._outs[one], wire_s), (self._ins[other], wire_s)] if one != other else []

    def _step(self, client: ModelPair, steps: deque[tuple[Server, float]]) -> None:
        if not steps:
            self.done += BATCH
            self.after(HOP_S, lambda: self._send(client))
            return
        server, cost_s = steps.popleft()
        server.ask(cost_s, lambda: self._step(client, steps))

    def most_busy(self, seconds: float) -> str:
        """The kind of server that has the most work: "cores" where no single one is busy nearly all the time."""
        servers = [each for part in (*self._gateways, *self._members) for each in part] + self._ins + self._outs
        busiest = max(servers, key=lambda server: server.busy_s)
        return busiest.kind if busiest.busy_s > 0.9 * seconds else "cores"


def on_paper(cluster: Sizing, clients: Sequence[ModelPair]) -> tuple[float, str]:
    """Messages/s, and what bounds them."""
    count = len(clients)
    members = Counter(client.home for client in clients)
    gateways: Counter[tuple[int, int]] = Counter()
    ins: Counter[int] = Counter()
    outs: Counter[int] = Counter()
    work: Counter[int] = Counter()  # microseconds, by node
    for client in clients:
        gateways.update((client.first, client.last))
        ins.update((client.first[0],))
        outs.update((client.last[0],))
        work[client.home[0]] += cluster.member_us  # type: ignore[assignment]
        for node in (client.first[0], client.last[0]):
            work[node] += cluster.gateway_us / 2  # type: ignore[assignment]
        for one, other in ((client.first[0], client.home[0]), (client.home[0], client.last[0])):
            if one != other:
                outs.update((one,))
                ins.update((other,))
    wire_us = cluster.message_bytes * 8 / (cluster.gbit * 1e3)
    bounds = {
        "cores": cluster.cores * count / max(work.values()),
        "member": count / (max(members.values()) * cluster.member_us),
        "gateway": count / (max(gateways.values()) * cluster.gateway_us / 2),
        "network": count / (max(*ins.values(), *outs.values()) * wire_us),
    }
    bound = min(bounds, key=lambda kind: bounds[kind])
    return bounds[bound] * 1e6, bound


def measure(cluster: Sizing, seconds: float) -> dict[str, Any]:
    """Messages/s of the model when its queues are full, and on paper."""
    model = Model(cluster)
    model.begin()
    model.run(WARM_UP_S)
    before = model.done
    model.run(WARM_UP_S + seconds)
    paper, bound = on_paper(cluster, model.clients)
    return {
        "nodes": cluster.nodes,
        "hot": cluster.hot,
        "simulated": (model.done - before) / seconds,
        "paper": paper,
        "bound": bound,
        "busiest": model.most_busy(WARM_UP_S + seconds),
    }


def main() -> None:
    parser = cli.parser("scaling", __doc__, EXAMPLES, peers=False)
    parser.add_argument("--cores", type=int, default=4, help="of a node")
    parser.add_argument("--stores", type=int, default=2, help="masterships of a node")
    parser.add_argument("--gateways", type=int, default=2, help="of a node")
    parser.add_argument("--member-us", type=float, default=6.6, help="processor time of a member for a message")
    parser.add_argument("--gateway-us", type=float, default=5.7, help="the same of the gateways")
    parser.add_argument("--bytes", type=int, default=1024, help="of a message")
    parser.add_argument("--gbit", type=float, default=10.0, help="that a node receives, and sends, in a second")
    args = parser.parse_args()
    rows = []
    for hot in (False, True):
        for nodes in NODES:
            cluster = Sizing(
                nodes,
                args.cores,
                args.stores,
                args.gateways,
                args.member_us,
                args.gateway_us,
                args.bytes,
                args.gbit,
                hot,
            )
            rows.append(measure(cluster, QUICK_S if args.quick else MEASURED_S))
    table = Table("nodes", "messages go to", "messages/s, simulated", "on paper", "bound by", "busiest")
    for row in rows:
        place = "one store" if row["hot"] else "all stores"
        rates = (f"{row['simulated']:,.0f}", f"{row['paper']:,.0f}")
        table.add_row(str(row["nodes"]), place, *rates, row["bound"], row["busiest"])
    cli.show(args, {"rows": rows}, table)


if __name__ == "__main__":
    main()
