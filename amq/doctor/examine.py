"""The examination: what is looked at, in which order, and what follows from it.

`examine_quickly` is what `amq start` does before it touches the store: the mount is judged, and only where nothing is
wrong with that are locks and links tried, between two descriptors of this process. It waits for nothing.
`examine` tries the same between processes and hosts, and measures.

Invariant: files of a run are gone when it ends, also by an error.
"""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from random import Random, SystemRandom
from typing import Any

from amq.config.schema import BrokerConfig
from amq.doctor import probes
from amq.doctor.clocks import PeerRate, Rate, judge_clocks
from amq.doctor.directory import judge_directory
from amq.doctor.filesystems import Judgement, judge, judge_magic
from amq.doctor.finding import Examination, Finding, Level, unfit
from amq.doctor.hands import LocalHands, clean
from amq.doctor.machine import SystemMachine, ThisHost
from amq.doctor.mounts import find_mount
from amq.doctor.remote import HELLO, ChildHands, NotSharedError, PeerError, RemoteHands, connect
from amq.doors.clock import Clock, SystemClock
from amq.doors.threads import SystemThreads, Threads
from amq.store.files.vfs import SystemVfs, Vfs
from amq.store.host import Host, SystemHost

SYNCS_MAX = 200
CHECKS_MAX = 50
BUDGET_S = 2.0  # for each kind of cost
SYNC_S_MAX = 0.05
CHECKS_PER_PERIOD = 15  # a check comes three times a period, and may be five times as slow as the slowest of a hundred
GONE_PATIENCE_S = 10.0
HEART_BEAT_MS = 2000  # of clients: the default of their URL


@dataclass(frozen=True, slots=True)
class Outside:
    """Doors to the outside; a test replaces some. `child(directory, run)` starts a second process."""

    vfs: Vfs = field(default_factory=SystemVfs)
    clock: Clock = field(default_factory=SystemClock)
    threads: Threads = field(default_factory=SystemThreads)
    machine: ThisHost = field(default_factory=SystemMachine)
    host: Host = field(default_factory=SystemHost)
    entropy: Random = field(default_factory=SystemRandom)
    child: Callable[[str, str], ChildHands] = ChildHands

    def hands(self, directory: str, run: str, who: str = "a") -> LocalHands:
        return LocalHands(self.vfs, self.clock, self.threads, directory, run, who)

    def new_run(self) -> str:
        return f"{self.entropy.getrandbits(128):032x}"


def examine_quickly(path: str, doors: Outside | None = None) -> Examination:
    """The part that takes milliseconds. Raises OSError where the directory cannot be read or written at all."""
    doors = doors or Outside()
    report = Examination(os.path.abspath(path), existing(path))
    _look_at_mount(report, doors)
    report.findings += judge_directory(report.path)
    if not report.of(Level.UNFIT):
        with _pair(doors, report.directory) as (a, b):
            report.findings.append(probes.try_locks(a, b, "two descriptors", 1))
            report.findings.append(probes.try_links(a, b, "two descriptors", 1))
    return report


def examine(path: str, peers: Sequence[tuple[str, int]] = (), doors: Outside | None = None) -> Examination:
    """Everything, with each of `peers` (host, port), who run `amq doctor PATH --as-peer`; seconds. Raises OSError where
    the directory cannot be found; what fails later is a finding."""
    doors = doors or Outside()
    report = Examination(os.path.abspath(path), existing(path))
    judgement = _look_at_mount(report, doors)
    report.findings += judge_directory(report.path)
    rate = Rate(doors.machine)
    try:
        with _pair(doors, report.directory) as (a, b):
            report.findings += [probes.try_locks(a, b, "two descriptors"), probes.try_links(a, b, "two descriptors")]
        _try_processes(report, doors)
        for host, port in peers:
            _try_peer(report, doors, host, port)
        _measure(report, doors)
    except OSError as error:
        report.findings.append(_untried("store", error))
    except PeerError as error:
        cure = "look at the kernel's log: a process may hang in this file system"
        found = f"a second process of this host: {error.description}"
        report.findings.append(unfit("store", found, "what could not be tried cannot be relied on", cure))
    report.findings += [*judge_clocks(doors.machine), *rate.judge()]
    _recommend(report, judgement)
    return report


def introduce(directory: str, doors: Outside) -> dict[str, Any]:
    """A peer's description of itself."""
    report = Examination(directory, directory)
    _look_at_mount(report, doors)
    findings = [finding.to_json() for finding in report.findings]
    return {
        "host": doors.host.name(),
        "boot_id": doors.host.boot_id(),
        "mount": report.mount,
        "findings": findings,
    }


# -- parts -------------------------------------------------------------------------------------------------------------


def existing(path: str) -> str:
    """The store, or the directory where `amq start` would make it. Raises OSError if something else has its name."""
    absolute = os.path.abspath(path)
    if os.path.lexists(absolute) and not os.path.isdir(absolute):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), absolute)
    return absolute if os.path.isdir(absolute) else os.path.dirname(absolute)


def _look_at_mount(report: Examination, doors: Outside) -> Judgement | None:
    mount = find_mount(doors.machine, report.directory)
    if mount is None:
        found = "not shown by /proc/self/mountinfo"
        report.findings.append(Finding(Level.WARNING, "file system", found, "nothing can be said of it", "use --peer"))
        return None
    judgement = judge(mount, doors.machine)
    report.mount = mount.to_json()
    report.findings += [*judgement.findings, *judge_magic(mount, doors.machine.magic(report.directory))]
    report.measured["lease_time_s"] = judgement.lease_s or None
    return judgement


@contextmanager
def _pair(doors: Outside, directory: str) -> Iterator[tuple[LocalHands, LocalHands]]:
    """Two pairs of hands of this process, for one run."""
    run = doors.new_run()
    a, b = doors.hands(directory, run), doors.hands(directory, run, "b")
    try:
        yield a, b
    finally:
        a.close()
        b.close()
        clean(doors.vfs, directory, run)


def _try_processes(report: Examination, doors: Outside) -> None:
    who, run = "two processes", doors.new_run()
    with _pair_cleaned(doors, report.directory, run) as ours, doors.child(report.directory, run) as theirs:
        report.findings += [
            probes.try_locks(ours, theirs, who),
            probes.try_links(ours, theirs, who),
            probes.try_coherence(theirs, ours, who),
        ]
        theirs.call("lock", "held")
        theirs.kill()
        killed = doors.clock.monotonic()
        while not (free := ours.call("lock", "held")) and doors.clock.monotonic() - killed < GONE_PATIENCE_S:
            pass
        freed_s = doors.clock.monotonic() - killed
    topic, why = "lock of a killed process", "so soon another broker of the host can take over"
    if free:
        report.measured["killed_process_lock_s"] = freed_s
        report.findings.append(Finding(Level.OK, topic, f"free after {freed_s:.3f} s", why))
    else:
        found = f"held for more than {GONE_PATIENCE_S:g} s"
        report.findings.append(Finding(Level.WARNING, topic, found, why, "look at the file server's log"))


@contextmanager
def _pair_cleaned(doors: Outside, directory: str, run: str) -> Iterator[LocalHands]:
    hands = doors.hands(directory, run)
    try:
        yield hands
    finally:
        hands.close()
        clean(doors.vfs, directory, run)


def _try_peer(report: Examination, doors: Outside, host: str, port: int) -> None:
    run, nonce = doors.new_run(), f"{doors.entropy.getrandbits(128):032x}"
    try:
        with ExitStack() as stack:
            ours = stack.enter_context(_pair_cleaned(doors, report.directory, run))
            theirs = stack.enter_context(connect(host, port))
            ours.call("put", HELLO, nonce)
            _meet(report, doors, theirs.hello(run, nonce), host)
            _try_hosts(report, doors, ours, theirs, host)
    except NotSharedError as error:
        report.findings.append(
            unfit(
                f"same directory, {host}",
                "no",
                f"{host}: {error.description}",
                "give both hosts the same directory of the same file system; if they have it, names appear 10 s late",
            )
        )
    except PeerError as error:
        report.unreachable[host] = error.description


def _meet(report: Examination, doors: Outside, told: dict[str, Any], host: str) -> None:
    """Take over what the peer says of its own mount: options may differ from host to host."""
    try:
        theirs = [Finding.from_json(body) for body in told["findings"]]
        name, boot_id = str(told["host"]), str(told["boot_id"])
    except (LookupError, ValueError, TypeError) as error:
        raise PeerError("its description is not understood here: use the same amq on all hosts") from error
    same = boot_id == doors.host.boot_id()
    level, found = (Level.WARNING, "this very host") if same else (Level.OK, f"another host, {name}")
    why = "what follows says nothing about other hosts" if same else "what follows was tried between two hosts"
    report.findings.append(Finding(level, f"peer {host}", found, why))
    for finding in theirs:
        if finding.level in (Level.WARNING, Level.UNFIT) and (not same or finding not in report.findings):
            report.findings.append(
                Finding(finding.level, f"{finding.topic}, on {host}", finding.found, finding.why, finding.cure)
            )


def _try_hosts(report: Examination, doors: Outside, ours: LocalHands, theirs: RemoteHands, host: str) -> None:
    rate = PeerRate(doors.machine, theirs)
    try:
        report.findings += [probes.try_locks(ours, theirs, host), probes.try_links(ours, theirs, host)]
        for tag, writer, reader, who in (("ab", ours, theirs, f"{host} reads"), ("ba", theirs, ours, f"{host} writes")):
            report.findings.append(probes.try_coherence(writer, reader, who, tag))
            finding, seen_s = probes.try_visibility(writer, reader, who, tag)
            report.findings.append(finding)
            report.measured[f"new_name_seen_s, {who}"] = seen_s
    except OSError as error:
        report.findings.append(_untried(f"peer {host}", error))
    doors.threads.event().wait(rate.left_s())
    report.findings.append(rate.judge(host))


def _measure(report: Examination, doors: Outside) -> None:
    vfs, directory = doors.vfs, report.directory
    with _pair_cleaned(doors, directory, doors.new_run()) as hands:
        sync = probes.measure_sync(vfs, doors.clock, hands.path("sync"), BUDGET_S, SYNCS_MAX)
        check = probes.measure_check(vfs, doors.clock, hands.path("check"), BUDGET_S, CHECKS_MAX)
    report.measured |= {"sync": sync.to_json(), "check": check.to_json()}
    level = Level.WARNING if sync.median_s > SYNC_S_MAX else Level.OK
    cure = "a faster disk, or a write cache that survives a power cut" if level is Level.WARNING else ""
    report.findings.append(Finding(level, "sync of 4 KiB", str(sync), "each confirmation waits for one", cure))
    report.findings.append(_judge_check(check))
    report.findings.append(probes.try_directory_sync(vfs, doors.clock, directory))
    free, floor = vfs.free_bytes(directory), BrokerConfig().store_free_floor_bytes
    report.measured["free_bytes"] = free
    if free is not None:
        low = free < 4 * floor
        report.findings.append(
            Finding(
                Level.WARNING if low else Level.OK,
                "free space",
                f"{free >> 20} MiB",
                f"below storeFreeFloor ({floor >> 20} MiB) messages are refused",
                "free some space" if low else "",
            )
        )


def _judge_check(check: probes.Times) -> Finding:
    """One check that was slow is worth knowing; if most are, the default period is too short."""
    topic, why = "check of the lease", "three are made in each lockKeepAlivePeriod"
    default_s = BrokerConfig().lock_keep_alive_period_s
    cure = f"set lockKeepAlivePeriod to {_period_s(check.p99_s):g}s, or help the file server"
    if _period_s(check.median_s) > default_s:
        return Finding(Level.WARNING, topic, str(check), why, cure)
    if _period_s(check.p99_s) > default_s:
        return Finding(Level.NOTE, topic, str(check), why, f"if that is usual, {cure}")
    return Finding(Level.OK, topic, str(check), why)


def _untried(topic: str, error: OSError) -> Finding:
    cures = {
        errno.EACCES: "give the broker's user read and write access",
        errno.EROFS: "mount it read-write",
        errno.ENOSPC: "free some space",
        errno.EDQUOT: "raise the quota",
    }
    found = f"cannot be tried: {error.strerror or error}"
    cure = cures.get(error.errno or 0, "mend that first")
    return unfit(topic, found, "what could not be tried cannot be relied on", cure)


# -- what follows ------------------------------------------------------------------------------------------------------


def _period_s(check_p99_s: float) -> float:
    """The least lockKeepAlivePeriod, in halves of a second, at least the default, in which a check has room."""
    return max(BrokerConfig().lock_keep_alive_period_s, math.ceil(check_p99_s * CHECKS_PER_PERIOD * 2) / 2)


def _recommend(report: Examination, judgement: Judgement | None) -> None:
    check = report.measured.get("check")
    if judgement is None or check is None:
        return
    period_s = _period_s(check["p99_s"])
    if judgement.mount_options:
        report.recommended["mount"] = judgement.mount_options
    report.recommended["lockKeepAlivePeriod"] = f"{round(period_s * 1000)}ms"
    lease_s = 90.0 if judgement.lease_s is None else judgement.lease_s  # unknown: as long as the longest that is usual
    takeover_s = lease_s + period_s * 1.01
    if judgement.lease_s is not None:
        report.measured["takeover_s"] = round(takeover_s, 2)
    # A client that asks five times a second is quick where a takeover is; where that takes long it need not.
    initial_ms, longest_ms = (10, 200) if takeover_s <= 5 else (100, min(1000, round(takeover_s * 20)))
    # A restart of the server takes a lease of grace more, and nobody should lose a call to it.
    timeout_ms = max(120_000, math.ceil(2 * (takeover_s + lease_s)) * 1000)
    broker_s = BrokerConfig().heart_beat_send_s
    report.recommended["heartBeatSend"] = f"{round(broker_s * 1000)}ms"
    report.recommended["client"] = (
        f"failover:(…)?nested.heartBeat={HEART_BEAT_MS}&initialReconnectDelay={initial_ms}"
        f"&maxReconnectDelay={longest_ms}&timeout={timeout_ms}"
    )
    report.measured["silent_master_s"] = 2 * max(HEART_BEAT_MS / 1000, broker_s)
