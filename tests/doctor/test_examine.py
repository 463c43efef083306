"""The examination as a whole: what is tried when, the verdict, and what is recommended."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from doctor_world import (
    CIFS,
    EXT4,
    MOUNTSTATS,
    NFS3,
    NFS4,
    NFS4_DEFAULT,
    LyingVfs,
    SampleMachine,
    by_topic,
    changed,
)
from fakes import FaultyVfs

from amq.client.options import TransportOptions
from amq.client.uri import parse
from amq.config.schema import BY_KEY, BrokerConfig
from amq.doctor.clocks import Rate, judge_clocks
from amq.doctor.examine import Outside
from amq.doctor.finding import Examination, Finding, Level, worst
from amq.doctor.remote import ChildHands
from amq.doctor.stores import examine, examine_quickly
from amq.store.files.vfs import SystemVfs


def doors(line: str = EXT4, vfs: Any = None, files: dict[str, str] | None = None, **more: Any) -> Outside:
    return Outside(vfs=vfs or SystemVfs(), machine=SampleMachine(line, files or {}), **more)


def test_a_local_directory(tmp_path: Path) -> None:
    vfs = SlowSyncs(0.01)  # a busy disk is no finding here
    report = examine(str(tmp_path), doors=doors(vfs=vfs, clock=vfs))
    assert report.verdict == "fit with warnings"
    assert [finding.topic for finding in report.of(Level.WARNING)] == ["shared between hosts"]
    topics = set(by_topic(report.findings))
    assert {"lock, two descriptors", "lock, two processes", "link, two processes", "lock of a killed process"} <= topics
    assert {"sync of 4 KiB", "check of the lease", "directory sync", "free space", "clock"} <= topics
    assert {"sync", "check", "free_bytes", "killed_process_lock_s"} <= set(report.measured)
    assert list(tmp_path.iterdir()) == []


def test_nfs_as_recommended(tmp_path: Path) -> None:
    vfs = SlowSyncs(0.01)
    report = examine(str(tmp_path), doors=doors(NFS4, vfs, clock=vfs))
    assert report.verdict == "fit", [str(finding) for finding in report.findings]
    assert report.measured["lease_time_s"] == 10
    assert 12 <= report.measured["takeover_s"] <= 13


def test_of_this_host(tmp_path: Path) -> None:
    """With no door replaced."""
    report = examine(str(tmp_path))
    assert report.mount["type"]
    assert by_topic(report.findings)["lock, two processes"].level is Level.OK


def test_a_store_that_is_not_yet_made(tmp_path: Path) -> None:
    report = examine_quickly(str(tmp_path / "store"), doors())
    assert report.directory == str(tmp_path)
    assert not (tmp_path / "store").exists()
    with pytest.raises(FileNotFoundError):
        examine_quickly(str(tmp_path / "deep" / "store"), doors())


@pytest.mark.parametrize("look", [examine, examine_quickly])
def test_a_file_is_no_store(look: Callable[[str], Examination], tmp_path: Path) -> None:
    (tmp_path / "store").write_text("")
    with pytest.raises(NotADirectoryError):
        look(str(tmp_path / "store"))


def test_quickly_nothing_is_touched_where_the_mount_is_unfit(tmp_path: Path) -> None:
    vfs = FaultyVfs()
    report = examine_quickly(str(tmp_path), doors(NFS3, vfs))
    assert report.verdict == "unfit"
    assert vfs.calls == []


@pytest.mark.parametrize("lie", ["locks exclude nobody", "links replace", "locks are refused", "links are refused"])
def test_quickly_a_lie_is_found(lie: str, tmp_path: Path) -> None:
    assert examine_quickly(str(tmp_path), doors(NFS4, LyingVfs(lie))).verdict == "unfit"
    assert list(tmp_path.iterdir()) == []


def test_quickly_is_quick(tmp_path: Path) -> None:
    """It waits for nothing: a handful of syncs, no process, no pause."""
    slow = SlowSyncs(0.01)
    vfs = FaultyVfs(slow)

    def no_child(_directory: str, _run: str) -> Any:
        raise AssertionError("a process was started")

    assert examine_quickly(str(tmp_path), doors(NFS4, vfs, child=no_child, clock=slow)).verdict == "fit"
    assert sum(method in ("fsync", "fdatasync", "fsync_directory") for method, _ in vfs.calls) <= 4
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("method", "number", "cure"),
    [
        ("open", errno.EROFS, "mount it read-write"),
        ("open", errno.EACCES, "read and write access"),
        ("pwrite", errno.ENOSPC, "free some space"),
        ("fsync", errno.EIO, "mend that first"),
    ],
)
def test_what_cannot_be_tried_is_unfit(method: str, number: int, cure: str, tmp_path: Path) -> None:
    vfs = FaultyVfs()
    vfs.fail(method, number, times=0)
    report = examine(str(tmp_path), doors=doors(NFS4, vfs))
    assert report.verdict == "unfit"
    assert cure in by_topic(report.findings)["store"].cure
    assert report.recommended == {}
    assert "clock" in by_topic(report.findings)


def test_a_second_process_that_dies(tmp_path: Path) -> None:
    def killed(directory: str, run: str) -> ChildHands:
        child = ChildHands(directory, run)
        child.kill()
        return child

    report = examine(str(tmp_path), doors=doors(NFS4, child=killed))
    assert report.verdict == "unfit"
    assert "second process" in by_topic(report.findings)["store"].found
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_does_not_sync(tmp_path: Path) -> None:
    report = examine(str(tmp_path), doors=doors(NFS4, LyingVfs("directories do not sync")))
    assert by_topic(report.findings)["directory sync"].level is Level.UNFIT


def test_a_full_file_system(tmp_path: Path) -> None:
    vfs = FaultyVfs()
    vfs.answer("free_bytes", BrokerConfig().store_free_floor_bytes)
    report = examine(str(tmp_path), doors=doors(NFS4, vfs))
    assert by_topic(report.findings)["free space"].level is Level.WARNING


class SlowSyncs(LyingVfs):
    """Every fsync takes so long by the clock that goes with it, and nothing else takes any time."""

    def __init__(self, fsync_s: float) -> None:
        super().__init__()
        self.fsync_s = fsync_s
        self.ahead_s = 1000.0

    def fsync(self, fd: int) -> None:
        self.ahead_s += self.fsync_s
        SystemVfs.fsync(fd)

    fdatasync = fsync

    def monotonic(self) -> float:
        return self.ahead_s


@pytest.mark.parametrize(("fsync_s", "period_ms"), [(0.01, 2000), (0.13, 2000), (0.39, 6000)])
def test_the_keep_alive_period_has_room_for_checks(fsync_s: float, period_ms: int, tmp_path: Path) -> None:
    vfs = SlowSyncs(fsync_s)
    report = examine(str(tmp_path), doors=doors(NFS4, vfs, clock=vfs))
    assert report.recommended["lockKeepAlivePeriod"] == f"{period_ms}ms"
    assert BY_KEY["lockKeepAlivePeriod"].parse(f"{period_ms}ms") == period_ms / 1000
    found = by_topic(report.findings)
    assert found["check of the lease"].level is (Level.OK if period_ms == 2000 else Level.WARNING)
    assert found["sync of 4 KiB"].level is (Level.WARNING if fsync_s > 0.05 else Level.OK)


def test_one_slow_check_is_no_warning(tmp_path: Path) -> None:
    """A machine that was busy for a moment makes no file system unfit; the advice takes it into account."""
    vfs = SlowSyncs(0.0)
    faulty = FaultyVfs(vfs)

    def stall() -> None:
        vfs.ahead_s += 0.39

    faulty.before("fsync", stall, nth=5, path="-check")
    report = examine(str(tmp_path), doors=doors(NFS4, faulty, clock=vfs))
    assert by_topic(report.findings)["check of the lease"].level is Level.NOTE
    assert report.recommended["lockKeepAlivePeriod"] == "6000ms"
    assert report.verdict == "fit"


@pytest.mark.parametrize(
    ("line", "lease_time", "takeover_s", "initial_ms", "longest_ms", "timeout_ms"),
    [
        (EXT4, "10", 2.02, 10, 200, 120_000),
        (NFS4, "10", 12.02, 100, 240, 120_000),
        (NFS4_DEFAULT, "90", 92.02, 100, 1000, 365_000),
        (CIFS, "10", None, 100, 1000, 365_000),
    ],
)
def test_what_clients_are_advised(
    line: str,
    lease_time: str,
    takeover_s: float | None,
    initial_ms: int,
    longest_ms: int,
    timeout_ms: int,
    tmp_path: Path,
) -> None:
    stats = MOUNTSTATS.replace("lease_time=10", f"lease_time={lease_time}")
    vfs = SlowSyncs(0.01)
    report = examine(str(tmp_path), doors=doors(line, vfs, {"/proc/self/mountstats": stats}, clock=vfs))
    assert report.measured.get("takeover_s") == takeover_s
    url = parse(report.recommended["client"].replace("…", "stomp://a,stomp://b"))
    assert report.recommended["heartBeatSend"] == "1000ms"
    assert {uri.options for uri in url.uris} == {TransportOptions()}, "it says what a default client does"
    assert report.measured["silent_master_s"] == 4
    options = url.options
    assert options.initial_reconnect_delay_ms == initial_ms
    assert options.max_reconnect_delay_ms == longest_ms
    assert options.timeout_ms == timeout_ms


def test_unknown_mount(tmp_path: Path) -> None:
    report = examine(str(tmp_path), doors=doors(files={"/proc/self/mountinfo": ""}))
    assert by_topic(report.findings)["file system"].level is Level.WARNING
    assert report.recommended == {}


# -- clocks ------------------------------------------------------------------------------------------------------------

SOURCE = "/sys/devices/system/clocksource/clocksource0/current_clocksource"


def test_clock_sources() -> None:
    (good,) = judge_clocks(SampleMachine(files={SOURCE: "tsc\n"}, clocks={"CLOCK_BOOTTIME": 9, "CLOCK_MONOTONIC": 9}))
    assert (good.level, good.found) == (Level.OK, "CLOCK_BOOTTIME from tsc")
    (coarse,) = judge_clocks(SampleMachine(files={SOURCE: "jiffies\n"}))
    assert coarse.level is Level.WARNING
    (slept,) = judge_clocks(SampleMachine(clocks={"CLOCK_BOOTTIME": 109, "CLOCK_MONOTONIC": 9}))
    assert "suspended for 100 s" in slept.found
    virtual = SampleMachine(files={SOURCE: "kvm-clock\n", "/proc/cpuinfo": "flags\t: fpu hypervisor lahf_lm\n"})
    assert by_topic(judge_clocks(virtual))["virtual machine"].level is Level.NOTE


@pytest.mark.parametrize(("after_s", "found"), [(10.0, []), (10.05, []), (10.2, ["+2.00 %"]), (9.0, ["-10.00 %"])])
def test_the_rate_of_the_clock(after_s: float, found: list[str]) -> None:
    machine = SampleMachine(clocks={"CLOCK_BOOTTIME": 100.0, "CLOCK_MONOTONIC_RAW": 50.0})
    rate = Rate(machine)
    machine.clocks |= {"CLOCK_BOOTTIME": 100.0 + after_s, "CLOCK_MONOTONIC_RAW": 60.0}
    assert [finding.found for finding in rate.judge()] == found


# -- findings ----------------------------------------------------------------------------------------------------------


def test_the_worst_decides() -> None:
    report = Examination("/s", "/s")
    assert report.verdict == "fit"
    for level, verdict in (
        (Level.OK, "fit"),
        (Level.NOTE, "fit"),
        (Level.WARNING, "fit with warnings"),
        (Level.NOTE, "fit with warnings"),
        (Level.UNFIT, "unfit"),
        (Level.OK, "unfit"),
    ):
        report.findings.append(Finding(level, "t", "f"))
        assert report.verdict == verdict
    assert worst([]) is Level.OK


def test_findings_as_json() -> None:
    finding = Finding(Level.UNFIT, "t", "f", "w", "c")
    assert Finding.from_json(finding.to_json()) == finding
    assert str(finding) == "t: f (w; c)"
    assert str(Finding(Level.OK, "t", "f")) == "t: f"
    for bad in ({}, {"level": "bad", "topic": "", "found": "", "why": "", "cure": ""}, 7, None):
        with pytest.raises((LookupError, ValueError, TypeError)):
            Finding.from_json(bad)


def test_options_changed_by_the_helper_of_these_tests() -> None:
    assert "timeo=20" in changed(NFS4_DEFAULT, "timeo=20")
    assert "timeo=600" not in changed(NFS4_DEFAULT, "timeo=20")
