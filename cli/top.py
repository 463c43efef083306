"""`amq top`: a live screen of a group: its master and slaves, rates, and the queues with the most messages.

Invariant: it goes on through a takeover. Each round asks whichever broker is master then; where none answers, the
screen says why.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import click
from rich.cells import cell_len, set_cell_size
from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from amq.cli.management import WATCH_S, broker_options, chosen, open_client
from amq.cli.options import valued
from amq.cli.output import console, examples, json_option, print_json, size_text, wall_text
from amq.cli.store import read_status
from amq.cli.text import visible
from amq.core.errors import AmqError
from amq.management.listing import Row

if TYPE_CHECKING:
    from amq.cli.whole import WholeClient

ROWS = 20
GAP = 2  # columns between two columns of the table
NAME_COLUMNS_MIN = 10
ASK_S = 5.0  # a broker that hangs does not stop the screen for longer
RATED = ("enqueued", "dequeued")
FIGURES = ("messages", "in_flight", "consumers", "connections", "dead_letters")  # of each store of a cluster


@click.command(
    epilog=examples(
        "amq top --store /mnt/shared/amq",
        "amq top --store /mnt/shared/amq --rounds 1 --json",
        "amq top --cluster /mnt/shared/cluster",
    )
)
@valued("--rows", type=click.IntRange(1, 500), default=ROWS, help="Queues to show.")
@click.option(
    "--rounds", metavar="N", type=click.IntRange(min=1), help="End after this many rounds. Default: at Ctrl-C."
)
@valued("--every", type=click.FloatRange(0.1, 3600), default=WATCH_S, help="Time between two rounds.")
@broker_options
@json_option
def top(
    rows: int, rounds: int | None, every: float, store: str, url: str, broker: str, cluster: str, as_json: bool
) -> None:
    """Watch a group: rates, backlog, consumers, roles and lag. The queues with the most messages come first.

    With --cluster: each store with its node, and the fullest queues of all of them.

    The screen goes on through a takeover. --json writes one object for each round, on a separate line.
    """
    store, url, cluster = chosen(store, url, cluster)
    if cluster and broker:
        raise click.UsageError("--cluster asks the masters: give no --name")
    before: dict[str, Any] | None = None
    number = 0
    output = console()
    redraws = not as_json and output.is_terminal and not output.is_dumb_terminal
    with ExitStack() as stack:
        live = stack.enter_context(Live(console=output, screen=True, auto_refresh=False)) if redraws else None
        client = stack.enter_context(_whole(store, cluster)) if cluster else None
        while rounds is None or number < rounds:
            if number:
                time.sleep(every)
            number += 1
            seen = _look(rows, store, url, broker) if client is None else _look_at_all(rows, client)
            seen["queues"] = _with_rates(seen, before)
            before = seen
            if as_json:
                print_json(seen, None)
            elif live is not None:
                live.update(drawn(seen, output.width), refresh=True)
            else:
                output.print(drawn(seen, output.width))


def _look(rows: int, store: str, url: str, broker: str) -> dict[str, Any]:
    """One round. `error` = why it found no more."""
    found: dict[str, Any] = {"at_s": time.monotonic(), "error": "", "group": [], "broker": {}, "queues": []}
    try:
        if store:
            found["group"] = _group(store)
        with open_client(store, url, broker, ASK_S) as client:
            found["broker"] = client.get("/broker")
            if found["broker"]["role"] == "master":
                found["broker"] |= client.get("/totals")
                found["queues"] = client.get("/queues", sort="-messages", limit=rows)["items"]
    except AmqError as error:
        found["error"] = error.description
    return found


def _whole(store: str, cluster: str) -> WholeClient:
    from amq.cli.whole import WholeClient

    return WholeClient(cluster, store, ASK_S, ASK_S)


def _look_at_all(rows: int, client: WholeClient) -> dict[str, Any]:
    """One round, of a cluster. A store that does not answer has the reason in its row."""
    found: dict[str, Any] = {"at_s": time.monotonic(), "error": "", "stores": [], "broker": {}, "queues": []}
    try:
        stores = client.whole.ask("GET", "/stores")["items"]
        totals = client.get("/totals")
        known = {each["store"]: each for each in totals.get("stores", [totals])}
        missing = {each["store"]: each["detail"] for each in client.missing}
        for each in stores:
            figures = known.get(each["name"], {})
            row = {"store": each["name"], "node": each["node"], "error": missing.get(each["name"], each["reason"])}
            found["stores"].append(row | {name: figures.get(name) for name in FIGURES})
        found["queues"] = client.get("/queues", sort="-messages", limit=rows)["items"]
    except AmqError as error:
        found["error"] = error.description
    return found


def _group(store: str) -> list[dict[str, Any]]:
    seen = read_status(store)
    return [
        {
            "name": each.name,
            "role": each.role,
            "host": each.owner.host if each.owner is not None else "",
            "not_ready": each.not_ready if each.role == "slave" else "",
            "followed": each.details.get("followed"),
        }
        for each in seen.brokers
    ]


def _with_rates(now: Mapping[str, Any], before: Mapping[str, Any] | None) -> list[Row]:
    """The queues with `enqueued_per_s` and `dequeued_per_s`: None where nothing is known yet, or the master is another
    one."""
    earlier = {_id(row): row for row in before["queues"]} if before is not None else {}
    same = before is not None and before["broker"].get("epoch") == now["broker"].get("epoch")
    seconds = now["at_s"] - before["at_s"] if before is not None else 0.0
    rows: list[Row] = []
    for row in now["queues"]:
        old = earlier.get(_id(row)) if same and seconds > 0 else None
        rates = {f"{name}_per_s": round((row[name] - old[name]) / seconds, 1) if old else None for name in RATED}
        rows.append({**row, **rates})
    return rows


def _id(row: Row) -> tuple[str, str, str]:
    """Of a queue; another master counts anew."""
    return row["name"], row.get("store", ""), row.get("node", "")


def drawn(seen: Mapping[str, Any], columns: int) -> Group:
    """The screen, this many columns wide. A name that is too long is cut: `amq queues` shows it whole."""
    parts: list[Any] = []
    if seen.get("stores"):
        parts += [_stores(seen["stores"]), Text("")]
    elif seen.get("group"):
        members = Table(box=None, pad_edge=False, header_style="bold")
        for title in ("BROKER", "ROLE", "HOST", "STATE"):
            members.add_column(title, no_wrap=True)
        for each in seen["group"]:
            members.add_row(*map(Text, map(visible, (each["name"], each["role"], each["host"], _state(each)))))
        parts += [members, Text("")]
    if seen["broker"] or seen["error"]:
        parts += [Text(visible(_headline(seen))), Text("")]
    titles: Sequence[str] = ("QUEUE", "MESSAGES", "IN/S", "OUT/S", "CONSUMERS", "IN FLIGHT", "STATE")
    if "stores" in seen:
        titles = (*titles, "STORE", "NODE")
    cells = [titles, *(_cells(row) for row in seen["queues"])]
    widths = [max(cell_len(each[at]) for each in cells) for at in range(len(titles))]
    room = max(NAME_COLUMNS_MIN, columns - sum(widths[1:]) - GAP * (len(titles) - 1))
    queues = Table(box=None, pad_edge=False, header_style="bold", padding=(0, GAP, 0, 0))
    for title in titles:
        queues.add_column(
            title, justify="left" if title in ("QUEUE", "STATE", "STORE", "NODE") else "right", no_wrap=True
        )
    for name, *figures in cells[1:]:
        shown = name if cell_len(name) <= room else set_cell_size(name, room - 1) + "…"
        queues.add_row(*map(Text, (shown, *figures)))
    return Group(*parts, queues)


def _cells(row: Row) -> Sequence[str]:
    state = "paused" if row["paused"] else "no consumer" if row["messages"] and not row["consumers"] else ""
    return [
        visible(row["name"]),
        f"{row['messages']:,}",
        _rate(row["enqueued_per_s"]),
        _rate(row["dequeued_per_s"]),
        f"{row['consumers']:,}",
        f"{row['in_flight']:,}",
        state,
        *([visible(row["store"]), visible(row["node"])] if "node" in row else []),
    ]


def _stores(rows: Sequence[Row]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("STORE", "NODE"):
        table.add_column(title, no_wrap=True)
    for title in (*(name.replace("_", " ").upper() for name in FIGURES), "STATE"):
        table.add_column(title, justify="left" if title == "STATE" else "right", no_wrap=True)
    for row in rows:
        figures = ["-" if row[name] is None else f"{row[name]:,}" for name in FIGURES]
        table.add_row(
            *map(Text, (visible(row["store"]), row["node"] or "-", *figures, visible(row["error"] or "serves")))
        )
    return table


def _state(each: Mapping[str, Any]) -> str:
    if each["role"] == "master":
        return "serves"
    if each["not_ready"]:
        return str(each["not_ready"])
    followed = each["followed"] or {}
    caught_up_ms = followed.get("caught_up_wall_ms", 0)
    return f"ready, followed to {wall_text(caught_up_ms)}" if caught_up_ms else "ready"


def _headline(seen: Mapping[str, Any]) -> str:
    found = seen["broker"]
    if seen["error"]:
        return str(seen["error"])
    if found["role"] != "master":
        return f"{found['name']} is {found['role']}"
    return (
        f"{found['name']}: epoch {found['epoch']}, {found['connections']:,} connections, {found['queues']:,} queues, "
        f"memory {size_text(found['memory_used_bytes'])} of {size_text(found['memory_limit_bytes'])}, "
        f"store {size_text(found['store_used_bytes'])}"
    )


def _rate(value: float | None) -> str:
    return "" if value is None else f"{value:,.1f}"
