"""docs/cli.md of the site says what the program says, and every example in it is a command line that it takes."""

from __future__ import annotations

import inspect
import re
import shlex
from pathlib import Path

import click
import pytest
from amq_process import ROOT
from click.testing import CliRunner

from amq.cli import reference
from amq.cli.exits import EXIT_CODES
from amq.cli.main import main
from amq.config.reference import options_text

COMMANDS = dict(reference.commands())
LEAVES = {name: command for name, command in COMMANDS.items() if not isinstance(command, click.Group)}
EXAMPLES = [(name, example) for name, command in COMMANDS.items() for example in reference.examples(command)]


def test_the_site_gets_its_generated_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is what the repository has, with the generated part in place of the hint where to find it."""
    monkeypatch.chdir(ROOT)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/cli.md").symlink_to(Path(ROOT, "docs/cli.md"))
    reference.write(str(tmp_path))
    names = ["cli.md", "client.md", "configuration.md", "failover-url.md", "master-slave.md", "spark.md"]
    assert sorted(path.name for path in (tmp_path / "docs").iterdir()) == names
    for path, text in reference.pages(Path(ROOT)).items():
        assert (tmp_path / path).read_text(encoding="utf-8") == text
        assert "make docs" not in text
        assert "make docs" in Path(ROOT, path).read_text(encoding="utf-8")


def test_the_command_prints_the_options() -> None:
    result = CliRunner().invoke(main, ["config", "reference"])
    assert (result.exit_code, result.output) == (0, options_text())


def test_every_command_option_and_exit_code_is_on_the_page() -> None:
    page = reference.commands_text()
    for name, command in COMMANDS.items():
        assert re.search(f"^##+ {name}$", page, re.MULTILINE)
        section = page.split(f"# {name}\n")[1]
        for option in reference.options(command):
            for word in (*option.opts, *option.secondary_opts):
                assert word in section, (name, word)
    for code in EXIT_CODES:
        assert f"| {code} |" in page


def test_the_contract() -> None:
    """Names that others rely on."""
    assert set(LEAVES) == {
        "amq start",
        "amq stop",
        "amq handover",
        "amq status",
        "amq store merge",
        "amq producer",
        "amq consumer",
        "amq demo",
        "amq demo-spark",
        "amq perf",
        "amq store init",
        "amq store upgrade",
        "amq store accept",
        "amq doctor",
        *(f"amq cluster {name}" for name in ("init", "add-store", "status", "drain", "resume", "rebalance", "forget")),
        *(f"amq cluster {name}" for name in ("import-store", "move", "moves", "outboxes", "place", "remove-store")),
        "amq cluster recover",
        "amq cluster where",
        "amq journal check",
        "amq journal dump",
        "amq journal stat",
        "amq journal compact",
        "amq journal export",
        "amq journal import",
        "amq journal repair",
        "amq config show",
        "amq config check",
        "amq config import",
        "amq config reference",
        "amq user add",
        "amq user remove",
        "amq user list",
        "amq permissions explain",
        "amq dlq list",
        "amq dlq retry",
        "amq dlq purge",
        "amq schedule list",
        "amq schedule remove",
        "amq transactions list",
        "amq transactions commit",
        "amq transactions rollback",
        "amq pipeline list",
        "amq pipeline status",
        "amq pipeline run ingest",
        "amq pipeline run drain",
        "amq pipeline run audit",
        "amq pipeline run replay",
        "amq help",
        "amq completion",
        "amq migrate",
        "amq queues",
        "amq queue show",
        "amq queue why",
        "amq queue browse",
        "amq queue peek",
        "amq queue purge",
        "amq queue delete",
        "amq queue move",
        "amq queue copy",
        "amq queue pause",
        "amq queue resume",
        "amq queue export",
        "amq topics",
        "amq subscriptions list",
        "amq subscriptions delete",
        "amq connections list",
        "amq connections close",
        "amq consumers",
        "amq message show",
        "amq message retry",
        "amq message delete",
        "amq dlq causes",
        "amq broker status",
        "amq broker drain",
        "amq top",
        "amq console",
    }
    words = {
        name: {word for option in reference.options(command) for word in option.opts}
        for name, command in LEAVES.items()
    }
    assert {"--store", "--name", "--transport", "-o"} <= words["amq start"]
    assert {"--store", "--url", "--json"} <= words["amq status"]
    for side in ("amq producer", "amq consumer"):
        assert {"--url", "--destination", "--count", "--timeout", "--json"} <= words[side]
    assert {"--file", "--message", "--size"} <= words["amq producer"]
    assert "--output" in words["amq consumer"]
    for name in ("amq dlq list", "amq dlq retry", "amq dlq purge"):
        assert {"--url", "--queue", "--reason", "--limit", "--json"} <= words[name]
    assert "--yes" in words["amq dlq purge"]
    assert {"--from", "--to", "--all", "--user", "--password-file", "--dry-run", "--json"} <= words["amq migrate"]
    assert {"--brokers", "--kills", "--file"} <= words["amq demo"]
    assert {"--output", "--users", "--property", "--force", "--strict", "--json"} <= words["amq config import"]
    assert "--property" in words["amq start"]


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_explains_itself(name: str) -> None:
    command = COMMANDS[name]
    assert reference.examples(command), "no examples"
    assert inspect.cleandoc(command.help or "").endswith((".", "`"))
    for option in reference.options(command):
        assert option.help, option.opts


@pytest.mark.parametrize(("name", "example"), EXAMPLES)
def test_each_example_is_a_command_line(
    name: str, example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is parsed to its last option, with files that it names being there; nothing is run."""
    (command_line,) = [part for part in re.split(r"\s\|\s|\s&&\s", example) if re.match(r"(AMQ_\w+=\S+ )*amq ", part)]
    words = [word for word in shlex.split(re.sub(r" >\S+", "", command_line)) if not re.match(r"AMQ_\w+=", word)]
    assert " ".join(words).startswith(name)
    words = [str(tmp_path / "file") if word.startswith("/usr/share/") else word for word in words]
    (tmp_path / "file").touch()
    monkeypatch.chdir(tmp_path)
    command: click.Command = main
    context = click.Context(main, info_name="amq")
    rest = words[1:]
    while isinstance(command, click.Group):
        found = command.get_command(context, rest[0])
        assert found is not None, rest[0]
        command, rest = found, rest[1:]
    with command.make_context("x", list(rest), parent=context) as made:
        assert bool(made.params) == bool(command.params)
