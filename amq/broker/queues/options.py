"""The options of a subscription, as text."""

from __future__ import annotations

import re
from collections.abc import Mapping

from amq.errors import CommandError

_NUMBER = re.compile(r"[+-]?[0-9]{1,9}")


def option_boolean(options: Mapping[str, str], name: str) -> bool:
    """The option `name`, false where there is none. Raises CommandError."""
    text = options.get(name, "false").lower()
    if text not in ("true", "false"):
        raise CommandError(f"{name} {text[:40]!r} is neither true nor false", code="OPTION_INVALID")
    return text == "true"


def option_number(options: Mapping[str, str], name: str, minimum: int, maximum: int) -> int:
    """The option `name`, 0 where there is none. Raises CommandError."""
    text = options.get(name, "0")
    if _NUMBER.fullmatch(text) and minimum <= int(text) <= maximum:
        return int(text)
    raise CommandError(f"{name} {text[:40]!r} is not a number from {minimum} to {maximum}", code="OPTION_INVALID")
