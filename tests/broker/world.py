"""A broker and its journal on a real directory, with clients: every job, turn, crash and clock tick happens when the
test says so.

Invariant: what a `Client` has in `deliveries`, `confirmed` and `errors` is what left the broker at the end of a turn
with a valid lease, as `amq.transports` would have sent it. A crash keeps what the disk holds, and nothing else.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, NamedTuple

from amq.broker.broker import Broker
from amq.broker.memory import MESSAGE_OVERHEAD_BYTES
from amq.broker.queues.queue import Queue, Subscription
from amq.broker.sessions.connection import ClientConnection
from amq.broker.sessions.links import Client as Who
from amq.broker.state.window import ID_BYTES
from amq.broker.topics.wildcards import Branch
from amq.broker.transactions.transaction import Transaction
from amq.config.schema import BrokerConfig
from amq.core import message as messages
from amq.core.errors import AmqError, CorruptError
from amq.core.message import Copy, Message, MessageBatch
from amq.journal.batch import Confirm, OpenBatch
from amq.journal.journal import Journal
from amq.journal.reader import RecordRun
from amq.journal.records import Record
from amq.journal.records.message import decode_message
from amq.journal.recovery import seal
from amq.protocols.commands import (
    Abort,
    Begin,
    Command,
    Commit,
    Disconnect,
    Failure,
    Scope,
    Send,
    Subscribe,
    Unsubscribe,
)
from amq.protocols.stomp.subscribing import ACK_INDIVIDUAL
from amq.security import User
from amq.store.files.log import FileLog
from amq.store.segment_log import JOURNAL_DIRECTORY
from tests.broker.disk import ProcessFiles, StepRunner
from tests.broker.notation import Ack, Nack, Notation
from tests.broker.states import Standby
from tests.broker.topic_checks import check_topics, memory_of
from tests.fakes import FakeClock, FaultyVfs
from tests.stored import stored, stored_state, with_files

STEPS_MAX = 10_000  # a world that is not at rest after this many steps never will be
CONFIG: dict[str, Any] = {
    "journal_segment_size_bytes": 16 << 10,
    "journal_reserve_bytes": 4 << 10,
    "store_free_floor_bytes": 64 << 10,
}


def full_name(name: str) -> str:
    """A name without a scheme is a queue."""
    return name if "://" in name else "queue://" + name


class Delivery(NamedTuple):
    """What a client saw. `redelivered` = how many times the message was delivered before."""

    subscription: str
    seq: int
    body: bytes
    redelivered: int
    message: Message


class Client:
    """One connection: the peer that the broker sees, and what a program does with it. Every command asks for a receipt
    unless told otherwise, and returns its id.
    """

    def __init__(
        self,
        world: World,
        client_id: str = "",
        instance: str = "",
        user: str = "",
        exclusive: bool = False,
        number: str = "",
        since_ms: int = 0,
    ) -> None:
        self.world = world
        self.deliveries: list[Delivery] = []
        self.confirmed: list[str] = []
        self.errors: list[tuple[str, str]] = []  # (code, receipt)
        self.outcomes: list[str] = []  # of what was confirmed, where there is more than one way
        self.runs = 0  # deliveries of many messages together
        self.browsed_ids: list[str] = []  # browses that have ended
        self.connected = True
        self.may_meet_mistakes = False  # may the broker raise what is not an AmqError?
        self.reading = True  # does the broker read from us?
        self._closing = False
        self._out: list[Callable[[], None]] = []
        self._large = False  # a large body fills the socket
        self._lent_bytes = 0
        self.number = number or world.next_receipt()
        self.notation = Notation()
        who = Who(User(user), client_id, instance, exclusive, since_ms)
        self.session = ClientConnection(world.broker, self, f"{self.number}.", who)

    # -- Peer ---------------------------------------------------------------------------------------------------------

    def subscribed(self, command: Subscribe, session: int) -> object:  # noqa: ARG002
        return command.token

    def deliver(self, subscription: Subscription, message: Message, redelivered: int) -> None:
        assert not self._closing, "delivered to a connection that is closing"
        self.world.on_deliver(self, subscription, message, redelivered)
        delivery = Delivery(subscription.id, message.seq, message.body, redelivered, message)
        self._out.append(lambda: self.deliveries.append(delivery))
        if len(message.body) > messages.LARGE_BODY_BYTES:  # as amq.transports.peer: the socket has it
            self._lent_bytes += self.world.broker.lend(subscription.queue, message)
            self._large = True
            self.session.set_writable(False)

    def browsed(self, subscription: Subscription) -> None:
        self._out.append(lambda: self.browsed_ids.append(subscription.id))

    def deliver_run(
        self,
        subscription: Subscription,
        destination: str,
        run: RecordRun,
        seq: int,
        redelivered: Sequence[tuple[int, int]],
    ) -> None:
        self.runs += 1
        again = dict(redelivered)
        ends = [*accumulate(run.sizes, initial=0)]
        assert ends[-1] == len(run.data)
        for place, (start, stop) in enumerate(pairwise(ends)):
            message = decode_message(run.data, start, stop, destination)
            self.deliver(subscription, message, again.get(place, 0))
        assert message.seq == seq

    def deliver_batch(self, subscription: Subscription, batch: MessageBatch) -> None:
        assert subscription.auto
        for message in batch.messages:
            self.deliver(subscription, message, 0)

    def deliver_all(self, subscription: Subscription, messages: list[Message]) -> None:
        assert len(messages) > 1
        for message in messages:
            self.deliver(subscription, message, 0)

    def confirm_all(self, receipts: list[object]) -> None:
        for receipt in receipts:
            self.confirm(receipt)

    def confirm(self, receipt: object, outcome: str = "") -> None:
        assert isinstance(receipt, str), "a receipt that nobody asked for"
        self._out.append(lambda: self.confirmed.append(receipt))
        if outcome:
            self._out.append(lambda: self.outcomes.append(outcome))

    def fail(self, failure: Failure) -> None:
        error = failure.error
        assert isinstance(error, AmqError) or self.may_meet_mistakes, error
        if self._closing:
            return
        code = error.code if isinstance(error, AmqError) else "INTERNAL_ERROR"
        receipt = failure.receipt if isinstance(failure.receipt, str) else ""
        self._out.append(lambda: self.errors.append((code, receipt)))
        self.session.close()
        self.close()

    def close(self) -> None:
        self._closing = True
        self.world.wake()

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def send_out(self) -> None:
        """The end of a turn with a valid lease."""
        out, self._out = self._out, []
        if self.connected:
            for happen in out:
                happen()
        self._return_memory()
        if self._large:
            self._large = False
            self.session.set_writable(True)
        if self._closing:
            self.connected = False

    def _return_memory(self) -> None:
        if self._lent_bytes:
            self.world.broker.take_back(self._lent_bytes)
            self._lent_bytes = 0

    # -- the program --------------------------------------------------------------------------------------------------

    @property
    def bodies(self) -> list[bytes]:
        return [delivery.body for delivery in self.deliveries]

    @property
    def refused(self) -> bool:
        """The broker has closed this connection, or is about to."""
        return self._closing

    @property
    def codes(self) -> list[str]:
        return [code for code, _ in self.errors]

    def do(self, *commands: Command) -> None:
        """What one read of the socket brings."""
        assert self.reading, "the broker does not read from this client"
        try:
            read = self.notation.commands(commands)
        except AmqError as error:
            self.fail(Failure(error, Scope.CONNECTION, commands[-1].receipt))
        else:
            self.session.handle(read)
            self.world.broker.wake()

    def send(self, body: bytes, queue: str = "a", *, receipt: bool = True, transaction: str = "", **fields: Any) -> str:
        token = self.world.next_receipt() if receipt else ""
        self.do(Send(Message(full_name(queue), body, **fields), token, transaction))
        return token

    def subscribe(
        self, queue: str = "a", ack: str = ACK_INDIVIDUAL, prefetch: int = 0, id: str = "", **fields: Any
    ) -> str:
        token = self.world.next_receipt()
        try:
            command = self.notation.subscribe(id or queue, full_name(queue), ack, prefetch, token, **fields)
        except AmqError as error:
            self.fail(Failure(error, Scope.CONNECTION, token))
        else:
            self.do(command)
        return token

    @property
    def transactions(self) -> dict[str, Transaction]:
        """Open ones, by name."""
        sessions = self.session.sessions.values()
        return {name: each for session in sessions for name, each in session._transactions.items()}

    @property
    def consumers(self) -> dict[str, Subscription]:
        """By id."""
        sessions = self.session.sessions.values()
        return {id: each for session in sessions for id, each in session._subscriptions.items()}

    def unsubscribe(self, id: str = "a", subscription_name: str = "") -> str:
        token = self.world.next_receipt()
        self.do(Unsubscribe(id, token, subscription_name))
        return token

    def delivery(self, body: bytes) -> Delivery:
        """The latest delivery of that body."""
        return next(delivery for delivery in reversed(self.deliveries) if delivery.body == body)

    def ack(
        self, body: bytes, transaction: str = "", *, receipt: bool = True, command: Callable[..., Ack] = Ack
    ) -> str:
        delivery = self.delivery(body)
        token = self.world.next_receipt() if receipt else ""
        self.do(command(delivery.seq, delivery.subscription, token, transaction))
        return token

    def nack(self, body: bytes, transaction: str = "", *, requeue: bool = False) -> str:
        return self.ack(body, transaction, command=partial(Nack, requeue=requeue))

    def begin(self, transaction: str = "t") -> str:
        token = self.world.next_receipt()
        self.do(Begin(transaction, token))
        return token

    def commit(self, transaction: str = "t", outcome_id: str = "") -> str:
        token = self.world.next_receipt()
        self.do(Commit(transaction, token, outcome_id))
        return token

    def abort(self, transaction: str = "t") -> str:
        token = self.world.next_receipt()
        self.do(Abort(transaction, token))
        return token

    def disconnect(self) -> str:
        token = self.world.next_receipt()
        self.do(Disconnect(token))
        return token

    def lose(self) -> None:
        """The connection breaks."""
        self._closing = True
        self.connected = False
        self._return_memory()
        self.session.close()


class World:
    """One store, one broker at a time, any number of clients. `valid` = the lease is; `on_wake()` is called when a turn
    is asked for.
    """

    on_wake: Callable[[], None] = staticmethod(lambda: None)

    def __init__(self, path: Path | str, epoch_salt: int = 0, **config: Any) -> None:
        """`epoch_salt`: two worlds with the same one make segments of the same salts."""
        self.store = str(path)
        self._epoch_salt = epoch_salt
        self.config = BrokerConfig(store=self.store, **with_files({**CONFIG, **config}))
        self.clock = FakeClock()
        self.files = ProcessFiles()
        self.vfs = FaultyVfs(self.files)
        self.valid = True
        self.failures: list[str] = []
        self.epoch = 0
        self.sealed: dict[str, int] = {}
        self.standby = Standby(self.vfs, self.config)
        self.clients: list[Client] = []
        self.on_deliver: Callable[[Client, Subscription, Message, int], None] = lambda *_: None
        self._receipts = 0
        os.makedirs(os.path.join(self.store, JOURNAL_DIRECTORY), exist_ok=True)
        self.start()
        self.settle()

    # -- one mastership -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Become master: seal, replay, serve."""
        sealed = self.sealed = self.standby.seal(self.epoch, self.sealed)
        self.epoch += 1
        self.runner = StepRunner()
        self.woken = False
        # Every other time the slave goes on following, through the change of master.
        state, recovered = self.standby.take_over(sealed) if self.epoch % 2 else self.standby.read(sealed)
        self.journal = Journal(
            self.log,
            self.clock,
            self.runner,
            self,
            self.config,
            random.Random(self.epoch + (self._epoch_salt << 32)),
        )
        self.broker = Broker(state, self.journal, self.config, self.clock, self.wake)
        self.journal.begin(self.epoch, recovered.store_uuid or bytes(16), recovered, lambda: self.valid)
        self.broker.begin(self.epoch, recovered.read_bytes)
        self.journal.delete(recovered.unused)

    def crash(self, *, jobs: int = 0, torn: float | None = None) -> None:
        """The process dies after `jobs` more jobs reached the disk. Where the last batch written was not posted, only
        the fraction `torn` of its bytes is there.
        """
        self.files.written = ("", 0, 0)
        for _ in range(min(jobs, len(self.runner.jobs))):
            self.runner.work()
        path, offset, size = self.files.written
        self.files.die()
        self.vfs.calls.clear()
        if torn is not None and path:
            cut = int(size * torn)
            with open(path, "r+b") as file:
                file.seek(offset + cut)
                file.write(bytes(size - cut))
        for client in self.clients:
            client.connected = False
        self.clients = []

    def crash_and_recover(self, *, jobs: int = 0, torn: float | None = None) -> None:
        self.crash(jobs=jobs, torn=torn)
        self.start()
        self.settle()

    def close(self) -> None:
        self.files.die()

    # -- steps --------------------------------------------------------------------------------------------------------

    def wake(self) -> None:
        self.woken = True
        self.on_wake()

    def turn(self, *, inline: bool = False, unasked: bool = False) -> None:
        """As amq.transports.turn does it."""
        self.woken = False
        self.journal.flush(inline, unasked)
        if not self.valid:
            return
        self.broker.dispatch()
        self.journal.flush()
        for client in self.clients:
            client.send_out()

    def settle(self) -> None:
        """Let everything happen that can, until nothing does."""
        for _ in range(STEPS_MAX):
            self.turn()
            if self.runner.step() or self.woken:
                continue
            if not self.journal.only_unasked() or not self.valid:
                return
            unasked = self.journal.open
            self.turn(unasked=True)
            if self.journal.open is unasked:
                return  # a batch before it waits for room on the disk
        raise AssertionError("the broker does not come to rest")

    def follow(self, budget_bytes: int = 1 << 30) -> bool:
        """The slave reads on, as far as what is durable, and no further."""
        more = self.standby.follow(self.epoch, self.sealed, budget_bytes)
        durable = {segment.name: segment.end for segment in self.journal.segments}
        for name, segment in self.standby.segments().items():
            assert segment.end <= durable.get(name, segment.end), f"{name} was read behind what is durable"
        return more

    def connect(self, client_id: str = "", **who: Any) -> Client:
        self.clients.append(Client(self, client_id, **who))
        return self.clients[-1]

    def consumer(
        self,
        queue: str = "a",
        ack: str = ACK_INDIVIDUAL,
        prefetch: int = 0,
        *,
        client_id: str = "",
        user: str = "",
        **fields: Any,
    ) -> Client:
        """A new client that consumes, and has what waited for it."""
        client = self.connect(client_id, user=user)
        client.subscribe(queue, ack, prefetch, **fields)
        self.settle()
        return client

    def send(self, *bodies: bytes, queue: str = "a", user: str = "", **fields: Any) -> Client:
        """A new client that sends, and knows how it ended."""
        client = self.connect(user=user)
        for body in bodies:
            client.send(body, queue, **fields)
        self.settle()
        return client

    def lose(self, *clients: Client) -> None:
        """Their connections break, and the broker sees it."""
        for client in clients:
            client.lose()
        self.settle()

    def sweep(self, after_s: float = 0.0) -> None:
        """The broker looks, so much later, for what time has ended."""
        self.clock.advance(after_s)
        self.broker.sweep()
        self.settle()

    def next_receipt(self) -> str:
        self._receipts += 1
        return f"r{self._receipts}"

    # -- JournalOwner -------------------------------------------------------------------------------------------------

    def committed(self, batch: OpenBatch) -> None:
        self.broker.committed(batch)

    def rejected(self, refused: list[Confirm], records: list[Record]) -> None:
        self.broker.rejected(refused, records)

    def store_full(self, full: bool) -> None:
        assert self.journal.disk_full is full

    def store_at_limit(self, reached: bool) -> None:
        assert self.journal.at_limit is reached

    def failed(self, why: str, damage: CorruptError | None = None) -> None:
        assert damage is None or str(damage) in why
        self.failures.append(why)

    # -- looking at it ------------------------------------------------------------------------------------------------

    def stored(self, queue: str = "a") -> list[bytes]:
        """Bodies of everything in the queue, waiting or delivered, oldest first."""
        found = self.broker.state.queues.get("queue://" + queue)
        return [message.body for message in self.everything(found).values()] if found is not None else []

    def everything(self, queue: Queue) -> dict[int, Message]:
        """All that has not left `queue`, in memory or on disk alone."""
        return stored(self.broker.state, queue, self.vfs, self.store)

    @property
    def log(self) -> FileLog:
        return FileLog(self.vfs, self.store)

    def segments(self) -> list[str]:
        return sorted(n for n in os.listdir(os.path.join(self.store, JOURNAL_DIRECTORY)) if n.endswith(".seg"))

    def is_copying(self) -> bool:
        """Is a segment being looked at for what must be copied forward?"""
        trimmer = self.broker.trimmer
        return bool(trimmer and trimmer._reading and trimmer._source and trimmer._source.segment.live)

    def segment_bytes(self) -> int:
        """What all segments take in the directory, also the one that is made ahead of need."""
        directory = os.path.join(self.store, JOURNAL_DIRECTORY)
        return sum(os.path.getsize(os.path.join(directory, name)) for name in self.segments())

    def check(self) -> None:
        """Recount what the broker counts. Holds at every moment."""
        broker = self.broker
        live: dict[int, tuple[int, int, dict[int, int]]] = {}
        for queue in broker.state.queues.values():
            waiting = [message.seq for level in queue.levels for message in level]
            held = [seq for subscription in queue.subscriptions for seq in subscription.unacked]
            places = waiting + held + list(queue.delayed)
            assert len(places) == len(set(places)), f"{queue.name}: a message in two places"
            assert set(places) <= queue.messages.keys(), f"{queue.name}: a place holds what is not stored"
            everything = self.everything(queue)
            assert all((*queue.backlogs.values(), *queue.leaving.values())), "an empty backlog"
            assert queue.redelivered.keys() <= everything.keys()
            assert queue.expiring == sum(bool(message.expires_ms) for message in everything.values())
            assert queue.resident_bytes == sum(map(memory_of, queue.messages.values()))
            assert queue.stored_bytes == sum(map(queue.cost, everything.values())), f"{queue.name}: bytes count wrong"
            assert queue.pending_bytes >= 0
            for subscription in queue.ready:
                if isinstance(subscription, Branch):  # it stays in line while its wildcard has no room
                    assert subscription._in_line
                    continue
                assert subscription.is_ready
                assert subscription.credit > 0
            for message in everything.values():
                if message.segment is not None:
                    count, size, shared = live.get(id(message.segment), (0, 0, {}))
                    size += 0 if message.offset in shared else message.size
                    if isinstance(message, Copy):
                        shared[message.offset] = shared.get(message.offset, 0) + 1
                    live[id(message.segment)] = count + 1, size, shared
        for segment in self.journal.segments:
            counted = segment.live, segment.live_bytes, segment.shared
            assert counted == live.pop(id(segment), (0, 0, {})), f"{segment.name} counts wrong"
        assert not live, "a stored message stands in a segment that is gone"
        ids: dict[tuple[int, int], int] = {}
        windows = [each.duplicates for each in broker.state.queues.values()]
        for window in (broker.state.outcomes, broker.state.prepared.markers, *windows):
            for name, (_, segment) in window.items():
                ids[segment.key] = ids.get(segment.key, 0) + len(name) + ID_BYTES
        for prepared, segment in broker.state.prepared.values():
            ids[segment.key] = ids.get(segment.key, 0) + prepared.record_bytes()
        for record in broker.state.subscriptions.values():
            ids[record.segment.key] = ids.get(record.segment.key, 0) + record.record_bytes()
        obeyed = broker.state.obeyed
        if obeyed.record is not None:
            ids[obeyed.segment.key] = ids.get(obeyed.segment.key, 0) + obeyed.record.record_bytes()
        for parcel, segment in broker.state.parcels.values():
            ids[segment.key] = ids.get(segment.key, 0) + parcel.record_bytes()
        for segment in self.journal.segments:
            assert segment.id_bytes == ids.get(segment.key, 0), f"{segment.name} counts ids wrong"
        assert broker.memory.taken_bytes >= self.resident_bytes()
        check_topics(self)

    def resident_bytes(self) -> int:
        """What all messages take that are in memory: a body that several share counts once."""
        messages = [message for queue in self.broker.state.queues.values() for message in queue.messages.values()]
        bodies = {id(message.shared or message): len(message.body) + message.header_bytes for message in messages}
        return sum(bodies.values()) + MESSAGE_OVERHEAD_BYTES * len(messages)

    def settle_and_check(self) -> None:
        self.settle()
        self.check_at_rest()

    def check_at_rest(self) -> None:
        """What must hold when nothing is on its way: the memory is accounted for exactly, every stored message has a
        place, and a replay gives the state that work has given."""
        self.check()
        broker = self.broker
        transactions = [each for client in self.clients for each in client.session.transactions.values()]
        settled = {message.seq for each in transactions for _, message in each.settled}
        size = sum(each.size for each in transactions) + check_topics(self)
        assert not broker.topics.arrived
        assert not broker.topics.on_their_way
        for queue in broker.state.queues.values():
            places = {message.seq for level in queue.levels for message in level} | (settled & queue.messages.keys())
            places.update(seq for subscription in queue.subscriptions for seq in subscription.unacked)
            places.update(queue.delayed)
            assert places == queue.messages.keys(), f"{queue.name}: a message in no place"
            ids = [each for prepared, _ in broker.state.prepared.values() for each in prepared.ids]
            assert queue.duplicates_pending.keys() == {id for name, id, _ in ids if name == queue.name}
            assert not queue.pending_bytes
            out = places - {message.seq for level in queue.levels for message in level}
            full = out and queue.backlogs and broker.memory.free_to_page_bytes < 0  # so nothing is read
            wait = [message for seq, message in self.everything(queue).items() if seq not in out and not full]
            for subscription in queue.subscriptions:
                if isinstance(subscription, Branch):
                    wildcard, in_line = subscription.wildcard, (*queue.ready, *queue.outranked)
                    assert (subscription in in_line) is subscription._in_line is (subscription not in wildcard.parked)
                    assert not (wildcard.is_ready and wildcard.parked), "a wildcard with room has parked branches"
                together = subscription.wildcard if isinstance(subscription, Branch) else subscription
                room = subscription.auto or len(together.unacked) < subscription.prefetch
                room = room if subscription.refund else subscription.credit > 0
                slow = not subscription.peer.session.is_writable  # type: ignore[attr-defined]
                if room and not slow and queue.exclusive in (None, subscription):
                    beside = [message for message in wait if self._may_have(subscription, message)]
                    assert not beside, f"{queue.name}: {beside} wait beside a consumer"
            size += sum(browser.held_bytes for browser in queue.browsers)
            size += queue.selection.held_bytes if queue.selection is not None else 0
        assert broker.memory.taken_bytes == size + self.resident_bytes()
        assert not broker.limits._dropping
        assert not broker.outcomes_pending
        two_phase = broker.two_phase
        assert {**two_phase.ending, **two_phase._preparing, **two_phase._marking} == {}
        assert self.replayed() == stored_state(broker.state, self.vfs, self.store)

    def _may_have(self, subscription: Subscription, message: Message) -> bool:
        if 0 < message.expires_ms <= self.clock.wall_ms():
            return False
        selection = subscription.queue.selection
        if selection is None:
            return True
        bucket = selection.groups.bucket(message)
        theirs = selection.groups.is_owned(bucket) and selection.groups.owner(bucket) is not subscription
        return not theirs and (subscription.selector is None or subscription.selector.matches(message))

    def replayed(self) -> dict[str, Any]:
        """What a successor would find. Changes nothing."""
        state, _ = self.standby.read(seal(self.log, self.epoch, self.sealed))
        return stored_state(state, self.vfs, self.store)
