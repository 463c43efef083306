"""Advisories as clients of ActiveMQ read them: a message without a body, and the command that caused it.

The broker tells facts as properties (`amq.broker.topics.advisories`); here they become the structures from which
`ConsumerEventSource`, `DestinationSource` and the watch for temporary destinations learn.
"""

from __future__ import annotations

from typing import Final

from amq.core.values import Int32, Value, text
from amq.protocols.openwire import table
from amq.protocols.openwire.names import destination_in, own_url
from amq.protocols.openwire.table import Structure, structure

TYPE: Final = "Advisory"
PREFIX: Final = "topic://ActiveMQ.Advisory."
_GONE: Final = ("stopped", "removed")
_URL: Final = "originBrokerURL"
_COUNTS: Final = ("consumerCount", "producerCount", "discardedCount")


def structure_of(name: str, facts: dict[str, Value]) -> Structure:
    """The advisory on the topic `name` without its common fields. Counts among `facts` become numbers."""
    url = text(facts.get(_URL, ""))
    facts[_URL] = own_url(url) or url
    for count in _COUNTS:
        if count in facts and text(facts[count]).isdecimal():
            facts[count] = Int32(min(int(text(facts[count])), (1 << 31) - 1))
    return structure(table.MESSAGE, data_structure=_cause(name.removeprefix(PREFIX), facts))


def _cause(kind: str, facts: dict[str, Value]) -> Structure | None:
    said = {name: text(value) for name, value in facts.items()}
    connection = structure(table.CONNECTION_ID, value=said.get("connectionId", ""))
    gone = said.get("event") in _GONE
    destination = destination_in(said.get("destination", ""))
    if kind in ("TempQueue", "TempTopic", "Queue", "Topic"):
        return structure(table.DESTINATION_INFO, connection=connection, destination=destination, kind=int(gone))
    if kind == "Connection":
        if gone:
            return structure(table.REMOVE_INFO, id=connection)
        return structure(table.CONNECTION_INFO, id=connection, client_id=said.get("clientId"))
    family = kind.partition(".")[0]
    if family == "Consumer":
        id = three_parts(table.CONSUMER_ID, said.get("consumerId", ""), connection)
        if gone:
            return structure(table.REMOVE_INFO, id=id)
        return structure(table.CONSUMER_INFO, id=id, destination=destination, selector=said.get("selector"))
    if family == "Producer":
        id = three_parts(table.PRODUCER_ID, said.get("producerId", ""), connection)
        if gone:
            return structure(table.REMOVE_INFO, id=id)
        return structure(table.PRODUCER_INFO, id=id, destination=destination)
    return None


def three_parts(type: int, written: str, connection: Structure) -> Structure:
    """The id of a consumer or producer that stands as `connection:session:value`; of any other text one that is as
    unique as that."""
    before, _, value = written.rpartition(":")
    owner, _, session = before.rpartition(":")
    if owner and _is_number(value) and _is_number(session):
        return structure(type, connection=owner, session=int(session), value=int(value))
    return structure(type, connection=f"{connection.get('value')}:{written}", session=0, value=0)


def _is_number(written: str) -> bool:
    return written.removeprefix("-").isdecimal() and written.isascii() and len(written) <= 18
