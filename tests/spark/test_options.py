"""Options of the Spark formats: each bad one is refused with its name, its value and an example; no secret is shown."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest

from amq.cli import reference
from pyspark_amq import options
from pyspark_amq.options import JournalOptions, OptionError, SinkOptions, SourceOptions

KINDS = (SinkOptions, SourceOptions, JournalOptions)
GOOD: dict[type, dict[str, str]] = {
    SinkOptions: {"url": "stomp://a:1"},
    SourceOptions: {"url": "stomp://a:1", "destination": "/queue/x"},
    JournalOptions: {"path": "/mnt/amq"},
}
BAD_VALUES = {
    "url": "tcp://a:1",
    "destination": "a,,b",
    "delivery": "once",
    "idStrategy": "hash",
    "windowRows": "0",
    "sendTimeout": "soon",
    "txTimeout": "0s",
    "persistent": "maybe",
    "priority": "10",
    "timeToLive": "-1s",
    "startingOffsets": "first",
    "endingOffsets": "[1]",
    "startingTimestamp": "yesterday",
    "maxOffsetsPerTrigger": "ten",
    "minPartitions": "-2",
    "ack": "auto",
    "failOnDataLoss": "2",
    "includeHeaders": "",
    "redirect": "perhaps",
    "prefetch": "0",
    "pollInterval": "200 mb",
    "pushdown": "1.5",
    "user": "",
    "password": " ",
    "idColumn": "",
    "subscription": "",
    "path": "",
    "kinds": "messages",
    "startingOffset": "-1",
    "endingOffset": "1.5",
    "endingTimestamp": "noon",
    "includeValue": "?",
    "logMetrics": "loud",
    "txnAppId": "a,b",
    "txnVersion": "-1",
    "store": "",
    "maxBytesPerTrigger": "much",
    "minOffsetsPerTrigger": "few",
    "maxTriggerDelay": "0s",
}


@pytest.mark.parametrize(
    ("kind", "name"),
    [(kind, name) for kind in KINDS for name in options.declared(kind)],
    ids=lambda value: value if isinstance(value, str) else value.__name__,
)
def test_a_bad_value_is_refused_with_name_value_and_example(kind: type, name: str) -> None:
    value = BAD_VALUES[name]
    with pytest.raises(OptionError) as caught:
        options.read(kind, {**GOOD[kind], name.lower(): value})
    text = str(caught.value)
    field = options.declared(kind)[name]
    assert f"option '{name}' " in text
    assert repr(value) in text or name in ("url", "password")
    assert f'.option("{name}", "{field.metadata["example"]}")' in text


@pytest.mark.parametrize("kind", KINDS)
def test_every_example_and_default_is_accepted(kind: type) -> None:
    for name, field in options.declared(kind).items():
        given = {**GOOD[kind], name: field.metadata["example"]}
        if name == "idColumn":
            given["delivery"] = "dedup"
        if name in ("txnAppId", "txnVersion"):
            given |= {"txnAppId": "etl", "txnVersion": "7"}
        assert getattr(options.read(kind, given), field.name) is not None
        if field.metadata["text"] is not None:
            assert field.metadata["parse"](field.metadata["text"]) == field.default


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_missing_unknown_or_of_another_use_is_refused(kind: type) -> None:
    required = {name for name, field in options.declared(kind).items() if field.metadata["required"]}
    assert required == set(GOOD[kind]) - ({"destination"} if kind is SinkOptions else set())
    for name in required:
        with pytest.raises(OptionError, match=rf"option '{name}' is missing: write \.option"):
            options.read(kind, {key: value for key, value in GOOD[kind].items() if key != name})
    with pytest.raises(OptionError, match=r"option 'colour' is not known for .*: known are "):
        options.read(kind, GOOD[kind] | {"colour": "red"})
    with pytest.raises(OptionError, match=r"is for (reading|writing)"):
        options.read(kind, GOOD[kind] | {"maxoffsetspertrigger" if kind is not SourceOptions else "idcolumn": "1"})


def test_a_name_that_is_nearly_right_is_corrected() -> None:
    with pytest.raises(OptionError, match=re.escape('did you mean .option("windowRows", "10000")?')):
        options.read(SinkOptions, GOOD[SinkOptions] | {"windowrow": "5"})


def test_sparks_own_options_are_no_business_of_ours() -> None:
    for kind in KINDS:
        options.read(kind, {"checkpointLocation": "/tmp/x", "queryName": "q", "path": "x", **GOOD[kind]})


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"persistent": "false"}, "persistent"),
        ({"persistent": "false", "delivery": "dedup"}, "persistent"),
        ({"idColumn": "id"}, "idColumn"),
        ({"txnAppId": "etl"}, "txnAppId"),
        ({"txnVersion": "7"}, "txnVersion"),
        ({"txnAppId": "etl", "txnVersion": "7", "delivery": "at-least-once"}, "txnAppId"),
        ({"destination": "/topic/t"}, "destination"),
        ({"destination": "/queue/a,topic://t", "delivery": "dedup"}, "destination"),
    ],
)
def test_contradictions_of_a_sink_are_refused(given: dict[str, str], name: str) -> None:
    with pytest.raises(OptionError, match=f"option '{name}' (must|has|needs)"):
        options.read(SinkOptions, GOOD[SinkOptions] | given)


def test_two_beginnings_are_refused() -> None:
    with pytest.raises(OptionError, match=r"startingTimestamp.*excludes startingOffsets"):
        options.read(SourceOptions, GOOD[SourceOptions] | {"startingOffsets": "latest", "startingTimestamp": "1"})


@pytest.mark.parametrize(
    ("destination", "why"),
    [
        ("/queue/a,b,queue://a", "names queue://a twice, so each of its messages would be read twice, got"),
        ("a,/queue/a", "names queue://a twice"),
        ("/topic/t,/queue/t,topic://u", "names two topics, but a durable subscription has only one: .*/topic/prices.>"),
        ("/queue/a,/queue/", "must be a destination"),
        ("/queue/p.>,/queue/p.1", "names queue://p.> and queue://p.1, so messages in both would be read twice"),
        ("/queue/p.*.b,/queue/p.a.*", "names queue://p.\\*.b and "),
        ("/queue/p,/queue/p.>", "names queue://p and "),
        ("/queue/>,/queue/*.a", "names queue://> and "),
    ],
)
def test_a_source_reads_nothing_twice(destination: str, why: str) -> None:
    with pytest.raises(OptionError, match=f"option 'destination' {why}"):
        options.read(SourceOptions, GOOD[SourceOptions] | {"destination": destination})


@pytest.mark.parametrize(
    "destination",
    ["/queue/p.>,/queue/q.1,/topic/p.>", "/queue/p.*.b,/queue/p.*.a", "/queue/p.*,/queue/p", "/queue/p.*,/queue/p.a.b"],
)
def test_destinations_that_share_nothing_are_read_together(destination: str) -> None:
    options.read(SourceOptions, GOOD[SourceOptions] | {"destination": destination})


@pytest.mark.parametrize(("text", "number"), [(" 7 ", 7), (str(1 << 62), 1 << 62), (str(2**63 - 1), 2**63 - 1)])
def test_an_offset_may_have_any_epoch(text: str, number: int) -> None:
    given = GOOD[JournalOptions] | {"startingOffset": text}
    assert options.read(JournalOptions, given).starting_offset == number


@pytest.mark.parametrize("text", ["-1", str(2**63), "9" * 5000, "1.5", "1e3", "²", "١"])
def test_what_is_no_offset(text: str) -> None:
    with pytest.raises(OptionError, match="'startingOffset' must be an integer from 0 to 9223372036854775807"):
        options.read(JournalOptions, GOOD[JournalOptions] | {"startingOffset": text})


def test_units() -> None:
    read = options.read(SinkOptions, GOOD[SinkOptions] | {"sendtimeout": "1.5s", "txTimeout": "2h", "timeToLive": "0"})
    assert (read.send_timeout_s, read.tx_timeout_s, read.time_to_live_s) == (1.5, 7200.0, 0.0)
    source = options.read(SourceOptions, GOOD[SourceOptions] | {"startingOffsets": '{"v": 1}', "pollInterval": "50ms"})
    assert (source.starting_offsets, source.poll_interval_s) == ({"v": 1}, 0.05)


def test_no_secret_is_shown() -> None:
    secret = "hunter2-hunter2"
    read = options.read(SinkOptions, GOOD[SinkOptions] | {"user": "me", "password": secret})
    assert read.password == secret
    assert secret not in repr(read)
    assert pickle.loads(pickle.dumps(read)) == read  # it goes to executors, whole
    for given in (
        {"password": secret, "windowRows": "x"},
        {"password": secret, "passwort": secret},
        {"url": f"stomp://me:{secret}@a:1"},
        {"url": f"failover:(stomp://me:{secret}@a:1,stomp://b:1)"},
        {"url": f"stomp://me:{secret}@a:notaport"},
    ):
        with pytest.raises(OptionError) as caught:
            options.read(SinkOptions, GOOD[SinkOptions] | given)
        assert secret not in str(caught.value)


def test_the_tables_are_in_the_docs() -> None:
    page = reference.pages(Path(__file__).resolve().parents[2])[options.PAGE_PATH]
    assert page.endswith("\n".join(options.tables()))
    assert "## Options\n" in page


@pytest.mark.parametrize(
    ("kind", "kafkas", "ours"),
    [
        (SourceOptions, "subscribe", '.option("destination"'),
        (SourceOptions, "kafka.bootstrap.servers", '.option("url"'),
        (SourceOptions, "startingOffsetsByTimestamp", '.option("startingTimestamp"'),
        (SinkOptions, "topic", '.option("destination"'),
        (SinkOptions, "kafka.acks", "options of the broker are in 'url'"),
        (JournalOptions, "endingOffsetsByTimestamp", '.option("endingTimestamp"'),
    ],
)
def test_options_of_kafka_are_answered_with_ours(kind: type, kafkas: str, ours: str) -> None:
    with pytest.raises(OptionError, match=re.escape(ours)):
        options.read(kind, {kafkas: "x"})
