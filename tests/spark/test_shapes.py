"""Kafka's shapes and the formats of values, through Spark and a real broker: what goes in comes out."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.brokers import Brokers
from tests.spark.source_driver import patiently
from tests.spark.test_source import url

pa = pytest.importorskip("pyarrow", reason="no pyarrow: run make .venv/.installed-test")

PAIRS = "array<struct<key:string,value:binary>>"
ORDER = "id BIGINT, note STRING"
AVRO = "org.apache.spark:spark-avro_2.13:4.2.0"  # docs/spark.md names it
# FileDescriptorSet of: syntax = "proto3"; message Order { int64 id = 1; string note = 2; }
ORDER_DESCRIPTOR = bytes.fromhex(
    "0a340a076f2e70726f746f22210a054f72646572120a0a026964180120012803120c0a046e6f7465180220012809620670726f746f33"
)


@pytest.fixture
def where(tmp_path: Path) -> Iterator[str]:
    (tmp_path / "brokers").mkdir()
    with Brokers(tmp_path / "brokers") as brokers:
        yield url(brokers.master("a"))


def write(rows: Any, where: str, queue: str) -> None:
    rows.write.format("amq").mode("append").options(url=where, destination=queue).save()


def stream(spark: Any, tmp_path: Path, where: str, queue: str, schema: str = "", **options: str) -> list[Any]:
    """The rows that a stream reads, in the order of offsets."""
    reader = spark.readStream.format("amq").options(url=where, destination=queue, subscription="c", **options)
    rows = (reader.schema(schema) if schema else reader).load()
    found: list[Any] = []

    def run() -> None:
        found.clear()
        query = (
            rows.writeStream.foreachBatch(lambda batch, _: found.extend(batch.collect()))
            .option("checkpointLocation", str(tmp_path / queue.replace("/", "_")))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()

    patiently(run)
    return found


def test_what_has_kafkas_shape_comes_back_in_it(spark: Any, tmp_path: Path, where: str) -> None:
    keys = {0: b"k0", 1: b"\xff\x00", 2: None}
    headers = {0: [("a", b"1"), ("b", b"\xc3\xbc")], 1: [("a", b"")], 2: None}
    given = [
        (keys[i % 3], b"\x00%d" % i, None if headers[i % 3] is None else [*map(tuple, headers[i % 3])])
        for i in range(300)
    ]
    rows = spark.createDataFrame(given, f"key binary, value binary, headers {PAIRS}")
    patiently(lambda: write(rows.coalesce(1), where, "/queue/kafka"))
    found = stream(spark, tmp_path, where, "/queue/kafka", f"headers {PAIRS}, value binary, key binary")
    assert sorted(
        (bytes(row.value), bytes(row.key), [(each.key, bytes(each.value)) for each in row.headers[1:]])
        for row in found
        if row.key is not None
    ) == sorted((value, key, headers or []) for key, value, headers in given if key is not None)
    assert {row.headers[0].key for row in found if row.key is not None} == {"correlation-id"}
    assert sorted(bytes(row.value) for row in found) == sorted(value for _, value, _ in given)
    assert all(row.headers == [] for row in found if row.key is None)


def test_tombstones_and_bytes_in_headers_come_back(spark: Any, tmp_path: Path, where: str) -> None:
    given = [(b"k%d" % n, None if n % 3 else b"", [("a", b"\xff%d" % n)]) for n in range(30)]
    rows = spark.createDataFrame(given, f"key binary, value binary, headers {PAIRS}")
    patiently(lambda: write(rows, where, "/queue/nulls"))
    found = stream(spark, tmp_path, where, "/queue/nulls", f"key binary, value binary, headers {PAIRS}")
    read = [(row.key, row.value, [(each.key, each.value) for each in row.headers[1:]]) for row in found]
    assert sorted(read, key=str) == sorted(given, key=str)


def test_text_and_maps_are_the_default(spark: Any, tmp_path: Path, where: str) -> None:
    rows = spark.range(100).selectExpr(
        "concat('k', id) AS key", "CAST(id AS STRING) AS value", "map('a', 'x', 'n', CAST(id AS STRING)) AS headers"
    )
    patiently(lambda: write(rows, where, "/queue/text"))
    found = stream(spark, tmp_path, where, "/queue/text", includeHeaders="true")
    assert {row.key for row in found} == {f"k{i}" for i in range(100)}
    for row in found:
        number = bytes(row.value).decode()
        assert row.headers == {"correlation-id": f"k{number}", "a": "x", "n": number}


def test_json(spark: Any, tmp_path: Path, where: str) -> None:
    from pyspark.sql import functions as F

    rows = spark.range(50).selectExpr("to_json(struct(id, concat('n', id) AS note)) AS value")
    patiently(lambda: write(rows, where, "/queue/json"))
    found = spark.createDataFrame(stream(spark, tmp_path, where, "/queue/json", "value string"), "value string")
    orders = found.select(F.from_json("value", ORDER).alias("order")).select("order.*").collect()
    assert sorted((row.id, row.note) for row in orders) == [(i, f"n{i}") for i in range(50)]


def test_avro(spark: Any, tmp_path: Path, where: str) -> None:
    from pyspark.errors import PySparkException
    from pyspark.sql.avro.functions import from_avro, to_avro

    try:
        spark.sql(f"ADD JAR ivy://{AVRO}")
    except PySparkException as error:
        if os.environ.get("CI") == "true":
            raise
        pytest.skip(f"no {AVRO} from Maven: {str(error)[:200]}")
    schema = '{"type":"record","name":"o","fields":[{"name":"id","type":"long"},{"name":"note","type":"string"}]}'
    rows = spark.range(50).selectExpr("struct(id, concat('n', id) AS note) AS o")
    patiently(lambda: write(rows.select(to_avro("o", schema).alias("value")), where, "/queue/avro"))
    found = spark.createDataFrame(stream(spark, tmp_path, where, "/queue/avro", "value binary"), "value binary")
    orders = found.select(from_avro("value", schema).alias("o")).select("o.*").collect()
    assert sorted((row.id, row.note) for row in orders) == [(i, f"n{i}") for i in range(50)]


def test_protobuf(spark: Any, tmp_path: Path, where: str) -> None:
    """Bytes of another program, decoded by the protobuf package in a task."""
    from pyspark.sql.functions import arrow_udf

    def order() -> Any:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

        known = descriptor_pool.DescriptorPool()
        known.Add(descriptor_pb2.FileDescriptorSet.FromString(descriptor).file[0])
        return message_factory.GetMessageClass(known.FindMessageTypeByName("Order"))

    @arrow_udf("struct<id:bigint,note:string>")  # type: ignore[untyped-decorator, unused-ignore]
    def decoded(values: pa.Array) -> pa.Array:
        parse = order().FromString
        orders = [parse(value) for value in values.to_pylist()]
        kind = pa.struct([("id", pa.int64()), ("note", pa.string())])
        return pa.array([(each.id, each.note) for each in orders], kind)

    descriptor = ORDER_DESCRIPTOR
    given = [(order()(id=i, note=f"n{i}").SerializeToString(),) for i in range(50)]
    patiently(lambda: write(spark.createDataFrame(given, "value binary"), where, "/queue/protobuf"))
    found = spark.createDataFrame(stream(spark, tmp_path, where, "/queue/protobuf", "value binary"), "value binary")
    orders = patiently(lambda: found.select(decoded("value").alias("o")).select("o.*").collect())
    assert sorted((row.id, row.note) for row in orders) == [(i, f"n{i}") for i in range(50)]
