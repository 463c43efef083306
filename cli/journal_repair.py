"""`amq journal repair` shows what is damaged in a store and what is lost with it; with --yes it repairs the rest."""

from __future__ import annotations

import os
from functools import partial
from random import SystemRandom
from typing import TYPE_CHECKING, Any

import click

from amq.cli import exits
from amq.cli.journal_common import options_option, read_config, store_option
from amq.cli.output import counted, examples, facts, json_option, print_json, print_table, size_text
from amq.cli.store import check_store
from amq.core.errors import StoreError
from amq.doors.clock import SystemClock
from amq.doors.threads import SystemThreads
from amq.journal.salvage import Damage
from amq.store.host import SystemHost
from amq.store.open import open_workshop
from amq.store.port import Store
from amq.store.segment_log import JOURNAL_DIRECTORY

if TYPE_CHECKING:
    from amq.maintenance.repair import Plan

_MAY_BE_LOST = (
    "More may be lost: each lost record may have been a message or an acknowledgement. The broker delivers a message "
    "again if its acknowledgement is lost."
)


@click.command(
    epilog=examples(
        "amq journal repair --store /mnt/shared/amq",
        "amq journal repair --store /mnt/shared/amq --yes",
    )
)
@store_option
@click.option("--yes", is_flag=True, help="Repair the store. Without this option the command changes nothing.")
@json_option
@options_option
def repair(store: str, yes: bool, as_json: bool, options: tuple[str, ...]) -> None:
    """Show the damage of a store and what a repair would lose; with --yes repair the rest.

    Use it only for a store that brokers refuse as damaged, and try the file system's own redundancy and your backups
    first: unreadable data stays lost. --yes takes the store's lock (exit code 5 if a broker holds it), keeps every
    original file in STORE/journal.before-repair-TIME, and writes the readable records as a new epoch. If the repair is
    killed, run it again.

    Exit code 0: nothing is damaged, or the store was repaired. 4: the store is damaged and the command changed nothing,
    or cannot repair it. 7: too little free space; the command changed nothing.
    """
    from amq.maintenance.repair import Repair, is_whole, make_plan

    found, workshop = open_workshop(store)
    _check_store(found)
    config = read_config(store, options)
    if is_whole(found, workshop):
        if as_json:
            print_json(_facts([], None, {}, [], ""))  # the live ones of a store at work were not counted
        else:
            click.echo("nothing is damaged")
        return
    if not yes:
        _tell(make_plan(found, workshop, config), as_json, "")
        raise click.exceptions.Exit(exits.STORE)
    entropy, stop = SystemRandom(), SystemThreads.event()
    told = partial(click.echo, err=True)
    work = Repair(found, workshop, SystemClock(), SystemHost(), entropy, stop, config, told)
    plan = work.run()
    if not plan.damages and not as_json:
        click.echo("finished an interrupted repair; nothing is damaged")
    else:
        _tell(plan, as_json, work.kept)


def _check_store(store: Store) -> None:
    """Raises StoreError if `store` is not a store or has lost its whole journal."""
    try:
        store.log.names()
    except OSError:
        check_store(store)
        why = f"{store.name} has no directory {JOURNAL_DIRECTORY}: there is nothing to repair; restore a backup"
        raise StoreError(why) from None


def _tell(plan: Plan, as_json: bool, kept: str) -> None:
    if as_json:
        live = {name: tally.live for name, tally in sorted(plan.liveness.destinations.items())}
        print_json(_facts(plan.damages, live, _surely_lost(plan), plan.unfinished, kept))
        return
    for damage in plan.damages:
        click.echo(f"{damage} [{damage.code}]")
        click.echo(f"    {_loss(damage)}")
    for directory in plan.unfinished if not kept else []:
        click.echo(f"{directory}: an interrupted repair; --yes finishes it")
    saved = plan.liveness.destinations
    lost = _surely_lost(plan)
    rows = [(name, saved[name].live if name in saved else 0, lost.get(name, 0)) for name in sorted({*saved, *lost})]
    click.echo()
    print_table(("destination", "live messages that can be read", "surely lost"), rows)
    if any(damage.counts for damage in plan.damages):
        click.echo(f"\n{_MAY_BE_LOST}")
    if kept:
        click.echo(f"\nrepaired; the original files are in {kept}: delete it when you miss nothing")
    else:
        click.echo("\nnothing was changed; --yes repairs the store and keeps every original file")


def _loss(damage: Damage) -> str:
    """The loss that these bytes mean, in words."""
    if not damage.counts:
        return "no data in it counts: the repair removes it or makes it anew"
    parts = []
    if damage.batches:
        parts.append(f"at least {damage.batches} batch{'es' if damage.batches > 1 else ''} damaged")
    if damage.records_lost is not None:
        parts.append(f"{counted(damage.records_lost, 'record')} surely lost, {damage.records_saved} saved")
    else:
        parts.append(f"an unknown number of records lost, {damage.records_saved} saved")
    parts += [f"among them {counted(count, 'message')} of {name}" for name, count in sorted(damage.messages.items())]
    if damage.messages_max is not None:
        parts.append(f"at most {counted(damage.messages_max, 'new message')}")
    return f"{size_text(damage.bytes)}: {'; '.join(parts)}"


def _surely_lost(plan: Plan) -> dict[str, int]:
    """Lost messages by destination, known from their remains or from other records."""
    found: dict[str, int] = {}
    for damage in plan.damages:
        for name, count in damage.messages.items():
            found[name] = found.get(name, 0) + count
    told: dict[str, int] = {}
    for name in plan.salvage.lost.values():
        told[name] = told.get(name, 0) + 1
    return {name: max(found.get(name, 0), told.get(name, 0)) for name in {*found, *told}}


def _facts(
    damages: list[Damage], live: dict[str, int] | None, surely_lost: dict[str, int], unfinished: list[str], kept: str
) -> dict[str, Any]:
    return {
        "damages": [
            facts(damage, path="file", messages="messages_lost", messages_max="messages_lost_max") for damage in damages
        ],
        "live": live,
        "surely_lost": surely_lost,
        "unfinished": [os.path.basename(directory) for directory in unfinished],
        "repaired": bool(kept),
        "kept": kept,
    }
