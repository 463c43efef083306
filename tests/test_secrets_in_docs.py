"""No example shows a secret on a command line: everybody on the host reads those, and shells keep them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from amq.cli import reference

ROOT = Path(__file__).resolve().parent.parent
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").rglob("*.md")])
PROGRAM = re.compile(r"^\s*(?:\$ |# )?(?:[A-Z_]+=\S+ +)*(?:sudo +|python -m )?(?:amq|openssl|curl|java|spark-submit)\b")
SECRET = re.compile(
    r"--(?:to-)?(?:passcode|password|token)(?:[= ]+)(?!-)[^\s\[<]|://[^\s/:@]+:[^\s/@]+@|-pass(?:in|out)? pass:|"
    r"\b[A-Z_]*(?:PASSCODE|PASSWORD|TOKEN)=(?![\x22']?\$)[^\s$]|javax\.net\.ssl\.\w*Password=(?!\$)"
)


def commands(text: str) -> list[str]:
    """The command lines in a page, with what follows a backslash."""
    return [line for line in text.replace("\\\n", " ").split("\n") if PROGRAM.match(line)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_page_shows_a_secret_on_a_command_line(page: Path) -> None:
    shown = [line.strip() for line in commands(page.read_text()) if SECRET.search(line)]
    assert not shown, f"{page.name}: give it in a file or an environment variable"


def test_no_example_of_a_command_shows_one() -> None:
    examples = [example for _, command in reference.commands() for example in reference.examples(command)]
    assert len(examples) > 50
    assert not [example for example in examples if SECRET.search(example)]


@pytest.mark.parametrize(
    "line",
    [
        "    amq producer --url stomp://a --passcode secret",
        "amq start --passcode=x",
        "amq consumer stomp://me:word@host/",
        "AMQ_PASSCODE=secret amq producer",
        "openssl pkcs12 -in a -passout pass:x",
        "curl https://me:word@host/",
    ],
)
def test_the_search_finds_secrets(line: str) -> None:
    assert commands(line)
    assert SECRET.search(line)


@pytest.mark.parametrize(
    "line",
    [
        "amq user add x --password-stdin",
        "amq migrate --password-file f",
        'AMQ_PASSCODE="$(cat f)" amq producer',
        "amq status stomp://host:61613",
        "AMQ_PASSCODE=$WORD amq producer",
    ],
)
def test_the_search_finds_nothing_else(line: str) -> None:
    assert not SECRET.search(line)
