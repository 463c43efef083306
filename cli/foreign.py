"""The configuration of another broker where a command takes our own: `amq_migrate`, imported on demand, reads it."""

from __future__ import annotations

import os
from collections.abc import Mapping

import click

from amq.config.loader import Imported
from amq.security import Users
from amq.security.permissions import Permissions

property_option = click.option(
    "--property",
    "properties",
    metavar="NAME=VALUE",
    multiple=True,
    help="The value of a placeholder ${NAME} in the configuration of another broker. May be repeated; wins over the "
    "environment.",
)


def properties_of(given: tuple[str, ...]) -> dict[str, str]:
    """`--property` arguments by name; the last one of a name counts."""
    found = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not equals or not name.strip():
            raise click.UsageError(f"--property {each}: write NAME=VALUE")
        found[name.strip()] = value
    return found


def read_foreign(data: bytes, path: str, properties: Mapping[str, str], env: Mapping[str, str]) -> Imported:
    """For `amq.config.load`. Raises ConfigError."""
    from amq_migrate import foreign

    return foreign.imported(data, path, properties, env)


def read_users(path: str, config_file: str | None, properties: Mapping[str, str]) -> Users:
    """The users in the file `path`, which is `config_file` if that is another broker's. Raises ConfigError."""
    if config_file is None or os.path.abspath(config_file) != path:
        return Users.read(path)
    from amq_migrate import users

    return users.read_users(path, properties)


def read_permissions(
    path: str, config_file: str | None, properties: Mapping[str, str], generation: int = 1
) -> Permissions:
    """The rules in the file `path`, which is `config_file` if that is another broker's. Raises ConfigError."""
    if config_file is None or os.path.abspath(config_file) != path:
        return Permissions.read(path, generation)
    from amq_migrate import users

    return users.read_permissions(path, properties, generation)
