"""Masters that hang while their lock is kept: a slave replaces the lock file. And a master that its clients cannot
reach: nobody replaces it. A client without options shows how long either takes for users.
"""

from __future__ import annotations

from lab import checker
from lab.broker import SERVING
from lab.gfs2 import Gfs2
from lab.history import now_s
from lab.nfs import Nfs
from lab.scenario import last_until, scenario
from lab.world import World

HANG_S = 25.0  # hungMasterTimeout and a period are 12 s; a busy machine takes 18
LONG_LEASE_S = 60  # of the server: longer than a host is stopped
SILENCE_S = 10.0
STOPPED = f"the master's process is stopped for {HANG_S:g} s, its host keeps the lock; then it goes on"


@scenario("gfs2-hung-master", STOPPED, 60, "gfs2", files=Gfs2)
@scenario("hung-master", STOPPED, 60, default_client=True)
def hung_process(world: World) -> None:
    world.build()
    master, epoch, marker = world.master, world.epoch, world.master.marker
    since_s = world.fault("stopping the master's process")
    master.freeze()
    _replaced(world, since_s, epoch)
    last_until(since_s + HANG_S)
    world.say("it goes on")
    resumed_s = now_s()
    master.thaw()
    world.wait_deposed(master, marker)
    _confirmed_nothing(world, epoch, resumed_s)


@scenario(
    "hung-host",
    f"the master's host is stopped for {HANG_S:g} s, the server keeps its lock; then it goes on",
    60,
    files=lambda: Nfs(lease_s=LONG_LEASE_S),
    default_client=True,
)
def hung_host(world: World) -> None:
    world.build()
    master, epoch, marker = world.master, world.epoch, world.master.marker
    since_s = world.fault("freezing the master's host")
    master.guest.freeze()
    frozen_s = now_s()
    _replaced(world, since_s, epoch)
    last_until(since_s + HANG_S)
    world.say("it goes on")
    resumed_s = now_s()
    master.guest.thaw()
    world.wait_deposed(master, marker)
    world.traffic.wait_confirmed(60)
    world.check_deposed(epoch, resumed_s)
    # A confirmation that the broker sent in time may wait in the memory of the stopped host, and leave it when the host
    # wakes up. What a client sent after the host was stopped must never be confirmed by it.
    last_s = checker.confirmed_of_s(world.history, epoch, frozen_s)
    world.expect(last_s is None, f"the old master confirmed at {last_s} s what was sent after its host was stopped")


def _replaced(world: World, since_s: float, epoch: int) -> None:
    """A slave serves while the master is stopped, because it has replaced the lock file and for no other reason. How
    long that takes is measured, not judged: a busy machine says nothing about the broker."""
    world.wait_takeover(since_s, epoch)
    took_s = world.measures["takeover"]
    world.expect(took_s <= HANG_S, f"the master was replaced after {took_s:.1f} s; it is stopped for {HANG_S:g} s")
    reason = str(world.master.said(SERVING)[-1][1].get("reason"))
    world.expect("gave no sign of life" in reason, f"the new master gives another reason for its epoch: {reason}")


def _confirmed_nothing(world: World, epoch: int, resumed_s: float) -> None:
    world.traffic.wait_confirmed(60)
    world.check_deposed(epoch, resumed_s)
    last_s = checker.last_confirmed_s(world.history, epoch)
    world.expect(
        last_s is None or last_s < resumed_s,
        f"the old master confirmed something {(last_s or 0.0) - resumed_s:.2f} s after it was woken",
    )


@scenario(
    "client-cut",
    f"clients' way to the master's host is cut silently for {SILENCE_S:g} s, then healed",
    45,
    default_client=True,
)
def client_cut(world: World) -> None:
    world.build()
    epoch = world.epoch
    since_s = world.fault("cutting the master's host off from its clients")
    world.master.guest.silence()
    last_until(since_s + SILENCE_S)
    world.say("healing")
    world.master.guest.unsilence()
    healed_s = now_s()
    world.traffic.wait(lambda: world.default_confirmed(healed_s) > 0.0, "the client without options goes on")
    world.say(f"the client without options goes on {world.default_confirmed(healed_s) - healed_s:.1f} s later")
    world.traffic.wait_confirmed(60)
    world.expect(world.epoch == epoch, f"epoch {world.epoch} began although the master worked all the time")
