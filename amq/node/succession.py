"""Succession: who is to be master next, where no death decides it.

A master hands over to one slave because an operator orders it (`amq handover`), or because a slave of higher priority
is ready (failback). It asks that slave first, through `amq.store.orders`: one that is not ready refuses, and the master
goes on. The release mark then names the slave, and the others hold back for a while. A master that stops with
`failoverOnShutdown = false` leaves a mark that keeps all slaves from the lock.

Invariant: nothing here is needed for safety. A mastership ends as by any stop, and to hold back is to try for the lock
less often (docs/master-slave.md, "Handing over to a certain slave"). Everything belongs to the lease thread.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

import structlog

from amq.config.schema import BrokerConfig
from amq.core.errors import AmqError
from amq.doors.clock import Clock
from amq.node.group import Group
from amq.store.board import Board
from amq.store.host import Owner
from amq.store.orders import FAILBACK, HAND_OVER, OPERATOR, STOP, TAKE_OVER, WITHDRAWN, Answer, Order, Orders, give
from amq.store.presence import BrokerPresence

ANSWER_S = 3.0  # how long a slave may take to answer, and one of its periods more
ASK_S = 0.05  # between two looks for the answer
EAGER_S = 5.0  # how long a slave that said "ready" tries for the lock every `EAGER_POLL_S`
EAGER_POLL_S = 0.02
HOLD_BACK_S = 3.0  # how long others leave the lock to the slave that a release mark names
OTHERS_S = 2.0  # between two looks of a master for a slave of higher priority
FAILBACK_WINDOW_S = 3600.0  # failbacks within it make the next one wait longer, up to as long
FAILBACKS_KEPT = 32
_log = structlog.get_logger("amq.succession")


@dataclass(frozen=True, slots=True)
class Departure:
    """How a mastership ends in good order: slave `to` takes over, "" = any; none if not `failover`."""

    to: str = ""
    failover: bool = True


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
    """Of one broker, `owner`, from its start to its end. `config` may be replaced while it runs."""

    def __init__(
        self, board: Board, clock: Clock, entropy: Random, config: BrokerConfig, owner: Owner, group: Group
    ) -> None:
        self.config = config
        self.answer = Answer()  # to the last order
        self.passive = False  # the last master forbade a failover
        self._board = board
        self._clock = clock
        self._entropy = entropy
        self._owner = owner
        self._group = group
        self._orders = Orders(board, owner.name, owner.uuid)
        self._look_at = 0.0
        self._eager_until = 0.0
        self._why = ""  # the lock will be free
        self._passed_over: set[str] = set()  # uuids of brokers to which an operator preferred this one
        self._mark: tuple[object, object] | None = None  # the release mark that holds this slave back, since
        self._mark_since = 0.0
        self._mark_at_start: tuple[object, object] | bool | None = False  # False = no mark was looked for yet
        self._search: _Search | None = None
        self._better: tuple[str, str] | None = None  # the slave of higher priority that is ready, since
        self._better_since = 0.0
        self._failbacks: deque[float] = deque(maxlen=FAILBACKS_KEPT)

    def open(self) -> None:
        """From now on this broker takes orders. Raises OSError."""
        self._orders.open()

    # -- as a slave ---------------------------------------------------------------------------------------------------

    @property
    def eager(self) -> bool:
        """Whether the lock will soon be free for this slave."""
        return self._clock.monotonic() < self._eager_until

    def heed(self, not_ready: str) -> bool:
        """Look for an order and answer it; True = stop. `not_ready` says why this slave could not take over, "" = it
        could.
        """
        now = self._clock.monotonic()
        if now < self._look_at:
            return False
        self._look_at = now + self._owner.lock_keep_alive_period_s / 3
        order = self._orders.look()
        if order is None:
            return False
        _log.info("order", action=order.action or "withdrawn", by=order.by)
        if order.action == STOP:
            self.answer = Answer(order.id, "stopping")
            return True
        if order.action == TAKE_OVER and not not_ready:
            self.answer = Answer(order.id, "ready")
            self._eager_until, self._why = now + EAGER_S, order.why
        elif order.action == TAKE_OVER:
            self.answer = Answer(order.id, "refused", not_ready)
        elif order.action == HAND_OVER:
            self.answer = Answer(order.id, "refused", "is not the master")
        elif order.action == WITHDRAWN:
            self._eager_until = 0.0
        return False

    def may_try(self, mark: Mapping[str, Any] | None) -> bool:
        """Whether this slave may try for the lock, as far as the release mark of the newest epoch says; None = there is
        none.

        The mark that a broker finds when it starts does not keep it from the lock: to start it is to say that there
        shall be a master.
        """
        key = (mark.get("epoch"), mark.get("uuid")) if mark is not None else None
        if self._mark_at_start is False:
            self._mark_at_start = key
        now = self._clock.monotonic()
        if key != self._mark:
            self._mark, self._mark_since = key, now
        to = mark.get("to") if mark is not None else ""
        if to and to != self._owner.name:
            return now >= self._mark_since + HOLD_BACK_S
        forbidden = mark is not None and mark.get("failover") is False and key != self._mark_at_start
        passive = forbidden and not self.eager
        if passive and not self.passive:
            _log.warning("the last master forbade a failover: waiting for an order, or for the start of a broker")
        self.passive = passive
        return not passive

    # -- as a master --------------------------------------------------------------------------------------------------

    @property
    def asking(self) -> bool:
        """Whether a slave was asked and has not answered yet."""
        return self._search is not None

    def decide(self) -> Departure | None:
        """Whether this mastership shall end now, and how. None = go on. To be called after every lease check."""
        order = self._orders.look()
        if order is not None:
            _log.info("order", action=order.action or "withdrawn", by=order.by)
            if order.action == STOP:
                self.answer = Answer(order.id, "stopping")
                return Departure(failover=self.config.failover_on_shutdown)
            if order.action == HAND_OVER:
                self._obey(order)
            elif order.action == TAKE_OVER:
                self.answer = Answer(order.id, "refused", "is the master")
            elif self._search is not None and self._search.order:
                self._withdraw(self._search)
                self._search = None
        if self._search is None:
            self._look_for_better()
        return self._go_on(self._search) if self._search is not None else None

    @property
    def told_to_stop(self) -> bool:
        return self.answer.state == "stopping"

    def begins(self) -> None:
        """This broker is master now. Where an operator made it that, the brokers that run now are no reason for a
        failback: only one that is started later.
        """
        if self.eager and self._why == OPERATOR:
            self._passed_over = {_uuid(other) for other in self._group.others(0.0)}
        else:
            self._passed_over = set()
        self._eager_until, self._search, self._better, self.passive = 0.0, None, None, False
        self._mark_at_start = None

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
                search.refusals = [f"no broker {order.to!r} runs on this store beside this one; others: {names}"]
        else:
            ready = [other for other in others if not other.not_ready]
            search.left = sorted(ready, key=lambda other: (-other.priority, other.name))
            search.refusals = [f"{other.name} {other.not_ready}" for other in others if other.not_ready]
        self.answer = Answer(order.id, "asked")

    def _look_for_better(self) -> None:
        """Begin a failback, if a slave of higher priority has been ready for long enough."""
        if not self.config.allow_failback:
            return
        now = self._clock.monotonic()
        better = [
            other
            for other in self._group.others(OTHERS_S)
            if other.priority > self.config.priority and not other.not_ready and _uuid(other) not in self._passed_over
        ]
        best = max(better, key=lambda other: other.priority, default=None)
        key = (best.name, _uuid(best)) if best is not None else None
        if key != self._better:
            self._better, self._better_since = key, now
            if best is not None:
                self._tell_delay(best, now)
        if best is not None and now >= self._better_since + self._failback_delay_s(now):
            self._better = None
            self._search = _Search("", f"failback to priority {best.priority}", [best])

    def _failback_delay_s(self, now: float) -> float:
        while self._failbacks and self._failbacks[0] < now - FAILBACK_WINDOW_S:
            self._failbacks.popleft()
        first_s = self.config.failback_delay_s
        if not self._failbacks:
            return first_s
        return min(max(first_s, 1.0) * 2.0 ** len(self._failbacks), FAILBACK_WINDOW_S)

    def _tell_delay(self, best: BrokerPresence, now: float) -> None:
        delay_s, before = self._failback_delay_s(now), len(self._failbacks)
        if before:
            _log.warning(
                "failback waits longer: it happened before and did not last",
                to=best.name,
                delay_s=delay_s,
                failbacks=before,
                at_limit=delay_s >= FAILBACK_WINDOW_S,
            )
        else:
            _log.info("a slave of higher priority is ready: handing over soon", to=best.name, delay_s=delay_s)

    def _go_on(self, search: _Search) -> Departure | None:
        """One step of `search`."""
        if search.asked is not None:
            other, found = search.asked, self._answer_of(search.asked)
            if found.id == search.asked_id and found.state == "ready":
                return self._depart(search, other)
            if found.id == search.asked_id and found.state == "refused":
                search.refusals.append(f"{other.name} {found.reason}")
            elif self._clock.monotonic() < search.until:
                return None
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
            return None
        self._search = None
        reason = "; ".join(search.refusals) or "no other broker runs on this store"
        _log.warning("no slave takes over: staying master", why=search.why, reason=reason)
        if search.order:
            self.answer = Answer(search.order, "refused", reason)
        return None

    def _depart(self, search: _Search, to: BrokerPresence) -> Departure:
        self._search = None
        if search.order:
            self.answer = Answer(search.order, "handing over", to.name)
        else:
            self._failbacks.append(self._clock.monotonic())
        _log.info("handing over", to=to.name, why=search.why)
        return Departure(to.name)

    def _withdraw(self, search: _Search) -> None:
        """The slave that was asked need not wait for the lock. Nothing depends on it."""
        other = search.asked
        if other is None or other.owner is None:
            return
        try:
            self._give(other, Order(self._new_id(), other.owner.uuid, WITHDRAWN, by=self._by))
        except (AmqError, OSError) as error:
            _log.info("an order cannot be withdrawn", to=other.name, reason=str(error))

    def _answer_of(self, asked: BrokerPresence) -> Answer:
        others = self._group.others(0.0)
        found = next((other for other in others if other.name == asked.name), None)
        return Answer.from_json(found.facts.get("answer")) if found is not None else Answer()

    def _give(self, to: BrokerPresence, order: Order) -> None:
        give(self._board, to.name, order)

    @property
    def _by(self) -> str:
        return f"{self._owner.name}, master"

    def _new_id(self) -> str:
        return self._entropy.randbytes(8).hex()


def _uuid(broker: BrokerPresence) -> str:
    return broker.owner.uuid if broker.owner is not None else ""
