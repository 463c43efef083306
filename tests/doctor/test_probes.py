"""What is tried passes on a file system that keeps its word, and fails on each that lies in one point."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from doctor_world import LyingVfs
from fakes import FakeClock, FaultyVfs

from amq.doctor import probes
from amq.doctor.finding import Finding, Level
from amq.doctor.hands import PREFIX, Hands, LocalHands, clean
from amq.doctor.remote import ChildHands
from amq.doors.clock import SystemClock
from amq.doors.threads import SystemThreads
from amq.store.files.vfs import SystemVfs, Vfs

RUN = "0123456789abcdef" * 2
OTHER_RUN = "f" * 32


@pytest.fixture
def child(tmp_path: Path) -> Iterator[ChildHands]:
    with ChildHands(str(tmp_path), RUN) as hands:
        yield hands


def hands(directory: Path, vfs: Vfs | None = None, who: str = "a") -> LocalHands:
    return LocalHands(vfs or SystemVfs(), SystemClock(), SystemThreads(), str(directory), RUN, who)


def pair(directory: Path, vfs: Vfs) -> tuple[LocalHands, LocalHands]:
    return hands(directory, vfs), hands(directory, vfs, "b")


Probe = Callable[[Hands, Hands, str], Finding]
PROBES: tuple[Probe, ...] = (probes.try_locks, probes.try_links, probes.try_coherence)


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.__name__)
def test_an_honest_file_system(probe: Probe, tmp_path: Path) -> None:
    finding = probe(*pair(tmp_path, SystemVfs()), "here")
    assert finding.level is Level.OK, finding
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.__name__)
def test_between_two_processes(probe: Probe, tmp_path: Path, child: ChildHands) -> None:
    assert probe(hands(tmp_path), child, "there").level is Level.OK
    assert probe(child, hands(tmp_path), "back").level is Level.OK
    assert list(tmp_path.iterdir()) == []


def test_ctrl_c_is_not_for_the_second_process(child: ChildHands) -> None:
    """A terminal interrupts a whole process group: it would say so with a traceback. It ends with its socket."""
    assert os.getpgid(child._process.pid) != os.getpgrp()


LIES = [
    (probes.try_locks, "locks exclude nobody", "both held the lock"),
    (probes.try_locks, "locks are refused", "refused"),
    (probes.try_locks, "locks go to nobody", "a free lock was refused"),
    (probes.try_links, "links replace", "both created the same name"),
    (probes.try_links, "links are refused", "refused"),
    (probes.try_coherence, "reads are stale", "was written and synced"),
    (probes.try_coherence, "listings are stale", "lacks a file"),
]


@pytest.mark.parametrize(("probe", "lie", "found"), LIES, ids=[lie for _, lie, _ in LIES])
def test_a_file_system_that_lies(probe: Probe, lie: str, found: str, tmp_path: Path) -> None:
    finding = probe(*pair(tmp_path, LyingVfs(lie)), "here")
    assert finding.level is Level.UNFIT
    assert found in finding.found
    assert finding.why
    assert finding.cure
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("probe", "lie"),
    [(probes.try_locks, "locks exclude nobody"), (probes.try_coherence, "reads are stale")],
    ids=["locks", "reads"],
)
def test_a_lie_that_only_this_host_is_told(probe: Probe, lie: str, tmp_path: Path, child: ChildHands) -> None:
    """As on a network file system: each host has its own opinion."""
    assert probe(child, hands(tmp_path, LyingVfs(lie)), "there").level is Level.UNFIT


def test_a_lock_that_never_comes_free(tmp_path: Path) -> None:
    class Sticky(SystemVfs):
        def close(self, fd: int) -> None:
            """Keeps it open, and with it the lock."""

    clock = FakeClock()
    vfs = FaultyVfs(Sticky())
    vfs.before("try_lock", lambda: clock.advance(1), times=0)
    a, b = (LocalHands(vfs, clock, SystemThreads(), str(tmp_path), RUN, who) for who in "ab")
    finding = probes.try_locks(a, b, "here")
    assert finding.level is Level.UNFIT
    assert "was not free" in finding.found


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.__name__)
@pytest.mark.parametrize("method", ["open", "try_lock", "link", "fsync", "listdir"])
def test_other_errors_are_raised(probe: Probe, method: str, tmp_path: Path) -> None:
    """And nothing stays behind, nor is a lock kept."""
    vfs = FaultyVfs()
    vfs.fail(method, errno.EIO, nth=2)
    a, b = pair(tmp_path, vfs)
    raised = None
    try:
        probe(a, b, "here")
    except OSError as error:
        raised = error.errno
    second = sum(called == method for called, _ in vfs.calls) >= 2
    assert raised == (errno.EIO if second else None)
    vfs.heal()
    a.close()
    b.close()
    clean(vfs, str(tmp_path), RUN)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.__name__)
@pytest.mark.parametrize("method", ["try_lock", "link", "fsync"])
def test_an_error_here_while_the_other_is_at_work(probe: Probe, method: str, tmp_path: Path, child: ChildHands) -> None:
    """The question that was under way is answered before the next is put, and the other side lets go."""
    vfs = FaultyVfs()
    vfs.fail(method, errno.EIO, nth=5)
    mine = hands(tmp_path, vfs)
    with suppress(OSError):
        probe(mine, child, "there")
    vfs.heal()
    mine.close()
    assert probe(mine, child, "there").level is Level.OK


def test_new_names_are_seen(tmp_path: Path, child: ChildHands) -> None:
    finding, seen_s = probes.try_visibility(hands(tmp_path), child, "there")
    assert finding.level is Level.OK
    assert set(seen_s) == {"stat", "open", "list"}
    assert None not in seen_s.values(), "a name was not seen"


def test_new_names_that_are_not_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "SEEN_PATIENCE_S", 0.02)

    class Forgetful(LyingVfs):
        """Remembers that there was no such name."""

        def stat(self, path: str) -> object:
            raise FileNotFoundError(errno.ENOENT, "remembered", path)

    finding, seen_s = probes.try_visibility(hands(tmp_path), hands(tmp_path, Forgetful()), "there")
    assert seen_s["stat"] is None
    assert seen_s["open"] is not None
    assert finding.level is Level.WARNING
    assert "lookupcache=none" in finding.cure


def test_hands_touch_only_their_run(tmp_path: Path) -> None:
    mine = hands(tmp_path)
    for name in ("../x", "a/b", "", "A", "a.b", "x" * 41, 7):
        with pytest.raises(ValueError, match="not a name"):
            mine.call("put", name, "x")
    with pytest.raises(ValueError, match="no such operation"):
        mine.call("close")
    for run in ("", "../" + "0" * 29, "A" * 32):
        with pytest.raises(ValueError, match="hexadecimal"):
            LocalHands(SystemVfs(), SystemClock(), SystemThreads(), str(tmp_path), run)
    mine.call("put", "x", "text")
    (path,) = tmp_path.iterdir()
    assert path.name == f"{PREFIX}{RUN}-x"
    clean(SystemVfs(), str(tmp_path), OTHER_RUN)
    assert path.exists()
    clean(SystemVfs(), str(tmp_path), RUN)
    assert not path.exists()


def test_put_shortens(tmp_path: Path) -> None:
    mine = hands(tmp_path)
    mine.call("put", "x", "a long text")
    mine.call("put", "x", "short")
    assert mine.call("read", "x") == "short"
    assert mine.call("read", "y") is None


@pytest.mark.parametrize("measure", [probes.measure_sync, probes.measure_check])
def test_costs_are_measured(measure: Callable[..., probes.Times], tmp_path: Path) -> None:
    clock = FakeClock()
    vfs = FaultyVfs()
    for sync in ("fsync", "fdatasync"):
        vfs.before(sync, lambda: clock.advance(0.25), times=0)
    times = measure(vfs, clock, str(tmp_path / "x"), 2.0, 100)
    assert times == probes.Times(8, 0.25, 0.25, 0.25)
    times = measure(vfs, clock, str(tmp_path / "x"), 0.1, 100)
    assert times.count == 1
    times = measure(vfs, clock, str(tmp_path / "x"), 100.0, 3)
    assert times.count == 3
    assert list(tmp_path.iterdir()) == []


def test_median_and_p99() -> None:
    times = probes.Times.of([number / 100 for number in range(200, 0, -1)])
    assert (times.count, times.median_s, times.p99_s, times.max_s) == (200, 1.01, 1.98, 2.0)
    assert probes.Times.of([3.0]) == probes.Times(1, 3.0, 3.0, 3.0)


def test_directory_sync(tmp_path: Path) -> None:
    assert probes.try_directory_sync(SystemVfs(), SystemClock(), str(tmp_path)).level is Level.OK
    finding = probes.try_directory_sync(LyingVfs("directories do not sync"), SystemClock(), str(tmp_path))
    assert finding.level is Level.UNFIT
