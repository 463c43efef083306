"""RoutedConnection: one client's connection over several homes. It takes the commands of all its sessions, and gives
each to the home of its destination.

Pure: no socket, no event loop; the connections to the homes come from a function. Invariants: the commands for one home
keep their order; the client hears of a command only when each home that has a part in it has answered, so nothing is
confirmed here that no home has confirmed; a command in which no home has a part is answered at once.

A session, a transaction and a consumer begin in a home when something of theirs is first needed there. Every table here
is bounded: by what the homes allow, or by a limit below.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from hashlib import blake2b
from typing import Any, ClassVar, Final

from amq.broker.names import PREPARED_NAME, check_sent_to
from amq.broker.recipient import Recipient
from amq.broker.sessions.connection import LOOK_AFTER, PRODUCERS_MAX, SESSIONS_MAX
from amq.broker.sessions.links import Client
from amq.broker.sessions.traffic import Traffic
from amq.core.destination import TOPIC_SCHEME, Pattern, Source, told, wire_name
from amq.core.errors import AmqError, CommandError
from amq.core.message import GivenIds
from amq.gateway import settling, subscribing, works
from amq.gateway.answers import AGAIN, BYTES, KEPT_BYTES, SESSION, TOKEN, Joined, Kept, KeptRun, asking
from amq.gateway.consumers import Consumer, ConsumerHome, HomeBranch
from amq.gateway.homes import INDEX_BITS, INDEX_MASK, GatewayCluster, Loss, RoutedHome
from amq.gateway.leaving import leave
from amq.gateway.moves import HOME_CODES, Move, passes
from amq.gateway.reopening import reopen
from amq.gateway.spanning import SpanningEnd
from amq.journal.hidden import home_name
from amq.protocols.commands import (
    Abort,
    AbortBatch,
    Begin,
    CloseProducer,
    CloseSession,
    Command,
    Commit,
    CommitBatch,
    Credit,
    DeleteDestination,
    Disconnect,
    Extend,
    Failure,
    Finish,
    ForgetOutcome,
    InSession,
    Invalid,
    LeaseMessages,
    Leave,
    ListPrepared,
    Locate,
    MakeSure,
    MakeTemporary,
    Malformed,
    Nothing,
    OpenProducer,
    OpenSession,
    Outcome,
    Prepare,
    RemoveTemporary,
    Scope,
    Send,
    SendMany,
    SendRun,
    SendToMany,
    Settle,
    SettleAgain,
    SettleLeases,
    SettleRun,
    SettleSet,
    Subscribe,
    Unsubscribe,
)

NAMES_MAX: Final = 1000  # of destinations whose home is known without a look at the table
UNANSWERED_MAX: Final = 10_000  # commands in one home; the client is not read until half of them are answered
KEPT_BYTES_MAX: Final = 32 << 20  # of messages on their way to one home; more than may wait there for room
_EVERYWHERE: Final = frozenset((PREPARED_NAME,))


class RoutedSession:
    """A session of the client; `consumers` by id; `commit` = of a transaction over several homes, for which it
    waits."""

    __slots__ = ("commit", "consumers", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self.consumers: dict[str, Consumer] = {}
        self.commit: SpanningEnd | None = None


class RoutedConnection:
    """Implements `amq.transports.hub.ServedConnection`."""

    def __init__(self, cluster: GatewayCluster, peer: Recipient, owner: str, client: Client, protocol: str) -> None:
        """`owner` = what the names of its temporary destinations begin with; no other connection of the cluster ever
        has it. Raises AmqError where the client may not connect."""
        self.peer = peer
        self.traffic = Traffic()
        self.ids: GivenIds | None = None  # of messages, as the client sees those of the first store
        self.is_closed = False
        self.touched: list[RoutedHome] = []  # which get something of what is being carried out
        self.waits = False  # answers are waited for: see `answered`
        self.move: Move | None = None
        self.homes_of = cluster.placement.number  # the table by which `_by_name` knows homes, or an older one
        self.moving_until_s = 0.0  # what moves may come again until then, monotonic
        self.is_repeating = False
        self.cluster = cluster
        self._client = client
        self._since_ms = cluster.clock.wall_ms()
        self._owner = owner
        self._protocol = protocol
        self._is_lost = False
        self._is_writable = True
        self.homes: dict[int, RoutedHome] = {}  # by index
        self._by_name: dict[str, RoutedHome] = {}  # homes of single destinations
        self.sessions: dict[int, RoutedSession] = {0: RoutedSession(0)}
        self.works: dict[str, works.RoutedWork] = {}
        self.commits: dict[SpanningEnd, None] = {}  # commits and prepares that are not over
        self._ids = 0  # of transactions over several homes, ever
        self.producers: dict[str, tuple[RoutedHome, str]] = {}  # id → home, destination
        self._unbalanced: dict[Consumer, None] = {}
        self._pausing: set[object] = set()  # why the client is not read
        self._locating = 0  # questions where destinations live; while there are some the client is not read
        self._failing: Joined | None = None  # what failed last in one of several homes, and not yet in all
        self.is_ending = False  # its Disconnect is on the way
        self._entering: Callable[[Exception | None], None] | None = None  # hears what the client would hear otherwise
        if client.id:  # the other connections of that client meet it there
            self.anchor(client.id)

    def ask_to_enter(self, heard: Callable[[Exception | None], None]) -> None:
        """Before anything else: may the client have its id? `heard` is called once with the error, or None. Where there
        is an error, the connection is closed."""
        self._entering = heard
        answer = Joined(None, 0, command=MakeSure(None), deals=self._entered)
        self.anchor(self._client.id).ask(0, MakeSure(answer))
        self.flush()

    def _entered(self, joined: Joined) -> bool:
        self._enter(None if joined.error is None else joined.error.error)
        return True

    def _enter(self, error: Exception | None) -> None:
        heard, self._entering = self._entering, None
        if error is not None:
            self.close()
        if heard is not None:
            heard(error)

    def stay_known(self) -> None:
        """There is another table: the other connections of that client may meet it elsewhere."""
        if not self._client.id or self.is_closed:
            return
        try:
            self.anchor(self._client.id)
        except AmqError as error:
            self._end_with(error)

    def _end_with(self, error: Exception) -> None:
        """The connection cannot go on."""
        if self._entering is not None:
            self._enter(error)
        else:
            self.peer.fail(Failure(error, Scope.CONNECTION))

    @property
    def owes_answers(self) -> bool:
        """Is there something asked for that no home has answered?"""
        return any(home.unanswered for home in self.homes.values() if home.connection is not None)

    @property
    def client(self) -> Client:
        return self._client

    @property
    def is_lost(self) -> bool:
        return self._is_lost

    @is_lost.setter
    def is_lost(self, lost: bool) -> None:
        self._is_lost = lost
        for connection in self._connections():
            connection.is_lost = lost

    def _connections(self) -> list[Any]:
        return [home.connection for home in list(self.homes.values()) if home.connection is not None]

    def set_writable(self, writable: bool) -> None:
        self._is_writable = writable
        for connection in self._connections():
            connection.set_writable(writable)

    def lose(self) -> None:
        self._is_lost, self._is_writable = True, False
        for connection in self._connections():
            connection.lose()

    def expire_transactions(self, now: float) -> None:
        for connection in self._connections():
            connection.expire_transactions(now)

    def close(self) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        homes = list(self.homes.values())
        self.homes.clear()
        self._by_name.clear()
        for home in homes:
            home.end()
        for session in self.sessions.values():
            for consumer in session.consumers.values():
                consumer.end()
        self.sessions.clear()
        self.works.clear()
        self.commits.clear()
        self.producers.clear()
        self._unbalanced.clear()
        self.touched.clear()
        self.move = None
        self.waits = False

    # -- commands -----------------------------------------------------------------------------------------------------

    def handle(self, commands: list[Command], *, until_s: float = math.inf) -> list[Command]:
        if self.move is not None:
            commands = self.move.hold(commands)
        if until_s == math.inf:
            self.route(commands, 0)
            self.flush()
            return []
        at, step, number = 0, 2, 0  # two: where the first one is an InSession, something is done all the same
        while at < len(commands):
            number = self.route(commands[at : at + step], number)
            self.flush()
            at, step = at + step, min(2 * step, LOOK_AFTER)
            if self.is_closed:
                return []
            if self.move is not None:
                self.move.hold([InSession(number), *commands[at:]])
                return []
            if at < len(commands) and self.cluster.clock.monotonic() >= until_s:
                return [InSession(number), *commands[at:]] if number else commands[at:]
        return []

    def route(self, commands: list[Command], number: int) -> int:
        """Give each command to its home; they go there with the next `flush`. `number` = of the session of the first
        ones. Returns that of the last ones."""
        names, homes, handlers = self._by_name, self.homes, self._HANDLERS
        session = self.sessions.get(number)
        if session is not None and session.commit is not None:
            session = None
        for command in commands:
            if self.is_closed:
                break
            kind = command.__class__
            if kind is InSession:
                number = command.session  # type: ignore[attr-defined]
                session = self.sessions.get(number)
                if session is not None and session.commit is not None:
                    session = None
                continue
            try:
                if session is None:
                    self._not_ready(number, command)
                elif kind is Send and not command.transaction:  # type: ignore[attr-defined]
                    message = command.message  # type: ignore[attr-defined]
                    home = names.get(message.destination) or self.home_to(message.destination)
                    if message.envelope is not None and self._owner in message.envelope.reply_to:
                        self.home_to(message.envelope.reply_to)  # or the answer would find nobody there
                    receipt = command.receipt
                    if receipt is None:
                        home.unsure.add(number)
                    else:
                        size = KEPT_BYTES + len(message.body)
                        command.receipt = Kept((receipt, size, message, 0, number, self.is_repeating))
                        home.asked += 1
                        home.kept_bytes += size
                    self.traffic.received += 1
                    if home.out and home.session == number:
                        home.out.append(command)
                    else:
                        home.put(number, command)
                elif kind is Settle and command.first is None and not command.transaction:  # type: ignore[attr-defined]
                    seq: int = command.seq  # type: ignore[attr-defined]
                    consumer = session.consumers.get(command.consumer)  # type: ignore[attr-defined]
                    found = homes.get(seq & INDEX_MASK)
                    branch = None if consumer is None else consumer.branches.get(seq & INDEX_MASK)
                    if found is None or branch is None or consumer.is_watched:  # type: ignore[union-attr]
                        settling.settle(self, session, command)  # type: ignore[arg-type]
                        continue
                    command.seq = own = seq >> INDEX_BITS  # type: ignore[attr-defined]
                    if branch.unsettled:
                        branch.unsettled -= 1
                    outcome = command.outcome  # type: ignore[attr-defined]
                    self.traffic.acknowledged += outcome is Outcome.ACCEPTED
                    receipt = command.receipt
                    if receipt is not None:
                        command.receipt = Kept((receipt, 0, own, command.consumer, number, outcome))  # type: ignore[attr-defined]
                        found.asked += 1
                    if found.out and found.session == number:
                        found.out.append(command)
                    else:
                        found.put(number, command)
                else:
                    handlers[kind](self, session, command)
                    if session.commit is not None:
                        session = None
            except AmqError as error:
                works.spoil(self, command)
                self.peer.fail(Failure(error, Scope.COMMAND, command.receipt, number))
        return number

    def flush(self) -> None:
        """Hand what was routed to the homes."""
        while self.touched:
            touched, self.touched = self.touched, []
            for home in touched:
                if home.unsure and not home.is_making_sure:
                    self._make_sure(home)
                out, home.out = home.out, []
                if out and home.connection is not None:
                    home.connection.handle(out)
                if home.asked - home.answered > UNANSWERED_MAX or home.kept_bytes > KEPT_BYTES_MAX:
                    self.waits = True
                    self.pause(home.index)

    def _make_sure(self, home: RoutedHome) -> None:

        def sure(_: Exception | None) -> None:
            home.is_making_sure = False
            if home.unsure and not self.is_closed:
                self.touched.append(home)
                self.cluster.later(self.flush)

        home.make_sure(sure)

    def answer_now(self, command: Command) -> None:
        """No home has a part in it."""
        if command.receipt is not None:
            self.peer.confirm(command.receipt)

    def _not_ready(self, number: int, command: Command) -> None:
        """Its session is not open, or waits for a commit. Commands that may make room for that go on."""
        session = self.sessions.get(number)
        if session is None:
            self._HANDLERS[OpenSession if command.__class__ is OpenSession else Command](self, number, command)
        elif session.commit is None or passes(command):
            self._HANDLERS[command.__class__](self, session, command)
        else:
            session.commit.hold(number, command)

    def new_id(self) -> str:
        """No other transaction of the cluster ever has it."""
        self._ids += 1
        return f"{self._owner}{self._ids}"

    def _unopened(self, number: int, command: Command) -> None:
        """Its session is not open."""
        error = CommandError(f"session {number} is not open", code="UNKNOWN_SESSION")
        self.peer.fail(Failure(error, Scope.SESSION, command.receipt, number))

    # -- homes --------------------------------------------------------------------------------------------------------

    def home_at(self, index: int) -> RoutedHome:
        """The home with that index, which is opened where that is needed. Raises AmqError."""
        home = self.homes.get(index)
        if home is None:
            home = RoutedHome(self, self.cluster.placement.places[index], index)
            self.open(home)
            self.homes[index] = home
        return home

    def open(self, home: RoutedHome) -> None:
        client = self._client._replace(since_ms=self._since_ms)
        connection = self.cluster.open_home(home.store, home, client, self._owner, self._protocol)
        home.connection = connection
        if self._is_lost:
            connection.lose()
        elif not self._is_writable:
            connection.set_writable(False)

    def indices(self, name: str) -> list[int]:
        """Those of the homes of the destination of that full name."""
        table = self.cluster.placement
        stores = table.stores if name in _EVERYWHERE else table.stores_of(home_name(name))
        return [table.places.index(store) for store in stores]

    def home_to(self, name: str) -> RoutedHome:
        """The home for what is sent to the destination of that full name: of one that lives in each store always the
        same for this connection, so that what it sends stays in order. Raises AmqError."""
        home = self._by_name.get(name)
        if home is None:
            indices = self.indices(name)
            home = self.home_at(indices[0] if len(indices) == 1 else self._own_place(indices))
            if len(self._by_name) >= NAMES_MAX:
                self._by_name.clear()
            self._by_name[name] = home
        return home

    def _own_place(self, indices: list[int]) -> int:
        """The same on each connection of a client that names itself. So a message that the client sends again after a
        failover comes to the store that remembers its id; a store that is added moves few clients."""
        client = self._client
        if name := client.instance or client.id:
            known = f"{client.user.name}\0{name}\0"
            return max(indices, key=lambda index: blake2b(f"{known}{index}".encode(), digest_size=8).digest())
        digits = "".join(filter(str.isdigit, self._owner))
        return indices[int(digits or "0") % len(indices)]

    def anchor(self, name: str) -> RoutedHome:
        """The home where what concerns no destination is known by `name`: the same for all connections."""
        return self.home_at(self.indices(TOPIC_SCHEME + name)[0])

    def batch_home(self) -> RoutedHome:
        """The home that decides the batches of pipelines. Raises AmqError."""
        table = self.cluster.placement
        return self.home_at(table.places.index(table.decider))

    def all_homes(self) -> list[RoutedHome]:
        """Each store of the cluster. Raises AmqError."""
        table = self.cluster.placement
        return [self.home_at(table.places.index(store)) for store in table.stores]

    def parts(self, sources: Iterable[Source]) -> dict[RoutedHome, tuple[Source, ...]]:
        """The homes of what a consumer names, and the part that each has."""
        parts: dict[int, list[Source]] = {}
        for source in sources:
            for index in self._places_of_patterns() if isinstance(source, Pattern) else self.indices(source):
                parts.setdefault(index, []).append(source)
        return {self.home_at(index): tuple(found) for index, found in parts.items()}

    def is_place(self, index: int) -> bool:
        """Has the cluster a store with that place?"""
        places = self.cluster.placement.places
        return index < len(places) and bool(places[index])

    def _places_of_patterns(self) -> list[int]:
        table = self.cluster.placement
        return [table.places.index(store) for store in table.stores_of_patterns()]

    def only_home(self, sources: tuple[Source, ...]) -> RoutedHome:
        """Raises CommandError where they have several."""
        parts = self.parts(sources)
        if len(parts) > 1:
            raise CommandError(
                f"{wire_name(told(sources))} lives in {len(parts)} stores, and this is possible in one: connect to the "
                "port of one store, or name a destination that has one home",
                code="SOURCES_OVER_STORES",
            )
        return next(iter(parts))

    # -- answers ------------------------------------------------------------------------------------------------------

    def to_all(self, session: int, homes: Iterable[ConsumerHome], command: Command, **joined: Any) -> None:
        """`command` goes to these homes, and the client hears when all have answered."""
        found = list(homes)
        if not found:
            self.answer_now(command)
            return
        receipt = Joined(command.receipt, session, len(found), command=command, **joined)
        for home in found:
            home.ask(session, asking(command, receipt))

    def pass_on(self, session: int, home: ConsumerHome, command: Command) -> None:
        """`command` goes to one home as it is."""
        if command.receipt is None:
            home.put(session, command)
        else:
            receipt = Joined(command.receipt, session, command=command)
            home.ask(session, asking(command, receipt))

    def pass_part(self, session: int, home: ConsumerHome, command: Any) -> None:
        """A settlement, or a part of a transaction, goes to one home."""
        if command.receipt is not None:
            command.receipt = Kept((command.receipt, 0, command.transaction or None, 0, session, True))
            home.asked += 1
        home.put(session, command)

    def answer(self, joined: Joined) -> None:
        """All homes have answered."""
        failure = joined.error
        if joined.deals is not None and joined.deals(joined):
            return
        if joined.ended is not None:
            joined.ended(None if failure is None else failure.error)
        if failure is not None:
            self.peer.fail(failure._replace(receipt=joined.token))
        elif joined.is_asked:
            outcomes = joined.outcomes
            self.peer.confirm(joined.token, joined.outcome(outcomes))

    def failed(self, home: RoutedHome, failure: Failure) -> None:
        """Something has failed in that home."""
        receipt: Any = failure.receipt
        kind = receipt.__class__
        if self._entering is not None and kind is not Joined:
            self._enter(failure.error)
            return
        is_moved = getattr(failure.error, "code", "") in HOME_CODES
        move = self._move_of(home) if is_moved else None
        if kind is Kept:
            if move is not None and not receipt[AGAIN]:
                move.repeat(receipt[SESSION], receipt.command(), failure._replace(receipt=receipt[TOKEN]))
            else:
                self.peer.fail(failure._replace(receipt=receipt[TOKEN]))
            return
        if kind is Joined and failure.scope is not Scope.CONNECTION:
            if move is not None and receipt.again is not None:
                command = receipt.again
                if receipt.ended is not None:
                    receipt.ended(failure.error)
                move.repeat(receipt.session, command, failure._replace(receipt=receipt.token))
            elif receipt.failed(failure):
                self.answer(receipt)
            elif not receipt.is_question:
                self._failing = receipt
            return
        if failure.scope is Scope.CONSUMER:
            if is_moved:
                self._hold_to_be_old(home, failure)
            consumer = self.end_consumer(failure.session, failure.consumer, home)
            if move is not None and consumer is not None:
                move.repeat(failure.session, asking(consumer.command, None), failure)
                return
        token = receipt.token if kind is Joined else receipt
        self.peer.fail(failure._replace(receipt=token))

    def _hold_to_be_old(self, home: RoutedHome, failure: Failure) -> None:
        """Deliveries of that consumer from `home` come again from another one: their acknowledgements may come late."""
        session = self.sessions.get(failure.session)
        consumer = None if session is None else session.consumers.get(failure.consumer)
        branch = None if consumer is None else consumer.branches.get(home.index)
        if branch is not None:
            home.old = max(home.old, branch.newest)

    def ends(self) -> None:
        """A home ends the connection: what the client asked for at its end is answered first."""
        if self._entering is not None:
            self._enter(AmqError("the store that knows this client by its id has closed its connection: connect again"))
            return
        failing, self._failing = self._failing, None
        if failing is not None and failing.waits:  # why it ends: the other homes may answer later, or never
            self.answer(failing)
        if not self.is_ending:
            self.peer.close()

    # -- reading ------------------------------------------------------------------------------------------------------

    def pause(self, reason: object) -> None:
        """Do not read the client, for that reason: a home, which has no room for more of it, for example."""
        if not self._pausing:
            self.peer.pause_reading()
        self._pausing.add(reason)

    def resume(self, reason: object) -> None:
        if reason in self._pausing:
            self._pausing.discard(reason)
            if not self._pausing:
                self.peer.resume_reading()

    def answered(self, home: RoutedHome) -> None:
        """An answer has come from that home, and something waits for answers."""
        if home.asked - home.answered <= UNANSWERED_MAX // 2 and home.kept_bytes <= KEPT_BYTES_MAX // 2:
            self.resume(home.index)
        if self.move is not None:
            self.move.go_on()
        self.waits = self.move is not None or any(index in self._pausing for index in self.homes)

    def _move_of(self, home: RoutedHome) -> Move:
        """That home has refused something whose destination lives elsewhere."""
        if self.move is None:
            self.move = Move(self)
        self.move.homes.add(home)
        return self.move

    def forget_homes(self) -> None:
        """There may be a newer table."""
        self._by_name.clear()
        self.homes_of = self.cluster.placement.number

    def forget(self, home: RoutedHome) -> None:
        """Its store was removed."""
        del self.homes[home.index]
        self.forget_homes()

    # -- a home that is lost ------------------------------------------------------------------------------------------

    def lost(self, home: RoutedHome, loss: Loss) -> None:
        """The way to that home is broken: what the client has there begins anew at its next master. Where that is not
        possible its connection ends, so that it begins everywhere anew."""
        if self.is_closed or home.connection is None:
            return
        home.end()
        self.resume(home)
        for commit in [*self.commits]:
            commit.lost(home)
        try:
            if home.store in self.cluster.placement.stores:
                reopen(self, home, loss)
            else:
                leave(self, home, loss)
            self.flush()
        except AmqError as failed:
            why = f"the store {home.store} that this connection uses is not reached any more: connect again. {failed}"
            self._end_with(AmqError(why, code="STORE_LOST"))

    def not_resumed(self, consumer: Consumer, home: RoutedHome, joined: Joined) -> bool:
        """A consumer began anew, or could not."""
        failure = joined.error
        if failure is not None and self.end_consumer(consumer.session, consumer.id, home) is not None:
            if getattr(failure.error, "code", "") in HOME_CODES:
                self._move_of(home).repeat(consumer.session, asking(consumer.command, None), failure)
            else:
                self.peer.fail(Failure(failure.error, Scope.CONSUMER, None, consumer.session, consumer.id))
        return True

    # -- sends --------------------------------------------------------------------------------------------------------

    def _send(self, session: RoutedSession, command: Send) -> None:
        """In a transaction."""
        home = works.home_in(self, command.transaction, command.message.destination, command.message)
        self.traffic.received += 1
        self.pass_part(session.number, home, command)

    def _send_run(self, session: RoutedSession, command: SendRun) -> None:
        home, bodies, receipts = self.home_to(command.like.destination), command.bodies, command.receipts
        self.traffic.received += len(bodies)
        if receipts is None:
            home.unsure.add(session.number)
            home.put(session.number, command)
            return
        number, again = session.number, self.is_repeating
        if all(receipts):
            run = KeptRun(receipts, command, number, again)
            home.asked += len(run)
            home.kept_bytes += run.bytes
            home.put(number, SendRun(command.like, bodies, run, command.natives))
            return
        kept: list[object] = [
            None if receipt is None else Kept((receipt, KEPT_BYTES + len(body), command, place, number, again))
            for place, (receipt, body) in enumerate(zip(receipts, bodies, strict=True))
        ]
        asked = [each for each in kept if each is not None]
        home.asked += len(asked)
        home.kept_bytes += sum([each[BYTES] for each in asked])  # type: ignore[index]
        if len(asked) < len(kept):
            home.unsure.add(number)
        home.put(number, SendRun(command.like, bodies, kept, command.natives))

    def _send_many(self, session: RoutedSession, command: SendMany) -> None:
        home = works.home_in(self, command.transaction, command.like.destination, command.like)
        self.traffic.received += len(command.bodies)
        home.put(session.number, command)

    def _send_to_many(self, session: RoutedSession, command: SendToMany) -> None:
        self.traffic.received += 1
        name, message = command.transaction, command.message
        parts: dict[RoutedHome, list[str]] = {}
        for destination in command.destinations:
            check_sent_to(destination)  # an error in one is none of the others: what can be known is known before
            home = works.home_in(self, name, destination, message) if name else self.home_to(destination)
            parts.setdefault(home, []).append(destination)
        if command.receipt is None and not name:
            for home in parts:
                home.unsure.add(session.number)
        whole = command if len(parts) == 1 or name else None
        receipt = Joined(command.receipt, session.number, len(parts), command=whole)
        for home, names in parts.items():
            part = copy(message) if len(parts) > 1 else message
            home.ask(session.number, SendToMany(part, tuple(names), receipt, name))

    def once(self, command: Command, parts: int = 1) -> Command | None:
        """The command to be given again where its destination has moved: only once, and where one home had it."""
        return None if self.is_repeating or parts > 1 else command

    # -- consumers ----------------------------------------------------------------------------------------------------

    def subscribed(self, home: RoutedHome, command: Subscribe, session: int) -> HomeBranch:
        """A consumer begins in that home. The client's codec is asked once for each."""
        branch: HomeBranch = command.token  # type: ignore[assignment]
        consumer = branch.consumer
        if not consumer.has_wire:
            consumer.has_wire, consumer.wire = True, self.peer.subscribed(consumer.command, session)
        branch.wire = consumer.wire
        consumer.begun.add(home)
        return branch

    def end_consumer(self, number: int, id: str, home: RoutedHome) -> Consumer | None:
        """That consumer has ended in one home: so it ends in all. None = it has ended already."""
        session = self.sessions.get(number)
        consumer = None if session is None else session.consumers.pop(id, None)
        if consumer is not None:
            subscribing.end_in(self, consumer, {branch.home for branch in consumer.branches.values()} - {home})
        return consumer

    def balance(self, consumer: Consumer) -> None:
        """A home has used its share of that consumer's room."""
        if not self._unbalanced:
            self.cluster.later(self._balance)
        self._unbalanced[consumer] = None

    def _balance(self) -> None:
        unbalanced, self._unbalanced = self._unbalanced, {}
        for consumer in unbalanced:
            for branch, command in consumer.balance():
                branch.home.put(consumer.session, command)
        self.flush()

    # -- the rest -----------------------------------------------------------------------------------------------------

    def _open_session(self, session: RoutedSession | int, command: OpenSession) -> None:  # noqa: ARG002
        number = command.session
        if number in self.sessions:
            raise CommandError(f"session {number} is open already: give each another number")
        if len(self.sessions) >= SESSIONS_MAX:
            raise CommandError(
                f"this connection has {SESSIONS_MAX} sessions already: use one for each thread",
                code="SESSIONS_TOO_MANY",
            )
        self.sessions[number] = RoutedSession(number)
        self.answer_now(command)

    def _close_session(self, session: RoutedSession, command: CloseSession) -> None:
        number = command.session
        if number not in self.sessions or not number:
            raise CommandError(f"session {number} is not open", code="UNKNOWN_SESSION")
        commit = self.sessions[number].commit
        if commit is not None:
            commit.hold(session.number, command)
            return
        for consumer in self.sessions.pop(number).consumers.values():
            consumer.end()
        works.end_session(self, number)
        homes = [home for home in self.homes.values() if number in home.sessions]
        self.to_all(session.number, homes, command)
        for home in homes:
            home.sessions.discard(number)

    def _make_temporary(self, session: RoutedSession, command: MakeTemporary) -> None:
        home = self.home_to(command.name)

        def ended(error: Exception | None) -> None:
            if isinstance(command, RemoveTemporary):
                home.made.discard(command.name)
            elif error is None:
                home.made.add(command.name)

        self.to_all(session.number, [home], command, ended=ended)

    def _open_producer(self, session: RoutedSession, command: OpenProducer) -> None:
        home = self.home_to(command.destination)
        if len(self.producers) < PRODUCERS_MAX and command.id not in self.producers:
            self.producers[command.id] = home, command.destination
            self.pass_on(session.number, home, command)
        else:
            self.answer_now(command)

    def _close_producer(self, session: RoutedSession, command: CloseProducer) -> None:
        found = self.producers.pop(command.id, None)
        if found is None:
            self.answer_now(command)
        else:
            self.pass_on(session.number, found[0], command)

    def _delete_destination(self, session: RoutedSession, command: DeleteDestination) -> None:
        homes = [self.home_at(index) for index in self.indices(command.name)]
        self.to_all(session.number, homes, command, again=self.once(command, len(homes)))

    def _lease(self, session: RoutedSession, command: LeaseMessages | SettleLeases) -> None:
        self.to_all(session.number, [self.only_home(command.sources)], command, again=self.once(command))

    def _locate(self, session: RoutedSession, command: Locate) -> None:  # noqa: ARG002
        table = self.cluster.placement
        found = ["" if isinstance(source, Pattern) else table.home_of(source) for source in command.sources]
        homes = [home if home in table.stores else "" for home in found]
        wanted = [store for store in table.stores if "" in homes or store in homes]
        self._locating += 1
        self.pause(Locate)

        def answer(addresses: Mapping[str, Sequence[str]]) -> None:
            self._locating -= 1
            if self.is_closed:
                return
            if not self._locating:
                self.resume(Locate)
            stores = {store: [*addresses[store]] for store in wanted}
            self.peer.confirm(command.receipt, json.dumps({"table": table.number, "homes": homes, "stores": stores}))

        self.cluster.locate(wanted, answer)

    def _nothing(self, session: RoutedSession, command: Nothing) -> None:
        self.to_all(session.number, self.homes.values(), command)

    def _disconnect(self, session: RoutedSession, command: Disconnect) -> None:
        for commit in self.commits:
            if not commit.is_decided:
                commit.hold(session.number, command)
                return
        self.is_ending = True

        def ended(error: Exception | None) -> None:
            if error is None and command.receipt is not None:
                self.peer.confirm(command.receipt)
            self.peer.close()

        if not self.homes:
            ended(None)
            return
        self.to_all(session.number, [*self.homes.values()], asking(command, None), ended=ended)

    def _invalid(self, session: RoutedSession, command: Invalid) -> None:  # noqa: ARG002
        raise command.error if isinstance(command.error, AmqError) else CommandError(str(command.error))

    def _malformed(self, session: RoutedSession, command: Malformed) -> None:  # noqa: ARG002
        self.peer.fail(Failure(command.error, Scope.CONNECTION, command.receipt))

    _HANDLERS: ClassVar[dict[type, Callable[[Any, Any, Any], None]]] = {
        Command: _unopened,
        Send: _send,
        SendRun: _send_run,
        SendMany: _send_many,
        SendToMany: _send_to_many,
        Settle: settling.settle,
        SettleSet: settling.settle,
        SettleRun: settling.settle_run,
        SettleAgain: settling.settle_again,
        Subscribe: subscribing.subscribe,
        Unsubscribe: subscribing.unsubscribe,
        Credit: subscribing.credit,
        Extend: subscribing.extend,
        Begin: works.begin,
        Commit: works.end,
        Prepare: works.end,
        Abort: works.end,
        Finish: works.finish,
        CommitBatch: works.commit_batch,
        ForgetOutcome: works.ask_all,
        AbortBatch: works.abort_batch,
        ListPrepared: works.list_prepared,
        OpenSession: _open_session,
        CloseSession: _close_session,
        MakeTemporary: _make_temporary,
        RemoveTemporary: _make_temporary,
        OpenProducer: _open_producer,
        CloseProducer: _close_producer,
        DeleteDestination: _delete_destination,
        LeaseMessages: _lease,
        SettleLeases: _lease,
        Locate: _locate,
        Nothing: _nothing,
        Leave: _nothing,
        MakeSure: _nothing,
        Disconnect: _disconnect,
        Invalid: _invalid,
        Malformed: _malformed,
    }
