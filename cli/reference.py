"""Generates docs/cli.md from the commands: `python -m amq.cli.reference` writes the page, a test compares it.

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

PAGE_PATH = "docs/cli.md"
_INTRODUCTION = """\
# The amq command

<!-- Generated from the commands by `python -m amq.cli.reference`: change them there. -->

`amq COMMAND --help` shows the same text. `python -m amq` is the same command.

- Commands write results to stdout. Logs, progress, failover messages and errors go to stderr.
- Each error is one line: `amq: what is wrong; the cure [CODE]`. Codes are stable, so that you can search for them. An
  error of the operating system has no code. After a wrong command line, the command shows its usage.
- `--json` is for scripts. Later versions keep its names and may add new ones.
- Bars and colours appear on a terminal only. A table never breaks a word; a table that is too wide for the terminal
  becomes one block of lines a row.

## Exit codes

| Code | Meaning |
|---|---|
{exit_codes}

## Log events

`amq start` logs to stderr. If stderr is not a terminal, each line is a JSON object (`logFormat`). Scripts can rely on
these events. Each line also has `timestamp`, `level`, `logger` and `broker`:

| event | further fields | when |
|---|---|---|
| `starting` | `version` `pid` `store` `config` | the first line |
| `role` | `role` `before` | the role changed: `slave`, `master`, `stopped` |
| `slave: waiting for the lock` | `holder` | another broker is master |
| `master: serving clients` | `epoch` `reason` `waited_s` `urls` | **ready**: clients can connect to `urls` |
| `mastership lost or refused: slave again` | `reason` | the broker was fenced or deposed, or lost the race |
| `configuration changed` | `changes` | the broker applied a changed file |
| `told to stop: …` | `signal` | SIGTERM or SIGINT |
| `stopped` | `exit_code`; after a failure also `code` `reason` | the last line |

After SIGTERM or SIGINT, the broker commits what it has received, hands the store over so that a slave takes over at
once, and exits with code 0. A second signal ends the process at once; that is as safe as any crash. After SIGHUP, the
broker reads its configuration and the users file again. It also watches both files.

The broker supports systemd's `Type=notify`. It reports READY when it competes for the store (so a slave is ready too)
and its role as STATUS. With `WatchdogSec`, systemd restarts a broker whose event loop has stopped. The unit is
[conf/amq.service](../conf/amq.service); [operations.md](operations.md) explains it.

## Delivery

`amq producer` gives each message a unique id. After a takeover it sends unconfirmed messages again, and the new master
stores each message once. `amq consumer` writes the line of a message before it acknowledges the message. So no line is
lost; a line appears twice if the master or the consumer dies between the two steps (at-least-once delivery)."""


def page() -> str:
    """The text of docs/cli.md."""
    codes = "\n".join(f"| {code} | {meaning} |" for code, meaning in EXIT_CODES.items())
    parts = [_INTRODUCTION.replace("{exit_codes}", codes)]
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


def write(root: str = ".") -> None:
    """Write the page below `root`, the top of the repository."""
    Path(root, PAGE_PATH).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    write(*sys.argv[1:2])
