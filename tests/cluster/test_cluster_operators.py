"""The commands of operators with --cluster: all stores at once, and each change at its home."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from amq.cli import exits
from amq.cli.main import main
from amq.cluster.directory import ClusterNode, node_document
from tests.cluster.served import ServedCluster, served_cluster

SPREAD = "clicks"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedCluster]:
    with served_cluster(tmp_path_factory.mktemp("c"), spread=SPREAD, maximum_redeliveries=0) as made:
        for store in made.names:
            made.fill(made.queue_in(store), 2)
            made.fill(SPREAD, 1, store)
        yield made


def run(served: ServedCluster, *words: object, code: int = 0, env: dict[str, str] | None = None) -> Result:
    given = [] if env is not None else ["--cluster", served.directory]
    done = CliRunner().invoke(main, [*map(str, words), *given], env=env)
    assert done.exit_code == code, (words, done.output, done.stderr)
    return done


def found(served: ServedCluster, *words: object, **how: Any) -> Any:
    return json.loads(run(served, *words, "--json", **how).stdout)


def test_lists_have_stores_and_nodes(served: ServedCluster) -> None:
    rows = found(served, "queues", "q*")
    assert {(row["name"], row["store"], row["node"]) for row in rows} == {
        (served.queue_in(store), store, "a") for store in served.names
    }
    head = run(served, "queues").stdout.split("\n")[0].split()
    assert head[:3] == ["NAME", "STORE", "NODE"]
    assert len(found(served, "queues", "--limit", 2)) == 2
    assert "these are the first 2" in run(served, "queues", "--limit", 2).stderr
    for words in ("topics",), ("consumers",), ("connections", "list"), ("subscriptions", "list"), ("dlq", "causes"):
        assert isinstance(found(served, *words), list)


def test_which_option_counts(served: ServedCluster) -> None:
    of_s1 = [served.queue_in("s1"), SPREAD]
    both = {"AMQ_CLUSTER": served.directory, "AMQ_STORE": served.cluster.location("s1")}
    assert sorted(row["name"] for row in found(served, "queues", "--store", "s1")) == sorted(of_s1)
    assert sorted(row["name"] for row in found(served, "queues", env=both)) == sorted(of_s1)
    assert len(found(served, "queues", env={"AMQ_CLUSTER": served.directory})) == 6
    assert len(found(served, "queues", "--cluster", served.directory, env={"AMQ_STORE": both["AMQ_STORE"]})) == 6
    assert "no store 's9'" in run(served, "queues", "--store", "s9", code=exits.CONFIG).stderr
    run(served, "queues", "--url", "http://localhost:1", code=exits.USAGE)
    run(served, "queues", "--name", "a", code=exits.USAGE)


def test_changes_find_their_home(served: ServedCluster) -> None:
    for store in served.names:
        name = served.queue_in(store)
        assert found(served, "queue", "pause", name)["store"] == store
        assert found(served, "queue", "show", name)["paused"] is True
        assert found(served, "queue", "resume", name)["paused"] is False
        (first, _) = found(served, "queue", "browse", name)
        assert found(served, "message", "show", first["id"])["body"] == f"{name} 0"
        other = served.queue_in("s2" if store == "s1" else "s1")
        assert "[MOVED]" in run(served, "queue", "copy", name, other, code=exits.REFUSED).stderr
        assert found(served, "message", "delete", first["id"], "--yes")["queue"] == name
        assert run(served, "queue", "purge", name, "--yes").stdout == "1 message deleted\n"
        served.fill(name, 2)
    assert run(served, "queue", "show", "nothing", code=exits.FAILED).stderr.endswith("[NOT_FOUND]\n")


def test_a_spread_queue_is_changed_everywhere(served: ServedCluster) -> None:
    assert len(found(served, "queue", "browse", SPREAD)) == 3
    assert found(served, "queue", "show", SPREAD)["messages"] == 3
    assert run(served, "queue", "purge", SPREAD, "--limit", 2, "--yes").stdout == "2 messages deleted\n"
    assert run(served, "queue", "purge", SPREAD, "--yes").stdout == "1 message deleted\n"
    for store in served.names:
        served.fill(SPREAD, 1, store)


def test_dead_letters_go_back_in_each_store(served: ServedCluster) -> None:
    import amq
    from tests.patience import DEADLINE_S

    names = [f"work.{number}" for number in range(8)]
    for name in names:
        served.fill(name, 1)
        with amq.connect(served.url(served.home(name))) as connection, connection.session() as session:
            message = session.consumer(f"/queue/{name}").receive(DEADLINE_S)
            assert message is not None
            message.nack(wait=True)
    letters = found(served, "dlq", "list")
    assert {row["original_destination"] for row in letters} == set(names)
    assert sum(row["messages"] for row in found(served, "dlq", "causes")) == 8
    assert run(served, "dlq", "retry").exit_code == 0
    assert sum(row["messages"] for row in found(served, "queues", "work.*")) == 8


def test_status_and_top(served: ServedCluster) -> None:
    status = found(served, "status")
    assert [(each["store"], each["node"], each["error"]) for each in status["stores"]] == [
        (store, "a", None) for store in served.names
    ]
    assert status == found(served, "cluster", "status") | {"alarms": status["alarms"]}
    assert json.loads(run(served, "status", "--store", "s2", "--json").stdout)["master"]["name"] == "a"
    seen = found(served, "top", "--rounds", 1)
    assert [(each["store"], each["node"], each["error"]) for each in seen["stores"]] == [
        (store, "a", "") for store in served.names
    ]
    assert {row["store"] for row in seen["queues"]} == set(served.names)
    text = run(served, "top", "--rounds", 1).stdout
    assert "STORE" in text
    assert "serves" in text


def test_a_store_that_is_gone_has_the_reason_in_its_row(tmp_path: Path) -> None:
    with served_cluster(tmp_path, stores=3, served=2) as served:
        served.fill(served.queue_in("s1"), 1)
        rows = found(served, "queues", code=exits.TRANSPORT)
        assert [row["store"] for row in rows] == ["s1", "s3"]
        assert "no node has served it yet" in rows[1]["detail"]
        done = run(served, "queues", code=exits.TRANSPORT)
        assert "(no node has served it yet" in done.stdout
        assert "store s3 is not in this answer" in done.stderr
        assert "[STORES_MISSING]" in done.stderr
        seen = found(served, "top", "--rounds", 1)
        assert [bool(each["error"]) for each in seen["stores"]] == [False, False, True]
        status = found(served, "status", code=exits.FAILED)
        assert [alarm["code"] for alarm in status["alarms"]] == ["STORE_WITHOUT_MASTER"]
        assert "alarm: no node serves store s3" in run(served, "status", code=exits.FAILED).stdout


def test_the_doctor_looks_at_a_cluster(served: ServedCluster, tmp_path: Path) -> None:
    def levels(code: int) -> dict[str, str]:
        return {each["topic"]: each["level"] for each in found(served, "doctor", code=code)["findings"]}

    assert levels(0) | {"directory": "ok", "secret": "ok", "balance": "ok"} == levels(0)
    secret = Path(served.directory) / "secret"
    secret.chmod(0o644)
    assert levels(exits.STORE)["secret"] == "unfit"
    secret.chmod(0o600)
    for name in "xy":
        seat = served.cluster.join(name, 1.0, "host-x", 1)
        port = 61616 if name == "x" else 61618
        addresses = (f"stomp://host-x:{port}",)
        seat.write(node_document(ClusterNode(name, True, host="host-x", addresses=addresses)))
        seat.close()
    done = run(served, "doctor", code=0)
    assert "nodes x and y, ports" in done.stdout
    assert "61618 would be a port of both" in done.stdout
    assert "NODE_ABSENT" in done.stdout
    assert "fit with warnings" in done.stdout
    for name in "xy":
        served.cluster.forget(name)
    with served_cluster(tmp_path, stores=2, served=1) as other:
        assert "STORE_WITHOUT_MASTER" in run(other, "doctor", code=exits.STORE).stdout
