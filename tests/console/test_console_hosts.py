"""Hosts: a page of another site whose name resolves to this host reads nothing and changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from brokers import Brokers

from amq.console.app import HEADERS, Console
from amq.console.hosts import Hosts, host_of
from amq.console.link import Link
from amq.doors.clock import SystemClock
from tests.console.browsers import browser_page, console, send
from tests.console.consoles import client_of, with_console

PATHS = (
    "/",
    "/login",
    "/queues",
    "/queue/orders",
    "/figures.json",
    "/api/v1/queues",
    "/api/v1/broker",
    "/metrics",
    "/metrics/per-object",
    "/metrics/detailed?family=queue_messages",
    "/api/jolokia/read/org.apache.activemq:type=Broker,brokerName=a/BrokerName",
)
ANONYMOUS = ("Basic Og==", "Basic OnB3")  # ":" and ":pw"


@pytest.mark.parametrize(
    ("header", "host"),
    [
        ("localhost", "localhost"),
        ("LocalHost:8161", "localhost"),
        ("127.0.0.1:1", "127.0.0.1"),
        ("[::1]", "::1"),
        ("[::1]:8161", "::1"),
        ("evil.example:8161", "evil.example"),
        ("", ""),
        (":8161", ""),
        ("localhost:evil.example", "localhost:evil.example"),
        ("localhost@evil.example", "localhost@evil.example"),
        ("127.0.0.1.evil.example", "127.0.0.1.evil.example"),
        ("[::1].evil.example", "::1].evil.example"),
    ],
)
def test_the_host_of_a_header(header: str, host: str) -> None:
    assert host_of(header) == host
    known = host in ("localhost", "127.0.0.1", "::1")
    assert (host in Hosts()._names) == known


async def test_other_names_get_421_without_a_login(tmp_path: Path) -> None:
    async with with_console(tmp_path) as (_, client):
        for path in PATHS:
            for host in ("evil.example", "evil.example:8161", "localhost.evil.example", ""):
                answer = await client.get(path, headers={"host": host})
                assert answer.status_code == 421, (path, host)
                assert "orders" not in answer.text
            for host in ("localhost:8161", "127.0.0.1", "[::1]:8161"):
                assert (await client.get(path, headers={"host": host})).status_code not in (421, 500), (path, host)
        for login in ANONYMOUS:
            evil = {"host": "evil.example", "authorization": login}
            assert (await client.get("/api/v1/queues", headers=evil)).status_code in (401, 421)
        changes = {"host": "evil.example", "origin": "http://evil.example", "content-type": "application/json"}
        for path in ("/api/v1/queues/orders/purge", "/api/jolokia"):
            assert (await client.post(path, headers=changes, content=b"{}")).status_code == 421
        form = {"login": "", "passcode": ""}
        assert (await client.post("/login", headers={"host": "evil.example"}, data=form)).status_code == 421


async def test_a_login_or_https_is_enough_and_probes_need_neither(tmp_path: Path) -> None:
    async with with_console(tmp_path) as (_, client):
        evil = {"host": "evil.example"}
        alice = ("alice", "a")
        assert (await client.get("/api/v1/queues", headers=evil, auth=alice)).status_code == 200
        assert (await client.get("/metrics", headers=evil, auth=alice)).status_code == 200
        assert (await client.get("/metrics", headers=evil, auth=("alice", "wrong"))).status_code == 401
        for path in ("/livez", "/readyz", "/masterz"):
            assert (await client.get(path, headers={"host": "10.1.2.3:8161"})).status_code == 200
        assert (await client.get("https://evil.example/api/v1/queues")).status_code == 200
        form = {"login": "", "passcode": ""}
        assert (await client.post("/login", data=form)).status_code == 303
        assert (await client.get("/queues")).status_code == 200
        assert (await client.get("/queues", headers=evil)).status_code == 421, "a session without a password"
        assert (await client.post("/login", data={"login": "alice", "passcode": "a"})).status_code == 303
        assert (await client.get("/queues", headers=evil)).status_code == 200


async def test_further_names_of_a_console(tmp_path: Path) -> None:
    names = ("amq.example", "[fd00::1]")
    async with with_console(tmp_path) as (broker, _), client_of(broker.config.store, hosts=names) as client:
        for host, status in (("amq.example", 200), ("[fd00::1]:8161", 200), ("evil.example", 421)):
            assert (await client.get("/api/v1/queues", headers={"host": host})).status_code == status


async def test_every_answer_has_the_headers_of_safety(tmp_path: Path) -> None:
    async with with_console(tmp_path) as (broker, client):
        paths = (
            "/static/amq.css",
            "/static/amq.js",
            "/static/nothing",
            "/nothing",
            "/",
            "/login",
            "/livez",
            "/api/v1/queues",
            "/api/v1/nothing",
            "/static/../app.py",
            "/static",
        )
        for path in paths:
            answer = await client.get(path)
            assert answer.headers["x-content-type-options"] == "nosniff", path
            assert "default-src 'none'" in answer.headers["content-security-policy"], path
            assert answer.headers["referrer-policy"] == "same-origin", path
        assert (await client.put("/livez")).headers["x-content-type-options"] == "nosniff"
        assert "cache-control" not in (await client.get("/static/amq.css")).headers, "browsers may keep it"
        assert (await client.get("/")).headers["content-security-policy"] != HEADERS["Content-Security-Policy"]

        class Broken(Link):
            async def seen(self) -> Any:
                raise RuntimeError("a defect")

        clock = SystemClock()
        app = Console(Broken(broker.config.store, "", clock), clock).app()
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as other:
            answer = await other.get("/metrics")
        assert (answer.status_code, answer.headers["x-content-type-options"]) == (500, "nosniff")


@pytest.mark.deep
def test_a_browser_at_another_name_of_this_host_sees_nothing(brokers: Brokers) -> None:
    """As DNS rebinding does it: the browser is at evil.example, whose address is that of this console."""
    broker = brokers.master("a")
    send(broker, "orders", "a secret")
    arguments = ["--host-resolver-rules=MAP evil.example 127.0.0.1"]
    # The attacker's own page would have no policy that forbids its scripts.
    with console(broker) as url, browser_page(arguments=arguments, bypass_csp=True) as page:
        evil = url.replace("127.0.0.1", "evil.example")
        answer = page.goto(f"{evil}/livez")
        assert answer.status == 200, "the name leads to the console"
        read = """async (path) => { const answer = await fetch(path); return [answer.status, await answer.text()]; }"""
        for path in PATHS:
            status, text = page.evaluate(read, path)
            assert status == 421, path
            assert "secret" not in text
        purge = """async (path) => (await fetch(path, {method: "POST", body: "{}",
            headers: {"Content-Type": "application/json"}})).status"""
        assert page.evaluate(purge, "/api/v1/queues/orders/purge") == 421
        post = """async () => (await fetch("/login", {method: "POST",
            body: new URLSearchParams({login: ""})})).status"""
        assert page.evaluate(post) == 421
        page.goto(f"{url}/livez")
        status, text = page.evaluate(read, "/api/v1/queues/orders")
        assert (status, '"messages":1' in text.replace(" ", "")) == (200, True), "nothing is gone"
