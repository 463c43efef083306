"""Starved processes of a replicated store: each stands still for longer than its session, again and again.

The worlds of `tests.simulation.replicas` let a candidate try when it likes, and look for holes. Here a candidate needs
what a member needs: the entry of the holder, which goes with a session at the coordinator. A session that nobody has
renewed for `SESSION_S` is over; members that watch are told, and try. Each call of the coordinator takes its time, and
a member that stands still makes none. So this says how long a store is without service on a machine that starves it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

from amq.store.coordinated.session_time import SessionTime
from amq.store.replica.group import GroupPolicy
from amq.store.replica.leader import Leader
from tests.simulation.replicas import Entry, ReplicationWorld, SimReplica

SESSION_S, TICK_S, CHECK_S, PATIENCE_S = 5.0, 0.5, 10.0, 6.0
PAUSE_S, PAUSE_S_MAX = 1.0, 10.0  # after a try that failed: twice as long each time
CALLS_AFTER = 5  # of a takeover, between its record and its service
STARVED_S, PEACE_S = 120.0, 60.0
STEP_S, LOOK_S = 2.0, 0.1


@dataclass(frozen=True)
class Starvation:
    """Each process runs for `runs_s` and stands still for `stands_s`, both (least, most), in turn."""

    runs_s: tuple[float, float]
    stands_s: tuple[float, float]
    call_s: float = 0.05


class StarvedReplica(SimReplica):
    """A member with a session. `holds` = the number of the session with which it has the lock, 0 = it has not."""

    world: StarvedWorld

    def start(self) -> None:
        if self.alive:
            return
        self.holds, self.ballot, self.serves, self.tries = 0, 0, False, False
        self.pause_s, self.may_try_at = 0.0, 0.0
        self.session_time = SessionTime(SESSION_S)
        super().start()
        self.world.later(self.world.rng.random(), self.poll, self)
        self.world.later(CHECK_S, self.check, self)

    def tick(self) -> None:
        self.world.later(TICK_S, self.tick, self)
        if self.leader is not None:
            for other in self.world.replicas:
                if not self.leader.stream.knows(other.id):
                    self.leader.stream.meet(other.id)
            self.leader.tick()
            if self.serves and self.leader.is_ready and len(self.written) - self.shown < 3:
                upto = self.leader.stream.end + 1
                entry = Entry(self.leader.record.term, upto, f"{self.leader.record.term}.{len(self.written)}")
                self.written.append(entry)
                self.leader.append(upto, 1, [entry])
        elif self.candidate is not None:
            self.candidate.tick()
            if self.world.now > self.gives_up_at:
                self.failed("nobody answers")
        self._perform()

    def poll(self) -> None:
        self.world.later(1.0, self.poll, self)
        self.attempt()

    # -- the lock ------------------------------------------------------------------------------------------------------

    def attempt(self) -> None:
        """Look, and try for a lock that is free."""
        if not (self.tries or self.leader or self.candidate) and self.world.now >= self.may_try_at:
            self.tries = True
            self.world.ask(self, lambda: (self.world.holder, self.world.coordinator.record), self.looked)

    def looked(self, found: Any) -> None:
        holder, record = found
        self.tries = False
        has_all = self.keeper.can_begin(record) or (self.keeper.whole and self.keeper.term == record.term)
        if holder == 0 and has_all and (self.id in record.members or not record.term):
            self.tries = True
            self.hold_by_session(self.held)

    def hold_by_session(self, then: Callable[[int, bool], None]) -> None:
        """Open a session, and hold the lock's entry by it: `then` gets it, and whether the entry was free."""
        lasts_s = self.session_time.seconds(self.world.now)

        def opened(session: int) -> None:
            self.renew(session, lasts_s)
            self.world.ask(self, partial(self.world.hold, session), partial(then, session))

        self.world.ask(self, partial(self.world.open_session, lasts_s), opened)

    def held(self, session: int, got: bool) -> None:
        self.tries = got
        if got:
            self.holds = session
            self.world.ask(
                self, lambda: None, lambda _: self.world.ask(self, self.world.coordinator.claim, self.claimed)
            )

    def claimed(self, ballot: int) -> None:
        self.ballot, self.tries = ballot, False
        self._claimed(ballot)

    def renew(self, session: int, lasts_s: float) -> None:
        """In a thread of its own, until the session is over."""

        def renewed(goes_on: bool) -> None:
            if goes_on:
                self.world.later(SESSION_S / 4, partial(self.renew, session, lasts_s), self)
            elif self.holds == session:
                self.session_time.ended(self.world.now)

        self.world.ask(self, partial(self.world.renew, session, lasts_s), renewed)

    def check(self) -> None:
        """Three times a period, as master: the lock is ours, or free; and nobody has claimed since."""
        self.world.later(CHECK_S, self.check, self)
        if self.leader is not None:
            world = self.world
            world.ask(self, lambda: (world.holder, world.coordinator.claims), partial(self.checked, self.ballot))

    def checked(self, ballot: int, found: tuple[int, int]) -> None:
        holder, claims = found
        if self.leader is None or ballot != self.ballot:
            return
        if claims != ballot or holder not in (0, self.holds):
            self.failed("another member has the lock")
        elif holder == 0:
            self.world.oracle.counts["lock taken back"] += 1
            self.hold_by_session(self.reheld)

    def reheld(self, session: int, got: bool) -> None:
        if got:
            self.holds = session
        elif self.leader is not None:
            self.failed("another member has the lock")

    # -- ends ----------------------------------------------------------------------------------------------------------

    def failed(self, why: str) -> None:
        self.world.note(self, f"slave again: {why}")
        self.world.oracle.counts["masters deposed" if self.leader is not None else "candidates that failed"] += 1
        self.leader = self.candidate = None
        self.serves, self.tries = False, False
        self.pause_s = min(max(2 * self.pause_s, PAUSE_S), PAUSE_S_MAX)
        self.may_try_at = self.world.now + self.pause_s
        self.world.ask(self, partial(self.world.let_go, self.holds), lambda _: None)
        self.holds = 0

    def _carry_out(self, machine: Any, wanted: Any) -> None:
        before = machine is self.leader or machine is self.candidate
        counts = self.world.oracle.counts["masters deposed"]
        super()._carry_out(machine, wanted)
        if before and self.leader is None and self.candidate is None:
            self.world.oracle.counts["masters deposed"] = counts
            self.failed("another member was elected")

    def _serve(self, candidate: Any) -> None:
        super()._serve(candidate)
        self.after(CALLS_AFTER, self.leader)

    def after(self, calls: int, leader: Leader | None) -> None:
        if self.leader is leader and leader is not None:
            if calls:
                self.world.ask(self, lambda: None, lambda _: self.after(calls - 1, leader))
            else:
                self.serves, self.pause_s = True, 0.0
                self.world.oracle.counts["masters that served"] += 1

    def _confirm(self, position: int) -> None:
        super()._confirm(position)
        self.world.confirmed_at.append(self.world.now)


class StarvedWorld(ReplicationWorld):
    """Three members of which each is starved in its own time."""

    replicas: list[StarvedReplica]  # type: ignore[assignment]

    def __init__(self, seed: int, starvation: Starvation) -> None:
        super().__init__(seed, [])
        self.loss = self.twice = 0.0
        self.delay_s, self.sync_s = starvation.call_s / 2, 0.01
        self.policy = GroupPolicy(3, 2)
        self.starvation = starvation
        self.holder, self.sessions, self.numbers = 0, dict[int, float](), 0
        self.confirmed_at: list[float] = []
        self.replicas = [StarvedReplica(self, number) for number in range(3)]
        self._schedule = Random(f"starved {seed}")
        self.possible: set[int] = set()  # steps in which two members ran at one moment

    # -- sessions ------------------------------------------------------------------------------------------------------

    def open_session(self, lasts_s: float) -> int:
        self.numbers += 1
        self.sessions[self.numbers] = self.now + lasts_s
        self.later(lasts_s, partial(self._expire, self.numbers))
        return self.numbers

    def hold(self, session: int) -> bool:
        if self.holder == 0 and session in self.sessions:
            self.holder = session
        return self.holder == session

    def renew(self, session: int, lasts_s: float) -> bool:
        if session in self.sessions:
            self.sessions[session] = self.now + lasts_s
        return session in self.sessions

    def let_go(self, session: int) -> None:
        self.sessions.pop(session, None)
        if self.holder == session:
            self.holder = 0
            for replica in self.replicas:
                self.later(self.rng.expovariate(1 / self.delay_s), replica.attempt, replica)

    def _expire(self, session: int) -> None:
        until = self.sessions.get(session)
        if until is None:
            return
        if until > self.now:
            self.later(until - self.now, partial(self._expire, session))
        else:
            self.oracle.counts["sessions that ended"] += 1
            self.let_go(session)

    # -- the run -------------------------------------------------------------------------------------------------------

    def starve(self, replica: StarvedReplica) -> None:
        if not self.peace:
            replica.paused_until = self.now + self._schedule.uniform(*self.starvation.stands_s)
            again_s = replica.paused_until - self.now + self._schedule.uniform(*self.starvation.runs_s)
            self.later(again_s, partial(self.starve, replica))

    def _look(self, began: float) -> None:
        if sum(replica.paused_until <= self.now for replica in self.replicas) >= 2:
            self.possible.add(int((self.now - began) / STEP_S))
        if not self.peace:
            self.later(LOOK_S, partial(self._look, began))

    def play(self) -> tuple[float, float]:
        """While all starve: the steps in which something was confirmed, of those in which it was possible; and how many
        seconds of peace it took until service was back. Raises BrokenPromiseError."""
        for replica in self.replicas:
            replica.start()
        self._run(20.0)
        began = self.now
        for replica in self.replicas:
            self.later(self._schedule.uniform(0, 5), partial(self.starve, replica))
        self._look(began)
        self._run(began + STARVED_S)
        served = {int((at - began) / STEP_S) for at in self.confirmed_at if at >= began}
        self._make_peace()
        peace = self.now
        self._run(peace + PEACE_S)
        back = next((at for at in self.confirmed_at if at > peace), peace + PEACE_S) - peace
        self._check_end()
        return len(served & self.possible) / len(self.possible), back
