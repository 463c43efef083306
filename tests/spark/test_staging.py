"""Tasks and drivers of the sink without Spark: what attempts stage, and what becomes of it, with real brokers."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from tests.patience import DEADLINE_S
from tests.sampling import only, sampled

pa = pytest.importorskip("pyarrow", reason="no pyarrow: run make .venv/.installed-test")
pytest.importorskip("pyspark", reason="no PySpark: run make .venv/.installed-test")

from pyspark.sql.types import StringType, StructField, StructType  # noqa: E402

import amq  # noqa: E402
from amq.core.errors import AmqError, CommandError, TransactionRolledBackError  # noqa: E402
from pyspark_amq import columns, connections, frames, sink, staging  # noqa: E402
from pyspark_amq.frames import FrameColumns  # noqa: E402
from pyspark_amq.options import OptionError, SinkOptions, read  # noqa: E402
from pyspark_amq.staging import Attempt, Staged  # noqa: E402
from tests.brokers import Broker, Brokers  # noqa: E402
from tests.spark.proxy import PREPARE, Fate, Proxy  # noqa: E402

MAP = pa.map_(pa.string(), pa.string())
TEXT = FrameColumns(text=True, key=False, destination=False, headers=False, id=None)


def options(url: str | Broker, **given: object) -> SinkOptions:
    if not isinstance(url, str):
        url = f"failover:(stomp://127.0.0.1:{url.port})"
    named = {"url": url, "destination": "/queue/rows", "windowRows": 10, **given}
    return read(SinkOptions, {name: str(value) for name, value in named.items()})


def batches(rows: Iterable[str], size: int = 7) -> list[Any]:
    table = pa.table({"value": list(rows)})
    return table.to_batches(max_chunksize=size)


def rows_of(part: Attempt, count: int = 25) -> list[str]:
    return [f"{part.batch}/{part.partition}/{n}" for n in range(count)]


def stage(part: Attempt, with_options: SinkOptions, count: int = 25) -> Staged:
    return staging.stage(batches(rows_of(part, count)), part, with_options, TEXT)


def commit(with_options: SinkOptions, staged: list[Staged]) -> None:
    sink._commit(with_options, {"": staged})


def stored(broker: Broker, name: str = "rows") -> list[str]:
    """All that is in the queue, in order."""
    with amq.connect(f"failover:(stomp://127.0.0.1:{broker.port})") as connection, connection.session() as session:
        browser, found = session.browser(f"/queue/{name}"), []
        while (message := browser.receive(DEADLINE_S)) is not None:
            found.append(message.text)
    return found


def prepared(broker: Broker) -> set[str]:
    with amq.connect(f"failover:(stomp://127.0.0.1:{broker.port})") as connection:
        return {each.xid for each in connection.recover()}


def test_a_batch_is_seen_whole_in_the_order_of_partitions(brokers: Brokers) -> None:
    broker = brokers.master()
    parts = [Attempt("q", 0, partition, 0) for partition in range(3)]
    staged = [stage(part, options(broker)) for part in parts]
    assert [each.rows for each in staged] == [25] * 3
    assert [len(each.xids) for each in staged] == [4] * 3  # 7 rows each: Arrow batches that do not fit together
    assert stored(broker) == []
    commit(options(broker), staged)
    assert stored(broker) == [row for part in parts for row in rows_of(part)]
    commit(options(broker), staged)  # asked again
    assert len(stored(broker)) == 75
    assert prepared(broker) == set()


@pytest.mark.parametrize("rows_max", [1, 7, 4999])
def test_a_batch_of_spark_may_be_much_larger_than_a_chunk(rows_max: int) -> None:
    rows = [str(n) for n in range(5000)]
    chunks = list(frames.chunks(batches(rows, len(rows)), rows_max))
    assert [row for chunk in chunks for batch in chunk for row in batch["value"].to_pylist()] == rows
    assert [sum(batch.num_rows for batch in chunk) for chunk in chunks[:-1]] == [rows_max] * (len(chunks) - 1)


def test_a_task_without_rows_does_not_talk_to_the_broker() -> None:
    nobody = options("stomp://127.0.0.1:1")
    staged = [stage(Attempt("q", 0, partition, 0), nobody, count=0) for partition in range(2)]
    assert staged[0].xids == ()
    commit(nobody, staged)


def test_tasks_and_commits_of_a_process_use_one_connection(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    broker = brokers.master()
    made: list[Any] = []
    known = connections._connect
    monkeypatch.setattr(connections, "_connect", lambda key: made.append(known(key)) or made[-1])
    for batch in range(3):
        commit(options(broker), [stage(Attempt("q", batch, partition, 0), options(broker)) for partition in range(2)])
    assert len(made) == 1
    assert len(stored(broker)) == 150
    assert made[0]._sessions == [], "that of each task was closed"


def test_a_task_that_fails_closes_its_connection(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be in the middle of something: the broker rolls back what is not safe."""
    broker = brokers.master()
    made: list[Any] = []
    known = connections._connect
    monkeypatch.setattr(connections, "_connect", lambda key: made.append(known(key)) or made[-1])

    def broken() -> Iterator[Any]:
        yield from batches(rows_of(Attempt("q", 0, 0, 0)))
        raise RuntimeError("the rows of the task fail")

    with pytest.raises(RuntimeError):
        staging.stage(broken(), Attempt("q", 0, 0, 0), options(broker), TEXT)
    assert made[0].closed
    commit(options(broker), [stage(Attempt("q", 0, 0, 1), options(broker))])
    assert len(made) == 2
    assert stored(broker) == rows_of(Attempt("q", 0, 0, 1))
    assert prepared(broker) == set()


def test_attempts_that_lose_leave_nothing(brokers: Brokers) -> None:
    """A task that ran three times (a retry, speculation): the driver commits what one of them returned."""
    broker = brokers.master()
    attempts = [stage(Attempt("q", 0, 0, attempt), options(broker)) for attempt in range(3)]
    assert len({xid for each in attempts for xid in each.xids}) == 12
    commit(options(broker), attempts[1:2])
    assert stored(broker) == rows_of(Attempt("q", 0, 0, 0))
    assert prepared(broker) == set()


def test_a_zombie_stages_nothing_for_a_batch_that_is_committed(brokers: Brokers) -> None:
    broker = brokers.master()
    commit(options(broker), [stage(Attempt("q", 5, 0, 0), options(broker))])
    for batch in (4, 5):
        late = stage(Attempt("q", batch, 0, 1), options(broker))
        assert (late.late, late.xids) == (True, ())
    assert prepared(broker) == set()
    other = stage(Attempt("another", 4, 0, 0), options(broker))
    assert not other.late
    assert stored(broker) == rows_of(Attempt("q", 5, 0, 0))


def test_a_batch_older_than_the_broker_is_refused(brokers: Brokers) -> None:
    broker = brokers.master()
    for batch in (0, 1):
        commit(options(broker), [stage(Attempt("q", batch, 0, 0), options(broker))])
    with pytest.raises(CommandError) as caught:
        commit(options(broker), [stage(Attempt("q", 0, 0, 0), options(broker))])
    assert caught.value.code == "BATCH_TOO_OLD"
    assert stored(broker) == rows_of(Attempt("q", 0, 0, 0)) + rows_of(Attempt("q", 1, 0, 0))


def test_a_batch_that_was_planned_anew_is_an_error(brokers: Brokers, caplog: pytest.LogCaptureFixture) -> None:
    """A checkpoint that is behind by exactly one batch: the broker has the batch as it was."""
    broker, part = brokers.master(), Attempt("q", 0, 0, 0)
    commit(options(broker), [stage(part, options(broker))])
    late = stage(part, options(broker), count=40)
    assert (late.late, late.rows) == (True, 40)
    with pytest.raises(CommandError, match=r"with 25 rows .* again with 40 rows .*failOnDataLoss") as caught:
        commit(options(broker), [late])
    assert caught.value.code == "BATCH_DIFFERS"
    skipping = options(broker, failOnDataLoss="false")
    commit(skipping, [stage(part, skipping, count=40)])
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert warnings == ["batch 0 of q was committed before: its rows are not sent again"]
    assert stored(broker) == rows_of(part)


def test_the_same_rows_in_other_partitions_are_the_same_batch(brokers: Brokers) -> None:
    broker = brokers.master()
    rows = [f"row {number}" for number in range(100)]

    def staged(*parts: list[str]) -> list[Staged]:
        return [
            staging.stage(batches(part), Attempt("q", 0, number, 0), options(broker), TEXT)
            for number, part in enumerate(parts)
        ]

    commit(options(broker), staged(rows[:50], rows[50:]))
    commit(options(broker), staged(rows[70:][::-1], rows[:10], rows[10:70]))
    with pytest.raises(CommandError, match="again with"):
        commit(options(broker), staged([*rows[:99], "row 98"]))
    assert sorted(stored(broker)) == sorted(rows)


def test_a_checksum_looks_at_all_that_is_sent() -> None:
    def of(destination: str, bodies: list[bytes], headers: list[Any] | None = None) -> int:
        maps = pa.array([None if each is None else list(each.items()) for each in headers or [None] * len(bodies)], MAP)
        described = FrameColumns(text=False, key=False, destination=False, headers=headers is not None, id=None)
        batch = pa.record_batch({"value": pa.array(bodies, pa.binary()), "headers": maps})
        return sum(table.checksum() for table in columns.tables_of(batch, described, destination)) % (1 << 64)

    one = of("/queue/a", [b"1", b"2"], [{"k": "v", "l": "w"}, None])
    assert one == of("/queue/a", [b"2", b"1"], [None, {"l": "w", "k": "v"}])
    assert of("/queue/a", [b"1", b"2"]) == of("/queue/a", [b"1", b"2"], [None, None])
    others = [
        of("/queue/b", [b"1", b"2"], [{"k": "v", "l": "w"}, None]),
        of("/queue/a", [b"1", b"2"]),
        of("/queue/a", [b"1", b"2"], [None, {"k": "v", "l": "w"}]),
        of("/queue/a", [b"1", b"2"], [{"k": "v", "l": "x"}, None]),
        of("/queue/a", [b"1", b"3"]),
    ]
    assert len({one, *others}) == 6


def test_jobs_of_an_application_are_written_once(brokers: Brokers) -> None:
    """As `foreachBatch` writes them, twice to each of two queues. Without a name each job is written."""
    broker, schema = brokers.master(), StructType([StructField("value", StringType())])

    def write(version: int, rows: list[str], destination: str, **given: object) -> None:
        named = {"txnAppId": "etl", "txnVersion": version, **given}
        writer = sink.AmqBatchWriter(options(broker, destination=destination, **named), schema, False)
        part = Attempt(writer._job, writer._batch, 0, 0)
        writer.commit([staging.stage(batches(rows), part, writer._options, writer._columns)])

    for version in (1, 2):
        for destination in ("/queue/rows", "/queue/others"):
            for _ in range(2):
                write(version, [f"{version}"], destination)
    assert stored(broker) == stored(broker, "others") == ["1", "2"]
    with pytest.raises(CommandError, match="older than"):
        write(1, ["1"], "queue://rows")
    with pytest.raises(CommandError, match="again with"):
        write(2, ["other"], "queue://rows")
    assert len(sink.owner_of("a", ",".join(f"/queue/{number}" for number in range(1000)))) < 100
    with pytest.raises(OptionError, match=r"txnAppId.*the checkpoint identifies a stream"):
        sink.AmqStreamWriter(options(broker, txnAppId="etl", txnVersion=1), schema)


@pytest.mark.deep
def test_thousands_of_tasks_are_one_batch(brokers: Brokers) -> None:
    """Their names do not fit into the headers of one frame."""
    broker = brokers.master()
    tasks = 1200
    with amq.connect(f"failover:(stomp://127.0.0.1:{broker.port})") as connection:
        session = connection.session(transacted=True)
        producer, staged = session.producer("/queue/rows"), []
        for number in range(tasks):
            xid = Attempt("q", 0, number, 0).new_name() + ".0"
            producer.send(str(number))
            session.prepare(xid, owner="q", batch=0)
            staged.append(Staged("q", 0, (xid,), 1, 1, False, 0, 0.0, number))
    commit(options(broker), staged[:-1])
    sink._abort(options(broker), staged)  # the last one is late; the others are committed
    assert (len(stored(broker)), prepared(broker)) == (tasks - 1, set())


def test_abort_ends_what_these_tasks_staged_and_nothing_else(brokers: Brokers) -> None:
    broker = brokers.master()
    mine = stage(Attempt("q", 0, 0, 0), options(broker))
    others = [stage(Attempt("q", 0, 1, 0), options(broker)), stage(Attempt("r", 0, 0, 0), options(broker))]
    sink._abort(options(broker), [mine, None])
    assert prepared(broker) == {xid for other in others for xid in other.xids}
    sink._abort(options(broker), [mine])  # again: harmless
    with pytest.raises(TransactionRolledBackError):
        commit(options(broker), [mine])
    commit(options(broker), others[1:])
    sink._abort(options(broker), others[1:])  # thought lost, and was not
    assert stored(broker) == rows_of(Attempt("r", 0, 0, 0))


def test_orphans_expire(brokers: Brokers) -> None:
    broker = brokers.master()
    staged = stage(Attempt("q", 0, 0, 0), options(broker, txTimeout="300ms"))
    deadline = time.monotonic() + DEADLINE_S
    while prepared(broker):
        assert time.monotonic() < deadline, "orphans stay"
        time.sleep(0.05)
    with pytest.raises(TransactionRolledBackError):
        commit(options(broker), [staged])
    assert stored(broker) == []


@pytest.mark.parametrize("delivery", only(["exactly-once", "at-least-once", "dedup"], "exactly-once"))
@pytest.mark.parametrize("killed_at", sampled([2, 4]))
def test_the_master_is_killed_between_chunks(brokers: Brokers, delivery: str, killed_at: int) -> None:
    """The task goes on with the next master; Spark would not notice."""
    master, slave = brokers.master("a"), brokers.slave("b")
    part, given = (
        Attempt("q", 0, 0, 0),
        options(f"failover:(stomp://127.0.0.1:{master.port},stomp://127.0.0.1:{slave.port})", delivery=delivery),
    )

    def killing() -> Iterable[Any]:
        for number, batch in enumerate(batches(rows_of(part, 50))):
            if number == killed_at:
                master.kill()
            yield batch

    staged = staging.stage(killing(), part, given, TEXT)
    commit(given, [staged])
    assert stored(slave) == rows_of(part, 50)
    assert (staged.rows, staged.late) == (50, False)


@pytest.mark.parametrize("fate", [Fate.CUT_BEFORE, Fate.CUT_AFTER])
def test_the_connection_breaks_while_a_chunk_is_prepared(brokers: Brokers, fate: Fate) -> None:
    broker = brokers.master()
    fates = iter([Fate.PASS, fate, Fate.PASS, fate])
    with Proxy(broker.port, lambda kind, _: next(fates, Fate.PASS) if kind == PREPARE else Fate.PASS) as proxy:
        staged = stage(Attempt("q", 0, 0, 0), options(proxy.url), count=40)
        commit(options(proxy.url), [staged])
    assert stored(broker) == rows_of(Attempt("q", 0, 0, 0), 40)
    assert staged.sent_again == (2 if fate is Fate.CUT_BEFORE else 0)
    assert prepared(broker) == set()


def test_a_task_gets_its_next_rows_while_the_broker_prepares(brokers: Brokers) -> None:
    broker, rows = brokers.master(), rows_of(Attempt("q", 0, 0, 0), 20)
    with Proxy(broker.port, lambda kind, _: Fate.HELD if kind == PREPARE else Fate.PASS) as proxy:

        def asked() -> Iterable[Any]:
            yield from batches(rows[:10], 10)
            proxy.let_go.set()
            yield from batches(rows[10:], 10)

        given = options(proxy.url, sendTimeout=f"{DEADLINE_S:.0f}s")
        staged = staging.stage(asked(), Attempt("q", 0, 0, 0), given, TEXT)
        commit(given, [staged])
    assert stored(broker) == rows


def test_no_broker_in_time_is_an_error(brokers: Brokers) -> None:
    broker = brokers.master()
    given = options(broker, sendTimeout="1s")

    def killing() -> Iterable[Any]:
        yield from batches(["a", "b"], 1)
        broker.kill()
        yield from batches(rows_of(Attempt("q", 0, 0, 0), 40))

    with pytest.raises(AmqError):
        staging.stage(killing(), Attempt("q", 0, 0, 0), given, TEXT)


@pytest.mark.parametrize("strategy", ["content", "position"])
def test_ids_drop_what_a_second_attempt_sends(brokers: Brokers, strategy: str) -> None:
    broker, part = brokers.master(), Attempt("q", 0, 0, 0)
    given = options(broker, delivery="dedup", idStrategy=strategy)
    rows = [*rows_of(part), "same", "same", "same"]
    staging.stage(batches(rows[:9]), part, given, TEXT)  # killed in the middle
    again = rows if strategy == "position" else [*reversed(rows)]
    staging.stage(batches(again), Attempt("q", 0, 0, 1), given, TEXT)
    assert sorted(stored(broker)) == sorted(rows)


@pytest.mark.parametrize("delivery", sampled(["exactly-once", "dedup"]))
def test_text_that_is_not_utf_8_goes_as_it_is(brokers: Brokers, delivery: str) -> None:
    broker, bodies = brokers.master(), ["grüße".encode(), "grüße".encode("latin-1")]
    given, part = options(broker, delivery=delivery), Attempt("q", 0, 0, 0)
    text = pa.array(bodies, pa.binary()).cast(pa.string(), safe=False)
    commit(given, [staging.stage(pa.table({"value": text}).to_batches(), part, given, TEXT)])
    with amq.connect(f"failover:(stomp://127.0.0.1:{broker.port})") as connection, connection.session() as session:
        browser = session.browser("/queue/rows")
        assert [browser.receive(DEADLINE_S).body for _ in bodies] == bodies


def test_a_position_is_one_in_its_destination_however_rows_are_cut() -> None:
    """`windowRows`, and what Spark puts into one Arrow batch, may be others when a batch runs again."""
    table = pa.table({"value": [str(n) for n in range(60)], "destination": [f"/queue/{n % 3}" for n in range(60)]})
    described = FrameColumns(text=True, key=False, destination=True, headers=False, id=None)

    def ids(size: int) -> dict[bytes, str]:
        identifier = frames.Identifier("scope", "position")
        parts = [part.rows() for batch in table.to_batches(size) for part in columns.tables_of(batch, described, None)]
        return {body: id for part in parts for body, id in zip(part.bodies, identifier.ids(part), strict=True)}

    assert len(set(ids(60).values())) == 60
    assert ids(7) == ids(60)


def test_ids_of_a_column(brokers: Brokers) -> None:
    broker = brokers.master()
    given = options(broker, delivery="dedup", idColumn="id")
    columns = FrameColumns(text=True, key=False, destination=False, headers=False, id="id")
    for values in (["a", "b"], ["b again", "c"]):
        table = pa.table({"value": values, "id": [value[0] for value in values]})
        staging.stage(table.to_batches(), Attempt(str(uuid.uuid4()), 0, 0, 0), given, columns)
    assert stored(broker) == ["a", "b", "c"]


def test_a_refusal_for_good_ends_a_task_at_once_with_its_cause(brokers: Brokers) -> None:
    """Sending the rows again would end in the same way."""
    broker = brokers.master("a", stompStrictDestinations="true")
    part, sleeps = Attempt(uuid.uuid4().hex, 0, 0, 0), list[float]()
    with pytest.MonkeyPatch.context() as patch, pytest.raises(TransactionRolledBackError) as raised:
        patch.setattr(staging._NOTHING, "wait", sleeps.append)
        stage(part, options(broker, destination="/exchange/rows"))
    assert raised.value.code == "DESTINATION_INVALID"
    assert "/exchange/rows" in str(raised.value)
    assert sleeps == []
