"""Rules for mount options: the purpose of each, and the consequence without it. docs/operations.md shows the same.

Invariant: an option is UNFIT if it breaks an assumption of docs/assumptions.md (locks that exclude, close-to-open). It
is a WARNING if it costs time in a fault or was never tested, and a NOTE if it changes nothing for the broker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from amq.doctor.finding import Finding, Level
from amq.doctor.mounts import Mount

TIMEO_MAX = 50  # tenths of a second
RETRANS_MAX = 3


@dataclass(frozen=True, slots=True)
class MountRule:
    """One option, or several that exclude each other.

    wanted   the recommended option
    names    the names that the kernel may show for it; the first one present counts
    absent   the value if the kernel shows none of them
    fits     is the mount as it should be?
    purpose  the purpose of the option
    without  the consequence if the mount does not fit; level = its severity
    cure     the cure; "" = mount with `wanted`
    """

    wanted: str
    names: tuple[str, ...]
    absent: str
    fits: Callable[[Mount], bool]
    purpose: str
    without: str
    level: Level
    cure: str = ""

    def judge(self, mount: Mount) -> Finding:
        shown = next((name for name in self.names if mount.has(name)), "")
        value = mount.get(shown)
        found = (f"{shown}={value}" if value else shown) or self.absent
        if self.fits(mount):
            return Finding(Level.OK, self.wanted, found, self.purpose)
        return Finding(self.level, self.wanted, found, self.without, self.cure or f"mount with {self.wanted}")


def judge_options(rules: tuple[MountRule, ...], mount: Mount) -> Iterator[Finding]:
    for rule in rules:
        yield rule.judge(mount)


def _at_most(option: str, limit: int) -> Callable[[Mount], bool]:
    return lambda mount: mount.get(option).isdecimal() and 0 < int(mount.get(option)) <= limit


def _lacks(*options: str) -> Callable[[Mount], bool]:
    return lambda mount: not any(mount.has(option) for option in options)


WRITABLE = MountRule(
    "rw",
    ("ro", "rw"),
    "rw",
    _lacks("ro"),
    "brokers write here",
    "the mount is read-only, so no broker can be master",
    Level.UNFIT,
)
BARRIERS = MountRule(
    "barrier",
    ("nobarrier", "barrier"),
    "on",
    lambda mount: not mount.has("nobarrier") and mount.get("barrier") != "0",
    "synced data survives a power cut",
    "a sync does not flush the disk's cache, so a power cut may lose confirmed messages",
    Level.WARNING,
    "mount without nobarrier and barrier=0",
)

SYNCS = MountRule(
    "syncs",
    ("volatile",),
    "on",
    _lacks("volatile"),
    "synced data survives a power cut",
    "volatile ignores syncs, so a power cut may lose confirmed messages",
    Level.WARNING,
    "mount without volatile",
)

NFS_RULES = (
    WRITABLE,
    MountRule(
        "local_lock=none",
        ("nolock", "local_lock"),
        "none",
        lambda mount: not mount.has("nolock") and mount.get("local_lock") in ("", "none"),
        "the server grants the locks, so they exclude between hosts",
        "locks stay on this host, so every host gets the lock and several masters serve at once",
        Level.UNFIT,
    ),
    MountRule(
        "cto",
        ("nocto",),
        "cto",
        _lacks("nocto"),
        "a newly opened file has the content that the last writer left on the server",
        "with nocto a broker may read old content: a deposed master does not notice that it is deposed, and a new "
        "master misses confirmed messages",
        Level.UNFIT,
        "mount without nocto",
    ),
    MountRule(
        "soft",
        ("softerr", "soft", "hard"),
        "hard",
        lambda mount: mount.has("soft"),
        "an unanswered call ends with an error, so a master that is cut off notices it",
        "with hard a call hangs until the server is back: the broker still cuts its clients off in time, but must then "
        "replace its process; with softerr the kernel was seen to return old attributes as new",
        Level.WARNING,
    ),
    MountRule(
        "timeo=20",
        ("timeo",),
        "600",
        _at_most("timeo", TIMEO_MAX),
        "the NFS client repeats a request after 2 s, so it notices an outage in seconds",
        "the NFS client repeats a request after that many tenths of a second: it notices an outage minutes late, and a "
        "lost packet blocks work as long",
        Level.WARNING,
    ),
    MountRule(
        "retrans=2",
        ("retrans",),
        "2",
        _at_most("retrans", RETRANS_MAX),
        "a soft call fails after this many repetitions: with timeo=20 after 24 s, later calls after 6 s",
        "a soft call fails only after many repetitions, or at the first lost packet",
        Level.WARNING,
    ),
    MountRule(
        "lookupcache=none",
        ("lookupcache",),
        "all",
        lambda mount: mount.get("lookupcache") == "none",
        "the host asks the server for each name, so it sees a new or replaced file at once",
        "a name that did not exist when it was looked up can stay invisible for half a minute, so slaves and checks "
        "see changes late",
        Level.WARNING,
    ),
    MountRule(
        "proto=tcp",
        ("proto",),
        "tcp",
        lambda mount: mount.get("proto") in ("", "tcp", "tcp6", "rdma", "rdma6"),
        "requests arrive once and whole",
        "over UDP packets may be reassembled wrongly, and requests are repeated",
        Level.WARNING,
    ),
    MountRule(
        "sync",
        ("sync",),
        "async",
        lambda mount: mount.has("sync"),
        "every write is on the server before it returns",
        "writes reach the server with the next fsync; that is enough, because the broker syncs what it relies on",
        Level.NOTE,
    ),
)

GFS2_RULES = (
    WRITABLE,
    MountRule(
        "cluster locks",
        ("localflocks",),
        "yes",
        _lacks("localflocks"),
        "the cluster grants the locks",
        "localflocks keeps locks on this node: every node gets the lock",
        Level.UNFIT,
        "mount without localflocks (lock_nolock sets it)",
    ),
    MountRule(
        "noatime",
        ("noatime", "relatime"),
        "atime",
        _lacks("strictatime"),
        "reading writes nothing",
        "each read writes a time stamp, and nodes pass locks to and fro for it",
        Level.NOTE,
    ),
    BARRIERS,
)

SMB_RULES = (
    WRITABLE,
    MountRule(
        "brl",
        ("nobrl",),
        "brl",
        _lacks("nobrl"),
        "the server grants the locks, so they exclude between hosts",
        "nobrl keeps locks on this host, so every host gets the lock and several masters serve at once",
        Level.UNFIT,
        "mount without nobrl",
    ),
    MountRule(
        "strictsync",
        ("nostrictsync",),
        "strictsync",
        _lacks("nostrictsync"),
        "synced data is on the server's disk",
        "a sync does not reach the server, so a power cut there may lose confirmed messages",
        Level.WARNING,
        "mount without nostrictsync",
    ),
    MountRule(
        "vers=3.1.1",
        ("vers",),
        "?",
        lambda mount: mount.get("vers").startswith("3"),
        "locks and leases of SMB 3",
        "amq was tested with SMB 3 only",
        Level.WARNING,
    ),
    MountRule(
        "cache=none",
        ("cache",),
        "strict",
        lambda mount: mount.get("cache") == "none",
        "the next open reads what another host wrote",
        "the host caches files while the server allows it (oplock, lease): correct, but tested with cache=none only",
        Level.WARNING,
    ),
    MountRule(
        "serverino",
        ("serverino",),
        "noserverino",
        lambda mount: mount.has("serverino"),
        "a file keeps its inode number, so a broker can tell that the lock file is still its own",
        "the host makes up inode numbers, which may change: a healthy master may then give up its lock",
        Level.WARNING,
    ),
)
LOOSE_CACHE = Finding(
    Level.UNFIT,
    "cache=none",
    "cache=loose",
    "a broker may read old content, so a deposed master does not notice that it is deposed",
    "mount with cache=none",
)
