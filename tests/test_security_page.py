"""The steps in docs/security.md, done as they are there: a small shop with its CA, certificates and roles."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import textwrap
from pathlib import Path

import pytest

import amq
from amq.core.errors import AmqError
from amq.security.users_edit import add_user
from tests.cli.amq_process import amq as run_amq
from tests.cli.amq_process import running
from tests.patience import DEADLINE_S
from tests.ports import free_port

ROOT = Path(__file__).resolve().parent.parent
pytestmark = pytest.mark.skipif(
    shutil.which("openssl") is None and not os.environ.get("CI"), reason="openssl is not installed"
)


def blocks() -> list[str]:
    """The indented blocks of the section, in their order."""
    section = (ROOT / "docs/security.md").read_text().partition("## Step by step")[2].partition("\n## ")[0]
    return [textwrap.dedent(found) for found in re.findall(r"(?:^       +.*\n|^\n(?=       ))+", section, re.MULTILINE)]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("shop")
    made = blocks()
    for each in made:
        if each.strip().startswith("openssl"):
            subprocess.run(["sh", "-ec", each], cwd=path, check=True, capture_output=True, timeout=DEADLINE_S)
    (path / "permissions.toml").write_text(next(each for each in made if each.strip().startswith("[roles]")))
    (path / "amq.toml").write_text(next(each for each in made if each.strip().startswith("[broker]")))
    add_user(str(path / "users"), "olga", "a long word")
    return path


def test_the_files_fit_together(directory: Path) -> None:
    done = run_amq("config", "check", directory / "amq.toml")
    assert done.returncode == 0, done.stderr
    for name in ("broker", "web"):
        assert (directory / f"{name}.key").stat().st_mode & 0o077 == 0
    told = subprocess.run(
        ["openssl", "verify", "-CAfile", "ca.pem", "broker.pem", "web.pem"],
        cwd=directory,
        capture_output=True,
        text=True,
        check=True,
        timeout=DEADLINE_S,
    )
    assert told.stdout.count(": OK") == 2


def test_the_shop_works_as_the_page_says(directory: Path, tmp_path: Path) -> None:
    port = free_port()
    trust = f"trust={directory}/ca.pem"
    listening = ("--transport", f"stomp+ssl://127.0.0.1:{port}")
    words = ("start", directory / "amq.toml", "--store", tmp_path / "store", *listening)
    with running(*words) as process:
        try:
            cert = f"certificate={directory}/web.pem&certificateKey={directory}/web.key"
            url = f"failover:(stomp+ssl://127.0.0.1:{port})?{trust}&{cert}&serverName=mq1.example.com"
            with amq.connect(url, timeout=DEADLINE_S) as web, web.session() as session:
                session.producer("/queue/orders.eu").send(b"one", wait=True)
                with pytest.raises(AmqError, match="may not"):
                    session.producer("/queue/other").send(b"x", wait=True)
        finally:
            process.terminate()
            process.wait(DEADLINE_S)
