"""`amq`: the group of all commands. Invariant: a command's module is imported only when that command runs, so that
`amq --help` and `amq start` never pay for what other commands need.
"""

from __future__ import annotations

import importlib
import io
import os
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

import amq
from amq.cli import exits
from amq.errors import AmqError

# command → (module in this package, one line for `amq --help`); the function has the command's name
COMMANDS = {
    "start": ("start", "Run a broker in the foreground."),
    "status": ("status", "Show who is master of a store, or which broker of a URL serves clients."),
    "doctor": ("doctor", "Find out whether a directory is fit to be a store."),
    "producer": ("producer", "Send messages: lines of a file, a text, or generated ones."),
    "consumer": ("consumer", "Receive messages and write each body as a line, exactly as it was sent."),
    "schedule": ("schedule", "Look at messages that are to be delivered later, or take them back."),
    "dlq": ("dlq", "Look at dead letters, send them back to where they came from, or delete them."),
    "transactions": ("transactions", "Look at prepared transactions, and commit or roll them back by hand."),
    "demo": ("demo", "Kill the master again and again while a file goes through a queue."),
    "demo-spark": ("demo_spark", "Kill the master while Spark writes rows to a queue and reads them back."),
    "perf": ("perf", "Measure throughput and latency with several processes."),
    "pipeline": ("pipeline", "Run a data pipeline with Spark: files to queues, queues to files, journals to figures."),
    "journal": ("journal", "Look into the journal of a store, move it, repair it."),
    "config": ("config", "Show or check the configuration."),
    "user": ("user", "Manage the users file."),
}

_NOT_UTF_8 = "surrogates not allowed"  # Python's way to hold such bytes of its arguments in a string


class LazyGroup(click.Group):
    """A group that imports a command when it is asked for, and turns errors into one line and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"amq.cli.{COMMANDS[cmd_name][0]}")
        command: click.Command = getattr(module, cmd_name.replace("-", "_"))
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, about) for name, (_, about) in COMMANDS.items()])

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        with _told(ctx):  # --help and --version write here
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        with _told(ctx):
            return super().invoke(ctx)


@contextmanager
def _told(ctx: click.Context) -> Iterator[None]:
    """Whatever goes wrong becomes one line and an exit code."""
    try:
        yield
    except click.Abort as error:
        if isinstance(error.__context__, KeyboardInterrupt):  # click says the same of Ctrl-C and of a "no"
            ctx.exit(exits.INTERRUPTED)
        raise
    except (click.ClickException, click.exceptions.Exit, BrokenPipeError):
        raise  # click's own; on a broken pipe it ends quietly: whoever read our output has gone
    except AmqError as error:
        exits.fail_with(error)
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        exits.fail(f"{where}{error.strerror or error}", exits.FAILED)
    except KeyboardInterrupt:
        ctx.exit(exits.INTERRUPTED)
    except Exception as error:  # noqa: BLE001 (a bug: shown in full)
        if isinstance(error, UnicodeEncodeError) and error.reason == _NOT_UTF_8:
            exits.fail(
                "a word of the command line is not UTF-8: write it in UTF-8; a message's body can be in a --file",
                exits.USAGE,
            )
        click.echo(traceback.format_exc(), err=True)
        exits.fail(f"internal error: {error!r}", exits.INTERNAL, "INTERNAL_ERROR")


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]}, epilog=exits.table())
@click.version_option(amq.__version__, prog_name="amq", message="%(prog)s %(version)s")
def main() -> None:
    """amq: a message broker for machines that share a file system.

    One master by exclusive lock; clients find it through a failover URL.

    \b
    Examples:
      amq start --store /mnt/shared/amq --name a --transport stomp://0.0.0.0:61613
      amq status --store /mnt/shared/amq
      amq demo
    """
    _open_standard_streams()
    if isinstance(sys.stdout, io.TextIOWrapper):
        if isinstance(sys.stdout.buffer, io.RawIOBase):  # PYTHONUNBUFFERED: what one write leaves out would be left out
            sys.stdout = os.fdopen(sys.stdout.fileno(), "w", 1, encoding=sys.stdout.encoding, closefd=False)
        sys.stdout.reconfigure(errors="backslashreplace")  # a file's name may be no text, or none of this terminal's


def _open_standard_streams() -> None:
    """Take the places of standard streams that the caller closed, before a file of a store is opened as one of them:
    what the interpreter or a library then writes to descriptor 2 would go into the lock file or the journal. Use of
    the input or the output is an error then; errors have nowhere to be told.
    """
    streams = (("stdin", "r", os.O_WRONLY), ("stdout", "w", os.O_RDONLY), ("stderr", "w", os.O_WRONLY))
    for descriptor, (name, mode, flags) in enumerate(streams):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, flags)
            if null != descriptor:
                os.dup2(null, descriptor)
                os.close(null)
            os.set_inheritable(descriptor, True)
            setattr(sys, name, os.fdopen(descriptor, mode, encoding="utf-8", closefd=False))


if __name__ == "__main__":
    main(prog_name="amq")
