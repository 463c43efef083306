"""Consumers: each of a client's consumers, and its branches, one in each home of what it consumes.

The room of a consumer of several homes is divided among them, at least one message each. It goes where messages are: a
home that has used its share gets half of the largest share that is not used. Invariant: the shares are together what
the client asked for, or one for each home.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from typing import Any, Final, Protocol

from amq.protocols.commands import OLDEST, Command, Credit, Extend, Subscribe

ROOM_MAX: Final = 100_000  # deliveries that a consumer of several homes may have outstanding: they are listed here


class ConsumerHome(Protocol):
    """A home, as consumers see it: see `amq.gateway.homes`."""

    index: int
    asked: int
    old: int

    def put(self, session: int, command: Command) -> None: ...
    def ask(self, session: int, command: Command) -> None: ...


class HomeBranch:
    """A consumer in one of its homes; for the client's peer, the consumer.

    share      deliveries that it may have outstanding, or messages that it may still get where the client gives credit
    unsettled  deliveries that it has outstanding, or fewer: of a range that is settled only the end is known
    newest     of its deliveries
    is_shown   its browse has shown everything
    """

    __slots__ = (
        "acknowledges",
        "command",
        "consumer",
        "counts",
        "ended",
        "home",
        "is_shown",
        "newest",
        "share",
        "unsettled",
        "wire",
    )

    def __init__(self, consumer: Consumer, home: ConsumerHome, command: Subscribe) -> None:
        self.consumer = consumer
        self.home = home
        self.command = command  # without its receipt
        self.wire: Any = consumer.wire
        self.acknowledges = command.mode.acknowledges
        self.counts = False  # `Consumer.delivered` wants to know of each delivery
        self.share = 0
        self.unsettled = 0
        self.newest = 0
        self.ended = self.is_shown = False

    queue = None  # it is in the home

    def subscribe(self, receipt: object) -> Subscribe:
        """The command that begins it in its home: the answer of `Recipient.subscribed` is its token."""
        command = copy(self.command)
        command.receipt, command.token = receipt, self
        return command


class Consumer:
    """One consumer, by its home's index its branches. `held` = numbers of its deliveries that are outstanding, in
    order, where it has several homes."""

    def __init__(self, command: Subscribe, session: int) -> None:
        self.command = command
        self.id = command.id
        self.session = session
        self.wire: Any = None
        self.has_wire = False
        self.branches: dict[int, HomeBranch] = {}
        self.held: dict[int, None] = {}
        self.begun: set[ConsumerHome] = set()  # where it has begun
        self.asks = 0  # how often its client has given credit
        self.shows = 0  # branches whose browse has not shown everything
        self.is_divided = False
        self.is_watched = False  # its settlements are looked at one by one
        self.has_credit = command.flow.credit is not None
        self.is_drained = False  # credit that is not used is about to be taken back: nothing is shared out anew
        self.is_limited = self.has_credit or bool(command.flow.prefetch and command.mode.acknowledges)
        self.credit = command.flow.credit or 0  # that its client gave last, and what of it was used
        self.used = 0

    def open_in(self, parts: dict[ConsumerHome, Subscribe]) -> None:
        """It begins in these homes. Their commands get what each may have."""
        self.branches = {home.index: HomeBranch(self, home, command) for home, command in parts.items()}
        self.is_divided = self.is_watched = len(parts) > 1
        self.shows = len(parts)
        branches = [*self.branches.values()]
        if self.is_divided and self.is_limited:
            flow = self.command.flow
            self.credit = min(self.credit, ROOM_MAX)
            room = self.credit if self.has_credit else min(flow.prefetch, ROOM_MAX)
            for branch, share in zip(branches, divided(room, len(branches)), strict=True):
                branch.share = share
                branch.command.flow = flow._replace(credit=share) if self.has_credit else flow._replace(prefetch=share)
        elif self.has_credit:
            branches[0].share = self.credit
        for branch in branches:
            branch.counts = self.is_divided or self.has_credit

    def delivered(self, branch: HomeBranch, seq: int, count: int = 1) -> bool:
        """It has got this message, or `count` of which this is the last. True: `balance` may have something to do."""
        if self.has_credit:
            branch.share -= count
            self.used += count
        if not self.is_divided:
            return False
        if branch.acknowledges:
            self.held[seq] = None
        if not self.is_limited or self.is_drained:
            return False
        return branch.share <= 0 if self.has_credit else branch.unsettled >= branch.share

    def settled(self, seq: int) -> None:
        """This delivery is over."""
        self.held.pop(seq, None)

    def covered(self, first: int | None, last: int) -> list[int]:
        """Numbers of the deliveries from `first` (OLDEST = whatever is held) up to `last`, in order; empty = it does
        not hold both."""
        if last not in self.held or (first not in (OLDEST, None) and first not in self.held):
            return []
        if first is None:
            return [last]
        found: list[int] = []
        for seq in self.held:
            if found or first in (OLDEST, seq):
                found.append(seq)
            if seq == last:
                break
        return found if found and found[-1] == last else []

    def reopened(self, branch: HomeBranch, mask: int) -> Subscribe:
        """Its home was lost: what it held there is not held any more. Returns the command that begins it anew."""
        self.is_watched = True
        branch.unsettled = branch.newest = 0
        for seq in [seq for seq in self.held if seq & mask == branch.home.index]:
            del self.held[seq]
        command = branch.subscribe(None)
        if self.has_credit:
            command.flow = command.flow._replace(credit=max(0, branch.share))
        elif self.is_divided and self.is_limited:
            command.flow = command.flow._replace(prefetch=max(1, branch.share))
        return command

    def end(self) -> None:
        """It gets nothing any more."""
        for branch in self.branches.values():
            branch.ended = True
        self.branches.clear()  # they refer to it

    # -- room ---------------------------------------------------------------------------------------------------------

    def balance(self) -> list[tuple[HomeBranch, Command]]:
        """Commands that bring the room to where messages are."""
        if self.is_drained or not (self.is_divided and self.is_limited):
            return []
        changed = self._share_credit() if self.has_credit else self._share_prefetch()
        return [(branch, self._flow(branch, change)) for branch, change in changed.items() if change]

    def _flow(self, branch: HomeBranch, change: int) -> Command:
        return Credit(self.id, branch.share) if self.has_credit else Extend(self.id, change)

    def _share_prefetch(self) -> dict[HomeBranch, int]:
        changed: dict[HomeBranch, int] = {}
        for branch in self.branches.values():
            if branch.unsettled < branch.share:
                continue
            donor = max(self.branches.values(), key=_room)
            _move(donor, branch, min(_room(donor) // 2, donor.share - 1), changed)
        return changed

    def _share_credit(self) -> dict[HomeBranch, int]:
        """As long as the client's credit is not used up, each home has some."""
        changed: dict[HomeBranch, int] = {}
        for branch in self.branches.values():
            if self.used >= self.credit:
                _move(branch, None, branch.share, changed)
            elif branch.share <= 0:
                donor = max(self.branches.values(), key=lambda each: each.share)
                if donor.share > 1:
                    _move(donor, branch, donor.share // 2, changed)
                else:
                    _move(None, branch, 1 - branch.share, changed)
        return changed

    def grant(self, credit: int) -> list[tuple[HomeBranch, int]]:
        """Its client gives so much, instead of what is left. Returns what each home may give."""
        self.credit, self.used = min(credit, ROOM_MAX) if self.is_divided else credit, 0
        branches = [*self.branches.values()]
        shares = divided(self.credit, len(branches))
        for branch, share in zip(branches, shares, strict=True):
            branch.share = share
        return [*zip(branches, shares, strict=True)]

    def extend(self, change: int) -> list[tuple[HomeBranch, int]]:
        """Its client has room for so many more, or fewer. More room goes to the home whose messages it holds; what is
        taken back comes from the largest shares, and leaves one message to each home."""
        if change > 0:
            branch = max(self.branches.values(), key=lambda each: each.unsettled)
            change = min(change, ROOM_MAX - sum(each.share for each in self.branches.values()))
            branch.share += max(0, change)
            return [(branch, change)] if change > 0 else []
        changed: list[tuple[HomeBranch, int]] = []
        for branch in sorted(self.branches.values(), key=lambda each: -each.share):
            taken = min(-change, branch.share - 1)
            if taken > 0:
                branch.share -= taken
                change += taken
                changed.append((branch, -taken))
        return changed


def divided(room: int, homes: int) -> list[int]:
    """`room` in as many parts, of at least one each; no room = none."""
    if not room:
        return [0] * homes
    return [max(1, room // homes + (place < room % homes)) for place in range(homes)]


def _room(branch: HomeBranch) -> int:
    return branch.share - branch.unsettled


def _move(donor: HomeBranch | None, taker: HomeBranch | None, room: int, changed: dict[HomeBranch, int]) -> None:
    if room <= 0 or donor is taker:
        return
    for branch, change in ((donor, -room), (taker, room)):
        if branch is not None:
            branch.share += change
            changed[branch] = changed.get(branch, 0) + change


def in_homes(seqs: Iterable[int], mask: int) -> dict[int, list[int]]:
    """These numbers of messages by the index of their homes."""
    found: dict[int, list[int]] = {}
    for seq in seqs:
        found.setdefault(seq & mask, []).append(seq)
    return found
