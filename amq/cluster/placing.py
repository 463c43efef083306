"""A change of the placement, step by step: what the stores say decides about the next table.

The table that takes destinations away (`Placement.before`) is there already. The one that gives them to their new homes
may be made only when every store obeys the first and holds nothing of what moves. Otherwise the change is taken back.
Where a store remembers ids of messages that it had, these are sent first, by a table with a `step`: a client may send
such a message again, to the new home.

A move takes along what is held, so nothing is stranded: `next_step`.

Pure: whoever makes the change looks at the stores, asks `decide`, and acts. Where two do so at a time, both come to the
same table, or one of them finds that it is there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from amq.cluster.placement import STEP_BYTES, Placement


@dataclass(frozen=True, slots=True)
class StoreSeen:
    """A store, as its master describes it.

    number    of the table that it has recorded, 0 = none
    held      destinations that it holds, and that live elsewhere by this table or by the one that it refuses
    refused   number of the table that it refuses, because that would strand what it holds; 0 = it refuses none
    is_unused nobody has to hear of a table: no broker has served the store yet and no node of the cluster runs, so the
              first one that serves it will read the newest table; or a newer table no longer has the store
    due       of a move: the slots of which it holds something that has not begun to move, each with its bytes, in their
              order; `is_cut` where there are more than these
    busy      of a move: the slots of which it cannot send something, because a transaction is prepared, or the like
    left      messages that it holds of what is moving, of `left_bytes`; `due_bytes` = of what has not begun to move
    sent      messages that it has sent to other stores in this mastership, of `sent_bytes`, `bytes_a_second` lately
    rest      of a store that leaves the cluster: what it holds still, and does not send
    stuck     why a move stands still: its next home refuses something of this store; "" = it does not
    peers     stores that must answer it before they leave the cluster
    copying   does it make copies of what the next step takes, which is better taken when they are there?
    to_copy   messages of which it has still to make copies, of `to_copy_bytes`; `copied`, `copied_bytes` = it has made
    remembers does it remember ids of messages that it had of what moves?
    waits     destinations of which it must wait for the end of transactions or leases, before it obeys the newest table
    """

    number: int = 0
    held: tuple[str, ...] = ()
    refused: int = 0
    is_unused: bool = False
    due: tuple[tuple[int, int], ...] = ()
    is_cut: bool = False
    busy: tuple[int, ...] = ()
    left: int = 0
    left_bytes: int = 0
    due_bytes: int = 0
    sent: int = 0
    sent_bytes: int = 0
    bytes_a_second: int = 0
    copying: bool = False
    to_copy: int = 0
    to_copy_bytes: int = 0
    copied: int = 0
    copied_bytes: int = 0
    remembers: bool = False
    waits: tuple[str, ...] = ()
    rest: tuple[str, ...] = ()
    stuck: str = ""
    peers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Await:
    """Not all stores have the table: `stores` do not."""

    stores: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Older:
    """This table is not the newest one: `stores` obey a later one. This host does not see it yet, or the cluster's
    directory was set back. A table that follows this one would be another one than they obey."""

    stores: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Grant:
    """Every store has given up what moves."""


@dataclass(frozen=True, slots=True)
class Carry:
    """Every store has given up what moves, and some remember ids: these move first."""


@dataclass(frozen=True, slots=True)
class Revert:
    """`held` = by store what would be stranded."""

    held: Mapping[str, tuple[str, ...]]


def ahead(placement: Placement, stores: Mapping[str, StoreSeen]) -> Older | None:
    """Do `stores` obey a later table than `placement`?"""
    names = tuple(name for name, seen in stores.items() if seen.number > placement.number)
    return Older(names) if names else None


def decide(placement: Placement, stores: Mapping[str, StoreSeen]) -> Await | Carry | Grant | Older | Revert:
    """The next step of a `placement` that has `before`. `stores` = all of them, as they are seen after it was made."""
    if older := ahead(placement, stores):
        return older
    held = {
        name: seen.held
        for name, seen in stores.items()
        if seen.held and (seen.number >= placement.number or seen.refused >= placement.number)
    }
    if held:
        return Revert(held)
    late = [name for name, seen in stores.items() if seen.number < placement.number and not seen.is_unused]
    given = Carry() if any(seen.remembers for seen in stores.values()) else Grant()
    return Await(tuple(late)) if late else given


def next_step(placement: Placement, stores: Mapping[str, StoreSeen]) -> Await | Older | Placement:
    """The next table of a move. The next step takes all slots that hold nothing along, and of the others as many as
    hold `STEP_BYTES` together, so that no destination waits for long. All that it takes is copied before."""
    step = placement.step
    assert step is not None
    if older := ahead(placement, stores):
        return older
    late = [
        name
        for name, seen in stores.items()
        if not seen.is_unused and (seen.number < placement.number or (step.moving and (seen.held or seen.left)))
    ]
    if late:
        return Await(tuple(late))
    if step.returns:
        return placement.turned()
    if not step.waiting:
        bound = [name for name, seen in stores.items() if seen.rest or placement.leaving in seen.peers]
        return Await(tuple(bound)) if placement.leaving and bound else placement.settled()
    if copying := [name for name, seen in stores.items() if seen.copying]:
        return placement.stepped(frozenset()) if step.moving else Await(tuple(copying))
    due: dict[int, int] = {}
    busy = {slot: name for name, seen in stores.items() for slot in seen.busy}
    known_to = 1 << 62  # a store did not say what is in higher slots
    for seen in stores.values():
        for slot, size in seen.due:
            due[slot] = due.get(slot, 0) + size
        if seen.is_cut:
            known_to = min(known_to, seen.due[-1][0])
    taken, size = set(step.waiting - due.keys() - busy.keys()), 0
    for slot in sorted((due.keys() - busy.keys()) & step.waiting):
        if size and size + due[slot] > STEP_BYTES:
            break
        taken.add(slot)
        size += due[slot]
    slots = frozenset(slot for slot in taken if slot <= known_to)
    if not slots and not step.moving:
        return Await(tuple(dict.fromkeys(busy.values())))
    return placement.stepped(slots)
