"""Streaming sink and batch writer: what Spark's driver does. What tasks do is in staging.py.

Invariant of `exactly-once`: rows of a batch become visible in one commit of the driver, together with the marker
(query, batch), or not at all; a batch whose marker is there is not committed again. Spark calls `commit` and `abort` in
processes of their own, with nothing but what the tasks returned.
"""

from __future__ import annotations

import json
import logging
import sys
import time
import uuid
from collections.abc import Iterator, Sequence

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from amq.errors import AmqError, CommandError
from pyspark_amq import frames
from pyspark_amq.options import EXACTLY_ONCE, OptionError, SinkOptions
from pyspark_amq.staging import Part, Staged, connect, stage

log = logging.getLogger("pyspark_amq.sink")
log.setLevel(logging.INFO)  # Spark's workers add a handler where they are asked for logs; else nobody sees it
QUERY_ID, BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"  # what Spark tells its tasks
_ENDED = ("XID_COMMITTED", "UNKNOWN_TRANSACTION")


class AmqStreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream.format("amq")`. A batch of a query is a batch of the broker, whose owner is the query's id."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        self._options = options
        self._columns = frames.columns(schema, options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """In a task: send its rows. Raises AmqError: then Spark runs the task again."""
        context = TaskContext.get()
        assert context is not None, "Spark calls write in a task"
        query, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
        assert query is not None, f"this Spark does not tell its tasks {QUERY_ID}: use another version"
        assert batch is not None, f"this Spark does not tell its tasks {BATCH_ID}: use another version"
        part = Part(query, int(batch), context.partitionId(), context.attemptNumber())
        return stage(iterator, part, self._options, self._columns)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """On the driver, when all tasks are done. Raises AmqError: then Spark aborts, and the query fails."""
        _commit(self._options, _staged(messages, batchId))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002
        """On the driver, when a task or the commit failed."""
        _abort(self._options, messages)


class AmqBatchWriter(DataSourceArrowWriter):
    """`df.write.format("amq").mode("append")`. A job is the only batch of an owner of its own."""

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise OptionError("a destination cannot be overwritten: write .mode(\"append\")")
        self._options = options
        self._columns = frames.columns(schema, options)
        self._job = f"job-{uuid.uuid4()}"

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:
        """In a task: send its rows. Raises AmqError: then Spark runs the task again."""
        context = TaskContext.get()
        assert context is not None, "Spark calls write in a task"
        part = Part(self._job, 0, context.partitionId(), context.attemptNumber())
        return stage(iterator, part, self._options, self._columns)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver, when all tasks are done. Raises AmqError: then Spark aborts, and the job fails."""
        _commit(self._options, _staged(messages, 0))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver, when a task or the commit failed."""
        _abort(self._options, messages)


def _staged(messages: Sequence[WriterCommitMessage | None], batch: int) -> list[Staged]:
    """What the tasks of one batch returned, in the order of partitions."""
    found = [message for message in messages if isinstance(message, Staged)]
    assert len(found) == len(messages), "Spark commits only where every task has ended well"
    assert len({message.owner for message in found}) <= 1, "one query writes a batch"
    assert all(message.batch == batch for message in found), "tasks and driver speak of the same batch"
    return found


def _commit(options: SinkOptions, staged: list[Staged]) -> None:
    """Let all that was staged become visible, once. Raises AmqError."""
    started_at = time.monotonic()
    outcome = "sent"
    xids = [xid for message in staged for xid in message.xids]
    if options.delivery == EXACTLY_ONCE and (xids or any(message.late for message in staged)):
        with connect(options) as connection:
            outcome = connection.commit_batch(staged[0].owner, staged[0].batch, xids, options.send_timeout_s)
    if not staged:
        return
    if outcome == "duplicate":
        what = "batch %d of %s was committed before: its rows are not sent again"
        log.warning(what, staged[0].batch, staged[0].owner)
    metrics = _metrics(staged, outcome, time.monotonic() - started_at)
    log.info("batch %s", outcome, extra={"context": metrics})
    if options.log_metrics:
        sys.stderr.write(json.dumps({"logger": log.name, **metrics}) + "\n")
        sys.stderr.flush()


def _metrics(staged: list[Staged], outcome: str, commit_s: float) -> dict[str, str]:
    """What is told of a batch: text, as the column `context` of Spark's table of worker logs is."""
    metrics = {
        "owner": staged[0].owner, "batch": staged[0].batch, "outcome": outcome, "tasks": len(staged),
        "rows": sum(message.rows for message in staged), "bytes": sum(message.size for message in staged),
        "transactions": sum(len(message.xids) for message in staged),
        "sentAgain": sum(message.sent_again for message in staged),
        "sendMs": round(1000 * sum(message.duration_s for message in staged)), "commitMs": round(1000 * commit_s),
    }  # fmt: skip
    return {name: str(value) for name, value in metrics.items()}


def _abort(options: SinkOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Roll back what these tasks staged, and nothing else. What a commit took that was thought lost stays: the broker
    refuses to undo it. What cannot be told to a broker now ends by its timeout, or with the batch's next commit."""
    xids = [xid for message in messages if isinstance(message, Staged) for xid in message.xids]
    if not xids:
        return
    with connect(options) as connection:
        for xid in xids:
            try:
                connection.rollback_prepared(xid, options.send_timeout_s)
            except CommandError as error:
                if error.code not in _ENDED:
                    raise
                log.warning("abort: %s", error)
            except AmqError as error:
                log.warning("abort: %s", error)
                return
