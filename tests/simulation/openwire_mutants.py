"""Holes made on purpose in OpenWire: each mutant is hunted in worlds with its clients."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from amq.protocols.commands import Command, Nothing, Outcome, SettleSet
from amq.protocols.openwire import codec
from amq.protocols.openwire.consumers import Ack, Consumer
from amq.protocols.openwire.ids import MessageIds
from amq.protocols.openwire.table import Structure
from amq.protocols.openwire.transactions import COMMIT_ONE, Step, Transactions
from tests.simulation.feature_mutants import MUTANTS, mutant_of

__all__ = ["MUTANTS"]  # with these


@mutant_of("openwire")
def a_message_comes_again_under_its_id() -> AbstractContextManager[object]:
    return patch.object(MessageIds, "may_know", lambda *_: False)


@mutant_of("openwire")
def late_acknowledgements_are_confirmed() -> AbstractContextManager[object]:
    def late(_consumer: Consumer | None, _ack: Ack, receipt: object) -> Command:
        return Nothing(receipt)

    return patch.object(codec, "late", late)


@mutant_of("openwire")
def a_commit_in_doubt_took_place() -> AbstractContextManager[object]:
    real = Transactions.end

    def end(
        transactions: Transactions, kind: int, key: bytes, id: Structure, receipt: object, *more: Any
    ) -> list[Step]:
        if kind == COMMIT_ONE and key not in transactions._open:
            return [(0, Nothing(receipt))]
        return real(transactions, kind, key, id, receipt, *more)

    return patch.object(Transactions, "end", end)


@mutant_of("openwire")
def a_rollback_leaves_the_acknowledgements() -> AbstractContextManager[object]:
    return patch.object(Consumer, "release", lambda *_: None)


@mutant_of("openwire")
def what_was_prefetched_counts_as_seen() -> AbstractContextManager[object]:
    real = Consumer.leave

    def leave(consumer: Consumer, last_delivered: int) -> list[Command]:
        found = real(consumer, last_delivered)
        for each in found:
            if isinstance(each, SettleSet):
                each.outcome = Outcome.RETURNED
        return found

    return patch.object(Consumer, "leave", leave)
