"""How destinations are written in OpenWire: a kind and a name, `orders`, of several `a,topic://b` ↔ full names inside.

The options behind a `?` are the client's own, and no part of the name. Wildcards are those of the configuration.
"""

from __future__ import annotations

from typing import Final

from amq.core.destination import NAME_BYTES_MAX as NAME_BYTES_MAX
from amq.core.destination import Pattern, Source, bars, plain_name, source
from amq.core.errors import CommandError
from amq.protocols.openwire.table import QUEUE, TEMP_QUEUE, TEMP_TOPIC, TOPIC, Structure, nested, structure

_SCHEMES: Final = {QUEUE: "queue://", TOPIC: "topic://", TEMP_QUEUE: "temp-queue://", TEMP_TOPIC: "temp-topic://"}
_OWN_SCHEMES: Final = {
    "openwire": "tcp",
    "tcp": "tcp",
    "auto": "tcp",
    "openwire+ssl": "ssl",
    "ssl": "ssl",
    "auto+ssl": "ssl",
}
_TYPES: Final = {scheme: type for type, scheme in _SCHEMES.items()}


def full_names(destination: Structure | None) -> tuple[str, ...]:
    """The full names that `destination` stands for, each once. CommandError where it is none."""
    if destination is None or destination.type not in _SCHEMES:
        raise _invalid("the command names no destination")
    written, scheme = destination.get("name", ""), _SCHEMES[destination.type]
    if len(written.encode("utf-8", "replace")) > NAME_BYTES_MAX:
        raise _invalid(f"destination {written[:40]!r}… has more than {NAME_BYTES_MAX} bytes")
    if why := bars(written):
        raise _invalid(f"destination {written[:40]!r}: {why}")
    found: dict[str, None] = {}
    for part in written.split(","):
        kind, name = scheme, part.strip()
        for prefix in _TYPES:
            if name.startswith(prefix):
                kind, name = prefix, name.removeprefix(prefix)
                break
        name = name.partition("?")[0]
        if not name:
            raise _invalid(f"destination {written[:100]!r} has no name, or a part without one")
        found[kind + name] = None
    return tuple(found)


def destinations(destination: Structure | None) -> tuple[str, ...]:
    """Where a message goes. CommandError also for wildcards."""
    names = full_names(destination)
    if any(isinstance(source(name), Pattern) for name in names):
        raise _invalid(f"{', '.join(names)[:100]}: only a consumer may name many destinations by * and >; send to one")
    return names


def sources(destination: Structure | None) -> tuple[Source, ...]:
    """The destinations and patterns of a consumer. Raises CommandError."""
    return tuple(map(source, full_names(destination)))


def destination_of(full: str) -> Structure:
    """The structure for one full name; of another kind than OpenWire has, as a queue."""
    scheme = full.partition("://")[0] + "://"
    return structure(_TYPES.get(scheme, QUEUE), name=plain_name(full))


def destination_in(header: str) -> Structure | None:
    """The destination that the header of a text protocol names, `/queue/orders`; None = it names none."""
    kind, _, name = header.removeprefix("/").removeprefix("remote-").partition("/")
    full = f"{kind}://{name}"
    return destination_of(full) if name and is_destination(full) else None


def is_destination(full: str) -> bool:
    """Is `full` the name of something that OpenWire can address?"""
    return full.startswith(tuple(_TYPES))


def nested_destination(full: str) -> bytes:
    """The same as bytes, as the field of a command."""
    return nested(destination_of(full))


def own_url(url: str) -> str | None:
    """The address of a broker as clients of OpenWire write it, None = they cannot use it."""
    scheme, separator, rest = url.partition("://")
    own = _OWN_SCHEMES.get(scheme)
    return own and f"{own}{separator}{rest}"


def _invalid(why: str) -> CommandError:
    return CommandError(why, code="DESTINATION_INVALID")
