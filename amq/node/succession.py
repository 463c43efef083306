"""Succession: who is to be master next, where no death decides it.

A master hands over to one slave because an operator orders it (`amq handover`), or because a slave of higher priority
is ready (failback). It asks that slave first, through `amq.store.orders`: one that is not ready refuses, and the master
goes on. The release mark then names the slave, and the others hold back for a while. A master that stops with
`failoverOnShutdown = false` leaves a mark that keeps all slaves from the lock.

This module reads and answers orders, and asks slaves; `amq.node.candidacy` decides what an order means.

Invariant: nothing here is needed for safety. A mastership ends as by any stop (docs/master-slave.md, "Handing over to a
certain slave"). Everything belongs to the lease thread.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random

import structlog

from amq.core.errors import AmqError
from amq.doors.clock import Clock
from amq.node.candidacy import (
    FAILBACK_WINDOW_S,
    Agree,
    Candidacy,
    Decision,
    HandOver,
    Input,
    Other,
    Refuse,
    Seek,
    Stop,
    View,
    Wait,
    Withdraw,
)
from amq.node.group import Group
from amq.store.board import Board
from amq.store.host import Owner
from amq.store.orders import FAILBACK, OPERATOR, TAKE_OVER, WITHDRAWN, Order, OrderAnswer, Orders, give
from amq.store.presence import BrokerPresence

ANSWER_S = 3.0  # how long a slave may take to answer, and one of its periods more
OTHERS_S = 2.0  # between two looks of a master for a slave of higher priority
_log = structlog.get_logger("amq.succession")


@dataclass(slots=True)
class _Search:
    """A master looks for a slave that takes over. `order` = the id of an operator's order, "" = failback."""

    order: str
    why: str
    left: list[BrokerPresence]
    refusals: list[str] = field(default_factory=list)
    asked: BrokerPresence | None = None
    asked_id: str = ""
    until: float = 0.0


class Succession:
    """Of one broker, `owner`, from its start to its end."""

    def __init__(
        self,
        board: Board,
        clock: Clock,
        entropy: Random,
        owner: Owner,
        group: Group,
        candidacy: Candidacy,
    ) -> None:
        self.answer = OrderAnswer()  # to the last order
        self._candidacy = candidacy
        self._board = board
        self._clock = clock
        self._entropy = entropy
        self._owner = owner
        self._group = group
        self._orders = Orders(board, owner.name, owner.uuid)
        self._look_at = 0.0
        self._was_passive = False  # as last reported
        self._search: _Search | None = None
        self._better: Other | None = None  # as last reported

    def open(self) -> None:
        """From now on this broker takes orders. Raises OSError."""
        self._orders.open()

    # -- as a slave ---------------------------------------------------------------------------------------------------

    def heed(self, not_ready: str) -> Decision | None:
        """Look for an order, if that is due, and answer it; None = there is no new one. `not_ready` says why this slave
        could not take over, "" = it could.
        """
        now = self._clock.monotonic()
        if now < self._look_at:
            return None
        self._look_at = now + self._owner.lock_keep_alive_period_s / 3
        return self._read_order(not_ready)

    def report(self) -> None:
        """Report that this slave has become passive. To be called after each decision."""
        before, self._was_passive = self._was_passive, self._candidacy.passive
        if self._was_passive and not before:
            _log.warning("the last master forbade a failover: waiting for an order, or for the start of a broker")

    # -- as a master --------------------------------------------------------------------------------------------------

    def begins(self) -> None:
        """This broker is master now."""
        now = self._clock.monotonic()
        others = self._others(0.0) if self._candidacy.called(now) else ()
        self._candidacy.step(Input.BEGUN, View(now, others=others))
        self._search = None

    def decide(self) -> Decision:
        """Whether this mastership shall end now, and how, or until when it goes on. To be called after every lease
        check.
        """
        decision = self._read_order()
        while not isinstance(decision, Stop | HandOver | Wait):
            search = self._search
            ready = self._go_on(search) if search is not None else ""
            asking = self._search is not None
            others = self._others(OTHERS_S) if self._candidacy.config.allow_failback and not asking else ()
            view = View(self._clock.monotonic(), ready=ready, asking=asking, others=others)
            decision = self._candidacy.step(Input.LOOK, view)
            self._tell_better()
            if isinstance(decision, Seek) and decision.to is not None:
                self._search = self._failback(decision.to)
        return decision

    def _others(self, age_s: float) -> tuple[Other, ...]:
        return tuple(Other(each.name, _uuid(each), each.priority, each.not_ready) for each in self._group.others(age_s))

    def _failback(self, to: Other) -> _Search:
        found = [each for each in self._group.others(OTHERS_S) if (each.name, _uuid(each)) == (to.name, to.uuid)]
        return _Search("", f"failback to priority {to.priority}", found)

    # -- orders -------------------------------------------------------------------------------------------------------

    def _read_order(self, not_ready: str = "") -> Decision | None:
        """Carry out an order that this broker has not seen yet, and answer it."""
        order = self._orders.look()
        if order is None:
            return None
        _log.info("order", action=order.action or "withdrawn", by=order.by)
        view = View(self._clock.monotonic(), order=order, not_ready=not_ready)
        decision = self._candidacy.step(Input.ORDER, view)
        match decision:
            case Stop():
                self.answer = OrderAnswer(order.id, "stopping")
            case Agree():
                self.answer = OrderAnswer(order.id, "ready")
            case Refuse(reason):
                self.answer = OrderAnswer(order.id, "refused", reason)
            case Seek():
                self._obey(order)
            case Withdraw() if self._search is not None and self._search.order:
                self._withdraw(self._search)
                self._search = None
        return decision

    def _obey(self, order: Order) -> None:
        if self._search is not None:
            self._withdraw(self._search)
        others = self._group.others(0.0)
        self._search = search = _Search(order.id, f"by order of {order.by}", [])
        if order.to:
            search.left = [other for other in others if other.name == order.to]
            if order.to == self._owner.name:
                search.refusals = [f"{order.to} is the master already"]
            elif not search.left:
                names = ", ".join(other.name for other in others) or "none"
                search.refusals = [f"no broker {order.to!r} runs on this store besides this one; others: {names}"]
        else:
            ready = [other for other in others if not other.not_ready]
            search.left = sorted(ready, key=lambda other: (-other.priority, other.name))
            search.refusals = [f"{other.name} {other.not_ready}" for other in others if other.not_ready]
        self.answer = OrderAnswer(order.id, "asked")

    def _tell_better(self) -> None:
        """Report that a failback will begin."""
        better = self._candidacy.better
        before, self._better = self._better, better
        if better is None or (before is not None and (before.name, before.uuid) == (better.name, better.uuid)):
            return
        delay_s, failbacks = self._candidacy.failback_delay_s, len(self._candidacy.failbacks)
        if failbacks:
            _log.warning(
                "failback waits longer: it happened before and did not last",
                to=better.name,
                delay_s=delay_s,
                failbacks=failbacks,
                at_limit=delay_s >= FAILBACK_WINDOW_S,
            )
        else:
            _log.info("a slave of higher priority is ready: handing over soon", to=better.name, delay_s=delay_s)

    def _go_on(self, search: _Search) -> str:
        """One step of `search`. The name of the slave that agreed to take over, "" = none has."""
        if search.asked is not None:
            other, found = search.asked, self._answer_of(search.asked)
            if found.id == search.asked_id and found.state == "ready":
                return self._depart(search, other)
            if found.id == search.asked_id and found.state == "refused":
                search.refusals.append(f"{other.name} {found.reason}")
            elif self._clock.monotonic() < search.until:
                return ""
            else:
                search.refusals.append(f"{other.name} does not answer")
                self._withdraw(search)
            search.asked = None
        while search.left:
            other = search.left.pop(0)
            if other.owner is None:
                search.refusals.append(f"{other.name} is just starting")
                continue
            search.asked_id = self._new_id()
            try:
                why = OPERATOR if search.order else FAILBACK
                self._give(other, Order(search.asked_id, other.owner.uuid, TAKE_OVER, by=self._by, why=why))
            except (AmqError, OSError) as error:
                search.refusals.append(f"{other.name} cannot be asked: {error}")
                continue
            search.asked = other
            search.until = self._clock.monotonic() + ANSWER_S + other.owner.lock_keep_alive_period_s
            return ""
        self._search = None
        reason = "; ".join(search.refusals) or "no other broker runs on this store"
        _log.warning("no slave takes over: staying master", why=search.why, reason=reason)
        if search.order:
            self.answer = OrderAnswer(search.order, "refused", reason)
        return ""

    def _depart(self, search: _Search, to: BrokerPresence) -> str:
        self._search = None
        if search.order:
            self.answer = OrderAnswer(search.order, "handing over", to.name)
        _log.info("handing over", to=to.name, why=search.why)
        return to.name

    def _withdraw(self, search: _Search) -> None:
        """The slave that was asked need not wait for the lock. Nothing depends on it."""
        other = search.asked
        if other is None or other.owner is None:
            return
        try:
            self._give(other, Order(self._new_id(), other.owner.uuid, WITHDRAWN, by=self._by))
        except (AmqError, OSError) as error:
            _log.info("an order cannot be withdrawn", to=other.name, reason=str(error))

    def _answer_of(self, asked: BrokerPresence) -> OrderAnswer:
        others = self._group.others(0.0)
        found = next((other for other in others if other.name == asked.name), None)
        return OrderAnswer.from_json(found.facts.get("answer")) if found is not None else OrderAnswer()

    def _give(self, to: BrokerPresence, order: Order) -> None:
        give(self._board, to.name, order)

    @property
    def _by(self) -> str:
        return f"{self._owner.name}, master"

    def _new_id(self) -> str:
        return self._entropy.randbytes(8).hex()


def _uuid(broker: BrokerPresence) -> str:
    return broker.owner.uuid if broker.owner is not None else ""
