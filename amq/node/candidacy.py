"""Candidacy: the one answer to "may this broker try for the lock now, and must a master let go of it?".

The member looks (`View`), asks `Candidacy.step`, and does what the decision says. This module has no I/O, no clock
and no log, so the table `CASES` is all that can happen. docs/master-slave.md shows it in
the site ("Who may try for the lock"), and `python -m amq.node.candidacy` prints it.

Invariants: an input that the table does not allow in a state raises and changes nothing. Nothing here is needed for
safety: to hold back is to try for the lock less often, and each reason to hold back but an operator's ends by itself.
"""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from amq.config.store_options import StoreOptions
from amq.store.election import RETRY_DELAYS_S
from amq.store.orders import HAND_OVER, OPERATOR, STOP, TAKE_OVER, Order

PAGE_PATH: Final = "docs/master-slave.md"
ASK_S = 0.05  # between two looks of a master for the answer of a slave
CALLED_S = 5.0  # how long a slave that said "ready" tries for the lock every `CALLED_POLL_S`
CALLED_POLL_S = 0.02
HOLD_BACK_S = 3.0  # how long others leave the lock to the slave that a release mark names
FREE_PATIENCE_S = 10.0  # how long the lock may be free before a broker that cannot serve takes it nevertheless
FREE_INTERVALS = 3  # lockAcquireSleepIntervals more: others have such intervals, too
BACK_OFF_S_MIN, BACK_OFF_S_MAX = 1.0, 60.0  # after a mastership without transports; twice as long each time
# Masterships that fail are tried again after a pause, twice as long each time; from the beginning where none failed for
# `FAILING_S`. The first pause is `lockAcquireSleepInterval`.
PAUSE_S_MAX = 10.0
FAILING_S = 30.0
FAILBACK_WINDOW_S = 3600.0  # failbacks within it make the next one wait longer, up to as long
FAILBACKS_KEPT = 32


class State(Enum):
    """WAITING  slave: another broker has the lock, or may have it
    TRYING      this slave asks for the lock
    REPLACING   this slave replaces the lock file of a holder that is silent
    MASTER      the lock is this broker's: it takes over, or serves
    LEAVING     the mastership ends in good order
    STOPPED     this broker takes no part any more
    """

    WAITING = "waiting"
    TRYING = "trying"
    REPLACING = "replacing"
    MASTER = "master"
    LEAVING = "leaving"
    STOPPED = "stopped"


class Input(Enum):
    """LOOK  it is time to decide
    WOKEN    something happened to the lock file
    LOCKED   the lock is this broker's
    MISSED   another broker has the lock
    ORDER    an order for this broker was read
    BEGUN    the epoch is this broker's
    SERVED   the transports are open
    UNHEARD  the mastership ended in good order because the transports could not be opened
    ENDED    the mastership ended in good order, or was given up before its epoch
    FAILED   the mastership was lost or refused, or the store cannot be used now
    """

    LOOK = "look"
    WOKEN = "woken"
    LOCKED = "locked"
    MISSED = "missed"
    ORDER = "order"
    BEGUN = "begun"
    SERVED = "served"
    UNHEARD = "unheard"
    ENDED = "ended"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Mark:
    """The release mark of the newest epoch: its master left the store to broker `to`, "" = any; to none that ran then
    if not `failover`.
    """

    epoch: int
    uuid: str
    to: str = ""
    failover: bool = True

    @classmethod
    def of(cls, found: Mapping[str, Any] | None) -> Mark | None:
        if found is None:
            return None
        return cls(found["epoch"], found["uuid"], str(found.get("to") or ""), found.get("failover") is not False)


@dataclass(frozen=True, slots=True)
class Listening:
    """The brokers that could serve clients.

    can_listen  this one could as master, where a port of the master on this host counts as free
    beside      it could also beside the master: a port of a master that hangs does not become free
    another     another broker could
    free        no broker seems to hold the lock; looked at only where another broker should take it
    """

    can_listen: bool = True
    beside: bool = True
    another: bool = False
    free: bool = False


@dataclass(frozen=True, slots=True)
class Other:
    """Another broker that runs on the store. `uuid` = of this start of it; `not_ready` says why it could not take over,
    "" = it could.
    """

    name: str
    uuid: str
    priority: int = 0
    not_ready: str = ""


@dataclass(frozen=True, slots=True)
class View:
    """Everything that one decision depends on, as the member sees it at `now` (monotonic seconds).

    stopping    this broker was asked to stop
    mark        the release mark of the newest epoch, None = it says nothing that matters
    silent      the holder of the lock has given no sign of life for `hungMasterTimeout`
    listening   the brokers that could serve clients
    not_ready   why this slave could not take over soon, "" = it could
    order       of an operator or of the master, with `Input.ORDER`
    ready       name of the slave that agreed to take over from this master, "" = none
    asking      this master has asked a slave, which has not answered yet
    others      the other brokers, as a master sees them
    """

    now: float
    stopping: bool = False
    mark: Mark | None = None
    silent: bool = False
    listening: Listening = Listening()
    not_ready: str = ""
    order: Order | None = None
    ready: str = ""
    asking: bool = False
    others: tuple[Other, ...] = ()


# -- decisions ---------------------------------------------------------------------------------------------------------


class Reason(Enum):
    """Why a slave leaves the lock to others."""

    UNHEARD = "it could not open its transports as master a moment ago"
    DEAF = "it cannot open its transports, and another broker can"
    NAMED = "the last master left the store to another slave"
    FORBIDDEN = "the last master forbade a failover"
    SAME_PORT = "the silent master has its port"


@dataclass(frozen=True, slots=True)
class Wait:
    """Follow the journal, heed orders and watch the holder of the lock until `until`, or serve clients; then look."""

    until: float


@dataclass(frozen=True, slots=True)
class HoldBack:
    """As `Wait`, without a try for the lock, and without the lock if this broker has it."""

    reason: Reason
    until: float


@dataclass(frozen=True, slots=True)
class Pause:
    """Do nothing for so long, then look."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Try:
    """Ask for the lock."""


@dataclass(frozen=True, slots=True)
class Replace:
    """Replace the lock file of the holder, which is silent."""


@dataclass(frozen=True, slots=True)
class TakeOver:
    """Claim, wait, seal and link with the lock."""


@dataclass(frozen=True, slots=True)
class Serve:
    """Be the master. `chosen` = an operator made this broker the master."""

    chosen: bool = False


@dataclass(frozen=True, slots=True)
class HandOver:
    """End the mastership in good order, for slave `to`."""

    to: str


@dataclass(frozen=True, slots=True)
class Stop:
    """End in good order. A master leaves the store to any slave, or to none, as `failoverOnShutdown` says."""


@dataclass(frozen=True, slots=True)
class Agree:
    """Answer "ready" to an order, and look at once."""


@dataclass(frozen=True, slots=True)
class Refuse:
    """Answer an order with the reason."""

    reason: str


@dataclass(frozen=True, slots=True)
class Seek:
    """Ask slaves whether they take over, as the order says; `to` = or that one, for a failback."""

    to: Other | None = None


@dataclass(frozen=True, slots=True)
class Withdraw:
    """Ask no slave any more by an operator's order."""


Decision = (
    Wait | HoldBack | Pause | Try | Replace | TakeOver | Serve | HandOver | Stop | Agree | Refuse | Seek | Withdraw
)


class CandidacyError(AssertionError):
    """The candidacy was given an input that its state does not allow: a mistake in the program."""


class Candidacy:
    """The candidacy of broker `name` from its start to its end. `config` may be replaced while it runs.

    state     see `State`
    passive   it waits for an order, because the last master forbade a failover
    at_start  the release mark that this broker found when it started; None = none, or it was master since
    better    the slave of higher priority that is ready, to which this master will hand over; None = there is none
    failbacks when this broker handed over for a failback, in the last hour
    """

    def __init__(self, name: str, config: StoreOptions) -> None:
        self.config = config
        self.state = State.WAITING
        self.passive = False
        self.at_start: Mark | None = None
        self.better: Other | None = None
        self.failbacks: deque[float] = deque(maxlen=FAILBACKS_KEPT)
        self._better_since = 0.0
        self._passed_over: frozenset[str] = frozenset()  # uuids of brokers to which an operator preferred this one
        self._failing_back = False  # the slave that is asked is asked for a failback
        self._name = name
        self._looked = False  # for a mark
        self._mark: Mark | None = None  # as last seen, since
        self._mark_since = 0.0
        self._called_until = -math.inf  # a slave that agreed to take over: the lock will be free soon
        self._called_by_operator = False
        self._free_since: float | None = None  # as seen by a broker that cannot serve
        self._back_off_s = 0.0
        self._unheard_until = -math.inf
        self._pause_s = 0.0  # after the mastership that failed last, at
        self._failed_at = -math.inf
        self._retries: tuple[float, ...] = ()  # the pauses between the next tries

    def step(self, given: Input, view: View) -> Decision:
        """The decision on `given`. Raises CandidacyError."""
        cases = [case for case in CASES if case.state is self.state and case.given is given]
        if not cases:
            raise CandidacyError(f"input {given.value!r} is not allowed in state {self.state.value!r}")
        self._note(given, view)
        case = next(case for case in cases if case.condition.holds(self, view))
        self.state = case.then
        return case.decide(self, view)

    def called(self, now: float) -> bool:
        """Whether the lock will soon be free for this slave, because it agreed to take over."""
        return now < self._called_until

    def _note(self, given: Input, view: View) -> None:
        """Remember what later decisions depend on."""
        now = view.now
        if given in (Input.LOOK, Input.LOCKED) and self.state in (State.WAITING, State.TRYING) and not view.stopping:
            self._note_mark(view)
        if given is Input.LOOK and self.state is State.WAITING:
            self._note_free(view)
        elif given is Input.LOOK and self.state is State.MASTER:
            self._note_better(view)
        elif given is Input.WOKEN:
            self._retries = RETRY_DELAYS_S
        elif given is Input.BEGUN:
            self.passive, self.at_start = False, None
        elif given is Input.SERVED:
            self._back_off_s, self._unheard_until, self._free_since = 0.0, -math.inf, None
        elif given is Input.UNHEARD:
            self._back_off_s = min(max(2 * self._back_off_s, BACK_OFF_S_MIN), BACK_OFF_S_MAX)
            self._unheard_until, self._free_since = now + self._back_off_s, None
        elif given is Input.FAILED:
            first_s = self.config.lock_acquire_sleep_interval_s
            failing = now < self._failed_at + FAILING_S
            self._pause_s = min(2 * self._pause_s, max(first_s, PAUSE_S_MAX)) if failing else first_s
            self._failed_at = now

    def _note_mark(self, view: View) -> None:
        if not self._looked:
            self._looked, self.at_start = True, view.mark
        if view.mark != self._mark:
            self._mark, self._mark_since = view.mark, view.now
        self.passive = FORBIDDEN.holds(self, view)

    def _note_free(self, view: View) -> None:
        """The patience with a lock that is free runs only while another broker should take it."""
        seen = view.listening
        if seen.can_listen:
            self._unheard_until = -math.inf
        elif view.now < self._unheard_until or not seen.another:
            return
        if seen.can_listen or not seen.free:
            self._free_since = None
        elif self._free_since is None:
            self._free_since = view.now

    def _note_better(self, view: View) -> None:
        while self.failbacks and self.failbacks[0] < view.now - FAILBACK_WINDOW_S:
            self.failbacks.popleft()
        if view.asking or view.ready:
            return
        better = [
            other
            for other in view.others
            if other.priority > self.config.priority and not other.not_ready and other.uuid not in self._passed_over
        ]
        best = max(better, key=lambda other: other.priority, default=None) if self.config.allow_failback else None
        before = (self.better.name, self.better.uuid) if self.better is not None else None
        if best is None or (best.name, best.uuid) != before:
            self._better_since = view.now
        self.better = best

    @property
    def failback_delay_s(self) -> float:
        """How long a slave of higher priority must be ready: longer after failbacks that did not last."""
        first_s = self.config.failback_delay_s
        if not self.failbacks:
            return first_s
        return min(max(first_s, 1.0) * 2.0 ** len(self.failbacks), FAILBACK_WINDOW_S)

    def _interval_s(self, now: float) -> float:
        return CALLED_POLL_S if self.called(now) else self.config.lock_acquire_sleep_interval_s

    # -- what the rows of the table ask -------------------------------------------------------------------------------

    def _is_unheard(self, view: View) -> bool:
        return not view.listening.can_listen and view.now < self._unheard_until and not self.config.fail_if_locked

    def _is_deaf(self, view: View) -> bool:
        if view.listening.can_listen or not view.listening.another or self.config.fail_if_locked:
            return False
        patience_s = FREE_PATIENCE_S + FREE_INTERVALS * self.config.lock_acquire_sleep_interval_s
        return self._free_since is None or view.now - self._free_since < patience_s

    def _is_better(self, view: View) -> bool:
        return self.better is not None and view.now >= self._better_since + self.failback_delay_s

    def _is_named_another(self, view: View) -> bool:
        to = view.mark.to if view.mark is not None else ""
        return to not in ("", self._name) and view.now < self._mark_since + HOLD_BACK_S

    def _is_forbidden(self, view: View) -> bool:
        """The mark that a broker finds when it starts does not keep it from the lock: to start it is to say that there
        shall be a master.
        """
        mark = view.mark
        return mark is not None and not mark.failover and mark != self.at_start and not self.called(view.now)

    # -- what the rows of the table decide ----------------------------------------------------------------------------

    def _hold_back(self, reason: Reason, view: View) -> HoldBack:
        self._retries = ()
        return HoldBack(reason, view.now + self._interval_s(view.now))

    def _retry(self, _view: View) -> Pause:
        delay_s, *left = self._retries
        self._retries = tuple(left)
        return Pause(delay_s)

    def _agree(self, view: View) -> Agree:
        self._called_until = view.now + CALLED_S
        self._called_by_operator = view.order is not None and view.order.why == OPERATOR
        return Agree()

    def _withdraw(self, _view: View) -> Withdraw:
        self._called_until = -math.inf
        return Withdraw()

    def _serve(self, view: View) -> Serve:
        """Where an operator made this broker the master, the others that run now are no reason for a failback."""
        chosen = self.called(view.now) and self._called_by_operator
        self._called_until, self.better = -math.inf, None
        self._passed_over = frozenset(other.uuid for other in view.others) if chosen else frozenset()
        return Serve(chosen)

    def _seek(self, _view: View) -> Seek:
        self._failing_back = False
        return Seek()

    def _fail_back(self, _view: View) -> Seek:
        to, self.better, self._failing_back = self.better, None, True
        return Seek(to)

    def _hand_over(self, view: View) -> HandOver:
        if self._failing_back:
            self.failbacks.append(view.now)
        return HandOver(view.ready)


@dataclass(frozen=True, slots=True)
class Condition:
    """A question about the candidacy and the view. `text` is for the documents."""

    text: str
    holds: Callable[[Candidacy, View], bool]


@dataclass(frozen=True, slots=True)
class Case:
    """One row: in `state`, on `given`, if the condition holds and no row above fits, the decision and the next state.
    `decided` is for the documents.
    """

    state: State
    given: Input
    condition: Condition
    decided: str
    decide: Callable[[Candidacy, View], Decision]
    then: State


def _ordered(action: str) -> Condition:
    return Condition(f"the order is {action}", lambda _, view: view.order is not None and view.order.action == action)


ALWAYS = Condition("", lambda _, _view: True)
STOPPING = Condition("this broker was asked to stop", lambda _, view: view.stopping)
UNHEARD = Condition(
    "it cannot listen, and gave a mastership up for that less than its back-off ago", Candidacy._is_unheard
)
DEAF = Condition(
    "it cannot listen, another broker can, and the lock is held or not free for long enough", Candidacy._is_deaf
)
NAMED = Condition("the release mark names another slave, for less than 3 s", Candidacy._is_named_another)
FORBIDDEN = Condition(
    "the release mark forbids a failover, was not there at the start, and no order called this slave",
    Candidacy._is_forbidden,
)
SAME_PORT = Condition(
    "the holder is silent, and this broker could not listen beside it",
    lambda _, view: view.silent and not view.listening.beside,
)
SILENT = Condition("the holder is silent", lambda _, view: view.silent)
RETRIES = Condition("the lock file was touched less than 0.1 s ago", lambda candidacy, _: bool(candidacy._retries))
NOT_READY = Condition(
    "the order is take-over, and it is not ready",
    lambda _, view: view.order is not None and view.order.action == TAKE_OVER and bool(view.not_ready),
)
ASKED_STOP, CALLED, ASKED_HAND_OVER = _ordered(STOP), _ordered(TAKE_OVER), _ordered(HAND_OVER)
READY = Condition("a slave agreed to take over", lambda _, view: bool(view.ready))
BETTER = Condition("a slave of higher priority has been ready for long enough", Candidacy._is_better)
ASKING = Condition("a slave was asked and has not answered", lambda _, view: view.asking)


def _wait(candidacy: Candidacy, view: View) -> Wait:
    return Wait(view.now + candidacy._interval_s(view.now))


def _serve_on(candidacy: Candidacy, view: View) -> Wait:
    return Wait(view.now + candidacy.config.lock_keep_alive_period_s / 3)


def _now(_: Candidacy, view: View) -> Wait:
    return Wait(view.now)


def _holding_back(reason: Reason) -> Callable[[Candidacy, View], HoldBack]:
    return lambda candidacy, view: candidacy._hold_back(reason, view)


def _refusing(reason: str) -> Callable[[Candidacy, View], Refuse]:
    return lambda _, _view: Refuse(reason)


def _failed(candidacy: Candidacy, _view: View) -> Pause:
    return Pause(candidacy._pause_s)


def _unheard(candidacy: Candidacy, _view: View) -> HoldBack:
    return HoldBack(Reason.UNHEARD, candidacy._unheard_until)


def _stop(_: Candidacy, _view: View) -> Stop:
    return Stop()


_W, _T, _R, _M, _L, _S = State
_LOOK, _WOKEN, _LOCKED, _MISSED, _ORDER, _BEGUN, _SERVED, _UNHEARD, _ENDED, _FAILED = Input
CASES: tuple[Case, ...] = (
    Case(_W, _LOOK, STOPPING, "Stop", _stop, _S),
    Case(_W, _LOOK, UNHEARD, "HoldBack", _holding_back(Reason.UNHEARD), _W),
    Case(_W, _LOOK, DEAF, "HoldBack", _holding_back(Reason.DEAF), _W),
    Case(_W, _LOOK, NAMED, "HoldBack", _holding_back(Reason.NAMED), _W),
    Case(_W, _LOOK, FORBIDDEN, "HoldBack", _holding_back(Reason.FORBIDDEN), _W),
    Case(_W, _LOOK, ALWAYS, "Try", lambda _, _view: Try(), _T),
    Case(_W, _WOKEN, ALWAYS, "Wait (0)", _now, _W),
    Case(_W, _ORDER, ASKED_STOP, "Stop", _stop, _S),
    Case(_W, _ORDER, NOT_READY, "Refuse", lambda _, view: Refuse(view.not_ready), _W),
    Case(_W, _ORDER, CALLED, "Agree", Candidacy._agree, _W),
    Case(_W, _ORDER, ASKED_HAND_OVER, "Refuse", _refusing("is not the master"), _W),
    Case(_W, _ORDER, ALWAYS, "Withdraw", Candidacy._withdraw, _W),
    Case(_W, _FAILED, ALWAYS, "Pause", _failed, _W),
    # The master may have left its mark between the look and the lock.
    Case(_T, _LOCKED, NAMED, "HoldBack", _holding_back(Reason.NAMED), _W),
    Case(_T, _LOCKED, FORBIDDEN, "HoldBack", _holding_back(Reason.FORBIDDEN), _W),
    Case(_T, _LOCKED, ALWAYS, "TakeOver", lambda _, _view: TakeOver(), _M),
    Case(_T, _MISSED, SAME_PORT, "HoldBack", _holding_back(Reason.SAME_PORT), _W),
    Case(_T, _MISSED, SILENT, "Replace", lambda _, _view: Replace(), _R),
    Case(_T, _MISSED, RETRIES, "Pause", Candidacy._retry, _W),
    Case(_T, _MISSED, ALWAYS, "Wait", _wait, _W),
    Case(_T, _FAILED, ALWAYS, "Pause", _failed, _W),
    Case(_R, _LOCKED, ALWAYS, "TakeOver", lambda _, _view: TakeOver(), _M),
    Case(_R, _MISSED, ALWAYS, "Wait", _wait, _W),
    Case(_R, _FAILED, ALWAYS, "Pause", _failed, _W),
    Case(_M, _BEGUN, ALWAYS, "Serve", Candidacy._serve, _M),
    Case(_M, _SERVED, ALWAYS, "Wait (0)", _now, _M),
    Case(_M, _LOOK, STOPPING, "Stop", _stop, _L),
    Case(_M, _LOOK, READY, "HandOver", Candidacy._hand_over, _L),
    Case(_M, _LOOK, ASKING, "Wait", lambda _, view: Wait(view.now + ASK_S), _M),
    Case(_M, _LOOK, BETTER, "Seek", Candidacy._fail_back, _M),
    Case(_M, _LOOK, ALWAYS, "Wait", _serve_on, _M),
    Case(_M, _ORDER, ASKED_STOP, "Stop", _stop, _L),
    Case(_M, _ORDER, ASKED_HAND_OVER, "Seek", Candidacy._seek, _M),
    Case(_M, _ORDER, CALLED, "Refuse", _refusing("is the master"), _M),
    Case(_M, _ORDER, ALWAYS, "Withdraw", Candidacy._withdraw, _M),
    Case(_M, _UNHEARD, ALWAYS, "HoldBack", _unheard, _W),
    Case(_M, _ENDED, ALWAYS, "Wait (0)", _now, _W),
    Case(_M, _FAILED, ALWAYS, "Pause", _failed, _W),
    Case(_L, _ENDED, ALWAYS, "Wait (0)", _now, _W),
    Case(_L, _FAILED, ALWAYS, "Pause", _failed, _W),
    Case(_S, _LOOK, ALWAYS, "Stop", _stop, _S),
    Case(_S, _FAILED, ALWAYS, "Stop", _stop, _S),
)


def table() -> str:
    """`CASES` as docs/master-slave.md shows it in the site."""
    rows = ["| state | input | if | decision | state then |", "|---|---|---|---|---|"]
    before: Case | None = None
    for case in CASES:
        state = before is None or before.state is not case.state
        given = state or (before is not None and before.given is not case.given)
        heads = f"**{case.state.value}**" if state else "", case.given.value if given else ""
        rows.append(f"| {heads[0]} | {heads[1]} | {case.condition.text} | {case.decided} | {case.then.value} |")
        before = case
    return "\n".join(rows)


if __name__ == "__main__":
    sys.stdout.write(table() + "\n")
