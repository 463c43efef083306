"""The door to the real file system: how it opens files."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from amq.store.files import vfs
from amq.store.files.vfs import SystemVfs


@pytest.fixture
def flags(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Those of each `os.open`."""
    asked: list[int] = []
    real = os.open

    def see(path: str, how: int, mode: int = 0o777) -> int:
        asked.append(how)
        return real(path, how, mode)

    monkeypatch.setattr(os, "open", see)
    return asked


@pytest.mark.parametrize("kind", [os.O_RDONLY, os.O_WRONLY, os.O_RDWR | os.O_CREAT])
def test_a_file_on_nfs_is_opened_without_a_delegation(
    tmp_path: Path, flags: list[int], monkeypatch: pytest.MonkeyPatch, kind: int
) -> None:
    """A host that is frozen gives no delegation back: nobody else could write the claim before its lease is over. What
    asks for none is O_DIRECT at the open; reads and writes of any length and offset work afterwards.
    """
    path = tmp_path / "claim"
    path.write_bytes(b"claimed")
    monkeypatch.setattr(vfs, "_file_system", lambda _directory: vfs._NFS)
    fd = SystemVfs.open(str(path), kind)
    try:
        assert flags[-1] & os.O_DIRECT
        assert not fcntl.fcntl(fd, fcntl.F_GETFL) & (os.O_DIRECT | os.O_NONBLOCK)
        if kind != os.O_WRONLY:
            assert os.pread(fd, 3, 1) == b"lai"
        if kind != os.O_RDONLY:
            assert os.pwrite(fd, b"x", 3) == 1
    finally:
        os.close(fd)


def test_a_file_elsewhere_is_opened_as_ever(tmp_path: Path, flags: list[int]) -> None:
    """On SMB the server would see that flag, and reject what is not aligned."""
    (tmp_path / "claim").touch()
    os.close(SystemVfs.open(str(tmp_path / "claim"), os.O_RDONLY))
    assert not flags[-1] & os.O_DIRECT


def test_the_kind_of_a_file_system_is_asked_again_where_the_directory_was_missing(tmp_path: Path) -> None:
    assert not vfs._is_on_nfs(str(tmp_path / "new"))
    (tmp_path / "new").mkdir()
    assert vfs._file_system(str(tmp_path / "new")) == vfs._file_system(str(tmp_path))
    assert vfs._file_system("/proc") == 0x9FA0
