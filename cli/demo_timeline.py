"""The time line of each store around the kill of a node: which node serves it, and when its clients wait. Drawn as text
and as an SVG.

Pure: what has happened in, a drawing out. All times are seconds since the kill.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

COLUMNS = 40  # of the text
NO_MASTER, KILL = ".", "x"
_WIDTH, _LEFT, _RIGHT, _TOP = 920, 60, 290, 58
_LANE, _BAR, _STRIP = 36, 18, 5  # pixels: of a store, of its master, of its client
_TICKS = 8
_INK, _PAPER, _DIM, _WAIT, _FLOW = "#d6dbe1", "#14181d", "#7d8894", "#ff6b60", "#4ec96a"
_NODES = ("#2f7fb8", "#b8862f", "#7a55b8", "#2f9c86", "#b8557e", "#6d8f2f", "#8a6d5a", "#5a6d8a", "#9c4a2f")


@dataclass(frozen=True, slots=True)
class NodeSpan:
    """`node` serves a store."""

    node: str
    from_s: float
    to_s: float


@dataclass(frozen=True, slots=True)
class StoreLine:
    """`served` in the order of time; `waits` = when its client waited for a confirmation for long."""

    store: str
    served: tuple[NodeSpan, ...]
    waits: tuple[tuple[float, float], ...]

    def node_at(self, at_s: float) -> str:
        """The node that serves it, "" = none."""
        return next((span.node for span in self.served if span.from_s <= at_s < span.to_s), "")

    @property
    def outcome(self) -> str:
        """The kill as this store and its client saw it, in words."""
        longest_s = max((to_s - from_s for from_s, to_s in self.waits if to_s > 0), default=0.0)
        wait = f"its client waited {_told(longest_s)}" if longest_s else "its client did not wait"
        taken = next((span for span in self.served if span.from_s > 0), None)
        return f"{taken.node} after {_told(taken.from_s)}; {wait}" if taken is not None else wait


@dataclass(frozen=True, slots=True)
class TimeLine:
    """The kill of `node`, from `begin_s`, before it, to `end_s`."""

    node: str
    begin_s: float
    end_s: float
    stores: tuple[StoreLine, ...]


def time_line(
    node: str,
    killed_at: float,
    end_at: float,
    before_s: float,
    masters: Sequence[tuple[float, str, str]],
    waits: Mapping[str, Sequence[tuple[float, float]]],
) -> TimeLine:
    """`masters` = (when, store, node) of each that began to serve, and `waits` by store; all with the times of one
    clock, on which `node` was killed at `killed_at`."""
    begin_s, end_s = -before_s, end_at - killed_at
    lines = []
    for store in waits:
        began = sorted((at - killed_at, master) for at, of, master in masters if of == store)
        ends = [at_s for at_s, _ in began[1:]] + [end_s]
        spans = [
            NodeSpan(master, max(at_s, begin_s), min(to_s, 0.0) if master == node and at_s < 0 else to_s)
            for (at_s, master), to_s in zip(began, ends, strict=True)
            if to_s > begin_s
        ]
        shown = [(max(from_at - killed_at, begin_s), min(to_at - killed_at, end_s)) for from_at, to_at in waits[store]]
        lines.append(
            StoreLine(store, tuple(spans), tuple(wait for wait in shown if begin_s < wait[1] and wait[0] < end_s))
        )
    return TimeLine(node, begin_s, end_s, tuple(lines))


def as_text(line: TimeLine) -> list[str]:
    """A row for each store. A column has the sign of the node that serves the store at its middle."""
    column_s = (line.end_s - line.begin_s) / COLUMNS
    nodes = {span.node for each in line.stores for span in each.served} | {line.node}
    sign = {node: node.rpartition("-")[2][-1:] for node in nodes}
    name = max((len(each.store) for each in line.stores), default=0)
    rows = [
        f"who serves each store, one column for {_told(column_s)}: number = node, {KILL} = {line.node} is killed, "
        f"{NO_MASTER} = no master"
    ]
    for each in line.stores:
        middles = [line.begin_s + (column + 0.5) * column_s for column in range(COLUMNS)]
        signs = [sign.get(each.node_at(at_s), NO_MASTER) for at_s in middles]
        if each.node_at(line.begin_s) == line.node:
            signs[min(int(-line.begin_s / column_s), COLUMNS - 1)] = KILL
        rows.append(f"{each.store:>{name}}  {''.join(signs)}  {each.outcome}")
    return rows


def as_svg(lines: Sequence[TimeLine]) -> str:
    """One panel for each kill, below each other. It loads nothing."""
    colours: dict[str, str] = {}
    for node in sorted({span.node for line in lines for each in line.stores for span in each.served}):
        colours[node] = _NODES[len(colours) % len(_NODES)]
    panels, top = [], 0
    for line in lines:
        panels.append(_panel(line, top, colours))
        top += _TOP + _LANE * len(line.stores) + 12
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {top}" font-family="sans-serif" '
        f'font-size="12" role="img"><title>{escape(_title(lines))}</title>'
        f'<rect width="{_WIDTH}" height="{top}" fill="{_PAPER}"/>\n' + "\n".join(panels) + "\n</svg>\n"
    )


def _title(lines: Sequence[TimeLine]) -> str:
    return "A node of a cluster dies: " + "; ".join(
        f"{line.node}: " + ", ".join(f"{each.store}: {each.outcome}" for each in line.stores) for line in lines
    )


def _panel(line: TimeLine, top: int, colours: dict[str, str]) -> str:
    scale = (_WIDTH - _LEFT - _RIGHT) / (line.end_s - line.begin_s)

    def x(at_s: float) -> float:
        return round(_LEFT + (at_s - line.begin_s) * scale, 1)

    bottom = top + _TOP + _LANE * len(line.stores)
    drawn = [
        _text(_LEFT, top + 20, f"kill -9 of {line.node} with all its processes", _INK, size=14),
        *(_tick(x(at_s), top, bottom, f"{at_s:g} s") for at_s in _ticks(line)),
    ]
    for number, each in enumerate(line.stores):
        y = top + _TOP + number * _LANE
        drawn.append(_text(_LEFT - 10, y + 14, each.store, _INK, anchor="end"))
        for span in each.served:
            drawn.append(_rect(x(span.from_s), y, x(span.to_s), _BAR, colours[span.node]))
            drawn.append(_text(x(span.from_s) + 5, y + 13, span.node, "#fff", size=11))
        drawn.append(_rect(x(line.begin_s), y + _BAR + 2, x(line.end_s), _STRIP, _FLOW))
        drawn += [_rect(x(from_s), y + _BAR + 2, x(to_s), _STRIP, _WAIT) for from_s, to_s in each.waits]
        drawn.append(_text(_WIDTH - _RIGHT + 10, y + 14, each.outcome, _DIM, size=11))
    drawn.append(_rect(x(0.0) - 1, top + _TOP - 6, x(0.0) + 1, bottom - top - _TOP, _WAIT))
    return "\n".join(drawn)


def _ticks(line: TimeLine) -> list[float]:
    """Round times, at most `_TICKS` of them."""
    step_s = next(
        step
        for power in range(-3, 7)
        for step in (10.0**power, 2 * 10.0**power, 5 * 10.0**power)
        if (line.end_s - line.begin_s) / step <= _TICKS
    )
    first = -int(-line.begin_s / step_s)
    return [round(number * step_s, 3) for number in range(first, int(line.end_s / step_s) + 1)]


def _tick(x: float, top: int, bottom: int, label: str) -> str:
    line = f'<path d="M{x} {top + _TOP - 8}V{bottom - 6}" stroke="{_DIM}" stroke-opacity=".3"/>'
    return line + _text(x, top + _TOP - 14, label, _DIM, anchor="middle", size=11)


def _rect(from_x: float, y: float, to_x: float, height: float, colour: str) -> str:
    return f'<rect x="{from_x}" y="{y}" width="{max(round(to_x - from_x, 1), 1)}" height="{height}" fill="{colour}"/>'


def _text(x: float, y: float, text: str, colour: str, anchor: str = "start", size: int = 12) -> str:
    return f'<text x="{x}" y="{y}" fill="{colour}" text-anchor="{anchor}" font-size="{size}">{escape(text)}</text>'


def _told(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 1 else f"{seconds:.1f} s"
