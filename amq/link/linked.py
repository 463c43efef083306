"""LinkedClient: a client at its home, whose socket is at a gateway.

Implements `amq.broker.recipient.Recipient`. Invariants: it holds what the window of its connection allows, and so
does the gateway; an error that its protocol does not survive ends it at once, and no later command of it is carried
out; as a client with a socket it counts among the connections of this broker, and those of its user.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import structlog

from amq.broker.recipient import QueueConsumer
from amq.broker.sessions.connection import ClientConnection
from amq.broker.sessions.links import Client
from amq.broker.sessions.traffic import Traffic
from amq.config.node_options import NodeOptions
from amq.core.errors import AccessError, AmqError, CommandError
from amq.core.message import LARGE_BODY_BYTES, Message, MessageBatch
from amq.journal.reader import RecordRun
from amq.link import calls, commands
from amq.link.calls import ClientOpening
from amq.link.channel import GRANT_BYTES, Inlet, Outlet
from amq.link.framing import Kind, LinkError, LinkFrame, framed
from amq.link.messages import columns_of
from amq.link.socket import LinkHub
from amq.protocols.commands import (
    Command,
    Failure,
    GoOn,
    InSession,
    Malformed,
    Scope,
    Send,
    SendMany,
    SendRun,
    SendToMany,
    Subscribe,
)
from amq.security.login import User
from amq.transports.doorkeeper import Doorkeeper

MOVED = "MOVED"  # code: the destination has another home
HOME_CODES = (MOVED, "MOVING")  # or it is on its way there
_ENCODED = "link"  # the key of what links wrote of a batch
_log = structlog.get_logger("amq.link")


class HomeHub(LinkHub, Protocol):
    """The master, as the connections of a link need it."""

    epoch: int
    door: Doorkeeper

    @property
    def config(self) -> NodeOptions: ...
    def admit(self, peer: Any, owner: str, client: Client, protocol: str) -> ClientConnection: ...
    def shown(self, queue: Any, message: Message) -> Message: ...
    def lend(self, queue: Any, message: Message) -> int: ...
    def take_back(self, size: int) -> None: ...
    def opened(self, peer: Any) -> bool: ...
    def closed(self, peer: Any) -> None: ...


class Carrier(Protocol):
    """The link of a client."""

    is_full: bool

    def write(self, *pieces: Any) -> None: ...
    def hold(self, client: LinkedClient) -> None:
        """Call its `flow` when the link has room."""

    def flush_later(self, client: LinkedClient) -> None:
        """Call its `flush` before the turn writes."""

    def over(self, client: LinkedClient) -> None:
        """It is over at this end."""


def _read(frame: LinkFrame) -> Command:
    """A command that cannot be read ends its connection, and never the link of all."""
    try:
        return commands.read(frame)
    except LinkError as error:
        return Malformed(error)


class Spoken(NamedTuple):
    """The protocol that the client speaks at its gateway."""

    name: str


class LinkedClient:
    """`number` = that of the connection in this process; `on_link` = its number on the link."""

    has_shown_login = True

    def __init__(
        self, hub: HomeHub, link: Carrier, number: int, on_link: int, opening: ClientOpening, gateway: str
    ) -> None:
        self._hub = hub
        self._link = link
        self.on_link = on_link
        self.number = number
        self.owner = opening.owner
        self.user, self.client_id = opening.user, opening.id
        self.peer_name = opening.peer_name or gateway
        self.codec = Spoken(opening.protocol)
        self.client: ClientConnection | None = None
        self.is_closed = False  # at this end
        self._survives = frozenset(opening.survives)
        self._roles = frozenset(opening.roles)
        self._instance, self._exclusive, self._since_ms = opening.instance, opening.exclusive, opening.since_ms
        self._traffic = Traffic()
        self._outlet = Outlet(on_link, link.write, self._emptied)
        self._inlet = Inlet(hub.config.max_frame_size_bytes + LARGE_BODY_BYTES)
        self._session = 0  # of the commands that come
        self._held: list[Command] = []  # not yet carried out
        self._sends = 0  # messages that came, where the user is throttled
        self._bytes = 0  # of the same
        self._done: list[int] = []  # receipts of this turn that are not yet written
        self._lent_bytes = 0
        self._moved: set[int | None] = set()  # receipts of this share that were refused because of their destination
        self._refused: set[str] = set()  # destinations that had moved, until the gateway knows that
        self._is_held_back = False  # the session learned that there is no room for deliveries
        self._is_stalled = self._is_throttled = False  # nothing is granted
        self._ends = False  # the gateway has closed it

    def begin(self) -> None:
        """Its client comes in. Raises AmqError."""
        hub = self._hub
        if self.owner.startswith(f"{hub.epoch}-") or not self.owner:
            raise AccessError("a gateway names a client as this broker names its own: give each gateway its own number")
        if not hub.opened(self):
            told = "the broker has all the connections that it may have already"
            raise hub.door.too_many("maxConnections", told, "close some, or use one for several sessions")
        hub.door.let_in(self.number, self.user)
        user = User(self.user, self._roles)
        client = Client(user, self.client_id, self._instance, self._exclusive, self._since_ms)
        self.client = hub.admit(self, self.owner, client, self.codec.name)
        self._traffic = self.client.traffic

    # -- what the gateway says ----------------------------------------------------------------------------------------

    def take(self, frame: LinkFrame) -> bool:
        """Returns whether there are commands to `work` on. Raises LinkError."""
        kind = frame.kind
        if kind == Kind.GRANT:
            self._outlet.granted(calls.read_size(frame))
            self.flow()
            return False
        if kind == Kind.CLOSE:
            self._ends = True
            return True
        if self.is_closed:
            return False
        whole = self._inlet.take(frame)
        if whole is None:
            self._grant()
            return False
        self._bytes += len(whole.data) + len(whole.body)
        if whole.kind in commands.COMMANDS:
            held = self._held
            if not held and self._session:
                held.append(InSession(self._session))
            held.append(_read(whole))
        elif whole.kind == Kind.SESSION:
            self._session = calls.read_size(whole)
            if self._held:
                self._held.append(InSession(self._session))
        elif whole.kind == Kind.LOST:
            self._lose(calls.read_size(whole) != 0)
        else:
            raise LinkError(f"the gateway sent a frame of kind {whole.kind}, which is not known")
        return True

    def _lose(self, lost: bool) -> None:
        client = self.client
        if client is not None and lost:
            client.lose()
        elif client is not None:
            client.is_lost = False
            self.flow()

    def work(self, until_s: float) -> bool:
        """Carry out what came, until then, monotonic. Returns whether something is left."""
        client = self.client
        if client is None or self.is_closed:
            self._held.clear()
        elif self._held:
            came, self._held = self._held, []
            config = self._hub.config
            throttles = config.throttle_messages or config.throttle_size_bytes
            if throttles:
                self._count(came)
            if self._refused:
                came = self._behind(came)
            self._held = client.handle(came, until_s=until_s)
            if self._moved:
                self._note_moved(came)
            if self._held:
                return True
            if throttles and not self.is_closed:
                self._throttle()
            self._bytes = 0
        if self._ends:
            self.end()
        elif self._inlet.taken_bytes >= GRANT_BYTES:
            self._grant()
        return False

    def _note_moved(self, came: list[Command]) -> None:
        """Some of `came` was refused: nothing behind it for the same destination is stored, until the gateway knows."""
        moved, self._moved = self._moved, set()
        for command in came:
            names = named(command)
            if names and not moved.isdisjoint(receipts_of(command)):
                self._refused.update(names)

    def _behind(self, came: list[Command]) -> list[Command]:
        """`came`, but for messages behind such that were refused."""
        found: list[Command] = []
        session = 0
        for command in came:
            if command.__class__ is GoOn:
                self._refused.clear()
            elif isinstance(command, InSession):
                session = command.session
            if self._refused.isdisjoint(named(command)):
                found.append(command)
                continue
            error = CommandError("the destination had another home when the messages before this one came", code=MOVED)
            for receipt in receipts_of(command):
                self.fail(Failure(error, Scope.COMMAND, receipt, session))
        return found

    def go_on(self, share_s: float) -> float:
        """The share of this connection in a later round: see `amq.transports.shares`."""
        now_s = self._hub.clock.monotonic
        until_s = now_s() + share_s
        turn = self._hub.turn
        turn.wake()
        if self.work(until_s):
            turn.shares.wait(self)
        return until_s - now_s()

    def _count(self, came: list[Command]) -> None:
        """Note how much the user has sent."""
        runs = sum(len(each.bodies) for each in came if isinstance(each, SendMany | SendRun))
        self._sends += runs + sum(isinstance(each, Send) for each in came)

    def _throttle(self) -> None:
        """Grant more only when the user may send more."""
        wait_s = self._hub.door.wait_s(self.user, self._sends, self._bytes)
        self._sends = 0
        if wait_s:
            self._is_throttled = True
            self._hub.loop.call_later(wait_s, self._throttled)

    def _throttled(self) -> None:
        self._is_throttled = False
        self._grant()

    def _grant(self) -> None:
        if self._is_stalled or self._is_throttled or self._held or self.is_closed:
            return
        size = self._inlet.grant()
        if size:
            self._link.write(framed(Kind.GRANT, calls.of_size(self.on_link, size)))

    # -- Recipient ----------------------------------------------------------------------------------------------------

    def subscribed(self, command: Subscribe, session: int) -> object:  # noqa: ARG002
        """The number that the gateway gave to the consumer."""
        return command.token

    def deliver(self, subscription: QueueConsumer, message: Message, redelivered: int) -> None:
        if self.is_closed:
            return
        self._traffic.delivered += 1
        if redelivered:
            message = self._hub.shown(subscription.queue, message)
        body = message.body
        head = calls.delivery(self.on_link, subscription.wire, message, redelivered)
        if len(body) > LARGE_BODY_BYTES:
            self._lent_bytes += self._hub.lend(subscription.queue, message)
        self._put(Kind.DELIVER, head, body)
        if self._lent_bytes and not self._outlet.waits:
            self._return_memory()

    def deliver_all(self, subscription: QueueConsumer, messages: Sequence[Message]) -> None:
        if self.is_closed:
            return
        self._traffic.delivered += len(messages)
        columns, bodies = columns_of(messages)
        self._put(Kind.DELIVER_MANY, calls.of_consumer(self.on_link, subscription.wire, columns), bodies)

    def deliver_batch(self, subscription: QueueConsumer, batch: MessageBatch) -> None:
        if self.is_closed:
            return
        self._traffic.delivered += len(batch.messages)
        shared = batch.encoded.get(_ENCODED)
        if shared is None:
            shared = batch.encoded[_ENCODED] = [*columns_of(batch.messages)]
        columns, bodies = shared
        self._put(Kind.DELIVER_MANY, calls.of_consumer(self.on_link, subscription.wire, columns), bodies)

    def deliver_run(
        self,
        subscription: QueueConsumer,
        destination: str,
        run: RecordRun,
        seq: int,
        redelivered: Sequence[tuple[int, int]],
    ) -> None:
        if self.is_closed:
            return
        self._traffic.delivered += len(run.sizes)
        head = calls.records(self.on_link, subscription.wire, destination, run, seq, redelivered)
        self._put(Kind.DELIVER_RECORDS, head, bytes(run.data))

    def browsed(self, subscription: QueueConsumer) -> None:
        self._put(Kind.BROWSED, calls.of_consumer(self.on_link, subscription.wire))

    def confirm(self, receipt: object, outcome: str = "") -> None:
        assert isinstance(receipt, int)
        if outcome:
            self._put(Kind.CONFIRM, calls.confirmation(self.on_link, receipt, outcome))
            return
        if not self._done:
            self._link.flush_later(self)
        self._done.append(receipt)

    def confirm_all(self, receipts: Sequence[object]) -> None:
        if not self._done:
            self._link.flush_later(self)
        self._done += receipts  # type: ignore[arg-type]

    def fail(self, failure: Failure) -> None:
        if self.is_closed:
            return
        error = failure.error
        if not isinstance(error, AmqError):
            _log.error("internal error", connection=self.number, exc_info=error)
        known = failure._replace(receipt=failure.receipt or 0)
        try:
            data = calls.stated(self.on_link, calls.FAILURE, known)
        except (ValueError, struct.error):
            mistake = CommandError("an error that cannot be passed on", code=getattr(error, "code", "INTERNAL"))
            data = calls.stated(self.on_link, calls.FAILURE, known._replace(error=mistake))
        self._put(Kind.FAIL, data)
        receipt = failure.receipt
        is_survived = isinstance(receipt, int) and bool(receipt & commands.SURVIVED)
        if getattr(error, "code", "") in HOME_CODES:  # its gateway finds the home
            self._moved.add(receipt if isinstance(receipt, int) else None)
            return
        if failure.scope not in self._survives and not is_survived:
            self.end()

    def close(self) -> None:
        self.end()

    def pause_reading(self) -> None:
        self._is_stalled = True

    def resume_reading(self) -> None:
        self._is_stalled = False
        self._grant()

    def _put(self, kind: int, data: bytes, body: bytes = b"") -> None:
        if self.is_closed:
            return
        if self._done:
            self.flush()
        outlet = self._outlet
        outlet.put(kind, data, body)
        if (outlet.is_full or self._link.is_full) and not self._is_held_back:
            self._hold_back()

    def flush(self) -> None:
        """Write the receipts of this turn."""
        done, self._done = self._done, []
        if done and not self.is_closed:
            self._outlet.put(Kind.CONFIRM_MANY, calls.confirmations(self.on_link, done))

    def _hold_back(self) -> None:
        self._is_held_back = True
        if self._link.is_full:
            self._link.hold(self)
        if self.client is not None:
            self.client.set_writable(False)

    def flow(self) -> None:
        """There may be room for deliveries again."""
        if self._outlet.is_full or self._link.is_full:
            if self._link.is_full:
                self._link.hold(self)
            return
        client = self.client
        if client is not None and not self.is_closed and not client.is_lost:
            self._is_held_back = False
            client.set_writable(True)

    def _emptied(self) -> None:
        """Large bodies are written."""
        self._return_memory()
        if self._is_held_back:
            self.flow()

    def _return_memory(self) -> None:
        if self._lent_bytes:
            self._hub.take_back(self._lent_bytes)
            self._lent_bytes = 0

    # -- as a connection of this broker --------------------------------------------------------------------------------

    def tell_brokers(self) -> None:
        """The gateway tells its clients where the gateways are."""

    def abort(self) -> None:
        self.end()

    def cut(self) -> None:
        """Its link is cut."""

    def end(self, silent: bool = False) -> None:
        """It is over at this end. `silent`: so is the link."""
        if self.is_closed:
            return
        self.flush()
        if not silent:
            self._outlet.put(Kind.CLOSE, calls.numbered(self.on_link))
        self.is_closed = True
        client, self.client = self.client, None
        if client is not None:
            client.close()
        self._held.clear()
        self._inlet.close()
        hub = self._hub
        hub.turn.shares.forget(self)
        hub.closed(self)
        hub.door.leave(self.number)
        self._link.over(self)
        if silent:
            self.release()

    def release(self) -> None:
        """Both ends have closed it, or there is no link any more."""
        self._outlet.close()
        self._return_memory()

    @property
    def is_over(self) -> bool:
        """Have both ends closed it?"""
        return self.is_closed and self._ends


def named(command: Command) -> Sequence[str]:
    """The destinations of a message that is stored by itself, in no transaction."""
    if isinstance(command, SendRun):
        return (command.like.destination,)
    if not isinstance(command, Send) or command.transaction:
        return ()
    return command.destinations if isinstance(command, SendToMany) else (command.message.destination,)


def receipts_of(command: Command) -> Sequence[Any]:
    return command.receipts or (None,) if isinstance(command, SendRun) else (command.receipt,)
