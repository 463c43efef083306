"""Leases: a job sets messages apart, reads them, perhaps again, and settles them; others consume from the same queue.

The checker: what a lease holds, and in which order, never changes; nobody else gets it, and nobody can lease it, until
it ends, as a whole and as somebody asked or by its timeout; each later master has it, or knows how it ended; and to ask
again for what is beyond a number finds what is there. A reader takes its cursor; what it asks for with an older epoch
is rejected, on whatever master, and nothing else is.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from random import Random

from amq.broker.broker import Broker
from amq.broker.names import HELD_SCHEME
from amq.broker.queues.browser import Browser
from amq.broker.queues.queue import Subscription
from amq.client import aio
from amq.client.leases import MessageLease
from amq.config.destination_options import DestinationOptions
from amq.core.errors import CommandError
from amq.core.message import Message
from amq.core.ownership import owned
from amq.core.xid import XID_COMMITTED, XID_ROLLED_BACK
from amq.journal.batch import OpenBatch
from amq.journal.records import LEASE, Consumed, Group, Moved, Prepared, Resolved
from amq.transports.peer import Peer
from tests.simulation.clients import CALL_S, Application, Consumer, Producer, address, application_id
from tests.simulation.features import Feature, Make
from tests.simulation.oracle import Oracle

QUEUE = "l"
SOURCE = f"queue://{QUEUE}"
CURSORS = ("nightly", "hourly")
LOOK_S = 0.4
CURSOR_TAKEN = "CURSOR_TAKEN"


@dataclass(slots=True)
class Held:
    """One lease, as the journal says. `ended` = was it acknowledged? `tried` = how somebody tried to end it."""

    record: Prepared
    ended: bool | None = None
    tried: set[bool] = field(default_factory=set)

    @property
    def seqs(self) -> list[int]:
        return self.record.acks[SOURCE]


class Leases(Feature):
    """Leases by xid."""

    destinations = (DestinationOptions(QUEUE, {"queue_limit_bytes": 0}),)

    def __init__(self, oracle: Oracle, seed: int) -> None:
        super().__init__(oracle, seed)
        self.known: dict[str, Held] = {}
        self.ids: dict[int, str] = {}  # of what was read, by seq
        self._by_seq: dict[int, Held] = {}  # the last that held it

    def applications(self) -> list[Make]:
        timeout_s = self.dice.choice((0.0, 0.0, 2.0))
        consumers = self.dice.randrange(2)
        return [
            partial(Producer, queue=QUEUE, burst=4, body_bytes=100),
            *(partial(Reader, feature=self, cursor=cursor, timeout_s=timeout_s) for cursor in CURSORS),
            *(partial(Consumer, queue=QUEUE, prefetch=3) for _ in range(consumers)),
        ]

    def _broken(self, what: str) -> None:
        self.oracle.broken("lease", what)

    # -- what readers are told ----------------------------------------------------------------------------------------

    def given(self, cursor: str, after: int, lease: MessageLease) -> Held:
        """To who asked for what is beyond number `after`."""
        held = self.known.get(_xid(cursor, lease.number))
        assert held is not None, f"{cursor} was given {lease}, and no journal has it"
        if lease.number <= after or lease.messages != len(held.seqs):
            self._broken(f"{cursor} was given {lease} beyond {after}: it holds {held.seqs}")
        for each in self.known.values():
            older = each.record.owner == LEASE + cursor and after < each.record.seq < lease.number
            if older and each.ended is None and not each.tried and not each.record.timeout_ms:
                self._broken(f"{cursor} was given {lease} beyond {after}, where it has {each.record.xid}")
        return held

    def read(self, held: Held, start: int, seqs: list[int]) -> None:
        """Somebody read that, from position `start` on, up to what he wanted."""
        self.oracle.counts["leased messages read"] += len(seqs)
        if held.seqs[start : start + len(seqs)] != seqs:
            self._broken(f"{held.record.xid} holds {held.seqs}, read from {start} were {seqs}")

    def settling(self, held: Held, acknowledge: bool) -> None:
        """Somebody asks for its end."""
        held.tried.add(acknowledge)
        if acknowledge:
            for seq in held.seqs:
                self.oracle.acknowledging(self.ids[seq])

    def settled(self, held: Held, acknowledge: bool, epoch: int) -> None:
        """Somebody learned that it is over."""
        self.oracle.log(f"settled {held.record.xid}")
        if held.ended is None or (held.ended is not acknowledge and not held.record.timeout_ms):
            self._broken(f"{held.record.xid}: told that {acknowledge=} is done, for the journal it is {held.ended}")
        for seq in held.seqs if held.ended and epoch else ():
            self.oracle.acknowledged(self.ids[seq], epoch)

    # -- what brokers do ----------------------------------------------------------------------------------------------

    def committed(self, broker: Broker, batch: OpenBatch) -> None:
        for group in batch.records:
            parts = group.records if isinstance(group, Group) else []
            ends = [part for part in parts if isinstance(part, Resolved) and part.xid in self.known]
            for part in parts:
                if isinstance(part, Prepared) and part.owner.startswith(LEASE):
                    self._learn(broker, part)
            if ends:
                self._check_whole(ends, parts)
                for end in ends:
                    self._end(self.known[end.xid], end.committed)
            for part in parts if ends else ():
                if isinstance(part, Moved):
                    places = filter(None, map(broker.state.queue(part.source).find, part.seqs))
                    self.oracle.limits.came_late(part.target, part.seqs, sum(place.size for place in places))

    def _learn(self, broker: Broker, record: Prepared) -> None:
        held = self.known.get(record.xid)
        if held is not None:
            if held.record != record or held.ended is not None:
                self._broken(f"{record.xid} is given again, otherwise or after its end: {record}")
            return
        newest = max((each.record.seq for each in self.known.values() if each.record.owner == record.owner), default=0)
        if record.seq <= newest or record.xid != f"{record.owner}:{record.seq}":
            self._broken(f"{record.xid} of epoch {broker.epoch} comes behind {newest}")
        held = self.known[record.xid] = Held(record)
        for seq in held.seqs:
            if seq in self._by_seq and self._by_seq[seq].ended is not False:
                self._broken(f"seq {seq} is in {record.xid}, and in {self._by_seq[seq].record.xid}")
            self._by_seq[seq] = held
        self.oracle.counts["leases"] += 1

    def _check_whole(self, ends: list[Resolved], parts: list[object]) -> None:
        """Do `parts`, of one group, all that they must for the leases that end there, and nothing else?"""
        wanted = Counter(
            (HELD_SCHEME + SOURCE, "" if end.committed else SOURCE, seq)
            for end in ends
            for seq in self.known[end.xid].seqs
        )
        found: Counter[tuple[str, str, int]] = Counter()
        for part in parts:
            if isinstance(part, Consumed):
                found.update((part.destination, "", seq) for seq in part.seqs)
            elif isinstance(part, Moved):
                found.update((part.source, part.target, seq) for seq in part.seqs)
        if found != wanted:
            self._broken(f"{[end.xid for end in ends]} end in part: {found} in place of {wanted}")

    def _end(self, held: Held, acknowledged: bool) -> None:
        """It has ended, says the journal. May it have, like that?"""
        timed_out = not acknowledged and held.record.timeout_ms
        if held.ended is not None or not (acknowledged in held.tried or timed_out):
            self._broken(f"{held.record.xid} ends, {acknowledged=}, before {held.ended}, tried {held.tried}")
        held.ended = acknowledged
        self.oracle.counts["leases acknowledged" if acknowledged else "leases given back"] += 1
        for seq in () if acknowledged else held.seqs:
            if seq in self.ids:
                self.oracle.sent[self.ids[seq]].ack_tried = False

    def begins(self, broker: Broker, found: dict[str, dict[int, Message]]) -> None:
        for record, _ in broker.state.prepared.values():
            if record.owner.startswith(LEASE):
                self._learn(broker, record)
        for held in self.known.values():
            xid = held.record.xid
            if held.record.key in broker.state.prepared:
                if held.ended is not None:
                    self._broken(f"{xid} has ended, and epoch {broker.epoch} has it")
                continue
            user = held.record.user
            acknowledged = owned(user, XID_COMMITTED + xid) in broker.state.outcomes
            if acknowledged == (owned(user, XID_ROLLED_BACK + xid) in broker.state.outcomes):
                self._broken(f"epoch {broker.epoch} does not know what became of {xid}")
            elif held.ended is None:  # durable when its master died, and not yet confirmed
                self._end(held, acknowledged)
                here = found.get(SOURCE, {})
                size = sum(here[seq].size for seq in held.seqs if seq in here)
                self.oracle.limits.came_late(SOURCE, held.seqs, 0 if acknowledged else size)
                for seq in held.seqs if acknowledged else ():
                    self.oracle.gone(seq, broker.epoch - 1)
            elif held.ended is not acknowledged:
                self._broken(f"{xid} ended, acknowledged {held.ended}, for epoch {broker.epoch} {acknowledged}")
        wanted = {seq for held in self.known.values() if held.ended is None for seq in held.seqs}
        if wanted != found.get(HELD_SCHEME + SOURCE, {}).keys():
            self._broken(f"epoch {broker.epoch} holds {sorted(found.get(HELD_SCHEME + SOURCE, {}))}, not {wanted}")

    def delivers(self, _connection: Peer, subscription: Subscription, message: Message) -> None:
        held = self._by_seq.get(message.seq)
        if held is not None and held.ended is None and not isinstance(subscription, Browser):
            self._broken(f"{message.duplicate_id}, of {held.record.xid}, goes to a consumer")

    def finish(self) -> None:
        for held in self.known.values():
            if held.ended is None:
                self._broken(f"{held.record.xid} stays for ever")


def _xid(cursor: str, number: int) -> str:
    return f"{LEASE}{cursor}:{number}"


class Reader(Application):
    """The job of one cursor. It knows, as a checkpoint would, which leases are done."""

    def __init__(
        self, name: str, url: str, oracle: Oracle, rng: Random, feature: Leases, cursor: str, timeout_s: float
    ) -> None:
        super().__init__(name, url, oracle, rng)
        self._feature = feature
        self._cursor = cursor
        self._timeout_s = timeout_s
        self._done = 0
        self._epoch = 0

    async def work(self, connection: aio.Connection) -> None:
        before = self._epoch
        taken = await connection.lease(address(QUEUE), self._cursor, messages=0, take=True, timeout=CALL_S)
        self._epoch = taken.epoch
        self.oracle.counts["cursors taken"] += 1
        if taken.epoch <= before:
            self.oracle.broken("lease", f"{self._cursor} was taken with epoch {taken.epoch}, after {before}")
        if before and self.rng.random() < 0.3:
            await self._ask_as_before(connection, before)
        try:
            await self._work(connection)
        except CommandError as error:
            if error.code == CURSOR_TAKEN:
                self.oracle.broken("lease", f"{self._cursor}, epoch {self._epoch}, was rejected: nobody took it later")
            raise

    async def _ask_as_before(self, connection: aio.Connection, epoch: int) -> None:
        """As a reader does that has not noticed. The broker ends its connection."""
        await connection.settle(address(QUEUE), self._cursor, (1 << 62), epoch=epoch, timeout=CALL_S)
        self.oracle.broken("lease", f"{self._cursor} settled with epoch {epoch}, and is taken with {self._epoch}")

    async def _work(self, connection: aio.Connection) -> None:
        while True:
            count = 20 if self.stopping else self.rng.choice((1, 3, 20))
            lease = await connection.lease(
                address(QUEUE),
                self._cursor,
                after=self._done,
                messages=count,
                lease_timeout=self._timeout_s,
                epoch=self._epoch,
                timeout=CALL_S,
            )
            if not lease.number:
                await self.nap(LOOK_S)
                continue
            held = self._feature.given(self._cursor, self._done, lease)
            if not await self._read(connection, held, 0):
                continue
            if self.rng.random() < 0.3:
                await self._read(connection, held, self.rng.randrange(lease.messages))
            if not self.stopping and self.rng.random() < 0.2:
                await self.nap(1.0)
            acknowledge = self.stopping or self.rng.random() < 0.8
            self._feature.settling(held, acknowledge)
            epoch = self.epoch(connection)
            await connection.settle(
                address(QUEUE), self._cursor, lease.number, acknowledge=acknowledge, epoch=self._epoch, timeout=CALL_S
            )
            self._feature.settled(held, acknowledge, epoch)
            self._done = lease.number

    async def _read(self, connection: aio.Connection, held: Held, start: int) -> bool:
        """From position `start` on. False = it did not come to the end."""
        session = connection.session()
        reader = await session.lease_reader(
            address(QUEUE), self._cursor, held.record.seq, start=start, prefetch=4, epoch=self._epoch, timeout=CALL_S
        )
        seqs: list[int] = []
        while not reader.finished:
            message = await reader.receive(CALL_S)
            if message is None:
                break
            seqs.append(self.oracle.seq_of(message.id))
            self._feature.ids[seqs[-1]] = application_id(message)
            self.oracle.delivered(application_id(message), message.id, self.epoch(connection))
        self._feature.read(held, start, seqs)
        whole = reader.finished and start + len(seqs) == len(held.seqs)
        if reader.finished and not whole:
            self.oracle.broken("lease", f"{held.record.xid}, read from {start}, ended after {seqs}")
        await session.close(CALL_S)
        return whole
