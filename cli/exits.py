"""Exit codes, and the one place where an error becomes a line on stderr and a code. The table is part of the contract
with scripts and supervisors: `EXIT_CODES` is what `--help` and the page docs/cli.md of the site show.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

import click

from amq.core.errors import (
    AccessError,
    AmqError,
    CommandError,
    ConfigError,
    CorruptError,
    ProtocolError,
    StoreError,
    StoreFullError,
)

OK = 0
FAILED = 1
USAGE = 2
CONFIG = 3
STORE = 4
LOCKED = 5
TRANSPORT = 6
REFUSED = 7
PARTIAL = 8
INTERNAL = 70
INTERRUPTED = 130

EXIT_CODES = {
    OK: "success; a broker stopped cleanly and handed the store over",
    FAILED: "the answer is no (a check or demo failed, a timeout), or the operating system refused a call",
    USAGE: "the command line or the broker URL is wrong",
    CONFIG: "the configuration or the users file cannot be used",
    STORE: "the store is unusable, damaged, foreign or of a newer format",
    LOCKED: "the name is in use on this store, or the store is locked and failIfLocked is set",
    TRANSPORT: "the broker cannot listen, or no broker can be reached or answers in time",
    REFUSED: "the broker refused: login, permission, a full store, a rolled back transaction, an order",
    PARTIAL: "`amq config import --strict`: done, but the file asks for something that is not supported",
    INTERNAL: "internal error: please report it with the traceback",
    INTERRUPTED: "interrupted (SIGINT); a broker that gets a second signal ends by that signal",
}
_BY_CODE = {
    "INTERNAL_ERROR": INTERNAL,
    "LOAD_FAILED": FAILED,
    "DEMO_FAILED": FAILED,
    "PIPELINE_FAILED": FAILED,
    "SPARK_MISSING": FAILED,
    "NAME_IN_USE": LOCKED,
    "STORE_LOCKED": LOCKED,
    "TRANSPORT_UNAVAILABLE": TRANSPORT,
    "CONNECT_FAILED": TRANSPORT,
    "CONNECTION_LOST": TRANSPORT,
    "FAILOVER_TIMEOUT": TRANSPORT,
    "CALL_TIMEOUT": TRANSPORT,
    "COMMIT_OUTCOME_UNKNOWN": TRANSPORT,
    "TRANSACTION_RETRY": TRANSPORT,
    "URI_INVALID": USAGE,
    "PROTOCOL_UNKNOWN": TRANSPORT,
    "QUEUE_UNKNOWN": FAILED,
    "NOT_FOUND": FAILED,
    "CONSOLE_MISSING": FAILED,
    "MESSAGE_UNKNOWN": FAILED,
    "LOGIN_REFUSED": REFUSED,
    "ORDER_REFUSED": REFUSED,
    "ORDER_TIMEOUT": FAILED,
    "BROKER_UNKNOWN": FAILED,
    "LOGIN_REQUIRED": REFUSED,
}
_CONNECTION = ("CONNECTION_LOST", "CONNECT_FAILED")
# ProtocolErrors that say nothing about what was sent. Another broker, or a later try, may succeed.
_NO_REFUSAL = (ProtocolError.code, "HEART_BEAT_MISSED", "CONNECT_TIMEOUT", "FRAME_TIMEOUT")
_BY_CLASS: tuple[tuple[type[AmqError], int], ...] = (
    (ConfigError, CONFIG),
    (StoreError, STORE),
    (AccessError, REFUSED),
)


def is_refusal(error: BaseException | None) -> bool:
    """Did the broker answer "no" to something that this client asked for?"""
    if isinstance(error, ProtocolError):
        return error.code not in _NO_REFUSAL
    return isinstance(error, AccessError | CommandError | StoreFullError)


def exit_code(error: AmqError) -> int:
    """The exit code for `error`. A connection that ended because the broker refused something is a refusal."""
    if error.code in _CONNECTION and is_refusal(error.__cause__):
        return REFUSED
    if error.code in _BY_CODE:
        return _BY_CODE[error.code]
    return next((code for kind, code in _BY_CLASS if isinstance(error, kind)), REFUSED)


def fail(description: str, code: int, name: str = "") -> NoReturn:
    """Say `amq: what is wrong; the cure [NAME]` on stderr, one line for each problem, and end with `code`."""
    suffix = f" [{name}]" if name else ""
    for line in description.split("\n"):
        click.echo(f"amq: {line}{suffix}", err=True)
    _give_up_output()
    raise click.exceptions.Exit(code)


def _give_up_output() -> None:
    """Python would offer it what it has not taken once more, and then end with 120 and words of its own."""
    try:
        sys.stdout.flush()
    except OSError:
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, sys.stdout.fileno())
        os.close(null)


def fail_with(error: AmqError) -> NoReturn:
    """End because of `error`."""
    fail(told(error), exit_code(error), error.code)


def told(error: AmqError) -> str:
    """The description of `error`; of damage in a store also what to do."""
    if not isinstance(error, CorruptError):
        return error.description
    cure = error.cure or (
        "stop all brokers, restore a backup, or run `amq journal repair --store DIR`: it shows what is damaged and "
        "lost, and changes nothing without --yes"
    )
    return f"{error.description}; {cure}"


def table() -> str:
    """The exit codes as a paragraph of `--help`; click keeps the lines because of the leading backspace."""
    return "\b\nExit codes:\n" + "\n".join(f"  {code:3}  {meaning}" for code, meaning in EXIT_CODES.items())
