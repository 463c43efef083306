"""What the simulation found, each as the smallest test that shows it; the seed is in the commit."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from amq.core.errors import OwnershipLostError, StoreError
from amq.journal.recovery import seal
from amq.node.member import Role
from amq.store.epoch import Epoch
from amq.store.files.epochs import FileEpochs
from amq.store.files.log import FileLog
from amq.store.files.vfs import listdir_fresh
from tests.fakes import FakeClock, FaultyVfs
from tests.lock.lock_world import Broker
from tests.patience import DEADLINE_S
from tests.service_world import services


def test_a_probe_that_a_crash_of_the_server_took_is_no_missing_directory(tmp_path: Path) -> None:
    """It was taken for a store without epochs: the broker stopped and asked for a restore."""
    (tmp_path / "0000000002.json").touch()
    vfs = FaultyVfs()
    vfs.before("unlink", lambda: os.unlink(tmp_path / "probe"), path="probe")
    assert listdir_fresh(vfs, str(tmp_path), "probe") == ["0000000002.json"]


async def test_a_takeover_that_failed_does_not_stand_in_the_way_of_the_next(tmp_path: Path) -> None:
    """Each term numbered its attempts from 1: the temporary file of the first failed all later ones, and two claims of
    one broker could be the same."""

    def lose() -> None:
        raise OwnershipLostError("just before the link")

    vfs = FaultyVfs()
    vfs.before("link", lose)
    async with services(tmp_path) as made:
        service, _ = await made.start("a", vfs=vfs)
        assert await asyncio.wait_for(service.wait_for(Role.MASTER), DEADLINE_S) is Role.MASTER


def test_whoever_finds_the_epochs_directory_makes_its_name_durable(tmp_path: Path) -> None:
    """Its maker may have died before: then a crash of the server took all epochs."""
    vfs = FaultyVfs()
    FileEpochs(vfs, str(tmp_path)).make()
    FileEpochs(vfs, str(tmp_path)).make()
    assert vfs.calls.count(("fsync_directory", str(tmp_path))) == 2


def test_a_candidate_that_was_overtaken_lost_and_found_no_damage(tmp_path: Path) -> None:
    """It paused before its seal; what the new master had written meanwhile looked like a store without its epochs, and
    the broker stopped for good."""
    base = FakeClock()
    slow, quick = Broker(tmp_path, "slow", base), Broker(tmp_path, "quick", base)
    slow.vfs.answer("try_lock", True)
    quick.vfs.answer("try_lock", True)

    def seal_late(_previous: Epoch | None) -> dict[str, int]:
        quick.become_master()
        raise StoreError("a segment of an epoch that is newer than the newest epoch")

    assert slow.locker.try_acquire()
    with pytest.raises(OwnershipLostError):
        slow.locker.take_over(slow.pause, seal_late)


def test_the_end_of_a_journal_is_read_from_the_disk_and_not_from_memory(tmp_path: Path) -> None:
    """A batch whose sync failed stayed in the memory of the host, as if clean. The next master of that host sealed it,
    and confirmed resends of its messages; they were nowhere, and every other host found the journal damaged."""
    directory = tmp_path / "journal"
    directory.mkdir()
    (directory / "00000001-00000001.seg").write_bytes(bytes(100))
    vfs = FaultyVfs()
    seal(FileLog(vfs, str(tmp_path)), 1, {})
    of_segment = [method for method, path in vfs.calls if path.endswith(".seg")]
    assert of_segment.index("drop_cache") < of_segment.index("pread")


def test_a_candidate_that_claimed_late_lost_and_found_no_damage(tmp_path: Path) -> None:
    """As above, but it paused between reading the newest epoch and its claim, which therefore stands."""
    base = FakeClock()
    slow, quick = Broker(tmp_path, "slow", base), Broker(tmp_path, "quick", base)
    slow.vfs.answer("try_lock", True)
    quick.vfs.answer("try_lock", True)

    def seal_late(previous: Epoch | None) -> dict[str, int]:
        assert previous is None
        raise StoreError("a segment of an epoch that is newer than the newest epoch")

    assert slow.locker.try_acquire()
    slow.vfs.before("open", lambda: quick.become_master() and None, path="claim")
    with pytest.raises(OwnershipLostError):
        slow.locker.take_over(slow.pause, seal_late)
