"""Permissions: no resource forgets the door, and each answer has only what its user may see."""

from __future__ import annotations

from pathlib import Path

import pytest
import structlog

from amq.broker.actions import Action
from amq.core.errors import AccessError
from amq.management.resources import Caller, Request
from amq.management.routes import ROUTES, nothing
from amq.security.login import User
from amq.security.permissions import Permissions
from tests.management.managed import managed

RULES = """
[roles]
shop = ["alice"]
operators = ["root"]
[queues."orders.>"]
read = ["shop"]
[queues.">"]
admin = ["operators"]
browse = ["operators"]
write = ["operators"]
[topics."prices"]
read = ["shop"]
[broker]
manage = ["operators"]
"""
ALICE, ROOT, EVE = (Caller(User(name)) for name in ("alice", "root", "eve"))
BODY = {"to": "other", "body": "x"}
# Only these ask nothing at the door: they tell no more than their rows, which are filtered, or figures of the whole.
OPEN = {
    "/login",
    "/console",
    "/search",
    "/openapi.json",
    "/broker",
    "/stores",
    "/rates",
    "/totals",
    "/queues",
    "/topics",
    "/messages/{id}",
}


def test_no_route_forgets_the_door() -> None:
    for route in ROUTES:
        request = Request(EVE, {"name": "q", "id": "1", "client": "c"}, {}, BODY)
        demands = list(route.demands(request))
        if route.demands is nothing:
            assert route.path in OPEN, f"{route.path}: say what it demands"
            assert not route.changes or route.path in ("/login", "/console")  # these ask for the operator
        else:
            assert demands, route.path
            assert all(isinstance(action, Action) for action, _ in demands)


def permissions(folder: Path) -> Permissions:
    path = folder / "permissions.toml"
    path.write_text(RULES)
    return Permissions.read(str(path))


async def test_users_see_and_do_what_they_may(tmp_path: Path) -> None:
    async with managed(tmp_path) as made:
        await made.fill("orders.eu", 2)
        await made.fill("secret", 1)
        made.service.permit(permissions(tmp_path))
        expected = {ALICE: ["orders.eu"], ROOT: ["orders.eu", "secret"], EVE: []}
        for caller, names in expected.items():
            rows = (await made.ask("GET", "/queues", caller=caller))["items"]
            assert [row["name"] for row in rows] == names
        assert (await made.ask("GET", "/queues/orders.eu/messages", caller=ALICE))["items"]
        for route in ROUTES:
            if route.path in OPEN or route.path == "/queues/{name}/messages/{id}":
                continue
            path = route.path.replace("{name}", "secret").replace("{id}", "1").replace("{client}", "c")
            for caller in (ALICE, EVE):
                with pytest.raises(AccessError) as caught:
                    await made.ask(route.method, path, BODY if route.changes else None, caller=caller)
                assert caught.value.code == "NOT_PERMITTED", path
        assert await made.ask("POST", "/queues/secret/purge", caller=ROOT) == {"count": 1}


async def test_a_change_and_a_refusal_leave_a_line(tmp_path: Path) -> None:
    async with managed(tmp_path) as made:
        await made.fill("q", 2)
        made.service.permit(permissions(tmp_path))
        with structlog.testing.capture_logs() as lines:
            await made.ask("POST", "/queues/q/purge", caller=ROOT)
            with pytest.raises(AccessError):
                await made.ask("POST", "/queues/q/purge", caller=EVE)
            await made.ask("GET", "/queues", caller=ROOT)
        told = [
            (line["user"], line["action"], line["outcome"], line.get("count"))
            for line in lines
            if line["event"] == "management"
        ]
        action = "POST /queues/{name}/purge"
        assert told == [("root", action, "done", 2), ("eve", action, "NOT_PERMITTED", None)]


async def test_the_console_asks_for_its_user(tmp_path: Path) -> None:
    async with managed(tmp_path) as made:
        await made.fill("secret", 1)
        made.service.permit(permissions(tmp_path))
        assert (await made.through("GET", "/queues"))["total"] == 1, "the operator of the account"
        assert (await made.through("GET", "/queues", user=User("eve", frozenset({"guests, or so"}))))["total"] == 0
        with pytest.raises(AccessError):
            await made.through("DELETE", "/queues/secret", user=User("eve", frozenset({"guests, or so"})))
