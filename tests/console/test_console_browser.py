"""The pages in a real browser, Debian's chromium, beside real brokers: a takeover, and a hostile queue, by keyboard."""

from __future__ import annotations

import pytest
from brokers import Brokers

import amq as client
from amq.console.lists import LISTS
from tests.console.browsers import axe, browser_page, console, log_in, send, shot

pytestmark = pytest.mark.deep
HOSTILE = '<img src=x onerror=alert(1)'  # STOMP takes no ">" in a name


def test_a_takeover_is_seen_in_the_browser(brokers: Brokers) -> None:
    first, second = brokers.master("a"), brokers.slave("b")
    send(first, "orders", "hello", 5)
    with console(second) as url, browser_page() as page:
        log_in(page, url)
        row = page.locator("tr", has=page.get_by_role("rowheader", name="b", exact=True))
        row.get_by_text("slave").wait_for()
        first.kill()
        row.get_by_text("master").wait_for()
        page.get_by_role("rowheader", name="2", exact=True).wait_for()
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
