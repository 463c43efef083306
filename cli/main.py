"""`amq`: the group of all commands. Invariant: a command's module is imported only when that command runs, so that
`amq --help` and `amq start` never load the libraries of other commands.
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
from click.shell_completion import CompletionItem

import amq
from amq.cli import exits
from amq.cli.text import guarded
from amq.core.errors import AmqError

# command → (module, in this package if it has no dot, one line for `amq --help`); the function has the command's name
COMMANDS = {
    "start": ("start", "Run a broker in the foreground."),
    "stop": ("orders", "Stop a broker of the group, on whatever host it runs."),
    "handover": ("orders", "Make another broker of the group the master."),
    "status": ("status", "Show who is master of a store, of each store of a cluster, or of the group of a URL."),
    "cluster": ("cluster", "Make a cluster of several stores, see who serves what, drain a node."),
    "doctor": ("doctor", "Find out whether a directory is fit to be a store, or what clients of a TLS port meet."),
    "queues": ("queues", "Show queues: how much waits in each, and who consumes it."),
    "queue": ("queues", "See one queue and its messages; purge, move, copy, pause or delete."),
    "topics": ("broker", "Show topics in use and their consumers."),
    "subscriptions": ("broker", "Show or delete durable subscriptions."),
    "connections": ("broker", "Show or close the connections of clients."),
    "consumers": ("broker", "Show consumers: what each takes, and how much it has not acknowledged."),
    "message": ("broker", "Show, retry or delete one message, wherever it waits."),
    "broker": ("broker", "See one broker, or take it out of service."),
    "top": ("top", "Watch a group: rates, backlog, consumers, roles and lag."),
    "console": ("console", "Serve pages, REST, metrics and probes of the broker of this host."),
    "producer": ("producer", "Send messages: lines of a file, a text, or generated ones."),
    "consumer": ("consumer", "Receive messages and write each body as a line, exactly as it was sent."),
    "schedule": ("schedule", "Show or remove messages that the broker is to deliver later."),
    "dlq": ("dlq", "Show dead letters, send them back to their queues, or delete them."),
    "migrate": ("amq_migrate.migrate", "Move the messages of another broker's queues into ours, each exactly once."),
    "transactions": ("transactions", "Show prepared transactions; commit or roll them back by hand."),
    "demo": ("demo", "Kill the master again and again while a file passes through a queue."),
    "demo-spark": ("demo_spark", "Kill brokers and Spark while rows go to a queue and come back."),
    "perf": ("perf", "Measure throughput and latency with several processes."),
    "pipeline": ("pipeline", "Run a data pipeline with Spark: files to queues, queues to files, journals to figures."),
    "store": (
        "store_admin",
        "Make or upgrade the tables of a store in a database, or merge two stores of any kind.",
    ),
    "journal": ("journal", "Show, check, move or repair the journal of a store."),
    "config": ("config", "Show or check the configuration, or import that of another broker."),
    "user": ("user", "Manage the users file."),
    "permissions": ("permissions", "Explain what the permissions file allows a user, and why."),
    "completion": ("completion", "Write a script that lets a shell complete commands and options."),
    "help": ("help", "Show the manual of a command, or the list of commands."),
}

_NOT_UTF_8 = "surrogates not allowed"  # Python's way to hold such bytes of its arguments in a string


class LazyGroup(click.Group):
    """A group that imports a command when it is asked for, and turns errors into one line and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in COMMANDS:
            return None
        place = COMMANDS[cmd_name][0]
        module = importlib.import_module(place if "." in place else f"amq.cli.{place}")
        command: click.Command = getattr(module, cmd_name.replace("-", "_"))
        return command

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """From the table above, so that no command is imported."""
        found = [name for name in COMMANDS if name.startswith(incomplete)]
        options = click.Command.shell_complete(self, ctx, incomplete)
        return [*(CompletionItem(name, help=COMMANDS[name][1]) for name in found), *options]

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
    """Turn each error into one line and an exit code."""
    try:
        yield
    except click.Abort as error:
        if isinstance(error.__context__, KeyboardInterrupt):  # click says the same of Ctrl-C and of a "no"
            ctx.exit(exits.INTERRUPTED)
        raise
    except (click.ClickException, click.exceptions.Exit, BrokenPipeError):
        raise  # click handles these; on a broken pipe it ends quietly, because the reader of the output has gone
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
    sys.stdout, sys.stderr = guarded(sys.stdout), guarded(sys.stderr)


def _open_standard_streams() -> None:
    """Open standard streams that the caller closed, before a file of a store takes their descriptors: otherwise a write
    of the interpreter or a library to descriptor 2 would go into the lock file or the journal. Reading the input or
    writing the output is then an error; errors are lost.
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
