"""Two-phase transactions and batches of a pipeline: movers prepare, and they or somebody else commit or roll back.

`TwoPhase` is the durable table of the transaction manager: who decides first decides, and what has no decision is
rolled back. Its checker: what is prepared takes effect as a whole or not at all, once, also where another client ends
it on another master; nobody sees it before, and a batch is committed once, with all its parts and nothing else.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from random import Random
from typing import Any
from unittest.mock import patch

from amq.broker.broker import Broker
from amq.broker.names import HELD_SCHEME, SENT_SCHEME
from amq.broker.queues import backlog
from amq.broker.queues.queue import Subscription
from amq.broker.state import snapshot
from amq.broker.transactions import two_phase
from amq.core.message import Message
from amq.core.ownership import owned
from amq.core.xid import outcome_id, parse
from amq.journal.batch import OpenBatch
from amq.journal.hidden import is_prepared
from amq.journal.records import (
    LEASE,
    Consumed,
    Copies,
    Group,
    Marker,
    Moved,
    Prepared,
    Resolved,
)
from amq.journal.records.message import Run
from amq.transports.peer import Peer
from tests.simulation.alike import SECOND, Contents, messages_of
from tests.simulation.clients import Consumer, Producer
from tests.simulation.coordinators import WORKERS, Branch, Coordinator, Job, PreparedMover, Recoverer, Worker
from tests.simulation.features import Feature, Make
from tests.simulation.limits import DEAD, DLQ, identity

SOURCE, TARGET = "x", "y"
MOVED = "moved-"


class TwoPhase(Feature):
    """Branches by xid, jobs by owner."""

    def __init__(self, oracle: Any, seed: int) -> None:
        super().__init__(oracle, seed)
        self.seed = seed
        self.contents = Contents(oracle)
        self.branches: dict[str, Branch] = {}
        self.jobs: dict[str, Job] = {}
        self._senders: dict[int, Branch] = {}  # seq → by which it was sent
        self._holders: dict[int, Branch] = {}  # seq → by which it was acknowledged last
        self._markers: dict[str, int] = {}  # owner → newest committed batch
        self._swept_ms = 0  # the latest time, on whatever clock, at which a broker looked for timeouts

    def options(self) -> dict[str, Any]:
        return {"prepared_transaction_timeout_s": self.dice.choice((3.0, 60.0))}

    def applications(self) -> list[Make]:
        made: list[Make] = [
            partial(Recoverer, manager=self),
            partial(Consumer, queue=TARGET, prefetch=self.dice.choice((2, 20))),
            lambda *known: Consumer(*known, DLQ + SOURCE, 5, DLQ + TARGET),
        ]
        kind = self.dice.choice(("moves", "batches", "both"))
        if kind != "batches":
            made.append(partial(Producer, queue=SOURCE, burst=3, body_bytes=self.dice.choice((40, 400))))
            made += [partial(PreparedMover, manager=self, source=SOURCE, target=TARGET) for _ in range(2)]
        if kind != "moves":
            job = self.jobs["job"] = Job("job")
            made.append(partial(Coordinator, manager=self, job=job))
            made += [partial(Worker, manager=self, job=job, part=part, target=TARGET) for part in range(WORKERS)]
        made.append(lambda *known: Consumer(*known, SECOND, 20, DLQ + SECOND))
        return made

    @contextmanager
    def settings(self) -> Iterator[None]:
        """Small chunks of backlogs in half of the worlds: so that what moves in columns comes between others."""
        rows = Random(f"chunks of {self.seed}").choice((4, backlog.CHUNK_ROWS))
        sweep = two_phase.TwoPhase.sweep

        def see(broker: two_phase.TwoPhase, now_ms: int) -> None:
            self._swept_ms = max(self._swept_ms, now_ms)
            sweep(broker, now_ms)

        with (
            patch.object(two_phase.TwoPhase, "sweep", see),
            patch.object(backlog, "CHUNK_ROWS", rows),
            patch.object(snapshot, "CHUNK_ROWS", rows),
        ):
            yield

    def _broken(self, what: str) -> None:
        self.oracle.broken("two-phase", what)

    # -- what applications were told ----------------------------------------------------------------------------------

    def begin(self, branch: Branch) -> None:
        """It will be prepared."""
        self.branches[branch.xid] = branch

    def stored(self, name: str) -> list[str]:
        """Ids with which that application sent something that is committed, as it was told."""
        return [
            message_id
            for branch in self.branches.values()
            if branch.told and branch.coordinator == name
            for message_id in branch.sends
            if message_id not in branch.alike
        ]

    def decide(self, branch: Branch, commit: bool) -> None:
        """Unless somebody has decided."""
        if branch.decision is None:
            branch.decision = commit

    def prepared(self, branch: Branch) -> None:
        """Somebody was told so."""
        branch.confirmed = True
        self.oracle.counts["prepared"] += 1
        self.oracle.log(f"prepared {branch.xid}")
        if branch.record is None:
            self._broken(f"{branch.xid} was confirmed, and no journal has it")

    def refused(self, branch: Branch, code: str) -> None:
        """Somebody learned that it never will be prepared."""
        branch.refused = True
        self.oracle.log(f"not prepared {branch.xid}: {code}")
        if branch.record is not None and branch.ended is not False:
            self._broken(f"{branch.xid} was refused, and the journal has it")
        if code == "DUPLICATE_ID" and branch.repeats:
            self.oracle.counts["repetitions refused"] += 1
        elif code in ("DUPLICATE_ID", "XID_IN_USE"):
            self._broken(f"{branch.xid} was refused with {code}, and is not a repetition")

    def told(self, branch: Branch, committed: bool, epoch: int) -> None:
        """Somebody learned how it ended; `epoch` in which it was acknowledged then, 0 = not known."""
        self.oracle.log(f"{branch.xid} was {'committed' if committed else 'rolled back'}")
        if branch.ended is not committed:
            self._broken(f"{branch.xid}: told that committed is {committed}, for the journal it is {branch.ended}")
        if branch.told is None and committed:
            for message_id in branch.sends:
                self.oracle.confirmed(message_id)
            for message_id in branch.acks if epoch else ():
                self.oracle.acknowledged(message_id, epoch)
        branch.told = committed

    def batch_told(self, job: Job, batch: int, outcome: str) -> None:
        """Somebody learned that this batch is committed, now or before."""
        self.oracle.counts[f"batch {outcome}"] += 1
        self.oracle.log(f"batch {batch} of {job.owner}: {outcome}")
        if outcome == two_phase.COMMITTED and batch in job.answered:
            self._broken(f"batch {batch} of {job.owner} was committed twice")
        if self._markers.get(job.owner, -1) < batch:
            self._broken(f"batch {batch} of {job.owner} was confirmed, and no journal has its marker")
        if outcome == two_phase.COMMITTED:
            job.answered.add(batch)

    # -- what brokers do ----------------------------------------------------------------------------------------------

    def committed(self, broker: Broker, batch: OpenBatch) -> None:
        for record in batch.records:
            if isinstance(record, Group):
                self._group(broker, record)
            elif isinstance(record, Copies):
                copied = sum(len(moves) for name, moves in record.moves.items() if name.startswith(SENT_SCHEME))
                self.oracle.counts["prepared messages copied"] += copied

    def _group(self, broker: Broker, group: Group) -> None:
        ends = [each for each in group.records if isinstance(each, Resolved) and not str(each.xid).startswith(LEASE)]
        for record in group.records:
            if isinstance(record, Prepared):
                runs = sum(isinstance(part, Run) for part in group.records)
                self._learn(record, broker.epoch, {message.seq: message for message in messages_of(group)}, runs)
        for end in ends:
            branch = self.branches[str(end.xid)]
            if branch.record is None or branch.ended is not None:
                self._broken(f"{end.xid} ends, and is not prepared: it ended with committed = {branch.ended}")
                return
        if ends:
            self._check_whole(group, ends)
            for end in ends:
                self._end(self.branches[str(end.xid)], end.committed, broker.epoch)
        for record in group.records:
            if isinstance(record, Marker) and ends:  # else it is written again
                self._mark(record, frozenset(str(end.xid) for end in ends if end.committed))
            elif isinstance(record, Moved) and ends and not is_prepared(record.target):
                source = broker.state.queue(record.source)
                places = [source.find(seq) for seq in record.seqs]
                size = sum(place.size for place in places if place is not None)
                self.oracle.limits.came_late(record.target, record.seqs, size)

    def _learn(self, record: Prepared, epoch: int, stored: Mapping[int, Message], runs: int = 0) -> None:
        """It is prepared, says the journal, which has `stored` for it, and some of that in `runs`."""
        if record.owner.startswith(LEASE):
            return  # see leased.py
        branch = self.branches.get(str(record.xid))
        if branch is None:
            self._broken(f"{record.xid} is prepared, and nobody did that")
            return
        if branch.record is not None:
            if branch.record != record or branch.ended is not None:
                self._broken(f"{record.xid} is prepared again, otherwise or after its end: {record}")
            return
        if branch.refused or branch.repeats:
            self._broken(f"{record.xid} is prepared, and was refused, or must be")
        counts = [sum(map(len, part.values())) for part in (record.sends, record.acks)]
        if counts != [len(branch.sends), len(branch.acks)]:
            self._broken(f"{record.xid} is prepared with {counts} of {branch.sends} and {branch.acks}")
        self.contents.learn(record, branch.sends, stored)
        branch.record, branch.epoch, branch.runs = record, epoch, runs
        self.oracle.counts["runs prepared"] += runs
        self._senders |= dict.fromkeys(_seqs(record.sends.values()), branch)
        self._holders |= dict.fromkeys(_seqs(record.acks.values()), branch)

    def _check_whole(self, group: Group, ends: list[Resolved]) -> None:
        """Does `group` do all that it must for those that end with it, and nothing else?"""
        wanted: list[tuple[str, str, int]] = []
        for end in ends:
            record = self.branches[str(end.xid)].record
            assert record is not None
            for name, seqs in record.sends.items():
                wanted += [(SENT_SCHEME + name, name if end.committed else "", seq) for seq in seqs]
            for name, seqs in record.acks.items():
                wanted += [(HELD_SCHEME + name, "" if end.committed else name, seq) for seq in seqs]
        found: list[tuple[str, str, int]] = []
        for part in group.records:
            if isinstance(part, Consumed):
                found += [(part.destination, "", seq) for seq in part.seqs]
            elif isinstance(part, Moved):
                found += [(part.source, part.target, seq) for seq in part.seqs]
        if sorted(found) != sorted(wanted):
            self._broken(f"{[end.xid for end in ends]} end in part: {found} in place of {wanted}")

    def _end(self, branch: Branch, committed: bool, epoch: int) -> None:
        """It has ended, says the journal. May it have, like that?"""
        record = branch.record
        assert record is not None
        timed_out = 0 < record.timeout_ms <= self._swept_ms - record.created_ms
        if committed and True not in branch.tried:
            self._broken(f"{branch.xid} was committed, and nobody asked for that")
        if not committed and not (False in branch.tried or timed_out or self._is_left_out(branch)):
            self._broken(f"{branch.xid} was rolled back, and nobody asked for that")
        branch.ended = committed
        self.oracle.counts["two-phase commits" if committed else "two-phase rollbacks"] += 1
        self.oracle.counts["runs committed" if committed else "runs rolled back"] += branch.runs
        self.oracle.counts["timed out"] += not committed and False not in branch.tried and timed_out
        self.oracle.counts["ended by a later master"] += epoch > branch.epoch
        if not committed:
            self.oracle.withdrawn.update(_seqs(record.sends.values()))
            for message_id in branch.acks:
                self.oracle.sent[message_id].ack_tried = False

    def _is_left_out(self, branch: Branch) -> bool:
        """Was the commit of its batch, or of a later one, tried without it?"""
        tried = self.jobs[branch.owner].tried if branch.owner else {}
        return any(
            batch >= branch.batch and any(branch.xid not in xids for xids in sets) for batch, sets in tried.items()
        )

    def _mark(self, marker: Marker, committed: frozenset[str]) -> None:
        tried = self.jobs[marker.owner].tried.get(marker.batch, [])
        if marker.batch <= self._markers.get(marker.owner, -1):
            self._broken(f"batch {marker.batch} of {marker.owner} is committed again, or behind a newer one")
        if committed not in tried:
            self._broken(f"batch {marker.batch} of {marker.owner} is committed with {committed}, asked for {tried}")
        self._markers[marker.owner] = marker.batch

    def begins(self, broker: Broker, found: dict[str, dict[int, Message]]) -> None:
        epoch = broker.epoch
        shelves: dict[str, set[int]] = {name: set() for name in found if is_prepared(name)}
        for message in [message for here in found.values() for message in here.values()]:
            self.contents.check(message)
        for record, _ in broker.state.prepared.values():
            there = [found.get(SENT_SCHEME + name, {}) for name in record.sends]
            self._learn(record, epoch, ChainMap(*there))
            if branch := self.branches.get(str(record.xid)):
                self.oracle.counts["runs taken over"] += branch.runs
            for scheme, part in ((SENT_SCHEME, record.sends), (HELD_SCHEME, record.acks)):
                for name, seqs in part.items():
                    shelves.setdefault(scheme + name, set()).update(seqs)
        for name, seqs in shelves.items():
            if seqs != found.get(name, {}).keys():
                self._broken(f"epoch {epoch} has {sorted(found.get(name, {}))} in {name}, prepared are {sorted(seqs)}")
        for branch in self.branches.values():
            if branch.record is None or branch.record.key in broker.state.prepared:
                continue
            ids = {end: owned(branch.record.user, outcome_id(parse(branch.xid), end)) for end in (True, False)}
            committed = ids[True] in broker.state.outcomes
            if committed == (ids[False] in broker.state.outcomes):
                self._broken(f"{branch.xid} was prepared, and epoch {epoch} does not know what became of it")
            elif branch.ended is None:  # durable when its master died, and not yet confirmed
                self._end(branch, committed, epoch)
                self._end_unseen(branch, found, epoch)
            elif branch.ended is not committed:
                self._broken(f"{branch.xid} ended with committed = {branch.ended}, in epoch {epoch} with {committed}")
        for owner, batch in self._markers.items():
            if owner not in broker.state.prepared.markers or broker.state.prepared.markers[owner][0].batch < batch:
                self._broken(f"batch {batch} of {owner} was committed, and epoch {epoch} does not know it")
        for owner, (marker, _) in broker.state.prepared.markers.items():
            if marker.batch > self._markers.get(owner, -1) and not owner.startswith(LEASE):  # or it is an epoch
                ended = {
                    each.xid
                    for each in self.branches.values()
                    if (each.owner, each.batch) == (owner, marker.batch) and each.ended
                }
                self._mark(marker, frozenset(ended))

    def _end_unseen(self, branch: Branch, found: dict[str, dict[int, Message]], epoch: int) -> None:
        assert branch.record is not None
        for name, seqs in (branch.record.sends if branch.ended else branch.record.acks).items():
            here = found.get(name, {})
            self.oracle.limits.came_late(name, seqs, sum(here[seq].size for seq in seqs if seq in here))
        for seq in _seqs((branch.record.acks if branch.ended else branch.record.sends).values()):
            self.oracle.gone(seq, epoch - 1)

    def delivers(self, connection: Peer, _subscription: Subscription, message: Message) -> None:
        epoch = connection._hub.epoch
        self.contents.delivers(message, epoch)
        sender, holder = self._senders.get(message.seq), self._holders.get(message.seq)
        if sender is not None and not sender.ended:
            self._broken(f"epoch {epoch} delivers {identity(message)} of {sender.xid}, which is not committed")
        if holder is not None and holder.ended is None and epoch >= holder.epoch:
            self._broken(f"epoch {epoch} delivers {identity(message)}, acknowledged in {holder.xid}: it is prepared")

    def finish(self) -> None:
        arrived = self.oracle.arrived
        for branch in self.branches.values():
            parts = [arrived(message_id) for message_id in branch.sends]
            if branch.record is not None and branch.ended is None:
                self._broken(f"{branch.xid} is prepared for ever")
            if branch.ended and not all(parts):
                self._broken(f"{branch.xid} was committed, and {sum(parts)} of {len(parts)} messages arrived")
            own = branch.sends if branch.owner else branch.alike
            if any(map(arrived, own)) and not branch.ended:
                self._broken(f"{branch.xid} was not committed, and its messages arrived")
        for job in self.jobs.values():
            ended = {each.xid for each in self.branches.values() if each.ended and each.owner == job.owner}
            if ended != {xid for xids in job.done.values() for xid in xids}:
                self._broken(f"{job.owner}: committed are {sorted(ended)}, done is {job.done}")
        for message_id, sent in list(self.oracle.sent.items()):
            known = not sent.confirmed or arrived(MOVED + message_id) or DEAD + message_id in self.oracle.sent
            if sent.queue == SOURCE and not known:
                self._broken(f"{message_id} was never moved")


def _seqs(lists: Iterable[list[int]]) -> list[int]:
    return [seq for seqs in lists for seq in seqs]
