"""Finding an option by what a user wrote, and saying what was probably meant when there is none."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from amq.config.option import SECTIONS, Option
from amq.config.schema import BY_KEY, OPTIONS

_WRITTEN_CHARS_MAX = 80  # of a name repeated in a message, or compared


def find(name: str) -> Option | None:
    """The option called exactly `key` or `section.key`."""
    section, dot, key = name.rpartition(".")
    made = BY_KEY.get(key)
    return made if made is not None and (not dot or made.section == section) else None


def nearest(name: str) -> Option | None:
    """The option that `name` probably means: another spelling, another broker's word, a slip of the finger."""
    plain = _plain(name)
    meant = {_plain(word): made for made in OPTIONS for word in (made.key, made.attribute, *made.elsewhere)}
    if plain in meant:
        return meant[plain]
    last = _plain(name.rpartition(".")[2])
    for candidate in (plain, last):
        close = difflib.get_close_matches(candidate, meant, n=1, cutoff=0.7)
        if close:
            return meant[close[0]]
    return None


def unknown(name: str) -> str:
    """Why `name` is not an option and what to write instead."""
    shown = shorten(name)
    made = nearest(name)
    if made is None:
        return f"{shown}: there is no such option; `amq config show` lists them all"
    return f"{shown}: there is no such option; did you mean {made.key} in section [{made.section}]?"


def unknown_section(name: str) -> str:
    """Why `name` is not a section and what to write instead."""
    shown, made = shorten(name), nearest(name)
    close = difflib.get_close_matches(_plain(name), SECTIONS, n=1, cutoff=0.7)
    if made is not None and (_plain(made.key) == _plain(name) or not close):
        return f"[{shown}]: there is no such section; {made.key} is an option of section [{made.section}]"
    hint = f"did you mean [{close[0]}]?" if close else f"the sections are {_brackets(SECTIONS)}"
    return f"[{shown}]: there is no such section; {hint}"


def shorten(text: str) -> str:
    """`text` fit for one line of an error message."""
    text = text if text.isprintable() else ascii(text)[1:-1]
    return text if len(text) <= _WRITTEN_CHARS_MAX else f"{text[: _WRITTEN_CHARS_MAX - 1]}…"


def _brackets(names: Iterable[str]) -> str:
    return ", ".join(f"[{name}]" for name in names)


def _plain(name: str) -> str:
    return name[:_WRITTEN_CHARS_MAX].lower().replace("_", "").replace("-", "")
