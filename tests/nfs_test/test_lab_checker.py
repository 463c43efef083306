"""The lab's checker: good histories pass, and each promise has histories that break it and nothing else."""

from __future__ import annotations

import pytest
from lab.checker import check
from lab.history import AckBegun, Acked, Closed, Delivered, Event, History, Opened, Sent, Served, StoreFacts

TAKEOVER: tuple[Event, ...] = (
    Served("a", 1, 1.0),
    Opened("a", 1, 1.1),
    Sent("m1", "a", 1, 2.0, 2.1),
    Delivered("m1", "a", 0, 2.2),
    Served("b", 2, 10.0),
    Closed("a", 1, 10.5),
    Sent("m2", "b", 0, 3.0, 10.1),  # sent again by the client, after the takeover
    Delivered("m1", "b", 0, 10.2),
    AckBegun("m1", 10.3),
    Acked("m1", "b", 10.4),
    Delivered("m2", "b", 0, 10.5),
    AckBegun("m2", 10.6),
    Acked("m2", "b", 10.7),
)


def history(*events: Event, epochs: tuple[dict[str, object], ...] = (), journal_check: int = 0) -> History:
    made = History()
    made.events = list(events)
    made.store = StoreFacts(list(epochs), (journal_check, "said"))
    return made


def epoch(number: int, **sealed: int) -> dict[str, object]:
    return {"number": number, "sealed": sealed}


def test_a_good_takeover_passes() -> None:
    good = history(*TAKEOVER, epochs=(epoch(1), epoch(2, s1=100), epoch(3, s1=100, s2=50)))
    assert check(good) == []


GOOD: dict[str, tuple[Event, ...]] = {
    "an acknowledgement whose outcome nobody knows": (Sent("m", "a", 1, 1.0, 1.1), AckBegun("m", 2.0)),
    "a message that need not be stored": (Sent("m", "a", 1, 1.0, 1.1, persistent=False),),
    "confirmed late, sent in time": (
        Served("a", 1, 0.0),
        Served("b", 2, 5.0),
        Sent("m", "a", 1, 4.9, 6.0),
        Acked("m", "b", 7.0),
    ),
    "epochs of one host": (Served("a", 1, 0.0), Opened("a", 1, 0.5), Served("a", 2, 3.0)),
    "the new master, after itself": (
        Served("a", 1, 0.0),
        Served("b", 2, 5.0),
        Sent("m", "b", 2, 5.1, 5.2),
        Acked("m", "b", 7.0),
    ),
}

BAD: dict[str, tuple[str, tuple[Event, ...]]] = {
    "never delivered": ("confirmed messages lost", (Sent("m", "a", 1, 1.0, 1.1),)),
    "delivered, not acknowledged, and gone": (
        "confirmed messages lost",
        (Sent("m", "a", 1, 1.0, 1.1), Delivered("m", "a", 1, 1.2)),
    ),
    "delivered again after its acknowledgement": (
        "confirmed acknowledgements undone",
        (Acked("m", "a", 2.0), Delivered("m", "b", 2, 3.0)),
    ),
    "confirmed by a deposed master": (
        "signs of two masters",
        (Served("a", 1, 0.0), Served("b", 2, 5.0), Sent("m", "a", 1, 5.1, 5.2, persistent=False)),
    ),
    "confirmed by a deposed master that only a client saw": (
        "signs of two masters",
        (Opened("a", 1, 0.0), Opened("b", 2, 5.0), Sent("m", "a", 1, 5.1, 5.2, persistent=False)),
    ),
    "delivered by a deposed master": (
        "signs of two masters",
        (
            Served("a", 1, 0.0),
            Served("b", 2, 5.0),
            Sent("m", "b", 2, 5.1, 5.2, persistent=False),
            Delivered("m", "a", 1, 5.3),
        ),
    ),
    "an epoch of two hosts": ("signs of two masters", (Served("a", 1, 0.0), Opened("b", 1, 1.0))),
}


@pytest.mark.parametrize("events", GOOD.values(), ids=GOOD)
def test_good_histories_pass(events: tuple[Event, ...]) -> None:
    assert check(history(*events)) == []


@pytest.mark.parametrize(("what", "events"), BAD.values(), ids=BAD)
def test_bad_histories_are_found(what: str, events: tuple[Event, ...]) -> None:
    (finding,) = check(history(*events))
    assert finding.startswith(what)


@pytest.mark.parametrize(
    ("epochs", "what"),
    [
        ((epoch(1), epoch(3)), "not one after the other"),
        ((epoch(1), epoch(2), epoch(2)), "not one after the other"),
        ((epoch(2, s1=100), epoch(3, s1=101)), "s1 was sealed at 100 by epoch 2 and at 101 by epoch 3"),
    ],
)
def test_inconsistent_epochs_are_found(epochs: tuple[dict[str, object], ...], what: str) -> None:
    (finding,) = check(history(epochs=epochs))
    assert what in finding


def test_a_damaged_journal_is_found() -> None:
    (finding,) = check(history(journal_check=4))
    assert "exit code 4" in finding
