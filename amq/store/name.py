"""The name of a store: the path of a directory, or the URL of a database or of a replicated store."""

from __future__ import annotations

import os
import re

REPLICA = "replica:"
COORDINATORS = ("etcd://", "zookeeper://", SMALL := "file:///")
_MEANT_AS_URL = re.compile(r"(postgres(ql)?|replica)(:|//)")


def is_directory(store: str) -> bool:
    """Whether `store` is the path of a directory, and no URL, not even one with a slip: a broker that was given
    `postgresql//HOST/DATABASE` must not make such a directory. `./postgresql:` is one."""
    return "://" not in store and not _MEANT_AS_URL.match(store)


def is_coordinator(url: str) -> bool:
    """Whether the URL names servers, or a small directory, that keep small entries alone."""
    return url.startswith(COORDINATORS)


def at_node(store: str, node: str, host: str) -> str:
    """`store` as that node of a cluster has it: in the URL of a replicated store each member has its own words."""
    return store.replace("{node}", node).replace("{host}", host) if store.startswith(REPLICA) else store


def real_name(store: str) -> str:
    """`store` as it is known on this host, whatever links lead to it."""
    return os.path.realpath(store) if is_directory(store) else store


def full_name(store: str) -> str:
    """`store` as it is known everywhere on this host."""
    return os.path.abspath(store) if is_directory(store) else store
