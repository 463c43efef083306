"""A newcomer pastes the commands of docs/quickstart.md, line by line, into one shell with a separate home.

The environment of the tests takes the place of what the first lines install, and free ports that of those on the page,
so that test runs do not meet. Everything else runs as written.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ports import free_port
from tests.processes import LEASH, naming

pytestmark = pytest.mark.deep
ROOT = Path(__file__).resolve().parent.parent
INSTALL = ["python3 -m venv ~/amq-venv", ". ~/amq-venv/bin/activate", "pip install '.[console]'"]
PORTS = ("61613", "61614", "61615", "8161")
LIMIT_S = 240.0  # generous: some twenty processes start

# What the page says between its commands: which lines of the log to wait for, a page to open, a process to kill.
SERVING = (
    "until grep -q 'master: serving clients' ?.log && [ $(grep -l 'slave: waiting' ?.log | wc -l) = 2 ]; "
    "do sleep 0.1; done"
)
READ = "import urllib.request as u; assert b'<html' in u.urlopen('http://127.0.0.1:8161').read()"
OPEN = f'until python -c "{READ}" 2>/dev/null; do sleep 0.1; done'
PID = "import json, sys; print(json.load(sys.stdin)['master']['pid'])"
KILL = f'kill -9 $(amq status --store ~/amq-store --json | python -c "{PID}")'
SLAVE = "import json, sys; print(json.load(sys.stdin)['slaves'][0]['name'])"
# Which of them is a slave is chance, after a kill of the first master.
CHOOSE = f'slave=$(amq status --store ~/amq-store --json | python -c "{SLAVE}")'


def blocks() -> list[list[str]]:
    """The lines of each block of commands for one host."""
    page = (ROOT / "docs" / "quickstart.md").read_text()
    one_host = page[page.index("## One host") : page.index("## Three hosts")]
    return [block.splitlines() for block in re.findall(r"^```sh\n(.*?)^```", one_host, re.MULTILINE | re.DOTALL)]


def chosen(line: str) -> str:
    """`line`, for the slave that there is in place of b; some jobs have ended, which `kill` does not like."""
    named = line.replace("--to b", "--to $slave")
    if line.startswith("amq stop"):
        named = line.replace("--name b", "--name $slave")
    return named.replace("kill $(jobs -p)", "kill $(jobs -p) || true")


def script(ports: dict[str, str]) -> str:
    """All that is pasted, with what the page asks for in words."""
    first, *others = blocks()
    assert first == INSTALL
    lines = ["set -ex"]
    for block in others:
        joined = "\n".join(block)
        if joined.startswith("amq consumer"):
            lines.append(KILL)
        if joined.startswith("amq handover"):
            lines.append(CHOOSE)
        lines += [chosen(line) for line in block]
        lines += [SERVING] * ("amq start" in joined) + [OPEN] * ("amq console" in joined)
    text = "\n".join([*lines, "wait", "echo all pasted"])
    for port in ports:
        text = text.replace(port, ports[port])
    return text.replace("amq console", f"amq console --listen 127.0.0.1:{ports['8161']}")


def test_everything_on_the_page_works_as_pasted(tmp_path: Path) -> None:
    ports = {port: str(free_port()) for port in PORTS}
    text = script(ports)
    assert "--to $slave\n" in text
    assert "--name $slave\n" in text
    environment = {
        "HOME": str(tmp_path),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONDONTWRITEBYTECODE": "",
    }
    words = [sys.executable, "-SEc", LEASH, "/bin/bash", "-c", text]
    try:
        done = subprocess.run(
            words, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    finally:
        for pid, _ in naming(tmp_path):
            os.kill(pid, 9)
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert done.stdout.endswith("all pasted\n"), said
    assert "\n1\n2\n3\n" in done.stdout, said


def test_each_extra_is_named_where_it_is_needed() -> None:
    """The console and Spark are not in what `pip install .` brings."""
    readme, quickstart = ((ROOT / page).read_text() for page in ("README.md", "docs/quickstart.md"))
    assert quickstart.index("pip install '.[console]'") < quickstart.index("amq console --store")
    assert readme.index("pip install '.[spark]'") < readme.index('format("amq")')
