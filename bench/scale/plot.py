"""Draws the points of bench.scale.points as curves against the backlog, both axes logarithmic: linear cost is a
straight line, what must not grow is a flat one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench.brokers import BrokerProcessError

Value = Callable[[dict[str, Any]], float]


class PlotError(BrokerProcessError):
    """The library that draws is not installed."""


class Panel(NamedTuple):
    """One diagram: title with unit, label → value of a point (a KeyError = not measured), what is promised."""

    title: str
    curves: dict[str, Value]
    promised: float | None = None


PANELS = (
    Panel("messages/s", {"send": lambda point: point["send_per_s"], "drain": lambda point: point["drain_per_s"]}),
    Panel(
        "resident memory, MB",
        {
            "master": lambda point: point["memory"]["master"]["rss_bytes"] / 1e6,
            "slave": lambda point: point["memory"]["slave"]["rss_bytes"] / 1e6,
            "master after takeover": lambda point: point["memory"]["after takeover"]["rss_bytes"] / 1e6,
        },
        1200.0,
    ),
    Panel("kill -9 to first message, s", {"takeover": lambda point: point["takeover_s"]["median"]}, 1.0),
    Panel(
        "start of a process to first message, s",
        {
            "journal in the page cache": lambda point: point["warm_start_s"]["median"],
            "not in it": lambda point: point["cold_start_s"]["median"],
        },
        10.0,
    ),
)


def require() -> None:
    """Raise PlotError where matplotlib is missing: before an hour of measuring, not after it."""
    try:
        import matplotlib  # noqa: F401  # an extra: only this row needs it
    except ImportError as error:
        raise PlotError(f"the plot needs matplotlib ({error}): pip install -e '.[bench]'") from error


def series(curve: Value, points: Sequence[dict[str, Any]]) -> list[tuple[int, float]]:
    """(messages, value) of the points that have it, by messages."""
    found = []
    for point in sorted(points, key=lambda point: int(point["messages"])):
        try:
            found.append((point["messages"], curve(point)))
        except KeyError:
            continue  # not measured at this point
    return found


def draw(points: Sequence[dict[str, Any]], path: Path) -> None:
    """Write the PNG. `points` as `points.measure` returns them."""
    require()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 8), layout="constrained")
    for axes, panel in zip(figure.subplots(2, 2).flat, PANELS, strict=True):
        for label, curve in panel.curves.items():
            if found := series(curve, points):
                axes.plot(*zip(*found, strict=True), marker="o", label=label)
        if panel.promised is not None:
            axes.axhline(panel.promised, linestyle="--", color="grey", label="promised: at most")
        axes.set(xscale="log", yscale="log", xlabel="messages of 1 KiB that wait", title=panel.title)
        axes.grid(which="both", alpha=0.3)
        axes.legend()
    figure.savefig(path, dpi=110)
