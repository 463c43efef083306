"""The console of a cluster: REST, metrics and pages about all its stores."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from amq.console.app import Console
from amq.console.whole import ClusterLink
from amq.doors.clock import SystemClock
from tests.cluster.served import ServedCluster, served_cluster
from tests.console.test_console_metrics import promtool, samples

AS = httpx.BasicAuth("alice", "a")
Story = Callable[[httpx.AsyncClient], Coroutine[Any, Any, None]]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedCluster]:
    folder = tmp_path_factory.mktemp("c")
    rights = folder / "permissions.toml"
    entries = "".join(f'{right} = ["*"]\n' for right in ("browse", "admin", "write"))
    rights.write_text(f'[roles]\noperators = ["root"]\n[queues.">"]\n{entries}[broker]\nmanage = ["operators"]\n')
    with served_cluster(folder, stores=3, served=2, permissions_file=str(rights)) as made:
        for store in made.names:
            made.fill(made.queue_in(store), 2)
        yield made


def play(served: ServedCluster, story: Story) -> None:
    async def main() -> None:
        clock = SystemClock()
        app = Console(ClusterLink(served.directory, "a", clock), clock).app()
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=None) as client:
            await story(client)

    asyncio.run(main())


async def logged_in(client: httpx.AsyncClient) -> None:
    answer = await client.post("/login", data={"login": "", "passcode": "", "to": "/"})
    assert answer.status_code == 303, answer.text


def test_rest_is_about_the_whole_cluster(served: ServedCluster) -> None:
    async def story(client: httpx.AsyncClient) -> None:
        page = (await client.get("/api/v1/queues")).json()
        assert {(row["name"], row["store"]) for row in page["items"]} == {
            (served.queue_in(store), store) for store in served.names
        }
        assert [each["store"] for each in page["missing"]] == ["s3"]
        name = served.queue_in("s2")
        for path in f"/api/v1/queues/{name}", f"/api/v1/stores/s2/queues/{name}":
            assert (await client.get(path)).json()["messages"] == 2
        assert (await client.get(f"/api/v1/stores/s1/queues/{name}")).status_code == 404
        rows = (await client.get("/api/v1/stores")).json()["items"]
        assert [(row["name"], row["node"], row["healthy"]) for row in rows] == [
            ("s1", "a", True),
            ("s2", "a", True),
            ("s3", "", False),
        ]
        answer = await client.post(f"/api/v1/queues/{name}/purge", json={"limit": 1})
        assert answer.json() == {"count": 1, "store": "s2", "node": "a"}
        served.fill(name, 1)
        answer = await client.get(f"/api/v1/queues/{served.queue_in('s3')}")
        assert (answer.status_code, answer.json()["code"]) == (503, "TRANSPORT_UNAVAILABLE")
        answer = await client.get("/api/v1/connections")
        assert (answer.status_code, answer.json()["code"]) == (403, "NOT_PERMITTED")
        for path in "/api/v1/login", "/api/v1/stores/s1/login":
            answer = await client.post(path, json={"login": "root", "passcode": "r"})
            assert (answer.status_code, answer.json()["code"]) == (403, "NOT_PERMITTED")
        assert "/api/v1/queues" in (await client.get("/api/v1/openapi.json")).json()["paths"]
        assert (await client.get("/livez")).status_code == (await client.get("/readyz")).status_code == 200

    play(served, story)


def test_metrics_have_stores_and_nodes(served: ServedCluster) -> None:
    async def story(client: httpx.AsyncClient) -> None:
        text = (await client.get("/metrics")).text
        for line in (
            "amq_cluster_readable 1",
            'amq_group_has_master{store="s1"} 1',
            'amq_group_has_master{store="s3"} 0',
            'amq_alarm{code="STORE_WITHOUT_MASTER",store="s3",node=""} 1',
        ):
            assert line in text.split("\n")
        seat = served.cluster.join("a", 1.0, "host", 1)
        try:
            text = (await client.get("/metrics")).text
            assert 'amq_messages{store="s1",node="a"} 2' in text.split("\n")
            assert 'amq_node_up{node="a"} 1' in text.split("\n")
            found = samples(text)
            both = {(("node", "a"), ("store", store)) for store in ("s1", "s2")}
            for name in "amq_takeover_seconds_count", "amq_journal_sync_seconds_sum", "amq_loop_lag_seconds_count":
                assert found[name].keys() == both
            in_s1 = (("node", "a"), ("store", "s1"))
            assert found["amq_takeover_seconds_count"][in_s1] == 1
            assert found["amq_takeover_seconds_bucket"][("le", "+Inf"), *in_s1] == 1
            checked = promtool("check", "metrics", data=text)
            assert (checked.returncode, checked.stderr) == (0, "")
            text = (await client.get("/metrics/per-object")).text
            name = served.queue_in("s1")
            assert f'amq_queue_messages{{destination="{name}",store="s1",node="a"}} 2' in text.split("\n")
        finally:
            seat.close()

    play(served, story)


def test_pages_show_stores_nodes_and_queues(served: ServedCluster) -> None:
    async def story(client: httpx.AsyncClient) -> None:
        await logged_in(client)
        page = (await client.get("/")).text
        for text in "No node serves store s3", "STORE_WITHOUT_MASTER", "Should be", "Restarts":
            assert text in page
        assert "hx-get" in (await client.get("/?part=1")).text
        name = served.queue_in("s1")
        page = (await client.get("/queues")).text
        assert f'href="/stores/s1/queue/{name}"' in page
        assert "store s3: store s3: no node has served it yet" not in page
        assert "no node has served it yet" in page
        only = (await client.get("/queues?store=s2")).text
        assert f"/stores/s1/queue/{name}" not in only
        page = (await client.get(f"/stores/s1/queue/{name}")).text
        assert f"{name} 0" in page
        assert "--cluster" in page
        csrf = re.search(r'name="csrf" value="([^"]+)"', page)
        assert csrf is not None
        form = {"csrf": csrf[1], "do": "send", "body": "by the page"}
        answer = await client.post(f"/stores/s1/queue/{name}", data=form)
        assert (answer.status_code, answer.headers["location"]) == (303, f"/stores/s1/queue/{name}")
        page = (await client.get(f"/stores/s1/queue/{name}")).text
        assert "by the page" in page
        (id,) = set(re.findall(rf'href="/stores/s1/queue/{name}/([^"]+)"[^>]*>[^<]*</a>', page)[-1:])
        assert "by the page" in (await client.get(f"/stores/s1/queue/{name}/{id}")).text
        assert name in (await client.get(f"/search?text={name}")).text

    play(served, story)


def test_a_cluster_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    with served_cluster(tmp_path, stores=1) as served:

        async def story(client: httpx.AsyncClient) -> None:
            (Path(served.directory) / "tables").rename(tmp_path / "away")
            assert "amq_cluster_readable 0" in (await client.get("/metrics")).text
            (tmp_path / "away").rename(Path(served.directory) / "tables")

        play(served, story)
