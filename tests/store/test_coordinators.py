"""Coordinators keep the contract of all coordinators: here those without servers, `tests/quorum` has the others."""

from __future__ import annotations

import errno
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path

import pytest

from amq.core.errors import StoreError
from amq.store.coordinated.documents import CoordinatedRegister
from amq.store.coordinated.register import DURABLE, RegisterCoordinator
from amq.store.coordinated.scoped import ScopedCoordinator
from amq.store.coordinator import ABSENT, VALUE_BYTES_MAX, claim
from amq.store.host import SystemHost
from amq.store.open import open_coordinator, open_register
from tests.coordinator_contract import CHECKS, Coordinators
from tests.fakes import FakeHost
from tests.memory_coordinator import Ensemble, MemoryCoordinator
from tests.register_contract import check_board_of_register, check_register


@pytest.fixture(params=["memory", "directory"])
def coordinators(request: pytest.FixtureRequest, tmp_path: Path) -> Coordinators:
    ensemble, new = Ensemble(), open_coordinator.__wrapped__
    kinds: dict[str, Coordinators] = {
        "memory": lambda: MemoryCoordinator(ensemble),
        "directory": lambda: new(f"file://{tmp_path}"),
    }
    return kinds[request.param]


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
def test_the_contract(coordinators: Coordinators, check: Callable[[Coordinators, str], None]) -> None:
    check(coordinators, "k")


def test_the_table_of_a_cluster_in_a_coordinator(coordinators: Coordinators) -> None:
    def new() -> CoordinatedRegister:
        return CoordinatedRegister(ScopedCoordinator(coordinators(), "cluster"), SystemHost())

    check_register(new, size=100 << 10, has_stores=False)
    check_board_of_register(new)
    with pytest.raises(OSError, match="longer than an entry may be"):
        new().write("tables", "8.json", bytes(VALUE_BYTES_MAX), "a")


def test_a_writer_that_was_overtaken_finds_its_number_free_and_does_not_win(tmp_path: Path) -> None:
    """To replace an entry in a directory, a writer removes the old one; so the name of its successor is free again."""
    one, other = (RegisterCoordinator(open_register(str(tmp_path)), "file:///d", FakeHost()) for _ in range(2))
    first = one.compare_and_set("k", b"1", ABSENT)
    stale = one.newest("k")
    second = other.compare_and_set("k", b"2", first or ABSENT)
    third = other.compare_and_set("k", b"3", second or ABSENT)
    assert one.append("k", stale, DURABLE, b"late") is None
    assert one.read("k") == other.read("k") == ("k", b"3", third)
    fourth = other.compare_and_set("k", b"4", third or ABSENT)
    with pytest.raises(OSError, match="at once"):  # what replaced it is replaced, too: it cannot know
        one.append("k", stale, DURABLE, b"late")
    assert one.read("k") == ("k", b"4", fourth)


@pytest.mark.parametrize(("there", "lost", "outcome"), [(b"ours", 1, 7), (b"other", 1, None), (b"other", 0, 0)])
def test_a_change_whose_answer_was_lost_is_known_by_its_value_or_in_doubt(
    monkeypatch: pytest.MonkeyPatch, there: bytes, lost: int, outcome: int | None
) -> None:
    """`outcome`: its revision; 0 = another writer was quicker; None = nobody can say."""
    etcd = open_coordinator.__wrapped__("etcd://a:1,b:2")
    found = {"value": b64encode(there).decode(), "mod_revision": "7"}
    answers = [OSError("lost"), {"responses": [{"response_range": {"kvs": [found]}}]}][1 - lost :]

    def ask(*_: object) -> object:
        answer = answers.pop(0)
        if isinstance(answer, OSError):
            raise answer
        return answer

    monkeypatch.setattr(etcd, "_ask", ask)
    if outcome is None:
        with pytest.raises(OSError, match="since an answer was lost") as raised:
            etcd.compare_and_set("k", b"ours", 5)
        assert raised.value.errno == errno.EAGAIN
    else:
        assert (etcd.compare_and_set("k", b"ours", 5) or 0) == outcome


def test_a_claim_goes_on_when_it_is_not_known_whether_it_was_the_newest() -> None:
    coordinator = MemoryCoordinator(Ensemble())
    change, tries = coordinator.compare_and_set, list[int]()

    def doubtful(key: str, value: bytes, seen: int) -> int | None:
        tries.append(seen)
        if len(tries) == 1:
            change(key, b"other", change(key, value, seen) or ABSENT)
            raise OSError(errno.EAGAIN, "others have replaced it")
        return change(key, value, seen)

    coordinator.compare_and_set = doubtful  # type: ignore[assignment,method-assign]
    number = claim(coordinator, "claim", b"ours")
    found = coordinator.read("claim")
    assert found is not None
    assert (found.value, found.revision) == (b"ours", number)
    assert len(tries) == 2


def test_a_small_directory_that_is_not_mounted_is_not_made(tmp_path: Path) -> None:
    coordinator = open_coordinator(f"file://{tmp_path}/missing")
    with pytest.raises(StoreError, match="mount it") as raised:
        coordinator.read("k")
    assert raised.value.code == "STORE_MISSING"
    assert not (tmp_path / "missing").exists()
