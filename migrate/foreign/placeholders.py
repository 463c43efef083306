"""Placeholders in the configuration of another broker: `${activemq.data}`, `${port:61613}`.

A value comes from the properties that the caller gives, else from the environment (`activemq.data` also as
`ACTIVEMQ_DATA`), else it is the text behind the colon. Values are not searched for placeholders again, so nothing grows
without bound.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from amq.config import names

DEFAULTS_MAX = 8  # of defaults that hold placeholders with defaults
TEXT_CHARS_MAX = 4096
_EDGE = re.compile(r"\$\{|\}")


class Placeholders:
    """Fills placeholders in. `properties` win over `env`."""

    def __init__(self, properties: Mapping[str, str], env: Mapping[str, str]) -> None:
        self._properties = properties
        self._env = env

    def fill(self, text: str) -> str:
        """`text` with values. Raises ValueError, which names a placeholder without one and tells the cure."""
        if len(text) > TEXT_CHARS_MAX:
            raise ValueError(f"is longer than {TEXT_CHARS_MAX} characters")
        if "#{" in text:
            raise ValueError("holds an expression (#{…}), which only Java can evaluate: write its value instead")
        return self._fill(text, 0)

    def _fill(self, text: str, depth: int) -> str:
        if depth > DEFAULTS_MAX:
            raise ValueError("has placeholders nested too deeply")
        parts: list[str] = []
        position = 0
        while (start := text.find("${", position)) >= 0:
            end = _end(text, start)
            name, colon, default = text[start + 2 : end].partition(":")
            value = self._find(name.strip())
            if value is None and not colon:
                shown = names.shorten(name.strip())
                raise ValueError(f"needs a value for ${{{shown}}}: give it with --property {shown}=VALUE")
            parts += [text[position:start], self._fill(default, depth + 1) if value is None else value]
            position = end + 1
        return "".join(parts) + text[position:]

    def _find(self, name: str) -> str | None:
        if name in self._properties:
            return self._properties[name]
        variable = re.sub(r"[^A-Za-z0-9]", "_", name)
        return next((self._env[key] for key in (name, variable, variable.upper()) if key in self._env), None)


def _end(text: str, start: int) -> int:
    """Where the placeholder that begins at `start` ends."""
    depth = 0
    for edge in _EDGE.finditer(text, start):
        depth += 1 if edge[0] == "${" else -1
        if not depth:
            return edge.start()
    raise ValueError(f'holds "{names.shorten(text[start:])}", a placeholder without its end "}}"')
