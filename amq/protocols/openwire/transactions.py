"""The transactions of one connection.

A transaction begins for the broker with the first message that is sent in it, or when it commits: acknowledgements wait
in their consumers until then. All that is sent in it goes to one session of the broker, and so does its end: nothing
overtakes there.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from amq.core.errors import CommandError, TransactionRolledBackError
from amq.core.xid import Xid
from amq.protocols.commands import (
    Abort,
    Begin,
    Command,
    Commit,
    Finish,
    ForgetOutcome,
    Invalid,
    ListPrepared,
    Nothing,
    Prepare,
)
from amq.protocols.openwire import table
from amq.protocols.openwire.consumers import Consumer
from amq.protocols.openwire.table import Structure
from amq.protocols.openwire.wire import INT, LONG, UNSIGNED_SHORT, decode_text, storable

BEGIN, PREPARE, COMMIT_ONE, COMMIT_TWO, ROLLBACK, RECOVER, FORGET, END = range(8)
READ_ONLY: Final = 3  # what XA's prepare answers where there is nothing to commit
OPEN_MAX: Final = 1000  # of one connection
_CONNECTION: Final = bytes((1, table.CONNECTION_ID, 1))  # a connection's id with its text, up to the length of that
_LOCAL: Final = bytes((1, table.LOCAL_TRANSACTION_ID))


class Local(NamedTuple):
    """A TransactionInfo of a local transaction. `key` = its id as a field of commands."""

    command_id: int
    responds: bool
    kind: int
    key: bytes
    id: Structure


def read_local(data: bytes) -> Local | None:
    """The TransactionInfo that `data` is, a frame without its size; None = read it in general.

    A transaction has two, and each took 75 calls of the general reader.
    """
    try:
        at = 11 + UNSIGNED_SHORT.unpack_from(data, 9)[0]  # behind the connection
        end = at + 15 + UNSIGNED_SHORT.unpack_from(data, at + 13)[0]  # and behind the transaction
        if not (data.startswith(_CONNECTION, 6) and data.startswith(_LOCAL, at) and len(data) == end + 1):
            return None
        if not data.startswith(_CONNECTION, at + 10) or data[end] > END:
            return None
        connection = Structure(table.CONNECTION_ID, {"value": decode_text(data[at + 15 : end])})
        id = Structure(
            table.LOCAL_TRANSACTION_ID, {"value": LONG.unpack_from(data, at + 2)[0], "connection": connection}
        )
        return Local(INT.unpack_from(data, 1)[0], data[5] != 0, data[end], data[at:end], id)
    except (struct.error, ValueError):
        return None


class Open:
    """A transaction that is open. `session` = where it is the broker's, -1 = the broker knows nothing of it yet."""

    __slots__ = ("acks", "is_spoiled", "name", "session")

    def __init__(self, name: str) -> None:
        self.name = name
        self.session = -1
        self.acks: dict[Consumer, list[int]] = {}
        self.is_spoiled = False  # it acknowledges what this connection does not hold: it must not commit


def name_of(id: Structure) -> str:
    """The name by which the broker knows the transaction `id`. Raises CommandError, ValueError."""
    if id.type == table.XA_TRANSACTION_ID:
        return str(xid_of(id))
    if id.type != table.LOCAL_TRANSACTION_ID:
        raise CommandError("the command names no transaction", code="UNKNOWN_TRANSACTION")
    connection = id.get("connection")
    return storable(f"TX:{connection.get('value', '') if connection is not None else ''}:{id.get('value', 0)}")


def xid_of(id: Structure) -> Xid:
    """Raises CommandError."""
    try:
        return Xid(id.get("format", 0), id.get("global_id", b""), id.get("branch", b"")).check()
    except ValueError as error:
        raise CommandError(str(error), code="XID_INVALID") from error


def structure_of(xid: Xid) -> Structure:
    """The id of an XA transaction as a structure."""
    return table.structure(table.XA_TRANSACTION_ID, format=xid.format, global_id=xid.global_id, branch=xid.branch)


Step = tuple[int, Command]  # the session in which a command is to be carried out, and the command


class Transactions:
    """Those of one connection, by their ids as fields of commands."""

    def __init__(self) -> None:
        self._open: dict[bytes, Open] = {}

    def begin(self, key: bytes, id: Structure) -> None:
        """Again = nothing. Raises CommandError."""
        if key in self._open:
            return
        if len(self._open) >= OPEN_MAX:
            raise CommandError(
                f"this connection has {OPEN_MAX} open transactions: commit some", code="TRANSACTIONS_TOO_MANY"
            )
        self._open[key] = Open(name_of(id))

    def is_open(self, key: bytes) -> bool:
        """Has a transaction with that id begun here?"""
        return key in self._open

    def sending(self, key: bytes, session: int) -> tuple[Open, list[Step]]:
        """The transaction in which something is sent by `session`, and what the broker must do before. Raises
        CommandError."""
        found = self._open.get(key)
        if found is None:
            raise CommandError("the message is sent in a transaction that is not open", code="UNKNOWN_TRANSACTION")
        return found, self._make_known(found, session)

    @staticmethod
    def _make_known(found: Open, session: int) -> list[Step]:
        if found.session >= 0:
            return []
        found.session = session
        return [(session, Begin(found.name))]

    def acknowledge(self, key: bytes, consumer: Consumer, seqs: list[int]) -> bool:
        """False: it is not open."""
        found = self._open.get(key)
        if found is None:
            return False
        taken = consumer.hold_in(key, seqs)
        if taken:
            found.acks.setdefault(consumer, []).extend(taken)
        return True

    def spoil(self, key: bytes) -> None:
        """An acknowledgement in it named a message that this connection does not hold: somebody else may have it. Its
        commit fails, or that message would be processed twice by transactions that were committed."""
        if key in self._open:
            self._open[key].is_spoiled = True

    def end(
        self,
        kind: int,
        key: bytes,
        id: Structure,
        receipt: object,
        read_only: object,
        taken: dict[Consumer, dict[int, int]],
    ) -> list[Step]:
        """The commands for a prepare, commit or rollback. `read_only` = the token for the answer that there is nothing
        to prepare; what is acknowledged is noted in `taken`. Raises CommandError."""
        found = self._open.pop(key, None)
        if kind == ROLLBACK:
            return self._roll_back(found, id, receipt)
        is_xa = id.type == table.XA_TRANSACTION_ID
        if found is None:
            if kind == COMMIT_TWO or (is_xa and kind == COMMIT_ONE):
                return [(0, Finish(xid_of(id), True, receipt))]
            name = name_of(id)
            if kind == PREPARE:
                return [(0, Prepare(name, xid_of(id), None, receipt=receipt))]
            return [(0, Commit(name, receipt, name))]  # did it take place, before the client came here?
        if found.is_spoiled:
            for consumer, names in found.acks.items():
                consumer.release(names)
            error = TransactionRolledBackError(
                "the transaction acknowledges a message that was delivered before the connection was lost, and that "
                "may be delivered again: it was rolled back"
            )
            return [(max(found.session, 0), Invalid(error, receipt, found.name))]
        steps = self._with_acks(found, taken)
        if found.session < 0:
            return [(0, Nothing(read_only if kind == PREPARE else receipt))]
        if kind == PREPARE:
            steps.append((found.session, Prepare(found.name, xid_of(id), receipt=receipt, may_be_read_only=True)))
        else:
            steps.append((found.session, Commit(found.name, receipt, "" if is_xa else found.name)))
        return steps

    def _with_acks(self, found: Open, taken: dict[Consumer, dict[int, int]]) -> list[Step]:
        """All that the broker must know of it before it ends."""
        steps: list[Step] = []
        for consumer, seqs in found.acks.items():
            held = [seq for seq in seqs if seq in consumer.held]
            if held:
                steps += self._make_known(found, consumer.session)
                steps += [(consumer.session, command) for command in consumer.settle_in(found.name, held, taken)]
        return steps

    def _roll_back(self, found: Open | None, id: Structure, receipt: object) -> list[Step]:
        if found is None:
            if id.type == table.XA_TRANSACTION_ID:
                return [(0, Finish(xid_of(id), False, receipt))]
            return [(0, Nothing(receipt))]
        for consumer, seqs in found.acks.items():
            consumer.release(seqs)
        if found.session < 0:
            return [(0, Nothing(receipt))]
        return [(found.session, Abort(found.name, receipt))]

    def forget(self, key: bytes, id: Structure, receipt: object) -> list[Step]:
        """The client will not ask any more how it ended. Raises CommandError."""
        if id.type != table.XA_TRANSACTION_ID:
            return [(0, Nothing(receipt))]
        if key in self._open:
            raise CommandError(f"{xid_of(id)} is open: end it, and prepare or roll it back", code="TRANSACTION_OPEN")
        return [(0, ForgetOutcome(xid_of(id), receipt))]

    @staticmethod
    def recover(receipt: object) -> list[Step]:
        return [(0, ListPrepared(receipt))]
