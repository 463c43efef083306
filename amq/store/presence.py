"""Presence: which brokers run on a store, and that each name is taken once.

`brokers/<name>.json` describes a broker and is locked for as long as it runs, as slave and as master. Invariant: the
lock says whether it runs, the content says what it is and how far it has come; the file of a broker that stopped stays
and means nothing. A file that is removed while its broker runs is made again. It is the only file of the store that a
slave writes while it waits.

The content is a document of kind `broker`: `role`, `owner`, `details` (how far it is now), `facts` (what lasts: where
it serves, its options, what it cannot do) and `store_version`, the newest version of a store that it reads. A reader
ignores a fact or a detail that it does not know, and every one may be missing, so versions may differ.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import structlog

from amq.core.errors import AmqError, CorruptError, NewerFormatError
from amq.store import document
from amq.store.board import Board, Posted, Seat, SeatTakenError
from amq.store.document import decode, encode
from amq.store.epoch import STORE_VERSION
from amq.store.host import Owner

KIND = "broker"
MASTER = "master"
RECORD_BYTES = 16 << 10
TELL_S = 2.0  # between two writes of details: each is a small write and a sync on the file server
READS_MAX = 3  # of a document that is just being written
_log = structlog.get_logger("amq.lock")


class NameInUseError(AmqError):
    """A running broker on this store has the name already."""

    code = "NAME_IN_USE"


@dataclass(frozen=True, slots=True)
class BrokerPresence:
    """A broker that runs on the store. `owner` is None (and `role` "") while it is just writing who it is. `details` is
    what it last said of how far it is: "followed" of a slave, "reading" of one that takes over. `facts` is what else it
    says of itself (see `amq.node.group.Facts`). `store_version` is the newest version of a store that it reads: 0.1
    does not say so, and reads 1.
    """

    name: str
    role: str
    owner: Owner | None
    details: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    store_version: int = STORE_VERSION

    @property
    def priority(self) -> int:
        """The broker with the highest one should be master."""
        found = self.facts.get("priority")
        return found if isinstance(found, int) else 0

    @property
    def not_ready(self) -> str:
        """Why this slave could not take over now, "" = it could."""
        found = self.facts.get("not_ready")
        return found if isinstance(found, str) else "is of an older version, or just starting"

    @property
    def management(self) -> str:
        """Path of its management socket on its host, "" = it has none."""
        found = self.facts.get("management")
        return found if isinstance(found, str) else ""

    @property
    def console(self) -> str:
        """URL of its console, as anybody who writes to the store could have put it there; "" = unknown."""
        found = self.facts.get("console")
        return found if isinstance(found, str) else ""

    @property
    def addresses(self) -> list[str]:
        """Where it says that clients reach it; version 0.1 does not say."""
        found = self.facts.get("addresses")
        return [str(url) for url in found] if isinstance(found, list) else []


class Presence:
    """This broker's own entry. Close it last."""

    def __init__(self, board: Board, seat: Seat, owner: Owner, facts: Mapping[str, Any]) -> None:
        self._facts = dict(facts)
        self._board = board
        self._seat = seat
        self._owner = owner
        self._role = ""
        self._details: dict[str, Any] = {}
        self._told_at: float | None = None
        self._kept_at: float | None = None
        self._trouble = ""

    @classmethod
    def open(
        cls, board: Board, owner: Owner, role: str = "slave", facts: Mapping[str, Any] = MappingProxyType({})
    ) -> Presence:
        """Take the name `owner.name` on `board`. Raises NameInUseError; OSError, also where the seat that this broker
        had before is not free yet."""
        try:
            seat = board.take(owner.name)
        except SeatTakenError as error:
            other = _holder(error.read, owner.name)
            if other is not None and other.uuid == owner.uuid:
                raise OSError(
                    errno.EBUSY, "the session in which this broker had its name is not over yet", owner.name
                ) from None
            raise NameInUseError(_in_use(other, owner)) from None
        try:
            presence = cls(board, seat, owner, facts)
            presence.update(role)
        except BaseException:
            seat.close()
            raise
        return presence

    def update(self, role: str, facts: Mapping[str, Any] | None = None) -> None:
        """Say which role this broker has now, and new `facts` if there are any; for people. Raises OSError."""
        self._role, self._details = role, {}
        if facts is not None:
            self._facts = dict(facts)
        self._write()

    def become(self, role: str, facts: Mapping[str, Any]) -> None:
        """Say that this broker has that role now, while it works in it. Nothing depends on it: an error is logged,
        once, and the next call of `state` says it again."""
        self._role, self._details, self._facts = role, {}, dict(facts)
        self._try_to_write()

    def tell(self, details: Callable[[], dict[str, Any]], now: float) -> bool:
        """Say how far this broker is, where that was not said within `TELL_S` of `now`, monotonic. True where it was
        time. Nothing depends on it: an error is logged, once.
        """
        if self._told_at is not None and now < self._told_at + TELL_S:
            return False
        self._told_at = now
        self._say(details(), self._facts)
        return True

    def state(self, facts: Mapping[str, Any]) -> None:
        """Say `facts`, where they are others than before. Nothing depends on it: an error is logged, once."""
        self._say(self._details, dict(facts))

    def keep(self, now: float) -> None:
        """Make the file again where somebody has removed it, or put another one in its place: others would take this
        broker for gone. Looks once in `TELL_S`, monotonic. Nothing depends on it: an error is logged, once."""
        if self._kept_at is not None and now < self._kept_at + TELL_S:
            return
        self._kept_at = now
        try:
            if not self._seat.keep():
                return
            self._write()
            _log.warning(
                "the file that says that this broker runs was removed: it is there again", path=self._seat.place
            )
        except (SeatTakenError, OSError) as error:
            event, reason = "cannot keep the file that says that this broker runs", str(error)
            if isinstance(error, SeatTakenError):
                event = "the file that says that this broker runs was removed"
                reason = _in_use(_holder(error.read, self._owner.name), self._owner)
            self._details, self._facts = {}, {}  # the next beat says them anew
            if reason != self._trouble:
                self._trouble = reason
                _log.warning(event, path=self._seat.place, reason=reason)

    def _say(self, details: dict[str, Any], facts: dict[str, Any]) -> None:
        if (details, facts) == (self._details, self._facts):
            return
        self._details, self._facts = details, facts
        self._try_to_write()

    def _try_to_write(self) -> None:
        try:
            self._write()
        except OSError as error:
            self._details, self._facts = {}, {}  # the file says something else now, or nothing
            if str(error) != self._trouble:
                self._trouble = str(error)
                _log.info("cannot tell others how far this broker is", reason=self._trouble)

    def _write(self) -> None:
        body = {
            "role": self._role,
            "owner": self._owner.to_json(),
            "details": self._details,
            "facts": self._facts,
            "store_version": STORE_VERSION,
        }
        without_urls = {"owner": self._owner.to_json() | {"transport_urls": []}}
        for shorter in ({}, without_urls, without_urls | {"facts": {}}):
            data = encode(KIND, body | shorter, RECORD_BYTES)
            if len(data) <= RECORD_BYTES:
                break
        self._seat.write(data)

    def close(self) -> None:
        """Give the name back. Raises OSError."""
        self._seat.close()


def read_presence(board: Board) -> list[BrokerPresence]:
    """The brokers that run now, by name. Read-only. Raises NewerFormatError, OSError."""
    return [_read(posted) for posted in board.seats(held=True)]


def read_gone(board: Board) -> list[BrokerPresence]:
    """The brokers that have run and do not run now, as they last described themselves, by name: those that stopped, and
    those that died. Read-only. Raises OSError."""
    found = []
    for posted in board.seats(held=False):
        with suppress(NewerFormatError):
            found.append(_read(posted))
    return [each for each in found if each.owner is not None]


def _read(posted: Posted) -> BrokerPresence:
    for _ in range(READS_MAX):
        with suppress(CorruptError):
            body: dict[str, Any] = decode(KIND, posted.read(), posted.place)
            owner = Owner.from_json(document.field(body, "owner", dict, posted.place), posted.place)
            details, facts = (found if isinstance(found := body.get(key), dict) else {} for key in ("details", "facts"))
            role, version = document.field(body, "role", str, posted.place), body.get("store_version", 1)
            return BrokerPresence(posted.name, role, owner, details, facts, version if isinstance(version, int) else 1)
    return BrokerPresence(posted.name, "", None)


def _holder(read: Callable[[], bytes], name: str) -> Owner | None:
    """None = it runs, more cannot be said: of a newer format, or just writing who it is."""
    try:
        return _read(Posted(name, "", read)).owner
    except (AmqError, OSError):
        return None


def _in_use(other: Owner | None, owner: Owner) -> str:
    who = other.describe(owner) if other is not None else "another broker"
    return f"{who} already runs as {owner.name!r} on this store: give this one another name, or stop that one"
