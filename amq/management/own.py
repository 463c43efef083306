"""Own: what the process of a broker knows of itself, also as a slave: configuration, users, rights, what happened.

Invariant: nothing here tells a secret. Configuration names files of passwords and keys and never holds one; of users
the names are shown, and of hashes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from amq.config.option import Setting
from amq.config.schema import BrokerConfig
from amq.core.destination import ANY_WORD, QUEUE_SCHEME, TOPIC_SCHEME
from amq.management import history
from amq.management.history import History
from amq.management.listing import Row, Table
from amq.security.permissions import BATCHES_SCHEME, EVERYBODY, Entry, Permissions, Right

NAMES_CHARS_MAX: Final = 1000  # of a list of names in a row
WILD: Final = ANY_WORD[0]  # marks a wildcard among words
_SECTIONS: Final = {QUEUE_SCHEME: "queues", TOPIC_SCHEME: "topics", BATCHES_SCHEME: "batches"}


class Knows(Protocol):
    """The process, as far as these lists need it."""

    @property
    def config(self) -> BrokerConfig: ...

    @property
    def users(self) -> Sequence[str]:
        """Names of the users file."""
        ...

    @property
    def permissions(self) -> Permissions | None:
        """The permissions; None = there are none: every user may do everything."""
        ...

    @property
    def history(self) -> History: ...


Listing = Callable[[Knows], tuple[Table[Any], Iterable[Any]]]


def configuration(source: Knows) -> tuple[Table[Setting], Iterable[Setting]]:
    """Every option with its value, where that came from, and whether a changed file counts at once."""

    def more(setting: Setting) -> Row:
        made = setting.option
        return {
            "section": made.section,
            "scope": made.scope.value,
            "destination": setting.destination,
            "value": setting.value,
            "source": setting.source,
            "live": made.reload,
            "help": made.help,
        }

    return Table(lambda setting: setting.option.key, {}, more), source.config.explain()


def users(source: Knows) -> tuple[Table[str], Iterable[str]]:
    """Users of the users file, with the roles that the permissions file gives them."""
    permissions = source.permissions
    return (
        Table(lambda name: name, {}, lambda name: {"roles": _names(permissions.named(name)) if permissions else ""}),
        source.users,
    )


def rights(source: Knows) -> tuple[Table[Entry], Iterable[Entry]]:
    """The entries of the permissions file: which roles have which right. The right to manage the broker is one, too."""

    def more(entry: Entry) -> Row:
        granted = {right.value: _names(entry.roles.get(right, ())) for right in Right}
        return {**granted, "only": entry.only}

    def name(entry: Entry) -> str:
        return f"{_SECTIONS[entry.scheme]} {'.'.join(entry.words).replace(WILD, '')}" if entry.scheme else "broker"

    permissions = source.permissions
    if permissions is None:
        return Table(name, {}, more), [Entry("", (), {right: frozenset((EVERYBODY,)) for right in Right})]
    return Table(name, {}, more), permissions.entries()


def happened(source: Knows) -> tuple[Table[Row], Iterable[Row]]:
    return history.table(), source.history.rows()


def _names(found: Iterable[str]) -> str:
    text = ", ".join(sorted(found))
    return text if len(text) <= NAMES_CHARS_MAX else text[:NAMES_CHARS_MAX] + "…"


LISTS: Final[Mapping[str, Listing]] = {
    "/configuration": configuration,
    "/users": users,
    "/rights": rights,
    "/history": happened,
}
