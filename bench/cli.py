"""What the command lines of all benchmarks share: peers, where stores go, tables for people, JSON for programs."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, RenderableType

from bench import brokers

PIPE_WIDTH = 140  # columns of a table that does not go to a terminal


def parser(
    module: str, description: str | None, examples: Sequence[str], *, peers: bool = True
) -> argparse.ArgumentParser:
    """A parser with the common options. `--quick` and `--json` mean the same everywhere."""
    command = f"python -m bench.{module}".rstrip(".")
    result = argparse.ArgumentParser(
        prog=command,
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="examples:\n" + "\n".join(f"  {command} {example}" for example in examples),
    )
    if peers:
        result.add_argument(
            "--peer",
            type=peer,
            metavar="activemq|activemq6=DIR|artemis=DIR|CHECKOUT",
            help="measure it in the same run; DIR is where an archive was unpacked, CHECKOUT the directory of another "
            "version of amq, with a .venv",
        )
        result.add_argument("--only-peer", action="store_true", help="leave amq out")
    result.add_argument(
        "--dir", "--directory", metavar="DIR", help="where stores are made: the disk to measure (default: $TMPDIR)"
    )
    result.add_argument("-o", dest="options", action="append", default=[], metavar="KEY=VALUE", help="option for amq")
    result.add_argument("--quick", action="store_true", help="a few seconds that show whether it works")
    result.add_argument("--json", metavar="FILE", help="write everything measured; - = to standard output, no table")
    return result


def add_pairs(parser: argparse.ArgumentParser, kinds: str) -> None:
    """The option for peers of which two brokers work together: `args.peer` = a list."""
    parser.add_argument(
        "--peer",
        type=peer,
        action="append",
        default=[],
        metavar=kinds,
        help="measure two of these, too; DIR is where the archive was unpacked",
    )


def peer(kind: str) -> str:
    name, _, home = kind.partition("=")
    try:
        if name in brokers.ARCHIVES:
            return brokers.from_archive(name, home)
        brokers.broker_class(kind)
    except brokers.BrokerProcessError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    return kind


def kinds(args: argparse.Namespace) -> list[str]:
    """The kinds of brokers to measure, ours first."""
    if args.only_peer and not args.peer:
        sys.exit("--only-peer needs --peer: which one?")
    return [kind for kind in ("amq", args.peer) if kind and not (kind == "amq" and args.only_peer)]


def amq_options(args: argparse.Namespace) -> dict[str, str]:
    """What `-o` named → options for `amq start -o`."""
    return key_values(args.options)


def key_values(pairs: Sequence[str]) -> dict[str, str]:
    """["key=value", …] → {key: value}."""
    wrong = [pair for pair in pairs if "=" not in pair]
    if wrong:
        sys.exit(f"an option is KEY=VALUE, not {wrong[0]!r}")
    return dict(pair.split("=", 1) for pair in pairs)


def show(args: argparse.Namespace, report: dict[str, Any], *shown: RenderableType) -> None:
    """Print `shown` for people and write `report` where `--json` says."""
    if sys.stderr.isatty():
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    if args.json == "-":
        print(json.dumps(report))
        return
    console = Console(width=None if sys.stdout.isatty() else PIPE_WIDTH)
    for item in shown:
        console.print(item)
    keep(args, report)


def keep(args: argparse.Namespace, report: dict[str, Any]) -> None:
    """Write `report` to the file of `--json`, if there is one: also of a run that has not ended yet."""
    if args.json and args.json != "-":
        Path(args.json).write_text(json.dumps(report, indent=1) + "\n")


def progress(text: str) -> None:
    """What is being done, on standard error: one line that is written over on a terminal. No thread: we fork."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
    else:
        print(text, file=sys.stderr, flush=True)


def terminate_on_signal() -> None:
    """Let SIGTERM end a script as ctrl-C does: through the `finally` blocks that stop the brokers."""

    def leave(number: int, _frame: object) -> None:
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, leave)
