"""The workloads of two-phase transactions and batches: prepared, ended by somebody else, written again, marked.

What a transaction sends is of both kinds: messages with ids one by one, and those that look alike as one `Run`, which
is staged and moves in columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

from amq.core.message import Message
from amq.journal.records import LEASE
from amq.journal.records.leases import LeaseOwner
from amq.journal.records.message import Run
from amq.protocols.commands import CommitBatch, Finish, LeaseMessages, Prepare, SendMany, SettleLeases
from tests.broker.world import full_name
from tests.crash.oracle import COMMIT, MARK, PREPARE, ROLL_BACK, Branch, Effect
from tests.crash.script import Script, body_of

FAR_MS = 1 << 50
CURSOR = LEASE + "cursor"


class One(NamedTuple):
    """A message that is sent, with an id, to each of `queues` (names with commas), or acknowledged."""

    name: str
    queues: str = "a"


class Many(NamedTuple):
    """Messages that differ in their bodies alone: `sizes` in bytes."""

    name: str
    queue: str
    sizes: Sequence[int]
    expires_ms: int = 0

    @property
    def bodies(self) -> list[bytes]:
        return [body_of(f"{self.name} {place}", size) for place, size in enumerate(self.sizes)]


class Coordinator:
    """Does to `script` what clients do with transactions of two phases."""

    def __init__(self, script: Script) -> None:
        self._script = script

    def prepare(
        self,
        xid: str,
        sends: Sequence[One | Many] = (),
        acks: Sequence[One] = (),
        owner: str = "",
        batch: int = 0,
        timeout_ms: int = 0,
    ) -> None:
        script, client, branch = self._script, self._script.client, Branch(owner, batch)
        client.begin()
        for each in sends:
            if isinstance(each, Many):
                like = Message(full_name(each.queue), b"", expires_ms=each.expires_ms)
                client.do(SendMany(like, each.bodies, "t"))
                script.require(isinstance(client.transactions["t"].queued[-1], Run), "messages in one piece")
                branch.sends.setdefault(each.queue, []).extend(each.bodies)
                continue
            queues, id = each.queues.split(","), f"id of {each.name}"
            client.send(body_of(each.name), ",".join(map(full_name, queues)), transaction="t", duplicate_id=id)
            for queue in queues:
                branch.sends.setdefault(queue, []).append(body_of(each.name))
                branch.ids.append((queue, id))
        for each in acks:
            body = script.delivered(each.name)
            client.ack(body, "t")
            branch.acks.setdefault(each.queues, []).append(body)
        receipt = script.broker.next_receipt()
        client.do(Prepare("t", xid, timeout_ms, owner, batch, receipt))
        script.expect(receipt, (PREPARE, xid, branch))

    def finish(self, xid: str, commit: bool) -> None:
        """Also for the second time: then nothing happens."""
        receipt = self._script.broker.next_receipt()
        prepared = self._script.broker.broker.state.prepared
        self._script.client.do(Finish(xid, commit, receipt))
        effects: list[Effect] = [(COMMIT if commit else ROLL_BACK, xid, "")]
        self._script.expect(receipt, *(effects if xid in prepared else ()))

    def commit_batch(self, owner: str, batch: int, xids: Sequence[str], others: Sequence[str] = ()) -> None:
        """`others` = what else is prepared for it. Also for the second time."""
        receipt = self._script.broker.next_receipt()
        markers = self._script.broker.broker.state.prepared.markers
        self._script.client.do(CommitBatch(owner, batch, list(xids), receipt))
        effects: list[Effect] = [(COMMIT, xid, "") for xid in xids]
        effects += [(ROLL_BACK, xid, "") for xid in others]
        done = owner in markers and markers[owner][0].batch == batch
        self._script.expect(receipt, *(() if done else (*effects, (MARK, owner, str(batch)))))

    def lease(self, after: int, *names: str) -> int:
        """The cursor asks for so many of what waits on `a`: it gets these. Returns the number of the lease. Where there
        is one beyond `after`, that is the answer, and nothing happens."""
        script, name = self._script, full_name("a")
        leasing, receipt = script.broker.broker.leasing, script.broker.next_receipt()
        owner = LeaseOwner(CURSOR.removeprefix(LEASE), name, "")
        there = leasing._leases(owner)
        script.client.do(LeaseMessages((name,), CURSOR.removeprefix(LEASE), after, len(names), receipt=receipt))
        if there and there[-1].seq > after:
            script.expect(receipt)
            return there[-1].seq
        coming, _ = leasing._coming[owner][-1]
        bodies = [body_of(each) for each in names]
        script.expect(receipt, (PREPARE, coming.xid, Branch(CURSOR, 0, {}, {"a": bodies})))
        return coming.seq

    def settle(self, *numbers: int, commit: bool) -> None:
        """All that the cursor has leased up to the last of these `numbers`."""
        receipt = self._script.broker.next_receipt()
        self._script.client.do(
            SettleLeases((full_name("a"),), CURSOR.removeprefix(LEASE), numbers[-1], commit, receipt)
        )
        kind = COMMIT if commit else ROLL_BACK
        self._script.expect(receipt, *((kind, f"{CURSOR}:{number}", "") for number in numbers))

    def is_copied(self, xid: str) -> bool:
        """Is the segment being looked at, for what must be copied, in which `xid` stands?"""
        broker = self._script.broker
        trimmer, (_, segment) = broker.broker.trimmer, broker.broker.state.prepared[xid]
        assert trimmer is not None
        return trimmer._reading and trimmer._source is not None and trimmer._source.segment is segment

    def sweep(self, *xids: str) -> None:
        """A second passes: the broker itself rolls these back."""
        script = self._script
        script.broker.clock.advance(1.0)
        script.broker.lease.check()
        script.oracle.attempt(len(script.disk.log), *((ROLL_BACK, xid, "") for xid in xids))
        script.broker.broker.sweep()


def two_phase(script: Script) -> None:
    """Transactions of which one stays prepared all the time, through kill -9, rolls, copies, trims and a takeover."""
    coordinator = Coordinator(script)
    for turn in range(5):
        script.send(f"m{turn}", size=200)
    script.client.subscribe("a", prefetch=1000)
    script.settle()
    coordinator.prepare("stays", [Many("r", "b", (40, 90, 300)), One("s1", "b")], [One("m0")])
    script.step(2)
    coordinator.prepare("x", [One("x1", "b"), Many("run", "c", (600, 900, 40), FAR_MS)], [One("m1"), One("m2")])
    script.settle()
    script.send("between", "c", size=100)
    coordinator.finish("x", commit=True)
    script.step(1)
    coordinator.prepare("y", [Many("larger than a segment", "a", [900] * 6), One("y1", "b,c")], [One("m3")])
    script.settle()
    coordinator.finish("y", commit=False)
    script.step(1)
    script.broker.kill()
    script.start("second", "host of first")
    coordinator.finish("y", commit=False)
    coordinator.prepare("late", [Many("late", "a", (40, 40))], timeout_ms=900)
    coordinator.prepare("moves", [Many("moves", "b", (50, 60, 70)), One("moves, too", "b,c")])
    coordinator.prepare("moves later", [Many("moves later", "c", (80, 90))])
    script.client.subscribe("a", prefetch=1000)
    script.client.subscribe("c", prefetch=1000)
    script.settle()
    coordinator.prepare("empty")
    script.settle()
    coordinator.sweep("late")
    script.ack("run 0", "between", queue="c")
    script.client.subscribe("e", prefetch=1000)
    for turn in range(4):
        script.send(f"n{turn}", "e", size=2500)
        if turn == 0:
            coordinator.finish("empty", commit=True)
        if turn == 2:
            coordinator.prepare("empty again")
        if turn == 3:  # its end is on its way when its segment goes
            script.broker.turn()
            coordinator.finish("empty again", commit=False)
        script.settle()
        script.ack(f"n{turn}", queue="e")
        if turn == 1:
            script.step_until(lambda: coordinator.is_copied("moves"), "messages are copied that are about to move")
            coordinator.finish("moves", commit=True)
        if turn == 3:  # the segment that says so has nothing else
            coordinator.finish("moves later", commit=True)
        script.settle()
    script.broker.stop()
    script.start("third")
    coordinator.finish("stays", commit=True)
    script.settle()


def batches(script: Script) -> None:
    """The batches of a pipeline. A part comes too late; its coordinator asks again after two kill -9: one batch was on
    the disk, one was not."""
    coordinator = Coordinator(script)
    for batch in range(3):
        xids = [f"{batch}/{part}" for part in range(2)]
        for part, xid in enumerate(xids):
            sends = [Many(xid, "d", (60 + batch, 400 - part, 40)), One(f"{xid} alone", "d")]
            coordinator.prepare(xid, sends, owner="job", batch=batch)
        lost, late = f"{batch}/lost", f"{batch}/late"
        coordinator.prepare(lost, [Many(lost, "d", (100, 200))], owner="job", batch=batch)
        script.settle()
        if batch == 0:
            coordinator.prepare(late, [Many(late, "d", (100, 200))], owner="job", batch=batch)
        coordinator.commit_batch("job", batch, xids, [lost])
        if batch in (1, 2):
            if batch == 1:
                script.step_until_written(b"job")
            else:
                script.broker.turn()
            script.broker.kill()
            script.start(f"after-{batch}", "host of first")
            coordinator.commit_batch("job", batch, xids, [lost])
        script.settle()
        if batch == 0:
            coordinator.sweep(late)
        script.require(script.client.outcomes[-1] == ("duplicate" if batch == 1 else "committed"), "as it should be")
        script.client.subscribe("d", prefetch=1000, id=f"d{batch}")
        script.settle()
        script.ack(*(f"{xid} {place}" for xid in xids for place in (0, 1, 2, "alone")), queue="d")
        script.settle()
        script.reconnect()


def prepared_until_full(script: Script) -> None:
    """The disk gets full with a prepare on its way: it is refused. What is prepared is ended all the same."""
    coordinator = Coordinator(script)
    script.send("m0", size=100)
    script.client.subscribe("a", prefetch=1000)
    script.settle()
    xids: list[str] = []
    while not script.broker.journal.full:
        script.require(len(xids) < 99, "the disk is too large")
        script.client = script.broker.connect()  # whose prepare is refused is closed
        xids.append(f"x{len(xids)}")
        coordinator.prepare(xids[-1], [Many(xids[-1], "b", (40, 900, 300)), One(f"{xids[-1]} alone", "b")])
        script.step()
    script.settle()
    script.require("STORE_FULL" in script.client.codes, "a prepare that is refused on its way")
    prepared = list(script.broker.broker.state.prepared)
    refused = xids[len(prepared)]
    script.reconnect()
    coordinator.prepare("refused at once", [Many("refused at once", "b", (40, 50))])
    script.settle()
    script.require("STORE_FULL" in script.client.codes, "the disk is not full")
    script.reconnect()
    script.client.subscribe("b", prefetch=1000)
    for place, xid in enumerate(prepared):
        coordinator.finish(xid, commit=place % 2 == 0)
        script.settle()
    for xid in prepared[::2]:
        script.ack(*(f"{xid} {place}" for place in (0, 1, 2, "alone")), queue="b")
        script.settle()
    script.broker.journal.check_space()
    script.settle()
    script.require(not script.broker.journal.full, "there is still no room")
    coordinator.prepare(refused, [Many(refused, "b", (40, 900, 300)), One(f"{refused} alone", "b")])
    script.settle()
    script.require(refused in script.broker.broker.state.prepared, "who was refused may try again")


def moves_in_checkpoints(script: Script) -> None:
    """A checkpoint is in the making whenever something moves; takeovers begin at one."""
    coordinator = Coordinator(script)
    for turn in range(3):
        script.send(f"m{turn}", size=200)
    script.client.subscribe("a", prefetch=1000)
    coordinator.prepare("stays", [Many("stays", "b", (40, 50)), One("stays alone", "b")])
    coordinator.prepare("part", [One("part", "b,c")], owner="job", batch=7)
    script.settle()
    coordinator.commit_batch("job", 7, ["part"])
    script.settle()
    for turn in range(2):
        xid = f"x{turn}"
        run, far = Many(f"{xid} run", "b", (40, 500, 60)), Many(f"{xid} far", "c", (70,), FAR_MS)
        coordinator.prepare(xid, [run, One(f"{xid} alone", "b"), far], [One(f"m{turn}")])
        script.step_until(partial(script.broker.broker.state.prepared.__contains__, xid), "that is prepared")
        # The checkpoint has a queue already from which messages move: b's hidden one; or to which they do: a.
        script.step_until_written(b"sent://queue://b" if turn == 0 else b"queue://b")
        coordinator.finish(xid, commit=turn == 0)
        script.require(script.broker.broker.state.paged_out is not None, "a checkpoint in the making")
        script.settle()
    script.broker.kill()
    script.start("second", "host of first")
    coordinator.finish("stays", commit=True)
    script.settle()


def leases(script: Script) -> None:
    """A cursor leases, asks again after kill -9, settles all but one lease, which goes through copies and trims."""
    coordinator = Coordinator(script)
    for turn in range(8):
        script.send(f"m{turn}")
        script.step(turn % 2)
    script.settle()
    first = coordinator.lease(0, "m0", "m1")
    script.settle()
    second = coordinator.lease(first, "m2", "m3")
    script.step_until_written(b"")  # whatever
    script.broker.kill()
    script.start("second", "host of first")
    script.require(coordinator.lease(first, "m2", "m3") == second, "the lease of which nobody was told")
    third = coordinator.lease(second, "m4")
    script.settle()
    coordinator.settle(first, commit=True)
    script.step(2)
    coordinator.settle(second, third, commit=False)
    script.settle()
    stays = coordinator.lease(third, "m2", "m3", "m4", "m5")
    script.client.subscribe("e", prefetch=1000)
    for turn in range(2):
        script.send(f"n{turn}", "e", size=2500)
        script.settle()
        script.ack(f"n{turn}", queue="e")
        script.settle()
    script.broker.stop()
    script.start("third")
    coordinator.settle(stays, commit=True)
    script.settle()
