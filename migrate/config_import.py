"""`amq config import`: the configuration of another broker as a TOML file of ours, and a report of it."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Any

import click

from amq.cli import exits
from amq.cli.foreign import properties_of, property_option
from amq.cli.output import counted, examples, json_option, print_json
from amq.config.reading import read_bytes
from amq.core.errors import ConfigError
from amq.security import add_user, list_users

if TYPE_CHECKING:
    from amq_migrate.foreign import Foreign

USERS_FILE, PERMISSIONS_FILE = "users", "permissions.toml"  # beside the configuration file


@click.command(
    "import",
    epilog=examples(
        "amq config import activemq.xml --property activemq.data=/mnt/shared/amq >amq.toml",
        "amq config import activemq.xml --output amq.toml --users users --permissions permissions.toml",
        "amq config import broker.xml --strict --output amq.toml",
        "amq config import broker.xml --output amq.toml --permissions rules.toml --roles artemis-roles.properties",
        "amq config import broker.xml --json",
        "amq config import config.properties --output amq.toml",
    ),
)
@click.argument("file", metavar="FILE", type=click.Path())
@click.option("--output", metavar="FILE.toml", help="Write the configuration here. Default: to stdout.")
@click.option(
    "--users",
    metavar="FILE",
    help="Write the users here, with hashed passwords. Default: nowhere; the configuration names a file `users`.",
)
@click.option(
    "--permissions",
    metavar="FILE",
    help="Write who may what here. Default: nowhere; the configuration names a file `permissions.toml`.",
)
@click.option(
    "--roles",
    metavar="FILE",
    help="The users of the roles: groups.properties or artemis-roles.properties, lines ROLE=USER,USER.",
)
@property_option
@click.option("--force", is_flag=True, help="Overwrite the output, and passwords of users that exist.")
@click.option("--strict", is_flag=True, help="End with code 8 if the file asks for something that is not supported.")
@json_option
def import_(
    file: str,
    output: str | None,
    users: str | None,
    permissions: str | None,
    roles: str | None,
    properties: tuple[str, ...],
    force: bool,
    strict: bool,
    as_json: bool,
) -> None:
    """Write a configuration that says what that of another broker says.

    FILE is activemq.xml of ActiveMQ Classic or JBoss A-MQ 6, broker.xml of Artemis or AMQ 7, hornetq-configuration.xml,
    or config.properties of Sun MQ or Open MQ. The report on stderr has a line for each part of it:

    \b
    - carried: the new configuration says the same
    - natural: amq does so without being told
    - cluster: a cluster does so; the commands that make it come last
    - unsupported: it changes behaviour and amq does not do it; the line says what to do
    - ignored: it has no meaning here

    Messages are not imported. FILE may hold placeholders, ${activemq.data}: they get their values from --property, the
    environment, or the default in them (${port:61613}). `amq start FILE` reads such a file directly. docs/migration.md
    tells more.
    """
    from amq_migrate import foreign  # not for `amq config show`: its tables take time to load
    from amq_migrate.foreign import grants, writing

    data = read_bytes(file)
    known = grants.read_roles(read_bytes(roles), roles) if roles is not None else {}
    read = foreign.read(data, file, properties_of(properties), os.environ, known)
    users_file = _beside(users, output, USERS_FILE) if read.needs_users else ""
    permissions_file = _beside(permissions, output, PERMISSIONS_FILE) if read.permissions is not None else ""
    text = writing.toml(read, users_file, permissions_file)
    rules = writing.permissions_toml(read) if read.permissions is not None else ""
    if permissions is not None and not rules:
        raise ConfigError(f"{file}: has no rules about permissions: leave --permissions out")
    for option, path in (("--output", output), ("--permissions", permissions)):
        if path is not None and not force and os.path.lexists(path):
            raise ConfigError(f"{path} exists: give another {option}, or --force to overwrite it")
    if users is not None:
        _add_users(read, users, force)
    if permissions is not None:
        _write(permissions, rules, 0o640)
    if output is not None:
        _write(output, text)
    if as_json:
        print_json({**_json(read, text, output, users), "permissions_file": permissions, "permissions": rules})
    else:
        _tell(read, text, output, users)
        _tell_permissions(read, permissions)
    if strict and read.report.unsupported():
        raise click.exceptions.Exit(exits.PARTIAL)


def _beside(given: str | None, output: str | None, default: str) -> str:
    """A file as the configuration names it: a bare name where it is beside that, because that directory counts."""
    if given is None:
        return default
    path = os.path.abspath(given)
    beside = output is not None and os.path.dirname(path) == os.path.dirname(os.path.abspath(output))
    return os.path.basename(path) if beside else path


def _add_users(read: Foreign, path: str, replace: bool) -> None:
    from amq_migrate.users import check_users

    check_users(read.users, read.path)
    known = set(list_users(path)) if os.path.lexists(path) else set()
    for user in read.users:  # before the first is added
        if user.name in known and not replace:
            raise ConfigError(f"{path}: the user {user.name} exists: remove it first, or give --force")
    for user in read.users:
        add_user(path, user.name, user.password, replace=True)


def _write(path: str, text: str, new_mode: int = 0o644) -> None:
    """Replace the file in one step, so that a running broker never reads a half."""
    target = os.path.realpath(path)  # a link stays a link
    temporary = f"{target}.new"
    try:
        mode = stat.S_IMODE(os.stat(target).st_mode) if os.path.exists(target) else new_mode
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    except FileExistsError as error:
        raise ConfigError(f"{temporary} exists: an import has crashed, or runs now; after a crash delete it") from error
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except OSError as error:
        os.unlink(temporary)
        raise ConfigError(f"cannot write {path}: {error.strerror}") from error


def _tell(read: Foreign, text: str, output: str | None, users: str | None) -> None:
    if output is None:
        click.echo(text, nl=False)
    for line in read.report.told():
        click.echo(read.report.text(line), err=True)
    click.echo(f"{read.path}: {read.report.summary()}", err=True)
    for command in read.cluster:
        click.echo(f"    {command}", err=True)
    if users is not None:
        click.echo(f"{users}: {counted(len(read.users), 'user')} written", err=True)
    elif read.users:
        number = counted(len(read.users), "user")
        click.echo(f"{number} not written: give --users FILE, or use `amq user add`", err=True)


def _tell_permissions(read: Foreign, path: str | None) -> None:
    if path is not None:
        click.echo(f"{path}: who may what written; everything else is denied", err=True)
    elif read.permissions is not None:
        click.echo("rules not written: give --permissions FILE", err=True)


def _json(read: Foreign, text: str, output: str | None, users: str | None) -> dict[str, Any]:
    return {
        "format": read.format,
        "file": read.path,
        "output": output,
        "toml": text,
        "users_file": users,
        "users": [user.name for user in read.users],
        "counts": read.report.counts(),
        "cluster": list(read.cluster),
        "report": [line.to_json() for line in read.report.lines],
    }
