"""Generates the second half of docs/cli.md from the commands. `make docs` runs this module: it writes the pages of the
site that have something generated: commands, options of brokers, of broker URLs and of Spark, tables of states.

Invariant: the page and the program say the same about each command, option, default and exit code.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

import click

from amq.cli.exits import EXIT_CODES
from amq.cli.main import COMMANDS, main
from amq.client import options as url_options
from amq.client import states
from amq.config import reference as options_reference
from amq.node import candidacy
from pyspark_amq import options as spark_options

PAGE_PATH = "docs/cli.md"
_PLACE = "<!-- `make docs` puts it here. -->\n"  # the table or diagram that the page speaks of


def pages(root: Path = Path()) -> dict[str, str]:
    """Path below `root`, the top of the repository -> text, of each page of the site that is partly generated."""
    generated = {
        PAGE_PATH: commands_text(),
        options_reference.PAGE_PATH: options_reference.options_text(),
        url_options.PAGE_PATH: "\n".join(url_options.tables()) + "\n",
        spark_options.PAGE_PATH: "\n".join(spark_options.tables()),
    }
    inserted = {
        candidacy.PAGE_PATH: candidacy.table() + "\n",
        states.PAGE_PATH: f"```mermaid\n{states.diagram()}\n```\n",
    }
    ended = {path: options_reference.complete(_read(root, path), text) for path, text in generated.items()}
    return ended | {path: _read(root, path).replace(_PLACE, text) for path, text in inserted.items()}


def _read(root: Path, path: str) -> str:
    return (root / path).read_text(encoding="utf-8")


def commands_text() -> str:
    """Every exit code and every command with its options, in Markdown."""
    codes = [f"| {code} | {meaning} |" for code, meaning in EXIT_CODES.items()]
    parts = ["\n".join(["## Exit codes", "", "| Code | Meaning |", "|---|---|", *codes])]
    for name, command in commands():
        parts.append(f"\n## {name}\n" if " " not in name.removeprefix("amq ") else f"\n### {name}\n")
        parts += _describe(name, command)
    return "\n".join(parts) + "\n"


def commands() -> Iterator[tuple[str, click.Command]]:
    """(`amq journal check`, the command), groups before what is in them."""
    context = click.Context(main, info_name="amq")
    for name in COMMANDS:
        command = main.get_command(context, name)
        assert command is not None
        yield from _below(f"amq {name}", command)


def _below(name: str, command: click.Command) -> Iterator[tuple[str, click.Command]]:
    yield name, command
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            yield from _below(f"{name} {inner.name}", inner)


def options(command: click.Command) -> list[click.Option]:
    return [parameter for parameter in command.params if isinstance(parameter, click.Option)]


def examples(command: click.Command) -> list[str]:
    """The lines under "Examples:" of the command's help."""
    _, _, rest = (command.epilog or "").partition("Examples:\n")
    return [line.strip() for line in rest.partition("\n\n")[0].split("\n") if line.strip()]


def _describe(name: str, command: click.Command) -> Iterator[str]:
    about = inspect.cleandoc(command.help or "").replace("\b\n", "")
    if isinstance(command, click.Group):
        yield about
        return
    yield about + "\n"
    arguments = [
        parameter.make_metavar(click.Context(command))
        for parameter in command.params
        if isinstance(parameter, click.Argument)
    ]
    yield "\n".join(["```", " ".join([name, "[OPTIONS]", *arguments]), "```", ""])
    if rows := [_row(option) for option in options(command)]:
        yield "\n".join(["| Option | Default | |", "|---|---|---|", *rows, ""])
    yield "\n".join(["```sh", *examples(command), "```"])


def _row(option: click.Option) -> str:
    names = ", ".join([*option.opts, *option.secondary_opts])
    if not option.is_flag:
        names += f" {option.make_metavar(click.Context(click.Command('x')))}"
    default = "required" if option.required else option.default
    if isinstance(default, tuple):
        default = ", ".join(map(str, default))
    told = isinstance(default, str | int | float) and not isinstance(default, bool)
    cells = (f"`{names}`", str(default) if told else "", option.help or "")
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells).replace("|  |", "| |") + " |"


def write(site: str) -> None:
    """Write the pages below the directory `site`, from those of the repository in the working directory."""
    for path, text in pages().items():
        Path(site, path).unlink(missing_ok=True)  # a link to the page of the repository, which stays as it is
        Path(site, path).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    write(sys.argv[1])
