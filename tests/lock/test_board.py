"""The board in files: the contract of all boards, and what a person does to its files."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import pytest

from amq.store.board import SeatTakenError
from amq.store.files.board import BROKERS_DIRECTORY, ORDERS_DIRECTORY, FileBoard
from amq.store.files.vfs import _FLOCK, LOCK_OFFSET, SystemVfs
from tests.board_contract import check_board
from tests.fakes import FaultyVfs


class LosingVfs(SystemVfs):
    """The file server forgets locks, and tells nobody."""

    def __init__(self) -> None:
        self._locked: list[int] = []

    def try_lock(self, fd: int) -> bool:
        self._locked.append(fd)
        return super().try_lock(fd)

    def lose_locks(self) -> None:
        for fd in self._locked:
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, LOCK_OFFSET, 1, 0))
        self._locked.clear()


def test_the_contract(tmp_path: Path) -> None:
    check_board(lambda: FileBoard(SystemVfs(), str(tmp_path)))


def test_a_seat_that_was_removed_is_taken_again(tmp_path: Path) -> None:
    board = FileBoard(SystemVfs(), str(tmp_path))
    seat = board.take("a")
    (tmp_path / BROKERS_DIRECTORY / "a.json").unlink()
    assert [each.name for each in board.seats(held=True)] == []
    assert seat.keep()
    assert [each.name for each in board.seats(held=True)] == ["a"]
    (tmp_path / BROKERS_DIRECTORY / "a.json").unlink()
    thief = board.take("a")
    with pytest.raises(SeatTakenError):
        seat.keep()
    thief.close()
    seat.close()


def test_a_lock_that_the_file_server_has_lost_is_taken_again(tmp_path: Path) -> None:
    vfs = LosingVfs()
    board, others = FileBoard(vfs, str(tmp_path)), FileBoard(SystemVfs(), str(tmp_path))
    seat = board.take("a")
    seat.write(b"here".ljust(100))
    vfs.lose_locks()
    assert [each.name for each in others.seats(held=True)] == []
    assert not seat.keep(), "its document is there"
    assert [each.name for each in others.seats(held=True)] == ["a"]
    with pytest.raises(SeatTakenError):
        others.take("a")
    seat.close()


def test_a_descriptor_that_takes_no_writes_any_more_is_replaced(tmp_path: Path) -> None:
    vfs = FaultyVfs()
    board, others = FileBoard(vfs, str(tmp_path)), FileBoard(SystemVfs(), str(tmp_path))
    seat = board.take("a")
    vfs.fail("pwrite")
    with pytest.raises(OSError, match="Input/output"):
        seat.write(b"refused".ljust(100))
    vfs.fail("try_lock")
    with pytest.raises(OSError, match="Input/output"):
        seat.keep()
    with pytest.raises(OSError, match="was lost"):
        seat.write(b"not held".ljust(100))
    assert seat.keep()
    seat.write(b"written".ljust(100))
    assert [(each.name, each.read().strip()) for each in others.seats(held=True)] == [("a", b"written")]
    seat.close()


def test_a_slot_that_was_removed_is_made_again(tmp_path: Path) -> None:
    board = FileBoard(SystemVfs(), str(tmp_path))
    board.make_slot("a")
    (tmp_path / ORDERS_DIRECTORY / "a.json").unlink()
    assert board.read_slot("a") is None
    assert board.write_slot("a", b"order")


def test_nothing_is_made_where_the_file_system_is_not_mounted(tmp_path: Path) -> None:
    board = FileBoard(SystemVfs(), str(tmp_path))
    assert board.read_slot("a") is None
    assert not list(tmp_path.iterdir())
