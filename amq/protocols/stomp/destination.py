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
    ("/schedule/", "schedule://"),
    ("/remote-temp-queue/", "temp-queue://"),
    ("/remote-temp-topic/", "temp-topic://"),
)
_OWN_PREFIXES: Final = (
    ("/temp-queue/", "temp-queue://"),
    ("temp-queue://", "temp-queue://"),
    ("/temp-topic/", "temp-topic://"),
    ("temp-topic://", "temp-topic://"),
)
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")


def full_name(text: str, owner: str) -> str:
    """The full name of a destination as a client wrote it; a name without a prefix is a queue. Of a composite one,
    with commas, each part may have a prefix; one without is of the kind of the part before. A temporary destination
    is the connection's own, and its name gets `owner` before it, or is `remote`, with its whole name.

    ProtocolError: empty destinations, control characters.
    """
    if _CONTROL.search(text):
        raise _invalid(text, "it holds a control character")
    scheme, parts = "queue://", []
    for part in text.split(","):
        name = part
        for prefix, its_scheme in _OWN_PREFIXES:
            if part.startswith(prefix) and len(part) > len(prefix):
                scheme, name = its_scheme, owner + part.removeprefix(prefix)
        for prefix, its_scheme in _PREFIXES:
            if part.startswith(prefix):
                scheme, name = its_scheme, part.removeprefix(prefix)
                break
        if not name or name.startswith(("/temp-", "temp-queue://", "temp-topic://")):
            raise _invalid(text, "it has no name: write /queue/orders")
        parts.append(scheme + name)
    return ",".join(parts)


def wire_name(full: str, owner: str) -> str:
    """`/queue/x` or `/topic/x` for the full name `queue://x` or `topic://x`, and so for each part of a composite one.
    Of the connection `owner` itself a temporary destination is `/temp-queue/x`, else `/remote-temp-queue/…`."""
    return ",".join([_wire_part(part, owner) for part in full.split(",")])


def _wire_part(full: str, owner: str) -> str:
    kind, _, name = full.partition("://")
    if not kind.startswith("temp-"):
        return f"/{kind}/{name}"
    return f"/{kind}/{name.removeprefix(owner)}" if owner and name.startswith(owner) else f"/remote-{kind}/{name}"


def reply_to(text: str, owner: str) -> str:
    """What others know as the destination `text` of the connection `owner`."""
    if not text.startswith(("/temp-", "temp-")):
        return text
    return wire_name(full_name(text, owner), "")


def _invalid(text: str, why: str) -> ProtocolError:
    return ProtocolError(f"destination {text[:100]!r}: {why}", code="DESTINATION_INVALID")
