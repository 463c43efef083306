"""Durable subscriptions of the client: their name in SUBSCRIBE, and their end.

Invariant: the request to end one may be repeated, on the next master too: a subscription that is gone is not an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from amq.client.requests import Request, RequestKind
from amq.core.errors import CommandError
from amq.protocols.stomp.frame import encode

if TYPE_CHECKING:
    from amq.client.core import SessionCore

NAME_HEADER = "activemq.subscriptionName"


def named(headers: Mapping[str, str] | None, subscription: str) -> dict[str, str]:
    """`headers` of a SUBSCRIBE, with the name of a durable subscription, if there is one."""
    return {**(headers or {}), **({NAME_HEADER: subscription} if subscription else {})}


def end_durable(session: SessionCore, name: str) -> Request:
    """End the durable subscription `name`, which no consumer may have."""
    if not name:
        raise CommandError("give the name of the durable subscription that shall end")
    session.may_write()
    machine = session.machine
    receipt = machine.next_receipt()
    return machine.request(
        RequestKind.END, receipt, encode("UNSUBSCRIBE", [(NAME_HEADER, name), ("receipt", receipt.decode())]), name
    )


@contextmanager
def unless_unknown() -> Iterator[None]:
    """Accept that there is no such subscription: a repeated request whose first answer was lost gets that answer."""
    try:
        yield
    except CommandError as error:
        if error.code != "UNKNOWN_SUBSCRIPTION":
            raise
