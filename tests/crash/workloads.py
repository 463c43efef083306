"""Workloads: what brokers and clients do while every system call is logged, and what the clients learned when.

Each is a function of a `Script` and gives the same log each time. No body is sent twice; a body is long enough to
lie in more than one sector.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple
from unittest import mock

from amq.broker.storage import checkpointing
from amq.core.message import LARGE_BODY_BYTES
from amq.journal import format
from amq.journal.live import Segment
from amq.journal.records import group, message
from tests.crash.disk import WRITE
from tests.crash.script import Script, body_of
from tests.crash.two_phase import batches, leases, moves_in_checkpoints, prepared_until_full, two_phase

# -- the workloads -----------------------------------------------------------------------------------------------------


def queues(script: Script) -> None:
    """Sends and acknowledgements in batches of all sizes, dead letters, two clean handovers."""
    for turn in range(5):
        script.send(f"m{turn}", size=300 + 400 * turn)
        script.send(f"n{turn}", "b", size=40)
        script.step(turn)
    script.client.subscribe("a")
    script.client.subscribe("b")
    script.settle()
    script.ack("m0", "m1")
    script.step(2)
    script.ack("n0", queue="b")
    script.nack("m2")
    script.settle()
    script.broker.lease.check()
    script.broker.stop()
    script.start("second")
    script.send("after")
    script.client.subscribe("a")
    script.settle()
    script.ack("m3")
    script.step(1)
    script.broker.stop()
    script.start("third")


def transactions(script: Script) -> None:
    """Transactions over several queues, with stored outcomes; one is rolled back; the client is lost in the middle."""
    for turn in range(4):
        script.send(f"m{turn}")
    script.client.subscribe("a")
    script.settle()
    script.transact([("t1", "a"), ("t2", "b"), ("t3", "b")], [("m0", "a")], "commit 1")
    script.step(2)
    script.transact([("x1", "b")], [("m1", "a")], abort=True)
    script.transact([("t4", "b")], [("m2", "a")], "commit 2")
    script.send("m4")
    script.settle()
    script.transact([("t5", "c"), ("t6", "a")], [], "commit 3")
    script.step(3)
    script.reconnect()
    script.settle()
    script.client.subscribe("b")
    script.settle()
    script.nack("t3", "b")
    script.transact([("t7", "b")], [("t2", "b"), ("t4", "b")])
    script.settle()


def trimming(script: Script) -> None:
    """Segments roll, empty ones are marked and unlinked; one message stays for ever and is copied forward."""
    script.send("stays", dup="id 0")
    script.send("stays, too", "b")
    script.client.subscribe("a", prefetch=1000)
    script.settle()
    for turn in range(14):
        script.send(f"m{turn}", size=1100, dup=f"id {turn + 1}" if turn % 3 == 0 else "")
        script.send(f"n{turn}", size=900)
        script.settle()
        if turn:  # what came last lives while older segments go
            script.ack(f"m{turn - 1}", f"n{turn - 1}")
        script.step(turn % 4)
    script.settle()


def duplicates(script: Script) -> None:
    """Ids are remembered through rolls, trims and a takeover; resends; the oldest ids go."""
    script.client.subscribe("a", prefetch=1000)
    for turn in range(9):
        script.send(f"m{turn}", dup=f"id {turn}")
        script.send(f"n{turn}", size=1500)
        script.settle()
        if turn % 2:
            script.resend(f"m{turn} again", "a", f"id {turn}")
        script.ack(f"m{turn}", f"n{turn}")
        script.step(turn % 3)
    script.settle()
    script.broker.kill()
    script.start("second", "host of first")
    script.resend("m8 again", "a", "id 8")
    script.send("m9", dup="id 9")
    script.client.subscribe("a", prefetch=1000)
    script.settle()
    for turn in range(5):
        script.send(f"o{turn}", size=1900)
        script.settle()
        script.ack(f"o{turn}")
        script.settle()


def outcomes(script: Script) -> None:
    """Commits are remembered through rolls, trims and a takeover; the oldest go."""
    script.client.subscribe("a", prefetch=1000)
    for turn in range(8):
        script.transact([(f"t{turn}", "a")], [], f"commit {turn}")
        script.send(f"m{turn}", size=1900)
        script.settle()
        script.transact([], [(f"t{turn}", "a"), (f"m{turn}", "a")])
        script.step(turn % 3)
    script.settle()
    script.broker.stop()
    script.start("second")
    script.transact([("last", "b")], [], "commit 8")
    script.settle()


def copying(script: Script) -> None:
    """Messages are copied forward while they are being acknowledged, and after a takeover."""
    script.client.subscribe("a", prefetch=1000)
    for turn in range(8):
        script.send(f"stays {turn}", size=60)
    script.settle()
    for turn in range(14):
        script.send(f"m{turn}", size=2900)
        script.broker.turn()  # this batch is on its way, another one is closed behind it: copies come after both
        script.send(f"n{turn}", size=2100)
        script.step(turn)  # copies are looked for, read, appended: each acknowledgement meets another moment of it
        if turn % 4 == 1:
            script.ack(f"stays {turn // 2}")
        script.settle()
        script.ack(f"m{turn}", f"n{turn}")
        if turn % 4 == 3:  # what is just being looked at leaves
            script.step_until(script.broker.is_copying, "a segment that is copied")
            script.transact([], [(f"stays {turn // 2}", "a")])
        script.settle()
        if turn == 9:
            stored = script.broker.broker.state.queues["queue://a"].messages.values()
            places = [each.segment for each in stored if len(each.body) == 60]
            script.require(
                all(isinstance(place, Segment) and place.key > (1, 2) for place in places), "nothing was copied"
            )
            script.broker.kill()
            script.start("second", "host of first")
            script.client.subscribe("a", prefetch=1000)
            script.settle()


def checkpoints(script: Script) -> None:
    """A checkpoint is in the making at nearly every call: while messages come and go, are copied and moved, while
    segments are trimmed; and takeovers begin at one.
    """
    script.client.subscribe("a", prefetch=3)
    script.settle()
    for turn in range(9):
        script.send(f"stays {turn}", "b", size=60)
        script.send(f"m{turn}", size=900, dup=f"id {turn}")
        script.transact([(f"t{turn}", "c")], [], f"commit {turn}")
        script.step(turn % 4)
        script.settle()
        if turn % 4 == 1:
            script.nack(f"m{turn}")
        else:
            script.ack(f"m{turn}")
        script.step(turn % 3)
        if turn == 4:
            script.broker.kill()
            script.start("second", "host of first")
            script.client.subscribe("a", prefetch=3)
        script.settle()
    names = [name for name in script.broker.vfs.listdir("/store/checkpoints") if name.endswith(".ckpt")]
    script.require(any(name.startswith("00000002") for name in names), "no checkpoint of the second epoch")
    script.broker.kill()
    script.start("third")


def big(script: Script) -> None:
    """Messages larger than a segment: it grows, on disks with fallocate and without."""
    script.send("m0", size=100)
    script.send("big", size=6000)
    script.step(5)
    script.send("m1", size=3000)
    script.send("m2", size=2000)
    script.settle()
    script.client.subscribe("a")
    script.settle()
    script.ack("m0", "big")
    script.settle()
    script.send("m3", size=5000)
    script.step(4)


def full(script: Script) -> None:
    """The disk gets full: sends are refused, acknowledgements go on, in the reserve if need be, until there is room."""
    sent: list[str] = []
    while not script.broker.journal.full:
        script.require(len(sent) < 99, "the disk is too large")
        script.client = script.broker.connect()  # whose send is refused is closed
        sent.append(f"m{len(sent)}")
        script.send(sent[-1], size=500)
        script.step()
    script.settle()
    stored = [name for name in sent if body_of(name, 500) in script.broker.stored()]
    script.reconnect()
    script.send("refused")
    script.settle()
    script.require("STORE_FULL" in script.client.codes, "the disk is not full")
    script.reconnect()
    script.client.subscribe("a", prefetch=1000)
    script.settle()
    for name in stored:
        script.ack(name)
        script.settle()
    script.broker.journal.check_space()
    script.settle()
    script.require(not script.broker.journal.full, "there is still no room")
    script.send("room again")
    script.settle()


def killed(script: Script) -> None:
    """kill -9 at moments at which much is unsynced, restarts on the same host and on others."""
    for turn, steps in enumerate((1, 2, 3, 5)):
        script.send(f"m{turn}", dup=f"id {turn}")
        script.send(f"n{turn}", size=2500)
        script.client.subscribe("a", prefetch=1000)
        script.settle()
        script.send(f"o{turn}")
        script.ack(f"n{turn}")
        script.step(steps)
        script.broker.kill()
        script.start(f"broker-{turn}", f"host {turn}" if turn % 2 else "one host")
    script.settle()


def written_and_killed(script: Script) -> None:
    """The broker dies between its write and its fsync; the next one, on the same host, reads what no disk has."""
    script.send("m0")
    script.settle()
    for turn in range(3):
        script.send(f"n{turn}", size=1200)
        script.broker.turn()
        calls = len(script.disk.log)
        script.disk.sync_breaks = True
        script.broker.runner.work()
        script.disk.sync_breaks = False
        script.require(len(script.disk.log) - calls in (1, 2), "one write, behind a reservation perhaps, and no sync")
        script.broker.kill()
        script.start(f"broker-{turn}", "the only host")
        script.send(f"o{turn}")
        script.settle()


def deposed(script: Script) -> None:
    """A master loses its lock with a batch, a new segment and an unlink on their way; all arrive after the takeover."""
    script.client.subscribe("a", prefetch=1000)
    for turn in range(4):
        script.send(f"m{turn}", size=1500)
        script.settle()
        script.ack(f"m{turn}")
        script.settle()
    script.send("late", size=100)
    script.send("later", size=100)
    _depose(script, "second")
    script.send("new", size=3000)
    script.settle()
    script.send("late again", size=3000)
    script.broker.turn()
    script.send("in a segment made after the seal", size=3000)
    while script.broker.journal._busy.name != "SEGMENT":
        script.require(script.broker.runner.step(), "a batch that waits for a segment")
        script.broker.turn()
    made = f"00000002-{script.broker.journal._newest_number + 1:08}.seg"
    _depose(script, "third")
    calls = [call for call in script.disk.log if call.path.endswith(made) and call.kind == WRITE]
    script.require(len(calls) == 2, "header and batch of a segment made after the seal")


def _depose(script: Script, name: str) -> None:
    """The lock is given to `name` while the old master knows nothing; then the old one's work goes on."""
    old = script.broker
    old.turn()
    script.disk.locks.clear()
    old.valid = False
    old.clock.advance(10)
    script.start(name)
    script.send(f"first of {name}")
    script.step(2)
    while old.runner.step():
        old.turn()
    old.kill()
    script.settle()


class Workload(NamedTuple):
    run: Callable[[Script], None]
    options: dict[str, Any]
    is_dumping: bool = False  # is a checkpoint made whenever it may be, and so slowly that much happens meanwhile?
    large_bytes: int = LARGE_BODY_BYTES  # what is larger is written in pieces

    def script(self) -> Script:
        piece, ratio = (1, 0) if self.is_dumping else (checkpointing.PIECE_BYTES, checkpointing.SIZE_RATIO)
        with (
            mock.patch.multiple(checkpointing, PIECE_BYTES=piece, SIZE_RATIO=ratio),
            mock.patch.object(group, "LARGE_BODY_BYTES", self.large_bytes),
            mock.patch.object(message, "LARGE_BODY_BYTES", self.large_bytes),
            mock.patch.object(format, "LARGE_BODY_BYTES", self.large_bytes),
        ):
            script = Script(**self.options)
            self.run(script)
        return script


WORKLOADS = {
    "queues": Workload(queues, {}),
    "queues-without-fallocate": Workload(queues, {"allocates": False}),
    "transactions": Workload(transactions, {}),
    "trimming": Workload(trimming, {}),
    "duplicates": Workload(duplicates, {}),
    "outcomes": Workload(outcomes, {}),
    "copying": Workload(copying, {"journal_batch_size_bytes": 2000}),
    "checkpoints": Workload(checkpoints, {"checkpoint_distance_bytes": 600}),
    "big": Workload(big, {}),
    "big-without-fallocate": Workload(big, {"allocates": False}),
    "full": Workload(full, {"capacity": 26 << 10}),
    "full-without-fallocate": Workload(full, {"capacity": 26 << 10, "allocates": False}),
    "killed": Workload(killed, {}),
    "written-and-killed": Workload(written_and_killed, {}),
    "deposed": Workload(deposed, {}),
    "two-phase": Workload(two_phase, {}),
    "batches": Workload(batches, {}),
    "leases": Workload(leases, {}),
    "prepared-until-full": Workload(prepared_until_full, {"capacity": 26 << 10}),
    "prepared-in-pieces-until-full": Workload(prepared_until_full, {"capacity": 26 << 10}, large_bytes=300),
    "moves-in-checkpoints": Workload(moves_in_checkpoints, {"checkpoint_distance_bytes": 600}, is_dumping=True),
}
