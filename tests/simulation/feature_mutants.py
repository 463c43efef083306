"""Holes made on purpose in features of the broker: each mutant is hunted in worlds that have that feature."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from amq.broker.broker import Broker
from amq.broker.names import SENT_SCHEME
from amq.broker.queues.backlog import Columns
from amq.broker.queues.queue import Queue
from amq.broker.sessions.connection import ClientConnection
from amq.broker.state import state
from amq.broker.state.prepared import PreparedTransactions
from amq.broker.topics.durables import Durables
from amq.broker.transactions import bulk, leasing
from amq.broker.transactions.leasing import Leasing
from amq.broker.transactions.two_phase import TwoPhase
from amq.broker.waiters import Call
from amq.client.leases import LeaseSubscription
from amq.config.schema import BrokerConfig
from amq.core.message import SUBSCRIPTION_SCHEME, Copy, Message, alike
from amq.journal.format import SegmentHeader
from amq.journal.records import Group, Moved, Prepared, Record, Resolved
from amq.journal.records.message import Run
from amq.node import candidacy
from amq.node.following import Progress
from amq.node.takeover import Replay
from amq.protocols.commands import CommitBatch, LeaseMessages, Prepare, SendMany
from amq.store import document, silence
from amq.store.election import Sign
from amq.store.epoch import Epoch
from amq.store.files.election import FileElection
from amq.store.lease import Lease
from amq.store.locker import Locker, LockerEvent
from amq.store.orders import Order, Orders
from amq.store.silence import Silence
from amq.transports.peer import Peer
from tests.simulation import upgrade
from tests.simulation.mutants import Mutant

MUTANTS: dict[str, Mutant] = {}
FEATURES: dict[str, tuple[str, ...]] = {}


def mutant_of(*features: str) -> Callable[[Mutant], Mutant]:
    def keep(make: Mutant) -> Mutant:
        MUTANTS[make.__name__] = make
        FEATURES[make.__name__] = features
        return make

    return keep


# -- two phases --------------------------------------------------------------------------------------------------------


@mutant_of("two-phase")
def what_is_prepared_is_forgotten_at_takeover() -> AbstractContextManager[object]:
    real = Broker.begin

    def start(broker: Broker, *arguments: Any) -> None:
        broker.state.prepared.clear()
        real(broker, *arguments)

    return patch.object(Broker, "begin", start)


@mutant_of("two-phase")
def a_prepared_transaction_gives_back_nothing_when_it_is_rolled_back() -> AbstractContextManager[object]:
    real = TwoPhase._rollbacks

    def rollbacks(two_phase: TwoPhase, prepared: Prepared) -> list[Record]:
        return [record for record in real(two_phase, prepared) if not isinstance(record, Moved)]

    return patch.object(TwoPhase, "_rollbacks", rollbacks)


@mutant_of("two-phase")
def what_is_acknowledged_in_a_prepared_transaction_stays_in_its_queue() -> AbstractContextManager[object]:
    """So a takeover delivers it to somebody else."""
    real = TwoPhase.append

    def append(two_phase: TwoPhase, group: Group, *arguments: Any) -> None:
        if any(isinstance(record, Prepared) for record in group.records):
            group.records = [record for record in group.records if not isinstance(record, Moved)]
        real(two_phase, group, *arguments)

    return patch.object(TwoPhase, "append", append)


@mutant_of("two-phase")
def it_is_forgotten_how_prepared_transactions_ended() -> AbstractContextManager[object]:
    real = Broker.begin

    def start(broker: Broker, *arguments: Any) -> None:
        broker.state.outcomes.clear()
        real(broker, *arguments)

    return patch.object(Broker, "begin", start)


@mutant_of("two-phase")
def a_second_phase_is_confirmed_at_once() -> AbstractContextManager[object]:
    real = TwoPhase.append

    def append(two_phase: TwoPhase, group: Group, waiter: Any, *arguments: Any) -> None:
        if any(isinstance(record, Resolved) for record in group.records):
            waiter.done()
            waiter = Call(lambda: None, lambda _error: None)
        real(two_phase, group, waiter, *arguments)

    return patch.object(TwoPhase, "append", append)


@mutant_of("two-phase")
def what_shall_never_time_out_does() -> AbstractContextManager[object]:
    real = PreparedTransactions.put

    def put(prepared: PreparedTransactions, record: Prepared, segment: Any) -> None:
        real(prepared, replace(record, timeout_ms=record.timeout_ms or 500), segment)

    return patch.object(PreparedTransactions, "put", put)


@mutant_of("two-phase")
def a_batch_leaves_no_marker() -> AbstractContextManager[object]:
    return patch.object(PreparedTransactions, "mark", lambda *_: None)


@mutant_of("two-phase")
def markers_are_forgotten_at_takeover() -> AbstractContextManager[object]:
    real = Broker.begin

    def start(broker: Broker, *arguments: Any) -> None:
        real(broker, *arguments)
        broker.state.prepared.markers.clear()

    return patch.object(Broker, "begin", start)


@mutant_of("two-phase")
def an_older_batch_is_a_duplicate() -> AbstractContextManager[object]:
    real = TwoPhase.commit_batch

    def commit_batch(two_phase: TwoPhase, command: CommitBatch, peer: Any) -> None:
        batch = max(command.batch, two_phase.newest(command.owner))
        real(two_phase, CommitBatch(command.owner, batch, command.xids, command.receipt), peer)

    return patch.object(TwoPhase, "commit_batch", commit_batch)


@mutant_of("two-phase")
def parts_of_a_committed_batch_are_prepared() -> AbstractContextManager[object]:
    real = TwoPhase._check

    def check(two_phase: TwoPhase, transaction: Any, command: Prepare) -> None:
        real(two_phase, transaction, Prepare(command.transaction, command.xid, receipt=command.receipt))

    return patch.object(TwoPhase, "_check", check)


# -- what looks alike, in two phases -----------------------------------------------------------------------------------


def _shortened(run: Run) -> Run:
    """Without its last message."""
    short = Run(run.like, run.bodies[:-1])
    short.seq, short.offset, short.sizes, short.size = run.seq, run.offset, run.sizes[:-1], run.size - run.sizes[-1]
    return short


@mutant_of("two-phase")
def a_run_is_committed_without_its_last_message() -> AbstractContextManager[object]:
    """It is in the journal, and in no queue until the next takeover."""
    real = state.State.stage

    def stage(known: state.State, run: Run, segment: Any) -> None:
        real(known, _shortened(run) if len(run.bodies) > 1 else run, segment)

    return patch.object(state.State, "stage", stage)


@mutant_of("two-phase")
def a_torn_run_is_accepted() -> AbstractContextManager[object]:
    """Its last body ends with the piece of the stream in which it came."""
    real = bulk.add

    def add(core: Any, routing: Any, transaction: Any, command: SendMany) -> bool:
        command.bodies[-1] = command.bodies[-1][:-1]
        return real(core, routing, transaction, command)

    return patch.object(bulk, "add", add)


@mutant_of("two-phase")
def a_run_is_in_the_journal_before_it_is_prepared() -> AbstractContextManager[object]:
    """In a separate batch: a master that dies between them leaves it torn from its transaction."""
    real = TwoPhase.append

    def append(two_phase: TwoPhase, group: Group, *arguments: Any) -> None:
        broker, runs = two_phase._core, [record for record in group.records if isinstance(record, Run)]
        if runs and broker.journal is not None:
            group.records = [record for record in group.records if not isinstance(record, Run)]
            broker.append_group(Group([*runs]))
        real(two_phase, group, *arguments)

    return patch.object(TwoPhase, "append", append)


@mutant_of("two-phase")
@contextmanager
def a_repeated_commit_stores_a_run_again() -> Iterator[None]:
    prepare, commit = TwoPhase.append, TwoPhase.commit_batch
    runs: dict[str, list[Run]] = {}  # xid → what it sent

    def append(two_phase: TwoPhase, group: Group, *arguments: Any) -> None:
        for record in group.records:
            if isinstance(record, Prepared):
                runs[record.xid] = [each for each in group.records if isinstance(each, Run)]
        prepare(two_phase, group, *arguments)

    def commit_batch(two_phase: TwoPhase, command: CommitBatch, peer: Any) -> None:
        broker, again = two_phase._core, command.batch == two_phase.newest(command.owner)
        for run in [run for xid in command.xids for run in runs.get(xid, ())] if again else ():
            messages = alike(run.like, run.bodies)
            for message in messages:
                message.destination, message.seq = run.like.destination.removeprefix(SENT_SCHEME), broker.next_seq()
            broker.append_group(Group([*messages]))
        commit(two_phase, command, peer)

    with patch.object(TwoPhase, "append", append), patch.object(TwoPhase, "commit_batch", commit_batch):
        yield


@mutant_of("two-phase")
def what_moves_in_columns_loses_its_first_row() -> AbstractContextManager[object]:
    real = state.State._put

    def put(known: state.State, queue: Queue, priority: int, columns: Columns) -> None:
        real(known, queue, priority, [column[1:] for column in columns] if len(columns[0]) > 4 else columns)

    return patch.object(state.State, "_put", put)


# -- durable subscriptions ---------------------------------------------------------------------------------------------


@mutant_of("durable")
def durable_subscriptions_are_forgotten_at_takeover() -> AbstractContextManager[object]:
    real = Broker.begin

    def start(broker: Broker, *arguments: Any) -> None:
        broker.state.subscriptions.clear()
        real(broker, *arguments)

    return patch.object(Broker, "begin", start)


@mutant_of("durable")
def a_durable_subscriber_misses_what_comes_while_it_is_away() -> AbstractContextManager[object]:
    real = Durables.holders

    def holders(durables: Durables, message: Message) -> Iterator[str]:
        queues = durables._core.state.queues
        return (name for name in real(durables, message) if name in queues and queues[name].subscriptions)

    return patch.object(Durables, "holders", holders)


@mutant_of("durable")
def the_selector_of_a_durable_subscription_is_not_looked_at() -> AbstractContextManager[object]:
    real = Durables._create

    def create(durables: Durables, definition: dict[str, Any]) -> Any:
        return real(durables, definition | {"selector": ""})

    return patch.object(Durables, "_create", create)


@mutant_of("durable")
def a_durable_subscription_gets_what_is_sent_again() -> AbstractContextManager[object]:
    real = Broker.is_duplicate

    def is_duplicate(broker: Broker, message: Message) -> bool:
        return not isinstance(message, Copy) and real(broker, message)

    return patch.object(Broker, "is_duplicate", is_duplicate)


@mutant_of("durable")
def what_a_durable_subscription_remembers_is_forgotten_at_takeover() -> AbstractContextManager[object]:
    real = Broker.begin

    def start(broker: Broker, *arguments: Any) -> None:
        real(broker, *arguments)
        for queue in broker.state.queues.values():
            if queue.name.startswith(SUBSCRIPTION_SCHEME):
                queue.duplicates.clear()

    return patch.object(Broker, "begin", start)


@mutant_of("durable")
def what_is_acknowledged_in_a_durable_subscription_comes_again() -> AbstractContextManager[object]:
    real = Broker.consumed

    def consumed(broker: Broker, queue: Queue, message: Message) -> None:
        if isinstance(message, Copy):
            broker.state.remove(queue, message)
        else:
            real(broker, queue, message)

    return patch.object(Broker, "consumed", consumed)


# -- leases ------------------------------------------------------------------------------------------------------------


@mutant_of("leases")
def to_ask_again_leases_more() -> AbstractContextManager[object]:
    real = Leasing.lease

    def lease(leasing: Leasing, command: LeaseMessages, *arguments: Any) -> None:
        command.after = max((each.seq for each, _ in leasing._core.state.prepared.values()), default=command.after)
        real(leasing, command, *arguments)

    return patch.object(Leasing, "lease", lease)


@mutant_of("leases")
def what_is_leased_goes_to_consumers_as_well() -> AbstractContextManager[object]:
    return patch.object(leasing, "_take_out", lambda *_: None)


@mutant_of("leases")
def who_reads_a_lease_begins_anew_after_a_failover() -> AbstractContextManager[object]:
    real = LeaseSubscription.request

    def request(subscription: LeaseSubscription, machine: Any) -> Any:
        subscription.delivered = 0
        return real(subscription, machine)

    return patch.object(LeaseSubscription, "request", request)


# -- large transactions ------------------------------------------------------------------------------------------------


@mutant_of("bulky")
def the_lease_is_not_looked_at_inside_a_group() -> AbstractContextManager[object]:
    """The replay runs in the lease thread, which checks between two pieces."""

    def read(replay: Replay, config: BrokerConfig, epoch: Epoch, lease: Lease, _tell: Progress) -> Any:
        return replay._following.finish(config, epoch, lambda *_: lease.check())

    return patch.object(Replay, "read", read)


# -- a rolling upgrade -------------------------------------------------------------------------------------------------


@mutant_of("upgrade")
def epochs_look_like_those_of_0_1() -> AbstractContextManager[object]:
    """The version in the headers of segments alone is met when the claim is written."""
    return patch.dict(document.FORMATS, {"epoch": 1})


@mutant_of("upgrade")
@contextmanager
def what_is_written_looks_like_0_1() -> Iterator[None]:
    """Whatever is new in a record goes under an old header."""
    real = SegmentHeader.encode

    def encode(header: SegmentHeader) -> bytes:
        return real(replace(header, version=1))

    with epochs_look_like_those_of_0_1(), patch.object(SegmentHeader, "encode", encode):
        yield


@mutant_of("upgrade")
def a_broker_of_0_1_does_not_refuse() -> AbstractContextManager[object]:
    def decode_any(_kind: str, data: bytes, _path: str, _offset: int = 0) -> Any:
        return json.loads(data)["body"]

    return patch.object(upgrade.module("lock.epoch"), "decode", decode_any)


# -- reattachment ------------------------------------------------------------------------------------------------------


@mutant_of("glitched")
def a_lost_connection_gives_its_messages_back() -> AbstractContextManager[object]:
    real = ClientConnection.lose

    def lose(connection: ClientConnection) -> None:
        real(connection)
        for session in connection.sessions.values():
            for subscription in session.consumers():
                held, subscription.unacked = list(subscription.unacked.values()), {}
                connection.broker.redelivery.give_back(subscription.queue, held, [])

    return patch.object(ClientConnection, "lose", lose)


@mutant_of("glitched")
def a_lost_connection_is_kept_for_ever() -> AbstractContextManager[object]:
    def tick(connection: Peer) -> None:
        """It never looks again."""

    return patch.object(Peer, "_tick_parked", tick)


@mutant_of("glitched")
def the_broker_repeats_nothing() -> AbstractContextManager[object]:
    real = Peer._come_back

    def come_back(connection: Peer, *arguments: Any) -> None:
        real(connection, *arguments)
        del connection._again[1:]

    return patch.object(Peer, "_come_back", come_back)


@mutant_of("glitched")
def the_broker_repeats_what_its_client_has() -> AbstractContextManager[object]:
    real = Peer._come_back

    def come_back(connection: Peer, *arguments: Any) -> None:
        before = connection._lifeline.window.since(connection._lifeline.window.start)  # type: ignore[union-attr]
        real(connection, *arguments)
        connection._again[1:] = before

    return patch.object(Peer, "_come_back", come_back)


@mutant_of("glitched")
def the_broker_counts_one_byte_too_few() -> AbstractContextManager[object]:
    real = Peer._connected

    def connected(connection: Peer, protocol: Any, received: int | None) -> bytes:
        return real(connection, protocol, received - 1 if received else received)

    return patch.object(Peer, "_connected", connected)


# -- succession --------------------------------------------------------------------------------------------------------


@mutant_of("successions")
def passive_slaves_try() -> AbstractContextManager[object]:
    held_back = (candidacy.NAMED, candidacy.FORBIDDEN)
    cases = tuple(case for case in candidacy.CASES if case.condition not in held_back)
    return patch.object(candidacy, "CASES", cases)


@mutant_of("successions")
def orders_of_an_earlier_start_count() -> AbstractContextManager[object]:
    real = Orders._read

    def read(orders: Orders) -> Order | None:
        order = real(orders)
        return order and replace(order, uuid=orders._uuid)

    return patch.object(Orders, "_read", read)


# -- masters that hang -------------------------------------------------------------------------------------------------


@mutant_of("hung")
def time_in_which_a_slave_stood_still_is_silence() -> AbstractContextManager[object]:
    return patch.object(silence, "GAP_STEPS", math.inf)


@mutant_of("hung")
def an_error_is_silence() -> AbstractContextManager[object]:
    real = FileElection.look
    seen: dict[FileElection, Sign | None] = {}

    def read(election: FileElection) -> Sign | None:
        with suppress(OSError):
            seen[election] = real(election)
        return seen.get(election)

    return patch.object(FileElection, "look", read)


@mutant_of("hung")
def any_time_out_will_do() -> AbstractContextManager[object]:
    return patch.object(silence, "PERIODS", 0)


@mutant_of("hung")
def a_heartbeat_is_no_sign() -> AbstractContextManager[object]:
    real = FileElection.look

    def read(election: FileElection) -> Sign | None:
        sign = real(election)
        return sign and replace(sign, heartbeat=b"")

    return patch.object(FileElection, "look", read)


@mutant_of("hung")
def nobody_looks_once_more_before_the_lock_file_is_replaced() -> AbstractContextManager[object]:
    return patch.object(Silence, "goes_on", lambda _silence: True)


@mutant_of("hung")
def nobody_waits_behind_a_replaced_lock_file() -> AbstractContextManager[object]:
    real = Locker._wait_for

    def wait_for(locker: Locker, previous: Epoch | None) -> tuple[float, str]:
        return (0.0, "replaced") if locker._replaced else real(locker, previous)

    return patch.object(Locker, "_wait_for", wait_for)


@mutant_of("hung")
def a_replaced_lock_file_needs_no_claim() -> AbstractContextManager[object]:
    real = Locker._write_claim

    def write_claim(locker: Locker, number: int, attempt: str) -> None:
        if not locker._replaced:
            real(locker, number, attempt)
            return
        locker._claim = locker._election.read_claim()
        locker._enter(LockerEvent.CLAIM)

    return patch.object(Locker, "_write_claim", write_claim)


@mutant_of("hung")
def a_candidate_that_works_gives_no_signs() -> AbstractContextManager[object]:
    return patch.object(Locker, "sign", lambda _locker: None)


@mutant_of("hung")
def nobody_replaces_a_master_that_hangs() -> AbstractContextManager[object]:
    return patch.object(Silence, "look", lambda *_: False)


@mutant_of("hung")
def a_candidate_that_hangs_is_left_alone() -> AbstractContextManager[object]:
    """Only a master is replaced."""
    real = Silence.look

    def look(watch: Silence, timeout_s: float) -> bool:
        said = watch.sign.heartbeat.strip(b"\0") if real(watch, timeout_s) and watch.sign is not None else b""
        return bool(said) and b'"epoch":0' not in said

    return patch.object(Silence, "look", look)
