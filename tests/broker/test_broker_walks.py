"""The rules of test_broker_model.py on long walks, where rare things come together; hypothesis shrinks better, and
walks less far.
"""

from __future__ import annotations

import random
from typing import Any

import pytest

from amq.protocols.stomp.subscribing import ACK_AUTO, ACK_CLIENT, ACK_INDIVIDUAL
from tests.broker.test_broker_model import ALL_QUEUES, LARGE, MODES, QUEUES, SLICES, BrokerMachine
from tests.sampling import sampled

WALK_STEPS = 400
WEIGHTS = {
    "send": 20,
    "settle_delivery": 20,
    "turn": 14,
    "disk_works": 14,
    "begin": 4,
    "commit": 5,
    "abort": 1,
    "settle": 3,
    "subscribe": 3,
    "unsubscribe": 2,
    "connect": 2,
    "lose": 2,
    "ask_for_outcome": 2,
    "time_passes": 1,
    "sweep": 1,
    "lease_is_in_doubt": 1,
    "lease_is_proved": 4,
    "disk_fills_or_empties": 1,
    "crash": 2,
    "rest": 2,
    "slave_follows": 6,
}


def arguments(name: str, dice: random.Random) -> dict[str, Any]:
    """What hypothesis would have drawn."""
    drawn: dict[str, Any] = {"which": dice.randrange(1 << 16), "index": dice.randrange(1 << 16)}
    drawn |= {
        "send": {
            "queue": dice.choice(QUEUES),
            "persistent": dice.random() < 0.8,
            "priority": dice.choice([4, 4, 4, 0, 9]),
            "expires_s": dice.choice([0, 0, 0, 0, 1, 3]),
            "duplicate": dice.choice(["", "", *"123456789"]),
            "in_tx": dice.random() < 0.3,
            "size": dice.choice([0, 0, 200]),
            "receipt": dice.random() < 0.8,
            "times": dice.randint(1, 3),
        },
        "settle_delivery": {
            "nack": dice.random() < 0.2,
            "in_tx": dice.random() < 0.5,
            "receipt": dice.random() < 0.8,
        },
        "subscribe": {
            "queue": dice.choice(ALL_QUEUES),
            "ack": dice.choice([ACK_AUTO, ACK_CLIENT, ACK_INDIVIDUAL]),
            "prefetch": dice.randint(1, 3),
        },
        "turn": {"inline": dice.random() < 0.2, "unasked": dice.random() < 0.3},
        "disk_works": {"count": dice.randint(1, 4)},
        "slave_follows": {"budget": dice.choice([1, 300, 1 << 30])},
        "time_passes": {"seconds": dice.choice([0.5, 1.0, 2.0])},
        "disk_fills_or_empties": {"full": dice.random() < 0.5},
        "crash": {"jobs": dice.randint(0, 3), "torn": dice.choice([None, dice.random()])},
    }.get(name, {})
    wanted = getattr(BrokerMachine, name).hypothesis_stateful_rule.arguments
    return {key: value for key, value in drawn.items() if key in wanted}


def walk(mode: str, seed: int, steps: int, kind: type[BrokerMachine] = BrokerMachine) -> None:
    dice, machine = random.Random(seed), kind()
    machine.begin_world(
        mode=mode,
        limit=dice.choice([-1, 0, 1, 3]),
        expired=dice.choice(["drop", "dead-letter"]),
        window=dice.randint(1, 6),
        segment=dice.choice([700, 1500, 4096]),
        batch=dice.choice([300, 1 << 20]),
        large=dice.choice(LARGE),
        distance=dice.choice([0, 500, 3000]),
        slices=SLICES[seed % 2],
    )
    try:
        for _ in range(steps):
            [name] = dice.choices(list(WEIGHTS), list(WEIGHTS.values()))
            chosen = getattr(BrokerMachine, name).hypothesis_stateful_rule
            if all(condition(machine) for condition in chosen.preconditions):
                chosen.function(machine, **arguments(name, dice))
                machine.receipts_are_believed()
                machine.counts_are_right()
    except BaseException:
        machine.abandon()
        raise
    machine.teardown()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", sampled(range(15)))
def test_long_walk(mode: str, seed: int) -> None:
    walk(mode, seed, WALK_STEPS)
