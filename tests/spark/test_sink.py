"""The exactly-once sink under Spark, with real brokers, hurt at each step. Always the whole set is compared."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import amq
from tests.brokers import DEADLINE_S, Brokers
from tests.spark.pipeline import QUEUE, Pipeline, make_files, rows, stored
from tests.spark.proxy import BATCH, PREPARE, ROLLBACK, Fate, Proxy, passing

SECRET = "hunter2-hunter2"


def url(port: int) -> str:
    return f"failover:(stomp://127.0.0.1:{port})"


def expected(*numbers: int) -> Counter[str]:
    return Counter(rows(*numbers))


def prepared(port: int) -> list[Any]:
    with amq.connect(url(port)) as connection:
        return connection.recover()


@contextmanager
def logged(spark: Any) -> Iterator[list[dict[str, str]]]:
    """What the sink tells of the jobs in the block: there when it is left."""
    found: list[dict[str, str]] = []
    spark.conf.set("spark.sql.pyspark.worker.logging.enabled", "true")
    try:
        logs = spark.tvf.python_worker_logs().where("logger = 'pyspark_amq.sink'").orderBy("ts")
        before = logs.count()
        yield found
        logs = spark.tvf.python_worker_logs().where("logger = 'pyspark_amq.sink'").orderBy("ts")
        found += [row.context for row in logs.collect()[before:]]
    finally:
        spark.conf.unset("spark.sql.pyspark.worker.logging.enabled")


def test_a_stream_and_what_spark_shows_of_it(
    spark: Any, brokers: Brokers, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    port = brokers.master().port
    make_files(tmp_path, range(3))
    query = Pipeline(tmp_path, url(port), partitions=2).run(spark, user="me", password=SECRET)
    assert stored(port) == expected(0, 1, 2)
    assert prepared(port) == []
    query.explain(extended=True)
    shown = capfd.readouterr()
    assert "WriteToDataSourceV2" in shown.out or "MicroBatch" in shown.out
    for text in (shown.out, shown.err, json.dumps([json.loads(each.json) for each in query.recentProgress])):
        assert SECRET not in text


@pytest.mark.parametrize("delivery", ["exactly-once", "at-least-once", "dedup"])
def test_a_batch_with_all_columns(spark: Any, brokers: Brokers, delivery: str) -> None:
    port = brokers.master().port
    frame = spark.range(200).selectExpr(
        "CAST(CAST(id AS STRING) AS BINARY) AS value",
        "concat('/queue/', IF(id % 2 = 0, 'even', 'odd')) AS destination",
        "IF(id < 100, CAST(id AS STRING), NULL) AS key",
        "IF(id < 50, map('a:b', 'c\\n', 'gone', NULL), NULL) AS headers",
    )  # fmt: skip
    with logged(spark) as metrics:
        frame.write.format("amq").mode("append").options(url=url(port), delivery=delivery, windowRows="30").save()
    outcome = "committed" if delivery == "exactly-once" else "sent"
    assert [(each["rows"], each["batch"], each["outcome"]) for each in metrics] == [("200", "0", outcome)]
    for name, rest in (("even", 0), ("odd", 1)):
        with amq.connect(url(port)) as connection, connection.session() as session:
            browser, found = session.browser(f"/queue/{name}"), {}
            while (message := browser.receive(DEADLINE_S)) is not None:
                number = int(message.body)
                assert message.headers.get("correlation-id") == (str(number) if number < 100 else None)
                assert message.headers.get("a:b") == ("c\n" if number < 50 else None)
                assert "gone" not in message.headers
                assert number not in found
                found[number] = message
        assert sorted(found) == list(range(rest, 200, 2))


def test_a_task_that_fails_is_run_again_whole(spark: Any, brokers: Brokers, tmp_path: Path) -> None:
    from pyspark.sql.functions import udf

    port, flag = brokers.master().port, str(tmp_path / "failed")

    @udf
    def fails_once(value: str) -> str:
        if value == "199" and not Path(flag).exists():
            Path(flag).touch()
            raise ZeroDivisionError
        return value

    with Proxy(port) as proxy:
        staged: list[str] = []
        proxy.hook = lambda kind, headers: (kind == PREPARE and staged.append(headers["xid"])) or Fate.PASS
        frame = spark.range(0, 200, 1, 2).selectExpr("CAST(id AS STRING) AS value")
        spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", 20)
        try:
            (frame.select(fails_once("value").alias("value")).write.format("amq").mode("append")
             .options(url=proxy.url, destination=f"/queue/{QUEUE}", windowRows="20").save())  # fmt: skip
        finally:
            spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert Path(flag).exists()
    assert stored(port) == Counter(str(number) for number in range(200))
    attempts = {xid.split("/")[3].split("-")[0] for xid in staged if xid.split("/")[2] == "1"}
    assert "1" in attempts
    assert prepared(port) == []


@pytest.mark.parametrize("fate", [Fate.CUT_BEFORE, Fate.CUT_AFTER])
def test_the_answer_to_a_commit_is_lost(spark: Any, brokers: Brokers, tmp_path: Path, fate: Fate) -> None:
    """The driver asks again, and Spark does not notice."""
    port, cut = brokers.master().port, []

    def hook(kind: str, headers: dict[str, str]) -> Fate:
        if kind == BATCH and headers["batch"] not in cut:
            cut.append(headers["batch"])
            return fate
        return Fate.PASS

    make_files(tmp_path, range(2))
    with Proxy(port, hook) as proxy:
        Pipeline(tmp_path, proxy.url).run(spark)
    assert cut == ["0", "1"]
    assert stored(port) == expected(0, 1)


@pytest.mark.parametrize("fate", [Fate.REFUSED, Fate.DENIED])
def test_a_commit_that_fails_is_aborted(spark: Any, brokers: Brokers, tmp_path: Path, fate: Fate) -> None:
    """What was not committed is rolled back, what was stays. After a restart the query goes on, in other partitions."""
    port, told = brokers.master().port, []

    def hook(kind: str, headers: dict[str, str]) -> Fate:
        told.append(kind)
        return fate if kind == BATCH and headers["batch"] == "1" else Fate.PASS

    make_files(tmp_path, range(3))
    with Proxy(port, hook) as proxy, pytest.raises(Exception, match="the proxy does not like it"):
        Pipeline(tmp_path, proxy.url, partitions=2).run(spark)
    assert told[-1] == ROLLBACK
    assert stored(port) == (expected(0, 1) if fate is Fate.DENIED else expected(0))
    assert prepared(port) == []
    Pipeline(tmp_path, url(port), partitions=3).run(spark)
    assert stored(port) == expected(0, 1, 2)


def test_the_master_is_killed_during_a_batch(spark: Any, brokers: Brokers, tmp_path: Path) -> None:
    """Once while tasks prepare, once when the driver commits."""
    master, slave, third = brokers.master("a"), brokers.slave("b"), brokers.slave("c")
    make_files(tmp_path, range(3))
    killed = []

    def hook(kind: str, headers: dict[str, str]) -> Fate:
        alive = [broker for broker in (master, slave) if broker.alive]
        if (kind, headers.get("batch"), len(killed)) in ((PREPARE, "0", 0), (BATCH, "1", 1)):
            killed.append(kind)
            alive[0].kill() if kind == PREPARE else serving(alive).kill()
        return Fate.PASS

    def serving(alive: list[Any]) -> Any:
        return next(broker for broker in [*alive, third] if broker.alive and broker.said("master: serving clients"))

    with Proxy(master.port, hook) as a, Proxy(slave.port, hook) as b, Proxy(third.port, hook) as c:
        urls = ",".join(f"stomp://127.0.0.1:{proxy.port}" for proxy in (a, b, c))
        Pipeline(tmp_path, f"failover:({urls})", partitions=2).run(spark)
    assert killed == [PREPARE, BATCH]
    last = next(broker for broker in (slave, third) if broker.alive)
    assert stored(last.port) == expected(0, 1, 2)
    assert prepared(last.port) == []


def test_a_checkpoint_older_than_the_broker_is_refused(spark: Any, brokers: Brokers, tmp_path: Path) -> None:
    port = brokers.master().port
    make_files(tmp_path, range(1))
    Pipeline(tmp_path, url(port)).run(spark)
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "old")
    make_files(tmp_path, range(1, 3))
    Pipeline(tmp_path, url(port)).run(spark)
    with pytest.raises(Exception, match="older than"):
        Pipeline(tmp_path, url(port), checkpoint="old").run(spark)
    assert stored(port) == expected(0, 1, 2)


def kill_driver(proxy: Proxy, pipeline: Pipeline, master: str, directory: Path, batch: int, fate: Fate) -> str:
    """Run a driver that is killed at the commit of this batch. Returns what it said."""
    with pipeline.drive(directory, master) as driver:

        def hook(kind: str, headers: dict[str, str]) -> Fate:
            if kind == BATCH and headers["batch"] == str(batch):
                driver.kill()
                return fate
            return Fate.PASS

        proxy.hook = hook
        code = driver.wait()
        assert code < 0, driver.log()
    proxy.hook = passing
    return driver.log()


@pytest.mark.slow
def test_drivers_are_killed_on_both_sides_of_a_commit(
    spark: Any, brokers: Brokers, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """kill -9 with all that it started: before a commit, on executors of their own that get shuffled rows, which come
    in another order each time; then while a commit is on its way, with other partitions. Then the query goes on."""
    port = brokers.master().port
    make_files(tmp_path, range(4))
    with Proxy(port) as proxy:
        first = Pipeline(tmp_path, proxy.url, partitions=4, options={"logMetrics": "true"})
        directory = tmp_path_factory.mktemp("cluster")
        said = kill_driver(proxy, first, "local-cluster[2,1,900]", directory, 1, Fate.CUT_BEFORE)
        metrics = [json.loads(line) for line in said.splitlines() if line.startswith('{"logger": "pyspark_amq.sink"')]
        assert [(each["batch"], each["rows"], each["outcome"]) for each in metrics] == [("0", "300", "committed")]
        assert stored(port) == expected(0)
        assert prepared(port) != []
        second, directory = Pipeline(tmp_path, proxy.url, partitions=3), tmp_path_factory.mktemp("local")
        kill_driver(proxy, second, "local[2]", directory, 2, Fate.CUT_AFTER)
        assert stored(port) == expected(0, 1, 2)
        Pipeline(tmp_path, proxy.url, partitions=1).run(spark)
    assert stored(port) == expected(0, 1, 2, 3)
    assert prepared(port) == []
