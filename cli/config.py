"""`amq config show|check|import|reference`: the configuration of a broker and the source of each value."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from typing import Any

import click

from amq.cli import exits
from amq.cli.foreign import properties_of, property_option, read_foreign, read_permissions, read_users
from amq.cli.output import examples, json_option, print_json, print_table
from amq.config import BrokerConfig, Setting, ValueKind, load
from amq.config.destination_options import TABLE
from amq.config.reference import options_text
from amq.config.toml import quote, value_text
from amq.core.errors import ConfigError
from amq.node.certificate import OwnCertificate
from amq.node.logins import OwnLogins
from amq.security import LoginGate
from amq.store.host import Owner, SystemHost
from amq_migrate.config_import import import_


@click.group(
    epilog=examples(
        "amq config reference",
        "amq config show",
        "amq config show /etc/amq/amq.toml -o lockKeepAlivePeriod=5s",
        "amq config check /etc/amq/amq.toml",
        "amq config import activemq.xml --output amq.toml --users users",
    )
)
def config() -> None:
    """Show or check the configuration, or import that of another broker.

    `amq config reference` explains every option.
    """


config.add_command(import_)


@config.command(epilog=examples("amq config reference | less"))
def reference() -> None:
    """Print every option: meaning, values, default, and reasons to change it, in Markdown."""
    click.echo(options_text(), nl=False)


@config.command(
    epilog=examples(
        "amq config show amq.toml --json",
        "amq config show --toml >amq.toml",
        "AMQ_LOG_LEVEL=debug amq config show",
    )
)
@click.argument("config_file", metavar="[CONFIG]", required=False, type=click.Path())
@click.option(
    "-o",
    "--option",
    "options",
    metavar="KEY=VALUE",
    multiple=True,
    help="Set an option, as for `amq start`. May be repeated.",
)
@property_option
@json_option
@click.option("--toml", "as_toml", is_flag=True, help="Print a TOML file that sets every option.")
def show(
    config_file: str | None, options: tuple[str, ...], properties: tuple[str, ...], as_json: bool, as_toml: bool
) -> None:
    """Show every option with its effective value and the source of the value.

    The command reads the configuration as `amq start` does: defaults, the file, environment variables AMQ_…, then -o.
    """
    if as_json and as_toml:
        raise click.UsageError("give one of --json and --toml")
    effective = load(config_file, os.environ, options, properties=properties_of(properties), read_foreign=read_foreign)
    _warn(*effective.warnings)
    settings = effective.explain()
    if as_json:
        print_json([_setting_json(setting) for setting in settings])
    elif as_toml:
        click.echo(_toml(settings), nl=False)
    else:
        print_table(
            ("section", "option", "value", "from", "live"),
            [
                (_section(setting), made.key, setting.value, setting.source, "yes" if made.reload else "restart")
                for setting in settings
                for made in (setting.option,)
            ],
        )


@config.command(epilog=examples("amq config check /etc/amq/amq.toml", "amq config check amq.toml -o anonymous=no"))
@click.argument("config_file", metavar="[CONFIG]", required=False, type=click.Path())
@click.option(
    "-o",
    "--option",
    "options",
    metavar="KEY=VALUE",
    multiple=True,
    help="Set an option, as for `amq start`. May be repeated.",
)
@property_option
@json_option
def check(config_file: str | None, options: tuple[str, ...], properties: tuple[str, ...], as_json: bool) -> None:
    """Check the configuration as `amq start` would.

    Each problem is one line with file and line number; with a problem the exit code is 3. Warnings name settings that
    are allowed but probably not meant. The store may be missing, because `amq start --store` can set it.
    """
    try:
        effective = load(
            config_file, os.environ, options, properties=properties_of(properties), read_foreign=read_foreign
        )
        more = _try(effective, config_file, properties_of(properties))
    except ConfigError as error:
        if not as_json:
            raise
        print_json({"ok": False, "problems": error.description.split("\n"), "warnings": []})
        raise click.exceptions.Exit(exits.CONFIG) from error
    if as_json:
        print_json({"ok": True, "problems": [], "warnings": [*effective.warnings, *more]})
        return
    _warn(*effective.warnings, *more)
    lacks = "" if effective.store else "; set its store by --store or AMQ_STORE"
    click.echo(f"{config_file or 'the configuration'}: a broker can start with it{lacks}")


def _try(effective: BrokerConfig, config_file: str | None, properties: Mapping[str, str]) -> tuple[str, ...]:
    """Check what a broker checks before it starts. Returns warnings; raises ConfigError."""
    gate = LoginGate("", "yes")

    def names() -> tuple[str, ...]:
        Owner.make(
            SystemHost(),
            name=effective.name,
            uuid="",
            transport_urls=effective.transports,
            lock_keep_alive_period_s=effective.lock_keep_alive_period_s,
        )
        return ()

    def users() -> tuple[str, ...]:
        found = read_users(effective.users_file, config_file, properties) if effective.users_file else None
        return found.warnings if found is not None else ()

    def permissions() -> tuple[str, ...]:
        path = effective.permissions_file
        return read_permissions(path, config_file, properties).warnings if path else ()

    def certificates() -> tuple[str, ...]:
        mine = OwnCertificate(effective, gate)
        expiry = mine.credentials.expiry_warning()
        return (*mine.warnings(effective), *((expiry,) if expiry else ()))

    def logins() -> tuple[str, ...]:
        OwnLogins(effective, gate)
        return ()

    problems, warnings = list[str](), list[str]()
    try:
        for check_one in (names, users, permissions, certificates, logins):
            try:
                warnings += check_one()
            except ConfigError as error:
                problems.append(error.description)
    finally:
        gate.close()
    if problems:
        raise ConfigError("\n".join(problems))
    return tuple(warnings)


def _warn(*warnings: str) -> None:
    for warning in warnings:
        click.echo(f"amq: warning: {warning}", err=True)


def _section(setting: Setting) -> str:
    """The TOML table of the setting."""
    return f"{TABLE}.{quote(setting.destination)}" if setting.destination else setting.option.section


def _setting_json(setting: Setting) -> dict[str, Any]:
    made = setting.option
    value = made.parse(setting.value)
    return {
        "section": made.section,
        "scope": made.scope.value,
        "destination": setting.destination,
        "key": made.key,
        "value": list(value) if isinstance(value, tuple) else value,
        "unit": {ValueKind.DURATION: "s", ValueKind.SIZE: "bytes"}.get(made.kind, ""),
        "text": setting.value,
        "source": setting.source,
        "live": made.reload,
        "help": made.help,
    }


def _toml(settings: list[Setting]) -> str:
    lines: list[str] = []
    section = ""
    for setting in settings:
        made = setting.option
        if _section(setting) != section:
            section = _section(setting)
            lines += ["", f"[{section}]"] if lines else [f"[{section}]"]
        lines.append(f"{made.key} = {value_text(made, made.parse(setting.value))}")
    text = "\n".join(lines) + "\n"
    assert tomllib.loads(text)
    return text
