"""Explained: permissions that remember which entries gave their answers, for people who ask why.

Invariant: the answers are those of `Permissions`; here they are only noted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from amq.core.toml_places import TomlPlaces
from amq.security.login import User
from amq.security.permissions import Entry, Permissions, Right, shown_keys


@dataclass(frozen=True, slots=True)
class AskedEntry:
    """An entry that was asked, about that right. `roles` = those that it gives the right; `ends` = because it denies
    the right, no less specific entry is asked."""

    place: str  # file:line
    entry: str  # as the file names it
    right: Right
    roles: tuple[str, ...]
    grants: bool
    ends: bool


class ExplainedPermissions(Permissions):
    """Made to be asked once: an answer that is remembered has no reasons."""

    _places = TomlPlaces("", "")

    @classmethod
    def of(
        cls, found: Mapping[str, Any], path: str, generation: int = 1, warnings: tuple[str, ...] = (), text: str = ""
    ) -> Self:
        made = super().of(found, path, generation, warnings, text)
        made._places = TomlPlaces(path, text)
        made.reasons = []
        return made

    reasons: list[AskedEntry]

    def known(self, role: str) -> bool:
        """Has the file such a role?"""
        return role in self._roles

    def roles_of(self, user: User) -> list[str]:
        """The roles of `user`, without the one that every user has."""
        return sorted(self._of(user) - {"*"})

    def _grants(self, entry: Entry, right: Right, roles: frozenset[str]) -> bool:
        grants = super()._grants(entry, right, roles)
        reason = AskedEntry(
            self._places.find(*entry.keys, right.value),
            shown_keys(entry.keys),
            right,
            tuple(sorted(entry.roles.get(right, ()))),
            grants,
            entry.only and not grants,
        )
        if reason not in self.reasons:
            self.reasons.append(reason)
        return grants
