"""TwoPhase: prepares transactions, and finishes those that are: commit, rollback, timeout, batch.

Invariant: each step is one group in the journal. From the prepare on a transaction is bound to no connection and no
master: its sends are in hidden queues and wait to be moved, its acknowledgements in others and wait to be dropped;
its producer-given ids are taken. A batch of a pipeline is committed whole, with its marker, once. Each user has the ids
of its transactions alone; which of them a client means, and may end, says `amq.broker.transactions.rights`.
"""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Iterator
from itertools import islice
from typing import Protocol

import structlog

from amq.broker.core import Core
from amq.broker.names import PREPARED_NAME, is_queued, shelves
from amq.broker.queues.browser import Browser
from amq.broker.queues.queue import ConsumerOwner
from amq.broker.topics.durables import Durables
from amq.broker.transactions.commits import Commits
from amq.broker.transactions.deadlines import Deadlines
from amq.broker.transactions.refused import Refused
from amq.broker.transactions.rights import Rights
from amq.broker.transactions.transaction import Ready, Transaction, memory_bytes, records_of
from amq.broker.waiters import Answering, Refusing, Together
from amq.core.destination import wire_name
from amq.core.errors import AccessError, CommandError, StoreFullError, TransactionRolledBackError
from amq.core.message import SUBSCRIPTION_SCHEME, TEXT, Message
from amq.core.ownership import owned
from amq.core.xid import AnyXid, Key, Xid, key_of, outcome_id, parse, parts_of
from amq.journal.batch import Waiter
from amq.journal.hidden import HELD_SCHEME, SENT_SCHEME
from amq.journal.records import (
    ACKED,
    LEASE,
    PURGED,
    SPAN,
    BatchContent,
    Consumed,
    Group,
    Marker,
    Moved,
    Prepared,
    Record,
    Redelivered,
    Resolved,
    decider_of,
    decision_owner,
    is_of_lease,
    is_of_span,
    stores_of,
)
from amq.journal.records.message import Run
from amq.protocols.commands import AbortBatch, CommitBatch, Finish, Prepare, PreparePart, Subscribe

XID_CHARACTERS_MAX = 512
COMMITTED, DUPLICATE, READ_ONLY = "committed", "duplicate", "read-only"
LISTED_MAX = 10_000  # transactions told at once
LOOKED_AT_MAX = 1000  # transactions in a turn, for all that ask
OVERDUE_MAX = 100  # transactions that are rolled back in a turn
GROUP_MESSAGES_MAX = 100_000  # of transactions that are rolled back together

_log = structlog.get_logger("amq.broker")


class PendingPrepare:
    """A prepare that is on its way to the journal."""

    def __init__(self, owner: TwoPhase, transaction: Transaction, prepared: Prepared) -> None:
        self._owner = owner
        self._transaction = transaction
        self._prepared = prepared

    def withdraw(self) -> None:
        """It met a full disk: it never took place."""
        self._owner.forget(self._prepared)
        self._transaction.withdraw()


class Listing:
    """The answer to a client that asks what it may end; it is made in slices, one a turn."""

    def __init__(self, rights: Rights, waiter: Waiter, prepared: Iterator[Prepared]) -> None:
        self.rights = rights
        self.waiter = waiter
        self.prepared = prepared
        self.found: list[str] = []


class PartsElsewhere(Protocol):
    """The parts that transactions have in other stores: see `amq.broker.transactions.spanning`."""

    def until_ended(self, some: list[Prepared], waiter: Waiter) -> Waiter:
        """The waiter tells `waiter` that all of `some` are committed when their parts are, too."""
        ...


class TwoPhase:
    """`ending` = key → the group on its way that finishes it, and how. `has_work` = call `step` once a turn. `parts` is
    set before it serves."""

    parts: PartsElsewhere

    def __init__(self, core: Core, commits: Commits, durables: Durables) -> None:
        self._core = core
        self._transactions = commits
        self._durables = durables
        self._preparing: dict[Key, Group] = {}
        self._preparing_of: Counter[str] = Counter()  # how many of these are of each user
        self._refused = Refused(lambda: core.config.outcome_window)  # declared not prepared, which must stay true
        self._marking: dict[str, tuple[Marker, Group]] = {}  # owner → newest batch on its way
        self.ending: dict[Key, tuple[Group, bool]] = {}
        self._deadlines = Deadlines(core.state.prepared)
        self._late: dict[Key, None] = {}  # prepared for a batch that is committed without them
        self._listings: deque[Listing] = deque()
        self.has_work = False

    def start_serving(self) -> None:
        """The replay is complete: the ids of prepared transactions are taken."""
        for prepared, _ in self._core.state.prepared.values():
            for name, id, _seq in prepared.ids:
                self._core.state.queue(name).duplicates_pending[id] = prepared
            self._watch(prepared)

    # -- prepare ------------------------------------------------------------------------------------------------------

    def prepare(self, transaction: Transaction | None, command: Prepare, waiter: Waiter, user: str = "") -> None:
        """`transaction` None = it is not open: a question, whose answer binds `user` alone. Raises
        TransactionRolledBackError, StoreFullError, CommandError: then all of it is rolled back."""
        core = self._core
        if transaction is None:
            self._confirm_prepared(command, waiter, user)
            return
        try:
            if command.owner and core.homes is not None and core.homes.has_given_rest:
                raise TransactionRolledBackError("this store leaves the cluster: run the batch again")
            if transaction.homes_version != core.homes_version:
                transaction.check_homes()
            self._check(transaction, command, user)
        except (TransactionRolledBackError, CommandError, AccessError):
            transaction.roll_back()
            raise
        if command.may_be_read_only and not (transaction.queued or transaction.acks):
            transaction.roll_back()
            core.when_durable(Answering(waiter, READ_ONLY))
            return
        is_part = isinstance(command, PreparePart)
        prepared = Prepared(
            command.xid,
            core.next_seq(),
            core.clock.wall_ms(),
            0 if is_part else self._timeout_ms(command.timeout_ms),
            "" if is_part else command.owner,
            0 if is_part else command.batch,
            user=user,
            span=command.span,
            stores=[*command.stores],
        )
        for subscription, message in transaction.acks:
            prepared.acks.setdefault(subscription.queue.name, []).append(message.seq)
        self._prepare(transaction, prepared, waiter)

    def _timeout_ms(self, asked_ms: int | None) -> int:
        """How long a transaction waits for its end, 0 = without end."""
        config = self._core.config
        if asked_ms is None:
            asked_ms = int(1000 * config.prepared_transaction_timeout_s)
        most_ms = int(1000 * config.prepared_transaction_timeout_max_s)
        return min(asked_ms or most_ms, most_ms) if most_ms else asked_ms

    def restore(self, given: Prepared, sends: list[Message], waiter: Waiter) -> None:
        """Prepare what was prepared in another store: `given`, which this one does not know, and whose `acks` wait here
        and are in no line any more, with `sends`. Raises CommandError, TransactionRolledBackError, StoreFullError."""
        _check_names(given.xid, given.owner, is_own=True)
        self._core.memory.take(memory_bytes(sends))
        transaction = self._transactions.begin()
        transaction.sends = sends
        self._prepare(transaction, given, waiter)

    def _prepare(self, transaction: Transaction, prepared: Prepared, waiter: Waiter) -> None:
        """`prepared` says what is acknowledged; what is sent is added to it."""
        journal = self._core.journal
        moves = [Moved(name, HELD_SCHEME + name, seqs) for name, seqs in prepared.acks.items()]
        if journal.full and transaction.queued:
            transaction.roll_back()
            raise StoreFullError("the store's disk is full: the transaction was rolled back")
        try:
            group = self._append_prepare(transaction, prepared, moves, waiter)
        except Exception:
            self._release(prepared)
            transaction.roll_back()
            raise
        self._preparing[prepared.key] = group
        self._preparing_of[prepared.user] += 1
        transaction.finish(group)

    def _append_prepare(
        self, transaction: Transaction, prepared: Prepared, moves: list[Moved], waiter: Waiter
    ) -> Group:
        """The group that prepares `transaction`, on its way. After an exception the caller rolls back."""
        ready = transaction.readiness
        if ready is not None:
            ready.check()
        looks = ready is None or not ready.admit(prepared)
        for item in transaction.queued:
            if isinstance(item, Run):
                item.seq = self._core.next_seq(len(item.bodies))
                continue
            if looks and item.duplicate_id:
                self._admit_id(transaction, prepared, item)
            item.seq = self._core.next_seq()
        origin = PendingPrepare(self, transaction, prepared)
        if ready is None:
            for item in transaction.queued:
                seqs = item.seqs if isinstance(item, Run) else (item.seq,)
                prepared.sends.setdefault(item.queue_name, []).extend(seqs)
                if isinstance(item, Message) and item.duplicate_id:
                    prepared.ids.append((item.queue_name, item.duplicate_id, item.seq))
                item.send_to(SENT_SCHEME + item.queue_name)
            group = Group([*records_of(transaction.queued), *moves, prepared], origin=origin)
        else:
            ready.tell(prepared)
            group = Group([*ready.records, *moves, prepared], origin=origin, measured=ready.measured)
        self.append(group, waiter, ready)
        return group

    def _admit_id(self, transaction: Transaction, prepared: Prepared, message: Message) -> None:
        """Raises TransactionRolledBackError where it is taken."""
        if self._core.is_duplicate(message):
            raise transaction.roll_back_duplicate(prepared, message)
        self._core.admit_id(message, prepared)

    def _check(self, transaction: Transaction, command: Prepare, user: str) -> None:
        """Raises TransactionRolledBackError, CommandError where it cannot be prepared."""
        xid, key = command.xid, key_of(user, command.xid)
        _check_names(xid, command.owner, is_own=isinstance(command, PreparePart))
        if (user, xid) in self._refused:
            raise TransactionRolledBackError(f"{xid} was asked for after a failover and declared not prepared")
        if self.is_known(key):
            raise TransactionRolledBackError(
                f"{xid} was prepared before: give each transaction another xid; this one was rolled back",
                code="XID_IN_USE",
            )
        if command.owner and command.batch <= self.newest(command.owner):
            raise TransactionRolledBackError(
                f"batch {command.batch} of {command.owner} is committed already: this transaction was rolled back",
                code="BATCH_COMMITTED",
            )
        self._check_quota(user)
        ready = transaction.readiness
        into = ready.into if ready is not None else {each.queue_name: each.persistent for each in transaction.queued}
        kept = all(item.persistent for item in transaction.queued) and all(map(is_queued, into))
        if transaction.published or not kept or any(message.segment is None for _, message in transaction.acks):
            raise CommandError(
                "a prepared transaction outlives its master: send and acknowledge persistent messages of queues in it, "
                "none for topics",
                code="NOT_SUPPORTED",
            )
        if len(transaction.settled) > len(transaction.acks):
            raise CommandError("a transaction with a NACK cannot be prepared: roll it back", code="NOT_SUPPORTED")

    def _check_quota(self, user: str) -> None:
        """Raises AccessError where `user` has as many prepared transactions as it may."""
        limit = self._core.config.max_prepared_per_user
        if user and limit and len(self._core.state.prepared.of_user(user)) + self._preparing_of[user] >= limit:
            raise AccessError(
                f"user {user!r} has {limit} prepared transactions already (maxPreparedPerUser): commit some, or roll "
                "them back",
                code="QUOTA_EXCEEDED",
            )

    def tell(self, rights: Rights, waiter: Waiter) -> None:
        """Tell `waiter` the ids of transactions that wait for their end and that a user with these rights may finish:
        LISTED_MAX of them, the user's own first. Others show when these have ended."""
        prepared, owner = self._core.state.prepared, rights.owner
        several = [[*prepared.of_user(user)] for user in dict.fromkeys((owner, ""))]
        if rights.manages:
            several.append([each for each, _ in prepared.values() if each.user not in (owner, "")])
        self._listings.append(Listing(rights, waiter, (each for some in several for each in some)))
        self.has_work = True
        self._core.wake()

    def step(self) -> None:
        """A slice of what is asked for, and of what is overdue."""
        if self._listings:
            listing, prepared = self._listings[0], self._core.state.prepared
            some = list(islice(listing.prepared, LOOKED_AT_MAX))
            listing.found += (
                str(each.xid)
                for each in some
                if each.key in prepared
                and each.key not in self.ending
                and not (is_of_lease(each.owner) or is_of_span(str(each.xid)))
                and listing.rights.may_end(each)
            )
            if len(some) < LOOKED_AT_MAX or len(listing.found) >= LISTED_MAX:
                self._listings.popleft()
                ids = islice(dict.fromkeys(listing.found), LISTED_MAX)
                self._core.when_durable(Answering(listing.waiter, "\n".join(ids)))
        is_more = self._roll_back_overdue(self._core.clock.wall_ms())
        self.has_work = bool(self._listings) or is_more
        if self.has_work:
            self._core.wake()

    def _meant(self, xid: AnyXid, rights: Rights) -> Key:
        """The transaction that a user with these rights means by `xid`: its own, or one that it may end. Raises
        CommandError, also where that of another user has this id; AccessError where the user lacks rights for its
        own."""
        prepared, own = self._core.state.prepared, key_of(rights.owner, xid)
        if own in prepared and rights.owner:
            rights.check(prepared[own][0])
        if self.is_known(own) and (rights.owner or own not in prepared):
            return own
        found = [each.key for each in prepared.of_xid(xid) if rights.may_end(each)]
        if len(found) > 1:
            names = ", ".join(sorted(repr(parts_of(key)[0]) for key in found))
            raise CommandError(
                f"several users ({names}) have prepared a transaction {str(xid)[:100]!r}: log in as the one whose "
                "transaction it is",
                code="XID_AMBIGUOUS",
            )
        if found:
            return found[0]
        if xid not in prepared and self._has_ended(xid):
            return xid
        if rights.manages and (users := self._users_of_ended(xid)):
            return key_of(users[0], xid)
        raise self._unknown(xid)

    def _users_of_ended(self, xid: AnyXid) -> list[str]:
        """Users whose transactions with this id have ended."""
        return [user for user in self._core.state.outcomes.by_owner if self._has_ended(key_of(user, xid))]

    def check_ended(self, xid: AnyXid, waiter: Waiter, rights: Rights) -> None:
        """Tell `waiter` when that transaction has ended. It is remembered for others who ask, as long as
        `outcomeWindow` says. Raises CommandError where it has not, or was never prepared; AccessError."""
        core, key = self._core, self._meant(xid, rights)
        if key in self.ending:
            core.when_durable(waiter, self.ending[key][0])
        elif key in core.state.prepared or key in self._preparing:
            raise CommandError(f"{xid} is prepared: commit it or roll it back", code="TRANSACTION_PREPARED")
        else:
            core.journal.confirm(waiter)

    def is_known(self, key: Key) -> bool:
        """Is it prepared, or being prepared, or has it ended?"""
        return key in self._core.state.prepared or key in self._preparing or self._has_ended(key)

    def _has_ended(self, key: Key) -> bool:
        """Does the broker remember that it has ended?"""
        return any(self.ended_so(key, committed) for committed in (True, False))

    def ended_so(self, key: Key, committed: bool) -> bool:
        user, xid = parts_of(key)
        return owned(user, outcome_id(xid, committed)) in self._core.state.outcomes

    def _confirm_prepared(self, command: Prepare, waiter: Waiter, user: str) -> None:
        """Answer a client that lost the connection while it prepared: confirmed if it is prepared, or was until it was
        committed; else it never will be. Raises TransactionRolledBackError."""
        xid, core = command.xid, self._core
        for key in dict.fromkeys((key_of(user, xid), xid)):  # an earlier version may have prepared it, without a user
            if key in self._preparing or key in core.state.prepared or self.ended_so(key, True):
                core.when_durable(waiter, self._preparing.get(key))
                return
        self._refused.add(user, xid)
        raise TransactionRolledBackError(f"{xid} is not prepared: the transaction was rolled back")

    def forget(self, prepared: Prepared) -> None:
        """The transaction never will be prepared. A client that sent the same id meanwhile gets an error as well."""
        self._is_on_its_way_no_more(prepared)
        self._release(prepared)
        why = StoreFullError("the store's disk is full: the message was not stored, send it again later")
        for waiter in self._core.awaiting.take(prepared):
            waiter.failed(why)

    def is_prepared(self, prepared: Prepared) -> None:
        """It is durable."""
        self._is_on_its_way_no_more(prepared)
        self._watch(prepared)

    def _is_on_its_way_no_more(self, prepared: Prepared) -> None:
        if self._preparing.pop(prepared.key, None) is not None:
            self._preparing_of[prepared.user] -= 1
            if not self._preparing_of[prepared.user]:
                del self._preparing_of[prepared.user]

    def _watch(self, prepared: Prepared) -> None:
        """Watch a prepared transaction: `sweep` rolls it back when it is overdue."""
        self._deadlines.add(prepared)
        if prepared.owner and prepared.batch <= self.newest(prepared.owner):
            self._late[prepared.key] = None
            self._core.wake()

    # -- finish -------------------------------------------------------------------------------------------------------

    def finish(self, command: Finish, waiter: Waiter, rights: Rights) -> None:
        """Commit or roll back what is prepared. To ask again for what took place is confirmed. Raises CommandError,
        TransactionRolledBackError, AccessError."""
        core, xid, commit = self._core, command.xid, command.commit
        key = self._meant(xid, rights)
        if is_of_span(str(xid)):
            self._check_span(key, commit, rights)
        if key in self.ending:
            group, committed = self.ending[key]
            try:
                self._check_outcome(xid, commit, committed)
            except (CommandError, TransactionRolledBackError) as error:
                core.when_durable(Refusing(waiter, error), group)
            else:
                core.when_durable(waiter, group)
        elif key in core.state.prepared:
            prepared, _ = core.state.prepared[key]
            group = Group(self._commits(prepared) if commit else self._rollbacks(prepared))
            self.ending[key] = group, commit
            told = self.parts.until_ended([prepared], waiter) if commit else waiter
            self.append(group, told)
        elif key in self._preparing:
            raise CommandError(f"{xid} is being prepared: wait until that is confirmed", code="UNKNOWN_TRANSACTION")
        else:
            self._check_outcome(xid, commit, self.ended_so(key, True))
            core.journal.confirm(waiter)

    def _check_span(self, key: Key, commit: bool, rights: Rights) -> None:
        """A part of a transaction over several stores ends as was decided. Raises CommandError, but for an operator who
        ends a part by hand."""
        _, xid = parts_of(key)
        if not rights.manages:
            raise CommandError(f"store {decider_of(xid)} decides how {xid} ends: wait for that", code="XID_INVALID")
        found, _ = self._core.state.prepared.get(key, (None, None))
        if found is not None and stores_of(found.owner) and not commit:
            raise CommandError(f"{xid} was committed: it cannot be rolled back any more", code="XID_COMMITTED")

    def finish_together(self, some: list[Prepared], commit: bool, waiter: Waiter) -> None:
        """Commit or roll back all of `some`, none of which is ending; there need not be any."""
        if not some:
            self._core.when_durable(waiter)
            return
        group = Group([part for each in some for part in (self._commits if commit else self._rollbacks)(each)])
        for each in some:
            self.ending[each.key] = group, commit
        self.append(group, waiter)

    @staticmethod
    def _unknown(xid: AnyXid) -> CommandError:
        return CommandError(
            f"no transaction {str(xid)[:100]!r} is prepared: it never was, or its end is forgotten (outcomeWindow)",
            code="UNKNOWN_TRANSACTION",
        )

    @staticmethod
    def _check_outcome(xid: AnyXid, commit: bool, committed: bool) -> None:
        if commit and not committed:
            raise TransactionRolledBackError(f"{xid} was rolled back: by somebody, or by its timeout")
        if committed and not commit:
            raise CommandError(f"{xid} was committed: it cannot be rolled back any more", code="XID_COMMITTED")

    def commit_batch(self, command: CommitBatch, waiter: Waiter, user: str = "") -> None:
        """Commit all `xids` and the marker together, and roll back what else is prepared of the owner's batches up to
        this one. Raises CommandError, TransactionRolledBackError: then nothing was done."""
        core, owner, batch = self._core, command.owner, command.batch
        if is_of_lease(owner):
            raise _reserved()
        newest = self.newest(owner)
        if batch < newest:
            raise CommandError(
                f"batch {batch} of {owner} is older than batch {newest}, which is committed: the checkpoint from which "
                "it comes is older than this broker's store",
                code="BATCH_TOO_OLD",
            )
        content = None if command.content is None else BatchContent(*command.content)
        if batch == newest:
            self._answer_again(Marker(owner, batch, content), waiter)
            return
        parts: dict[AnyXid, Prepared] = {}
        for xid in command.xids:  # the first one that is not prepared ends it, however many there are
            if xid not in parts:
                parts[xid] = self._part(xid, owner, batch, user)
        wanted = list(parts.values())
        chosen = {each.key for each in wanted}
        others = [
            each
            for each in core.state.prepared.of_owner(owner)
            if each.batch <= batch and each.key not in chosen and each.key not in self.ending
        ]
        records = [record for each in wanted for record in self._commits(each)]
        records += [record for each in others for record in self._rollbacks(each)]
        marker = Marker(owner, batch, content)
        group = Group([*records, marker])
        for each in wanted:
            self.ending[each.key] = group, True
        for each in others:
            self.ending[each.key] = group, False
        self._marking[owner] = marker, group
        self.append(group, self.parts.until_ended(wanted, Answering(waiter, COMMITTED)))

    def _answer_again(self, asked: Marker, waiter: Waiter) -> None:
        """That batch is committed, or its commit is on its way. Raises CommandError where it held something else."""
        core = self._core
        known, group = self._marking.get(asked.owner, (None, None))
        if known is None:
            known, _ = core.state.prepared.markers[asked.owner]
        if asked.content is None or known.content in (None, asked.content):
            if group is not None:
                core.when_durable(Answering(waiter, DUPLICATE), group)
            else:
                core.journal.confirm(Answering(waiter, DUPLICATE))
            return
        assert known.content is not None
        error = CommandError(
            f"batch {asked.batch} of {asked.owner} is committed with {known.content.rows} rows (checksum "
            f"{known.content.checksum:016x}), and comes again with {asked.content.rows} rows (checksum "
            f"{asked.content.checksum:016x}): these rows were not sent",
            code="BATCH_DIFFERS",
        )
        if group is None:
            raise error
        core.when_durable(Refusing(waiter, error), group)

    def abort_batch(self, command: AbortBatch, waiter: Waiter) -> None:
        """Roll back what is prepared for an owner, in groups of bounded size. The answer comes when all are done."""
        owner, batch, prepared = command.owner, command.batch, self._core.state.prepared
        if is_of_span(owner):
            raise _reserved()
        wanted = [
            each
            for each in prepared.of_owner(owner)
            if batch in (None, each.batch)
            and each.key not in self.ending
            and (command.xids is None or each.xid in command.xids)
        ]
        answer, groups, messages = Answering(waiter, str(len(wanted))), [list[Prepared]()], 0
        for each in wanted:
            if messages >= GROUP_MESSAGES_MAX:
                groups.append([])
                messages = 0
            groups[-1].append(each)
            messages += sum(len(seqs) for part in (each.sends, each.acks) for seqs in part.values())
        together = Together(answer, len(groups))
        for some in groups:
            self.finish_together(some, False, together)

    def _part(self, xid: AnyXid, owner: str, batch: int, user: str) -> Prepared:
        """A part of that batch, whichever user has prepared it; that of `user` before those of others. Raises
        CommandError, TransactionRolledBackError."""
        prepared, own = self._core.state.prepared, key_of(user, xid)
        others = [each.key for each in prepared.of_xid(xid) if each.owner == owner]
        key = next((each for each in (own, *others, xid) if self.is_known(each)), own)
        found = prepared.get(key)
        if key in self.ending or found is None:
            _, committing = self.ending.get(key, (None, None))
            if committing is False or self.ended_so(key, False):
                raise TransactionRolledBackError(f"{xid} was rolled back: run the batch again")
            if committing or self.ended_so(key, True):
                raise CommandError(f"{xid} was committed alone: it is not part of a batch", code="XID_COMMITTED")
            raise self._unknown(xid)
        if (found[0].owner, found[0].batch) != (owner, batch):
            raise CommandError(
                f"{xid} is of batch {found[0].batch} of {found[0].owner!r}, not of batch {batch} of {owner!r}",
                code="BATCH_MISMATCH",
            )
        return found[0]

    def newest(self, owner: str) -> int:
        """The newest batch of that owner that is committed or on its way; -1 = none."""
        marker, marking = self._core.state.prepared.markers.get(owner), self._marking.get(owner)
        return max((found[0].batch for found in (marker, marking) if found is not None), default=-1)

    def _commits(self, prepared: Prepared) -> list[Record]:
        records: list[Record] = []
        for name, seqs in prepared.sends.items():
            ids = [(id, seq) for queue, id, seq in prepared.ids if queue == name]
            records.append(Moved(SENT_SCHEME + name, name, seqs, ids))
        records += [Consumed(HELD_SCHEME + name, ACKED, seqs) for name, seqs in prepared.acks.items()]
        if prepared.span:
            owner, now_ms = decision_owner(prepared.stores), self._core.clock.wall_ms()
            records.append(Prepared(prepared.span, self._core.next_seq(), now_ms, 0, owner, user=prepared.user))
        return [*records, Resolved(prepared.xid, True, self._core.next_seq(), prepared.user)]

    def _rollbacks(self, prepared: Prepared) -> list[Record]:
        """Sent messages go, acknowledged ones come again, as after any failed delivery."""
        records: list[Record] = [Consumed(SENT_SCHEME + name, PURGED, seqs) for name, seqs in prepared.sends.items()]
        for name, seqs in prepared.acks.items():
            _, _, held = shelves(name)
            if name.startswith(SUBSCRIPTION_SCHEME) and not self._durables.is_there(name):
                records.append(Consumed(held, PURGED, seqs))  # it ended while this was prepared: nobody waits for them
                continue
            queue = self._core.state.queues.get(held)
            known = queue.redelivered if queue is not None else {}
            before = [(seq, *known.get(seq, (0, 0))) for seq in seqs]
            counts = [(seq, deliveries + 1, failures + 1) for seq, deliveries, failures in before]
            records += [Redelivered(held, counts), Moved(held, name, seqs)]
        return [*records, Resolved(prepared.xid, False, self._core.next_seq(), prepared.user)]

    def append(self, group: Group, waiter: Waiter, ready: Ready | None = None) -> None:
        batch = self._core.append_group(group, ready.pending_bytes if ready is not None else None)
        batch.confirms.append((waiter, group))
        self._core.wake()

    def ended(self, prepared: Prepared, committed: bool) -> None:
        """The record of its end is durable: tell clients that sent the same id meanwhile."""
        self.ending.pop(prepared.key, None)
        self._late.pop(prepared.key, None)
        self._release(prepared)
        why = TransactionRolledBackError(f"transaction {prepared.xid}, which had sent the message, was rolled back")
        for waiter in self._core.awaiting.take(prepared):
            if committed:
                waiter.done()
            else:
                waiter.failed(why)

    def mark(self, owner: str) -> tuple[int, Group]:
        """Mark a batch of `owner` that is newer than all before it: its number, and the group on its way."""
        marker = Marker(owner, max(self._core.next_seq(), self.newest(owner) + 1))
        group = Group([marker])
        self._marking[owner] = marker, group
        self._core.append_group(group)
        self._core.wake()
        return marker.batch, group

    def marking(self, owner: str) -> Group | None:
        """The newest marker of `owner`, while it is on its way."""
        found = self._marking.get(owner)
        return None if found is None else found[1]

    def is_marked(self, marker: Marker) -> None:
        """That its batch is committed is durable, or stands elsewhere now."""
        if marker.owner in self._marking and self._marking[marker.owner][0].batch == marker.batch:
            del self._marking[marker.owner]
        for each in self._core.state.prepared.of_owner(marker.owner):
            if each.batch <= marker.batch and each.key not in self.ending:
                self._late[each.key] = None
        if self._core.homes is not None:
            self._core.homes.marked()

    def _release(self, prepared: Prepared) -> None:
        """Its ids are no more on their way."""
        for name, id, _ in prepared.ids:
            queue = self._core.state.queues.get(name)
            if queue is not None and queue.duplicates_pending.get(id) is prepared:
                del queue.duplicates_pending[id]
                self._core.state.emptied[queue] = None

    def sweep(self, now_ms: int) -> None:
        """Roll back what was prepared too long ago, or for a batch that is committed without it. Once a second."""
        if self._roll_back_overdue(now_ms):
            self.has_work = True
            self._core.wake()

    def _roll_back_overdue(self, now_ms: int) -> bool:
        """Roll back some of these. Are there more?"""
        core = self._core
        for key in list(islice(self._late, OVERDUE_MAX)):
            del self._late[key]
            if key in core.state.prepared and key not in self.ending:
                self._end_overdue(core.state.prepared[key][0], "batch committed without it")
        some = list(islice(self._deadlines.due(now_ms), OVERDUE_MAX))
        for prepared in some:
            if prepared.key not in self.ending:
                self._end_overdue(prepared, "timeout")
        return bool(self._late) or len(some) == OVERDUE_MAX

    def _end_overdue(self, prepared: Prepared, reason: str) -> None:
        _log.warning(
            "prepared transaction rolled back",
            xid=str(prepared.xid),
            owner=prepared.owner,
            user=prepared.user,
            reason=reason,
        )
        group = Group(self._rollbacks(prepared))
        self.ending[prepared.key] = group, False
        self._core.append_group(group)
        self._core.wake()

    # -- what is prepared ---------------------------------------------------------------------------------------------

    def listed(self) -> list[Prepared]:
        """Prepared transactions whose end is not on its way, oldest first."""
        found = [each for key, (each, _) in self._core.state.prepared.items() if key not in self.ending]
        return sorted(found, key=lambda each: each.seq)

    @staticmethod
    def shown(prepared: Prepared) -> Message:
        """The message that tells of it."""
        facts = {
            "xid": str(prepared.xid),
            "owner": prepared.owner,
            "batch": prepared.batch,
            "created_ms": prepared.created_ms,
            "timeout_ms": prepared.timeout_ms,
            "sends": {wire_name(name): len(seqs) for name, seqs in prepared.sends.items()},
            "acks": {wire_name(name): len(seqs) for name, seqs in prepared.acks.items()},
            **({"stores": prepared.stores} if prepared.stores else {}),
        }
        message = Message(
            PREPARED_NAME,
            json.dumps(facts).encode(),
            {"xid": str(prepared.xid)},
            "application/json",
            persistent=False,
            timestamp_ms=prepared.created_ms,
            content=TEXT,
        )
        message.seq = prepared.seq
        return message


class PreparedBrowser(Browser):
    """Shows what was prepared when it began."""

    __slots__ = ("_shown",)

    def __init__(
        self, command: Subscribe, core: Core, two_phase: TwoPhase, owner: ConsumerOwner, prefetch: int
    ) -> None:
        super().__init__(command, core, owner, prefetch)
        self._shown = deque(two_phase.listed())

    def _next(self) -> Message | None:
        if self._shown:
            return TwoPhase.shown(self._shown.popleft())
        self._finish()
        return None


def _check_names(xid: AnyXid, owner: str, is_own: bool = False) -> None:
    """`is_own`: it may be of the names that the broker gives. Raises CommandError."""
    text = str(xid)
    try:
        is_good = bool(xid.check()) if isinstance(xid, Xid) else isinstance(parse(xid), str)
    except ValueError:
        is_good = False
    if not is_good or not 0 < len(text) <= XID_CHARACTERS_MAX or "," in text or not text.isprintable():
        raise CommandError(
            f"xid {text[:40]!r}: give up to {XID_CHARACTERS_MAX} printable characters, no comma; or a binary id, of a "
            "format of 32 bits and two parts of up to 64 bytes",
            code="XID_INVALID",
        )
    if is_of_lease(text) or is_of_lease(owner) or (not is_own and (is_of_span(text) or is_of_span(owner))):
        raise _reserved()


def _reserved() -> CommandError:
    return CommandError(f"xids and owners that begin with {LEASE} or {SPAN} are the broker's own", code="XID_INVALID")
