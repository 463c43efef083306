"""How destinations are written in STOMP: `/queue/orders` on the wire ↔ the full name `queue://orders` inside.

A comma separates several, `*` and `>` are wildcards: `destinations` and `sources` take them apart, and nothing behind
the codec sees them. Invariant: `full_name(wire_name(n)) == n` for every full name n that `full_name` can yield.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import Final

from amq.core.destination import Pattern, Source, bars, parts, source
from amq.core.destination import wire_name as public_name
from amq.core.errors import AccessError, ProtocolError

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
_KINDS: Final = ("queue", "topic", "temp-queue", "temp-topic", "remote-temp-queue", "remote-temp-topic", "schedule")
_LIKE_A_PREFIX: Final = re.compile(r"/*(?:jms[./])?([A-Za-z-]{3,20})(?:://|/+|[:.])(.*)")


def destinations(text: str, owner: str, strict: bool = True) -> tuple[str, ...]:
    """The full names of the destinations of a SEND, each once. Raises ProtocolError, and AccessError for wildcards."""
    found = tuple(dict.fromkeys(_full_names(text, owner, strict)))
    for name in found:
        if isinstance(source(name), Pattern):
            raise AccessError(
                f"{public_name(name)}: only a subscription may name many destinations by * and >; send to one",
                code="DESTINATION_REFUSED",
            )
    return found


def sources(text: str, owner: str, strict: bool = True) -> tuple[Source, ...]:
    """The destinations and patterns that a SUBSCRIBE names, each once. Raises ProtocolError."""
    return tuple(dict.fromkeys(map(source, _full_names(text, owner, strict))))


def full_name(text: str, owner: str, strict: bool = True) -> str:
    """The full name of a destination as a client wrote it; of several, with commas between. Raises ProtocolError."""
    return ",".join(_full_names(text, owner, strict))


def _full_names(text: str, owner: str, strict: bool) -> list[str]:
    """Of several destinations, with commas, each but the first may lack a prefix: it is of the kind of the one before.
    A temporary destination is the connection's own, and its name gets `owner` before it, or is `remote`, with its whole
    name. Unless `strict` any other text is the name of a queue, as it is for ActiveMQ.

    ProtocolError: empty destinations, control characters; where `strict`, also names that look like a slip.
    """
    if why := bars(text):
        raise _invalid(text, why)
    scheme, found = "", list[str]()
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
            raise _invalid(text, f"it has no name: write /queue/orders{_meant(part)}")
        if strict:
            _check(text, part, name, scheme)
        scheme = scheme or "queue://"
        found.append(scheme + name)
    return found


def _check(text: str, part: str, name: str, scheme: str) -> None:
    """Raises ProtocolError where the part of a destination is none that anybody wants. `scheme` = its kind, or that of
    the part before, "" = there is none."""
    if part != part.strip():
        raise _invalid(text, f"it begins or ends with a space{_meant(part)}")
    if name == part and (not scheme or part.startswith("/") or _kind(part)[0]):
        raise _invalid(text, f"it must begin with /queue/, /topic/, /temp-queue/ or /temp-topic/{_meant(part)}")
    for word in name.split(".") if "*" in name or ">" in name else ():
        if len(word) > 1 and ("*" in word or ">" in word):
            raise _invalid(text, f'it has the word "{word[:40]}": "*" and ">" each stand for whole words')


def _kind(part: str) -> tuple[str, str]:
    """Kind and name that `part`, which has no known prefix, probably means; empty where it looks like neither."""
    found = _LIKE_A_PREFIX.fullmatch(part.strip())
    kinds = get_close_matches(found[1].lower(), _KINDS, 1, 0.7) if found else []
    return (kinds[0], found[2]) if found and kinds else ("", "")


def _meant(part: str) -> str:
    kind, name = _kind(part)
    if not kind and "/" not in part:
        kind, name = "queue", part.strip()
    return f"; did you mean /{kind}/{name[:100]}?" if kind and name else ""


def wire_name(full: str, owner: str) -> str:
    """`/queue/x` or `/topic/x` for the full name `queue://x` or `topic://x`, and so for each part of a composite one.
    Of the connection `owner` itself a temporary destination is `/temp-queue/x`, else `/remote-temp-queue/…`."""
    return ",".join([_wire_part(part, owner) for part in parts(full)])


def _wire_part(full: str, owner: str) -> str:
    kind, _, name = full.partition("://")
    if not kind.startswith("temp-"):
        return f"/{kind}/{name}"
    return f"/{kind}/{name.removeprefix(owner)}" if owner and name.startswith(owner) else f"/remote-{kind}/{name}"


def reply_to(text: str, owner: str) -> str:
    """The name under which others know the destination `text` of the connection `owner`."""
    if not text.startswith(("/temp-", "temp-")):
        return text
    return wire_name(full_name(text, owner), "")


def _invalid(text: str, why: str) -> ProtocolError:
    return ProtocolError(f"destination {text[:100]!r}: {why}", code="DESTINATION_INVALID")
