"""The contract of `amq.store.register.Register`, which each adapter keeps. `new` makes the register as another process
has it, before anything was made."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from amq.core.errors import ConfigError
from amq.store.register import Register
from tests.board_contract import check_board

WRITERS = 6


def check_register(new: Callable[[], Register], size: int = 1 << 20, has_stores: bool = True) -> None:
    one, other = new(), new()
    one.make(("tables", "stores"))
    other.make(("tables", "stores"))
    assert set(one.names("")) >= {"tables", "stores"}
    assert one.names("tables") == []
    with pytest.raises(FileNotFoundError):
        one.names("others")

    # A document is there at once for all, and stays as it is.
    with pytest.raises(FileNotFoundError):
        other.read("", "secret")
    one.write("", "secret", b"of one", "a", private=True)
    with pytest.raises(FileExistsError):
        other.write("", "secret", b"of other", "b", private=True)
    assert one.read("", "secret") == other.read("", "secret") == b"of one"
    assert other.is_private("", "secret")
    assert "secret" in other.names("")
    assert other.names("", ".a-probe") == other.names("")
    one.write("tables", "old", b"", "a")
    other.remove("tables", "old")
    other.remove("tables", "old")
    assert one.names("tables") == []

    # Of those who make a table at a time one succeeds, and nobody finds a part of it.
    big = {number: bytes([number]) * size for number in range(WRITERS)}
    won: list[int] = []
    barrier = threading.Barrier(WRITERS)

    def write(number: int) -> None:
        register = new()
        barrier.wait()
        try:
            register.write("tables", "7.json", big[number], f"w{number}")
        except FileExistsError:
            return
        won.append(number)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert other.read("tables", "7.json") == big[won[0]]
    assert other.names("tables") == ["7.json"], "drafts are gone"

    # Each store has a place of its own beside it; documents are known by their place.
    assert one.place("tables", "7.json").startswith(one.place("tables"))
    if not has_stores:
        with pytest.raises(ConfigError):
            one.place_of_store("stores", "s1")
        return
    places = {one.place_of_store("stores", name) for name in ("s1", "s2")}
    assert len(places) == 2
    assert places == {other.place_of_store("stores", name) for name in ("s1", "s2")}


def check_board_of_register(new: Callable[[], Register]) -> None:
    new().make(())
    check_board(lambda: new().board)
