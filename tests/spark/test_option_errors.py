"""What a user of Spark reads when an option is wrong: some for each use of the formats.

`test_options.py` has each option; here Spark is between, which starts a Python process for a format and passes its
error on, or hides it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

BROKER = {"url": "stomp://127.0.0.1:1", "destination": "/queue/x"}
SECRET = "hunter2-hunter2"
CHECKPOINT = "is for df.write: the checkpoint identifies a stream, got 'etl'"

# Those that a sink refuses in a batch and in a stream alike.
SINK = [
    ({"url": f"stomp://me:{SECRET}@a:1"}, "option 'url' must not hold a password, since Spark shows it in plans"),
    ({"windowRow": "5"}, 'option \'windowrow\' is not known for writing: did you mean .option("windowRows", "10000")?'),
    ({"idColumn": "id", "delivery": "dedup"}, "option 'idColumn' names 'id', and there is no such column"),
]
BATCH_SINK = [
    ({"txnAppId": "etl"}, "option 'txnAppId' must come with option 'txnVersion', got 'etl'"),
]
STREAM_SINK = [({"txnAppId": "etl", "txnVersion": "7"}, CHECKPOINT)]
JOURNAL = [
    ({"path": None}, 'option \'path\' is missing: write .option("path", "'),
    ({"pushdwn": "true"}, "option 'pushdwn' is not known for reading the journal: did you mean .option(\"pushdown\""),
    ({"path": "/nowhere/at/all"}, "/nowhere/at/all"),
]


def said_of(call: Any) -> str:
    """The error of `call`, as a program sees it: no trace of Python in front of it counts, no secret is in it."""
    with pytest.raises(Exception) as caught:
        call()
    text = str(caught.value)
    assert SECRET not in text
    assert "UnboundLocalError" not in text
    return text


@pytest.mark.parametrize(("given", "said"), [*SINK, *BATCH_SINK], ids=str)
def test_a_batch_write(spark: Any, given: dict[str, str], said: str) -> None:
    rows = spark.createDataFrame([("x",)], "value string")
    assert said in said_of(rows.write.format("amq").mode("append").options(**BROKER | given).save)


@pytest.mark.parametrize(("given", "said"), [*SINK, *STREAM_SINK], ids=str)
def test_a_stream_write(spark: Any, tmp_path: Path, given: dict[str, str], said: str) -> None:
    stream = spark.readStream.format("rate").load().selectExpr("CAST(value AS STRING) AS value")
    writer = stream.writeStream.format("amq").options(**BROKER | given).option("checkpointLocation", str(tmp_path))
    assert said in said_of(lambda: writer.start().awaitTermination(60))


@pytest.mark.parametrize(("given", "said"), JOURNAL, ids=str)
def test_a_read_of_the_journal(spark: Any, tmp_path: Path, given: dict[str, str | None], said: str) -> None:
    options = {name: value for name, value in ({"path": str(tmp_path)} | given).items() if value is not None}
    assert said in said_of(lambda: spark.read.format("amq-journal").options(**options).load().collect())
