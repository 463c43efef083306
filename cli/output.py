"""How commands print: JSON for scripts, tables for people. rich is imported only where it draws."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from amq.cli.text import raw, visible

if TYPE_CHECKING:
    from rich.console import Console

PIPE_COLUMNS = 1000
SENTENCE_COLUMNS_MIN = 24  # a sentence in a table is not folded into less
WALL_MS_END = 253_402_300_800_000  # what comes then has no date in Python; a timeout may be as long as that
_SIZES = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))

json_option = click.option("--json", "as_json", is_flag=True, help="JSON on stdout, for scripts.")


def examples(*lines: str) -> str:
    """A paragraph of `--help` whose lines click keeps."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def print_json(value: Any, indent: int | None = 2) -> None:
    """ASCII alone: the same whatever the locale, and for names of files that are no text."""
    click.echo(json.dumps(value, indent=indent))


def facts(item: Any, **renamed: str) -> dict[str, Any]:
    """The fields of a dataclass for JSON, some under another name; "" = left out."""
    named = ((renamed.get(each.name, each.name), getattr(item, each.name)) for each in fields(item))
    return {name: value for name, value in named if name}


def console(stderr: bool = False) -> Console:
    """Wraps lines at the width of the terminal; into a file or a pipe it writes them whole. It draws, so texts of
    others must be `visible` before they come here."""
    from rich.console import Console

    stream = raw(sys.stderr if stderr else sys.stdout)
    return Console(file=stream, highlight=False, width=None if stream.isatty() else PIPE_COLUMNS)


def print_table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A table on stdout, numbers to the right.

    No word is ever broken: an id must survive copy and paste. On a terminal that is too narrow, sentences (the last
    column, where it has blanks) go on in the next line; if that is not enough, each row becomes a block of lines
    `name: value`.
    """
    from rich.cells import cell_len
    from rich.measure import Measurement
    from rich.table import Table
    from rich.text import Text

    output = console()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, name in enumerate(header):
        numbers = bool(rows) and all(isinstance(row[index], int | float) for row in rows)
        cells = [name, *(_cell(row[index]) for row in rows)]
        wraps = index == len(header) - 1 and any(" " in cell for cell in cells[1:])
        columns = max(map(cell_len, cells))
        table.add_column(
            name,
            justify="right" if numbers else "left",
            no_wrap=not wraps,
            min_width=min(columns, SENTENCE_COLUMNS_MIN) if wraps else columns,
        )
    for row in rows:
        table.add_row(*(Text(_cell(value)) for value in row))
    if Measurement.get(output, output.options.update(width=PIPE_COLUMNS), table).minimum <= output.width:
        output.print(table)
        return
    name_columns = max(map(len, header)) + 1
    for number, row in enumerate(rows):
        if number:
            click.echo()
        for name, value in zip(header, row, strict=True):
            click.echo(f"{name + ':' if name else '':{name_columns}} {_cell(value)}".rstrip())


def print_listing(
    found: Sequence[dict[str, Any]],
    limit: int,
    as_json: bool,
    header: Sequence[str],
    cells: Callable[[dict[str, Any]], Sequence[object]],
) -> None:
    """The first `limit` of `found`, as JSON or as a table with the `cells` of each; says so where there are more."""
    rows = found[:limit]
    if as_json:
        print_json(rows)
        return
    print_table(header, [cells(row) for row in rows])
    if len(found) > limit:
        click.echo(f"and more: these are the first {limit}, see --limit", err=True)


def counted(number: int, noun: str) -> str:
    """`1 message`, `2,000 messages`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _cell(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else visible(str(value))


def size_text(size_bytes: int) -> str:
    """`1536` → `1.5 KiB`."""
    for name, factor in _SIZES:
        if size_bytes >= factor:
            return f"{size_bytes / factor:.1f} {name}"
    return f"{size_bytes} B"


def reading_text(reading: Mapping[str, Any]) -> str:
    """How far a broker is that reads the journal: `43 % (4.3 GiB of 10.0 GiB), about 12 s left`."""
    done, total = int(reading["read_bytes"]), max(1, int(reading["of_bytes"]))
    left = duration_text(float(reading["left_s"]))
    return f"{min(100, 100 * done // total)} % ({size_text(done)} of {size_text(total)}), about {left} left"


def wall_text(wall_ms: int) -> str:
    """Milliseconds since 1970 → `2026-11-21 02:16:03 UTC`."""
    if wall_ms >= WALL_MS_END:
        return "after the year 9999"
    return f"{datetime.fromtimestamp(wall_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def duration_text(seconds: float) -> str:
    """`93784` → `1 d 2 h`, `75` → `1 min 15 s`, `0.25` → `0.250 s`."""
    if seconds < 60:
        return f"{seconds:.3f} s" if seconds < 10 else f"{seconds:.0f} s"
    whole = int(seconds)
    parts = ((whole // 86400, "d"), (whole // 3600 % 24, "h"), (whole // 60 % 60, "min"), (whole % 60, "s"))
    first = next(index for index, (number, _) in enumerate(parts) if number)
    return " ".join(f"{number} {unit}" for number, unit in parts[first : first + 2] if number)


def is_terminal() -> bool:
    """Is somebody watching? Progress goes to stderr."""
    return sys.stderr.isatty()
