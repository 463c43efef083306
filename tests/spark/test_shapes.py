"""Kafka's shapes and the formats of values, through Spark and a real broker: what goes in comes out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.brokers import Brokers
from tests.spark.source_driver import patiently
from tests.spark.test_source import url

PAIRS = "array<struct<key:string,value:binary>>"
ORDER = "id BIGINT, note STRING"


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
            .option("checkpointLocation", str(tmp_path / queue.replace("/", "_"))).trigger(availableNow=True).start()
        )  # fmt: skip
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
        for row in found if row.key is not None
    ) == sorted((value, key, headers or []) for key, value, headers in given if key is not None)  # fmt: skip
    assert {row.headers[0].key for row in found if row.key is not None} == {"correlation-id"}
    assert sorted(bytes(row.value) for row in found) == sorted(value for _, value, _ in given)
    assert all(row.headers == [] for row in found if row.key is None)


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
    need_jar(spark, "org.apache.spark.sql.avro.AvroDataToCatalyst", "spark-avro")
    from pyspark.sql.avro.functions import from_avro, to_avro

    schema = '{"type":"record","name":"o","fields":[{"name":"id","type":"long"}]}'
    rows = spark.range(50).selectExpr("struct(id) AS o").select(to_avro("o", schema).alias("value"))
    patiently(lambda: write(rows, where, "/queue/avro"))
    found = spark.createDataFrame(stream(spark, tmp_path, where, "/queue/avro", "value binary"), "value binary")
    assert sorted(row.o.id for row in found.select(from_avro("value", schema).alias("o")).collect()) == [*range(50)]


def test_protobuf(spark: Any, tmp_path: Path, where: str) -> None:
    need_jar(spark, "org.apache.spark.sql.protobuf.ProtobufDataToCatalyst", "spark-protobuf")
    from pyspark.sql.protobuf.functions import from_protobuf, to_protobuf

    # FileDescriptorSet of: syntax = "proto3"; message Order { int64 id = 1; }
    descriptor = bytes.fromhex("0a230a076f2e70726f746f22100a054f7264657212070a026964180120012803620670726f746f33")
    rows = spark.range(50).selectExpr("struct(id) AS o")
    rows = rows.select(to_protobuf("o", "Order", binaryDescriptorSet=descriptor).alias("value"))
    patiently(lambda: write(rows, where, "/queue/protobuf"))
    found = spark.createDataFrame(stream(spark, tmp_path, where, "/queue/protobuf", "value binary"), "value binary")
    orders = found.select(from_protobuf("value", "Order", binaryDescriptorSet=descriptor).alias("o")).collect()
    assert sorted(row.o.id for row in orders) == [*range(50)]


def need_jar(spark: Any, name: str, package: str) -> None:
    """Skip where Spark has not that class. Its jars come from Maven, which tests do not ask."""
    try:
        spark._jvm.java.lang.Class.forName(name)
    except Exception as error:
        if "ClassNotFoundException" not in str(error):
            raise
        pytest.skip(f"this Spark has no {package}: put its jar into pyspark/jars")
