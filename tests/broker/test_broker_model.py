"""Random work, crashes, doubts and full disks against the simple model of tests/broker/model.py."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from amq.broker.queues import backlog
from amq.broker.queues.queue import Subscription
from amq.broker.queues.redelivery import NO_ROOM_S
from amq.broker.state import snapshot
from amq.broker.storage import checkpointing
from amq.broker.storage.trimming import Trimmer
from amq.broker.transactions import effect
from amq.core.message import Message
from amq.journal.records import group as groups
from amq.protocols.commands import Abort, Begin, Commit, Send, Unsubscribe
from amq.protocols.stomp.subscribing import ACK_AUTO, ACK_CLIENT, ACK_INDIVIDUAL
from tests.broker.model import DLQ, MAYBE, NO, YES, Item, Model, Sub, Tx
from tests.broker.notation import Ack, Nack
from tests.broker.world import Client, World
from tests.large import large_from
from tests.sampling import examples

QUEUES = ("a", "b")
ALL_QUEUES = (*QUEUES, *(DLQ + queue for queue in QUEUES))
CLIENTS_MAX = 4
OUTCOMES_PENDING_MAX = 5
# What is exercised together: small windows; segments that come and go; the same with live messages copied forward.
MODES = ("windows", "trimming", "copying")
SLICES = (1000, 2)  # how many records of a transaction take effect in one turn: all, few
LARGE = (1 << 20, 1 << 20, 3, 0)  # bodies of how many bytes count as not large: all, some, none
pick = st.integers(0, 1 << 16)  # an index into whatever there is
usually = st.sampled_from([True, True, True, False])
seldom = st.sampled_from([False, False, False, True])


def nothing() -> None:
    """What most receipts tell."""


class User:
    """One client program and what the model knows of it."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.subs: dict[str, Sub] = {}
        self.txs: dict[str, Tx] = {}
        self.waiting: dict[str, Callable[[], None]] = {}  # receipt → what it tells
        self.read = 0


class BrokerMachine(RuleBasedStateMachine):
    """Every rule is one thing that may happen next."""

    options: ClassVar[dict[str, Any]] = {}  # of the broker, for whoever lets it drop messages

    @initialize(
        mode=st.sampled_from(MODES),
        limit=st.sampled_from([-1, 0, 1]),
        window=st.integers(1, 6),
        expired=st.sampled_from(["drop", "dead-letter"]),
        segment=st.sampled_from([700, 1500, 4096]),
        batch=st.sampled_from([300, 1 << 20]),
        large=st.sampled_from(LARGE),
        distance=st.sampled_from([0, 500, 3000]),
        slices=st.sampled_from(SLICES),
    )
    def begin_world(
        self,
        mode: str,
        limit: int,
        window: int,
        expired: str,
        segment: int,
        batch: int,
        large: int,
        distance: int,
        slices: int,
    ) -> None:
        self.path = tempfile.mkdtemp(prefix="amq-model-")
        self.mode = mode
        self.patch = pytest.MonkeyPatch()
        self.patch_large = large_from(large)
        self.patch_large.__enter__()
        self.outcome_window = OUTCOMES_PENDING_MAX
        if mode == "windows":
            self.patch.setattr(Trimmer, "step", lambda _self: None)
        else:
            window, self.outcome_window = 1000, 1000
        if mode == "trimming":
            self.patch.setattr(Trimmer, "_is_due", lambda _self, _going: False)
        self.patch.setattr(checkpointing, "PIECE_BYTES", 1)  # each block of a checkpoint is of another moment
        self.patch.setattr(snapshot, "ITEMS", 2)
        for module in (backlog, snapshot):
            self.patch.setattr(module, "CHUNK_ROWS", 2)
        self.patch.setattr(effect, "SLICE_RECORDS", slices)
        self.patch.setattr(groups, "LATE_RECORDS", slices)
        self.world = World(
            self.path,
            checkpoint_distance_bytes=distance,
            maximum_redeliveries=limit,
            expired_messages=expired,
            duplicate_window=window,
            outcome_window=self.outcome_window,
            journal_segment_size_bytes=segment,
            journal_batch_size_bytes=batch,
            **self.options,
        )
        self.model = Model(limit, expired == "dead-letter", window, self.outcome_window, drops=bool(self.options))
        self.world.on_deliver = self.delivered
        self.users: list[User] = []
        self.all_txs: list[Tx] = []
        self.refusals: list[Tx] = []
        self.count = self.calm = 0  # messages and the like; rules since the last crash
        for queue in QUEUES:
            self.users.append(User(self.world.connect()))
            self.subscribe(len(self.users) - 1, queue, ACK_CLIENT if queue == "a" else ACK_INDIVIDUAL, 3)

    def teardown(self) -> None:
        if hasattr(self, "world"):
            try:
                self.empty()
            finally:
                self.abandon()

    def abandon(self) -> None:
        self.patch.undo()
        self.patch_large.__exit__(None, None, None)
        self.world.close()
        shutil.rmtree(self.path)

    # -- what the broker does -----------------------------------------------------------------------------------------

    def delivered(self, client: Client, subscription: Subscription, message: Message, redelivered: int) -> None:
        user = next(each for each in self.users if each.client is client)
        item = self.model.items[message.body]
        levels = subscription.queue.levels
        assert not any(levels[message.priority + 1 :]), "something of higher priority waits"
        for other in levels[message.priority]:
            assert other.persistent is not message.persistent or other.seq > message.seq, "something older waits"
        item.seq = message.seq
        self.model.delivered(item, user.subs[subscription.id], redelivered)

    @invariant()
    def receipts_are_believed(self) -> None:
        for user in getattr(self, "users", []):
            for receipt in user.client.confirmed[user.read :]:
                user.waiting.pop(receipt)()
            user.read = len(user.client.confirmed)

    @invariant()
    def counts_are_right(self) -> None:
        if hasattr(self, "world"):
            self.calm += 1
            self.world.check()
            assert not self.world.failures

    # -- what clients do ----------------------------------------------------------------------------------------------

    def user(self, which: int) -> User:
        if not self.users:
            self.users.append(User(self.world.connect()))
        return self.users[which % len(self.users)]

    def gone(self, user: User, reason: object) -> None:
        """The broker closed the connection; `reason` says why it may."""
        assert reason, "refused without a reason"
        self.users.remove(user)
        for tx in user.txs.values():
            self.model.rolled_back(tx)
        for sub in user.subs.values():
            self.model.returned(sub.held, sub.held[:1])

    def ask(self, user: User, tells: Callable[[], None]) -> str:
        receipt = self.world.next_receipt()
        user.waiting[receipt] = tells
        return receipt

    @precondition(lambda self: len(self.users) < CLIENTS_MAX)
    @rule()
    def connect(self) -> None:
        self.users.append(User(self.world.connect()))

    @rule(
        which=pick,
        queue=st.sampled_from(ALL_QUEUES),
        ack=st.sampled_from([ACK_AUTO, ACK_CLIENT, ACK_INDIVIDUAL]),
        prefetch=st.integers(1, 3),
    )
    def subscribe(self, which: int, queue: str, ack: str, prefetch: int) -> None:
        user = self.user(which)
        self.count += 1
        id = f"s{self.count}"
        user.subs[id] = Sub(queue, ack, prefetch)
        user.client.do(user.client.notation.subscribe(id, "queue://" + queue, ack, prefetch))

    @precondition(lambda self: any(user.subs for user in self.users))
    @rule(which=pick, index=pick)
    def unsubscribe(self, which: int, index: int) -> None:
        users = [user for user in self.users if user.subs]
        user = users[which % len(users)]
        id = list(user.subs)[index % len(user.subs)]
        sub = user.subs.pop(id)
        user.client.do(Unsubscribe(id, self.ask(user, nothing)))
        self.model.returned(sub.held, sub.held[:1])

    @rule(
        which=pick,
        queue=st.sampled_from(QUEUES),
        persistent=usually,
        priority=st.sampled_from([4, 4, 4, 0, 9]),
        expires_s=st.sampled_from([0, 0, 0, 1, 3]),
        duplicate=st.sampled_from(["", "", "1", "2", "3", "4", "5", "6"]),
        in_tx=st.booleans(),
        size=st.sampled_from([0, 0, 200]),
        receipt=usually,
        times=st.integers(1, 3),
    )
    def send(
        self,
        which: int,
        queue: str,
        persistent: bool,
        priority: int,
        expires_s: int,
        duplicate: str,
        in_tx: bool,
        size: int,
        receipt: bool,
        times: int,
    ) -> None:
        for _ in range(times):
            user = self.user(which)
            self.count += 1
            body = b"%d" % self.count + bytes(size)
            duplicate = "" if self.mode == "copying" else duplicate
            expires_ms = self.world.clock.wall_ms() + 1000 * expires_s if expires_s else 0
            item = Item(body, queue, persistent, expires_ms, duplicate if persistent else "")
            properties = {"of": queue} if len(body) % 2 else None
            message = Message("queue://" + queue, body, properties, "", priority, persistent, 0, expires_ms, duplicate)
            tx = next(iter(user.txs), "") if in_tx else ""
            if tx:
                user.txs[tx].sends.append(item)
                user.client.do(Send(message, self.ask(user, nothing), tx))
            else:
                self.send_alone(user, item, message, receipt)

    def send_alone(self, user: User, item: Item, message: Message, receipt: bool) -> None:
        model = self.model
        must = model.must_be_duplicate(item.queue, item.duplicate_id)
        may = model.may_be_duplicate(item.queue, item.duplicate_id)

        def stored() -> None:
            item.stored = YES

        token = self.ask(user, stored) if receipt else ""
        user.client.do(Send(message, token))
        if user.client.refused:
            assert not must
            self.gone(user, model.full and item.persistent)
        elif message.seq == 0:  # taken for a duplicate: confirmed, not stored
            assert may
            if receipt:
                user.waiting[token] = nothing
        else:
            assert not must
            assert not (model.full and item.persistent)
            model.took(item)

    def holders(self) -> list[tuple[User, str]]:
        return [(user, id) for user in self.users for id, sub in user.subs.items() if sub.held]

    @precondition(lambda self: self.holders())
    @rule(which=pick, index=pick, nack=seldom, in_tx=st.booleans(), receipt=usually)
    def settle_delivery(self, which: int, index: int, nack: bool, in_tx: bool, receipt: bool) -> None:
        holders = self.holders()
        user, id = holders[which % len(holders)]
        sub = user.subs[id]
        item = sub.held[index % len(sub.held)]
        covered = self.model.settled(sub, item)
        tx = next(iter(user.txs), "") if in_tx else ""

        def gone() -> None:
            for each in covered:
                each.gone = YES

        if tx:
            (user.txs[tx].nacks if nack else user.txs[tx].acks).extend(covered)
            tells = nothing
        elif nack:
            self.model.returned(covered, covered, refused=True)
            tells = partial(self.model.refusal_is_confirmed, covered)
        else:
            self.model.acknowledged(covered)
            tells = gone
        command = Nack if nack else Ack
        user.client.do(command(item.seq, id, self.ask(user, tells) if receipt else "", tx))

    @rule(which=pick)
    def begin(self, which: int) -> None:
        user = self.user(which)
        self.count += 1
        name = f"t{self.count}"
        tx = Tx(name, f"o{self.count}")
        user.txs[name] = tx
        self.all_txs.append(tx)
        user.client.do(Begin(name))

    @precondition(lambda self: any(user.txs for user in self.users))
    @precondition(lambda self: sum(tx.committed is MAYBE for tx in self.model.commits) < OUTCOMES_PENDING_MAX)
    @rule(which=pick)
    def commit(self, which: int) -> None:
        users = [user for user in self.users if user.txs]
        user = users[which % len(users)]
        name, tx = next(iter(user.txs.items()))
        model = self.model
        ids = [(item.queue, item.duplicate_id) for item in tx.sends if item.duplicate_id]
        full = model.full and any(item.persistent for item in tx.sends)
        must = any(model.must_be_duplicate(*each) for each in ids) or len(ids) != len(set(ids))
        may = must or any(model.may_be_duplicate(*each) for each in ids)
        refused = tx in self.refusals[-self.outcome_window :]
        del user.txs[name]
        user.client.do(Commit(name, self.ask(user, tx.settle), tx.outcome_id))
        if user.client.refused:
            model.rolled_back(tx)
            self.gone(user, full or may or refused)
        else:
            assert not any((full, must, refused)), "a commit that had to be refused"
            model.committing(tx)

    @precondition(lambda self: any(user.txs for user in self.users))
    @rule(which=pick)
    def abort(self, which: int) -> None:
        users = [user for user in self.users if user.txs]
        user = users[which % len(users)]
        name, tx = next(iter(user.txs.items()))
        del user.txs[name]
        self.model.rolled_back(tx)  # first: what comes back is delivered before the next command
        user.client.do(Abort(name, self.ask(user, nothing)))

    @precondition(lambda self: self.all_txs)
    @rule(which=pick)
    def ask_for_outcome(self, which: int) -> None:
        """On another connection, as a client does that lost the one on which it committed."""
        tx = self.all_txs[-1 - which % min(8, len(self.all_txs))]
        user = User(self.world.connect())
        self.users.append(user)
        user.client.do(Commit(tx.name, self.ask(user, tx.settle), tx.outcome_id))
        if tx.committed is NO:
            assert user.client.refused, "confirmed, and it did not take place"
            self.refusals.append(tx)
            self.gone(user, True)
        elif user.client.refused:
            self.gone(user, tx not in self.model.commits[-self.outcome_window :])

    @rule(which=pick)
    def lose(self, which: int) -> None:
        user = self.user(which)
        user.client.lose()
        self.gone(user, True)

    # -- what the world does ------------------------------------------------------------------------------------------

    @rule(inline=seldom, unasked=st.booleans())
    def turn(self, inline: bool, unasked: bool) -> None:
        self.world.turn(inline=inline, unasked=unasked)

    @rule(count=st.integers(1, 4))
    def disk_works(self, count: int) -> None:
        for _ in range(count):
            self.world.runner.step()

    @rule()
    def settle(self) -> None:
        self.world.settle()

    @rule(budget=st.sampled_from([1, 300, 1 << 30]))
    def slave_follows(self, budget: int) -> None:
        self.world.follow(budget)

    @rule(seconds=st.sampled_from([0.5, 1.0, 2.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.clock.advance(seconds)
        self.model.time_is(self.world.clock.wall_ms())

    @rule()
    def sweep(self) -> None:
        self.world.broker.sweep()

    @precondition(lambda self: self.world.valid)
    @rule()
    def lease_is_in_doubt(self) -> None:
        self.world.valid = False

    @precondition(lambda self: not self.world.valid)
    @rule()
    def lease_is_proved(self) -> None:
        self.world.valid = True
        self.world.journal.lease_renewed()

    @rule(full=st.booleans())
    def disk_fills_or_empties(self, full: bool) -> None:
        self.world.vfs.heal()
        if full:
            self.world.vfs.answer("free_bytes", 0)
        self.world.journal.check_space()
        self.world.settle()
        self.model.disk_is(self.world.journal.full)

    @precondition(lambda self: self.calm > 10)
    @rule(jobs=st.integers(0, 3), torn=st.sampled_from([None, 0.0, 0.3, 0.7, 0.95]))
    def crash(self, jobs: int, torn: float | None) -> None:
        self.receipts_are_believed()
        self.world.crash(jobs=jobs, torn=torn)
        self.users.clear()
        self.world.valid = True
        self.world.vfs.heal()
        self.world.start()
        self.model.full = False
        self.model.recovered(*self.seen(), counts=self.counts())
        self.refusals.clear()
        self.calm = 0
        self.world.settle()

    @rule()
    def rest(self) -> None:
        """Let everything come to its end, and compare it all."""
        self.world.valid = True
        self.world.journal.lease_renewed()
        for _ in range(2):
            self.world.settle()
            self.world.broker.sweep()
        self.world.settle()
        self.receipts_are_believed()
        assert not any(user.waiting for user in self.users), "a receipt that never came"
        self.world.check_at_rest()
        self.model.at_rest(*self.seen())

    # -- looking at it ------------------------------------------------------------------------------------------------

    def seen(self) -> tuple[dict[str, set[bytes]], list[str], dict[str, list[str]]]:
        queues = {name.removeprefix("queue://"): queue for name, queue in self.world.broker.state.queues.items()}
        everything = self.world.everything
        found = {name: {message.body for message in everything(queue).values()} for name, queue in queues.items()}
        ids = {name: list(queue.duplicates) for name, queue in queues.items() if queue.duplicates}
        return found, list(self.world.broker.state.outcomes), ids

    def counts(self) -> dict[bytes, tuple[int, int]]:
        return {
            self.world.everything(queue)[seq].body: counts
            for queue in self.world.broker.state.queues.values()
            for seq, counts in queue.redelivered.items()
        }

    def empty(self) -> None:
        """The end: everything is consumed, and nothing is left of it."""
        self.disk_fills_or_empties(full=False)
        self.time_passes(NO_ROOM_S)
        self.rest()
        for user in list(self.users):
            user.client.lose()
            self.gone(user, True)
        self.rest()
        drain = User(self.world.connect())
        self.users.append(drain)
        for queue in ALL_QUEUES:
            drain.subs[queue] = Sub(queue, ACK_AUTO, 1)
            drain.client.do(drain.client.notation.subscribe(queue, "queue://" + queue, ACK_AUTO, 0))
        self.rest()
        assert self.world.broker.memory.taken_bytes == 0
        assert not any(queue.stored for queue in self.world.broker.state.queues.values())


TestBroker = BrokerMachine.TestCase
TestBroker.settings = settings(
    max_examples=examples(30),
    stateful_step_count=60,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)


PLAIN: dict[str, Any] = {
    "which": 0,
    "queue": "b",
    "persistent": True,
    "priority": 4,
    "expires_s": 0,
    "duplicate": "",
    "in_tx": False,
    "receipt": True,
}


def test_a_disk_fills_before_a_move_is_written() -> None:
    machine = BrokerMachine()
    machine.begin_world(
        mode="windows", limit=0, window=1, expired="drop", segment=700, batch=300, large=0, distance=0, slices=1000
    )
    machine.send(**PLAIN, size=0, times=1)
    machine.rest()
    machine.unsubscribe(which=1, index=0)
    machine.disk_fills_or_empties(full=True)
    machine.rest()
    machine.teardown()


def test_a_disk_fills_before_the_body_of_a_refused_message_is_read() -> None:
    """The refusal is confirmed, and the message waits in its queue: dead letters need room."""
    machine = BrokerMachine()
    machine.begin_world(
        mode="windows", limit=-1, window=1, expired="drop", segment=700, batch=300, large=3, distance=0, slices=1000
    )
    machine.subscribe(which=0, queue="b", ack=ACK_CLIENT, prefetch=1)
    machine.send(**PLAIN, size=200, times=2)
    machine.settle()
    machine.receipts_are_believed()
    machine.settle_delivery(which=0, index=0, nack=True, in_tx=False, receipt=True)
    machine.disk_fills_or_empties(full=True)
    machine.receipts_are_believed()
    assert {name: len(bodies) for name, bodies in machine.seen()[0].items() if bodies} == {"b": 2}, "none has moved"
    machine.rest()
    machine.teardown()
