"""The board in files: the contract of all boards, and what a person does to its files."""

from __future__ import annotations

from pathlib import Path

import pytest

from amq.store.board import SeatTakenError
from amq.store.files.board import BROKERS_DIRECTORY, ORDERS_DIRECTORY, FileBoard
from amq.store.files.vfs import SystemVfs
from tests.board_contract import check_board


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
