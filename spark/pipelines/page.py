"""The page of `audit`: tables and curves in one HTML file that loads nothing. Texts are escaped, whatever they hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

Row = Mapping[str, Any]
CHARTS_MAX = 20  # destinations with their own curves: those with the most messages
WIDTH, HEIGHT, LEFT, BOTTOM = 720, 160, 56, 22  # of a chart and of the room for its numbers, in pixels
COLOURS = {"sent": "#1668b8", "left": "#c2571a"}
STYLE = """
body { font: 14px/1.4 system-ui, sans-serif; margin: 2em auto; max-width: 72em; padding: 0 1em; color: #1c2330 }
table { border-collapse: collapse; margin: 1em 0 } td, th { padding: .25em .7em; border-bottom: 1px solid #d6dae1 }
td { text-align: right } td:first-child, th { text-align: left } figure { margin: 1.5em 0 }
.scroll { overflow-x: auto } svg { max-width: 100%; height: auto } text { font: 11px system-ui, sans-serif; fill: #555 }
"""
# title of a column → key of the row and format
TABLES = {
    "Messages": [
        ("messages", "messages", "count"),
        ("bytes", "bytes", "size"),
        ("first sent", "first_sent", "moment"),
        ("last sent", "last_sent", "moment"),
        ("messages/s", "messages_per_s", "number"),
        ("body p50", "body_bytes_p50", "size"),
        ("p99", "body_bytes_p99", "size"),
        ("max", "body_bytes_max", "size"),
    ],
    "Outcome": [
        ("acknowledged", "acked", "count"),
        ("waiting", "waiting", "count"),
        ("oldest waiting", "oldest", "moment"),
        ("expired", "expired", "count"),
        ("dead-lettered", "dead_lettered", "count"),
        ("purged", "purged", "count"),
        ("prepared", "prepared", "count"),
        ("rolled back", "rolled_back", "count"),
    ],
    "From send to acknowledgement, and back": [
        ("mean s", "wait_s_mean", "number"),
        ("p50 s", "wait_s_p50", "number"),
        ("p95 s", "wait_s_p95", "number"),
        ("p99 s", "wait_s_p99", "number"),
        ("max s", "wait_s_max", "number"),
        ("redelivered", "redelivered", "count"),
        ("redeliveries", "redeliveries", "count"),
        ("failures", "failures", "count"),
    ],
}


def write_page(path: str, store: str, destinations: Sequence[Row], series: Sequence[Row], width_s: int) -> None:
    """Write the page. `audit` makes `destinations` (the most used first) and `series`. Raises OSError."""
    Path(path).write_text("\n".join(_page(store, destinations, series, width_s)) + "\n", encoding="utf-8")


def _page(store: str, destinations: Sequence[Row], series: Sequence[Row], width_s: int) -> Sequence[str]:
    title = escape(f"Audit of {store}")
    messages = sum(row["messages"] for row in destinations)
    parts = [
        f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>{title}</title><style>{STYLE}</style>',
        f"<h1>{title}</h1><p>{messages:,} messages of {len(destinations):,} destinations. Moments are UTC; "
        "acknowledgements are timed by the second.</p>",
    ]
    for name, columns in TABLES.items():
        parts += [f"<h2>{name}</h2>", _table(destinations, columns)]
    parts.append(f"<h2>Over time</h2><p>A point is {width_s:,} s.</p>")
    for row in destinations[:CHARTS_MAX]:
        points = [point for point in series if point["destination"] == row["destination"]]
        parts.append(f"<h3>{escape(row['destination'])}</h3>{chart(points, width_s)}")
    if len(destinations) > CHARTS_MAX:
        parts.append(f"<p>And {len(destinations) - CHARTS_MAX:,} more: their figures are in <code>series</code>.</p>")
    return parts


def _table(rows: Sequence[Row], columns: Sequence[tuple[str, str, str]]) -> str:
    head = "".join(f"<th>{title}</th>" for title in ("destination", *(title for title, _, _ in columns)))
    lines = [
        "<tr>"
        + f"<td>{escape(row['destination'])}</td>"
        + "".join(f"<td>{_text(row[key], kind)}</td>" for _, key, kind in columns)
        + "</tr>"
        for row in rows
    ]
    return f'<div class="scroll"><table><tr>{head}</tr>\n' + "\n".join(lines) + "</table></div>"


def _text(value: Any, kind: str) -> str:
    if value is None:
        return ""
    if kind == "moment":
        return f"{value.astimezone(UTC):%Y-%m-%d %H:%M:%S}"
    if kind == "size":
        for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
            if value >= factor:
                return f"{value / factor:.1f} {unit}"
        return f"{value:,} B"
    return f"{value:,}" if kind == "count" else f"{value:,.1f}"


def chart(points: Sequence[Row], width_s: int) -> str:
    """Messages sent and left per second, as an SVG. `points` are sorted by `second`; a missing one means 0."""
    if not points:
        return ""
    first, last = int(points[0]["second"]), int(points[-1]["second"])
    found = {point["second"]: point for point in points}
    seconds = range(first, last + 1, width_s)
    lines: dict[str, list[float]] = {"sent": [], "left": []}
    for second in seconds:
        point = found.get(second, {})
        for name, values in lines.items():
            values.append(point.get(f"{name}_messages", 0) / width_s)
    top: float = max(max(values) for values in lines.values())
    span = max(last - first, 1)

    def x(second: int) -> float:
        return LEFT + (second - first) / span * (WIDTH - LEFT - 8)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - value / (top or 1) * (HEIGHT - BOTTOM - 16)

    drawn = []
    for index, (name, values) in enumerate(lines.items()):
        path = " ".join(f"{x(second):.1f},{y(value):.1f}" for second, value in zip(seconds, values, strict=True))
        colour = COLOURS[name]
        if len(values) == 1:
            drawn.append(f'<circle cx="{x(first):.1f}" cy="{y(values[0]):.1f}" r="3" fill="{colour}"/>')
        drawn.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        drawn.append(f'<text x="{LEFT + 8 + 70 * index}" y="11" style="fill:{colour}">{name}</text>')
    bottom = HEIGHT - BOTTOM
    axes = (
        f'<path d="M{LEFT} 12V{bottom}H{WIDTH - 8}" fill="none" stroke="#9aa3b0"/>'
        f'<text x="{LEFT - 6}" y="20" text-anchor="end">{top:,.1f}/s</text>'
        f'<text x="{LEFT - 6}" y="{bottom}" text-anchor="end">0</text>'
        f'<text x="{LEFT}" y="{HEIGHT - 6}">{_moment(first)}</text>'
        f'<text x="{WIDTH - 8}" y="{HEIGHT - 6}" text-anchor="end">{_moment(last + width_s)}</text>'
    )
    return f'<figure><svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}">{axes}{"".join(drawn)}</svg></figure>'


def _moment(second: int) -> str:
    return f"{datetime.fromtimestamp(second, UTC):%Y-%m-%d %H:%M:%S}"
