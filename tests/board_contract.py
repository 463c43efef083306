"""The contract of `amq.store.board.Board`, which each adapter keeps. `new` makes the board of one more member."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from amq.store.board import Board, SeatTakenError

Boards = Callable[[], Board]


def check_board(new: Boards) -> None:
    """`new()` returns the board as another member sees it."""
    one, other = new(), new()
    assert list(one.seats(held=True)) == list(one.seats(held=False)) == []

    # A seat has one holder, whom the others see with what it wrote last.
    seat = one.take("a")
    seat.write(b"first".ljust(100))
    seat.write(b"second".ljust(100))
    assert [(each.name, each.read().strip()) for each in other.seats(held=True)] == [("a", b"second")]
    with pytest.raises(SeatTakenError) as raised:
        other.take("a")
    assert raised.value.read().strip() == b"second"
    assert not seat.keep(), "it was never lost"
    second = other.take("b")
    second.write(b"of b".ljust(100))
    assert [each.name for each in one.seats(held=True)] == ["a", "b"]

    # What a member wrote that stopped stays, and its name is free.
    seat.close()
    assert [(each.name, each.read().strip()) for each in other.seats(held=False)] == [("a", b"second")]
    assert [each.name for each in other.seats(held=True)] == ["b"]
    again = other.take("a")
    again.close()
    second.close()

    # A slot keeps the last document, whoever wrote it; nobody writes into one that its broker did not make.
    assert not one.write_slot("a", b"too early")
    other.make_slot("a")
    other.make_slot("a")
    assert other.read_slot("a") is None
    assert one.write_slot("a", b"x" * 4096)
    assert one.write_slot("a", b"order".ljust(4096))
    found = other.read_slot("a")
    assert found is not None
    assert found.strip() == b"order"

    # A broker that will not come back is forgotten with what others wanted of it.
    one.forget("a")
    one.forget("a")
    assert [each.name for each in other.seats(held=False)] == ["b"]
    assert not one.write_slot("a", b"too late")
