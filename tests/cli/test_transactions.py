"""`amq transactions` against real brokers, also on the next master."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from amq_process import amq, on_terminal
from brokers import Broker, Brokers

import amq as client

pytestmark = pytest.mark.deep


def url_of(*brokers: Broker) -> str:
    return f"failover:({','.join(f'stomp://127.0.0.1:{broker.port}' for broker in brokers)})"


def prepare(url: str, *xids: str, **options: Any) -> None:
    with client.connect(url) as connection:
        session = connection.session(transacted=True)
        for xid in xids:
            session.producer("/queue/a").send(xid)
            session.prepare(xid, **options)


def run(url: str, *words: object) -> Any:
    done = amq("transactions", *words, "--url", url, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def contents(url: str) -> list[str]:
    with client.connect(url) as connection:
        return [message.text for message in connection.session().browser("/queue/a")]


def test_heuristics_on_the_next_master(brokers: Brokers) -> None:
    master, slave = brokers.master("a"), brokers.slave("b")
    url = url_of(master, slave)
    prepare(url, "x1", "x2", "x3", prepared_timeout=0)
    prepare(url, "q/1", owner="q", batch=7)
    master.kill()
    rows = run(url, "list")
    assert [row["xid"] for row in rows] == ["x1", "x2", "x3", "q/1"]
    assert (rows[0]["sends"], rows[0]["timeout_ms"], rows[3]["batch"]) == ({"/queue/a": 1}, 0, 7)
    assert [row["xid"] for row in run(url, "list", "--owner", "q")] == ["q/1"]
    table = amq("transactions", "list", "--url", url).stdout
    assert "for ever" in table
    assert "1 /queue/a" in table
    for _ in range(2):
        assert run(url, "commit", "x3", "x1")["xids"] == ["x3", "x1"]
        assert run(url, "rollback", "x2")["outcome"] == "rolled back"
    assert contents(url) == ["x1", "x3"]
    assert [row["xid"] for row in run(url, "list")] == ["q/1"]


def test_what_is_prepared_moves_with_its_store(brokers: Brokers, tmp_path: Path) -> None:
    master = brokers.master("a")
    prepare(url_of(master), "x1", "x2", prepared_timeout=0)
    prepare(url_of(master), "q/1", owner="q", batch=7)
    prepare(url_of(master), "xa:-1:00ff:", prepared_timeout=0)
    assert master.stop() == 0
    with Brokers(tmp_path, tmp_path / "moved") as others:
        file = tmp_path / "amq.jsonl"
        done = amq("journal", "export", "--store", brokers.store, "--output", file)
        assert done.returncode == 0, done.stderr
        for text in (
            "4 messages stored, 0 were there already, 0 ids remembered, 4 transactions prepared\n",
            "0 messages stored, 4 were there already, 0 ids remembered\n",
        ):
            assert amq("journal", "import", "--store", others.store, file).stdout == text
        url = url_of(others.master("b"))
        assert [(row["xid"], row["owner"], row["batch"]) for row in run(url, "list")] == [
            ("x1", "", 0),
            ("x2", "", 0),
            ("q/1", "q", 7),
            ("xa:-1:00ff:", "", 0),
        ]
        run(url, "commit", "x1")
        run(url, "rollback", "x2")
        run(url, "commit", "xa:-1:00ff:")
        with client.connect(url) as connection:
            assert connection.commit_batch("q", 7, ["q/1"]) == "committed"
        assert contents(url) == ["x1", "q/1", "xa:-1:00ff:"]
        assert run(url, "list") == []


def test_what_cannot_be_done(brokers: Brokers) -> None:
    url = url_of(brokers.master("a"))
    prepare(url, "x1", "x2")
    done = amq("transactions", "commit", "x1", "nobody", "x2", "--url", url, "--json")
    assert done.returncode != 0
    assert json.loads(done.stdout)["xids"] == ["x1"]
    assert "UNKNOWN_TRANSACTION" in done.stderr
    done = amq("transactions", "rollback", "x1", "--url", url)
    assert done.returncode != 0
    assert "XID_COMMITTED" in done.stderr
    assert contents(url) == ["x1"]
    assert amq("transactions", "commit", "--url", url).returncode == 2


def test_what_an_owner_left_is_rolled_back(brokers: Brokers) -> None:
    url = url_of(brokers.master("a"))
    prepare(url, *(f"q/7/{part}" for part in range(3)), owner="q", batch=7)
    prepare(url, "q/8/0", owner="q", batch=8)
    prepare(url, "other", owner="other", batch=8)
    done = amq("transactions", "rollback", "--owner", "q", "--url", url)
    assert (done.returncode, "use --yes" in done.stderr) == (2, True)
    assert amq("transactions", "rollback", "--url", url).returncode == 2
    assert amq("transactions", "rollback", "x", "--owner", "q", "--url", url).returncode == 2
    shown = on_terminal("transactions", "rollback", "--owner", "q", "--url", url, typed="n\n")
    assert "q/7/0: batch 7, prepared " in shown
    assert "Deleted: 4 /queue/a. Delivered again: nothing." in shown
    assert "Roll back these 4 transactions of q?" in shown
    assert len(run(url, "list")) == 5
    found = run(url, "rollback", "--owner", "q", "--yes")
    assert (found["xids"], found["rolled_back"]) == (["q/7/0", "q/7/1", "q/7/2", "q/8/0"], 4)
    assert [row["xid"] for row in run(url, "list")] == ["other"]
    done = amq("transactions", "rollback", "--owner", "q", "--yes", "--url", url)
    assert done.stdout == "0 of 0 transactions of q rolled back\n"
