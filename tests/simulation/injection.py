"""Carrying out faults: what each kind does to the world, at its time or at its moment."""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import partial

from tests.simulation.faults import Fault
from tests.simulation.hosts import HostCache
from tests.simulation.hung import KINDS as HANGS
from tests.simulation.hung import outlast
from tests.simulation.oracle import STORE
from tests.simulation.rot import rot
from tests.simulation.scheduler import Killed, Process
from tests.simulation.world import Slot, World


def inject(world: World, fault: Fault) -> None:
    """Carry out `fault`, whose time has come."""
    if not world.peace:
        world.oracle.log(f"FAULT {fault}")
        world.oracle.counts[fault.kind] += 1
        _KINDS[fault.kind](world, fault)


def _slot(world: World, fault: Fault) -> Slot:
    """The target; even numbers mean whoever is master now."""
    if fault.target % 2 == 0:
        for slot in world.slots:
            if slot.master:
                return slot
    return world.slots[fault.target % len(world.slots)]


def _cache(world: World, slot: Slot) -> HostCache:
    return world.caches[world.machines.index(slot.machine)]


def _kill(world: World, fault: Fault) -> None:
    world.end_process(_slot(world, fault).process)


def _pause(world: World, fault: Fault) -> None:
    _pause_process(world, _slot(world, fault).process, fault.seconds)


def _pause_process(world: World, process: Process | None, seconds: float) -> None:
    if process is not None:
        process.paused_until = max(process.paused_until, world.scheduler.now + seconds)


def _power_off(world: World, fault: Fault) -> None:
    world.power_off(_slot(world, fault).machine, fault.seconds)


def _cut_store(world: World, fault: Fault) -> None:
    _cache(world, _slot(world, fault)).cut(fault.seconds)


def _cut_network(world: World, fault: Fault) -> None:
    _, client = world.applications[fault.target % len(world.applications)]
    world.network.part(_slot(world, fault).machine, client, fault.seconds)


def _lose_locks(world: World, fault: Fault) -> None:
    only = ("", "", "/lock", ".seg")[fault.target % 4]
    _cache(world, _slot(world, fault)).lose_locks(only)


def _restart_server(world: World, fault: Fault) -> None:
    """The server stops for a while; clients claim their locks again, unless it has forgotten its clients."""
    world.server_ready_at = world.scheduler.now + fault.seconds
    if fault.target == 3:
        for cache in world.caches:
            cache.lose_locks()


def _crash_server(world: World, fault: Fault) -> None:
    """Power off and on: what was not committed is lost; locks are claimed again (NFS) or gone."""
    if world.mount.kind == "local":
        world.power_off(world.machines[0], fault.seconds * 0.3)
        return
    holders = [(file, cache) for cache in world.caches for file in cache.files if file.inode.holder is file]
    world.server.crash()
    world.server_ready_at = world.scheduler.now + fault.seconds * 0.3
    for file, cache in holders:
        if fault.target != 3 and cache.connected():
            file.inode.holder = file
        else:
            cache.locks_lost += 1
            file.fenced = cache.mount.fenced
    for cache in world.caches:
        cache.server_restarted()


def _blackout(world: World, fault: Fault) -> None:
    """The power fails for the file server and all hosts at once."""
    _crash_server(world, fault)
    for cache in world.caches:
        world.power_off(cache.machine, fault.seconds * 0.3)


def _remove(world: World, name: str, replace: bool = False) -> None:
    try:
        world.server.unlink(f"{STORE}/{name}")
    except FileNotFoundError:
        return
    if replace:
        world.server.create(f"{STORE}/{name}")


def _fail_sync(world: World, fault: Fault) -> None:
    method = "fdatasync" if fault.target % 3 else "fsync"
    _cache(world, _slot(world, fault)).faults.append((method, errno.EIO))


def _fail_call(world: World, fault: Fault) -> None:
    _cache(world, _slot(world, fault)).faults.append((fault.method, fault.number))


def _fill_disk(world: World, fault: Fault) -> None:
    """Another program takes the room, nearly or quite all of it, for a while."""
    server, left = world.server, (0, 100_000, 40_000)[fault.target % 3]
    taken = max(0, server.free_bytes() - left)
    server.capacity_bytes -= taken

    def give_back() -> None:
        server.capacity_bytes += taken

    world.scheduler.after(fault.seconds * 2, give_back)


def _hand_over(world: World, fault: Fault) -> None:
    world.stop_broker(_slot(world, fault))


def _restart_all(world: World, fault: Fault) -> None:
    """The operator restarts every broker, one after the other."""
    for i, slot in enumerate(world.slots):
        world.scheduler.after(i * fault.seconds * 0.3, partial(world.stop_broker, slot))


def _kill_client(world: World, fault: Fault) -> None:
    world.kill_client(fault.target + int(fault.seconds * 10))


def _pause_client(world: World, fault: Fault) -> None:
    application, _ = world.applications[(fault.target + int(fault.seconds * 10)) % len(world.applications)]
    _pause_process(world, application.process, fault.seconds)


def _wall_clock(world: World, fault: Fault) -> None:
    _slot(world, fault).machine.wall_offset_s += (fault.seconds - 2.0) * (100.0 if fault.target > 3 else 1.0)


def _trip(world: World, fault: Fault) -> None:
    world.trips.append([fault, fault.nth])


_KINDS: dict[str, Callable[[World, Fault], None]] = {
    "kill": _kill,
    "pause": _pause,
    "power_off": _power_off,
    "cut_store": _cut_store,
    "cut_network": _cut_network,
    "lose_locks": _lose_locks,
    "restart_server": _restart_server,
    "crash_server": _crash_server,
    "remove_lock": lambda world, _fault: _remove(world, "lock"),
    "replace_lock": lambda world, _fault: _remove(world, "lock", replace=True),
    "remove_claim": lambda world, _fault: _remove(world, "claim"),
    "fail_sync": _fail_sync,
    "fail_call": _fail_call,
    "fill_disk": _fill_disk,
    "hand_over": _hand_over,
    "restart_all": _restart_all,
    "kill_client": _kill_client,
    "pause_client": _pause_client,
    "wall_clock": _wall_clock,
    "blackout": _blackout,
    "rot": rot,
    "trip": _trip,
    **HANGS,
}


def strike(world: World, fault: Fault, slot: Slot, process: Process) -> None:
    """A trip's moment: `process` is in the middle of the call. Runs inside that process."""
    world.oracle.log(f"{slot.name}: STRIKE {fault}")
    world.oracle.counts[f"trip {fault.blow}"] += 1
    blow, scheduler = fault.blow, world.scheduler
    cache = _cache(world, slot)
    if blow in ("kill", "kill_then_crash"):
        world.end_process(process)
        if blow == "kill_then_crash":
            scheduler.after(world.rng.random() * 2 * world.period_s, lambda: _blackout(world, fault))
    elif blow == "blackout":
        scheduler.at(scheduler.now, lambda: _blackout(world, fault))
    elif blow == "power_off":
        world.power_off(slot.machine, fault.seconds)
    elif blow == "crash_server":
        scheduler.at(scheduler.now, lambda: _crash_server(world, fault))
    elif blow == "cut_store":
        cache.cut(fault.seconds)
    if blow in ("lose_locks", "pause_and_lose", "stall_and_lose", "outlast_and_lose"):
        cache.lose_locks()
    if blow in ("stall", "stall_and_lose"):
        scheduler.sleep(fault.seconds)
        return
    if blow in ("pause", "pause_and_lose"):
        _pause_process(world, process, fault.seconds)
    elif blow in ("outlast", "outlast_and_lose"):
        outlast(world, process, fault.seconds)
    if not process.alive:
        raise Killed
    scheduler.sleep(0.00001)
