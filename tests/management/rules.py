"""Rules of permissions, and a second reading of them."""

from __future__ import annotations

import json
import re
from typing import Any

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
