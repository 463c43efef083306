"""Several stores of one cluster, and an operator who places destinations, in random steps with crashes.

Each store is a `World`; its node offers it whatever table it saw last, which may be an old one. The operator makes
tables as `amq cluster place` does (`amq.cluster.placing`), looks at what the stores say, and may die at any step:
another one goes on. `check` holds after each step: no destination is served by two stores, whatever becomes of them.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from random import Random

from amq.cluster.placement import SPREAD, Placement
from amq.cluster.placing import Await, Grant, Revert, StoreSeen, decide
from amq.core.destination import plain_name
from tests.broker.world import Client, World

STORES = ("s1", "s2", "s3")
NAMES = [f"queue://n{number}" for number in range(6)]
PATTERNS = ["n0", "n1", "n2", "n3", "*"]


class ClusterOfWorlds:
    def __init__(self, path: Path, seed: int) -> None:
        self.random = Random(seed)
        self.tables = [Placement.even(1, STORES)]
        self.worlds: dict[str, World] = {}
        self.sent: dict[str, dict[bytes, str]] = {store: {} for store in STORES}  # by store: body → queue, confirmed
        self._unconfirmed: dict[str, dict[str, tuple[bytes, str]]] = {store: {} for store in STORES}
        self._forbidden: dict[str, set[str]] = {store: set() for store in STORES}  # receipts that must not come
        self._clients: dict[str, Client] = {}
        self._transactions: dict[str, list[str]] = {}  # queues to which the open one sends
        self._count = 0
        for store in STORES:
            (path / store).mkdir(parents=True)
            self.worlds[store] = World(path / store, placed=self._content(store, self.tables[0]))

    def close(self) -> None:
        for world in self.worlds.values():
            world.close()

    def _content(self, store: str, table: Placement) -> dict[str, object]:
        return {"cluster": "c", "store": store, "number": table.number, "placement": table.to_json()}

    # -- steps --------------------------------------------------------------------------------------------------------

    def step(self) -> None:
        store = self.random.choice(STORES)
        steps = [self._send, self._send, self._begin, self._commit, self._work, self._offer, self._operate, self._crash]
        steps += [self._place, self._consume, self._settle, self._offer_all]
        self.random.choice(steps)(store)
        self.check()

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step()
        for _ in range(8):
            for store in STORES:
                self._offer_newest(store)
                self.worlds[store].settle()
                self._take_answers(store)
            self._operate("")
            self.check()
        assert self.tables[-1].before is None, "the change does not come to an end"
        self._check_nothing_is_stranded()

    def _client(self, store: str) -> Client:
        found = self._clients.get(store)
        if found is None or not found.connected:
            found = self._clients[store] = self.worlds[store].connect()
            self._transactions.pop(store, None)
        return found

    def _send(self, store: str, transaction: str = "") -> None:
        self._count += 1
        body, queue = str(self._count).encode(), self.random.choice(NAMES)
        home = self.worlds[store].broker.homes.home_of(queue)
        token = self._client(store).send(body, queue, transaction=transaction)
        if transaction:
            self._transactions[store].append(queue)
        else:
            self._unconfirmed[store][token] = body, queue
        if home:
            self._forbidden[store].add(token)

    def _begin(self, store: str) -> None:
        client = self._client(store)
        if store not in self._transactions:
            self._transactions[store] = []
            client.begin()
        self._send(store, "t")

    def _commit(self, store: str) -> None:
        client, homes = self._client(store), self.worlds[store].broker.homes
        queues = self._transactions.pop(store, [])
        if queues:
            token = client.commit()
            if any(map(homes.home_of, queues)):
                self._forbidden[store].add(token)

    def _consume(self, store: str) -> None:
        """All that is there in one queue, by purging it: consumers would hold messages back."""
        world, queue = self.worlds[store], self.random.choice(NAMES)
        self._settle(store)
        if queue in world.broker.state.queues:
            world.broker.delete(queue, _Nothing())
            for body in [body for body, name in self.sent[store].items() if name == queue]:
                del self.sent[store][body]

    def _work(self, store: str) -> None:
        self.worlds[store].turn()
        self.worlds[store].runner.step()
        self._take_answers(store)

    def _settle(self, store: str) -> None:
        self.worlds[store].settle()
        self._take_answers(store)

    def _take_answers(self, store: str) -> None:
        client = self._clients.get(store)
        if client is None:
            return
        for token in client.confirmed:
            assert token not in self._forbidden[store], "a message was confirmed where its destination does not live"
            if token in self._unconfirmed[store]:
                body, queue = self._unconfirmed[store].pop(token)
                self.sent[store][body] = queue
        if client.errors:
            client.disconnect()
            self.worlds[store].settle()
            del self._clients[store]
            self._transactions.pop(store, None)

    def _offer(self, store: str) -> None:
        """The member reads a table; its node may see the directory late."""
        self._offer_table(store, self.random.choice(self.tables[-3:]))

    def _offer_newest(self, store: str) -> None:
        self._offer_table(store, self.tables[-1])

    def _offer_all(self, _: str) -> None:
        for store in STORES:
            self._offer_newest(store)

    def _offer_table(self, store: str, table: Placement) -> None:
        world = self.worlds[store]
        world.config = dataclasses.replace(world.config, placed=self._content(store, table))
        world.broker.reconfigure(world.config)

    def _crash(self, store: str) -> None:
        """The next master's node may have seen an older table."""
        world = self.worlds[store]
        self._take_answers(store)
        table = self.random.choice(self.tables[-3:])
        world.config = world.standby.config = dataclasses.replace(world.config, placed=self._content(store, table))
        world.crash(jobs=self.random.randrange(4), torn=self.random.choice([None, 0.5]))
        self._clients.pop(store, None)
        self._transactions.pop(store, None)
        self._unconfirmed[store].clear()
        world.start()
        self.check()
        if self.random.randrange(2):
            world.settle()

    # -- the operator -------------------------------------------------------------------------------------------------

    def _place(self, _: str) -> None:
        table = self.tables[-1]
        if table.before is not None:
            return
        rule = self.random.choice(PATTERNS)
        target = self.random.choice([*STORES, SPREAD, ""])
        if (not target and rule not in table.layout.rules) or not self._all_have(table.since):
            return
        self.tables.append(table.placed(rule, target))

    def _all_have(self, number: int) -> bool:
        return all(world.broker.homes.facts.get("number", 0) >= number for world in self.worlds.values())

    def _operate(self, _: str) -> None:
        table = self.tables[-1]
        if table.before is None:
            return
        match decide(table, {store: seen(world) for store, world in self.worlds.items()}):
            case Grant():
                self.tables.append(table.settled())
            case Revert():
                self.tables.append(table.reverted())
            case Await():
                pass

    # -- what must hold -----------------------------------------------------------------------------------------------

    def check(self) -> None:
        """No destination is served by two stores; one that is spread is, where a table says so."""
        for name in NAMES:
            serving = [store for store, world in self.worlds.items() if not world.broker.homes.home_of(name)]
            spread = [table for table in self.tables[-3:] if table.home_of(name) == SPREAD]
            assert len(serving) <= 1 or spread, f"{name} is served by {serving}"

    def _check_nothing_is_stranded(self) -> None:
        """All that was confirmed can be consumed where its destination lives."""
        for store, sent in self.sent.items():
            world = self.worlds[store]
            stored = {queue: set(world.stored(plain_name(queue))) for queue in NAMES}
            for body, queue in sent.items():
                assert body in stored[queue], f"{body!r} is lost"
            for queue, bodies in stored.items():
                assert not bodies or not world.broker.homes.home_of(queue), f"{bodies} of {queue} are stranded"


class _Nothing:
    def done(self, result: object = None) -> None: ...

    def failed(self, error: Exception) -> None: ...


def seen(world: World) -> StoreSeen:
    """As brokers/NAME.json of the store tells it."""
    facts = world.broker.homes.facts
    return StoreSeen(facts.get("number", 0), tuple(facts.get("held", ())), facts.get("refused", 0))
