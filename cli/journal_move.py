"""`amq journal export` writes a store as lines of JSON; `import` reads them back."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, BinaryIO

import click

from amq.cli import exits
from amq.cli.journal_common import canonical, options_option, progress, read_config, store_option, told_missing
from amq.cli.output import console, counted, examples, is_terminal, size_text
from amq.cli.store import check_journal, read_sealing, store_of
from amq.config import BrokerConfig
from amq.core.errors import AmqError
from amq.doors.clock import SystemClock
from amq.journal.export import Export, store_uuid
from amq.journal.interchange import ExportWriter, Header, check_whole
from amq.journal.liveness import Liveness
from amq.store.name import is_directory
from amq.store.open import check_alone, check_directory

if TYPE_CHECKING:
    from amq.maintenance.importing import Import, ImportResult

PARTIAL = ".partial"  # an export that is being written
BUFFER_BYTES = 1 << 20


@click.command(
    "export",
    epilog=examples(
        "amq journal export --store /mnt/shared/amq --output amq.jsonl",
        "amq journal export --store DIR --destination /queue/orders | jq .body",
        "amq journal export --store DIR | ssh other amq journal import --store DIR -",
    ),
)
@store_option
@click.option(
    "--destination",
    "destinations",
    metavar="NAME",
    multiple=True,
    help="Export only /queue/NAME, or durable subscriptions to /topic/NAME. May be repeated.",
)
@click.option(
    "--output",
    metavar="FILE",
    default="-",
    help="Write to FILE, which appears when it is complete; - is stdout.",
)
@options_option
def export_(store: str, destinations: tuple[str, ...], output: str, options: tuple[str, ...]) -> None:
    """Write every live message as a line of JSON, in the order of its queue, and the other contents of the store.

    These are durable subscriptions, prepared transactions, committed batches and remembered ids.

    The command works while a master serves: it writes a message if it is live when the command reads it. Stop the
    brokers first to move a store. The command reads the journal twice and needs about 32 bytes of memory a message. If
    something is damaged, it exports the rest, reports the problems on stderr and ends with exit code 4.
    docs/journal-tools.md explains the format.
    """
    config = read_config(store, options)
    wanted = [canonical(name) for name in destinations] or None
    if output == "-":
        problems = _export(store, config, wanted, sys.stdout.buffer)
        sys.stdout.buffer.flush()
    else:
        problems = _export_to(output, store, config, wanted)
    for problem in problems:
        click.echo(f"amq: {problem}", err=True)
    if problems:
        raise click.exceptions.Exit(exits.STORE)


def _for_ourselves(path: str, flags: int) -> int:
    """Messages are for the user and its group, whatever the umask is."""
    return os.open(path, flags, 0o640)


def _export_to(output: str, store: str, config: BrokerConfig, wanted: list[str] | None) -> list[str]:
    """Export into a file that gets its name when it is complete; an incomplete file is removed. A device or a pipe gets
    the bytes as they come.
    """
    if os.path.exists(output) and not os.path.isfile(output):
        with open(output, "wb", buffering=BUFFER_BYTES) as other:
            return _export(store, config, wanted, other)
    output = os.path.realpath(output)  # a link stays one
    partial = output + PARTIAL
    with open(partial, "wb", buffering=BUFFER_BYTES, opener=_for_ourselves) as file:
        try:
            problems = _export(store, config, wanted, file)
            file.flush()
            os.fsync(file.fileno())
        except BaseException:
            os.unlink(partial)
            raise
    os.replace(partial, output)
    return problems


def _export(store: str, config: BrokerConfig, wanted: list[str] | None, file: BinaryIO) -> list[str]:
    found = store_of(store)
    check_journal(found)

    def make_liveness() -> Liveness:
        return Liveness(config.duplicate_window, config.outcome_window)

    with told_missing():
        exported = Export(
            found.log,
            lambda: read_sealing(found),
            make_liveness,
            wanted,
            progress("segments read"),
            progress("messages written"),
        )
    epoch, _ = read_sealing(found)
    names = None if wanted is None else tuple(wanted)
    writer = ExportWriter(Header(store_uuid(found.log), max(epoch, 0), SystemClock.wall_ms(), names), file.write)
    for item in exported.items():
        writer.add(item)
    writer.end(len(exported.problems))
    return exported.problems


@click.command(
    "import",
    epilog=examples(
        "amq journal import --store /mnt/shared/amq amq.jsonl",
        "zcat amq.jsonl.gz | amq journal import --store DIR",
    ),
)
@store_option
@click.argument("file", metavar="[FILE]", default="-", type=click.Path())
@click.option("--allow-unsafe-store", is_flag=True, help="Import also into a store that `amq doctor` finds unfit.")
@options_option
def import_(store: str, file: str, allow_unsafe_store: bool, options: tuple[str, ...]) -> None:
    """Store the messages of an export in a store that no broker serves, or in a new store.

    The command takes the lock as a broker does and hands the store over at the end, so that a waiting slave takes over
    then. It refuses a store in use (exit code 5). It skips a message that is stored already. It recognises the message
    by its duplicate id or, without one, by an id made of the exported store and the place of the message there. So
    after an interruption import the whole file again, before brokers serve the store.

    The command checks a file before it stores anything. It notices only at the end that a pipe was cut (exit code 4).
    """
    from amq.cli import logs, store_check

    config = replace(read_config(store, options), log_level="warning")
    check_alone(config.store)
    config = replace(config, allow_unsafe_store=config.allow_unsafe_store or allow_unsafe_store)
    logs.configure(config)
    refusal = store_check.refusal(config)
    if refusal is not None:
        raise refusal
    if file == "-":
        # Not sys.stdin: the interpreter closes it at exit, and aborts if a thread still reads from it.
        given = os.fdopen(os.dup(0), "rb", BUFFER_BYTES)
        done = _import(config, given, "the input", None)
        given.close()
    else:
        with open(file, "rb", buffering=BUFFER_BYTES) as opened:
            total_bytes = os.fstat(opened.fileno()).st_size
            if opened.seekable():
                check_whole(file, opened)
            done = _import(config, opened, file, total_bytes)
    click.echo(_text(done.result))


def _import(config: BrokerConfig, file: BinaryIO, name: str, total_bytes: int | None) -> Import:
    from amq.maintenance.importing import Import

    screen = console(stderr=True)

    def told(result: ImportResult) -> None:
        if is_terminal():
            of = f" of {size_text(total_bytes)}" if total_bytes else ""
            screen.print(f"read {size_text(result.read_bytes)}{of}: {_text(result)}", end="\r")

    if is_directory(config.store):
        check_directory(config.store)
    importing: list[Import] = []

    async def run() -> None:
        importing.append(Import(config, told))
        await importing[0].run(file, name)

    try:
        asyncio.run(run())
    except AmqError as error:
        with suppress(IndexError):
            done = importing[0].result
            if done.stored or done.skipped:
                click.echo(_text(done), err=True)
        raise error
    return importing[0]


def _text(result: ImportResult) -> str:
    prepared = f", {counted(result.prepared, 'transaction')} prepared" if result.prepared else ""
    return (
        f"{counted(result.stored, 'message')} stored, {result.skipped:,} were there already, "
        f"{counted(result.remembered, 'id')} remembered{prepared}"
    )
