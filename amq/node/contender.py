"""Contender: a member in its lease thread, which makes every call of the lock component and may hang in the store.

It looks, asks `amq.node.candidacy`, and does what that decides: as a slave here, as a master in `amq.node.reign`.
"""

from __future__ import annotations

import errno
import uuid
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, replace
from typing import Any

import structlog

from amq.broker.state.state import State
from amq.config.schema import BrokerConfig
from amq.core.errors import AmqError, OwnershipLostError, StoreError, StoreFullError, TransportError
from amq.journal.copies import JournalFormat
from amq.node.candidacy import (
    Agree,
    Candidacy,
    Decision,
    HandOver,
    HoldBack,
    Input,
    Mark,
    Pause,
    Replace,
    Stop,
    TakeOver,
    Try,
    View,
    Wait,
)
from amq.node.following import Following, Loading
from amq.node.group import MEET_S, Group, Probe
from amq.node.mastership import Doors
from amq.node.reception import LISTEN_PATIENCE_S
from amq.node.reign import Loop, Reign, Role, Stage
from amq.node.succession import Succession
from amq.node.takeover import Takeover
from amq.store.host import Owner
from amq.store.locker import Locker, Term
from amq.store.presence import Presence
from amq.store.segment_log import NotAFileError
from amq.store.silence import Silence

_CURES = {
    errno.EROFS: "mount it read-write",
    errno.EACCES: "give this broker's user read and write access to the store",
    errno.ENOSPC: "free some space there",
    errno.EDQUOT: "free some space there, or raise the quota",
    errno.EFBIG: "raise the limit of the size of files (ulimit -f; LimitFSIZE of systemd)",
}
HUNG_ON_SMB = "the master gives no sign of life, and SMB keeps the name of a lock file that is open: end its process"
_log = structlog.get_logger("amq.service")


class Contender:
    """`run` is the lease thread. `stopping` and `wake` are set by any thread: this member shall stop, or there is
    something to look at (the lock file, a stop, an end).
    """

    def __init__(
        self,
        stage: Stage,
        loop: Loop,
        doors: Doors,
        probe: Probe | None,
        loading: Loading,
        hangs: Callable[[], None] | None,
    ) -> None:
        config = stage.config
        self.not_ready = "it has just started"  # why this slave could not take over now, "" = it could
        self.following = Following(doors.store, doors.clock, config, loading)
        self.candidacy = Candidacy(config.name or doors.host.name(), config)
        self.stopping, self.wake = doors.threads.event(), doors.threads.event()
        self._stage = stage
        self._loop = loop
        self._doors = doors
        self._clock = doors.clock
        self._hangs = hangs
        self._owner = Owner.make(
            doors.host,
            name=config.name or doors.host.name(),
            uuid=str(uuid.UUID(bytes=doors.entropy.randbytes(16))),
            transport_urls=config.transports,
            lock_keep_alive_period_s=config.lock_keep_alive_period_s,
        )
        self._board = doors.store.board
        self._election = doors.store.election
        self._group = Group(
            self._board, self._election, doors.clock, doors.host, doors.threads, config, self._owner.name, probe
        )
        self._succession = Succession(self._board, doors.clock, doors.entropy, self._owner, self._group, self.candidacy)
        self._presence: Presence | None = None
        self._reign: Reign | None = None
        self._ready_for: State | None = None  # the event loop has made all that serves from it
        self._met: tuple[str, ...] = ()

    # -- from other threads -------------------------------------------------------------------------------------------

    def stop(self) -> None:
        self.stopping.set()
        self.wake.set()

    def reconfigure(self, config: BrokerConfig) -> None:
        self.candidacy.config = self._group.config = config

    def thread_failed(self, name: str) -> None:
        """A thread of this member has failed by a bug, so that nothing here is safe."""
        reign = self._reign
        if reign is not None:
            error = f"the thread {name} failed"
            reign.fail(error, AmqError(error, code="INTERNAL_ERROR"))

    # -- from start to end --------------------------------------------------------------------------------------------

    def run(self) -> AmqError | None:
        """Slave, master, slave again, until stopped. Returns why this member gave up, None = it was asked to stop."""
        try:
            self._compete()
        except AmqError as error:
            return error
        except OSError as error:
            path = error.filename or self._stage.config.store
            cure = _CURES.get(error.errno or 0, "the store cannot be used")
            return StoreError(f"{path}: {error.strerror or error}; {cure}")
        except BaseException as error:  # noqa: BLE001 (last resort of the thread: told, and the broker stops)
            _log.critical("the lease thread failed", exc_info=error)
            return AmqError(f"internal error: {error!r}", code="INTERNAL_ERROR")
        finally:
            self._group.stop()
        return None

    def _compete(self) -> None:
        with self._doors.store.take_part(JournalFormat(), self._owner.name):
            self._take_turns()

    def _take_turns(self) -> None:
        self._doors.store.make()
        threads = self._doors.threads
        with self._election.watch(self.wake.set, threads, lambda: self._stage.role is Role.SLAVE) as unwatched:
            if unwatched is not None:
                _log.info("no file events here, polling alone", reason=str(unwatched))
            locker = Locker(self._doors.store, self._clock, self._doors.host, self._owner)
            locker.check_place()
            self._succession.open()
            self._group.start()
            while not self.stopping.is_set():
                try:
                    self._wait_and_serve(locker)
                except (OSError, StoreFullError) as error:  # full: there may be room again
                    if self._stage.role is Role.STARTING or isinstance(error, NotAFileError):
                        raise  # the store could never be used: a person must look
                    self._pause_after("store not usable now, trying again", str(error))

    def _wait_and_serve(self, locker: Locker) -> None:
        """Wait for the lock as a slave; with it, be the master until that ends."""
        presence = Presence.open(self._board, self._owner, facts=self._facts())
        store = self._stage.config.store
        takeover = Takeover(self._doors, self.following, self._tell_reading)
        with closing(presence) as self._presence:
            if self._stage.role is Role.STARTING:
                self._group.check_start(self.stopping.wait, LISTEN_PATIENCE_S)
            self._loop.run(self._stage.set_role(Role.SLAVE))
            try:
                if not self._wait_for_lock(locker):
                    return
                _log.info("lock acquired, taking over", store=store)
                self._group.acquired()
                term = locker.take_over(
                    pause=self.stopping.wait, seal=lambda previous: takeover.seal(previous, locker.sign)
                )
                if term is not None:
                    self._serve(locker, term, takeover)
                self.candidacy.step(Input.ENDED, self._view())
            except TransportError as error:
                decision = self.candidacy.step(Input.UNHEARD, view := self._view())
                assert isinstance(decision, HoldBack)
                self._group.failed(error, round(decision.until - view.now, 3))
            except OwnershipLostError as error:  # let a healthier broker have it
                self._pause_after("mastership lost or refused: slave again", error.description)
            finally:
                self._group.serving(False)
                takeover.close()
                locker.abandon()

    def _view(self) -> View:
        return View(self._clock.monotonic(), stopping=self.stopping.is_set())

    def _pause_after(self, event: str, reason: str) -> None:
        """A try has failed: wait before the next one."""
        decision = self.candidacy.step(Input.FAILED, self._view())
        pause_s = decision.seconds if isinstance(decision, Pause) else 0.0
        _log.warning(event, reason=reason, pause_s=pause_s)
        self.stopping.wait(pause_s)

    # -- slave --------------------------------------------------------------------------------------------------------

    def _wait_for_lock(self, locker: Locker) -> bool:
        """Look, decide, act: True with the lock; False when this member shall stop."""
        waited = False
        config = self._stage.config
        silence = Silence(self._election.look, self._clock, config.lock_keep_alive_period_s)
        while True:
            self.wake.clear()
            view = self._look(locker)
            decision = self.candidacy.step(Input.LOOK, view)
            if isinstance(decision, Try):
                decision = self._try(locker, silence, view)
            if isinstance(decision, Replace):
                decision = self._replace(locker, silence)
            self._succession.report()
            match decision:
                case TakeOver():
                    return True
                case Stop():
                    return False
                case Pause(seconds):
                    self.stopping.wait(seconds)
                    continue
                case HoldBack():
                    silence.reset()
            self._publish()
            if not waited:
                waited = True
                if config.fail_if_locked:
                    raise AmqError(f"the store is locked by {locker.holder()}", code="STORE_LOCKED")
                _log.info("slave: waiting for the lock", store=config.store, holder=locker.holder())
            assert isinstance(decision, Wait | HoldBack)
            self._follow(decision.until, silence)

    def _look(self, locker: Locker) -> View:
        """Look at what decides whether this slave may try for the lock. Raises OSError."""
        if self.stopping.is_set():
            return self._view()
        listening, mark = self._group.listening(), Mark.of(locker.release_mark())
        return View(self._clock.monotonic(), mark=mark, listening=listening)

    def _try(self, locker: Locker, silence: Silence, view: View) -> Decision:
        """Ask for the lock; if another broker has it, look whether that one is silent. Raises StoreError, OSError."""
        if locker.try_acquire():
            view = replace(view, now=self._clock.monotonic(), mark=Mark.of(locker.release_mark()))
            decision = self.candidacy.step(Input.LOCKED, view)
            if isinstance(decision, HoldBack):
                locker.release()
            return decision
        timeout_s = self._stage.config.hung_master_timeout_s
        silent = bool(timeout_s) and silence.look(timeout_s)
        return self.candidacy.step(Input.MISSED, replace(view, now=self._clock.monotonic(), silent=silent))

    def _replace(self, locker: Locker, silence: Silence) -> Decision:
        """Replace the lock file of a holder that is silent. Raises StoreError, OSError."""
        silent_s, replaced = silence.silent_s, False
        try:
            if locker.can_replace():
                _log.warning("the master gives no sign of life: replacing its lock file", silent_s=round(silent_s, 1))
                replaced = locker.replace(silent_s, silence.goes_on)
            else:
                _log.warning(HUNG_ON_SMB, silent_s=round(silent_s, 1), holder=locker.holder())
        finally:
            silence.reset()
        return self.candidacy.step(Input.LOCKED if replaced else Input.MISSED, self._view())

    def _follow(self, until: float, silence: Silence) -> None:
        """Follow the journal, heed orders and watch the master until `until`, or until there is something to decide."""
        config = self._stage.config
        interval_s, timeout_s = config.slave_follow_interval_s, config.hung_master_timeout_s
        while (left_s := until - self._clock.monotonic()) > 0:
            more = bool(interval_s) and self.following.follow()
            self._get_ready()
            if interval_s:
                self._tell(lambda: {"followed": asdict(self.following.lag())})
            decision = self._succession.heed(self._why_not_ready())
            if isinstance(decision, Stop):
                self.stopping.set()
                return
            if timeout_s and silence.sign is not None:
                if silence.look(timeout_s):
                    return
                left_s = min(left_s, silence.due_s(timeout_s))
            self._publish()
            if isinstance(decision, Agree):
                return
            left_s = min(left_s, interval_s or left_s, config.lock_keep_alive_period_s / 3)
            if self.wake.wait(0 if more else left_s):
                self.candidacy.step(Input.WOKEN, self._view())
                return

    def _get_ready(self) -> None:
        """Have the event loop make ahead of time what serves clients. Another state needs another."""
        state = self.following.state
        if state is not self._ready_for:
            self._ready_for = state
            self._loop.post(self._stage.get_ready, state)

    # -- master -------------------------------------------------------------------------------------------------------

    def _serve(self, locker: Locker, term: Term, takeover: Takeover) -> None:
        """Serve until stopped, fenced or deposed. A member that cannot open its transports hands over like one that was
        asked to stop, and raises TransportError.
        """
        self._succession.begins()
        self._met = ()
        self._reign = mine = Reign(self._stage, self._loop, self._doors, term, self.stopping, self.wake, self._hangs)
        try:
            end = mine.serve(
                lambda lease: takeover.read(self._stage.config, lease, term.epoch),
                self._group.neighbours,
                self._served,
                self._decide,
            )
            to = end.to if isinstance(end, HandOver) else ""
            failover = not isinstance(end, Stop) or self._stage.config.failover_on_shutdown
            locker.release(to, failover)
            _log.info("store released", epoch=term.epoch.number, to=to, failover=failover)
            if isinstance(end, TransportError):
                raise end
        finally:
            self._reign = None
            mine.close()

    def _served(self) -> None:
        """The transports are open."""
        self.candidacy.step(Input.SERVED, self._view())
        self._group.serving(True)
        if self._presence is not None:
            self._presence.become(Role.MASTER.value, self._facts())

    def _decide(self) -> HandOver | Stop | Wait:
        """Whether the mastership ends now, and how, or until when it goes on."""
        if self.stopping.is_set():
            decision = self.candidacy.step(Input.LOOK, self._view())
        else:
            decision = self._succession.decide()
            self._publish()
            self._tell(self._copies)
            before, self._met = self._met, self._group.neighbours(MEET_S)
            if self._met != before:
                self._loop.post(self._stage.meet, self._met)
        if isinstance(decision, Stop):
            self.stopping.set()
        assert isinstance(decision, HandOver | Stop | Wait)
        return decision

    # -- what others read of this member ------------------------------------------------------------------------------

    def _publish(self) -> None:
        if self._presence is not None:
            self._presence.state(self._facts())
            self._presence.keep(self._clock.monotonic())

    def _copies(self) -> dict[str, Any]:
        seen = self._doors.store.copies_seen()
        return {"copies": seen.to_json()} if seen is not None else {}

    def _tell(self, progress: Callable[[], dict[str, Any]]) -> bool:
        return self._presence is not None and self._presence.tell(progress, self._clock.monotonic())

    def _tell_reading(self, reading: dict[str, Any]) -> None:
        if self._tell(lambda: {"reading": reading}):
            self._loop.post(self._stage.read_so_far, reading)

    def _facts(self) -> dict[str, Any]:
        known = self._stage.facts()
        if "urls" not in known:  # a slave
            known["not_ready"] = self.not_ready = self._why_not_ready()
        if self._succession.answer.id:
            known["answer"] = self._succession.answer.to_json()
        return self._group.facts(passive=self.candidacy.passive, **known)

    def _why_not_ready(self) -> str:
        """Why this slave could not take over soon and serve, "" = it could."""
        return self._group.why or self.following.not_current()
