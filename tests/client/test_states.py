"""The table of states × events, cell by cell, and the order and length of reconnects."""

from __future__ import annotations

import itertools
import random

import pytest

from amq.client.errors import IllegalEventError
from amq.client.members import Members
from amq.client.reconnect import Reconnector
from amq.client.states import TABLE, Event, Lifecycle, State, diagram
from amq.client.uri import parse


@pytest.mark.parametrize(("state", "event"), list(itertools.product(State, Event)))
def test_every_cell(state: State, event: Event) -> None:
    life = Lifecycle()
    life.state = state
    if (state, event) in TABLE:
        life.on(event)
        assert life.state is TABLE[state, event]
    else:
        with pytest.raises(IllegalEventError, match=event.value):
            life.on(event)
        assert life.state is state


def test_every_state_is_reached_and_left() -> None:
    assert set(TABLE.values()) | {State.NEW} == set(State)
    for state in set(State):
        reached, todo = set(), [state]
        while todo:
            one = todo.pop()
            if one not in reached:
                reached.add(one)
                todo += [after for (before, _), after in TABLE.items() if before is one]
        assert State.CLOSED in reached


def test_close_is_legal_everywhere() -> None:
    assert {state for state, event in TABLE if event is Event.CLOSE} == set(State)


def test_the_diagram_has_every_cell() -> None:
    lines = diagram().split("\n")
    assert lines[0] == "stateDiagram-v2"
    for (before, event), after in TABLE.items():
        assert f"    {before.value} --> {after.value}: {event.value}" in lines


# ---- reconnecting


def route(options: str = "", uris: str = "stomp://a:1,stomp://b:2,stomp://c:3", seed: int = 0) -> Reconnector:
    return Reconnector(Members(parse(f"failover:({uris})?{options}")), random.Random(seed))


def hosts(reconnector: Reconnector) -> str:
    names = ""
    while (uri := reconnector.next()) is not None:
        names += uri.host
    return names


def test_order_of_a_round() -> None:
    reconnector = route("randomize=false")
    reconnector.start_round()
    assert hosts(reconnector) == "abc"
    a, b, _ = parse("failover:(stomp://a:1,stomp://b:2,stomp://c:3)").uris
    reconnector.start_round(a)
    assert hosts(reconnector) == "bca", "the broker that failed comes last"
    reconnector.start_round(b, same_first=True)
    assert hosts(reconnector) == "bac"


def test_random_order_uses_the_given_randomness() -> None:
    orders = set()
    for seed in range(40):
        first, second = route(seed=seed), route(seed=seed)
        first.start_round()
        second.start_round()
        orders.add(names := hosts(first))
        assert hosts(second) == names
    assert len(orders) == 6


def test_priority_comes_first() -> None:
    reconnector = route("priorityBackup=true&priorityURIs=stomp://c:3")
    for _ in range(10):
        reconnector.start_round()
        assert hosts(reconnector)[0] == "c"


@pytest.mark.parametrize(
    ("options", "waits_ms"),
    [
        ("randomize=false", [10, 20, 40, 80, 160, 200, 200]),
        ("randomize=false&maxReconnectDelay=30&reconnectDelayExponent=1.5", [10, 15, 22.5, 30, 30]),
        ("randomize=false&useExponentialBackOff=false&initialReconnectDelay=7", [7, 7, 7]),
        ("randomize=false&initialReconnectDelay=0", [0, 2, 4, 8]),
        ("randomize=false&initialReconnectDelay=900", [200, 200]),
    ],
)
def test_waits(options: str, waits_ms: list[float]) -> None:
    reconnector = route(options)
    assert [reconnector.round_failed() for _ in waits_ms] == pytest.approx([ms / 1000 for ms in waits_ms])


def test_randomized_waits_stay_between_half_and_whole() -> None:
    reconnector = route("useExponentialBackOff=false&initialReconnectDelay=100")
    waits = [reconnector.round_failed() or 0.0 for _ in range(200)]
    assert 0.05 <= min(waits) < 0.06
    assert 0.09 < max(waits) <= 0.1


@pytest.mark.parametrize(
    ("options", "startup", "later"),
    [
        ("maxReconnectAttempts=2", 2, 2),
        ("maxReconnectAttempts=0", 1, 0),
        ("maxReconnectAttempts=3&startupMaxReconnectAttempts=1", 1, 3),
        ("startupMaxReconnectAttempts=2", 2, None),
    ],
)
def test_attempts(options: str, startup: int, later: int | None) -> None:
    def rounds(reconnector: Reconnector) -> int | None:
        for number in range(1, 50):
            if reconnector.round_failed() is None:
                return number
        return None

    reconnector = route(options)
    assert rounds(reconnector) == startup
    reconnector.accepted(now=100.0)
    if later == 0:
        assert reconnector.lost(now=101.0) is None
    else:
        assert reconnector.lost(now=101.0) is not None
        assert rounds(reconnector) == later


def test_a_broker_that_accepts_and_drops_is_not_hammered() -> None:
    reconnector = route("randomize=false")
    now, waits = 0.0, []
    for _ in range(8):
        reconnector.accepted(now)
        wait = reconnector.lost(now + 0.001)
        assert wait is not None
        waits.append(wait)
        now += wait
    assert waits[-1] == 0.2
    reconnector.accepted(now)
    assert reconnector.lost(now + 10) == 0.01, "a connection that lived starts the waits anew"


def test_warnings_come_in_the_given_rhythm() -> None:
    reconnector = route("warnAfterReconnectAttempts=3")
    warned = []
    for _ in range(7):
        reconnector.round_failed()
        warned.append(reconnector.must_warn)
    assert warned == [False, False, True, False, False, True, False]
    silent = route("warnAfterReconnectAttempts=0")
    silent.round_failed()
    assert not silent.must_warn
