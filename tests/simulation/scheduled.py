"""Scheduled messages: some once, some again and again, to a queue.

A job is what an application sends; each delivery of it is a separate message, `JOB#SEQ`. The checker: a job falls due
as often as it says, never early by the clock of the master then, at its times and at no others, each in one step of the
journal that leaves what is still to come; and with each new master what fell due and what is to come is the whole job.
Clocks of hosts are a little apart, and do not jump: whoever needs exact times keeps them in step.
"""

from __future__ import annotations

from functools import partial
from random import Random
from typing import TYPE_CHECKING

from amq.broker.broker import Broker
from amq.broker.names import SCHEDULE_SCHEME
from amq.broker.scheduling.scheduler import JOB_ID
from amq.broker.scheduling.timing import DELAY, PERIOD, REPEAT
from amq.client import aio
from amq.config.destination_options import DestinationOptions
from amq.core.message import Message
from amq.journal.batch import OpenBatch
from amq.journal.records import FIRED, Consumed, Group
from tests.simulation.clients import Consumer, Producer, application_id
from tests.simulation.features import Feature, Make
from tests.simulation.oracle import Oracle

if TYPE_CHECKING:
    from tests.simulation.world import World

QUEUE = "s"
SCHEDULE = f"{SCHEDULE_SCHEME}queue.{QUEUE}"
TARGET = f"queue://{QUEUE}"
OFFSET_S = 0.5  # of a host's wall clock, at most


def headers_of(job: str) -> dict[str, str]:
    """How that job is scheduled: the same whenever it is sent."""
    dice = Random(job)
    times = {DELAY: str(dice.choice((1, 300, 2000, 5000)))}
    if dice.random() < 0.4:
        times |= {PERIOD: str(dice.choice((250, 1000))), REPEAT: str(dice.randint(1, 3))}
    return times


def job_of(message: Message) -> str:
    return message.body.rstrip(b".").decode()


class Scheduled(Feature):
    """Jobs by the id that their application gave. `_left` = how often each falls due yet, as the journal says."""

    destinations = tuple(DestinationOptions(name, {"queue_limit_bytes": 0}) for name in (QUEUE, f"queue.{QUEUE}"))

    def __init__(self, oracle: Oracle, seed: int) -> None:
        super().__init__(oracle, seed)
        self.begun_s: dict[str, float] = {}
        self.confirmed: set[str] = set()
        self._rows: dict[int, Message] = {}  # seq → what waits, or waited, until it is due
        self._deliveries: dict[str, set[int]] = {}  # job → seqs

    def prepare(self, world: World) -> None:
        for machine in world.machines:
            machine.wall_offset_s = self.dice.uniform(-OFFSET_S, OFFSET_S)
        world.faults = [fault for fault in world.faults if fault.kind != "wall_clock"]

    def applications(self) -> list[Make]:
        return [
            *(partial(JobProducer, feature=self, burst=burst) for burst in (1, 4)),
            *(partial(JobConsumer, feature=self, prefetch=self.dice.choice((1, 20))) for _ in range(2)),
        ]

    def _broken(self, what: str) -> None:
        self.oracle.broken("schedule", what)

    def received(self, job: str) -> None:
        """A delivery of it comes to a consumer."""
        now_s, delay_s = self.oracle.now_s, int(headers_of(job)[DELAY]) / 1000
        if now_s < self.begun_s[job] + delay_s - 2 * OFFSET_S:
            self._broken(f"{job} came {now_s - self.begun_s[job]:.3f} s after it was sent, and before its time")

    # -- what brokers do ----------------------------------------------------------------------------------------------

    def committed(self, broker: Broker, batch: OpenBatch) -> None:
        for record in batch.records:
            if isinstance(record, Group):
                self._group(broker, record)
            elif isinstance(record, Message) and record.destination == SCHEDULE:
                self._wait(record)

    def _group(self, broker: Broker, group: Group) -> None:
        messages = [part for part in group.records if isinstance(part, Message)]
        waiting = [message for message in messages if message.destination == SCHEDULE]
        again = {
            message.properties[JOB_ID]: message
            for message in waiting
            if message.properties and JOB_ID in message.properties
        }
        delivered = [job_of(message) for message in messages if message.destination == TARGET]
        fired = [
            self._rows[seq]
            for part in group.records
            if isinstance(part, Consumed) and part.reason == FIRED and part.destination == SCHEDULE
            for seq in part.seqs
        ]
        if sorted(delivered) != sorted(job_of(row) for row in fired):
            self._broken(f"{[job_of(row) for row in fired]} fell due, delivered are {delivered}")
        for row in fired:
            self._check_due(broker, row, again.pop(_first(row), None))
        if again:
            self._broken(f"{again} wait in the schedule, and did not fall due")
        for message in waiting:
            self._wait(message)
        for message in messages:
            if message.destination == TARGET:
                self._deliver(message)

    def _check_due(self, broker: Broker, row: Message, again: Message | None) -> None:
        """`row` falls due now; `again` waits in place of it."""
        now_ms, properties = broker.clock.wall_ms(), row.properties or {}
        if now_ms < row.expires_ms:
            self._broken(f"{job_of(row)} fell due {row.expires_ms - now_ms} ms before its time")
        left = int(properties.get(REPEAT, "0"))
        if (again is not None) != (left > 0):
            self._broken(f"{job_of(row)} falls due {left} times more, and what waits for that is {again}")
        if again is not None:
            later_ms, kept = again.expires_ms - row.expires_ms, int((again.properties or {}).get(REPEAT, "0"))
            if later_ms <= 0 or later_ms % int(properties[PERIOD]) or kept != left - 1:
                self._broken(f"{job_of(row)} comes again {later_ms} ms later, then {kept} times: it had {properties}")
            self.oracle.counts["fell due again"] += 1

    def _wait(self, row: Message) -> None:
        if row.seq not in self._rows:
            self._rows[row.seq] = row
            self.oracle.counts["scheduled"] += 1

    def _deliver(self, message: Message) -> None:
        job = job_of(message)
        if message.seq not in self._deliveries.setdefault(job, set()):
            self._deliveries[job].add(message.seq)
            self.oracle.sending(f"{job}#{message.seq}", QUEUE, "schedule", message.seq)
            self.oracle.sent[f"{job}#{message.seq}"].may_be_early = True
            self.oracle.counts["fell due"] += 1

    def begins(self, broker: Broker, found: dict[str, dict[int, Message]]) -> None:
        for row in found.get(SCHEDULE, {}).values():
            self._wait(row)
        for message in found.get(TARGET, {}).values():
            self._deliver(message)
        waits: dict[str, int] = {}
        for row in found.get(SCHEDULE, {}).values():
            waits[job_of(row)] = waits.get(job_of(row), 0) + 1 + int((row.properties or {}).get(REPEAT, "0"))
        for job in {job_of(row) for row in self._rows.values()}:
            self._check_sum(job, waits.get(job, 0), f"epoch {broker.epoch}")
        self.oracle.withdrawn.update(self._rows.keys() - found.get(SCHEDULE, {}).keys())

    def _check_sum(self, job: str, to_come: int, where: str) -> None:
        fell_due, wanted = len(self._deliveries.get(job, ())), 1 + int(headers_of(job).get(REPEAT, "0"))
        if fell_due + to_come != wanted:
            self._broken(f"{job} fell due {fell_due} times, in {where} it does so {to_come} times more: not {wanted}")

    def finish(self) -> None:
        for job in self.confirmed | self._deliveries.keys():
            self._check_sum(job, 0, "the end")
            for seq in self._deliveries.get(job, ()):
                if not self.oracle.arrived(f"{job}#{seq}"):
                    self._broken(f"{job} fell due as {seq}, which nobody got")


def _first(row: Message) -> str:
    """Seq of what the application sent, by which `row` is known in all its deliveries."""
    return (row.properties or {}).get(JOB_ID, str(row.seq))


class JobProducer(Producer):
    """Sends what is to be delivered later."""

    def __init__(self, name: str, url: str, oracle: Oracle, rng: Random, feature: Scheduled, burst: int) -> None:
        super().__init__(name, url, oracle, rng, QUEUE, burst, 100)
        self._feature = feature

    def headers(self, message_id: str) -> dict[str, str] | None:
        self._feature.begun_s.setdefault(message_id, self.oracle.now_s)
        return headers_of(message_id)

    def _confirmed(self, message_id: str) -> None:
        self._feature.confirmed.add(message_id)
        self.oracle.log(f"scheduled {message_id}")


class JobConsumer(Consumer):
    """Gets what fell due."""

    def __init__(self, name: str, url: str, oracle: Oracle, rng: Random, feature: Scheduled, prefetch: int) -> None:
        super().__init__(name, url, oracle, rng, QUEUE, prefetch)
        self._feature = feature

    def _id(self, message: aio.Message) -> str:
        job = application_id(message)
        self._feature.received(job)
        return f"{job}#{message.id.rpartition('-')[2]}"
