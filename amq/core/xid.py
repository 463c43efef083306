"""Ids of prepared transactions: a client's own text, or the binary id of an XA transaction manager.

Invariant: the two are never equal, and neither are the ids under which their outcomes are remembered. People, and
protocols that know text only, write a binary id as `xa:FORMAT:GLOBAL:BRANCH`, the last two in lower-case hex; the
broker prepares no text of that form.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

PART_BYTES_MAX = 64
FORMAT_MAX = (1 << 31) - 1
# How the end of a prepared transaction is remembered among the outcomes of commits: of text, and of a binary id.
XID_COMMITTED, XID_ROLLED_BACK = "xid committed: ", "xid rolled back: "
XA_COMMITTED, XA_ROLLED_BACK = "xa committed: ", "xa rolled back: "
OUTCOMES = (XID_COMMITTED, XID_ROLLED_BACK, XA_COMMITTED, XA_ROLLED_BACK)
_TEXT = re.compile(r"xa:(0|-?[1-9][0-9]{0,9}):((?:[0-9a-f]{2}){0,64}):((?:[0-9a-f]{2}){0,64})")


class Xid(NamedTuple):
    """The id of a branch of a global transaction, as XA has it: `format` of 32 bits with a sign, two parts of up to 64
    bytes."""

    format: int
    global_id: bytes
    branch: bytes

    def __str__(self) -> str:
        return f"xa:{self.format}:{self.global_id.hex()}:{self.branch.hex()}"

    def check(self) -> Xid:
        """Raises ValueError where it is none."""
        if not -FORMAT_MAX - 1 <= self.format <= FORMAT_MAX:
            raise ValueError(f"format {self.format} is not a number of 32 bits")
        if max(len(self.global_id), len(self.branch)) > PART_BYTES_MAX:
            raise ValueError(f"a part of a binary transaction id has more than {PART_BYTES_MAX} bytes")
        return self


AnyXid = str | Xid


class OwnedXid(NamedTuple):
    """The id of a transaction that `user` has prepared. Another user may have prepared one with the same id."""

    user: str
    xid: AnyXid

    def __str__(self) -> str:
        return str(self.xid)


Key = str | Xid | OwnedXid  # of a prepared transaction. Without a user: it belongs to nobody


def key_of(user: str, xid: AnyXid) -> Key:
    """The key of the transaction `xid` of `user`, "" = of nobody."""
    return OwnedXid(user, xid) if user else xid


def parts_of(key: Key) -> tuple[str, AnyXid]:
    """User ("" = nobody) and id."""
    return (key.user, key.xid) if isinstance(key, OwnedXid) else ("", key)


def parse(text: str) -> AnyXid:
    """The binary id that `text` writes; any other text is a client's own id."""
    found = _TEXT.fullmatch(text) if text.startswith("xa:") else None
    if found is None or not -FORMAT_MAX - 1 <= int(found[1]) <= FORMAT_MAX:
        return text
    return Xid(int(found[1]), bytes.fromhex(found[2]), bytes.fromhex(found[3]))


class Xids(Collection[AnyXid]):
    """The ids of a batch: `listed`, and for each pair (name, count) of `series` NAME.0, NAME.1 … These are not written
    out before they are needed: a few bytes may stand for 100,000."""

    def __init__(self, listed: Sequence[str] = (), series: Sequence[tuple[str, int]] = ()) -> None:
        self.listed = listed
        self.series = series
        self._known: frozenset[AnyXid] | None = None
        self._counts: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self.listed) + sum(count for _, count in self.series)

    def __iter__(self) -> Iterator[AnyXid]:
        yield from map(parse, self.listed)
        for name, count in self.series:
            for number in range(count):
                yield f"{name}.{number}"

    def __contains__(self, xid: object) -> bool:
        if self._known is None:
            self._known = frozenset(map(parse, self.listed))
            for name, count in self.series:
                self._counts[name] = max(count, self._counts.get(name, 0))
        if xid in self._known:
            return True
        name, _, number = xid.rpartition(".") if isinstance(xid, str) else ("", "", "")
        if name not in self._counts or len(number) > 9 or not (number.isascii() and number.isdecimal()):
            return False
        return number == str(int(number)) and int(number) < self._counts[name]


def outcome_id(xid: AnyXid, committed: bool) -> str:
    """The id under which its end is remembered."""
    if isinstance(xid, str):
        return (XID_COMMITTED if committed else XID_ROLLED_BACK) + xid
    return (XA_COMMITTED if committed else XA_ROLLED_BACK) + str(xid).removeprefix("xa:")


def to_json(xid: Key) -> object:
    """Text, or [format, global id in hex, branch in hex]; with a user an object of `user` and `xid`."""
    if isinstance(xid, OwnedXid):
        return {"user": xid.user, "xid": to_json(xid.xid)}
    return [xid.format, xid.global_id.hex(), xid.branch.hex()] if isinstance(xid, Xid) else xid


def key_from_json(found: object) -> Key:
    """The key that `to_json` has written. Raises ValueError."""
    if not isinstance(found, dict):
        return from_json(found)
    if not isinstance(found.get("user"), str) or not found["user"]:
        raise ValueError("the user of a transaction is not a text")
    return OwnedXid(found["user"], from_json(found.get("xid")))


def from_json(found: object) -> AnyXid:
    """The id that `to_json` has written. Raises ValueError."""
    if isinstance(found, str):
        return found
    if not isinstance(found, list) or [type(each) for each in found] != [int, str, str]:
        raise ValueError("a transaction id is text, or a list of a format and two parts in hex")
    return Xid(found[0], bytes.fromhex(found[1]), bytes.fromhex(found[2])).check()
