"""Words: values as people read them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

from markupsafe import Markup, escape

WALL_MS_END: Final = 253_402_300_800_000  # what comes then has no date in Python
_SIZES: Final = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))
_SPANS: Final = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def shown(field: str, value: Any) -> str:
    """The value of a field whose name ends with its unit."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return ""
    if field.endswith("_ms"):
        return time_text(value) if isinstance(value, int) else str(value)
    if isinstance(value, int) and field.endswith("bytes"):
        return size_text(value)
    if field.endswith("_per_s") and isinstance(value, int | float):
        return f"{value:,.1f}"
    return f"{value:,}" if isinstance(value, int | float) else str(value)


def time_text(wall_ms: int) -> str:
    """`2026-11-21 02:16:03 UTC`; "" = no time at all."""
    if not 0 < wall_ms < WALL_MS_END:
        return ""
    return f"{datetime.fromtimestamp(wall_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def size_text(size_bytes: int) -> str:
    """`1.5 KiB`"""
    for name, factor in _SIZES:
        if size_bytes >= factor:
            return f"{size_bytes / factor:,.1f} {name}"
    return f"{size_bytes} B"


def span_text(seconds: float) -> str:
    """`1 d 2 h`, `75` → `1 min 15 s`, `0.25` → `0.2 s`."""
    if seconds < 10:
        return f"{max(0.0, seconds):.1f} s"
    parts, left = [], int(seconds)
    for size, unit in _SPANS:
        if left >= size:
            parts.append(f"{left // size} {unit}")
        left %= size
    return " ".join(parts[:2])


def counted(count: int, noun: str) -> str:
    """`1 message`, `2,000 messages`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def breakable(text: str) -> Markup:
    """`text` as HTML that a narrow column breaks after a dot, a slash, a colon or a dash, or before a capital letter,
    rather than in a word."""
    return Markup(
        re.sub(r"(?<=[./:,_-])(?=\w)|(?<=[a-z])(?=[A-Z])", "<wbr>", str(escape(text)))
    )  # an entity ends with a semicolon


def linked(text: str, pages: Mapping[str, str]) -> Markup:
    """`text` as HTML, in which each mention of a page, such as `page Queues`, leads there. `pages` = path by title."""
    titles = "|".join(re.escape(title) for title in sorted(pages, key=len, reverse=True))

    def link(found: re.Match[str]) -> str:
        return f'page <a href="{pages[found[1]]}">{found[1]}</a>'

    return Markup(re.sub(rf"\bpage ({titles})\b", link, str(escape(text))))
