"""Commands that a session only passes on, to the part of the broker that carries them out and answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from amq.broker.access import Access
from amq.broker.sessions.links import Client
from amq.broker.sessions.traffic import Traffic
from amq.broker.transactions.leasing import Leasing
from amq.broker.transactions.rights import Rights
from amq.broker.transactions.spanning import Spanning
from amq.broker.transactions.two_phase import TwoPhase
from amq.broker.transfer.arrivals import Arrivals
from amq.journal.batch import Waiter
from amq.protocols.commands import (
    AbortBatch,
    AskDecision,
    CloseParcel,
    Command,
    CommitBatch,
    EndPart,
    Finish,
    ForgetOutcome,
    SettleLeases,
    TakeCopies,
)


class Parts(Protocol):
    """The parts of a broker that carry such commands out."""

    access: Access
    two_phase: TwoPhase
    leasing: Leasing
    arrivals: Arrivals
    spanning: Spanning


class Asker(Protocol):
    """The connection of a session that passes one on."""

    client: Client
    traffic: Traffic


def _forget_outcome(broker: Parts, asker: Asker, command: ForgetOutcome, waiter: Waiter) -> None:
    broker.two_phase.check_ended(command.xid, waiter, Rights(broker.access, asker.client.user))


def _finish(broker: Parts, asker: Asker, command: Finish, waiter: Waiter) -> None:
    broker.two_phase.finish(command, waiter, Rights(broker.access, asker.client.user))


def _ask_decision(broker: Parts, asker: Asker, command: AskDecision, waiter: Waiter) -> None:  # noqa: ARG001
    broker.spanning.ask(command, waiter)


def _end_part(broker: Parts, asker: Asker, command: EndPart, waiter: Waiter) -> None:  # noqa: ARG001
    broker.spanning.end(command, waiter)


def _commit_batch(broker: Parts, asker: Asker, command: CommitBatch, waiter: Waiter) -> None:
    broker.two_phase.commit_batch(command, waiter, asker.client.user.name)


def _abort_batch(broker: Parts, asker: Asker, command: AbortBatch, waiter: Waiter) -> None:  # noqa: ARG001
    broker.two_phase.abort_batch(command, waiter)


def _settle_leases(broker: Parts, asker: Asker, command: SettleLeases, waiter: Waiter) -> None:
    asker.traffic.acknowledged += broker.leasing.settle(command, waiter, asker.client.id, asker.client.user.name)


def _close_parcel(broker: Parts, asker: Asker, command: CloseParcel, waiter: Waiter) -> None:  # noqa: ARG001
    broker.arrivals.close(command, waiter)


def _take_copies(broker: Parts, asker: Asker, command: TakeCopies, waiter: Waiter) -> None:  # noqa: ARG001
    broker.arrivals.fetch(command, waiter)


PASSED_ON: Mapping[type[Command], Callable[[Parts, Asker, Any, Waiter], None]] = {
    ForgetOutcome: _forget_outcome,
    Finish: _finish,
    AskDecision: _ask_decision,
    EndPart: _end_part,
    CommitBatch: _commit_batch,
    AbortBatch: _abort_batch,
    SettleLeases: _settle_leases,
    CloseParcel: _close_parcel,
    TakeCopies: _take_copies,
}
