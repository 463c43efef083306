"""Applications that use two-phase transactions: who prepares, who ends what is prepared, and the parts of a pipeline.

What they know is in `TwoPhase`, which outlives their processes as a database would.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from amq.client import aio
from amq.core.errors import CommandError, TransactionRolledBackError
from amq.core.xid import Xid
from amq.journal.records import LEASE, Prepared
from tests.simulation.alike import Mixer, Piece, single
from tests.simulation.clients import CALL_S, Application, address, application_id
from tests.simulation.oracle import Oracle

if TYPE_CHECKING:
    from tests.simulation.two_phase import TwoPhase

LOOK_S = 0.2
WORKERS = 2


@dataclass(slots=True)
class Branch:
    """A transaction that somebody prepares: the messages `sends` and the acknowledgements of `acks`, by their ids.

    decision    True = commit, False = roll back, None = nobody has decided
    confirmed   somebody learned that it is prepared; `refused`: that it never will be
    tried       how somebody tried to end it
    alike       those of `sends` that have no id for the broker: no other branch sends them
    coordinator who prepares it
    repeats     it sends what was stored before, or something twice, so it must not be prepared
    record      what the journal says, `epoch` since when, and with how many `runs`
    ended       was it committed? As the journal says; `told`: as somebody was told
    """

    xid: str
    sends: list[str]
    acks: list[str]
    timeout_s: float | None
    owner: str = ""
    batch: int = 0
    alike: frozenset[str] = frozenset()
    coordinator: str = ""
    repeats: bool = False
    decision: bool | None = None
    confirmed: bool = False
    refused: bool = False
    tried: set[bool] = field(default_factory=set)
    record: Prepared | None = None
    epoch: int = 0
    runs: int = 0
    ended: bool | None = None
    told: bool | None = None


class Job:
    """What a pipeline knows of its batches. `parts` = which xids stand for which worker's part of the batch under way;
    `tried` = sets of xids whose commit was asked for; `done` = what was committed."""

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.batch = 0
        self.open = False
        self.parts: dict[int, list[str]] = {}
        self.tried: dict[int, list[frozenset[str]]] = {}
        self.done: dict[int, frozenset[str]] = {}
        self.answered: set[int] = set()  # batches of which somebody was told "committed"

    @property
    def whole(self) -> bool:
        return len(self.parts) == WORKERS


class Participant(Application):
    """Base: numbers its branches, fills them, and ends some."""

    def __init__(self, name: str, url: str, oracle: Oracle, rng: Random, manager: TwoPhase) -> None:
        super().__init__(name, url, oracle, rng)
        self._manager = manager
        self._number = 0
        self._mixer = Mixer(Random(f"{name} of {manager.seed}"))

    def _branch(self, pieces: list[Piece], acks: list[str], owner: str = "", batch: int = 0, xid: str = "") -> Branch:
        self._number += 1
        timeout_s = self.rng.choice((0, 0, None, 1.0))
        sends = [message_id for piece in pieces for message_id in piece.ids]
        alike = frozenset(message_id for piece in pieces if piece.alike for message_id in piece.ids)
        if not xid:  # some as a transaction manager names them
            is_binary = self._number % 3 == 0
            xid = str(Xid(-self._number, self.name.encode(), b"")) if is_binary else f"{self.name}/{self._number}"
        branch = Branch(xid, sends, acks, timeout_s, owner, batch, alike, self.name)
        self._manager.begin(branch)
        return branch

    def _mixed(self, ids: list[str], target: str) -> list[Piece]:
        """What the next branch sends: those, and some that look alike."""
        return self._mixer.mixed(ids, target, f"{self.name}/{self._number}")

    async def _send(self, session: aio.Session, pieces: list[Piece]) -> None:
        producers = {queue: session.producer(address(queue)) for queue in {piece.queue: None for piece in pieces}}
        for piece in pieces:
            self._manager.contents.sending(piece)
            for message_id in piece.ids:
                self.oracle.sending(message_id, piece.queue, self.name, len(self.oracle.sent))
                self.oracle.sent[message_id].may_be_early = True
            await piece.send(producers[piece.queue], CALL_S)

    async def _prepare(self, session: aio.Session, branch: Branch) -> None:
        try:
            await session.prepare(
                branch.xid, prepared_timeout=branch.timeout_s, owner=branch.owner, batch=branch.batch, timeout=CALL_S
            )
        except TransactionRolledBackError as error:
            self._manager.refused(branch, error.code)
            raise
        self._manager.prepared(branch)

    async def _end(self, connection: aio.Connection, branch: Branch) -> None:
        """As it was decided."""
        commit, epoch = branch.decision, self.epoch(connection)
        assert commit is not None
        branch.tried.add(commit)
        try:
            if commit:
                await connection.commit_prepared(branch.xid, CALL_S)
            else:
                await connection.rollback_prepared(branch.xid, CALL_S)
        except TransactionRolledBackError:
            self._manager.told(branch, False, epoch)
            raise
        except CommandError as error:
            was_faster = branch.owner and True in branch.tried and error.code == "XID_COMMITTED"  # the coordinator
            never_was = error.code == "UNKNOWN_TRANSACTION" and not branch.confirmed
            if not was_faster and not never_was:
                self.oracle.broken("two-phase", f"{branch.xid}, commit = {commit}: {error}")
            raise
        self._manager.told(branch, commit, epoch)


class PreparedMover(Participant):
    """Moves messages from one queue to another, some in each branch; ends it, or leaves that to others."""

    def __init__(
        self, name: str, url: str, oracle: Oracle, rng: Random, manager: TwoPhase, source: str, target: str
    ) -> None:
        super().__init__(name, url, oracle, rng, manager)
        self._source = source
        self._target = target

    async def work(self, connection: aio.Connection) -> None:
        session = connection.session(transacted=True)
        consumer = await session.consumer(f"/queue/{self._source}", prefetch=5, timeout=CALL_S)
        while True:
            taken: list[str] = []
            while len(taken) < self.rng.randint(1, 3):
                message = await consumer.receive(0.1 if taken else 0.5)
                if message is None:
                    break
                message_id = application_id(message)
                self.oracle.delivered(message_id, message.id, self.epoch(connection))
                taken.append(message_id)
            if not taken:
                continue
            pieces = self._mixed([f"moved-{message_id}" for message_id in taken], self._target)
            branch = self._branch(pieces, taken)
            await self._send(session, pieces)
            for message_id in taken:
                self.oracle.acknowledging(message_id)
            await self._prepare(session, branch)
            self._manager.decide(branch, commit=self.rng.random() < 0.7)
            if self.rng.random() < 0.5:
                await self._end(connection, branch)


class Recoverer(Participant):
    """Looks at what is prepared, and ends it as it was decided; what nobody decides about it rolls back."""

    async def work(self, connection: aio.Connection) -> None:
        while True:
            await self.nap(1.0)
            for prepared in await connection.recover(CALL_S):
                if prepared.owner.startswith(LEASE):
                    continue
                branch = self._manager.branches.get(prepared.xid)
                if branch is None:
                    self.oracle.broken("two-phase", f"{prepared} is shown, and nobody prepared it")
                    return
                counts = sum(prepared.sends.values()), sum(prepared.acks.values())
                if counts != (len(branch.sends), len(branch.acks)) or prepared.owner != branch.owner:
                    self.oracle.broken("two-phase", f"{prepared} is shown for {branch}")
                if branch.owner and self.rng.random() < (0.7 if self.stopping else 0.95):
                    continue  # those are the coordinator's business; an operator may roll one back all the same
                if branch.decision is None and (self.stopping or self.rng.random() < 0.3):
                    self._manager.decide(branch, commit=False)
                if branch.decision is not None:
                    await self._end(connection, branch)


class Worker(Participant):
    """Prepares its part of each batch, in one transaction or in some; now and then of a batch that is committed."""

    def __init__(
        self, name: str, url: str, oracle: Oracle, rng: Random, manager: TwoPhase, job: Job, part: int, target: str
    ) -> None:
        super().__init__(name, url, oracle, rng, manager)
        self._job = job
        self._part = part
        self._target = target

    async def work(self, connection: aio.Connection) -> None:
        session, job = connection.session(transacted=True), self._job
        while True:
            await asyncio.sleep(LOOK_S)
            if job.done and not self.stopping and self.rng.random() < 0.03:
                batch = max(job.done)
            elif job.open and self._part not in job.parts:
                batch = job.batch
            else:
                continue
            chunks, series = self._mixer.chunks(), f"{self.name}/{self._number + 1}"
            xids = [f"{series}.{chunk}" for chunk in range(chunks)] if chunks > 1 else [series]
            first: Branch | None = None
            for xid in xids:
                first = await self._prepare_chunk(session, xid, batch, first)
            if job.open and job.batch == batch:
                job.parts.setdefault(self._part, xids)

    async def _prepare_chunk(self, session: aio.Session, xid: str, batch: int, first: Branch | None) -> Branch:
        """Returns the first of its part, whose timeout all have."""
        ids = [f"{self.name}/{self._number}:{i}" for i in range(self.rng.randint(1, 3))]
        pieces = self._mixed(ids, self._target)
        branch = self._branch(pieces, [], self._job.owner, batch, xid)
        first = first or branch
        branch.timeout_s = first.timeout_s
        if repeated := self._mixer.repeated(ids + self._manager.stored(self.name)):
            branch.repeats = True
            pieces.append(single(repeated, self._target))
        await self._send(session, pieces)
        is_late = batch in self._job.done
        await self._prepare(session, branch)
        if is_late:
            self.oracle.broken("two-phase", f"{xid} is prepared for batch {batch}, which was committed")
        return first


class Coordinator(Participant):
    """Commits batch after batch; asks again for those that are committed."""

    def __init__(self, name: str, url: str, oracle: Oracle, rng: Random, manager: TwoPhase, job: Job) -> None:
        super().__init__(name, url, oracle, rng, manager)
        self._job = job

    def content(self) -> bool:
        return not self._job.open

    async def work(self, connection: aio.Connection) -> None:
        job = self._job
        while True:
            await self.nap(LOOK_S)
            if not job.open:
                if self.rng.random() < 0.2 and job.done:
                    await self._ask_again(connection, self.rng.choice(list(job.done)))
                if not self.stopping:
                    job.open = True
            elif job.whole:
                await self._commit(connection)

    async def _commit(self, connection: aio.Connection) -> None:
        job, xids = self._job, frozenset(xid for part in self._job.parts.values() for xid in part)
        for xid in xids:
            self._manager.branches[xid].tried.add(True)
        job.tried.setdefault(job.batch, []).append(xids)
        try:
            outcome = await connection.commit_batch(job.owner, job.batch, sorted(xids), CALL_S)
        except TransactionRolledBackError:
            self.oracle.counts["batch run again"] += 1
            job.parts.clear()
            raise
        except CommandError as error:
            self.oracle.broken("two-phase", f"batch {job.batch} of {job.owner}: {error}")
            raise
        self._manager.batch_told(job, job.batch, outcome)
        for xid in sorted(xids):
            self._manager.told(self._manager.branches[xid], True, 0)
        self.oracle.counts["batch of many transactions"] += len(xids) > WORKERS
        job.done[job.batch] = xids
        job.parts.clear()
        job.batch += self.rng.randint(1, 2)
        job.open = False

    async def _ask_again(self, connection: aio.Connection, batch: int) -> None:
        """The newest is a duplicate, and what is older is an error."""
        job = self._job
        is_newest = batch == max(job.done)
        try:
            outcome = await connection.commit_batch(job.owner, batch, sorted(job.done[batch]), CALL_S)
        except CommandError as error:
            if is_newest or error.code != "BATCH_TOO_OLD":
                self.oracle.broken("two-phase", f"batch {batch} of {job.owner}, asked for again: {error}")
            self.oracle.counts["batch too old"] += 1
            raise
        if not is_newest or outcome != "duplicate":
            self.oracle.broken("two-phase", f"batch {batch} of {job.owner}, asked for again: {outcome}")
        self._manager.batch_told(job, batch, outcome)
