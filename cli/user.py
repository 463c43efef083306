"""`amq user add|remove|list` edits the users file (`usersFile`). A running broker reads a changed file by itself."""

from __future__ import annotations

import sys

import click

from amq.cli.output import examples, json_option, print_json
from amq.core.errors import ConfigError
from amq.security import add_user, list_users, remove_user

users_option = click.option("--users", metavar="FILE", required=True, envvar="AMQ_USERS_FILE", help="The users file.")


@click.group(epilog=examples("amq user add alice --users /etc/amq/users", "amq user list --users /etc/amq/users"))
def user() -> None:
    """Manage the users file.

    The file holds names and salted password hashes; docs/security.md explains how brokers use it.
    """


@user.command(
    epilog=examples(
        "amq user add alice --users /etc/amq/users",
        "pwgen 24 1 | amq user add feeder --users /etc/amq/users --password-stdin",
        "amq user add alice --users /etc/amq/users --replace",
    )
)
@click.argument("name")
@users_option
@click.option("--password-stdin", is_flag=True, help="Read the password from the first line of stdin.")
@click.option("--replace", is_flag=True, help="Give an existing user a new password.")
def add(name: str, users: str, password_stdin: bool, replace: bool) -> None:
    """Add a user; create the file if it does not exist. The command asks for the password, or reads it from stdin."""
    if password_stdin:
        try:
            password = sys.stdin.readline().rstrip("\r\n")
        except UnicodeDecodeError:
            raise ConfigError("the password is not valid UTF-8", code="PASSWORD_UNUSABLE") from None
    elif sys.stdin.isatty():
        password = click.prompt(f"Password of {name}", hide_input=True, confirmation_prompt=True)
    else:
        raise ConfigError("stdin is not a terminal; pipe the password in and add --password-stdin", code="NO_PASSWORD")
    add_user(users, name, password, replace=replace)
    click.echo(f"{name} can log in")


@user.command(epilog=examples("amq user remove alice --users /etc/amq/users"))
@click.argument("name")
@users_option
def remove(name: str, users: str) -> None:
    """Remove a user. Connections that are logged in stay logged in."""
    remove_user(users, name)
    click.echo(f"{name} can no longer log in")


@user.command("list", epilog=examples("amq user list --users /etc/amq/users --json"))
@users_option
@json_option
def list_(users: str, as_json: bool) -> None:
    """List the users, in the order of the file."""
    names = list_users(users)
    if as_json:
        print_json(names)
    else:
        for name in names:
            click.echo(name)
