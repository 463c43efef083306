"""What a store says, read in each way in which a state may read it: from the first byte, from every checkpoint, by a
follower that read along. All must find the same."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from amq.broker.state.snapshot import load
from amq.broker.state.state import State
from amq.config.schema import BrokerConfig
from amq.journal.checkpoint import list_checkpoints, read_checkpoint
from amq.journal.follower import DivergedError, Follower
from amq.journal.live import Segment
from amq.journal.recovery import Recovered, seal
from amq.store.files.log import FileLog
from amq.store.files.vfs import Vfs
from tests.stored import stored_state


class Standby:
    """Reads the store of one test world, as slaves and new masters do. `diverged` = how often it had to begin anew."""

    def __init__(self, vfs: Vfs, config: BrokerConfig) -> None:
        self._vfs = vfs
        self._config = config
        self._log = FileLog(vfs, config.store)
        self.follower: Follower | None = None
        self._state = State(self._config)
        self.diverged = 0
        self.checkpoints = 0  # states that were read from one

    def follow(self, epoch: int, sealed: dict[str, int], budget_bytes: int = 1 << 30) -> bool:
        """Read on while the master of `epoch` writes. Begins at the newest checkpoint."""
        try:
            if self.follower is None:
                self._state = State(self._config)
                names = list_checkpoints(self._log.checkpoints)
                self.follower = self._at(names[0] if names else "", self._state)
            return self.follower.follow(epoch, sealed, budget_bytes)
        except DivergedError:
            self.diverged += 1
            self.follower = None
            return False

    def segments(self) -> dict[str, Segment]:
        """What the slave has read."""
        return self.follower.segments if self.follower is not None else {}

    def _at(self, checkpoint: str, state: State) -> Follower:
        start = None
        if checkpoint:
            checkpoints = self._log.checkpoints
            with closing(read_checkpoint(checkpoints, checkpoint)) as blocks:
                start = load(checkpoints.place(checkpoint), blocks, state)
        return Follower(self._log, state.apply, start)

    def seal(self, epoch: int, known: dict[str, int]) -> dict[str, int]:
        """The lengths that count. What the slave has read changes none of them, and is what it believes it is."""
        sealed = seal(self._log, epoch, known)
        if self.follower is not None:
            followed = self.follower.followed
            assert seal(self._log, epoch, known, followed) == sealed
            believed = {name: end for name, end in followed.ends.items() if sealed.get(name)}
            assert believed == {name: sealed[name] for name in believed}
        return sealed

    def read(self, sealed: dict[str, int]) -> tuple[State, Recovered]:
        """A new master that begins at the first byte; every checkpoint gives the same."""
        state, recovered = self._finish(State(self._config), "", sealed)
        right = stored_state(state, self._vfs, self._config.store)
        for name in list_checkpoints(self._log.checkpoints):
            other, also = self._finish(State(self._config), name, sealed)
            self.checkpoints += 1
            self._compare(name, (other, also), right, recovered)
        return state, recovered

    def take_over(self, sealed: dict[str, int]) -> tuple[State, Recovered]:
        """As `read`, but of the follower, if there is one."""
        cold, recovered = self.read(sealed)
        follower, self.follower = self.follower, None
        if follower is None:
            return cold, recovered
        try:
            also = follower.finish(sealed, lambda _done, _total: None)
        except DivergedError:
            self.diverged += 1
            return cold, recovered
        hot, self._state = self._state, State(self._config)
        hot.check_places(also)
        hot.settle(also.trimmed)
        self._compare("follower", (hot, also), stored_state(cold, self._vfs, self._config.store), recovered)
        return hot, also

    def _finish(self, state: State, checkpoint: str, sealed: dict[str, int]) -> tuple[State, Recovered]:
        recovered = self._at(checkpoint, state).finish(sealed, lambda _done, _total: None)
        state.check_places(recovered)
        state.settle(recovered.trimmed)
        return state, recovered

    def _compare(self, name: str, other: tuple[State, Recovered], content: dict[str, Any], right: Recovered) -> None:
        state, recovered = other
        found = stored_state(state, self._vfs, self._config.store)
        assert found == content, f"{name} says something else than the journal"
        for queue in state.queues.values():
            assert queue.stored_bytes == sum(place.size for each in queue.backlogs.values() for place in each)
        for key in ("segments", "unused", "trimmed"):  # segments with what lives in them
            assert getattr(recovered, key) == getattr(right, key), (name, key)
        codes = {segment.code for segment in right.segments if segment.key not in right.trimmed}
        for segment, full in zip(recovered.segments, right.segments, strict=True):
            assert segment.refers >= full.refers & codes - {full.code}, f"{name} would let go of {full.name} too early"
        assert right.store_uuid in (None, recovered.store_uuid)  # a segment that was never begun says it too
