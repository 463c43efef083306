"""The consumers of one connection: what each holds, and how its acknowledgements are those of the broker.

An acknowledgement names the first and the last of a range in the order of dispatch; a consumer's room is its prefetch,
and an extension for messages that its client says it was given and keeps (`DELIVERED`). The broker gives room back with
each acknowledgement, so for one that is covered by the extension that is taken back (`Extend`).

Acknowledgements in a transaction stay here until it is committed: after a rollback the client delivers the messages
again by itself, and the broker must not. Invariant: `held` is what the broker has dispatched to the consumer and not
been told the end of, oldest first.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from amq.core.errors import CommandError
from amq.protocols.commands import (
    Command,
    Credit,
    Extend,
    InSession,
    Invalid,
    Nothing,
    Outcome,
    Settle,
    SettleAgain,
    SettleRun,
    SettleSet,
)
from amq.protocols.openwire import table
from amq.protocols.openwire.table import VERSION_MAX, read_nested
from amq.protocols.openwire.wire import INT, LONG, FieldReader

DELIVERED, POISON, STANDARD, REDELIVERED, INDIVIDUAL, UNMATCHED, EXPIRED = range(7)
GROUPS_MAX: Final = 10_000  # of one consumer, that are remembered to tell the first message of each
REASON_CHARACTERS_MAX: Final = 4000
SEQ_BITS: Final = 57  # of the number by which a client knows a message; the others tell its connections apart
_SINGLE: Final = (STANDARD, INDIVIDUAL)
# A MessageId without a text, and its ProducerId, up to the name of the connection.
USUAL_ID: Final = bytes((1, table.MESSAGE_ID, 0, 1, table.PRODUCER_ID, 1))


class Ack(NamedTuple):
    """An acknowledgement. `consumer` and `transaction` are structures as bytes, b"" = there is none; `first` and `last`
    are the broker's own numbers of messages, -1 = not named."""

    command_id: int
    wants_response: bool
    transaction: bytes
    consumer: bytes
    kind: int
    first: int
    last: int
    messages: int
    reason: str


def read_ack(data: bytes, version: int) -> Ack:
    """The acknowledgement that `data` is, a frame without its size. Raises ValueError."""
    found = _read_usual(data) if version >= 10 else None
    return found if found is not None else _read_any(data, version)


def read_single(data: bytes, at: int, end: int) -> int | None:
    """The broker's number of the one message that is accepted, of an acknowledgement without a cause whose consumer
    ends at `at` in `data` and whose frame ends at `end`. None = read it in general. Raises IndexError, struct.error.

    So are nearly all of those of a client that acknowledges each message. Measured: 0.9 µs against 3.6.
    """
    if data[at] not in _SINGLE or not data.startswith(USUAL_ID, at + 1):
        return None
    last = at + 41 + (data[at + 7] << 8 | data[at + 8])
    if end != last + last - at + 4 or data[end - 1] or not data.startswith(data[at + 1 : last], last):
        return None
    found: int = LONG.unpack_from(data, last - 8)[0]
    return found


def _read_usual(data: bytes) -> Ack | None:
    """One without a cause, by its offsets; None = read it in general."""
    try:
        if data[6] != 1 or data[-1] or data[8] != 1:
            return None
        at = 11 + (data[9] << 8 | data[10])  # behind the destination
        start = at
        if data[at]:
            if data[at + 1] != table.LOCAL_TRANSACTION_ID or not data[at + 10] or data[at + 11] != table.CONNECTION_ID:
                return None
            at += 15 + (data[at + 13] << 8 | data[at + 14])
            transaction = data[start:at]
        else:
            at += 1
            transaction = b""
        if data[at] != 1 or data[at + 1] != table.CONSUMER_ID or data[at + 2] != 1:
            return None
        end = at + 21 + (data[at + 3] << 8 | data[at + 4])
        consumer, kind = data[at:end], data[end]
        if kind > EXPIRED:
            return None
        at = end + 1
        first = -1
        if data[at]:
            first, at = _sequence(data, at)
        else:
            at += 1
        if not data[at]:
            return None
        last, at = _sequence(data, at)
        if at + 5 != len(data):
            return None
        command_id = INT.unpack_from(data, 1)[0]
        return Ack(command_id, data[5] != 0, transaction, consumer, kind, first, last, INT.unpack_from(data, at)[0], "")
    except (IndexError, ValueError):
        return None


def _sequence(data: bytes, at: int) -> tuple[int, int]:
    """The broker's sequence in the MessageId that begins there, and where that ends. Raises ValueError, IndexError."""
    if data[at + 1] != table.MESSAGE_ID or data[at + 2]:
        reader = FieldReader(data, at)
        found = read_nested(reader, VERSION_MAX)
        return (found.get("broker_sequence", -1) if found is not None else -1), reader.at
    if data[at + 3] != 1 or data[at + 4] != table.PRODUCER_ID or data[at + 5] != 1:
        raise ValueError("an id that is not the usual one")
    at += 24 + (data[at + 6] << 8 | data[at + 7])
    if at + 16 > len(data):
        raise ValueError("an id is cut off")
    return int(LONG.unpack_from(data, at + 8)[0]), at + 16


def _read_any(data: bytes, version: int) -> Ack:
    found = table.decode(data, version)
    ids = [found.get("first"), found.get("last")]
    first, last = (id.get("broker_sequence", -1) if id is not None else -1 for id in ids)
    cause = found.get("cause")
    reason = f"{cause.name or 'java.lang.Throwable'}: {cause.message}" if cause is not None else ""
    return Ack(
        found.get("command_id", 0),
        found.get("response_required", False),
        _as_field(found.get("transaction")),
        _as_field(found.get("consumer")),
        found.get("kind", 0),
        first,
        last,
        found.get("count", 0),
        reason[:REASON_CHARACTERS_MAX],
    )


def _as_field(found: table.Structure | None) -> bytes:
    return b"" if found is None else table.nested(found)


class Consumer:
    """One consumer. `session` is the broker's number of its session; `key` its id as a field."""

    __slots__ = (
        "browses",
        "destination",
        "dispatched",
        "enters",
        "extension",
        "groups",
        "head",
        "held",
        "id",
        "in_transactions",
        "is_pulling",
        "key",
        "newest_seen",
        "opening",
        "opening_name",
        "picks",
        "prefetch",
        "pulls",
        "session",
    )

    def __init__(
        self, id: str, key: bytes, session: int, prefetch: int, destination: table.Structure, browses: bool
    ) -> None:
        self.id = id
        self.key = key
        self.session = session
        self.enters = InSession(session)  # is before its commands in a read
        self.prefetch = prefetch
        self.destination = destination
        self.browses = browses
        self.is_pulling = prefetch == 0  # the broker gives it so much credit as we say, and no more
        self.extension = 0
        self.picks = False  # it has acknowledged a message by itself, whatever came before that one
        # When it has ended: the broker's number of the newest message that it held and its program may have seen.
        self.newest_seen = -1
        self.dispatched = 0  # messages, ever
        self.pulls = 0  # how often its client has asked for one
        # What the client calls a message → the broker's own number. They differ for a message that had another id on an
        # earlier connection of the client: an acknowledgement of that one must not count for this.
        self.held: dict[int, int] = {}
        self.in_transactions: dict[int, bytes] = {}  # of these: acknowledged in a transaction that is open
        self.groups: set[str] = set()  # of which it has had messages
        # What every dispatch to it begins with.
        self.head = bytes((table.MESSAGE_DISPATCH,)) + b"\0\0\0\0\0" + key
        self.opening = b""  # the same, and the destination that has the full name `opening_name`
        self.opening_name = ""

    def covered(self, ack: Ack) -> list[int]:
        """The messages that `ack` is about, in the order of dispatch: those that it still holds."""
        last, held = ack.last, self.held
        if last not in held:
            return []
        first = ack.first
        self.picks = self.picks or ack.kind == INDIVIDUAL
        if ack.kind == INDIVIDUAL or first == last or len(held) == 1:
            return [last]
        found: list[int] = []
        begun = first not in held
        for seq in held:
            begun = begun or seq == first
            if begun:
                found.append(seq)
            if seq == last:
                break
        return found

    def holds(self, ack: Ack, covered: list[int]) -> bool:
        """Are all messages that `ack` is about among those that it covers? None is that came on an earlier connection;
        and one that the client has twice is one."""
        if ack.last not in self.held or len(covered) < ack.messages:
            return False
        return ack.kind == INDIVIDUAL or ack.first == -1 or ack.first in self.held

    def settle_all(self, ack: Ack, names: list[int], outcome: Outcome, receipt: object, reason: str) -> list[Command]:
        """The messages of `ack` that it holds are over. If it does not hold all, that is the answer."""
        if receipt is None or self.holds(ack, names):
            return self.settle(names, outcome, receipt, reason)
        return [*self.settle(names, outcome, None, reason), _not_held(receipt)]

    def settle_one(self, name: int, kind: int, receipt: object = None) -> list[Command]:
        """This delivery, which it holds, is accepted: as `settle`, for the hot path."""
        if kind == INDIVIDUAL:
            self.picks = True
        seq = self.held.pop(name)
        if self.in_transactions:
            self.in_transactions.pop(name, None)
        if self.extension or self.is_pulling:
            return [Settle(seq, self.id, receipt), *self.give_back(1)]
        return [Settle(seq, self.id, receipt)]

    def settle_run(self, names: list[int], kind: int) -> Command | None:
        """`settle_one` for each of `names`. None, and nothing is done, where it does not hold each of them once, or
        there is more to say."""
        different = set(names)
        if self.extension or self.is_pulling or self.in_transactions:
            return None
        if len(different) < len(names) or not self.held.keys() >= different:
            return None
        if kind == INDIVIDUAL:
            self.picks = True
        return SettleRun(list(map(self.held.pop, names)), self.id)

    def settle(self, names: list[int], outcome: Outcome, receipt: object = None, reason: str = "") -> list[Command]:
        """These deliveries, which it holds, are over. Commands of its session."""
        seqs = [self.held.pop(name) for name in names]
        if self.in_transactions:
            for name in names:
                self.in_transactions.pop(name, None)
        if len(seqs) == 1:
            commands: list[Command] = [Settle(seqs[0], self.id, receipt, "", outcome, None, reason)]
        else:
            commands = [SettleSet(seqs, self.id, receipt, "", outcome, reason)]
        if self.extension or self.is_pulling:
            commands += self.give_back(len(seqs))
        return commands

    def settle_in(self, transaction: str, names: list[int], taken: dict[Consumer, dict[int, int]]) -> list[Command]:
        """The same of what is accepted in a transaction that is about to commit. It is noted in `taken`."""
        found = taken[self] = {name: self.held.pop(name) for name in names}
        for name in names:
            self.in_transactions.pop(name, None)
        commands: list[Command] = [SettleSet(list(found.values()), self.id, None, transaction)]
        return commands + self.give_back(len(found))

    def give_back(self, count: int) -> list[Command]:
        """Take `count` acknowledged messages off the extension."""
        covered = min(count, self.extension)
        self.extension -= covered
        if self.is_pulling:
            return self.credit() if self.prefetch else []
        return [Extend(self.id, -covered)] if covered else []

    def extend(self, count: int) -> list[Command]:
        """Its client keeps so many that it was given."""
        count = max(0, min(count, len(self.held) - self.extension))
        self.extension += count
        if self.is_pulling:
            return self.credit() if self.prefetch else []
        return [Extend(self.id, count)] if count else []

    def set_prefetch(self, prefetch: int) -> list[Command]:
        """Its client wants this many at a time from now on."""
        change, self.prefetch = prefetch - self.prefetch, prefetch
        if self.is_pulling:
            return self.credit() if prefetch else []
        return [Extend(self.id, change)] if change else []

    def credit(self) -> list[Command]:
        """Give credit for the room of a consumer that began by pulling and has a prefetch now."""
        return [Credit(self.id, max(0, self.prefetch + self.extension - len(self.held)))]

    def hold_in(self, transaction: bytes, seqs: Iterable[int]) -> list[int]:
        """Those of `seqs` that are in no transaction yet are in that one from now on."""
        found = [seq for seq in seqs if seq not in self.in_transactions]
        for seq in found:
            self.in_transactions[seq] = transaction
        return found

    def release(self, seqs: Iterable[int]) -> None:
        """Their transaction is rolled back: the client delivers them again."""
        for seq in seqs:
            self.in_transactions.pop(seq, None)

    def leave(self, last_delivered: int) -> list[Command]:
        """It ends. Its program has seen the messages up to `last_delivered`, -1 = none, and not the others: those were
        prefetched only."""
        held = list(self.held)
        if self.browses or not held:
            return []
        # Where that one is acknowledged nobody can say what came before it: what others gave back is older, and may
        # have come later. So none counts, as with ActiveMQ: to count too many ends with messages that are given up.
        count = held.index(last_delivered) + 1 if last_delivered in self.held else 0
        seen, unseen = held[:count], held[count:]
        perhaps = held if self.picks and not count and last_delivered >= 0 else seen
        self.newest_seen = max((self.held[name] for name in perhaps), default=-1)
        commands: list[Command] = []
        for seqs, outcome in ((seen, Outcome.RETURNED), (unseen, Outcome.RELEASED)):
            if seqs:
                commands.append(SettleSet([self.held[seq] for seq in seqs], self.id, None, "", outcome))
        self.held.clear()
        self.in_transactions.clear()
        return commands

    def is_first_of(self, group: str, closes: bool) -> bool:
        """Has it not had any message of `group` before? `closes` = it gets the last one."""
        is_first = group not in self.groups
        if closes:
            self.groups.discard(group)
        elif is_first:
            if len(self.groups) >= GROUPS_MAX:
                self.groups.clear()
            self.groups.add(group)
        return is_first


def late(consumer: Consumer | None, ack: Ack, receipt: object) -> Command:
    """The answer to an acknowledgement of messages that `consumer`, None = it has ended, does not hold: of a single one
    the broker may know whether it has left. The others may have been acknowledged, or come again."""
    if ack.kind not in (STANDARD, INDIVIDUAL) or ack.transaction or (consumer is not None and consumer.browses):
        return Nothing(receipt)
    if consumer is None or (ack.kind == STANDARD and ack.first not in (-1, ack.last)):
        return _not_held(receipt)
    return SettleAgain(ack.last % (1 << SEQ_BITS), consumer.id, receipt)


def _not_held(receipt: object) -> Invalid:
    error = CommandError(
        "acknowledgement of a message that this connection does not hold: it was delivered on an earlier one, or its "
        "consumer has ended. It may be delivered again",
        code="UNKNOWN_DELIVERY",
    )
    return Invalid(error, receipt)
