"""Destinations: `queue://orders.eu`, the full name of one, and patterns that stand for many.

A full name is a value: a kind, and a name in which every character stands for itself. It is kept as one string, since a
string remembers its hash, and each message is looked up by it several times. Only its first `://` has a meaning.
Several destinations are a tuple of full names, and a wildcard is a `Pattern`: a protocol makes both out of its own
notation, and nothing else looks for commas or wildcards in a name. `source` reads the wildcards that STOMP, OpenWire
and the configuration share, and in which durable subscriptions are stored.

A name's words are separated by dots. In a pattern `ANY_WORD` stands for any one word, and a final `ANY_REST` for all
further words, also none; nothing is ever sent to a pattern.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

QUEUE_SCHEME: Final = "queue://"
TOPIC_SCHEME: Final = "topic://"
TEMPORARY_QUEUE_SCHEME: Final = "temp-queue://"
TEMPORARY_TOPIC_SCHEME: Final = "temp-topic://"
WORD_TEXT, REST_TEXT = "*", ">"  # as people write them
# As words of a pattern: no name has them, since a NUL is in no name.
ANY_WORD, ANY_REST = "\0*", "\0>"
NAME_BYTES_MAX: Final = 8192
_BARRED: Final = re.compile("[\\x00-\\x1f\\x7f\\ud800-\\udfff]")
_COMPOSITE: Final = re.compile(r",(?=[a-z-]+://)")


class Pattern(NamedTuple):
    """All destinations of one kind whose names have these words. `scheme` = their kind, as `queue://`."""

    scheme: str
    words: tuple[str, ...]

    def stands_for(self, name: str) -> bool:
        """Is `name`, a full name, one of them?"""
        return name.startswith(self.scheme) and matches(self.words, words_of(name))

    def __str__(self) -> str:
        return self.scheme + ".".join(word.removeprefix("\0") for word in self.words)


Source = str | Pattern  # what a consumer may name: one destination, or many


def plain_name(name: str) -> str:
    """The full name of a destination without its scheme, as users know it."""
    return name.partition("://")[2]


def words_of(name: str) -> list[str]:
    """The words of a destination's full name: the parts between its dots."""
    return plain_name(name).split(".")


def pattern_words(text: str) -> tuple[str, ...]:
    """The words of a pattern, `orders.*`."""
    return tuple("\0" + word if word in (WORD_TEXT, REST_TEXT) else word for word in text.split("."))


def matches(pattern: Sequence[str], name: Sequence[str]) -> bool:
    """Do the words of `pattern` stand for those of `name`?"""
    if pattern[-1] == ANY_REST:
        pattern = pattern[:-1]
        name = name[: len(pattern)]
    return len(pattern) == len(name) and all(p in (ANY_WORD, word) for p, word in zip(pattern, name, strict=True))


def specificity(pattern: Sequence[str]) -> tuple[int, ...]:
    """Sorts the most specific first, among patterns that match one name: the first word that differs decides, a plain
    word before `*`, `*` before `>`. The one rule for options, permissions and everything else that has patterns.
    """
    return tuple({ANY_WORD: 1, ANY_REST: 2}.get(word, 0) for word in pattern)


def artemis_specificity(pattern: Sequence[str]) -> tuple[bool, int, tuple[int, ...], int]:
    """The other rule, which Artemis has for its settings, and 0.1 had for permissions: a name first, a pattern with `*`
    alone, one with a last `>`. Of two with `>` the longer one, else the one with the first `*` further to the right."""
    has_rest = pattern[-1] == ANY_REST
    length = sum(len(word.removeprefix("\0")) + 1 for word in pattern)
    return has_rest, -length if has_rest else 0, specificity(pattern), -len(pattern)


def covers(wide: Sequence[str], narrow: Sequence[str]) -> bool:
    """Does the pattern `wide` match all names that `narrow` matches?"""
    for number, word in enumerate(wide):
        if word == ANY_REST:
            return len(narrow) >= number
        if number >= len(narrow) or narrow[number] == ANY_REST:
            return False
        if word not in (ANY_WORD, narrow[number]):
            return False
    return len(wide) == len(narrow)


def common(one: Sequence[str], other: Sequence[str]) -> tuple[str, ...] | None:
    """The pattern of the names that both patterns match, None = there are none."""
    words: list[str] = []
    for number in range(max(len(one), len(other))):
        left, right = (each[number] if number < len(each) else "" for each in (one, other))
        if left == ANY_REST:
            return (*words, *other[number:])
        if right == ANY_REST:
            return (*words, *one[number:])
        if left != right and (not left or not right or ANY_WORD not in (left, right)):
            return None
        words.append(right if left == ANY_WORD else left)
    return tuple(words)


def source(text: str) -> Source:
    """The destination that `queue://orders` names, or those that `queue://orders.*` does. Several last `>` are one."""
    if WORD_TEXT in text or REST_TEXT in text:
        scheme, separator, name = text.partition("://")
        words = pattern_words(name)
        while words[-2:] == (ANY_REST, ANY_REST):
            words = words[:-1]
        if ANY_WORD in words or ANY_REST in words:
            return Pattern(scheme + separator, words)
    return text


def means(source: Source, name: str) -> bool:
    """Is the destination of the full name `name` the one that `source` names, or one of those?"""
    return source.stands_for(name) if isinstance(source, Pattern) else source == name


def is_of_queues(source: Source) -> bool:
    """One queue, or those of a pattern?"""
    return str(source).startswith(QUEUE_SCHEME)


def is_wildcard(sources: Sequence[Source]) -> bool:
    """Would a subscription to them consume more than one queue, or a queue and something else?"""
    return any(map(is_of_queues, sources)) and (len(sources) > 1 or isinstance(sources[0], Pattern))


def parts(text: str) -> list[str]:
    """The full names in the text that stands for several: `queue://a,topic://b`."""
    return _COMPOSITE.split(text)


def told(several: Iterable[Source]) -> str:
    """Destinations for people, and as text that `parts` reads."""
    return ",".join(map(str, several))


def bars(text: str) -> str:
    """Why no notation of a destination may hold `text`, "" = it may: what all protocols, REST, commands and imports
    refuse in the same way."""
    return "it holds a control character or half of one" if _BARRED.search(text) else ""


def flaw(name: str) -> str:
    """Why `name` is not the full name of one destination, "" = it is. In a protocol's notation a comma separates
    several, and `*` and `>` are words of a pattern: no client could address such a queue."""
    plain = plain_name(name)
    if not plain:
        return "it has no name"
    if "," in plain:
        return "a comma separates several destinations: give one"
    if any(word in (WORD_TEXT, REST_TEXT) for word in plain.split(".")):
        return "* and > mean many destinations: give one"
    if why := bars(plain):
        return why
    return f"it has more than {NAME_BYTES_MAX} bytes" if len(plain.encode()) > NAME_BYTES_MAX else ""


def wire_name(name: str) -> str:
    """The full name as it is in headers: `/queue/orders`, of several `/queue/a,/topic/b`, of a temporary one as
    others than its owner know it."""
    shown = [part.replace("://", "/", 1) for part in parts(name)]
    return ",".join(["/remote-" + part if part.startswith("temp-") else "/" + part for part in shown])
