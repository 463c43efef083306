"""Masters that hang with their lock, brokers that replace the lock file, and pauses at every call of both.

In these worlds lease periods are short and so is `hungMasterTimeout`. Most episodes also strike the broker that
replaces, at the n-th call behind its decision. Some worlds are calm: nothing else goes wrong in them.

The checkers, beside the promises of every world:

- No broker is replaced that gave a sign within the time-out, whoever looked. A sign is what the file server has in
  `lock` and `claim`; time in which the slave itself paused, or got no answer, is not counted for it.
- In calm worlds: a broker that works is never replaced; while a master hangs and a slave works, another one serves
  within the time-out, a step of the watch, one period and `LATE_S`.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import amq.node.takeover
from amq.node.member import Role
from amq.store.files.log import FileLog
from amq.store.locker import Locker
from tests.simulation.faults import FAULTS_S, Fault
from tests.simulation.features import Feature
from tests.simulation.hosts import OpenFile
from tests.simulation.oracle import STORE, Oracle
from tests.simulation.scheduler import Process
from tests.simulation.storage import splice

if TYPE_CHECKING:
    from tests.simulation.hosts import HostCache
    from tests.simulation.world import Slot, World

PERIODS = 5  # of the holder: the least time-out, as docs/master-slave.md says
STEPS, GAP_STEPS = 20, 2  # looks in a time-out; of a gap between two of them this much counts
CALM_SHARE, SLOW_SHARE, SLOW_CALM_SHARE, ALONE_SHARE = 0.35, 0.2, 0.5, 0.5
LONG_LEASE_S = 60.0
POLL_S = 0.04
DRIFT = 0.01
LATE_S = 1.0
SLOW_PERIODS = 7.0  # of the candidate: how long a slow seal takes
RECORD_BYTES = 4096
DECIDED = 18  # calls of a broker that replaces before the old file loses its name
LONGEST = ("hang", "hang", "cut_holder", "hang_at_call")  # what a slave ends, if it lasts long enough
OF_HOLDERS = (*LONGEST, "hang", "hang_at_call", "hang_all", "mute_server", "hang_and_kill", "hang_and_mute", "blind")
REMOTE = ("cut_holder", "mute_server", "hang_and_mute", "blind")  # where all brokers are on one host these hit all
STRIKES = (
    "pause",
    "pause",
    "stall",
    "outlast",
    "outlast",
    "outlast",
    "outlast_and_lose",
    "outlast_and_lose",
    "kill",
    "cut_store",
    "pause_and_lose",
    "stall_and_lose",
    "lose_locks",
    "power_off",
)


@dataclass(slots=True)
class _Watched:
    """A broker since the last sign of the holder: for how long it could look, and how often it could not. `since`: from
    when on it was never hindered, whatever the holder did."""

    awake: bool
    since: float
    awake_s: float = 0.0
    gaps: int = 0


class Hung(Feature):
    """See above."""

    def __init__(self, oracle: Oracle, seed: int) -> None:
        super().__init__(oracle, seed)
        self.armed: list[Fault] = []  # strike whoever replaces next
        self._counting: list[list[Any]] = []  # [process, fault, calls left]
        self._world: World | None = None
        self._limit_s = 0.0  # the longest time-out of all
        self._calm = self._slow = self._local = False
        self._signs: dict[HostCache, Any] = {}
        self._polled_at = 0.0
        self._watched: dict[Process, _Watched] = {}
        self._served_at = 0.0
        self._struck_at = 0.0
        self._replaced: dict[Process, Slot] = {}

    # -- the world ----------------------------------------------------------------------------------------------------

    def prepare(self, world: World) -> None:
        self._world, dice = world, self.dice
        alone, self._local = len(world.features) == 1, len(world.caches) == 1
        self._calm = alone and dice.random() < CALM_SHARE and not world.mount.lock_refuses  # on SMB nobody is replaced
        self._slow = alone and dice.random() < (SLOW_CALM_SHARE if self._calm else SLOW_SHARE)
        for slot in world.slots:
            period_s = slot.config.lock_keep_alive_period_s * 0.5
            timeout_s = period_s * dice.choice((1.0, 2.5, 4.0, 7.0))
            slot.config = replace(slot.config, lock_keep_alive_period_s=period_s, hung_master_timeout_s=timeout_s)
            self._limit_s = max(self._limit_s, timeout_s, PERIODS * period_s)
        if dice.random() < 0.7:  # the server keeps the locks of silent hosts
            world.mount = replace(world.mount, lease_s=max(world.mount.lease_s, LONG_LEASE_S))
            for cache in world.caches:
                cache.mount = world.mount
        if self._calm:
            world.deaf.clear()
            world.stall_chance = 0.0
            world.vfs_latency_s = min(world.vfs_latency_s, 0.001)
        world.scheduler.after(POLL_S, self._keep_polling)

    def schedule(self, faults: list[Fault]) -> list[Fault]:
        """In calm worlds the first master hangs, and perhaps the one that replaces it. Else some episodes, beside the
        faults of the seed or alone."""
        dice, limit_s = self.dice, self._limit_s
        if self._calm:
            strike, seconds = dice.random() < 0.5, limit_s * dice.uniform(1.8, 4.0)
            made = self._episode(3.0 + dice.random(), FAULTS_S if strike else seconds, strike)
        else:
            made = [] if dice.random() < ALONE_SHARE else list(faults)
            made += self._episode(dice.uniform(2.0, 6.0), limit_s * dice.uniform(1.2, 2.2), True, LONGEST)
            for _ in range(dice.randint(1, 3)):
                made += self._episode(dice.uniform(1.0, FAULTS_S - 4.0), limit_s * dice.uniform(0.5, 2.2), True)
        return sorted(made, key=lambda fault: fault.at)

    def _episode(self, at: float, seconds: float, strike: bool, kinds: tuple[str, ...] = OF_HOLDERS) -> list[Fault]:
        dice = self.dice
        kind = dice.choice(LONGEST if self._calm else kinds)
        if self._local and kind in REMOTE:
            kind = "hang"
        if kind == "hang_and_kill":
            seconds = self._limit_s * dice.uniform(0.4, 1.1)
        target = dice.randrange(6)
        at_call: dict[str, Any] = {"after": dice.random() < 0.5, "nth": dice.randint(1, 60), "blow": "pause"}
        of_holder = Fault(at, kind, target, seconds, **(at_call if kind == "hang_at_call" else {}))
        if not strike or (not self._calm and dice.random() < 0.3):
            return [of_holder]
        if self._calm:
            return [of_holder, Fault(at, "hang_replacing", 0, seconds, nth=DECIDED + dice.randint(2, 50), blow="pause")]
        blow = dice.choice(STRIKES)
        nth, after = dice.choice((dice.randint(1, 24), DECIDED + dice.randint(0, 2), dice.randint(1, 110))), False
        if nth > DECIDED + 2:
            after = dice.random() < 0.4
        lasts_s = dice.uniform(0.0, 3.0) * self._limit_s / PERIODS if blow.startswith("outlast") else seconds
        if blow == "outlast_and_lose":
            return [of_holder, Fault(at, "trip", 0, lasts_s, "link", "/epochs/", False, 1, blow)]
        return [of_holder, Fault(at, "hang_replacing", 0, lasts_s, "", "", after, nth, blow)]

    # -- who holds the lock, and what is known of brokers -------------------------------------------------------------

    def holder(self) -> tuple[Slot, Process] | None:
        """The broker that has the lock of the file in place, by the server's word."""
        world = self._world
        assert world is not None
        try:
            file = world.server.find(f"{STORE}/lock").holder
        except OSError:
            return None
        for slot in world.slots:
            if isinstance(file, OpenFile) and slot.process is file.process and file.process.alive:
                return slot, file.process
        return None

    def cache(self, slot: Slot) -> HostCache:
        assert self._world is not None
        return self._world.caches[self._world.machines.index(slot.machine)]

    def _awake(self, slot: Slot) -> bool:
        """Whether it runs, and the file server would answer it."""
        world, process = self._world, slot.process
        assert world is not None
        assert process is not None
        now = world.scheduler.now
        return process.paused_until <= now and self.cache(slot).connected() and now >= world.server_ready_at

    def _seen_from(self, cache: HostCache) -> list[tuple[int, bytes]]:
        """What that host can see of the holder now: the files, and what is in them on the server and in pages that
        a broker of the same host has written."""
        found = []
        for name in ("lock", "claim"):
            try:
                inode = cache.server.find(f"{STORE}/{name}")
            except OSError:
                found.append((0, b""))
                continue
            data = inode.data
            for piece in cache.pages(inode).dirty:
                data = splice(data, piece.offset, piece.data)
            found.append((inode.number, data[:RECORD_BYTES]))
        return found

    def _keep_polling(self) -> None:
        assert self._world is not None
        self._poll()
        self._check_liveness()
        self._world.scheduler.after(POLL_S, self._keep_polling)

    def _poll(self) -> None:
        world = self._world
        assert world is not None
        now = world.scheduler.now
        passed_s, self._polled_at = now - self._polled_at, now
        signs = {cache: self._seen_from(cache) for cache in world.caches}
        before, self._signs = self._signs, signs
        watched: dict[Process, _Watched] = {}
        for slot in world.slots:
            process = slot.process
            if process is None or not process.alive:
                continue
            awake, seen = self._awake(slot), self._watched.get(process) or _Watched(True, now)
            cache = self.cache(slot)
            if signs[cache] != before.get(cache):
                seen.awake_s, seen.gaps = 0.0, 0
            elif awake and seen.awake:
                seen.awake_s += passed_s
            elif awake != seen.awake:
                seen.gaps += 1
            if not (awake and seen.awake):
                seen.since = now
            seen.awake = awake
            watched[process] = seen
            if awake and self._replaced.get(process) is slot and slot.service is not None and not slot.master:
                del self._replaced[process]
                self.oracle.counts["woken and deposed"] += 1
        self._watched = watched

    def _period_s(self, slot: Slot) -> float:
        """Of the writer of the last heartbeat, as far as anybody can tell; else that of `slot` itself."""
        try:
            owner = json.loads(self._signs[self.cache(slot)][0][1])["body"]["owner"]
            return float(owner["lock_keep_alive_period_s"])
        except (ValueError, LookupError, TypeError):
            return slot.config.lock_keep_alive_period_s

    def _timeout_s(self, slot: Slot) -> float:
        return max(slot.config.hung_master_timeout_s, PERIODS * self._period_s(slot))

    # -- who is replaced, and when ------------------------------------------------------------------------------------

    @contextmanager
    def settings(self) -> Iterator[None]:
        from tests.simulation.world import World

        replacing, on_call, locking = Locker.replace, World._on_call, amq.node.takeover.lock_segments

        def see_replace(locker: Locker, silent_s: float, goes_on: Callable[[], bool]) -> bool:
            slot = self._slot(locker)
            assert slot.process is not None
            self.oracle.counts["silent"] += 1
            self._counting += [[slot.process, fault, fault.nth] for fault in self.armed]
            self.armed.clear()

            def see_goes_on() -> bool:
                self._poll()
                holder = self.holder()
                wrong = self._objection(slot, holder)
                decided = goes_on()
                if decided:
                    if wrong:
                        self.oracle.broken("hung", wrong)
                    self.oracle.counts["replacing a master"] += holder is not None and holder[0].master
                    if holder is not None:
                        self._replaced[holder[1]] = holder[0]
                return decided

            replaced = replacing(locker, silent_s, see_goes_on)
            self.oracle.counts["lock files replaced"] += replaced
            return replaced

        def see_call(
            world: World, slot: Slot, process: Process, method: str, path: str, after: bool, detail: str
        ) -> None:
            on_call(world, slot, process, method, path, after, detail)
            self._count(world, slot, process, after)

        def lock_slowly(log: FileLog, sign: Callable[[], None]) -> Any:
            process = log._vfs.process  # type: ignore[attr-defined]
            for _ in range(int(SLOW_PERIODS * 4)):
                process.scheduler.sleep(self._slow_s(process) / (SLOW_PERIODS * 4))
                sign()
            return locking(log, sign)

        with ExitStack() as patches:
            patches.enter_context(patch.object(Locker, "replace", see_replace))
            patches.enter_context(patch.object(World, "_on_call", see_call))
            if self._slow:
                patches.enter_context(patch.object(amq.node.takeover, "lock_segments", lock_slowly))
            yield

    def _slot(self, locker: Locker) -> Slot:
        assert self._world is not None
        return next(slot for slot in self._world.slots if slot.vfs is locker._election._vfs)

    def _slow_s(self, process: Process) -> float:
        assert self._world is not None
        slot = next(slot for slot in self._world.slots if slot.process is process)
        return SLOW_PERIODS * slot.config.lock_keep_alive_period_s

    def _objection(self, slot: Slot, holder: tuple[Slot, Process] | None) -> str:
        """Why the broker of `slot` may not replace the lock file now, "" = it may."""
        world, process = self._world, slot.process
        assert world is not None
        assert process is not None
        seen, limit_s, now = self._watched[process], self._timeout_s(slot), world.scheduler.now
        counted_s = (seen.awake_s + POLL_S) * (1 + DRIFT) + seen.gaps * (limit_s * GAP_STEPS / STEPS + POLL_S)
        if counted_s < limit_s:
            return (
                f"{slot.name} replaces a lock file whose holder gave a sign: it could look for {seen.awake_s:.2f} s "
                f"and {seen.gaps} times not, the time-out is {limit_s:.2f} s"
            )
        if self._calm and holder is not None and holder[1] is not process:
            other = self._watched.get(holder[1])
            if other is not None and other.awake and other.since < now - limit_s * (1 + DRIFT) - POLL_S:
                return f"{slot.name} replaces the lock file of {holder[0].name}, which works"
        return ""

    def _check_liveness(self) -> None:
        """In calm worlds: nobody serves although the master hangs, and a slave could."""
        world = self._world
        assert world is not None
        now = world.scheduler.now
        holder = self.holder()
        if any(slot.master and self._awake(slot) for slot in world.slots) or self._served_at == 0.0:
            if any(slot.master for slot in world.slots):
                self._served_at = now
            return
        if not self._calm or world.peace:
            return
        for slot in world.slots:
            seen = self._watched.get(slot.process) if slot.process is not None else None
            if seen is None or not seen.awake or slot.service is None or slot.service.role is Role.STARTING:
                continue
            owner_s = max(each.config.lock_keep_alive_period_s for each in world.slots)
            limit_s = max(slot.config.hung_master_timeout_s, PERIODS * owner_s) * (1 + 1 / STEPS)
            most_s = (limit_s + owner_s) * (1 + DRIFT) + LATE_S + self._slow * SLOW_PERIODS * owner_s
            if now - max(self._served_at, self._struck_at, seen.since) > most_s:
                who = holder[0].name if holder is not None else "nobody"
                self.oracle.broken("hung", f"nobody serves for {most_s:.1f} s, {who} has the lock, {slot.name} works")

    # -- strikes ------------------------------------------------------------------------------------------------------

    def struck(self) -> None:
        assert self._world is not None
        self._struck_at = self._world.scheduler.now

    def count_calls_of(self, process: Process, fault: Fault) -> None:
        """`fault` strikes at the n-th call of `process` from now."""
        self._counting.append([process, fault, fault.nth])

    def _count(self, world: World, slot: Slot, process: Process, after: bool) -> None:
        due = [entry for entry in self._counting if entry[0] is process and entry[1].after == after]
        for entry in due:
            entry[2] -= 1
        ripe = [entry for entry in due if entry[2] <= 0]
        self._counting = [entry for entry in self._counting if entry not in ripe and entry[0].alive]
        for _, fault, _ in ripe if not world.peace else ():
            self.struck()
            world._strike(fault, slot, process)


# -- faults, for `injection` -------------------------------------------------------------------------------------------


def _of(world: World) -> Hung:
    return next(feature for feature in world._made if isinstance(feature, Hung))


def _pause(process: Process, now: float, seconds: float) -> None:
    process.paused_until = max(process.paused_until, now + seconds)


def _hang(world: World, fault: Fault) -> None:
    """The holder of the lock is stopped."""
    hung = _of(world)
    if (found := hung.holder()) is not None:
        hung.struck()
        _pause(found[1], world.scheduler.now, fault.seconds)


def _hang_at_call(world: World, fault: Fault) -> None:
    if (found := _of(world).holder()) is not None:
        _of(world).count_calls_of(found[1], fault)


def _hang_replacing(world: World, fault: Fault) -> None:
    _of(world).armed.append(fault)


def _hang_all(world: World, fault: Fault) -> None:
    """All hosts pause; the holder of the lock goes on a little later than the others."""
    found, now = _of(world).holder(), world.scheduler.now
    for slot in world.slots:
        if slot.process is not None and slot.process.alive:
            _pause(slot.process, now, fault.seconds)
    if found is not None:
        _pause(found[1], now, fault.seconds + _of(world).dice.uniform(0.0, 0.5))


def _mute_server(world: World, fault: Fault) -> None:
    """The file server answers nobody, and then the holder of the lock last."""
    found, now = _of(world).holder(), world.scheduler.now
    world.server_ready_at = max(world.server_ready_at, now + fault.seconds)
    if found is not None:
        _of(world).cache(found[0]).cut(fault.seconds + _of(world).dice.uniform(0.0, 0.5))


def _hang_and_mute(world: World, fault: Fault) -> None:
    """The holder is stopped; a moment later the file server answers nobody; then the holder goes on last."""
    hung = _of(world)
    if (found := hung.holder()) is not None:
        later_s = hung.dice.uniform(0.2, 0.6)
        _pause(found[1], world.scheduler.now, fault.seconds + later_s + hung.dice.uniform(0.0, 0.5))
        world.scheduler.after(later_s, lambda: None if world.peace else _mute_server(world, fault))


def _cut_holder(world: World, fault: Fault) -> None:
    hung = _of(world)
    if (found := hung.holder()) is not None:
        hung.struck()
        hung.cache(found[0]).cut(fault.seconds)


def _hang_and_kill(world: World, fault: Fault) -> None:
    """The holder is stopped, and killed before it goes on."""
    if (found := _of(world).holder()) is not None:
        process = found[1]
        _pause(process, world.scheduler.now, fault.seconds + 1.0)
        world.scheduler.after(fault.seconds, lambda: world.end_process(process))


def _blind(world: World, fault: Fault) -> None:
    """A slave cannot read the two files for a while."""
    found = _of(world).holder()
    hosts = [slot for slot in world.slots if found is None or slot.machine is not found[0].machine]
    if hosts:
        cache = _of(world).cache(hosts[fault.target % len(hosts)])
        cache.faults += [("drop_cache", errno.EIO)] * int(5 + fault.seconds * 20)


KINDS: dict[str, Callable[[World, Fault], None]] = {
    "hang": _hang,
    "hang_at_call": _hang_at_call,
    "hang_replacing": _hang_replacing,
    "hang_all": _hang_all,
    "mute_server": _mute_server,
    "hang_and_mute": _hang_and_mute,
    "cut_holder": _cut_holder,
    "hang_and_kill": _hang_and_kill,
    "blind": _blind,
}


def outlast(world: World, process: Process, seconds: float) -> None:
    """Stop `process` until all other brokers that pause have gone on for `seconds`."""
    now = world.scheduler.now
    others = [slot.process for slot in world.slots if slot.process is not None and slot.process is not process]
    until = max((each.paused_until for each in others if each.alive), default=0.0)
    if until > now:
        _pause(process, now, until - now + seconds)
