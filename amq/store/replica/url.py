"""The URL of a replicated store: replica:///DIR?group=NAME&coordinator=URL&OPTION=VALUE… .

Invariant: a URL holds no secret, because it is shown in logs and by `ps`.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from amq.core.errors import ConfigError
from amq.store.name import REPLICA, is_coordinator
from amq.store.replica.group import GroupPolicy

MEMBERS_MAX: Final = 9
SAVED_MAX: Final = 1000
DEFAULT_POLICY: Final = GroupPolicy()
_GROUP = re.compile(r"[A-Za-z0-9_.-]{1,64}")
_OPTIONS = frozenset(
    (
        "group",
        "coordinator",
        "members",
        "leastCopies",
        "listen",
        "announced",
        "secretFile",
        "caFile",
        "certificateFile",
        "keyFile",
        "savedReplicas",
    )
)


@dataclass(frozen=True, slots=True)
class ReplicaUrl:
    """One member's part of a replicated store.

    text          as it was given
    directory     of this member's copy; no other member uses it
    group         members find each other by it at the coordinator
    coordinator   URL of etcd, ZooKeeper, PostgreSQL or a small directory
    policy        how many copies there shall be, and with how few nothing is confirmed
    listen        HOST:PORT for the other members, port 0 = any
    announced     HOST:PORT by which they reach it, "" = as it listens
    secret_file   "" = a secret at the coordinator
    ca_file, certificate_file, key_file   of TLS, "" = without
    saved         how many sets of bytes that count no more are kept in oldreplica.N
    """

    text: str
    directory: str
    group: str
    coordinator: str
    policy: GroupPolicy = DEFAULT_POLICY
    listen: str = "127.0.0.1:0"
    announced: str = ""
    secret_file: str = ""
    ca_file: str = ""
    certificate_file: str = ""
    key_file: str = ""
    saved: int = 2

    @classmethod
    def parse(cls, text: str) -> ReplicaUrl:
        """Raises ConfigError."""
        parts = urlsplit(text)
        directory = unquote(parts.path)
        if not text.startswith(f"{REPLICA}///") or parts.netloc or not os.path.isabs(directory) or parts.fragment:
            raise _invalid(text, "it must be replica:///DIRECTORY?group=NAME&coordinator=URL")
        try:
            pairs = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
        except ValueError as error:
            raise _invalid(text, f"{error} in its options") from error
        given = dict(pairs)
        if len(given) < len(pairs):
            raise _invalid(text, "it has an option twice")
        for key in given:
            if key not in _OPTIONS:
                raise _invalid(text, f"it has the unknown option {key!r}; write & in the coordinator's URL as %26")
        group, coordinator = given.get("group", "amq"), given.get("coordinator", "")
        if not _GROUP.fullmatch(group) or group in (".", ".."):
            raise _invalid(text, "group is one word of letters, digits, '_', '.' and '-'")
        if not (is_coordinator(coordinator) or coordinator.startswith(("postgresql://", "postgres://"))):
            raise _invalid(
                text, "coordinator must be the URL of etcd://, zookeeper://, postgresql:// or file:///DIR, where "
                "members agree who is master"
            )  # fmt: skip
        members = _number(text, given, "members", 3, 1, MEMBERS_MAX)
        least = _number(text, given, "leastCopies", min(2, members), 1, members)
        tls = [given.get(name, "") for name in ("caFile", "certificateFile", "keyFile")]
        if any(tls) and not all(tls):
            raise _invalid(text, "TLS between members needs caFile, certificateFile and keyFile")
        return cls(
            text,
            directory,
            group,
            coordinator,
            GroupPolicy(members, least),
            _address(text, given, "listen") or "127.0.0.1:0",
            _address(text, given, "announced"),
            given.get("secretFile", ""),
            tls[0],
            tls[1],
            tls[2],
            _number(text, given, "savedReplicas", 2, 0, SAVED_MAX),
        )


def _number(text: str, given: dict[str, str], name: str, default: int, least: int, most: int) -> int:
    value = given.get(name, str(default))
    if not re.fullmatch(r"[0-9]{1,4}", value) or not least <= int(value) <= most:
        raise _invalid(text, f"{name} is a number from {least} to {most}")
    return int(value)


def _address(text: str, given: dict[str, str], name: str) -> str:
    value = given.get(name, "")
    try:
        address = urlsplit(f"//{value}")
        good = not value or (bool(address.hostname) and address.port is not None and address.netloc == value)
    except ValueError:
        good = False
    if not good:
        raise _invalid(text, f"{name} is HOST:PORT")
    return value


def _invalid(text: str, why: str) -> ConfigError:
    return ConfigError(f"{text!r} cannot be the URL of a replicated store: {why}", code="STORE_URL_INVALID")
