"""What `amq doctor` and `amq start` say of a mount of the lab."""

from __future__ import annotations

import json
from typing import Any

from lab.world import World

UNFIT = 4  # exit code of both


def examine(world: World, number: int, path: str, *words: str) -> tuple[int | None, dict[str, Any]]:
    """(exit code, what it says) of `amq doctor` on guest `number`."""
    code, said = world.amq(world.guests[number], "doctor", path, "--json", *words, timeout_s=90.0)
    try:
        return code, json.loads(said)
    except ValueError:
        return code, {"unreadable": said}


def expect_refused(world: World, reason: str) -> None:
    """On the mount of the first broker host: the doctor calls it unfit and `amq start` does not start, both say why."""
    broker = world.brokers[0]
    code, said = examine(world, broker.guest.number, world.mount)
    world.say(f"amq doctor: exit code {code}, {said.get('verdict')}")
    refused = code == UNFIT and reason in json.dumps(said)
    world.expect(refused, f"amq doctor: exit code {code}, not about {reason}: {said}")
    words = ["start", "--store", world.store, "--name", broker.name, "--transport", "stomp://127.0.0.1:0"]
    code, text = world.amq(broker.guest, *words, timeout_s=30.0)
    world.expect(code == UNFIT and reason in text, f"amq start: exit code {code}, not about {reason}: {text}")
