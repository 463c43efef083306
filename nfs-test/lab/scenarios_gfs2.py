"""Scenarios on GFS2: the cluster ends (fences) the host that it has lost sight of, before anybody gets its locks."""

from __future__ import annotations

from lab.gfs2 import Gfs2
from lab.scenario import scenario
from lab.scenarios_nfs4 import kill
from lab.world import World

scenario("gfs2-kill", "the master's process is killed", 45, "gfs2", files=Gfs2)(kill)


@scenario("gfs2-cut", "the master's host is cut off from the cluster: it is fenced", 60, "gfs2", files=Gfs2)
def cut(world: World) -> None:
    world.build()
    master, epoch, since_s = world.master, world.epoch, world.fault("cutting the master's host off")
    master.guest.cut()
    world.wait_takeover(since_s, epoch)
    world.expect(not master.guest.on, "the cluster did not fence the host that was cut off")


@scenario("gfs2-freeze", "the master's host is stopped: it is fenced", 60, "gfs2", files=Gfs2)
def freeze(world: World) -> None:
    world.build()
    master, epoch, since_s = world.master, world.epoch, world.fault("freezing the master's host")
    master.guest.freeze()
    world.wait_takeover(since_s, epoch)
    world.expect(not master.guest.on, "the cluster did not fence the host that was stopped")
