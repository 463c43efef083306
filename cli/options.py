"""Options that several commands declare."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from amq.cli.output import is_terminal

C = TypeVar("C", bound=Callable[..., Any])


def valued(*names: str, type: click.ParamType[Any], default: object, help: str) -> Callable[[C], C]:
    """An option with a value and a default, which `--help` shows: N, SECONDS or one of several words."""
    metavar = None if isinstance(type, click.Choice) else "SECONDS" if isinstance(type, click.FloatRange) else "N"
    return click.option(*names, metavar=metavar, type=type, default=default, show_default=True, help=help)


most_option = click.option(
    "--limit", metavar="N", type=click.IntRange(min=1), help="Take at most N messages. Default: all."
)
yes_option = click.option("--yes", is_flag=True, help="Do not ask.")


def limit_option(default: int, what: str = "") -> Callable[[C], C]:
    """--limit of a list."""
    return valued("--limit", type=click.IntRange(min=1), default=default, help=f"Show at most N{what}.")


store_of_group_option = click.option(
    "--store", metavar="DIR|URL", envvar="AMQ_STORE", required=True, help="Store of the group; or $AMQ_STORE."
)


def check_can_ask(yes: bool) -> None:
    """Raises UsageError where a question would have no reader and `yes` does not answer it."""
    if not yes and not is_terminal():
        raise click.UsageError("not a terminal, cannot ask for confirmation; use --yes")


def confirm(yes: bool, question: str) -> None:
    """Ask, unless `yes`. Raises UsageError where nobody can be asked."""
    check_can_ask(yes)
    if not yes:
        click.confirm(question, abort=True, err=True)
