"""The modelled file system does what was measured on real ones, so that what the simulation finds is real."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable
from contextlib import nullcontext
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest

from tests.simulation.door import SimVfs
from tests.simulation.hosts import HostCache, Mount
from tests.simulation.network import Endpoint
from tests.simulation.scheduler import Machine, Process, Scheduler
from tests.simulation.storage import Server
from tests.simulation.world import MOUNTS

BY_KIND = {mount.kind: mount for mount in MOUNTS}


class Lab:
    """Two hosts with one process each, on one server."""

    def __init__(self, mount: Mount, seed: int = 1) -> None:
        self.scheduler = Scheduler(Random(seed))
        self.server = Server(Random(seed), mount.sync_names, 1 << 20)
        self.errors: list[Exception] = []
        self.scheduler.on_crash = lambda _task, error: self.errors.append(error)
        self.caches: list[HostCache] = []
        self.processes: list[Process] = []
        self.doors: list[SimVfs] = []
        for name in "ab":
            machine = Machine(self.scheduler, name, 1.0, Random(seed))
            cache = HostCache(self.scheduler, machine, self.server, mount, Random(seed))
            process = machine.spawn(name)
            self.caches.append(cache)
            self.processes.append(process)
            self.doors.append(SimVfs(cache, process, lambda: 0.0))

    def do(self, who: int, *calls: Callable[[SimVfs], object]) -> list[object]:
        """Let host `who` make these calls, one after the other; what they returned."""
        results: list[object] = []
        self.processes[who].start("test", lambda: results.extend(call(self.doors[who]) for call in calls))
        self.scheduler.run(self.scheduler.now + 0.5)
        if self.errors:
            raise self.errors.pop()
        return results

    def open(self, who: int, path: str, flags: int = os.O_RDWR | os.O_CREAT) -> int:
        fd = self.do(who, lambda vfs: vfs.open(path, flags))[0]
        assert isinstance(fd, int)
        return fd

    def stored(self, path: str) -> bytes:
        return self.server.find(path).data


def test_unsynced_bytes_reach_the_server_late_and_after_the_death_of_their_writer() -> None:
    lab = Lab(BY_KIND["nfs without fencing"])
    fd = lab.open(0, "/f")
    lab.processes[0].start("test", lambda: lab.doors[0].pwrite(fd, b"late", 0))
    lab.scheduler.run(lab.scheduler.now + 0.002)
    lab.processes[0].kill()
    assert lab.stored("/f") == b""
    lab.scheduler.run(lab.scheduler.now + 30)
    assert lab.stored("/f") == b"late"


def test_a_host_never_sends_what_it_has_overwritten() -> None:
    """Its pages hold each byte once, so an older write cannot arrive behind a newer one (seed 2003044)."""
    for seed in range(20):
        lab = Lab(BY_KIND["nfs without fencing"], seed)
        fd = lab.open(0, "/f")
        right = bytearray(60)
        for data, offset in (calls := [(b"older" * 10, 3), (b"newer", 0), (b"new", 20), (b"newest", 50)]):
            right[offset : offset + len(data)] = data
        lab.do(0, *(lambda vfs, call=call, fd=fd: vfs.pwrite(fd, *call) for call in calls))
        lab.do(0, lambda vfs, fd=fd: vfs.fsync(fd))
        assert lab.stored("/f") == right[:56]


def test_close_to_open() -> None:
    lab = Lab(BY_KIND["nfs4 soft, default cache"])
    writer, reader = lab.open(0, "/f"), lab.open(1, "/f")
    lab.do(0, lambda vfs: vfs.pwrite(writer, b"new", 0), lambda vfs: vfs.fsync(writer))
    assert lab.do(1, lambda vfs: vfs.pread(reader, 9, 0)) == [b""], "a descriptor kept open lags"
    fresh = lab.open(1, "/f", os.O_RDONLY)
    assert lab.do(1, lambda vfs: vfs.pread(fresh, 9, 0)) == [b"new"]


def test_a_name_once_absent_stays_absent_for_a_while() -> None:
    lab = Lab(BY_KIND["nfs4 soft, default cache"])
    with pytest.raises(FileNotFoundError):
        lab.do(1, lambda vfs: vfs.stat("/f"))
    lab.caches[1]._stats["/f"] = (lab.scheduler.now + 3.0, None)
    lab.open(0, "/f")
    with pytest.raises(FileNotFoundError):
        lab.do(1, lambda vfs: vfs.stat("/f"))
    lab.scheduler.run(lab.scheduler.now + 4.0)
    lab.do(1, lambda vfs: vfs.stat("/f"))


@pytest.mark.parametrize(("kind", "lands"), [("nfs4 hard", False), ("gfs2", True), ("nfs without fencing", True)])
def test_writes_of_a_host_that_lost_its_lock(kind: str, lands: bool) -> None:
    lab = Lab(BY_KIND[kind])
    old = lab.open(0, "/f")
    assert lab.do(0, lambda vfs: vfs.try_lock(old)) == [True]
    new = lab.open(1, "/f")
    assert lab.do(1, lambda vfs: vfs.try_lock(new)) == [False]
    lab.caches[0].lose_locks()
    assert lab.do(1, lambda vfs: vfs.try_lock(new)) == [True]
    with nullcontext() if lands else pytest.raises(OSError, match="Input/output"):
        lab.do(0, lambda vfs: vfs.pwrite(old, b"zombie", 0), lambda vfs: vfs.fsync(old))
    assert (lab.stored("/f") == b"zombie") is lands


def test_a_silent_host_loses_its_locks_to_whoever_asks_and_only_then() -> None:
    lab = Lab(BY_KIND["nfs4 hard"])
    old, new = lab.open(0, "/f"), lab.open(1, "/f")
    lab.do(0, lambda vfs: vfs.try_lock(old))
    lab.caches[0].cut(100.0)
    assert lab.do(1, lambda vfs: vfs.try_lock(new)) == [False], "the lease runs"
    lab.scheduler.run(lab.scheduler.now + 3.0)
    assert lab.do(1, lambda vfs: vfs.try_lock(new)) == [True]


def test_a_failed_sync_drops_its_pages_and_the_next_one_lies() -> None:
    lab = Lab(BY_KIND["nfs4 hard"])
    fd = lab.open(0, "/f")
    lab.caches[0].faults.append(("fsync", errno.EIO))
    with pytest.raises(OSError, match="Input/output"):
        lab.do(0, lambda vfs: vfs.pwrite(fd, b"gone", 0), lambda vfs: vfs.fsync(fd))
    assert lab.do(0, lambda vfs: vfs.fsync(fd), lambda vfs: vfs.pread(fd, 4, 0)) == [None, b"gone"]
    assert lab.stored("/f") == b""


def test_a_crash_of_the_server_keeps_what_was_synced_and_tears_the_rest() -> None:
    torn = lost_name = 0
    for seed in range(60):
        lab = Lab(BY_KIND["gfs2"], seed)
        fd = lab.open(0, "/f")
        lab.do(0, lambda vfs, fd=fd: vfs.pwrite(fd, b"s" * 1000, 0), lambda vfs, fd=fd: vfs.fsync(fd))
        lab.server.sync_directory(lab.server.root)
        lab.open(0, "/unsynced")
        lab.do(0, lambda vfs, fd=fd: vfs.pwrite(fd, b"u" * 4096, 1000))
        lab.server.crash()
        data = lab.stored("/f")
        assert data[:1000] == b"s" * 1000
        rest = data[1000:].rstrip(b"\0")
        torn += 0 < rest.count(b"u") < 4096
        assert lab.server.root.names is not None
        lost_name += "unsynced" not in lab.server.root.names
    assert torn > 5
    assert lost_name > 5


def test_bytes_keep_their_order_where_reading_goes_on_while_some_arrive() -> None:
    """They did not, and a broker took a piece of a frame for a body (seed 90000987)."""
    loop, read = asyncio.new_event_loop(), []
    process: Any = SimpleNamespace(name="a", alive=True, loop=loop)
    end = Endpoint(None, process, ("a", 1), ("b", 2))  # type: ignore[arg-type]
    end.protocol = SimpleNamespace(data_received=read.append)
    end.pause_reading()
    end.arrive(b"1")
    loop.run_until_complete(asyncio.sleep(0))
    assert read == []
    end.arrive(b"2")
    end.resume_reading()
    loop.run_until_complete(asyncio.sleep(0))
    loop.close()
    assert read == [b"1", b"2"]
