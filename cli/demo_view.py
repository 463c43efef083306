"""The picture of a running demo: live on a terminal, elsewhere a line for each event."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import click

from amq.cli.demo_brokers import DEAD, MASTER, SERVING, SLAVE, DemoProcess
from amq.cli.output import console

REFRESH_S = 0.1
_STYLES = {MASTER: "bold green", SERVING: "bold green", SLAVE: "cyan", DEAD: "bold red"}


@dataclass(slots=True)
class Picture:
    """The content of the picture: brokers or nodes, a progress bar, and notes."""

    brokers: Sequence[DemoProcess]
    total: int
    done: int = 0
    notes: list[str] = field(default_factory=list)
    columns: tuple[str, str] = ("broker", "epoch")  # the titles of `name` and `detail`


class PlainView(AbstractContextManager["PlainView"]):
    """Prints one line for each event, with the seconds since the start; with `quiet` none."""

    def __init__(self, quiet: bool = False) -> None:
        self._quiet = quiet
        self._began = time.monotonic()
        self._broken: BrokenPipeError | None = None

    def event(self, text: str) -> None:
        """Report an event, from any thread. If the reader of the output has gone, `show` raises that later."""
        if not self._quiet and self._broken is None:
            try:
                click.echo(f"{time.monotonic() - self._began:7.3f} s  {text}")
            except BrokenPipeError as error:
                self._broken = error

    def show(self, picture: Picture) -> None:  # noqa: ARG002
        """Draw, from the main thread. Raises BrokenPipeError if nobody reads the output any more."""
        if self._broken is not None:
            raise self._broken

    def __exit__(self, *_: object) -> None:
        return None


class LiveView(PlainView):
    """Events scroll above a table of the brokers and a progress bar."""

    def __init__(self) -> None:
        super().__init__()
        from rich.live import Live

        self._live = Live(console=console(), refresh_per_second=1 / REFRESH_S, transient=True)
        self._live.start()

    def event(self, text: str) -> None:
        from rich.markup import escape

        self._live.console.print(f"[dim]{time.monotonic() - self._began:7.3f} s[/dim]  {escape(text)}")

    def show(self, picture: Picture) -> None:
        self._live.update(_draw(picture))

    def __exit__(self, *_: object) -> None:
        self._live.stop()


def _draw(picture: Picture) -> Any:
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    brokers = Table(box=None, pad_edge=False, header_style="bold")
    for name in (picture.columns[0], "role", picture.columns[1], "address", "pid", "killed"):
        brokers.add_column(name)
    for broker in picture.brokers:
        kills = f"{broker.kills} ×" if broker.kills else ""
        role = Text(broker.role, style=_STYLES.get(broker.role, "yellow"))
        brokers.add_row(broker.name, role, broker.detail, broker.url, str(broker.pid or ""), kills)
    bar = Table.grid()
    bar.add_row(ProgressBar(total=picture.total, completed=picture.done, width=70))
    return Group("", brokers, "", bar, *picture.notes)
