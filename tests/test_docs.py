"""The documents are true: links lead somewhere, commands and options exist, examples compile, codes and log lines are
real. What a component tests of its page (the configuration reference, say) is not tested again.
"""

from __future__ import annotations

import ast
import configparser
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import prose
import pytest

import amq.client
import amq.journal.format
from amq.cli.main import main
from amq.client import uri
from amq.config import names
from amq_migrate.openwire import addresses

ROOT, PAGES = prose.ROOT, prose.PAGES
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
CODE_LINK = re.compile(r"\bdocs/[\w-]+\.md\b")
pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def source(*folders: str) -> str:
    """All Python below these folders."""
    return "\n".join(path.read_text() for folder in folders for path in sorted((ROOT / folder).rglob("*.py")))


def blocks(page: Path) -> Iterator[tuple[str, str]]:
    """(language, text) of each block of code; "" where it is only indented."""
    text = prose.text_of(page)
    for match in re.finditer(r"^ *```(\w*)\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL):
        yield match[1], match[2]
    rest = re.sub(r"^ *```(\w*)\n(.*?)^ *```$", "", text, flags=re.MULTILINE | re.DOTALL)
    for match in re.finditer(r"(?:^ {4,}\S.*\n)+", rest, re.MULTILINE):
        yield "", match[0]


def commands(page: Path) -> Iterator[list[str]]:
    """The words of each `amq …` in the page's blocks of code, without what the shell takes away."""
    for language, block in blocks(page):
        if language not in ("", "sh", "shell", "bash", "console", "ini"):
            continue
        for line in re.sub(r"\\\n", " ", block).split("\n"):
            line = line.strip().removeprefix("$ ").removeprefix("ExecStart=/usr/local/bin/")
            if not re.match(r"(?:[A-Z_]+=\S+ +)*(?:amq |.*\| *amq )", line):
                continue
            for part in line.split("|") if "'" not in line else [line]:
                words = shlex.split(part, comments=True)
                while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
                    words.pop(0)
                if words and words[0] == "amq":
                    yield [word for word in words[1:] if word != "&" and not re.match(r"[<>]", word)]


def all_commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """(words, command) of every command below `group`."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from all_commands(command, (*path, name))
        else:
            yield (*path, name), command


def test_every_page_is_reachable() -> None:
    reached, left = set(), [ROOT / "docs" / "index.md"]
    while left:
        page = left.pop()
        if page not in reached and page.suffix == ".md" and page.exists():
            reached.add(page)
            left += [(page.parent / link.partition("#")[0]).resolve() for link in LINK.findall(prose.text_of(page))]
    assert set((ROOT / "docs").glob("*.md")) <= reached


@pages
def test_links_lead_somewhere(page: Path) -> None:
    for link in LINK.findall(prose.text_of(page)):
        if re.match(r"https?:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.name} links to {link}, which is not there"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", prose.text_of(target), re.MULTILINE)
            slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert anchor in slugs, f"{page.name} links to {link}, but {target.name} has no such heading"


def test_pages_that_the_code_mentions_exist() -> None:
    code = source("amq", "cli", "migrate", "bench", "tests") + (ROOT / "conf/amq.toml").read_text()
    mentioned = set(CODE_LINK.findall(code))
    missing = sorted(path for path in mentioned if not (ROOT / path).exists())
    assert not missing


@pages
def test_commands_exist(page: Path) -> None:
    known = dict(all_commands(main))
    for words in commands(page):
        path = next((path for path in known if tuple(words[: len(path)]) == path), None)
        if path is None:
            assert words[0] in ("--help", "--version"), f"{page.name}: no such command: amq {' '.join(words)}"
            continue
        options = {name for parameter in known[path].params for name in (*parameter.opts, *parameter.secondary_opts)}
        options |= {"-h", "--help"}
        for word, following in zip(words, [*words[1:], ""], strict=True):
            if word.startswith("-") and word != "-":
                assert word.partition("=")[0] in options, f"{page.name}: amq {' '.join(path)} has no option {word}"
            if word == "-o":
                assert names.find(following.partition("=")[0]), f"{page.name}: no such option of the configuration"


def test_every_command_and_option_is_in_the_manual() -> None:
    manual = prose.text_of(ROOT / "docs/cli.md")
    for path, command in all_commands(main):
        assert f"amq {' '.join(path)}" in manual
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                longest = max(parameter.opts, key=len)
                assert longest in manual, (
                    f"docs/cli.md of the site does not say what {longest} of amq {' '.join(path)} does"
                )


@pages
def test_python_compiles(page: Path) -> None:
    for language, block in blocks(page):
        if language == "python":
            compile(block, page.name, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pages
def test_failover_urls_are_understood(page: Path) -> None:
    """Those of our client; one with tcp:// is for clients of ActiveMQ."""
    for url in re.findall(r"""["'](failover:\([^"']*)["']""", prose.text_of(page)):
        (addresses if "tcp://" in url else uri).parse(url)  # for JMS clients, or for ours


def test_pictures_are_small_and_shown() -> None:
    """Drawn by bench/pictures.py, bench/churn.py, `amq demo` or test_console_pictures.py; none loads anything."""
    shown = set()
    for page in PAGES:
        shown |= {(page.parent / path).resolve() for path in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", prose.text_of(page))}
    pictures = {each for each in (ROOT / "docs/pictures").iterdir() if each.suffix != ".json"}
    assert pictures == shown
    for picture in pictures:
        if picture.suffix == ".png":
            assert picture.read_bytes()[:4] == b"\x89PNG"
            assert picture.stat().st_size <= 128 << 10
            continue
        text = picture.read_text()
        assert len(text.encode()) <= 60 << 10
        loads = re.search(r"<script|<image|(?:href|src)=.https?:|url\(https?:", text)
        assert not loads, f"{picture.name} loads something"


def test_codes_are_real() -> None:
    real = source("amq", "cli", "migrate", "spark")
    for page in PAGES:
        for code in re.findall(r"`([A-Z]+(?:_[A-Z]+)+)`", prose.text_of(page)):
            if not code.startswith(("AMQ_", "_AMQ", "F_", "O_", "CLOCK_")):
                assert f'"{code}"' in real or re.search(rf"\b{code}\b", real), f"{page.name}: nothing says {code}"


def test_errors_of_the_client_are_in_one_place() -> None:
    section = (ROOT / "docs/client.md").read_text().partition("\n## Errors\n")[2].partition("\n## ")[0]
    names_of_errors = set(re.findall(r"`(\w+Error)`", section))
    assert len(names_of_errors) > 15
    assert names_of_errors <= set(amq.client.__all__)


def documented_events() -> list[str]:
    table = (ROOT / "docs/operations.md").read_text().partition("## What the log says")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    return [event for row in rows for event in re.findall("`([^`]+)`", row)]


def logged_events() -> Iterator[tuple[str, str, str]]:
    """(file, level, event) of what a broker can write to its log, debug aside."""
    for path in [*sorted((ROOT / "amq").rglob("*.py")), *sorted((ROOT / "cli").rglob("*.py"))]:
        if path.is_relative_to(ROOT / "amq/client"):  # it logs in its application's words
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("_log.") and node.args:
                level, event = ast.unparse(node.func).removeprefix("_log."), node.args[0]
                if level != "debug" and isinstance(event, ast.Constant):
                    yield path.name, level, str(event.value)


def test_log_lines_are_real() -> None:
    events, real = documented_events(), source("amq", "cli")
    assert len(events) > 20
    for event in events:
        for part in event.split("…"):
            assert part in real, f"no log line says {part!r}"


def test_every_log_line_is_explained() -> None:
    patterns = [".*".join(re.escape(part) for part in event.split("…")) for event in documented_events()]
    events = list(logged_events())
    assert len(events) > 30
    for file, level, event in events:
        explained = any(re.fullmatch(pattern, event.replace("`", "")) for pattern in patterns)
        assert explained, f"docs/operations.md does not explain {level} {event!r} of {file}"


@pages
def test_make_targets_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for text in (*re.findall(r"`(make [^`]+)`", prose.text_of(page)), *(block for _, block in blocks(page))):
        for target in re.findall(r"^ *make ([a-z][a-z-]*)", text, re.MULTILINE):
            assert target in targets, f"{page.name}: there is no make {target}"


def test_ranges_of_dependencies_have_their_reason() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    needed = [setup["options"]["install_requires"], *setup["options.extras_require"].values()]
    page = (ROOT / "docs/dependencies.md").read_text()
    for requirement in "\n".join(needed).split():
        name, versions = re.fullmatch(r"([\w.-]+(?:\[\w+\])?)(.*)", requirement).groups()  # type: ignore[union-attr]
        assert f"| {name} | `{versions}` |" in page, f"docs/dependencies.md does not explain {requirement}"


def test_the_diagram_of_the_journal_is_that_of_the_code() -> None:
    docstring = amq.journal.format.__doc__ or ""
    diagram = docstring[docstring.index("    segment  =") : docstring.index("All integers")].rstrip()
    assert len(diagram.split("\n")) > 10
    assert diagram in (ROOT / "docs/journal-format.md").read_text()
