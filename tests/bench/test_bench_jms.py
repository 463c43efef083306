"""The generator on the JMS client counts right, and refuses to report a rate for work that was not done."""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from bench import brokers, cli, jms, jvm, profile, takeover
from bench.load import LoadError
from bench.throughput import DRAIN_NAME, Scale, measure
from bench.wire import Connection
from tests.sampling import only

ACTIVEMQ = (brokers.ACTIVEMQ_HOME / "lib").is_dir()
MESSAGES = 301
SMALL = {"producers": 2, "consumers": 2, "messages": MESSAGES, "warmup": 50, "size": 100, "batch": 10, "timeout": 20}


def kinds() -> list[str]:
    """Brokers to try the generator on: it has to count right on any."""
    return ["amq", "activemq"] if ACTIVEMQ else ["amq"]


@pytest.fixture(params=only(kinds(), "amq"))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def needs_java() -> None:
    why = jvm.missing()
    if why is not None:
        assert not os.environ.get("CI"), why
        pytest.skip(why)


@pytest.fixture(scope="module")
def class_path(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Classes in a cache of this module's own."""
    needs_java()
    with pytest.MonkeyPatch.context() as patch:
        cache = tmp_path_factory.mktemp("classes")
        patch.setattr(jvm, "cache_directory", lambda: cache)
        yield jvm.class_path()


@pytest.fixture
def jms_group(class_path: str, kind: str, tmp_path: Path) -> Iterator[brokers.Group]:
    """A real broker that speaks OpenWire."""
    assert class_path
    with brokers.Group(kind, directory=str(tmp_path), openwire=True) as group:
        yield group


def options(group: brokers.Group, **changes: object) -> dict[str, object]:
    url = {"url": f"tcp://127.0.0.1:{group.openwire_ports[0]}", "destination": "tests.jms"}
    return url | SMALL | {name.replace("_", "-"): value for name, value in changes.items()}


def run(group: brokers.Group, **changes: object) -> dict[str, Any]:
    with contextlib.closing(jms.Generator()) as generator:
        return generator.run(options(group, **changes))


@pytest.mark.deep
def test_ways_to_send_and_to_acknowledge(jms_group: brokers.Group) -> None:
    """All in one JVM, as the benchmark does it; queues are used again."""
    ways: list[dict[str, object]] = [
        {},
        {"send": "sync", "persistent": "false"},
        {"send": "async", "window": 7, "ack": "client"},
        {"send": "async", "producer_window": 5, "ack": "individual"},
        {"send": "transacted", "ack": "transacted", "window": 20},
        {"queues": 2, "ack": "dups-ok", "warmup": 0, "prefetch": 3},
    ]
    with contextlib.closing(jms.Generator()) as generator:
        for way in ways:
            report = generator.run(options(jms_group, **way))
            assert report["messages"] == MESSAGES, way
            assert abs(report["per_s"] * report["seconds"] - MESSAGES) < 5, way
            assert 0 < report["delivery_us"]["p50"] <= report["delivery_us"]["p99"] <= report["delivery_us"]["max"], way
            waits = way.get("send", "default") != "async"
            assert bool(report["confirm_us"]) == waits, way
        sent = generator.run(options(jms_group, mode="send"))
        drained = generator.run(options(jms_group, mode="recv"))
    assert not sent["delivery_us"]
    assert not drained["confirm_us"]


@pytest.mark.deep
def test_no_rate_if_a_message_comes_twice(jms_group: brokers.Group) -> None:
    run(jms_group, mode="send")
    run(jms_group, mode="send")
    with pytest.raises(LoadError, match="came more than once"):
        run(jms_group, mode="recv")


@pytest.mark.deep
def test_no_rate_if_a_message_is_missing(jms_group: brokers.Group) -> None:
    run(jms_group, mode="send", messages=MESSAGES - 1)
    with pytest.raises(LoadError, match=rf"then nothing for 1 s; phase 1: sent 0, received 300 of {MESSAGES}"):
        run(jms_group, mode="recv", timeout=1)


@pytest.mark.deep
def test_no_rate_if_a_stranger_sends(jms_group: brokers.Group) -> None:
    with Connection(jms_group.ports[0]) as connection:
        connection.send("SEND", {"destination": "/queue/tests.jms", "receipt": "1"}, b"hello")
        connection.receipt("1", 20.0)
    with pytest.raises(LoadError, match="a message came that nobody sent"):
        run(jms_group)


@pytest.mark.deep
def test_broker_dies(jms_group: brokers.Group) -> None:
    run(jms_group, mode="send")
    jms_group.brokers[0].kill()
    with pytest.raises(LoadError, match=r"Connection refused|Could not connect"):
        run(jms_group, mode="recv")


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"size": 16}, "--size is at least 17, not 16"),
        ({"messages": "many"}, "--messages is a number, not many"),
        ({"send": "sometimes"}, "--send is one of default, sync, async, transacted"),
        ({"queues": 3}, "each of 3 queues needs a producer and a consumer"),
        ({"send": "transacted", "window": 9}, "a window smaller than a commit"),
        ({"speed": "11"}, r"unknown options \[speed\]"),
    ],
)
def test_senseless_loads(class_path: str, wrong: dict[str, object], why: str) -> None:
    words = [word for name, value in (SMALL | wrong).items() for word in (f"--{name}", str(value))]
    command = ["java", "-cp", class_path, "JmsLoad", "--url", "tcp://127.0.0.1:1", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    with pytest.raises(LoadError, match=why):
        jms.report_of(done.stdout)


@pytest.mark.deep
def test_classes_are_compiled_once(tmp_path: Path) -> None:
    needs_java()
    classes = Path(jvm.class_path(tmp_path).partition(":")[0])
    made_ns = (classes / "JmsLoad.class").stat().st_mtime_ns
    assert Path(jvm.class_path(tmp_path).partition(":")[0]) == classes
    assert (classes / "JmsLoad.class").stat().st_mtime_ns == made_ns
    assert list(tmp_path.iterdir()) == [classes], "no scratch directory is left"


def test_what_is_missing_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jvm, "JARS", tmp_path)
    with pytest.raises(jvm.JavaError, match=r"missing: .*activemq-client\.jar.*apt-get install .*libactivemq-java"):
        jvm.class_path(tmp_path)


@pytest.mark.deep
@pytest.mark.usefixtures("class_path")
def test_short_run(kind: str, tmp_path: Path) -> None:
    rows = [jms.ROWS["sync 32/32"], jms.ROWS["send only, async, 4 producers"]]
    scale = Scale(1, 0.1, 0.1, 400)
    report = measure([kind], rows, scale, 100, str(tmp_path), {}, lambda _text: None, jms.JmsBench)
    assert [line["row"] for line in report["rows"]] == [row.name for row in rows] + [DRAIN_NAME]
    assert all(line["per_s"][kind]["high"] > 0 for line in report["rows"])


@pytest.mark.deep
@pytest.mark.parametrize("how", ["kill", "handover"])
@pytest.mark.usefixtures("class_path")
def test_failover(kind: str, how: str, tmp_path: Path) -> None:
    if how == "handover" and kind != "amq":
        pytest.skip("only amq hands over")
    watch = functools.partial(takeover.one_jms_takeover, query="maxReconnectDelay=100")
    result = takeover.measure(kind, 100, 1, 1, 500, str(tmp_path), {}, lambda _text: None, how, watch)
    assert result["client"] == "jms"
    assert 0 < result["spread"]["connected_s"]["median"] <= result["spread"]["first_message_s"]["median"] < 30
    assert 0 < result["spread"]["first_receipt_s"]["median"] < 30


@pytest.mark.parametrize("kind", list(brokers.ARCHIVES))
def test_an_archive_is_found_or_its_source_is_named(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(brokers, "KINDS", dict(brokers.KINDS))
    parser = cli.parser("jms", None, ())
    for words in ([kind], [f"{kind}={tmp_path}"]):
        with pytest.raises(SystemExit):
            parser.parse_args(["--peer", *words])
        assert "Get the archive with `mvn dependency:copy -Dartifact=org.apache.activemq:" in capsys.readouterr().err
    needs_java()
    (tmp_path / "bin").mkdir()
    for file in ("activemq.jar", "artemis"):
        (tmp_path / "bin" / file).touch()
    args = parser.parse_args(["--peer", f"{kind}={tmp_path}"])
    assert cli.kinds(args) == ["amq", kind]
    assert brokers.broker_class(kind).kind == kind


@pytest.mark.deep
@pytest.mark.usefixtures("class_path")
def test_calls_of_a_jms_message(tmp_path: Path) -> None:
    functions = profile.calls("non-persistent 4/4", 1000, str(tmp_path), {})
    calls = {function.name.rpartition(" ")[2]: function.calls for function in functions if "amq/" in function.name}
    assert 0.9 < calls["_send"] < 1.1, "one for each message"
    assert calls.get("message_of", 0) < 0.1, "only the first messages of a producer take the long way"
