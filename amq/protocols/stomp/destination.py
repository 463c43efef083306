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
    """The full name of a destination as a client wrote it; a name without a prefix is a queue.

    ProtocolError: empty, temporary or composite (comma) destinations, control characters.
    """
    if _TEMPORARY.match(text):
        raise _invalid(text, "temporary destinations are not supported: use a named queue for replies")
    scheme, name = "queue://", text
    for prefix, its_scheme in _PREFIXES:
        if text.startswith(prefix):
            scheme, name = its_scheme, text.removeprefix(prefix)
            break
    if not name:
        raise _invalid(text, "it has no name: write /queue/orders")
    if "," in name:
        raise _invalid(text, "composite destinations are not supported: send one message to each")
    if _CONTROL.search(name):
        raise _invalid(text, "it holds a control character")
    return scheme + name


def wire_name(full: str) -> str:
    """`/queue/x` or `/topic/x` for the full name `queue://x` or `topic://x`."""
    kind, _, name = full.partition("://")
    return f"/{kind}/{name}"


def _invalid(text: str, why: str) -> ProtocolError:
    return ProtocolError(f"destination {text[:100]!r}: {why}", code="DESTINATION_INVALID")
