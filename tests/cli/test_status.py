"""`amq status` of real stores and real brokers."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from amq_process import amq, amq_json, one_line
from brokers import Brokers
from traffic import send

from amq.cli.output import duration_text, size_text, wall_text
from amq.cli.status import ask
from amq.client.uri import BrokerUri
from amq.doors.clock import SystemClock
from amq.store.files.board import FileBoard
from amq.store.files.vfs import SystemVfs
from amq.store.host import Owner, SystemHost
from amq.store.locker import Locker
from amq.store.open import store_behind
from amq.store.presence import Presence
from tests.patience import DEADLINE_S
from tests.ports import free_port

pytestmark = pytest.mark.deep


def test_a_store_over_a_kill_and_a_clean_stop(brokers: Brokers) -> None:
    master = brokers.master("a")
    slave = brokers.slave("b")
    facts = amq_json("status", "--store", brokers.store)
    assert facts["master"] == {
        "name": "a",
        "host": socket.gethostname(),
        "pid": master.pid,
        "urls": [f"stomp://127.0.0.1:{master.port}"],
        "addresses": [f"stomp://127.0.0.1:{master.port}"],
        "priority": 0,
        "certificate": None,
        "console": None,
    }
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
    assert "no broker would take over" in amq("status", "--store", brokers.store).stdout

    slave.stop()
    done = amq("status", "--store", brokers.store, "--json")
    assert done.returncode == 1, "there is no master"
    last = json.loads(done.stdout)
    assert (last["master"], last["lock"], last["released"]) == (None, "free", True)
    assert "b handed the store over" in amq("status", "--store", brokers.store).stdout


def test_a_broker_that_died_is_shown(brokers: Brokers) -> None:
    master, slave = brokers.master("a"), brokers.slave("b")
    slave.kill()
    facts = amq_json("status", "--store", master.store)
    (gone,) = facts["not_running"]
    assert (gone["name"], facts["slaves"]) == ("b", [])
    assert "gone     b (host" in amq("status", "--store", master.store).stdout
    slave.start().wait_slave()
    assert amq_json("status", "--store", master.store)["not_running"] == []


def test_how_far_a_slave_has_followed(brokers: Brokers) -> None:
    master = brokers.master("a", slaveFollowInterval="50ms")
    slave = brokers.slave("b", slaveFollowInterval="50ms")
    with master.connect() as connection:
        for _ in range(7):
            send(connection, b"x")

    def seen() -> dict[str, Any] | None:
        (found,) = amq_json("status", "--store", brokers.store)["slaves"]
        assert found["name"] == "b"
        counted = (found["followed"] or {}).get("messages") == 6  # the last batch counts when another is begun
        return found if counted and found["lag_s"] is not None else None

    deadline = time.monotonic() + DEADLINE_S
    while (found := seen()) is None:
        assert time.monotonic() < deadline, "it never followed"
    assert 0 <= found["lag_s"] < DEADLINE_S
    assert ".seg:" in found["followed"]["place"]
    text = amq("status", "--store", brokers.store).stdout
    assert re.search(rf"slaves   b \(host .*, pid {slave.pid}\), up to date .* s ago, 6 messages", text), text


def test_a_broker_that_reads_the_journal_is_no_master_yet(tmp_path: Path) -> None:
    vfs = SystemVfs()
    host = SystemHost()
    owner = Owner.make(host, name="a", uuid="u", transport_urls=("stomp://a:1",), lock_keep_alive_period_s=600.0)
    locker = Locker(store_behind(vfs, str(tmp_path)), SystemClock(), host, owner)
    (tmp_path / "journal").mkdir()
    with closing(Presence.open(FileBoard(vfs, str(tmp_path)), owner)) as presence:
        assert locker.try_acquire()
        assert locker.take_over(lambda _s: False, lambda _previous: {}) is not None
        assert _status(tmp_path, 1)["state"] == "taking over"
        reading = {"read_bytes": 43 << 27, "of_bytes": 100 << 27, "messages": 5, "left_s": 12.3}
        presence.tell(lambda: {"reading": reading}, 0.0)
        facts = _status(tmp_path, 1)
        assert (facts["state"], facts["master"], facts["slaves"]) == ("loading", None, [])
        assert (facts["successor"]["name"], facts["successor"]["reading"]) == ("a", reading)
        text = amq("status", "--store", tmp_path).stdout
        assert f"none yet: a (host {host.name()}, pid " in text
        assert "takes over: reads the journal, 43 % (5.4 GiB of 12.5 GiB), about 12 s left" in text
        presence.tell(lambda: {"reading": {"from": "another version"}}, 10.0)
        assert _status(tmp_path, 1)["state"] == "taking over"
        presence.update("master")
        assert _status(tmp_path, 0)["state"] == "serving"
    locker.release()
    assert _status(tmp_path, 1)["state"] == "none"


def test_a_broker_whose_options_differ_and_whose_port_is_taken(brokers: Brokers) -> None:
    brokers.master("a", maximumRedeliveries=3)
    with socket.create_server(("127.0.0.1", 0)) as server:
        slave = brokers.add("b")
        slave.port = server.getsockname()[1]
        slave.start().wait_event("options differ")
        slave.wait_event("this broker could not serve")
        slave.wait_slave()

        def told() -> dict[str, Any]:
            facts: dict[str, Any] = amq_json("status", "--store", brokers.store)
            return facts

        deadline = time.monotonic() + DEADLINE_S
        while not (facts := told())["slaves"] or not facts["slaves"][0]["cannot_listen"]:
            assert time.monotonic() < deadline
        assert "already in use" in facts["slaves"][0]["cannot_listen"]
        (differ,) = facts["options_differ"]
        assert (differ["broker"], differ["options"]) == ("b", {"maximumRedeliveries": ["6", "3"]})
        text = amq("status", "--store", brokers.store).stdout
        assert "could not serve clients: cannot listen on" in text
        assert "no slave could serve clients" in text
        assert "options  differ: maximumRedeliveries is 6 on b and 3 on a" in text


def test_the_port_that_the_kernel_chose_and_the_store_of_the_environment(brokers: Brokers) -> None:
    master = brokers.add("a")
    master.port = 0
    master.start().wait_serving()
    environment = {"AMQ_STORE": str(brokers.store)}
    facts = json.loads(amq("status", "--json", env=environment).stdout)
    (url,) = facts["master"]["urls"]
    assert not url.endswith(":0")
    asked = amq("status", "--url", url, "--json", env=environment)
    assert (asked.returncode, json.loads(asked.stdout)["brokers"][0]["broker"]) == (0, "a")


def test_the_addresses_that_brokers_advertise(brokers: Brokers) -> None:
    master = brokers.master("a", advertisedTransports="stomp://one.example.com:7001")
    slave = brokers.slave("b")
    facts = _status(brokers.store, 0)
    assert facts["master"]["addresses"] == ["stomp://one.example.com:7001"]
    assert facts["master"]["urls"] == [f"stomp://127.0.0.1:{master.port}"]
    assert facts["slaves"][0]["addresses"] == [f"stomp://127.0.0.1:{slave.port}"]
    text = amq("status", "--store", brokers.store).stdout
    assert f"serves   stomp://127.0.0.1:{master.port}\n         clients reach it at stomp://one" in text
    master.stop()
    slave.wait_serving()
    assert "clients reach it at" not in amq("status", "--store", brokers.store).stdout


def test_where_the_consoles_are(tmp_path: Path) -> None:
    """Anybody who writes to the store could have put a URL there: only that of a web server is shown."""
    vfs, host = SystemVfs(), SystemHost()
    (tmp_path / "journal").mkdir()
    said = {"a": "https://a.example:8161", "b": "http://127.0.0.1:8161", "c": "javascript:alert(1)"}
    said["d"] = said["b"]
    with ExitStack() as running:
        for name, url in said.items():
            owner = Owner.make(
                host, name=name, uuid=name, transport_urls=("stomp://a:1",), lock_keep_alive_period_s=600.0
            )
            if name == "a":
                locker = Locker(store_behind(vfs, str(tmp_path)), SystemClock(), host, owner)
                assert locker.try_acquire()
                assert locker.take_over(lambda _s: False, lambda _previous: {}) is not None
                running.callback(locker.release)
            role = "master" if name == "a" else "slave"
            presence = Presence.open(FileBoard(vfs, str(tmp_path)), owner, role, {"console": url})
            running.enter_context(closing(presence))
        facts = amq_json("status", "--store", tmp_path)
        assert facts["master"]["console"] == said["a"]
        assert [slave["console"] for slave in facts["slaves"]] == [said["b"], None, said["b"]]
        text = amq("status", "--store", tmp_path).stdout
        lines = f"consoles {said['a']} (a)\n         {said['b']} (b, d, on host {host.name()} only)\n"
        assert lines in text
        assert "javascript" not in text


def _status(store: Path, code: int) -> dict[str, Any]:
    done = amq("status", "--store", store, "--json")
    assert done.returncode == code
    found: dict[str, Any] = json.loads(done.stdout)
    return found


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
    assert "no program listens" in text


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
    assert amq("status", "--url", url, env={"AMQ_LOGIN": "alice", "AMQ_PASSCODE": "secret"}).returncode == 0


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


def test_a_host_name_that_cannot_be_one() -> None:
    facts = ask(BrokerUri("a..b"), "", "")
    assert (facts["state"], "label empty or too long" in facts["reason"]) == ("unreachable", True)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--store", "/nonexistent"], 4, "No such file or directory"),
        (["--store", "."], 4, "is not a store"),
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
        "0 B",
        "1023 B",
        "1.5 KiB",
        "3.0 MiB",
        "5.0 GiB",
    ]
    assert [duration_text(seconds) for seconds in (0.25, 12, 75, 3600, 93784)] == [
        "0.250 s",
        "12 s",
        "1 min 15 s",
        "1 h",
        "1 d 2 h",
    ]
    assert wall_text(1_700_000_000_000) == "2023-11-14 22:13:20 UTC"
    assert wall_text(1_700_000_000_000 + 2**63 - 1) == "after the year 9999", "as good as for ever, to who asked for it"
