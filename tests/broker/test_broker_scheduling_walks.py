"""Random walks: whatever comes together, each scheduled message falls due as often as it was asked for, never early.

Nobody consumes, so what fell due is in its queue, where it can be counted.
"""

from __future__ import annotations

import random
from collections import Counter
from contextlib import nullcontext
from pathlib import Path

import pytest

from amq.broker.scheduling.scheduler import FULL_MS
from amq.core.message import Message
from amq.protocols.commands import Send
from amq.protocols.stomp.subscribing import ACK_AUTO
from tests.broker.test_broker_disk import low_on_disk, room_again
from tests.broker.test_broker_scheduling import SCHEDULED, later
from tests.broker.world import Client, World
from tests.large import large_from
from tests.sampling import sampled

STEPS = 150
LARGE = 700
SLACK_MS = 20
WEIGHTS = {
    "send": 20,
    "time_passes": 20,
    "turn": 15,
    "disk_works": 15,
    "settle": 5,
    "traffic": 10,
    "crash": 3,
    "remove": 3,
    "disk_fills_or_empties": 2,
    "slave_follows": 5,
    "sweep": 2,
}


class Walk:
    """One store on its way. `asked` = body → (receipt, who asked, first time it is due, period, times)."""

    def __init__(self, path: Path, seed: int) -> None:
        self.dice = random.Random(seed)
        self.world = World(
            path,
            seed,
            journal_segment_size_bytes=self.dice.choice([3000, 8000, 16 << 10]),
            checkpoint_distance_bytes=self.dice.choice([0, 2000, 20_000]),
        )
        self.asked: dict[bytes, tuple[str, Client, int, int, int]] = {}
        self.kept: set[bytes] = set()  # persistent
        self.removing: dict[bytes, tuple[str, Client]] = {}
        self.removed: Counter[bytes] = Counter()  # body → how often it had fallen due when its removal was confirmed
        self.is_full = False
        self.room_since_s = 0.0
        self._connect()

    def _connect(self) -> None:
        self.client = self.world.connect()
        self.consumer = self.world.connect()
        self.consumer.subscribe("other", ACK_AUTO)

    # -- what happens -------------------------------------------------------------------------------------------------

    def send(self) -> None:
        if self.client.refused or not self.client.reading:
            self.client = self.world.connect()
        body = b"%d " % len(self.asked) + b"x" * self.dice.choice([0, 10, LARGE + 50])
        delay_ms, period_ms = self.dice.choice([0, 1, 100, 2500, 9000]), self.dice.choice([0, 300, 1700])
        repeat = self.dice.choice([1, 4]) if period_ms else 0
        headers = {"AMQ_SCHEDULED_DELAY": str(delay_ms)}
        if period_ms:
            headers |= {"AMQ_SCHEDULED_PERIOD": str(period_ms), "AMQ_SCHEDULED_REPEAT": str(repeat)}
        first_ms = self.world.clock.wall_ms() + (delay_ms or period_ms)
        persistent = self.dice.random() < 0.85
        receipt = self.client.send(body, properties=headers, persistent=persistent, priority=self.dice.choice([4, 7]))
        self.asked[body] = receipt, self.client, first_ms, period_ms, repeat + 1
        if persistent:
            self.kept.add(body)

    def remove(self) -> None:
        schedule = self.world.broker.state.queues.get(SCHEDULED)
        if schedule is None or self.client.refused:
            return
        found = self.world.everything(schedule)
        if found:
            seq = self.dice.choice(list(found))
            headers = {"AMQ_SCHEDULER_ACTION": "REMOVE", "scheduledJobId": str(seq)}
            receipt = self.world.next_receipt()
            self.client.do(Send(Message("topic://ActiveMQ.Scheduler.Management", b"", headers), receipt))
            self.removing[found[seq].body] = receipt, self.client

    def traffic(self) -> None:
        """What fills segments, and is consumed at once: what is scheduled must be copied forward."""
        producer = self.world.connect()
        for _ in range(5):
            producer.send(b"t" * 300, "other", receipt=False)

    def time_passes(self) -> None:
        if self.dice.random() < 0.5:
            self.world.clock.advance(self.dice.choice([0.001, 0.1, 2.0, 5.0]))
        else:
            later(self.world, self.dice.choice([0.3, 2.0]))
            self._check_nothing_is_late()

    def turn(self) -> None:
        self.world.turn(inline=self.dice.random() < 0.2, unasked=True)

    def disk_works(self) -> None:
        for _ in range(self.dice.randint(1, 3)):
            self.world.runner.step()

    def settle(self) -> None:
        self.world.settle()
        self.world.check()

    def sweep(self) -> None:
        self.world.broker.sweep()

    def slave_follows(self) -> None:
        self.world.follow(self.dice.choice([300, 1 << 30]))

    def disk_fills_or_empties(self) -> None:
        if self.is_full:
            room_again(self.world)
            self.room_since_s = self.world.clock.monotonic()
        else:
            low_on_disk(self.world)
        self.is_full = not self.is_full

    def crash(self) -> None:
        if self.is_full:
            self.disk_fills_or_empties()
        self.world.crash(jobs=self.dice.randint(0, 3), torn=self.dice.choice([None, self.dice.random()]))
        self.world.clock.advance(self.dice.choice([0.0, 4.0]))
        self.world.start()
        self.world.settle()
        self._connect()

    # -- what must hold -----------------------------------------------------------------------------------------------

    def _fell_due(self) -> Counter[bytes]:
        return Counter(self.world.stored())

    def _check_nothing_is_late(self) -> None:
        schedule = self.world.broker.state.queues.get(SCHEDULED)
        tried_again = self.world.clock.monotonic() > self.room_since_s + FULL_MS / 1000 + 0.1
        if schedule is not None and not self.is_full and tried_again:
            due = [message.expires_ms for message in self.world.everything(schedule).values()]
            assert min(due, default=1 << 62) > self.world.clock.wall_ms() - SLACK_MS

    def _note_removals(self) -> None:
        for body, (receipt, client) in list(self.removing.items()):
            if receipt in client.confirmed:
                del self.removing[body]
                self.removed.setdefault(body, self._fell_due()[body])

    def walk(self) -> None:
        for _ in range(STEPS):
            [name] = self.dice.choices(list(WEIGHTS), list(WEIGHTS.values()))
            getattr(self, name)()
            self._note_removals()
        self.crash()
        for _ in range(30):
            later(self.world, 1.0)
        self._check_end()

    def _check_end(self) -> None:
        world = self.world
        assert SCHEDULED not in world.broker.state.queues or not world.broker.state.queues[SCHEDULED].stored
        counts = self._fell_due()
        for body, (receipt, client, _, _, times) in self.asked.items():
            is_sure = receipt in client.confirmed and body in self.kept
            if body in self.removed:
                assert counts[body] <= self.removed[body], "it fell due after its removal was confirmed"
            elif body in self.removing or not is_sure:
                assert counts[body] <= times
            else:
                assert counts[body] == times, (body[:10], counts[body], times)
        nth: Counter[bytes] = Counter()
        for message in world.everything(world.broker.state.queues["queue://a"]).values():
            _, _, first_ms, period_ms, _ = self.asked[message.body]
            assert message.timestamp_ms >= first_ms + nth[message.body] * period_ms, "it came too early"
            nth[message.body] += 1
        world.check_at_rest()


@pytest.mark.parametrize("seed", sampled(range(20)))
def test_a_walk(tmp_path: Path, seed: int) -> None:
    walk = None
    with large_from(LARGE) if seed % 2 else nullcontext():
        try:
            walk = Walk(tmp_path, seed)
            walk.walk()
        finally:
            if walk is not None:
                walk.world.close()
