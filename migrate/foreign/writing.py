"""A TOML file that says what the configuration of another broker says; each line names its origin.

Invariant: our loader reads the text, and gets exactly these values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from amq.config.destination_options import TABLE
from amq.config.diverts import parse_diverts
from amq.config.loader import LINE_CHARS_MAX
from amq.config.option import ValueKind
from amq.config.reading import TOML_BYTES_MAX
from amq.config.schema import BY_KEY, OPTIONS
from amq.config.toml import quote, value_text
from amq.core.errors import ConfigError
from amq_migrate.foreign import Foreign
from amq_migrate.foreign.importing import Carried
from amq_migrate.foreign.report import ReportLine

TITLES = {"activemq": "ActiveMQ", "artemis": "Artemis", "hornetq": "HornetQ", "sunmq": "Sun MQ"}
LEFT_OUT_MAX = 40  # unsupported parts that the file names


def toml(read: Foreign, users_file: str = "", permissions_file: str = "") -> str:
    """The file. `users_file`, `permissions_file` = where users and permissions go, "" = nowhere. Raises ConfigError if
    it is too large to be read.
    """
    head = [f"# Imported from {read.path}, a configuration of {TITLES[read.format]}, by `amq config import`."]
    named = {
        "usersFile": Carried(users_file, "users, with hashed passwords"),
        "permissionsFile": Carried(permissions_file, "who may what"),
    }
    body = _sections(read, named, commented=True)
    if read.cluster:
        head += ["#", "# A cluster does what its brokers did together (docs/cluster.md):"]
        head += [f"#   {command}"[: LINE_CHARS_MAX - 1] for command in read.cluster]
    text = "\n".join([*head, *_left_out(read), *body, ""])
    if len(text.encode()) > TOML_BYTES_MAX:
        text = "\n".join([*head, *_sections(read, named, commented=False), ""])
    if len(text.encode()) > TOML_BYTES_MAX:
        raise ConfigError(
            f"{read.path}: says more than a configuration file of amq can hold ({TOML_BYTES_MAX} bytes): join settings "
            "of destinations by patterns"
        )
    return text


def permissions_toml(read: Foreign) -> str:
    """The permissions file that says what the rules of the other broker say."""
    document = read.permissions
    assert document is not None
    lines = [
        f"# Imported from {read.path}, a configuration of {TITLES[read.format]}, by `amq config import`.",
        "# docs/security.md says what the entries mean.",
        "",
        "[roles]",
    ]
    lines += [f"{quote(role)} = {_names(users)}" for role, users in document["roles"].items()]
    for section in ("queues", "topics"):
        for pattern, values in document[section].items():
            lines += ["", f"# {read.origins[section, pattern]}", f"[{section}.{quote(pattern)}]"]
            lines += [f"{key} = {'true' if value is True else _names(value)}" for key, value in values.items()]
    manage = document["broker"]["manage"]
    lines += ["", "[broker]", "# prepared transactions of others, scheduled messages", f"manage = {_names(manage)}", ""]
    return "\n".join(lines)


def _names(names: Iterable[str]) -> str:
    return f"[{', '.join(map(quote, names))}]"


def _sections(read: Foreign, named: Mapping[str, Carried], commented: bool) -> list[str]:
    values = dict(read.values)
    values |= {("", key): carried for key, carried in named.items() if carried.value}
    lines: list[str] = []
    section = ""
    for option in OPTIONS:
        carried = values.get(("", option.key))
        if carried is None:
            continue
        if option.section != section:
            section = option.section
            lines += ["", f"[{section}]"]
        lines += _value(option.key, carried, commented)
    patterns = dict.fromkeys(pattern for pattern, _ in values if pattern)
    for pattern in patterns:
        lines += ["", f"[{TABLE}.{quote(pattern)}]"]
        for (each, key), carried in values.items():
            if each == pattern:
                lines += _value(key, carried, commented)
    return lines


def _value(key: str, carried: Carried, commented: bool) -> list[str]:
    origin = carried.origin if carried.part is not None else f"default: {carried.origin}"
    comment = [f"# {origin}"[: LINE_CHARS_MAX - 1]] if commented else []
    items = carried.value
    if BY_KEY[key].kind is ValueKind.DIVERTS:
        items = tuple(map(str, parse_diverts(str(carried.value))))
    if isinstance(items, tuple) and len(items) > 1:
        return [*comment, f"{key} = [", *(f"    {quote(item)}," for item in items), "]"]
    return [*comment, f"{key} = {value_text(BY_KEY[key], carried.value)}"]


def _left_out(read: Foreign) -> list[str]:
    """The parts that are not supported, as comments."""
    found = read.report.unsupported()
    if not found:
        return []
    lines = ["#", "# Not carried over:", *map(_comment, found[:LEFT_OUT_MAX])]
    more = len(found) - LEFT_OUT_MAX
    return [*lines, f"# … and {more} more: the report of the command has all."] if more > 0 else lines


def _comment(line: ReportLine) -> str:
    where = f"line {line.line}, {line.near}" if line.line else line.near
    return f"#   {where}: {line.told}"[: LINE_CHARS_MAX - 1]
