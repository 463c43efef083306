"""Orders of an operator, or of the master, to one broker, given through the store.

Each broker reads `orders/NAME.json` at every lease check, as master and as slave. The giver of an order overwrites the
file in place. It exists before anybody may want to write it, because a network client that has once seen no such name
may see none for seconds, and is made again when somebody has removed it. Invariant: an order is for one start of one
broker, by its uuid, and that broker sees it once.

Nothing of this is needed for safety: an order makes a master stop in good order, or a slave try for the lock.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import structlog

from amq.core.errors import AmqError, CorruptError, StoreError
from amq.store.board import Board
from amq.store.document import decode, encode, field

KIND = "order"
RECORD_BYTES = 4096
HAND_OVER, TAKE_OVER, STOP, WITHDRAWN = "hand-over", "take-over", "stop", ""
OPERATOR, FAILBACK = "operator", "failback"
TEXT_CHARS_MAX = 200
_log = structlog.get_logger("amq.lock")


@dataclass(frozen=True, slots=True)
class Order:
    """One order to the broker that started as `uuid`.

    id       unique; the answer in `brokers/NAME.json` repeats it
    action   HAND_OVER (to a master: to slave `to`, or to the best one), TAKE_OVER (to a slave: take the lock as soon as
             it is free), STOP, WITHDRAWN (the giver waits no longer)
    by       who gives it, for people
    why      of a TAKE_OVER: `OPERATOR` or `FAILBACK`
    """

    id: str
    uuid: str
    action: str
    to: str = ""
    by: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True)
class OrderAnswer:
    """The reaction of a broker to order `id`. `state`: "refused" (with the reason), "asked" (it has asked a slave,
    which has not answered yet), "ready" (it takes over when the lock is free), "handing over", "stopping".
    """

    id: str = ""
    state: str = ""
    reason: str = ""

    def to_json(self) -> dict[str, str]:
        return asdict(self) if self.id else {}

    @classmethod
    def from_json(cls, found: object) -> OrderAnswer:
        """Read the answer of a broker of any version; an unreadable one is not an answer."""
        if not isinstance(found, dict):
            return cls()
        return cls(*(str(found.get(key, "")) for key in ("id", "state", "reason")))


class Orders:
    """The orders for the broker `name`, which started as `uuid`. For the lease thread: every call may hang."""

    def __init__(self, board: Board, name: str, uuid: str) -> None:
        self._board = board
        self.name = name
        self._uuid = uuid
        self._seen = ""
        self._trouble = ""

    def open(self) -> None:
        """Make the slot, where it is missing. Raises OSError."""
        self._board.make_slot(self.name)

    def look(self) -> Order | None:
        """An order that this broker has not seen yet. A file that cannot be read costs an order, never a mastership: it
        is logged, once.
        """
        try:
            order = self._read()
        except (AmqError, OSError) as error:
            if str(error) != self._trouble and not isinstance(error, CorruptError):  # torn: being written just now
                self._trouble = str(error)
                _log.info("orders cannot be read", reason=self._trouble)
            return None
        if order is None or order.uuid != self._uuid or order.id == self._seen:
            return None
        self._seen = order.id
        return order

    def _read(self) -> Order | None:
        data = self._board.read_slot(self.name)
        if data is None:
            return None
        place = self._board.place_of_slot(self.name)
        body = decode(KIND, data, place)
        return Order(*(field(body, key, str, place) for key in ("id", "uuid", "action", "to", "by", "why")))


def give(board: Board, name: str, order: Order) -> None:
    """Write `order` for the broker `name`. Raises StoreError where that broker reads no orders, OSError."""
    body: dict[str, Any] = {key: value[:TEXT_CHARS_MAX] for key, value in asdict(order).items()}
    data = encode(KIND, body, RECORD_BYTES)
    assert len(data) == RECORD_BYTES
    if not board.write_slot(name, data):
        raise StoreError(
            f"broker {name!r} takes no orders: it is of version 0.1; stop it on its host (SIGTERM)",
            code="ORDER_REFUSED",
        )
