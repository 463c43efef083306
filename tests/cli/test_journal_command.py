"""`amq journal` on stores that real brokers wrote, at rest, at work and damaged."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import struct
import subprocess
import termios
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from amq_process import amq, amq_json, one_line, running
from brokers import Broker, Brokers
from click.testing import CliRunner
from traffic import QUEUE, Producer, drain, send

import amq as amq_library
from amq.cli import main, store_check
from amq.doctor.finding import Examination, Finding, Level
from tests.patience import DEADLINE_S

pytestmark = pytest.mark.deep


@pytest.fixture
def store(brokers: Brokers) -> Path:
    """A store at rest: 20 messages, 5 of them consumed, one transaction."""
    master = brokers.master("a")
    fill(master)
    assert master.stop() == 0
    return brokers.store


def fill(master: Broker) -> None:
    with master.connect() as connection:
        for number in range(20):
            send(connection, b"body %d" % number)
        connection.send("SUBSCRIBE", {"destination": QUEUE, "id": "1", "ack": "client"})
        frames = [connection.next_frame(DEADLINE_S) for _ in range(5)]
        connection.send("ACK", {"id": frames[-1].headers["ack"], "receipt": "acked"})
        connection.receipt("acked", DEADLINE_S)
        connection.send("BEGIN", {"transaction": "t1"})
        connection.send("SEND", {"destination": "/queue/other", "transaction": "t1"}, b"\xff\x00"[:1])
        connection.send("COMMIT", {"transaction": "t1", "receipt": "done"})
        connection.receipt("done", DEADLINE_S)


def segment_of(store: Path) -> Path:
    return max((store / "journal").glob("*.seg"), key=lambda path: len(path.read_bytes().rstrip(b"\0")))


def dump(store: Path, *words: object) -> list[dict[str, Any]]:
    done = amq("journal", "dump", "--store", store, *words)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_check(store: Path) -> None:
    facts = amq_json("journal", "check", "--store", store)
    assert (facts["ok"], facts["problems"], facts["unknown_files"]) == (True, [], [])
    assert sum(segment["records"] for segment in facts["segments"]) >= 22
    done = amq("journal", "check", "--store", store)
    assert done.returncode == 0
    assert "no damage found" in done.stdout


def test_stat(store: Path) -> None:
    facts = amq_json("journal", "stat", "--store", store)
    (orders,) = [each for each in facts["destinations"] if each["destination"] == "queue://orders"]
    assert (orders["messages"], orders["live"], orders["dead"], orders["acked"]) == (20, 15, 5, 5)
    assert orders["message_bytes"] == sum(len(f"body {number}") for number in range(20))
    assert {each["destination"] for each in facts["destinations"]} == {"queue://orders", "queue://other"}
    assert sum(segment["live"] for segment in facts["segments"]) == 16
    assert "queue://orders" in amq("journal", "stat", "--store", store).stdout


def test_stat_calls_what_nobody_can_address_by_a_name_that_tells(brokers: Brokers) -> None:
    master = brokers.master("a")
    with amq_library.connect(f"stomp://127.0.0.1:{master.port}", client_id="c") as connection:
        connection.session().consumer("/topic/t", subscription="news").close()
        connection.session().producer("/topic/t").send(b"1")
        connection.session().producer("/queue/later").send(b"2", headers={"AMQ_SCHEDULED_DELAY": 3_600_000})
        connection.session().producer("/queue/in").send(b"3")
        worker = connection.session(transacted=True)
        assert worker.consumer("/queue/in").receive(DEADLINE_S) is not None
        worker.producer("/queue/out").send(b"4")
        worker.prepare("x")
        worker.close()
    assert master.stop() == 0
    facts = amq_json("journal", "stat", "--store", brokers.store)
    live = {each["name"]: each["live"] for each in facts["destinations"] if each["live"]}
    assert live == {
        "durable subscription c:news": 1,
        "scheduled for queue://later": 1,
        "prepared, for queue://out": 1,
        "prepared, taken from queue://in": 1,
    }
    text = amq("journal", "stat", "--store", brokers.store).stdout
    assert not any(internal in text for internal in ("subscription://", "sent://", "held://", "schedule://"))


def test_dump(store: Path) -> None:
    everything = dump(store)
    assert everything[0]["type"] == "previous"
    assert all({"segment", "offset", "batch", "written", "type"} <= set(record) for record in everything)
    messages = dump(store, "--type", "message", "--destination", QUEUE, "--bodies")
    assert [record["body"] for record in messages] == [f"body {number}" for number in range(20)]
    assert len(dump(store, "--limit", 3)) == 3
    (group,) = dump(store, "--destination", "other", "--type", "group", "--bodies")
    assert group["records"][-1]["body_base64"] == "/w=="
    (consumed,) = dump(store, "--type", "consumed")
    assert (consumed["reason"], len(consumed["seqs"])) == ("acked", 5)
    name = everything[0]["segment"]
    assert dump(store, "--segment", name) == [record for record in everything if record["segment"] == name]


def test_damage_is_named_and_exits_4(store: Path) -> None:
    segment = segment_of(store)
    data = segment.read_bytes()
    offset = data.index(b"body 7")
    with open(segment, "r+b") as file:
        file.seek(offset)
        file.write(b"BODY")
    done = amq("journal", "check", "--store", store, "--json")
    assert done.returncode == 4
    (problem,) = json.loads(done.stdout)["problems"]
    assert (problem["file"], problem["code"]) == (str(segment), "STORE_CORRUPT")
    assert 0 < problem["offset"] < offset
    text = amq("journal", "check", "--store", store)
    assert (text.returncode, f"{segment}: offset {problem['offset']}: " in one_line(text)) == (4, True)
    rest = amq("journal", "dump", "--store", store, "--type", "message", "--bodies")
    assert rest.returncode == 4
    assert "body 8" in rest.stdout, "what lies behind the damage is shown"
    assert amq("journal", "stat", "--store", store).returncode == 4


def test_a_damaged_newest_epoch_is_named_to_people_and_to_scripts(store: Path) -> None:
    newest = max((store / "epochs").iterdir())
    newest.write_bytes(b"damaged")
    done = amq("journal", "check", "--store", store, "--json")
    assert done.returncode == 4
    told = json.loads(done.stdout)
    assert (told["ok"], [(each["file"], each["code"]) for each in told["problems"]]) == (
        False,
        [(str(newest), "STORE_CORRUPT")],
    )
    text = amq("journal", "check", "--store", store)
    assert (text.returncode, f"{newest}: offset " in one_line(text), "amq journal repair" in text.stderr) == (
        4,
        True,
        True,
    )


def test_a_torn_tail_is_normal(store: Path) -> None:
    segment = segment_of(store)
    end = len(segment.read_bytes().rstrip(b"\0"))
    with open(segment, "r+b") as file:
        file.seek(end + 8)
        file.write(b"half a batch")
    done = amq("journal", "check", "--store", store)
    assert done.returncode == 0, done.stderr
    assert "torn tail" in done.stdout


def test_a_store_at_work_is_never_called_damaged(brokers: Brokers) -> None:
    """Small segments, so that they are made and deleted all the time, while `check` runs again and again."""
    master = brokers.master("a", journalSegmentSize="64KiB", journalBatchSize="16KiB")
    producer = Producer([master], window=200)
    producer.start()
    consumed: list[int] = []
    stopping = threading.Event()

    def consume() -> None:
        with master.connect() as connection:
            connection.send("SUBSCRIBE", {"destination": QUEUE, "id": "1", "ack": "client"})
            while not stopping.is_set():
                frame = connection.next_frame(DEADLINE_S)
                connection.send("ACK", {"id": frame.headers["ack"]})
                consumed.append(1)

    consumer = threading.Thread(target=consume)
    consumer.start()
    seen: set[str] = set()
    try:
        for _ in range(8):
            producer.wait_confirmed(1000)
            facts = amq_json("journal", "check", "--store", brokers.store)
            assert facts["problems"] == []
            seen |= {segment["name"] for segment in facts["segments"]}
    finally:
        stopping.set()
        producer.stop()
        consumer.join()
    assert consumed
    assert len(seen) > 5, "segments came and went meanwhile"
    assert len(seen - set(os.listdir(brokers.store / "journal"))) > 0
    with master.connect() as connection:
        drain(connection, 10_000)


@pytest.mark.parametrize("verb", ["check", "dump", "stat"])
def test_no_store(tmp_path: Path, verb: str) -> None:
    done = amq("journal", verb, "--store", tmp_path)
    assert done.returncode == 4
    assert "is empty: no broker was ever master here" in one_line(done)


@pytest.mark.parametrize("verb", ["check", "dump", "stat", "export"])
def test_no_journal(tmp_path: Path, verb: str) -> None:
    (tmp_path / "epochs").mkdir()
    done = amq("journal", verb, "--store", tmp_path)
    assert (done.returncode, "this store has no journal" in one_line(done)) == (4, True)


def test_an_export_that_fails_leaves_nothing(tmp_path: Path) -> None:
    done = amq("journal", "export", "--store", tmp_path / "no", "--output", tmp_path / "file")
    assert (done.returncode, os.listdir(tmp_path)) == (4, [])


def test_a_file_whose_name_is_no_text(store: Path) -> None:
    (store / "journal" / os.fsdecode(b"x\xff.seg")).touch()
    for env in ({}, {"PYTHONIOENCODING": "utf-8:strict"}, {"PYTHONIOENCODING": "ascii:strict"}):
        done = amq("journal", "check", "--store", store, "--json", env=env)
        assert (done.returncode, json.loads(done.stdout)["ok"], done.stdout.isascii()) == (0, True, True)
        assert "x\\udcff.seg" in done.stdout
        table = amq("journal", "check", "--store", store, env=env)
        assert table.returncode == 0, table.stderr
        assert re.search(r"^x(\\udcff|\?)\.seg: not a file of amq", table.stdout, re.MULTILINE)


def test_an_export_replaces_files_alone(store: Path, tmp_path: Path) -> None:
    """Not what is not a file, as /dev/null, which root could replace; and a link goes where it went."""
    words = ["journal", "export", "--store", store, "--output"]
    os.mkdir(tmp_path / "directory")
    done = amq(*words, tmp_path / "directory")
    assert (done.returncode, "Is a directory" in one_line(done)) == (1, True)
    target, link, pipe = tmp_path / "target", tmp_path / "link", tmp_path / "pipe"
    target.write_text("older")
    link.symlink_to("target")
    assert amq(*words, link).returncode == 0
    assert (link.is_symlink(), target.read_text().count("\n")) == (True, 18)
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE) as reader:
        assert amq(*words, pipe).returncode == 0
        piped, _ = reader.communicate(timeout=DEADLINE_S)
    assert piped.split(b"\n")[1:-2] == target.read_bytes().split(b"\n")[1:-2]
    assert pipe.is_fifo()
    assert not list(tmp_path.glob("*.partial"))


def test_no_such_segment(store: Path) -> None:
    done = amq("journal", "dump", "--store", store, "--segment", "x")
    assert done.returncode == 4
    assert "amq journal stat" in one_line(done)


def test_stat_tells_what_keeps_what(store: Path) -> None:
    facts = amq_json("journal", "stat", "--store", store)
    (segment,) = facts["segments"]
    assert segment["kept_by"] == "messages"
    assert segment["live_record_bytes"] + segment["dead_record_bytes"] == segment["bytes"]
    assert [(pin["destination"], pin["messages"]) for pin in segment["pins"]] == [
        ("queue://orders", 15),
        ("queue://other", 1),
    ]
    orders = next(each for each in facts["destinations"] if each["destination"] == "queue://orders")
    assert orders["segments"] == [segment["name"]]
    assert orders["oldest_seq"] == min(pin["oldest_seq"] for pin in segment["pins"])
    assert orders["live_record_bytes"] > 15 * len("body 10")
    assert "15 of queue://orders (oldest " in amq("journal", "stat", "--store", store).stdout


def test_stat_tells_whose_acknowledgements_a_segment_holds(store: Path, brokers: Brokers) -> None:
    master = brokers.master("a")
    with master.connect() as connection:
        connection.send("SUBSCRIBE", {"destination": QUEUE, "id": "1", "ack": "client"})
        connection.send("ACK", {"id": connection.next_frame(DEADLINE_S).headers["ack"], "receipt": "acked"})
        connection.receipt("acked", DEADLINE_S)
    assert master.stop() == 0
    messages, acknowledgement = amq_json("journal", "stat", "--store", store)["segments"]
    assert (messages["kept_by"], messages["older"]) == ("messages", [])
    assert (acknowledgement["kept_by"], acknowledgement["older"]) == ("older", [messages["name"]])
    assert "an older segment: this one holds" in amq("journal", "stat", "--store", store).stdout


def test_compact_shows_what_is_due_and_does_nothing(brokers: Brokers) -> None:
    """One old message keeps everything; the broker is killed before it compacts."""
    master = brokers.master("a", journalSegmentSize="64KiB", journalBatchSize="16KiB")
    with master.connect() as connection:
        send(connection, b"old", queue="/queue/old")
        for _ in range(20):
            for _ in range(8):
                send(connection, b"x" * 2000)
    with master.connect() as connection:
        drain(connection, 160)
    master.kill()
    before = {path.name: path.read_bytes() for path in (brokers.store / "journal").iterdir()}
    options = ("-o", "journalSegmentSize=64KiB", "-o", "journalBatchSize=16KiB")
    facts = amq_json("journal", "compact", "--dry-run", "--store", brokers.store, *options)
    assert [each["segment"] for each in facts["segments"]] == sorted(each["segment"] for each in facts["segments"])
    assert facts["segments"][-1]["action"] == "keep"
    assert {each["action"] for each in facts["segments"]} <= {"free", "copy", "keep"}
    text = amq("journal", "compact", "--dry-run", "--store", brokers.store)
    assert (text.returncode, " segments would go: copies " in text.stdout) == (0, True)
    assert before == {path.name: path.read_bytes() for path in (brokers.store / "journal").iterdir()}
    refused = amq("journal", "compact", "--store", brokers.store)
    assert refused.returncode == 2
    assert "brokers compact while they serve" in refused.stderr


def test_export_and_import_move_a_store(store: Path, tmp_path: Path) -> None:
    file = tmp_path / "store.jsonl"
    done = amq("journal", "export", "--store", store, "--output", file)
    assert (done.returncode, done.stderr) == (0, "")
    lines = [json.loads(line) for line in file.read_bytes().split(b"\n")[:-1]]
    assert (lines[0]["amq"], lines[-1]["messages"]) == ("journal export", 16)
    assert [line["body"] for line in lines if line.get("destination") == "queue://orders"] == [
        f"body {number}" for number in range(5, 20)
    ]
    assert (
        file.read_bytes().split(b"\n")[1:-2]
        == amq("journal", "export", "--store", store).stdout.encode().split(b"\n")[1:-2]
    )
    moved = tmp_path / "moved"
    first, again = (amq("journal", "import", "--store", moved, file) for _ in range(2))
    assert first.stdout == "16 messages stored, 0 were there already, 0 ids remembered\n", first.stderr
    assert again.stdout == "0 messages stored, 16 were there already, 0 ids remembered\n", again.stderr
    assert amq_json("journal", "check", "--store", moved)["ok"]
    piped = amq("journal", "export", "--store", moved, "--destination", QUEUE)
    bodies = [json.loads(line).get("body") for line in piped.stdout.splitlines()[1:-1]]
    assert bodies == [f"body {number}" for number in range(5, 20)]


def test_import_refuses_what_is_cut_and_what_is_in_use(store: Path, tmp_path: Path, brokers: Brokers) -> None:
    data = amq("journal", "export", "--store", store).stdout.encode()
    file, target = tmp_path / "cut.jsonl", tmp_path / "target"
    file.write_bytes(data[:-200])
    done = amq("journal", "import", "--store", target, file)
    assert done.returncode == 4
    assert "EXPORT_CUT" in one_line(done)
    assert not target.exists(), "a file is checked first"
    piped = amq("journal", "import", "--store", target, data=data[: data.rindex(b'{"type": "end"')])
    assert piped.returncode == 4
    assert "16 messages stored" in piped.stderr
    done = amq("journal", "import", "--store", store, data=data)
    assert (done.returncode, "EXPORT_OF_THIS_STORE" in done.stderr) == (7, True)  # a slow machine tells of progress too
    brokers.master("b")
    used = amq("journal", "import", "--store", store, data=data)
    assert (used.returncode, "STORE_LOCKED" in one_line(used)) == (5, True)


def test_an_import_that_waits_for_its_input_is_interrupted(tmp_path: Path) -> None:
    target = tmp_path / "target"
    with running("journal", "import", "--store", target, stdin=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(b"{")
        process.stdin.flush()
        deadline = time.monotonic() + DEADLINE_S
        while struct.unpack("i", fcntl.ioctl(process.stdin, termios.FIONREAD, bytes(4))) != (0,):
            assert (process.poll(), time.monotonic() < deadline) == (None, True)
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        assert (process.wait(DEADLINE_S), process.stderr.read()) == (130, b""), "with its input still open"
    assert "amq-journal-import handed the store over" in amq("status", "--store", target).stdout


@pytest.mark.parametrize("words", [[], ["-o", "allowUnsafeStore=yes"], ["--allow-unsafe-store"]])
def test_import_into_an_unsafe_store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: list[str]) -> None:
    """As for `amq start`, the configuration may allow it."""
    nolock = Finding(Level.UNFIT, "local_lock=none", "nolock", "several masters at once")
    monkeypatch.setattr(store_check, "examine_quickly", lambda path, **_: Examination(path, path, findings=[nolock]))
    (tmp_path / "empty").write_bytes(b"")
    given = ["journal", "import", "--store", str(tmp_path / "store"), *words, str(tmp_path / "empty")]
    done = CliRunner().invoke(main.main, given)
    assert (done.exit_code, "[EXPORT_CUT]" if words else "[STORE_UNSAFE]") == (4, done.stderr.split()[-1])


def test_repair_shows_first_and_keeps_the_originals(store: Path, brokers: Brokers) -> None:
    whole = amq("journal", "repair", "--store", store)
    assert (whole.returncode, whole.stdout) == (0, "nothing is damaged\n")
    nothing = amq_json("journal", "repair", "--store", store)
    segment = segment_of(store)
    before = segment.read_bytes()
    damaged = before.replace(b"body 7", b"BODY 7")
    segment.write_bytes(damaged)
    plan = amq("journal", "repair", "--store", store)
    assert plan.returncode == 4
    assert f"{segment}: offset " in plan.stdout
    assert "1 record surely lost" in plan.stdout
    assert "among them 1 message of queue://orders" in plan.stdout
    assert "nothing was changed; --yes repairs" in plan.stdout
    assert segment.read_bytes() == damaged
    done = amq("journal", "repair", "--store", store, "--yes", "--json")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert (facts["repaired"], facts["surely_lost"], [*facts]) == (True, {"queue://orders": 1}, [*nothing])
    assert (Path(facts["kept"]) / segment.name).read_bytes() == damaged
    assert amq_json("journal", "check", "--store", store)["ok"]
    with brokers.master("b").connect() as connection:
        assert drain(connection, 14) == [b"body %d" % number for number in range(5, 20) if number != 7]


def test_repair_refuses_a_store_in_use(store: Path, brokers: Brokers) -> None:
    number = len(list((store / "epochs").iterdir()))
    brokers.master("b")
    (store / "epochs" / f"{number:010d}.json").write_bytes(b"damaged")
    done = amq("journal", "repair", "--store", store, "--yes")
    assert (done.returncode, "STORE_LOCKED" in one_line(done)) == (5, True)
