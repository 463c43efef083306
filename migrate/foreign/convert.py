"""Values as ActiveMQ and Artemis write them → values as our options take them; ValueError says what is wrong."""

from __future__ import annotations

import re

from amq.config.patterns import TEXT_CHARS_MAX, parse_pattern
from amq.core.destination import ANY_REST, ANY_WORD
from amq.core.units import DECIMALS_MAX

_SIZE = re.compile(r"\s*([0-9]{1,15})\s*([kmgt]?)(?:i?b)?\s*", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}
_WORDS = {"true": True, "false": False}


def size(text: str) -> int:
    """`64 mb`, `10M`, `1gib`, `10485760`: bytes. Both brokers count in powers of 1024, whatever the letters."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError("is not a size such as 64mb")
    return int(match[1]) << 10 * _POWERS[match[2].lower()]


def milliseconds(text: str) -> int:
    """A whole number of milliseconds."""
    return integer(text)


def seconds(text: str) -> int:
    """A whole number of seconds, as milliseconds."""
    return integer(text) * 1000


def integer(text: str) -> int:
    if not re.fullmatch(r"-?[0-9]{1,18}", text):
        raise ValueError("is not a whole number")
    return int(text)


def factor(text: str) -> float:
    """`2`, `2.0` or `1.5`."""
    if not re.fullmatch(r"[0-9]{1,6}(?:\.[0-9]{1,18})?", text):
        raise ValueError("is not a number")
    return round(float(text), DECIMALS_MAX)


def boolean(text: str) -> bool:
    if text.lower() not in _WORDS:
        raise ValueError("is neither true nor false")
    return _WORDS[text.lower()]


def queue_name(text: str) -> str:
    """The name of one queue."""
    text = re.sub(r"^(?:queue://|jms\.queue\.)", "", text)
    parse_pattern(text[: TEXT_CHARS_MAX + 1])
    if any(character in text for character in "*>,#"):
        raise ValueError("is not the name of one queue")
    return text


def covers(wide: str, narrow: str) -> bool:
    """Does `wide` stand for every name for which `narrow` does, and is it another pattern?"""
    if wide == narrow:
        return False
    words, others = parse_pattern(wide or ">"), parse_pattern(narrow or ">")
    if words[-1] == ANY_REST:
        words, others = words[:-1], others[: len(words) - 1]
    elif others[-1] == ANY_REST:
        return False
    return len(words) == len(others) and all(
        word == other or (word == ANY_WORD and other != ANY_REST) for word, other in zip(words, others, strict=True)
    )
