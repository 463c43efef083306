"""docs/cli.md, made from the commands themselves: `python -m amq.cli.reference` writes it, a test compares.

Invariant: what the page says of a command, an option, a default or an exit code is what the program says.
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

`amq COMMAND --help` says what is on this page. `python -m amq` is the same command.

- Results go to stdout; logs, progress, news of failovers and errors to stderr.
- An error is a line, or one for each problem: `amq: what is wrong; the cure [CODE]`; the code is stable and can be
  searched for. What the operating system refused has none; a wrong command line is told with its usage.
- `--json` is for scripts: names in it are kept, new ones may be added.
- Bars and colours only appear on a terminal; a table that goes elsewhere has its lines whole.

## Exit codes

| Code | Meaning |
|---|---|
{exit_codes}

## What a broker says

`amq start` logs to stderr, one JSON object a line when that is no terminal (`logFormat`). These events are for machines
too; each line also has `timestamp`, `level`, `logger` and `broker`:

| event | further fields | when |
|---|---|---|
| `starting` | `version` `pid` `store` `config` | first of all |
| `role` | `role` `before` | the role changed: `slave`, `master`, `stopped` |
| `slave: waiting for the lock` | `holder` | another broker is master |
| `master: serving clients` | `epoch` `reason` `waited_s` `urls` | **ready**: clients can connect to `urls` |
| `mastership lost or refused: slave again` | `reason` | fenced, deposed, or the race was lost |
| `configuration changed` | `changes` | a changed file or SIGHUP took effect |
| `told to stop: …` | `signal` | SIGTERM or SIGINT |
| `stopped` | `exit_code`, and `code` `reason` where it failed | last of all |

Signals: SIGTERM and SIGINT commit what came in, hand the store over so that a slave takes over at once, and end with 0;
a second one ends the process at once, as safely as any crash. SIGHUP reads configuration and users file again; both
files are also watched.

Under systemd `Type=notify` works: READY is told when the broker competes for the store (a slave is ready too), STATUS
says which role it has, and with `WatchdogSec` an event loop that stands still ends the broker. The unit is
[conf/amq.service](../conf/amq.service), and [operations.md](operations.md) explains it.

## Delivery

`amq producer` sends each message with an id of its own; what was not confirmed when the master went is sent again to
the next one, which stores it once. `amq consumer` acknowledges a message after its line was written. So a line is never
lost, and it is there twice where the master or the consumer died between writing and acknowledging: at least once."""


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
    arguments = [parameter.make_metavar(click.Context(command)) for parameter in command.params
                 if isinstance(parameter, click.Argument)]  # fmt: skip
    yield "\n".join(["```", " ".join([name, "[OPTIONS]", *arguments]), "```", ""])
    yield "\n".join(["| Option | Default | |", "|---|---|---|", *(_row(option) for option in options(command)), ""])
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
