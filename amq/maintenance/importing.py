"""`amq journal import`: a master without transports, fed from a file.

An import takes, replays, writes and hands over the store with the code of every broker (`Member`), so it has the
same lease, fencing, group commit, duplicate detection and handling of a full disk. Invariant: a message is stored once,
however often the file is imported, if no other broker was master in between: every message has an id (of its producer,
or made of the export), and an importing master forgets no id.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, BinaryIO, NoReturn

from amq.broker.broker import Broker
from amq.broker.events import RoleChanged
from amq.broker.names import SCHEDULE_SCHEME, SUBSCRIPTION_SCHEME, check_queue, is_topic
from amq.broker.scheduling.scheduler import check_scheduled
from amq.broker.transactions.transaction import memory_bytes
from amq.broker.waiters import Call
from amq.config.schema import BrokerConfig
from amq.core.destination import bars
from amq.core.errors import AccessError, AmqError, CommandError, OwnershipLostError, StoreFullError
from amq.core.message import Copy, Message, Sharing
from amq.core.xid import Key
from amq.doors.threads import JobThread, SystemThreads
from amq.journal.batch import Waiter
from amq.journal.export import store_uuid
from amq.journal.hidden import RETAINED_SCHEME
from amq.journal.interchange import Durable, Exported, Ids, ImportReader, InDoubt, Item, PipelineBatch, read_lines
from amq.journal.records import Duplicates, Group, Marker, Prepared, Redelivered
from amq.node.mastership import Mastership
from amq.node.member import Hosting, Member, Role
from amq.node.process import no_collection
from amq.store.open import open_store

NAME = "amq-journal-import"
UNLIMITED = 1 << 62
CHUNK_BYTES = 1 << 20  # of lines read at once
# A line may hold a message of `maxFrameSize`, of which JSON writes each byte in up to six, and our own names and ids.
FRAME_TIMES, LINE_BYTES = 6, 4 << 20
UNCONFIRMED_BYTES_MAX = 8 << 20  # on their way to the disk; then reading waits


@dataclass(slots=True)
class ImportResult:
    """Progress of an import. `skipped` = stored already, by an earlier import or by their producer."""

    stored: int = 0
    skipped: int = 0
    remembered: int = 0
    prepared: int = 0
    read_bytes: int = 0
    ended: bool = False


class Import:
    """One import into the store of `config`. `told(result)` is called now and then. Run it once."""

    def __init__(self, config: BrokerConfig, told: Callable[[ImportResult], None], **doors: Any) -> None:
        self.result = ImportResult()
        self._config = replace(config, name=NAME, transports=(), fail_if_locked=True, duplicate_window=UNLIMITED)
        self._line_bytes_max = LINE_BYTES + FRAME_TIMES * config.max_frame_size_bytes
        self._told = told
        self._doors = doors
        self._master: Mastership | None = None
        self._failure: AmqError | None = None
        self._unconfirmed_bytes = 0
        self._changed = asyncio.Event()
        self._durables: dict[str, str] = {}  # queues of durable subscriptions, as the file and as the store names them
        self._sent: dict[Key, list[Message]] = {}  # what the next line may say is prepared
        self._held: dict[Key, list[tuple[str, str]]] = {}  # (queue, id) of what each acknowledged
        self._in_line: list[tuple[str, str]] = []  # of that, what is in the line of its queue still
        self._taken: dict[str, set[int]] = {}  # by queue: seqs of what is in no line any more

    async def run(self, file: BinaryIO, name: str) -> ImportResult:
        """Import all of `file`. Raises StoreError (damaged or cut file, store in use), StoreFullError,
        OwnershipLostError; what `result` says is stored is stored in any case. Run it again with the whole file.
        """
        service = Member(self._config, _nobody, hosting=Hosting(loading=no_collection), **self._doors)
        service.events.listen(RoleChanged, lambda _event: self._changed.set())
        await service.start()
        try:
            await service.wait_for(Role.MASTER)
            self._master = service.master
            if self._master is not None:
                await self._feed(service, file, name)
        finally:
            if service.role is not Role.STOPPED:
                await service.stop()
        if service.failure is not None:
            raise service.failure
        return self.result

    # -- reading ------------------------------------------------------------------------------------------------------

    async def _feed(self, service: Member, file: BinaryIO, name: str) -> None:
        assert self._master is not None
        loop = asyncio.get_running_loop()
        reader = ImportReader(name)
        thread = JobThread(SystemThreads(), loop.call_soon_threadsafe)  # a pipe may keep us waiting
        try:
            while lines := await _in(thread, loop, lambda: read_lines(name, file, CHUNK_BYTES, self._line_bytes_max)):
                for line in lines:
                    item = reader.feed(line)
                    if isinstance(item, InDoubt) and self._in_line:
                        await self._confirmed(service, 0)
                    if item is not None:
                        self._take(item, reader)
                    elif reader.lines == 1:
                        self._refuse_own(reader)
                    self.result.read_bytes += len(line)
                    if self._unconfirmed_bytes > UNCONFIRMED_BYTES_MAX:
                        await self._confirmed(service, UNCONFIRMED_BYTES_MAX // 2)
                self._master.turn.wake()  # a pipe may keep us waiting: what was read is stored meanwhile
                self._told(self.result)
            await self._confirmed(service, 0)
            reader.finish()
            self.result.ended = True
        finally:
            thread.close()

    def _refuse_own(self, reader: ImportReader) -> None:
        assert reader.header is not None
        store = self._doors.get("store") or open_store(self._config.store)
        if reader.header.store and reader.header.store == store_uuid(store.log):
            raise AmqError(
                f"this is an export of {self._config.store} itself, or of a copy of it: its messages would be stored "
                "twice; import it into another store",
                code="EXPORT_OF_THIS_STORE",
            )

    async def _confirmed(self, service: Member, left_bytes: int) -> None:
        """Wait until at most this many bytes are unconfirmed. Raises if that cannot happen any more."""
        while True:
            if self._master is None or service.master is not self._master:
                raise service.failure or OwnershipLostError("another broker has taken the store; import again")
            if self._failure is not None:
                raise self._failure
            if self._unconfirmed_bytes <= left_bytes:
                return
            self._changed.clear()
            self._master.turn.wake()
            await self._changed.wait()

    # -- storing ------------------------------------------------------------------------------------------------------

    def _take(self, item: Item, reader: ImportReader) -> None:
        assert self._master is not None
        assert reader.header is not None
        broker = self._master.broker
        if isinstance(item, Exported):
            self._store(broker, item, reader.header.store)
        elif isinstance(item, Durable):
            _check_topics(item.definition)
            definition = {**item.definition, "message_id_prefix": self._master.message_id_prefix}
            self._durables[item.queue] = broker.durables.restore(definition).name
        elif isinstance(item, PipelineBatch):
            known = broker.state.prepared.markers.get(item.owner)
            if known is None or item.batch > known[0].batch:
                broker.journal.append_record(Marker(item.owner, item.batch, item.content))
        elif isinstance(item, InDoubt):
            self._prepare(broker, item)
        else:
            self._remember(broker, item)

    def _queue_of(self, name: str) -> str:
        """The name in this store of a durable subscription's queue that the file names."""
        if name not in self._durables:
            raise AmqError(f"{name}: the export lacks that subscription; export again", code="EXPORT_DAMAGED")
        return self._durables[name]

    def _store(self, broker: Broker, item: Exported, origin: str) -> None:
        message = item.message
        if item.queue.startswith(RETAINED_SCHEME):
            self._retain(broker, message, item.queue)
            return
        # The time too: a store that was restored from a backup gives its seqs once more, to other messages.
        message.duplicate_id = message.duplicate_id or f"{origin}:{message.seq}:{message.timestamp_ms}"
        if item.queue:
            message = Copy.of(message, self._queue_of(item.queue))
        else:
            _check_access(broker, message.destination, message)
        if item.held_by:
            self._in_line.append((message.queue_name, message.duplicate_id))
            self._held.setdefault(item.held_by, []).append(self._in_line[-1])
        if item.sent_by:
            self._sent.setdefault(item.sent_by, []).append(message)
            return
        if broker.is_duplicate(message):
            self.result.skipped += 1
            return
        waiter = self._waiter(len(message.body) + 1, self._is_stored)
        with self._full_disk_told():
            if isinstance(message, Copy):
                self._store_for_subscription(broker, message, item.message, waiter)
            else:
                broker.store(message, waiter)
        if item.deliveries or item.failures:
            broker.journal.append_record(
                Redelivered(message.queue_name, [(message.seq, item.deliveries, item.failures)])
            )

    def _retain(self, broker: Broker, message: Message, name: str) -> None:
        """The store's own retained message stays."""
        if not is_topic(message.destination):
            raise AmqError(f"{name}: only a topic has a retained message; export again", code="EXPORT_DAMAGED")
        queue = broker.state.queue(name)
        if queue.stored_bytes or queue.pending_bytes:
            self.result.skipped += 1
            return
        message.duplicate_id = ""
        message.send_to(name)
        with self._full_disk_told():
            broker.store(message, self._waiter(len(message.body) + 1, self._is_stored))

    def _store_for_subscription(self, broker: Broker, copy: Copy, message: Message, waiter: Waiter) -> None:
        copy.original, copy.shared = message, Sharing(None, encodes=False)
        transaction = broker.commits.begin()
        transaction.sends = [copy]
        broker.memory.take(memory_bytes(transaction.sends))
        broker.commits.commit(transaction, waiter, "")

    @contextmanager
    def _full_disk_told(self) -> Iterator[None]:
        try:
            yield
        except StoreFullError as error:
            self._refused(error)
            assert self._failure is not None
            raise self._failure from error

    def _prepare(self, broker: Broker, item: InDoubt) -> None:
        """Prepare a transaction: its acknowledged messages are stored, its sent messages are stored with it."""
        self._take_held(broker)
        seq = broker.next_seq()
        facts = item.xid, seq, item.created_ms, item.timeout_ms, item.owner, item.batch
        given = Prepared(*facts, user=item.user, span=item.span, stores=[*item.stores])
        for name, id in self._held.pop(item.key, ()):
            seq = _seq_of(broker, name, id)
            if seq in self._taken.get(name, ()):
                given.acks.setdefault(name, []).append(seq)
        sent = self._sent.pop(item.key, [])
        new = [message for message in sent if not broker.is_duplicate(message)]
        if broker.two_phase.is_known(item.key):
            self.result.skipped += len(sent)
            return
        size = sum(len(message.body) + 1 for message in new)
        with self._full_disk_told():
            broker.two_phase.restore(given, new, self._waiter(size, partial(self._is_prepared, len(new))))
        self.result.skipped += len(sent) - len(new)

    def _take_held(self, broker: Broker) -> None:
        """Take messages that transactions acknowledged out of the order of their queues, as a delivery does. Skips
        those that have expired or that an earlier import has prepared.
        """
        wanted: dict[str, set[int]] = {}
        for name, id in self._in_line:
            wanted.setdefault(name, set()).add(_seq_of(broker, name, id))
        self._in_line = []
        for name, seqs in wanted.items():
            queue = broker.state.queue(name)
            taken = queue.take_out(seqs) + broker.state.take_from_disk(queue, seqs)
            self._taken.setdefault(name, set()).update(message.seq for message in taken)

    def _remember(self, broker: Broker, item: Ids) -> None:
        """Remember ids of messages that are gone. They are older than the messages behind this line."""
        journal = broker.journal
        if not item.destination:
            for id in item.ids:
                if id not in broker.state.outcomes:
                    journal.append_record(Group([], id, broker.next_seq()))
                    self.result.remembered += 1
            return
        name = item.destination
        if name.startswith(SUBSCRIPTION_SCHEME):
            name = self._queue_of(name)
        else:
            _check_access(broker, name)
        known = broker.state.queue(name).duplicates
        fresh = [(id, broker.next_seq()) for id in item.ids if id not in known]
        if fresh:
            size = sum(len(id) for id, _ in fresh)
            journal.append_record(Duplicates(name, fresh))
            journal.confirm(self._waiter(size, partial(self._are_remembered, broker, name, fresh)))

    # -- what the broker tells ----------------------------------------------------------------------------------------

    def _waiter(self, size: int, done: Callable[[], None]) -> Call:
        """Told when `size` bytes are stored, which counts them, or that they are not."""
        self._unconfirmed_bytes += size

        def confirmed() -> None:
            done()
            self._unconfirmed_bytes -= size
            self._changed.set()

        return Call(confirmed, self._refused)

    def _is_stored(self) -> None:
        self.result.stored += 1

    def _is_prepared(self, messages: int) -> None:
        self.result.prepared += 1
        self.result.stored += messages

    def _are_remembered(self, broker: Broker, name: str, ids: list[tuple[str, int]]) -> None:
        self.result.remembered += len(ids)
        for id, seq in ids:  # also where the broker has newer ones: they would go with their segment
            broker.state.queue(name).own_duplicates().remember(id, seq, broker.journal.segments[-1])

    def _refused(self, error: Exception) -> None:
        """The broker rejected records because the disk is full."""
        assert isinstance(error, AmqError)
        self._failure = self._failure or StoreFullError(
            f"{error.description}; import again when there is room: what is stored is not stored twice"
        )
        self._changed.set()


async def _in(thread: JobThread, loop: asyncio.AbstractEventLoop, job: Callable[[], list[bytes]]) -> list[bytes]:
    future: asyncio.Future[list[bytes]] = loop.create_future()

    def done(result: list[bytes], error: Exception | None) -> None:
        if not future.done():
            if error is None:
                future.set_result(result)
            else:
                future.set_exception(error)

    thread.submit(job, done)
    return await future


def _seq_of(broker: Broker, queue_name: str, id: str) -> int:
    """Sequence number of the message that the queue has got with that id, whatever became of it; 0 = none."""
    found = broker.state.queue(queue_name).duplicates.get(id)
    return found[0] if found is not None else 0


def _check_access(broker: Broker, destination: str, message: Message | None = None) -> None:
    try:
        broker.access.check_home(destination)
        if message is not None and destination.startswith(SCHEDULE_SCHEME):
            check_scheduled(message)
        elif not destination.startswith(SCHEDULE_SCHEME):
            check_queue(destination)
            if why := bars(destination):
                raise CommandError(f"destination {destination[:100]!r}: {why}", code="DESTINATION_INVALID")
    except (AccessError, CommandError) as error:
        raise AmqError(f"{error.description}; the file cannot be imported as it is", code=error.code) from error


def _check_topics(definition: dict[str, Any]) -> None:
    """Raises AmqError where a durable subscription is to something else than topics."""
    for topic in definition["topics"]:
        if not is_topic(topic):
            raise AmqError(
                f"the durable subscription {definition['name']!r} is to {topic!r}, which is not a topic; the file "
                "cannot be imported as it is",
                code="DESTINATION_REFUSED",
            )


async def _nobody(_: object) -> NoReturn:
    raise AccessError("the broker serves no clients during an import")
