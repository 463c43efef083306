"""`amq cluster move` and `amq cluster moves`: destinations get another home, and take along what they hold."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

import click

from amq.cli.cluster_options import WAIT_S, cluster_option
from amq.cli.cluster_placing import finished, newest, wait_until_all_have, wait_until_obeyed
from amq.cli.options import valued
from amq.cli.orders import OrderError
from amq.cli.output import examples, json_option, print_json
from amq.cluster.directory import Cluster
from amq.cluster.moving import MOVING_LOOK_S, advance, change_placement
from amq.cluster.placement import SPREAD, Layout, Placement
from amq.cluster.placing import Await, Older, StoreSeen, next_step
from amq.cluster.removing import begin_removal
from amq.cluster.seeing import store_seen
from amq.core.errors import ConfigError
from amq.core.units import parse_size_bytes

OLDER: Final = "it obeys a later table than this host sees: `amq cluster status`"
STEP_S: Final = 1.5  # of a step beside its messages: stores record its table, and the next one
FETCHED_A_SECOND: Final = 300_000  # messages of which the next home has copies
move_wait_option = valued(
    "--wait",
    "wait_s",
    type=click.FloatRange(0, 86_400),
    default=86_400,
    help="How long to wait for the end. The move goes on without the command.",
)
rate_option = click.option(
    "--rate", metavar="SIZE", help="Send at most that many bytes a second, as 20MiB; 0 = no limit."
)


@click.command(
    epilog=examples(
        "amq cluster move --cluster /mnt/shared/cluster 'orders.>' s2",
        "amq cluster move --cluster /mnt/shared/cluster orders.eu s2 --rate 20MiB --wait 0",
        "amq cluster moves --cluster /mnt/shared/cluster",
    )
)
@cluster_option
@click.argument("pattern", metavar="PATTERN")
@click.argument("store", metavar="STORE|spread")
@rate_option
@move_wait_option
@json_option
def move(directory: str, pattern: str, store: str, rate: str | None, wait_s: float, as_json: bool) -> None:
    """Give the destinations of PATTERN another home, and take along all that they hold, while nodes serve.

    They move in steps of up to 64 MiB, or of one destination that holds more. The old home copies what a step takes
    before, while it serves that. Then, for a second or a few, no store serves it, and clients of gateways wait. All
    others are served as ever. The nodes carry the move through, also when this command ends; `amq cluster moves`
    shows it, and takes it back with --cancel.

    Exit code 0: all has moved, and gateways know it. 7: it has not within --wait, with what it waits for.
    """
    found = Cluster(directory)
    placement = settled(found)
    if placement.layout.rules.get(pattern, "") != store:
        placement = found.place(placement.carried(pattern, store, rate_of(rate))).placement
    done = f"{pattern} lives in {'every store' if store == SPREAD else store}"
    finish(found, placement, wait_s, as_json, {"pattern": pattern, "home": store}, done, placement.layout)


@click.command(
    epilog=examples(
        "amq cluster moves --cluster /mnt/shared/cluster",
        "amq cluster moves --cluster /mnt/shared/cluster --rate 50MiB",
        "amq cluster moves --cluster /mnt/shared/cluster --cancel",
    )
)
@cluster_option
@click.option(
    "--cancel", "cancels", is_flag=True, help="Take the move back: what has moved moves back, with its order."
)
@rate_option
@json_option
def moves(directory: str, cancels: bool, rate: str | None, as_json: bool) -> None:
    """Show the move that is under way: how far it is, how long it takes, and what it waits for."""
    found = Cluster(directory)
    placement = found.table().placement
    if cancels or rate is not None:
        newest(found, time.monotonic() + WAIT_S)
    if cancels:
        placement = change_placement(
            found, lambda now: now if now.step is None or now.step.returns else now.returning()
        )
    if rate is not None:
        placement = change_placement(found, lambda now: now if now.step is None else now.at_rate(rate_of(rate)))
    facts = progress(found, placement)
    if as_json:
        print_json(facts)
    else:
        click.echo(told(facts))


@click.command(
    "remove-store",
    epilog=examples(
        "amq cluster remove-store --cluster /mnt/shared/cluster s4",
        "amq cluster remove-store --cluster /mnt/shared/cluster s4 --to s1,s2 --rate 50MiB",
    ),
)
@cluster_option
@click.argument("name", metavar="STORE")
@click.option("--to", "targets", metavar="STORE,...", help="The stores that get what it has. Default: all others.")
@rate_option
@move_wait_option
@json_option
def remove_store(
    directory: str, name: str, targets: str | None, rate: str | None, wait_s: float, as_json: bool
) -> None:
    """Move all that a store holds to the other stores, as by `amq cluster move`, and take the store out of the cluster.

    Its slots, the rules that name it, its part of what is spread, and what belongs to no destination go to the stores
    of --to in even shares. Then it waits for what only its owners can end: prepared transactions, leases, messages for
    stores that have no master; `amq cluster moves` names them. At the end no node serves the store; its directory stays
    with a note. If the command ends early, the nodes go on, and the same command shows the rest; until the end `amq
    cluster moves --cancel` takes all back.

    Exit code 0: the store is removed. 7: it is not within --wait, with what it waits for.
    """
    found = Cluster(directory)
    table = found.table()
    placement, location = table.placement, found.location(name, table)
    into = [each.strip() for each in (targets or "").split(",") if each.strip()]
    if placement.leaving != name:
        placement = begin_removal(found, name, into, rate_of(rate), settled(found))
    done = f"store {name} is none of the cluster any more; what is left of it stays at {location}"
    facts = {"store": name, "at": location, "removed": True}
    if (placement.step is not None and placement.step.returns) or not placement.leaving:
        raise OrderError(f"the removal of {name} is being taken back: see `amq cluster moves`")
    finish(found, placement, wait_s, as_json, facts, done, placement.settled().layout)


def settled(found: Cluster) -> Placement:
    """The placement of a cluster in which nothing moves, and of which all stores know. Raises OrderError."""
    until = time.monotonic() + WAIT_S
    placement = finished(found, until)
    wait_until_all_have(found, placement, until)
    return placement


def finish(
    found: Cluster,
    placement: Placement,
    wait_s: float,
    as_json: bool,
    facts: Mapping[str, Any],
    done: str,
    wanted: Layout,
) -> None:
    """Carry the move to the layout `wanted` through for `wait_s`, with its progress, and say how it ended. Raises
    OrderError."""
    until, said = time.monotonic() + wait_s, ""
    while placement.step is not None and time.monotonic() < until:
        placement = advance(found)
        if not as_json and placement.step is not None and (line := told(progress(found, placement))) != said:
            click.echo(said := line, err=True)
        time.sleep(MOVING_LOOK_S)
    now = progress(found, placement)
    if as_json:
        print_json({"cluster": found.directory, **facts, **({"removed": False} if now["moving"] else {}), **now})
    if placement.step is not None:
        raise OrderError(f"the move goes on without this command: {told(now)}")
    if placement.layout != wanted:
        raise OrderError("the move was taken back, or somebody has changed the cluster since")
    wait_until_obeyed(found, placement, time.monotonic() + WAIT_S)
    if not as_json:
        click.echo(f"table {placement.number}: {done}")


def progress(found: Cluster, placement: Placement, seen: Callable[[str], StoreSeen] | None = None) -> dict[str, Any]:
    """How far a move is, for people and programs."""
    step = placement.step
    if step is None:
        return {"moving": False, "table": placement.number}
    seen = seen or partial(store_seen, found)
    stores = {name: seen(name) for name in placement.stores}
    following = next_step(placement, stores)
    reached = {name: each for name, each in stores.items() if each.number >= placement.number}
    return {
        "moving": True,
        "table": placement.number,
        "returns": step.returns,
        "rate": step.rate_bytes or None,
        "moved_slots": len(step.moved),
        "moving_slots": len(step.moving),
        "left_messages": sum(each.left for each in reached.values()),
        "left_bytes": sum(each.left_bytes + each.due_bytes for each in reached.values()),
        "copying": any(each.copying for each in reached.values()),
        "copied_messages": sum(each.copied for each in reached.values()),
        "copied_bytes": sum(each.copied_bytes for each in reached.values()),
        "to_copy_messages": sum(each.to_copy for each in reached.values()),
        "to_copy_bytes": sum(each.to_copy_bytes for each in reached.values()),
        "copy_eta_s": _copy_eta_s(list(reached.values())),
        "step_eta_s": _step_eta_s(list(reached.values())),
        "sent_messages": sum(each.sent for each in stores.values()),
        "sent_bytes": sum(each.sent_bytes for each in stores.values()),
        "eta_s": _eta_s(list(reached.values())),
        "leaving": placement.leaving or None,
        "waits_for": {name: [OLDER] for name in following.stores}
        if isinstance(following, Older)
        else {
            name: [*stores[name].waits, *stores[name].rest, *filter(None, [stores[name].stuck])]
            for name in following.stores
            if not stores[name].copying or stores[name].stuck
        }
        if isinstance(following, Await)
        else {},
    }


def _eta_s(stores: list[StoreSeen]) -> int | None:
    """Of the slowest store; None = nothing was sent yet."""
    return _slowest_s([(_to_go(each), each.bytes_a_second) for each in stores])


def _to_go(seen: StoreSeen) -> int:
    """Bytes that a store has still to send, now or by later steps: what it has copied needs no time."""
    return max(seen.left_bytes + seen.due_bytes - seen.copied_bytes, seen.to_copy_bytes)


def _slowest_s(rests: list[tuple[int, int]]) -> int | None:
    """Of (bytes, bytes a second), None = nothing was sent yet."""
    times = [size // rate if rate else None for size, rate in rests if size]
    return max((each for each in times if each is not None), default=None) if None not in times else None


def _copy_eta_s(stores: list[StoreSeen]) -> int | None:
    """Until the step that is being copied may begin; None = nothing is copied, or nothing was yet."""
    return _slowest_s([(each.to_copy_bytes, each.bytes_a_second) for each in stores if each.copying])


def _step_eta_s(stores: list[StoreSeen]) -> int:
    """How long the step that is being copied will let producers wait, about."""
    return math.ceil(STEP_S + max((each.copied / FETCHED_A_SECOND for each in stores), default=0.0))


def told(facts: dict[str, Any]) -> str:
    """One line for people."""
    if not facts["moving"]:
        return f"nothing moves (table {facts['table']})"
    way = "moves back" if facts["returns"] else "moves"
    eta = "" if facts["eta_s"] is None else f", about {facts['eta_s']} s"
    text = (
        f"table {facts['table']}: {facts['left_bytes'] >> 10} KiB to go{eta}; {facts['sent_messages']} messages sent; "
        f"{facts['left_messages']} messages in the step that {way}"
    )
    if facts["copying"]:
        soon = "" if facts["copy_eta_s"] is None else f", about {facts['copy_eta_s']} s"
        text += (
            f"; copying: {facts['to_copy_bytes'] >> 10} KiB of {facts['to_copy_messages']} messages before the next "
            f"step{soon}, for which clients will wait about {facts['step_eta_s']} s"
        )
    waits = "; ".join(f"{name}: {', '.join(names)}" if names else name for name, names in facts["waits_for"].items())
    return f"{text}; waits for {waits}" if waits else text


def rate_of(text: str | None) -> int:
    """Bytes a second, 0 = no limit. Raises ConfigError."""
    try:
        return 0 if text is None else parse_size_bytes(text)
    except ValueError as error:
        raise ConfigError(f"--rate {text}: {error}") from None
