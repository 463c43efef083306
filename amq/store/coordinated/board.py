"""The board in a coordinator: `brokers/NAME` has the document of a seat, `running/NAME` is there while its broker holds
it, `orders/NAME` is a slot."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from amq.store.board import Posted, SeatTakenError
from amq.store.coordinated.holding import Holding, hold
from amq.store.coordinator import ABSENT, Coordinator, claim
from amq.store.host import Host

BROKERS, RUNNING, ORDERS = "brokers", "running", "orders"
STEP_S = 1.0  # between two tries for a seat that may belong to a process that is gone


class CoordinatedSeat:
    """See `amq.store.board.Seat`."""

    def __init__(self, coordinator: Coordinator, host: Host, name: str) -> None:
        self.place = f"{coordinator.url}: {BROKERS}/{name}"
        self._coordinator = coordinator
        self._host = host
        self._name = name
        self._written: int | None = None
        self._holding: Holding | None = self._wait()

    def write(self, data: bytes) -> None:
        seen, self._written = self._written, None
        self._written = claim(self._coordinator, f"{BROKERS}/{self._name}", data.rstrip(b" "), seen)

    def keep(self) -> bool:
        assert self._holding is not None
        if self._holding.is_there():
            return False
        lost, self._holding = self._holding, self._take()
        lost.close()
        return True

    def close(self) -> None:
        holding, self._holding = self._holding, None
        if holding is not None:
            holding.close()

    def _wait(self) -> Holding:
        """A broker that was killed and starts again may find its own seat: it is free when that session is over."""
        with self._coordinator.watch(f"{RUNNING}/{self._name}") as watch:
            for _ in range(int(self._coordinator.session_s / STEP_S) + 2):
                try:
                    return self._take()
                except SeatTakenError:
                    watch.wait(STEP_S)
        return self._take()

    def _take(self) -> Holding:
        key = f"{RUNNING}/{self._name}"
        holding = hold(self._coordinator, key, self._host, self._coordinator.read(key))
        if holding is None:
            raise SeatTakenError(partial(_document, self._coordinator, self._name))
        return holding


class CoordinatedBoard:
    """See `amq.store.board.Board`."""

    def __init__(self, coordinator: Coordinator, host: Host) -> None:
        self._coordinator = coordinator
        self._host = host

    def take(self, name: str) -> CoordinatedSeat:
        return CoordinatedSeat(self._coordinator, self._host, name)

    def seats(self, *, held: bool) -> Iterator[Posted]:
        found = self._coordinator.read_all(f"{RUNNING}/", f"{BROKERS}/")
        running, names = (
            {key.partition("/")[2] for key in found if key.startswith(f"{of}/")} for of in (RUNNING, BROKERS)
        )
        for name in sorted(running if held else names - running):
            key = f"{BROKERS}/{name}"
            data = found[key].value if key in found else b""
            yield Posted(name, f"{self._coordinator.url}: {key}", partial(bytes, data))

    def make_slot(self, name: str) -> None:
        self._coordinator.compare_and_set(f"{ORDERS}/{name}", b"", ABSENT)

    def read_slot(self, name: str) -> bytes | None:
        found = self._coordinator.read(f"{ORDERS}/{name}")
        if found is None:
            self.make_slot(name)
        return found.value or None if found is not None else None

    def write_slot(self, name: str, data: bytes) -> bool:
        key = f"{ORDERS}/{name}"
        while (found := self._coordinator.read(key)) is not None:
            if self._coordinator.compare_and_set(key, data.rstrip(b" "), found.revision) is not None:
                return True
        return False

    def place_of_slot(self, name: str) -> str:
        return f"{self._coordinator.url}: {ORDERS}/{name}"

    def forget(self, name: str) -> None:
        for directory in (BROKERS, ORDERS):
            found = self._coordinator.read(f"{directory}/{name}")
            if found is not None:
                self._coordinator.remove(found.key, found.revision)


def _document(coordinator: Coordinator, name: str) -> bytes:
    """Nothing where the seat was removed meanwhile."""
    found = coordinator.read(f"{BROKERS}/{name}")
    return found.value if found is not None else b""
