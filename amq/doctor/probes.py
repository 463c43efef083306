"""Tests what the broker relies on with two pairs of hands, and measures its cost with one.

Invariant: a finding reports an observation; a probe calls nothing UNFIT that did not fail.
"""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from amq.doctor.finding import Finding, Level, unfit
from amq.doctor.hands import Hands
from amq.doors.clock import Clock
from amq.store.files.vfs import Vfs, write_all

ROUNDS = 10
FREE_PATIENCE_S = 5.0
SEEN_PATIENCE_S = 5.0
SEEN_S_MAX = 1.0
BLOCK = bytes(4096)
_LOCKLESS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS)
_LINKLESS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK, errno.EINVAL)


@dataclass(frozen=True, slots=True)
class Times:
    """Durations in seconds."""

    count: int
    median_s: float
    p99_s: float
    max_s: float

    @classmethod
    def of(cls, times_s: Sequence[float]) -> Times:
        """Summarise at least one time."""
        ordered = sorted(times_s)
        p99 = ordered[min(len(ordered) - 1, math.ceil(len(ordered) * 0.99) - 1)]
        return cls(len(ordered), ordered[len(ordered) // 2], p99, ordered[-1])

    def __str__(self) -> str:
        return f"median {self.median_s * 1000:.2f} ms, p99 {self.p99_s * 1000:.2f} ms ({self.count} times)"

    def to_json(self) -> dict[str, float]:
        return {"count": self.count, "median_s": self.median_s, "p99_s": self.p99_s, "max_s": self.max_s}


# -- two pairs of hands ------------------------------------------------------------------------------------------------


def try_locks(a: Hands, b: Hands, who: str, rounds: int = ROUNDS) -> Finding:
    """Does a lock exclude, in both directions and in races? Raises OSError if the file system fails in another way than
    refusing locks.
    """
    topic = f"lock, {who}"
    try:
        problem = _exclusion(a, b) or _exclusion(b, a) or _race(a, b, rounds)
    except OSError as error:
        if error.errno not in _LOCKLESS:
            raise
        return unfit(
            topic,
            f"refused: {error.strerror}",
            "without locks every broker would be master",
            "mount with locking (NFSv4 includes it; GFS2 needs dlm_controld; SMB without nobrl)",
        )
    finally:
        for operation in ("unlock", "remove"):  # SMB removes no file that somebody has open
            a.call(operation, "lock")
            b.call(operation, "lock")
    if problem:
        return unfit(
            topic,
            problem,
            "the lock elects the master; a lock that does not exclude elects several",
            "check the mount options above; use NFSv4, GFS2 with lock_dlm or SMB 3",
        )
    return Finding(Level.OK, topic, f"excludes, both ways, {_races(rounds)}", "the lock elects the one master")


def _exclusion(first: Hands, second: Hands) -> str:
    """The problem; "" = none."""
    if not first.call("lock", "lock"):
        return "a free lock was refused"
    if second.call("lock", "lock"):
        return "both held the lock at once"
    first.call("unlock", "lock")
    if not _get(second):
        return f"a released lock was not free {FREE_PATIENCE_S:g} s later"
    second.call("unlock", "lock")
    return ""


def _get(hands: Hands) -> bool:
    started = hands.call("time")
    while not hands.call("lock", "lock"):
        if hands.call("time") - started >= FREE_PATIENCE_S:
            return False
    return True


def _race(a: Hands, b: Hands, rounds: int) -> str:
    for _ in range(rounds):
        theirs = b.start("lock", "lock")
        mine = a.call("lock", "lock")
        if theirs() and mine:
            return "both held the lock at once, in a race"
        a.call("unlock", "lock")
        b.call("unlock", "lock")
    return ""


def _races(rounds: int) -> str:
    return "1 race" if rounds == 1 else f"{rounds} races"


def try_links(a: Hands, b: Hands, who: str, rounds: int = ROUNDS) -> Finding:
    """Does link() of one name succeed for one of two callers only? Raises OSError as `try_locks`."""
    topic = f"link, {who}"
    numbers = range(rounds)
    try:
        problem = next((found for number in numbers if (found := _link_race(a, b, number))), "")
    except OSError as error:
        if error.errno not in _LINKLESS:
            raise
        return unfit(
            topic,
            f"refused: {error.strerror}",
            "link() must succeed for one broker only: it claims an epoch number",
            "use a file system with hard links",
        )
    finally:
        for number in numbers:
            a.call("remove", f"link-{number}")
            a.call("remove", f"mine-{number}")
            b.call("remove", f"theirs-{number}")
    if problem:
        return unfit(
            topic,
            problem,
            "brokers claim an epoch number by link(); two brokers would own one number",
            "do not use this file system",
        )
    return Finding(Level.OK, topic, f"exclusive, {_races(rounds)}", "link() gives an epoch number to one broker")


def _link_race(a: Hands, b: Hands, number: int) -> str:
    """Do what a broker does to claim an epoch: write under another name, link, remove that name, read."""
    name, ours, other = f"link-{number}", f"mine-{number}", f"theirs-{number}"
    a.call("put", ours, "a")
    b.call("put", other, "b")
    theirs = b.start("link", other, name)
    mine = a.call("link", ours, name)
    got = theirs()
    a.call("remove", ours)
    b.call("remove", other)
    if mine and got:
        return "both created the same name"
    if not mine and not got:
        return "neither could create a new name"
    text = "a" if mine else "b"
    if a.call("read", name) != text or b.call("read", name) != text:
        return "the name leads to another file than the one that was linked"
    a.call("put", ours, "a")
    return "" if not a.call("link", ours, name) else "link() replaced an existing name"


def try_coherence(a: Hands, b: Hands, who: str, tag: str = "ab", rounds: int = ROUNDS) -> Finding:
    """Does b see what a wrote, synced and closed before b opened the file or listed the directory? The names carry
    `tag`, so that no host has looked them up before: a host may remember that a name is *missing*.
    """
    topic = f"close-to-open, {who}"
    problem = ""
    content, names = f"text-{tag}", [f"new-{tag}-{number}" for number in range(rounds)]
    try:
        for number, name in enumerate(names):
            text = f"{number:4d}" + "x" * (number // 2)  # overwritten, sometimes longer
            a.call("put", content, text)
            if (found := b.call("read", content)) != text:
                problem = f"read {found!r} after {text!r} was written and synced"
                break
            a.call("put", name, "")
            if not b.call("listed", name):
                problem = "a new listing lacks a file that existed before"
                break
    finally:
        for name in (content, *names):
            a.call("remove", name)
    if problem:
        return unfit(
            topic,
            problem,
            "a deposed master would not notice that it is deposed, and a new master would miss confirmed messages",
            "check the mount options above (nocto, cache=loose); do not use this file system",
        )
    return Finding(Level.OK, topic, f"{rounds} times as written", "a newly opened file shows what was synced before")


def try_visibility(a: Hands, b: Hands, who: str, tag: str = "ab") -> tuple[Finding, dict[str, float | None]]:
    """How soon does b see a name that a creates after b looked it up? Returns {how: seconds, None = too long}."""
    seen_s: dict[str, float | None] = {}
    for how in ("stat", "open", "list"):
        name = f"seen-{tag}-{how}"
        try:
            b.call("look", name, how, 0.0)  # now its host remembers that the name is missing
            a.call("put", name, "")
            seen_s[how] = b.call("look", name, how, SEEN_PATIENCE_S)
        finally:
            a.call("remove", name)
    late = any(delay is None or delay > SEEN_S_MAX for delay in seen_s.values())
    texts = [f"{how} {'more than 5 s' if s is None else f'{s:.2f} s'}" for how, s in seen_s.items()]
    found, topic = ", ".join(texts), f"new name seen, {who}"
    if late:
        why = "slaves and checks see changes late: safe, but a takeover takes longer"
        return Finding(Level.WARNING, topic, found, why, "on NFS, mount with lookupcache=none"), seen_s
    return Finding(Level.OK, topic, found, "other hosts see a new file after this time"), seen_s


# -- one pair ----------------------------------------------------------------------------------------------------------


def measure_sync(vfs: Vfs, clock: Clock, path: str, budget_s: float, count_max: int) -> Times:
    """Measure how long it takes to make 4 KiB durable (write, fdatasync), on a temporary file `path`."""

    def once(fd: int, done: int) -> None:
        write_all(vfs, fd, BLOCK, done * len(BLOCK))
        vfs.fdatasync(fd)

    return _measure(vfs, clock, path, budget_s, count_max, once)


def measure_check(vfs: Vfs, clock: Clock, path: str, budget_s: float, count_max: int) -> Times:
    """Measure a lease check: a heartbeat (write, fsync), two files opened anew, one listing."""

    def once(fd: int, _done: int) -> None:
        for fresh in _checked(vfs, fd, path):
            vfs.close(fresh)

    return _measure(vfs, clock, path, budget_s, count_max, once)


def _measure(
    vfs: Vfs, clock: Clock, path: str, budget_s: float, count_max: int, once: Callable[[int, int], None]
) -> Times:
    """Time `once(descriptor of path, number of calls before)` repeatedly, within both limits."""
    fd = vfs.open(path, os.O_RDWR | os.O_CREAT)
    try:
        times: list[float] = []
        first = clock.monotonic()
        while len(times) < count_max and (not times or clock.monotonic() - first < budget_s):
            started = clock.monotonic()
            once(fd, len(times))
            times.append(clock.monotonic() - started)
        return Times.of(times)
    finally:
        vfs.close(fd)
        vfs.unlink(path)


def _checked(vfs: Vfs, fd: int, path: str) -> Iterator[int]:
    fresh = vfs.open(path, os.O_RDONLY)
    vfs.fstat(fresh)
    yield fresh
    write_all(vfs, fd, BLOCK, 0)
    vfs.fsync(fd)
    fresh = vfs.open(path, os.O_RDONLY)
    vfs.pread(fresh, len(BLOCK), 0)
    yield fresh
    vfs.listdir(os.path.dirname(path))


def try_directory_sync(vfs: Vfs, clock: Clock, directory: str) -> Finding:
    started = clock.monotonic()
    try:
        vfs.fsync_directory(directory)
    except OSError as error:
        return unfit(
            "directory sync",
            f"refused: {error.strerror}",
            "the names of new segments and epochs must survive a crash",
            "use another file system",
        )
    took_ms = (clock.monotonic() - started) * 1000
    return Finding(Level.OK, "directory sync", f"{took_ms:.2f} ms", "names of new files survive a crash")
