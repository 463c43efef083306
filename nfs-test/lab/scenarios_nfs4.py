"""Scenarios on NFSv4. Each: a world that works, one fault, a world that works again, and what must be true of it."""

from __future__ import annotations

from collections.abc import Sequence

from lab import nfs
from lab.broker import NOT_FOLLOWED, WAITING, Broker
from lab.history import now_s
from lab.nfs import Nfs
from lab.scenario import last_until, scenario
from lab.world import STORE, World

CUT_S = 30.0
FREEZE_S = 25.0
COURTESY_S = 40.0  # four leases
STORE_UNUSABLE = 4  # exit code
LEASE_ALONE = {"hungMasterTimeout": 0}  # where the lease of the server is what is looked at


@scenario("kill", "the master's process is killed", 30)
def kill(world: World) -> None:
    world.build()
    epoch, since_s = world.epoch, world.fault("killing the master")
    world.master.kill()
    world.wait_takeover(since_s, epoch)


@scenario("power-off", "the master's host loses its power", 50)
def power_off(world: World) -> None:
    world.build()
    epoch, since_s = world.epoch, world.fault("power off")
    world.master.guest.power_off()
    world.wait_takeover(since_s, epoch)


@scenario(
    "partition-defaults",
    "the same on a mount with default options",
    80,
    files=lambda: Nfs(nfs.DEFAULTS),
    options=LEASE_ALONE,
)
@scenario("partition-hard", "the same on a hard mount", 80, files=lambda: Nfs(nfs.HARD), options=LEASE_ALONE)
@scenario(
    "partition-no-fencing", "the same with brokers whose fencing is taken out", 90, unfenced=True, options=LEASE_ALONE
)
@scenario(
    "partition",
    f"the master's host is cut off from the file server for {CUT_S:g} s, then healed",
    80,
    options=LEASE_ALONE,
)
def cut_and_heal(world: World) -> None:
    """The master's host loses its way to the file server for `CUT_S`: another takes over, it must be deposed."""
    world.build()
    master, epoch = world.master, world.epoch
    marker = master.marker
    since_s = world.fault("cutting the master off")
    master.guest.cut()
    world.wait_takeover(since_s, epoch)
    world.check_deposed(epoch, since_s)
    last_until(since_s + CUT_S)
    world.say("healing")
    master.guest.heal()
    world.wait_deposed(master, marker)
    world.traffic.wait_confirmed(60)


@scenario(
    "freeze-no-fencing", "the same with brokers whose fencing is taken out", 95, unfenced=True, options=LEASE_ALONE
)
@scenario("freeze", f"the master's host is stopped for {FREEZE_S:g} s, then goes on", 60, options=LEASE_ALONE)
def freeze(world: World) -> None:
    world.build()
    master, epoch = world.master, world.epoch
    marker = master.marker
    since_s = world.fault("freezing the master's host")
    master.guest.freeze()
    world.wait_takeover(since_s, epoch)
    last_until(since_s + FREEZE_S)
    world.say("it goes on")
    resumed_s = now_s()
    master.guest.thaw()
    world.wait_deposed(master, marker)
    world.traffic.wait_confirmed(60)
    world.check_deposed(epoch, resumed_s)


@scenario("server-restart", "the NFS server program is restarted, then stopped for 6 s", 55)
def server_restart(world: World) -> None:
    world.build()
    world.fault("restarting the NFS server")
    _nfs(world).restart()
    world.traffic.wait_confirmed(60)
    world.say("stopping it for 6 s")
    until_s = now_s() + 6.0
    _nfs(world).stop()
    last_until(until_s)
    _nfs(world).resume()
    world.traffic.wait_confirmed(60)


@scenario("server-crash", "the file server loses its power, and comes back", 50)
def server_crash(world: World) -> None:
    world.build()
    world.fault("power off")
    _nfs(world).crash()
    _nfs(world).reboot()
    world.say("it is back")
    world.traffic.wait_confirmed(60)


@scenario("lock-file", "a third host deletes the lock file, replaces it, puts one there that it locked", 60, spare=1)
def lock_file(world: World) -> None:
    world.build()
    third = world.guests[max(world.guests)]
    world.fault("deleting the lock file")
    third.run(f"rm {STORE}/lock")
    third.run(f"for i in $(seq 100); do test -e {STORE}/lock && exit; sleep 0.2; done; exit 1")  # made anew
    world.traffic.wait_confirmed(100)
    world.say("replacing it")
    third.run(f"cp {STORE}/lock {STORE}/other; mv {STORE}/other {STORE}/lock")
    world.traffic.wait_confirmed(100)
    world.say("replacing it and holding the lock for 8 s")
    third.run([world.place.python, "-c", _HOLD_LOCK, STORE])
    world.traffic.wait_confirmed(100)


_HOLD_LOCK = """
import fcntl, os, struct, sys, time
store = sys.argv[1]
fd = os.open(store + "/stolen", os.O_RDWR | os.O_CREAT)
fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 1 << 40, 1, 0))
os.rename(store + "/stolen", store + "/lock")
time.sleep(8)
"""


@scenario("forgetful-server", "the NFS server forgets which client has which lock", 45)
def forgetful_server(world: World) -> None:
    world.build()
    world.fault("restarting the NFS server without its memory")
    _nfs(world).forget_clients()
    world.traffic.wait_confirmed(100)


@scenario("disk-full", "the store's file system fills up, and masters are killed meanwhile; then there is room", 50)
def disk_full(world: World) -> None:
    world.build()
    world.fault("filling the disk, up to 4 MiB")
    _nfs(world).fill(leave_bytes=4 << 20)
    world.traffic.wait(lambda: world.traffic.refusals > 0, "the broker says that the store is full")
    first, epoch, since_s = world.master, world.epoch, now_s()
    first.kill()
    world.wait_served(since_s, epoch)
    marker = first.marker
    first.start().wait_event(WAITING, after=marker)
    world.say("filling it up entirely, and killing the master again")
    _nfs(world).fill(leave_bytes=0)
    epoch = world.epoch
    world.master.kill()
    last_until(now_s() + 6.0)
    world.expect(first.exit_code is None, f"a slave ended because of a full disk: {first.tail()}")
    _nfs(world).make_room()
    world.say("there is room again")
    world.traffic.wait_confirmed(60)
    world.expect(world.epoch > epoch, "nobody took over from a master that was killed while the disk was full")


@scenario(
    "courtesy",
    f"cut off for {COURTESY_S:g} s, four leases, with nobody waiting: the master stays",
    80,
    hosts=1,
    files=lambda: Nfs(nfs.HARD),
    options={"lockKeepAlivePeriod": "60s"},
)
def courtesy(world: World) -> None:
    world.build()
    epoch = world.epoch
    since_s = world.fault("cutting the only broker off")
    world.master.guest.cut()
    last_until(since_s + COURTESY_S)
    world.say("healing")
    world.master.guest.heal()
    world.traffic.wait_confirmed(60)
    world.expect(world.epoch == epoch, f"epoch {world.epoch} began although nobody else wanted epoch {epoch} to end")


@scenario("alone", f"cut off for {CUT_S:g} s with nobody waiting: master again afterwards", 85, hosts=1)
def alone(world: World) -> None:
    world.build()
    epoch, since_s = world.epoch, world.fault("cutting the only broker off")
    world.master.guest.cut()
    last_until(since_s + CUT_S)
    world.check_deposed(epoch, since_s)
    world.say("healing")
    world.master.guest.heal()
    world.wait_takeover(since_s, epoch)


@scenario("hand-over", "a rolling restart: the master is told to stop, twice", 45)
def hand_over(world: World) -> None:
    world.build()
    for _ in range(2):
        master, epoch, since_s = world.master, world.epoch, world.fault("telling the master to stop")
        master.stop()
        world.wait_takeover(since_s, epoch)
        marker = master.marker
        master.start().wait_event(WAITING, after=marker)


@scenario("rolling-upgrade", "two brokers of 0.1 are upgraded, each through a takeover; then one of 0.1 comes back", 60)
def rolling_upgrade(world: World) -> None:
    old, new = world.older("0.1"), world.brokers[0].command
    for broker in world.brokers:
        broker.command = old
    world.build()
    first, second = world.brokers
    _upgrade(second, new)
    epoch, since_s = world.epoch, world.fault("killing the old master")
    first.kill()
    world.wait_takeover(since_s, epoch)
    world.say("the old one comes back as a slave, and is upgraded")
    marker = first.marker
    first.start().wait_event(NOT_FOLLOWED, after=marker)
    _upgrade(first, new)
    epoch, since_s = world.epoch, world.fault("killing the new master")
    second.kill()
    world.wait_takeover(since_s, epoch)
    world.say("0.1 comes back, and gets the lock")
    second.command, marker = old, second.marker
    second.start().wait_event(NOT_FOLLOWED, after=marker)
    epoch, claim = world.epoch, first.guest.run(f"cat {STORE}/claim")
    first.stop()
    code, said = second.wait_exit(), second.tail()
    world.expect(code == STORE_UNUSABLE and "upgrade this broker" in said, f"0.1 was not refused: {code}\n{said}")
    world.expect(first.guest.run(f"cat {STORE}/claim") == claim, "a broker that was refused has claimed the store")
    since_s = now_s()
    first.start()
    world.wait_takeover(since_s, epoch)


def _upgrade(slave: Broker, command: Sequence[str]) -> None:
    slave.stop()
    slave.command, marker = command, slave.marker
    slave.start().wait_event(WAITING, after=marker)


def _nfs(world: World) -> Nfs:
    assert isinstance(world.files, Nfs)
    return world.files
