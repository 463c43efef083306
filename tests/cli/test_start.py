"""`amq start` as a process: what it says, how it ends, what signals do to it."""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import NoReturn

import pytest
from amq_process import ROOT, amq, one_line
from brokers import Broker, Brokers
from structlog import get_logger
from structlog.testing import capture_logs

from amq.cli import logs
from amq.config.schema import BrokerConfig
from amq.node import process
from tests.cluster.ground import FAULTY
from tests.patience import DEADLINE_S
from tests.ports import free_port
from tests.processes import LEASH

pytestmark = pytest.mark.deep


def last_line(stderr: str) -> dict[str, object]:
    line: dict[str, object] = json.loads(stderr.strip().split("\n")[-1])
    return line


def test_it_serves_and_hands_over(brokers: Brokers) -> None:
    master = brokers.master("a")
    slave = brokers.slave("b")
    serving = master.wait_serving()
    assert serving["epoch"] == 1
    assert serving["reason"] == "first start of this store"
    assert serving["urls"] == [f"stomp://127.0.0.1:{master.port}"]
    assert serving["broker"] == "a"
    assert serving["logger"] == "amq.service"
    assert master.stop() == 0
    assert master.said("stopped")[0]["exit_code"] == 0
    assert slave.wait_serving()["waited_s"] == 0
    assert "released" in str(slave.wait_serving()["reason"])


def test_a_slave_stops_too(brokers: Brokers) -> None:
    brokers.master("a")
    assert brokers.slave("b").stop() == 0


def test_sigint_stops(brokers: Brokers) -> None:
    master = brokers.master("a")
    master.signal(signal.SIGINT)
    assert master.wait_exit() == 0


def test_the_second_signal_ends_it_at_once(brokers: Brokers, tmp_path: Path) -> None:
    """The store hangs, so a clean stop cannot end."""
    broker, hangs = brokers.add("a"), tmp_path / "hangs"
    broker.store = tmp_path / "stores" / "s"
    broker.store.mkdir(parents=True)
    words = ["start", "--name", "a", "--store", str(broker.store), "--transport", f"stomp://127.0.0.1:{broker.port}"]
    started = subprocess.Popen(
        [sys.executable, "-c", LEASH, sys.executable, "-m", "amq", *words, "-o", "lockKeepAlivePeriod=10m"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "PYTHONPATH": str(FAULTY), "TEST_AMQ_HANGS": str(hangs)},
    )
    broker.adopt(started)
    broker.wait_serving()
    hangs.mkdir()
    (hangs / "a.s").touch()
    broker.signal(signal.SIGTERM)
    broker.wait_event("told to stop")
    broker.signal(signal.SIGTERM)
    assert broker.wait_exit() == -signal.SIGTERM


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ([], 3, "no store directory is given"),
        (["--store", "/nonexistent/deep/store"], 4, "does not exist"),
        (["--store", __file__], 4, "cannot be used"),
        (["--store", "s", "-o", "lockKeepAlivePeriod=0"], 3, "two masters can exist"),
        (["--store", "s", "-o", "lockKeepAlive=1s"], 3, "did you mean lockKeepAlivePeriod"),
        (["--store", "s", "--name", "no spaces!"], 3, "cannot be used"),
        (["--store", "s", "--transport", "http://x"], 3, "unknown scheme"),
        (["missing.toml", "--store", "s"], 3, "cannot be read"),
        (["--store", "s", "-o", "usersFile=/nonexistent"], 3, "users file"),
    ],
)
def test_exit_codes(tmp_path: Path, words: list[str], code: int, said: str) -> None:
    words = [str(tmp_path / "s") if word == "s" else word for word in words]
    done = amq("start", *words, env={"AMQ_STORE": ""})
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_usage_error() -> None:
    done = amq("start", "--bogus")
    assert done.returncode == 2
    assert "--bogus" in done.stderr


def test_name_in_use_store_locked_port_taken(brokers: Brokers) -> None:
    master = brokers.master("a")
    again = brokers.add("a").start()
    assert again.wait_exit() == 5
    assert again.said("stopped")[0]["code"] == "NAME_IN_USE"
    impatient = brokers.add("b", failIfLocked="true").start()
    assert impatient.wait_exit() == 5
    assert impatient.said("stopped")[0]["code"] == "STORE_LOCKED"
    other = Broker(brokers.directory / "other", "c", master.port, brokers.options)
    other.start()
    assert other.wait_exit() == 6
    assert other.said("stopped")[0]["code"] == "TRANSPORT_UNAVAILABLE"


def test_a_damaged_store_is_refused(brokers: Brokers) -> None:
    brokers.master("a").stop()
    (epoch,) = (brokers.store / "epochs").glob("*.json")
    epoch.write_text("{}")
    broker = brokers.add("b").start()
    assert broker.wait_exit() == 4
    assert str(epoch) in str(broker.said("stopped")[0]["reason"])
    assert "amq journal repair" in str(broker.said("stopped")[0]["reason"])


def test_configuration_changes_while_it_runs(brokers: Brokers, tmp_path: Path) -> None:
    users, config = tmp_path / "users", tmp_path / "amq.toml"
    assert amq("user", "add", "alice", "--users", users, "--password-stdin", data=b"secret\n").returncode == 0
    config.write_text(f'[security]\nusersFile = "{users}"\n[log]\nlogLevel = "info"\n')
    broker = Broker(brokers.store, "a", 0, {})
    process = subprocess.Popen(
        [sys.executable, "-m", "amq", "start", config, "--store", brokers.store, "--transport", "stomp://127.0.0.1:0"],
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        cwd=ROOT,
    )
    reader = broker.adopt(process)
    try:
        broker.wait_serving()
        changed = '[log]\nlogLevel = "debug"\n[lock]\nfailIfLocked = true\n'
        config.write_text(f'[security]\nusersFile = "{users}"\n{changed}')
        assert "logLevel: info → debug" in str(broker.wait_event("configuration changed")["changes"])
        assert "failIfLocked" in str(broker.wait_event("this change waits for a restart")["change"])
        seen = len(broker.log)
        config.write_text("[log]\nlogLevel = 3\n")
        assert "logLevel" in str(broker.wait_event("configuration not changed", after=seen)["reason"])
        seen = len(broker.log)
        assert amq("user", "add", "bob", "--users", users, "--password-stdin", data=b"pw\n").returncode == 0
        broker.wait_event("users read", after=seen)
        seen = len(broker.log)
        broker.signal(signal.SIGHUP)
        broker.wait_event("users read", after=seen)
        seen = len(broker.log)
        others = tmp_path / "others"
        config.write_text(f'[security]\nusersFile = "{others}"\n{changed}')
        assert "others" in str(broker.wait_event("users not changed", after=seen)["reason"])
        assert amq("user", "add", "eve", "--users", others, "--password-stdin", data=b"pw\n").returncode == 0
        assert str(others) == broker.wait_event("users read", after=seen)["users_file"], "it is watched from now on"
        broker.signal(signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0
    finally:
        process.kill()
        process.wait()
        reader.join()


def test_the_service_manager_is_told(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as door:
        path = str(brokers.directory / "notify")
        door.bind(path)
        door.settimeout(DEADLINE_S)
        monkeypatch.setenv("NOTIFY_SOCKET", path)
        master = brokers.master("a")
        first = door.recv(4096).decode()
        second = door.recv(4096).decode()
        assert first == "READY=1\nSTATUS=slave, waiting for the lock"
        assert second == f"STATUS=master, serving stomp://127.0.0.1:{master.port}"
        assert master.stop() == 0
        assert door.recv(4096) == b"STOPPING=1\nSTATUS=handing over"


def test_the_service_manager_hears_that_we_live(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as door:
        path = str(brokers.directory / "notify")
        door.bind(path)
        door.settimeout(DEADLINE_S)
        monkeypatch.setenv("NOTIFY_SOCKET", path)
        monkeypatch.setenv("WATCHDOG_USEC", "200000")
        broker = brokers.add("a").start()
        beats = 0
        while beats < 5:
            beats += door.recv(4096) == b"WATCHDOG=1"
        broker.freeze()
        door.setblocking(False)
        with pytest.raises(BlockingIOError):  # a process that pauses feeds nobody: what it said is all there is
            while True:
                door.recv(4096)
        broker.thaw()
        door.settimeout(DEADLINE_S)
        while door.recv(4096) != b"WATCHDOG=1":
            continue


def test_the_service_manager_is_told_where_no_file_can_be_opened_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many clients as the process may open files: the watchdog is still fed."""

    def full(*_: object) -> NoReturn:
        raise OSError(errno.EMFILE, "Too many open files")

    path = str(tmp_path / "notify")
    monkeypatch.setenv("NOTIFY_SOCKET", path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(path)
        manager.settimeout(DEADLINE_S)
        process.notify("READY=1")
        with monkeypatch.context() as patch, capture_logs() as lines:
            patch.setattr(socket, "socket", full)
            process.notify("WATCHDOG=1")
        assert [manager.recv(4096), manager.recv(4096), lines] == [b"READY=1", b"WATCHDOG=1", []]
        process.door().close()
        process.door.cache_clear()
        with monkeypatch.context() as patch, capture_logs() as lines:
            patch.setattr(socket, "socket", full)
            process.notify("READY=1")
        assert [(line["event"], line["reason"]) for line in lines] == [
            ("cannot notify the service manager", "[Errno 24] Too many open files")
        ]


@pytest.mark.parametrize(
    ("microseconds", "pid", "interval_s"),
    [
        ("60000000", "", 30.0),
        ("60000000", "own", 30.0),
        ("60000000", "1", None),
        ("0", "", None),
        ("", "", None),
        ("x", "", None),
    ],
)
def test_the_watchdog_interval(
    microseconds: str, pid: str, interval_s: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", microseconds)
    if pid:
        monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()) if pid == "own" else pid)
    assert process.watchdog_interval_s() == interval_s


def test_console_lines(tmp_path: Path) -> None:
    done = amq("start", "--store", tmp_path / "a" / "b", "-o", "logFormat=console")
    assert done.returncode == 4
    assert "[amq.process]" in done.stderr
    assert "{" not in done.stderr


@pytest.mark.parametrize("level", ["debug", "info", "warning", "error", "critical"])
def test_a_line_that_cannot_be_written_is_lost_and_nothing_else(level: str) -> None:
    """stderr is a file on a full disk, or a pipe whose reader has gone. To who tells something that is not an error."""

    class Full(io.StringIO):
        def write(self, _text: str) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    getattr(logs._Logger("amq", Full()), level)("line")
    closed = io.StringIO()
    closed.close()
    getattr(logs._Logger("amq", closed), level)("line")
    fine = io.StringIO()
    getattr(logs._Logger("amq", fine), level)("line")
    assert fine.getvalue() == "line\n"


def test_a_line_of_the_log_is_one_write() -> None:
    """The processes of a node share stderr: where a line ends with a second write, that of another comes between."""
    writes: list[bytes] = []

    class Unbuffered(io.RawIOBase):
        def writable(self) -> bool:
            return True

        def write(self, data: bytes) -> int:  # type: ignore[override]
            writes.append(bytes(data))
            return len(data)

    stream = io.TextIOWrapper(Unbuffered(), write_through=True)  # type: ignore[type-var]  # as PYTHONUNBUFFERED makes it
    logs._Logger("amq", stream).info("line")
    assert writes == [b"line\n"]


def _opened(descriptor: Path) -> str:
    try:
        return os.readlink(descriptor)
    except FileNotFoundError:  # closed since it was listed
        return ""


def test_no_file_of_the_store_is_a_standard_stream(tmp_path: Path) -> None:
    """What the interpreter or a library writes to descriptor 2 would go into it."""
    words = (sys.executable, "-m", "amq", "start", "--store", str(tmp_path / "s"), "--transport", "stomp://127.0.0.1:0")
    process = subprocess.Popen(["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *words], cwd=ROOT)
    try:
        files, deadline = Path(f"/proc/{process.pid}/fd"), time.monotonic() + DEADLINE_S
        while str(tmp_path / "s" / "lock") not in map(_opened, files.iterdir()):
            assert (process.poll(), time.monotonic() < deadline) == (None, True)
            time.sleep(0.05)
        assert [os.readlink(files / str(number)) for number in range(3)] == [os.devnull] * 3
        process.terminate()
        assert process.wait(DEADLINE_S) == 0
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(("closed", "words"), [(">&-", ["config", "show"]), ("<&-", ["journal", "import", "--store"])])
def test_a_standard_stream_that_is_needed_and_closed(tmp_path: Path, closed: str, words: list[str]) -> None:
    words = [sys.executable, "-m", "amq", *words, *[str(tmp_path / "s")] * (closed == "<&-")]
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}', "sh", *words], capture_output=True, text=True, cwd=ROOT, timeout=DEADLINE_S
    )
    assert (done.returncode, done.stderr) == (1, "amq: Bad file descriptor\n")


@pytest.mark.parametrize("_test", [1, 2])
def test_a_command_in_this_process_keeps_no_log_from_the_next_test(_test: int) -> None:
    with capture_logs() as lines:
        get_logger().info("told")
    assert lines
    logs.configure(BrokerConfig(log_level="error"))


def test_file_events_of_others_are_not_logged() -> None:
    """The log may be a file beside the configuration: each line would be an event, and each event a line. Nor what is
    called an error where a watch ends."""
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import logging; from amq.cli import logs; from amq.config.schema import BrokerConfig\n"
            "logs.configure(BrokerConfig(log_level='debug'))\n"
            "for name in 'watchdog.observers.inotify_c', 'asyncio': logging.getLogger(name).debug('seen by %s', name)\n"
            "from watchdog.observers.inotify import InotifyEmitter\n"
            "from watchdog.observers.api import EventQueue, ObservedWatch\n"
            "InotifyEmitter(EventQueue(), ObservedWatch('/', recursive=False)).queue_events(1)",
        ],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        cwd=ROOT,
        check=True,
    )
    assert [json.loads(line)["event"] for line in done.stderr.splitlines()] == ["seen by asyncio"]


def test_the_process_replaces_itself(tmp_path: Path) -> None:
    """Same process id, same command line, every descriptor closed."""
    script = tmp_path / "again.py"
    script.write_text(
        "import os, sys\n"
        "print(os.getpid(), *sys.argv[1:], flush=True)\n"
        f"if not os.path.exists({str(tmp_path / 'mark')!r}):\n"
        f"    held = open({str(tmp_path / 'mark')!r}, 'w')\n"
        "    from amq.node.process import replace_process\n"
        "    replace_process()\n"
        "print(len(os.listdir('/proc/self/fd')))\n"
    )
    done = subprocess.run(
        [sys.executable, script, "a", "b c"], capture_output=True, text=True, timeout=DEADLINE_S, cwd=ROOT, check=True
    )
    first, second, descriptors = done.stdout.split("\n")[:3]
    assert first == second
    assert first.endswith("a b c")
    assert int(descriptors) <= 4


def test_a_process_that_has_replaced_itself_waits_for_the_store(tmp_path: Path) -> None:
    """A fresh one does not: a person has just started it, and hears what is wrong."""
    store = tmp_path / "store"
    store.write_text("")
    words = [
        sys.executable,
        "-m",
        "amq",
        "start",
        "--store",
        str(store),
        "--transport",
        f"stomp://127.0.0.1:{free_port()}",
    ]
    variables = {**os.environ, process.REPLACEMENT: "1"}
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, cwd=ROOT, env=variables) as broker:
        try:
            assert broker.stderr is not None
            events = (json.loads(line) for line in broker.stderr)
            first = next(each for each in events if each["level"] == "warning" and "starting anew" in each["event"])
            assert "cannot be used" in first["reason"]
            store.unlink()
            store.mkdir()
            next(each for each in events if each.get("role") == "master")
            broker.terminate()
            assert broker.wait(DEADLINE_S) == 0
        finally:
            broker.kill()


def test_a_thread_that_fails_ends_the_process() -> None:
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import threading, time; from amq.node import process; process.tune()\n"
            "t = threading.Thread(target=lambda: 1 / 0, name='amq-journal'); t.start(); time.sleep(60)",
        ],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 70
    assert "ZeroDivisionError" in done.stdout + done.stderr


def test_error_lines_are_one_line() -> None:
    done = amq("start", "--store", "x", "-o", "prefetchSize=many", env={"AMQ_STORE": ""})
    assert "[CONFIG_INVALID]" in one_line(done)
