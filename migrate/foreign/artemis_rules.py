"""The part of broker.xml about rights: `security-settings` → a permissions file.

The most specific setting for an address decides alone there: each becomes an entry with `only = true`, for queues and
for topics. Rights to create have no counterpart, since whoever may send or consume makes a queue here.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from amq.config import names
from amq.core.destination import REST_TEXT, artemis_specificity, matches, pattern_words
from amq_migrate.foreign.document import Element
from amq_migrate.foreign.grants import BOTH, EVERYBODY, QUEUES, TOPICS, GrantEntry, Grants, role_names, shown, tell
from amq_migrate.foreign.importing import FilePart, Importing, Rule, special, unsupported
from amq_migrate.foreign.report import Status

MANAGEMENT = "activemq.management"  # the address where Artemis takes orders
# type of a permission → (sections, our right)
_TYPES: Mapping[str, tuple[tuple[str, ...], str]] = {
    "send": (BOTH, "write"),
    "consume": (BOTH, "read"),
    "browse": (BOTH, "browse"),
    "deleteDurableQueue": ((QUEUES,), "admin"),
    "deleteAddress": ((TOPICS,), "admin"),
}
_MADE_ON_DEMAND = "no right is needed: whoever may send or consume makes a queue"
_NATURAL = {
    **dict.fromkeys(("createAddress", "createDurableQueue"), _MADE_ON_DEMAND),
    **dict.fromkeys(("createNonDurableQueue", "createTempQueue"), _MADE_ON_DEMAND),
    **dict.fromkeys(("deleteNonDurableQueue", "deleteTempQueue"), "such queues end with their consumers"),
}
_JMX = "amq has no JMX: see [broker] manage in docs/security.md"
_PREFIX = re.compile(r"jms\.(queue|topic)\.")
_SECTIONS = {"queue": (QUEUES,), "topic": (TOPICS,)}


class AddressSettings:
    """Gathers the settings of one file, of which the last one for a pattern counts."""

    def __init__(self, roles: Mapping[str, Iterable[str]]) -> None:
        self._grants = Grants(roles, only=True)
        self._managers: dict[str, list[str]] = {}  # pattern → the roles with `manage`
        self._parts: dict[tuple[str, tuple[str, ...]], FilePart] = {}
        self._off = False

    def rules(self) -> dict[str, Rule]:
        return {
            "security-settings": special(self._all),
            "security-setting": special(self._setting, whole=True),
            "role-mapping": unsupported("add the users of the one role to the other in [roles]", whole=True),
        }

    def off(self) -> None:
        """`security-enabled` is false: no rule counts."""
        self._off = True

    def _all(self, part: FilePart) -> None:
        self._grants.found = True
        part.tell(Status.CARRIED, "")

    def _setting(self, part: FilePart) -> None:
        match = part.importing.fill(part.element.attributes.get("match", ""), part.element, "match")
        prefix = _PREFIX.match(match)
        sections = _SECTIONS[prefix[1]] if prefix else BOTH
        try:
            pattern = _pattern(match[prefix.end() :] if prefix else match)
            before = self._parts.get((pattern, sections))
            if before is not None:
                before.tell(Status.UNSUPPORTED, f"the setting in line {part.line} for the same addresses replaces it")
                self._grants.replace(pattern, sections)
            entries = dict(zip(sections, self._grants.entry(part, pattern, sections), strict=True))
        except ValueError as error:
            part.tell(
                Status.UNSUPPORTED,
                f'the pattern "{names.shorten(match)}" {error}; less specific settings count for its addresses',
            )
            return
        self._parts[pattern, sections] = part
        self._managers[pattern] = []
        part.tell(Status.CARRIED, "")
        for child in part.element.children:
            self._permission(part, child, pattern, entries)

    def _permission(self, part: FilePart, element: Element, pattern: str, entries: Mapping[str, GrantEntry]) -> None:
        fill = part.importing.fill
        kind, text = (fill(element.attributes.get(key, ""), element, key) for key in ("type", "roles"))
        roles = role_names(text)
        if EVERYBODY in roles:  # a name as any other there
            roles.remove(EVERYBODY)
            tell(part, element, Status.UNSUPPORTED, 'no role of amq can be called "*", which means everybody')
        if kind in _TYPES:
            of, right = _TYPES[kind]
            sections = [section for section in of if section in entries]
            for section in sections:
                self._grants.grant(entries[section], right, roles)
            said = [shown(section, pattern, right, roles) for section in sections]
            tell(part, element, Status.CARRIED, "" if said else "it is of no use for these addresses", *said)
        elif kind == "manage":
            self._managers[pattern] += roles
            tell(part, element, Status.CARRIED, f"[broker] manage, if it is for {MANAGEMENT}")
        elif kind in _NATURAL:
            tell(part, element, Status.NATURAL, _NATURAL[kind])
        elif kind in ("view", "edit"):
            tell(part, element, Status.IGNORED, _JMX)
        else:
            tell(part, element, Status.UNSUPPORTED, f'amq does not know the permission "{names.shorten(kind)}"')

    def finish(self, importing: Importing) -> None:
        if self._off:
            for part in self._parts.values():
                part.tell(Status.IGNORED, "security-enabled is false")
            return
        words = MANAGEMENT.split(".")
        patterns = [pattern for pattern in self._managers if matches(pattern_words(pattern), words)]
        if patterns:
            closest = min(patterns, key=lambda each: artemis_specificity(pattern_words(each)))
            self._grants.manage(self._managers[closest])
        self._grants.as_artemis(importing)
        self._grants.finish(importing)


def _pattern(match: str) -> str:
    """A pattern of Artemis (`orders.#`) as ours (`orders.>`). Raises ValueError with the rest of a sentence."""
    if "::" in match:
        raise ValueError("names a queue of an address: amq has no queues in addresses")
    if REST_TEXT in match:
        raise ValueError('has a ">", which is a wildcard here')
    if "#" in match[:-1] or (match.endswith("#") and match != "#" and not match.endswith(".#")):
        raise ValueError("has a # before its end, which amq does not have")
    return re.sub("#$", REST_TEXT, match)
