"""The records of the journal: one class for each record type, with its bytes, its effect and its text. Spec:
docs/journal-format.md.

In the bytes a destination is a number, defined by a `Destination` record earlier in the same segment, so that every
segment can be read alone; in memory it is its name. Readers (`amq.journal.decoder`) refuse a type that `TYPES` does not
have: a skipped record could be an acknowledgement.
"""

from __future__ import annotations

from typing import Protocol

from amq.journal.records.base import BaseRecord, S
from amq.journal.records.group import GROUP, GROUP_HEAD, Copies, Copying, Group, Grouping, Measured
from amq.journal.records.leases import LEASE, LeaseOwner, is_of_lease
from amq.journal.records.message import MESSAGE, Run, Staging, Storing
from amq.journal.records.multicast import MULTICAST, Multicast
from amq.journal.records.parcel import PARCEL, Parcel, Shipping
from amq.journal.records.placement import PLACED, ObeyedTable, Placing
from amq.journal.records.record import (
    Record,
    describe,
    destinations_of,
    encode_record,
    is_larger,
    kind_name,
    messages_in,
    place,
    record_bytes,
    takes_space,
)
from amq.journal.records.remembered import DUPLICATES, OUTCOMES, Duplicates, Outcomes, Remembering
from amq.journal.records.settlement import (
    ACKED,
    CONSUMED,
    DEAD_LETTERED,
    EXPIRED,
    FIRED,
    MOVED,
    PURGED,
    REASONS,
    REDELIVERED,
    Consumed,
    Moved,
    Redelivered,
    Settling,
)
from amq.journal.records.spanning import SPAN, decider_of, decision_owner, is_of_span, span_xid, stores_of
from amq.journal.records.subscription import Subscribed, Subscribing
from amq.journal.records.transactions import (
    MARKER,
    PREPARED,
    RESOLVED,
    BatchContent,
    Marker,
    Prepared,
    Preparing,
    Resolved,
)
from amq.journal.records.upkeep import DESTINATION, PREVIOUS, TRIMMED, Destination, Previous, Trimmed, Trimming

TYPES: dict[int, type[BaseRecord]] = {
    kind: each
    for each in (
        Destination,
        Consumed,
        Redelivered,
        Group,
        Duplicates,
        Outcomes,
        Trimmed,
        Previous,
        Multicast,
        Moved,
        Prepared,
        Resolved,
        Marker,
        Subscribed,
        ObeyedTable,
        Parcel,
    )
    for kind in each.kinds
}
KINDS = {kind: TYPES[kind].type_name if kind in TYPES else "message" for kind in sorted({MESSAGE, *TYPES})}


class Fold(
    Storing[S],
    Settling[S],
    Grouping[S],
    Remembering[S],
    Preparing[S],
    Subscribing[S],
    Placing[S],
    Shipping[S],
    Trimming,
    Protocol[S],
):
    """All methods that the records of a journal call, with segments of type `S`."""


class ServingFold(Fold[S], Staging[S], Copying[S], Protocol[S]):
    """The same, and those of records that are there as others: a run as messages, copies as a group."""


__all__ = [
    "ACKED",
    "CONSUMED",
    "DEAD_LETTERED",
    "DESTINATION",
    "DUPLICATES",
    "EXPIRED",
    "FIRED",
    "GROUP",
    "GROUP_HEAD",
    "KINDS",
    "LEASE",
    "MARKER",
    "MESSAGE",
    "MOVED",
    "MULTICAST",
    "OUTCOMES",
    "PARCEL",
    "PLACED",
    "PREPARED",
    "PREVIOUS",
    "PURGED",
    "REASONS",
    "REDELIVERED",
    "RESOLVED",
    "SPAN",
    "TRIMMED",
    "TYPES",
    "BaseRecord",
    "BatchContent",
    "Consumed",
    "Copies",
    "Destination",
    "Duplicates",
    "Fold",
    "Group",
    "LeaseOwner",
    "Marker",
    "Measured",
    "Moved",
    "Multicast",
    "ObeyedTable",
    "Outcomes",
    "Parcel",
    "Prepared",
    "Previous",
    "Record",
    "Redelivered",
    "Resolved",
    "Run",
    "ServingFold",
    "Subscribed",
    "Trimmed",
    "decider_of",
    "decision_owner",
    "describe",
    "destinations_of",
    "encode_record",
    "is_larger",
    "is_of_lease",
    "is_of_span",
    "kind_name",
    "messages_in",
    "place",
    "record_bytes",
    "span_xid",
    "stores_of",
    "takes_space",
]
