"""What the process of a broker tells of itself, as master and as slave: configuration, users, rights, history."""

from __future__ import annotations

from pathlib import Path

import pytest

from amq.broker.events import Events, MemoryLimitReached, QueueLimitReached, RoleChanged, StoreFull
from amq.core.errors import AccessError, CommandError
from amq.management.history import KEPT, TEXT_CHARS_MAX, History
from amq.management.resources import Caller
from amq.security.login import User
from amq.security.permissions import Permissions
from tests.fakes import FakeClock
from tests.management.managed import Managed, managed

RULES = """
[roles]
shop = ["alice", "bob"]
operators = ["root"]
everybody = ["*"]
[queues."orders.>"]
read = ["shop"]
only = true
[topics."prices"]
write = ["shop", "operators"]
[broker]
manage = ["operators"]
"""
ROOT, EVE = Caller(User("root")), Caller(User("eve"))
PATHS = ("/configuration", "/users", "/rights", "/history")


def permissions(folder: Path) -> Permissions:
    path = folder / "permissions.toml"
    path.write_text(RULES)
    return Permissions.read(str(path))


async def test_a_master_and_a_slave_tell_the_same_lists(tmp_path: Path) -> None:
    async with managed(tmp_path) as made:
        slave = Managed(tmp_path, name="b", management_socket=str(tmp_path / "b.sock"))
        await slave.start(as_slave=True)
        try:
            for broker in (made, slave):
                broker.service.permit(permissions(tmp_path))
                for path in PATHS:
                    found = await broker.ask("GET", path, caller=ROOT, limit=500)
                    assert len(found["items"]) == found["total"], path
                    with pytest.raises(AccessError):
                        await broker.ask("GET", path, caller=EVE)
                history = (await broker.ask("GET", "/history", sort="-at_ms"))["items"]
                role = next(each for each in history if each["what"].startswith("role"))  # more may have happened since
                expected = ("role: master", "epoch 1") if broker is made else ("role: slave", "")
                assert (role["what"], role["about"]) == expected
            with pytest.raises(CommandError, match="not the master"):
                await slave.ask("GET", "/totals")
            status = await made.ask("GET", "/broker")
            assert 0 < status["lease_left_s"] <= made.config.lock_keep_alive_period_s
        finally:
            await slave.stop()


async def test_configuration_says_where_a_value_came_from_and_whether_it_is_live(tmp_path: Path) -> None:
    async with managed(tmp_path) as made:
        rows = {row["name"]: row for row in (await made.ask("GET", "/configuration"))["items"]}
        assert (rows["name"]["value"], rows["name"]["live"]) == ("a", False)
        assert rows["maximumRedeliveries"]["live"] is True
        assert rows["maximumRedeliveries"]["source"] == "default"
        assert rows["lockKeepAlivePeriod"]["value"] == "10s"
        (row,) = (await made.ask("GET", "/configuration", name="n?me"))["items"]
        assert (row["section"], row["scope"]) == ("broker", "store")


async def test_users_and_rights_have_no_secrets(tmp_path: Path) -> None:
    async with managed(tmp_path) as made:
        made.managed._users = lambda: ("alice", "root", "eve")
        assert (await made.ask("GET", "/rights"))["items"] == [
            {"name": "broker", "read": "*", "write": "*", "admin": "*", "browse": "*", "manage": "*", "only": False}
        ]
        made.service.permit(permissions(tmp_path))
        assert (await made.ask("GET", "/users"))["items"] == [
            {"name": "alice", "roles": "everybody, shop"},
            {"name": "eve", "roles": "everybody"},
            {"name": "root", "roles": "everybody, operators"},
        ]
        nothing = {"read": "", "write": "", "admin": "", "browse": "", "manage": "", "only": False}
        assert (await made.ask("GET", "/rights"))["items"] == [
            {"name": "broker", **nothing, "manage": "operators"},
            {"name": "queues orders.>", **nothing, "read": "shop", "only": True},
            {"name": "topics prices", **nothing, "write": "operators, shop"},
        ]


def test_the_history_is_bounded_and_limits_push_no_role_out() -> None:
    events, clock = Events(), FakeClock()
    history = History(events, clock, lambda: 7)
    events.tell(RoleChanged("master"))
    clock.advance(1)
    events.tell(StoreFull("/mnt/store", 1 << 20))
    for _ in range(3 * KEPT):
        clock.advance(1)
        events.tell(QueueLimitReached("queue://" + "q" * 1000, 5, "BLOCK"))
    clock.advance(1)
    events.tell(MemoryLimitReached(1000))
    rows = history.rows()
    assert len(rows) == KEPT + 1
    assert rows[0]["about"] == "limit bytes 1000"
    assert all(len(row["about"]) <= TEXT_CHARS_MAX for row in rows)
    assert rows[-1] == {"at_ms": rows[-1]["at_ms"], "what": "role: master", "about": "epoch 7"}
    assert [row["at_ms"] for row in rows] == sorted((row["at_ms"] for row in rows), reverse=True)
