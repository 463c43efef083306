"""Leases as the driver of a stream and its tasks both know them: the input of a task, and errors.

A separate module, because Spark starts a process for each query, which waits until everything here is imported. That
process reads no messages, so it imports nothing that only tasks need.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql.datasource import InputPartition

from amq.core.errors import AmqError, CommandError
from pyspark_amq.offsets import Slice
from pyspark_amq.options import SourceOptions

log = logging.getLogger("pyspark_amq.source")

UNKNOWN_LEASE, UNKNOWN_SUBSCRIPTION = "UNKNOWN_LEASE", "UNKNOWN_SUBSCRIPTION"
SUBSCRIPTION_DIFFERS = "SUBSCRIPTION_DIFFERS"
MOVED = "MOVED"  # the destination lives in another store of the cluster
STORES = "stores"  # directory of a cluster
HOME_CODES = (MOVED, "MOVING")  # or it is on its way there


class CursorTakenError(AmqError):
    """Another query reads with the same subscription."""

    code = "CURSOR_TAKEN"


class DataLossError(AmqError):
    """Messages that a query has not read are gone."""

    code = "DATA_LOSS"


@dataclass(frozen=True)
class Direct:
    """The answer of the broker for a lease: `newest` = epoch, number and salt of its newest segment, `uuid` of the
    store, `packed` places of its `messages`, which take `size` bytes."""

    uuid: str
    newest: tuple[int, int, int]
    packed: str
    messages: int
    size: int = 0

    @classmethod
    def of(cls, said: Mapping[str, Any]) -> Direct:
        epoch, number, salt = said["newest"]
        return cls(said["uuid"], (epoch, number, salt), said["places"], said["messages"], said.get("size", 0))

    @property
    def weight(self) -> int:
        """Bytes of a message, on average."""
        return max(1, self.size // max(1, self.messages))


@dataclass
class LeaseSlices(InputPartition):
    """The input of one task of a stream. `epochs`: of the cursor, by destination; 0 = the broker has none."""

    slices: Sequence[Slice]
    epochs: Mapping[str, int]
    places: Mapping[tuple[str, int], Direct] = field(default_factory=dict)  # by destination and lease
    indirect: str = ""  # why the broker told none


def check_taken(name: str, cursor: str, error: CommandError) -> None:
    """Raises CursorTakenError if this is the broker's error."""
    if error.code == CursorTakenError.code:
        raise CursorTakenError(
            f"another query, started later, reads {name} with the subscription {cursor!r}: this query stops. "
            "Run one query for each subscription, or give each its own: .option('subscription', 'other'). A stream "
            "that is used twice in one query counts as two"
        ) from error


def lose(options: SourceOptions, text: str, error: AmqError) -> None:
    """Raises DataLossError, unless failOnDataLoss is false."""
    if options.fail_on_data_loss:
        raise DataLossError(f"{text}. To continue without them: .option('failOnDataLoss', 'false')") from error
    log.warning("%s", text)
