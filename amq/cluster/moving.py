"""Carries moves of destinations through, step by step: looks at the stores, makes the next table when they allow it.

Each node does that in a thread, since a store may hang, and so does the command that began the move, as long as it
waits. All of them make the same table, and one is quicker. So a move goes on whatever ends, and stands still while a
store has no master.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

import structlog

from amq.cluster.directory import CONFLICT, Cluster, ClusterNode
from amq.cluster.placement import Placement
from amq.cluster.placing import Await, Older, StoreSeen, next_step
from amq.cluster.removing import leave_note, remove_store
from amq.cluster.scaling import GoneNodes, NodeSeen
from amq.cluster.seeing import store_seen
from amq.core.errors import AmqError, StoreError
from amq.doors.clock import Clock, SystemClock

MOVING_LOOK_S: Final = 0.25  # between two looks while something moves
IDLE_LOOK_S: Final = 2.0
CHANGES_MAX: Final = 20  # tries of one change, while nodes make tables of a move
Seen = Callable[[str], StoreSeen]
_log = structlog.get_logger("amq.cluster")


def advance(found: Cluster, seen: Seen | None = None) -> Placement:
    """Make the next table of a move that is under way, if the stores allow it now. Returns the newest one. Raises
    StoreError, OSError."""
    seen = seen or partial(store_seen, found)
    table = found.table()
    placement = table.placement
    if placement.step is None:
        return placement
    after = next_step(placement, {name: seen(name) for name in placement.stores})
    if isinstance(after, Await):
        return placement
    if isinstance(after, Older):
        return found.table().placement
    if placement.leaving and after.step is None:
        leave_note(found, table)
    try:
        return found.place(after).placement
    except StoreError as error:
        if error.code != CONFLICT:
            raise
        return found.table().placement


def change_placement(found: Cluster, make: Callable[[Placement], Placement]) -> Placement:
    """Put `make(newest)` in the place of the newest placement, and begin again where a node makes the next table of a
    move meanwhile. `make` may return what it gets: nothing is to change. Returns the newest placement. Raises what
    `Cluster.place` raises, CONFLICT where it was late each time."""
    for tries in range(1, CHANGES_MAX + 1):
        placement = found.table().placement
        after = make(placement)
        if after is placement:
            break
        try:
            return found.place(after).placement
        except StoreError as error:
            if error.code != CONFLICT or tries == CHANGES_MAX:
                raise
    return placement


def scale_down(found: Cluster, watch: GoneNodes, nodes: Sequence[ClusterNode], now_s: float) -> None:
    """Begin to remove a store whose node has gone for good, if there is one and nothing moves. Raises StoreError,
    ConfigError, OSError."""
    if not any(each.scale_down for each in nodes):
        return
    seen = [NodeSeen(each.name, each.running, each.has_stopped, each.scale_down) for each in nodes]
    placement = found.table().placement
    removal = watch.step(seen, placement.stores, now_s)
    if removal is None or placement.step is not None:
        return
    try:
        remove_store(found, removal.store, removal.into)
    except StoreError:
        if found.table().placement.leaving != removal.store:
            raise
        return  # another node was quicker
    _log.warning(
        "a node has gone for good: its store is removed",
        gone=removal.node,
        leaving=removal.store,
        into=list(removal.into),
    )


def carry_on(
    found: Cluster,
    is_moving: Callable[[], bool],
    nodes: Callable[[], Sequence[ClusterNode]],
    stopped: threading.Event,
    clock: Clock | None = None,
) -> None:
    """Carry moves through, while there are some, and begin those that nodes leave behind, until `stopped`. `nodes()` =
    those of the cluster, as seen a moment ago."""
    trouble, watch, clock = "", GoneNodes(), clock or SystemClock()
    watch.meet(each.name for each in nodes() if each.running)  # at once: one may stop before the first look
    while not stopped.wait(MOVING_LOOK_S if is_moving() else IDLE_LOOK_S):
        said, trouble = trouble, ""
        try:
            if is_moving():
                advance(found)
            else:
                scale_down(found, watch, nodes(), clock.monotonic())
        except (AmqError, OSError) as error:
            trouble = str(error)
            if trouble != said:
                _log.warning("a move of destinations cannot go on now", reason=trouble)
