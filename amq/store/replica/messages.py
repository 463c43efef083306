"""The messages between members of a group, and the requests of a machine to the program around it.

A *position* grows along the log of one term, from 0. Each message to a copy carries the ballot of its author, and a
copy that promised a later one refuses it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from amq.store.replica.group import GroupRecord


class SegmentWrite(NamedTuple):
    """Bytes of the segment `name`, from `start` on; 0 = with its head, which makes the segment. They end with a whole
    write of the journal. `data`: bytes or a memoryview."""

    name: str
    start: int
    data: Any


# -- to a copy ---------------------------------------------------------------------------------------------------------


class AskPromise(NamedTuple):
    """Ask the copy to refuse all earlier ballots, and to say what it has."""

    ballot: int


class Adopt(NamedTuple):
    """The coordinator has `record`: set aside what the term before it did not seal, and begin its term. A copy that has
    begun it says how far it is."""

    ballot: int
    record: GroupRecord


class Append(NamedTuple):
    """`data` leads from position `after` to `upto` in the log of `term`."""

    ballot: int
    term: int
    after: int
    upto: int
    data: Any


class Piece(NamedTuple):
    """Part `number`, from 0, of all that counts when the term of `record` begins, for a copy that cannot adopt it."""

    ballot: int
    record: GroupRecord
    number: int
    last: bool
    data: Any


class FetchLog(NamedTuple):
    """Send what follows position `after` of `term`."""

    ballot: int
    term: int
    after: int


class Trim(NamedTuple):
    """Only `names` count of the segments up to `position` in the log of `term`. The master sends it when that is
    confirmed, and needs no answer."""

    ballot: int
    term: int
    position: int
    names: tuple[str, ...]


class Renew(NamedTuple):
    """Say that no later ballot is promised. `number` grows with each question of one author."""

    ballot: int
    number: int


TO_A_COPY = (AskPromise, Adopt, Append, Piece, FetchLog, Trim, Renew)


# -- from a copy -------------------------------------------------------------------------------------------------------


class Promised(NamedTuple):
    """`ballot` is promised, durably. The copy has the log of `term` up to `position`, if it is `whole`."""

    ballot: int
    term: int
    position: int
    whole: bool


class Stored(NamedTuple):
    """The log of `term` is durable up to `position`."""

    term: int
    position: int


class Lacking(NamedTuple):
    """The copy cannot take this. It has the log of `term` up to `position`, if it is `whole`; else it expects the piece
    with number `position`."""

    term: int
    position: int
    whole: bool


class Renewed(NamedTuple):
    """When question `number` of the author of `ballot` came, no later ballot was promised."""

    ballot: int
    number: int


class RefusedBallot(NamedTuple):
    """The copy promised a later ballot."""

    promised: int


class Fetched(NamedTuple):
    """`data` leads from `after` to `upto` in the log of `term`."""

    term: int
    after: int
    upto: int
    data: Any


# -- from a copy to its disk: each is durable before the next begins, and all before the answer goes out ---------------


class KeepMark(NamedTuple):
    """Replace the small document of the copy. `epoch` is that of `term`."""

    promised: int
    term: int
    whole: bool
    epoch: int = 0


class KeepData(NamedTuple):
    """Write `data` at the end of the log, up to `upto`."""

    upto: int
    data: Any


class SetAside(NamedTuple):
    """Set aside everything after `position`, which counts no more. A new term begins at 0."""

    position: int


class StartOver(NamedTuple):
    """Set aside all that the copy has."""


class KeepPiece(NamedTuple):
    """Keep a part of what counts before the term."""

    data: Any


class ReadBack(NamedTuple):
    """Read what follows `after`, and answer with it."""

    term: int
    after: int


class KeepSegments(NamedTuple):
    """Delete all segments up to `position` but `names`. A crash may undo it."""

    position: int
    names: tuple[str, ...]


DiskRequest = KeepMark | KeepData | SetAside | StartOver | KeepPiece | ReadBack | KeepSegments


# -- from a stream, leader or candidate --------------------------------------------------------------------------------


class Say(NamedTuple):
    """Send `message` to `member`, which may be this one."""

    member: str
    message: Any


class Supply(NamedTuple):
    """Read the log of `term` from `after` on, and call `LogStream.supplied` with it."""

    member: str
    term: int
    after: int


class SupplyPiece(NamedTuple):
    """Read part `number` of what counts before this term, and call `LogStream.supplied_piece` with it."""

    member: str
    number: int


class Confirm(NamedTuple):
    """Everything up to `position` is confirmed."""

    position: int


class CompareAndSet(NamedTuple):
    """Replace the record of `revision` by `record` at the coordinator. Ask again until it answers; where it says that
    the revision is another one, read."""

    revision: int
    record: GroupRecord


class Lost(NamedTuple):
    """This member is not, or will not be, the master of this ballot. `reason` is for people."""

    reason: str
