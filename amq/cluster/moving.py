"""Carries moves of destinations through, step by step: looks at the stores, makes the next table when they allow it.

Each node does that in a thread, since a store may hang, and so does the command that began the move, as long as it
waits. All of them make the same table, and one is quicker. So a move goes on whatever ends, and stands still while a
store has no master.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Final

import structlog

from amq.cluster.directory import Cluster
from amq.cluster.placement import Placement
from amq.cluster.placing import Await, StoreSeen, next_step
from amq.cluster.removing import leave_note
from amq.cluster.seeing import store_seen
from amq.core.errors import AmqError, StoreError

MOVING_LOOK_S: Final = 0.25  # between two looks while something moves
IDLE_LOOK_S: Final = 2.0
Seen = Callable[[str], StoreSeen]
_log = structlog.get_logger("amq.cluster")


def advance(found: Cluster, seen: Seen | None = None) -> Placement:
    """Make the next table of a move that is under way, if the stores allow it now. Returns the newest one. Raises
    StoreError, OSError."""
    seen = seen or partial(store_seen, found)
    placement = found.table().placement
    if placement.step is None:
        return placement
    after = next_step(placement, {name: seen(name) for name in placement.stores})
    if isinstance(after, Await):
        return placement
    if placement.leaving and after.step is None:
        leave_note(found, placement)
    try:
        return found.place(after).placement
    except StoreError as error:
        if error.code != "CONFLICT":
            raise
        return found.table().placement


def carry_on(found: Cluster, is_moving: Callable[[], bool], stopped: threading.Event) -> None:
    """Carry moves through, while there are some, until `stopped`."""
    trouble = ""
    while not stopped.wait(MOVING_LOOK_S if is_moving() else IDLE_LOOK_S):
        if not is_moving():
            continue
        said, trouble = trouble, ""
        try:
            advance(found)
        except (AmqError, OSError) as error:
            trouble = str(error)
            if trouble != said:
                _log.warning("a move of destinations cannot go on now", reason=trouble)
