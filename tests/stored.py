"""What a broker holds for a queue: in memory, or on disk alone and then read from there."""

from __future__ import annotations

from typing import Any

from amq.broker.queues.backlog import Place
from amq.broker.queues.queue import Queue
from amq.broker.state.state import State
from amq.broker.state.window import IdWindow, IdWindows
from amq.config.schema import BrokerConfig
from amq.core.message import Message
from amq.core.ownership import owner_of
from amq.journal.live import Segment
from amq.journal.reader import read_messages
from amq.journal.records import Trimmed
from amq.journal.recovery import Recovered, seal
from amq.journal.segment import FILL
from amq.node.following import Following
from amq.store.epoch import Epoch
from amq.store.files.log import FileLog
from amq.store.files.vfs import Vfs
from amq.store.open import store_behind
from amq.store.segment_log import SegmentLog
from tests.fakes import FakeClock

NOTHING = Trimmed()


def with_files(options: dict[str, Any]) -> dict[str, Any]:
    """`options` of a broker whose segments are written up to the `journal_segment_size_bytes` that they name."""
    return options | {"journal_segment_size_bytes": -int(-options["journal_segment_size_bytes"] // FILL)}


def stored(state: State, queue: Queue, vfs: Vfs, store: str) -> dict[int, Message]:
    """As `stored_in`, of the store in a directory."""
    return stored_in(state, queue, FileLog(vfs, store))


def stored_in(state: State, queue: Queue, log: SegmentLog) -> dict[int, Message]:
    """{seq: message} of everything that has not left `queue`, oldest first."""
    segments = dict(state.segments)
    places = [place for rows in (queue.backlogs, queue.leaving) for backlog in rows.values() for place in backlog]
    for stripped in queue.messages.values():
        if stripped.is_stripped:
            assert isinstance(stripped.segment, Segment)
            segments[stripped.segment.code] = stripped.segment
            places.append(Place(stripped.seq, stripped.segment.code, stripped.offset, stripped.size))
    waiting = read_messages(log, [(place, queue.name) for place in places])
    for message, place in zip(waiting, places, strict=True):
        assert message.seq == place.seq
        message.segment = segments[place.segment]
    found = {message.seq: message for message in [*queue.messages.values(), *waiting]}
    assert len(found) == queue.stored, "a message is in memory and waits on disk alone"
    return dict(sorted(found.items()))


def started(vfs: Vfs, config: BrokerConfig, newest: Epoch) -> tuple[State, Recovered]:
    """What a broker has that becomes master after epoch `newest` and begins at a checkpoint, if there is a good one."""
    slave = Following(store_behind(vfs, config.store), FakeClock(), config)
    sealed = seal(FileLog(vfs, config.store), newest.number, newest.sealed, slave.followed(newest))
    epoch = Epoch(newest.number + 1, newest.owner, sealed, 0, "test")
    state, recovered = slave.finish(config, epoch, lambda _read, _of, _messages: None)
    return state, recovered


def stored_state(state: State, vfs: Vfs, store: str, trimmed: Trimmed = NOTHING) -> dict[str, Any]:
    """What of `state` the journal keeps, in comparable form."""
    queues = {}
    for name, queue in state.queues.items():
        messages = {
            message.seq: (
                message.body,
                message.priority,
                message.properties or {},
                message.expires_ms,
                message.content,
                message.duplicate_id,
                message.timestamp_ms,
                message.content_type,
                message.envelope,
            )
            for message in stored(state, queue, vfs, store).values()
            if message.segment is not None and message.segment.key not in trimmed  # type: ignore[attr-defined]
        }
        redelivered = {seq: counts for seq, counts in queue.redelivered.items() if seq in messages}
        queue.duplicates.settle()
        if messages or queue.duplicates:
            queues[name] = (messages, redelivered, _places(queue.duplicates))
    state.outcomes.settle()
    two_phase = {xid: (prepared, segment.key) for xid, (prepared, segment) in state.prepared.items()}
    markers = {owner: (marker, segment.key) for owner, (marker, segment) in state.prepared.markers.items()}
    durable = {
        name: (record.definition, record.segment and record.segment.key) for name, record in state.subscriptions.items()
    }
    return {
        # Of each user by age. The users have no order: a copy in a later segment may make another one the first.
        "queues": queues,
        "outcomes": sorted(_places(state.outcomes), key=lambda each: owner_of(each[0])),
        "prepared": two_phase,
        "markers": markers,
        "subscriptions": durable,
        "obeyed": state.obeyed.record,
        "parcels": {name: parcel for name, (parcel, _) in state.parcels.items()},
    }


def _places(kept: IdWindow | IdWindows) -> list[tuple[str, tuple[int, int]]]:
    return [(name, segment.key) for name, (_, segment) in kept.items()]
