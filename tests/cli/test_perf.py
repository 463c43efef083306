"""`amq perf`: a figure only for work that was done."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest
from amq_process import amq, one_line, running
from brokers import Brokers

import amq as client
from amq.cli import load
from tests.patience import DEADLINE_S
from tests.ports import free_port

pytestmark = pytest.mark.deep


def test_perf(brokers: Brokers) -> None:
    master = brokers.master("a")
    url = f"failover:(stomp://127.0.0.1:{free_port()},stomp://127.0.0.1:{master.port})?randomize=false"
    words = ["--url", url, "--producers", 2, "--consumers", 2, "--count", 2000, "--size", 100]
    done = amq("perf", *words, "--json")
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["load"]["port"] == master.port, "the broker of the URL that serves"
    assert facts["result"]["messages"] == 2000
    assert facts["result"]["per_s"] > 0
    assert set(facts["result"]["confirm_us"]) == {"p50", "p99", "p99.9", "max"}
    assert "passcode" not in facts["load"]
    text = amq("perf", *words, "--non-persistent", "--window", 7).stdout
    assert "2,000 non-persistent messages of 100 bytes, window 7" in text
    assert "send to delivery" in text


def test_one_side_at_a_time(brokers: Brokers) -> None:
    words = ["--url", f"stomp://127.0.0.1:{brokers.master('a').port}", "--count", 300, "--destination", "/queue/p"]
    assert "1 producer, 300 persistent" in amq("perf", *words, "--mode", "send").stdout
    assert "1 consumer, 300 persistent" in amq("perf", *words, "--mode", "recv").stdout
    missing = amq("perf", *words, "--mode", "recv", "--timeout", 0.5)
    assert missing.returncode == 1
    assert "[LOAD_FAILED]" in one_line(missing)


def test_ctrl_c_leaves_neither_tracebacks_nor_messages(brokers: Brokers) -> None:
    """The terminal sends SIGINT to the whole group, workers too."""
    url = f"stomp://127.0.0.1:{brokers.master('a').port}"
    with running("perf", "--url", url, "--count", 10_000_000, "--consumers", 2, new_group=True) as process:
        deadline = time.monotonic() + DEADLINE_S
        while not waiting(url):
            assert time.monotonic() < deadline, "the run has not begun"
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, said) == (130, b"")
    assert not waiting(url)


def waiting(url: str) -> bool:
    """Does a queue that `amq perf` made up hold a message?"""
    with (
        client.connect(url) as connection,
        connection.session() as session,
        session.browser("/queue/amq.perf.>", prefetch=1) as browser,
    ):
        return browser.receive(DEADLINE_S) is not None


def test_a_broker_that_takes_nothing_any_more() -> None:
    """It stopped reading, as at memoryLimit, or pauses: --timeout says for how long that is borne."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            kept = []
            with suppress(OSError):  # the listening socket was shut down: the end of the test
                while True:
                    sock, _ = server.accept()
                    kept.append(sock)
                    sock.recv(4096)
                    sock.sendall(b"CONNECTED\nversion:1.2\n\n\0")
            for sock in kept:
                sock.close()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            url = f"stomp://127.0.0.1:{server.getsockname()[1]}"
            words = ["--mode", "send", "--count", 256, "--window", 256, "--size", 1 << 17, "--timeout", 5]
            done = amq("perf", "--url", url, *words)
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()
    assert done.returncode == 1
    assert "the broker takes nothing for 5.0 s, 0 of 0 confirmed [LOAD_FAILED]" in one_line(done)


@pytest.mark.parametrize(
    ("size", "slots", "held"), [(1024, 256, 256), (1 << 20, 256, 63), (100 << 20, 256, 1), (1024, 10_000, 10_000)]
)
def test_large_messages_are_not_kept_ready_by_the_hundred(size: int, slots: int, held: int) -> None:
    ring, frame_bytes, head_at = load._ring(load.Load(1, size_bytes=size), slots)
    assert re.findall(rb"receipt:(\d+)\n", ring) == [b"%08d" % number for number in range(held)]
    assert len(ring) == held * frame_bytes
    assert ring[head_at - 2 : frame_bytes] == b"\n\n" + b"x" * size + b"\0"


@pytest.mark.parametrize("seconds", ["0", "-1"])
def test_a_timeout_that_is_none(seconds: str) -> None:
    done = amq("perf", "--timeout", seconds)
    assert (done.returncode, "--timeout" in done.stderr) == (2, True)


def test_a_login_that_is_refused(brokers: Brokers, tmp_path: Path) -> None:
    users = tmp_path / "users"
    assert amq("user", "add", "alice", "--users", users, "--password-stdin", data=b"secret\n").returncode == 0
    master = brokers.master("a", usersFile=users, anonymous="no")
    done = amq("perf", "--url", f"stomp://127.0.0.1:{master.port}")
    assert (done.returncode, "login required" in one_line(done)) == (7, True)


def test_nobody_serves() -> None:
    done = amq("perf", "--url", f"stomp://127.0.0.1:{free_port()}")
    assert done.returncode == 6
    assert "no broker serves clients" in one_line(done)
