"""Permissions: who may do what with which destinations, as one file says it.

    [roles]
    shop = ["alice", "web"]

    [queues."orders.>"]
    read = ["warehouse"]
    write = ["shop"]

    [topics."prices.*"]
    read = ["*"]

    [batches.">"]
    write = ["spark"]

    [broker]
    manage = ["operators"]

Invariants: no entry, no right; the answer depends on the file alone, and never on what the broker has, so a refusal
does not tell whether a name exists; a parsed file is bounded. All entries that match a name count together, as in
ActiveMQ. `only = true`, as entries of Artemis have it, ends the search: less specific entries do not count for
the names of that one. A pattern whose first word is a wildcard stands for no advisory: those tell of all destinations.
"""

from __future__ import annotations

import difflib
import stat
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import combinations
from typing import Any, Final, Self

from amq.core.destination import (
    ANY_REST,
    QUEUE_SCHEME,
    TOPIC_SCHEME,
    Pattern,
    artemis_specificity,
    common,
    covers,
    matches,
    pattern_words,
    specificity,
)
from amq.core.errors import ConfigError
from amq.core.toml_places import TomlPlaces
from amq.security import files
from amq.security.login import User

FILE_BYTES_MAX: Final = 4 << 20
ENTRIES_MAX: Final = 10_000
REMEMBERED_MAX: Final = 10_000
NAME_CHARS_REMEMBERED_MAX: Final = 256
COMPARED_MAX: Final = 1000  # entries of which pairs are looked at: 0.1 s
WARNINGS_MAX: Final = 10
EVERYBODY: Final = "*"
ADVISORY_WORD: Final = "ActiveMQ"  # the first word of the names of advisories
BATCHES_SCHEME: Final = "batches://"  # before the name of an owner of batches
_SECTIONS: Final = {"queues": QUEUE_SCHEME, "topics": TOPIC_SCHEME, "batches": BATCHES_SCHEME}
_CODE: Final = "PERMISSIONS_FILE_INVALID"


class Right(Enum):
    """The value is the key in the file."""

    READ = "read"
    WRITE = "write"
    ADMIN = "admin"
    BROWSE = "browse"
    MANAGE = "manage"


_OF_DESTINATIONS: Final = (Right.READ, Right.WRITE, Right.ADMIN, Right.BROWSE)
_OF_BATCHES: Final = (Right.WRITE,)


@dataclass(frozen=True, slots=True)
class Entry:
    """The roles that have rights on destinations of one pattern. `only`: less specific entries do not count. `keys`
    lead to it from the top of the file."""

    scheme: str
    words: tuple[str, ...]
    roles: Mapping[Right, frozenset[str]]
    only: bool = False
    keys: tuple[str, ...] = ()

    def stands_for(self, words: Sequence[str]) -> bool:
        return not _leaves_out(self.scheme, self.words, words) and matches(self.words, words)


class Permissions:
    """The rules of one file. Immutable but for what it remembers. `generation` counts the files that were read."""

    def __init__(
        self,
        entries: Sequence[Entry],
        roles: Mapping[str, frozenset[str]],
        manage: frozenset[str] = frozenset(),
        warnings: tuple[str, ...] = (),
        generation: int = 1,
    ) -> None:
        """`roles` = their users; `manage` = the roles that have that right."""
        self.warnings = warnings
        self.generation = generation
        self._entries: dict[str, list[Entry]] = {}
        for entry in sorted(entries, key=lambda each: specificity(each.words)):
            self._entries.setdefault(entry.scheme, []).append(entry)
        self._roles = dict(roles)
        self._broker = Entry("", (), {Right.MANAGE: manage}, keys=("broker",))
        self._roles_of: dict[User, frozenset[str]] = {}
        self._remembered: dict[tuple[User, Right, str], bool] = {}

    def __len__(self) -> int:
        return sum(map(len, self._entries.values()))

    def may(self, user: User, right: Right, name: str) -> bool:
        """Has `user` that right on the destination of the full name `name`?"""
        key = user, right, name
        answer = self._remembered.get(key)
        if answer is None:
            scheme, separator, rest = name.partition("://")
            answer = self._find(self._of(user), right, scheme + separator, rest.split("."))
            if len(name) <= NAME_CHARS_REMEMBERED_MAX:
                if len(self._remembered) >= REMEMBERED_MAX:
                    self._remembered.clear()
                self._remembered[key] = answer
        return answer

    def entries(self) -> list[Entry]:
        """All of them, and one without a scheme for the right to manage the broker."""
        return [self._broker, *(entry for entries in self._entries.values() for entry in entries)]

    def named(self, user: str) -> list[str]:
        """The roles that the file gives a user of that name."""
        return [role for role, users in self._roles.items() if user in users or EVERYBODY in users]

    def may_manage(self, user: User) -> bool:
        """The broker as a whole: prepared transactions of others, scheduled messages."""
        return self._grants(self._broker, Right.MANAGE, self._of(user))

    def may_some(self, user: User, right: Right, scheme: str, words: Sequence[str]) -> bool:
        """Could `user` have that right on a destination of this pattern?"""
        roles = self._of(user)
        return any(
            self._grants(entry, right, roles)
            for entry in self._entries.get(scheme, ())
            if _intersect(scheme, entry.words, words)
        )

    def may_all(self, user: User, right: Right, scheme: str, words: Sequence[str]) -> bool:
        """Has `user` that right on whatever destination of this pattern there will be?"""
        roles = self._of(user)
        entries = self._entries.get(scheme, [])
        closed = (entry for entry in entries if entry.only and _intersect(scheme, entry.words, words))
        if not all(self._grants(entry, right, roles) for entry in closed):
            return False
        return any(self._grants(entry, right, roles) for entry in entries if _covers(scheme, entry.words, words))

    def _find(self, roles: frozenset[str], right: Right, scheme: str, words: list[str]) -> bool:
        for entry in self._entries.get(scheme, ()):
            if entry.stands_for(words):
                if self._grants(entry, right, roles):
                    return True
                if entry.only:
                    return False
        return False

    def _grants(self, entry: Entry, right: Right, roles: frozenset[str]) -> bool:
        """Each answer comes from here, for entries that are about what was asked."""
        return not entry.roles.get(right, frozenset()).isdisjoint(roles)

    def _of(self, user: User) -> frozenset[str]:
        """The roles of that user: those that the file gives the name, and those of the file that the login brings."""
        found = self._roles_of.get(user)
        if found is None:
            named = (
                role
                for role, users in self._roles.items()
                if user.name in users or EVERYBODY in users or role in user.roles
            )
            found = frozenset((EVERYBODY, *named))
            if len(self._roles_of) >= REMEMBERED_MAX:
                self._roles_of.clear()
            self._roles_of[user] = found
        return found

    @classmethod
    def read(cls, path: str, generation: int = 1) -> Self:
        """Read the file. Raises ConfigError that names the file and the mistake."""
        cure = "correct the name, or make it readable for the broker's user"
        data, mode = files.read(path, f"the permissions in {path}", cure, "PERMISSIONS_FILE_UNREADABLE", FILE_BYTES_MAX)
        if len(data) > FILE_BYTES_MAX:
            raise ConfigError(f"{path} has more than {FILE_BYTES_MAX} bytes: name fewer users", code=_CODE)
        try:
            text = data.decode("utf-8-sig")
            found = tomllib.loads(text)
        except ValueError as error:
            raise ConfigError(f"{path}: {error}", code=_CODE) from error
        except RecursionError as error:
            raise ConfigError(f"{path}: it is nested too deeply", code=_CODE) from error
        warnings = (
            (f"{path}: everybody on this host can write the permissions: chmod 640",) if mode & stat.S_IWOTH else ()
        )
        return cls.of(found, path, generation, warnings, text)

    @classmethod
    def of(
        cls, found: Mapping[str, Any], path: str, generation: int = 1, warnings: tuple[str, ...] = (), text: str = ""
    ) -> Self:
        """The rules that `found` holds, the content of the file `path`. `text` = that, if it is TOML: errors name the
        line then. Raises ConfigError.
        """
        try:
            entries, roles, manage = _parse(found)
        except _MistakeError as error:
            raise ConfigError(f"{TomlPlaces(path, text).find(*error.keys)}: {error}", code=_CODE) from error
        return cls(entries, roles, manage, (*warnings, *_reordered(entries, path)), generation)


def _reordered(entries: Sequence[Entry], path: str) -> list[str]:
    """Warnings: pairs of entries of which 0.1 asked the other one first, where that may change an answer.

    An answer depends on the order only where one of the two has `only`. An entry with `only` for the names that both
    match decides these alone, then and now: it ends the warning, too.
    """
    if len(entries) > COMPARED_MAX:
        return []
    closed = {(entry.scheme, entry.words) for entry in entries if entry.only}
    warnings: list[str] = []
    for one, other in combinations(sorted(entries, key=lambda each: specificity(each.words)), 2):
        if one.scheme != other.scheme or not (one.only or other.only) or one.roles == other.roles:
            continue
        if artemis_specificity(one.words) <= artemis_specificity(other.words):
            continue
        names = common(one.words, other.words)
        if names is None or (one.scheme, names) in closed:
            continue
        warnings.append(
            f"{path}: for names that match both {shown_keys(one.keys)} and {shown_keys(other.keys)} the first one "
            f"decides; 0.1 asked the second first. Write an entry for {Pattern(one.scheme, names)} with only = true "
            "to say which rights you want there"
        )
        if len(warnings) == WARNINGS_MAX:
            break
    return warnings


def _leaves_out(scheme: str, wide: Sequence[str], narrow: Sequence[str]) -> bool:
    """Return whether `narrow` names advisories and `wide`, a pattern of destinations of any kind, does not: advisories
    are topics whose first word is `ActiveMQ`. A queue of such a name (`ActiveMQ.DLQ`) is a queue like others."""
    return scheme == TOPIC_SCHEME and narrow[0] == ADVISORY_WORD != wide[0]


def _intersect(scheme: str, one: Sequence[str], other: Sequence[str]) -> bool:
    """Is there a name for which both patterns stand?"""
    if _leaves_out(scheme, one, other) or _leaves_out(scheme, other, one):
        return False
    return common(one, other) is not None


def _covers(scheme: str, wide: Sequence[str], narrow: Sequence[str]) -> bool:
    """Does `wide` stand for all names that `narrow` stands for?"""
    return not _leaves_out(scheme, wide, narrow) and covers(wide, narrow)


class _MistakeError(ValueError):
    """The value at `keys`, which lead to it from the top of the file, is wrong."""

    def __init__(self, keys: Sequence[str], why: str) -> None:
        super().__init__(f"{shown_keys(keys)}: {why}")
        self.keys = tuple(keys)


def shown_keys(keys: Sequence[str]) -> str:
    """The keys as the file has them: `queues."orders.>".read`."""
    if not keys:
        return "the file"
    return ".".join(f'"{key}"' if number == 1 and keys[0] in _SECTIONS else key for number, key in enumerate(keys))


def _parse(found: Mapping[str, Any]) -> tuple[list[Entry], dict[str, frozenset[str]], frozenset[str]]:
    """Raises _MistakeError."""
    _known(found, ("roles", "broker", *_SECTIONS), ())
    roles = {role: frozenset(_names(users, ("roles", role))) for role, users in _table(found, "roles").items()}
    if EVERYBODY in roles:
        raise _MistakeError(("roles", EVERYBODY), '"*" stands for everybody already: give the role another name')
    broker = _table(found, "broker")
    _known(broker, (Right.MANAGE.value,), ("broker",))
    manage = _roles(broker.get(Right.MANAGE.value, []), roles, ("broker", Right.MANAGE.value))
    entries: list[Entry] = []
    for section, scheme in _SECTIONS.items():
        for pattern, values in _table(found, section).items():
            entries.append(_entry(scheme, pattern, values, roles, (section, pattern)))
    if len(entries) > ENTRIES_MAX:
        raise _MistakeError((), f"it has {len(entries)} entries, more than {ENTRIES_MAX}: use wildcards")
    return entries, roles, manage


def _entry(scheme: str, pattern: str, values: object, roles: Mapping[str, object], keys: tuple[str, ...]) -> Entry:
    if not isinstance(values, dict):
        raise _MistakeError(keys, f"write a table: [{shown_keys(keys)}]")
    words = pattern_words(pattern)
    if "" in words or ANY_REST in words[:-1] or "\0" in pattern:
        raise _MistakeError(keys, 'write words with dots between, "*" for one word, and a last ">" for all others')
    rights = _OF_BATCHES if scheme == BATCHES_SCHEME else _OF_DESTINATIONS
    _known(values, (*(right.value for right in rights), "only"), keys)
    only = values.get("only", False)
    if not isinstance(only, bool):
        raise _MistakeError((*keys, "only"), "write true or false")
    granted = {
        right: _roles(values[right.value], roles, (*keys, right.value)) for right in rights if right.value in values
    }
    return Entry(scheme, words, granted, only, keys)


def _roles(value: object, known: Mapping[str, object], keys: tuple[str, ...]) -> frozenset[str]:
    names = frozenset(_names(value, keys))
    for name in sorted(names - known.keys() - {EVERYBODY}):
        near = difflib.get_close_matches(name, known, n=1)
        cure = f"did you mean {near[0]}?" if near else "add it there"
        raise _MistakeError(keys, f'the role "{name}" is not in [roles]: {cure}')
    return names


def _names(value: object, keys: tuple[str, ...]) -> Iterator[str]:
    if not isinstance(value, list):
        raise _MistakeError(keys, 'write a list of names: ["alice"]')
    for name in value:
        if not isinstance(name, str) or not name:
            raise _MistakeError(keys, 'write names in quotes: ["alice"]')
        yield name


def _table(found: Mapping[str, Any], name: str) -> dict[str, Any]:
    table = found.get(name, {})
    if not isinstance(table, dict):
        raise _MistakeError((name,), f"write a table: [{name}]")
    return table


def _known(found: Mapping[str, object], known: Sequence[str], keys: tuple[str, ...]) -> None:
    for key in found:
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            cure = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
            raise _MistakeError((*keys, key), f'"{key}" is unknown; {cure}')
