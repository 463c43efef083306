"""NFSv3: a host that dies keeps its lock until a person frees it. Refused, unless somebody insists."""

from __future__ import annotations

from lab import nfs
from lab.doctor import expect_refused
from lab.nfs import Nfs
from lab.scenario import last_until, scenario
from lab.world import World

STUCK_S = 30.0


@scenario(
    "nfs3-dead-holder",
    "refused; started all the same, a dead host's lock stays until somebody frees it",
    90,
    "nfs3",
    files=lambda: Nfs(nfs.VERSION_3),
    flags=["--allow-unsafe-store"],
)
def dead_holder(world: World) -> None:
    world.boot()
    expect_refused(world, "NFSv3")
    world.serve()
    epoch, dead = world.epoch, world.master
    since_s = world.fault("power off")
    dead.guest.power_off()
    last_until(since_s + STUCK_S)
    world.expect(world.epoch == epoch, "NFSv3 freed the lock of a dead host: the documents say that it does not")
    assert isinstance(world.files, Nfs)
    slave = next(broker for broker in world.brokers if broker is not dead)
    code, said = world.amq(slave.guest, "status", "--store", world.store)
    world.expect(dead.name in said, f"amq status (exit code {code}) does not name the holder {dead.name}: {said}")
    world.say("freeing its locks on the server")
    world.files.free_locks()
    world.wait_takeover(since_s, epoch)
