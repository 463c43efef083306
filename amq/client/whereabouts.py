"""Whereabouts: in which stores of a cluster destinations live, and where their masters are, as a gateway tells it.

An answer is as old as the last look of the gateway: it is a hint where to connect to, and no promise. The master of a
store refuses what does not live there (MOVED).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from amq.client.members import Members
from amq.client.requests import Request, RequestKind
from amq.client.uri import BrokerUri
from amq.core.errors import CommandError, ProtocolError
from amq.protocols.stomp.frame import encode
from amq.protocols.stomp.locating import WHERE, own_urls

if TYPE_CHECKING:
    from amq.client.machine import Machine

EVERYWHERE = ""  # as the home of a destination: it lives in every store, or is a pattern


@dataclass(frozen=True)
class Whereabouts:
    """The answer to a question about some destinations.

    cluster  the id of the cluster
    table    the number of its table of homes
    homes    the store of each destination, in their order
    stores   those that may have something of them, in the order of the table: name → addresses, the master's first;
             none where the gateway knows no master, or none that the URL lets this client try
    """

    cluster: str
    table: int
    homes: tuple[str, ...]
    stores: Mapping[str, tuple[BrokerUri, ...]]


def is_gateway(machine: Machine) -> bool:
    """Is the connection one to a gateway of a cluster now?"""
    return machine.link is not None and machine.link.cluster != ""


def ask(machine: Machine, destinations: Sequence[str]) -> Request:
    """WHERE; the request's `outcome` is the answer."""
    if not destinations or any("," in name for name in destinations):
        raise CommandError(f"where({', '.join(destinations)}): give names of destinations, each by itself")
    receipt = machine.next_receipt()
    headers = [("destination", ",".join(destinations)), ("receipt", receipt.decode())]
    return machine.request(RequestKind.RESOLVE, receipt, encode(WHERE, headers), destinations[0])


def answer(machine: Machine, outcome: str) -> Whereabouts | None:
    """None = the connection leads to a broker now, and to no gateway. Raises ProtocolError."""
    link = machine.link
    if link is None or not outcome:
        return None
    members = Members(machine.url)
    try:
        found = json.loads(outcome)
        stores = {str(name): members.usable(own_urls(urls), link.uri) for name, urls in found["stores"].items()}
        return Whereabouts(link.cluster, int(found["table"]), tuple(map(str, found["homes"])), stores)
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        raise ProtocolError(f"{link.uri} answers {WHERE} in a way that this client does not know: {error!r}") from error
