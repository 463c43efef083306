"""The contract of `amq.store.coordinator.Coordinator`, which each adapter keeps. `new` makes the view of one more
process; `names` of keys are unique for each check, so that servers may be shared."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable

from amq.store.coordinator import ABSENT, VALUE_BYTES_MAX, Coordinator, claim
from tests.patience import DEADLINE_S

Coordinators = Callable[[], Coordinator]


def check_entries(new: Coordinators, key: str) -> None:
    one, other = new(), new()
    assert one.read(key) is None
    assert one.names(key) == []

    # Of two that change it from the same revision, one succeeds.
    first = one.compare_and_set(key, b"one", ABSENT)
    assert first is not None
    assert other.compare_and_set(key, b"other", ABSENT) is None
    found = other.read(key)
    assert found is not None
    assert (found.key, found.value, found.revision) == (key, b"one", first)
    second = other.compare_and_set(key, b"other's", first)
    assert second is not None
    assert second > first
    assert one.compare_and_set(key, b"one's", first) is None
    assert one.compare_and_set(key, b"one's", second + 1) is None

    # A writer that asks again because the answer was lost hears that its change took place.
    assert other.compare_and_set(key, b"other's", first) == second

    # Another entry is made before it, where it is not there.
    second = other.compare_and_set(key, b"again", second, (f"{key}-first", b"1")) or ABSENT
    second = other.compare_and_set(key, b"and again", second, (f"{key}-first", b"2")) or ABSENT
    found, made = one.read(key), one.read(f"{key}-first")
    assert found is not None
    assert made is not None
    assert (found.value, found.revision, made.value) == (b"and again", second, b"1")

    # Any bytes, none, and many.
    third = one.compare_and_set(key, b"", second)
    assert third is not None
    fourth = one.compare_and_set(key, bytes(range(256)) * (VALUE_BYTES_MAX // 256), third)
    assert fourth is not None
    found = other.read(key)
    assert found is not None
    assert found.value == bytes(range(256)) * (VALUE_BYTES_MAX // 256)

    # Removed only as it was seen; made again with a greater revision.
    assert not one.remove(key, second)
    assert one.remove(key, fourth)
    assert not one.remove(key, fourth)
    assert one.compare_and_set(key, b"late", fourth) is None
    assert other.read(key) is None
    fifth = other.compare_and_set(key, b"again", ABSENT)
    assert fifth is not None
    assert fifth > fourth

    # A claim gets a greater number than every one before it.
    numbers = [claim(each, key, f"claim {number}".encode()) for number, each in enumerate((one, other, other, one))]
    assert [fifth, *numbers] == sorted({fifth, *numbers})
    found = other.read(key)
    assert found is not None
    assert (found.value, found.revision) == (b"claim 3", numbers[-1])


def check_names(new: Coordinators, key: str) -> None:
    one, other = new(), new()
    for name in ("b", "a/x", "a/y", "c d"):
        assert one.compare_and_set(f"{key}/{name}", name.encode(), ABSENT) is not None
    assert one.compare_and_set(f"{key}x", b"beside it", ABSENT) is not None
    assert other.names(key) == ["a", "b", "c d"]
    assert other.names(f"{key}/a") == ["x", "y"]
    assert other.names(f"{key}/b") == []

    # Several are read for one question, and all below a directory.
    entries = [each for name in ("b", "a/x", "a/y") if (each := other.read(f"{key}/{name}")) is not None]
    found = other.read_all(f"{key}/b", f"{key}/a/", f"{key}/missing", f"{key}/b/")
    assert found == {each.key: each for each in entries}
    assert other.read_all(f"{key}/missing", f"{key}/missing/") == {}
    assert one.remove(f"{key}/b", entries[0].revision)
    assert other.read_all(f"{key}/b", f"{key}/a/x") == {entries[1].key: entries[1]}


def check_racing(new: Coordinators, key: str) -> None:
    """Each of those who count up together gets its own number. A writer that is not told whether it has changed the
    entry, because others were too quick, goes on."""
    writers, rounds = 4, 5
    won: list[int] = []
    unsure: set[int] = set()
    tries = itertools.count()

    def count(me: int) -> None:
        coordinator = new()
        done = 0
        while done < rounds:
            found = coordinator.read(key)
            seen, number = (found.revision, int(found.value.split()[0])) if found is not None else (ABSENT, 0)
            try:
                revision = coordinator.compare_and_set(key, f"{number + 1} {me} {next(tries)}".encode(), seen)
            except OSError:
                unsure.add(number + 1)
                continue
            if revision is not None:
                won.append(number + 1)
                done += 1

    threads = [threading.Thread(target=count, args=(me,)) for me in range(writers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    last = new().read(key)
    assert last is not None
    assert len(won) == len(set(won)) == writers * rounds
    assert set(range(1, int(last.value.split()[0]) + 1)) - set(won) <= unsure


def check_sessions(new: Coordinators, key: str) -> None:
    one, other = new(), new()
    session, second = one.open_session(), other.open_session()
    assert 0 < session.rest_s() <= one.session_s
    number = session.hold(f"{key}/a", b"of one")
    assert number is not None
    assert second.hold(f"{key}/a", b"of other") is None
    found = other.read(f"{key}/a")
    assert found is not None
    assert (found.value, found.revision) == (b"of one", number)
    assert other.names(key) == ["a"]
    assert other.read_all(f"{key}/") == {found.key: found}

    # It goes with its session, and wakes who watches.
    with other.watch(key) as watch:
        assert not watch.wait(0.0)
        session.close()
        assert watch.wait(DEADLINE_S)
    assert other.read(f"{key}/a") is None
    assert other.read_all(f"{key}/a", f"{key}/") == {}
    assert session.rest_s() == 0
    again = second.hold(f"{key}/a", b"of other")
    assert again is not None
    assert again > number

    # Anybody may remove it, as it was seen.
    assert not one.remove(f"{key}/a", number)
    assert one.remove(f"{key}/a", again)
    assert other.read(f"{key}/a") is None
    second.close()
    second.close()
    assert all(not why for _, why in one.servers())


CHECKS = (check_entries, check_names, check_racing, check_sessions)
