"""Scenarios on SMB, with a Samba server that looks for dead clients."""

from __future__ import annotations

from lab.doctor import expect_refused
from lab.scenario import scenario
from lab.scenarios_nfs4 import CUT_S, cut_and_heal
from lab.smb import RECOMMENDED, Smb
from lab.world import World


@scenario("smb-kill", "the master's process is killed", 35, "smb", files=Smb)
def kill(world: World) -> None:
    world.build()
    epoch, since_s = world.epoch, world.fault("killing the master")
    world.master.kill()
    world.wait_takeover(since_s, epoch)


@scenario("smb-cut", f"the master's host is cut off from the server for {CUT_S:g} s, then healed", 80, "smb", files=Smb)
def cut(world: World) -> None:
    cut_and_heal(world)


@scenario(
    "smb-nobrl", "mounted without byte-range locks: refused, with the reason", 25, "smb", hosts=1,
    files=lambda: Smb(f"{RECOMMENDED},nobrl"),
)  # fmt: skip
def nobrl(world: World) -> None:
    world.boot()
    expect_refused(world, "nobrl")
