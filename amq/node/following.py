"""Following: the knowledge that a slave gathers of the store while it waits for the lock, so that little is left to
read then.

It only reads. Much can go wrong while it follows: a file is deleted under its feet, a master is deposed, a network file
system shows an old state. That costs no more than the time to read again: once this broker is the master, it reads and
proves everything up to the sealed lengths (see `amq.node.takeover`). Until then the slave runs in the lease thread, in
small pieces.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass

import structlog

from amq.broker.core import SEQ_EPOCH_SHIFT
from amq.broker.state.snapshot import Block, load
from amq.broker.state.state import State
from amq.config.store_options import StoreOptions
from amq.core.errors import AmqError, CorruptError, StoreError
from amq.doors.clock import Clock
from amq.journal.checkpoint import list_checkpoints, read_checkpoint
from amq.journal.follower import DivergedError, Follower
from amq.journal.recovery import Followed, Recovered
from amq.store.epoch import Epoch
from amq.store.port import Store

LIST_EVERY_S = 1.0  # directories are listed so often: to a server that costs more than all else that a slave asks
FOLLOW_BYTES = 1 << 20  # read before the lock is looked at again
CURRENT_S, CURRENT_INTERVALS = 2.0, 4  # a slave that knew all so recently, or so many of its intervals ago, is current
PAUSE_S_MIN, PAUSE_S_MAX = 0.5, 30.0  # before the next attempt after an error: twice as long each time
TELL_BYTES = 4 << 20  # of a checkpoint, between two reports of progress
Loading = Callable[[], AbstractContextManager[object]]
Progress = Callable[[int, int, int], None]  # bytes read, bytes to read, messages
_log = structlog.get_logger("amq.slave")


def _untold(_done: int, _total: int, _messages: int) -> None:
    """No progress is reported."""


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a slave has followed. `caught_up_wall_ms` = when it last knew all that there was to know, 0 = never."""

    place: str
    messages: int
    caught_up_wall_ms: int


class Following:
    """Follows the journal of `config.store` into `state`: another one where it is read anew, None = nothing was read
    yet. `loading()` surrounds the reading of many objects that stay.
    """

    def __init__(self, store: Store, clock: Clock, config: StoreOptions, loading: Loading = nullcontext) -> None:
        self._epochs, self._log = store.epochs, store.log
        self._clock = clock
        self._config = config
        self._loading = loading
        self.state: State | None = None
        self._follower: Follower | None = None
        self._epoch: Epoch | None = None
        self._caught_up_wall_ms = 0
        self._caught_up = -math.inf
        self._trouble = ""
        self._pause_s = 0.0  # after trouble
        self._paused_until = 0.0
        self._list_at = 0.0
        self._finishing: Follower | None = None  # reads what is left

    # -- while another broker is the master ---------------------------------------------------------------------------

    def follow(self) -> bool:
        """Read on a little; returns whether there is more right now."""
        now = self._clock.monotonic()
        if now < self._paused_until:
            return False
        listing = now >= self._list_at
        try:
            if listing:
                self._look_for_epoch()
                self._list_at = now + LIST_EVERY_S
            epoch = self._epoch
            if epoch is None:
                return False
            more = self._begun(epoch).follow(epoch.number, epoch.sealed, FOLLOW_BYTES, listing)
            self._read().forget_idle()
        except DivergedError as error:
            if error.description != self._trouble:
                self._trouble = error.description
                _log.info("following the journal anew", reason=self._trouble)
            self._follower, self.state, self._list_at = None, None, now
            return False
        except (AmqError, OSError) as error:  # it may pass; if not, it is the next master's to judge
            if str(error) != self._trouble:
                self._trouble = str(error)
                _log.info("the journal cannot be followed now, trying again", reason=self._trouble)
            self._pause_s = min(2 * self._pause_s, PAUSE_S_MAX) or PAUSE_S_MIN
            self._paused_until = self._clock.monotonic() + self._pause_s
            return False
        self._trouble, self._pause_s = "", 0.0
        if not more:
            self._caught_up_wall_ms, self._caught_up = self._clock.wall_ms(), self._clock.monotonic()
        return more

    def lag(self) -> Lag:
        place = self._follower.place if self._follower is not None else ""
        return Lag(place, self.state.stored if self.state is not None else 0, self._caught_up_wall_ms)

    def not_current(self) -> str:
        """Why a takeover would have much left to read, "" = it would not."""
        interval_s = self._config.slave_follow_interval_s
        if not interval_s:
            return "does not follow the journal (slaveFollowInterval = 0)"
        if self._clock.monotonic() > self._caught_up + max(CURRENT_S, CURRENT_INTERVALS * interval_s):
            return "has not caught up with the journal"
        return ""

    def _look_for_epoch(self) -> None:
        number = self._epochs.newest_number()
        if number and (self._epoch is None or number > self._epoch.number):
            self._epoch = self._epochs.read(number)

    # -- where to begin -----------------------------------------------------------------------------------------------

    def _begun(self, epoch: Epoch, progress: Progress = _untold) -> Follower:
        """The follower: a new one begins at the newest checkpoint that is good, if there is one."""
        if self._follower is None:
            self._follower = self._at_checkpoint(epoch, progress) or self._at_first_byte()
        return self._follower

    def _at_first_byte(self) -> Follower:
        self.state = State(self._config)
        return Follower(self._log, self.state.apply)

    def _read(self) -> State:
        assert self.state is not None
        return self.state

    def _at_checkpoint(self, epoch: Epoch, progress: Progress) -> Follower | None:
        for name in self._checkpoints():
            try:
                follower = self._load(name, progress)
                follower.compare(epoch.sealed, epoch.number)
            except FileNotFoundError:
                continue  # deleted meanwhile, or where it leaves off is: what counts is elsewhere
            except (AmqError, OSError) as error:  # of any kind: a checkpoint only saves time
                _log.warning("checkpoint cannot be used: trying one before it", checkpoint=name, reason=str(error))
                continue
            _log.info("checkpoint read", checkpoint=name, messages=self._read().stored)
            return follower
        return None

    def _checkpoints(self) -> list[str]:
        try:
            return list_checkpoints(self._log.checkpoints)
        except OSError as error:
            where = self._log.checkpoints.place()
            _log.warning("checkpoint cannot be used: trying one before it", checkpoint=where, reason=str(error))
            return []

    def _load(self, name: str, progress: Progress) -> Follower:
        self.state = state = State(self._config)
        checkpoints = self._log.checkpoints
        with self._loading(), closing(read_checkpoint(checkpoints, name)) as blocks:
            start = load(checkpoints.place(name), self._counted(name, blocks, state, progress), state)
        return Follower(self._log, state.apply, start)

    def _counted(self, name: str, blocks: Iterator[Block], state: State, progress: Progress) -> Iterator[Block]:
        total, done, told = self._log.checkpoints.size(name), 0, 0
        for kind, payload in blocks:
            yield kind, payload
            done += len(payload)
            if done >= told + TELL_BYTES:
                told = done
                progress(done, total, state.stored)

    # -- when this broker takes over ----------------------------------------------------------------------------------

    def followed(self, previous: Epoch, progress: Progress = _untold) -> Followed:
        """The part of the journal that the seal need not read. `previous` = the newest epoch; `progress` tells of a
        checkpoint.
        """
        for _ in range(2):  # it may not count; then from a checkpoint
            try:
                follower = self._begun(previous, progress)
                follower.compare(previous.sealed, previous.number)
                return follower.followed
            except DivergedError as error:
                _log.info("reading the journal anew", reason=error.description)
                self._follower = None
        return Followed()

    @property
    def calls(self) -> int:
        """Of the store, begun and ended, while `finish` reads: odd = one is under way. Any thread may look."""
        return self._finishing.calls if self._finishing is not None else 0

    def finish(self, config: StoreOptions, epoch: Epoch, progress: Progress) -> tuple[State, Recovered]:
        """Read what is left of the journal that `epoch` has sealed. `progress(bytes read, bytes to read, messages)`.
        Raises CorruptError, StoreError, OSError. The slave is as new afterwards.
        """
        self._config = config
        follower, self._follower = self._follower, None
        recovered = None
        with self._loading():
            if follower is not None:
                self._finishing = follower
                try:
                    recovered = follower.finish(epoch.sealed, self._told(progress))
                    self._read().check_places(recovered)
                except (DivergedError, CorruptError) as error:
                    _log.warning("the journal as followed cannot be used: reading all of it", reason=str(error))
                    recovered = None
            if recovered is None:
                self._finishing = follower = self._at_first_byte()
                recovered = follower.finish(epoch.sealed, self._told(progress))
        state, self.state, self._finishing = self._read(), None, None
        self._caught_up_wall_ms, self._caught_up = 0, -math.inf
        if state.newest_seq >> SEQ_EPOCH_SHIFT >= epoch.number:
            raise StoreError(
                f"{config.store} has a message of epoch {state.newest_seq >> SEQ_EPOCH_SHIFT}, and its newest epoch is "
                f"{epoch.number - 1}: the journal was not written by brokers, and new messages could take the places "
                "of those that are there; restore a backup",
                code="STORE_CORRUPT",
            )
        state.settle(recovered.trimmed)
        return state, recovered

    def _told(self, progress: Progress) -> Callable[[int, int], None]:
        state = self._read()
        return lambda done, total: progress(done, total, state.stored)
