"""What goes wrong: a schedule of faults, made from the seed before the run, so that it can be cut down afterwards.

Which kinds occur, how many and for how long varies by seed (swarm testing): rare combinations need runs in which the
common ones are off. A `trip` waits for a moment: it strikes when a broker makes a certain call on a certain file.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from random import Random

FAULTS_S = 20.0  # true seconds in which faults begin
KINDS = (
    "kill",
    "pause",
    "power_off",
    "cut_store",
    "cut_network",
    "lose_locks",
    "restart_server",
    "crash_server",
    "remove_lock",
    "replace_lock",
    "remove_claim",
    "fail_sync",
    "fail_call",
    "fill_disk",
    "hand_over",
    "restart_all",
    "kill_client",
    "pause_client",
    "wall_clock",
    "blackout",
    "rot",
    "trip",
    "trip",
    "trip",
    "trip",
)
MOMENTS = (
    ("pwrite", "/journal/"),
    ("send", "/journal/"),
    ("fdatasync", "/journal/"),
    ("fsync", "/journal/"),
    ("open", "/journal/"),
    ("unlink", "/journal/"),
    ("listdir", "/journal"),
    ("try_lock", "/journal/"),
    ("fsync_directory", "/journal"),
    ("pread", "/journal/"),
    ("allocate", "/journal/"),
    ("pwrite", "/claim"),
    ("fsync", "/claim"),
    ("open", "/claim"),
    ("pwrite", "/lock"),
    ("fsync", "/lock"),
    ("open", "/lock"),
    ("try_lock", "/lock"),
    ("stat", "/lock"),
    ("link", "/epochs/"),
    ("fsync", "/epochs/"),
    ("listdir", "/epochs"),
    ("unlink", "/epochs/"),
    ("fsync_directory", "/epochs"),
    ("open", "/epochs/"),
)
BLOWS = (
    "kill",
    "pause",
    "stall",
    "stall_and_lose",
    "stall_and_lose",
    "lose_locks",
    "cut_store",
    "power_off",
    "crash_server",
    "pause_and_lose",
    "kill_then_crash",
    "blackout",
)
NUMBERS = (1, 1, 1, 1, 2, 3, 5, 8)  # which of the calls a trip strikes
# What each rule of the safety argument is there for: (method, place, after?, blow, shortest, longest in periods).
WORST = {
    "late batch": ("fdatasync", "/journal/", False, "pause_and_lose", 1.3, 4.0),
    "late bytes": ("pwrite", "/journal/", False, "pause_and_lose", 1.3, 4.0),
    "late confirmation": ("fdatasync", "/journal/", True, "pause_and_lose", 1.3, 4.0),
    "slow sync": ("fdatasync", "/journal/", False, "stall_and_lose", 1.0, 2.0),
    "slow check": ("listdir", "/epochs", True, "stall_and_lose", 0.8, 1.6),
    "slow look at the claim": ("open", "/claim", True, "stall_and_lose", 0.8, 1.6),
    "late link": ("link", "/epochs/", False, "pause_and_lose", 2.0, 5.0),
    "late epoch": ("fsync", "/epochs/", True, "pause_and_lose", 2.0, 5.0),
    "late master": ("link", "/epochs/", True, "pause_and_lose", 2.0, 5.0),
    "sealed in memory": ("fdatasync", "/journal/", False, "kill_then_crash", 0.3, 1.0),
    "torn batch": ("pwrite", "/journal/", True, "blackout", 0.3, 1.0),
    "torn on its way": ("send", "/journal/", True, "crash_server", 0.3, 1.0),
    "late deletion": ("unlink", "/journal/", True, "pause_and_lose", 1.3, 4.0),
    "unsynced name": ("fsync_directory", "/journal", False, "blackout", 0.3, 1.0),
}
TEARING = {"crash_server": "send", "blackout": "pwrite"}  # half of these strike when bytes are on their way
ERRNOS = (errno.EIO, errno.ESTALE, errno.ENOSPC)
CALLS = ("pwrite", "fsync", "fdatasync", "open", "listdir", "link", "allocate", "try_lock", "close", "pread")


@dataclass(frozen=True)
class Fault:
    """`at`, `seconds`: when it begins and how long it lasts. `target`: which broker, host or client. The rest is the
    trip's: `method` on a path with `place` in it, before or after its effect, the `nth` time from now: `blow`.
    """

    at: float
    kind: str
    target: int
    seconds: float
    method: str = ""
    place: str = ""
    after: bool = False
    nth: int = 0
    blow: str = ""
    number: int = 0
    store: int = -1  # of a cluster: to which one it happens

    def strikes(self, method: str, path: str, after: bool) -> bool:
        """Whether this call is one that the trip waits for."""
        return self.method == method and self.after == after and self.place in path

    def __str__(self) -> str:
        where = f" of store {self.store}" if self.store >= 0 else ""
        text = f"{self.at:6.2f} s: {self.kind} {self.target}{where} for {self.seconds:.2f} s"
        when = "after" if self.after else "before"
        if self.kind == "trip":
            text += f": {self.blow} {when} {self.method} of …{self.place} number {self.nth}"
        elif self.nth:
            text += f": {self.blow} {when} call number {self.nth}"
        return text + (f": {errno.errorcode[self.number]} in {self.method}" if self.number else "")


def schedule(rng: Random, period_s: float, focus: tuple[str, ...] = ()) -> list[Fault]:
    """The faults of one run. With `focus`: many, of these kinds alone; a name of `WORST` stands for that trip."""
    kinds = list(focus) or rng.sample(KINDS, rng.randint(1, 8))
    faults = []
    for _ in range(16 if focus else rng.randint(2, 14)):
        kind = rng.choice(kinds)
        seconds = rng.choice((0.3, 0.9, 1.5, 3.0, 6.0)) * period_s * rng.uniform(0.7, 1.4)
        at, target = rng.uniform(0.2, FAULTS_S), rng.randrange(6)
        if kind in WORST or (kind == "trip" and rng.random() < 0.5):
            worst = WORST[kind] if kind in WORST else rng.choice(list(WORST.values()))
            method, place, after, blow, shortest, longest = worst
            seconds = rng.uniform(shortest, longest) * period_s
            faults.append(Fault(at, "trip", target, seconds, method, place, after, rng.choice(NUMBERS), blow))
        elif kind == "trip":
            method, place = rng.choice(MOMENTS)
            after, nth, blow = rng.random() < 0.5, rng.choice(NUMBERS), rng.choice(BLOWS)
            faults.append(Fault(at, kind, target, seconds, method, place, after, nth, blow))
        elif kind in TEARING and rng.random() < 0.5:
            method = TEARING[kind]
            faults.append(Fault(at, "trip", target, seconds, method, "/journal/", True, rng.choice(NUMBERS), kind))
        elif kind == "fail_call":
            faults.append(Fault(at, kind, target, seconds, rng.choice(CALLS), number=rng.choice(ERRNOS)))
        else:
            faults.append(Fault(at, kind, target, seconds))
    return sorted(faults, key=lambda fault: fault.at)
