"""Scenarios on NFSv4. Each: a world that works, one fault, a world that works again, and what must be true of it."""

from __future__ import annotations

import time

from lab import nfs
from lab.history import now_s
from lab.scenario import scenario
from lab.world import World


@scenario("kill", "the master's process is killed", 20)
def kill(world: World) -> None:
    world.build()
    epoch, since_s = world.epoch, now_s()
    world.master.kill()
    world.wait_takeover(since_s, epoch)


@scenario("power-off", "the master's host loses its power", 35)
def power_off(world: World) -> None:
    world.build()
    epoch, since_s = world.epoch, now_s()
    world.master.guest.power_off()
    world.wait_takeover(since_s, epoch)


@scenario("partition", "the master's host is cut off from the file server for 30 s, then healed", 60)
def partition(world: World) -> None:
    world.build()
    _partition(world)


@scenario("hard", "the same on a hard mount", 60, mount=nfs.HARD)
def hard(world: World) -> None:
    world.build()
    _partition(world)


def _partition(world: World) -> None:
    master, epoch, since_s = world.master, world.epoch, now_s()
    marker = master.marker
    master.guest.cut()
    world.wait_takeover(since_s, epoch)
    world.check_deposed(epoch, since_s)
    pause_until(since_s + 30.0)
    world.say("healing")
    master.guest.heal()
    world.wait_deposed(master, marker)
    world.traffic.wait_confirmed(60)


@scenario("freeze", "the master's host is stopped for 25 s, then goes on", 50)
def freeze(world: World) -> None:
    world.build()
    master, epoch, since_s = world.master, world.epoch, now_s()
    marker = master.marker
    master.guest.freeze()
    world.wait_takeover(since_s, epoch)
    pause_until(since_s + 25.0)
    world.say("it goes on")
    resumed_s = now_s()
    master.guest.thaw()
    world.wait_deposed(master, marker)
    world.traffic.wait_confirmed(60)
    world.check_deposed(epoch, resumed_s)


def pause_until(until_s: float) -> None:
    """The fault lasts so long."""
    while (left_s := until_s - now_s()) > 0:
        time.sleep(left_s)
