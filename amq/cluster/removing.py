"""A store leaves the cluster: it gives all that it has to others by a move, and then the cluster no longer has it.

The table that begins it has the store as `leaving`. Nodes carry the move through (`amq.cluster.moving`), and make the
last table, without the store, when it is empty and no other store waits for an answer from it. So a removal goes on
whatever ends. Before that table a note comes into the directory of the store, which stays as it is.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from amq.cluster.directory import Cluster, StoreTable
from amq.cluster.placement import Placement
from amq.cluster.placing import StoreSeen
from amq.cluster.seeing import check_newest, store_seen
from amq.core.errors import StoreError
from amq.store.name import is_directory

NOTE_FILE: Final = "REMOVED.txt"


def remove_store(
    found: Cluster,
    name: str,
    into: Iterable[str] = (),
    rate_bytes: int = 0,
    seen: Callable[[str], StoreSeen] | None = None,
) -> Placement:
    """Begin to remove store `name`; the stores `into`, () = all others, get what it has, at most `rate_bytes` a second,
    0 = no limit. Does not wait for the end. Where that store leaves already nothing changes. Raises ConfigError where
    these are not stores of the cluster, StoreError (CONFLICT) where another change must end first, OSError."""
    placement = found.table().placement
    if placement.leaving == name:
        return placement
    if placement.before is not None:
        raise _conflict("another change of the homes is under way: see `amq cluster moves`, and wait for its end")
    look = seen or partial(store_seen, found)
    stores = {each: look(each) for each in placement.stores}
    check_newest(found, stores)
    late = [each for each, now in stores.items() if now.number < placement.since and not now.is_unused]
    if late:
        raise _conflict(f"{', '.join(late)} did not take table {placement.since} over yet: see `amq cluster status`")
    return begin_removal(found, name, into, rate_bytes, placement)


def begin_removal(found: Cluster, name: str, into: Iterable[str], rate_bytes: int, placement: Placement) -> Placement:
    """Begin to remove store `name` of `placement`, in which nothing moves and which all stores have recorded."""
    others = tuple(each for each in placement.stores if each != name)
    return found.place(placement.emptied(name, tuple(into) or others, rate_bytes)).placement


def leave_note(found: Cluster, table: StoreTable) -> None:
    """Write a note into the directory of the store that leaves: why it is still there. Raises OSError."""
    location = found.location(table.placement.leaving, table)
    if not is_directory(location):
        return
    path, text = os.path.join(location, NOTE_FILE), _note(found, table.placement)
    temporary = f"{path}.{os.getpid()}.new"
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
    os.replace(temporary, path)


def _note(found: Cluster, placement: Placement) -> str:
    return (
        f"Store {placement.leaving} was removed from the cluster {found.directory} (id {found.id}) by table "
        f"{placement.number + 1}.\n"
        "All that it held is in the other stores of the cluster. No node serves it any more.\n"
        "Its journal has only records of what was here. Delete this directory when you no longer "
        "need them.\n"
    )


def _conflict(text: str) -> StoreError:
    return StoreError(text, code="CONFLICT")
