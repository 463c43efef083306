"""A permissions file as clients meet it: STOMP and OpenWire against a real broker, and a file that changes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from amq.core.errors import AmqError
from amq.protocols.openwire import table
from amq.protocols.openwire.table import Structure, structure
from amq.security.users_edit import add_user
from amq_migrate.openwire.queues import consuming
from bench.wire import WireError
from tests.brokers import Broker, Brokers
from tests.openwire_client import message, peer_of
from tests.patience import DEADLINE_S

PASSWORD = "correct horse"  # of all users
ROLES = {"shop": ["alice"], "warehouse": ["bob"], "operators": ["root"]}
ENTRIES: dict[tuple[str, str], dict[str, Any]] = {
    ("queues", "orders.*"): {"read": ["warehouse"], "write": ["shop"]},
    ("queues", "orders.audit"): {"only": True, "browse": ["warehouse"], "write": ["operators"]},
    ("queues", "DLQ.>"): {"read": ["operators"], "browse": ["shop"]},
    ("queues", ">"): {"admin": ["operators"]},
    ("queues", "returns"): {"read": ["shop"], "admin": ["shop"]},
    ("topics", "prices.>"): {"read": ["warehouse"], "write": ["shop"]},
    ("topics", "prices.secret"): {"only": True, "write": ["shop"]},
    ("topics", "news"): {"read": ["*"]},
    ("topics", ">"): {"admin": ["operators"]},
}
USERS = ("alice", "bob", "root", "eve")
NAMES = (
    "/queue/orders.eu",
    "/queue/orders.audit",
    "/queue/orders",
    "/queue/DLQ.orders.eu",
    "/queue/returns",
    "/queue/x",
    "/topic/prices.eu",
    "/topic/prices.secret",
    "/topic/news",
    "/topic/x",
    "/topic/ActiveMQ.Advisory.Queue",
)
PATTERNS = ("/queue/orders.*", "/queue/>", "/queue/x.>", "/topic/prices.>", "/topic/>")
COMPOSITE = "/queue/orders.eu,/topic/prices.eu"
ACTIONS = {  # action → the rights of which one is needed, the destinations
    "write": ({"write"}, (*NAMES, COMPOSITE, "/queue/orders.eu,/queue/x")),
    "read": ({"read"}, (*NAMES, *PATTERNS)),
    "browse": ({"read", "browse"}, tuple(name for name in NAMES if name.startswith("/queue/"))),
    "read durably": ({"read"}, tuple(name for name in (*NAMES, *PATTERNS) if name.startswith("/topic/"))),
    "delete": ({"admin"}, tuple(name for name in NAMES if name.startswith("/queue/"))),
}
CASES = [(action, destination) for action, (_, destinations) in ACTIONS.items() for destination in destinations]


def rules() -> str:
    """The permissions file that says what ROLES and ENTRIES do."""
    lines = ["[roles]", *(f"{role} = {json.dumps(users)}" for role, users in ROLES.items())]
    for (section, pattern), values in ENTRIES.items():
        lines += [f'[{section}."{pattern}"]', *(f"{key} = {json.dumps(value)}" for key, value in values.items())]
    return "\n".join(lines) + "\n"


def granted(user: str, rights: set[str], name: str) -> bool:
    """A second reading of the rules: has the user one of these rights on that one destination?"""
    _, kind, rest = name.split("/", 2)
    matching = [
        (pattern, values)
        for (section, pattern), values in ENTRIES.items()
        if section == kind + "s"
        and re.fullmatch(expression(pattern), rest)
        and rest.startswith("ActiveMQ.") == pattern.startswith("ActiveMQ.")
    ]
    matching.sort(key=lambda each: (">" in each[0], -len(each[0]) if ">" in each[0] else each[0].count("*")))
    for _, values in matching:
        roles = {role for right in rights for role in values.get(right, ())}
        if "*" in roles or any(user in ROLES[role] for role in roles - {"*"}):
            return True
        if values.get("only"):
            return False
    return False


def expression(pattern: str) -> str:
    if pattern == ">":
        return ".*"
    return re.escape(pattern).replace(r"\*", "[^.]+").replace(r"\.>", r"(\..*)?")


def allowed(user: str, action: str, destination: str) -> bool:
    rights, _ = ACTIONS[action]
    if destination not in PATTERNS:
        return all(granted(user, rights, name) for name in destination.split(","))
    _, kind, pattern = destination.split("/")
    # Names beside the entries show what a pattern reaches for which no entry is.
    places = {*NAMES, f"/{kind}/orders.other", f"/{kind}/prices.a.b", f"/{kind}/other.a", f"/{kind}/x.y"}
    names = [
        name
        for name in places
        if name.startswith(f"/{kind}/")
        and "ActiveMQ" not in name
        and re.fullmatch(expression(pattern), name.split("/")[2])
    ]
    # A subscriber gets what may be read. What waits while nobody looks needs the right for all.
    return (all if action == "read durably" else any)(granted(user, rights, name) for name in names)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("permitted")
    for name in USERS:
        add_user(str(path / "users"), name, PASSWORD)
    (path / "permissions.toml").write_text(rules())
    return path


@pytest.fixture(scope="module")
def broker(directory: Path) -> Iterator[Broker]:
    options = {"usersFile": directory / "users", "anonymous": "no", "permissionsFile": directory / "permissions.toml"}
    with Brokers(directory, scheme="auto", **options) as brokers:
        yield brokers.master()


def refused_by_stomp(broker: Broker, user: str, action: str, destination: str) -> bool:
    durably = action == "read durably"
    with broker.connect(login=user, passcode=PASSWORD, client_id=f"{user} {destination}" if durably else "") as client:
        if action == "write":
            client.send("SEND", {"destination": destination, "receipt": "r"}, b"x")
        else:
            how = {"browser": "true"} if action == "browse" else {"activemq.subscriptionName": "d"} if durably else {}
            client.send("SUBSCRIBE", {"destination": destination, "id": "1", "receipt": "r", **how})
        try:
            client.receipt("r", DEADLINE_S)
            if durably:
                client.send("UNSUBSCRIBE", {"id": "1", "activemq.subscriptionName": "d", "receipt": "u"})
                client.receipt("u", DEADLINE_S)
        except WireError as error:
            return "may not" in str(error)
        return False


def refused_by_openwire(broker: Broker, user: str, action: str, destination: str) -> bool:
    kind = table.QUEUE if destination.startswith("/queue/") else table.TOPIC
    text = (
        destination.split("/")[2]
        if "," not in destination
        else ",".join(f"{each.split('/')[1]}://{each.split('/')[2]}" for each in destination.split(","))
    )
    named = structure(kind, name=text)
    with peer_of(f"tcp://127.0.0.1:{broker.port}", user, PASSWORD) as peer:
        try:
            if action == "write":
                producer = structure(table.PRODUCER_ID, connection=peer.wire.connection, session=1, value=1)
                peer.request(structure(table.PRODUCER_INFO, id=producer))
                sent = message(1)
                peer.request(Structure(sent.type, {**sent.fields, "producer": producer, "destination": named}))
            elif action == "delete":
                peer.request(
                    structure(
                        table.DESTINATION_INFO,
                        destination=named,
                        kind=1,
                        connection=structure(table.CONNECTION_ID, value=peer.wire.connection),
                    )
                )
            else:
                with consuming(peer, 1, named, 10, action == "browse"):
                    pass
        except AmqError as error:
            return "may not" in str(error)
        return False


@pytest.mark.parametrize(("action", "destination"), [each for each in CASES if each[0] != "delete"])
def test_the_table_of_roles_and_actions_over_stomp(broker: Broker, action: str, destination: str) -> None:
    expected = {user for user in USERS if allowed(user, action, destination)}
    assert {user for user in USERS if not refused_by_stomp(broker, user, action, destination)} == expected


@pytest.mark.parametrize(("action", "destination"), [each for each in CASES if each[0] != "read durably"])
def test_the_table_of_roles_and_actions_over_openwire(broker: Broker, action: str, destination: str) -> None:
    expected = {user for user in USERS if allowed(user, action, destination)}
    assert {user for user in USERS if not refused_by_openwire(broker, user, action, destination)} == expected


def test_the_table_has_all_kinds_of_answers() -> None:
    """Somebody may and somebody may not, for each action; a mistake in the second reading would show."""
    for action, (_, destinations) in ACTIONS.items():
        may = [(user, name) for name in destinations for user in USERS if allowed(user, action, name)]
        assert 2 < len(may) < len(destinations) * len(USERS) - 2, action
    assert not allowed("bob", "read", "/queue/orders.audit")
    assert allowed("bob", "browse", "/queue/orders.audit")
    assert allowed("bob", "read", "/topic/prices.>")
    assert not allowed("bob", "read durably", "/topic/prices.>")
    assert {user for user in USERS if allowed(user, "read", "/topic/news")} == set(USERS)


def test_a_jms_producer_is_refused_when_it_is_made(broker: Broker) -> None:
    with peer_of(f"tcp://127.0.0.1:{broker.port}", "bob", PASSWORD) as peer:
        producer = structure(table.PRODUCER_ID, connection=peer.wire.connection, session=1, value=1)
        named = structure(table.QUEUE, name="orders.eu")
        with pytest.raises(AmqError, match="may not send to"):
            peer.request(structure(table.PRODUCER_INFO, id=producer, destination=named))


def test_a_changed_file_counts_at_once_for_those_who_are_there(directory: Path, tmp_path: Path) -> None:
    file = tmp_path / "permissions.toml"
    file.write_text(rules())
    options = {"usersFile": directory / "users", "anonymous": "no", "permissionsFile": file}
    with Brokers(tmp_path, **options) as brokers:
        broker = brokers.master()
        with (
            broker.connect(login="bob", passcode=PASSWORD) as bob,
            broker.connect(login="alice", passcode=PASSWORD) as alice,
        ):
            bob.send("SUBSCRIBE", {"destination": "/queue/orders.eu", "id": "1", "receipt": "r"})
            bob.receipt("r", DEADLINE_S)
            file.write_text(rules() + "[nonsense]\n")
            assert "nonsense" in broker.wait_event("permissions not changed")["reason"]
            alice.send("SEND", {"destination": "/queue/orders.eu", "receipt": "1"}, b"x")
            alice.receipt("1", DEADLINE_S)
            assert bob.next_frame(DEADLINE_S).command == "MESSAGE"
            file.write_text(rules().replace("bob", "carol").replace("alice", "carol"))
            assert broker.wait_event("permissions read")["generation"] == 2
            with pytest.raises(WireError, match="may not consume"):
                bob.next_frame(DEADLINE_S)
            alice.send("SEND", {"destination": "/queue/orders.eu", "receipt": "2"}, b"x")
            with pytest.raises(WireError, match="may not send to"):
                alice.receipt("2", DEADLINE_S)
