"""An operator who gives orders through the store, from any host, and brokers of different priority: nobody may become
master whom a release mark forbids it, and no order is carried out twice.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from amq.core.errors import AmqError
from amq.node.candidacy import CALLED_S, Mark
from amq.node.succession import Succession
from amq.store.election import RELEASE
from amq.store.files.board import FileBoard
from amq.store.files.election import FileElection
from amq.store.locker import Locker
from amq.store.orders import HAND_OVER, OPERATOR, STOP, TAKE_OVER, WITHDRAWN, Order, Orders, give
from amq.store.presence import MASTER, read_presence
from tests.simulation.door import SimVfs
from tests.simulation.faults import FAULTS_S
from tests.simulation.features import Feature
from tests.simulation.oracle import STORE, Oracle
from tests.simulation.scheduler import Process

if TYPE_CHECKING:
    from tests.simulation.world import Slot, World

ORDERS_MIN, ORDERS_MAX = 6, 20
ACTIONS = (HAND_OVER, HAND_OVER, HAND_OVER, HAND_OVER, STOP, TAKE_OVER, TAKE_OVER, WITHDRAWN)


class Successions(Feature):
    def __init__(self, oracle: Oracle, seed: int) -> None:
        super().__init__(oracle, seed)
        self._world: World | None = None
        self._number = 0
        self._obeyed: set[str] = set()  # ids of orders that a broker has taken up
        self._called: dict[str, float] = {}  # broker → when it was last called to take over
        self._forbidden: dict[int, float] = {}  # epoch whose master forbade a failover → when it left its mark

    def options(self) -> dict[str, Any]:
        return {
            "failback_delay_s": self.dice.choice((0.2, 1.0, 4.0)),
            "allow_failback": self.dice.random() < 0.8,
            "failover_on_shutdown": self.dice.random() < 0.6,
        }

    def prepare(self, world: World) -> None:
        self._world = world
        for slot in world.slots:
            slot.config = replace(
                slot.config,
                priority=self.dice.choice((0, 0, 1, 2)),
                slave_follow_interval_s=self.dice.choice((0.02, 0.25)),  # a slave that does not follow is never ready
            )
        for _ in range(self.dice.randint(ORDERS_MIN, ORDERS_MAX)):
            world.scheduler.at(self.dice.uniform(1.0, FAULTS_S), partial(self._operate, self.dice.random()))

    # -- the operator -------------------------------------------------------------------------------------------------

    def _operate(self, chance: float) -> None:
        """One command, run on some host: a separate process, which may hang like any other."""
        world = self._world
        assert world is not None
        if world.peace:
            return
        index = int(chance * 1000) % len(world.caches)
        machine, cache = world.machines[index], world.caches[index]
        if not machine.up:
            return
        process = machine.spawn(f"operator{self._number}")
        vfs = SimVfs(cache, process, lambda: world.server_ready_at)
        vfs.latency_s = world.vfs_latency_s
        process.start("order", lambda: self._command(vfs, process))

    def _command(self, vfs: SimVfs, process: Process) -> None:
        with suppress(AmqError, OSError):  # as a person would see it, and try again
            brokers = [each for each in read_presence(FileBoard(vfs, STORE)) if each.owner is not None]
            masters = [each for each in brokers if each.role == MASTER]
            action = self.dice.choice(ACTIONS)
            aim = masters if masters and action in (HAND_OVER, WITHDRAWN) and self.dice.random() < 0.9 else brokers
            if aim:
                broker = self.dice.choice(aim)
                self._number += 1
                to = self.dice.choice(("", "", "", "", *(each.name for each in brokers), "nobody"))
                assert broker.owner is not None
                order = Order(f"{self._number}", broker.owner.uuid, action, to, "operator", OPERATOR)
                self.oracle.log(f"operator orders {broker.name} to {action} {to}")
                self.oracle.counts["orders"] += 1
                give(FileBoard(vfs, STORE), broker.name, order)
        process.kill()

    # -- what must hold -----------------------------------------------------------------------------------------------

    def linked(self, slot: Slot, number: int) -> None:
        """After a mark that forbids a failover only a broker that was called, or found it when it started, serves."""
        mark = self._mark(number - 1)
        if mark is None:
            return
        if mark.get("to"):
            self.oracle.counts["handed to whom it named" if mark["to"] == slot.name else "taken by another"] += 1
        left = self._forbidden.get(number - 1)
        if mark.get("failover") is False and left is not None and slot.process is not None:
            self.oracle.counts["passive"] += 1
            found = slot.service is not None and slot.service._contender.candidacy.at_start == Mark.of(mark)
            if not found and self._called.get(slot.name, -math.inf) < left - 1.01 * CALLED_S:
                self.oracle.broken("passive", f"{slot.name} took epoch {number}, which nobody had asked it to do")

    def _mark(self, epoch: int) -> dict[str, Any] | None:
        with suppress(AmqError, OSError):
            mark = FileElection(self.oracle.vfs, STORE).read(RELEASE)
            if mark is not None and mark.get("epoch") == epoch:
                return mark
        return None

    @contextmanager
    def settings(self) -> Iterator[None]:
        look, depart, release = Orders.look, Succession._depart, Locker.release

        def look_and_count(orders: Orders) -> Order | None:
            order = look(orders)
            if order is not None:
                if order.id in self._obeyed:
                    self.oracle.broken("orders", f"order {order.id} was taken up twice")
                self._obeyed.add(order.id)
                if order.action == TAKE_OVER:
                    self._called[orders.name] = self.oracle.now_s
            return order

        def depart_and_count(succession: Succession, search: Any, to: Any) -> str:
            self.oracle.counts["handed over by order" if search.order else "failbacks"] += 1
            return depart(succession, search, to)

        def release_and_note(locker: Locker, to: str = "", failover: bool = True) -> None:
            if not failover and locker._epoch is not None:
                self._forbidden[locker._epoch.number] = self.oracle.now_s
            release(locker, to, failover)

        with (
            patch.object(Orders, "look", look_and_count),
            patch.object(Succession, "_depart", depart_and_count),
            patch.object(Locker, "release", release_and_note),
        ):
            yield
