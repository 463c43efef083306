"""Messages of a transaction that look alike: those that follow each other the broker stages as one `Run`, in columns.

They have no ids of their own, so they are known by their bodies. The checker `Contents`: what a prepared transaction
holds is what was sent in it, in that order, wherever it stands and whoever is master; and so it is delivered.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random

from amq.client import aio
from amq.core.message import DEFAULT_PRIORITY, TEXT, Message
from amq.journal.records import Group, Prepared
from amq.journal.records.message import Run
from tests.simulation.limits import identity
from tests.simulation.oracle import Oracle

SECOND = "z"  # a queue to which only such messages go
WIDTH_MAX = 40  # of a body, bytes: none of them is large
YEARS_S = 1e8  # what lives so long never expires, and is in columns with a time


@dataclass(frozen=True, slots=True)
class Piece:
    """What one call sends to `queue`: one message that has a separate id; or those that are `alike`."""

    queue: str
    ids: list[str]
    bodies: list[bytes]
    alike: bool = False
    text: bool = False
    priority: int = DEFAULT_PRIORITY
    time_to_live_s: float = 0.0

    async def send(self, producer: aio.Producer, timeout_s: float) -> None:
        if self.alike:
            await producer.send_many(
                self.bodies,
                text=self.text,
                priority=self.priority,
                time_to_live=self.time_to_live_s,
                timeout=timeout_s,
            )
        else:
            await producer.send(self.bodies[0], duplicate_id=self.ids[0], timeout=timeout_s)


def single(message_id: str, queue: str) -> Piece:
    """One message."""
    return Piece(queue, [message_id], [message_id.encode()])


class Mixer:
    """How one application mixes what it sends. Its dice are its own: nothing else moves."""

    def __init__(self, dice: Random) -> None:
        self._dice = dice

    def mixed(self, ids: list[str], queue: str, prefix: str) -> list[Piece]:
        """Those of `ids` one by one, and among them some that look alike."""
        dice = self._dice
        pieces = [single(message_id, queue) for message_id in ids]
        for number in range(dice.choice((0, 0, 1, 1, 2))):
            names = [f"{prefix}:{number}+{i}" for i in range(dice.choice((2, 2, 3, 5, 12)))]
            text, width = dice.random() < 0.5, dice.randint(1, WIDTH_MAX)
            bodies = [name.encode().ljust(dice.randint(1, WIDTH_MAX) if text else width, b".") for name in names]
            piece = Piece(
                dice.choice((queue, queue, SECOND)),
                names,
                bodies,
                True,
                text,
                dice.choice((4, 4, 9)),
                dice.choice((0.0, 0.0, YEARS_S)),
            )
            pieces.insert(dice.randint(0, len(pieces)), piece)
        return pieces

    def chunks(self) -> int:
        """In how many transactions the part of a batch goes."""
        return self._dice.choice((1, 1, 1, 1, 2, 3))

    def repeated(self, ids: list[str]) -> str:
        """One of `ids`, which shall be sent once more; mostly none, which is ""."""
        return self._dice.choice(ids) if self._dice.random() < 0.05 else ""


def messages_of(group: Group) -> Iterator[Message]:
    """What `group` stores, message by message."""
    for part in group.records:
        if isinstance(part, Run):
            yield from part.messages()
        elif isinstance(part, Message):
            yield part


Facts = tuple[str, bytes, int, bool, bool]  # id, body, priority, is it text, can it expire


def facts_of(message: Message) -> Facts:
    """What must stay as it was sent."""
    return identity(message), message.body, message.priority, message.content == TEXT, message.expires_ms > 0


class Contents:
    """What each seq stands for that a prepared transaction gave."""

    def __init__(self, oracle: Oracle) -> None:
        self._oracle = oracle
        self._sent: dict[str, Facts] = {}
        self._facts: dict[int, Facts] = {}
        self._lines: dict[int, tuple[str, str, int]] = {}  # seq → what of a transaction is delivered in order
        self._delivered: dict[tuple[int, str, str, int], set[int]] = {}  # (epoch, that) → seqs

    def sending(self, piece: Piece) -> None:
        """Somebody sends that in a transaction."""
        for message_id, body in zip(piece.ids, piece.bodies, strict=True):
            self._sent[message_id] = message_id, body, piece.priority, piece.text, piece.time_to_live_s > 0

    def learn(self, record: Prepared, sent: list[str], stored: Mapping[int, Message]) -> None:
        """`sent` is prepared, and `stored` what its journal has for it."""
        for name, seqs in record.sends.items():
            ids = [message_id for message_id in sent if f"queue://{self._oracle.sent[message_id].queue}" == name]
            wanted = [self._sent[message_id] for message_id in ids]
            found = [facts_of(stored[seq]) if seq in stored else "nothing" for seq in seqs]
            if found != wanted:
                self._broken(f"{record.xid} is prepared with {found} in place of {wanted} for {name}")
            if seqs != sorted({*seqs} - self._facts.keys()):
                self._broken(f"{record.xid} is prepared with seqs that are out of order, or others': {seqs}")
            self._facts |= zip(seqs, wanted, strict=False)
            self._lines |= {seq: (record.xid, name, facts[2]) for seq, facts in zip(seqs, wanted, strict=False)}

    def check(self, message: Message) -> None:
        """It stands somewhere: is it still what it was?"""
        was = self._facts.get(message.seq)
        if was is not None and facts_of(message) != was:
            self._broken(f"seq {message.seq} was {was}, and is {facts_of(message)}")

    def delivers(self, message: Message, epoch: int) -> None:
        """A master gives it to a consumer next; if for the first time, then behind what is before it."""
        if message.seq not in self._lines:
            return
        self.check(message)
        given = self._delivered.setdefault((epoch, *self._lines[message.seq]), set())
        if message.seq not in given and message.seq < max(given, default=0):
            self._broken(f"epoch {epoch} delivers {identity(message)} behind what was sent after it in its transaction")
        given.add(message.seq)

    def _broken(self, what: str) -> None:
        self._oracle.broken("contents", what)
