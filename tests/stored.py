"""What a broker holds for a queue: in memory, or on disk alone and then read from there."""

from __future__ import annotations

import os

from amq.broker.backlog import Place
from amq.broker.broker import Broker
from amq.broker.queue import Queue
from amq.journal.reader import read_messages
from amq.journal.recovery import JOURNAL_DIRECTORY, Segment
from amq.message import Message
from amq.vfs import Vfs


def stored(broker: Broker, queue: Queue, vfs: Vfs, store: str) -> dict[int, Message]:
    """{seq: message} of everything that has not left `queue`, oldest first."""
    segments = dict(broker._segments)
    places = [place for backlog in queue.backlogs.values() for place in backlog]
    for stripped in queue.messages.values():
        if stripped.is_stripped:
            assert isinstance(stripped.segment, Segment)
            segments[stripped.segment.code] = stripped.segment
            places.append(Place(stripped.seq, stripped.segment.code, stripped.offset, stripped.size))
    directory = os.path.join(store, JOURNAL_DIRECTORY)
    waiting = read_messages(vfs, directory, [(place, queue.name) for place in places])
    for message, place in zip(waiting, places, strict=True):
        assert message.seq == place.seq
        message.segment = segments[place.segment]
    found = {message.seq: message for message in [*queue.messages.values(), *waiting]}
    assert len(found) == queue.stored, "a message is in memory and waits on disk alone"
    return dict(sorted(found.items()))
