"""Durable subscriptions: what is sent to a topic waits for a subscriber that is away, also across a takeover.

Each has a queue of its own, `subscription://CLIENT:NAME:SEQ`, that nobody can address; what it is stands in a
`Subscribed` record, and `State.subscriptions` is what the journal says. Invariants: a subscription gets what commits
while it is there, once; a subscriber who names another topic or selector begins another, with a new queue, while the
broker may `change` one in place; a queue goes in one record with all that is in it, and only when nothing more is on
its way there.

A subscription belongs to its user, and its client id and name mean nothing to others: each user may have one of that
name. A subscription without an owner (made without a login, by an earlier version, or imported) becomes that of the
first user who subscribes to it and may read all that waits there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Any

from amq.broker.actions import Action
from amq.broker.core import Core
from amq.broker.names import SUBSCRIPTION_SCHEME, is_temporary, is_topic
from amq.broker.queues.backlog import NEVER
from amq.broker.queues.queue import ConsumerOwner, Queue, Subscription
from amq.broker.recipient import Recipient
from amq.broker.topics.audience import Audience
from amq.broker.topics.known import KnownTopics
from amq.broker.waiters import Call
from amq.core.destination import Pattern, Source, means, source, told, wire_name
from amq.core.errors import CommandError, SelectorError, StoreError
from amq.core.message import Copier, Message, Sharing
from amq.core.remembered import Remembered
from amq.journal.batch import Waiter
from amq.journal.hidden import HELD_SCHEME
from amq.journal.records import PURGED, Consumed, Group, Record
from amq.journal.records.subscription import Subscribed
from amq.protocols.commands import Subscribe
from amq.security.login import owner_name
from amq.selectors import Selector

ROUTES_BYTES_MAX = 4 << 20  # of topics whose subscriptions are remembered
Key = tuple[str, str, str]  # user, client id, name


class Durables:
    """The durable subscriptions that there are. Call `load` when the replay is complete."""

    def __init__(self, core: Core, known: KnownTopics) -> None:
        self._core = core
        self._known_topics = known
        known.durable = self._topics
        self.replay: Callable[[Subscribed, Recipient], None]  # begins a retroactive subscription
        self._known: dict[Key, Subscribed] = {}
        self._by_queue: dict[str, Subscribed] = {}  # the same, by the full names of their queues
        self._newest_seq = 0  # of the subscription that began last
        self._routes: Remembered[Audience[Subscribed]] = Remembered(ROUTES_BYTES_MAX)

    def load(self) -> None:
        """Take what the journal says. Of two of one name the older one was ending. Raises StoreError where it has a
        selector that no broker has written."""
        for record in sorted(self._core.state.subscriptions.values(), key=_seq):
            try:
                self.selector_of(record)
            except SelectorError as error:
                raise StoreError(
                    f"the durable subscription {record.definition['name']!r} of client "
                    f"{record.definition['client_id']!r} has an impossible selector: the journal was not written by a "
                    "broker; restore a backup",
                    code="STORE_CORRUPT",
                ) from error
            older = self._known.get(_key(record))
            self._keep(record)
            self._newest_seq = _seq(record)
            self._use(record)
            if older is not None:
                self.end(older)

    def records(self) -> list[Subscribed]:
        """All of them but those that are about to end."""
        return list(self._known.values())

    def hears(self, topic: str) -> bool:
        """Does any of them get what is sent there?"""
        if not self._known:
            return False
        return bool(self._audience(topic))

    def consumers(self, topic: str) -> int:
        """Consumers of the subscriptions that get what is sent there."""
        queues = [self._core.state.queues.get(record.queue) for record in self._audience(topic)] if self._known else []
        return sum(len(queue.subscriptions) for queue in queues if queue is not None)

    def _audience(self, topic: str) -> Audience[Subscribed]:
        audience = self._routes.get(topic)
        if audience is None:
            audience = self._routes.keep(topic, Audience())
            for record in self._subscribed(topic):
                audience.add(record, self.selector_of(record))
        return audience

    # -- messages -----------------------------------------------------------------------------------------------------

    def copies_of(self, message: Message, until: int = NEVER) -> tuple[list[Message], list[Message]]:
        """The copies of `message` for the subscriptions that began before the seq `until`: those that were added, and
        those that were not because they are on their way there for somebody else."""
        added: list[Message] = []
        stored_by_others: list[Message] = []
        shared = Sharing(None, encodes=False)
        copier = Copier(message)
        for queue_name in self.holders(message, until):
            copy = copier.copy(queue_name)
            if copy.persistent and copy.duplicate_id and self._core.is_duplicate(copy):  # sent again
                if copy.duplicate_id in self._core.state.queue(queue_name).duplicates_pending:
                    stored_by_others.append(copy)
                continue
            copy.original, copy.shared = message, shared
            added.append(copy)
            shared.others += 1
        shared.others -= 1
        return added, stored_by_others

    def heard_by(self, topic: str) -> Iterator[str]:
        """Full names of the queues that get some of the messages that are sent there."""
        return (record.queue for record in self._subscribed(topic))

    def _subscribed(self, topic: str) -> Iterator[Subscribed]:
        return (record for record in self._known.values() if any(means(each, topic) for each in record.sources))

    def holders(self, message: Message, until: int = NEVER) -> Iterator[str]:
        """Full names of the queues of subscriptions that get `message`, and that began before the seq `until`."""
        if not self._known:
            return
        audience = self._audience(message.destination)
        origin = message.shared.origin if message.shared is not None else None
        for record in (*audience.everything, *audience.some.matching(message)):
            queue = self._core.state.queues.get(record.queue)
            local = record.no_local and queue is not None and any(each.peer is origin for each in queue.subscriptions)
            if not local and (self._newest_seq < until or _seq(record) < until):
                yield record.queue

    # -- subscriptions ------------------------------------------------------------------------------------------------

    def subscribe(self, command: Subscribe, client_id: str, session: ConsumerOwner) -> Queue:
        """The queue of the durable subscription that `command` asks for; who finds it in `Core.replaying` asks again
        when it is not there any more. Raises CommandError, SelectorError."""
        sources = command.sources
        if command.browse is not None or not all(map(is_topic, sources)) or any(map(is_temporary, sources)):
            raise CommandError("a durable subscription is one to topics: leave its name out", code="NOT_SUPPORTED")
        # An error in the rest of it shows before anything ends or begins.
        wanted = command.filter
        if wanted.selector:
            Selector(wanted.selector, self._core.message_id_prefix)
        definition = {
            "client_id": client_id,
            "name": command.subscription_name,
            "topics": list(map(str, sources)),
            "selector": wanted.selector,
            "message_id_prefix": self._core.message_id_prefix,
            "no_local": wanted.no_local,
        }
        exact = [each for each in sources if isinstance(each, str) and isinstance(source(each), Pattern)]
        if exact:
            definition["exact"] = exact
        user = owner_name(session.user)
        if user:
            definition["user"] = user
        shared = command.mode.shared or not client_id
        record = self._known.get((user, client_id, command.subscription_name))
        if record is None and (unowned := self._unowned(command.subscription_name, client_id, session)) is not None:
            record = self.change(unowned, {**unowned.definition, "user": user})
        is_other = record is None or _meaning(record.definition) != _meaning(definition)
        if record is not None and (is_other or not shared):
            self._check_unused(record)
        if record is None or is_other:
            if record is not None:
                if not _may_end(record, session):
                    raise self._in_use(record)
                self.end(record)
            record = self._create(definition)
            if wanted.retroactive:
                self.replay(record, session.peer)
        if record.queue not in self._core.replaying:
            command.filter = wanted._replace(selector="")  # only what it selects comes into the queue
        return self._queue(record)

    def selector_of(self, record: Subscribed) -> Selector | None:
        """The part of its topics that the durable subscription `record` wants, None = everything."""
        return Selector(record.selector, self._core.message_id_prefix) if record.selector else None

    def knows(self, record: Subscribed) -> bool:
        """Has it neither ended, nor is it about to?"""
        return record.queue in self._by_queue

    def is_there(self, name: str) -> bool:
        """Is there a durable subscription whose queue has that full name, which is not about to end?"""
        return name in self._by_queue

    def are_there(self, names: AbstractSet[str]) -> bool:
        """Are there durable subscriptions with queues of all these names, which are not about to end?"""
        return names <= self._by_queue.keys()

    def change(self, record: Subscribed, definition: dict[str, Any]) -> Subscribed:
        """`record`, which is there, has that definition from now on: other topics, say, or an owner. Its waiting
        messages stay."""
        changed = Subscribed(record.queue, definition)
        assert self.knows(record)
        assert _key(changed)[1:] == _key(record)[1:]
        self._core.journal.append_record(changed)
        self._core.state.subscriptions.coming[record.queue] = changed
        del self._known[_key(record)]
        self._keep(changed)
        self._routes.clear()
        self._use(changed)
        return changed

    def restore(self, definition: dict[str, Any], queue: str = "") -> Queue:
        """The queue of the durable subscription of that definition, which begins where it is not there: as `queue`, if
        that is given, which nobody has. Raises CommandError where there is another of its name, SelectorError."""
        client_id, name, user = definition["client_id"], definition["name"], definition.get("user", "")
        record = self._known.get((user, client_id, name))
        if record is None and not user:  # a user may have taken it since an earlier import
            record = next((each for each in self._known.values() if _key(each)[1:] == (client_id, name)), None)
        if record is not None and _meaning(record.definition) != _meaning(definition):
            raise CommandError(
                f"there is another durable subscription {name!r} of client {client_id!r}, "
                "to other topics or with another selector: UNSUBSCRIBE it first, with activemq.subscriptionName",
                code="SUBSCRIPTION_DIFFERS",
            )
        if record is None:
            record = Subscribed("", definition)
            self.selector_of(record)
            record = self._create(definition, queue)
        return self._queue(record)

    def queue_of(self, name: str, client_id: str, sources: tuple[Source, ...], user: str) -> str:
        """Full name of the queue of that subscription of `user`, which is one to `sources`; also of one that belongs to
        nobody. Raises CommandError."""
        record = self._known.get((owner_name(user), client_id, name))
        if record is None:
            record = self._known.get(("", client_id, name))
            if record is None or record.sources != sources:
                raise self._unknown(name, client_id)
        if record.sources != sources:
            shown = wire_name(told(record.sources))
            why = f"the durable subscription {name!r} is one to {shown}: give another name"
            raise CommandError(why, code="SUBSCRIPTION_DIFFERS")
        return record.queue

    def has(self, name: str, client_id: str, user: str) -> bool:
        """Is that subscription of `user` there?"""
        return (owner_name(user), client_id, name) in self._known

    def selector_text(self, name: str, client_id: str, user: str) -> str:
        """The selector of that subscription of `user`, or of nobody; "" where it has none, or is not there."""
        keys = (owner_name(user), client_id, name), ("", client_id, name)
        return next((self._known[key].selector for key in keys if key in self._known), "")

    def _unowned(self, name: str, client_id: str, session: ConsumerOwner) -> Subscribed | None:
        """The subscription of that name which belongs to nobody, and which the user of `session` may have. None also
        while somebody without a login consumes it: then it stays theirs."""
        record = self._known.get(("", client_id, name)) if owner_name(session.user) else None
        if record is None or not _may_end(record, session):
            return None
        queue = self._core.state.queues.get(record.queue)
        return None if queue is not None and queue.subscriptions else record

    @staticmethod
    def _unknown(name: str, client_id: str) -> CommandError:
        why = f"client {client_id!r} has no durable subscription {name!r}"
        return CommandError(why, code="UNKNOWN_SUBSCRIPTION")

    def to_end(self, name: str, client_id: str, own: Subscription | None, session: ConsumerOwner) -> Subscribed:
        """That subscription of the user of `session`, which nobody but `own`, a consumer of it, uses: it may `end`.
        Raises CommandError."""
        record = self._known.get((owner_name(session.user), client_id, name))
        if record is None:
            record = self._unowned(name, client_id, session)
        if record is None or not _may_end(record, session):
            raise self._unknown(name, client_id)
        self._check_unused(record, own)
        return record

    def to_delete(self, name: str, client_id: str, user: str | None) -> Subscribed:
        """That subscription, which nobody uses: an operator may `end` it. `user` = to whom it belongs, "" = to nobody,
        None = no matter. Raises CommandError."""
        found = [each for key, each in self._known.items() if key[1:] == (client_id, name) and user in (None, key[0])]
        if not found:
            raise self._unknown(name, client_id)
        if len(found) > 1:
            raise CommandError(
                f"client {client_id!r} has a durable subscription {name!r} of each of these users: "
                f"{', '.join(sorted(repr(each.user) for each in found))}: name the user ('' = nobody)",
                code="SUBSCRIPTION_AMBIGUOUS",
            )
        self._check_unused(found[0])
        return found[0]

    def _keep(self, record: Subscribed) -> None:
        self._known[_key(record)] = record
        self._by_queue[record.queue] = record

    def _create(self, definition: dict[str, Any], queue: str = "") -> Subscribed:
        core = self._core
        key = definition["client_id"], definition["name"]
        record = Subscribed(queue or f"{SUBSCRIPTION_SCHEME}{key[0]}:{key[1]}:{core.next_seq()}", definition)
        core.journal.append_record(record)
        self._keep(record)
        self._newest_seq = max(self._newest_seq, _seq(record))
        self._routes.clear()
        self._use(record)
        return record

    def _use(self, record: Subscribed) -> None:
        for each in record.sources:
            if isinstance(each, str):
                self._known_topics.use(each)

    def _topics(self) -> set[str]:
        """Full names of the topics to which somebody is subscribed durably."""
        return {each for record in self._known.values() for each in record.sources if isinstance(each, str)}

    def _queue(self, record: Subscribed) -> Queue:
        queue = self._core.state.queue(record.queue)
        queue.configure(self._core.state.options_of(record.topics[0]))
        queue.stays = True
        return queue

    def _check_unused(self, record: Subscribed, own: Subscription | None = None) -> None:
        queue, prepared = map(self._core.state.queues.get, (record.queue, HELD_SCHEME + record.queue))
        used = queue is not None and any(each is not own for each in queue.subscriptions)
        if used or (prepared is not None and prepared.stored):
            raise self._in_use(record)

    @staticmethod
    def _in_use(record: Subscribed) -> CommandError:
        return CommandError(
            f"the durable subscription {record.definition['name']!r} has a consumer, or a transaction that is "
            "prepared: end that, or subscribe with activemq.shared:true on all of its connections",
            code="SUBSCRIPTION_IN_USE",
        )

    def end(self, record: Subscribed, waiter: Waiter | None = None) -> None:
        """The subscription ends, and what waits for it goes."""
        del self._by_queue[record.queue]
        if self._known[_key(record)].queue == record.queue:
            del self._known[_key(record)]
        self._routes.clear()
        # It goes when what was appended before is committed; no record stands for that which could be rejected.
        self._core.journal.confirm(Call(partial(self.remove, record, waiter), _never))

    def remove(self, record: Subscribed, waiter: Waiter | None) -> None:
        """Nothing more is on its way to that queue: it goes with what is in it."""
        core = self._core
        queue, journal = core.state.queue(record.queue), core.journal
        seqs = core.empty(queue)
        held = queue.messages.keys() - set(seqs)  # acknowledged in transactions that are open
        for message in [queue.messages[seq] for seq in held]:
            if message.segment is None:
                core.consumed(queue, message)
        seqs += queue.messages.keys() & held
        core.state.subscriptions[record.queue].is_ending = True
        parts: list[Record] = [Consumed(record.queue, PURGED, seqs)] if seqs else []
        journal.append_record(Group([*parts, Subscribed(record.queue, {})]))
        if waiter is not None:
            journal.confirm(waiter)
        core.wake()


def _may_end(record: Subscribed, session: ConsumerOwner) -> bool:
    """Only those who may read its messages throw them away."""
    return all(session.may(Action.CREATE_DURABLE, str(each)) for each in record.sources)


def _never(error: Exception) -> None:
    raise AssertionError("nothing that could be rejected") from error


def _key(record: Subscribed) -> Key:
    return record.user, record.definition["client_id"], record.definition["name"]


def _seq(record: Subscribed) -> int:
    return int(record.queue.rpartition(":")[2])


def _meaning(definition: dict[str, Any]) -> dict[str, Any]:
    """The part of a definition that decides whether two are one. A store that was imported has other message ids; and a
    subscriber of one protocol does not know the further keys that another one has added."""
    return {name: definition.get(name) for name in ("client_id", "name", "topics", "exact", "selector", "no_local")}
