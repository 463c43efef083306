"""REST, Jolokia's read path and probes of a console."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from amq.console.link import Link
from amq.console.logins import Logins
from amq.core.errors import AccessError
from amq.doors.clock import SystemClock
from amq.security.login import Claim, User
from amq.security.permissions import Permissions
from tests.console.consoles import USERS, by_password, client_of, with_console
from tests.management.managed import Managed

RULES = """
[roles]
shop = ["alice"]
operators = ["root"]
[queues."orders"]
read = ["shop"]
[queues.">"]
admin = ["operators"]
browse = ["operators"]
write = ["operators"]
[broker]
manage = ["operators"]
"""
AS = {name: httpx.BasicAuth(name, password) for name, password in USERS.items()}
QUEUE = "/api/jolokia/read/org.apache.activemq:type=Broker,brokerName=a,destinationType=Queue,destinationName="


def restrict(made: Managed, folder: Path) -> None:
    path = folder / "permissions.toml"
    path.write_text(RULES)
    made.broker.permit(Permissions.read(str(path)))


async def test_users_have_their_rights(tmp_path: Path) -> None:
    async with with_console(tmp_path) as (made, client):
        await made.fill("orders", 2)
        await made.fill("secret", 1)
        restrict(made, tmp_path)
        for name, expected in (("alice", ["orders"]), ("root", ["orders", "secret"]), ("eve", [])):
            rows = (await client.get("/api/v1/queues", auth=AS[name])).json()["items"]
            assert [row["name"] for row in rows] == expected
        purge = "/queues/orders/purge"
        for path in (f"/api/v1{purge}", f"/api/v1/stores/store{purge}", "/api/v1/login", "/api/v1/stores/store/login"):
            answer = await client.post(path, json={"login": "root", "passcode": "r"}, auth=AS["alice"])
            assert (answer.status_code, answer.json()["code"]) == (403, "NOT_PERMITTED"), path
        answer = await client.post("/api/v1/queues/orders/purge", json={}, auth=AS["root"])
        assert answer.json() == {"count": 2}
        answer = await client.get("/api/v1/queues", auth=httpx.BasicAuth("root", "wrong"))
        assert answer.status_code == 401
        assert answer.headers["www-authenticate"].startswith("Basic")
        assert answer.headers["content-type"] == "application/problem+json"
        assert (await client.get("/api/v1/queues", headers={"authorization": "Bearer x"})).status_code == 401
        forged = {"amq-user": "root"}
        assert (await client.delete("/api/v1/queues/secret", auth=AS["eve"], headers=forged)).status_code == 403


async def test_other_sites_change_nothing(tmp_path: Path) -> None:
    async with with_console(tmp_path) as (made, client):
        await made.fill("q", 1)
        purge = "/api/v1/queues/q/purge"
        for headers in ({"sec-fetch-site": "cross-site"}, {"origin": "http://evil.example"}):
            assert (await client.post(purge, json={}, headers=headers)).status_code == 403
        form = {"content-type": "application/x-www-form-urlencoded"}
        assert (await client.post(purge, content=b"{}", headers=form)).status_code == 415
        assert (
            await client.post(purge, content=b"[" * 99_999, headers={"content-type": "application/json"})
        ).status_code == 400
        assert (await made.ask("GET", "/queues/q"))["messages"] == 1
        answer = await client.post(purge, json={}, headers={"origin": "http://console"})
        assert answer.json() == {"count": 1}
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"


async def test_names_pass_unchanged(tmp_path: Path) -> None:
    hostile = "a/b?c=d#e%2f<script> ü"
    async with with_console(tmp_path) as (made, client):
        made.broker.state.queue(f"queue://{hostile}").stays = True
        url = "http://console/api/v1/queues/" + "".join(f"%{byte:02X}" for byte in hostile.encode())
        assert (await client.get(url)).json()["name"] == hostile
        description = (await client.get("/api/v1/openapi.json")).json()
        assert "/api/v1/queues/{name}/purge" in description["paths"]
        assert (await client.get("/api/v1/none")).status_code == 404
        assert (await client.get("/api/v1/queues?limit=9999")).status_code == 400


async def test_probes(tmp_path: Path) -> None:
    async with with_console(tmp_path) as (made, client):
        slave = Managed(tmp_path, name="b", management_socket=str(tmp_path / "b.sock"))
        await slave.start(as_slave=True)
        async with client_of(made.config.store, "b") as other:
            for path, expected in (("/livez", 200), ("/masterz", 200), ("/readyz", 200)):
                assert (await client.get(path)).status_code == expected, path
            assert (await other.get("/livez")).status_code == 200
            assert (await other.get("/masterz")).status_code == 503
            while (await other.get("/readyz")).status_code != 200:
                await asyncio.sleep(0.05)
            assert (await other.get("/api/v1/queues")).json()["code"] == "NOT_MASTER"
            assert 'amq_role{role="slave"} 1' in (await other.get("/metrics")).text
            assert (await other.get(QUEUE + "q/QueueSize")).json()["status"] != 200
            shown = (await other.get("/api/jolokia/read/org.apache.activemq:type=Broker,brokerName=b/Slave")).json()
            assert shown["value"] is True
            await slave.stop()
            while (await other.get("/livez")).status_code != 503:
                await asyncio.sleep(0.05)
            assert (await other.get("/readyz")).status_code == 503


async def test_a_slave_counts_guesses(tmp_path: Path) -> None:
    async with with_console(tmp_path) as (made, _):
        slave = Managed(
            tmp_path, by_password, name="b", management_socket=str(tmp_path / "b.sock"), failed_logins_per_minute=1
        )
        await slave.start(as_slave=True)
        with pytest.raises(AccessError, match="login refused"):
            await slave.managed.login(Claim("alice", "no"), "10.0.0.1")
        with pytest.raises(AccessError, match="failedLoginsPerMinute"):
            await slave.managed.login(Claim("alice", "a"), "10.0.0.1")
        assert (await slave.managed.login(Claim("alice", "a"), "10.0.0.2")).user.name == "alice"
        assert (await made.managed.login(Claim("alice", "a"), "10.0.0.1")).user.name == "alice"
        await slave.stop()


async def test_jolokia(tmp_path: Path) -> None:
    async with with_console(tmp_path) as (made, client):
        await made.fill("orders", 3)
        restrict(made, tmp_path)
        headers = {"origin": "http://localhost"}  # as KEDA sends it
        found = (await client.get(QUEUE + "orders/QueueSize", auth=AS["alice"], headers=headers)).json()
        assert (found["value"], found["status"]) == (3, 200)
        assert found["request"]["attribute"] == "QueueSize"
        found = (await client.get(QUEUE + "orders/QueueSize,ConsumerCount", auth=AS["alice"])).json()
        assert found["value"] == {"QueueSize": 3, "ConsumerCount": 0}
        assert (await client.get(QUEUE + "orders", auth=AS["alice"])).json()["value"]["EnqueueCount"] == 3
        for path, user, status in (
            (QUEUE + "none/QueueSize", "root", 404),
            (QUEUE + "orders/No", "root", 404),
            (QUEUE + "orders/QueueSize", "eve", 403),
            ("/api/jolokia/read/x:y=z/A", "root", 404),
            (QUEUE.replace("brokerName=a", "brokerName=x") + "orders", "root", 404),
        ):
            answer = await client.get(path, auth=AS[user])
            assert (answer.status_code, answer.json()["status"]) == (200, status), path
        broker = "org.apache.activemq:type=Broker,brokerName=*"
        read: dict[str, Any] = {"type": "read", "mbean": broker, "attribute": "TotalMessageCount"}
        purge = {"type": "exec", "mbean": QUEUE.rpartition("/")[2] + "orders", "operation": "purge()"}
        body = json.dumps([read, purge, read, {"type": "write"}, 5])
        found = (await client.post("/api/jolokia", content=body, auth=AS["root"])).json()
        assert [each["status"] for each in found] == [200, 200, 200, 404, 404]
        assert (found[0]["value"], found[2]["value"]) == (3, 0)


async def test_a_password_is_believed_for_a_while(tmp_path: Path) -> None:
    async with with_console(tmp_path) as (made, _):
        clock = SystemClock()
        known = Logins(Link(made.config.store, "", clock), clock)
        header = AS["alice"]._auth_header
        assert await known.user(header, "10.0.0.1", False) == User("alice")
        await made.broker_stops()
        assert await known.user(header, "10.0.0.1", False) == User("alice"), "without asking"


async def test_guesses_at_the_console_count_as_those_at_the_ports(tmp_path: Path) -> None:
    """By address, with the pages' form and REST together; a master's port counts them, too."""
    async with with_console(tmp_path, failed_logins_per_minute=2) as (made, client):
        wrong = httpx.BasicAuth("alice", "no")
        assert (await client.get("/api/v1/queues", auth=wrong)).status_code == 401
        assert (await client.post("/login", data={"login": "alice", "passcode": "no"})).status_code == 401
        assert made.service.master is not None
        with pytest.raises(AccessError, match="failedLoginsPerMinute"):
            made.service.master.door.check("127.0.0.1")
        refused = await client.get("/api/v1/queues", auth=AS["alice"])
        assert (refused.status_code, refused.json()["code"]) == (429, "TOO_MANY_FAILED_LOGINS")
        assert refused.headers["retry-after"] == "60"
        page = await client.post("/login", data={"login": "alice", "passcode": "a"})
        assert page.status_code == 429
        assert "failedLoginsPerMinute" in page.text
        other = httpx.ASGITransport(client._transport.app, client=("10.0.0.9", 1))  # type: ignore[attr-defined]
        async with httpx.AsyncClient(transport=other, base_url="http://console") as elsewhere:
            assert (await elsewhere.get("/api/v1/queues", auth=AS["alice"])).status_code == 200
