"""SUBSCRIBE: the consumer that its headers ask for. ActiveMQ's options have the prefix `activemq.`: see
docs/stomp.md."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from amq.core.destination import Source, is_wildcard
from amq.core.errors import CommandError, ProtocolError
from amq.protocols.commands import CREDIT_MAX, Browse, Filter, Flow, LeaseReading, Mode, Range, Subscribe

ACK_AUTO: Final = "auto"
ACK_CLIENT: Final = "client"  # an acknowledgement covers all that was delivered before
ACK_INDIVIDUAL: Final = "client-individual"
ACK_MODES: Final = (ACK_AUTO, ACK_CLIENT, ACK_INDIVIDUAL)
_ACTIVEMQ: Final = "activemq."
RUNS: Final = "amq-runs"  # many messages in one frame: see `amq.protocols.stomp.runs`
RUNS_VERSION: Final = "1"
BOUNDS: Final = "bounds"  # value of the header `places`
# Options without that prefix.
_OURS: Final = ("browse-after", "browse-until", "credit", "cursor", "epoch", "lease", "places", "positions", RUNS)
_PRIORITY_MIN, _PRIORITY_MAX = -128, 127  # a byte in ActiveMQ
_PENDING_MAX: Final = 100_000_000
_INT32_MAX: Final = 2**31 - 1
_INT64_MAX: Final = 2**63 - 1
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,9}")


def subscribe(
    headers: dict[str, str], id: str, sources: tuple[Source, ...], receipt: object, token: object
) -> Subscribe:
    """The command of a SUBSCRIBE frame. Raises ProtocolError, CommandError."""
    ack = ack_mode(headers)
    browser = boolean("browser", headers.get("browser", "false"))
    prefetch = 0
    for name in ("prefetch-count", "activemq.prefetchSize"):  # the latter counts if both are there
        if name in headers:
            prefetch = number(name, headers[name], _INT32_MAX)
    options = {
        name.removeprefix(_ACTIVEMQ): value
        for name, value in headers.items()
        if name.startswith(_ACTIVEMQ) and name != "activemq.prefetchSize"
    }
    if "no-local" in headers:
        options.setdefault("noLocal", headers["no-local"])
    options |= {name: headers[name] for name in _OURS if name in headers}
    return Subscribe(
        id,
        sources,
        mode_of(options, ack),
        flow_of(options, ack, sources, prefetch, browser),
        filter_of(options, headers.get("selector", "")),
        receipt,
        token,
        subscription_name=subscription_name(headers),
        browse=browse_of(options, sources, browser),
    )


def ack_mode(headers: Mapping[str, str]) -> str:
    """Raises ProtocolError."""
    ack = headers.get("ack", ACK_AUTO)
    if ack not in ACK_MODES:
        raise ProtocolError(f"ack {ack[:40]!r} is none of {', '.join(ACK_MODES)}", code="HEADER_INVALID")
    return ack


def subscription_name(headers: Mapping[str, str]) -> str:
    """Of a durable subscription: as ActiveMQ spells it, then as Artemis does."""
    return headers.get("activemq.subscriptionName", "") or headers.get("durable-subscription-name", "")


def mode_of(options: Mapping[str, str], ack: str) -> Mode:
    """Here and in the next three functions: options that are not known are ignored, as ActiveMQ does. Raises
    CommandError."""
    return Mode(
        acknowledges=ack != ACK_AUTO,
        exclusive=_option_boolean(options, "exclusive"),
        priority=_option_number(options, "priority", _PRIORITY_MIN, _PRIORITY_MAX),
        shared=_option_boolean(options, "shared"),
    )


def flow_of(options: Mapping[str, str], ack: str, sources: tuple[Source, ...], prefetch: int, browser: bool) -> Flow:
    """Raises CommandError."""
    credit, pending_limit = None, _option_number(options, "maximumPendingMessageLimit", -1, _PENDING_MAX)
    if "credit" in options:
        if ack == ACK_AUTO or browser or is_wildcard(sources):
            raise CommandError(
                "credit is for consumers of one queue or topic that acknowledge: leave it out with ack:auto, for "
                "browses, and for patterns of queues",
                code="NOT_SUPPORTED",
            )
        credit = _option_number(options, "credit", 0, CREDIT_MAX)
    return Flow(prefetch, credit, pending_limit)


def filter_of(options: Mapping[str, str], selector: str) -> Filter:
    """Raises CommandError."""
    return Filter(selector, _option_boolean(options, "noLocal"), _option_boolean(options, "retroactive"))


def browse_of(options: Mapping[str, str], sources: tuple[Source, ...], browser: bool) -> Browse | None:
    """The browse that `options` ask for; None = the consumer takes messages. Raises ProtocolError, CommandError."""
    if not browser and "lease" in options:
        raise ProtocolError("a lease is read with browser:true, and is settled by COMMIT", code="HEADER_INVALID")
    reading, range, epoch = None, None, number("epoch", options.get("epoch", "0"), _INT64_MAX)
    if "lease" in options:
        begin, end = _positions(options.get("positions", ""))
        lease = number("lease", options["lease"], _INT64_MAX)
        reading = LeaseReading(lease, options.get("cursor", ""), epoch, begin, end)
    if "browse-after" in options or "browse-until" in options:
        if not browser or is_wildcard(sources):
            raise ProtocolError("browse-after and browse-until are for a browse of one queue", code="HEADER_INVALID")
        range = Range(*(_place(name, options.get(name, "")) for name in ("browse-after", "browse-until")))
    bounds = options.get("places") == BOUNDS
    places = bounds or boolean("places", options.get("places", "false"))
    if places and not browser:
        raise ProtocolError("places are shown with browser:true", code="HEADER_INVALID")
    return Browse(reading, range, places, bounds, options.get(RUNS) == RUNS_VERSION) if browser else None


def number(header: str, text: str, maximum: int) -> int:
    """Raises ProtocolError."""
    if text.isascii() and text.isdecimal() and len(text) <= 19 and int(text) <= maximum:
        return int(text)
    raise ProtocolError(f"{header} {text[:40]!r} is not a number from 0 to {maximum}", code="HEADER_INVALID")


def boolean(header: str, text: str) -> bool:
    """Raises ProtocolError."""
    lowered = text.lower()
    if lowered not in ("true", "false"):
        raise ProtocolError(f"{header} {text[:40]!r} is neither true nor false", code="HEADER_INVALID")
    return lowered == "true"


def _option_boolean(options: Mapping[str, str], name: str) -> bool:
    """The option `name`, false where there is none. Raises CommandError."""
    text = options.get(name, "false").lower()
    if text not in ("true", "false"):
        raise CommandError(f"{name} {text[:40]!r} is neither true nor false", code="OPTION_INVALID")
    return text == "true"


def _option_number(options: Mapping[str, str], name: str, minimum: int, maximum: int) -> int:
    """The option `name`, 0 where there is none. Raises CommandError."""
    text = options.get(name, "0")
    if _NUMBER.fullmatch(text) and minimum <= int(text) <= maximum:
        return int(text)
    raise CommandError(f"{name} {text[:40]!r} is not a number from {minimum} to {maximum}", code="OPTION_INVALID")


def _place(header: str, text: str) -> tuple[int, int] | None:
    """`PRIORITY-NUMBER` of a message; "" = none. Raises ProtocolError."""
    if not text:
        return None
    priority, _, seq = text.partition("-")
    return number(header, priority, 9), number(header, seq, _INT64_MAX)


def _positions(text: str) -> tuple[int, int | None]:
    """`FROM-TO`, where TO is the first that is not meant; "" = all. Raises CommandError."""
    if not text:
        return 0, None
    start, dash, stop = text.partition("-")
    if dash and all(each.isascii() and each.isdecimal() and len(each) < 10 for each in (start, stop)):
        return int(start), int(stop)
    raise CommandError(f"positions {text[:40]!r}: write two numbers, as in 0-1000", code="HEADER_INVALID")
