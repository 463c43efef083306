"""Streaming sink and batch writer: the driver's part. The tasks' part is in staging.py.

Invariant of `exactly-once`: the rows of a batch become visible in one commit of the driver, together with the marker
(query, batch), or not at all. A batch whose marker exists is not committed again. Spark calls `commit` and `abort` in
separate processes, which get only the results of the tasks.
"""

from __future__ import annotations

import json
import logging
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from amq.client import Connection
from amq.core.errors import AmqError, CommandError
from pyspark_amq import frames
from pyspark_amq.homes import Targets
from pyspark_amq.options import EXACTLY_ONCE, OptionError, SinkOptions, full_names, refusal
from pyspark_amq.staging import Attempt, Staged, StagedInStores, connected, stage
from pyspark_amq.workers import spare_modules

log = logging.getLogger("pyspark_amq.sink")
log.setLevel(logging.INFO)  # Spark's workers add a handler, if logs are wanted
QUERY_ID, BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"  # local properties of Spark's tasks
CHECKSUM_MASK = (1 << 64) - 1
DESTINATION_CHARACTERS_MAX = 100  # of an owner's name, which is part of each transaction's name


CONTINUOUS = (
    "a sink written in Python cannot be used with trigger(continuous=…): Spark would drop all rows. Write "
    "trigger(processingTime='1 second') or trigger(availableNow=True), with a new checkpoint"
)


def refuse_continuous(checkpoint: str) -> None:
    """Raises OptionError for a query with trigger(continuous=…), as far as the driver can see its checkpoint as local
    files. Spark says nothing of the trigger to a format. But a micro-batch begins when its offset is in the checkpoint,
    and its commit is not; a continuous query begins with neither."""
    scheme, colon, path = checkpoint.partition(":")
    directory = Path(path if colon and scheme == "file" else checkpoint)
    if not (directory / "metadata").is_file():
        return  # it is elsewhere
    newest = [max(_numbers_in(directory / name), default=-1) for name in ("offsets", "commits")]
    if newest[0] <= newest[1]:
        raise OptionError(CONTINUOUS)


def _numbers_in(directory: Path) -> list[int]:
    return [int(each.name) for each in directory.iterdir() if each.name.isdecimal()] if directory.is_dir() else []


class AmqStreamWriter(DataSourceStreamArrowWriter):
    """`df.writeStream.format("amq")`. A micro-batch is a batch of the broker, whose owner is the query's id."""

    def __init__(self, options: SinkOptions, schema: StructType) -> None:
        if options.txn_app_id is not None:
            why = "is for df.write: the checkpoint identifies a stream"
            raise refusal(SinkOptions, "txnAppId", options.txn_app_id, why)
        self._options = options
        self._columns = frames.columns(schema, options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged | StagedInStores:
        """In a task: send its rows. Raises AmqError: then Spark runs the task again."""
        spare_modules()
        context = TaskContext.get()
        assert context is not None, "Spark calls write in a task"
        query, batch = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
        assert query is not None, f"this Spark does not tell its tasks {QUERY_ID}: use another version"
        assert batch is not None, f"this Spark does not tell its tasks {BATCH_ID}: use another version"
        part = Attempt(query, int(batch), context.partitionId(), context.attemptNumber())
        return stage(iterator, part, self._options, self._columns)

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """On the driver, when all tasks are done. Raises AmqError: then Spark aborts, and the query fails."""
        _commit(self._options, _staged(messages, batchId))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: ARG002
        """On the driver, when a task or the commit failed."""
        _abort(self._options, messages)


class AmqBatchWriter(DataSourceArrowWriter):
    """`df.write.format("amq").mode("append")`. A job has a separate owner and is its only batch. With the options
    `txnAppId` and `txnVersion` it is a batch of that application, which the broker commits once."""

    def __init__(self, options: SinkOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise OptionError('a destination cannot be overwritten: write .mode("append")')
        self._options = options
        self._columns = frames.columns(schema, options)
        self._job, self._batch = f"job-{uuid.uuid4()}", 0
        if options.txn_app_id is not None:
            assert options.txn_version is not None, "checked with the options"
            self._job, self._batch = owner_of(options.txn_app_id, options.destination), options.txn_version

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged | StagedInStores:
        """In a task: send its rows. Raises AmqError: then Spark runs the task again."""
        spare_modules()
        context = TaskContext.get()
        assert context is not None, "Spark calls write in a task"
        part = Attempt(self._job, self._batch, context.partitionId(), context.attemptNumber())
        return stage(iterator, part, self._options, self._columns)

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver, when all tasks are done. Raises AmqError: then Spark aborts, and the job fails."""
        _commit(self._options, _staged(messages, self._batch))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """On the driver, when a task or the commit failed."""
        _abort(self._options, messages)


def owner_of(app_id: str, destination: str | None) -> str:
    """The owner of an application's batches for a destination. One application may write the same version to several
    destinations, as it may write to several tables of Delta Lake. Raises OptionError."""
    try:
        where = " ".join(sorted(full_names(destination))) if destination else ""
    except ValueError as error:
        raise refusal(SinkOptions, "destination", str(destination), str(error)) from error
    if len(where) > DESTINATION_CHARACTERS_MAX:
        where = blake2b(where.encode(), digest_size=16).hexdigest()
    return f"{app_id}@{where}"


def _staged(messages: Sequence[WriterCommitMessage | None], batch: int) -> dict[str, list[Staged]]:
    """The results of the tasks of one batch by store, in the order of partitions."""
    if None in messages:  # Spark did not call `write`
        raise OptionError(CONTINUOUS)
    found = _by_store(messages)
    staged = [each for some in found.values() for each in some]
    assert len({message.owner for message in staged}) <= 1, "all tasks of a batch belong to one query"
    assert all(message.batch == batch for message in staged), "tasks and driver have the same batch"
    return found


def _by_store(messages: Sequence[WriterCommitMessage | None]) -> dict[str, list[Staged]]:
    """The results of tasks by store; "" = that of the broker. Of a cluster, a task without rows has no part in it."""
    found: dict[str, list[Staged]] = {}
    for message in messages:
        if isinstance(message, StagedInStores):
            for store, each in message.parts.items():
                found.setdefault(store, []).append(each)
    return found or {"": [message for message in messages if isinstance(message, Staged)]}


def _commit(options: SinkOptions, found: Mapping[str, list[Staged]]) -> None:
    """Make all staged rows visible, once in each store. Raises AmqError."""
    started_at = time.monotonic()
    outcomes = set()
    is_staged = options.delivery == EXACTLY_ONCE
    with Targets(options) as targets:
        for store in targets.in_order(found) if is_staged else ():
            staged = found[store]
            xids = [xid for message in staged for xid in message.xids]
            if store or xids or any(message.late for message in staged):
                own = targets.options_of(store)
                with connected(own) as connection:
                    outcomes.add(_commit_batch(connection, own, staged, xids))
    staged = [each for some in found.values() for each in some]
    outcome = "committed" if "committed" in outcomes else outcomes.pop() if outcomes else "sent"
    if not staged:
        return
    if outcome == "duplicate":
        text = "batch %d of %s was committed before: its rows are not sent again"
        log.warning(text, staged[0].batch, staged[0].owner)
    metrics = _metrics(staged, outcome, time.monotonic() - started_at)
    log.info("batch %s", outcome, extra={"context": metrics})
    if options.log_metrics:
        sys.stderr.write(json.dumps({"logger": log.name, **metrics}) + "\n")
        sys.stderr.flush()


def _commit_batch(connection: Connection, options: SinkOptions, staged: list[Staged], xids: list[str]) -> str:
    """Raises AmqError."""
    owner, batch = staged[0].owner, staged[0].batch
    content = None
    if options.fail_on_data_loss:
        checksum = sum(message.checksum for message in staged) & CHECKSUM_MASK
        content = sum(message.rows for message in staged), checksum
    try:
        return connection.commit_batch(owner, batch, xids, options.send_timeout_s, content=content)
    except AmqError as error:
        if error.code != "BATCH_DIFFERS":
            raise
        cure = (
            "Either the checkpoint is older than the broker's store: use a new checkpoint, and send the missing rows. "
            "Or the query gives other rows each time it runs (rand(), uuid(), sums of floating-point numbers): then "
            "skip this batch once with .option('failOnDataLoss', 'false')"
        )
        raise CommandError(f"{error.description}. {cure}", code=error.code) from error


def _metrics(staged: list[Staged], outcome: str, commit_s: float) -> dict[str, str]:
    """The figures of a batch, as texts: the column `context` of Spark's table of worker logs holds only texts."""
    metrics = {
        "owner": staged[0].owner,
        "batch": staged[0].batch,
        "outcome": outcome,
        "tasks": len(staged),
        "rows": sum(message.rows for message in staged),
        "bytes": sum(message.size for message in staged),
        "transactions": sum(len(message.xids) for message in staged),
        "sentAgain": sum(message.sent_again for message in staged),
        "sendMs": round(1000 * sum(message.duration_s for message in staged)),
        "commitMs": round(1000 * commit_s),
    }
    return {name: str(value) for name, value in metrics.items()}


def _abort(options: SinkOptions, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Roll back the transactions of these tasks, and nothing else. If the commit took place although its reply was
    lost, its rows stay: the broker does not undo a commit. If no broker answers, the transactions end by their timeout,
    or with the next commit of the batch."""
    found = _by_store(messages)
    try:
        with Targets(options) as targets:
            for store, staged in found.items():
                if xids := [xid for message in staged for xid in message.xids]:
                    with connected(targets.options_of(store)) as connection:
                        connection.rollback_batch(staged[0].owner, staged[0].batch, xids, options.send_timeout_s)
    except AmqError as error:
        log.warning("abort: %s", error)
