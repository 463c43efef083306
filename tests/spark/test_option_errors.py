"""What a user of Spark reads when an option is wrong: for each use of the formats, the option and what the error says.

`test_options.py` asks the options alone; here Spark stands between, which starts a Python process for a format and
passes its error on, or hides it.
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
    ({"url": "tcp://a:1"}, "option 'url' is not a broker URL"),
    ({"url": f"stomp://me:{SECRET}@a:1"}, "option 'url' must not hold a password, since Spark shows it in plans"),
    ({"destination": "a,,b"}, "option 'destination' must be a destination, or several with commas between, got 'a,,b'"),
    ({"destination": "/queue/a.>"}, "option 'destination' must not be a pattern: rows are sent to destinations"),
    ({"destination": "/topic/t"}, "option 'destination' must be a queue for delivery=exactly-once"),
    ({"delivery": "twice"}, "option 'delivery' must be one of exactly-once, dedup, at-least-once, got 'twice'"),
    ({"persistent": "false"}, "option 'persistent' must be true for delivery=exactly-once"),
    ({"priority": "10"}, "option 'priority' must be a number from 0 to 9, got '10'"),
    ({"timeToLive": "-1s"}, "option 'timeToLive' must be a duration"),
    ({"sendTimeout": "soon"}, "option 'sendTimeout' must be a duration of more than 0, such as 500ms, 60s or 1h"),
    ({"windowRows": "0"}, "option 'windowRows' must be an integer from 1 to"),
    ({"windowRow": "5"}, 'option \'windowrow\' is not known for writing: did you mean .option("windowRows", "10000")?'),
    ({"idColumn": "id"}, "option 'idColumn' needs delivery=dedup, got 'id'"),
    ({"idColumn": "id", "delivery": "dedup"}, "option 'idColumn' names 'id', and there is no such column"),
    ({"subscription": "c"}, "option 'subscription' is for reading, not for writing: leave it out"),
    ({"topic": "orders"}, "option 'topic' is of Spark's Kafka format; format amq has .option(\"destination\""),
    ({"kafka.acks": "all"}, "option 'kafka.acks' is of Spark's Kafka format: options of the broker are in 'url'"),
    ({"password": SECRET, "ack": "x"}, "option 'ack' is for reading, not for writing: leave it out"),
]
BATCH_SINK = [
    ({"txnAppId": "etl"}, "option 'txnAppId' must come with option 'txnVersion', got 'etl'"),
    ({"txnVersion": "7"}, "option 'txnVersion' must come with option 'txnAppId', got '7'"),
    ({"txnAppId": "etl", "txnVersion": "7", "delivery": "dedup"}, "option 'txnAppId' needs delivery=exactly-once"),
]
STREAM_SINK = [({"txnAppId": "etl", "txnVersion": "7"}, CHECKPOINT)]
JOURNAL = [
    ({"path": ""}, "option 'path' must not be empty"),
    ({"path": None}, 'option \'path\' is missing: write .option("path", "'),
    ({"kinds": "messages"}, "option 'kinds' must be all, or some of message, consumed, redelivered, moved"),
    ({"destination": "/queue/"}, "option 'destination' must be a destination, or several with commas between"),
    ({"startingOffset": "first"}, "option 'startingOffset' must be an integer from 0 to 9223372036854775807"),
    ({"endingOffset": "1.5"}, "option 'endingOffset' must be an integer from 0 to 9223372036854775807, got '1.5'"),
    ({"startingTimestamp": "yesterday"}, "option 'startingTimestamp' must be"),
    ({"endingTimestamp": "noon"}, "option 'endingTimestamp' must be"),
    ({"includeValue": "?"}, "option 'includeValue' must be true or false, got '?'"),
    ({"failOnDataLoss": "2"}, "option 'failOnDataLoss' must be true or false, got '2'"),
    ({"pushdown": "1.5"}, "option 'pushdown' must be true or false, got '1.5'"),
    ({"pushdwn": "true"}, "option 'pushdwn' is not known for reading the journal: did you mean .option(\"pushdown\""),
    ({"maxOffsetsPerTrigger": "5"}, "option 'maxOffsetsPerTrigger' is for reading, not for reading the journal"),
    ({"endingOffsetsByTimestamp": "{}"}, 'has .option("endingTimestamp"'),
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
