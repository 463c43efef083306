"""The pages in a real browser, Debian's chromium, beside real brokers: a takeover, and a hostile queue, by keyboard."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from brokers import Broker, Brokers

import amq as client
from amq.console.lists import LISTS
from tests.ports import free_port

pytestmark = pytest.mark.deep
ROOT = Path(__file__).resolve().parent.parent.parent
SHOTS = ROOT / "build" / "screenshots"
PATIENCE_MS = 20_000
AXE = "4.14.1"
HOSTILE = '<img src=x onerror=alert(1)'  # STOMP takes no ">" in a name


@contextmanager
def browser_page(**options: Any) -> Iterator[Any]:
    """A page of a new browser, whose context has these options. A dialog, or an error of a script, fails the test."""
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
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        page = browser.new_context(viewport={"width": 1280, "height": 900}, **options).new_page()
        page.set_default_timeout(PATIENCE_MS)
        wrong: list[str] = []
        page.on("dialog", lambda dialog: (wrong.append(dialog.message), dialog.dismiss()))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("console", lambda line: wrong.append(line.text) if "Content Security Policy" in line.text else None)
        yield page
        browser.close()
    assert wrong == []


@contextmanager
def console(broker: Broker) -> Iterator[str]:
    port = free_port()
    words = [sys.executable, "-m", "amq.cli.main", "console", "--store", str(broker.store), "--name", broker.name,
             "--listen", f"127.0.0.1:{port}"]  # fmt: skip
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            url, until = f"http://127.0.0.1:{port}", time.monotonic() + 30
            while time.monotonic() < until:
                try:
                    urllib.request.urlopen(f"{url}/livez", timeout=5).close()
                    break
                except (urllib.error.URLError, ConnectionError):
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


def shot(page: Any, name: str) -> None:
    SHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=str(SHOTS / f"{name}.png"), full_page=True)


def test_a_takeover_is_seen_in_the_browser(brokers: Brokers) -> None:
    first, second = brokers.master("a"), brokers.slave("b")
    send(first, "orders", "hello", 5)
    with console(second) as url, browser_page() as page:
        log_in(page, url)
        row = page.locator("tr", has=page.get_by_role("rowheader", name="b", exact=True))
        row.get_by_text("slave").wait_for()
        first.kill()
        row.get_by_text("master").wait_for()
        page.get_by_text("epoch 2").wait_for()
        send(second, "orders", "again", 100)
        page.locator("#rates", has_text="per second").wait_for()
        page.locator("#plot canvas").wait_for()
        shot(page, "overview")


def test_a_hostile_queue_is_text_and_is_purged_by_keyboard(brokers: Brokers) -> None:
    broker = brokers.master("a")
    send(broker, HOSTILE, HOSTILE, 3)
    with console(broker) as url, browser_page() as page:
        log_in(page, url)
        page.get_by_role("link", name="Queues").focus()
        page.keyboard.press("Enter")
        link = page.get_by_role("link", name=HOSTILE)
        link.wait_for()
        page.set_viewport_size({"width": 390, "height": 844})
        shot(page, "queues-phone")
        link.focus()
        page.wait_for_timeout(2500)  # a refresh swaps the table
        assert page.evaluate("document.activeElement.textContent") == HOSTILE, "focus survives"
        page.keyboard.press("Enter")
        page.get_by_text("Nobody consumes it.").wait_for()
        shot(page, "queue")
        page.get_by_role("cell", name=HOSTILE).first.wait_for()
        page.get_by_role("button", name="Purge").focus()
        page.keyboard.press("Enter")
        page.get_by_text("Purge 3 messages?").wait_for()
        page.keyboard.press("Enter")
        page.get_by_text("purge: 3 messages").wait_for()


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
        subprocess.run([npm, "pack", "--silent", f"axe-core@{AXE}"], cwd=folder, check=True, timeout=60)
        shutil.unpack_archive(folder / f"axe-core-{AXE}.tgz", folder)
    return script


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_is_accessible(brokers: Brokers, scheme: str) -> None:
    broker = brokers.master("a")
    send(broker, "orders", '{"n": 1}', 3)
    script = axe()
    with (
        console(broker) as url, browser_page(bypass_csp=True, color_scheme=scheme) as page,
        client.connect(f"stomp://127.0.0.1:{broker.port}"),
    ):  # fmt: skip

        def check(name: str) -> None:
            page.add_script_tag(path=str(script))
            found = page.evaluate("axe.run()")["violations"]
            assert [(each["id"], each["nodes"][0]["html"]) for each in found] == [], name

        page.goto(f"{url}/login")
        check("login")
        log_in(page, url)
        page.locator("#plot canvas").wait_for()
        check("overview")
        for listed in LISTS:
            page.goto(url + listed.path)
            check(listed.path)
        page.goto(f"{url}/connections")
        page.get_by_role("button", name="Close… ").first.wait_for()
        shot(page, f"connections-{scheme}")
        page.goto(f"{url}/queue/orders")
        check("queue")
        page.get_by_role("link", name="ID:").first.click()
        page.get_by_role("heading", name="Body").wait_for()
        check("message")
        page.goto(f"{url}/queue/orders")
        page.get_by_role("button", name="Purge").click()
        page.get_by_text("Purge 3 messages?").wait_for()
        check("confirm")
