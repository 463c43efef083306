"""What goes wrong in a cluster: the faults of single stores, and those of gateways, links, nodes and tables."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

from amq.broker.homes import Homes
from tests.simulation import cluster_database, cluster_moving, cluster_rolling, faults, injection
from tests.simulation.faults import BLOWS, FAULTS_S, MOMENTS, NUMBERS, WORST, Fault
from tests.simulation.network import Endpoint
from tests.simulation.scheduler import Process

if TYPE_CHECKING:
    from tests.simulation.cluster import ClusterWorld

OF_STORES = (
    "kill",
    "pause",
    "cut_store",
    "lose_locks",
    "restart_server",
    "crash_server",
    "fill_disk",
    "hand_over",
    "restart_all",
    "fail_sync",
    "trip",
    "trip",
)


def schedule(rng: Random, period_s: float, stores: int, focus: tuple[str, ...] = ()) -> list[Fault]:
    """The faults of one run, half of them those of single stores. With `focus`: many, of these kinds alone."""
    kinds = list(focus) or [*rng.sample(list(KINDS), rng.randint(1, 7)), *rng.sample(OF_STORES, rng.randint(1, 4))]
    found = []
    for _ in range(16 if focus else rng.randint(3, 14)):
        kind = rng.choice(kinds)
        seconds = rng.choice((0.3, 0.9, 1.5, 3.0, 6.0)) * period_s * rng.uniform(0.7, 1.4)
        at, target, store = rng.uniform(0.2, FAULTS_S), rng.randrange(12), rng.randrange(stores)
        if kind in KINDS or kind in ASIDE:
            found.append(Fault(at, kind, target, seconds, store=store))
        elif kind in WORST or (kind == "trip" and rng.random() < 0.5):
            worst = WORST[kind] if kind in WORST else rng.choice(list(WORST.values()))
            method, place, after, blow, shortest, longest = worst
            seconds, nth = rng.uniform(shortest, longest) * period_s, rng.choice(NUMBERS)
            found.append(Fault(at, "trip", target, seconds, method, place, after, nth, blow, store=store))
        elif kind == "trip":
            method, place = rng.choice(MOMENTS)
            after, nth, blow = rng.random() < 0.5, rng.choice(NUMBERS), rng.choice(BLOWS)
            found.append(Fault(at, kind, target, seconds, method, place, after, nth, blow, store=store))
        else:
            assert kind in faults.KINDS, kind
            found.append(Fault(at, kind, target, seconds, store=store))
    return sorted(found, key=lambda fault: fault.at)


def moving_schedule(found: list[Fault], rng: Random, faults_s: float) -> list[Fault]:
    """`found`, and moves: some in a row, which masters, nodes and operators may not survive."""
    more, at = [], rng.uniform(1.0, 3.0)
    while at < faults_s:
        target, seconds = rng.randrange(1 << 16), rng.uniform(0.1, 3.0)
        more.append(Fault(at, rng.choice(("move", "move", "move_and_kill", "move_and_kill")), target, seconds))
        if rng.random() < 0.5:
            later = at + rng.uniform(0.2, 2.0)
            more.append(Fault(later, rng.choice(("cancel_move", "throttle_move", "kill")), target, seconds))
        at += rng.uniform(1.0, 5.0)
    return sorted([*found, *more], key=lambda fault: fault.at)


def inject(world: ClusterWorld, fault: Fault) -> None:
    """Carry out `fault`, whose time has come."""
    if world.peace:
        return
    if (strike := KINDS.get(fault.kind) or ASIDE.get(fault.kind)) is not None:
        world.oracle.log(f"FAULT {fault}")
        world.oracle.counts[fault.kind] += 1
        strike(world, fault)
    else:
        injection.inject(world.stores[fault.store], fault)


def _pause(world: ClusterWorld, process: Process | None, seconds: float) -> None:
    if process is not None:
        process.paused_until = max(process.paused_until, world.scheduler.now + seconds)


def _gateway(world: ClusterWorld, fault: Fault) -> Any:
    return world.gateways[fault.target % len(world.gateways)]


def _kill_node(world: ClusterWorld, fault: Fault) -> None:
    for process in list(world.nodes[fault.target % len(world.nodes)].processes):
        world.end_process(process)


def _pause_node(world: ClusterWorld, fault: Fault) -> None:
    for process in world.nodes[fault.target % len(world.nodes)].processes:
        _pause(world, process, fault.seconds)


def _links(world: ClusterWorld) -> list[Endpoint]:
    """The gateways' ends of all links."""
    return [end for end in world.network.streams if end.process.name.startswith("gateway") and not _is_client(end)]


def _is_client(end: Endpoint) -> bool:
    return end.peer is None or end.peer.process.name.startswith("client")


def _one_end(fault: Fault, ends: list[Endpoint]) -> Endpoint | None:
    """One of `ends`, or its other one."""
    if not ends:
        return None
    end = ends[fault.target // 2 % len(ends)]
    return end if fault.target % 2 else end.peer


def _on_link(what: Callable[[ClusterWorld, Endpoint, float], None]) -> Callable[[ClusterWorld, Fault], None]:
    def strike(world: ClusterWorld, fault: Fault) -> None:
        end = _one_end(fault, _links(world))
        if end is not None:
            world.oracle.log(f"it is the link of {end.process.name} to {end.remote}")
            what(world, end, fault.seconds)

    return strike


def _cut(world: ClusterWorld, end: Endpoint, _: float) -> None:
    world.network.cut(end, ConnectionResetError("cut"))


def _hold(world: ClusterWorld, end: Endpoint, seconds: float) -> None:
    world.network.hold(end, seconds)


def _slow(world: ClusterWorld, end: Endpoint, seconds: float) -> None:
    end.slow_s = seconds / 10

    def heal() -> None:
        end.slow_s = 0.0

    world.scheduler.after(seconds * 2, heal)


def _half_open(_: ClusterWorld, end: Endpoint, __: float) -> None:
    end.is_mute = True


def _open_to_nobody(world: ClusterWorld, end: Endpoint, seconds: float) -> None:
    _half_open(world, end, seconds)
    assert end.peer is not None
    end.peer.is_mute = True


def _part_nodes(world: ClusterWorld, fault: Fault) -> None:
    nodes = world.nodes
    one = fault.target % len(nodes)
    world.network.part(nodes[one], nodes[(one + 1) % len(nodes)], fault.seconds)


def _cut_client(world: ClusterWorld, fault: Fault) -> None:
    ends = [end for end in world.network.streams if end.process.name.startswith("client")]
    end = _one_end(fault, ends)
    if end is not None:
        _cut(world, end, 0.0)


def _part_client(world: ClusterWorld, fault: Fault) -> None:
    _, client = world.applications[fault.target % len(world.applications)]
    world.network.part(_gateway(world, fault).machine, client, fault.seconds)


def _hang_store(world: ClusterWorld, fault: Fault) -> None:
    """No host reaches the file server of one store for a while."""
    store = world.stores[fault.store]
    store.server_ready_at = max(store.server_ready_at, world.scheduler.now + fault.seconds)


def _hang_directory(world: ClusterWorld, fault: Fault) -> None:
    world.tables.hung_until = world.scheduler.now + fault.seconds
    if world.database is not None:
        world.database.hang(fault.seconds)


def _place(world: ClusterWorld, fault: Fault) -> None:
    """The operator places the queues that may move. Sometimes the process dies in the middle of it."""
    process = world.operate(fault.target)
    if process is not None and fault.target % 4 == 0:
        world.scheduler.after(fault.seconds, partial(world.end_process, process))


def _place_and_kill(world: ClusterWorld, fault: Fault) -> None:
    """The store that loses something hangs when it should record that, and its master dies."""
    if world.operate(fault.target) is None:
        return
    home = world.tables.newest.placement.home_of("queue://" + world.movable)
    store = next(store for store in world.stores if store.name == home)
    slot = next((slot for slot in store.slots if slot.master), None)
    if slot is None or slot.process is None:
        return
    process = slot.process
    world.after_next(Homes, "offer", process, lambda: store.trips.append([_SYNC, 1]))
    wait_s = 2.0 + fault.seconds
    world.scheduler.after(wait_s, partial(world.end_process, process))


_SYNC = Fault(0.0, "trip", 0, 6.0, "pwrite", "/journal/", False, 1, "stall")


KINDS: dict[str, Callable[[ClusterWorld, Fault], None]] = {
    "kill_gateway": lambda world, fault: world.end_process(_gateway(world, fault).process),
    "pause_gateway": lambda world, fault: _pause(world, _gateway(world, fault).process, fault.seconds),
    "stop_gateway": lambda world, fault: _gateway(world, fault).stop(),
    "kill_node": _kill_node,
    "pause_node": _pause_node,
    "cut_link": _on_link(_cut),
    "hold_link": _on_link(_hold),
    "slow_link": _on_link(_slow),
    "half_open": _on_link(_half_open),
    "open_to_nobody": _on_link(_open_to_nobody),
    "part_nodes": _part_nodes,
    "cut_client": _cut_client,
    "part_client": _part_client,
    "kill_client": lambda world, fault: world.kill_client(fault.target),
    "pause_client": lambda world, fault: _pause(
        world, world.applications[fault.target % len(world.applications)][0].process, fault.seconds
    ),
    "hang_store": _hang_store,
    "hang_directory": _hang_directory,
    "place": _place,
    "place_and_kill": _place_and_kill,
    "add_store": lambda world, _: world.add_store(),
}


def _move(world: ClusterWorld, fault: Fault) -> None:
    """The operator moves what roams. Sometimes the process dies in the middle of it."""
    process = cluster_moving.begin_move(world, fault.target, "8KiB" if fault.target % 5 == 0 else None)
    if process is not None and fault.target % 4 == 0:
        world.scheduler.after(fault.seconds, partial(world.end_process, process))


def _move_and_kill(world: ClusterWorld, fault: Fault) -> None:
    """And a process dies at one of the steps of a parcel, or of a table."""
    _move(world, fault)
    cluster_moving.kill_at(world, fault.target // 4, 1 + fault.target // 64 % 4)


OF_MOVES: dict[str, Callable[[ClusterWorld, Fault], None]] = {
    "move": _move,
    "move_and_kill": _move_and_kill,
    "cancel_move": lambda world, fault: cluster_moving.cancel_move(world, fault.target),
    "throttle_move": lambda world, fault: cluster_moving.throttle_move(world, fault.target),
}
OTHERS = {"upgrade_node": cluster_rolling.upgrade_node, "strike_table": cluster_database.strike_table}
ASIDE = OF_MOVES | OTHERS  # in the worlds that have these features
