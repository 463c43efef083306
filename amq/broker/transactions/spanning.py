"""Spanning: the parts and decisions that this store has of transactions over several stores.

The gateway prepares a part in each store but one, the decider. That commits its own share together with the decision.
Then the gateway commits the parts. Invariants: a part ends as the decider has decided, and by nothing else; the decider
says "never" only where the transaction can never be decided later: an open transaction ends with its master, so the
refusals of a master need not outlive it; a decision is kept until every part has ended.

A part or a decision that is still here after `DOUBT_S` has lost its gateway. A part asks the decider; a decision gives
its word to the stores that have parts. Both ask again until they are answered.

A client that prepares such a transaction decides it itself. Then the decider's share is what the client has prepared,
with its xid, and the only thing that clients see and end: the parts in the other stores end as it does. Its commit is
stored together with the decision, of which the other stores hear at once.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import structlog

from amq.broker.core import Core
from amq.broker.transactions import outcomes
from amq.broker.transactions.commits import Commits
from amq.broker.transactions.refused import Refused
from amq.broker.transactions.transaction import Transaction
from amq.broker.transactions.two_phase import TwoPhase
from amq.broker.transfer.outbox import FACT_CHARACTERS_MAX
from amq.broker.transfer.peers import PeerConnection
from amq.broker.waiters import Answering, Call, Together
from amq.core.errors import AmqError, StoreError, TransactionRolledBackError
from amq.core.xid import Key, key_of
from amq.journal.batch import Waiter
from amq.journal.records import Group, Prepared, decider_of, decision_owner, stores_of
from amq.protocols.commands import (
    DECIDED,
    NEVER,
    REPEATED,
    UNDECIDED,
    AskDecision,
    Decide,
    EndPart,
    Failure,
    Prepare,
)

ANSWER_S: Final = 1.0  # so long a commit that is decided waits for its parts before the client hears of it
DOUBT_S: Final = 5.0  # a gateway needs less for both phases; so long after a question the next one comes
LATE_S: Final = 2 * DOUBT_S  # a question has had no answer for `DOUBT_S`: `facts` say so
ASKED_MAX: Final = 100  # questions to a store without an answer; the others wait
STARTED_MAX: Final = 100  # transactions in a turn of the sweep
PROTOCOL: Final = "decision"
_log = structlog.get_logger("amq.broker")


class Spanning:
    """`since` = parts and decisions that have not ended here → when they began or were found (monotonic). `facts` is
    for operators, replaced as a whole; other threads read it."""

    def __init__(self, core: Core, commits: Commits, two_phase: TwoPhase) -> None:
        self._core = core
        self._commits = commits
        self._two_phase = two_phase
        self._deciding: dict[Key, Group] = {}  # decisions on their way
        self._refused = Refused(lambda: core.config.outcome_window)
        self._prepared: dict[Key, Key] = {}  # parts elsewhere of what clients have prepared here → that
        self._telling: dict[Key, tuple[float, list[Waiter]]] = {}  # decisions → who waits for all parts, since when
        self.since: dict[Key, float] = {}
        self.facts: Mapping[str, Any] = {}
        self._due: dict[Key, float] = {}  # the earliest first
        self._owing: dict[Key, set[str]] = {}  # of decisions: the stores that have not answered
        self._ways: dict[str, Asking] = {}
        self._troubles: dict[str, str] = {}  # why stores do not answer, as the log has it

    def start_serving(self) -> None:
        """The replay is complete."""
        for prepared, _ in self._core.state.prepared.values():
            self.is_there(prepared)

    def is_there(self, prepared: Prepared) -> None:
        """A prepared transaction is durable."""
        if prepared.span:
            self._prepared[prepared.span_key] = prepared.key
        if not decider_of(prepared.xid):
            return
        self._deciding.pop(prepared.key, None)
        if prepared.key not in self.since:
            now_s = self._core.clock.monotonic()
            self.since[prepared.key] = now_s
            self._due[prepared.key] = now_s + DOUBT_S

    def has_ended(self, prepared: Prepared, committed: bool) -> None:
        """The end of a prepared transaction is durable."""
        if prepared.span:
            self._tell_parts(prepared, committed)
        if decider_of(prepared.xid):
            self.since.pop(prepared.key, None)
            self._due.pop(prepared.key, None)
            self._owing.pop(prepared.key, None)
            self._tell_client(prepared.key)

    def stop(self) -> None:
        """The mastership ends."""
        ways, self._ways = self._ways, {}
        self._due.clear()
        self._telling.clear()
        for way in ways.values():
            way.hang_up()

    def in_doubt(self) -> Iterator[tuple[Prepared, float]]:
        """Parts and decisions whose gateway has not ended them, the oldest first, with seconds."""
        now_s, prepared = self._core.clock.monotonic(), self._core.state.prepared
        for key, since_s in self.since.items():
            if now_s - since_s < DOUBT_S:
                return
            if key in prepared and key not in self._two_phase.ending:
                yield prepared[key][0], now_s - since_s

    def _say(self) -> None:
        """Tell operators of the transaction that is in doubt longest, if that is long."""
        prepared, seconds = next(self.in_doubt(), (None, 0.0))
        if prepared is None or seconds < LATE_S:
            self.facts = {}
            return
        waits_for = sorted(self._owing.get(prepared.key) or stores_of(prepared.owner)) or [decider_of(prepared.xid)]
        why = next((self._troubles[store] for store in waits_for if store in self._troubles), "")
        self.facts = {
            "xid": str(prepared.xid)[:FACT_CHARACTERS_MAX],
            "waits_for": ", ".join(waits_for)[:FACT_CHARACTERS_MAX],
            "since_ms": prepared.created_ms,
            "reason": why[:FACT_CHARACTERS_MAX],
        }

    # -- the decider --------------------------------------------------------------------------------------------------

    def commit(self, transaction: Transaction | None, command: Decide, waiter: Waiter, name: str, user: str) -> None:
        """`transaction` None = it is not open: a question. Raises TransactionRolledBackError, StoreFullError,
        CommandError: then it never will be decided."""
        if transaction is None:
            self._tell(command, waiter, name, user)
        else:
            self._decide(transaction, command, waiter, name, user)

    def _decide(self, transaction: Transaction, command: Decide, waiter: Waiter, name: str, user: str) -> None:
        """Commit this store's share of the transaction with the decision."""
        core, key = self._core, key_of(user, command.xid)
        if (user, command.xid) in self._refused:
            transaction.roll_back()
            raise _rolled_back(command.xid)
        decision = Prepared(
            command.xid, core.next_seq(), core.clock.wall_ms(), 0, decision_owner(command.stores), user=user
        )
        answer = Answering(waiter, DECIDED)
        group = self._commits.commit(transaction, answer, name, decision)
        if group is not None:
            self._deciding[key] = group

    def withdrawn(self, group: Group) -> None:
        """A group met a full disk."""
        for record in group.records:
            if record.__class__ is Prepared and self._deciding.get(record.key) is group:
                del self._deciding[record.key]
            if record.__class__ is Prepared and record.span:
                self._prepared.pop(record.span_key, None)

    def _tell(self, command: Decide, waiter: Waiter, name: str, user: str) -> None:
        """Answer a gateway whose transaction is not open here: the master that had it may have decided. REPEATED: the
        client's name for the commit is that of another one, which took place."""
        core, key = self._core, key_of(user, command.xid)
        if self._is_decided(key):
            core.when_durable(Answering(waiter, DECIDED), self._deciding.get(key))
            return
        self._refused.add(user, command.xid)
        if name and outcomes.is_known(core, name):
            core.when_durable(Answering(waiter, REPEATED), core.outcomes_pending.get(name))
            return
        raise _rolled_back(command.xid)

    def ask(self, command: AskDecision, waiter: Waiter) -> None:
        """A store that has a part asks. A transaction that is not decided never will be."""
        key = key_of(command.user, command.xid)
        if self._is_decided(key):
            self._core.when_durable(Answering(waiter, DECIDED), self._deciding.get(key))
            return
        prepared = self._prepared.get(key)
        if prepared is None:
            self._refused.add(command.user, command.xid)
            self._core.journal.confirm(Answering(waiter, NEVER))
            return
        group, committed = self._two_phase.ending.get(prepared, (None, None))
        outcome = UNDECIDED if group is None else DECIDED if committed else NEVER
        self._core.when_durable(Answering(waiter, outcome), group)

    # -- what a client prepares ---------------------------------------------------------------------------------------

    def prepare(self, transaction: Transaction | None, command: Prepare, waiter: Waiter, user: str) -> None:
        """Prepare this store's share. Raises what `TwoPhase.prepare` raises."""
        if transaction is not None and command.span and (user, command.span) in self._refused:
            transaction.roll_back()
            raise _rolled_back(command.span)
        self._two_phase.prepare(transaction, command, waiter, user)
        if transaction is not None and command.span:
            self._prepared[key_of(user, command.span)] = key_of(user, command.xid)

    def until_ended(self, some: list[Prepared], waiter: Waiter) -> Waiter:
        """See `PartsElsewhere`. Where a part does not end soon the client hears of the commit all the same: it took
        place."""
        decisions = [each.span_key for each in some if each.span]
        if not decisions or self._core.peers is None:
            return waiter
        return Call(partial(self._tell_later, decisions, waiter), waiter.failed)

    def _tell_later(self, decisions: list[Key], waiter: Waiter) -> None:
        """They are durable."""
        left = [key for key in decisions if key in self._core.state.prepared]
        if not left:
            waiter.done()
            return
        waiter = Together(waiter, len(left))
        now_s = self._core.clock.monotonic()
        for key in left:
            self._telling.setdefault(key, (now_s, []))[1].append(waiter)

    def _tell_client(self, decision: Key) -> None:
        for waiter in self._telling.pop(decision, (0.0, ()))[1]:
            waiter.done()

    def _tell_parts(self, prepared: Prepared, committed: bool) -> None:
        """That has ended so. A store that does not hear of it asks, or is asked, when that is due."""
        core, key = self._core, prepared.span_key
        self._prepared.pop(key, None)
        if core.peers is None:
            return
        if not committed:
            for store in prepared.stores:
                way = self._way(store)
                if len(way.asked) < ASKED_MAX:
                    way.ask(key, EndPart(prepared.span, prepared.user, False))
        elif key in core.state.prepared:
            self._ask(core.state.prepared[key][0])

    # -- the decider's word -------------------------------------------------------------------------------------------

    def _is_decided(self, key: Key) -> bool:
        return key in self._deciding or key in self._core.state.prepared or self._two_phase.ended_so(key, True)

    # -- the parts ----------------------------------------------------------------------------------------------------

    def end(self, command: EndPart, waiter: Waiter) -> None:
        """Carry out what was decided of a part; again = nothing. In the decider: all parts have ended. Raises
        TransactionRolledBackError where an operator has rolled the part back."""
        core, key = self._core, key_of(command.user, command.xid)
        ending = self._two_phase.ending.get(key)
        if ending is not None:
            core.when_durable(waiter, ending[0])
        elif key in core.state.prepared:
            self._two_phase.finish_together([core.state.prepared[key][0]], command.commit, waiter)
        elif command.commit and self._two_phase.ended_so(key, False):
            raise TransactionRolledBackError(f"this part of {command.xid} was rolled back by an operator")
        else:
            core.journal.confirm(waiter)

    # -- in doubt -----------------------------------------------------------------------------------------------------

    def sweep(self) -> None:
        """Ask for those that are in doubt, and say what waits. Call every second or so."""
        self._say()
        if self._core.peers is None:
            return
        now_s, started = self._core.clock.monotonic(), 0
        for key, (since_s, _) in [*self._telling.items()]:
            if now_s - since_s >= ANSWER_S:
                self._tell_client(key)
        while self._due and started < STARTED_MAX:
            key = next(iter(self._due))
            if self._due[key] > now_s:
                return
            started += 1
            del self._due[key]
            self._due[key] = now_s + DOUBT_S
            if key in self._core.state.prepared and key not in self._two_phase.ending:
                self._ask(self._core.state.prepared[key][0])

    def _ask(self, prepared: Prepared) -> None:
        xid, user, stores = str(prepared.xid), prepared.user, stores_of(prepared.owner)
        self.since.setdefault(prepared.key, self._core.clock.monotonic())
        if not stores:
            self._way(decider_of(xid)).ask(prepared.key, AskDecision(xid, user))
            return
        owing = self._owing.setdefault(prepared.key, set(stores))
        for store in [*owing]:
            self._way(store).ask(prepared.key, EndPart(xid, user, True))

    def _way(self, store: str) -> Asking:
        way = self._ways.get(store)
        if way is None:
            way = self._ways[store] = Asking(self, self._core, store)
        return way

    def closed(self, way: Asking) -> None:
        """Nothing is asked there."""
        if self._ways.get(way.store) is way:
            del self._ways[way.store]

    def answered(self, store: str, key: Key, outcome: str, error: Exception | None) -> None:
        """`store` has answered for that part or decision."""
        found = self._core.state.prepared.get(key)
        if found is None or key in self._two_phase.ending:
            return
        prepared = found[0]
        stores = stores_of(prepared.owner)
        if error is not None and not (stores and isinstance(error, TransactionRolledBackError)):
            self.unanswered(store, error)
            return
        self._troubles.pop(store, None)
        if outcome == UNDECIDED:
            self.since.pop(key, None)  # it is not in doubt: its client has not decided
            return
        if not stores:
            self._end(prepared, outcome == DECIDED)
            return
        if error is not None:
            _log.error("a transaction was committed in part", xid=str(prepared.xid), of_store=store, reason=str(error))
        owing = self._owing.get(key)
        if owing is not None:
            owing.discard(store)
            if not owing:
                self._end(prepared, True)

    def unanswered(self, store: str, error: Exception) -> None:
        """`store` is asked again when that is due. The log says why, once."""
        reason = str(error)
        if self._troubles.get(store) != reason:
            self._troubles[store] = reason
            _log.warning("a store did not say what became of a transaction", of_store=store, reason=reason)

    def _end(self, prepared: Prepared, commit: bool) -> None:
        _log.info("a transaction over several stores has ended", xid=str(prepared.xid), committed=commit)
        self._two_phase.finish_together([prepared], commit, Call(_nothing, _nothing))


class Asking:
    """The questions to one other store, on a connection that lasts as long as there are some. `_later` = those that
    wait for answers to others. Implements `amq.broker.recipient.Recipient`."""

    def __init__(self, spanning: Spanning, core: Core, store: str) -> None:
        self.store = store
        self.asked: dict[int, Key] = {}  # by receipt
        self._keys: set[Key] = set()
        self._later: deque[tuple[Key, AskDecision | EndPart]] = deque()
        self._spanning = spanning
        self._core = core
        self._last = 0
        self._connection: PeerConnection | None = None

    def ask(self, key: Key, command: AskDecision | EndPart) -> None:
        """Once at a time for each `key`."""
        if key in self._keys or self._core.peers is None:
            return
        self._keys.add(key)
        if len(self.asked) < ASKED_MAX:
            self._ask(key, command)
        else:
            self._later.append((key, command))

    def _ask(self, key: Key, command: AskDecision | EndPart) -> None:
        peers = self._core.peers
        assert peers is not None
        self._last += 1
        command.receipt = self._last
        self.asked[self._last] = key
        try:
            if self._connection is None:
                self._connection = peers.open(self.store, self, PROTOCOL, self._lost)
            self._connection.handle([command])
        except AmqError as error:
            self._lost(error)

    def hang_up(self) -> None:
        """Ask no more."""
        self.asked.clear()
        self._keys.clear()
        self._later.clear()
        self._spanning.closed(self)
        connection, self._connection = self._connection, None
        if connection is not None and not connection.is_closed:
            connection.close()

    def _lost(self, error: AmqError) -> None:
        """Asked again when that is due."""
        if self.asked:
            self._spanning.unanswered(self.store, error)
        self._connection = None
        self.hang_up()

    def _answered(self, receipt: object, outcome: str, error: Exception | None) -> None:
        key = self.asked.pop(receipt, None)  # type: ignore[call-overload]
        if key is not None:
            self._keys.discard(key)
            self._spanning.answered(self.store, key, outcome, error)
        if self._later:
            self._ask(*self._later.popleft())
        if not self.asked:
            self.hang_up()

    def confirm(self, receipt: object, outcome: str = "") -> None:
        self._answered(receipt, outcome, None)

    def confirm_all(self, receipts: Sequence[object]) -> None:
        for receipt in receipts:
            self._answered(receipt, "", None)

    def fail(self, failure: Failure) -> None:
        if failure.receipt is not None:
            self._answered(failure.receipt, "", failure.error)

    def close(self) -> None:
        self._lost(StoreError("the other store has ended the connection"))

    def pause_reading(self) -> None:
        """At most `ASKED_MAX` questions are on their way."""

    def resume_reading(self) -> None:
        """Nothing was paused."""

    def subscribed(self, *_: Any) -> Any:
        raise AssertionError("no consumer here")

    deliver = deliver_all = browsed = deliver_batch = deliver_run = subscribed


def _nothing(*_: object) -> None:
    """The record of the end says it all."""


def _rolled_back(xid: str) -> TransactionRolledBackError:
    return TransactionRolledBackError(f"transaction {xid} was rolled back: a store asked first what became of it")
