"""Holes made on purpose in features of the broker: each mutant is hunted in worlds that have that feature."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from amq.broker.broker import Broker
from amq.broker.queues.queue import Queue
from amq.broker.sessions.connection import ClientConnection
from amq.broker.state import state
from amq.broker.topics.durables import Durables
from amq.broker.transactions import leasing
from amq.broker.transactions.two_phase import TwoPhase
from amq.broker.waiters import Call
from amq.client.leases import LeaseSubscription
from amq.config.schema import BrokerConfig
from amq.core.message import Copy, Message
from amq.journal.format import SegmentHeader
from amq.journal.records import Group, Moved, Prepared, Record, Resolved
from amq.journal.records.message import Run
from amq.node.following import Progress
from amq.node.takeover import Replay
from amq.store import document
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
def a_prepared_transaction_gives_back_nothing_when_it_is_rolled_back() -> AbstractContextManager[object]:
    real = TwoPhase._rollbacks

    def rollbacks(two_phase: TwoPhase, prepared: Prepared) -> list[Record]:
        return [record for record in real(two_phase, prepared) if not isinstance(record, Moved)]

    return patch.object(TwoPhase, "_rollbacks", rollbacks)


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
def markers_are_forgotten_at_takeover() -> AbstractContextManager[object]:
    real = Broker.begin

    def start(broker: Broker, *arguments: Any) -> None:
        real(broker, *arguments)
        broker.state.prepared.markers.clear()

    return patch.object(Broker, "begin", start)


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


# -- durable subscriptions ---------------------------------------------------------------------------------------------


@mutant_of("durable")
def a_durable_subscriber_misses_what_comes_while_it_is_away() -> AbstractContextManager[object]:
    real = Durables.holders

    def holders(durables: Durables, message: Message) -> Iterator[str]:
        queues = durables._core.state.queues
        return (name for name in real(durables, message) if name in queues and queues[name].subscriptions)

    return patch.object(Durables, "holders", holders)


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
def orders_of_an_earlier_start_count() -> AbstractContextManager[object]:
    real = Orders._read

    def read(orders: Orders) -> Order | None:
        order = real(orders)
        return order and replace(order, uuid=orders._uuid)

    return patch.object(Orders, "_read", read)


# -- masters that hang -------------------------------------------------------------------------------------------------


@mutant_of("hung")
def a_heartbeat_is_no_sign() -> AbstractContextManager[object]:
    real = FileElection.look

    def read(election: FileElection) -> Sign | None:
        sign = real(election)
        return sign and replace(sign, heartbeat=b"")

    return patch.object(FileElection, "look", read)


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
def nobody_replaces_a_master_that_hangs() -> AbstractContextManager[object]:
    return patch.object(Silence, "look", lambda *_: False)
