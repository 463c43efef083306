"""Moves in a simulated cluster: operators begin them, slow them down and take them back, and each node has a process
that carries them through, as the supervisor of a real one has a thread for it.

What moves is small here, and goes in many steps and parcels. Beside the promises of every cluster: no copy of a message
is given to anybody by a store that is not its home, or while the same store has another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from amq.broker.homes import Homes
from amq.broker.transfer.arrivals import Arrivals
from amq.broker.transfer.channel import Channel
from amq.broker.transfer.copies_here import CopiesHere
from amq.broker.transfer.copying_ahead import CopyingAhead
from amq.cli import cluster_moving
from amq.cli.orders import OrderError
from amq.cluster.moving import carry_on
from amq.core.errors import AmqError
from tests.simulation.clients import Consumer, Mover, Producer, TransactedProducer
from tests.simulation.scheduler import Killed, Machine, Process

if TYPE_CHECKING:
    from tests.simulation.cluster import ClusterWorld

MOVES = "moves"
ROAM = "roam.>"
STEP_BYTES = 4000
PARCEL_MESSAGES = 3
COPIES = 5  # in a parcel that names them; so few messages are not worth another round
# Where a process may die, before the call or just after it: the steps of a parcel, of its arrival, and of a table.
MOMENTS: tuple[tuple[Any, str], ...] = (
    (Channel, "send"),
    (Channel, "_ask"),
    (Channel, "_come"),
    (Channel, "_close"),
    (CopyingAhead, "_send"),
    (CopyingAhead, "_come"),
    (CopiesHere, "tidy"),
    (Arrivals, "take"),
    (Arrivals, "fetch"),
    (Homes, "offer"),
    (Homes, "recorded"),
)


class Carrier:
    """The process of a node that carries moves through: started again whenever it ends."""

    def __init__(self, world: ClusterWorld, machine: Machine) -> None:
        self.machine = machine
        self.process: Process | None = None
        self._world = world

    def start(self) -> None:
        if not self.machine.up or (self.process is not None and self.process.alive):
            return
        self.process = process = self.machine.spawn(f"carrier-{self.machine.name}")
        self._world.equip(process)
        process.start("carrier", lambda: self._carry(process))

    def _carry(self, process: Process) -> None:
        try:
            directory: Any = self._world.directory(process)
        except AmqError as error:
            self._world.oracle.log(f"{process.name} cannot look: {error}")
            self._world.scheduler.after(0.0, lambda: self._world.end_process(process))
            return
        carry_on(directory, self._is_moving, list, process.event())

    def _is_moving(self) -> bool:
        return self._world.tables.seen(self.machine, self._world.scheduler.now).placement.step is not None


def roaming(rng: Random) -> list[Any]:
    """Applications of queues that move."""
    body_bytes = rng.choice((40, 400))
    return [
        partial(Producer, queue="roam.1", burst=rng.choice((3, 12)), body_bytes=body_bytes),
        partial(Consumer, queue="roam.1", prefetch=rng.choice((1, 3, 20))),
        partial(Producer, queue="roam.2", burst=1, body_bytes=body_bytes),
        partial(TransactedProducer, queues=["roam.2", "roam.3"]),
        partial(Consumer, queue="roam.2", prefetch=rng.choice((1, 20))),
        partial(Mover, source="roam.3", target="roam.4"),
        partial(Consumer, queue="roam.4", prefetch=rng.choice((1, 20))),
        partial(Producer, queue="roam.5", burst=2, body_bytes=body_bytes, pause_s=1.0),
        lambda *known: Consumer(*known, "roam.5", 5, late=True),
    ]


@contextmanager
def in_small_steps() -> Iterator[None]:
    with (
        patch("amq.cluster.placing.STEP_BYTES", STEP_BYTES),
        patch("amq.broker.homes.STEP_BYTES", STEP_BYTES),
        patch("amq.broker.transfer.moving.MESSAGES_MAX", PARCEL_MESSAGES),
        patch("amq.broker.transfer.moving.COPIES_MAX", COPIES),
        patch("amq.broker.transfer.copying_ahead.MESSAGES_MAX", PARCEL_MESSAGES),
        patch("amq.broker.homes.FEW", COPIES),
        patch("amq.broker.homes.FEW_BYTES", STEP_BYTES),
        ExitStack() as commands,
    ):
        commands.enter_context(patch.object(cluster_moving, "print_json", lambda _: None))
        yield


# -- operators ---------------------------------------------------------------------------------------------------------


def _operate(world: ClusterWorld, choice: int, what: str, command: Callable[[], None]) -> Process | None:
    """An operator gives a command at one of the hosts."""
    up = [node for node in world.nodes if node.up]
    if not up:
        return None
    process = up[choice % len(up)].spawn("operator")
    world.equip(process)
    world.oracle.counts[f"{what} tried"] += 1

    def work() -> None:
        try:
            command()
        except (OrderError, AmqError, OSError) as error:
            world.oracle.log(f"the operator fails to {what}: {error}")
        else:
            world.oracle.counts[what] += 1
        world.scheduler.after(0.0, lambda: world.end_process(process))

    process.start("operator", work)
    return process


def begin_move(world: ClusterWorld, choice: int, rate: str | None = None) -> Process | None:
    """`amq cluster move`: what roams gets another home."""
    stores = world.tables.newest.stores
    target = [*stores][choice // 2 % len(stores)]
    move: Any = cluster_moving.move.callback
    wait_s = 30.0 if choice % 3 else 0.0
    return _operate(world, choice, "move", lambda: move("", ROAM, target, rate, wait_s, True))


def cancel_move(world: ClusterWorld, choice: int) -> None:
    moves: Any = cluster_moving.moves.callback
    _operate(world, choice, "cancel", lambda: moves("", True, None, True))


def throttle_move(world: ClusterWorld, choice: int) -> None:
    moves: Any = cluster_moving.moves.callback
    rate = ("0", "4KiB", "20KiB")[choice % 3]
    _operate(world, choice, "throttle", lambda: moves("", False, rate, True))


def kill_at(world: ClusterWorld, choice: int, nth: int) -> None:
    """Whatever process comes there dies at the `nth` of such moments from now on."""
    owner, name = MOMENTS[choice % len(MOMENTS)]

    def strike() -> None:
        task = world.scheduler.current
        assert task is not None
        world.oracle.counts[f"killed at {name}"] += 1
        world.oracle.log(f"{task.process.name} dies at {name}")
        if choice // len(MOMENTS) % 2:
            world.scheduler.after(0.0, partial(world.end_process, task.process))
        else:
            world.end_process(task.process)
            raise Killed

    world.after_next(owner, name, None, strike, nth)
