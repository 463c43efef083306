"""`amq demo`: its verdict is earned, its receiver sees broken promises, it leaves nothing behind."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from amq_process import ROOT, amq, running

from amq.cli import exits
from amq.cli.demo import FileKill, FileVerdict
from amq.cli.demo_common import left_in
from amq.cli.demo_console import DemoConsole
from amq.cli.demo_traffic import Receiver
from amq.core.errors import AmqError
from amq.core.message import Message
from tests.files import write_epoch
from tests.journal.journal_world import World
from tests.patience import DEADLINE_S
from tests.processes import naming


def brokers_on(directory: Path) -> list[int]:
    """Process ids of brokers whose command line names `directory`."""
    return [pid for pid, words in naming(directory) if "start" in words]


@pytest.mark.deep
def test_two_kills(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_bytes(b"".join(b"%d \xff\r\n\n" % number for number in range(5000)) + b"no line end")
    done = amq("demo", "--kills", 2, "--file", text, "--store", tmp_path / "store", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    verdict = json.loads(done.stdout)
    assert (verdict["ok"], verdict["same"], verdict["lines"], verdict["received"]) == (True, True, 10_001, 10_001)
    assert (verdict["stored_twice"], verdict["acks_undone"], verdict["left"], verdict["problems"]) == (0, 0, 0, [])
    first, second = verdict["kills"]
    assert 0 < first["serving_s"] <= first["first_line_s"]
    assert 0 < first["line"] < second["line"] < 10_001
    assert (first["epoch"], second["epoch"]) == (2, 3)
    assert second["broker"] == first["next_broker"]
    assert brokers_on(tmp_path) == []


@pytest.mark.deep
def test_the_reader_of_the_output_goes(tmp_path: Path) -> None:
    """As in `amq demo | head -1`: no traceback, no process left behind."""
    with running("demo", "--brokers", 2, "--store", tmp_path / "store") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert b"2 brokers on" in process.stdout.readline()
        process.stdout.close()
        said = process.stderr.read()
        assert process.wait(DEADLINE_S) == 1
    assert said == b""
    assert brokers_on(tmp_path) == []


@pytest.mark.deep
def test_plain_lines_and_keep(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_bytes(b"line\n" * 3000)
    done = amq("demo", "--brokers", 2, "--kills", 1, "--file", text, "--keep", env={"TMPDIR": str(tmp_path)})
    assert done.returncode == 0, done.stdout + done.stderr
    for said in ("is the master, epoch 1", "kill -9", "is the master, epoch 2", "first line from", "byte for byte"):
        assert said in done.stdout
    (kept,) = tmp_path.glob("amq-demo-*")
    assert f"kept: {kept}" in done.stdout
    assert (kept / "output.txt").read_bytes() == text.read_bytes()
    assert "master: serving clients" in (kept / "broker-1.log").read_text() + (kept / "broker-2.log").read_text()


@pytest.mark.deep
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_demo_leaves_no_process(tmp_path: Path, number: signal.Signals) -> None:
    environment = {"TMPDIR": str(tmp_path), "PYTHONUNBUFFERED": "1"}
    with running("demo", "--store", tmp_path / "store", "--kills", 1000, env=environment) as demo:
        assert demo.stdout is not None
        while b"first line from" not in demo.stdout.readline():
            assert demo.poll() is None
        children = brokers_on(tmp_path)
        assert len(children) >= 2
        demo.send_signal(number)
        demo.communicate(timeout=DEADLINE_S)
    if number is signal.SIGINT:
        assert demo.returncode == 130
        assert list(tmp_path.glob("amq-demo-*")) == []
    while brokers_on(tmp_path):  # the kernel is killing them
        os.sched_yield()


@pytest.mark.deep
def test_a_broker_that_does_not_start_ends_the_demo(tmp_path: Path) -> None:
    (tmp_path / "store").write_text("a file")
    words = ("--store", tmp_path / "store", "--keep", "--json")
    done = amq("demo", *words, env={"TMPDIR": str(tmp_path)})
    assert done.returncode == 1
    assert f"kept: {next(tmp_path.glob('amq-demo-*'))}" in done.stderr
    assert done.stdout == ""
    assert "[DEMO_FAILED]" in done.stderr
    assert "exit code 4" in done.stderr


def verdict(**changes: Any) -> FileVerdict:
    facts: dict[str, Any] = {
        "lines": 10,
        "received": 10,
        "seconds": 1.0,
        "same": True,
        "kills": [FileKill("a", "b", 2, 0.1, line=5, first_line_s=0.2)],
        "delivered_again": 3,
        "stored_twice": 0,
        "acks_undone": 0,
        "left": 0,
        "problems": [],
    }
    return FileVerdict(**facts | changes)


def test_a_good_verdict() -> None:
    assert verdict().ok
    assert verdict(kills=[]).ok


@pytest.mark.parametrize(
    "flaw",
    [
        {"same": False},
        {"stored_twice": 1},
        {"acks_undone": 1},
        {"left": 1},
        {"problems": ["x"]},
        {"kills": [FileKill("a", line=5)]},
    ],
)
def test_each_broken_promise_spoils_the_verdict(flaw: dict[str, Any]) -> None:
    assert not verdict(**flaw).ok
    assert sum(not good for good, _ in verdict(**flaw).sentences()) == 1


def test_what_others_left_in_a_store_is_not_the_demos(tmp_path: Path) -> None:
    """As a demo on the same store does, that was interrupted."""
    world = World(tmp_path)
    write_epoch(world.store, world.epoch, {})
    names = ("queue://demo.1", "queue://demo.2", "queue://demo.2", "held://queue://demo.2", "queue://orders")
    for seq, name in enumerate(names, 1 << 44):
        world.journal.append(Message(name, b"x", seq=seq))
    world.commit()
    assert left_in(world.store, "/queue/demo.2") == (3, [])
    assert left_in(world.store, "/queue/demo.3") == (0, [])
    assert left_in(world.store) == (5, [])


def test_the_receiver_keeps_the_books() -> None:
    receiver = Receiver("", "", "", 0)

    def comes(duplicate_id: str, message_id: str) -> bool:
        return receiver._is_new(SimpleNamespace(duplicate_id=duplicate_id, id=message_id))  # type: ignore[arg-type]

    assert comes("d1", "m1")
    assert comes("d2", "m2")
    assert not comes("d1", "m1")
    assert (receiver.dropped, receiver.stored_twice, receiver.acks_undone) == (1, 0, 0)
    assert not comes("d2", "m3"), "the same line under another message id: stored twice"
    assert (receiver.dropped, receiver.stored_twice, receiver.acks_undone) == (1, 1, 0)
    receiver._confirmed.add("d1")
    assert not comes("d1", "m1"), "its acknowledgement was confirmed"
    assert (receiver.dropped, receiver.stored_twice, receiver.acks_undone) == (1, 1, 1)
    receiver._firsts = [5.0, 9.0]
    assert [receiver.first_after(at) for at in (1.0, 6.0, 9.5)] == [5.0, 9.0, 0.0]


@pytest.mark.deep
def test_the_console_shows_the_group_until_ctrl_c(tmp_path: Path) -> None:
    """On a terminal; the minute of the lines is a second here."""
    text = tmp_path / "text"
    text.write_bytes(b"line\n" * 3000)
    program = "import amq.cli.demo as demo; demo.WATCHED_S = 1.0; from amq.cli.main import main; main()"
    words = ["demo", "--console", "--brokers", "2", "--kills", "1", "--file", text, "--store", tmp_path / "store"]
    ours, theirs = pty.openpty()
    with (
        subprocess.Popen(
            [sys.executable, "-c", program, *words],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "120"},
            cwd=ROOT,
        ) as process,
        os.fdopen(ours, "rb", 0) as terminal,
    ):
        os.close(theirs)
        try:
            shown = b""
            while b"All lines have come" not in shown:
                shown += terminal.read(65536)
            address = re.search(rb"console: (http://\S+)/ ", shown)
            assert address is not None, shown
            url = address[1].decode()
            with httpx.Client(base_url=url, follow_redirects=True) as browser:
                assert browser.get("/masterz").text == "master\n"
                page = browser.post("/login", data={"login": "me", "passcode": ""})
                assert page.url.path == "/"
                for told in ("broker-1", "broker-2", "ready to take over", "<li>epoch <b>2</b></li>"):
                    assert told in page.text
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does
            with contextlib.suppress(OSError):  # EIO: the last one closed it
                while data := terminal.read(65536):
                    shown += data
            assert process.wait(DEADLINE_S) == 0, shown
            assert b"byte for byte" in shown
        finally:
            process.kill()
    assert naming(tmp_path) == []


@pytest.mark.deep
def test_a_console_does_not_hold_a_script(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_bytes(b"line\n" * 3000)
    done = amq("demo", "--console", "--brokers", 2, "--kills", 0, "--file", text, "--store", tmp_path / "store")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "console: http://127.0.0.1:" in done.stdout
    assert naming(tmp_path) == []


def test_a_console_is_for_people() -> None:
    done = amq("demo", "--console", "--json")
    assert done.returncode == exits.USAGE
    assert "without --json" in done.stderr


def test_a_console_that_ends_says_why(tmp_path: Path) -> None:
    console = DemoConsole(str(tmp_path / "nowhere"), str(tmp_path / "console.log"))
    console.start()
    try:
        with pytest.raises(AmqError, match=r"the console ended with exit code [1-9].*nowhere"):
            while True:
                console.check()
                os.sched_yield()
    finally:
        console.end()


def test_a_checkout_in_the_current_directory_is_not_what_runs(tmp_path: Path) -> None:
    """A newcomer starts the installed `amq` in a checkout, where a directory `amq` lies."""
    other = tmp_path / "amq"
    other.mkdir()
    (other / "__init__.py").write_text("raise SystemExit('the amq of the current directory was imported')\n")
    text = tmp_path / "text"
    text.write_text("a line\n" * 2000)
    words = ["demo", "--brokers", "2", "--kills", "0", "--file", str(text), "--store", str(tmp_path / "store")]
    command = [sys.executable, "-P", "-m", "amq", *words]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stderr
