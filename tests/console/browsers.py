"""A real browser, Debian's chromium, and a console as a process, for tests of the pages."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from brokers import Broker

import amq as client
from tests.patience import DEADLINE_S
from tests.ports import free_port

ROOT = Path(__file__).resolve().parent.parent.parent
# `make pictures` sets it to docs/pictures.
SHOTS = Path(os.environ.get("AMQ_PICTURES", ROOT / "build" / "screenshots"))
PATIENCE_MS = 1000 * DEADLINE_S
AXE = "4.14.1"
WIDTH, HEIGHT = 1200, 800


@contextmanager
def browser_page(arguments: Sequence[str] = (), **options: Any) -> Iterator[Any]:
    """A page of a new browser, started with `arguments`, whose context has these options. A dialog, or an error of a
    script, fails the test."""
    executable = shutil.which("chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        sync_playwright = None  # type: ignore[assignment]
    if executable is None or sync_playwright is None:
        if os.environ.get("CI") == "true":
            pytest.fail("a browser is missing: apt-get install chromium, pip install playwright")
        pytest.skip("no browser here: apt-get install chromium, pip install playwright")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox", *arguments])
        page = browser.new_context(**{"viewport": {"width": WIDTH, "height": HEIGHT}, **options}).new_page()
        page.set_default_timeout(PATIENCE_MS)
        wrong: list[str] = []
        page.on("dialog", lambda dialog: (wrong.append(dialog.message), dialog.dismiss()))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda line: wrong.append(line.text) if "Content Security Policy" in line.text else None)
        yield page
        browser.close()
    assert wrong == []


@contextmanager
def console(broker: Broker, by_name: bool = True) -> Iterator[str]:
    """Its URL. It asks `broker`, or, not `by_name`, whichever is the master."""
    with console_of("--store", str(broker.store), *(("--name", broker.name) if by_name else ())) as url:
        yield url


@contextmanager
def console_of(*options: str) -> Iterator[str]:
    """The URL of a console with these options."""
    port = free_port()
    words = [sys.executable, "-m", "amq.cli.main", "console", "--listen", f"127.0.0.1:{port}", *options]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            url, until = f"http://127.0.0.1:{port}", time.monotonic() + DEADLINE_S
            while True:
                try:
                    urllib.request.urlopen(f"{url}/livez", timeout=DEADLINE_S).close()
                    break
                except (urllib.error.URLError, ConnectionError):
                    assert time.monotonic() < until, "the console does not answer"
                    time.sleep(0.1)
            yield url
        finally:
            process.kill()


def send(broker: Broker, name: str, body: str, count: int = 1) -> None:
    with client.connect(f"stomp://127.0.0.1:{broker.port}") as connection, connection.session() as session:
        producer = session.producer(f"/queue/{name}")
        for _ in range(count):
            producer.send(body, headers={"mark": body[:20]}, wait=False)
        producer.flush()


def log_in(page: Any, url: str) -> None:
    page.goto(f"{url}/")
    page.get_by_label("User").fill("")
    page.keyboard.press("Enter")
    page.get_by_role("heading", name="Overview").wait_for()


def shot(page: Any, name: str) -> Path:
    """What the window shows now, as build/screenshots/NAME.png."""
    SHOTS.mkdir(parents=True, exist_ok=True)
    path = SHOTS / f"{name}.png"
    page.mouse.move(0, 0)
    page.screenshot(path=str(path), animations="disabled")
    return path


def complaints(page: Any, script: Path) -> list[Any]:
    """Those of axe-core, `script`, about the page. Figures fade while no newer ones come, as on a busy machine: they
    are looked at unfaded."""
    page.add_style_tag(content=".stale { opacity: 1 }")
    page.add_script_tag(path=str(script))
    violations = page.evaluate("axe.run()")["violations"]
    return [(each["id"], [node["html"][:200] for node in each["nodes"]][:3]) for each in violations]


def axe() -> Path:
    """The script of axe-core, which finds what assistive technology cannot use. From npm, once."""
    script = ROOT / "build" / "axe" / "package" / "axe.min.js"
    if not script.exists():
        npm = shutil.which("npm")
        if npm is None:
            if os.environ.get("CI") == "true":
                pytest.fail("npm is missing: apt-get install npm")
            pytest.skip("no npm here: apt-get install npm")
        folder = script.parent.parent
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run([npm, "pack", "--silent", f"axe-core@{AXE}"], cwd=folder, check=True, timeout=DEADLINE_S)
        shutil.unpack_archive(folder / f"axe-core-{AXE}.tgz", folder)
    return script
