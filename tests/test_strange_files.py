"""What is in a store under the name of a broker's file and is none: links, FIFOs, directories."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from amq.core.errors import AmqError, StoreError
from amq.node.member import Role
from amq.store.files.board import FileBoard
from amq.store.files.vfs import SystemVfs
from amq.store.host import Owner
from amq.store.open import store_behind
from amq.store.presence import Presence, read_presence
from amq.store.segment_log import NotAFileError
from amq.store.status import store_status
from tests.fakes import FakeHost
from tests.patience import DEADLINE_S
from tests.sampling import only
from tests.service_world import Services, services

VICTIM = b"a file of the administrator"


def fifo(path: Path) -> None:
    os.mkfifo(path)


def link(path: Path) -> None:
    path.symlink_to(path.parents[1] / "victim")


def dangling(path: Path) -> None:
    path.symlink_to(path.parents[1] / "to be made")


def directory(path: Path) -> None:
    path.mkdir()


def unix_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


STRANGERS = [fifo, link, dangling, directory, unix_socket]


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_WRONLY, os.O_RDWR, os.O_RDWR | os.O_CREAT])
@pytest.mark.parametrize("make", STRANGERS)
def test_only_regular_files_are_opened_and_nothing_waits(
    tmp_path: Path, make: Callable[[Path], None], flags: int
) -> None:
    store = tmp_path / "store"
    store.mkdir()
    (tmp_path / "victim").write_bytes(VICTIM)
    make(store / "x")
    with pytest.raises(NotAFileError, match="not a regular file") as caught:
        SystemVfs().open(str(store / "x"), flags)
    assert caught.value.filename == str(store / "x")
    assert (tmp_path / "victim").read_bytes() == VICTIM
    assert not (tmp_path / "to be made").exists()


def test_a_regular_file_is_opened_as_ever(tmp_path: Path) -> None:
    vfs = SystemVfs()
    fd = vfs.open(str(tmp_path / "x"), os.O_RDWR | os.O_CREAT | os.O_EXCL)
    try:
        assert os.get_blocking(fd)
        assert not os.get_inheritable(fd)
        assert os.fstat(fd).st_mode & 0o007 == 0
        with pytest.raises(FileExistsError):
            vfs.open(str(tmp_path / "x"), os.O_RDWR | os.O_CREAT | os.O_EXCL)
    finally:
        os.close(fd)
    with pytest.raises(FileNotFoundError):
        vfs.open(str(tmp_path / "y"), os.O_RDONLY)
    (tmp_path / "store").mkdir()
    (tmp_path / "alias").symlink_to(tmp_path / "store")  # the store itself may be reached through a link
    vfs.close(vfs.open(str(tmp_path / "alias" / "z"), os.O_RDWR | os.O_CREAT))


def test_a_file_that_a_server_has_given_away_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """knfsd and Samba hold leases on local files: a non-blocking open fails while they take them back."""
    (tmp_path / "x").write_bytes(b"content")
    real, asked = os.open, []

    def leased(path: str, flags: int, *mode: int) -> int:
        asked.append(flags)
        if flags & os.O_NONBLOCK:
            raise BlockingIOError(errno.EWOULDBLOCK, os.strerror(errno.EWOULDBLOCK), path)
        return real(path, flags, *mode)

    monkeypatch.setattr(os, "open", leased)
    fd = SystemVfs().open(str(tmp_path / "x"), os.O_RDONLY)
    monkeypatch.undo()
    assert os.read(fd, 7) == b"content"
    os.close(fd)
    assert len(asked) == 2


@pytest.mark.parametrize("make", STRANGERS)
@pytest.mark.parametrize("name", ["lock", "claim", "brokers/a.json"])
def test_a_broker_ends_with_the_name_of_what_is_no_file(
    tmp_path: Path, make: Callable[[Path], None], name: str
) -> None:
    store = tmp_path / "store"
    (store / "brokers").mkdir(parents=True)
    victim = (store / name).parents[1] / "victim"
    victim.write_bytes(VICTIM)
    make(store / name)

    async def main() -> AmqError | None:
        world = Services(tmp_path)
        service, _ = await world.start("a")
        await asyncio.wait_for(service.wait_for(Role.STOPPED), DEADLINE_S)
        return service.failure

    failure = asyncio.run(main())
    assert isinstance(failure, StoreError)
    assert str(store / name) in failure.description
    assert "not a regular file" in failure.description
    assert victim.read_bytes() == VICTIM


def test_who_only_looks_passes_strangers_over(tmp_path: Path) -> None:
    vfs = SystemVfs()
    owner = Owner.make(FakeHost(), name="a", uuid="u", transport_urls=(), lock_keep_alive_period_s=1.0)
    presence = Presence.open(FileBoard(vfs, str(tmp_path)), owner)
    (tmp_path / "victim").write_bytes(VICTIM)
    for number, make in enumerate(STRANGERS):
        make(tmp_path / "brokers" / f"z{number}.json")
    assert [found.name for found in read_presence(FileBoard(vfs, str(tmp_path)))] == ["a"]
    fifo(tmp_path / "lock")
    with pytest.raises(NotAFileError):
        store_status(store_behind(vfs, str(tmp_path)))
    presence.close()


def test_a_lock_that_becomes_a_link_ends_the_mastership(tmp_path: Path) -> None:
    async def main() -> None:
        async with services(tmp_path) as world:
            service, _ = await world.master("a")
            (tmp_path / "victim").write_bytes(VICTIM)
            link(world.store / "made aside")
            os.replace(world.store / "made aside", world.store / "lock")
            await asyncio.wait_for(service.wait_for(Role.STOPPED), DEADLINE_S)
            assert service.failure is not None
            assert "symbolic link" in service.failure.description

    asyncio.run(main())
    assert (tmp_path / "victim").read_bytes() == VICTIM


STORED = ("lock", "claim", "orders/a.json", "brokers/a.json", "brokers/b.json")


@pytest.mark.parametrize("name", only(STORED, "claim", "orders/a.json"))
async def test_brackets_without_end_cost_no_mastership(tmp_path: Path, name: str) -> None:
    """1 MiB of `[`: no reader of JSON comes to its end, and none may end a broker."""
    async with services(tmp_path) as world:
        first, _ = await world.master("a")
        await first.stop()
        (world.store / name).write_bytes(b"[" * (1 << 20))
        second, port = await world.master("a")
        if name != "claim":  # whoever claims the store deposes its master
            with open(world.store / name, "r+b") as file:
                file.write(b"[" * (1 << 20))
        await (await world.connect(port)).store(b"a message")
        assert second.failure is None
        await second.stop()
        await world.master("b")
