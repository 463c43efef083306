"""`amq producer` and `amq consumer` against real brokers, also while the master is killed."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Self

import click
import pytest
from amq_process import ROOT, amq, command, on_terminal, one_line, running
from brokers import Brokers
from click.testing import CliRunner

from amq.cli import clients, consumer, main, producer
from amq.cli.clients import parse_headers
from amq.client import ConnectionEvent, EventKind
from amq.client.errors import ConnectionLostError, FlushError
from amq.client.uri import BrokerUri
from amq.core.errors import StoreFullError
from tests.patience import DEADLINE_S
from tests.ports import free_port

pytestmark = pytest.mark.deep
QUEUE = "/queue/orders"


def test_a_file_comes_out_as_it_went_in(brokers: Brokers, tmp_path: Path) -> None:
    url = f"stomp://127.0.0.1:{brokers.master('a').port}"
    text = b"first\n\n  spaces and \t tabs \r\n" + "grüße 🍕\n".encode() + b"\0\xff binary\n" + b"x" * 70_000 + b"\n"
    source, target = tmp_path / "in", tmp_path / "out"
    source.write_bytes(text)
    sent = amq("producer", "--url", url, "--destination", QUEUE, "--file", source, "--json")
    assert sent.returncode == 0, sent.stderr
    facts = json.loads(sent.stdout)
    assert (facts["sent"], facts["confirmed"], facts["failed"], facts["failovers"]) == (6, 6, 0, 0)
    got = amq("consumer", "--url", url, "--destination", QUEUE, "--count", 6, "--output", target, "--json")
    assert got.returncode == 0, got.stderr
    assert json.loads(got.stderr)["received"] == 6
    assert target.read_bytes() == text


def test_output_goes_behind_what_an_earlier_run_has_written(brokers: Brokers, tmp_path: Path) -> None:
    """Those messages were acknowledged: what the file holds of them is all that there is."""
    url, target = f"stomp://127.0.0.1:{brokers.master('a').port}", tmp_path / "out"
    for text in ("first", "second"):
        assert amq("producer", "--url", url, "--destination", QUEUE, "--message", text).returncode == 0
        words = ["--url", url, "--destination", QUEUE, "--count", 1, "--output", target]
        assert amq("consumer", *words).returncode == 0
    for words in (["--url", "stomp://127.0.0.1:1"], ["--url", url, "--header", "bad"]):
        assert amq("consumer", *words, "--destination", QUEUE, "--output", target).returncode != 0
    assert target.read_text() == "first\nsecond\n"


def test_stdin_and_stdout(brokers: Brokers) -> None:
    url = f"stomp://127.0.0.1:{brokers.master('a').port}"
    done = amq("producer", "--destination", QUEUE, "--file", "-", "--count", 2, data=b"a\nb\nc\n", env={"AMQ_URL": url})
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("2 of 2 messages confirmed")
    got = amq("consumer", "--destination", QUEUE, "--count", 2, env={"AMQ_URL": url})
    assert (got.returncode, got.stdout) == (0, "a\nb\n")
    assert got.stderr.startswith("2 messages in ")
    no_more = amq("consumer", "--destination", QUEUE, "--timeout", 0.1, env={"AMQ_URL": url})
    assert (no_more.returncode, no_more.stdout) == (0, "")


def test_generated_messages_and_headers(brokers: Brokers) -> None:
    master = brokers.master("a")
    words = ["--url", f"stomp://127.0.0.1:{master.port}", "--destination", QUEUE]
    assert amq("producer", *words, "--count", 3, "--size", 40, "--non-persistent").returncode == 0
    assert amq("producer", *words, "--message", "hello", "--header", "k=v=w", "--priority", 9).returncode == 0
    with master.connect() as connection:
        connection.send("SUBSCRIBE", {"destination": QUEUE, "id": "1", "ack": "auto"})
        frames = [connection.next_frame(DEADLINE_S) for _ in range(4)]
    assert frames[0].body == b"hello", "highest priority first"
    assert frames[0].headers["k"] == "v=w"
    assert frames[0].headers["priority"] == "9"
    assert [len(frame.body) for frame in frames[1:]] == [40, 40, 40]
    assert frames[1].headers.get("persistent") != "true"


@pytest.mark.parametrize("ack", ["auto", "client", "client-individual"])
def test_what_was_consumed_does_not_come_again(brokers: Brokers, ack: str) -> None:
    words = ["--url", f"stomp://127.0.0.1:{brokers.master('a').port}", "--destination", QUEUE]
    assert amq("producer", *words, "--count", 700).returncode == 0
    got = amq("consumer", *words, "--count", 600, "--ack", ack)
    assert got.stdout.split("\n")[:600] == [f"message {number}" for number in range(1, 601)]
    rest = amq("consumer", *words, "--count", 100)
    assert rest.stdout.split("\n")[:-1] == [f"message {number}" for number in range(601, 701)]
    assert amq("consumer", *words, "--browse").stdout == ""


def test_a_browse_takes_nothing_and_ends_at_the_end(brokers: Brokers) -> None:
    words = ["--url", f"stomp://127.0.0.1:{brokers.master('a').port}", "--destination", QUEUE]
    assert amq("producer", *words, "--count", 3).returncode == 0
    lines = "".join(f"message {number}\n" for number in (1, 2, 3))
    for _ in range(2):
        got = amq("consumer", *words, "--browse")
        assert (got.returncode, got.stdout) == (0, lines), got.stderr
    first = amq("consumer", *words, "--browse", "--count", 1)
    assert (first.returncode, first.stdout) == (0, "message 1\n")
    assert first.stderr.startswith("1 message in ")
    assert first.stderr.endswith(", 0 failovers\n")
    more = amq("consumer", *words, "--browse", "--count", 9)
    assert (more.returncode, more.stdout) == (1, lines)
    assert "the queue holds 3 messages, not 9" in more.stderr
    assert amq("consumer", *words, "--count", 3).stdout == lines


@pytest.mark.parametrize(
    ("words", "why"),
    [(("--header", "browser=true"), "use --browse"), (("--browse", "--ack", "auto"), "leave out --ack")],
)
def test_browsing_in_ways_that_cannot_work(words: tuple[str, ...], why: str) -> None:
    done = amq("consumer", "--destination", QUEUE, *words)
    assert (done.returncode, why in done.stderr) == (2, True)


def test_lines_on_a_terminal_are_not_mixed_with_a_progress_bar(brokers: Brokers) -> None:
    words = ["--url", f"stomp://127.0.0.1:{brokers.master('a').port}", "--destination", QUEUE]
    assert amq("producer", *words, "--count", 3).returncode == 0
    shown = on_terminal("consumer", *words, "--count", 3)
    assert shown.startswith("message 1\nmessage 2\nmessage 3\n3 messages in "), shown


def test_too_few_messages(brokers: Brokers) -> None:
    words = ["--url", f"stomp://127.0.0.1:{brokers.master('a').port}", "--destination", QUEUE]
    done = amq("consumer", *words, "--count", 1, "--timeout", 0.1)
    assert done.returncode == 1
    assert "0 of 1 messages" in done.stderr


def test_both_fail_over_in_mid_stream(brokers: Brokers, tmp_path: Path) -> None:
    """Kill -9 while both are at work. Every line arrives; those that came again are the only ones that are doubled."""
    master, slave = brokers.master("a"), brokers.slave("b")
    url = f"failover:(stomp://127.0.0.1:{master.port},stomp://127.0.0.1:{slave.port})"
    output = tmp_path / "out"
    words = ["--url", url, "--destination", QUEUE]
    lines = [b"%06d %s" % (number, b"x" * 500) for number in range(20_000)]
    with (
        running("producer", *words, "--file", "-", "--json", stdin=subprocess.PIPE) as producer,
        running("consumer", *words, "--output", output, "--json") as consumer,
    ):
        assert producer.stdin is not None
        producer.stdin.write(b"\n".join(lines[:10_000]) + b"\n")
        producer.stdin.flush()
        master.kill()
        slave.wait_serving()
        producer.stdin.write(b"\n".join(lines[10_000:]) + b"\n")
        sent, said = producer.communicate(timeout=DEADLINE_S)
        deadline = time.monotonic() + DEADLINE_S
        while not output.exists() or lines[-1] + b"\n" not in output.read_bytes():
            assert time.monotonic() < deadline, "the last line does not come"
            time.sleep(0.01)
        consumer.send_signal(signal.SIGINT)  # how long a busy machine pauses between two lines nobody knows
        _, heard = consumer.communicate(timeout=DEADLINE_S)
    facts = json.loads(sent)
    assert (producer.returncode, facts["confirmed"], facts["failovers"]) == (0, 20_000, 1), said
    assert b"lost" in said
    assert b"connected to" in said
    summary = json.loads(heard.decode().strip().split("\n")[-1])
    got = output.read_bytes().split(b"\n")[:-1]
    assert list(dict.fromkeys(got)) == lines, "first deliveries in order, nothing missing"
    assert len(got) == summary["received"]
    assert summary["failovers"] == 1


@pytest.mark.parametrize("verb", ["producer", "consumer"])
def test_nobody_there(verb: str) -> None:
    url = f"failover:(stomp://127.0.0.1:{free_port()})?startupMaxReconnectAttempts=1"
    done = amq(verb, "--url", url, "--destination", QUEUE)
    assert done.returncode == 6
    assert "[CONNECT_FAILED]" in one_line(done)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["producer", "--destination", QUEUE, "--file", "x", "--message", "y"], 2),
        (["producer", "--destination", QUEUE, "--size", "3", "--message", "y"], 2),
        (["producer"], 2),
        (["consumer"], 2),
        (["consumer", "--destination", QUEUE, "--url", "stomp://h:1?what=1"], 2),
        (["producer", "--destination", QUEUE, "--file", "/nonexistent"], 1),
        (["producer", "--destination", QUEUE, "--header", "nonsense"], 2),
        (["producer", "--destination", QUEUE, "--ttl", "inf"], 2),
        (["producer", "--destination", QUEUE, "--ttl", "nan"], 2),
        (["producer", "--destination", QUEUE, "--timeout", "-1"], 2),
        (["consumer", "--destination", QUEUE, "--timeout", "nan"], 2),
        (["dlq", "retry", "--timeout", "inf"], 2),
        (["perf", "--timeout", "nan"], 2),
    ],
)
def test_wrong_use(words: list[str], code: int) -> None:
    done = amq(*words)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("url", ["stomp://127.0.0.1:{}", "failover:(stomp://127.0.0.1:{})"])
def test_what_the_broker_refuses_is_no_lack_of_a_broker(brokers: Brokers, url: str) -> None:
    words = ["--url", url.format(brokers.master("a").port), "--destination", QUEUE, "--message", "x"]
    done = amq("producer", *words, "--header", f"k={'x' * 11_000}")
    assert (done.returncode, "header line is longer" in done.stderr) == (7, True)


def test_a_full_store_is_told(brokers: Brokers) -> None:
    """Sends are refused, the error names the cause, and the summary says how many got through."""
    master = brokers.master("a", storeFreeFloor="1000TiB")
    words = ["--url", f"stomp://127.0.0.1:{master.port}", "--destination", QUEUE]
    done = amq("producer", *words, "--count", 3, "--json")
    assert done.returncode == 7
    assert json.loads(done.stdout)["confirmed"] == 0
    assert "full" in done.stderr


class Sending:
    """Connection, session and producer whose broker confirms nothing, and in which `outcomes` happen at each `send`,
    and then at each `flush`: an error, or nothing."""

    def __init__(self, *outcomes: BaseException | None) -> None:
        self._outcomes = list(outcomes)
        self.unconfirmed = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...
    def abort(self) -> None: ...

    def session(self) -> Self:
        return self

    def producer(self, _destination: str) -> Self:
        return self

    def send(self, _body: object, **_options: object) -> None:
        self.flush()
        self.unconfirmed += 1

    def flush(self, _timeout: float | None = None) -> None:
        outcome = self._outcomes.pop(0)
        if outcome is not None:
            raise outcome


@pytest.mark.parametrize(
    ("outcomes", "code", "unconfirmed", "failed"),
    [
        ([None, None, KeyboardInterrupt(), KeyboardInterrupt()], 130, 2, 0),
        ([None, None, FlushError([("id", ConnectionLostError("gone"))])], 6, 0, 1),
        ([None, None, FlushError([("id", StoreFullError("full"))])], 7, 0, 1),
    ],
    ids=["Ctrl-C again", "connection lost at the end", "refused"],
)
def test_what_was_confirmed_when_it_ends_early(
    monkeypatch: pytest.MonkeyPatch, outcomes: list[BaseException | None], code: int, unconfirmed: int, failed: int
) -> None:
    count = 9 if code == 130 else 2
    monkeypatch.setattr(producer, "open_connection", lambda *_, **__: Sending(*outcomes))
    done = CliRunner().invoke(main.main, ["producer", "--destination", QUEUE, "--count", str(count), "--json"])
    assert done.exit_code == code, done.output
    facts = json.loads(done.stdout)
    assert (facts["sent"], facts["confirmed"]) == (2, 2 - unconfirmed - failed)
    assert (facts["unconfirmed"], facts["failed"]) == (unconfirmed, failed)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("failover:(stomp://h)", "gone; connecting again\n"),
        ("stomp://h", "gone\n"),
        ("failover:(stomp://h)?maxReconnectAttempts=0", "gone\n"),
    ],
)
def test_nobody_connects_again_where_the_url_says_so(
    url: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    connection = SimpleNamespace(wait_connected=lambda _: None)
    monkeypatch.setattr(clients, "begin", lambda *_, **__: connection)
    failovers = clients.Failovers()
    assert clients.open_connection(clients.Address(url, "", ""), failovers) is connection
    failovers(ConnectionEvent(EventKind.INTERRUPTED, BrokerUri("h"), error=ConnectionLostError("gone")))
    failovers._wait_no_more()
    assert capsys.readouterr().err == f"amq: connection to stomp://h:61613 lost: {said}"


@pytest.mark.parametrize("url", ["stomp://127.0.0.1:{}", "failover:(stomp://127.0.0.1:{})"])
def test_a_refusal_is_told_once(brokers: Brokers, url: str) -> None:
    where = url.format(brokers.master("a").port)
    for command_words, reason in (
        (["producer", "--destination", "/queue/a.>", "--message", "x"], "only a subscription may"),
        (["consumer", "--destination", "/topic/a", "--browse"], "a topic holds no messages"),
    ):
        done = amq(*command_words, "--url", where)
        assert (done.returncode, done.stderr.count(reason)) == (7, 1), done.stderr
        assert "1 messages" not in done.stdout + done.stderr


def test_only_what_was_written_is_counted() -> None:
    """Two messages were received, and before their lines were written the connection ended."""

    class Receiving:
        def receive(self, _timeout: float | None) -> object:
            if left:
                return left.pop()
            raise ConnectionLostError("gone")

    left, sink = [object(), object()], io.BytesIO()
    run = consumer._Run(sink, "client-individual", None, None)
    with pytest.raises(ConnectionLostError):
        run.receive(Receiving())  # type: ignore[arg-type]
    assert (run.received, sink.getvalue()) == (0, b"")


@pytest.mark.parametrize(("error", "counted"), [(KeyboardInterrupt(), 1), (OSError("the disk is full"), 0)])
def test_what_was_written_when_ctrl_c_came_is_counted(error: BaseException, counted: int) -> None:
    class Sink(io.BytesIO):
        def flush(self) -> None:
            raise error

    message = SimpleNamespace(body=b"x", redelivered=False)
    run = consumer._Run(Sink(), "client-individual", None, None)
    with pytest.raises(type(error)):
        run._settle([message])  # type: ignore[list-item]
    assert (run.received, run.received_bytes) == (counted, counted)


def test_lines_that_were_out_when_ctrl_c_came_are_counted() -> None:
    """Of more than the output's buffer holds."""

    class Pipe(io.RawIOBase):
        def writable(self) -> bool:
            return True

        def write(self, data: memoryview) -> int:  # type: ignore[override]
            if out:
                raise KeyboardInterrupt
            out.append(bytes(data))
            return len(out[0])

    out: list[bytes] = []
    run = consumer._Run(io.BufferedWriter(Pipe(), 10), "client-individual", None, None)  # type: ignore[arg-type]
    with pytest.raises(KeyboardInterrupt):
        run._settle([SimpleNamespace(body=b"%04d" % number, redelivered=False) for number in range(6)])  # type: ignore[list-item]
    assert out == [b"0000\n0001\n"]
    assert (run.received, run.received_bytes) == (4, 16), "and those in the buffer go out when it is closed"


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_message_of_which_a_part_was_written_stays(brokers: Brokers, tmp_path: Path, unbuffered: str) -> None:
    """With PYTHONUNBUFFERED, as images of containers set it, it was acknowledged. A limit on the size of files stands
    for a disk."""
    env = {**os.environ, "PYTHONUNBUFFERED": unbuffered, "PYTHONDONTWRITEBYTECODE": "1"}
    words = ["--url", f"stomp://127.0.0.1:{brokers.master('a').port}", "--destination", QUEUE]
    assert amq("producer", *words, "--size", 200_000, "--count", 1).returncode == 0
    with open(tmp_path / "out", "wb") as out:
        done = subprocess.run(
            ["sh", "-c", 'ulimit -f 100; exec "$@"', "sh", *command("consumer", *words, "--count", 1)],
            stdout=out,
            stderr=subprocess.PIPE,
            cwd=ROOT,
            env=env,
            timeout=DEADLINE_S,
            check=False,
        )
    assert (done.returncode, b"File too large" in done.stderr) == (1, True), done.stderr
    assert len(amq("consumer", *words, "--count", 1, "--timeout", DEADLINE_S).stdout) == 200_001


def test_who_waits_for_a_broker_is_told_where_why_and_how_long(brokers: Brokers) -> None:
    """At the start, and when the connection is lost; and what the URL's parser warns of."""
    broker = brokers.add("a")
    ends = [f"stomp://127.0.0.1:{port}" for port in (broker.port, free_port())]
    url = f"failover:({','.join(ends)})?timeout=600000&maxReconnectAttempts=90&trackMessages=true"
    causes = "; ".join(f"{end}: Connection refused" for end in ends)
    with running("producer", "--url", url, "--destination", QUEUE, "--file", "-", stdin=subprocess.PIPE) as process:
        assert process.stderr is not None
        assert process.stdin is not None
        assert process.stderr.readline().decode().startswith("amq: warning: option trackMessages of the broker URL")
        assert process.stderr.readline().decode() == (
            f"amq: no broker has answered for 5 s: {causes}; the command waits for at most 600 s (timeout), and gives "
            "up after 90 rounds of attempts (maxReconnectAttempts)\n"
        )
        process.stdin.write(b"line\n")
        process.stdin.flush()
        broker.start().wait_serving()
        assert amq("consumer", "--url", ends[0], "--destination", QUEUE, "--count", 1).stdout == "line\n"
        broker.kill()
        assert "lost: " in process.stderr.readline().decode()
        says = f"no broker has answered for 5 s: {causes}; the command goes on, and gives up after 90 rounds"
        assert says in process.stderr.readline().decode()
        broker.start().wait_serving()
        out, errors = process.communicate(b"more\n", timeout=DEADLINE_S)
        assert (process.returncode, out[:8]) == (0, b"2 of 2 m"), errors
        assert errors.startswith(b"amq: connected to ")


def test_what_gives_up_tells_where_why_and_after_how_long() -> None:
    ends = [f"stomp://127.0.0.1:{free_port()}" for _ in range(2)]
    causes = "; ".join(f"{end}: Connection refused" for end in ends)
    words = ("consumer", "--destination", QUEUE, "--url")
    for query, says in (
        ("maxReconnectAttempts=1", "no broker answers after 1 round of attempts (maxReconnectAttempts): " + causes),
        ("timeout=300", "connect: no broker could be reached within 0.3 s (timeout): " + causes),
    ):
        done = amq(*words, f"failover:({','.join(ends)})?{query}")
        assert (done.returncode, says in done.stderr) == (6, True), done.stderr
    assert done.stderr.count("\n") == 1
    done = amq(*words, f"failover:({','.join(ends)})?maxReconnectAttempts=20&timeout=300")
    assert done.stderr.count("amq: warning: maxReconnectAttempts=20 gives up after about 3") == 1


def test_headers() -> None:
    assert parse_headers(("a=b", "c=d=e", "f=")) == {"a": "b", "c": "d=e", "f": ""}
    with pytest.raises(click.BadParameter, match="NAME=VALUE"):
        parse_headers(("=x",))


def test_interrupted_consumer_says_what_it_has(brokers: Brokers) -> None:
    words = ["--url", f"stomp://127.0.0.1:{brokers.master('a').port}", "--destination", QUEUE]
    assert amq("producer", *words, "--count", 5).returncode == 0
    with running("consumer", *words) as consumer:
        assert consumer.stdout is not None
        assert [consumer.stdout.readline() for _ in range(5)][-1] == b"message 5\n"
        consumer.send_signal(signal.SIGINT)
        _, said = consumer.communicate(timeout=DEADLINE_S)
    assert consumer.returncode == 130
    assert said.startswith(b"5 messages in ")


def test_interrupted_producer_says_what_is_confirmed(brokers: Brokers) -> None:
    words = ["--url", f"stomp://127.0.0.1:{brokers.master('a').port}", "--destination", QUEUE]
    with running("producer", *words, "--file", "-", "--json", stdin=subprocess.PIPE) as producer:
        assert producer.stdin is not None
        producer.stdin.write(b"line\n" * 50_000)
        producer.stdin.flush()
        assert amq("consumer", *words, "--count", 1).stdout == "line\n"
        producer.send_signal(signal.SIGINT)
        said, _ = producer.communicate(timeout=DEADLINE_S)
    assert producer.returncode == 130
    facts = json.loads(said)
    assert 1 <= facts["confirmed"] <= facts["sent"] <= 50_000
    assert facts["confirmed"] + facts["unconfirmed"] + facts["failed"] == facts["sent"]
