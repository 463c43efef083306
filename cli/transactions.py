"""`amq transactions`: look at prepared transactions, and finish by hand what its coordinator does not finish.

Invariant: each is committed or rolled back as a whole by the broker, or, where it ended otherwise before, left as it is
and told; to ask for the same end again is harmless.
"""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import asdict
from typing import Any

import click

from amq.cli.clients import Address, Failovers, connection_options, open_connection
from amq.cli.options import check_can_ask, confirm, yes_option
from amq.cli.output import examples, json_option, print_json, print_table, wall_text
from amq.client import Connection, PreparedTransaction

SHOWN_MAX = 20  # transactions that are listed before the question


@click.group(epilog=examples("amq transactions list", "amq transactions commit order-1712"))
def transactions() -> None:
    """Show prepared transactions; commit or roll them back by hand."""


@transactions.command(
    "list",
    epilog=examples(
        "amq transactions list",
        "amq transactions list --owner nightly-load",
        "amq transactions list --url 'failover:(stomp://a:61613,stomp://b:61613)' --json",
    ),
)
@connection_options
@click.option("--owner", metavar="NAME", help="Only those of this pipeline.")
@json_option
def list_(at: Address, owner: str | None, as_json: bool) -> None:
    """Show transactions that are prepared and neither committed nor rolled back, oldest first.

    Shows the pipeline and batch for which each was prepared, when, until when it waits for its end, and how many
    messages it sends to and takes from which queues.
    """
    with open_connection(at, Failovers()) as connection:
        found = [each for each in connection.recover() if owner is None or each.owner == owner]
    if as_json:
        print_json([asdict(each) for each in found])
        return
    print_table(("XID", "OWNER", "BATCH", "PREPARED", "UNTIL", "SENDS", "TAKES"), [_row(each) for each in found])


@transactions.command(
    epilog=examples("amq transactions commit order-1712", "amq transactions commit q/7/0 q/7/1 --json")
)
@connection_options
@click.argument("xids", nargs=-1, required=True, metavar="XID...")
@json_option
def commit(at: Address, xids: tuple[str, ...], as_json: bool) -> None:
    """Commit prepared transactions: what they send is seen, what they took is gone.

    Each by itself: for the batch of a pipeline that is another end than the pipeline's own, which commits all parts
    with its marker. The command ends at the first one that it cannot commit.
    """
    _finish(at, xids, as_json, commits=True)


@transactions.command(
    epilog=examples(
        "amq transactions rollback order-1712",
        "amq transactions rollback q/7/0 q/7/1 --json",
        "amq transactions rollback --owner 6e0f2b31-88a1-4a5e-9c0e-0d5a7a3f1c22",
        "amq transactions rollback --owner lease:etl --yes --json",
    )
)
@connection_options
@click.argument("xids", nargs=-1, metavar="[XID...]")
@click.option("--owner", metavar="NAME", help="All that is prepared for this pipeline, query or job, after a question.")
@yes_option
@json_option
def rollback(at: Address, xids: tuple[str, ...], owner: str | None, yes: bool, as_json: bool) -> None:
    """Roll prepared transactions back: what they send is gone, what they took is delivered again.

    The command ends at the first one that it cannot roll back. With --owner the command shows what is
    prepared for that owner, asks, and rolls back what it has shown: for a pipeline that nobody starts again, such as a
    Spark query that was stopped in the middle of a batch. For the leases of a Spark stream that is
    lease:SUBSCRIPTION.
    """
    if bool(xids) == (owner is not None):
        raise click.UsageError("give either XID... or --owner NAME")
    if owner is None:
        _finish(at, xids, as_json, commits=False)
    else:
        _roll_back_owner(at, owner, yes, as_json)


def _roll_back_owner(at: Address, owner: str, yes: bool, as_json: bool) -> None:
    check_can_ask(yes)
    began, failovers = time.monotonic(), Failovers()
    with open_connection(at, failovers) as connection:
        found = [each for each in connection.recover() if each.owner == owner]
        if found and not yes:
            _preview(found)
            confirm(yes, f"Roll back these {len(found):,} transactions of {owner}?")
        count = 0
        for batch in sorted({each.batch for each in found}):
            xids = [each.xid for each in found if each.batch == batch]
            count += connection.rollback_batch(owner, batch, xids)
    if as_json:
        seconds = round(time.monotonic() - began, 3)
        facts = {
            "outcome": "rolled back",
            "owner": owner,
            "xids": [each.xid for each in found],
            "rolled_back": count,
            "seconds": seconds,
            "failovers": failovers.count,
        }
        print_json(facts)
    else:
        click.echo(f"{count:,} of {len(found):,} transactions of {owner} rolled back")


def _preview(found: list[PreparedTransaction]) -> None:
    """Show on standard error the transactions that would be rolled back."""
    for each in found[:SHOWN_MAX]:
        since = wall_text(each.created_ms)
        sends, takes = _counts(each.sends), _counts(each.acks)
        click.echo(f"{each.xid}: batch {each.batch}, prepared {since}; sends {sends}; takes {takes}", err=True)
    if len(found) > SHOWN_MAX:
        click.echo(f"... and {len(found) - SHOWN_MAX:,} more", err=True)
    sums = [Counter[str](), Counter[str]()]
    for each in found:
        for total, part in zip(sums, (each.sends, each.acks), strict=True):
            total.update(part)
    click.echo(f"Deleted: {_counts(sums[0])}. Delivered again: {_counts(sums[1])}.", err=True)


def _finish(at: Address, xids: tuple[str, ...], as_json: bool, commits: bool) -> None:
    word, began, done = "committed" if commits else "rolled back", time.monotonic(), []
    failovers = Failovers()
    try:
        with open_connection(at, failovers) as connection:
            for xid in xids:
                _finish_one(connection, xid, commits)
                done.append(xid)
    finally:
        if as_json:
            seconds = round(time.monotonic() - began, 3)
            facts: dict[str, Any] = {"outcome": word, "xids": done, "seconds": seconds, "failovers": failovers.count}
            print_json(facts)
        else:
            click.echo(f"{len(done):,} of {len(xids):,} transactions {word}")


def _finish_one(connection: Connection, xid: str, commits: bool) -> None:
    if commits:
        connection.commit_prepared(xid)
    else:
        connection.rollback_prepared(xid)


def _row(prepared: PreparedTransaction) -> tuple[object, ...]:
    until = wall_text(prepared.created_ms + prepared.timeout_ms) if prepared.timeout_ms else "for ever"
    batch = prepared.batch if prepared.owner else ""
    return (
        prepared.xid,
        prepared.owner,
        batch,
        wall_text(prepared.created_ms),
        until,
        _counts(prepared.sends),
        _counts(prepared.acks),
    )


def _counts(queues: Any) -> str:
    return ", ".join(f"{count:,} {name}" for name, count in queues.items()) or "nothing"
