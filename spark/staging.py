"""The part of a task: it sends its rows chunk by chunk. Each chunk is safe before the task sends the next one, whose
rows it gets from Spark while the broker works.

`exactly-once`: a chunk is a prepared transaction of the batch, which nobody sees before the driver's commit.
`at-least-once`: a chunk is a transaction that commits at once. `dedup`: each row has an id, and the broker stores one
row for each id. Invariant: a task keeps a chunk until it is safe. If a takeover rolled the chunk back, the task sends
it again in a new transaction.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import chain
from types import TracebackType
from typing import Any, Self

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage

from amq.client import Connection, Producer
from amq.core.errors import TransactionRolledBackError
from pyspark_amq import connections, frames
from pyspark_amq.columns import RowTable, tables_of
from pyspark_amq.frames import FrameColumns
from pyspark_amq.homes import Targets
from pyspark_amq.leases import MOVED
from pyspark_amq.options import DEDUP, EXACTLY_ONCE, SinkOptions

BATCH_COMMITTED = "BATCH_COMMITTED"
_NOTHING = threading.Event()  # never set: nothing wakes a task that pauses
PAUSE_S, PAUSE_S_MAX = 0.1, 2.0  # between attempts to send a chunk that is rolled back again and again
ROLLED_BACK = TransactionRolledBackError.code


@dataclass(frozen=True)
class Attempt:
    """One attempt of one task. No other attempt of any task has transactions of the same names."""

    owner: str
    batch: int
    partition: int
    attempt: int

    def new_name(self) -> str:
        """A name that no other transaction has."""
        return f"{self.owner}/{self.batch}/{self.partition}/{self.attempt}-{uuid.uuid4().hex[:12]}"


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """The result of a task, for the driver.

    xids         its prepared transactions, in the order of its rows
    late         the batch was committed already, so the task sent no (more) rows
    checksum     of all its rows, including those that it did not send because it was late
    sent_again   number of chunks that it sent again after a takeover
    """

    owner: str
    batch: int
    xids: tuple[str, ...]
    rows: int
    size: int
    late: bool
    sent_again: int
    duration_s: float
    checksum: int = 0


def connected(options: SinkOptions) -> AbstractContextManager[Connection]:
    """A connection for this task or for the driver. Raises AmqError."""
    return connections.connected(options, options.send_timeout_s, options.window_rows)


@dataclass(frozen=True)
class StagedInStores(WriterCommitMessage):
    """The result of a task whose rows go to several stores of a cluster: that of each. A store without rows is among
    them if the task might have sent some there."""

    parts: Mapping[str, Staged]


def stage(
    batches: Iterable[pa.RecordBatch], part: Attempt, options: SinkOptions, columns: FrameColumns
) -> Staged | StagedInStores:
    """Send the rows of `batches`. They are safe when this returns. Raises AmqError."""
    tasks: dict[str, Task] = {}  # by store; "" = that of the broker
    with ExitStack() as opened:
        targets = opened.enter_context(Targets(options, part.partition))

        def task_of(store: str) -> Task:
            if store not in tasks:
                tasks[store] = opened.enter_context(Task(part, targets.options_of(store), columns.text))
            return tasks[store]

        for chunk in chain(frames.chunks(batches, options.window_rows), [None]):  # None = all were sent
            tables = [each for batch in chunk or () for each in tables_of(batch, columns, options.destination)]
            until_s = time.monotonic() + options.send_timeout_s
            while True:
                moved: list[RowTable] = []
                steps: list[tuple[Task, Callable[[], object]]] = []
                for store, some in (targets.split(tables) if tables else {}).items():
                    task = task_of(store)
                    steps.append((task, partial(task.take, some)))
                if chunk is None:
                    steps += [(task, task.settle) for task in tasks.values()]
                for task, step in steps:
                    try:
                        step()
                    except TransactionRolledBackError as error:
                        if error.code != MOVED or time.monotonic() >= until_s:
                            raise
                        moved += task.withdraw()
                if not moved:
                    break
                tables = moved
                targets.forget()
        for store in targets.possible:
            task_of(store)
        for task in tasks.values():
            task.finish()
        if targets.is_cluster:
            return StagedInStores({store: task.staged() for store, task in tasks.items()})
        return task_of("").staged()


class Task:
    """Sends chunks. It connects when it gets the first one: a task without rows does not talk to the broker."""

    def __init__(self, part: Attempt, options: SinkOptions, text: bool) -> None:
        self.xids: list[str] = []
        self.sent_again = 0
        self._started_at = time.monotonic()
        self._rows = self._size = self._checksum = 0
        self._late = False
        self._part = part
        self._options = options
        self._text = text
        self._begin_series()
        self._unsafe: list[list[RowTable]] = []  # chunks that were given and are not safe: at most two
        self._checked = 0  # the checksum of the first of them
        self._answer: Callable[[float | None], None] | None = None  # waits until transaction `_xid` is prepared
        self._xid = ""
        self._connection: Connection | None = None
        self._opened = ExitStack()
        self._producers: dict[str, Producer] = {}
        scope = f"{part.owner}/{part.batch}/{part.partition}"
        self._identifier = frames.Identifier(scope, options.id_strategy)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """After an error the connection is closed, and the broker rolls back the rows that are not safe."""
        self._opened.__exit__(kind, error, trace)

    def take(self, chunk: list[RowTable]) -> None:
        """Send one chunk when the one before it is safe, and count it; only count it if the batch is committed already.
        Raises AmqError."""
        self._unsafe.append(chunk)
        self.settle()
        is_checked = self._options.delivery == EXACTLY_ONCE
        if not self._late:
            self._late = not self.send(chunk)
        elif not is_checked:
            self._unsafe.clear()
            return
        self._checked = sum(each.checksum() for each in chunk) if is_checked else 0  # while the broker prepares
        if self._answer is None:
            self._count()

    def settle(self) -> None:
        """Wait until all that was sent is safe. Raises AmqError."""
        if self._answer is None:
            return
        chunk = self._unsafe[0]
        try:
            self._await_answer()
        except TransactionRolledBackError as error:
            self._late = not self._send_again(chunk, error)
        self._count()

    def _await_answer(self) -> None:
        """Wait for the answer to a prepare, if there is one. Raises AmqError."""
        answer, self._answer = self._answer, None
        if answer is not None:
            answer(self._options.send_timeout_s)
            self.xids.append(self._xid)

    def withdraw(self) -> list[RowTable]:
        """The rows that were given and are not safe, in their order. They are not of this task any more."""
        found = [table for chunk in self._unsafe for table in chunk]
        self._unsafe.clear()
        return found

    def _count(self) -> None:
        """The oldest chunk needs nothing more."""
        chunk = self._unsafe.pop(0)
        self._rows += sum(map(len, chunk))
        self._size += sum(each.size for each in chunk)
        self._checksum += self._checked

    def staged(self) -> Staged:
        """The result, for the driver."""
        part, took_s = self._part, time.monotonic() - self._started_at
        counts = self._rows, self._size, self._late, self.sent_again, took_s, self._checksum
        return Staged(part.owner, part.batch, tuple(self.xids), *counts)

    def send(self, chunk: list[RowTable]) -> bool:
        """Send one chunk. A prepared transaction is safe after `settle`, all others are when this returns. Returns
        False if the batch is committed already. Raises AmqError."""
        if self._connection is None:
            self._connection = self._opened.enter_context(connected(self._options))
            self._session = self._connection.session(transacted=self._options.delivery != DEDUP)
        if self._options.delivery == DEDUP:
            self._send_with_ids(chunk)
            return True
        try:
            self._send_once(chunk)
        except TransactionRolledBackError as error:
            return self._send_again(chunk, error)
        return True

    def _send_once(self, chunk: list[RowTable]) -> None:
        for table in chunk:
            self._send(table)
        self._end_transaction()

    def _send_again(self, chunk: list[RowTable], why: TransactionRolledBackError) -> bool:
        """Send a chunk whose transaction was rolled back, until it is safe. Returns and raises what `send` does."""
        deadline, pause_s = time.monotonic() + self._options.send_timeout_s, 0.0
        while True:
            self._session.rollback()
            if why.code == BATCH_COMMITTED:
                return False
            if why.code != ROLLED_BACK or time.monotonic() >= deadline:
                raise why
            if pause_s:  # once is a takeover, during which the client has waited
                _NOTHING.wait(pause_s)
            pause_s = min(2 * pause_s or PAUSE_S, PAUSE_S_MAX)
            self.sent_again += 1
            self._begin_series()
            try:
                self._send_once(chunk)
                self._await_answer()
            except TransactionRolledBackError as error:
                why = error
            else:
                return True

    def finish(self) -> None:
        """Wait until all chunks that were sent are safe. Raises AmqError."""
        for producer in self._producers.values():
            producer.flush(self._options.send_timeout_s)
        if self._connection is not None:
            self._session.close(self._options.send_timeout_s)

    def _send(self, table: RowTable) -> None:
        options, producer = self._options, self._producer(table.destination)
        how: dict[str, Any] = {
            "persistent": options.persistent,
            "priority": options.priority,
            "time_to_live": options.time_to_live_s,
            "timeout": options.send_timeout_s,
        }
        for piece in table.pieces():
            sent = piece.sent()
            if sent is not None:
                producer.send_columns(sent, **how)
            else:
                rows = piece.rows()
                producer.send_many(rows.bodies, headers=rows.headers, text=self._text, **how)

    def _end_transaction(self) -> None:
        options, part = self._options, self._part
        if options.delivery != EXACTLY_ONCE:
            self._session.commit(options.send_timeout_s)
            return
        self._xid = f"{self._series}.{self._number}"
        self._number += 1
        self._answer = self._session._begin_prepare(
            self._xid,
            prepared_timeout=options.tx_timeout_s,
            owner=part.owner,
            batch=part.batch,
            timeout=options.send_timeout_s,
        )

    def _begin_series(self) -> None:
        """Begin a new series of names, because the name of a transaction that was rolled back cannot be used again. The
        driver's commit names a series of numbered transactions in little room."""
        self._series, self._number = self._part.new_name(), 0

    def _producer(self, destination: str) -> Producer:
        producer = self._producers.get(destination)
        if producer is None:
            producer = self._producers[destination] = self._session.producer(destination)
        return producer

    def _send_with_ids(self, chunk: list[RowTable]) -> None:
        options = self._options
        for table in chunk:
            rows = table.rows()
            send = self._producer(rows.destination).send
            headers: list[dict[str, str] | None] = rows.headers or [None] * len(rows.bodies)
            for body, extra, id in zip(rows.bodies, headers, self._identifier.ids(rows), strict=True):
                send(
                    _text(body) if self._text else body,
                    headers=extra,
                    duplicate_id=id,
                    wait=False,
                    priority=options.priority,
                    time_to_live=options.time_to_live_s,
                    timeout=options.send_timeout_s,
                )


def _text(body: bytes) -> str | bytes:
    """The body as text, or as bytes if it is not UTF-8: a line of a file in another encoding is a string for Spark."""
    try:
        return body.decode()
    except UnicodeDecodeError:
        return body
