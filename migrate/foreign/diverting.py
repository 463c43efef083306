"""Diverts of other brokers, and composite destinations of ActiveMQ → the option `divert`.

There all diverts whose pattern stands for a destination take its messages. Here the most specific pattern that sets
`divert` counts alone, so a pattern gets the diverts of wider ones, too. A diverted message is not diverted again.
"""

from __future__ import annotations

from dataclasses import dataclass

from amq.config.diverts import Divert, diverts_text
from amq.config.patterns import parse_pattern
from amq.core.destination import ANY_REST, ANY_WORD, matches, plain_name
from amq_migrate.foreign.convert import covers
from amq_migrate.foreign.importing import FilePart, Importing, shown
from amq_migrate.foreign.report import Status

REPORTED_MAX = 100  # pairs of patterns: more say nothing new


@dataclass(frozen=True, slots=True)
class _Found:
    part: FilePart
    pattern: str
    divert: Divert
    told: str


class Diverts:
    """Gathers the diverts of one file."""

    def __init__(self) -> None:
        self._found: list[_Found] = []

    def add(self, part: FilePart, pattern: str, divert: Divert, told: str = "") -> None:
        """Messages sent to `pattern` ("" = all) are diverted."""
        self._found.append(_Found(part, pattern, divert, told))

    def finish(self, importing: Importing) -> None:
        """Set the option for all patterns, and report each part."""
        patterns = dict.fromkeys(each.pattern for each in self._found)
        for pattern in patterns:
            own = [each for each in self._found if each.pattern == pattern]
            wider = [each for each in self._found if covers(each.pattern, pattern)]
            text = diverts_text(tuple(dict.fromkeys(each.divert for each in (*own, *wider))))
            first, *others = own
            if not importing.set(first.part, "divert", text, first.told, pattern=pattern):
                for each in others:
                    each.part.tell(Status.UNSUPPORTED, f"see line {first.part.line}: its diverts are not set")
                continue
            for each in others:
                each.part.tell(Status.CARRIED, each.told, shown(pattern, "divert", text))
        self._report_chains()
        self._report_overlaps(list(patterns))

    def _report_chains(self) -> None:
        """A target that is diverted itself."""
        for each in self._found[:REPORTED_MAX]:
            kind, words = each.divert.target.partition("://")[0], plain_name(each.divert.target).split(".")
            again = next(
                (
                    other
                    for other in self._found
                    if other.pattern != each.pattern
                    and other.divert.source in ("", kind)
                    and matches(parse_pattern(other.pattern or ">"), words)
                ),
                None,
            )
            if again is not None:
                each.part.tell(
                    Status.UNSUPPORTED,
                    f"amq diverts a message once: what goes to {each.divert.target} is not diverted as line "
                    f"{again.part.line} says; set its target as a target of this one, too",
                )

    def _report_overlaps(self, patterns: list[str]) -> None:
        """Two patterns that share names, and of which neither is the wider one."""
        for number, pattern in enumerate(patterns[:REPORTED_MAX]):
            for other in patterns[:number]:
                if covers(pattern, other) or covers(other, pattern) or not _share(pattern, other):
                    continue
                part = next(each.part for each in self._found if each.pattern == pattern)
                part.tell(
                    Status.UNSUPPORTED,
                    f'names for which both "{pattern}" and "{other}" stand have the diverts of the more specific one '
                    "only: set divert for these names by hand",
                )


def _share(one: str, other: str) -> bool:
    """Is there a name for which both stand?"""
    words, others = parse_pattern(one or ">"), parse_pattern(other or ">")
    rest, other_rest = words[-1] == ANY_REST, others[-1] == ANY_REST
    words, others = words[: len(words) - rest], others[: len(others) - other_rest]
    if not (rest or other_rest) and len(words) != len(others):
        return False
    if (len(words) > len(others) and not other_rest) or (len(others) > len(words) and not rest):
        return False
    return all(word == each or ANY_WORD in (word, each) for word, each in zip(words, others, strict=False))
