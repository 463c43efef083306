"""What the simulation found, each as the smallest test that shows it; the seed stands in the commit."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from amq.errors import OwnershipLostError
from amq.lock.epoch import make_epochs_directory
from amq.service import Role
from amq.vfs import listdir_fresh
from tests.fakes import FaultyVfs
from tests.service_world import PATIENCE_S, services


def test_a_probe_that_a_crash_of_the_server_took_is_no_missing_directory(tmp_path: Path) -> None:
    """It was taken for a store without epochs: the broker stopped and asked for a restore."""
    (tmp_path / "0000000002.json").touch()
    vfs = FaultyVfs()
    vfs.before("unlink", lambda: os.unlink(tmp_path / "probe"), path="probe")
    assert listdir_fresh(vfs, str(tmp_path), "probe") == ["0000000002.json"]


def test_a_takeover_that_failed_does_not_stand_in_the_way_of_the_next(tmp_path: Path) -> None:
    """Each term numbered its attempts from 1: the temporary file of the first failed all later ones, and two claims of
    one broker could be the same."""

    def lose() -> None:
        raise OwnershipLostError("just before the link")

    async def play() -> None:
        vfs = FaultyVfs()
        vfs.before("link", lose)
        async with services(tmp_path) as made:
            service, _ = await made.start("a", vfs=vfs)
            assert await asyncio.wait_for(service.wait_for(Role.MASTER), PATIENCE_S) is Role.MASTER

    asyncio.run(play())


def test_whoever_finds_the_epochs_directory_makes_its_name_durable(tmp_path: Path) -> None:
    """Its maker may have died before: then a crash of the server took all epochs."""
    vfs = FaultyVfs()
    make_epochs_directory(vfs, str(tmp_path))
    make_epochs_directory(vfs, str(tmp_path))
    assert vfs.calls.count(("fsync_directory", str(tmp_path))) == 2
