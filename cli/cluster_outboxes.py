"""`amq cluster outboxes`: what the masters lead to destinations of other stores, and why it has not left."""

from __future__ import annotations

import time
from collections.abc import Container

import click

from amq.cli import exits
from amq.cli.cluster_options import cluster_option
from amq.cli.management import check_complete, limit_option, show, size, some, texts
from amq.cli.options import valued
from amq.cli.output import duration_text, examples, json_option
from amq.cli.whole import WholeClient
from amq.cluster.alarms import GRACE_S
from amq.management.listing import Row


@click.command(
    epilog=examples(
        "amq cluster outboxes --cluster /mnt/shared/cluster",
        "amq cluster outboxes --cluster /mnt/shared/cluster --store s1 --json",
        "amq cluster outboxes --cluster /mnt/shared/cluster --late 300",
    )
)
@cluster_option
@click.option("--store", metavar="NAME", default="", help="Only the outboxes of that store. Default: of each.")
@valued(
    "--late",
    "late_s",
    type=click.FloatRange(0, 1e9),
    default=GRACE_S,
    help="The command fails where a message has waited for so long.",
)
@limit_option
@json_option
def outboxes(directory: str, store: str, late_s: float, limit: int, as_json: bool) -> None:
    """Show what waits in each store for destinations of other stores: how much, for how long, and why.

    A divert, an expiry queue or a dead-letter queue may lead messages to another store. They wait in an outbox for
    their destination until its home has stored them; the time is that of the oldest one. A message that waits for a
    moment is usual. Where one waits on, its home has no master, has no room for it, or refuses it: the last column
    says so.

    Exit code 0: no message has waited for --late seconds. 1: one has. 6: a store does not answer.
    """
    with WholeClient(directory, store) as client:
        found = some(client, "/outboxes", limit)
        alone = {each.name for each in client.whole.masters.look() if each.master is None} if found else set()
        for row in found:
            if row.get("reason") == "":
                row["reason"] = _unsaid(row["to_store"], alone)
        columns = [
            *texts(("DESTINATION", "name"), ("TO", "to_store"), ("MESSAGES", "messages")),
            ("SIZE", size("bytes")),
            ("WAITS", lambda row: duration_text(waited_s(row)) if row["since_ms"] else ""),
            *texts(("WHY", "reason")),
        ]
        show(lambda: found, columns, as_json, False, limit)
        check_complete(client)
    late = [row["name"] for row in found if row.get("since_ms") and waited_s(row) >= late_s]
    if late:
        exits.fail(f"messages for {', '.join(late[:3])} do not leave: the last column says why", exits.FAILED)


def _unsaid(store: str, alone: Container[str]) -> str:
    """The reason, where the master has heard of none yet."""
    return f"store {store} has no master" if store in alone else "on its way"


def waited_s(row: Row) -> float:
    """How long the oldest message of an outbox waits."""
    return max(0.0, time.time() - float(row["since_ms"]) / 1000)
