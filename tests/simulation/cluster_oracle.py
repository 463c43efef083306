"""The oracle of a cluster: applications' promises over all stores, and one `StoreOracle` for each store.

Beside P1 to P4 of each store it checks, at the moment when it happens: a client is told of a confirmation only when a
store has committed what is confirmed (a gateway confirms nothing itself); a gateway gives a client only what its home
has given to this client, and as often, and settles only what the client got; no destination has two homes. That each
answer comes is liveness: some applications wait for one as long as it takes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from amq.broker.broker import Broker
from amq.broker.queues.queue import Subscription
from amq.broker.transfer.channel import Channel
from amq.cluster.placement import SPREAD, Placement
from amq.core.destination import QUEUE_SCHEME
from amq.core.message import Message
from amq.gateway.homes import INDEX_BITS
from amq.gateway.moves import Move
from amq.gateway.router import RoutedConnection
from amq.journal.batch import OpenBatch
from amq.journal.hidden import HELD_SCHEME, SENT_SCHEME, is_prepared
from amq.journal.records import Consumed, Group, Moved, ObeyedTable, Parcel, Prepared, Record
from amq.link.link import RemoteConnection
from amq.link.linked import LinkedClient
from amq.protocols.commands import Settle, SettleRun, SettleSet
from amq.transports.peer import Peer
from tests.simulation.limits import identity
from tests.simulation.oracle import Checker, Oracle
from tests.simulation.scheduler import Scheduler
from tests.simulation.storage import Server


class StoreOracle(Oracle):
    """Of one store. What applications were told is the cluster's."""

    def __init__(self, cluster: ClusterOracle, name: str, scheduler: Scheduler, server: Server) -> None:
        super().__init__(scheduler, server)
        self.cluster = cluster
        self.name = name
        self.sent, self.groups, self.counts = cluster.sent, cluster.groups, cluster.counts
        self.placement: Placement | None = None  # the newest table that the journal has
        self.left: set[int] = set()  # seqs of messages that a new master did not find
        self.held: set[int] = set()  # seqs of messages whose acknowledgement was prepared, ever
        self._is_carried = False  # does a move bring what is stored now?
        self._is_copied = False  # is what is stored now copied for a move?
        self.copied: dict[int, Message] = {}  # by seq: copies of which another store has the messages
        self.checkers = [Takeovers(self)]

    def log(self, text: str) -> None:
        self.cluster.log(f"{self.name}: {text}")

    def broken(self, promise: str, what: str) -> None:
        self.cluster.broken(promise, f"{self.name}: {what}")

    def over(self) -> bool:
        return self.cluster.over()

    def delivered(self, message_id: str, wire_id: str, epoch: int) -> None:
        super().delivered(message_id, wire_id, 0 * epoch)  # of a gateway: its number has no order

    def is_consumed(self, seq: int) -> bool:
        if self.cluster.carries and seq in self.withdrawn:
            return False  # it went to another store
        return seq in self._consumed or seq in self.left

    def has(self, seq: int) -> bool:
        """Is it here still?"""
        return not (seq in self._consumed or seq in self.left or seq in self.withdrawn)

    def _record(self, epoch: int, record: Record) -> None:
        if isinstance(record, Group) and any(_is_of_a_move(part) for part in record.records):
            for part in record.records:
                if isinstance(part, Message):
                    self.limits.came_late(part.destination, [part.seq], part.size)
            self._is_carried = True
        if isinstance(record, Group) and not any(isinstance(part, Prepared) for part in record.records):
            self._is_copied = True
        is_new = isinstance(record, Message) and record.seq not in self._stored
        if is_new and self._is_copied and record.queue_name.startswith(SENT_SCHEME):  # type: ignore[union-attr]
            self.copied[record.seq] = record  # type: ignore[union-attr, assignment]
            is_new = False
        super()._record(epoch, record)
        if isinstance(record, Moved) and record.source.startswith(SENT_SCHEME):
            for seq in sorted(record.seqs):
                self._fetched(record.target, seq)
        if isinstance(record, Moved) and record.target.startswith(HELD_SCHEME):
            self.held.update(record.seqs)
        if isinstance(record, Consumed) and record.destination.startswith(SENT_SCHEME):
            self.withdrawn.update(record.seqs)  # by the end of a part that was rolled back
        if is_new:
            assert isinstance(record, Message)
            self.cluster.stored(self, record, self._is_carried)
        elif isinstance(record, ObeyedTable):
            self._obeys(record)
        elif isinstance(record, Group):
            self._is_carried = self._is_copied = False

    def is_copy(self, seq: int) -> bool:
        return seq in self.copied

    def _fetched(self, queue: str, seq: int) -> None:
        """What was a copy is the message now."""
        message = self.copied.pop(seq, None)
        if message is not None:
            self.counts["copies fetched"] += 1
            self._check_order(message, queue)
            self.cluster.places[identity(message)].append((self, seq))

    def _check_order(self, message: Message, queue: str) -> None:
        if message.seq not in self.copied:
            super()._check_order(message, queue)

    def _obeys(self, record: ObeyedTable) -> None:
        if self.placement is not None and self.placement.number >= record.number:
            return  # written again
        self.placement = Placement.from_json(record.number, record.placement)
        if self.placement.step is not None:
            self._order.clear()  # older ones may come back
        self.counts["tables obeyed"] += 1
        self.log(f"obeys table {record.number}")

    def _find(self, epoch: int, found: list[dict[int, Message]]) -> None:
        super()._find(epoch, found)
        for messages in found:
            for message in messages.values():
                if message.seq in self.copied:
                    continue
                self.cluster.places[identity(message)].append((self, message.seq))

    def begins(self, broker: Broker, found: dict[str, dict[int, Message]]) -> None:
        """A new master has all that was durable, also what the one before it had not confirmed."""
        present = {seq for messages in found.values() for seq in messages}
        self.left.update(self._stored.keys() - present)
        claimed = {seq for each, _ in broker.state.prepared.values() for seqs in each.sends.values() for seq in seqs}
        for name, messages in sorted(found.items()):
            for seq in sorted(messages):
                if name.startswith(SENT_SCHEME) and seq not in claimed:
                    if seq not in self._stored:
                        self.copied[seq] = messages[seq]
                else:
                    self._fetched(name, seq)
        if (record := broker.state.obeyed.record) is not None:
            self._obeys(record)

    def has_home(self, name: str) -> bool:
        """May this store serve that destination, and no other one may?"""
        placement = self.placement
        if placement is None or placement.home_of(name) == SPREAD:
            return False
        return placement.is_home(self.name, name)


def _is_of_a_move(record: Record) -> bool:
    return isinstance(record, Parcel) and record.channel.endswith("/moves")


class Takeovers(Checker):
    """Sees new masters of one store."""

    def __init__(self, store: StoreOracle) -> None:
        self._store = store

    def committed(self, broker: Broker, batch: OpenBatch) -> None:
        """What a part of a transaction over several stores sends, or gives back, comes when that ends."""
        for group in batch.records:
            for record in group.records if isinstance(group, Group) else ():
                if isinstance(record, Moved) and is_prepared(record.source) and not is_prepared(record.target):
                    source = broker.state.queue(record.source)
                    places = [source.find(seq) for seq in record.seqs]
                    size = sum(place.size for place in places if place is not None)
                    self._store.limits.came_late(record.target, record.seqs, size)

    def begins(self, broker: Broker, found: dict[str, dict[int, Message]]) -> None:
        self._store.begins(broker, found)
        for name, messages in found.items():  # such an end may have been durable, and seen by nobody
            self._store.limits.came_late(name, [], sum(message.size for message in messages.values()))


class ClusterOracle(Oracle):
    """What applications are told, and what gateways do."""

    def __init__(self, scheduler: Scheduler, server: Server) -> None:
        super().__init__(scheduler, server)
        self.stores: dict[str, StoreOracle] = {}  # by the names of the processes of their brokers, too
        self.places: defaultdict[str, list[tuple[StoreOracle, int]]] = defaultdict(list)  # id → where it is stored
        self.unsure: set[str] = set()  # ids that may be stored twice: they were on their way while their home changed
        self.moving: tuple[str, ...] = ()  # queues that get another home now
        self.carries = False  # do destinations move with what they hold?
        self.spread: tuple[str, ...] = ()  # those that live in every store, of which there is one more now
        self._acknowledged: dict[str, str] = {}  # id → the application that was told so last
        self._handed: Counter[tuple[str, str, int]] = Counter()  # by homes: (owner, store, seq)
        self._given: Counter[tuple[str, str, int]] = Counter()  # by gateways
        self._given_to_any: set[tuple[str, int]] = set()

    def all(self) -> list[StoreOracle]:
        return list(dict.fromkeys(self.stores.values()))

    def here(self) -> Oracle:
        task = self._scheduler.current
        return self.stores.get(task.process.name, self) if task is not None else self

    # -- applications -------------------------------------------------------------------------------------------------

    def move(self, queues: tuple[str, ...]) -> None:
        """These get another home. The ids that their home remembers do not move, so what is on its way now may be
        stored in both (docs/cluster.md)."""
        self.moving = queues
        self.unsure.update(id for id, sent in self.sent.items() if sent.queue in queues and not sent.confirmed)

    def sending(self, message_id: str, queue: str, producer: str, number: int, group: str = "") -> None:
        super().sending(message_id, queue, producer, number, group)
        if queue in (*self.moving, *self.spread):
            self.unsure.add(message_id)

    def confirmed(self, message_id: str) -> None:
        if not self.places.get(message_id):
            self.broken("P1", f"{message_id} was confirmed, and no store has committed it")
        super().confirmed(message_id)

    def delivered(self, message_id: str, wire_id: str, epoch: int) -> None:
        if message_id in self.unsure and message_id in self.sent:
            self.sent[message_id].wire_ids.clear()
        elif self._acknowledged.get(message_id) == self._who():
            self.broken("P2", f"{message_id} is received, and its acknowledgement was confirmed")
        if self.carries and message_id in self.sent:
            self.sent[message_id].wire_ids.clear()  # each home gives it a number: `_serves` looks for copies
        super().delivered(message_id, wire_id, 0 * epoch)  # epochs of different homes have no order

    def seq_of(self, wire_id: str) -> int:
        return super().seq_of(wire_id) >> INDEX_BITS

    def acknowledged(self, message_id: str, epoch: int) -> None:
        if not any(store.is_consumed(seq) or seq in store.held for store, seq in self.places[message_id]):
            self.broken("P2", f"the acknowledgement of {message_id} was confirmed, and no store has committed it")
        self._acknowledged[message_id] = self._who()
        super().acknowledged(message_id, epoch)

    def _who(self) -> str:
        """The application that runs now. Another one may have what it got before, and look at it later."""
        task = self._scheduler.current
        return task.process.name if task is not None else ""

    # -- homes --------------------------------------------------------------------------------------------------------

    def stored(self, store: StoreOracle, message: Message, is_carried: bool = False) -> None:
        """A store commits a message that it did not have. `is_carried`: a move brings it to where its home will be."""
        self.places[identity(message)].append((store, message.seq))
        name = message.queue_name
        if is_carried or not name.startswith(QUEUE_SCHEME):
            return
        for other in self.all():
            if other is not store and other.has_home(name):
                number = other.placement.number if other.placement is not None else 0
                self.broken(
                    "home", f"{store.name} stores {identity(message)} in {name}: by table {number} {other.name} has it"
                )

    # -- gateways -----------------------------------------------------------------------------------------------------

    def _delivers(self, connection: Peer, epoch: int, subscription: Subscription, message: Message) -> None:  # noqa: ARG002
        """A gateway gives a message to a client."""
        branch: Any = subscription
        key = (connection.client._owner, branch.home.store, message.seq >> INDEX_BITS)  # type: ignore[union-attr]
        self._given[key] += 1
        self._given_to_any.add(key[1:])
        if self._given[key] > self._handed[key]:
            self.broken("gateway", f"{identity(message)} is given to a client {self._given[key]} times: {key}")

    def _hands(self, client: LinkedClient, subscription: Any, messages: list[Message]) -> None:
        """A home gives messages to a client at a gateway."""
        if client.is_closed:
            return
        here = self.here()
        assert isinstance(here, StoreOracle)
        for message in messages:
            here._delivers(client, client._hub.epoch, subscription, message)  # type: ignore[arg-type]
            if self.carries and client._hub.epoch >= here._newest_epoch:  # else nothing of it gets out
                self._serves(here, message)
            self._handed[client.owner, here.name, message.seq] += 1

    def _serves(self, store: StoreOracle, message: Message) -> None:
        """`store` gives a message to somebody: it is the only home, and has no other copy."""
        name, id = message.queue_name, identity(message)
        placement = store.placement
        if not name.startswith(QUEUE_SCHEME) or placement is None or placement.home_of(name) == SPREAD:
            return
        homes = [each.name for each in self.all() if each.has_home(name)]
        if homes != [store.name]:
            self.broken("home", f"{store.name} gives {id} to a client, and the homes of {name} are {homes}")
        copies = {seq for each, seq in self.places[id] if each is store and store.has(seq)}
        if len(copies) > 1 and id not in self.unsure:
            self.broken("P4", f"{store.name} gives {id} to a client, and has it as {sorted(copies)}")

    def _settles(self, remote: RemoteConnection, command: Any) -> None:
        seqs = command.seqs if isinstance(command, SettleRun | SettleSet) else [command.seq]
        home: Any = remote.recipient
        owner, store = home._router._owner, home.store
        is_resumed = home._router._protocol == "openwire"  # it may acknowledge what it got on an earlier connection
        if wrong := [
            seq
            for seq in seqs
            if not (self._given[owner, store, seq] or (is_resumed and (store, seq) in self._given_to_any))
        ]:
            self.broken("gateway", f"a home is to settle {wrong}, which its client never got")

    @contextmanager
    def observing(self) -> Iterator[None]:
        deliver, deliver_all, say = LinkedClient.deliver, LinkedClient.deliver_all, RemoteConnection._say
        lost, come = RoutedConnection.lost, Channel._come

        def see_deliver(client: LinkedClient, subscription: Any, message: Message, redelivered: int) -> None:
            self._hands(client, subscription, [message])
            deliver(client, subscription, message, redelivered)

        def see_deliver_all(client: LinkedClient, subscription: Any, messages: list[Message]) -> None:
            self._hands(client, subscription, messages)
            deliver_all(client, subscription, messages)

        def see_say(remote: RemoteConnection, command: Any, session: int) -> None:
            if isinstance(command, Settle | SettleRun):
                self._settles(remote, command)
            say(remote, command, session)

        def see_lost(connection: RoutedConnection, *args: Any) -> None:
            lost(connection, *args)
            goes_on = not connection.is_closed and not connection.peer.is_closing  # type: ignore[attr-defined]
            self.counts["homes lost"] += 1
            self.counts["homes lost unnoticed"] += goes_on

        def see_come(channel: Channel) -> None:
            """The messages of a parcel leave for the store that has confirmed them."""
            here = self.here()
            for seqs in channel._parcel.queues.values():
                here.withdrawn.update(seqs)
            self.counts["parcels"] += 1
            come(channel)

        with (
            super().observing(),
            patch.object(Channel, "_come", see_come),
            patch.object(LinkedClient, "deliver", see_deliver),
            patch.object(LinkedClient, "deliver_all", see_deliver_all),
            patch.object(RemoteConnection, "_say", see_say),
            patch.object(RoutedConnection, "lost", see_lost),
            self._counted(Move, "repeat", "moved"),
        ):
            yield
