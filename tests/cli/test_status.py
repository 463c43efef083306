"""`amq status` of real stores and real brokers."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path

import pytest
from amq_process import amq, amq_json, one_line
from brokers import Brokers, free_port

from amq.cli.output import duration_text, size_text, wall_text
from amq.cli.status import ask
from amq.client.uri import BrokerUri

pytestmark = pytest.mark.slow


def test_a_store_over_a_kill_and_a_clean_stop(brokers: Brokers) -> None:
    master = brokers.master("a")
    slave = brokers.slave("b")
    facts = amq_json("status", "--store", brokers.store)
    assert facts["master"] == {
        "name": "a", "host": socket.gethostname(), "pid": master.pid, "urls": [f"stomp://127.0.0.1:{master.port}"],
    }  # fmt: skip
    assert [broker["name"] for broker in facts["slaves"]] == ["b"]
    assert (facts["lock"], facts["epoch"], facts["released"]) == ("held", 1, False)
    assert facts["since"].endswith("Z")
    assert facts["journal"]["segments"] >= 1
    assert facts["free_bytes"] > 0
    text = amq("status", "--store", brokers.store).stdout
    assert f"master   a (host {socket.gethostname()}, pid {master.pid})" in text
    assert "slaves   b " in text

    master.kill()
    slave.wait_serving()
    after = amq_json("status", "--store", brokers.store)
    assert (after["master"]["name"], after["epoch"], after["slaves"]) == ("b", 2, [])
    assert "nobody would take over" in amq("status", "--store", brokers.store).stdout

    slave.stop()
    done = amq("status", "--store", brokers.store, "--json")
    assert done.returncode == 1, "there is no master"
    last = json.loads(done.stdout)
    assert (last["master"], last["lock"], last["released"]) == (None, "free", True)
    assert "b handed the store over" in amq("status", "--store", brokers.store).stdout


def test_the_brokers_of_a_url(brokers: Brokers) -> None:
    master = brokers.master("a")
    slave = brokers.slave("b")
    url = f"failover:(stomp://127.0.0.1:{slave.port},stomp://127.0.0.1:{master.port})?randomize=false"
    refused, serving = amq_json("status", "--url", url)["brokers"]
    assert (refused["state"], refused["url"]) == ("refused", f"stomp://127.0.0.1:{slave.port}")
    assert (serving["state"], serving["broker"], serving["epoch"]) == ("serving", "a", 1)
    assert serving["server"].startswith("amq/")
    text = amq("status", "--url", url).stdout
    assert "serving  a" in text
    assert "nobody listens" in text


def test_nobody_serves() -> None:
    done = amq("status", "--url", f"stomp://127.0.0.1:{free_port()}")
    assert done.returncode == 1
    assert "refused" in done.stdout


def test_a_login_that_is_refused(brokers: Brokers, tmp_path: Path) -> None:
    users = tmp_path / "users"
    assert amq("user", "add", "alice", "--users", users, "--password-stdin", data=b"secret\n").returncode == 0
    master = brokers.master("a", usersFile=users, anonymous="no")
    url = f"stomp://127.0.0.1:{master.port}"
    rejected = amq("status", "--url", url, "--json")
    assert json.loads(rejected.stdout)["brokers"][0]["state"] == "rejected"
    assert rejected.returncode == 1
    assert amq("status", "--url", url, "--login", "alice", "--passcode", "secret").returncode == 0


@pytest.mark.parametrize(
    ("answer", "state"),
    [
        (b"CONNECTED\nversion:1.2\nserver:ActiveMQ/6\n\n\0", "serving"),
        (b"ERROR\nmessage:go away\n\n\0", "rejected"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "unreachable"),
        (b"", "unreachable"),
    ],
)
def test_other_peers(answer: bytes, state: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(answer)

        peer = threading.Thread(target=serve)
        peer.start()
        facts = ask(BrokerUri("127.0.0.1", server.getsockname()[1]), "", "")
        peer.join()
    assert facts["state"] == state
    assert (facts["broker"], facts["epoch"]) == ("", None)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--store", "/nonexistent"], 4, "No such file or directory"),
        (["--store", "."], 4, "is no store"),
        (["--url", "stomp//x"], 2, "no scheme"),
    ],
)
def test_errors(words: list[str], code: int, said: str) -> None:
    done = amq("status", *words)
    assert done.returncode == code
    assert said in one_line(done)


@pytest.mark.parametrize("words", [[], ["--store", ".", "--url", "stomp://x"]])
def test_one_of_store_and_url(words: list[str]) -> None:
    assert amq("status", *words).returncode == 2


def test_words_for_people() -> None:
    assert [size_text(size) for size in (0, 1023, 1536, 3 << 20, 5 << 30)] == [
        "0 B", "1023 B", "1.5 KiB", "3.0 MiB", "5.0 GiB",
    ]  # fmt: skip
    assert [duration_text(seconds) for seconds in (0.25, 12, 75, 3600, 93784)] == [
        "0.250 s", "12 s", "1 min 15 s", "1 h", "1 d 2 h",
    ]  # fmt: skip
    assert wall_text(1_700_000_000_000) == "2023-11-14 22:13:20 UTC"
