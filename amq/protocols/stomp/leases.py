"""LEASE, and the COMMIT and ABORT that end leases: frames of ours for readers that set messages apart.

The answer to LEASE is the `outcome` of its RECEIPT, a JSON object; docs/stomp.md lists headers and answers.
"""

from __future__ import annotations

from typing import Final

from amq.core.errors import ProtocolError
from amq.protocols.commands import LeaseMessages, SettleLeases
from amq.protocols.stomp.destination import sources
from amq.protocols.stomp.subscribing import number

_MAX: Final = 2**63 - 1
_COUNT_MAX: Final = 999_999_999
_SKIP_MAX: Final = 1000


def lease(headers: dict[str, str], receipt: object) -> LeaseMessages:
    """The command of a LEASE frame. Raises ProtocolError."""
    if not receipt:
        raise ProtocolError("LEASE needs a receipt header: the RECEIPT is its answer", code="HEADER_MISSING")
    return LeaseMessages(
        sources(_required("LEASE", headers, "destination"), ""),
        _required("LEASE", headers, "cursor"),
        number("after", headers.get("after", "0"), _MAX),
        number("messages", _required("LEASE", headers, "messages"), _COUNT_MAX),
        number("bytes", headers.get("bytes", "0"), _COUNT_MAX),
        number("timeout", headers.get("timeout", "0"), _MAX),
        receipt,
        _boolean("take", headers.get("take", "false")),
        number("epoch", headers.get("epoch", "0"), _MAX),
        _boolean("places", headers.get("places", "false")),
        number("skip", headers.get("skip", "0"), _SKIP_MAX),
        (
            number("direct", headers.get("direct", "0"), _COUNT_MAX),
            number("fallback", headers.get("fallback", "0"), _COUNT_MAX),
        ),
    )


def settle(command: str, headers: dict[str, str], receipt: object) -> SettleLeases:
    """The command of a COMMIT or ABORT frame with a cursor. Raises ProtocolError."""
    if extra := sorted(headers.keys() & {"transaction", "xid", "owner", "batch", "xids", "phase"}):
        raise ProtocolError(f"{command} of a cursor has no header {extra[0]}: see docs/stomp.md", code="HEADER_INVALID")
    return SettleLeases(
        sources(_required(command, headers, "destination"), ""),
        _required(command, headers, "cursor"),
        number("through", _required(command, headers, "through"), _MAX),
        command == "COMMIT",
        receipt,
        number("epoch", headers.get("epoch", "0"), _MAX),
    )


def _required(command: str, headers: dict[str, str], name: str) -> str:
    value = headers.get(name)
    if not value:
        raise ProtocolError(f"{command} without the header {name}: add it", code="HEADER_MISSING")
    return value


def _boolean(name: str, text: str) -> bool:
    if text in ("true", "false"):
        return text == "true"
    raise ProtocolError(f"{name} {text[:40]!r} is neither true nor false", code="HEADER_INVALID")
