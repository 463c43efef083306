"""The oracle: what was promised to whom, and whether it is kept. It sees clients' calls, and every commit of a broker.

Checked all the time: P1 to P4 of docs/master-slave.md against the state with which each new master begins, against
each delivery, and against the lengths that each new epoch seals. Checked at the end: everything that a client was told
is true. `history` is all that happened; its digest is the identity of a run.
"""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

from amq.broker.broker import Broker
from amq.broker.queues.limits import Limits
from amq.broker.queues.queue import Queue, Subscription
from amq.broker.queues.rooms import StoreRoom
from amq.broker.state.state import State
from amq.client.link import Link
from amq.client.machine import Machine
from amq.core.errors import AmqError
from amq.core.message import Message
from amq.journal.batch import OpenBatch
from amq.journal.checkpoint import CheckpointFile
from amq.journal.follower import DivergedError, replay
from amq.journal.inspect import inspect
from amq.journal.records import Consumed, Copies, Group, Record, Trimmed
from amq.journal.records.message import Run
from amq.journal.records.multicast import Multicast
from amq.node.following import Following
from amq.store.files.epochs import FileEpochs
from amq.store.files.log import FileLog
from amq.transports.peer import Peer
from tests.simulation.limits import DEAD, LimitsOracle, identity
from tests.simulation.scheduler import Scheduler
from tests.simulation.storage import Inode, PlainVfs, Server
from tests.stored import stored

STORE = "/mnt/store"
TAIL_LINES = 400


@dataclass(frozen=True, slots=True)
class Rot:
    """One bit of a file turned over: `byte` stood at `offset`."""

    inode: Inode
    offset: int
    byte: int


@dataclass(slots=True)
class Sent:
    """One message of an application, by the id that it gave."""

    queue: str
    producer: str
    number: int
    group: str = ""  # messages of one transaction
    confirmed: bool = False
    may_be_early: bool = False  # sent again after others of its producer: its place in the queue is open
    wire_ids: set[str] = field(default_factory=set)
    deliveries: int = 0
    ack_tried: bool = False
    acked_epoch: int = 0  # the epoch in which the acknowledgement was confirmed to the application


class Checker:
    """What looks on beside the oracle, and tells it what is broken."""

    def committed(self, broker: Broker, batch: OpenBatch) -> None:
        """`batch` is confirmed next, and takes effect then."""

    def begins(self, broker: Broker, found: dict[str, dict[int, Message]]) -> None:
        """A new master has replayed the journal: {full name of the queue: {seq: message}}."""

    def delivers(self, connection: Peer, subscription: Subscription, message: Message) -> None:
        """A broker gives `message` to a consumer next."""

    def finish(self) -> None:
        """Every queue is empty and every application content."""

    def settings(self) -> AbstractContextManager[object]:
        """What else must be looked at while the world runs."""
        return nullcontext()


class Oracle:
    """Raises nothing by itself: the first broken promise is kept in `violation`, and the run ends."""

    def __init__(self, scheduler: Scheduler, server: Server) -> None:
        self.violation = ""
        self.sent: dict[str, Sent] = {}
        self.groups: dict[str, str] = {}  # transaction → "open", "committed", "rolled back"
        self.counts: Counter[str] = Counter()
        self.tail: deque[str] = deque(maxlen=TAIL_LINES)
        self.link_epochs: dict[Link, int] = {}
        self.rotten: dict[str, Rot] = {}  # what is damaged now, on purpose, by path
        self.excused: set[str] = set()  # those that ever were: a broker may stop because of them
        self.withdrawn: set[int] = set()  # seqs of what was stored, and rolled back by somebody's wish
        self._digest = hashlib.blake2b(digest_size=16)
        self._scheduler = scheduler
        self._server = server
        self.vfs = PlainVfs(server)
        self._stored: dict[int, tuple[int, str]] = {}  # seq → (epoch that committed it, id)
        self._consumed: dict[int, int] = {}  # seq → epoch that committed its end
        self._ends: dict[str, tuple[int, int]] = {}  # segment → (how far it was committed, by which epoch)
        self._newest_epoch = 0
        self._linked: dict[int, int] = {}  # epoch → crashes of the server before it was linked
        self._worked: set[int] = set()  # epochs in which something was committed
        self._order: dict[tuple[str, str], tuple[int, int]] = {}
        self.limits = LimitsOracle(self)
        self.checkers: list[Checker] = []

    # -- history ------------------------------------------------------------------------------------------------------

    def log(self, text: str) -> None:
        line = f"{self._scheduler.now:10.5f} {text}"
        self._digest.update(line.encode())
        self.tail.append(line)

    @property
    def now_s(self) -> float:
        return self._scheduler.now

    def digest(self) -> str:
        return self._digest.hexdigest()

    def broken(self, promise: str, what: str) -> None:
        """A promise is broken."""
        self.log(f"VIOLATION {promise}: {what}")
        self.violation = self.violation or f"{promise}: {what}"

    def over(self) -> bool:
        return bool(self.violation)

    # -- what applications were told ----------------------------------------------------------------------------------

    def sending(self, message_id: str, queue: str, producer: str, number: int, group: str = "") -> None:
        if message_id not in self.sent:
            self.sent[message_id] = Sent(queue, producer, number, group)

    def confirmed(self, message_id: str) -> None:
        self.counts["confirmed"] += 1
        self.sent[message_id].confirmed = True
        self.log(f"confirmed {message_id}")

    def delivered(self, message_id: str, wire_id: str, epoch: int) -> None:
        """An application received a message on a connection to the master of `epoch`."""
        self.counts["delivered"] += 1
        sent = self.sent.get(message_id)
        if sent is None:
            self.broken("P5", f"{message_id} was delivered and never sent")
            return
        self.log(f"delivered {message_id} {wire_id} epoch {epoch}")
        sent.deliveries += 1
        sent.wire_ids.add(wire_id)
        if len(sent.wire_ids) > 1:
            self.broken("P4", f"{message_id} is stored twice, as {sorted(sent.wire_ids)}")
        if sent.acked_epoch and epoch > sent.acked_epoch:
            self.broken("P2", f"{message_id} was acknowledged in epoch {sent.acked_epoch}, came back in {epoch}")
        if self.groups.get(sent.group) == "rolled back":
            self.broken("transaction", f"{message_id} was delivered, its transaction {sent.group} was rolled back")

    def acknowledging(self, message_id: str) -> None:
        if message_id in self.sent:
            self.sent[message_id].ack_tried = True

    def acknowledged(self, message_id: str, epoch: int) -> None:
        self.counts["acknowledged"] += 1
        self.log(f"acknowledged {message_id} epoch {epoch}")
        self.sent[message_id].acked_epoch = epoch
        if DEAD + message_id in self.sent:
            self.broken("P2", f"{message_id} was acknowledged, and is a dead letter as well")

    def seq_of(self, wire_id: str) -> int:
        """The number in its store of the message that a client knows by that id."""
        return int(wire_id.rpartition("-")[2])

    def gone(self, seq: int, epoch: int) -> None:
        """It had left when that epoch ended, which nobody was told then."""
        self._consumed.setdefault(seq, epoch)

    def arrived(self, message_id: str) -> bool:
        """An application got it, from its queue or as a dead letter."""
        return any(id in self.sent and self.sent[id].deliveries for id in (message_id, DEAD + message_id))

    def finish(self) -> None:
        """Every queue is empty and every application content: is all of it true?"""
        for message_id, sent in self.sent.items():
            if sent.confirmed and not self.arrived(message_id):
                self.broken("P1", f"{message_id} was confirmed and never delivered")
            if sent.confirmed and not sent.ack_tried and DEAD + message_id not in self.sent:
                self.broken("P1", f"{message_id} was confirmed, delivered, never acknowledged, and is gone")
        for group, state in self.groups.items():
            parts = [self.arrived(message_id) for message_id, sent in self.sent.items() if sent.group == group]
            if any(parts) and not all(parts):
                self.broken("transaction", f"{group} took place in part ({sum(parts)} of {len(parts)} messages)")
            if state == "committed" and not all(parts):
                self.broken("transaction", f"{group} was committed and is not there")
        for checker in self.checkers:
            checker.finish()

    # -- what brokers do ----------------------------------------------------------------------------------------------

    def _committed(self, broker: Broker, batch: OpenBatch) -> None:
        epoch = broker.epoch
        self.counts["batches"] += 1
        for checker in self.checkers:
            checker.committed(broker, batch)
        for record in batch.records:
            self._record(epoch, record)
        if batch.segment is not None and batch.records:
            name, end = batch.segment.name, batch.segment.end
            self._ends[name] = (end, epoch)
            self._worked.add(epoch)
            self.log(f"committed {name} to {end}, {len(batch.records)} records")
            if epoch < self._newest_epoch:
                self._check_sealed(name, end, epoch)

    def _record(self, epoch: int, record: Record) -> None:
        if isinstance(record, Multicast):
            for copy in record.held():
                self._record(epoch, copy)
        elif isinstance(record, Run):
            for message in record.messages():
                self._record(epoch, message)
        elif isinstance(record, Message):
            if record.seq not in self._stored:  # else it was copied forward
                self._stored[record.seq] = (epoch, identity(record))
                self._check_order(record, record.queue_name)
        elif isinstance(record, Consumed):
            for seq in record.seqs:
                self._consumed[seq] = epoch
        elif isinstance(record, Copies):
            self.counts["copies"] += record.messages
        elif isinstance(record, Trimmed):
            self.counts["trims"] += 1
        elif isinstance(record, Group):
            self.limits.recorded(record, self._stored, self._consumed)
            for part in record.records:
                self._record(epoch, part)

    def _check_order(self, message: Message, queue: str) -> None:
        sent = self.sent.get(identity(message))
        if sent is None or sent.may_be_early:
            return
        key = (queue, sent.producer)
        seq, number = self._order.get(key, (0, -1))
        if number > sent.number:
            self.broken("order", f"{identity(message)} was stored behind number {number} of its producer")
        elif message.seq <= seq:
            self.broken("order", f"{identity(message)} has seq {message.seq}, the one before it {seq}")
        self._order[key] = (message.seq, sent.number)

    def _check_sealed(self, name: str, end: int, epoch: int) -> None:
        try:
            sealed = FileEpochs(self.vfs, STORE).read(self._newest_epoch).sealed
        except FileNotFoundError:
            return  # its name was lost with the power, before it was durable
        except (OSError, AmqError) as error:
            if not self.damaged(str(error)):
                self.broken("P5", f"epoch {self._newest_epoch} cannot be read: {error}")
            return
        if name in sealed and sealed[name] < end:
            self.broken("P3", f"epoch {epoch} confirmed {name} to {end}, a later epoch sealed it at {sealed[name]}")

    def linked(self, number: int) -> None:
        """An epoch has just come to be: everything committed so far must be inside the lengths that it seals."""
        self.log(f"epoch {number} linked")
        self.counts["epochs"] += 1
        # A name that was not yet durable may go with the power, and be made again; then nothing was done in its epoch.
        lost = self._server.crashes > self._linked.get(number, 0) and number not in self._worked
        if number in self._linked and not lost:
            self.broken("P3", f"epoch {number} was made a second time")
        self._linked[number] = self._server.crashes
        self._newest_epoch = max(number, self._newest_epoch)
        for name, (end, epoch) in self._ends.items():
            if epoch < number:
                self._check_sealed(name, end, epoch)

    def _check_succession(self, broker: Broker) -> None:
        """What the master took over, as a slave that followed or from a checkpoint, is what the journal says."""
        cold = State(broker.config)
        try:
            sealed = FileEpochs(self.vfs, STORE).read(broker.epoch).sealed
            trimmed = replay(FileLog(self.vfs, STORE), sealed, cold.apply, lambda _done, _total: None).trimmed
        except AmqError as error:
            self.broken("P5", f"epoch {broker.epoch} began, and the journal cannot be read: {error}")
            return
        cold.settle(trimmed)
        found, right = summary(broker.state), summary(cold)
        wrong = [name for name in found.keys() | right.keys() if found.get(name) != right.get(name)]
        wrong += [name for name, queue in broker.state.queues.items() if not _as_often(queue, cold.queues.get(name))]
        if wrong:
            self.broken("P1", f"epoch {broker.epoch} took over something else than the journal says of {wrong}")

    def _begins(self, broker: Broker) -> None:
        """A new master has replayed the journal: is its state what was promised?"""
        epoch = broker.epoch
        with self.undamaged():
            try:
                queues = broker.state.queues
                by_queue = {name: stored(broker.state, queue, self.vfs, STORE) for name, queue in queues.items()}
            except AmqError as error:
                self.broken("P5", f"epoch {epoch} cannot read what it has: {error}")
                return
            self._check_succession(broker)
        for checker in self.checkers:
            checker.begins(broker, by_queue)
        found = list(by_queue.values())
        present = {seq: message for each in found for seq, message in each.items()}
        self.log(f"epoch {epoch} begins with {len(present)} messages")
        self.counts["masters"] += 1
        self._find(epoch, [{seq: each[seq] for seq in each.keys() - self._stored.keys()} for each in found])
        for seq, (stored_epoch, message_id) in self._stored.items():
            sent = self.sent.get(message_id)
            left = (sent is not None and sent.ack_tried) or DEAD + message_id in self.sent or seq in self.withdrawn
            if stored_epoch < epoch and seq not in present and not left:
                self.broken("P1", f"{message_id} (seq {seq}) of epoch {stored_epoch} is lost in epoch {epoch}")
        for seq, consumed_epoch in self._consumed.items():
            if consumed_epoch < epoch and seq in present:
                self.broken("P2", f"seq {seq}, consumed in epoch {consumed_epoch}, is back in epoch {epoch}")
        ids = Counter(identity(message).removeprefix(DEAD) for seq, message in present.items() if not self.is_copy(seq))
        for message_id, count in ids.items():
            if count > 1:
                self.broken("P4", f"{message_id} is in the queues {count} times")

    def is_copy(self, seq: int) -> bool:  # noqa: ARG002
        """Is it a copy of a message that another store has?"""
        return False

    def _find(self, epoch: int, found: list[dict[int, Message]]) -> None:
        """What the queues hold that was durable when its master died, and not yet confirmed."""
        for messages in found:
            self.limits.taken_over(list(messages.values()))
            for seq, message in sorted(messages.items()):
                self._stored[seq] = (epoch, identity(message))
                self._check_order(message, message.queue_name)
                if identity(message).startswith(DEAD):
                    self.limits.found(message)

    def _delivers(self, connection: Peer, epoch: int, subscription: Subscription, message: Message) -> None:
        for checker in self.checkers:
            checker.delivers(connection, subscription, message)
        self.limits.delivered(message)
        if self._consumed.get(message.seq, epoch + 1) <= epoch:
            self.broken("P2", f"epoch {epoch} delivers {identity(message)}, consumed in an epoch before or in it")

    @contextmanager
    def undamaged(self) -> Iterator[None]:
        """The checker itself sees files as they were before bits turned over (seeds 6000358, 6000406)."""
        damaged = [(rot.inode, rot.inode.data, rot.inode.durable, rot.inode.version) for rot in self.rotten.values()]
        for rot in self.rotten.values():
            self._server.rot(rot.inode, rot.offset, rot.byte)
        try:
            yield
        finally:
            for inode, data, durable, version in damaged:
                inode.data, inode.durable, inode.version = data, durable, version

    def damaged(self, what: str) -> bool:
        """Whether `what` speaks of a file that is damaged on purpose."""
        return any(path.rpartition("/")[2] in what for path in self.rotten)

    def check_rot(self, path: str) -> None:
        """A bit of `path` has just turned over, where no crash explains it: `amq journal check` must say so."""
        if not any(self.damaged(problem) for problem in self._problems()):
            self.broken("P5", f"nobody notices a bit that turned over in {path}")

    def check_journal(self) -> None:
        """What `amq journal check` says, now."""
        for problem in self._problems():
            if not self.damaged(problem):
                self.broken("P5", problem)

    def _problems(self) -> list[str]:
        try:
            self.vfs.stat(f"{STORE}/journal")
        except FileNotFoundError:
            return []

        def sealing() -> tuple[int, Any]:
            newest = FileEpochs(self.vfs, STORE).newest()
            return (newest.number, newest.sealed) if newest is not None else (0, {})

        try:
            inspection, _ = inspect(FileLog(self.vfs, STORE), sealing)
        except (OSError, AmqError) as error:
            return [f"the journal cannot be checked: {error}"]
        return [f"journal check: {problem}" for problem in inspection.problems]

    def here(self) -> Oracle:
        """The oracle of the broker that runs now: where there are several stores, that of its store."""
        return self

    @contextmanager
    def observing(self) -> Iterator[None]:
        """While the block runs, see what brokers and clients do."""
        committed, serving, accept = Broker.committed, Broker.begin, Link.accept
        deliver, deliver_all = Peer.deliver, Peer.deliver_all
        took_effect = Broker._took_effect
        finish, load, reject, restore = Following.finish, Following._load, Broker.rejected, Machine._restore

        def see_committed(broker: Broker, batch: OpenBatch) -> None:
            self.here()._committed(broker, batch)
            committed(broker, batch)

        def see_effect(broker: Broker, batch: OpenBatch) -> None:
            took_effect(broker, batch)
            self.here().limits.committed(broker, batch)

        def see_rejected(broker: Broker, refused: Any, records: list[Record]) -> None:
            self.here().limits.rejected(records)
            reject(broker, refused, records)

        def see_serving(broker: Broker, *args: Any) -> None:
            serving(broker, *args)
            self.here()._begins(broker)

        def see_deliver(connection: Peer, subscription: Any, message: Message, redelivered: int) -> None:
            self.here()._delivers(connection, connection._hub.epoch, subscription, message)
            deliver(connection, subscription, message, redelivered)

        def see_deliver_all(connection: Peer, subscription: Any, messages: list[Message]) -> None:
            for message in messages:
                self.here()._delivers(connection, connection._hub.epoch, subscription, message)
            deliver_all(connection, subscription, messages)

        def see_finish(slave: Following, *args: Any) -> Any:
            self.counts["takeovers by followers"] += slave._caught_up_wall_ms > 0
            return finish(slave, *args)

        def see_checkpoint(slave: Following, *args: Any) -> Any:
            follower = load(slave, *args)
            self.counts["checkpoints read"] += 1
            self.counts["checkpoints read after trims"] += follower.trimmed.through > (0, 0)
            return follower

        def see_accept(link: Link, frame: Any, now: float, lost: Link | None = None) -> bool:
            goes_on = accept(link, frame, now, lost)
            self.link_epochs[link] = int(frame.headers["amq-epoch"])
            return goes_on

        def see_restore(machine: Machine) -> None:
            restore(machine)
            self.counts["sent again"] += sum(request.replayed for request in machine._unsent)

        with (
            patch.object(Broker, "committed", see_committed),
            patch.object(Broker, "_took_effect", see_effect),
            patch.object(Broker, "rejected", see_rejected),
            patch.object(Broker, "begin", see_serving),
            patch.object(Peer, "deliver", see_deliver),
            patch.object(Peer, "deliver_all", see_deliver_all),
            patch.object(Link, "accept", see_accept),
            patch.object(Machine, "_restore", see_restore),
            patch.object(Following, "finish", see_finish),
            patch.object(Following, "_load", see_checkpoint),
            self._counted(Broker, "when_durable", "known already"),
            self._counted(CheckpointFile, "finish", "checkpoints written"),
            self._counted(DivergedError, "__init__", "diverged"),
            self._counted(Limits, "_reach", "queue at its limit"),
            self._counted(StoreRoom, "description", "store at its limit"),
        ):
            yield

    def _counted(self, owner: type, name: str, what: str) -> Any:
        """Count the calls of a method."""
        method = getattr(owner, name)

        def see(this: Any, *args: Any, **options: Any) -> Any:
            self.counts[what] += 1
            return method(this, *args, **options)

        return patch.object(owner, name, see)


def summary(state: State) -> dict[str, object]:
    """What of its state the journal says: places, ids."""
    found: dict[str, object] = {"outcomes": [(id, seq) for id, (seq, _) in state.outcomes.items()]}
    found["prepared"] = {xid: prepared for xid, (prepared, _) in state.prepared.items()}
    found["subscriptions"] = {name: record.definition for name, record in state.subscriptions.items()}
    found["markers"] = {owner: marker for owner, (marker, _) in state.prepared.markers.items()}
    for name, queue in state.queues.items():
        ids = [(id, seq) for id, (seq, _) in queue.duplicates.items()]
        if queue.backlogs or ids:
            found[name] = {n: list(rows) for n, rows in queue.backlogs.items()}, ids, queue.expiring
    return found


def _as_often(found: Queue, right: Queue | None) -> bool:
    """Was each message delivered as often as the journal says? Or more: a return is counted before it is in there, so
    a checkpoint may have the count, and the master die before the journal has it (seed 5000101).
    """
    counts = right.redelivered if right is not None else {}
    return all(found.redelivered.get(seq, (0, 0)) >= count for seq, count in counts.items()) and all(
        found.find(seq) is not None for seq in found.redelivered
    )
