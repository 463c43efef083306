"""The disk in memory does what the kernel does, and a crash never takes what was synced."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from amq.store.files.vfs import SystemVfs, Vfs
from tests.crash.disk import WRITE, Disk, DiskVfs, Image, Remains
from tests.crash.workloads import WORKLOADS
from tests.sampling import sampled


def play(vfs: Vfs, root: str, dice: random.Random) -> list[object]:
    """The same calls with the same dice; returns what each answered."""
    answers: list[object] = []
    fds: list[int] = []
    names = [f"{root}/{name}" for name in "abc"] + [f"{root}/d/{name}" for name in "xy"]
    actions = {
        "open": lambda: fds.append(vfs.open(dice.choice(names), os.O_RDWR | dice.choice([0, os.O_CREAT, 0o300]))),
        "mkdir": lambda: vfs.mkdir(f"{root}/d"),
        "link": lambda: vfs.link(dice.choice(names), dice.choice(names)),
        "unlink": lambda: vfs.unlink(dice.choice(names)),
        "list": lambda: sorted(vfs.listdir(dice.choice([root, f"{root}/d"]))),
        "write": lambda: vfs.pwrite(dice.choice(fds), dice.randbytes(dice.randrange(900)), dice.randrange(900)),
        "read": lambda: vfs.pread(dice.choice(fds), dice.randrange(900), dice.randrange(900)),
        "size": lambda: vfs.fstat(dice.choice(fds)).st_size,
        "truncate": lambda: vfs.ftruncate(dice.choice(fds), dice.randrange(900)),
        "allocate": lambda: vfs.allocate(dice.choice(fds), dice.randrange(1, 2000)),
        "sync": lambda: vfs.fsync(dice.choice(fds)),
        "sync directory": lambda: vfs.fsync_directory(root),
        "lock": lambda: vfs.try_lock(dice.choice(fds)),
        "held": lambda: vfs.lock_held(dice.choice(fds)),
        "close": lambda: vfs.close(fds.pop(dice.randrange(len(fds)))),
    }
    for _ in range(120):
        action = dice.choice(list(actions) if fds else ["open", "mkdir", "list"])
        try:
            answer: object = actions[action]()  # type: ignore[no-untyped-call]
        except OSError as error:
            answer = error.errno
        answers.append((action, answer))
    for fd in fds:
        vfs.close(fd)
    return answers


@pytest.mark.parametrize("seed", sampled(range(40)))
def test_disk_is_like_the_kernel(tmp_path: Path, seed: int) -> None:
    disk = Disk()
    vfs = DiskVfs(disk)
    vfs.mkdir("/root")
    assert play(vfs, "/root", random.Random(seed)) == play(SystemVfs(), str(tmp_path), random.Random(seed))


@pytest.mark.parametrize("name", ["trimming", "killed", "full-without-fallocate"])
def test_all_that_was_written_is_one_image(name: str) -> None:
    """The image in which nothing was lost is the disk itself."""
    disk = WORKLOADS[name].script().disk
    remains = Remains(disk.image)
    for call in disk.log:
        remains.follow(call)
    now = Image({node: bytes(data) for node, data in disk.files.items()}, disk.directories)
    images = [image for image, _ in remains.images(16, random.Random(0))]
    assert now.key() in {image.key() for image in images}


def test_what_was_synced_stays() -> None:
    disk = Disk()
    vfs = DiskVfs(disk)
    fd = vfs.open("/kept", os.O_RDWR | os.O_CREAT)
    vfs.pwrite(fd, b"a" * 1500, 0)
    vfs.fsync(fd)
    vfs.fsync_directory("/")
    vfs.pwrite(fd, b"b" * 600, 1200)
    vfs.open("/new", os.O_RDWR | os.O_CREAT)
    vfs.unlink("/kept")
    remains = Remains(disk.image)
    for call in disk.log:
        remains.follow(call)
    images = [image for image, _ in remains.images(1000, random.Random(0))]
    kept = {image.files[2] for image in images}
    assert all(data[:1200] == b"a" * 1200 and len(data) in (1500, 1800) for data in kept)
    assert {b"a" * 1500, b"a" * 1200 + b"b" * 600, b"a" * 1200 + b"b" * 300, b"a" * 1500 + bytes(300)} <= kept
    assert {frozenset(image.directories[1]) for image in images} == {
        frozenset(names) for names in ((), ("kept",), ("new",), ("kept", "new"))
    }


def test_a_sync_of_the_directory_does_not_sync_its_files() -> None:
    disk = Disk()
    vfs = DiskVfs(disk)
    fd = vfs.open("/file", os.O_RDWR | os.O_CREAT)
    vfs.pwrite(fd, b"content", 0)
    vfs.fsync_directory("/")
    assert [call.kind for call in disk.log].count(WRITE) == 1
    remains = Remains(disk.image)
    for call in disk.log:
        remains.follow(call)
    contents = {image.files[2] for image, _ in remains.images(100, random.Random(0))}
    assert {b"", bytes(7), b"content", b"c" + bytes(6)} <= contents
