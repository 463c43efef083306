"""Where the keys of a TOML file are written, for errors that name the line: tomllib does not tell."""

from __future__ import annotations

import re


class TomlPlaces:
    """Made in one pass over the lines of `text`, the content of the file `path`."""

    def __init__(self, path: str, text: str) -> None:
        self._path = path
        self._lines: dict[tuple[str, ...], int] = {}
        section: tuple[str, ...] = ()
        for number, line in enumerate(text.split("\n"), start=1):
            stripped = line.strip()
            if stripped.startswith("["):
                section = _dotted(stripped.strip("[").partition("]")[0])
                self._note(section, number)
            elif "=" in stripped:
                self._note((*section, *_dotted(stripped.partition("=")[0])), number)

    def _note(self, keys: tuple[str, ...], number: int) -> None:
        for count in range(1, len(keys) + 1):
            self._lines.setdefault(keys[:count], number)

    def find(self, *keys: str) -> str:
        """`file:line` of a key, or of the inline table that holds it, or only `file`."""
        while keys and keys not in self._lines:
            keys = keys[:-1]
        return f"{self._path}:{self._lines[keys]}" if keys else self._path


_DOTTED = re.compile(r"""\s*("[^"]*"|'[^']*'|[^."']*)\s*(?:\.|$)""")


def _dotted(name: str) -> tuple[str, ...]:
    """The parts of a dotted key, at most as many as there are levels of tables; a part in quotes may hold dots."""
    parts: list[str] = []
    position = 0
    while position < len(name) and len(parts) < 3 and (found := _DOTTED.match(name, position)):
        parts.append(found[1].strip().strip("\"'"))
        position = found.end()
    return tuple(parts)
