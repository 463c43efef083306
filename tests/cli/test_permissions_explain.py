"""`amq permissions explain`: the answer is the broker's, and names the lines that decide it."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from amq.broker.permitted import FileRules
from amq.cli.permissions import ACTIONS, permissions
from amq.security.explained import ExplainedPermissions
from amq.security.login import User
from amq.security.permissions import Permissions

FILE = """[roles]
shop = ["alice"]
warehouse = ["bob"]
tokens = []

[queues."orders.>"]
write = ["shop"]
read = ["warehouse"]

[queues."orders.secret"]
only = true
read = ["shop"]

[topics.">"]
read = ["*"]
[batches.">"]
write = ["tokens"]
[broker]
manage = ["warehouse"]
"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    found = tmp_path / "permissions.toml"
    found.write_text(FILE)
    return str(found)


def ask(path: str, *words: str) -> tuple[int, dict[str, Any]]:
    done = CliRunner().invoke(permissions, ["explain", "--permissions", path, "--json", *words])
    return done.exit_code, json.loads(done.stdout)


@pytest.mark.parametrize(
    ("words", "code", "lines"),
    [
        ("--user alice send /queue/orders.eu", 0, [7]),
        ("--user bob send /queue/orders.eu", 1, [7]),
        ("--user bob consume /queue/orders.eu", 0, [8]),
        ("--user bob consume /queue/orders.secret", 1, [12]),  # only = true: the other entry is not asked
        ("--user alice consume /queue/orders.secret", 0, [12]),
        ("--user bob send /queue/orders.secret", 1, [10]),  # the entry has no such right: its own line
        ("--user bob create-durable /topic/prices.>", 0, [15]),
        ("--user eve consume /queue/other", 1, []),
        ("--user eve send /temp-queue/x", 0, []),
        ("--user bob manage", 0, [19]),
        ("--user alice manage", 1, [19]),
        ("--role tokens prepare-batch q1", 0, [17]),
        ("--role shop send /queue/orders.a", 0, [7]),
        ("--user alice view /queue/orders.eu", 1, [8, 6, 19]),  # read, browse and admin, or the right to manage
    ],
)
def test_the_answer_and_its_lines(path: str, words: str, code: int, lines: list[int]) -> None:
    found_code, found = ask(path, *words.split())
    assert (found_code, found["allowed"]) == (code, code == 0)
    (answer,) = found["answers"]
    places = dict.fromkeys(rule["place"] for rule in answer["rules"])
    assert list(places) == [f"{path}:{line}" for line in lines]


def test_all_parts_of_a_composite_must_be_allowed(path: str) -> None:
    code, found = ask(path, "--user", "alice", "send", "/queue/orders.a,/queue/orders.b,/topic/t")
    assert code == 1
    assert [(each["destination"], each["allowed"]) for each in found["answers"]] == [
        ("queue://orders.a", True),
        ("queue://orders.b", True),
        ("topic://t", False),
    ]


def test_people_read_it_too(path: str) -> None:
    done = CliRunner().invoke(
        permissions, ["explain", "--permissions", path, "--user", "bob", "consume", "/queue/orders.secret"]
    )
    assert done.exit_code == 1
    assert done.stdout.splitlines() == [
        "bob has the roles warehouse",
        "denied: consume queue://orders.secret",
        f'  {path}:12: queues."orders.secret" gives the right read to shop; only = true, so no other entry counts',
    ]


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("send /queue/a", "--user NAME"),
        ("--user a send", "needs a destination"),
        ("--user a send a", "/queue/"),
        ("--user a manage /queue/a", "no destination"),
        ("--role none send /queue/a", "no role 'none'"),
        ("--user a fly /queue/a", "fly"),
    ],
)
def test_a_wrong_question_is_no_denial(path: str, words: str, told: str) -> None:
    done = CliRunner().invoke(permissions, ["explain", "--permissions", path, *words.split()])
    assert (done.exit_code, told in done.output) == (2, True), done.output


NAMES = st.lists(st.sampled_from(["orders", "secret", "eu", "ActiveMQ", "*", ">"]), min_size=1, max_size=3)
WHOLE = NAMES.filter(lambda words: ">" not in words[:-1])


@given(
    user=st.sampled_from(["alice", "bob", "eve"]),
    roles=st.frozensets(st.sampled_from(["shop", "tokens"])),
    action=st.sampled_from(list(ACTIONS.values())),
    kind=st.sampled_from(["queue", "topic", "temp-queue"]),
    words=WHOLE,
)
def test_the_answer_is_that_of_the_broker(user: str, roles: frozenset[str], action: Any, kind: str, words: Any) -> None:
    who, name = User(user, roles), f"{kind}://{'.'.join(words)}"
    found = tomllib.loads(FILE)
    explained = ExplainedPermissions.of(found, "file", text=FILE)
    allowed = FileRules(explained)(who, action, name)
    assert allowed == FileRules(Permissions.of(found, "file"))(who, action, name)
    if allowed and explained.reasons:
        assert any(reason.grants for reason in explained.reasons)
