"""The group of commands: lazy, and every error is one line with an exit code."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from amq_process import ROOT, amq, command
from click.testing import CliRunner

from amq.cli import exits, main
from amq.client.errors import (
    CallTimeoutError,
    CommitOutcomeUnknownError,
    ConnectError,
    ConnectionLostError,
    FlushError,
    TransactionRetryError,
    UriError,
)
from amq.core.errors import (
    AccessError,
    AmqError,
    ConfigError,
    CorruptError,
    NewerFormatError,
    ProtocolError,
    StoreFullError,
    TransactionRolledBackError,
)
from tests.patience import DEADLINE_S


@pytest.mark.parametrize(
    ("words", "absent"),
    [
        (["--help"], ("rich", "structlog", "uvloop", "asyncio", "amq.client", "amq.node.member")),
        (["start", "--help"], ("amq.client", "amq.cli.demo")),
        (["status", "--help"], ("uvloop", "amq.node.member", "amq.broker")),
    ],
)
def test_only_what_is_needed_is_imported(words: list[str], absent: tuple[str, ...]) -> None:
    code = (
        "import sys\nfrom amq.cli.main import main\n"
        f"main({words}, standalone_mode=False)\n"
        f"print([name for name in {absent} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=DEADLINE_S, cwd=ROOT, check=True
    )
    assert done.stderr.strip() == "[]"


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("words", [["--version"], ["--help"], ["status", "--help"], ["config", "show"]])
def test_an_output_that_takes_nothing_is_told(words: list[str], unbuffered: str) -> None:
    env = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            command(*words), stdout=full, stderr=subprocess.PIPE, text=True, check=False, cwd=ROOT, env=env
        )
    assert (done.returncode, done.stderr) == (exits.FAILED, "amq: No space left on device\n")


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_an_output_that_takes_a_part_is_told(tmp_path: Path, unbuffered: str) -> None:
    """With PYTHONUNBUFFERED the rest was left out without a word. A limit on the size of files stands for a disk."""
    env = {**os.environ, "PYTHONUNBUFFERED": unbuffered, "PYTHONDONTWRITEBYTECODE": "1"}
    words = ["sh", "-c", 'ulimit -f 1; exec "$@"', "sh", *command("config", "show")]
    with open(tmp_path / "out", "wb") as out:
        done = subprocess.run(words, stdout=out, stderr=subprocess.PIPE, text=True, check=False, cwd=ROOT, env=env)
    assert (done.returncode, done.stderr) == (exits.FAILED, "amq: File too large\n")


def test_one_line_about_each_command() -> None:
    """`amq --help` tells of a command, without importing it, what the command tells of itself."""
    context = click.Context(main.main)
    for name, (_, about) in main.COMMANDS.items():
        command = main.main.get_command(context, name)
        assert command is not None
        assert command.get_short_help_str(limit=200) == about
        assert f"  {name} " in CliRunner().invoke(main.main, ["--help"]).output


def test_unknown_command() -> None:
    done = amq("strat")
    assert done.returncode == exits.USAGE
    assert "strat" in done.stderr


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("x"), exits.CONFIG),
        (CorruptError("f", 1, "x"), exits.STORE),
        (NewerFormatError("x"), exits.STORE),
        (AmqError("x", code="NAME_IN_USE"), exits.LOCKED),
        (AmqError("x", code="STORE_LOCKED"), exits.LOCKED),
        (AmqError("x", code="TRANSPORT_UNAVAILABLE"), exits.TRANSPORT),
        (AmqError("x", code="INTERNAL_ERROR"), exits.INTERNAL),
        (ConnectError("x"), exits.TRANSPORT),
        (CallTimeoutError("x"), exits.TRANSPORT),
        (TransactionRetryError("x"), exits.TRANSPORT),
        (CommitOutcomeUnknownError("x"), exits.TRANSPORT),
        (UriError("x"), exits.USAGE),
        (AccessError("x"), exits.REFUSED),
        (StoreFullError("x"), exits.REFUSED),
        (TransactionRolledBackError("x"), exits.REFUSED),
        (FlushError([("id", StoreFullError("x"))]), exits.REFUSED),
    ],
)
def test_exit_code_of(error: AmqError, code: int) -> None:
    assert exits.exit_code(error) == code
    assert code in exits.EXIT_CODES


def test_a_connection_that_ended_by_a_refusal() -> None:
    error = ConnectionLostError("the connection broke: the disk is full")
    assert exits.exit_code(error) == exits.TRANSPORT
    error.__cause__ = StoreFullError("the disk is full")
    assert exits.exit_code(error) == exits.REFUSED
    error.__cause__ = ProtocolError("too long", code="HEADER_TOO_LONG")
    assert exits.exit_code(error) == exits.REFUSED
    for code in ("PROTOCOL_ERROR", "HEART_BEAT_MISSED"):
        error.__cause__ = ProtocolError("silent, or no broker", code=code)
        assert exits.exit_code(error) == exits.TRANSPORT


def failing(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> Any:
    """What `amq broken` gives, a command that raises `error`."""

    @click.command()
    def broken() -> None:
        raise error

    find: Callable[..., click.Command | None] = lambda self, context, name: broken  # noqa: ARG005, E731
    monkeypatch.setattr(main.LazyGroup, "get_command", find)
    return CliRunner().invoke(main.main, ["broken"])


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (ConfigError("first\nsecond"), exits.CONFIG, "amq: first [CONFIG_INVALID]\namq: second [CONFIG_INVALID]\n"),
        (OSError(errno.EACCES, "Permission denied", "/x"), exits.FAILED, "amq: /x: Permission denied\n"),
        (KeyboardInterrupt(), exits.INTERRUPTED, ""),
        (
            UnicodeEncodeError("utf-8", "a\udcff", 1, 2, "surrogates not allowed"),
            exits.USAGE,
            "amq: a word of the command line is not UTF-8: write it in UTF-8; a message's body can be in a --file\n",
        ),
    ],
)
def test_errors_are_lines(monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, said: str) -> None:
    result = failing(monkeypatch, error)
    assert result.exit_code == code
    assert result.stderr.strip("\n") == said.strip("\n")


def test_ctrl_c_at_a_question(monkeypatch: pytest.MonkeyPatch) -> None:
    """Is no answer: exit codes tell it from one."""

    def interrupt(_prompt: str) -> str:
        raise KeyboardInterrupt

    @click.command()
    @click.option("--interrupted", is_flag=True)
    def asking(interrupted: bool) -> None:
        with monkeypatch.context() as patch:
            if interrupted:
                patch.setattr(click.termui, "visible_prompt_func", interrupt)
            click.confirm("Sure?", abort=True, err=True)

    monkeypatch.setattr(main.LazyGroup, "get_command", lambda _self, _context, _name: asking)
    for words, given, code in (
        (["asking"], "n\n", exits.FAILED),
        (["asking"], "", exits.FAILED),
        (["asking", "--interrupted"], "", exits.INTERRUPTED),
    ):
        assert CliRunner().invoke(main.main, words, input=given).exit_code == code


def test_a_bug_shows_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    result = failing(monkeypatch, ZeroDivisionError("oops"))
    assert result.exit_code == exits.INTERNAL
    assert "Traceback" in result.stderr
    assert result.stderr.endswith("amq: internal error: ZeroDivisionError('oops') [INTERNAL_ERROR]\n")


def test_a_reader_that_goes_away_is_no_error() -> None:
    """`amq config show | head -1`."""
    writer = subprocess.Popen(
        [sys.executable, "-m", "amq", "config", "show"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT
    )
    assert writer.stdout is not None
    assert writer.stderr is not None
    with writer.stdout, writer.stderr:
        writer.stdout.close()
        assert b"Traceback" not in writer.stderr.read()
    assert writer.wait(DEADLINE_S) in (0, 1)
