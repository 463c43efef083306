"""Places: descriptors that no client gets, and the connections that give way when all places are taken."""

from __future__ import annotations

import pytest

from amq.transports.places import (
    FILES_MIN,
    GIVES_WAY_S,
    RESERVE,
    Places,
    PlacesTakenError,
    connections_max,
    files_warning,
)
from tests.fakes import FakeClock


class Caller:
    """A connection."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.has_shown_login = False
        self.aborted = 0

    def abort(self) -> None:
        self.aborted += 1


class World:
    def __init__(self, wanted: int, files: int = 1 << 16) -> None:
        self.clock = FakeClock()
        self.places = Places(self.clock, lambda: wanted, lambda: files)
        self.inside: list[Caller] = []

    def enter(self, number: int) -> Caller:
        caller = Caller(number)
        gone = self.places.enter(caller, len(self.inside))
        if gone is not None:
            self.inside = [each for each in self.inside if each is not gone]
        self.inside.append(caller)
        return caller


@pytest.mark.parametrize(
    ("wanted", "files", "found"),
    [(10_000, 1 << 20, 10_000), (10_000, 300, 153), (100, 300, 100), (10_000, FILES_MIN, 48), (1, FILES_MIN, 1)],
)
def test_connections_are_capped_by_the_files(wanted: int, files: int, found: int) -> None:
    assert connections_max(wanted, files) == found
    assert connections_max(wanted, files) <= files - RESERVE
    told = files_warning(wanted, files)
    assert bool(told) == (found < wanted)
    if told:
        assert "maxConnections" in told
        assert "ulimit -n" in told


def test_the_reserve_is_not_for_clients() -> None:
    places = World(10_000, 300).places
    assert not places.is_reserved(300 - RESERVE - 1)
    assert places.is_reserved(300 - RESERVE)
    assert places.cut == 1


def test_the_oldest_connection_without_a_login_gives_way() -> None:
    world = World(3)
    first, second, third = (world.enter(number) for number in range(3))
    first.has_shown_login = True
    world.clock.advance(GIVES_WAY_S)
    world.enter(3)
    assert (first.aborted, second.aborted, third.aborted) == (0, 1, 0)
    world.enter(4)
    assert (first.aborted, third.aborted) == (0, 1)
    with pytest.raises(PlacesTakenError):  # those that are left came a moment ago
        world.enter(5)
    world.clock.advance(GIVES_WAY_S)
    world.enter(6)
    assert world.places.given_way == 3


def test_clients_that_have_logged_in_never_give_way() -> None:
    world = World(3)
    for number in range(3):
        world.enter(number).has_shown_login = True
    world.clock.advance(100 * GIVES_WAY_S)
    with pytest.raises(PlacesTakenError):
        world.enter(3)
    assert not any(each.aborted for each in world.inside)


def test_connections_that_end_leave_nothing() -> None:
    world = World(10)
    for number in range(10_000):
        world.places.leave(world.enter(number))
        world.inside.clear()
    assert not world.places._arrived
