"""The random work of test_broker_model.py with queues that drop their oldest messages."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from amq.broker.queues.limits import DROPPED, Limits
from amq.broker.queues.queue import Subscription
from amq.config.destination_options import DestinationOptions
from amq.core.message import Message
from tests.broker.model import DLQ
from tests.broker.test_broker_model import MODES, QUEUES, BrokerMachine
from tests.broker.test_broker_walks import walk
from tests.broker.world import Client
from tests.sampling import sampled

LIMIT_BYTES = 600
WALK_STEPS = 300


class DroppingMachine(BrokerMachine):
    """Each queue keeps a few messages; a dead-letter queue what comes."""

    options: ClassVar[dict[str, Any]] = {
        "queue_limit_bytes": LIMIT_BYTES,
        "queue_limit_policy": "drop-oldest",
        "destinations": (DestinationOptions(f"{DLQ}>", {"queue_limit_bytes": 0}),),
    }
    dropped = 0

    def delivered(self, client: Client, subscription: Subscription, message: Message, redelivered: int) -> None:
        super().delivered(client, subscription, message, redelivered)
        DroppingMachine.dropped += (message.properties or {}).get("dead-letter-reason") == DROPPED

    def rest(self) -> None:
        super().rest()
        for name in QUEUES:
            queue = self.world.broker.state.queues.get("queue://" + name)
            if queue is not None and queue.waiting and not self.model.full:
                assert queue.stored_bytes <= LIMIT_BYTES, "more than the limit waits"


@pytest.fixture(autouse=True)
def nobody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Senders would wait for a slow disk; the model knows of none that do."""
    monkeypatch.setattr(Limits, "_is_dropping", lambda _self, _queue: False)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", sampled(range(5)))
def test_long_walk(mode: str, seed: int) -> None:
    before = DroppingMachine.dropped
    walk(mode, seed, WALK_STEPS, DroppingMachine)
    assert DroppingMachine.dropped > before, "nothing was dropped"
