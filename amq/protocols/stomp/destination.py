"""How destinations are written in STOMP: `/queue/orders` on the wire ↔ the full name `queue://orders` inside.

Invariant: `full_name(wire_name(n)) == n` for every full name n that `full_name` can yield.
"""

from __future__ import annotations

import re
from typing import Final

from amq.errors import ProtocolError

_PREFIXES: Final = (
    ("/queue/", "queue://"),
    ("queue://", "queue://"),
    ("/topic/", "topic://"),
    ("topic://", "topic://"),
)
_TEMPORARY: Final = re.compile(r"/(remote-)?temp-(queue|topic)/|temp-(queue|topic)://")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")


def full_name(text: str) -> str:
    """The full name of a destination as a client wrote it; a name without a prefix is a queue. Of a composite one,
    with commas, each part may have a prefix; one without is of the kind of the part before.

    ProtocolError: empty or temporary destinations, control characters.
    """
    if _CONTROL.search(text):
        raise _invalid(text, "it holds a control character")
    scheme, parts = "queue://", []
    for part in text.split(","):
        if _TEMPORARY.match(part):
            raise _invalid(text, "temporary destinations are not supported: use a named queue for replies")
        name = part
        for prefix, its_scheme in _PREFIXES:
            if part.startswith(prefix):
                scheme, name = its_scheme, part.removeprefix(prefix)
                break
        if not name:
            raise _invalid(text, "it has no name: write /queue/orders")
        parts.append(scheme + name)
    return ",".join(parts)


def wire_name(full: str) -> str:
    """`/queue/x` or `/topic/x` for the full name `queue://x` or `topic://x`."""
    return ",".join(["/" + part.replace("://", "/", 1) for part in full.split(",")])


def _invalid(text: str, why: str) -> ProtocolError:
    return ProtocolError(f"destination {text[:100]!r}: {why}", code="DESTINATION_INVALID")
