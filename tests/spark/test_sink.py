"""The exactly-once sink under Spark, with real brokers, hurt at each step. Always the whole set is compared.

`test_staging.py` has what tasks and drivers do, without Spark, and `test_columns.py` what becomes of rows.
"""

from __future__ import annotations

import json
import re
import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import amq
from tests.brokers import Brokers
from tests.patience import DEADLINE_S
from tests.spark.conftest import need_spark
from tests.spark.pipeline import QUERY_S_MAX, QUEUE, Driver, Pipeline, make_files, rows, stored
from tests.spark.proxy import BATCH, PREPARE, ROLLBACK, Fate, Proxy, passing
from tests.spark.session import TWO_HOSTS

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


def test_a_batch_with_all_columns(spark: Any, brokers: Brokers) -> None:
    port = brokers.master().port
    frame = spark.range(200).selectExpr(
        "CAST(CAST(id AS STRING) AS BINARY) AS value",
        "concat('/queue/', IF(id % 2 = 0, 'even', 'odd')) AS destination",
        "IF(id < 100, CAST(id AS STRING), NULL) AS key",
        "IF(id < 50, map('a:b', 'c\\n', 'gone', NULL), NULL) AS headers",
    )
    with logged(spark) as metrics:
        frame.write.format("amq").mode("append").options(url=url(port), windowRows="30").save()
    assert [(each["rows"], each["batch"], each["outcome"]) for each in metrics] == [("200", "0", "committed")]
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
            (
                frame.select(fails_once("value").alias("value"))
                .write.format("amq")
                .mode("append")
                .options(url=proxy.url, destination=f"/queue/{QUEUE}", windowRows="20")
                .save()
            )
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
        Pipeline(tmp_path, f"failover:({urls})?updateURIsSupported=false", partitions=2).run(spark)
    assert killed == [PREPARE, BATCH]
    last = next(broker for broker in (slave, third) if broker.alive)
    assert stored(last.port) == expected(0, 1, 2)
    assert prepared(last.port) == []


def kill_driver(proxy: Proxy, driver: Driver, batch: int, fate: Fate) -> None:
    """Let a driver run until its commit of this batch comes to the proxy, and kill it."""
    with driver:

        def hook(kind: str, headers: dict[str, str]) -> Fate:
            if kind == BATCH and headers["batch"] == str(batch):
                driver.kill()
                return fate
            return Fate.PASS

        proxy.hook = hook
        code = driver.wait()
        assert code < 0, driver.log()
    proxy.join()
    proxy.hook = passing


def told(driver: Driver) -> list[dict[str, str]]:
    """What the sink said with `logMetrics`."""
    return [json.loads(line) for line in driver.said() if line.startswith('{"logger": "pyspark_amq.sink"')]


@pytest.mark.deep
def test_drivers_are_killed_on_both_sides_of_a_commit(
    spark: Any, brokers: Brokers, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """kill -9 with all that it started: before a commit, on executors of their own, which get shuffled rows, which come
    in another order each time, and whose master is killed while they stage; then while a commit is on its way, with
    other partitions. Then the query goes on, again with others."""
    master, slave = brokers.master("a"), brokers.slave("b")
    make_files(tmp_path, range(4))

    def kill_master(kind: str, headers: dict[str, str]) -> Fate:
        if kind == PREPARE and headers["batch"] == "1" and master.alive:
            master.kill()
        return Fate.PASS

    with Proxy(master.port, kill_master) as a, Proxy(slave.port) as b:
        # A connection that lives on would learn where the brokers are, and go round the proxies.
        where = f"failover:(stomp://127.0.0.1:{a.port},stomp://127.0.0.1:{b.port})?updateURIsSupported=false"
        first = Pipeline(tmp_path, where, partitions=4, options={"logMetrics": "true"}).drive(
            tmp_path_factory.mktemp("cluster"),
            "local-cluster[2,1,900]",
            sql_files_maxPartitionBytes="600",
            sql_files_openCostInBytes="0",  # each file has many parts to shuffle
        )
        kill_driver(b, first, 1, Fate.CUT_BEFORE)
        assert [(each["batch"], each["rows"], each["outcome"]) for each in told(first)] == [("0", "300", "committed")]
        assert not master.alive
        assert stored(slave.port) == expected(0)
        assert prepared(slave.port) != []
        second = Pipeline(tmp_path, where, partitions=3).drive(tmp_path_factory.mktemp("local"), "local[2]")
        kill_driver(b, second, 2, Fate.CUT_AFTER)
        assert stored(slave.port) == expected(0, 1, 2)
        Pipeline(tmp_path, where, partitions=1).run(spark)
    assert stored(slave.port) == expected(0, 1, 2, 3)
    assert prepared(slave.port) == []


@pytest.mark.deep
def test_two_attempts_of_a_task_stage_at_the_same_time(
    brokers: Brokers, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Speculation: one attempt is slow, and Spark starts another. In the first batch the slow one goes on when the
    other has staged a chunk; in the second one only when the batch is committed."""
    need_spark()
    port = brokers.master().port
    make_files(tmp_path, range(3))
    at_commit: dict[str, set[str]] = {}  # by batch: PARTITION/ATTEMPT of all that is prepared, as the broker has it
    committed: dict[str, list[str]] = {}  # those of partition 1 that the driver commits
    held = Counter[str]()
    slow_came = threading.Event()  # in the first batch: whose process starts late would be overtaken before it staged

    def hook(kind: str, headers: dict[str, str]) -> Fate:
        batch, slow = headers["batch"], f"{headers['owner']}/{headers['batch']}/1/0-"
        if kind == BATCH:
            at_commit[batch] = {"/".join(each.xid.rpartition("-")[0].split("/")[2:]) for each in prepared(port)}
            committed[batch] = re.findall(r"/1/(\d+)-", headers["series"])
        elif batch == "0" and "/1/1-" in headers["xid"]:
            held["other"] += 1
            if held["other"] == 1 and held["0"] < 2:
                proxy.let_go = slow_came
                return Fate.HELD
            if held["other"] == 2:  # its first chunk is staged
                proxy.let_go.set()
        elif not headers["xid"].startswith(slow):
            if batch == "2":
                proxy.let_go.set()
        elif batch < "2" and batch not in committed:
            held[batch] += 1
            if held[batch] == 2:
                slow_came.set()
                proxy.let_go = threading.Event()
                return Fate.HELD
        return Fate.PASS

    with Proxy(port, hook) as proxy:
        options = {"sendTimeout": f"{QUERY_S_MAX}s", "logMetrics": "true"}
        driver = Pipeline(tmp_path, f"{proxy.url}&nested.heartBeat=0", partitions=2, options=options).drive(
            tmp_path_factory.mktemp("speculation"),
            TWO_HOSTS,
            speculation="true",
            speculation_multiplier="1",
            speculation_efficiency_enabled="false",
        )
        with driver:
            assert driver.wait() == 0, driver.log()
    assert {batch: both >= {"1/0", "1/1"} for batch, both in at_commit.items()} == {"0": True, "1": True, "2": False}
    assert len(committed["0"]) == 1
    assert committed["1"] == ["1"]
    assert [(each["rows"], each["outcome"]) for each in told(driver)] == [("300", "committed")] * 3
    assert stored(port) == expected(0, 1, 2)
    assert prepared(port) == []


def test_a_checkpoint_that_is_one_batch_behind_fails(spark: Any, brokers: Brokers, tmp_path: Path) -> None:
    """Its next batch has other rows than the batch of that number that is committed."""
    port = brokers.master().port
    make_files(tmp_path, range(1))
    Pipeline(tmp_path, url(port)).run(spark)
    shutil.copytree(tmp_path / "checkpoint", tmp_path / "old")
    make_files(tmp_path, range(1, 2))
    Pipeline(tmp_path, url(port)).run(spark)
    (tmp_path / "in" / "part-1.txt").unlink()
    make_files(tmp_path, range(2, 3))
    with pytest.raises(Exception, match=r"batch 1 of .* comes again with .*failOnDataLoss"):
        Pipeline(tmp_path, url(port), checkpoint="old").run(spark)
    assert stored(port) == expected(0, 1)
    assert prepared(port) == []
