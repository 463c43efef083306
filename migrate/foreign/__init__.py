"""The configuration of other brokers as ours: activemq.xml (ActiveMQ, JBoss A-MQ), broker.xml (Artemis, AMQ 7),
hornetq-configuration.xml. `read` gives our options and a report of what became of each element.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any

from amq.config import checks, loader
from amq.config.destination_options import DestinationOptions
from amq.config.loader import Imported
from amq.config.option import Value
from amq.config.reading import is_xml
from amq.config.schema import BY_KEY, BrokerConfig
from amq.core.errors import ConfigError
from amq_migrate.foreign import activemq, artemis, clustering, document, sunmq
from amq_migrate.foreign.document import Element
from amq_migrate.foreign.importing import Carried, FileUser, Importing
from amq_migrate.foreign.placeholders import Placeholders
from amq_migrate.foreign.report import Report, ReportLine, Status

__all__ = ["Carried", "FileUser", "Foreign", "Report", "ReportLine", "Status", "imported", "load", "read"]

WARNINGS_MAX = 50
# Options that may contradict others; the first of them that helps is given up.
_GIVEN_UP = (
    "maxFrameSize",
    "maxTransactionSize",
    "journalBatchSize",
    "journalSegmentSize",
    "storeFreeFloor",
    "storeLimit",
    "virtualTopicConsumers",
    "virtualTopics",
)


@dataclass(frozen=True, slots=True)
class Foreign:
    """The content of another broker's file, in our options.

    format       "activemq", "artemis", "hornetq" or "sunmq"
    values       (pattern of destinations, key) → value; pattern "" = the option's section
    users        logins with their passwords; no option of ours holds them
    permissions  the content of a permissions file, None = the file has no rules; `origins` says of each entry, by
                 (section, pattern), where it comes from
    store_advice what to give as the store, "" = the file has a directory, or nothing
    cluster      the commands that make the cluster of which the file speaks
    """

    format: str
    path: str
    values: Mapping[tuple[str, str], Carried]
    report: Report
    users: tuple[FileUser, ...]
    permissions: Mapping[str, Any] | None = None
    origins: Mapping[tuple[str, str], str] = field(default_factory=dict)
    store_advice: str = ""
    cluster: tuple[str, ...] = ()

    def destinations(self) -> tuple[DestinationOptions, ...]:
        """The options of single destinations, in the order of the file."""
        patterns = dict.fromkeys(pattern for pattern, _ in self.values if pattern)
        found = []
        for pattern in patterns:
            own = {BY_KEY[key]: carried for (each, key), carried in self.values.items() if each == pattern}
            values = {option.attribute: carried.value for option, carried in own.items()}
            sources = {option.attribute: self.source(carried) for option, carried in own.items()}
            found.append(DestinationOptions(pattern, values, sources))
        return tuple(found)

    def imported(self) -> Imported:
        """The options that a broker takes from the file: only valid ones; it warns of the rest."""
        values: dict[str, tuple[Value, str]] = {
            key: (carried.value, self.source(carried)) for (pattern, key), carried in self.values.items() if not pattern
        }
        path = os.path.abspath(self.path)
        if self.users:
            values["usersFile"] = path, f"{self.path}:{self.users[0].line}"
        if self.permissions is not None:
            values["permissionsFile"] = path, f"{self.path}, its rules"
        found = [*self.report.unsupported(), *self.report.of_cluster()]
        warnings = [self.report.text(line) for line in found[:WARNINGS_MAX]]
        if len(found) > WARNINGS_MAX:
            more = len(found) - WARNINGS_MAX
            warnings.append(f"{self.path}: {more} more parts are not supported: `amq config import` lists all")
        return Imported(values, self.destinations(), tuple(warnings), self.store_advice)

    @property
    def needs_users(self) -> bool:
        """Is there nobody who could log in without a users file?"""
        anonymous = self.values.get(("", "anonymous"))
        return bool(self.users) or (anonymous is not None and anonymous.value == "no")

    def source(self, carried: Carried) -> str:
        """Where a value comes from, as `amq config show` tells it."""
        return f"{self.path}:{carried.line}" if carried.line else f"{self.path}, {carried.origin}"


def read(
    data: bytes,
    path: str,
    properties: Mapping[str, str],
    env: Mapping[str, str],
    roles: Mapping[str, Iterable[str]] = MappingProxyType({}),
) -> Foreign:
    """The configuration in `data`, the content of the file `path`. `properties` and `env` fill its placeholders in;
    `roles` = their users, which these brokers keep in another file.

    Raises ConfigError with file and line.
    """
    placeholders = Placeholders(properties, env)
    if is_xml(data):
        root = document.parse(data, path)
        kind = _kind(root, path)
        reader = activemq.read if kind == "activemq" else artemis.read
        importing = reader(root, path, placeholders, roles)
    else:
        kind, importing = "sunmq", sunmq.read(data, path, placeholders)
    _settle(importing)
    if ("", "transports") not in importing.values:
        told = "no connector is for STOMP or OpenWire, the protocols that amq speaks: set transports"
        importing.report.add(None, "", Status.UNSUPPORTED, told)
    importing.report.sort()
    return Foreign(
        kind,
        path,
        importing.values,
        importing.report,
        tuple(importing.users),
        importing.permissions,
        importing.permissions_origins,
        importing.store_advice,
        clustering.commands(importing),
    )


def imported(data: bytes, path: str, properties: Mapping[str, str], env: Mapping[str, str]) -> Imported:
    """For `amq.config.load`. Raises ConfigError."""
    return read(data, path, properties, env).imported()


load = partial(loader.load, read_foreign=imported)  # reads also the configuration of another broker


def _kind(root: Element, path: str) -> str:
    if root.name == "broker":
        return "activemq"
    if root.name == "beans":
        brokers = [each for each in root.below() if each.name == "broker"]
        if len(brokers) == 1:
            return "activemq"
        what = f"{len(brokers)} brokers: give a file with one of them" if brokers else "no <broker>"
        raise ConfigError(f"{path}:{(brokers[1] if brokers else root).line}: <beans> holds {what}")
    if root.name == "core" or (root.name == "configuration" and root.child("core") is not None):
        return "artemis"
    told = root.child("acceptors", "journal-directory", "address-settings") is not None
    if root.name == "configuration" and (told or root.namespace == "urn:hornetq"):
        return "hornetq"
    raise ConfigError(
        f"{path}:{root.line}: <{root.path}> is the configuration of no broker that amq knows: activemq.xml begins with "
        "<beans> or <broker>, broker.xml with <configuration>"
    )


def _settle(importing: Importing) -> None:
    """Give up values that contradict others, so that the result always loads."""
    while problems := _problems(importing.values):
        for key in _GIVEN_UP:
            left = {place: carried for place, carried in importing.values.items() if place != ("", key)}
            if len(left) < len(importing.values) and len(_problems(left)) < len(problems):
                importing.drop(key, f"{problems[0]}; {key} follows the other")
                break
        else:
            raise ConfigError("\n".join(f"{importing.path}: {problem}" for problem in problems))


def _problems(values: Mapping[tuple[str, str], Carried]) -> list[str]:
    own = {BY_KEY[key].attribute: carried for (pattern, key), carried in values.items() if not pattern}
    attributes: dict[str, Any] = {name: carried.value for name, carried in own.items()}
    sources = {name: carried.origin for name, carried in own.items()}
    if not attributes.get("users_file"):
        attributes["anonymous"] = "loopback"  # the users file comes from elsewhere
    return checks.contradictions(checks.adapted(BrokerConfig(**attributes, sources=sources)))
