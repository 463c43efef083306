"""Grants: who may what, as the rules of ActiveMQ and Artemis say it → the content of a permissions file of ours.

Invariant: the result allows nobody what the other broker's file denies, but for what its report tells. `amq.security`
reads the result, as a permissions file or directly, so both say the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from amq.config import names
from amq.config.patterns import TEXT_CHARS_MAX
from amq.config.toml import quote
from amq.core.destination import (
    ANY_REST,
    REST_TEXT,
    WORD_TEXT,
    Pattern,
    artemis_specificity,
    common,
    covers,
    pattern_words,
    specificity,
)
from amq.core.errors import ConfigError
from amq_migrate.foreign.document import Element
from amq_migrate.foreign.importing import FilePart, Importing
from amq_migrate.foreign.report import Status

ENTRIES_MAX: Final = 10_000  # as amq.security.permissions
EVERYBODY: Final = "*"
ROLES_TOLD: Final = 10
QUEUES, TOPICS = "queues", "topics"
BOTH: Final = (QUEUES, TOPICS)


@dataclass(slots=True)
class GrantEntry:
    """The roles with each right on the destinations of one pattern, and where that is written."""

    origin: str
    rights: dict[str, dict[str, None]] = field(default_factory=dict)


class Grants:
    """Gathers the rules of one file. `only`: of several entries for a name the most specific one decides alone."""

    def __init__(self, given: Mapping[str, Iterable[str]], *, only: bool) -> None:
        """`given` = users by role, from a file of roles."""
        self.found = False  # does the file have rules at all?
        self._only = only
        self._users: dict[str, dict[str, None]] = {role: dict.fromkeys(users) for role, users in given.items()}
        self._named: dict[str, None] = {}
        self._manage: dict[str, None] = {}
        self._entries: dict[tuple[str, str], GrantEntry] = {}

    def add_user(self, user: str, roles: Iterable[str]) -> None:
        """No user is called "*"; in a permissions file that is everybody."""
        for role in roles if user != EVERYBODY else ():
            self._users.setdefault(role, {})[user] = None

    def entry(self, part: FilePart, pattern: str, sections: Iterable[str]) -> list[GrantEntry]:
        """The entries for destinations of `pattern`, new or not. Raises ValueError with the rest of a sentence."""
        check_pattern(pattern)
        entries = []
        for section in sections:
            if len(self._entries) >= ENTRIES_MAX:
                path = part.importing.path
                raise ConfigError(f"{path}:{part.line}: has more than {ENTRIES_MAX} rules: use wildcards")
            entries.append(self._entries.setdefault((section, pattern), GrantEntry(part.origin)))
        return entries

    def replace(self, pattern: str, sections: Iterable[str]) -> None:
        """An entry for the same pattern comes later in the file, and counts alone."""
        for section in sections:
            self._entries.pop((section, pattern), None)

    def as_artemis(self, importing: Importing) -> None:
        """Artemis asks the most specific of several entries by another rule. Where that one is not the first one here,
        give the names that both match a separate entry, with the rights that they have there."""
        for section in BOTH:
            given = {pattern_words(name): entry for (of, name), entry in self._entries.items() if of == section}
            known, unseen = dict(given), list(given)
            while unseen:
                one = unseen.pop()
                for other in list(known):
                    names = common(one, other)
                    if names is None or names in known:
                        continue
                    theirs = given[min((each for each in given if covers(each, names)), key=artemis_specificity)]
                    if known[min((each for each in known if covers(each, names)), key=specificity)] is theirs:
                        continue
                    if len(self._entries) >= ENTRIES_MAX:
                        raise ConfigError(f"{importing.path}: needs more than {ENTRIES_MAX} rules: use fewer wildcards")
                    known[names] = theirs
                    self._entries[section, str(Pattern("", names))] = theirs
                    unseen.append(names)

    def grant(self, entry: GrantEntry, right: str, roles: Iterable[str]) -> None:
        known = entry.rights.setdefault(right, {})
        for role in roles:
            known[role] = None
            if role != EVERYBODY:
                self._named[role] = None

    def manage(self, roles: Iterable[str]) -> None:
        """These roles alone have that right."""
        self._manage = dict.fromkeys(roles)
        self._named |= self._manage

    def finish(self, importing: Importing) -> None:
        """Hand the result over, and tell which roles nobody has."""
        if not self.found:
            return
        importing.permissions = self._document()
        importing.permissions_origins = {place: entry.origin for place, entry in self._entries.items()}
        vacant = [role for role in self._named if not self._users.get(role)]
        if vacant:
            shown = ", ".join(map(names.shorten, vacant[:ROLES_TOLD])) + (", …" if len(vacant) > ROLES_TOLD else "")
            importing.report.add(
                None,
                "",
                Status.UNSUPPORTED,
                f"no user has the roles {shown}: give groups.properties or artemis-roles.properties with --roles FILE, "
                "or write the users into [roles] of the permissions file",
            )

    def _document(self) -> dict[str, Any]:
        document: dict[str, Any] = {
            "roles": {role: list(self._users.get(role, ())) for role in self._named},
            QUEUES: {},
            TOPICS: {},
            "broker": {"manage": list(self._manage)},
        }
        for (section, pattern), entry in self._entries.items():
            values: dict[str, Any] = {"only": True} if self._only else {}
            document[section][pattern] = values | {right: list(roles) for right, roles in entry.rights.items()}
        return document


def check_pattern(pattern: str) -> None:
    """Raises ValueError with the rest of a sentence where a permissions file cannot name it."""
    words = pattern_words(pattern)
    if len(pattern) > TEXT_CHARS_MAX or not pattern.isprintable():
        raise ValueError("is too long, or has characters that cannot be printed")
    if not all(words) or ANY_REST in words[:-1]:
        raise ValueError("is not a pattern of amq: words with dots between, * for one word, > for all further ones")
    if any((WORD_TEXT in word or REST_TEXT in word) and not word.startswith("\0") for word in words):
        raise ValueError("has a wildcard for a part of a word: * and > stand for whole words")


def role_names(text: str) -> list[str]:
    """`admins, users` → names, in their order."""
    return list(dict.fromkeys(filter(None, (each.strip() for each in text.split(",")))))


def shown(section: str, pattern: str, right: str, roles: Iterable[str]) -> str:
    """How the permissions file says it, for the report."""
    return f"permissions [{section}.{quote(pattern)}] {right} = [{', '.join(map(quote, roles))}]"


def tell(part: FilePart, element: Element, status: Status, told: str, *options: str) -> None:
    """Report what becomes of an element in that of `part`."""
    part.importing.report.add(element, "", status, told, options)


# -- groups.properties, artemis-roles.properties -----------------------------------------------------------------------

_LINE: Final = re.compile(r"([^=:\s]+)\s*[=:]\s*(.*)")


def read_roles(data: bytes, path: str) -> dict[str, list[str]]:
    """Users by role, from a Java properties file: `role=user,user`. Raises ConfigError with the line."""
    found: dict[str, list[str]] = {}
    try:
        lines = data.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text") from error
    before = ""
    for number, raw in enumerate(lines, 1):
        line = before + raw.strip()
        before = ""
        if line.endswith("\\"):
            before = line[:-1]
            continue
        if not line or line[0] in "#!":
            continue
        match = _LINE.fullmatch(line)
        if match is None or not line.isprintable() or "\\" in line:
            raise ConfigError(f"{path}:{number}: write a role and its users: admins=alice,bob")
        users = role_names(match[2])
        if EVERYBODY in (match[1], *users):
            raise ConfigError(f'{path}:{number}: no role and no user can be called "*"')
        found[match[1]] = users
    return found
