"""The table of users, operations and destinations of the management interface, from the rules: over the Unix socket by
which the command line and the console ask."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from amq.broker.actions import Action
from amq.core.errors import AmqError
from amq.management.client import part
from amq.management.resources import Caller, Request
from amq.management.routes import ROUTES
from amq.security.login import User
from amq.security.permissions import Permissions
from tests.management.managed import Managed, managed
from tests.management.rules import NAMES, ROLES, USERS, granted, rules

QUEUES, TOPICS = ([name.split("/", 2)[2] for name in NAMES if name.startswith(kind)] for kind in ("/queue/", "/topic/"))
LOOK, SEE = {"read", "browse"}, {"read", "browse", "admin"}
MANAGERS = {"root"}
MANAGE = f'{rules()}[broker]\nmanage = ["operators"]\n'
TO = "orders.eu"  # where messages are moved and copied to


class Operation(NamedTuple):
    """`rights` = those of which one is needed on the destination in the path, `at_target` on that of the body."""

    method: str
    path: str
    rights: tuple[set[str], ...]
    at_target: bool = False
    managers_may: bool = False

    def allowed(self, user: str, kind: str, name: str) -> bool:
        """By the second reading of the rules."""
        if self.managers_may and user in MANAGERS:
            return True
        here = all(granted(user, rights, f"/{kind}/{name}") for rights in self.rights)
        return here and (not self.at_target or granted(user, {"write"}, f"/queue/{TO}"))


OPERATIONS = {
    "view": Operation("GET", "/queues/{name}", (SEE,), managers_may=True),
    "browse": Operation("GET", "/queues/{name}/messages", (LOOK,)),
    "ask why it does not drain": Operation("GET", "/queues/{name}/hints", (LOOK,)),
    "look at one": Operation("GET", "/queues/{name}/messages/{id}", (LOOK,)),
    "send": Operation("POST", "/queues/{name}/messages", ({"write"},)),
    "purge": Operation("POST", "/queues/{name}/purge", ({"admin"},)),
    "delete one": Operation("DELETE", "/queues/{name}/messages/{id}", ({"admin"},)),
    "retry": Operation("POST", "/queues/{name}/retry", ({"admin"},)),
    "move": Operation("POST", "/queues/{name}/move", ({"admin"}, LOOK), at_target=True),
    "copy": Operation("POST", "/queues/{name}/copy", (LOOK,), at_target=True),
    "pause": Operation("POST", "/queues/{name}/pause", ({"admin"},)),
    "resume": Operation("POST", "/queues/{name}/resume", ({"admin"},)),
    "delete": Operation("DELETE", "/queues/{name}", ({"admin"},)),
    "view a topic": Operation("GET", "/topics/{name}", (SEE,), managers_may=True),
    "send to a topic": Operation("POST", "/topics/{name}/messages", ({"write"},)),
    "forget a topic": Operation("DELETE", "/topics/{name}", ({"admin"},)),
}


class Desk:
    """A broker with the rules, asked by users over its Unix socket."""

    def __init__(self, runner: asyncio.Runner, made: Managed) -> None:
        self._runner = runner
        self._made = made

    def is_refused(self, user: str, method: str, path: str) -> bool:
        """What comes of it if not does not matter: the queue may not be there."""
        body = (
            {"to": TO, "body": "x", "dry_run": True}
            if path.endswith(("move", "copy", "purge", "retry"))
            else ({"body": "x"} if method == "POST" else None)
        )
        try:
            self._runner.run(self._made.through(method, path, body, User(user)))
        except AmqError as error:
            if error.code == "REQUEST_INVALID":
                raise
            return error.code == "NOT_PERMITTED"
        return False

    def names(self, user: str) -> set[str]:
        found = self._runner.run(self._made.through("GET", "/queues", None, User(user)))
        return {row["name"] for row in found["items"]}


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    folder = tmp_path_factory.mktemp("table")
    file = folder / "permissions.toml"
    file.write_text(MANAGE)
    with asyncio.Runner() as runner:
        context = managed(folder)
        made = runner.run(context.__aenter__())
        try:
            for name in QUEUES:
                made.broker.state.queue(f"queue://{name}").stays = True
            made.broker.permit(Permissions.read(str(file)))
            yield Desk(runner, made)
        finally:
            runner.run(context.__aexit__(None, None, None))


@pytest.mark.parametrize("action", OPERATIONS)
def test_the_table_of_users_and_operations(desk: Desk, action: str) -> None:
    operation = OPERATIONS[action]
    kind, names = ("queue", QUEUES) if operation.path.startswith("/queues") else ("topic", TOPICS)
    expected = {(user, name) for name in names for user in USERS if operation.allowed(user, kind, name)}
    found = {
        (user, name)
        for name in names
        for user in USERS
        if not desk.is_refused(user, operation.method, operation.path.format(name=part(name), id="ID:x-1"))
    }
    assert found == expected
    assert 0 < len(expected) < len(names) * len(USERS), "somebody may, and somebody may not"


@pytest.mark.parametrize(
    "path",
    ["subscriptions", "consumers", "connections", "scheduled", "prepared", "outboxes", "segments", "dead-letters"],
)
def test_views_of_the_whole_broker_are_for_managers(desk: Desk, path: str) -> None:
    assert {user for user in USERS if not desk.is_refused(user, "GET", f"/{path}")} == MANAGERS


def test_a_list_has_the_queues_that_its_user_may_see(desk: Desk) -> None:
    for user in USERS:
        there = desk.names("root")
        expected = {name for name in there if OPERATIONS["view"].allowed(user, "queue", name)}
        assert desk.names(user) == expected, user
    assert desk.names("root") >= {TO}
    assert not desk.names("eve")


def test_no_operation_is_missing() -> None:
    """Each route that names a destination is in the table; those of the whole broker demand `manage`."""
    covered = {(each.method, each.path) for each in OPERATIONS.values()}
    caller = Caller(User("eve"))
    for route in ROUTES:
        demands = list(route.demands(Request(caller, {"name": "q", "id": "1", "client": "c"}, {}, {"to": "x"})))
        if any(action is not Action.MANAGE for action, _ in demands):
            assert (route.method, route.path) in covered, route.path
    assert set(ROLES["operators"]) == MANAGERS
