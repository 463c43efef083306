"""Scenarios on SMB, with a Samba server that looks for dead clients."""

from __future__ import annotations

from amq.node.contender import HUNG_ON_SMB
from lab.doctor import expect_refused
from lab.history import now_s
from lab.scenario import last_until, scenario
from lab.scenarios_nfs4 import CUT_S, cut_and_heal, kill
from lab.smb import RECOMMENDED, Smb
from lab.world import World

scenario("smb-kill", "the master's process is killed", 35, "smb", files=Smb)(kill)
scenario("smb-cut", f"the master's host is cut off from the server for {CUT_S:g} s, then healed", 80, "smb", files=Smb)(
    cut_and_heal
)


@scenario(
    "smb-nobrl",
    "mounted without byte-range locks: refused, with the reason",
    25,
    "smb",
    hosts=1,
    files=lambda: Smb(f"{RECOMMENDED},nobrl"),
)
def nobrl(world: World) -> None:
    world.boot()
    expect_refused(world, "nobrl")


@scenario(
    "smb-hung-master",
    "the master's process is stopped until a slave asks for a person; then it goes on",
    45,
    "smb",
    files=Smb,
)
def hung_master(world: World) -> None:
    world.build()
    master, slave, epoch = world.master, world.brokers[1], world.epoch
    world.fault("stopping the master's process")
    master.freeze()
    slave.wait_event(HUNG_ON_SMB)
    last_until(now_s() + 4.0)
    world.say("it goes on")
    master.thaw()
    world.traffic.wait_confirmed(60)
    world.expect(world.epoch == epoch, f"epoch {world.epoch} began although the lock of epoch {epoch} was held")
