"""Merging: the master of a lone store sends all that it has to the master of another lone store, and serves no client.

The order is a record of the journal, so each later master goes on, until a second record says that nothing is left.
From the order on no client is let in, so nothing changes here but by what leaves: queue after queue as in a move
(`Mover`), then what belongs to no queue (the outcomes of commits, the newest batches of pipelines), in parcels. Each
leaves this store in the record that says that it has arrived. So nothing is lost, and nothing is there twice.

The other store serves its clients meanwhile, and gives out what has arrived. Clients of this one learn where it is when
all is there, so that what they send there follows what they have sent here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sized
from collections.abc import Set as AbstractSet
from dataclasses import asdict, dataclass
from typing import Any, Final

import structlog

from amq.broker.core import Core
from amq.broker.homes import Homes
from amq.broker.names import is_temporary
from amq.broker.transfer.channel import Channel
from amq.core.destination import Source
from amq.core.errors import CommandError, NewerFormatError
from amq.journal.hidden import OUTBOX_SCHEME
from amq.journal.records import ObeyedTable

MERGE: Final = "merge"  # in the place of the id of a cluster, and of its table
TROUBLE_CHARACTERS_MAX: Final = 200
_OF_ALL: Final = re.compile(r"^auto(?=:|\+)")  # the scheme of a port of all protocols
_log = structlog.get_logger("amq.merge")


@dataclass(frozen=True, slots=True)
class MergeOrder:
    """An order of an operator.

    into         the other store, path or URL, as each broker of this group reaches it
    urls         where clients find its brokers
    secret_file  what these brokers have as linkSecretFile
    rate_bytes   at most this number of bytes a second, 0 = no limit
    is_over      nothing is left here
    """

    into: str
    urls: tuple[str, ...]
    secret_file: str
    rate_bytes: int = 0
    is_over: bool = False

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> MergeOrder:
        """Raises ValueError."""
        try:
            made = cls(**{**found, "urls": tuple(found["urls"])})
        except (LookupError, TypeError) as error:
            raise ValueError(f"an order to merge is damaged: {error!r}") from error
        texts = (made.into, made.secret_file, *made.urls)
        if not all(type(text) is str for text in texts) or type(made.rate_bytes) is not int:
            raise ValueError("an order to merge is damaged: a field is of the wrong type")
        return made

    @property
    def url(self) -> str:
        """The URL for clients."""
        return f"failover:({','.join(_OF_ALL.sub('tcp', each) for each in self.urls)})"


class _Everything(set[str]):
    """Each name is in it."""

    def __contains__(self, _: object) -> bool:
        return True

    def __bool__(self) -> bool:
        return True

    def __or__(self, _: AbstractSet[Any]) -> set[Any]:
        return self


class Merging(Homes):
    """All destinations have their home in the other store. `clients` = those that are connected."""

    fact = MERGE
    order: MergeOrder

    def __init__(self, core: Core, clients: Sized, channel: Channel, changed: Callable[[], None]) -> None:
        """`channel` = that by which all goes."""
        super().__init__(core.state, core.journal, changed)
        self.frozen = _Everything()
        self._core = core
        self._clients = clients
        self._number = 0  # of the newest record
        self._is_recorded = self._has_looked = False
        self.owes_rest = True
        self._channel = channel
        self._sent_ids: set[str] = set()  # queues of which the other store knows the ids that they remember

    def start(self, order: MergeOrder) -> None:
        """An operator has ordered it, and no client is connected."""
        self.order = order
        self._changed()
        self._record()

    def begin(self, offered: Mapping[str, Any] | None) -> None:  # noqa: ARG002
        """Go on with a merge that an earlier master began or ended. Raises NewerFormatError."""
        record = self._state.obeyed.record
        assert record is not None
        try:
            self.order = MergeOrder.from_json(record.placement[MERGE])
        except (ValueError, LookupError) as error:
            raise NewerFormatError(f"the order to merge the store: {error}: upgrade this broker") from error
        self._number, self._is_recorded = record.number, True
        self._changed()
        self.tell_progress()

    def offer(self, offered: Mapping[str, Any]) -> None:  # noqa: ARG002
        _log.error("the store obeys no cluster: it is merged into another store", into=self.order.into)

    def _record(self) -> None:
        self._number += 1
        placement = {MERGE: {**asdict(self.order), "urls": [*self.order.urls]}}
        self._journal.append_record(ObeyedTable(MERGE, "", self._number, placement))
        self._core.wake()

    def recorded(self, placed: ObeyedTable) -> None:
        if placed.number == self._number and not self._is_recorded:
            self._is_recorded = True
            if self.order.is_over:
                _log.info("the store is merged: nothing is left here", into=self.order.into, url=self.order.url)
            else:
                _log.info("the store is being merged into another one", into=self.order.into)
            self.tell_progress()

    # -- asking -------------------------------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """Whether all is in the other store, and the journal says so."""
        return self.order.is_over and self._is_recorded

    def let_in(self) -> None:
        """Raises CommandError as long as clients must wait."""
        if not self.is_over:
            raise self.refusal()

    def refusal(self) -> CommandError:
        """The error for clients."""
        if self.is_over:
            return CommandError(f"this store was merged into another one: connect to {self.order.url}", code="MERGED")
        return CommandError(
            "this store is being merged into another one: try again in a moment; the answer then names the new URL",
            code="MERGING",
        )

    def check(self, name: Source) -> None:  # noqa: ARG002
        raise self.refusal()

    def check_taken(self, queue: str) -> None:  # noqa: ARG002
        raise self.refusal()

    def takes(self, queue: str) -> bool:  # noqa: ARG002
        return False

    def home_of(self, name: str) -> str:
        return "" if is_temporary(name) or name.startswith(OUTBOX_SCHEME) else self.order.into

    def next_home(self, queue: str) -> str:  # noqa: ARG002
        return self.order.into

    def next_home_of_rest(self) -> str:
        return self.order.into if self._has_looked and self.owes_rest and not self.order.is_over else ""

    def message_ids(self) -> None:
        return None

    def is_this(self, store: str) -> bool:  # noqa: ARG002
        return False

    @property
    def rate_bytes(self) -> int:
        return self.order.rate_bytes

    # -- what leaves --------------------------------------------------------------------------------------------------

    def sweep(self) -> None:
        if self.order.is_over and not self._is_recorded and not self._is_busy:
            self._record()  # the disk was full
        if self._is_recorded and not (self.order.is_over or self._clients or self.leaving):
            self._look()
        self.tell_progress()

    def has_left(self, queue: str) -> None:
        del self.leaving[queue]
        self._sent_ids.add(queue)
        if not self.leaving:
            self._look()

    def _look(self) -> None:
        """Find what is still here. If nothing is, note that in the journal."""
        self._has_looked = True
        queues = self._state.queues
        self.leaving = {name: None for name in queues if self._goes(name)}
        if not (self.leaving or self.owes_rest or self._is_busy or any(map(self._stays, queues))):
            self.order = MergeOrder(self.order.into, self.order.urls, self.order.secret_file, is_over=True)
            self._is_recorded = False
            self._record()

    @property
    def _is_busy(self) -> bool:
        """Whether something is on its way to the journal."""
        return any(batch.records or batch.consumed for batch in self._journal.on_their_way())

    def _goes(self, name: str) -> bool:
        queue = self._state.queues[name]
        if is_temporary(name) or name.startswith(OUTBOX_SCHEME):
            return False
        return bool(queue.stored or queue.stays or (queue.duplicates and name not in self._sent_ids))

    def _stays(self, name: str) -> bool:
        """Whether an outbox still holds something."""
        return name.startswith(OUTBOX_SCHEME) and self._state.queues[name].stored > 0

    def tell_progress(self, known: Mapping[str, Any] | None = None) -> None:  # noqa: ARG002 (a merge has no steps)
        queues = [queue for name, queue in self._state.queues.items() if not is_temporary(name)]
        facts = {
            "into": self.order.into,
            "urls": [*self.order.urls],
            "over": self.is_over,
            "left": sum(queue.stored for queue in queues),
            "left_bytes": sum(queue.stored_bytes for queue in queues),
            "trouble": self._channel.trouble[:TROUBLE_CHARACTERS_MAX],
            **asdict(self.sent),
        }
        if facts != self.facts:
            self.facts = facts
