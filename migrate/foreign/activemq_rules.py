"""The part of activemq.xml about rights: `authorizationPlugin` and the groups of users → a permissions file.

All entries for a destination count together there, as here, and `*` is everybody. A default entry counts for all.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from amq.config import names
from amq.core.destination import REST_TEXT
from amq_migrate.foreign.grants import BOTH, QUEUES, TOPICS, Grants, role_names, shown
from amq_migrate.foreign.importing import CONTAINER, FilePart, Importing, Rule, ignored, natural, special, unsupported
from amq_migrate.foreign.report import Status

RIGHTS = ("read", "write", "admin")
ADVISORIES = "ActiveMQ." + REST_TEXT
_KEPT_ELSEWHERE = (
    "amq has another permissions file: write these rules there and set permissionsFile (docs/security.md); until "
    "then every user may do everything"
)
_TEMPORARY = "whoever may log in may make temporary destinations; only the connection that made one consumes it"


class Rules:
    """Gathers the entries of one file. An entry for all topics is for advisories, too, as there."""

    def __init__(self, roles: Mapping[str, Iterable[str]]) -> None:
        self._grants = Grants(roles, only=False)
        self._managers: dict[str, None] = {}  # roles with `admin` for all queues

    def rules(self) -> dict[str, Rule]:
        elsewhere = unsupported(_KEPT_ELSEWHERE, whole=True)
        group_class = ignored("groups are roles here, whatever their class")
        return {
            "authorizationPlugin": CONTAINER,
            "authorizationPlugin/map": CONTAINER,
            "authorizationPlugin@id": ignored(),
            "authorizationMap": special(self._map),
            "authorizationMap@groupClass": group_class,
            "authorizationEntries": CONTAINER,
            "authorizationEntry": special(self._entry, whole=True),
            "authorizationMap/defaultEntry": CONTAINER,
            "defaultEntry/authorizationEntry": special(self._default, whole=True),
            "tempDestinationAuthorizationEntry": unsupported(_TEMPORARY, whole=True),
            "simpleAuthorizationMap": elsewhere,
            "cachedLDAPAuthorizationMap": elsewhere,
            "lDAPAuthorizationMap": elsewhere,
            "messageAuthorizationPolicy": unsupported("no rule of amq looks at the content of a message", whole=True),
            "simpleAuthenticationPlugin@anonymousUser": natural("a client without a login is called anonymous"),
            "simpleAuthenticationPlugin@anonymousGroup": special(self._anonymous),
        }

    def user(self, name: str, groups: str) -> None:
        self._grants.add_user(name, role_names(groups))

    def _map(self, part: FilePart) -> None:
        self._grants.found = True
        part.tell(Status.CARRIED, "")

    def _anonymous(self, part: FilePart) -> None:
        self.user("anonymous", part.value)
        part.tell(Status.CARRIED, "", f"permissions [roles] {part.value} += anonymous")

    def _entry(self, part: FilePart) -> None:
        attributes = part.element.attributes
        if any(attributes.get(key, "false").lower() == "true" for key in ("tempQueue", "tempTopic")):
            part.tell(Status.UNSUPPORTED, _TEMPORARY)
            return
        named = [
            (section, attributes[key]) for section, key in ((QUEUES, "queue"), (TOPICS, "topic")) if key in attributes
        ]
        if not named:
            part.tell(Status.UNSUPPORTED, "it names no queue and no topic")
        for section, text in named:
            for pattern in part.importing.fill(text, part.element, section).split(","):
                self._add(part, pattern.strip(), (section,))

    def _default(self, part: FilePart) -> None:
        self._add(part, REST_TEXT, BOTH)

    def _add(self, part: FilePart, pattern: str, sections: tuple[str, ...]) -> None:
        rights = {
            right: role_names(part.importing.fill(part.element.attributes.get(right, ""), part.element, right))
            for right in RIGHTS
        }
        patterns = [pattern]
        if TOPICS in sections and pattern == REST_TEXT:
            patterns.append(ADVISORIES)
        for each in patterns:
            for section in sections if each == pattern else (TOPICS,):
                try:
                    (entry,) = self._grants.entry(part, each, (section,))
                except ValueError as error:
                    part.tell(Status.UNSUPPORTED, f'the pattern "{names.shorten(each)}" {error}')
                    continue
                for right, roles in rights.items():
                    self._grants.grant(entry, right, roles)
                if section == QUEUES and each == REST_TEXT:
                    self._managers |= dict.fromkeys(rights["admin"])
                said = [shown(section, each, right, roles) for right, roles in rights.items() if roles]
                part.tell(Status.CARRIED, "", *said)

    def finish(self, importing: Importing) -> None:
        self._grants.manage(self._managers)
        self._grants.finish(importing)
