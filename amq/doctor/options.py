"""Mount options, judged: what each is for, and what happens without it. Tables; docs/operations.md says the same.

Invariant: an option that breaks what docs/assumptions.md asks for (locks that exclude, close-to-open) is UNFIT;
one that costs time in a fault, or that nobody tried, is a WARNING; one that changes nothing for the broker is a NOTE.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from amq.doctor.finding import Finding, Level
from amq.doctor.mounts import Mount

TIMEO_MAX = 50  # tenths of a second
RETRANS_MAX = 3


@dataclass(frozen=True, slots=True)
class Rule:
    """One option, or a set of which one holds.

    wanted   as one writes it
    names    what the kernel may show for it, the first that is there is what was found
    absent   what holds where none of them is shown
    fits     whether the mount is as it should be
    purpose  what it is for
    without  what happens otherwise; level = how bad that is
    cure     what to do then; "" = mount with `wanted`
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


def judge_options(rules: tuple[Rule, ...], mount: Mount) -> Iterator[Finding]:
    for rule in rules:
        yield rule.judge(mount)


def _at_most(option: str, limit: int) -> Callable[[Mount], bool]:
    return lambda mount: mount.get(option).isdecimal() and 0 < int(mount.get(option)) <= limit


def _lacks(*options: str) -> Callable[[Mount], bool]:
    return lambda mount: not any(mount.has(option) for option in options)


WRITABLE = Rule(
    "rw", ("ro", "rw"), "rw", _lacks("ro"),
    "brokers write here", "mounted read-only: no broker can be master", Level.UNFIT,
)  # fmt: skip
BARRIERS = Rule(
    "barrier", ("nobarrier", "barrier"), "on", lambda mount: not mount.has("nobarrier") and mount.get("barrier") != "0",
    "what was synced survives a power cut",
    "the disk's cache is not flushed by a sync: a power cut may lose what was confirmed", Level.WARNING,
    "mount without nobarrier and barrier=0",
)  # fmt: skip

SYNCS = Rule(
    "syncs", ("volatile",), "on", _lacks("volatile"), "what was synced survives a power cut",
    "volatile leaves syncs out: a power cut may lose what was confirmed", Level.WARNING, "mount without volatile",
)  # fmt: skip

NFS_RULES = (
    WRITABLE,
    Rule(
        "local_lock=none", ("nolock", "local_lock"), "none",
        lambda mount: not mount.has("nolock") and mount.get("local_lock") in ("", "none"),
        "locks are the server's, so that they exclude between hosts",
        "locks stay on this host: every host gets the lock, and there are several masters at once", Level.UNFIT,
    ),
    Rule(
        "cto", ("nocto",), "cto", _lacks("nocto"),
        "a file that is opened afresh is as the last writer left it on the server",
        "nocto: a file may be read as it was some time ago, so that a deposed master does not see that it is deposed, "
        "and a new one does not see all that was confirmed", Level.UNFIT, "mount without nocto",
    ),
    Rule(
        "soft", ("softerr", "soft", "hard"), "hard", lambda mount: mount.has("soft"),
        "a call that the server does not answer ends with an error, so that a master that is cut off learns it",
        "not soft: under hard a call hangs until the server is back; the broker cuts its clients off in time all the "
        "same, but then has to replace its process; under softerr old attributes were seen passed off as new",
        Level.WARNING,
    ),
    Rule(
        "timeo=20", ("timeo",), "600", _at_most("timeo", TIMEO_MAX),
        "the client waits 2 s for an answer before it asks again: an outage is noticed in seconds",
        "the client waits that many tenths of a second before it asks again: an outage is noticed minutes late, and "
        "work stands still for as long after a lost packet", Level.WARNING,
    ),
    Rule(
        "retrans=2", ("retrans",), "2", _at_most("retrans", RETRANS_MAX),
        "after so many repetitions a soft call ends with an error: with timeo=20 after 24 s, later ones after 6 s",
        "a soft call ends with an error only after many repetitions, or at the first lost packet", Level.WARNING,
    ),
    Rule(
        "lookupcache=none", ("lookupcache",), "all", lambda mount: mount.get("lookupcache") == "none",
        "names are asked from the server each time: a new or replaced file is seen at once",
        "a name that was asked for before it existed can stay invisible for half a minute: slaves and checks see "
        "changes late", Level.WARNING,
    ),
    Rule(
        "proto=tcp", ("proto",), "tcp", lambda mount: mount.get("proto") in ("", "tcp", "tcp6", "rdma", "rdma6"),
        "requests arrive once and whole",
        "over UDP a packet may be put together wrongly, and requests repeat themselves", Level.WARNING,
    ),
    Rule(
        "sync", ("sync",), "async", lambda mount: mount.has("sync"),
        "every write is on the server before it returns",
        "writes reach the server with the next fsync: the broker syncs all that it relies on, so nothing is missing",
        Level.NOTE,
    ),
)  # fmt: skip

GFS2_RULES = (
    WRITABLE,
    Rule(
        "cluster locks", ("localflocks",), "yes", _lacks("localflocks"),
        "locks are taken in the cluster", "localflocks keeps locks on this node: every node gets the lock", Level.UNFIT,
        "mount without localflocks (lock_nolock brings it)",
    ),
    Rule(
        "noatime", ("noatime", "relatime"), "atime", _lacks("strictatime"),
        "reading writes nothing", "each read writes a time, for which nodes pass locks to and fro", Level.NOTE,
    ),
    BARRIERS,
)  # fmt: skip

SMB_RULES = (
    WRITABLE,
    Rule(
        "brl", ("nobrl",), "brl", _lacks("nobrl"),
        "locks are the server's, so that they exclude between hosts",
        "nobrl keeps locks on this host: every host gets the lock, and there are several masters at once", Level.UNFIT,
        "mount without nobrl",
    ),
    Rule(
        "strictsync", ("nostrictsync",), "strictsync", _lacks("nostrictsync"),
        "what was synced is on the server's disk",
        "a sync does not reach the server: if that loses power, what was confirmed may be lost", Level.WARNING,
        "mount without nostrictsync",
    ),
    Rule(
        "vers=3.1.1", ("vers",), "?", lambda mount: mount.get("vers").startswith("3"),
        "locks and leases of SMB 3", "only SMB 3 was tried", Level.WARNING,
    ),
    Rule(
        "cache=none", ("cache",), "strict", lambda mount: mount.get("cache") == "none",
        "what another host wrote is read at the next open",
        "files are kept here while the server allows it (an oplock or lease): correct, but only cache=none was tried",
        Level.WARNING,
    ),
    Rule(
        "serverino", ("serverino",), "noserverino", lambda mount: mount.has("serverino"),
        "a file has the same number each time it is opened: so a broker knows that the lock file is still its own",
        "file numbers are made up here and may change: a healthy master may take its lock file for another and resign",
        Level.WARNING,
    ),
)  # fmt: skip
LOOSE_CACHE = Finding(
    Level.UNFIT, "cache=none", "cache=loose",
    "a file may be read as it was some time ago: a deposed master does not see that it is deposed",
    "mount with cache=none",
)  # fmt: skip
