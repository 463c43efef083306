"""The pictures of the documents, in docs/pictures: the demo as it runs, and measured figures as curves and bars.

The demo is played and recorded frame by frame. The others are drawn from docs/pictures/figures.json, which says when
and where each figure was measured. Every picture is an SVG of at most 60 KiB that loads nothing.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import sys
import tempfile
import time
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.segment import Segment
from rich.style import Style

from amq.cli import demo, demo_view
from amq.cli.demo_view import Picture, PlainView

PICTURES = Path(__file__).resolve().parent.parent / "docs" / "pictures"
BYTES_MAX = 60 << 10
COLUMNS = 96
EVENTS_SHOWN = 9
FRAMES_MAX = 36
LAST_FRAME_S = 6.0
LINE_PX, CHAR_PX, MARGIN_PX = 18, 7.8, 14
INK, PAPER, DIM = "#d6dbe1", "#14181d", "#7d8894"
COLOURS = {"green": "#4ec96a", "cyan": "#54c7d6", "red": "#ff6b60", "yellow": "#e3b341", "magenta": "#bf7fff"}
Line = tuple[tuple[str, str], ...]  # (text, colour)


@dataclass
class Screen:
    """What the terminal shows from `at_s` on."""

    at_s: float
    lines: list[Line]


@dataclass
class Recorder(PlainView):
    """A view that keeps what a terminal would show: the last events above the table of brokers and the bar."""

    began: float = field(default_factory=time.monotonic)
    events: list[Line] = field(default_factory=list)
    frames: list[Screen] = field(default_factory=list)

    def event(self, text: str) -> None:
        self.events.append(((f"{time.monotonic() - self.began:7.3f} s  ", DIM), (text, INK)))

    def show(self, picture: Picture) -> None:
        at_s = time.monotonic() - self.began
        if not self.frames or at_s - self.frames[-1].at_s > demo_view.REFRESH_S:
            lines = [*self.events[-EVENTS_SHOWN:], *rendered(demo_view._draw(picture))]
            self.frames.append(Screen(at_s, lines))


def rendered(drawing: Any) -> list[Line]:
    """What rich makes of `drawing` on a terminal of COLUMNS, line by line."""
    console = Console(file=io.StringIO(), force_terminal=True, width=COLUMNS, color_system="standard")
    return [
        tuple((segment.text, colour(segment.style)) for segment in merged(line))
        for line in console.render_lines(drawing, pad=False)
    ]


def merged(line: list[Segment]) -> list[Segment]:
    return list(Segment.simplify(Segment.strip_links(line)))


def colour(style: Style | None) -> str:
    if style is None or style.color is None:
        return INK
    name = style.color.name.removeprefix("bright_")
    return DIM if name.startswith("grey") or style.dim else COLOURS.get(name, INK)


def play() -> str:
    """Run the demo with its defaults; the recording as an SVG that repeats."""
    view = Recorder()
    with tempfile.TemporaryDirectory(prefix="amq-pictures-") as directory:
        view.event("$ make demo")
        text = demo._make_text(os.path.join(directory, "input.txt"))
        run = demo._Demo(directory, os.path.join(directory, "store"), text, 3, 3, view)
        try:
            verdict = run.run()
        finally:
            run.end()
    for good, sentence in verdict.sentences():
        view.events.append(((f"{'✔' if good else '✘'} {sentence}", COLOURS["green" if good else "red"]),))
    end = Screen(time.monotonic() - view.began, view.events[-EVENTS_SHOWN - 6 :])
    frames = [*view.frames[:: len(view.frames) // FRAMES_MAX + 1], end]
    return film([Screen(frame.at_s, [hide_directory(line, directory) for line in frame.lines]) for frame in frames])


def hide_directory(line: Line, directory: str) -> Line:
    return tuple((text.replace(directory, "/tmp/amq-demo"), paint) for text, paint in line)


def film(frames: list[Screen]) -> str:
    """Frames as one SVG. Each line that occurs is there once; a viewer that moves nothing shows the last frame."""
    height = max(len(frame.lines) for frame in frames)
    total = frames[-1].at_s + LAST_FRAME_S
    known: dict[Line, str] = {}
    scenes = []
    for number, frame in enumerate(frames):
        last = number == len(frames) - 1
        begin, end = frame.at_s / total, 1.0 if last else frames[number + 1].at_s / total
        times, values = ["0", f"{begin:.4f}", f"{end:.4f}"], ["none", "inline", "none"]
        if number == 0:
            times, values = ["0", f"{end:.4f}"], ["inline", "none"]
        elif last:
            times, values = times[:2], values[:2]
        uses = "".join(
            f'<use href="#{known.setdefault(line, f"l{len(known)}")}" y="{row * LINE_PX}"/>'
            for row, line in enumerate(frame.lines)
            if "".join(text for text, _ in line).strip()
        )
        moves = (
            f'<animate attributeName="display" dur="{total:.1f}s" repeatCount="indefinite" calcMode="discrete" '
            f'keyTimes="{";".join(times)}" values="{";".join(values)}"/>'
        )
        scenes.append(f'<g display="{"inline" if last else "none"}">{moves}{uses}</g>')
    lines = "".join(f'<text id="{name}">{spans(line)}</text>' for line, name in known.items())
    wide, high = int(COLUMNS * CHAR_PX + 2 * MARGIN_PX), height * LINE_PX + 2 * MARGIN_PX
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {wide} {high}" width="{wide}" height="{high}" '
        f'font-family="ui-monospace,Menlo,Consolas,monospace" font-size="13" xml:space="preserve">'
        f'<rect width="100%" height="100%" rx="8" fill="{PAPER}"/><defs>{lines}</defs>'
        f'<g transform="translate({MARGIN_PX} {MARGIN_PX + LINE_PX - 4})">{"".join(scenes)}</g></svg>\n'
    )


def spans(line: Line) -> str:
    return "".join(
        f'<tspan fill="{paint}">{escape(text.rstrip() if number == len(line) - 1 else text)}</tspan>'
        for number, (text, paint) in enumerate(line)
    )


def takeover(figures: dict[str, Any]) -> str:
    """Time from kill -9 to the first message against the backlog, both axes logarithmic."""
    figure, axes = canvas(7.2, 3.4)
    peer = figures["peer"]
    axes.plot(*zip(*figures["points"], strict=True), marker="o", color="#1a7f37", label="amq")
    axes.plot(*zip(*peer["points"], strict=True), marker="s", color="#b35900", linestyle="", label=peer["name"])
    for waiting, seconds in (*figures["points"], *peer["points"]):
        axes.annotate(f"{seconds:g} s", (waiting, seconds), textcoords="offset points", xytext=(0, 8), ha="center")
    axes.set(xscale="log", yscale="log", ylim=(0.01, 30), xlabel="waiting messages", title="kill -9 to first message")
    axes.set_ylabel("seconds")
    axes.xaxis.set_major_formatter(lambda value, _: f"{int(value):,}")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, loc="center right")
    return saved(figure, figures["about"])


def throughput(figures: dict[str, Any]) -> str:
    """The rate of amq as a multiple of the peers' in the same run."""
    figure, axes = canvas(7.2, 3.8)
    rows = figures["rows"]
    for number, (name, paint) in enumerate(zip(figures["peers"], ("#b35900", "#0969da"), strict=True)):
        places = [row + (number - 0.5) * 0.36 for row in range(len(rows))]
        values = [row["times"][number] for row in rows]
        axes.barh(places, values, height=0.34, color=paint, label=f"times the rate of {name}")
        for place, value in zip(places, values, strict=True):
            axes.annotate(f"{value:g} ×", (value, place), textcoords="offset points", xytext=(4, -4))
    axes.axvline(1, color="#333333", linewidth=0.8)
    axes.set_yticks(range(len(rows)), [f"{row['load']}\n{row['rate']}" for row in rows])
    axes.set(xlim=(0, 17.5), title="messages/s of amq beside its peers")
    axes.invert_yaxis()
    axes.legend(frameon=False, loc="lower right")
    return saved(figure, figures["about"])


def canvas(wide: float, high: float) -> tuple[Any, Any]:
    import matplotlib  # the extra `bench`

    matplotlib.use("svg")
    matplotlib.rcParams.update(
        {
            "svg.fonttype": "none",
            "svg.hashsalt": "amq",
            "font.size": 9,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "font.family": "sans-serif",
        }
    )
    from matplotlib import pyplot

    return pyplot.subplots(figsize=(wide, high))


def saved(figure: Any, about: str) -> str:
    figure.text(0.01, 0.01, about, fontsize=7, color="#555555")
    figure.tight_layout(rect=(0, 0.03, 1, 1))
    written = io.StringIO()
    figure.savefig(written, format="svg", metadata={"Date": None})
    return "\n".join(line.rstrip() for line in written.getvalue().splitlines()) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.pictures", description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="of demo, takeover, throughput; default: all")
    args = parser.parse_args()
    figures = json.loads((PICTURES / "figures.json").read_text())
    draw = {
        "demo": play,
        "takeover": lambda: takeover(figures["takeover"]),
        "throughput": lambda: throughput(figures["throughput"]),
    }
    for name in args.names or draw:
        if name not in draw:
            parser.error(f"there is no picture {name}: {', '.join(draw)}")
        text = draw[name]()
        if len(text.encode()) > BYTES_MAX:
            sys.exit(f"{name}.svg would have {len(text.encode()):,} bytes, more than {BYTES_MAX:,}")
        (PICTURES / f"{name}.svg").write_text(text)


if __name__ == "__main__":
    main()
