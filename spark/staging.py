"""What a task does: it sends its rows, chunk by chunk, so that each is safe before the next is sent.

`exactly-once`: a chunk is a prepared transaction of the batch, which nobody sees before the driver's commit.
`at-least-once`: a chunk is a transaction that commits at once. `dedup`: each row has an id, and the broker stores one
of each. Invariant: a chunk is kept until it is safe, and sent again, in a new transaction, where a takeover rolled it
back.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage

import amq
from amq.client import Connection, Producer
from amq.errors import TransactionRolledBackError
from pyspark_amq import frames
from pyspark_amq.frames import Columns, Rows
from pyspark_amq.options import DEDUP, EXACTLY_ONCE, SinkOptions

BATCH_COMMITTED = "BATCH_COMMITTED"
ROLLED_BACK = TransactionRolledBackError.code


@dataclass(frozen=True)
class Part:
    """One attempt of one task. Its transactions have names that no other attempt, of whatever task, has."""

    owner: str
    batch: int
    partition: int
    attempt: int

    def new_name(self) -> str:
        """One that nothing else has."""
        return f"{self.owner}/{self.batch}/{self.partition}/{self.attempt}-{uuid.uuid4().hex[:12]}"


@dataclass(frozen=True)
class Staged(WriterCommitMessage):
    """What a task returns to the driver.

    xids         its prepared transactions, in the order of its rows
    late         it sent nothing (more): the batch is committed already
    sent_again   chunks that a takeover made it send again
    """

    owner: str
    batch: int
    xids: tuple[str, ...]
    rows: int
    size: int
    late: bool
    sent_again: int
    duration_s: float


def connect(options: SinkOptions) -> Connection:
    """A connection of this task or driver. Raises AmqError."""
    return amq.connect(
        options.url, login=options.user or "", passcode=options.password or "", timeout=options.send_timeout_s,
        send_window_messages=options.window_rows,
    )  # fmt: skip


def stage(batches: Iterable[pa.RecordBatch], part: Part, options: SinkOptions, columns: Columns) -> Staged:
    """Send the rows of `batches`; when this returns they are safe. Raises AmqError."""
    task = Task(part, options, columns.text)
    started_at = time.monotonic()
    rows = size = 0
    late = False
    try:
        for chunk in frames.chunks(batches, options.window_rows):
            if late:
                continue  # Spark wants its iterator read to the end
            parts = [each for batch in chunk for each in frames.rows_of(batch, columns, options.destination)]
            if not task.send(parts):
                late = True
                continue
            rows += sum(len(each.bodies) for each in parts)
            size += sum(sum(map(len, each.bodies)) for each in parts)
        task.finish()
    finally:
        task.close()
    duration_s = time.monotonic() - started_at
    return Staged(part.owner, part.batch, tuple(task.xids), rows, size, late, task.sent_again, duration_s)


class Task:
    """Sends chunks. It connects with the first: a task without rows does not talk to the broker."""

    def __init__(self, part: Part, options: SinkOptions, text: bool) -> None:
        self.xids: list[str] = []
        self.sent_again = 0
        self._part = part
        self._options = options
        self._text = text
        self._begin_series()
        self._connection: Connection | None = None
        self._producers: dict[str, Producer] = {}
        scope = f"{part.owner}/{part.batch}/{part.partition}"
        self._identifier = frames.Identifier(scope, options.id_strategy)

    def send(self, chunk: list[Rows]) -> bool:
        """Send one chunk; False = the batch is committed already. Raises AmqError."""
        if self._connection is None:
            self._connection = connect(self._options)
            self._session = self._connection.session(transacted=self._options.delivery != DEDUP)
        if self._options.delivery == DEDUP:
            self._send_with_ids(chunk)
            return True
        deadline = time.monotonic() + self._options.send_timeout_s
        while True:
            try:
                for rows in chunk:
                    self._producer(rows.destination).send_many(
                        rows.bodies, headers=rows.headers, text=self._text, persistent=self._options.persistent,
                        priority=self._options.priority, time_to_live=self._options.time_to_live_s,
                        timeout=self._options.send_timeout_s,
                    )  # fmt: skip
                self._end_transaction()
            except TransactionRolledBackError as error:
                self._session.rollback()
                if error.code == BATCH_COMMITTED:
                    return False
                if error.code != ROLLED_BACK or time.monotonic() >= deadline:
                    raise
                self.sent_again += 1
                self._begin_series()
            else:
                return True

    def finish(self) -> None:
        """All chunks are sent: wait until all is safe. Raises AmqError."""
        for producer in self._producers.values():
            producer.flush(self._options.send_timeout_s)

    def close(self) -> None:
        """Let go of the connection. What is not safe is rolled back."""
        if self._connection is not None:
            self._connection.abort()

    def _end_transaction(self) -> None:
        options, part = self._options, self._part
        if options.delivery != EXACTLY_ONCE:
            self._session.commit(options.send_timeout_s)
            return
        xid = f"{self._series}.{self._count}"
        self._session.prepare(
            xid, prepared_timeout=options.tx_timeout_s, owner=part.owner, batch=part.batch,
            timeout=options.send_timeout_s,
        )  # fmt: skip
        self._count += 1
        self.xids.append(xid)

    def _begin_series(self) -> None:
        """From now on another name: that of a transaction that was rolled back is used up. Those that are numbered one
        after the other take little room in the driver's commit."""
        self._series, self._count = self._part.new_name(), 0

    def _producer(self, destination: str) -> Producer:
        producer = self._producers.get(destination)
        if producer is None:
            producer = self._producers[destination] = self._session.producer(destination)
        return producer

    def _send_with_ids(self, chunk: list[Rows]) -> None:
        options = self._options
        for rows in chunk:
            send = self._producer(rows.destination).send
            headers: list[dict[str, str] | None] = rows.headers or [None] * len(rows.bodies)
            for body, extra, id in zip(rows.bodies, headers, self._identifier.ids(rows), strict=True):
                send(
                    _text(body) if self._text else body, headers=extra, duplicate_id=id, wait=False,
                    priority=options.priority, time_to_live=options.time_to_live_s, timeout=options.send_timeout_s,
                )  # fmt: skip


def _text(body: bytes) -> str | bytes:
    """What Spark calls a string may be none: lines of a file that is not UTF-8. It goes as the bytes that it is."""
    try:
        return body.decode()
    except UnicodeDecodeError:
        return body
