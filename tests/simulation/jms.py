"""A small OpenWire client, which does after a lost connection what ActiveMQ's failover transport does.

It tries the brokers one after the other until one is master; says again who it is, its sessions, producers, consumers
and open transactions, and repeats requests that were not answered, all under their old numbers. It never repeats an
acknowledgement that nobody waits for. In two things it is more careful than the Java client: a commit whose
acknowledgements went with an earlier connection is not sent, and what it answers by itself is marked as such.

Source: FailoverTransport and ConnectionStateTracker of activemq-client 5.17.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from amq.protocols.openwire import table
from amq.protocols.openwire.frames import Frames
from amq.protocols.openwire.hello import HELLO_BYTES_MAX, MAGIC
from amq.protocols.openwire.messages import producer_text
from amq.protocols.openwire.primitives import encode_map
from amq.protocols.openwire.table import Structure, Throwable, decode, frame, structure
from amq.protocols.openwire.transactions import BEGIN, COMMIT_ONE, COMMIT_TWO, ROLLBACK
from amq.protocols.openwire.wire import INT, optional_bytes
from tests.simulation.network import Endpoint

if TYPE_CHECKING:
    from tests.simulation.jms_consumer import JmsConsumer

FRAME_BYTES_MAX: Final = 1 << 20
QUIET_MS: Final = 3000  # a side that hears nothing for so long gives up
HELLO_S: Final = 2.0
DELAYS_S: Final = (0.01, 0.02, 0.05, 0.2, 0.5, 1.0)  # between rounds of attempts
Address = tuple[str, int]


class Refused(Exception):
    """The answer is an exception. `name` = its Java class."""

    def __init__(self, thrown: Throwable | None) -> None:
        self.name = (thrown.name if thrown is not None else None) or ""
        super().__init__(f"{self.name}: {thrown.message if thrown is not None else ''}")


class InDoubt(Exception):
    """The client itself says that the transaction was rolled back. Nobody knows."""


class Options(NamedTuple):
    """How a connection is configured.

    sync_acks   acknowledgements are requests (sendAcksAsync=false)
    doubts      what becomes of a commit that was under way: it "invents" the answer, as the Java client does; it "asks"
                the broker; or "repeats" the whole transaction
    clean_up_s  consumers look so late, at most, at what was lost with the connection
    """

    version: int = table.VERSION_MAX
    sync_acks: bool = False
    doubts: str = "invents"
    clean_up_s: float = 0.0


class Line(asyncio.Protocol):
    """One socket. `epoch` = of the broker at its other end, `agreed` = both have said their WireFormatInfo."""

    def __init__(self, version: int, heard: Callable[[Line, Structure], None]) -> None:
        self.version = version
        self.epoch = 0
        self.broker = ""
        self.agreed = self.is_lost = False
        self.news = asyncio.Event()
        self.heard_at = self.said_at = 0.0
        self._transport: Endpoint | None = None
        self._heard = heard
        self._frames = Frames(HELLO_BYTES_MAX)
        self._loop = asyncio.get_running_loop()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, Endpoint)
        assert transport.peer is not None
        self._transport = transport
        self.epoch = transport.peer.protocol._hub.epoch
        self.heard_at = self._loop.time()
        said = encode_map({"MaxInactivityDuration": QUIET_MS, "MaxFrameSize": FRAME_BYTES_MAX, "CacheEnabled": True})
        data = bytes((table.WIRE_FORMAT_INFO,)) + MAGIC + INT.pack(self.version) + optional_bytes(said)
        transport.write(INT.pack(len(data)) + data)

    def data_received(self, data: bytes) -> None:
        self.heard_at = self._loop.time()
        self._frames.push(data)
        while (found := self._frames.next_frame()) is not None:
            if not self.agreed:
                assert found[0] == table.WIRE_FORMAT_INFO, found
                self.agreed = True
                self._frames.bytes_max = FRAME_BYTES_MAX
                self.news.set()
            else:
                self._take(decode(found, self.version))

    def _take(self, found: Structure) -> None:
        if found.type == table.BROKER_INFO:
            self.broker = found.fields["id"].get("value", "")
        elif found.type == table.KEEP_ALIVE_INFO and found.get("response_required"):
            self.say(structure(table.KEEP_ALIVE_INFO))
        else:
            self._heard(self, found)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self.is_lost = True
        self.news.set()

    @property
    def works(self) -> bool:
        """As far as anybody here knows."""
        return not self.is_lost and self._transport is not None and not self._transport.is_closing()

    def say(self, *commands: Structure) -> None:
        if self.works:
            assert self._transport is not None
            self.said_at = self._loop.time()
            self._transport.write(b"".join([frame(each, self.version) for each in commands]))

    async def until_agreed(self) -> bool:
        """False: it came to nothing."""
        with suppress(TimeoutError):
            async with asyncio.timeout(HELLO_S):
                while not (self.agreed or self.is_lost):
                    self.news.clear()
                    await self.news.wait()
        return self.agreed and not self.is_lost

    async def until_lost(self) -> None:
        """Keep it alive, and give it up where the other side is silent."""
        while self.works:
            self.news.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self.news.wait(), QUIET_MS / 3000)
            now = self._loop.time()
            if now - self.heard_at > QUIET_MS / 1000:
                self.abort()
            elif now - self.said_at > QUIET_MS / 3000:
                self.say(structure(table.KEEP_ALIVE_INFO))

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class Known:
    """What the connection says again on each new line, in order. `transactions` = commands of those that are open, by
    number; `pulls` = the last one of each consumer."""

    def __init__(self) -> None:
        self.sessions: dict[int, Structure] = {}
        self.producers: dict[str, Structure] = {}
        self.consumers: dict[int, JmsConsumer] = {}
        self.transactions: dict[object, list[Structure]] = {}
        self.pulls: dict[int, Structure] = {}
        self.requests: dict[int, Structure] = {}
        self.with_acks: set[object] = set()  # transactions in which something was acknowledged: that is not repeated


Answer = tuple[Structure, int]  # and the epoch of the broker that gave it


class JmsConnection:
    """`interruptions` = how often its line was lost; `errors` = ConnectionErrors that it was told. `audit` = ids of the
    messages that came, by queue: it takes none of them for a new one again."""

    def __init__(self, id: str, addresses: Sequence[Address], rng: Random, options: Options) -> None:
        self.name = id
        self.id = structure(table.CONNECTION_ID, value=id)
        self.options = options
        self.rng = rng
        self.known = Known()
        self.line: Line | None = None
        self.interruptions = 0
        self.errors: list[str] = []
        self.audit: dict[str, set[tuple[str, int]]] = {}
        self.is_closed = False
        self._addresses = list(addresses)
        self._told: list[Address] = []  # where the group is, as the last broker said
        self._connected = asyncio.Event()
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self._numbers = 0
        self._values = 0
        self._info = structure(
            table.CONNECTION_INFO,
            id=self.id,
            client_id=f"client of {id}",
            user_name="",
            password="",
            fault_tolerant=True,
            failover_reconnect=False,
        )

    # -- the line -----------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Until a broker has let it in. Raises Refused."""
        loop: Any = asyncio.get_running_loop()
        self._number(self._info, True)
        answer = self._waiting[self._info.fields["command_id"]] = loop.create_future()
        loop.keep(loop.create_task(self._stay_connected()))
        await answer

    async def _stay_connected(self) -> None:
        attempts = 0
        while not self.is_closed:
            line = await self._reach()
            if line is None:
                await asyncio.sleep(DELAYS_S[min(attempts, len(DELAYS_S) - 1)])
                attempts += 1
                continue
            attempts = 0
            self._take_up(line)
            await line.until_lost()
            self._interrupted()

    async def _reach(self) -> Line | None:
        """The first broker that answers: of those that the last one named, then of the URL's."""
        groups = [self._told, self._addresses]
        for group in groups:
            self.rng.shuffle(group)
        for host, port in dict.fromkeys(groups[0] + groups[1]):
            line = Line(self.options.version, self._heard)
            try:
                await asyncio.get_running_loop().create_connection(lambda line=line: line, host, port)
            except OSError:
                continue
            if await line.until_agreed() and not self.is_closed:
                return line
            line.abort()
        return None

    def _take_up(self, line: Line) -> None:
        """Say again what this connection is, and what was not answered."""
        known, late = self.known, []
        said = [structure(table.CONNECTION_CONTROL, fault_tolerant=True), self._info]
        for number, session in known.sessions.items():
            said.append(session)
            said += [each for each in known.producers.values() if each.fields["id"].get("session") == number]
            for consumer in known.consumers.values():
                if consumer.session.number == number:
                    said.append(consumer.restored())
        for key, commands in list(known.transactions.items()):
            if commands[-1].type == table.TRANSACTION_INFO and commands[-1].get("kind", 0) == COMMIT_ONE:
                late += self._doubtful(key, commands)
            else:
                said += commands
        said += known.pulls.values()
        said += known.requests.values()
        line.say(*said, *late)
        self._info.fields["failover_reconnect"] = True
        self.line = line
        self._connected.set()
        for consumer in known.consumers.values():
            consumer.go_on()

    def _doubtful(self, key: object, commands: list[Structure]) -> list[Structure]:
        """A commit was under way when the line was lost. What is said about it."""
        commit, doubts = commands[-1], self.options.doubts
        if doubts == "repeats" and key not in self.known.with_acks:
            return commands
        if doubts != "invents":
            return [commit]
        del self.known.transactions[key]
        self._settle(commit.fields["command_id"], InDoubt())
        return []

    def _interrupted(self) -> None:
        self.line = None
        self._connected.clear()
        self.interruptions += 1
        for consumer in self.known.consumers.values():
            consumer.interrupted()

    def abort(self) -> None:
        """As if the program were killed."""
        self.is_closed = True
        if self.line is not None:
            self.line.abort()

    async def close(self) -> None:
        """In an orderly way, if that is possible now."""
        line = self.line
        if line is not None:
            with suppress(Refused, TimeoutError):
                async with asyncio.timeout(1.0):
                    await self.request(structure(table.REMOVE_INFO, id=self.id, last_delivered=-2))
            line.say(structure(table.SHUTDOWN_INFO))
        self.abort()

    # -- out ----------------------------------------------------------------------------------------------------------

    def new_value(self) -> int:
        self._values += 1
        return self._values

    def info(self, kind: int, transaction: Structure | None) -> Structure:
        """The command that does that with `transaction`."""
        return structure(table.TRANSACTION_INFO, connection=self.id, transaction=transaction, kind=kind)

    def _number(self, found: Structure, responds: bool) -> None:
        self._numbers += 1
        found.fields["command_id"] = self._numbers
        found.fields["response_required"] = responds

    async def connected(self) -> Line:
        while self.line is None or not self.line.works:
            await self._connected.wait()
            if self.line is not None and not self.line.works:
                await asyncio.sleep(0.001)
        return self.line

    async def send(self, found: Structure) -> None:
        """A command that nobody answers: it waits until there is a line, and may be lost on it."""
        self._number(found, False)
        line = await self.connected()
        self._track(found)
        line.say(found)

    def forget(self, found: Structure) -> None:
        """The same of one that is stale where there is no line: an acknowledgement, the end of a consumer."""
        self._number(found, False)
        if self.line is not None:
            self.line.say(found)

    async def request(self, found: Structure, interruptions: int = -1) -> Answer:
        """Until it is answered, on whatever line. `interruptions` = it makes sense only if this many there were; raises
        InDoubt where there were more before it was sent. Raises Refused."""
        self._number(found, True)
        line = await self.connected()
        if interruptions not in (-1, self.interruptions):
            raise InDoubt
        number = found.fields["command_id"]
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        self._track(found)
        line.say(found)
        return await answer

    def _track(self, found: Structure) -> None:
        """Note what is said again on the next line."""
        known, fields = self.known, found.fields
        if found.type == table.SESSION_INFO:
            known.sessions[fields["id"].get("value")] = found
        elif found.type == table.PRODUCER_INFO:
            known.producers[producer_text(fields["id"])] = found
        elif found.type == table.TRANSACTION_INFO and fields.get("transaction") is not None:
            key = key_of(fields["transaction"])
            if fields["kind"] == BEGIN:
                known.transactions[key] = []
            if key in known.transactions:
                known.transactions[key].append(found)
            elif fields["response_required"]:
                known.requests[fields["command_id"]] = found
        elif found.type in (table.BYTES_MESSAGE, table.TEXT_MESSAGE) and fields.get("transaction") is not None:
            known.transactions[key_of(fields["transaction"])].append(found)
        elif found.type == table.MESSAGE_PULL:
            known.pulls[fields["consumer"].get("value")] = found
        elif found.type != table.CONSUMER_INFO and fields["response_required"]:
            known.requests[fields["command_id"]] = found

    # -- in -----------------------------------------------------------------------------------------------------------

    def _heard(self, line: Line, found: Structure) -> None:
        if self.is_closed:
            return
        if table.RESPONSE <= found.type <= table.INTEGER_RESPONSE:
            number = found.get("correlation_id", 0)
            is_error = found.type == table.EXCEPTION_RESPONSE
            self._settle(number, Refused(found.get("exception")) if is_error else (found, line.epoch))
        elif found.type == table.MESSAGE_DISPATCH:
            consumer = self.known.consumers.get(found.fields["consumer"].get("value"))
            if consumer is not None:
                consumer.dispatch(line, found)
        elif found.type == table.CONNECTION_ERROR:
            thrown = found.get("exception")
            self.errors.append(f"{thrown.name}: {thrown.message}")
        elif found.type == table.CONNECTION_CONTROL:
            written = found.get("connected_brokers", "")
            self._told = [_address(url) for url in written.split(",") if url]

    def _settle(self, number: int, answer: Answer | Exception) -> None:
        self.known.requests.pop(number, None)
        for key, commands in list(self.known.transactions.items()):
            last = commands[-1].fields
            if last["command_id"] == number and last.get("kind") in (COMMIT_ONE, COMMIT_TWO, ROLLBACK):
                del self.known.transactions[key]
        future = self._waiting.pop(number, None)
        if future is None or future.done():
            return
        if isinstance(answer, Exception):
            future.set_exception(answer)
        else:
            future.set_result(answer)


def key_of(transaction: Structure) -> object:
    return table.nested(transaction)


def _address(url: str) -> Address:
    host, _, port = url.partition("://")[2].partition("?")[0].rpartition(":")
    return host, int(port)
